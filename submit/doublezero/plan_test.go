// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/xtwamp/xtwamp/probe/store"
)

var start = time.Date(2026, 7, 29, 12, 0, 0, 0, time.UTC)

// onTime is a sample that was sent seconds after start and came back after rtt.
func onTime(seconds float64, rtt time.Duration) store.Sample {
	return store.Sample{Time: start.Add(time.Duration(seconds * float64(time.Second))), Outcome: store.OnTime, RTT: int64(rtt)}
}

func without(seconds float64, o store.Outcome) store.Sample {
	s := onTime(seconds, 0)
	s.Outcome = o
	return s
}

// series are samples at the given seconds; the RTT of the nth is n microseconds.
func series(seconds ...float64) (s []store.Sample) {
	for i, at := range seconds {
		s = append(s, onTime(at, time.Duration(i+1)*time.Microsecond))
	}
	return s
}

func axis(next uint32) timeline {
	l := timeline{next: next, interval: 10 * time.Second, gaps: true}
	if next > 0 {
		l.start = start
	}
	return l
}

func TestPlan(t *testing.T) {
	coarse := func(l timeline) timeline { l.coarse = true; return l }
	compact := func(l timeline) timeline { l.gaps = false; return l }
	for name, test := range map[string]struct {
		axis    timeline
		samples []store.Sample
		values  []uint32
		settled int
		refused refusal
	}{
		"nothing":                     {axis: axis(0)},
		"the first sample is index 0": {axis(0), series(3, 13), []uint32{1, 2}, 2, refusal{}},
		// Case 12.
		"lost probes keep their place": {
			axis(0), []store.Sample{onTime(0, 5000), without(10, store.Lost), without(20, store.Lost), onTime(30, 6000)}, []uint32{5, 0, 0, 6}, 4, refusal{},
		},
		"all that has no time in it is 0": {
			axis(0), []store.Sample{without(0, store.Lost), without(10, store.Late), without(20, store.Unknown), without(30, store.NotSent)},
			[]uint32{0, 0, 0, 0}, 4, refusal{},
		},
		"whole microseconds, at least one": {
			axis(0), []store.Sample{onTime(0, 1), onTime(10, 999), onTime(20, 1000), onTime(30, 1999), onTime(40, 2*time.Hour)},
			[]uint32{1, 1, 1, 1, 1<<32 - 1}, 5, refusal{},
		},
		"a missed probe":           {axis(0), series(0, 10, 40), []uint32{1, 2, 0, 0, 3}, 3, refusal{}},
		"without filling":          {compact(axis(0)), series(0, 10, 40), []uint32{1, 2, 3}, 3, refusal{}},
		"on from a longer account": {axis(5), series(50, 60), []uint32{1, 2}, 2, refusal{}},
		"a gap before the first":   {axis(5), series(80), []uint32{0, 0, 0, 1}, 1, refusal{}},
		// With plain rounding each of these would fall on another side of the half.
		"a phase of half an interval": {axis(5), series(54.9, 65.1, 74.9, 85.1), []uint32{1, 2, 3, 4}, 4, refusal{}},
		"a phase that moved on":       {axis(5), series(57.6, 67.6), []uint32{0, 1, 2}, 2, refusal{}},
		"an index that is taken":      {axis(5), series(20, 30, 50), nil, 0, refusal{2, "index_taken"}},
		"taken behind others":         {axis(5), series(50, 60, 20), []uint32{1, 2}, 2, refusal{}},
		"before the start":            {axis(5), series(-500), nil, 0, refusal{1, "index_taken"}},
		"in the index before":         {axis(5), series(42, 50), []uint32{2}, 2, refusal{}},
		"two probes an interval":      {coarse(axis(0)), series(0, 5, 10, 15, 20), []uint32{1, 2, 4}, 5, refusal{}},
		"ten probes an interval": {
			coarse(axis(3)), series(25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36), []uint32{1, 11}, 12, refusal{},
		},
		"only merged":     {coarse(axis(3)), series(21, 22), nil, 2, refusal{}},
		"up to the last":  {axis(MaxSamples - 1), series(10*(MaxSamples-1), 10*MaxSamples), []uint32{1}, 1, refusal{}},
		"full":            {axis(MaxSamples), series(10*MaxSamples, 10*MaxSamples+10), nil, 0, refusal{2, "account_full"}},
		"beyond the last": {axis(10), series(10 * MaxSamples), nil, 0, refusal{1, "account_full"}},
	} {
		t.Run(name, func(t *testing.T) {
			b, r := plan(test.axis, test.samples)
			if diff := cmp.Diff(test.values, b.values); diff != "" {
				t.Errorf("values (-want +got):\n%s", diff)
			}
			if b.samples != test.settled {
				t.Errorf("settles %d samples, want %d", b.samples, test.settled)
			}
			if r != test.refused {
				t.Errorf("refuses %+v, want %+v", r, test.refused)
			}
			if len(b.values) > 0 && b.first != test.axis.next {
				t.Errorf("first index %d, want %d", b.first, test.axis.next)
			}
		})
	}
}

