// SPDX-License-Identifier: Apache-2.0

package submit

import (
	"time"

	"go.uber.org/zap"
)

// flapping is how long after an outage another one counts as more of it.
const flapping = 10 * time.Minute

// Outage is a run of failed attempts at one thing. It has a line in the log at its start and one at its end. What fails and recovers by
// turns must not fill the log, so an outage that starts soon after another has its line only once it has lasted. It begins with none.
// One goroutine at a time may use it.
type Outage struct {
	Begins, Ends string // what the lines say

	since    time.Time // zero: none
	attempts int
	err      error // of the last attempt
	told     bool
	ended    time.Time // the outage before
}

func (o *Outage) failing() bool { return !o.since.IsZero() }

// Err is the error of the last attempt; nil if there is no outage.
func (o *Outage) Err() error { return o.err }

// GoesOn takes note of a failed attempt.
func (o *Outage) GoesOn(logger *zap.Logger, err error) {
	now := time.Now()
	if !o.failing() {
		o.since = now
	}
	o.attempts++
	o.err = err
	if o.told || now.Sub(o.ended) < flapping && now.Sub(o.since) < flapping {
		return
	}
	o.told = true
	logger.Warn(o.Begins, zap.Error(err))
}

// Over takes note that all that was to be done was done.
func (o *Outage) Over(logger *zap.Logger) {
	if !o.failing() {
		return
	}
	if o.told {
		logger.Info(o.Ends, zap.Int("failed_attempts", o.attempts), zap.Duration("after", time.Since(o.since)))
	}
	*o = Outage{Begins: o.Begins, Ends: o.Ends, ended: time.Now()}
}
