// SPDX-License-Identifier: Apache-2.0

package submit

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/probe/store"
)

func TestSamplesAreDeliveredAsSoonAsTheyAreStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, sink := newFakeLog(3), new(fakeSink)
		l.paths[2].Labels = map[string]string{"skip": "yes"}
		s, logs := newSubmitter(t, l, sink, time.Hour)
		stop := start(t, s)

		l.append(1, 2)
		synctest.Wait()
		l.append(2, 3)
		l.append(3, 3)
		l.append(1, 1)
		synctest.Wait()

		want := map[string][]uint64{"p1": {0, 1, 2}, "p2": {0, 1, 2}}
		if diff := cmp.Diff(want, sink.took()); diff != "" {
			t.Errorf("delivered (-want +got):\n%s", diff)
		}
		stop()
		if n := logs.Len(); n != 0 {
			t.Errorf("%d log lines, want none: %q", n, messages(logs))
		}
		if got := s.Stats(); got.OK != 3 || got.Failed != 0 || !got.LastSuccess.Equal(bubbleStart) {
			t.Errorf("stats: %+v, want 3 ok at %v", got, bubbleStart)
		}
	})
}

func TestASinkThatHoldsSamplesBackIsAskedAgainAfterTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, sink := newFakeLog(1), new(fakeSink)
		var ripe atomic.Int64 // samples that are old enough, as a sink with a clock of its own sees it
		ripe.Store(2)
		sink.set(func(_ context.Context, _ store.Path, s []store.Sample) (Result, error) {
			return Result{Accepted: min(len(s), max(0, int(ripe.Load())-int(s[0].Seq)))}, nil
		})
		l.append(1, 5)
		s, logs := newSubmitter(t, l, sink, time.Minute)
		start(t, s)
		synctest.Wait()
		ripe.Store(4)
		pass(time.Minute)
		synctest.Wait()

		want := []offer{{0, "p1", 0, 5}, {0, "p1", 2, 3}, {time.Minute, "p1", 2, 3}, {time.Minute, "p1", 4, 1}}
		if diff := cmp.Diff(want, sink.offers()); diff != "" {
			t.Errorf("offers (-want +got):\n%s", diff)
		}
		if n := logs.Len(); n != 0 {
			t.Errorf("%d log lines, want none: %q", n, messages(logs))
		}
	})
}

// Case 7 of the field reports: 500 samples of which 239 fit into one write; the second write fails once.
func TestARetryResumesBehindWhatWasAccepted(t *testing.T) {
	for _, tc := range []struct {
		name    string
		partial int // accepted by the call that fails
	}{{"nothing of the failed batch", 0}, {"a part of the failed batch", 100}} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, sink := newFakeLog(1), new(fakeSink)
				calls := 0
				sink.set(func(_ context.Context, _ store.Path, s []store.Sample) (Result, error) {
					if calls++; calls == 2 {
						return Result{Accepted: tc.partial}, errDown
					}
					return Result{Accepted: min(len(s), 239)}, nil
				})
				l.append(1, 500)
				s, _ := newSubmitter(t, l, sink, time.Minute)
				start(t, s)
				pass(time.Minute)
				synctest.Wait()

				if diff := cmp.Diff(sequence(0, 500), sink.took()["p1"]); diff != "" {
					t.Errorf("delivered (-want +got):\n%s", diff)
				}
				if got, want := sink.offers()[2].From, uint64(239+tc.partial); got != want {
					t.Errorf("the retry begins at %d, want %d", got, want)
				}
			})
		})
	}
}

// Case 9: the sink is down, samples keep coming, the sink recovers.
func TestTheBacklogDrainsWithinOneIntervalOfRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const interval, rounds = time.Minute, 22 * 60
		l, sink := newFakeLog(2), new(fakeSink)
		sink.set(down)
		s, logs := newSubmitter(t, l, sink, interval)
		start(t, s)
		for range rounds { // 22 hours
			l.append(1, 1)
			l.append(2, 1)
			pass(interval)
		}
		sink.set(nil)
		pass(interval)
		synctest.Wait()

		for _, p := range []string{"p1", "p2"} {
			if diff := cmp.Diff(sequence(0, rounds), sink.took()[p]); diff != "" {
				t.Errorf("delivered of %s (-want +got):\n%s", p, diff)
			}
		}
		want := []string{"delivery fails, samples wait in the store", "delivering again"}
		if diff := cmp.Diff(want, changes(logs)); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
		fields := logs.FilterMessage("delivering again").All()[0].ContextMap()
		if n := fields["failed_attempts"]; n != int64(s.Stats().Failed) || s.Stats().Failed < rounds {
			t.Errorf("%v failed attempts in the log, %d in the statistics, want one per interval or more", n, s.Stats().Failed)
		}
		if d := fields["after"].(time.Duration); d < 22*time.Hour || d > 22*time.Hour+interval {
			t.Errorf("recovered after %v, want 22 hours and at most %v more", d, interval)
		}
	})
}

func TestPausesGrowWithFullJitterUpToTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const interval = 20 * time.Second
		l, sink := newFakeLog(1), new(fakeSink)
		sink.set(down)
		l.append(1, 1)
		s, _ := newSubmitter(t, l, sink, interval)
		start(t, s)
		pass(2 * time.Hour)
		synctest.Wait()

		offers := sink.offers()
		bound, sum, low := time.Second, time.Duration(0), 0
		for i := 1; i < len(offers); i++ {
			gap := offers[i].At - offers[i-1].At
			if gap > bound {
				t.Fatalf("pause %d is %v, want at most %v", i, gap, bound)
			}
			if gap < interval/4 {
				low++
			}
			sum += gap
			bound = min(2*bound, interval)
		}
		n := len(offers) - 1
		if mean := sum / time.Duration(n); mean < interval*2/5 || mean > interval*3/5 {
			t.Errorf("mean pause %v, want about %v", mean, interval/2)
		}
		if low < n/8 || low > n*3/8 {
			t.Errorf("%d of %d pauses are in the lowest quarter, want about a quarter", low, n)
		}
	})
}

func TestASecondOutageIsLikeTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, sink := newFakeLog(1), new(fakeSink)
		s, logs := newSubmitter(t, l, sink, time.Hour)
		start(t, s)
		for outage := range 2 {
			sink.set(down)
			before := len(sink.offers())
			l.append(1, 1)
			pass(10 * time.Hour)
			sink.set(nil)
			pass(time.Hour)
			synctest.Wait()

			offers := sink.offers()[before:]
			if pause := offers[1].At - offers[0].At; pause > firstRetry {
				t.Errorf("outage %d: first pause is %v, want at most %v", outage, pause, firstRetry)
			}
			if diff := cmp.Diff(slices.Repeat([]string{"delivery fails, samples wait in the store", "delivering again"}, outage+1), changes(logs)); diff != "" {
				t.Errorf("outage %d: log (-want +got):\n%s", outage, diff)
			}
			if n := logs.FilterMessage("delivering again").All()[outage].ContextMap()["failed_attempts"]; n != int64(len(offers)-1) {
				t.Errorf("outage %d: %v failed attempts, want %d", outage, n, len(offers)-1)
			}
		}
	})
}

func TestNewSamplesDoNotShortenAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, sink := newFakeLog(1), new(fakeSink)
		sink.set(down)
		l.append(1, 1)
		s, _ := newSubmitter(t, l, sink, time.Hour)
		start(t, s)
		for range 1000 {
			l.append(1, 1)
			pass(10 * time.Millisecond)
		}
		if n := len(sink.offers()); n > 100 {
			t.Errorf("%d attempts in 10 s with a store that changes every 10 ms", n)
		}
	})
}

func TestAFaultOfOnePathDoesNotHoldBackTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, sink := newFakeLog(4), new(fakeSink)
		sink.set(func(_ context.Context, p store.Path, s []store.Sample) (Result, error) {
			if p.Name == "p2" {
				return Result{}, errDown
			}
			return Result{Accepted: len(s)}, nil
		})
		for id := range store.PathID(4) {
			l.append(id+1, 3*batchSize)
		}
		s, _ := newSubmitter(t, l, sink, time.Second)
		start(t, s)
		pass(10 * time.Second)
		synctest.Wait()
		for _, p := range []string{"p1", "p3", "p4"} {
			if got := len(sink.took()[p]); got != 3*batchSize {
				t.Errorf("%d samples of %s delivered, want %d", got, p, 3*batchSize)
			}
		}
	})
}

