// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"testing"
	"time"

	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
)

// sampleAt is a sample that was sent so long after boot.
func sampleAt(after time.Duration, outcome store.Outcome, rtt time.Duration) *store.Sample {
	return &store.Sample{Mono: int64(after), Outcome: outcome, RTT: int64(rtt)}
}

func TestHistoryIsTheLastHour(t *testing.T) {
	h := newHistograms(false, func(fn func() error) error { return fn() })
	h.began(1, target.Target{Name: "a"})
	const boot = 100 * time.Hour
	// Each 10 s for 90 minutes: RTTs from 1 us upwards; the last of each minute is lost.
	for i := range 90 * 6 {
		outcome := store.OnTime
		if i%6 == 5 {
			outcome = store.Lost
		}
		h.observe(1, sampleAt(boot+time.Duration(i)*10*time.Second, outcome, time.Duration(i+1)*time.Microsecond))
	}
	now := boot + 90*time.Minute - time.Second
	s := h.hours(int64(now))["a"]
	if s.Answered != 300 || s.Lost != 60 || s.Other != 0 {
		t.Errorf("%d answered, %d lost, %d other, want 300, 60, 0", s.Answered, s.Lost, s.Other)
	}
	// Minute n has the RTTs 6n+1 .. 6n+5 us; the hour begins with minute 30.
	for i := range historyMinutes {
		n := int64(30 + i)
		if s.Median[i] != (6*n+3)*1000 || s.Most[i] != (6*n+5)*1000 || s.LostIn[i] != 1 {
			t.Fatalf("minute %d: median %d, most %d, lost %d", n, s.Median[i], s.Most[i], s.LostIn[i])
		}
	}
	// Of 300 RTTs the 150th and the 297th.
	if s.P50 != 359_000 || s.P99 != 536_000 {
		t.Errorf("p50 %d, p99 %d ns", s.P50, s.P99)
	}
	// Half an hour later half of it is over.
	s = h.hours(int64(now + 30*time.Minute))["a"]
	if s.Answered != 150 || s.Median[29] == 0 || s.Median[30] != 0 {
		t.Errorf("half an hour later: %+v", s)
	}
	h.observe(1, sampleAt(boot+time.Minute, store.Lost, 0)) // too late to count
	if again := h.hours(int64(now + 30*time.Minute))["a"]; again.Lost != s.Lost {
		t.Error("what was sent more than an hour ago counts")
	}
	h.observe(1, sampleAt(now+30*time.Minute, store.NotSent, 0))
	if again := h.hours(int64(now + 30*time.Minute))["a"]; again.Other != 1 {
		t.Errorf("%d not sent, want 1", again.Other)
	}

	// One that has the name now counts, and not the one before.
	h.began(2, target.Target{Name: "a"})
	if s := h.hours(int64(now))["a"]; s.Answered != 0 {
		t.Errorf("%d answered of a path that began anew", s.Answered)
	}
	h.ended(1)
	h.ended(2)
	if len(h.hours(int64(now))) != 0 {
		t.Error("a path that ended has a history")
	}
}

// Of many RTTs in a minute any is kept with the same probability.
func TestHistoryOfManyProbes(t *testing.T) {
	sum, n := 0.0, 0
	for range 2000 {
		var h history
		for i := range 100 {
			h.add(observation{mono: int64(time.Hour), rtt: int64(i), outcome: store.OnTime})
		}
		for _, rtt := range h.minutes[minuteOf(int64(time.Hour))%historyMinutes].rtts {
			sum += float64(rtt)
			n++
		}
	}
	// The mean of 12,000 of 0 .. 99 is 49.5, with a standard error of 0.26.
	if mean := sum / float64(n); math.Abs(mean-49.5) > 6*0.26 {
		t.Errorf("the mean of what is kept is %.2f, want 49.5", mean)
	}
}
