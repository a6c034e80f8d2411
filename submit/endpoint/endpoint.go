// SPDX-License-Identifier: Apache-2.0

// Package endpoint keeps a way open to a service that has several URLs, each with several addresses behind its name. Its promise: while
// one address of one URL does the real work, calls go there within seconds, whatever the others do or pretend, and nothing about a URL
// but its scheme, host and port ever leaves the package in a log, an error or a status.
//
// A [Pool] is an http.RoundTripper. Each pair of URL and address is a candidate with a transport and connections of its own. Candidates
// are compared side by side by a call that does real work; what a look-up, a connection and such a call are is told to the package.
package endpoint

import (
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"
)

// URL is one way to the service.
type URL struct {
	URL       string       // http or https; path, query and user info are sent with every request and kept secret otherwise
	Addresses []netip.Addr // candidates beside those that look-ups give
}

// Health is what a check learned from a candidate.
type Health struct {
	// Slot is the service's counter that grows everywhere alike: how far behind the others a candidate is, and whether it moves.
	Slot uint64

	// Cluster says which network answered. Empty: not asked this time; see [Identify].
	Cluster string
}

// State keeps the pool's memory over restarts: the addresses that names ever gave, and the network they belong to.
type State interface {
	Load() ([]byte, error) // nil: nothing saved yet
	Save([]byte) error
}

// Config is what a Pool works with. All functions are called from many goroutines and keep to the deadline of ctx.
type Config struct {
	URLs []URL

	// Lookup returns the addresses of a name.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)

	// Dial connects to a literal address and port.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Check makes one real call through rt, which leads to one candidate, and judges the answer. The request's URL is a placeholder.
	Check func(ctx context.Context, rt http.RoundTripper) (Health, error)

	TLS    *tls.Config // for instance with root certificates; nil: the system's. The name to verify is always the URL's.
	State  State       // nil: the memory ends with the process
	Logger *zap.Logger

	// Beat, if set, is called at each step of the loop with the time until the next step at the latest, for a watchdog.
	Beat func(next time.Duration)
}

// Validate reports what is missing or malformed. It quotes nothing of a URL.
func (c Config) Validate() error {
	_, err := c.sites()
	return err
}

func (c Config) sites() ([]*site, error) {
	switch {
	case len(c.URLs) == 0:
		return nil, errors.New("endpoint pool without a URL")
	case c.Lookup == nil || c.Dial == nil || c.Check == nil:
		return nil, errors.New("endpoint pool without a function to look up, dial or check")
	case c.Logger == nil:
		return nil, errors.New("endpoint pool without a logger")
	}
	return parseSites(c.URLs)
}

// Pool chooses among the candidates and carries calls to the one in use. Make it with New; its methods may be called from any goroutine.
type Pool struct {
	cfg    Config
	sites  []*site
	mask   func(string) string // takes what is secret in a URL out of a text
	logger *zap.Logger
	wake   chan struct{} // capacity 1: the loop has something new to look at

	ready     chan struct{} // closed when calls need not wait for a choice any more: one is good, or all were checked once
	markReady func()

	mu         sync.Mutex
	running    bool         // within Run
	candidates []*candidate // in the order in which they became known
	inUse      *candidate   // where calls go; nil only before the first choice
	moved      time.Time    // when inUse last changed; zero: it is still the first one
	cluster    record       // the network that all candidates have to belong to
	burst      burst        // checks of all candidates at once
	suspicion  suspicion
	teller     teller // what was logged about the choice
	strangers  strangers
	saver      saver
}

// New returns a Pool that knows the addresses of the configuration and those remembered in the State. Nothing is looked up or checked
// until Run is called.
func New(cfg Config) (*Pool, error) {
	sites, err := cfg.sites()
	if err != nil {
		return nil, err
	}
	p := &Pool{
		cfg:    cfg,
		sites:  sites,
		mask:   masker(sites),
		logger: cfg.Logger.Named("endpoint"),
		wake:   make(chan struct{}, 1),
		ready:  make(chan struct{}),
	}
	p.saver.teller.told = stateGood
	p.markReady = sync.OnceFunc(func() { close(p.ready) })
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, s := range sites {
		for _, addr := range cfg.URLs[i].Addresses {
			p.add(s, addr).fixed = true
		}
		if addr, err := netip.ParseAddr(s.host); err == nil {
			p.add(s, addr).fixed = true
		}
	}
	p.remember()
	return p, nil
}

// String names the loop.
func (p *Pool) String() string { return "endpoint" }

// Status describes one candidate.
type Status struct {
	Name    string     // scheme://host:port/address; unique, and the value of metric labels
	URL     string     // scheme://host:port, with #2 and so on if several configured URLs have that in common
	Address netip.Addr // what is dialed
	Fixed   bool       // the address is from the configuration
	Named   time.Time  // when a look-up last gave the address; zero: never

	Good   bool
	InUse  bool
	Since  time.Time // when Good became what it is; zero: not checked yet
	Reason string    // why it is not good; empty if it is

	Latency time.Duration // of a validated answer on an open connection, median of the last three checks; 0: none yet
	Slot    uint64        // last one reported; 0: none yet
	SlotLag int64         // slots behind the median of all candidates, negative if ahead, as far as they can be compared by now
	LastOK  time.Time     // last validated check or answered call; zero: none yet

	OK     uint64            // requests answered, checks included
	Failed uint64            // requests that were not, or not sensibly
	Faults map[string]uint64 // Failed by kind of fault, a closed list (the constants Fault*)
}

// Status returns the candidates in the order in which they became known.
func (p *Pool) Status() []Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	all := make([]Status, 0, len(p.candidates))
	for _, c := range p.candidates {
		s := Status{
			Name:    c.name,
			URL:     c.site.label,
			Address: c.addr,
			Fixed:   c.fixed,
			Named:   c.named,
			Good:    c.good,
			InUse:   c == p.inUse,
			Since:   c.since,
			Reason:  c.reason,
			Latency: c.latency(),
			LastOK:  c.lastOK,
			OK:      c.ok,
			Faults:  maps.Clone(c.faults),
		}
		for _, n := range c.faults {
			s.Failed += n
		}
		if last, ok := c.lastSeen(); ok {
			s.Slot = last.slot
			s.SlotLag = p.lag(c, now)
		}
		all = append(all, s)
	}
	return all
}

// Landed says that a request which the named candidate took has had its effect.
func (p *Pool) Landed(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.find(name); c != nil {
		c.landed, c.expired = time.Now(), 0
		p.judgeExpired()
	}
}

// Expired says that a request which the named candidate took never had its effect and no longer can.
func (p *Pool) Expired(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.find(name); c != nil {
		if c.expired == 0 {
			c.expiredSince = time.Now()
		}
		c.expired++
		p.judgeExpired()
	}
}

// judgeExpired leaves candidates whose requests have no effect while those through others do.
func (p *Pool) judgeExpired() {
	for _, c := range p.candidates {
		if c.expired < maxExpired {
			continue
		}
		for _, other := range p.candidates {
			if other != c && !other.landed.Before(c.expiredSince) {
				p.fail(c, fault{kind: FaultUnlanded, text: "what it takes never lands"})
				c.expired = 0
				break
			}
		}
	}
	p.choose()
}

func (p *Pool) find(name string) *candidate {
	for _, c := range p.candidates {
		if c.name == name {
			return c
		}
	}
	return nil
}

// poke makes the loop look at what is due.
func (p *Pool) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}
