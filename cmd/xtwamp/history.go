// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/xtwamp/xtwamp/probe/store"
)

const (
	historyMinutes = 60
	// rttsPerMinute is how many RTTs of a minute are kept for percentiles: all of them at the default interval.
	rttsPerMinute = 6
)

// history is what one path did in the last hour, in 3 kB, by minutes of CLOCK_MONOTONIC, each at its number modulo their count.
type history struct {
	minutes [historyMinutes]minute
}

// minute is what became of the probes that were sent in one minute. RTTs are in ns.
type minute struct {
	number                uint32 // 0: none yet
	answered, lost, other uint32 // other: not sent, or unknown
	most                  float32
	rtts                  [rttsPerMinute]float32 // any answered probe is in it with the same probability
}

func minuteOf(mono int64) uint32 { return uint32(time.Duration(mono)/time.Minute) + 1 }

func (h *history) add(s observation) {
	number := minuteOf(s.mono)
	m := &h.minutes[number%historyMinutes]
	switch {
	case m.number > number:
		return // an hour late
	case m.number < number:
		*m = minute{number: number}
	}
	switch s.outcome {
	case store.OnTime, store.Late:
		rtt := float32(s.rtt)
		if m.answered < rttsPerMinute {
			m.rtts[m.answered] = rtt
		} else if i := rand.N(m.answered + 1); i < rttsPerMinute {
			m.rtts[i] = rtt
		}
		m.answered++
		m.most = max(m.most, rtt)
	case store.Lost:
		m.lost++
	default:
		m.other++
	}
}

// hourStatus is the last hour of a path: the probes whose outcome is known, percentiles of their RTTs, and the same minute by minute, the
// oldest first, 0 where there is nothing.
type hourStatus struct {
	Answered uint64  `json:"answered"`
	Lost     uint64  `json:"lost"`
	Other    uint64  `json:"other"` // not sent, or unknown
	P50      int64   `json:"p50_ns,omitempty"`
	P99      int64   `json:"p99_ns,omitempty"`
	Median   []int64 `json:"minute_p50_ns"`
	Most     []int64 `json:"minute_max_ns"`
	LostIn   []int64 `json:"minute_lost"`
}

// hour sums up the hour that ends with a minute.
func (h *history) hour(end uint32) hourStatus {
	s := hourStatus{
		Median: make([]int64, historyMinutes), Most: make([]int64, historyMinutes), LostIn: make([]int64, historyMinutes),
	}
	var all []float32
	for i := range historyMinutes {
		number := end - historyMinutes + 1 + uint32(i)
		m := &h.minutes[number%historyMinutes]
		if m.number != number {
			continue
		}
		s.Answered += uint64(m.answered)
		s.Lost += uint64(m.lost)
		s.Other += uint64(m.other)
		rtts := slices.Clone(m.rtts[:min(m.answered, rttsPerMinute)])
		slices.Sort(rtts)
		all = append(all, rtts...)
		s.Median[i], s.Most[i], s.LostIn[i] = percentile(rtts, 0.5), int64(m.most), int64(m.lost)
	}
	slices.Sort(all)
	s.P50, s.P99 = percentile(all, 0.5), percentile(all, 0.99)
	return s
}

// percentile is the smallest of sorted values that a share p of all is not above; 0 if there is none.
func percentile(sorted []float32, p float64) int64 {
	if len(sorted) == 0 {
		return 0
	}
	n := int(p * float64(len(sorted)))
	if float64(n) == p*float64(len(sorted)) && n > 0 {
		n--
	}
	return int64(sorted[min(n, len(sorted)-1)])
}
