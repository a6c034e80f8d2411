// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/xtwamp/xtwamp/probe/store"
)

// The recent probes of a path are the last ten that were answered or lost.
func TestRecent(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		outcomes := rapid.SliceOfN(rapid.SampledFrom([]store.Outcome{store.OnTime, store.Late, store.Lost, store.NotSent, store.Unknown}), RecentProbes, 40).Draw(rt, "outcomes")
		var r recent
		for _, o := range outcomes {
			r.add(o)
		}
		known := slices.DeleteFunc(slices.Clone(outcomes), func(o store.Outcome) bool { return o == store.NotSent || o == store.Unknown })
		known = known[max(0, len(known)-RecentProbes):]
		want := Recent{Known: len(known)}
		for _, o := range known {
			want.LostInRow++
			if o == store.Lost {
				want.Lost++
			} else {
				want.LostInRow = 0
			}
		}
		if got := r.sum(); got != want {
			rt.Fatalf("%+v, want %+v", got, want)
		}
	})
}
