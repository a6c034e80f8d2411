// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"runtime/debug"
	"sync"
	"time"
)

const (
	checkTimeout   = 5 * time.Second
	lookupTimeout  = 5 * time.Second
	lookupInterval = time.Minute
	lookupRetry    = 10 * time.Second // after one that failed, and while nothing is good
	identifyEvery  = time.Hour        // a good candidate is asked again which cluster it belongs to
	burstSpacing   = 2 * time.Second
	longestWait    = 30 * time.Second // between two looks at what is due
)

// burst is a number of rounds in which all candidates are checked at once.
type burst struct {
	rounds int
	whole  bool // the next round is the first one: also those that do not answer
	next   time.Time
}

// startBurst plans rounds of checks, the first one at once.
func (p *Pool) startBurst(rounds int) {
	now := time.Now()
	if p.burst.rounds == 0 || rounds > p.burst.rounds {
		p.burst = burst{rounds: rounds, whole: true, next: now}
	}
	p.poke()
}

type identifyKey struct{}

// Identify reports whether a check with this context should find out [Health.Cluster]. That spares a request in most checks; a check
// that always says it does no harm.
func Identify(ctx context.Context) bool {
	yes, _ := ctx.Value(identifyKey{}).(bool)
	return yes
}

// jobs are goroutines whose panics come out in the goroutine that waits for them.
type jobs struct {
	wg       sync.WaitGroup
	panicked chan string
}

func (j *jobs) start(job func()) {
	j.wg.Go(func() {
		defer func() {
			if r := recover(); r != nil {
				select {
				case j.panicked <- fmt.Sprintf("%v\n\n%s", r, debug.Stack()):
				default: // one is enough
				}
			}
		}()
		job()
	})
}

// Run looks up names, checks candidates and chooses among them until ctx ends, and then returns nil. It closes all connections but those
// of calls under way, which are closed with them. After a panic it may be run again. Calls also work after it has ended, each with a
// connection of its own.
func (p *Pool) Run(ctx context.Context) error {
	work, cancel := context.WithCancel(ctx)
	j := &jobs{panicked: make(chan string, 1)}
	defer func() {
		cancel()
		j.wg.Wait()
		p.end()
	}()
	p.begin()

	for ctx.Err() == nil {
		wait := p.step(work, j)
		if p.cfg.Beat != nil {
			p.cfg.Beat(wait)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-p.wake:
		case <-timer.C:
		case text := <-j.panicked:
			timer.Stop()
			panic(text)
		}
		timer.Stop()
	}
	return nil
}

// begin makes the pool as it is at the start of Run, whatever an earlier one left behind.
func (p *Pool) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running, p.saver.saving = true, false
	for _, c := range p.candidates {
		c.checking = false
	}
	for _, s := range p.sites {
		s.looking = false
	}
}

func (p *Pool) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = false
	for _, c := range p.candidates {
		c.leave(false)
	}
}

// step starts what is due and returns how long to wait for the next.
func (p *Pool) step(ctx context.Context, j *jobs) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	next := now.Add(longestWait)

	for _, s := range p.sites {
		if s.literal || s.looking {
			continue
		}
		if s.nextLook.After(now) {
			next = earlier(next, s.nextLook)
			continue
		}
		s.looking = true
		j.start(func() { p.lookup(ctx, s) })
	}

	round := p.burst.rounds > 0 && !p.burst.next.After(now)
	whole := p.burst.whole
	if round {
		p.burst.rounds--
		p.burst.whole, p.burst.next = false, now.Add(burstSpacing)
	}
	if p.burst.rounds > 0 {
		next = earlier(next, p.burst.next)
	}
	for _, c := range p.candidates {
		due := p.due(c)
		if round && (whole || c.up) && now.Sub(c.lastFail) >= burstSpacing {
			due = c.silentUntil
		}
		switch {
		case c.checking:
		case due.After(now):
			next = earlier(next, due)
		default:
			c.checking = true
			c.settling = c.settling || round && whole
			l := p.connect(c)
			j.start(func() { p.check(ctx, c, l) })
		}
	}

	p.save(j, now)
	p.report(now)
	return next.Sub(now)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// lookup asks for the addresses of a site's host.
