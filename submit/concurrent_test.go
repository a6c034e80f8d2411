// SPDX-License-Identifier: Apache-2.0

package submit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xtwamp/xtwamp/probe/store"
)

// slowSink takes several paths at a time.
type slowSink struct {
	fakeSink
	limit int
}

func (s *slowSink) Concurrency() int { return s.limit }

// accept takes up to n samples after a while.
func accept(n int, after time.Duration) func(context.Context, store.Path, []store.Sample) (Result, error) {
	return func(_ context.Context, _ store.Path, s []store.Sample) (Result, error) {
		pass(after)
		return Result{Accepted: min(n, len(s)), Again: n < len(s)}, nil
	}
}

func TestPathsAreSubmittedSideBySide(t *testing.T) {
	for limit, want := range map[int]time.Duration{1: 60 * time.Second, 2: 30 * time.Second, 6: 20 * time.Second} {
		t.Run(fmt.Sprintf("%d at a time", limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, sink := newFakeLog(3), &slowSink{limit: limit}
				sink.set(accept(239, 10*time.Second))
				for id := range store.PathID(3) {
					l.append(id+1, 300) // two batches each
				}
				s, _ := newSubmitter(t, l, sink, time.Minute)
				stop := start(t, s)
				pass(want - time.Nanosecond)
				synctest.Wait()
				if totals, _ := l.Totals("fake"); totals.Delivered == 900 {
					t.Error("all delivered too early")
				}
				pass(time.Nanosecond)
				synctest.Wait()
				if totals, _ := l.Totals("fake"); totals.Delivered != 900 {
					t.Errorf("%d samples delivered after %v, want 900", totals.Delivered, want)
				}
				stop()
				for _, p := range []string{"p1", "p2", "p3"} {
					if diff := cmp.Diff(sequence(0, 300), sink.took()[p]); diff != "" {
						t.Errorf("delivered of %s (-want +got):\n%s", p, diff)
					}
				}
			})
		})
	}
}

func TestAPathThatFailsHoldsBackNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, sink := newFakeLog(2), &slowSink{limit: 2}
		sink.set(func(_ context.Context, p store.Path, s []store.Sample) (Result, error) {
			if p.Name == "p1" {
				return Result{}, errDown
			}
			pass(10 * time.Second)
			return Result{Accepted: 10, Again: true}, nil
		})
		l.append(1, 10)
		l.append(2, 1000)
		s, logs := newSubmitter(t, l, sink, time.Minute)
		start(t, s)
		pass(1000 * time.Second) // a hundred batches without a pause
		synctest.Wait()
		if diff := cmp.Diff(sequence(0, 1000), sink.took()["p2"]); diff != "" {
			t.Errorf("delivered of p2 (-want +got):\n%s", diff)
		}
		if n := s.Stats().Failed; n < 16 {
			t.Errorf("%d attempts for p1 in 1000 s, want one per minute or more", n)
		}
		if diff := cmp.Diff([]string{"delivery fails, samples wait in the store"}, messages(logs)); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
		sink.set(nil)
		pass(time.Minute)
		synctest.Wait()
		if diff := cmp.Diff("delivering again", messages(logs)[1]); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}

// The first path that gets through after an outage ends the pauses of all.
func TestRecoveryIsForAllPathsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, sink := newFakeLog(9), &slowSink{limit: 9}
		sink.set(down)
		for id := range store.PathID(9) {
			l.append(id+1, 1000)
		}
		s, logs := newSubmitter(t, l, sink, time.Hour)
		start(t, s)
		pass(20 * time.Hour)
		failed := s.Stats().Failed
		sink.set(accept(10, time.Minute))
		for s.Stats().OK == 0 {
			pass(time.Second)
		}
		pass(time.Minute)
		synctest.Wait()
		if len(sink.took()) != 9 {
			t.Errorf("%d paths go on a minute after the first one, want 9", len(sink.took()))
		}
		if n := s.Stats().Failed - failed; n > 0 {
			t.Errorf("%d failed attempts since", n)
		}
		if diff := cmp.Diff([]string{"delivery fails, samples wait in the store"}, changes(logs)); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}

// limited is the error of a far side that asks for a pause.
type limited time.Duration

func (l limited) Error() string             { return "too many requests" }
func (l limited) RetryAfter() time.Duration { return time.Duration(l) }

