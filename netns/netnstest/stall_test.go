// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"context"
	"testing"
	"time"
)

// A CPU that is late by more than load explains stood still, from the last moment at which it was not.
func TestStalls(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	s := new(Stalls)
	moments := []time.Duration{0, 20 * time.Millisecond, 200 * time.Millisecond, 5200 * time.Millisecond, 5220 * time.Millisecond}
	s.look(ctx, func() int64 {
		next := moments[0]
		if moments = moments[1:]; len(moments) == 0 {
			stop()
		}
		return next.Nanoseconds()
	})
	for _, c := range []struct{ from, to, want time.Duration }{
		{0, time.Minute, 5 * time.Second},
		{0, 199 * time.Millisecond, 0},
		{time.Second, 2 * time.Second, time.Second},
		{5 * time.Second, time.Minute, 200 * time.Millisecond},
		{6 * time.Second, time.Minute, 0},
	} {
		if got := s.Within(c.from.Nanoseconds(), c.to.Nanoseconds()); got != c.want {
			t.Errorf("stood still for %s between %s and %s, want %s", got, c.from, c.to, c.want)
		}
	}
}
