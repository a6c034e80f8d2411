// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/twamp"
)

// Simulate returns an Engine that has a function in place of a network, and time.Now in place of the kernel's clocks. It is for tests of
// what comes behind an engine: with testing/synctest days pass in seconds. The function is told which target is probed and by which of
// its probes, counted from 0; it returns how long the reply takes, and whether there is one. It is called with the engine's lock held.
func Simulate(cfg Config, reach func(target int, n uint64) (rtt time.Duration, answered bool)) (*Engine, error) {
	e := newEngine(cfg, simulatedClock{time.Now()})
	if err := e.SetTargets(cfg.Targets); err != nil {
		return nil, err
	}
	e.net = &simulatedNetwork{engine: e, reach: reach}
	return e, nil
}

// simulatedClock starts when a simulation does, an hour after boot.
type simulatedClock struct{ begin time.Time }

func (c simulatedClock) mono() int64    { return int64(time.Hour + time.Since(c.begin)) }
func (c simulatedClock) offset() offset { return offset{ns: c.begin.UnixNano() - int64(time.Hour)} }
func (c simulatedClock) state() ClockState {
	return ClockState{Offset: c.offset().ns, Synchronized: true, Error: time.Microsecond}
}

func (c simulatedClock) watch(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}

type simulatedNetwork struct {
	engine  *Engine
	reach   func(target int, n uint64) (time.Duration, bool)
	replies sync.WaitGroup
}

func (n *simulatedNetwork) run(ctx context.Context) { <-ctx.Done() }
func (n *simulatedNetwork) close() error            { n.replies.Wait(); return nil }
func (n *simulatedNetwork) look() error             { return nil }
func (n *simulatedNetwork) flush()                  {}

func (n *simulatedNetwork) open(_ context.Context, req openRequest) (flow, FlowInfo, error) {
	if req.refresh {
		return nil, FlowInfo{}, errUnchanged
	}
	address := netip.MustParseAddr("192.0.2.1")
	if a, err := netip.ParseAddr(req.target.Address); err == nil {
		address = a
	}
	return &simulatedFlow{network: n, path: req.path}, FlowInfo{
		Local:     netip.MustParseAddrPort("192.0.2.2:40000"),
		Remote:    netip.AddrPortFrom(address, req.target.Port),
		Interface: "simulated",
		Step:      StepUser,
	}, nil
}

type simulatedFlow struct {
	network *simulatedNetwork
	path    *path
	sent    uint64
}

func (f *simulatedFlow) ready() error  { return nil }
func (f *simulatedFlow) alive() bool   { return true }
func (f *simulatedFlow) settle(*probe) {}
func (f *simulatedFlow) close()        {}

func (f *simulatedFlow) send(packet []byte, seq uint32) error {
	request, err := twamp.ParseRequest(packet, f.path.profile)
	if err != nil {
		return err
	}
	rtt, answered := f.network.reach(f.path.index, f.sent)
	f.sent++
	if !answered {
		return nil
	}
	e := f.network.engine
	r := reply{
		seq: seq, wire: request.Time, ttl: 255,
		tx: stamp{ns: e.clock.mono()}, txSource: store.User,
		rx: stamp{ns: e.clock.mono() + int64(rtt)}, rxSource: store.User,
	}
	f.network.replies.Add(1)
	time.AfterFunc(rtt, func() {
		defer f.network.replies.Done()
		e.mu.Lock()
		defer e.mu.Unlock()
		e.received(f.path, r)
	})
	return nil
}
