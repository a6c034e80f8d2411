// SPDX-License-Identifier: Apache-2.0

package target

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"pgregory.net/rapid"
)

// However often something changes in 22 hours, there are nine lines at most, the first at once, and the last word is what it is then.
func TestATellerIsBrief(t *testing.T) {
	const (
		look   = 10 * time.Second
		outage = 22 * time.Hour
	)
	rapid.Check(t, func(r *rapid.T) {
		length := func(what string) time.Duration {
			return time.Duration(rapid.Int64Range(1, int64(outage/look)).Draw(r, what)) * look >> rapid.IntRange(0, 12).Draw(r, what+" shorter")
		}
		bad, good := max(look, length("bad")), length("good")
		news := rapid.Bool().Draw(r, "always another")
		lines, told, state, atOnce := 0, "", "", true
		synctest.Test(t, func(*testing.T) {
			var teller Teller
			begin := time.Now()
			for last := false; time.Since(begin) < outage+2*maxPatience; <-time.After(look) {
				after := time.Since(begin)
				fails := after < outage && after%(bad+good) < bad
				if fails != last {
					if state = ""; fails {
						state = "bad"
					}
					if news {
						state += after.String()
					}
				}
				last = fails
				if _, due := teller.Tell(state, fails); due {
					lines, told = lines+1, state
				}
				atOnce = atOnce && lines > 0
			}
		})
		if lines > 9 || told != state || !atOnce {
			r.Fatalf("%d lines, want 9 at most; %q was told last, want %q; told at once: %t", lines, told, state, atOnce)
		}
	})
}

func TestATellerTellsHowOftenAndForHowLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var teller Teller
		tell := func(after time.Duration, state string) map[string]any {
			<-time.After(after)
			fields, due := teller.Tell(state, state != "")
			if !due {
				return nil
			}
			e := zapcore.NewMapObjectEncoder()
			for _, f := range append(fields, zap.String("state", state)) {
				f.AddTo(e)
			}
			return e.Fields
		}
		for i, tc := range []struct {
			after time.Duration
			state string
			want  map[string]any
		}{
			{0, "", nil},
			{time.Second, "a", map[string]any{"state": "a"}},
			{time.Hour, "a", nil},
			{time.Hour, "b", map[string]any{"state": "b", "changes": int64(1), "after": 2 * time.Hour}},
			{tellAgain - 1, "b", nil},
			{1, "b", map[string]any{"state": "b", "changes": int64(0), "after": tellAgain}},
			{forget, "b", map[string]any{"state": "b", "changes": int64(0), "after": forget}},
			{time.Second, "", map[string]any{"state": "", "changes": int64(1), "after": time.Second}}, // after so long all is forgotten
			{time.Second, "c", map[string]any{"state": "c", "changes": int64(1), "after": time.Second}},
			{time.Second, "", map[string]any{"state": "", "changes": int64(1), "after": time.Second}},
			{time.Second, "c", nil}, // has to last now
			{time.Second, "", nil},
			{time.Hour, "d", nil},
			{firstPatience, "d", map[string]any{"state": "d", "changes": int64(3), "after": time.Hour + firstPatience + 2*time.Second}},
			{time.Hour, "", nil},
			{time.Hour, "d", nil},
			{time.Hour, "", nil},
			{8 * firstPatience, "", map[string]any{"state": "", "changes": int64(3), "after": 3*time.Hour + 8*firstPatience}},
			{time.Hour, "", nil}, // all is well
		} {
			got := tell(tc.after, tc.state)
			if len(got) != len(tc.want) {
				t.Fatalf("step %d: %v, want %v", i, got, tc.want)
			}
			for k, v := range tc.want {
				if got[k] != v {
					t.Errorf("step %d: %v, want %v", i, got, tc.want)
				}
			}
		}
	})
}
