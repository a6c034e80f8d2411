// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/xtwamp/xtwamp/submit"
	"github.com/xtwamp/xtwamp/submit/doublezero/ledgertest"
)

const outage = 22 * time.Hour

// patterns say whether something fails so long after the outage began.
var patterns = map[string]func(time.Duration) bool{
	"all the time": func(after time.Duration) bool { return after >= 0 && after < outage },
	"by turns": func(after time.Duration) bool {
		return after >= 0 && after < outage && after%time.Minute < 30*time.Second
	},
}

// Whatever fails for 22 hours, all the time or by turns, has few lines: one with the cause at once, and in the end one with how often
// and for how long.
func TestLogOver22Hours(t *testing.T) {
	// dies is a component that looks once in a while whether it can go on.
	dies := func(every time.Duration, die func()) func(context.Context, *zap.Logger, func() bool) {
		return func(ctx context.Context, log *zap.Logger, fails func() bool) {
			newSupervisor(log).run(ctx, "x", func(ctx context.Context) error {
				for ctx.Err() == nil {
					if fails() {
						die()
						return errors.New("cause")
					}
					select {
					case <-ctx.Done():
					case <-time.After(every):
					}
				}
				return nil
			})
		}
	}
	for _, fault := range []struct {
		name string
		run  func(ctx context.Context, log *zap.Logger, fails func() bool)
		ends string
	}{
		{"component", dies(time.Second, func() {}), "component runs again"},
		{"component that lives for a while", dies(29*time.Second, func() {}), "component runs again"},
		{"component that panics", dies(time.Second, func() { panic("cause") }), "component runs again"},
		{"namespace", func(ctx context.Context, log *zap.Logger, fails func() bool) {
			state := newUpkeep(log, "waits for its namespace", "the namespace is there again")
			for ctx.Err() == nil {
				if fails() {
					state.fails(errors.New("cause"))
					wait(time.Second)
					continue
				}
				stop := state.works()
				for ctx.Err() == nil && !fails() {
					wait(time.Second)
				}
				stop()
			}
		}, "the namespace is there again"},
		{"open files", func(ctx context.Context, log *zap.Logger, fails func() bool) {
			s := sources{sockets: submit.Outage{Begins: "some paths may not get a socket", Ends: "all paths may have a socket"}}
			look := s.reported(log, func(time.Duration) {})
			for ctx.Err() == nil {
				if s.short = nil; fails() {
					s.short = errors.New("cause")
				}
				look(2 * time.Second)
				wait(2 * time.Second)
			}
		}, "all paths may have a socket"},
		{"stuck loop", func(ctx context.Context, log *zap.Logger, fails func() bool) {
			l := newLoops()
			beat := l.beat("cause")
			m := &manager{log: log, tell: func(string) error { return nil }}
			go m.feed(ctx, l, 5*time.Second)
			for ctx.Err() == nil {
				if !fails() {
					beat(2 * time.Second)
				}
				wait(time.Second)
			}
		}, "no loop is stuck any more"},
	} {
		for name, fails := range patterns {
			if fault.name == "stuck loop" && name == "by turns" {
				continue // half a minute is no three deadlines
			}
			t.Run(fault.name+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					core, logs := observer.New(zap.InfoLevel)
					begin := time.Now().Add(time.Hour)
					ctx, cancel := context.WithDeadline(t.Context(), begin.Add(outage+2*time.Hour))
					defer cancel()
					fault.run(ctx, zap.New(core), func() bool { return fails(time.Since(begin)) })
					checkLines(t, logs.All(), begin, "cause", fault.ends)
				})
			})
		}
	}
}

