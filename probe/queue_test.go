// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestQueueGivesTheNextTurn(t *testing.T) {
	if path, at := new(queue).next(); path != -1 || at != never {
		t.Errorf("empty: path %d at %d", path, at)
	}
	rapid.Check(t, func(t *rapid.T) {
		paths := rapid.IntRange(1, 20).Draw(t, "paths")
		var q queue
		for range paths {
			q.grow()
		}
		want := slices.Repeat([]int64{never}, paths)
		for range rapid.IntRange(1, 100).Draw(t, "changes") {
			if rapid.IntRange(0, 9).Draw(t, "more") == 0 {
				q.grow()
				want = append(want, never)
			}
			path := rapid.IntRange(0, len(want)-1).Draw(t, "path")
			at := rapid.OneOf(rapid.Int64Range(0, 30), rapid.Just(never)).Draw(t, "at")
			q.set(path, at)
			want[path] = at
			got, when := q.next()
			if when != slices.Min(want) || when != want[got] {
				t.Fatalf("next is path %d at %d, of %v", got, when, want)
			}
		}
	})
}