func TestTheStoreFailing(t *testing.T) {
	for _, op := range []string{"enable", "paths", "next", "commit"} {
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, sink := newFakeLog(1), new(fakeSink)
				var broken atomic.Bool
				broken.Store(true)
				l.fail = func(o string) error {
					if o == op && broken.Load() {
						return errors.New("no space")
					}
					return nil
				}
				l.append(1, 3)
				s, logs := newSubmitter(t, l, sink, time.Minute)
				start(t, s)
				pass(time.Hour)
				broken.Store(false)
				pass(time.Minute)
				synctest.Wait()
				if l.enabled != 1 {
					t.Errorf("enabled %d times, want once", l.enabled)
				}
				if got := l.positions[1]; got != 3 {
					t.Errorf("position %d, want 3", got)
				}
				if s.Stats().Failed == 0 || s.Stats().OK != 1 {
					t.Errorf("stats %+v, want some failed and 1 ok", s.Stats())
				}
				if n := logs.Len(); n != 2 {
					t.Errorf("log: %q, want 2 lines", messages(logs))
				}
			})
		})
	}
}

func TestTheLastFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, sink := newFakeLog(1), new(fakeSink)
		sink.set(func(ctx context.Context, _ store.Path, s []store.Sample) (Result, error) {
			select { // a sink that takes its time
			case <-time.After(3 * time.Second):
				return Result{Accepted: len(s)}, nil
			case <-ctx.Done():
				return Result{}, ctx.Err()
			}
		})
		l.append(1, 1)
		s, logs := newSubmitter(t, l, sink, time.Hour)
		stop := start(t, s)
		pass(time.Second) // in the middle of the first batch
		l.append(1, 1)
		stop()
		if diff := cmp.Diff([]offer{{0, "p1", 0, 1}, {3 * time.Second, "p1", 1, 1}}, sink.offers()); diff != "" {
			t.Errorf("offers (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(sequence(0, 2), sink.took()["p1"]); diff != "" {
			t.Errorf("delivered (-want +got):\n%s", diff)
		}
		if n := logs.Len(); n != 0 {
			t.Errorf("log: %q, want nothing", messages(logs))
		}
	})
}

func TestTheLastFlushInTheMiddleOfAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, sink := newFakeLog(1), new(fakeSink)
		sink.set(down)
		l.append(1, 1)
		s, _ := newSubmitter(t, l, sink, time.Hour)
		stop := start(t, s)
		synctest.Wait()
		sink.set(nil)
		before := time.Now()
		stop()
		if d := time.Since(before); d != 0 || len(sink.took()["p1"]) != 1 {
			t.Errorf("%d samples delivered %v after the stop, want 1 at once", len(sink.took()["p1"]), d)
		}
	})
}

func TestASinkThatHangsDelaysTheStopByItsTimeoutOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, sink := newFakeLog(1), new(fakeSink)
		var cause error
		sink.set(func(ctx context.Context, _ store.Path, _ []store.Sample) (Result, error) {
			<-ctx.Done()
			cause = context.Cause(ctx)
			return Result{}, ctx.Err()
		})
		l.append(1, 1)
		s, _ := newSubmitter(t, l, sink, time.Hour)
		stop := start(t, s)
		pass(callTimeout / 10)
		before := time.Now()
		stop()
		if d := time.Since(before); d != stopTimeout {
			t.Errorf("stopped after %v, want %v", d, stopTimeout)
		}
		if !errors.Is(cause, errStopTimeout) {
			t.Errorf("sink saw cause %v, want %v", cause, errStopTimeout)
		}
	})
}

func TestABacklogDoesNotDelayTheStopForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, sink := newFakeLog(1), new(fakeSink)
		sink.set(func(_ context.Context, _ store.Path, s []store.Sample) (Result, error) {
			pass(time.Second) // whatever the context says
			return Result{Accepted: 1}, nil
		})
		l.append(1, 1000)
		s, _ := newSubmitter(t, l, sink, time.Hour)
		stop := start(t, s)
		pass(10500 * time.Millisecond)
		before := time.Now()
		stop()
		if d := time.Since(before); d < stopTimeout || d > stopTimeout+time.Second {
			t.Errorf("stopped after %v, want %v and the call under way", d, stopTimeout)
		}
		if got, want := l.positions[1], uint64(len(sink.took()["p1"])); got != want {
			t.Errorf("position %d after %d samples", got, want)
		}
	})
}

func TestACallHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, sink := newFakeLog(1), new(fakeSink)
		var took time.Duration
		sink.set(func(ctx context.Context, _ store.Path, _ []store.Sample) (Result, error) {
			before := time.Now()
			<-ctx.Done()
			took = time.Since(before)
			return Result{}, ctx.Err()
		})
		l.append(1, 1)
		s, _ := newSubmitter(t, l, sink, time.Hour)
		start(t, s)
		pass(callTimeout)
		synctest.Wait()
		if took != callTimeout {
			t.Errorf("call ended after %v, want %v", took, callTimeout)
		}
	})
}

func TestTheWatchdogHearsOfEveryStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, sink := newFakeLog(2), new(fakeSink)
		l.append(1, 1)
		l.append(2, 1)
		var beats []time.Duration
		s, err := New(Config{Log: l, Sink: sink, Interval: time.Minute, Logger: zap.NewNop(), Beat: func(d time.Duration) { beats = append(beats, d) }})
		if err != nil {
			t.Fatal(err)
		}
		start(t, s)
		pass(90 * time.Second)
		synctest.Wait()
		want := []time.Duration{callTimeout, callTimeout, time.Minute, time.Minute}
		if diff := cmp.Diff(want, beats); diff != "" {
			t.Errorf("beats (-want +got):\n%s", diff)
		}
	})
}

func TestAPanicLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, sink := newFakeLog(2), new(fakeSink)
		calls := 0
		sink.set(func(_ context.Context, _ store.Path, s []store.Sample) (Result, error) {
			if calls++; calls == 2 {
				panic("injected")
			}
			return Result{Accepted: len(s)}, nil
		})
		l.append(1, 2)
		l.append(2, 2)
		s, _ := newSubmitter(t, l, sink, time.Minute)
		func() {
			defer func() {
				if recover() == nil {
					t.Error("Run returned, want a panic")
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

// Case 3, and 4 as far as it concerns this layer: what is dropped is counted exactly and said.
func TestARefusalIsCountedExactly(t *testing.T) {
	l, sink := newFakeLog(1), new(fakeSink)
	sink.set(func(_ context.Context, _ store.Path, s []store.Sample) (Result, error) {
		switch s[0].Seq {
		case 0:
			return Result{Accepted: 239, Put: map[string][]byte{"account": []byte("full")}}, &Refusal{Reason: "account_full", Count: 61}
		default:
			return Result{Accepted: len(s)}, nil
		}
	})
	s, logs := newSubmitter(t, l, sink, time.Minute)
	l.append(1, 310) // 10 are behind the 300 that the sink decided about
	if err := s.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(slices.Concat(sequence(0, 239), sequence(300, 310)), sink.took()["p1"]); diff != "" {
		t.Errorf("delivered (-want +got):\n%s", diff)
	}
	want := store.Update{
		Positions: map[store.PathID]uint64{1: 300},
		Delivered: 239,
		Dropped:   map[string]uint64{"account_full": 61},
		Put:       map[string][]byte{"account": []byte("full")},
	}
	if diff := cmp.Diff(want, l.commits[0]); diff != "" {
		t.Errorf("first commit (-want +got):\n%s", diff)
	}
	s.runs.end(s.logger) // as when it stops
	if diff := cmp.Diff([]string{"dropping samples", "dropped samples"}, messages(logs)); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	if n := logs.All()[1].ContextMap()["count"]; n != uint64(61) {
		t.Errorf("count in the log: %v, want 61", n)
	}
	if got := s.Stats(); got.OK != 1 || got.Refused != 1 || got.Failed != 0 {
		t.Errorf("stats %+v, want 1 ok and 1 refused", got)
	}
}

func TestARunOfDropsHasOneLineAtItsStartAndOneAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, sink := newFakeLog(3), new(fakeSink)
		refuse := map[string]string{"p1": "account_full", "p2": "account_full"}
		sink.set(func(_ context.Context, p store.Path, s []store.Sample) (Result, error) {
			if reason := refuse[p.Name]; reason != "" {
				return Result{}, &Refusal{Reason: reason, Count: len(s)}
			}
			return Result{Accepted: len(s)}, nil
		})
		s, logs := newSubmitter(t, l, sink, time.Minute)
		round := func() {
			t.Helper()
			for id := range store.PathID(3) {
				l.append(id+1, 2)
			}
			if err := s.flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		type line struct {
			Message, Reason string
			Count           any
		}
		lines := func() (got []line) {
			for _, e := range logs.TakeAll() {
				f := e.ContextMap()
				got = append(got, line{e.Message, f["reason"].(string), f["count"]})
			}
			return got
		}
		for _, step := range []struct {
			name   string
			after  time.Duration // the one before
			change func()
			want   []line
		}{
			{"two paths are full", lull, func() {}, []line{{"dropping samples", "account_full", nil}}},
			{"still", lull, func() {}, nil},
			{"one is taken again", lull, func() { delete(refuse, "p1") }, nil},
			{"the other is refused for another reason", lull, func() { refuse["p2"] = "link_gone" },
				[]line{{"dropped samples", "account_full", uint64(10)}, {"dropping samples", "link_gone", nil}}},
			{"and taken again", lull, func() { delete(refuse, "p2") }, []line{{"dropped samples", "link_gone", uint64(2)}}},
			{"refused path by path", lull, func() { refuse["p1"] = "index_taken" }, []line{{"dropping samples", "index_taken", nil}}},
			{"and the next", time.Second, func() { delete(refuse, "p1") }, nil},
			{"of them", time.Second, func() { refuse["p2"] = "index_taken" }, nil},
			{"is through", time.Second, func() { delete(refuse, "p2") }, nil},
			{"and all were for a while", lull, func() {}, []line{{"dropped samples", "index_taken", uint64(4)}}},
			{"nothing to say", lull, func() {}, nil},
			{"refused at the end", lull, func() { refuse["p3"] = "undated" }, []line{{"dropping samples", "undated", nil}}},
		} {
			pass(step.after)
			step.change()
			round()
			if diff := cmp.Diff(step.want, lines()); diff != "" {
				t.Errorf("%s: log (-want +got):\n%s", step.name, diff)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]line{{"dropped samples", "undated", uint64(2)}}, lines()); diff != "" {
			t.Errorf("at the stop: log (-want +got):\n%s", diff)
		}
	})
}

func TestARefusalThatWasNotCommittedIsNeitherCountedNorLogged(t *testing.T) {
	l, sink := newFakeLog(1), new(fakeSink)
	sink.set(func(_ context.Context, _ store.Path, s []store.Sample) (Result, error) {
		return Result{}, &Refusal{Reason: "account_full", Count: len(s)}
	})
	l.fail = func(op string) error {
		if op == "commit" {
			return errors.New("no space")
		}
		return nil
	}
	s, logs := newSubmitter(t, l, sink, time.Minute)
	l.append(1, 1)
	if err := s.flush(t.Context()); err == nil {
		t.Fatal("flush succeeded with a store that failed")
	}
	if n := logs.Len(); n != 0 || s.Stats().Refused != 0 {
		t.Errorf("log %q, stats %+v, want nothing", messages(logs), s.Stats())
	}
}

func TestASinkThatMiscountsChangesNothing(t *testing.T) {
	for _, tc := range []struct {
		name     string
		accepted int
		err      error
	}{
		{"more than offered", 3, nil},
		{"less than nothing", -1, nil},
		{"more than offered with a refusal", 1, &Refusal{Reason: "full", Count: 2}},
		{"an empty refusal", 0, &Refusal{Reason: "full"}},
		{"a negative refusal", 1, &Refusal{Reason: "full", Count: -1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, sink := newFakeLog(1), new(fakeSink)
			sink.set(func(context.Context, store.Path, []store.Sample) (Result, error) {
				return Result{Accepted: tc.accepted, Put: map[string][]byte{"key": nil}}, tc.err
			})
			l.append(1, 2)
			s, _ := newSubmitter(t, l, sink, time.Minute)
			if err := s.flush(t.Context()); err == nil {
				t.Error("flush succeeded")
			}
			if len(l.commits) != 0 {
				t.Errorf("committed %+v", l.commits)
			}
		})
	}
}

func TestPutsAreCommittedWithoutASample(t *testing.T) {
	l, sink := newFakeLog(1), new(fakeSink)
	sink.set(func(context.Context, store.Path, []store.Sample) (Result, error) {
		return Result{Put: map[string][]byte{"key": []byte("value")}}, errDown
	})
	l.append(1, 1)
	s, _ := newSubmitter(t, l, sink, time.Minute)
	if err := s.flush(t.Context()); !errors.Is(err, errDown) {
		t.Errorf("flush: %v, want %v", err, errDown)
	}
	if got := string(l.values["key"]); got != "value" {
		t.Errorf("value %q, want %q", got, "value")
	}
}

func TestConfigIsValidated(t *testing.T) {
	good := Config{Log: newFakeLog(0), Sink: new(fakeSink), Interval: time.Second, Logger: zap.NewNop()}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Config){
		"no log":        func(c *Config) { c.Log = nil },
		"no sink":       func(c *Config) { c.Sink = nil },
		"no logger":     func(c *Config) { c.Logger = nil },
		"no interval":   func(c *Config) { c.Interval = 0 },
		"time reversed": func(c *Config) { c.Interval = -1 },
	} {
		c := good
		spoil(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
