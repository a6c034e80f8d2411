// SPDX-License-Identifier: Apache-2.0

package submit

import (
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/probe/store"
)

// outcome is what became of one batch.
type outcome struct {
	path              store.Path
	accepted, refused int
	reason            string // of the refusal
}

// transaction gathers outcomes that become final together. A path occurs in it at most once. The zero value is empty.
type transaction struct {
	update   store.Update
	outcomes []outcome
	taken    int // samples accepted or refused
	again    bool
}

func (t *transaction) empty() bool {
	return t.taken == 0 && len(t.update.Put) == 0 && len(t.update.Delete) == 0
}

func (t *transaction) add(o outcome, samples []store.Sample, r Result) {
	u := &t.update
	t.again = t.again || r.Again
	if n := o.accepted + o.refused; n > 0 {
		if u.Positions == nil {
			u.Positions = make(map[store.PathID]uint64)
		}
		u.Positions[o.path.ID] = samples[n-1].Seq + 1
		u.Delivered += uint64(o.accepted)
		t.taken += n
		t.outcomes = append(t.outcomes, o)
	}
	if o.refused > 0 {
		if u.Dropped == nil {
			u.Dropped = make(map[string]uint64)
		}
		u.Dropped[o.reason] += uint64(o.refused)
	}
	// Of a key that several batches touched, the last word counts.
	for _, key := range r.Delete {
		delete(u.Put, key)
		u.Delete = append(u.Delete, key)
	}
	if len(r.Put) > 0 && u.Put == nil {
		u.Put = make(map[string][]byte)
	}
	maps.Copy(u.Put, r.Put)
	u.Delete = slices.DeleteFunc(u.Delete, func(key string) bool { _, put := r.Put[key]; return put })
}

// runs holds, by reason, the runs of drops.
//
// A run lasts until each of its paths has been delivered again, or refused for another reason: an account that is full says so once
// and not whenever a healthy account takes something in between. Then nothing may be dropped for a while: a sink that takes some paths at
// a time may be through with these before it comes to those that it refuses for the same reason.
type runs map[string]*run

// lull is how long that is.
const lull = 2 * time.Minute

type run struct {
	Outage // its failures are samples
	paths  map[store.PathID]struct{}
}

// observe takes note of one final outcome and logs the runs that start and end with it.
func (rs runs) observe(logger *zap.Logger, o outcome) {
	for reason, r := range rs {
		if reason != o.reason {
			delete(r.paths, o.path.ID)
		}
		if len(r.paths) == 0 && time.Since(r.last) >= lull && r.over() {
			r.tell(logger, reason)
		}
	}
	if o.refused == 0 {
		return
	}
	r := rs[o.reason]
	if r == nil {
		r = &run{paths: make(map[store.PathID]struct{})}
		rs[o.reason] = r
	}
	r.paths[o.path.ID] = struct{}{}
	if r.goesOn(o.refused) {
		fields := []zap.Field{zap.String("reason", o.reason), zap.String("path", o.path.Name)}
		if r.attempts > o.refused {
			fields = append(fields, zap.Uint64("count", uint64(r.attempts)), zap.Duration("for", r.lasted()))
		}
		logger.Warn("dropping samples", fields...)
	}
}

// tell logs the end of a run.
func (r *run) tell(logger *zap.Logger, reason string) {
	logger.Info("dropped samples", zap.String("reason", reason), zap.Uint64("count", uint64(r.attempts)), zap.Duration("during", r.last.Sub(r.since)))
}

// end logs the end of all runs.
func (rs runs) end(logger *zap.Logger) {
	for _, reason := range slices.Sorted(maps.Keys(rs)) {
		if r := rs[reason]; !r.ended {
			r.tell(logger, reason)
		}
	}
	clear(rs)
}
