// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"math"
	"time"

	"github.com/xtwamp/xtwamp/probe/store"
)

// cause says why a zero was written. The ledger's format has one value for all of them.
type cause uint8

const (
	causeLost cause = iota
	causeLate
	causeUnknown
	causeNotSent
	causeGap // no probe at all
	causes
)

var causeNames = [causes]string{"lost", "late", "unknown", "not_sent", "gap"}

func (c cause) String() string { return causeNames[c] }

// timeline is the time axis of one account. The zero value of start means that nothing has been written yet.
type timeline struct {
	start    time.Time     // of index 0
	interval time.Duration // between indexes
	next     uint32        // first index that nobody has written
	coarse   bool          // several probes fall into one interval
	gaps     bool          // indexes without a probe are filled
}

// at is the time of an index.
func (l timeline) at(index int64) time.Time { return l.start.Add(time.Duration(index) * l.interval) }

// index is the place of a probe sent at t, when the one before it is at previous.
//
// The index that comes next is taken if its time is near enough: with plain rounding, a path whose probes are sent half an interval after
// the account's grid would flap between two indexes, and each second one would read as loss. Where an index has several probes none of
// them has to be met exactly.
func (l timeline) index(t time.Time, previous int64) int64 {
	const near = 0.75
	offset := float64(t.Sub(l.start)) / float64(l.interval)
	if !l.coarse && (!l.gaps || math.Abs(offset-float64(previous+1)) <= near) {
		return previous + 1
	}
	return int64(math.Floor(offset + 0.5))
}

// batch is the content of one write.
type batch struct {
	first   uint32 // index of the first value
	start   time.Time
	values  []uint32 // RTT in microseconds, 0: no data
	zeros   [causes]uint32
	samples int // from the front of those offered, that it settles
}

// refusal is about samples, from the front of those offered, which the account will never hold.
type refusal struct {
	count  int
	reason string
}

const (
	reasonIndexTaken  = "index_taken"
	reasonAccountFull = "account_full"
)

// plan lays the samples, all of which belong into one account, along its time axis: as many as fit into one write. If the first ones do
// not belong there, it says how many and why instead.
func plan(l timeline, samples []store.Sample) (b batch, r refusal) {
	if l.next == 0 && len(samples) > 0 {
		l.start = samples[0].Time.Truncate(time.Microsecond)
	}
	b.first, b.start = l.next, l.at(int64(l.next))
	previous := int64(l.next) - 1
	for _, s := range samples {
		index := l.index(s.Time, previous)
		switch {
		case previous < 0:
			index = 0
		case index == previous:
			b.samples++ // merged: the first probe of an index is its value
			continue
		case index < previous:
			if b.samples == 0 {
				return batch{}, refusal{count: before(l, samples), reason: reasonIndexTaken}
			}
			return b, refusal{}
		}
		if index >= MaxSamples {
			if b.samples == 0 && len(b.values) == 0 {
				return batch{}, refusal{count: len(samples), reason: reasonAccountFull}
			}
			return b, refusal{}
		}
		for previous++; previous < index; previous++ {
			if len(b.values) == MaxSamplesPerWrite {
				return b, refusal{}
			}
			b.values = append(b.values, 0)
			b.zeros[causeGap]++
		}
		if len(b.values) == MaxSamplesPerWrite {
			return b, refusal{}
		}
		b.values = append(b.values, b.value(s))
		b.samples++
	}
	return b, refusal{}
}

// before counts the samples, from the front, that belong before the last index that was written.
func before(l timeline, samples []store.Sample) (n int) {
	for n < len(samples) && l.index(samples[n].Time, int64(l.next)-1) < int64(l.next)-1 {
		n++
	}
	return n
}

// value is what the ledger holds for a sample: the RTT in whole microseconds, where less than one is one, and 0 for all else.
func (b *batch) value(s store.Sample) uint32 {
	switch s.Outcome {
	case store.OnTime:
		return uint32(min(max(s.RTT/int64(time.Microsecond), 1), math.MaxUint32))
	case store.Late:
		b.zeros[causeLate]++
	case store.Lost:
		b.zeros[causeLost]++
	case store.NotSent:
		b.zeros[causeNotSent]++
	default:
		b.zeros[causeUnknown]++
	}
	return 0
}

// causes are the zeros by cause.
func (b batch) causes() map[string]uint32 {
	m := make(map[string]uint32)
	for c, n := range b.zeros {
		if n > 0 {
			m[cause(c).String()] = n
		}
	}
	return m
}
