// SPDX-License-Identifier: Apache-2.0

package endpoint

import "time"

const (
	// What makes a candidate worth a move: it is faster by both, in so many rounds in a row, and the last move was long ago.
	fasterShare  = 0.3
	fasterBy     = 20 * time.Millisecond
	fasterRounds = 3
	moveRest     = 10 * time.Minute
)

// best returns the candidate to which a call should go, leaving out those that except says, or nil if there is none that may be asked
// now. That is the one in use as long as it is good. Otherwise, among equals, the fastest; and among those that do not answer the one
// that failed first, so that each has its turn.
func (p *Pool) best(now time.Time, except func(*candidate) bool) *candidate {
	var best *candidate
	for _, c := range p.candidates {
		switch {
		case now.Before(c.silentUntil) || c.kind == FaultWrongCluster || except != nil && except(c):
		case c == p.inUse && c.good:
			return c
		case best == nil || c.better(best, now):
			best = c
		}
	}
	return best
}

func (c *candidate) better(than *candidate, now time.Time) bool {
	ours, theirs := c.rank(now), than.rank(now)
	switch {
	case ours != theirs:
		return ours > theirs
	case ours == dead:
		return c.lastFail.Before(than.lastFail)
	}
	return c.latency() < than.latency()
}

// choose moves to another candidate if there is a reason to.
func (p *Pool) choose() {
	now := time.Now()
	best := p.best(now, nil)
	if best == nil || best.rank(now) == dead {
		return // stay, and keep trying
	}
	switch {
	case p.inUse == nil:
		p.move(best)
	case p.inUse.rank(now) < proven && best.rank(now) > p.inUse.rank(now):
		p.move(best)
	case p.inUse.rank(now) >= proven && now.Sub(p.moved) >= moveRest:
		for _, c := range p.candidates {
			if c.rank(now) == trusted && c.faster >= fasterRounds && (best == p.inUse || c.latency() < best.latency()) {
				best = c
			}
		}
		if best != p.inUse {
			p.move(best)
		}
	}
	if best.good {
		p.markReady()
	}
}

func (p *Pool) move(to *candidate) {
	if p.inUse != nil {
		p.inUse.leave(false)
		p.moved = time.Now()
	}
	p.inUse, to.usedSince = to, time.Now()
	for _, c := range p.candidates {
		c.faster = 0
	}
	p.poke()
}

// compare counts the rounds in which a good candidate was faster by far than the one in use.
func (p *Pool) compare(c *candidate) {
	if c == p.inUse || p.inUse == nil || !c.good || len(p.inUse.latencies) == 0 {
		return
	}
	ours, theirs := p.inUse.latency(), c.latency()
	if float64(theirs) <= (1-fasterShare)*float64(ours) && ours-theirs >= fasterBy {
		c.faster++
	} else {
		c.faster = 0
	}
}
