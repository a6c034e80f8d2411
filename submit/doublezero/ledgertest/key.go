// SPDX-License-Identifier: Apache-2.0

package ledgertest

import (
	"crypto/ed25519"
	"encoding/binary"
	"fmt"

	"github.com/gagliardetto/solana-go"
)

// Pubkey is the address of an account, which for most accounts is an ed25519 public key. Its text form is base58.
type Pubkey [32]byte

// The programs of the devnet environment, which are the defaults of [Options].
const (
	devnetTelemetry      = "C9xqH76NSm11pBS6maNnY163tWHT8Govww47uyEmSnoG"
	devnetServiceability = "GYhQDKuESrasNZGyhMJhGYFtbzNijYhcrN9poSqCQVah"
)

// systemProgram owns all accounts that no other program does. Its address is all zero.
var systemProgram = Pubkey{}

// ParsePubkey reads the base58 form.
func ParsePubkey(s string) (Pubkey, error) {
	k, err := solana.PublicKeyFromBase58(s)
	if err != nil {
		return Pubkey{}, fmt.Errorf("public key %q: %w", s, err)
	}
	return Pubkey(k), nil
}

// MustPubkey is [ParsePubkey] for constants; it panics.
func MustPubkey(s string) Pubkey {
	k, err := ParsePubkey(s)
	if err != nil {
		panic(err)
	}
	return k
}

// PubkeyOf returns the public half of a key.
func PubkeyOf(k ed25519.PrivateKey) Pubkey { return Pubkey(k.Public().(ed25519.PublicKey)) }

func (k Pubkey) String() string { return solana.PublicKey(k).String() }

// MarshalText returns the base58 form.
func (k Pubkey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads the base58 form.
func (k *Pubkey) UnmarshalText(text []byte) (err error) {
	*k, err = ParsePubkey(string(text))
	return err
}

// samplesAddress derives the address of the account for one direction of a link in one epoch.
func samplesAddress(program, origin, target, link Pubkey, epoch uint64) Pubkey {
	seeds := [][]byte{[]byte("telemetry"), []byte("dzlatency"), origin[:], target[:], link[:], binary.LittleEndian.AppendUint64(nil, epoch)}
	addr, _, err := solana.FindProgramAddress(seeds, solana.PublicKey(program))
	if err != nil {
		panic(err) // all 256 bumps on the curve
	}
	return Pubkey(addr)
}
