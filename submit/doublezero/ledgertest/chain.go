// SPDX-License-Identifier: Apache-2.0

package ledgertest

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
	"slices"
	"time"
)

const (
	maxAge         = 150 // blocks after its own that a blockhash may be used in
	minSlotsInPart = 32  // slots of the first epoch of a warm-up
)

// chain is the ledger's calendar: which slot it is, which slots have a block, and when they were. It holds no clock; callers pass
// the time in. Slots before the first segment are taken to have passed at the same pace.
type chain struct {
	slotTime          time.Duration
	confirm, finality uint64 // slots after its own until a block is confirmed, finalized
	slotsPerEpoch     uint64
	warmup            bool
	skipFirst         uint64 // slots at the start of each epoch but epoch 0 that have no block
	skipEvery         uint64 // of so many slots the last has no block; 0 = all have
	genesis           [32]byte

	segments []segment // ascending by slot and by time; of those that begin with the same slot, the last counts
	holes    []hole    // ascending, apart from each other
	hashes   map[[32]byte]uint64
}

// segment says how time and slots go together from one slot on.
type segment struct {
	slot   uint64
	at     time.Time     // when slot began, by the host's clock
	offset time.Duration // of the ledger's clock from the host's
	halted bool          // no slot comes after it until the next segment
}

// hole is slots from <= s < to without a block: jumped over, or on a fork that was dropped.
type hole struct{ from, to uint64 }

func (c *chain) firstNormal() (epoch, slot uint64) {
	if !c.warmup {
		return 0, 0
	}
	doublings := bits.Len64(c.slotsPerEpoch-1) - bits.Len64(minSlotsInPart-1)
	return uint64(doublings), minSlotsInPart<<doublings - minSlotsInPart
}

func (c *chain) firstSlot(epoch uint64) uint64 {
	normal, slot := c.firstNormal()
	if epoch < normal {
		return minSlotsInPart<<epoch - minSlotsInPart
	}
	return slot + (epoch-normal)*c.slotsPerEpoch
}

func (c *chain) slotsIn(epoch uint64) uint64 { return c.firstSlot(epoch+1) - c.firstSlot(epoch) }

// epochOf returns the epoch of a slot and the slot's index in it.
func (c *chain) epochOf(slot uint64) (epoch, index uint64) {
	normal, first := c.firstNormal()
	if slot >= first {
		return normal + (slot-first)/c.slotsPerEpoch, (slot - first) % c.slotsPerEpoch
	}
	epoch = uint64(bits.Len64(slot/minSlotsInPart+1) - 1)
	return epoch, slot - c.firstSlot(epoch)
}

// current returns the segment that counts now, and the slot that runs now, block or not.
func (c *chain) current(now time.Time) (segment, uint64) {
	for _, s := range slices.Backward(c.segments) {
		if passed := now.Sub(s.at); passed >= 0 {
			if s.halted {
				return s, s.slot
			}
			return s, s.slot + uint64(passed/c.slotTime)
		}
	}
	return c.segments[0], c.segments[0].slot
}

// push lets s count from its slot on, which runs now or is to come, with the clock offset of the segment before it.
func (c *chain) push(s segment) {
	s.offset = c.segments[len(c.segments)-1].offset
	c.segments = append(c.segments, s)
}

// pushCurrent lets a segment begin with the slot that runs now, without changing when that began.
func (c *chain) pushCurrent(now time.Time, halted bool) {
	s, slot := c.current(now)
	c.push(segment{slot: slot, at: s.at.Add(time.Duration(slot-s.slot) * c.slotTime), halted: halted})
}

func (c *chain) halt(now time.Time) { c.pushCurrent(now, true) }

func (c *chain) resume(now time.Time) {
	if s, slot := c.current(now); s.halted {
		c.push(segment{slot: slot + 1, at: now})
	}
}

// jump makes slot the one that begins now; those between have no block.
func (c *chain) jump(now time.Time, slot uint64) {
	s, last := c.current(now)
	c.push(segment{slot: slot, at: now, halted: s.halted})
	c.dig(hole{last + 1, slot})
}

// setOffset lets the ledger's clock differ from the host's from the slot on that runs now.
func (c *chain) setOffset(now time.Time, offset time.Duration) {
	s, _ := c.current(now)
	c.pushCurrent(now, s.halted)
	c.segments[len(c.segments)-1].offset = offset
}

