// SPDX-License-Identifier: Apache-2.0

package submit

import (
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const (
	// calm is how long after a failure another one counts as more of the same outage, at first.
	calm = 30 * time.Minute
	// tellAgain is the time between two lines that say that an outage goes on.
	tellAgain = 4 * time.Hour
)

// Outage is a run of failed attempts at one thing. It has a line in the log at its start, one every few hours, and one at its end, with
// how often it failed and for how long. What fails and recovers by turns must not fill the log, so a failure soon after another belongs
// to the same outage, and has lines of its own only if it lasts. The more outages there are the longer it has to work before the next is
// another one. It begins with none. One goroutine at a time may use it.
type Outage struct {
	Begins, Ends string        // what the lines say
	Level        zapcore.Level // of those that say that it fails: a warning at least

	attempts    int // that failed
	since, last time.Time
	run         time.Time // since when it has failed without a break
	worked      time.Time // since when it has worked again; zero: it fails
	told        time.Time // that it fails
	ended       bool      // and has its line, since the last failure
	well        bool      // the last line said that it works
	err         error     // of the last attempt; nil: it went well
	calm        time.Duration
}

// Err is the error of the last attempt; nil if there is no outage.
func (o *Outage) Err() error { return o.err }

// Open reports whether there was an outage whose end has no line yet.
func (o *Outage) Open() bool { return o.attempts > 0 && !o.ended }

// GoesOn takes note of a failed attempt.
func (o *Outage) GoesOn(logger *zap.Logger, err error, fields ...zap.Field) {
	o.err = err
	if !o.goesOn(1) {
		return
	}
	fields = append(fields, zap.Error(err))
	if o.attempts > 1 {
		fields = append(fields, zap.Int("failed_attempts", o.attempts), zap.Duration("for", o.lasted()))
	}
	logger.Log(max(o.Level, zap.WarnLevel), o.Begins, fields...)
}

// Over takes note that all that was to be done was done. It is to be called each time that this is so.
func (o *Outage) Over(logger *zap.Logger, fields ...zap.Field) {
	o.err = nil
	if o.over() {
		logger.Info(o.Ends, append(fields, zap.Int("failed_attempts", o.attempts), zap.Duration("after", o.lasted()))...)
	}
}

// goesOn takes note of n failures and reports whether they are worth a line.
func (o *Outage) goesOn(n int) bool {
	now := time.Now()
	switch {
	case o.attempts == 0 || o.ended && now.Sub(o.last) >= o.calm:
		wait := calm
		if now.Sub(o.told) < tellAgain {
			wait = min(8*o.calm, tellAgain)
		}
		*o = Outage{Begins: o.Begins, Ends: o.Ends, Level: o.Level, err: o.err, since: now, run: now, calm: wait}
	case !o.worked.IsZero():
		o.run = now
	}
	o.attempts += n
	o.last, o.worked, o.ended = now, time.Time{}, false
	if now.Sub(o.told) < tellAgain && !(o.well && now.Sub(o.run) >= o.calm) {
		return false
	}
	o.told, o.well = now, false
	return true
}

// over takes note that it works and reports whether that is worth a line: at once after failures without a break, and else when it has
// worked for a while.
func (o *Outage) over() bool {
	if !o.Open() {
		return false
	}
	now := time.Now()
	if o.worked.IsZero() {
		o.worked = now
	}
	o.ended = o.run.Equal(o.since) || now.Sub(o.worked) >= o.calm
	o.well = o.well || o.ended
	return o.ended
}

// lasted is how long it has failed, or did before it worked again.
func (o *Outage) lasted() time.Duration {
	if o.worked.IsZero() {
		return time.Since(o.since)
	}
	return o.worked.Sub(o.since)
}
