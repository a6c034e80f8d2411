// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"net/netip"
	"testing"
)

// As TestReflectEchoesAProbeOnce of package bpf.
func TestEchoesKnowAProbeThatComesAgain(t *testing.T) {
	base := func() request {
		return request{
			from: netip.MustParseAddrPort("10.1.0.1:5000"), to: netip.MustParseAddr("10.1.0.2"), payload: doubleZeroProbe(1<<31 + 1),
		}
	}
	for _, tt := range []struct {
		name   string
		change func(q *request)
		want   bool
	}{
		{"the same", func(*request) {}, true},
		{"the same with another TTL", func(q *request) { q.ttl = 7 }, true},
		{"other sequence number", func(q *request) { q.payload[3]++ }, false},
		{"other time", func(q *request) { q.payload[11]++ }, false},
		{"from another port", func(q *request) { q.from = netip.MustParseAddrPort("10.1.0.1:5001") }, false},
		{"from another address", func(q *request) { q.from = netip.MustParseAddrPort("10.1.0.3:5000") }, false},
		{"to another address", func(q *request) { q.to = netip.MustParseAddr("10.1.0.3") }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEchoes()
			q := base()
			if e.seenBefore(q) {
				t.Fatal("the first was seen before")
			}
			for i := range uint32(1000) {
				other := base()
				other.payload = doubleZeroProbe(i)
				if e.seenBefore(other) {
					t.Fatal("another was seen before")
				}
			}
			again := q
			again.payload = append([]byte(nil), q.payload...)
			tt.change(&again)
			if got := e.seenBefore(again); got != tt.want {
				t.Errorf("seen before: %v, want %v", got, tt.want)
			}
		})
	}
}
