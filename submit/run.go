// SPDX-License-Identifier: Apache-2.0

package submit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/probe/store"
)

const (
	batchSize       = 1024             // samples given to one Submit
	transactionSize = 8192             // samples after which a transaction of many batches ends; bounds what a Transactional sink holds
	callTimeout     = 30 * time.Second // deadline of each call of a sink
	firstRetry      = time.Second      // upper bound of the first pause after a failure
	stopTimeout     = 10 * time.Second // what Run may take to end, the last flush included
)

var errStopTimeout = errors.New("stopped before the last flush was through")

// Config is what a Submitter works with.
type Config struct {
	Log  log
	Sink Sink

	// Interval is the longest time between two looks for samples, and between two attempts while the sink fails. New samples in
	// the store are looked at when they arrive.
	Interval time.Duration

	Logger *zap.Logger

	// Beat, if set, is called at each step of the loop with the time until the next step at the latest, for a watchdog.
	Beat func(next time.Duration)
}

// Validate reports what is missing or out of range.
func (c Config) Validate() error {
	switch {
	case c.Log == nil:
		return errors.New("submitter without a log")
	case c.Sink == nil:
		return errors.New("submitter without a sink")
	case c.Logger == nil:
		return errors.New("submitter without a logger")
	case c.Interval <= 0:
		return fmt.Errorf("submit interval %v: must be above 0", c.Interval)
	}
	return nil
}

// Stats counts what happened since the Submitter was made. What became of the samples is in the store's totals.
type Stats struct {
	OK          uint64    // batches that were committed with nothing refused
	Refused     uint64    // batches that were committed with a refusal
	Failed      uint64    // attempts that ended in an error, of the sink or of the store
	LastSuccess time.Time // last commit that delivered a sample; zero: none yet
	Failing     string    // why nothing is delivered now; "": it is, as far as is known
}

// Submitter moves samples from the store to one sink. Make it with New.
type Submitter struct {
	cfg    Config
	sink   Sink
	txn    Transactional // sink, if it is one; else nil
	logger *zap.Logger
	retry  *backoff.ExponentialBackOff

	enabled bool
	resume  store.PathID // path at which the next pass starts

	mu     sync.Mutex // for the lanes of a Concurrent sink
	outage Outage
	runs   runs

	ok, refused, failed atomic.Uint64
	lastSuccess         atomic.Int64 // ns since 1970, 0: none
}

// New returns a Submitter that does nothing until Run is called.
func New(cfg Config) (*Submitter, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	txn, _ := cfg.Sink.(Transactional)
	return &Submitter{
		cfg:    cfg,
		sink:   cfg.Sink,
		txn:    txn,
		logger: cfg.Logger.Named("submit").With(zap.String("sink", cfg.Sink.Name())),
		retry:  newRetry(cfg.Interval),
		runs:   make(runs),
		outage: Outage{Begins: "delivery fails, samples wait in the store", Ends: "delivering again"},
	}, nil
}

// newRetry gives pauses with full jitter: uniform from 0 to a bound that doubles from firstRetry to the interval. A factor of 1 around half
// the bound is that.
func newRetry(interval time.Duration) *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval:     min(firstRetry, interval) / 2,
		RandomizationFactor: 1,
		Multiplier:          2,
		MaxInterval:         interval / 2,
	}
}

// String names the loop.
func (s *Submitter) String() string { return "submit " + s.sink.Name() }

// Stats may be called from any goroutine.
func (s *Submitter) Stats() Stats {
	st := Stats{OK: s.ok.Load(), Refused: s.refused.Load(), Failed: s.failed.Load()}
	if ns := s.lastSuccess.Load(); ns != 0 {
		st.LastSuccess = time.Unix(0, ns)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.outage.Err(); err != nil {
		st.Failing = err.Error()
	}
	return st
}

// Run delivers samples until ctx ends, then flushes once more and returns nil, at the latest stopTimeout after ctx ended if the sink
// keeps to its deadlines. Whatever the sink and the store do short of a panic, Run goes on; after a panic it may be called again.
func (s *Submitter) Run(ctx context.Context) error {
	// What is under way when ctx ends is worth finishing: an aborted call leaves a sink in doubt about what landed.
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(stopTimeout, func() { cancel(errStopTimeout) })
	})()
	defer func() { s.runs.end(s.logger) }()

	if sink, ok := s.sink.(Concurrent); ok {
		s.runConcurrent(ctx, work, sink.Concurrency())
		return nil
	}
	for ctx.Err() == nil {
		changed := s.cfg.Log.Changed() // before looking, so that no append goes unnoticed
		wait := s.settle(s.flush(work))
		if s.failing() {
			changed = nil
		}
		s.beat(wait)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
	s.settle(s.flush(work))
	return nil
}

func (s *Submitter) failing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outage.Err() != nil
}

// settle books the end of a flush of all paths and returns how long to wait before the next one.
func (s *Submitter) settle(err error) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.outage.Over(s.logger)
		s.retry.Reset()
		return s.cfg.Interval
	}
	s.failed.Add(1)
	s.outage.GoesOn(s.logger, err)
	return s.pauseAfter(err, s.retry)
}

// pauseAfter is how long to wait after a failed attempt.
func (s *Submitter) pauseAfter(err error, retry *backoff.ExponentialBackOff) time.Duration {
	pause := min(retry.NextBackOff(), s.cfg.Interval)
	if _, ok := errors.AsType[*Setback](err); ok {
		pause = s.cfg.Interval
	}
	return max(pause, retryAfter(err))
}

