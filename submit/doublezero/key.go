// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/mr-tron/base58"
)

// Pubkey is the address of an account or program, or the public half of a key pair. Its text form is base58.
type Pubkey [32]byte

// ParsePubkey reads the text form of a key.
func ParsePubkey(s string) (Pubkey, error) {
	var k Pubkey
	return k, k.UnmarshalText([]byte(s))
}

func (k Pubkey) String() string { return base58.Encode(k[:]) }

// MarshalText makes the text form also that of JSON and YAML.
func (k Pubkey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText is [ParsePubkey].
func (k *Pubkey) UnmarshalText(text []byte) error { return decode58(k[:], "public key", text) }

// Signature of a transaction, by which the ledger names the transaction. Its text form is base58.
type Signature [64]byte

func (s Signature) String() string { return base58.Encode(s[:]) }

// MarshalText makes the text form also that of JSON.
func (s Signature) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the text form.
func (s *Signature) UnmarshalText(text []byte) error { return decode58(s[:], "signature", text) }

// hash names a block or, as that of the first block, a ledger. Its text form is base58.
type hash [32]byte

func (h hash) String() string { return base58.Encode(h[:]) }

func (h *hash) UnmarshalText(text []byte) error { return decode58(h[:], "hash", text) }

// decode58 reads exactly as many bytes as dst has, or leaves it alone. What is called in the error as it is, the text only if it is
// of a length that can be meant.
func decode58(dst []byte, what string, text []byte) error {
	// A byte takes 1.37 digits. Decoding takes the square of the length, so nonsense must end here.
	if longest := len(dst)*138/100 + 1; len(text) > longest {
		return fmt.Errorf("%s of %d characters: expected at most %d in base58", what, len(text), longest)
	}
	b, err := base58.Decode(string(text))
	if err != nil {
		return fmt.Errorf("%s %q: %w", what, text, err)
	}
	if len(b) != len(dst) {
		return fmt.Errorf("%s %q: %d bytes in base58, expected %d", what, text, len(b), len(dst))
	}
	copy(dst, b)
	return nil
}

// Keypair signs transactions. Nothing that prints or encodes it shows the secret.
type Keypair struct {
	public Pubkey
	sign   func(message []byte) []byte // holds the secret, where no formatter or encoder looks
}

// Public is the public half.
func (k *Keypair) Public() Pubkey { return k.public }

func (k *Keypair) String() string { return k.public.String() }

// maxKeypairFile is the largest key pair file, in bytes. One with each number on a line of its own and indented has 600.
const maxKeypairFile = 4096

// ReadKeypair reads a file as the Solana command line writes it: a JSON array of 64 numbers, the seed and the public half. A file
// that others than its owner have any access to is refused. Errors never quote what is in the file.
func ReadKeypair(path string) (*Keypair, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe that nobody writes to must not block the start
	if err != nil {
		return nil, fmt.Errorf("keypair file: %w", err)
	}
	defer f.Close()
	k, err := readKeypair(f)
	if err != nil {
		return nil, fmt.Errorf("keypair file %s: %w", path, err)
	}
	return k, nil
}

func readKeypair(f *os.File) (*Keypair, error) {
	info, err := f.Stat() // of what is open, whatever its name means by now
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("mode %04o lets others than its owner at it: expected 0600", mode)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxKeypairFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxKeypairFile {
		return nil, fmt.Errorf("larger than %d bytes", maxKeypairFile)
	}
	return parseKeypair(data)
}

func parseKeypair(data []byte) (*Keypair, error) {
	var numbers []int // bytes would be taken from base64, too
	if json.Unmarshal(data, &numbers) != nil {
		return nil, errors.New("expected a JSON array of numbers") // the decoder's error quotes them
	}
	if len(numbers) != ed25519.PrivateKeySize {
		return nil, fmt.Errorf("%d numbers: expected %d, the seed and the public key", len(numbers), ed25519.PrivateKeySize)
	}
	var half [2]Pubkey
	for i, n := range numbers {
		if n < 0 || n > 255 {
			return nil, fmt.Errorf("number %d of %d is not a byte", i+1, len(numbers))
		}
		half[i/32][i%32] = byte(n)
	}
	k := newKeypair(half[0])
	if k.public != half[1] {
		return nil, errors.New("the public key in its second half does not belong to the seed in its first")
	}
	return k, nil
}

func newKeypair(seed [ed25519.SeedSize]byte) *Keypair {
	private := ed25519.NewKeyFromSeed(seed[:])
	return &Keypair{
		public: Pubkey(private.Public().(ed25519.PublicKey)),
		sign:   func(message []byte) []byte { return ed25519.Sign(private, message) },
	}
}
