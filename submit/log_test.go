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

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/xtwamp/xtwamp/probe/store"
)

// Whatever fails for 22 hours, all the time or by turns, has few lines: one with the cause at once, and in the end one with how often
// and for how long.
func TestLogOver22Hours(t *testing.T) {
	storeFails := func(op string) func(*fakeLog, *fakeSink, func() bool) {
		return func(l *fakeLog, _ *fakeSink, fails func() bool) {
			l.fail = func(now string) error {
				if now == op && fails() {
					return errors.New("cause")
				}
				return nil
			}
		}
	}
	sinkFails := func(fail func(context.Context, int) (Result, error)) func(*fakeLog, *fakeSink, func() bool) {
		return func(_ *fakeLog, sink *fakeSink, fails func() bool) {
			sink.set(func(ctx context.Context, _ store.Path, s []store.Sample) (Result, error) {
				if fails() {
					return fail(ctx, len(s))
				}
				return Result{Accepted: len(s)}, nil
			})
		}
	}
	for _, fault := range []struct {
		name  string
		fails func(l *fakeLog, sink *fakeSink, fails func() bool)
		ends  string
		count string // the field that says how often
	}{
		{"sink", sinkFails(func(context.Context, int) (Result, error) { return Result{}, errors.New("cause") }), "delivering again", "failed_attempts"},
		{"sink that hangs", sinkFails(func(ctx context.Context, _ int) (Result, error) {
			<-ctx.Done()
			return Result{}, fmt.Errorf("cause: %w", ctx.Err())
		}), "delivering again", "failed_attempts"},
		{"sink that refuses", sinkFails(func(_ context.Context, n int) (Result, error) {
			return Result{}, &Refusal{Reason: "cause", Count: n}
		}), "dropped samples", "count"},
		{"paths", storeFails("paths"), "delivering again", "failed_attempts"},
		{"next", storeFails("next"), "delivering again", "failed_attempts"},
		{"commit", storeFails("commit"), "delivering again", "failed_attempts"},
	} {
		for _, pattern := range patterns {
			for _, concurrent := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/concurrent=%t", fault.name, pattern.name, concurrent), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						l, own := newFakeLog(2), &slowSink{limit: 2}
						var sink Sink = &own.fakeSink
						if concurrent {
							sink = own
						}
						begin := time.Now().Add(time.Hour)
						fault.fails(l, &own.fakeSink, func() bool { return pattern.fails(time.Since(begin)) })
						s, logs := newSubmitter(t, l, sink, 15*time.Second)
						start(t, s)
						for time.Since(begin) < outage+2*time.Hour {
							for _, p := range l.paths {
								l.append(p.ID, 1)
							}
							pass(pattern.step)
						}
						checkLines(t, logs, begin, fault.ends, fault.count)
					})
				})
			}
		}
	}
}

const outage = 22 * time.Hour

// patterns say whether something fails so long after the outage began.
var patterns = []struct {
	name  string
	step  time.Duration // between samples
	fails func(time.Duration) bool
}{
	{"all the time", 2 * time.Minute, func(after time.Duration) bool { return after >= 0 && after < outage }},
	{"by turns", 15 * time.Second, func(after time.Duration) bool {
		return after >= 0 && after < outage && after%time.Minute < 30*time.Second
	}},
}

// checkLines checks the lines of an outage that began then.
func checkLines(t *testing.T, logs *observer.ObservedLogs, begin time.Time, ends, count string) {
	t.Helper()
	all := logs.All()
	if len(all) < 2 || len(all) > 9 {
		t.Fatalf("%d lines, want 2 to 9: %v", len(all), all[:min(len(all), 20)])
	}
	first, last := all[0], all[len(all)-1]
	if first.Level < zap.WarnLevel || first.Time.Before(begin) || first.Time.Sub(begin) > 3*time.Minute || !strings.Contains(fmt.Sprint(first.ContextMap()), "cause") {
		t.Errorf("the first line is %v, %v after the outage began; want a warning with the cause soon", first, first.Time.Sub(begin))
	}
	var lasted time.Duration
	for _, name := range []string{"after", "during"} {
		if d, ok := last.ContextMap()[name].(time.Duration); ok {
			lasted = d
		}
	}
	n := fmt.Sprint(last.ContextMap()[count])
	if last.Message != ends || len(n) < 3 || lasted < outage-4*time.Minute || lasted > outage+4*time.Minute {
		t.Errorf("the last line is %v: %v; want %q with how often and for how long", last.Message, last.ContextMap(), ends)
	}
	if last.Time.Sub(begin) > outage+calm+5*time.Minute {
		t.Errorf("the end is told %v after the begin", last.Time.Sub(begin))
	}
}
