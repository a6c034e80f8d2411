// SPDX-License-Identifier: Apache-2.0

package target

import (
	"time"

	"go.uber.org/zap"
)

const (
	freeLines     = 3 // of one teller, before it becomes patient
	firstPatience = time.Minute
	maxPatience   = 8 * time.Hour
	tellAgain     = 8 * time.Hour  // what stays bad
	forget        = 24 * time.Hour // without a change makes a teller forget the lines it has had
)

// Teller decides which states of something get a line in the log: each at once as long as they are few, and then only those that last, the
// longer the more lines there were. What stays bad has a line every 8 hours. So whatever comes and goes costs nine lines in 22 hours at
// most. The zero value has told the state "". One goroutine at a time may use it.
type Teller struct {
	state   string    // now
	since   time.Time // when it became so
	told    string    // the state of the last line
	at      time.Time // when it was told
	lines   int       // of news, without a time to forget between them
	changes int       // of the state, since it was told
}

// Tell takes note of the state and reports whether it is time for a line about it. It is to be called again and again. What belongs into
// the line beside the state is how often that has changed since the last line, and how long ago that was.
func (t *Teller) Tell(state string, bad bool) (fields []zap.Field, due bool) {
	now := time.Now()
	if state != t.state {
		if now.Sub(t.since) > forget {
			t.lines = 0
		}
		t.state, t.since = state, now
		t.changes++
	}
	var patience time.Duration
	if n := t.lines - freeLines; n >= 0 {
		patience = min(firstPatience<<min(3*n, 9), maxPatience)
	}
	news := state != t.told && now.Sub(t.since) >= patience
	if !news && !(state == t.told && bad && now.Sub(t.at) >= tellAgain) {
		return nil, false
	}
	if !t.at.IsZero() {
		fields = []zap.Field{zap.Int("changes", t.changes), zap.Duration("after", now.Sub(t.at))}
	}
	if news {
		t.lines++
	}
	t.told, t.at, t.changes = state, now, 0
	return fields, true
}
