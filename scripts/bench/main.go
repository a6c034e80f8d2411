// SPDX-License-Identifier: Apache-2.0

// Command bench measures what the product promises about speed, prints the figures beside their limits, and fails if a
// limit is missed. What has limits is measured as pairs or ratios in one run, since other machines and other load on this
// one move every absolute figure.
//
// Usage, as root in the module's root directory, with bin/xtwamp built:
//
//	go run ./scripts/bench [PART...]
//
// Without a part it runs all:
//
//	latency     round-trip times while all CPUs are busy, by each kind of time stamps and reflectors, and of ping(8)
//	answers     CPU time of the whole machine for one answer, kernel reflector against socket reflector
//	throughput  TCP over an interface with the programs attached against one without
//	programs    what a packet costs in each BPF program (the benchmarks of package bpf)
//	code        the benchmarks of all other packages; no limits
//
// Everything but the last two drives the xtwamp binary from outside, in network namespaces of its own that are gone at the
// end, also after Ctrl-C.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// part is one of the benchmarks. It returns its limits, kept or not; an error means that it could not measure.
type part struct {
	name string
	run  func(ctx context.Context, w io.Writer) ([]check, error)
}

// parts in the order in which they run.
var parts = []part{
	{"latency", latency},
	{"answers", answers},
	{"throughput", throughput},
	{"programs", programs},
	{"code", code},
}

// roles are what this program runs as in its children: the first argument chooses.
var roles = map[string]func(args []string) error{
	"as-busy":         busy,
	"as-flood":        flood,
	"as-tcp-sender":   tcpSender,
	"as-tcp-receiver": tcpReceiver,
}

func main() {
	runtime.LockOSThread() // children die with the thread that started them: see command
	if len(os.Args) > 1 && roles[os.Args[1]] != nil {
		if err := roles[os.Args[1]](os.Args[2:]); err != nil {
			fmt.Fprintf(os.Stderr, "bench %s: %v\n", os.Args[1], err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends it at once
	if err := run(ctx, os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, w io.Writer, names []string) error {
	for _, name := range names {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return fmt.Errorf("%q is no part of the benchmarks", name)
		}
	}
	if err := describeMachine(ctx, w); err != nil {
		return err
	}
	var all []check
	for _, p := range parts {
		if len(names) > 0 && !slices.Contains(names, p.name) {
			continue
		}
		checks, err := p.run(ctx, w)
		if cause := context.Cause(ctx); cause != nil {
			return errors.Join(cause, err)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Fprintln(w)
		for _, c := range checks {
			fmt.Fprintln(w, "  "+c.String())
		}
		all = append(all, checks...)
	}
	missed := 0
	for _, c := range all {
		if c.missed() {
			missed++
		}
	}
	fmt.Fprintf(w, "\n%d limits, %d missed\n", len(all), missed)
	if missed > 0 {
		return fmt.Errorf("%d limits missed", missed)
	}
	return nil
}

// describeMachine says what the figures were measured on, and whether anybody else was working there.
func describeMachine(ctx context.Context, w io.Writer) error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err
	}
	before, err := readCPU()
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(2 * time.Second):
	}
	after, err := readCPU()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "Linux %s, %d CPUs, %.0f %% busy before the start\n",
		unix.ByteSliceToString(name.Release[:]), runtime.NumCPU(), 100*after.busyShare(before))
	return nil
}

// heading begins a part.
func heading(w io.Writer, format string, args ...any) {
	fmt.Fprintf(w, "\n== %s\n", strings.TrimSpace(fmt.Sprintf(format, args...)))
}
