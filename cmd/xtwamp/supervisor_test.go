// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestSupervisorStartsAgainWhatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logged := observer.New(zap.InfoLevel)
		s := newSupervisor(zap.New(core))
		begin := time.Now()
		starts := 0
		// 22 hours of an error, panics in between, then it works.
		s.run(t.Context(), "x", func(context.Context) error {
			starts++
			if starts%10 == 0 {
				panic("now and then")
			}
			if time.Since(begin) < 22*time.Hour {
				return errors.New("down")
			}
			return nil
		})
		if starts < 22*60/2 || starts > 22*60*2 {
			t.Errorf("started %d times in 22 hours, want about once a minute", starts)
		}
		if s.panicked()["x"] == 0 {
			t.Error("no panic was counted")
		}
		if n := logged.Len(); n > 9 {
			t.Errorf("%d log lines, want at most 9", n)
		}
	})
}

func TestSupervisorStopsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		s := newSupervisor(zap.NewNop())
		begin := time.Now()
		s.run(ctx, "x", func(context.Context) error { return errors.New("down") })
		if got := time.Since(begin); got != 90*time.Second {
			t.Errorf("stopped after %s, want 90s: not when the pause is over", got)
		}
	})
}

func TestGuardCountsPanics(t *testing.T) {
	s := newSupervisor(zap.NewNop())
	err := s.guard("x", func() error { panic(errors.New("deep")) })
	if err == nil || !strings.Contains(err.Error(), "deep") || s.panicked()["x"] != 1 {
		t.Errorf("guard = %v, panics %v", err, s.panicked())
	}
}

func TestHealthyUntilALoopMissesItsDeadlineThreeTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &daemon{loops: newLoops()}
		status := func() (int, string) {
			w := httptest.NewRecorder()
			d.serveHealthy(w, nil)
			return w.Code, w.Body.String()
		}
		beat := d.loops.beat("engine")
		beat(10 * time.Second)
		const deadline = 10*time.Second + slack
		for _, tt := range []struct {
			after   time.Duration
			overdue bool
			code    int
		}{{0, false, 200}, {deadline, false, 200}, {time.Second, true, 200}, {2*deadline - time.Second, true, 200}, {time.Second, true, 503}} {
			<-time.After(tt.after)
			code, body := status()
			if overdue := d.loops.status()[0].State != loopRuns; code != tt.code || overdue != tt.overdue {
				t.Errorf("after another %s: %d %q, overdue %t; want %d, %t", tt.after, code, body, overdue, tt.code, tt.overdue)
			}
			if code == http.StatusServiceUnavailable && !strings.Contains(body, "engine: silent since ") {
				t.Errorf("the answer does not name the loop: %q", body)
			}
		}
		beat(10 * time.Second)
		if code, _ := status(); code != http.StatusOK {
			t.Errorf("%d after the loop came back, want 200", code)
		}
		d.loops.ended("engine")
		if n := len(d.loops.status()); n != 0 {
			t.Errorf("%d loops after the end of the only one", n)
		}
	})
}
