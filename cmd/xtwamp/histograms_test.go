// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	dto "github.com/prometheus/client_model/go"

	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
)

// valuesOf is how many values each histogram has, by family and path.
func valuesOf(t *testing.T, c prometheus.Collector) map[string]uint64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	gathered, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]uint64)
	for _, f := range gathered {
		for _, m := range f.GetMetric() {
			got[f.GetName()+" "+m.GetLabel()[0].GetValue()] = m.GetHistogram().GetSampleCount()
			if f.GetType() != dto.MetricType_HISTOGRAM {
				t.Errorf("%s is a %s", f.GetName(), f.GetType())
			}
		}
	}
	return got
}

func TestHistogramsHaveEverySample(t *testing.T) {
	run := func(fn func() error) error { return fn() }
	h := newHistograms(true, run)
	h.began(0, target.Target{Name: "a"})
	h.began(1, target.Target{Name: "b"})
	answered := store.Sample{RTT: 1000, Dwell: 10, HasDwell: true}
	for i := range 21 { // not a multiple of what waits
		h.observe(0, &answered)
		if i == 4 {
			h.observe(0, &store.Sample{Outcome: store.Lost})
			h.observe(0, &store.Sample{Outcome: store.Late, RTT: 2000})
		}
	}
	const rtt, dwell = "xtwamp_round_trip_time_seconds ", "xtwamp_reflector_dwell_seconds "
	want := map[string]uint64{rtt + "a": 22, dwell + "a": 21, rtt + "b": 0}
	if diff := cmp.Diff(want, valuesOf(t, h)); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
	h.observe(1, &answered)
	want[rtt+"b"], want[dwell+"b"] = 1, 1
	if diff := cmp.Diff(want, valuesOf(t, h)); diff != "" {
		t.Errorf("values at the next scrape (-want +got):\n%s", diff)
	}

	h.keep(map[string]bool{"b": true})
	h.observe(0, &answered) // was in flight
	if diff := cmp.Diff(map[string]uint64{rtt + "b": 1, dwell + "b": 1}, valuesOf(t, h)); diff != "" {
		t.Errorf("values after a path has gone (-want +got):\n%s", diff)
	}
	h.ended(1) // with nothing in flight, before it is known to be gone
	h.keep(nil)
	if diff := cmp.Diff(map[string]uint64{}, valuesOf(t, h)); diff != "" {
		t.Errorf("values after a path has ended and gone (-want +got):\n%s", diff)
	}

	h = newHistograms(false, run)
	h.began(0, target.Target{Name: "a"})
	h.observe(0, &answered)
	if diff := cmp.Diff(map[string]uint64{dwell + "a": 1}, valuesOf(t, h)); diff != "" {
		t.Errorf("values without per_path_histograms (-want +got):\n%s", diff)
	}
}

// What goes wrong in metrics is counted, and does not come up again and again.
func TestHistogramsOutliveAFault(t *testing.T) {
	faults := 0
	h := newHistograms(true, func(func() error) error { faults++; return errors.New("panic") })
	h.began(0, target.Target{Name: "a"})
	for range 3 * 8 {
		h.observe(0, &store.Sample{RTT: 1000})
	}
	if faults != 3 {
		t.Errorf("%d faults, want 3", faults)
	}
}

func TestMemoryForSamples(t *testing.T) {
	for _, c := range []struct {
		paths            int
		interval, commit time.Duration
		want             int
	}{
		{20, 10 * time.Second, 10 * time.Second, 1 << 16},
		{10_000, time.Second, 10 * time.Second, 1_200_000}, // two minutes
		{10_000, time.Second, time.Minute, 1_800_000},      // three commits
	} {
		targets := slices.Repeat([]target.Target{{Interval: c.interval}}, c.paths)
		if got := memoryFor(targets, c.commit); got != c.want {
			t.Errorf("%d paths each %s, commits each %s: room for %d samples, want %d", c.paths, c.interval, c.commit, got, c.want)
		}
	}
}
