// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"testing"
)

func TestRoundTripOfStamps(t *testing.T) {
	const day = int64(86400e9)
	steady := exchange{sent: 1000, received: 900_000, before: offset{ns: day, uncertainty: 50}, after: offset{ns: day + 30, uncertainty: 50}}
	stepped := steady
	stepped.after.ns += 3600e9
	nudged := steady
	nudged.after.ns += 100_000 // less than the flight
	mono := func(ns int64) stamp { return stamp{ns: ns} }
	wall := func(ns int64) stamp { return stamp{ns: ns, wall: true} }
	tests := []struct {
		name   string
		x      exchange
		tx, rx stamp
		want   int64
		ok     bool
	}{
		{"both monotonic", steady, mono(2000), mono(42_000), 40_000, true},
		{"both monotonic over a step", stepped, mono(2000), mono(42_000), 40_000, true},
		{"both wall", steady, wall(day + 2000), wall(day + 42_000), 40_000, true},
		{"wall before and after a step", stepped, wall(day + 2000), wall(day + 3600e9 + 42_000), 40_000, true},
		{"wall, both before the step", stepped, wall(day + 2000), wall(day + 42_000), 40_000, true},
		{"a step too small to tell", nudged, wall(day + 200_000), wall(day + 242_000), 0, false},
		{"monotonic and wall", steady, mono(2000), wall(day + 42_000), 40_000, true},
		{"monotonic and wall over a step", stepped, mono(2000), wall(day + 3600e9 + 42_000), 40_000, true},
		// Case 20: the receive stamp is before the send stamp.
		{"received before sent", steady, wall(day + 50_000), wall(day + 42_000), 0, false},
		{"monotonic, received before sent", steady, mono(50_000), mono(42_000), 0, false},
		{"a wall stamp outside of the exchange", steady, mono(2000), wall(2*day + 42_000), 0, false},
	}
	for _, tt := range tests {
		got, ok := tt.x.roundTrip(tt.tx, tt.rx)
		if d := got - tt.want; ok != tt.ok || ok && max(d, -d) > 100 { // the offsets' uncertainty
			t.Errorf("%s: %d, %t; want %d, %t", tt.name, got, ok, tt.want, tt.ok)
		}
	}
}

func TestSystemClock(t *testing.T) {
	c := systemClock{}
	a := c.offset()
	for range 1000 {
		b := c.offset()
		if a.moved(b) {
			// A real step would stay; noise does not.
			if c := c.offset(); a.moved(c) {
				t.Fatalf("offset moved from %+v to %+v to %+v", a, b, c)
			}
		}
	}
	if m, n := c.mono(), c.mono(); n < m {
		t.Errorf("CLOCK_MONOTONIC went from %d to %d", m, n)
	}
}

func TestClockWatchStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- systemClock{}.watch(ctx, func() {}) }()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("watch = %v, want nil", err)
	}
}