func TestPlanNamesTheCauseOfZeros(t *testing.T) {
	b, _ := plan(axis(0), []store.Sample{
		onTime(0, 5000), without(10, store.Lost), without(20, store.Late), without(30, store.Unknown), without(40, store.NotSent), without(80, store.Lost),
	})
	want := map[string]uint32{"lost": 2, "late": 1, "unknown": 1, "not_sent": 1, "gap": 3}
	if diff := cmp.Diff(want, b.causes()); diff != "" {
		t.Errorf("zeros (-want +got):\n%s", diff)
	}
}

// A longer outage is filled write by write (case 14).
func TestPlanFillsALongGapInSeveralWrites(t *testing.T) {
	l := axis(6)
	samples := series(10 * 700)
	var writes []int
	var values []uint32
	for settled := 0; settled == 0; {
		b, r := plan(l, samples)
		if r != (refusal{}) {
			t.Fatalf("refused: %+v", r)
		}
		if want := start.Add(time.Duration(l.next) * l.interval); !b.start.Equal(want) {
			t.Errorf("write at index %d starts at %v, want %v", l.next, b.start, want)
		}
		writes = append(writes, len(b.values))
		values = append(values, b.values...)
		l.next += uint32(len(b.values))
		settled = b.samples
	}
	if diff := cmp.Diff([]int{239, 239, 217}, writes); diff != "" {
		t.Errorf("values by write (-want +got):\n%s", diff)
	}
	want := make([]uint32, 695)
	want[694] = 1
	if diff := cmp.Diff(want, values); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
}

// However probes are sent, each sample is settled or refused exactly once, and what was written stands within one interval of its time.
func TestPlanKeepsTheTimeAxis(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		every := rapid.SampledFrom([]time.Duration{time.Second, 5 * time.Second, 10 * time.Second}).Draw(t, "probe interval")
		l := axis(0)
		l.coarse = every < l.interval
		var samples []store.Sample
		at := start.Add(time.Duration(rapid.Int64Range(0, int64(l.interval)).Draw(t, "phase")))
		for i := range rapid.IntRange(1, 600).Draw(t, "probes") {
			if rapid.IntRange(0, 50).Draw(t, "pause") == 0 {
				at = at.Add(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "for")))
			}
			jitter := time.Duration(rapid.Int64Range(0, int64(every/4)).Draw(t, "jitter"))
			samples = append(samples, store.Sample{Seq: uint64(i), Time: at.Add(jitter), Outcome: store.OnTime, RTT: int64(i+1) * 1000})
			at = at.Add(every)
		}
		var account []uint32
		rest := samples
		for len(rest) > 0 {
			b, r := plan(l, rest[:min(len(rest), 1024)])
			if b.samples+r.count+len(b.values) == 0 {
				t.Fatalf("no progress at sample %d", rest[0].Seq)
			}
			if r.count > 0 {
				t.Fatalf("refused %+v at sample %d", r, rest[0].Seq)
			}
			if l.next == 0 {
				l.start = b.start
			}
			account = append(account, b.values...)
			l.next += uint32(len(b.values))
			rest = rest[b.samples:]
		}
		for index, v := range account {
			if v == 0 {
				continue
			}
			off := l.at(int64(index)).Sub(samples[v-1].Time).Abs()
			if off > l.interval {
				t.Fatalf("sample %d at index %d is off by %v", v-1, index, off)
			}
		}
		if len(account) > MaxSamples {
			t.Fatalf("%d values", len(account))
		}
	})
}
