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

	"github.com/xtwamp/xtwamp/submit"
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

// lived is how long something has to run to be well.
const lived = time.Minute

// run runs serve until it returns nil or ctx has ended. In between it is
// started again after a pause of 1 s to 1 min, which is short again once
// serve has lived for a minute.
func (s *supervisor) run(ctx context.Context, component string, serve func(context.Context) error) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = time.Second, time.Minute
	state := newUpkeep(s.log.With(zap.String("component", component)), "component failed; it is started again until it runs",
		"component runs again")
	for {
		started := time.Now()
		stop := state.works()
		err := s.guard(component, func() error { return serve(ctx) })
		stop()
		if err == nil || ctx.Err() != nil {
			return
		}
		if time.Since(started) > lived {
			pause.Reset()
		}
		state.fails(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause.NextBackOff()):
		}
	}
}

// upkeep has the lines about what goes on by itself as long as it does not
// fail.
type upkeep struct {
	log *zap.Logger

	mu     sync.Mutex
	outage submit.Outage
}

func newUpkeep(log *zap.Logger, begins, ends string) *upkeep {
	return &upkeep{log: log, outage: submit.Outage{Begins: begins, Ends: ends, Level: zap.ErrorLevel}}
}

func (u *upkeep) fails(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.outage.GoesOn(u.log, err)
}

// works notes that it goes on from now on, until stop is called.
func (u *upkeep) works() (stop func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	stopped := false
	var timer *time.Timer
	timer = time.AfterFunc(lived, func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if stopped {
			return
		}
		u.outage.Over(u.log)
		if u.outage.Open() {
			timer.Reset(lived)
		}
	})
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		stopped = true
		timer.Stop()
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