func (p *Pool) lookup(ctx context.Context, s *site) {
	limited, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addrs, err := p.cfg.Lookup(limited, s.host)
	if ctx.Err() != nil {
		return
	}
	if err == nil && len(addrs) == 0 {
		err = errors.New("no addresses")
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.poke()
	now := time.Now()
	s.looking, s.looked, s.nextLook = false, true, now.Add(lookupInterval)
	if err != nil || p.inUse == nil || !p.inUse.good {
		s.nextLook = now.Add(lookupRetry)
	}
	p.reportLookup(s, err)
	if err == nil {
		p.named(s, addrs, now)
	}
	p.settle()
}

// named takes note of the addresses that a look-up gave.
func (p *Pool) named(s *site, addrs []netip.Addr, now time.Time) {
	for _, addr := range addrs {
		if usable(addr) {
			c := p.add(s, addr)
			p.saver.dirty = p.saver.dirty || c.named.IsZero()
			c.named = now
		}
	}
	p.forget(s, now)
}

// check calls one candidate over a link that it releases, and books what that told.
func (p *Pool) check(ctx context.Context, c *candidate, l *link) {
	defer l.release()
	limited, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	p.mu.Lock()
	identify := !c.good || time.Since(c.identified) >= identifyEvery
	p.mu.Unlock()
	r := &probe{pool: p, c: c, link: l}
	asked := time.Now()
	h, err := p.cfg.Check(context.WithValue(limited, identifyKey{}, identify), r)

	p.mu.Lock()
	defer p.mu.Unlock()
	c.checking, c.settling = false, false
	if ctx.Err() != nil {
		return
	}
	defer p.poke()
	switch {
	case err == nil && h.Slot > math.MaxInt64:
		p.failed(c, fault{kind: FaultInvalid, text: fmt.Sprintf("slot %d makes no sense", h.Slot)})
	case err == nil:
		p.answered(c, h, asked, r.latency)
	case l.wasCut(): // by a call that failed meanwhile
	case r.fault.kind != "":
		p.failed(c, r.fault)
	case errors.Is(err, context.DeadlineExceeded):
		p.failed(c, fault{kind: FaultTimeout, text: "no answer in time", cause: err})
	default:
		p.failed(c, fault{kind: FaultInvalid, text: p.mask(err.Error()), cause: err})
	}
	p.settle()
}

// answered judges a check that the candidate answered, and all others in the light of it.
func (p *Pool) answered(c *candidate, h Health, asked time.Time, latency time.Duration) {
	now := time.Now()
	seen := sighting{asked: asked, told: now, slot: h.Slot}
	if h.Cluster != "" {
		c.cluster, c.identified = h.Cluster, now
		if p.cluster.Cluster == "" { // too early to tell
			c.held, c.nextCheck = true, now.Add(usedInterval)
			c.latencies = push(c.latencies, latency, 3)
			c.saw(seen)
			return
		}
	}
	if f := p.wrongCluster(c); f.kind != "" {
		c.seen = nil // of another network
		p.failed(c, f)
		return
	}
	c.saw(seen)
	if f := p.judge(c); f.kind != "" {
		p.suspicion.rest = 0
		p.failed(c, f)
	} else {
		c.latencies = push(c.latencies, latency, 3)
		p.passed(c)
		p.compare(c)
	}
	for _, other := range p.candidates {
		if other != c && other.good {
			if f := p.judge(other); f.kind != "" {
				p.fail(other, f)
			}
		}
	}
	p.suspect(c)
}

// settle draws the conclusions from a check or a look-up. It is here that calls may go when waiting no longer promises anything.
func (p *Pool) settle() {
	asked := true // everybody was
	for _, s := range p.sites {
		asked = asked && s.looked
	}
	for _, c := range p.candidates {
		asked = asked && (c.held || !c.since.IsZero())
	}
	if asked {
		p.recordCluster()
	}
	p.choose()
	if asked {
		p.markReady()
	}
}
