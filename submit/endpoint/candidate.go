// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"time"
)

const (
	usedInterval  = 5 * time.Second  // between two checks of the one in use; calls do not replace them, since they tell no slot
	spareInterval = 30 * time.Second // between two checks of another good one, give or take a fifth
	firstBackoff  = 10 * time.Second // before a bad one is checked again; doubles with each failure
	maxBackoff    = 30 * time.Second // and two more checks, so that whatever ends is told within a minute
	maxRetryAfter = time.Hour        // longest that a 429 is believed

	goodChecks = 3 // in a row make a bad one good again
	maxExpired = 2 // requests without an effect that are one too many

	firstHold = 10 * time.Minute // after it failed while in use, a candidate is not chosen for its speed for so long
	maxHold   = 6 * time.Hour    // the hold doubles each time that happens again

	maxSeen = 16 // remembered slots of a candidate: above a minute's worth of the one in use
)

// candidate is one address of one site. Its fields are guarded by Pool.mu.
type candidate struct {
	name string
	site *site
	addr netip.Addr
	link *link // nil: none since the last one was retired

	fixed bool      // from the configuration
	named time.Time // when a look-up last gave it

	known  bool // has been good
	good   bool
	since  time.Time // when good last changed; zero: not checked yet
	reason string    // why not good
	kind   string    // of that fault
	up     bool      // the last check was answered sensibly, and no call has failed since
	streak int       // good checks in a row while bad

	checking    bool
	nextCheck   time.Time
	lastCheck   time.Time // the last answered one
	lastOK      time.Time // last sensible answer to a check or call
	lastFail    time.Time
	backoff     time.Duration
	silentUntil time.Time // rate limited: no request before

	cluster    string // last one that it told
	held       bool   // it answered, but which cluster is the right one is not known yet
	identified time.Time
	seen       []sighting      // the last ones, oldest first
	latencies  []time.Duration // of the last three checks
	faster     int             // rounds in a row in which it was faster than the one in use by far

	usedSince time.Time     // while in use
	hold      time.Duration // the last one
	heldUntil time.Time

	expired      int // requests without an effect, since one had
	expiredSince time.Time
	landed       time.Time

	ok       uint64
	faults   map[string]uint64
	failures uint64 // sum of faults, and of verdicts on what it answered

	settling bool // a check is under way whose result is worth waiting for before anything is logged
	teller   teller
}

// sighting is a slot that a candidate told: after asked it had got that far, and at told it had been said.
type sighting struct {
	asked, told time.Time
	slot        uint64
}

// add makes a candidate, unless there is one already.
func (p *Pool) add(s *site, addr netip.Addr) *candidate {
	addr = addr.Unmap()
	for _, c := range p.candidates {
		if c.site == s && c.addr == addr {
			return c
		}
	}
	c := &candidate{name: s.label + "/" + addr.String(), site: s, addr: addr, faults: make(map[string]uint64), settling: true}
	c.teller.told = stateGood
	for _, kind := range kinds {
		c.faults[kind] = 0
	}
	p.candidates = append(p.candidates, c)
	return c
}

// remove forgets a candidate.
func (p *Pool) remove(c *candidate) {
	p.candidates = slices.DeleteFunc(p.candidates, func(other *candidate) bool { return other == c })
	c.leave(true)
	if p.inUse == c {
		p.inUse = nil
	}
}

// connect returns the candidate's link, held.
func (p *Pool) connect(c *candidate) *link {
	if c.link == nil {
		c.link = newLink(netip.AddrPortFrom(c.addr, c.site.port), p.cfg.TLS, p.cfg.Dial)
	}
	l := c.link
	l.hold()
	if !p.running { // nobody would close it later
		c.leave(false)
	}
	return l
}

// leave gives up the candidate's connections; with those of requests that are under way, or after them.
func (c *candidate) leave(atOnce bool) {
	if c.link != nil {
		c.link.retire(atOnce)
		c.link = nil
	}
}

