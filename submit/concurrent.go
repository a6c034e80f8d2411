// SPDX-License-Identifier: Apache-2.0

package submit

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/xtwamp/xtwamp/probe/store"
)

// overdue is how far a call may be past its deadline before the loop no longer says that it lives.
const overdue = 10 * time.Second

// lanes are the paths of a Concurrent sink, each with a goroutine of its own for as long as Run lasts.
type lanes struct {
	*Submitter
	free    chan struct{} // holds a token for each call under way
	running sync.WaitGroup
	stop    context.CancelFunc // ends all lanes
	known   map[store.PathID]*lane

	// Under Submitter.mu:
	failing  int           // lanes whose last attempt failed
	relief   chan struct{} // closed when one of them got through: the others need not wait any longer
	notUntil time.Time     // the far side asked for no call before
	panicked error         // what the first lane that panicked said
}

// lane is one path on its way to the sink.
type lane struct {
	path  store.Path
	retry *backoff.ExponentialBackOff

	// Under Submitter.mu:
	failing  bool
	deadline time.Time // of the call under way; zero: none
}

// runConcurrent is what Run does for a Concurrent sink. It looks for new paths now and then, and watches over the lanes.
func (s *Submitter) runConcurrent(ctx, work context.Context, concurrency int) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ls := &lanes{
		Submitter: s, free: make(chan struct{}, concurrency), known: make(map[store.PathID]*lane), relief: make(chan struct{}), stop: stop,
	}
	look := min(s.cfg.Interval, callTimeout)
	for ctx.Err() == nil {
		wait := look
		if err := ls.start(ctx, work); err != nil || ls.idle() {
			wait = min(look, s.settle(err))
		}
		if !ls.stuck(time.Now()) {
			s.beat(look)
		}
		pause(ctx, wait)
	}
	ls.running.Wait()
	if ls.panicked != nil {
		panic(ls.panicked) // whoever runs the submitter is to learn of it, and may run it again
	}
}

// idle reports whether no lane has failed, so that an outage of the store alone can be over.
func (ls *lanes) idle() bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.failing == 0
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// start starts a lane for each path that has none.
func (ls *lanes) start(ctx, work context.Context) error {
	if err := ls.enable(); err != nil {
		return err
	}
	paths, err := ls.paths()
	if err != nil {
		return err
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, p := range paths {
		if ls.known[p.ID] != nil {
			continue
		}
		l := &lane{path: p, retry: newRetry(ls.cfg.Interval)}
		ls.known[p.ID] = l
		ls.running.Go(func() {
			defer ls.catch()
			for ctx.Err() == nil {
				wait, relief := ls.settle(l, ls.drain(work, l))
				timer := time.NewTimer(wait)
				select {
				case <-ctx.Done():
				case <-relief:
				case <-timer.C:
				}
				timer.Stop()
			}
			ls.settle(l, ls.drain(work, l))
		})
	}
	return nil
}

// catch, deferred, ends all lanes if this one panics.
func (ls *lanes) catch() {
	p := recover()
	if p == nil {
		return
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.panicked == nil {
		ls.panicked = fmt.Errorf("%v\n%s", p, debug.Stack())
	}
	ls.stop()
}

// stuck reports whether a call takes no notice of its deadline.
func (ls *lanes) stuck(now time.Time) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.known {
		if !l.deadline.IsZero() && now.Sub(l.deadline) > overdue {
			return true
		}
	}
	return false
}

// drain delivers until nothing is left of the path that the sink would take now.
func (ls *lanes) drain(ctx context.Context, l *lane) error {
	for {
		samples, err := ls.cfg.Log.Next(ls.sink.Name(), l.path.ID, batchSize)
		if err != nil {
			return fmt.Errorf("read samples of %s: %w", l.path.Name, err)
		}
		if len(samples) == 0 {
			return nil
		}
		var t transaction
		err = ls.submitInTurn(ctx, l, &t, samples)
		more := t.again || t.taken == batchSize
		if cerr := ls.commit(&t); err == nil {
			err = cerr
		}
		if err != nil || !more {
			return err
		}
		ls.works(l)
	}
}

// works takes note that a lane gets through.
func (ls *lanes) works(l *lane) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.retry.Reset()
	if !l.failing {
		return
	}
	l.failing = false
	ls.failing--
	close(ls.relief)
	ls.relief = make(chan struct{})
}

// submitInTurn gives samples to the sink when it may be called.
func (ls *lanes) submitInTurn(ctx context.Context, l *lane, t *transaction, samples []store.Sample) error {
	select {
	case ls.free <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-ls.free }()
	ls.mu.Lock()
	wait := time.Until(ls.notUntil)
	ls.mu.Unlock()
	pause(ctx, wait)

	ls.calling(l, time.Now().Add(callTimeout))
	defer ls.calling(l, time.Time{})
	err := ls.submit(ctx, t, l.path, samples)
	if after := retryAfter(err); after > 0 { // the limit is on the sender, so all lanes keep to it
		ls.mu.Lock()
		ls.notUntil = time.Now().Add(after)
		ls.mu.Unlock()
	}
	return err
}

func (ls *lanes) calling(l *lane, deadline time.Time) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.deadline = deadline
}

// settle books the end of a drain and returns how long to wait before the next one, and what makes waiting pointless, nil if nothing.
func (ls *lanes) settle(l *lane, err error) (time.Duration, <-chan struct{}) {
	if errors.Is(err, errStopTimeout) {
		return 0, nil // it says nothing about the sink; what is under way goes on after the next start
	}
	if err == nil {
		ls.works(l)
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if err == nil {
		if ls.failing == 0 {
			ls.outage.Over(ls.logger)
		}
		return ls.cfg.Interval, nil
	}
	ls.failed.Add(1)
	ls.outage.GoesOn(ls.logger, err)
	if !l.failing {
		l.failing = true
		ls.failing++
	}
	relief := ls.relief
	if _, own := errors.AsType[*Setback](err); own {
		relief = nil // what helps others does not help this one
	}
	return ls.pauseAfter(err, l.retry), relief
}
