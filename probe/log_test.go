// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/xtwamp/xtwamp/probe/store"
)

// Whatever fails for 22 hours, all the time or by turns, has few lines: one with the cause at once, and in the end one with how often
// and for how long.
func TestLogOver22Hours(t *testing.T) {
	cause := errors.New("cause")
	for _, fault := range []struct {
		name string
		// run runs what has a fault until ctx ends; fails says whether it is to fail now.
		run          func(t *testing.T, ctx context.Context, log *zap.Logger, fails func() bool)
		cause, ends  string
		neverAtTurns bool // it takes longer than half a minute to be a fault
		beside       bool // the store, which fails as well, has lines of its own
	}{
		{name: "store refuses", ends: "the store takes samples again", run: runRecorder(cause, 10*time.Second, 1000)},
		{name: "store refuses, seldom asked", ends: "the store takes samples again", run: runRecorder(cause, 10*time.Minute, 1000), neverAtTurns: true},
		{name: "memory is full", cause: "memory", ends: "samples were dropped for want of memory", run: runRecorder(cause, 10*time.Second, 4), beside: true},
		{name: "loop that ends at once", ends: "x works again", run: runLoop(cause, 0)},
		{name: "loop that ends soon", ends: "x works again", run: runLoop(cause, 20*time.Second)},
		{name: "lost", cause: "192.0.2.1", ends: "path works again", run: runEngine(func(s *simulation, fails func() bool) {
			s.net.reach = func(p *simProbe) {
				if !fails() {
					p.answer(ms)
				}
			}
		})},
		{name: "not sent", ends: "path works again", run: runEngine(func(s *simulation, fails func() bool) {
			s.net.reach = func(p *simProbe) { p.answer(ms) }
			s.net.sends = func() error {
				if fails() {
					return down(store.NoBuffer, "%w", cause)
				}
				return nil
			}
		})},
		{name: "bypassed", cause: "sim0", ends: "path works again", run: runEngine(func(s *simulation, fails func() bool) {
			s.net.reach = func(p *simProbe) {
				p.answerEdited(ms, func(r *reply) {
					if fails() {
						r.txSource, r.rxSource = store.NoSource, store.User
					}
				})
			}
		})},
		{name: "cannot be opened", ends: "path works again", run: runEngine(vanishing(down(store.NoRoute, "%w", cause)))},
		{name: "interface is gone", ends: "interface works again", run: runEngine(vanishing(noInterface("sim0", cause)))},
		{name: "clock stepped", cause: "by", ends: "the wall clock is not stepped any more", run: runEngine(func(s *simulation, fails func() bool) {
			s.net.reach = func(p *simProbe) { p.answer(ms) }
			s.clock.looked = func() {
				if fails() {
					s.clock.wall += int64(time.Second)
				}
			}
		})},
		{name: "clock adrift", cause: "synchronized", ends: "clock synchronization changed", run: runEngine(func(s *simulation, fails func() bool) {
			s.net.reach = func(p *simProbe) { p.answer(ms) }
			s.clock.looked = func() { s.clock.adrift = fails() }
		})},
		{name: "held up", cause: "behind", ends: "the schedule is kept again", run: runEngine(func(s *simulation, fails func() bool) {
			s.net.reach = func(p *simProbe) { p.answer(ms) }
			s.cfg.Beat = func(time.Duration) {
				if fails() {
					<-time.After(12 * time.Second)
				}
			}
		})},
		{name: "tried every 5 s", ends: "works", run: attempts(cause, 5*time.Second, 0)},
		{name: "tried every minute", ends: "works", run: attempts(cause, time.Minute, minutely)},
		{name: "taken away", ends: attachedTo, cause: "eth1", run: runHold(func(h *holds, log *zap.Logger, fails bool) {
			if fails {
				h.lost(log, "somebody has detached", "eth1")
				h.attached(log, attachedTo, "eth1", StepTCX, nil)
			}
		})},
		{name: "refused", ends: attachedTo, run: runHold(func(h *holds, log *zap.Logger, fails bool) {
			if fails {
				h.lost(log, "cannot attach", "eth1", zap.Error(cause))
			} else {
				h.attached(log, attachedTo, "eth1", StepTCX, nil)
			}
		})},
	} {
		for name, fails := range map[string]func(time.Duration) bool{
			"all the time": func(time.Duration) bool { return true },
			"by turns":     func(after time.Duration) bool { return after%time.Minute < 30*time.Second },
			"now and then": func(after time.Duration) bool { return after%(150*time.Second) < 30*time.Second },
		} {
			if fault.neverAtTurns && name != "all the time" {
				continue
			}
			t.Run(fault.name+"/"+name, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					core, logged := observer.New(zap.InfoLevel)
					begin := time.Now().Add(time.Hour)
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour+outage+time.Hour)
					defer cancel()
					fault.run(t, ctx, zap.New(core), func() bool {
						after := time.Since(begin)
						return after >= 0 && after < outage && fails(after)
					})
					var lines []observer.LoggedEntry
					for _, l := range logged.All() {
						if !l.Time.Before(begin) && !(fault.beside && strings.HasPrefix(l.Message, "the store ")) {
							lines = append(lines, l)
						}
					}
					if fault.cause == "" {
						fault.cause = "cause"
					}
					checkLines(t, lines, begin, fault.cause, fault.ends)
				})
			})
		}
	}
}

