// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"time"

	"go.uber.org/zap"
)

// What the log says is: which endpoint is in use, that none is good, and, while one is, which of the others are not. A call that fails,
// a connection that is made, a check: none of them has a line.

const (
	freeLines     = 4 // of one teller, before it becomes patient
	firstPatience = time.Minute
	maxPatience   = time.Hour
	quiet         = 2 * maxPatience // without a change makes a teller forget the lines it has had
	afterOutage   = 5 * time.Minute // what is still bad so long after an outage is worth a line of its own

	firstPause   = time.Hour // between lines about strangers, doubling up to the longest
	longestPause = 24 * time.Hour
)

// teller decides which changes of a state get a log line: each at once as long as they are few, and then only states that last, so
// that whatever flaps costs a line an hour.
type teller struct {
	told     string    // the state of the last line
	at       time.Time // when it was told
	lines    int       // told without a quiet time, in which nothing changed, between them
	muted    time.Time // until then nothing is told
	state    string    // now
	since    time.Time // when it became so
	failures uint64    // requests that had failed when the last line was told
}

// due takes note of the state and reports whether it is time to tell it.
func (t *teller) due(now time.Time, state string) bool {
	if now.Sub(t.since) > quiet {
		t.lines = 0
	}
	if state != t.state {
		t.state, t.since = state, now
	}
	var patience time.Duration
	if t.lines >= freeLines {
		patience = min(firstPatience<<min(t.lines-freeLines, 6), maxPatience)
	}
	return t.state != t.told && now.Sub(t.since) >= patience && !now.Before(t.muted)
}

// tell books the line and returns what belongs into each: how long the state told last was the last word, and how many requests have
// failed in that time, given how many have failed so far.
func (t *teller) tell(now time.Time, failures uint64) []zap.Field {
	var fields []zap.Field
	if !t.at.IsZero() {
		fields = append(fields, zap.Duration("after", now.Sub(t.at)))
	}
	if n := failures - t.failures; n > 0 {
		fields = append(fields, zap.Uint64("failures", n))
	}
	t.told, t.at, t.failures = t.state, now, failures
	t.lines++
	return fields
}

// assume books a state as if it were so and had been told, until due is told of another one, which for a while has no line.
func (t *teller) assume(now time.Time, state string, failures uint64, pause time.Duration) {
	if state != t.state {
		t.state, t.since = state, now
	}
	t.told, t.at, t.failures, t.muted = state, now, failures, now.Add(pause)
}

// strangers are candidates that never were good. A name that gives another dead address at each look-up must not fill the log with them.
type strangers struct {
	lines int
	at    time.Time // of the last one
}

// due reports whether one more may have a line, and if so counts it: the first few at once, then ever more seldom.
func (s *strangers) due(now time.Time) bool {
	switch pause := firstPause << max(s.lines-freeLines, 0); {
	case now.Sub(s.at) > longestPause:
		s.lines = 0
	case s.lines >= freeLines && now.Sub(s.at) < pause:
		return false
	}
	s.lines, s.at = s.lines+1, now
	return true
}

// States of tellers, beside the names of candidates.
const (
	stateGood = "good"
	stateBad  = "bad"
	stateNone = "none good"
)

// report logs what has changed.
func (p *Pool) report(now time.Time) {
	var failures uint64
	for _, c := range p.candidates {
		failures += c.failures
		if c.settling {
			return
		}
	}
	for _, s := range p.sites {
		if !s.looked {
			return
		}
	}

	state := stateNone
	if p.inUse != nil && p.inUse.good {
		state = p.inUse.name
	}
	if p.teller.due(now, state) {
		before := p.teller.told
		fields := p.teller.tell(now, failures)
		if state == stateNone {
			p.logger.Warn("no endpoint is good", append(fields, zap.Strings("endpoints", p.reasons()))...)
		} else {
			if left := p.find(before); left != nil {
				reason := left.reason
				if left.good {
					reason = "slower"
				} else {
					left.teller.assume(now, stateBad, left.failures, 0)
				}
				fields = append(fields, zap.String("left", left.name), zap.String("reason", reason))
			}
			p.logger.Info("endpoint in use", append(fields, zap.String("endpoint", p.inUse.name), zap.Duration("latency", p.inUse.latency()))...)
		}
		if state == stateNone || before == stateNone { // the line stands for all of them
			for _, c := range p.candidates {
				c.teller.assume(now, stateGood, c.failures, afterOutage)
			}
		}
	}
	if p.teller.told == stateNone {
		return
	}
	for _, c := range p.candidates {
		state := stateBad
		if c.good {
			state = stateGood
		}
		switch {
		case c.name == p.teller.told: // has a line of the pool
			c.teller.assume(now, stateGood, c.failures, 0)
		case c.teller.due(now, state) && c.good:
			p.logger.Info("endpoint good again", append(c.teller.tell(now, c.failures), zap.String("endpoint", c.name))...)
		case c.teller.due(now, state) && (c.known || p.strangers.due(now)):
			p.logger.Info("endpoint bad", append(c.teller.tell(now, c.failures), zap.String("endpoint", c.name), zap.String("reason", c.reason))...)
		}
	}
}

// reasons returns a text for each candidate that says why it is not good.
func (p *Pool) reasons() []string {
	texts := make([]string, 0, len(p.candidates))
	for _, c := range p.candidates {
		texts = append(texts, c.name+": "+c.reason)
	}
	return texts
}

// reportLookup logs that the look-up of a site's host fails, or works again.
func (p *Pool) reportLookup(s *site, err error) {
	now := time.Now()
	state := stateGood
	if err != nil {
		s.failures++
		state = stateBad
	}
	if !s.teller.due(now, state) {
		return
	}
	fields := append(s.teller.tell(now, s.failures), zap.String("host", s.host))
	if err != nil {
		p.logger.Warn("look-up of endpoint fails", append(fields, zap.String("reason", p.mask(err.Error())))...)
	} else {
		p.logger.Info("look-up of endpoint works again", fields...)
	}
}

// reportSave logs that the memory cannot be saved, or can again.
func (p *Pool) reportSave(err error) {
	now, m := time.Now(), &p.saver
	state := stateGood
	if err != nil {
		m.failed++
		state = stateBad
	}
	if !m.teller.due(now, state) {
		return
	}
	fields := m.teller.tell(now, m.failed)
	if err != nil {
		p.logger.Warn("known endpoint addresses cannot be saved", append(fields, zap.String("reason", p.mask(err.Error())))...)
	} else {
		p.logger.Info("known endpoint addresses saved again", fields...)
	}
}
