// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"time"

	"go.uber.org/zap"
)

// trouble is something that is wrong for a while. It has a line in the log when
// it begins, and while it goes on one every few hours.
type trouble struct {
	times             uint64 // since all was well
	since, last, told time.Time
}

// note notes that it is still so, and says whether that deserves a line.
func (t *trouble) note() bool {
	now := time.Now()
	if t.times == 0 {
		t.since = now
	}
	t.times++
	t.last = now
	if now.Sub(t.told) <= tellAgain {
		return false
	}
	t.told = now
	return true
}

// over reports whether all has been well for a while. The while keeps what
// comes and goes from filling the log.
func (t *trouble) over() bool { return time.Since(t.last) >= troubleOver }

// history is what a line about its end says of it.
func (t *trouble) history() []zap.Field {
	return []zap.Field{zap.Uint64("times", t.times), zap.Duration("after", t.last.Sub(t.since))}
}

// cause is a trouble that paths have in common: of an interface or, without a
// name, of the namespace that is not there, which has lines elsewhere.
type cause struct {
	trouble
	name  string
	paths int // that have it
}

// trouble notes that something is wrong with p.
func (e *Engine) trouble(p *path, what string, fields ...zap.Field) {
	if p.trouble.note() {
		e.log.Warn(what, append(fields, zap.String("path", p.target.Name), zap.Uint64("times", p.trouble.times))...)
	}
}

// hindered notes that p cannot be used because of d. What stands in the way of
// many paths has a line for all of them.
func (e *Engine) hindered(p *path, what string, d *downError) {
	if d.cause == nil {
		if p.cause != nil && !p.cause.over() {
			return // the aftermath: with an interface go routes that come back later
		}
		e.trouble(p, what, zap.Stringer("reason", d.reason), zap.Error(d))
		return
	}
	name := *d.cause
	c := e.causes[name]
	if c == nil {
		c = &cause{name: name}
		e.causes[name] = c
	}
	e.blame(p, c)
	if c.note() && name != "" {
		e.log.Warn("interface cannot be used; trying on", zap.String("interface", name), zap.Int("paths", e.leavingBy(name)),
			zap.Stringer("reason", d.reason), zap.Error(d), zap.Uint64("times", c.times))
	}
}

// blame makes c, or nothing, what p has in common with others.
func (e *Engine) blame(p *path, c *cause) {
	old := p.cause
	if old == c {
		return
	}
	p.cause = c
	if c != nil {
		c.paths++
	}
	if old == nil {
		return
	}
	if old.paths--; old.paths == 0 && e.causes[old.name] == old {
		delete(e.causes, old.name)
	}
}

// leavingBy counts the paths of an interface.
func (e *Engine) leavingBy(name string) (n int) {
	for _, p := range e.paths {
		if p != nil && !p.removed && p.via == name {
			n++
		}
	}
	return n
}

// relief notes that a probe of p was answered: after a while of that, trouble
// is over.
func (e *Engine) relief(p *path) {
	if c := p.cause; c != nil && c.over() {
		if e.causes[c.name] == c { // the first to find it over
			delete(e.causes, c.name)
			if c.name != "" {
				e.log.Info("interface works again", append(c.history(), zap.String("interface", c.name), zap.Int("paths", c.paths))...)
			}
		}
		e.blame(p, nil)
	}
	if p.trouble.times > 0 && p.trouble.over() {
		e.log.Info("path works again", append(p.trouble.history(), zap.String("path", p.target.Name))...)
		p.trouble = trouble{}
	}
}
