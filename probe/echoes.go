// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"hash/maphash"
	"net/netip"
	"slices"
)

// echoes remembers the last 16,384 DoubleZero probes that a socket has answered, by hashes, like the kernel's reflector. Their
// reply is the probe again, and that of another reflector to ours comes in like a request; but no sender sends a probe twice.
// One goroutine uses it.
type echoes struct {
	seed maphash.Seed
	sets [2048][8]uint64 // the latest first
}

func newEchoes() *echoes { return &echoes{seed: maphash.MakeSeed()} }

// seenBefore reports whether the probe has come from there before, and notes that it has now.
func (e *echoes) seenBefore(q request) bool {
	hash := maphash.Comparable(e.seed, struct {
		from  netip.AddrPort
		to    netip.Addr
		probe [12]byte // sequence number and time
	}{q.from, q.to, [12]byte(q.payload)})
	set := &e.sets[hash%uint64(len(e.sets))]
	if slices.Contains(set[:], hash) {
		return true
	}
	copy(set[1:], set[:])
	set[0] = hash
	return false
}
