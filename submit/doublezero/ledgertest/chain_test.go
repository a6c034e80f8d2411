// SPDX-License-Identifier: Apache-2.0

package ledgertest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var chainStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newChain(slot uint64) *chain {
	return &chain{
		slotTime: 400 * time.Millisecond, confirm: 2, finality: 32, slotsPerEpoch: 432_000, skipFirst: 4, skipEvery: 20,
		segments: []segment{{slot: slot, at: chainStart}}, hashes: make(map[[32]byte]uint64),
	}
}

func TestEpochs(t *testing.T) {
	type place struct{ Slot, Epoch, Index, SlotsIn uint64 }
	places := func(c *chain, slots ...uint64) (list []place) {
		for _, s := range slots {
			e, i := c.epochOf(s)
			list = append(list, place{s, e, i, c.slotsIn(e)})
		}
		return list
	}
	c := newChain(0)
	if diff := cmp.Diff([]place{
		{0, 0, 0, 432_000}, {431_999, 0, 431_999, 432_000}, {432_000, 1, 0, 432_000}, {194*432_000 + 7, 194, 7, 432_000},
	}, places(c, 0, 431_999, 432_000, 194*432_000+7)); diff != "" {
		t.Errorf("without warm-up (-want +got):\n%s", diff)
	}

	// The numbers are those of a cluster with warm-up that is public.
	c.warmup = true
	if epoch, slot := c.firstNormal(); epoch != 14 || slot != 524_256 {
		t.Errorf("warm-up ends with epoch %d, slot %d, want 14, 524256", epoch, slot)
	}
	if diff := cmp.Diff([]place{
		{0, 0, 0, 32}, {31, 0, 31, 32}, {32, 1, 0, 64}, {95, 1, 63, 64}, {96, 2, 0, 128}, {524_255, 13, 262_143, 262_144},
		{524_256, 14, 0, 432_000}, {956_256, 15, 0, 432_000},
	}, places(c, 0, 31, 32, 95, 96, 524_255, 524_256, 956_256)); diff != "" {
		t.Errorf("with warm-up (-want +got):\n%s", diff)
	}
	c.slotsPerEpoch = 8192
	if epoch, slot := c.firstNormal(); epoch != 8 || slot != 8160 {
		t.Errorf("warm-up to 8192 slots ends with epoch %d, slot %d, want 8, 8160", epoch, slot)
	}
}

// TestBlocks compares what is computed about skipped slots with what counting them gives.
func TestBlocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newChain(0)
		c.slotsPerEpoch = rapid.Uint64Range(32, 100).Draw(t, "slots per epoch")
		c.warmup = rapid.Bool().Draw(t, "warmup")
		c.skipFirst = rapid.Uint64Range(0, 8).Draw(t, "skip first")
		c.skipEvery = rapid.SampledFrom([]uint64{0, 2, 3, 7, 20}).Draw(t, "skip every")
		for range rapid.IntRange(0, 5).Draw(t, "holes") {
			from := rapid.Uint64Range(1, 400).Draw(t, "from")
			c.dig(hole{from, from + rapid.Uint64Range(0, 60).Draw(t, "length")})
		}
		for i, h := range c.holes[:max(len(c.holes), 1)-1] {
			if h.to >= c.holes[i+1].from {
				t.Fatalf("holes touch: %v", c.holes)
			}
		}
		var height, last uint64
		for slot := range uint64(500) {
			if !c.skipped(slot) {
				height++
				last = slot
			}
			if got := c.height(slot); got != height {
				t.Fatalf("height of slot %d is %d, want %d", slot, got, height)
			}
			if got := c.prev(slot); got != last {
				t.Fatalf("block at or before slot %d is %d, want %d", slot, got, last)
			}
			next := slot
			for c.skipped(next) {
				next++
			}
			if got := c.next(slot); got != next {
				t.Fatalf("block at or after slot %d is %d, want %d", slot, got, next)
			}
		}
	})
}

