// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/probe/store"
)

// appendAtMost bounds one transaction, in samples.
const appendAtMost = 16384

// Log is what a Recorder needs of the store.
type Log interface {
	RegisterAll([]store.Path) ([]store.Path, error)
	SetOffset(store.Offset)
	Append([]store.Record) error
	Maintain() error
}

// RecorderConfig says what a Recorder moves where.
type RecorderConfig struct {
	Ring *Ring // told of all paths
	Log  Log
	// Clock gives the state of the wall clock for dating samples.
	Clock func() ClockState
	// Interval is the time between commits.
	Interval time.Duration
	Beat     func(next time.Duration)
	Logger   *zap.Logger
}

// Recorder moves samples from the memory ring into the store. While the store
// refuses them they stay in the ring, and the recorder tries again at each
// interval.
type Recorder struct {
	cfg   RecorderConfig
	log   *zap.Logger
	paths map[int]store.PathID // those registered, by number

	mu       sync.Mutex
	degraded string
}

// NewRecorder makes a recorder; it does nothing until Run.
func NewRecorder(cfg RecorderConfig) *Recorder {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if cfg.Beat == nil {
		cfg.Beat = func(time.Duration) {}
	}
	return &Recorder{cfg: cfg, log: cfg.Logger, paths: make(map[int]store.PathID)}
}

// Run records until ctx ends, then once more.
func (r *Recorder) Run(ctx context.Context) error {
	const maintainEvery = time.Minute
	failing := trouble{calm: 3 * r.cfg.Interval}
	full := trouble{calm: 3 * r.cfg.Interval}
	var before, told uint64 // drops: at the last pass, and those that have their line
	var maintained time.Time
	for {
		last := ctx.Err() != nil
		err := r.commit()
		if err == nil && !last && time.Since(maintained) >= maintainEvery {
			maintained = time.Now()
			r.forget()
			if err = r.cfg.Log.Maintain(); err != nil {
				err = fmt.Errorf("maintain store: %w", err)
			}
		}
		r.setDegraded(err)
		dropped := r.cfg.Ring.Dropped()
		failing.attempt(r.log, err, "the store refuses samples; keeping them in memory", "the store takes samples again",
			zap.Uint64("dropped", dropped-told))
		switch {
		case dropped > before:
			before = dropped
			if full.note(); full.times == 1 { // the lines about the store tell that it goes on
				r.log.Error("memory is full; the oldest samples are dropped")
			}
		case err == nil && (full.over() || last && full.times > 0):
			r.log.Error("samples were dropped for want of memory", append(full.history(), zap.Uint64("samples", dropped-told))...)
			told = dropped
			full.end()
		}
		r.cfg.Beat(r.cfg.Interval)
		if last {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(r.cfg.Interval):
		}
	}
}

// commit moves what the ring holds into the store.
func (r *Recorder) commit() error {
	state := r.cfg.Clock()
	r.cfg.Log.SetOffset(store.Offset{Nanoseconds: state.Offset, Synchronized: state.Synchronized})
	var batch []Measured
	var records []store.Record
	for {
		var upTo uint64
		batch, upTo = r.cfg.Ring.Peek(batch[:0], appendAtMost)
		if len(batch) == 0 {
			return nil
		}
		if err := r.register(batch); err != nil {
			return err
		}
		records = records[:0]
		for _, m := range batch {
			records = append(records, store.Record{Path: r.paths[m.Path], Sample: m.Sample})
		}
		if err := r.cfg.Log.Append(records); err != nil {
			return fmt.Errorf("append %d samples: %w", len(records), err)
		}
		r.cfg.Ring.Discard(upTo)
	}
}

// register makes the paths of samples known to the store.
func (r *Recorder) register(batch []Measured) error {
	var fresh []int
	var wanted []store.Path
	found := make(map[int]bool)
	for _, m := range batch {
		if _, known := r.paths[m.Path]; known || found[m.Path] {
			continue
		}
		found[m.Path] = true
		t, ok := r.cfg.Ring.Target(m.Path)
		if !ok {
			return fmt.Errorf("a sample of path %d, which nobody has begun", m.Path)
		}
		fresh = append(fresh, m.Path)
		wanted = append(wanted, store.Path{Name: t.Name, Labels: t.Labels})
	}
	if len(fresh) == 0 {
		return nil
	}
	registered, err := r.cfg.Log.RegisterAll(wanted)
	if err != nil {
		return err
	}
	for i, p := range registered {
		r.paths[fresh[i]] = p.ID
	}
	return nil
}

// forget forgets paths of which no sample comes any more.
func (r *Recorder) forget() {
	for path := range r.paths {
		if _, ok := r.cfg.Ring.Target(path); !ok {
			delete(r.paths, path)
		}
	}
}

func (r *Recorder) setDegraded(err error) {
	reason := ""
	switch {
	case err == nil:
	case errors.Is(err, store.ErrNoSpace):
		reason = "no_space"
	case errors.Is(err, store.ErrCorrupt):
		reason = "corrupt"
	default:
		reason = "failed"
	}
	r.mu.Lock()
	r.degraded = reason
	r.mu.Unlock()
}

// Degraded is why the store does not take samples now: no_space, corrupt,
// failed, or "" while it does.
func (r *Recorder) Degraded() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.degraded
}
