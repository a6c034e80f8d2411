// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/goccy/go-yaml"

	"github.com/xtwamp/xtwamp/probe"
	"github.com/xtwamp/xtwamp/probe/store"
)

// summary is what remains of a run of samples: bounded memory, however many.
type summary struct {
	rtt, dwell distribution
	last       int64 // RTT of the sample before, -1 if it had none
	jitter     float64
	jitters    float64
	tx, rx     map[string]uint64
}

func newSummary() summary {
	return summary{
		rtt:   newDistribution(),
		dwell: newDistribution(),
		last:  -1,
		tx:    make(map[string]uint64),
		rx:    make(map[string]uint64),
	}
}

func (s *summary) add(m store.Sample) {
	if m.TX != store.NoSource {
		s.tx[m.TX.String()]++
	}
	if m.RX != store.NoSource {
		s.rx[m.RX.String()]++
	}
	if m.Outcome != store.OnTime && m.Outcome != store.Late {
		s.last = -1
		return
	}
	s.rtt.add(m.RTT)
	if m.HasDwell {
		s.dwell.add(m.Dwell)
	}
	if s.last >= 0 {
		s.jitters++
		s.jitter += (math.Abs(float64(m.RTT-s.last)) - s.jitter) / s.jitters
	}
	s.last = m.RTT
}

// distribution counts nanoseconds: percentiles to three digits, the rest
// exactly.
type distribution struct {
	histogram *hdrhistogram.Histogram
	n         float64
	min, max  int64
	mean, m2  float64 // Welford's running mean and squared distance from it
}

func newDistribution() distribution {
	const longest = int64(3 * 60e9) // timeout and late window are at most a minute each
	return distribution{histogram: hdrhistogram.New(1, longest, 3), min: math.MaxInt64}
}

func (d *distribution) add(ns int64) {
	// Beyond the bounds only percentiles are affected, and they are clamped.
	_ = d.histogram.RecordValue(min(max(ns, 1), d.histogram.HighestTrackableValue()))
	d.n++
	d.min, d.max = min(d.min, ns), max(d.max, ns)
	delta := float64(ns) - d.mean
	d.mean += delta / d.n
	d.m2 += delta * (float64(ns) - d.mean)
}

func (d *distribution) percentile(p float64) int64 {
	return min(max(d.histogram.ValueAtPercentile(p), d.min), d.max)
}

func (d *distribution) stddev() float64 {
	if d.n < 2 {
		return 0
	}
	return math.Sqrt(d.m2 / (d.n - 1))
}

// The JSON summary of ping.
type summaryDocument struct {
	Type       string         `json:"type"`
	Target     string         `json:"target"`
	Profile    string         `json:"profile"`
	Sent       uint64         `json:"sent"`
	Received   uint64         `json:"received"`
	Late       uint64         `json:"late"`
	Lost       uint64         `json:"lost"`
	NotSent    uint64         `json:"not_sent"`
	Unknown    uint64         `json:"unknown"`
	Duplicates uint64         `json:"duplicates"`
	Reordered  uint64         `json:"reordered"`
	Skipped    uint64         `json:"skipped,omitempty"` // moments of the schedule at which the process did not run
	RTT        *rttDocument   `json:"rtt_ns,omitempty"`
	Dwell      *dwellDocument `json:"dwell_ns,omitempty"`
	Timestamps struct {
		TX map[string]uint64 `json:"tx"`
		RX map[string]uint64 `json:"rx"`
	} `json:"timestamps"`
}

type rttDocument struct {
	Min    int64   `json:"min"`
	P50    int64   `json:"p50"`
	P90    int64   `json:"p90"`
	P99    int64   `json:"p99"`
	Max    int64   `json:"max"`
	Mean   float64 `json:"mean"`
	StdDev float64 `json:"stddev"`
	// Jitter is the mean of |RTT - RTT before| (RFC 3393 applied to RTT).
	Jitter float64 `json:"jitter"`
}

type dwellDocument struct {
	Min int64 `json:"min"`
	P50 int64 `json:"p50"`
	P99 int64 `json:"p99"`
	Max int64 `json:"max"`
}

func (s *summary) document(remote, profile string, c probe.Counters, notSent uint64) summaryDocument {
	d := summaryDocument{
		Type: "summary", Target: remote, Profile: profile,
		Sent: c.Sent, Received: c.Received, Late: c.Late, Lost: c.Lost,
		NotSent: notSent, Unknown: c.Unknown, Duplicates: c.Duplicates, Reordered: c.Reordered, Skipped: c.Skipped,
	}
	d.Timestamps.TX, d.Timestamps.RX = s.tx, s.rx
	if r := &s.rtt; r.n > 0 {
		d.RTT = &rttDocument{
			Min: r.min, P50: r.percentile(50), P90: r.percentile(90), P99: r.percentile(99), Max: r.max,
			Mean: round(r.mean), StdDev: round(r.stddev()), Jitter: round(s.jitter),
		}
	}
	if w := &s.dwell; w.n > 0 {
		d.Dwell = &dwellDocument{Min: w.min, P50: w.percentile(50), P99: w.percentile(99), Max: w.max}
	}
	return d
}

// round keeps a tenth of a nanosecond.
func round(v float64) float64 { return math.Round(v*10) / 10 }

func (s *summary) text() string {
	var b strings.Builder
	if r := &s.rtt; r.n > 0 {
		fmt.Fprintf(&b, "rtt min/p50/p90/p99/max %.3f/%.3f/%.3f/%.3f/%.3f us, mean %.3f, stddev %.3f, jitter %.3f\n",
			us(r.min), us(r.percentile(50)), us(r.percentile(90)), us(r.percentile(99)), us(r.max), r.mean/1e3, r.stddev()/1e3, s.jitter/1e3)
	}
	if w := &s.dwell; w.n > 0 {
		fmt.Fprintf(&b, "dwell min/p50/p99/max %.3f/%.3f/%.3f/%.3f us\n", us(w.min), us(w.percentile(50)), us(w.percentile(99)), us(w.max))
	}
	fmt.Fprintf(&b, "time stamps tx %s, rx %s\n", counts(s.tx), counts(s.rx))
	return b.String()
}

func us(ns int64) float64 { return float64(ns) / 1e3 }

func counts(m map[string]uint64) string {
	if len(m) == 0 {
		return "none"
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, m[k]))
	}
	return strings.Join(parts, " ")
}

func printJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

func printConfig(w io.Writer, c *config) error {
	text, err := yaml.Marshal(c)
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}