func TestSkippedSlots(t *testing.T) {
	c := newChain(0)
	var skipped []uint64
	for slot := uint64(432_000 - 25); slot < 432_000+45; slot++ {
		if c.skipped(slot) {
			skipped = append(skipped, slot)
		}
	}
	want := []uint64{431_979, 431_999, 432_000, 432_001, 432_002, 432_003, 432_019, 432_039}
	if diff := cmp.Diff(want, skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
}

// TestTime follows a ledger through a halt, a rollover before its time, and a clock that is set.
func TestTime(t *testing.T) {
	const start = 5*432_000 + 100
	c := newChain(start)
	at := func(d time.Duration) time.Time { return chainStart.Add(d) }
	slotAt := func(d time.Duration, want uint64) {
		t.Helper()
		if _, got := c.current(at(d)); got != want {
			t.Errorf("slot after %v is %d, want %d", d, got, want)
		}
	}
	beganAt := func(slot uint64, want time.Duration) {
		t.Helper()
		if _, got := c.began(slot); !got.Equal(at(want)) {
			t.Errorf("slot %d began at %v, want %v", slot, got.Sub(chainStart), want)
		}
	}
	slotAt(0, start)
	slotAt(399*time.Millisecond, start)
	slotAt(10*time.Second, start+25)
	beganAt(start+25, 10*time.Second)
	beganAt(start-25, -10*time.Second)

	c.halt(at(10*time.Second + 300*time.Millisecond))
	slotAt(time.Hour, start+25)
	c.resume(at(time.Hour))
	slotAt(time.Hour, start+26)
	slotAt(time.Hour+time.Second, start+28)
	beganAt(start+25, 10*time.Second)
	beganAt(start+26, time.Hour)

	c.jump(at(time.Hour+time.Second), 6*432_000)
	slotAt(time.Hour+time.Second, 6*432_000)
	beganAt(start+28, time.Hour+800*time.Millisecond)
	beganAt(6*432_000+5, time.Hour+3*time.Second)
	if got := c.prev(6*432_000 + 3); got != start+28 {
		t.Errorf("block before the jump is %d, want %d", got, start+28)
	}
	if got, want := c.height(6*432_000+4), c.height(start+28)+1; got != want {
		t.Errorf("height behind the jump is %d, want %d", got, want)
	}

	c.setOffset(at(time.Hour+3100*time.Millisecond), time.Hour)
	beganAt(6*432_000+4, time.Hour+2600*time.Millisecond)
	beganAt(6*432_000+5, 2*time.Hour+3*time.Second)
	slotAt(time.Hour+3*time.Second, 6*432_000+5)
	slotAt(time.Hour+4*time.Second, 6*432_000+7)
	c.halt(at(time.Hour + 4*time.Second))
	beganAt(6*432_000+7, 2*time.Hour+3800*time.Millisecond)
	c.setOffset(at(2*time.Hour), -time.Hour)
	beganAt(6*432_000+6, 2*time.Hour+3400*time.Millisecond)
	beganAt(6*432_000+7, 3800*time.Millisecond)
	slotAt(3*time.Hour, 6*432_000+7)
	c.jump(at(3*time.Hour), 7*432_000)
	slotAt(4*time.Hour, 7*432_000)
	c.resume(at(5 * time.Hour))
	slotAt(5*time.Hour+time.Second, 7*432_000+3)
	beganAt(7*432_000+3, 4*time.Hour+800*time.Millisecond)
}

func TestBlockhashAge(t *testing.T) {
	const slot = 7*432_000 + 50
	c := newChain(slot)
	hash := c.blockhash(slot)
	if c.fresh([32]byte{1}, slot) {
		t.Error("a blockhash that was never given out is good")
	}
	if c.fresh(hash, slot-1) {
		t.Error("a blockhash is good before its block")
	}
	last := slot + uint64(maxAge)
	for c.height(last) < c.height(slot)+maxAge {
		last++
	}
	if last == slot+maxAge {
		t.Fatal("no slot was skipped")
	}
	if !c.fresh(hash, slot) || !c.fresh(hash, last) || c.fresh(hash, c.next(last+1)) {
		t.Errorf("a blockhash is not good for exactly %d blocks", maxAge)
	}
	if got, want := c.lastValid(slot), c.height(last); got != want {
		t.Errorf("last valid block height %d, want %d", got, want)
	}
	c.dig(hole{slot, slot + 1})
	if c.fresh(hash, slot+10) {
		t.Error("a blockhash of a dropped block is good")
	}
}

// TestForget asks for many blockhashes; those that are still good are kept.
func TestForget(t *testing.T) {
	c := newChain(10 * 432_000)
	tip := uint64(10*432_000 + 100)
	for ; tip < 10*432_000+10_000; tip++ {
		c.blockhash(c.prev(tip))
		c.forget(tip)
	}
	if got := len(c.hashes); got > 4096 {
		t.Errorf("%d blockhashes are kept", got)
	}
	kept := make(map[uint64]bool)
	for _, slot := range c.hashes {
		kept[slot] = true
	}
	for slot := tip - 140; slot < tip; slot++ {
		if !kept[c.prev(slot)] {
			t.Fatalf("blockhash of slot %d is forgotten", slot)
		}
	}
}
