// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
)

// rttBuckets are the classic buckets of RTT histograms, in seconds.
var rttBuckets = []float64{
	5e-6, 10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6,
	1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3, 200e-3, 500e-3, 1,
}

// histograms are those of all paths (prometheus.Collector), and what the paths
// did in the last hour. They take samples a few at a time: what a path has is
// spread over so much memory that, with thousands of paths, fetching it costs
// more than all else that a reply costs the process.
type histograms struct {
	rtt, dwell *prometheus.HistogramVec // rtt nil: not wanted
	guard      func(func() error) error // counts panics
	mu         sync.RWMutex
	paths      map[int]*pathHistograms // by number
	names      map[string]bool         // of paths that have series
}

// pathHistograms are those of one path, and the samples still to be put into
// them.
type pathHistograms struct {
	mu         sync.Mutex
	waiting    [8]observation
	n          int
	name       string
	rtt, dwell prometheus.Observer // nil before the first value
	history    history
}

// observation is what is taken of a sample, in ns.
type observation struct {
	mono, rtt, dwell int64 // dwell -1: not known
	outcome          store.Outcome
}

func newHistograms(perPathRTT bool, guard func(func() error) error) *histograms {
	vec := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "xtwamp_" + name, Help: help, Buckets: buckets,
			NativeHistogramBucketFactor:     1.1,
			NativeHistogramMaxBucketNumber:  100,
			NativeHistogramMinResetDuration: time.Hour,
		}, []string{"path"})
	}
	h := &histograms{guard: guard, paths: make(map[int]*pathHistograms), names: make(map[string]bool)}
	h.dwell = vec("reflector_dwell_seconds", "How long the far side held probes, T3 - T2.", nil)
	if perPathRTT {
		h.rtt = vec("round_trip_time_seconds", "Round-trip time, T4 - T1 (RFC 2681), the far side's dwell included.", rttBuckets)
	}
	return h
}

// began makes the histograms of a path. RTT is there from the start; dwell
// comes with its first value.
func (h *histograms) began(path int, t target.Target) {
	p := &pathHistograms{name: t.Name}
	if h.rtt != nil {
		p.rtt = h.rtt.WithLabelValues(t.Name)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.paths[path], h.names[t.Name] = p, true
}

// keep removes the histograms of paths that are not measured any more, whether
// they have ended or not: what these still have in flight is not observed.
func (h *histograms) keep(names map[string]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.paths, func(_ int, p *pathHistograms) bool { return !names[p.name] })
	for name := range h.names {
		if names[name] {
			continue
		}
		delete(h.names, name)
		h.dwell.DeleteLabelValues(name)
		if h.rtt != nil {
			h.rtt.DeleteLabelValues(name)
		}
	}
}

// ended forgets a path. Its histograms may be another's of the same name.
func (h *histograms) ended(path int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.paths, path)
}

// observe takes a sample of a path.
func (h *histograms) observe(path int, s *store.Sample) {
	h.mu.RLock() // to the end: what keep has removed must not come back
	defer h.mu.RUnlock()
	p := h.paths[path]
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	o := observation{s.Mono, s.RTT, -1, s.Outcome}
	if s.HasDwell {
		o.dwell = s.Dwell
	}
	p.waiting[p.n] = o
	if p.n++; p.n == len(p.waiting) {
		h.flush(p)
	}
}

// flush puts what waits into the histograms and the history of p, whose lock
// is held.
func (h *histograms) flush(p *pathHistograms) {
	waiting := p.waiting[:p.n]
	p.n = 0
	_ = h.guard(func() error {
		for _, o := range waiting {
			p.history.add(o)
			if o.outcome != store.OnTime && o.outcome != store.Late {
				continue
			}
			if p.rtt != nil {
				p.rtt.Observe(float64(o.rtt) / 1e9)
			}
			if o.dwell < 0 {
				continue
			}
			if p.dwell == nil {
				p.dwell = h.dwell.WithLabelValues(p.name)
			}
			p.dwell.Observe(float64(o.dwell) / 1e9)
		}
		return nil
	})
}

func (h *histograms) flushAll() {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, p := range h.paths {
		p.mu.Lock()
		h.flush(p)
		p.mu.Unlock()
	}
}

// hours sums up the last hour of each path by name, as of mono, a
// CLOCK_MONOTONIC in ns. A path that has taken the name of one that still waits
// for replies is the one that counts.
func (h *histograms) hours(mono int64) map[string]hourStatus {
	h.flushAll()
	h.mu.RLock()
	defer h.mu.RUnlock()
	out := make(map[string]hourStatus, len(h.paths))
	newest := make(map[string]int, len(h.paths))
	for number, p := range h.paths {
		if before, there := newest[p.name]; there && number < before {
			continue
		}
		newest[p.name] = number
		p.mu.Lock()
		out[p.name] = p.history.hour(minuteOf(mono))
		p.mu.Unlock()
	}
	return out
}

// Describe implements prometheus.Collector.
func (h *histograms) Describe(ch chan<- *prometheus.Desc) {
	h.dwell.Describe(ch)
	if h.rtt != nil {
		h.rtt.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (h *histograms) Collect(ch chan<- prometheus.Metric) {
	h.flushAll()
	h.dwell.Collect(ch)
	if h.rtt != nil {
		h.rtt.Collect(ch)
	}
}
