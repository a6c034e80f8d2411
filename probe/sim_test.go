// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
	"github.com/xtwamp/xtwamp/probe/twamp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// simClock runs on the time of a synctest bubble. Its wall clock can be
// stepped.
type simClock struct {
	begin time.Time
	mu    sync.Mutex
	wall  int64 // offset
	steps chan struct{}

	looked func() // called once a minute, as the clock is looked at
	adrift bool
}

func newSimClock() *simClock {
	return &simClock{begin: time.Now(), wall: time.Now().UnixNano() - simMono0, steps: make(chan struct{}, 1)}
}

// simMono0 is CLOCK_MONOTONIC when a simulation begins.
const simMono0 = int64(1000 * time.Second)

func (c *simClock) mono() int64 { return simMono0 + int64(time.Since(c.begin)) }

func (c *simClock) offset() offset {
	c.mu.Lock()
	defer c.mu.Unlock()
	return offset{ns: c.wall, uncertainty: 50}
}

func (c *simClock) state() ClockState {
	return ClockState{Offset: c.offset().ns, Synchronized: !c.adrift, Error: time.Microsecond}
}

func (c *simClock) step(by time.Duration) {
	c.mu.Lock()
	c.wall += int64(by)
	c.mu.Unlock()
	c.steps <- struct{}{}
}

// minute is over when it is time to look at the clock; never if nobody does.
func (c *simClock) minute() <-chan time.Time {
	if c.looked == nil {
		return nil
	}
	return time.After(time.Minute)
}

func (c *simClock) watch(ctx context.Context, changed func()) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.steps:
			changed()
		case <-c.minute():
			c.looked()
			changed()
		}
	}
}

// simNetwork is a network whose far side is a function of each probe.
type simNetwork struct {
	t      *testing.T
	engine *Engine
	step   Step
	// reach answers a probe: it may call back now or later, any number of
	// times.
	reach func(p *simProbe)
	// opens is asked at each open; nil: it works.
	opens func(req openRequest) (netip.Addr, error)
	// hang lets an open wait until its deadline.
	hang func(req openRequest) bool
	// misnumbered is how old the stamps of departures are.
	misnumbered time.Duration
	// gone makes the interface vanish.
	gone bool
	// leavesBy is the interface of a path; nil: sim0.
	leavesBy func(req openRequest) string

	wait    sync.WaitGroup // of what was put off
	opened  []openRequest
	sending error        // what the next sends return
	sends   func() error // asked at each send; nil: it works
}

// simProbe is one transmitted probe.
type simProbe struct {
	net  *simNetwork
	path *path
	seq  uint32
	nth  int // of the path's probes, from 0
	wire twamp.Timestamp
	sent int64
}

// answer delivers a reply after a delay.
func (p *simProbe) answer(after time.Duration) { p.answerEdited(after, func(*reply) {}) }

func (p *simProbe) answerEdited(after time.Duration, edit func(*reply)) {
	n := p.net
	n.wait.Add(1)
	time.AfterFunc(after, func() {
		defer n.wait.Done()
		n.engine.mu.Lock()
		defer n.engine.mu.Unlock()
		now := n.engine.clock.mono()
		r := reply{
			seq: p.seq, wire: p.wire,
			tx: stamp{ns: p.sent}, txSource: store.TCEgress,
			rx: stamp{ns: now}, rxSource: store.TCIngress,
			ttl: 254,
		}
		if n.step == StepSocket {
			// The kernel stamped both while the wall clock was what it was then.
			r.txSource, r.rxSource = store.NoSource, store.Socket
			r.rx = stamp{ns: now + n.engine.clock.offset().ns, wall: true}
		}
		edit(&r)
		n.engine.received(p.path, r)
	})
}

func (n *simNetwork) run(ctx context.Context) { <-ctx.Done() }
func (n *simNetwork) look() error             { return nil }
func (n *simNetwork) flush()                  {}
func (n *simNetwork) close() error            { n.wait.Wait(); return nil }