// Case 84: all callers behind the same limiter wait.
func TestRetryAfterHoldsForAllPaths(t *testing.T) {
	for name, sink := range map[string]interface {
		Sink
		offers() []offer
		set(func(context.Context, store.Path, []store.Sample) (Result, error))
	}{"one at a time": new(fakeSink), "side by side": &slowSink{limit: 1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newFakeLog(3)
				first := true
				sink.set(func(_ context.Context, _ store.Path, s []store.Sample) (Result, error) {
					if first {
						first = false
						return Result{}, fmt.Errorf("send: %w", limited(7*time.Second))
					}
					return Result{Accepted: len(s)}, nil
				})
				for id := range store.PathID(3) {
					l.append(id+1, 1)
				}
				s, _ := newSubmitter(t, l, sink, time.Minute)
				start(t, s)
				pass(time.Minute)
				synctest.Wait()
				offers := sink.offers()
				if len(offers) != 4 {
					t.Fatalf("%d calls, want 4", len(offers))
				}
				for _, o := range offers[1:] {
					if o.At < 7*time.Second {
						t.Errorf("%s was offered after %v, want 7 s or more", o.Path, o.At)
					}
				}
			})
		})
	}
}

// Case 11: what was refused for good is not tried again in the same flush.
func TestASetbackWaitsForTheNextInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, sink := newFakeLog(1), &slowSink{limit: 1}
		sink.set(func(context.Context, store.Path, []store.Sample) (Result, error) {
			return Result{}, fmt.Errorf("write: %w", &Setback{Err: errDown})
		})
		l.append(1, 1)
		s, logs := newSubmitter(t, l, sink, time.Minute)
		start(t, s)
		pass(10*time.Minute - time.Second)
		synctest.Wait()
		var at []time.Duration
		for _, o := range sink.offers() {
			at = append(at, o.At)
		}
		var want []time.Duration
		for i := range 10 {
			want = append(want, time.Duration(i)*time.Minute)
		}
		if diff := cmp.Diff(want, at); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		if err := logs.All()[0].ContextMap()["error"]; !strings.Contains(err.(string), errDown.Error()) {
			t.Errorf("log says %q", err)
		}
		if !errors.Is(&Setback{Err: errDown}, errDown) {
			t.Error("a setback hides its cause")
		}
	})
}

func TestProgressWithoutASampleGoesOnAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, sink := newFakeLog(1), &slowSink{limit: 1}
		calls := 0
		sink.set(func(_ context.Context, _ store.Path, s []store.Sample) (Result, error) {
			if calls++; calls < 5 {
				return Result{Again: true, Put: map[string][]byte{"calls": {byte(calls)}}}, nil
			}
			return Result{Accepted: len(s)}, nil
		})
		l.append(1, 3)
		s, _ := newSubmitter(t, l, sink, time.Minute)
		start(t, s)
		synctest.Wait()
		if diff := cmp.Diff(sequence(0, 3), sink.took()["p1"]); diff != "" {
			t.Errorf("delivered (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]byte{4}, l.values["calls"]); diff != "" {
			t.Errorf("value (-want +got):\n%s", diff)
		}
	})
}

func TestAPathThatComesLaterIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, sink := newFakeLog(1), &slowSink{limit: 1}
		s, _ := newSubmitter(t, l, sink, 10*time.Second)
		start(t, s)
		pass(time.Second)
		l.mu.Lock()
		l.paths = append(l.paths, store.Path{ID: 2, Name: "p2"})
		l.mu.Unlock()
		l.append(2, 1)
		pass(20 * time.Second)
		synctest.Wait()
		if diff := cmp.Diff(sequence(0, 1), sink.took()["p2"]); diff != "" {
			t.Errorf("delivered (-want +got):\n%s", diff)
		}
	})
}

// Case 5: a list that cannot be read stays what it was.
func TestTheListOfPathsFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, sink := newFakeLog(3), &slowSink{limit: 3}
		s, _ := newSubmitter(t, l, sink, time.Minute)
		start(t, s)
		pass(time.Second)
		l.mu.Lock()
		l.fail = func(op string) error {
			if op == "paths" {
				return errDown
			}
			return nil
		}
		l.mu.Unlock()
		for range 2 {
			for id := range store.PathID(3) {
				l.append(id+1, 5)
			}
			pass(5 * time.Minute)
		}
		synctest.Wait()
		for _, p := range []string{"p1", "p2", "p3"} {
			if diff := cmp.Diff(sequence(0, 10), sink.took()[p]); diff != "" {
				t.Errorf("delivered of %s (-want +got):\n%s", p, diff)
			}
		}
	})
}

func TestALaneThatPanicsEndsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, sink := newFakeLog(2), &slowSink{limit: 2}
		panics := true
		sink.set(func(_ context.Context, p store.Path, s []store.Sample) (Result, error) {
			if p.Name == "p1" && panics {
				panics = false
				panic("injected")
			}
			return Result{Accepted: len(s)}, nil
		})
		l.append(1, 2)
		l.append(2, 2)
		s, _ := newSubmitter(t, l, sink, time.Minute)
		func() {
			defer func() {
				if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), "injected") {
					t.Errorf("Run panicked with %v, want what the sink said", p)
				}
			}()
			_ = s.Run(t.Context())
		}()
		stop := start(t, s)
		synctest.Wait()
		stop()
		want := map[string][]uint64{"p1": {0, 1}, "p2": {0, 1}}
		if diff := cmp.Diff(want, sink.took()); diff != "" {
			t.Errorf("delivered (-want +got):\n%s", diff)
		}
	})
}

func TestTheLastFlushOfAllPaths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, sink := newFakeLog(3), &slowSink{limit: 1}
		s, logs := newSubmitter(t, l, sink, time.Hour)
		stop := start(t, s)
		pass(time.Second)
		for id := range store.PathID(3) {
			l.append(id+1, 1)
		}
		sink.set(func(ctx context.Context, p store.Path, s []store.Sample) (Result, error) {
			if p.Name == "p2" {
				<-ctx.Done()
				return Result{}, context.Cause(ctx)
			}
			return Result{Accepted: len(s)}, nil
		})
		before := time.Now()
		stop()
		if d := time.Since(before); d != stopTimeout {
			t.Errorf("stopped after %v, want %v", d, stopTimeout)
		}
		if sink.took()["p2"] != nil {
			t.Errorf("delivered of p2: %v", sink.took()["p2"])
		}
		if n := logs.Len(); n > 0 {
			t.Errorf("log of a stop that did not wait for the sink: %q, want nothing", messages(logs))
		}
	})
}

// A call that takes no notice of its deadline makes the watchdog wait, whatever the other paths do.
func TestTheWatchdogMissesALaneThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, sink := newFakeLog(2), &slowSink{limit: 2}
		release := make(chan struct{})
		sink.set(func(_ context.Context, p store.Path, s []store.Sample) (Result, error) {
			if p.Name == "p1" {
				<-release
			}
			return Result{Accepted: 1}, nil
		})
		l.append(1, 1)
		var last time.Time
		s, _ := newSubmitter(t, l, sink, time.Minute)
		s.cfg.Beat = func(next time.Duration) { last = time.Now().Add(next) }
		start(t, s)
		pass(29 * time.Second)
		synctest.Wait()
		if !last.After(time.Now()) {
			t.Error("overdue while the call is within its deadline")
		}
		for range 10 {
			l.append(2, 1)
			pass(time.Minute)
		}
		synctest.Wait()
		if last.After(time.Now()) {
			t.Error("the loop says that it lives")
		}
		close(release)
		pass(2*time.Minute + time.Second)
		synctest.Wait()
		if !last.After(time.Now()) {
			t.Error("the loop is still silent after the call came back")
		}
	})
}

// A sink that fails by turns has few lines in the log, and one that goes on failing has its line in the end.
func TestFlappingIsNotLoggedEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, sink := newFakeLog(1), new(fakeSink)
		s, logs := newSubmitter(t, l, sink, time.Minute)
		start(t, s)
		for range 22 * 30 {
			sink.set(down)
			l.append(1, 1)
			pass(time.Minute)
			sink.set(nil)
			pass(time.Minute)
		}
		synctest.Wait()
		if n := logs.Len(); n > 9 {
			t.Errorf("%d lines in 22 hours, want at most 9", n)
		}
		sink.set(down)
		l.append(1, 1)
		before := logs.Len()
		pass(tellAgain + 2*time.Minute)
		synctest.Wait()
		if logs.Len() != before+1 {
			t.Errorf("log of an outage that stays: %q", messages(logs)[before:])
		}
	})
}
