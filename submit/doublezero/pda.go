// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"filippo.io/edwards25519"
)

// AccountKey says which samples an account holds: those that Origin took of Target over Link in one epoch of the ledger. The same
// link measured from its other end has another account.
type AccountKey struct {
	Origin, Target, Link Pubkey
	Epoch                uint64
}

// Address returns where the telemetry program keeps the account, and the bump that the address was found with.
func (k AccountKey) Address(program Pubkey) (addr Pubkey, bump uint8, err error) {
	seeds := slices.Concat([]byte("telemetry"), []byte("dzlatency"), k.Origin[:], k.Target[:], k.Link[:])
	seeds = binary.LittleEndian.AppendUint64(seeds, k.Epoch)

	// An address of a program must be no public key, so that nobody can sign for it. The first hash counts that is not one.
	for n := 255; n >= 0; n-- {
		addr = sha256.Sum256(slices.Concat(seeds, []byte{byte(n)}, program[:], []byte("ProgramDerivedAddress")))
		if _, err := new(edwards25519.Point).SetBytes(addr[:]); err != nil {
			return addr, uint8(n), nil
		}
	}
	return Pubkey{}, 0, fmt.Errorf("program %s has no address for %+v", program, k)
}