// retryAfter is how long a far side asked to be left alone.
func retryAfter(err error) time.Duration {
	const atMost = 10 * time.Minute
	if limited, ok := errors.AsType[interface {
		error
		RetryAfter() time.Duration
	}](err); ok {
		return min(limited.RetryAfter(), atMost)
	}
	return 0
}

// enable makes the sink known to the store.
func (s *Submitter) enable() error {
	if s.enabled {
		return nil
	}
	if err := s.cfg.Log.Enable(s.sink.Name(), false, s.sink.Takes); err != nil {
		return fmt.Errorf("enable sink: %w", err)
	}
	s.enabled = true
	return nil
}

// flush delivers until nothing is left that the sink would take now.
func (s *Submitter) flush(ctx context.Context) error {
	if err := s.enable(); err != nil {
		return err
	}
	for {
		more, err := s.pass(ctx)
		if err != nil || !more {
			return err
		}
	}
}

// pass offers the sink at most one batch of each path and reports whether another pass would find more to deliver.
//
// A failure ends it: with the sink down, the other paths would only fail as well, each after a timeout. But the next pass starts
// behind the path that failed, so that a fault which sits in one path does not hold back the others.
func (s *Submitter) pass(ctx context.Context) (more bool, err error) {
	if s.txn != nil {
		if err := s.call(ctx, s.txn.Begin); err != nil {
			return false, err
		}
	}
	paths, err := s.paths()
	if err != nil {
		return false, err
	}
	var (
		t         transaction
		taken     int // samples committed by this pass
		remaining bool
	)
	for _, p := range paths {
		if t.taken >= transactionSize {
			s.resume, remaining = p.ID, true
			break
		}
		var samples []store.Sample
		if samples, err = s.cfg.Log.Next(s.sink.Name(), p.ID, batchSize); err != nil {
			err = fmt.Errorf("read samples of %s: %w", p.Name, err)
		} else if len(samples) > 0 {
			before := t.taken
			err = s.submit(ctx, &t, p, samples)
			if t.taken-before < len(samples) || len(samples) == batchSize {
				remaining = true
			}
		}
		if s.txn == nil {
			taken += t.taken
			err = errors.Join(err, s.commit(&t))
		}
		if err != nil {
			s.resume = p.ID + 1
			break
		}
	}
	if s.txn != nil && !t.empty() {
		taken += t.taken
		if cerr := s.call(ctx, s.txn.Sync); cerr != nil {
			return false, errors.Join(err, cerr)
		}
		err = errors.Join(err, s.commit(&t))
	}
	return remaining && taken > 0, err
}

// paths returns the paths that the sink takes, in the order of this pass.
func (s *Submitter) paths() ([]store.Path, error) {
	all, err := s.cfg.Log.Paths()
	if err != nil {
		return nil, fmt.Errorf("list paths: %w", err)
	}
	paths := make([]store.Path, 0, len(all))
	for _, p := range all {
		if s.sink.Takes(p) {
			paths = append(paths, p)
		}
	}
	slices.SortFunc(paths, func(a, b store.Path) int { return cmp.Compare(a.ID, b.ID) })
	i, _ := slices.BinarySearchFunc(paths, s.resume, func(p store.Path, id store.PathID) int { return cmp.Compare(p.ID, id) })
	return slices.Concat(paths[i:], paths[:i]), nil
}

// submit gives one batch to the sink and books the outcome in t.
func (s *Submitter) submit(ctx context.Context, t *transaction, p store.Path, samples []store.Sample) error {
	var r Result
	err := s.call(ctx, func(ctx context.Context) (err error) {
		r, err = s.sink.Submit(ctx, p, samples)
		return err
	})
	o := outcome{path: p, accepted: r.Accepted}
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		o.reason, o.refused, err = refusal.Reason, refusal.Count, nil
		if o.refused < 1 {
			return fmt.Errorf("sink refused %d samples of %s", o.refused, p.Name)
		}
	}
	if o.accepted < 0 || o.accepted+o.refused > len(samples) {
		return fmt.Errorf("sink accepted %d and refused %d of %d samples of %s", o.accepted, o.refused, len(samples), p.Name)
	}
	t.add(o, samples, r)
	if err != nil {
		return fmt.Errorf("submit samples of %s: %w", p.Name, err)
	}
	return nil
}

// commit makes the outcomes in t final, and t empty. On an error nothing of it happened, and the same samples will be offered again.
func (s *Submitter) commit(t *transaction) error {
	done := *t
	*t = transaction{}
	if done.empty() {
		return nil
	}
	if err := s.cfg.Log.Commit(s.sink.Name(), done.update); err != nil {
		return fmt.Errorf("commit positions: %w", err)
	}
	if done.update.Delivered > 0 {
		s.lastSuccess.Store(time.Now().UnixNano())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range done.outcomes {
		if o.refused > 0 {
			s.refused.Add(1)
		} else {
			s.ok.Add(1)
		}
		s.runs.observe(s.logger, o)
	}
	return nil
}

// call runs one step of the sink under its deadline. None begins after ctx has ended, even if the sink takes no notice of it.
func (s *Submitter) call(ctx context.Context, step func(context.Context) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if _, watched := s.sink.(Concurrent); !watched { // there one lane would speak for another that hangs
		s.beat(callTimeout)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return step(ctx)
}

func (s *Submitter) beat(next time.Duration) {
	if s.cfg.Beat != nil {
		s.cfg.Beat(next)
	}
}