func (n *simNetwork) open(ctx context.Context, req openRequest) (flow, FlowInfo, error) {
	if n.hang != nil && n.hang(req) {
		<-ctx.Done()
		if req.current.IsValid() {
			return nil, FlowInfo{}, errUnchanged
		}
		return nil, FlowInfo{}, down(store.NoRoute, "resolve: %w", ctx.Err())
	}
	n.engine.mu.Lock()
	defer n.engine.mu.Unlock()
	n.opened = append(n.opened, req)
	address := netip.MustParseAddr("192.0.2.1")
	if n.opens != nil {
		var err error
		if address, err = n.opens(req); err != nil {
			return nil, FlowInfo{}, err
		}
	}
	if req.refresh && address == req.current {
		return nil, FlowInfo{}, errUnchanged
	}
	iface := "sim0"
	if n.leavesBy != nil {
		iface = n.leavesBy(req)
	}
	return &simFlow{net: n, path: req.path}, FlowInfo{
		Local:     netip.AddrPortFrom(netip.MustParseAddr("192.0.2.2"), uint16(40000+len(n.opened))),
		Remote:    netip.AddrPortFrom(address, 862),
		Interface: iface,
		Step:      n.step,
	}, nil
}

type simFlow struct {
	net    *simNetwork
	path   *path
	closed bool
}

func (f *simFlow) send(packet []byte, seq uint32) error {
	n := f.net
	if f.closed {
		n.t.Error("send on a closed flow")
	}
	if n.sending != nil {
		return n.sending
	}
	if n.sends != nil {
		if err := n.sends(); err != nil {
			return err
		}
	}
	request, err := twamp.ParseRequest(packet, f.path.profile)
	if err != nil {
		n.t.Errorf("the engine sent what cannot be read: %v", err)
	}
	p := &simProbe{
		net: n, path: f.path, seq: seq, wire: request.Time, sent: n.engine.clock.mono(),
		nth: int(f.path.counters.Sent),
	}
	if n.step == StepSocket {
		n.engine.transmitted(f.path, seq, stamp{ns: p.sent - int64(n.misnumbered) + n.engine.clock.offset().ns, wall: true}, store.Socket)
	}
	if n.reach != nil {
		n.reach(p)
	}
	return nil
}

func (f *simFlow) settle(*probe) {}
func (f *simFlow) ready() error  { return nil }
func (f *simFlow) alive() bool   { return !f.net.gone }
func (f *simFlow) close() {
	if f.closed {
		f.net.t.Error("flow closed twice")
	}
	f.closed = true
}

// simulation is an engine on a simulated network.
type simulation struct {
	*Engine
	net     *simNetwork
	clock   *simClock
	samples map[string][]store.Sample
	beats   int
}

// simulate makes an engine for targets; edit may change its configuration.
func simulate(t *testing.T, edit func(*Config), targets ...target.Target) *simulation {
	t.Helper()
	s := &simulation{clock: newSimClock(), samples: make(map[string][]store.Sample)}
	cfg := Config{
		Targets: targets, AtOnce: true, Logger: zaptest.NewLogger(t),
		Emit: func(path int, m store.Sample) {
			name := targets[path].Name
			s.samples[name] = append(s.samples[name], m)
		},
		Beat: func(time.Duration) { s.beats++ },
	}
	if edit != nil {
		edit(&cfg)
	}
	s.Engine = newEngine(cfg, s.clock)
	if err := s.SetTargets(targets); err != nil {
		t.Fatal(err)
	}
	s.net = &simNetwork{t: t, engine: s.Engine}
	s.Engine.net = s.net
	return s
}

func count(n uint64) func(*Config) { return func(c *Config) { c.Count = n } }

// measure runs the engine until it has done its count, in simulated time.
func (s *simulation) measure(t *testing.T) {
	t.Helper()
	if err := s.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// measureFor runs the engine for so long, in simulated time.
func (s *simulation) measureFor(t *testing.T, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if err := s.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

func (s *simulation) counters(name string) PathStatus {
	for _, p := range s.Paths() {
		if p.Target.Name == name {
			return p
		}
	}
	return PathStatus{}
}

func simTarget(name string, interval time.Duration) target.Target {
	t := target.Defaults()
	t.Name, t.Address, t.Interval = name, "192.0.2.1", interval
	return t
}

func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}
