// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"context"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/submit/doublezero/ledgertest"
)

func TestCompare(t *testing.T) {
	// 40 probes; number 10 was lost, none was sent for 20 and 21.
	var samples []store.Sample
	var right []uint32
	for i := range 40 {
		switch i {
		case 10:
			samples = append(samples, without(100, store.Lost))
			right = append(right, 0)
		case 20, 21:
			right = append(right, 0)
		default:
			samples = append(samples, onTime(float64(10*i), time.Duration(i+1)*time.Microsecond))
			right = append(right, uint32(i+1))
		}
	}
	zeros := map[string]int{"lost": 1, "gap": 2}
	for name, test := range map[string]struct {
		values []uint32
		over   bool
		want   Report
	}{
		"equal":           {right, true, Report{Checked: 40, Zeros: zeros}},
		"not there yet":   {right[:30], false, Report{Checked: 30, Waiting: 10, Zeros: zeros}},
		"never came":      {right[:30], true, Report{Checked: 30, Missing: 10, Zeros: zeros}},
		"no account":      {nil, true, Report{Missing: 37, Zeros: map[string]int{}}},
		"a hole":          {slices.Concat(right[:30], []uint32{0, 0}, right[32:]), true, Report{Checked: 40, Missing: 2, Zeros: zeros}},
		"another's value": {slices.Concat(right[:30], []uint32{999}, right[31:]), true, Report{Checked: 40, Wrong: 1, Zeros: zeros}},
		"a write that landed twice": {
			slices.Concat(right[:30], right[25:30], right[30:]), true, Report{Checked: 40, Twice: 5, Shifted: 10, Zeros: zeros},
		},
		"a gap that was not filled": {
			slices.Concat(right[:20], right[22:], []uint32{0, 0}), true, Report{Checked: 40, Shifted: 18, Missing: 0, Zeros: map[string]int{"lost": 1}},
		},
		"a sample that was left out": {
			slices.Concat(right[:25], right[26:]), true, Report{Checked: 39, Missing: 2, Shifted: 13, Zeros: zeros},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := Report{Zeros: make(map[string]int)}
			r.compare(axis(1), test.values, samples, test.over)
			if diff := cmp.Diff(test.want, r); diff != "" {
				t.Errorf("report (-want +got):\n%s", diff)
			}
			if r.Equal() != (name == "equal" || name == "not there yet") {
				t.Errorf("equal: %v", r.Equal())
			}
		})
	}
}

func TestVerify(t *testing.T) {
	simulate(t, 2, ledgertest.Options{SlotIndex: 432_000 - 1000}, func(l *lab) {
		l.start()
		l.measure(90)
		l.settled(5 * time.Minute)
		l.measure(2)
		links := make([]Link, len(l.links))
		for i := range links {
			links[i] = Link{Path: l.paths[i].Name, Target: l.targets[i], Link: l.links[i], Interval: probeInterval}
		}
		cfg := VerifyConfig{Endpoints: l.way, Program: l.config.Program, Device: l.device, Samples: func(_ context.Context, path string) iter.Seq2[store.Sample, error] {
			i := slices.IndexFunc(l.paths, func(p store.Path) bool { return p.Name == path })
			samples, err := l.store.Read(l.paths[i].ID, 0, 10_000)
			return func(yield func(store.Sample, error) bool) {
				if err != nil {
					yield(store.Sample{}, err)
					return
				}
				for _, s := range samples {
					if !yield(s, nil) {
						return
					}
				}
			}
		}}
		reports, err := Verify(l.Context(), cfg, links)
		if err != nil {
			t.Fatal(err)
		}
		checked := 0
		for _, r := range reports {
			checked += r.Checked
			if !r.Equal() || !r.Exists || r.Checked != r.Written {
				t.Errorf("report: %+v", r)
			}
		}
		if len(reports) != 4 || checked != 180 {
			t.Errorf("%d accounts with %d samples compared, want 4 with 180", len(reports), checked)
		}
		// Somebody appends what is there already.
		if err := l.ledger.Append(l.address(0, 194), 0, 1, 2, 3, 4, 5); err != nil {
			t.Fatal(err)
		}
		pass(30 * time.Second) // until that is finalized
		reports, err = Verify(l.Context(), cfg, links)
		if err != nil {
			t.Fatal(err)
		}
		if r := reports[0]; r.Written != r.Checked+5 || r.Equal() {
			t.Errorf("report with five values too many: %+v", r)
		}
	})
}