// dig takes the blocks of h away.
func (c *chain) dig(h hole) {
	if h.from >= h.to {
		return
	}
	kept := c.holes[:0:0]
	for _, o := range c.holes {
		if o.to < h.from || h.to < o.from {
			kept = append(kept, o)
			continue
		}
		h.from, h.to = min(h.from, o.from), max(h.to, o.to)
	}
	kept = append(kept, h)
	slices.SortFunc(kept, func(a, b hole) int { return int(int64(a.from - b.from)) })
	c.holes = kept
}

func (c *chain) holeAt(slot uint64) (hole, bool) {
	for _, h := range slices.Backward(c.holes) {
		if h.from <= slot && slot < h.to {
			return h, true
		}
	}
	return hole{}, false
}

// skipped reports whether a slot has no block.
func (c *chain) skipped(slot uint64) bool {
	_, dug := c.holeAt(slot)
	return dug || c.skippedByPattern(slot)
}

func (c *chain) skippedByPattern(slot uint64) bool {
	epoch, index := c.epochOf(slot)
	return epoch > 0 && index < c.skipFirst || c.skipEvery > 0 && index%c.skipEvery == c.skipEvery-1
}

// prev returns the newest slot up to slot that has a block, or 0.
func (c *chain) prev(slot uint64) uint64 {
	for slot > 0 && c.skipped(slot) {
		if h, dug := c.holeAt(slot); dug {
			slot = h.from
		}
		slot--
	}
	return slot
}

// next returns the first slot from slot on that has a block.
func (c *chain) next(slot uint64) uint64 {
	for c.skipped(slot) {
		slot++
		if h, dug := c.holeAt(slot); dug {
			slot = h.to
		}
	}
	return slot
}

// height returns how many blocks there are up to and with slot.
func (c *chain) height(slot uint64) uint64 {
	n := c.blocksBefore(slot + 1)
	for _, h := range c.holes {
		if h.from <= slot {
			n -= c.blocksBefore(min(h.to, slot+1)) - c.blocksBefore(h.from)
		}
	}
	return n
}

// blocksBefore counts the slots before slot that have a block if there are no holes.
func (c *chain) blocksBefore(slot uint64) uint64 {
	epoch, index := c.epochOf(slot)
	skipped := c.skippedIn(epoch, index)
	normal, _ := c.firstNormal()
	for e := range min(epoch, normal) {
		skipped += c.skippedIn(e, c.slotsIn(e))
	}
	if epoch > normal {
		skipped += c.skippedIn(normal, c.slotsPerEpoch)
		skipped += (epoch - normal - 1) * c.skippedIn(normal+1, c.slotsPerEpoch)
	}
	return slot - skipped
}

// skippedIn counts the slots without a block among the first n of an epoch.
func (c *chain) skippedIn(epoch, n uint64) uint64 {
	first := min(n, c.skipFirst)
	if epoch == 0 {
		first = 0
	}
	if c.skipEvery == 0 {
		return first
	}
	return first + n/c.skipEvery - first/c.skipEvery
}

// began returns when a slot began, by the host's clock and by the ledger's.
func (c *chain) began(slot uint64) (host, ledger time.Time) {
	s := c.segments[0]
	for _, later := range c.segments[1:] {
		if later.slot > slot {
			break
		}
		s = later
	}
	host = s.at.Add(time.Duration(int64(slot-s.slot)) * c.slotTime)
	return host, host.Add(s.offset)
}

// blockhash returns the hash of a slot's block and remembers it as one that a transaction may name.
func (c *chain) blockhash(slot uint64) [32]byte {
	hash := sha256.Sum256(binary.LittleEndian.AppendUint64(c.genesis[:], slot))
	c.hashes[hash] = slot
	return hash
}

// fresh reports whether a transaction with this blockhash may be in the block of slot.
func (c *chain) fresh(hash [32]byte, slot uint64) bool {
	of, known := c.hashes[hash]
	return known && of <= slot && !c.skipped(of) && c.height(slot) <= c.lastValid(of)
}

// lastValid returns the block height up to which the hash of slot's block may be used.
func (c *chain) lastValid(slot uint64) uint64 { return c.height(slot) + maxAge }

// forget drops hashes that are long past use.
func (c *chain) forget(tip uint64) {
	if len(c.hashes) < 4096 {
		return
	}
	for hash, slot := range c.hashes {
		if c.height(tip) > c.lastValid(slot) {
			delete(c.hashes, hash)
		}
	}
}