const outage = 22 * time.Hour

// checkLines checks the lines of an outage that began then.
func checkLines(t *testing.T, lines []observer.LoggedEntry, begin time.Time, cause, ends string) {
	t.Helper()
	if len(lines) < 2 || len(lines) > 9 {
		t.Fatalf("%d lines, want 2 to 9: %v", len(lines), lines[:min(len(lines), 20)])
	}
	first := lines[0]
	if first.Time.Sub(begin) > 11*time.Minute || !strings.Contains(fmt.Sprint(first.Message, first.Context), cause) {
		t.Errorf("the first line is %v %v, %v after the outage began; want its cause soon", first.Message, first.Context, first.Time.Sub(begin))
	}
	end := len(lines) - 1 // what comes and goes ends more than once
	for ; end >= 0 && (lines[end].Message != ends || lines[end].ContextMap()["after"] == nil); end-- {
	}
	if end < 0 {
		t.Fatalf("no line %q: %v", ends, lines)
	}
	last := lines[end].ContextMap()
	n, _ := last["times"].(uint64)
	if lasted, _ := last["after"].(time.Duration); n < 2 || lasted < outage-21*time.Minute || lasted > outage+11*time.Minute {
		t.Errorf("the end is %v; want how often and for how long", last)
	}
	if at := lines[end].Time.Sub(begin); at < outage || at > outage+40*time.Minute {
		t.Errorf("the end is told %v after the begin", at)
	}
}

// runRecorder measures once a second into a memory for so many samples.
func runRecorder(cause error, interval time.Duration, size int) func(*testing.T, context.Context, *zap.Logger, func() bool) {
	return func(t *testing.T, ctx context.Context, log *zap.Logger, fails func() bool) {
		ring := NewRing(size)
		ring.Began(0, simTarget("a", time.Second))
		r := NewRecorder(RecorderConfig{
			Ring: ring, Log: &fakeLog{}, Clock: func() ClockState { return ClockState{} }, Interval: interval, Logger: log,
		})
		l := r.cfg.Log.(*fakeLog)
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		for ctx.Err() == nil {
			err := cause
			if !fails() {
				err = nil
			}
			l.failWith(err)
			ring.Put(0, store.Sample{})
			<-time.After(3 * time.Second)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// runLoop runs a loop that lives for a while before it fails.
func runLoop(cause error, lives time.Duration) func(*testing.T, context.Context, *zap.Logger, func() bool) {
	return func(_ *testing.T, ctx context.Context, log *zap.Logger, fails func() bool) {
		keep(ctx, log, "x", func(ctx context.Context) error {
			for {
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(lives + time.Millisecond):
				}
				if fails() {
					return cause
				}
				lives = max(lives, time.Second)
			}
		})
	}
}

// runEngine runs an engine with two targets.
func runEngine(spoil func(s *simulation, fails func() bool)) func(*testing.T, context.Context, *zap.Logger, func() bool) {
	return func(t *testing.T, ctx context.Context, log *zap.Logger, fails func() bool) {
		s := simulate(t, func(c *Config) { c.Logger = log; c.Emit = func(int, store.Sample) {} }, simTarget("a", 5*time.Second))
		spoil(s, fails)
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	}
}

// vanishing takes the way of a path away.
func vanishing(d *downError) func(*simulation, func() bool) {
	return func(s *simulation, fails func() bool) {
		s.net.reach = func(p *simProbe) { p.answer(ms) }
		s.net.opens = func(openRequest) (netip.Addr, error) {
			if fails() {
				return netip.Addr{}, d
			}
			return netip.MustParseAddr("192.0.2.1"), nil
		}
		s.net.sends = func() error {
			if fails() {
				return d
			}
			return nil
		}
	}
}

// attempts tries something that often.
func attempts(cause error, every, calm time.Duration) func(*testing.T, context.Context, *zap.Logger, func() bool) {
	return func(_ *testing.T, ctx context.Context, log *zap.Logger, fails func() bool) {
		of := trouble{calm: calm}
		for ctx.Err() == nil {
			err := cause
			if !fails() {
				err = nil
			}
			of.attempt(log, err, "fails", "works")
			<-time.After(every)
		}
	}
}

// runHold looks at an attachment as often as is done.
func runHold(look func(h *holds, log *zap.Logger, fails bool)) func(*testing.T, context.Context, *zap.Logger, func() bool) {
	return func(_ *testing.T, ctx context.Context, log *zap.Logger, fails func() bool) {
		var h holds
		h.attached(log, attachedTo, "eth1", StepTCX, nil)
		for ctx.Err() == nil {
			failing := fails()
			look(&h, log, failing)
			if !failing {
				h.lasts(log, attachedTo, "eth1")
			}
			<-time.After(20 * time.Second)
		}
	}
}
