// SPDX-License-Identifier: Apache-2.0

// Package submit hands stored samples to the places where they count. Its promise: every sample that a sink takes is delivered or
// counted as dropped with a reason, in order per path, whatever the sink does in the meantime; and a sink that is down holds back no
// other and nothing of the measuring.
//
// One [Submitter] serves one [Sink]. It keeps nothing that matters in memory: where a sink stands is read from the store before each
// batch and moves only by a transaction of the store, so a Submitter may be killed, or panic and be run again, at any instant. It is
// the only layer that retries.
package submit

import (
	"context"
	"fmt"

	"github.com/xtwamp/xtwamp/probe/store"
)

// Sink is where samples go. Submit is called by one goroutine at a time, unless the sink is [Concurrent].
type Sink interface {
	// Name identifies the sink in the store, in logs and in metrics. It never changes.
	Name() string

	// Takes says whether the sink wants the samples of p. It is called often, from any goroutine, also by the store while it is
	// locked: it must answer from p and from memory.
	Takes(p store.Path) bool

	// Submit hands over samples of one path, in order and without repeating any that was committed before. It returns how many of
	// them, from the front, were accepted, and what to keep in the sink's key/value area from the moment they count as delivered.
	//
	// All samples accepted, error nil: delivered. Fewer and error nil: the rest has to wait, which is no fault. A *Refusal: samples
	// behind the accepted ones will never be taken. Any other error: not now; the accepted ones count, the rest is offered again
	// after a pause, which is no shorter than the RetryAfter() time.Duration that an error of the chain may have. Submit does not
	// retry and keeps to the deadline of ctx.
	Submit(ctx context.Context, p store.Path, s []store.Sample) (Result, error)
}

// Result is what became of the samples given to [Sink.Submit].
type Result struct {
	Accepted int               // samples accepted, from the front
	Put      map[string][]byte // values to write to the sink's key/value area together with the new position
	Delete   []string          // keys to remove from it
	Again    bool              // a Concurrent sink wants to be offered what is left at once, and not at the next interval
}

// Transactional is a Sink whose acceptance is provisional: it becomes final, all or nothing, when the store's transaction with the
// positions does. That makes exactly once possible, and lets the batches of many paths share one write to the disk at either end;
// batches of any other Sink are committed one by one, the moment they are accepted.
//
// A transaction is Begin, any number of Submit, Sync, and then the store's commit. It may be cut off after any of these.
type Transactional interface {
	Sink

	// Begin forgets everything that was accepted and is not part of what the store has committed. It is also called when nothing
	// waits, so that a sink puts itself right at start.
	Begin(ctx context.Context) error

	// Sync makes durable what was accepted since Begin.
	Sync(ctx context.Context) error
}

// Concurrent is a Sink that takes samples of several paths at a time, each path's in order as ever. It suits a sink that has to wait
// long for each batch. It is asked at each interval and not whenever something new is in the store, and a path that fails is tried
// again on its own: it holds back none of the others.
type Concurrent interface {
	Sink

	// Concurrency is how many calls of Submit may be under way at once, at least 1.
	Concurrency() int
}

// Refusal is the error of a Sink that will never take the next Count samples behind the accepted ones. They are counted as dropped.
type Refusal struct {
	Reason string // metric label: from a closed list, snake case
	Count  int    // samples refused, at least 1
}

func (r *Refusal) Error() string { return fmt.Sprintf("%d samples refused: %s", r.Count, r.Reason) }

// Setback is an error of a Sink that another attempt before the next interval would only meet again.
type Setback struct{ Err error }

func (s *Setback) Error() string { return s.Err.Error() }
func (s *Setback) Unwrap() error { return s.Err }

// log is the part of *store.Log that delivering needs.
type log interface {
	Enable(sink string, backfill bool, takes func(store.Path) bool) error
	Paths() ([]store.Path, error)
	Next(sink string, path store.PathID, max int) ([]store.Sample, error)
	Commit(sink string, u store.Update) error
	Changed() <-chan struct{}
}
