// SPDX-License-Identifier: Apache-2.0

package ledgertest

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gagliardetto/solana-go"
	"github.com/gagliardetto/solana-go/base58"
)

// maxTransaction is the largest serialized transaction that is accepted, in bytes.
const maxTransaction = 1232

// transaction is a decoded transaction of the unversioned kind.
type transaction struct {
	raw          []byte
	signatures   [][64]byte
	message      []byte // what is signed
	keys         []Pubkey
	writable     []bool // by key
	blockhash    [32]byte
	instructions []instruction
}

// instruction is one call of a program.
type instruction struct {
	program  Pubkey
	accounts []accountRef
	data     []byte
}

// accountRef names an account in an instruction, with what the transaction allows to do with it.
type accountRef struct {
	key              Pubkey
	signer, writable bool
}

// decodeTransaction refuses what a node would not take in, also bytes that another encoding of the same transaction would have.
func decodeTransaction(raw []byte) (*transaction, error) {
	if len(raw) > maxTransaction {
		return nil, fmt.Errorf("too large: %d bytes (max: encoded/raw 1644/%d)", len(raw), maxTransaction)
	}
	decoded, err := solana.TransactionFromBytes(raw)
	if err != nil {
		return nil, err
	}
	m := decoded.Message
	if again, err := decoded.MarshalBinary(); err != nil || !bytes.Equal(again, raw) {
		return nil, errors.New("not in canonical form")
	}
	switch err := decoded.Sanitize(); {
	case err != nil:
		return nil, err
	case m.IsVersioned():
		return nil, errors.New("unsupported version")
	case m.HasDuplicates():
		return nil, errors.New("account loaded twice")
	}
	signers, writableSigners := int(m.Header.NumRequiredSignatures), int(m.Header.NumRequiredSignatures-m.Header.NumReadonlySignedAccounts)
	writableEnd := len(m.AccountKeys) - int(m.Header.NumReadonlyUnsignedAccounts)

	tx := &transaction{raw: raw, message: raw[1+64*signers:], blockhash: [32]byte(m.RecentBlockhash)}
	for _, s := range decoded.Signatures {
		tx.signatures = append(tx.signatures, [64]byte(s))
	}
	for i, k := range m.AccountKeys {
		tx.keys = append(tx.keys, Pubkey(k))
		tx.writable = append(tx.writable, i < writableSigners || i >= signers && i < writableEnd)
	}
	for _, in := range m.Instructions {
		out := instruction{program: tx.keys[in.ProgramIDIndex], data: in.Data}
		for _, i := range in.Accounts {
			out.accounts = append(out.accounts, accountRef{tx.keys[i], int(i) < signers, tx.writable[i]})
		}
		tx.instructions = append(tx.instructions, out)
	}
	return tx, nil
}

// id is the base58 form of the first signature.
func (tx *transaction) id() string { return base58.Encode64(&tx.signatures[0]) }

func (tx *transaction) payer() Pubkey { return tx.keys[0] }

// signed reports whether all signatures are right.
func (tx *transaction) signed() bool {
	for i, s := range tx.signatures {
		if !ed25519.Verify(tx.keys[i][:], tx.message, s[:]) {
			return false
		}
	}
	return true
}

// txError is why a transaction failed. Its JSON form is what the ledger puts into "err" fields.
type txError struct {
	instruction int    // index of the instruction that failed, -1: the transaction as a whole
	value       any    // of the enumeration that the ledger's errors are: a name, or an object with one member
	text        string // in messages
	code        int    // of the program, or -1
}

func (e *txError) MarshalJSON() ([]byte, error) {
	if e.instruction < 0 {
		return json.Marshal(e.value)
	}
	return json.Marshal(map[string]any{"InstructionError": []any{e.instruction, e.value}})
}

func (e *txError) message() string {
	if e.instruction < 0 {
		return e.text
	}
	return fmt.Sprintf("Error processing Instruction %d: %s", e.instruction, e.text)
}

// instructionError is a failure of an instruction that is not the program's own.
func instructionError(name string) *txError { return &txError{value: name, text: name, code: -1} }

// customError is a failure of an instruction with an error code of a program.
func customError(code int) *txError {
	return &txError{value: map[string]int{"Custom": code}, text: fmt.Sprintf("custom program error: 0x%x", code), code: code}
}

func wholeError(value any, text string) *txError {
	return &txError{instruction: -1, value: value, text: text, code: -1}
}

func errBlockhashNotFound() *txError {
	return wholeError("BlockhashNotFound", "Blockhash not found")
}

func errAlreadyProcessed() *txError {
	return wholeError("AlreadyProcessed", "This transaction has already been processed")
}

func errPayerNotFound() *txError {
	return wholeError("AccountNotFound", "Attempt to debit an account but found no record of a prior credit.")
}

func errPayerCannotPay() *txError {
	return wholeError("InsufficientFundsForFee", "Insufficient funds for fee")
}

func errPayerRent() *txError {
	return wholeError(map[string]any{"InsufficientFundsForRent": map[string]int{"account_index": 0}},
		"Transaction results in an account (0) with insufficient funds for rent")
}

func errProgramNotFound() *txError {
	return wholeError("ProgramAccountNotFound", "Attempt to load a program that does not exist")
}
