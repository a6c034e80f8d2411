// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.uber.org/zap"
)

// supervisor keeps everything that is not the measuring core running: what
// fails or panics is started again, and takes nothing else with it.
type supervisor struct {
	log *zap.Logger

	mu     sync.Mutex
	panics map[string]uint64
}

func newSupervisor(log *zap.Logger) *supervisor {
	return &supervisor{log: log, panics: make(map[string]uint64)}
}

// run runs serve until it returns nil or ctx has ended. In between it is
// started again after a pause of 1 s to 1 min, which is short again once
// serve has lived for a minute. The first failure has a line in the log, and
// while it goes on one every few hours.
func (s *supervisor) run(ctx context.Context, component string, serve func(context.Context) error) {
	const lived, quiet = time.Minute, 4 * time.Hour
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = time.Second, time.Minute
	var told time.Time
	for failures := 1; ; failures++ {
		started := time.Now()
		err := s.guard(component, func() error { return serve(ctx) })
		if err == nil || ctx.Err() != nil {
			return
		}
		if time.Since(started) > lived {
			pause.Reset()
			failures, told = 1, time.Time{}
		}
		if time.Since(told) > quiet {
			told = time.Now()
			s.log.Error("component failed; it is started again until it runs", zap.String("component", component),
				zap.Int("failures", failures), zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause.NextBackOff()):
		}
	}
}

// guard turns a panic of fn into an error, and counts it.
func (s *supervisor) guard(component string, fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.mu.Lock()
			s.panics[component]++
			first := s.panics[component] == 1
			s.mu.Unlock()
			err = fmt.Errorf("panic: %v", p)
			if first {
				s.log.Error("component panicked", zap.String("component", component), zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			}
		}
	}()
	return fn()
}

// panicked is the number of panics by component.
func (s *supervisor) panicked() map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.panics)
}
