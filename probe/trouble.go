// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
)

// minutely is the calm of what is looked at once a minute or more seldom.
const minutely = 10 * time.Minute

// trouble is something that is wrong for a while. It has a line in the log when
// it begins, and while it goes on one every few hours.
type trouble struct {
	times             uint64 // since all was well
	since, last, told time.Time
	calm, more        time.Duration // it has to be well for the longer of them until it is over
}

// note notes that it is still so, and says whether that deserves a line.
func (t *trouble) note() bool {
	now := time.Now()
	lately := now.Sub(t.told) <= tellAgain
	if t.times == 0 {
		t.since = now
		if lately { // it is over too often
			t.more = min(8*t.wait(), tellAgain)
		} else {
			t.more = 0
		}
		lately = false
	}
	t.times++
	t.last = now
	if lately {
		return false
	}
	t.told = now
	return true
}

// over reports whether all has been well for a while. The while keeps what
// comes and goes from filling the log.
func (t *trouble) over() bool { return t.times > 0 && time.Since(t.last) >= t.wait() }

func (t *trouble) wait() time.Duration { return max(t.calm, t.more, troubleOver) }

// end makes it over.
func (t *trouble) end() { *t = trouble{told: t.told, calm: t.calm, more: t.more} }

// attempt notes how an attempt at something went that is made again and again,
// and has the lines about it.
func (t *trouble) attempt(log *zap.Logger, err error, begins, ends string, fields ...zap.Field) {
	switch {
	case err != nil && t.note():
		log.Error(begins, append(fields, zap.Uint64("times", t.times), zap.Error(err))...)
	case err == nil && t.over():
		log.Info(ends, t.history()...)
		t.end()
	}
}

// history is what a line about its end says of it.
func (t *trouble) history() []zap.Field {
	return []zap.Field{zap.Uint64("times", t.times), zap.Duration("after", t.last.Sub(t.since))}
}

// ongoing is the trouble of what goes on by itself as long as it does not fail.
type ongoing struct {
	log          *zap.Logger
	begins, ends string

	mu sync.Mutex
	trouble
}

func newOngoing(log *zap.Logger, begins, ends string) *ongoing {
	return &ongoing{log: log, begins: begins, ends: ends, trouble: trouble{calm: minutely}}
}

// fails has the lines about a failure.
func (o *ongoing) fails(err error, fields ...zap.Field) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.attempt(o.log, err, o.begins, o.ends, fields...)
}

// works notes that it goes on from now on, until stop is called.
func (o *ongoing) works() (stop func() bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return time.AfterFunc(o.wait(), func() { o.fails(nil) }).Stop
}

// holds says by the name of an interface how the kernel half keeps to it. What
// somebody takes away and what comes back must not fill the log.
type holds struct {
	mu sync.Mutex
	of map[string]*hold
}

type hold struct {
	trouble
	told string // how it was attached when that last had a line
}

// get is called with mu held.
func (h *holds) get(name string) *hold {
	if h.of == nil {
		h.of = make(map[string]*hold)
	}
	if h.of[name] == nil {
		h.of[name] = &hold{trouble: trouble{calm: minutely}}
	}
	return h.of[name]
}

// lost has a line about the kernel half not being attached.
func (h *holds) lost(log *zap.Logger, what, name string, fields ...zap.Field) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := h.get(name); i.note() {
		log.Warn(what, append(fields, zap.String("interface", name), zap.Uint64("times", i.times))...)
	}
}

// attached has a line about it being attached, unless that is no news or has to
// last first.
func (h *holds) attached(log *zap.Logger, what, name string, how Step, refused []Refusal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := h.get(name)
	if text := fmt.Sprint(how, refusals(refused)); i.times == 0 && text != i.told {
		i.told = text
		log.Info(what, zap.String("interface", name), zap.Stringer("hook", how), zap.String("refused", refusals(refused)))
	}
}

// lasts has the line about it being attached again to an interface, once it has
// been so for a while.
func (h *holds) lasts(log *zap.Logger, what, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := h.get(name); i.over() {
		log.Info(what, append(i.history(), zap.String("interface", name))...)
		i.end()
	}
}

// cause is a trouble that paths have in common: of an interface or, without a
// name, of the namespace that is not there, which has lines elsewhere. It is
// kept when it is over, so that what comes and goes has few lines.
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
		if p.cause != nil && p.cause.times > 0 && !p.cause.over() {
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
	if old.paths--; old.paths == 0 { // nobody is left who could say when it is over
		old.end()
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
	if c := p.cause; c != nil && (c.times == 0 || c.over()) {
		if c.times > 0 && c.name != "" { // the first to find it over
			e.log.Info("interface works again", append(c.history(), zap.String("interface", c.name), zap.Int("paths", c.paths))...)
		}
		c.end()
		e.blame(p, nil)
	}
	if p.trouble.over() {
		e.log.Info("path works again", append(p.trouble.history(), zap.String("path", p.target.Name))...)
		p.trouble.end()
	}
}