// address directs a request at the candidate's URL.
func (c *candidate) address(req *http.Request) {
	u := *c.site.url
	req.URL, req.Host, req.RequestURI = &u, "", ""
	if auth := c.site.auth; auth != nil {
		password, _ := auth.Password()
		req.SetBasicAuth(auth.Username(), password)
	}
}

// rank orders candidates by how much is to be expected of them.
type rank int

const (
	dead    rank = iota // the last request failed, or there was none yet
	alive               // bad, but the last check was answered
	proven              // good, but it failed not long ago while it was in use
	trusted             // good
)

func (c *candidate) rank(now time.Time) rank {
	switch {
	case now.Before(c.silentUntil):
		return dead
	case c.good && now.Before(c.heldUntil):
		return proven
	case c.good:
		return trusted
	case c.up && !c.since.IsZero():
		return alive
	}
	return dead
}

// latency returns the median of the last checks.
func (c *candidate) latency() time.Duration {
	if len(c.latencies) == 0 {
		return 0
	}
	return median(c.latencies)
}

// median returns the middle of values, the upper one of two.
func median[T int64 | uint64 | float64 | time.Duration](values []T) T {
	values = slices.Clone(values)
	slices.Sort(values)
	return values[len(values)/2]
}

func (c *candidate) lastSeen() (sighting, bool) {
	if len(c.seen) == 0 {
		return sighting{}, false
	}
	return c.seen[len(c.seen)-1], true
}

// push appends to the last n values.
func push[T any](values []T, v T, n int) []T {
	return append(slices.Clone(values[max(0, len(values)-n+1):]), v)
}

// due returns when the candidate is to be checked next.
func (p *Pool) due(c *candidate) time.Time {
	next := c.nextCheck
	if c == p.inUse && c.up {
		next = earlier(next, c.lastCheck.Add(usedInterval))
	}
	return later(next, c.silentUntil)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// passed books a check that was answered sensibly.
func (p *Pool) passed(c *candidate) {
	now := time.Now()
	c.ok++
	c.up, c.backoff, c.lastOK, c.lastCheck = true, 0, now, now
	c.nextCheck = now.Add(spareInterval*4/5 + rand.N(spareInterval*2/5))
	if c.good {
		return
	}
	c.streak++
	if !c.since.IsZero() && c.streak < goodChecks {
		c.nextCheck = now.Add(firstBackoff)
		return
	}
	c.known, c.good, c.since, c.reason, c.kind, c.streak = true, true, now, "", "", 0
}

// failed books a request that failed.
func (p *Pool) failed(c *candidate, f fault) {
	c.faults[f.kind]++
	p.fail(c, f)
}

// fail makes a candidate bad, if it is not, and gives up its connections.
func (p *Pool) fail(c *candidate, f fault) {
	now := time.Now()
	if c.good || c.since.IsZero() {
		c.since = now
	}
	// A call that fails on a bad candidate does not put off the next check.
	if c.good || !c.nextCheck.After(now) {
		c.backoff = min(max(2*c.backoff, firstBackoff), maxBackoff)
		c.nextCheck = now.Add(c.backoff)
	}
	if f.kind == FaultRateLimited {
		wait := f.retryAfter
		if wait == 0 {
			wait = max(c.backoff, firstBackoff)
		}
		c.silentUntil = later(c.silentUntil, now.Add(wait))
	}
	if c.good && c == p.inUse {
		if now.Sub(c.usedSince) > 2*c.hold {
			c.hold = 0
		}
		c.hold = min(max(2*c.hold, firstHold), maxHold)
		c.heldUntil = now.Add(c.hold)
		p.startBurst(2)
	}
	c.good, c.up, c.streak, c.faster, c.lastFail = false, false, 0, 0, now
	c.reason, c.kind, c.latencies = f.text, f.kind, nil
	c.failures++
	c.leave(true)
	p.poke()
}
