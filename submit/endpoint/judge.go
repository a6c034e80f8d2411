// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Slots are told at different times by servers that answer at different speeds, so a verdict compares only what must be in order if
// everybody keeps up: a slot that was asked for after another one was told cannot be lower, whatever the service's pace, and also while
// it stands still. What looks odd beyond that is a reason to ask everybody at once, a few times, and judge then.

const (
	maxLag       = 40               // slots behind, or ahead, of the median
	seenTogether = 2 * time.Minute  // how far apart two sightings are that are compared
	stillAsked   = 4 * time.Second  // for which the one in use may stand still before the others are asked
	stillJudged  = 8 * time.Second  // for which anyone may: one address can hide several servers, not all equally far
	firstRest    = 30 * time.Second // between two suspicions that ask everybody
	longestRest  = 10 * time.Minute
	minRateSpan  = 4 * time.Second // over which a pace is worth something
)

// saw remembers a slot that a candidate told.
func (c *candidate) saw(s sighting) { c.seen = push(c.seen, s, maxSeen) }

// credible says whether what c tells counts when others are judged.
func (c *candidate) credible() bool {
	return c.kind != FaultLagging && c.kind != FaultAhead && c.kind != FaultStuck
}

// difference returns a-b, bounded.
func difference(a, b uint64) int64 {
	if a >= b {
		return int64(min(a-b, math.MaxInt64))
	}
	return -int64(min(b-a, math.MaxInt64))
}

// judge returns what is wrong with the slots that c told.
func (p *Pool) judge(c *candidate) fault {
	last, ok := c.lastSeen()
	if !ok {
		return fault{}
	}
	if lag := p.behind(c, last); lag > maxLag {
		return fault{kind: FaultLagging, text: fmt.Sprintf("%d slots behind the others", lag)}
	}
	if p.stuck(c, last) {
		return fault{kind: FaultStuck, text: fmt.Sprintf("stands still at slot %d", last.slot)}
	}
	if lead := p.ahead(c); lead > maxLag {
		return fault{kind: FaultAhead, text: fmt.Sprintf("%d slots ahead of the others", lead)}
	}
	return fault{}
}

// behind returns by how much a sighting of c is below the median of what it and the others had told before it was asked for. Where
// there are several others that are good, one alone proves nothing: it may be the one that is wrong.
func (p *Pool) behind(c *candidate, last sighting) int64 {
	slots := []uint64{last.slot}
	good := 0 // others
	for _, other := range p.candidates {
		if other == c || !other.credible() {
			continue
		}
		if other.good {
			good++
		}
		for _, s := range slices.Backward(other.seen) {
			if !s.told.After(last.asked) {
				if last.asked.Sub(s.told) < seenTogether {
					slots = append(slots, s.slot)
				}
				break
			}
		}
	}
	if good >= 2 && len(slots) < 3 {
		return 0
	}
	return difference(median(slots), last.slot)
}

// ahead returns by how much c has told a slot that most of the others had not reached when they were asked later. It takes two others
// to contradict one, unless it is known to have claimed too much.
func (p *Pool) ahead(c *candidate) (lead int64) {
	witnesses := 2
	if c.kind == FaultAhead {
		witnesses = 1
	}
	for _, claim := range c.seen {
		if claim.told.Before(c.lastFail) { // it has paid for it
			continue
		}
		var later []uint64
		for _, other := range p.candidates {
			if other == c || !other.credible() {
				continue
			}
			if s, ok := other.lastSeen(); ok && !s.asked.Before(claim.told) && s.told.Sub(claim.told) < seenTogether {
				later = append(later, s.slot)
			}
		}
		if len(later) >= witnesses {
			lead = max(lead, difference(claim.slot, median(later)))
		}
	}
	return lead
}

// still returns the first of the sightings since which c has not told a higher slot. It looks back only a little: after a restart the
// whole service may go on from an earlier slot.
func (c *candidate) still() sighting {
	last := c.seen[len(c.seen)-1]
	first := last
	for _, s := range slices.Backward(c.seen) {
		if last.told.Sub(s.told) < seenTogether && s.slot >= first.slot {
			first = s
		}
	}
	return first
}

// stuck says whether c has stood still while another one advanced: was seen to advance, then c was asked and had not, then the other
// was seen to advance again. One advance alone would also be that of a service that goes on after a halt, which reaches some earlier.
func (p *Pool) stuck(c *candidate, last sighting) bool {
	since := c.still()
	if last.asked.Sub(since.told) < stillJudged {
		return false
	}
	for _, other := range p.candidates {
		if other == c || !other.credible() {
			continue
		}
		advances, before := 0, uint64(math.MaxUint64)
		for _, s := range other.seen {
			if s.asked.Before(since.told) {
				continue
			}
			if s.slot > before {
				if advances > 0 {
					return true
				}
				if s.told.After(last.asked) {
					break
				}
				advances++
			}
			before = s.slot
		}
	}
	return false
}

// position returns where c would be now if it went on at the given pace.
func position(s sighting, pace float64, now time.Time) float64 {
	return float64(s.slot) + pace*now.Sub(s.told).Seconds()
}

// pace returns the slots per second of the middle candidate.
func (p *Pool) pace() float64 {
	var paces []float64
	for _, c := range p.candidates {
		last, ok := c.lastSeen()
		if !ok {
			continue
		}
		for _, s := range c.seen {
			if span := last.told.Sub(s.told); span >= minRateSpan && span < seenTogether && !s.told.Before(c.lastFail) {
				paces = append(paces, float64(difference(last.slot, s.slot))/span.Seconds())
				break
			}
		}
	}
	if len(paces) == 0 {
		return 0
	}
	return median(paces)
}

// lag estimates how many slots c is behind the median of all.
func (p *Pool) lag(c *candidate, now time.Time) int64 {
	pace := p.pace()
	var positions []float64
	for _, other := range p.candidates {
		if s, ok := other.lastSeen(); ok && now.Sub(s.told) < seenTogether && (other == c || other.credible()) {
			positions = append(positions, position(s, pace, now))
		}
	}
	last, _ := c.lastSeen()
	if len(positions) == 0 {
		return 0
	}
	return int64(min(max(median(positions)-position(last, pace, now), math.MinInt64/2), math.MaxInt64/2))
}

// suspicion paces the rounds in which everybody is asked because something looks odd. The more often that came to nothing, for instance
// because the whole service has halted, the longer it rests.
type suspicion struct {
	last time.Time
	rest time.Duration
}

// suspect asks everybody if what a good candidate told looks odd, but cannot be judged yet.
func (p *Pool) suspect(c *candidate) {
	last, ok := c.lastSeen()
	if !ok || !c.good || len(p.candidates) < 2 {
		return
	}
	now := time.Now()
	lag := p.lag(c, now)
	still := c == p.inUse && last.asked.Sub(c.still().told) >= stillAsked
	s := &p.suspicion
	if !still && max(lag, -lag) <= maxLag || now.Sub(s.last) < s.rest {
		return
	}
	if now.Sub(s.last) > 2*longestRest {
		s.rest = 0
	}
	s.last, s.rest = now, min(max(2*s.rest, firstRest), longestRest)
	p.startBurst(3)
}
