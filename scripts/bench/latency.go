// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"text/tabwriter"
)

const (
	latencyRounds = 11
	// In each round each method sends this many probes, 1,000 per second.
	latencyProbes = 2000
	// busyPerCPU processes compute without end on each CPU.
	busyPerCPU = 2
)

// method is a way to measure a round-trip time.
type method struct {
	stamps  string
	mode    string   // of the reflector
	options []string // of xtwamp ping; nil: ping(8)
	system  []string // of ping(8)
	tx, rx  string   // what xtwamp has to call its time stamps
	missing string   // why it is not available, found out while measuring
	rounds  []trips
	caches  seen // by the busy processes, in all rounds
}

// trips is what one method measured in one round, in microseconds.
type trips struct {
	p50, p99 float64
	answered int
}

// errNotAvailable marks what a version of xtwamp, a kernel or an interface does not have.
var errNotAvailable = errors.New("not available")

// latency measures round-trip times over veth while other processes want all CPUs. These run in the session and control
// group of the measuring processes and with the same priority, so that the scheduler gives everybody the same share and
// neither sched_autogroup nor a cgroup sets one side apart: what waits behind a reflector in user space depends on that by
// a factor of 25, and changes from round to round by as much. The busy processes compute and use no memory to speak of.
//
// At this rate xtwamp works in slots of 10 ms, so that one probe in ten is the first after a pause: p99 is one of these, and
// how long they take is a matter of what has become of the kernel's code and data in the caches meanwhile. ping spins while
// it has a CPU, and pauses when others have it. Guests of one host share caches. So the busy processes count how often they
// find their own emptied, and the table has that beside the times: to compare where it is alike. The methods take turns
// within a round, in an order drawn by lot.
func latency(ctx context.Context, w io.Writer) (_ []check, err error) {
	l, err := newLab(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	heading(w, `latency: round-trip times over veth with %d busy processes per CPU, in the same session and control group and of the
   same priority; %d probes per method and round, 1,000 per second, by xtwamp in slots of 10 ms; medians of %d rounds; us`, busyPerCPU, latencyProbes, latencyRounds)

	kernel := []string{"--timestamps", "bpf"}
	methods := []*method{
		{stamps: "tcx", mode: "tcx", options: append(kernel, "--attach", "tcx"), tx: "tc_egress", rx: "tc_ingress"},
		{stamps: "clsact", mode: "clsact", options: append(kernel, "--attach", "clsact"), tx: "tc_egress", rx: "tc_ingress"},
		{stamps: "xdp", mode: "xdp", options: append(kernel, "--attach", "xdp"), tx: "tc_egress", rx: "xdp"},
		{stamps: "tcx", mode: "socket", options: append(kernel, "--attach", "tcx"), tx: "tc_egress", rx: "tc_ingress"},
		{stamps: "SO_TIMESTAMPING", mode: "tcx", options: []string{"--timestamps", "socket"}, tx: "socket", rx: "socket"},
		{stamps: "SO_TIMESTAMPING", mode: "socket", options: []string{"--timestamps", "socket"}, tx: "socket", rx: "socket"},
		{stamps: "user", mode: "socket", options: []string{"--timestamps", "user"}, tx: "user", rx: "user"},
		{stamps: "ping", mode: "icmp", system: []string{"ping"}},
		{stamps: "ping -U", mode: "icmp", system: []string{"ping", "-U"}},
	}
	links, err := l.reflectors(ctx, methods)
	if err != nil {
		return nil, err
	}
	shared := filepath.Join(l.dir, "looks")
	caches, err := openLooks(shared)
	if err != nil {
		return nil, err
	}
	left := patience
	if _, err := quietly(ctx, &left); err != nil {
		return nil, err
	}
	var load []int
	for range busyPerCPU * runtime.NumCPU() {
		p, err := l.start(ctx, "", l.self, "as-busy", shared)
		if err != nil {
			return nil, err
		}
		load = append(load, p.pid)
	}
	before, err := readCPU()
	if err != nil {
		return nil, err
	}
	loadBefore, err := processTime(load...)
	if err != nil {
		return nil, err
	}
	for range latencyRounds {
		for _, i := range rand.Perm(len(methods)) { // none always comes after the same other
			m := methods[i]
			if m.missing != "" {
				continue
			}
			before := caches.load()
			t, err := l.measure(ctx, m, links[m.mode])
			switch {
			case errors.Is(err, errNotAvailable) && m.mode == "xdp":
				m.missing = err.Error()
			case err != nil:
				return nil, err
			}
			m.rounds = append(m.rounds, t)
			m.caches = m.caches.plus(caches.load().since(before))
		}
	}
	after, err := readCPU()
	if err != nil {
		return nil, err
	}
	loadAfter, err := processTime(load...)
	if err != nil {
		return nil, err
	}
	table(w, methods)
	fmt.Fprintf(w, "CPUs busy in the rounds: %.1f %%; with the busy processes: %.1f %%\n", 100*after.busyShare(before),
		100*float64(loadAfter-loadBefore)/float64(after.available(before)))
	return limits(methods), nil
}

// reflectors starts a reflector of each mode behind a link of its own, and says why methods are not available.
func (l *lab) reflectors(ctx context.Context, methods []*method) (map[string]link, error) {
	links := make(map[string]link)
	for _, m := range methods {
		if _, ok := links[m.mode]; ok {
			continue
		}
		k, err := l.link(ctx, len(links)+1)
		if err != nil {
			return nil, err
		}
		links[m.mode] = k
		if m.options == nil {
			continue // the kernel answers ping
		}
		switch _, err := l.reflect(ctx, l.far, k.far, k, m.mode); {
		case err != nil && m.mode == "xdp":
			m.missing = err.Error()
		case err != nil:
			return nil, err
		}
	}
	return links, nil
}

// measure runs a method for one round.
func (l *lab) measure(ctx context.Context, m *method, k link) (trips, error) {
	var out []byte
	if m.options == nil {
		args := append(m.system[:len(m.system):len(m.system)], "-c", strconv.Itoa(latencyProbes), "-i", "0.001", k.far)
		if err := l.run(ctx, l.near, &out, args...); err != nil {
			return trips{}, err
		}
		return pingTrips(out)
	}
	args := append([]string{xtwamp, "ping", "--json", "--quiet", "-c", strconv.Itoa(latencyProbes), "-i", "1ms"}, m.options...)
	err := l.run(ctx, l.near, &out, append(args, k.far)...)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() != 1 { // 1: some were lost
		return trips{}, fmt.Errorf("%w: %w", errNotAvailable, err)
	} else if err != nil && !ok {
		return trips{}, err
	}
	return m.summaryTrips(out)
}

// summaryTrips reads the summary of xtwamp ping --json.
func (m *method) summaryTrips(line []byte) (trips, error) {
	var s struct {
		Received int
		RTT      struct{ P50, P99 float64 }      `json:"rtt_ns"`
		Stamps   struct{ TX, RX map[string]int } `json:"timestamps"`
	}
	if err := json.Unmarshal(line, &s); err != nil {
		return trips{}, fmt.Errorf("summary of ping: %w", err)
	}
	if s.Received == 0 {
		return trips{}, fmt.Errorf("%w: no probe was answered", errNotAvailable)
	}
	// The first few replies to a socket may lack the kernel's stamp.
	if enough := s.Received * 99 / 100; s.Stamps.TX[m.tx] < enough || s.Stamps.RX[m.rx] < enough {
		return trips{}, fmt.Errorf("%w: time stamps were tx %v, rx %v", errNotAvailable, s.Stamps.TX, s.Stamps.RX)
	}
	return trips{p50: s.RTT.P50 / 1e3, p99: s.RTT.P99 / 1e3, answered: s.Received}, nil
}

var pingTime = regexp.MustCompile(`time=([0-9.]+) ms`)

// pingTrips reads what ping(8) prints, in milliseconds with three decimals.
func pingTrips(out []byte) (trips, error) {
	var us []float64
	for _, match := range pingTime.FindAllSubmatch(out, -1) {
		ms, err := strconv.ParseFloat(string(match[1]), 64)
		if err != nil {
			return trips{}, fmt.Errorf("time of ping: %w", err)
		}
		us = append(us, ms*1e3)
	}
	if len(us) == 0 {
		return trips{}, errors.New("ping got no answer")
	}
	return trips{p50: percentile(us, 50), p99: percentile(us, 99), answered: len(us)}, nil
}

// p50s and p99s are those of the rounds.
func (m *method) p50s() (all []float64) {
	for _, t := range m.rounds {
		all = append(all, t.p50)
	}
	return all
}

func (m *method) p99s() (all []float64) {
	for _, t := range m.rounds {
		all = append(all, t.p99)
	}
	return all
}

func table(w io.Writer, methods []*method) {
	tcx := methods[0]
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "time stamps\treflector\tp50\tp99\tp99 of the rounds\tp99 / tcx\tanswered\tcaches emptied")
	for _, m := range methods {
		if m.missing != "" {
			fmt.Fprintf(t, "%s\t%s\tnot available: %s\n", m.stamps, m.mode, m.missing)
			continue
		}
		answered := 0
		for _, r := range m.rounds {
			answered += r.answered
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%.1f %%\t%.0f %%\n", m.stamps, m.mode, figure(median(m.p50s())), figure(median(m.p99s())),
			spread(m.p99s()), figure(median(m.p99s())/median(tcx.p99s())), 100*float64(answered)/float64(latencyProbes*len(m.rounds)),
			100*m.caches.emptiedShare())
	}
	t.Flush()
}

// limits holds the figures against what is promised. ping's times are those of Debian's ping as it is called by default: it
// reads the clock before sending and takes the kernel's time of arrival; with -U it reads the clock on arrival too.
func limits(methods []*method) (all []check) {
	find := func(stamps, mode string) *method {
		for _, m := range methods {
			if m.stamps == stamps && m.mode == mode {
				return m
			}
		}
		return &method{missing: "not measured"}
	}
	ping, user := find("ping", "icmp"), find("user", "socket")
	for _, mode := range []string{"tcx", "clsact"} {
		m := find(mode, mode)
		p99 := median(m.p99s())
		all = append(all,
			check{what: mode + " p50", got: median(m.p50s()), limit: 3, unit: " us"},
			check{what: mode + " p99", got: p99, limit: 25, unit: " us"},
			check{what: "p99 of ping / " + mode, got: median(ping.p99s()) / p99, limit: 4, atLeast: true},
			check{what: "p99 of user space at both ends / " + mode, got: median(user.p99s()) / p99, limit: 100, atLeast: true},
		)
	}
	xdp := find("xdp", "xdp")
	return append(all, check{what: "xdp p99", got: median(xdp.p99s()), limit: 60, unit: " us", missing: xdp.missing})
}
