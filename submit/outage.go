// SPDX-License-Identifier: Apache-2.0

package submit

import (
	"time"

	"go.uber.org/zap"
)

// flapping is how long after an outage another one counts as more of it.
const flapping = 10 * time.Minute

// outage is a run of failed attempts. It has a line in the log at its start and one at its end. A sink that fails and recovers by turns
// must not fill the log, so an outage that starts soon after another has its line only once it has lasted. The zero value means none.
type outage struct {
	since    time.Time // zero: none
	attempts int
	told     bool
	ended    time.Time // the outage before
}

func (o *outage) failing() bool { return !o.since.IsZero() }

// goesOn takes note of a failed attempt.
func (o *outage) goesOn(logger *zap.Logger, err error) {
	now := time.Now()
	if !o.failing() {
		o.since = now
	}
	o.attempts++
	if o.told || now.Sub(o.ended) < flapping && now.Sub(o.since) < flapping {
		return
	}
	o.told = true
	logger.Warn("delivery fails, samples wait in the store", zap.Error(err))
}

// over takes note that all that was to be done was done.
func (o *outage) over(logger *zap.Logger) {
	if !o.failing() {
		return
	}
	if o.told {
		logger.Info("delivering again", zap.Int("failed_attempts", o.attempts), zap.Duration("after", time.Since(o.since)))
	}
	*o = outage{ended: time.Now()}
}