// Targets that are left out for 22 hours, all the time or by turns, have few lines: one at once, and in the end one that none is.
func TestLogOfTargetsLeftOut(t *testing.T) {
	for name, fails := range patterns {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				core, logs := observer.New(zap.InfoLevel)
				var s sources
				look := s.reported(zap.New(core), func(time.Duration) {})
				for begin := time.Now(); time.Since(begin) < outage+time.Hour; wait(2 * time.Second) {
					if s.settled(nil, nil); fails(time.Since(begin)) {
						s.settled(nil, []string{"one", "two"})
					}
					look(2 * time.Second)
				}
				lines := logs.All()
				if len(lines) < 2 || len(lines) > 9 {
					t.Fatalf("%d lines, want 2 to 9: %v", len(lines), lines[:min(len(lines), 20)])
				}
				if first := lines[0]; first.Level != zap.ErrorLevel || fmt.Sprint(first.ContextMap()["targets"]) != "[one two]" {
					t.Errorf("the first line is %v", first)
				}
				last := lines[len(lines)-1]
				if fields := last.ContextMap(); last.Message != "no target is left out any more" || fields["changes"] == nil || fields["after"] == nil {
					t.Errorf("the last line is %v: %v", last.Message, fields)
				}
			})
		})
	}
}

// checkLines checks the lines of an outage that began then.
func checkLines(t *testing.T, lines []observer.LoggedEntry, begin time.Time, cause, ends string) {
	t.Helper()
	if len(lines) < 2 || len(lines) > 9 {
		t.Fatalf("%d lines, want 2 to 9: %v", len(lines), lines[:min(len(lines), 20)])
	}
	first := lines[0]
	if first.Level < zap.WarnLevel || first.Time.Sub(begin) > 3*time.Minute || !strings.Contains(fmt.Sprint(first.ContextMap()), cause) {
		t.Errorf("the first line is %v: %v, %v after the outage began; want a warning with the cause soon", first.Message, first.ContextMap(), first.Time.Sub(begin))
	}
	end := slices.IndexFunc(lines, func(l observer.LoggedEntry) bool { return l.Message == ends && l.Time.Sub(begin) >= outage })
	if end < 0 {
		t.Fatalf("no line %q after the outage: %v", ends, lines)
	}
	last := lines[end].ContextMap()
	n, _ := last["failed_attempts"].(int64)
	if lasted, _ := last["after"].(time.Duration); n < 100 || lasted < outage-3*time.Minute || lasted > outage+3*time.Minute {
		t.Errorf("the end is %v; want how often and for how long", last)
	}
}

// All that a daemon says while every address of the ledger fails by turns for 22 hours. TestTheOutageOf22Hours is about one that stays.
func TestLogOfADaemonOver22Hours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait(time.Until(time.Date(2026, 7, 29, 12, 0, 0, 0, time.UTC)))
		l := newLedgerLab(t, 1, ledgertest.Options{SlotIndex: 100_000})
		defer l.Close()
		_, logs, stop := l.run(func(int, uint64) (time.Duration, bool) { return time.Millisecond, true })
		begin := time.Now().Add(time.Hour)
		for failing := false; time.Since(begin) < outage+2*time.Hour; wait(10 * time.Second) {
			switch now := patterns["by turns"](time.Since(begin)); {
			case now && !failing:
				l.Inject(ledgertest.Fault{Kind: ledgertest.Unavailable})
				failing = true
			case !now && failing:
				l.Heal()
				failing = false
			}
		}
		lines := make(map[string][]string)
		for _, e := range logs.All() {
			if !e.Time.Before(begin) && e.Message != "an epoch begins" {
				lines[e.LoggerName] = append(lines[e.LoggerName], fmt.Sprint(e.Time.Format(time.TimeOnly), " ", e.Message))
			}
		}
		stop()
		for name, said := range lines {
			if len(said) > 9 {
				t.Errorf("%d lines of %s, want at most 9:\n  %s", len(said), name, strings.Join(said, "\n  "))
			}
		}
		if len(lines["submit.endpoint"]) == 0 {
			t.Errorf("nothing about the endpoints: %v", lines)
		}
	})
}
