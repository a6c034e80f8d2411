// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
)

// maxTransaction is the size of the largest transaction that the ledger takes, in bytes.
const maxTransaction = 1232

// systemProgram makes accounts and moves money. Its address is all zero.
var systemProgram Pubkey

// agent is what all transactions of this process have in common: who signs and pays, to which program, for which release. It may be
// used by several goroutines.
type agent struct {
	keypair *Keypair
	program Pubkey // the telemetry program
	release release
}

func newAgent(keypair *Keypair, program Pubkey, version, commit string) *agent {
	return &agent{keypair: keypair, program: program, release: newRelease(version, commit)}
}

// instruction is one for the telemetry program. All of ours name the samples account, the agent, and others that they only read.
type instruction struct {
	account  Pubkey
	readOnly []Pubkey
	data     []byte
}

// initializeTransaction makes the account of key. Signed again with another blockhash it is still harmless: an account is made once.
// The interval is that of the samples.
func (a *agent) initializeTransaction(key AccountKey, intervalMicros uint64, blockhash hash) (signed []byte, sig Signature, err error) {
	if intervalMicros == 0 {
		return nil, sig, errors.New("initialize with a sampling interval of 0")
	}
	account, _, err := key.Address(a.program)
	if err != nil {
		return nil, sig, err
	}
	return a.sign(instruction{
		account:  account,
		readOnly: []Pubkey{key.Origin, key.Target, key.Link, systemProgram},
		data:     initializeData(key.Epoch, intervalMicros, a.release),
	}, blockhash)
}

// writeTransaction appends samples, in whole microseconds or 0, to account. The first of them was taken at startMicros after 1970.
// The same arguments give the same bytes, which the ledger takes at most once; another blockhash or start makes another append.
func (a *agent) writeTransaction(account Pubkey, startMicros uint64, samples []uint32, blockhash hash) (signed []byte, sig Signature, err error) {
	if len(samples) == 0 || len(samples) > MaxSamplesPerWrite {
		return nil, sig, fmt.Errorf("write of %d samples: expected 1 to %d", len(samples), MaxSamplesPerWrite)
	}
	return a.sign(instruction{
		account:  account,
		readOnly: []Pubkey{systemProgram},
		data:     writeData(startMicros, samples, a.release),
	}, blockhash)
}

// sign puts an instruction into a legacy transaction. The ledger takes keys of one class (writable or not) in any order; ours is that
// of the agent that xtwamp replaces.
func (a *agent) sign(in instruction, blockhash hash) (signed []byte, sig Signature, err error) {
	readOnly := append(slices.Clone(in.readOnly), a.program)
	slices.SortFunc(readOnly, func(x, y Pubkey) int { return bytes.Compare(x[:], y[:]) })
	// The agent stands first, as the one who pays the fee. That is also what makes it writable, as the rent that it pays
	// inside the instruction demands, although the instruction only reads it.
	keys := append([]Pubkey{a.keypair.Public(), in.account}, readOnly...)

	// One signature, by a key that is writable; then how many keys are read-only.
	m := []byte{1, 0, byte(len(readOnly))}
	m = appendCompact(m, len(keys))
	for _, k := range keys {
		m = append(m, k[:]...)
	}
	m = append(m, blockhash[:]...)
	m = appendCompact(m, 1) // instruction
	m = append(m, byte(slices.Index(keys, a.program)))
	m = appendCompact(m, 2+len(in.readOnly))
	m = append(m, 1, 0) // the account, the agent
	for _, k := range in.readOnly {
		m = append(m, byte(slices.Index(keys, k)))
	}
	m = appendCompact(m, len(in.data))
	m = append(m, in.data...)

	sig = Signature(a.keypair.sign(m))
	signed = appendCompact(nil, 1)
	signed = append(signed, sig[:]...)
	signed = append(signed, m...)
	if len(signed) > maxTransaction {
		return nil, Signature{}, fmt.Errorf("transaction of %d bytes: expected at most %d", len(signed), maxTransaction)
	}
	return signed, sig, nil
}

// appendCompact appends a length below 65536: seven bits a byte, the lowest first, the top bit set while more follow.
func appendCompact(b []byte, n int) []byte {
	for ; n > 0x7f; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(b, byte(n))
}
