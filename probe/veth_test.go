// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"

	"github.com/xtwamp/xtwamp/bpf"
	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/netns/netnstest"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
	"github.com/xtwamp/xtwamp/probe/twamp"
)

// The two ends of a lab link.
const (
	nearAddr, farAddr   = "10.1.0.1", "10.1.0.2"
	nearAddr6, farAddr6 = "2001:db8::1", "2001:db8::2"
)

var (
	nearCIDRs = []string{nearAddr + "/24", nearAddr6 + "/64"}
	farCIDRs  = []string{farAddr + "/24", farAddr6 + "/64"}
)

// link is two namespaces joined by a veth pair.
func link(t *testing.T) (near, far *netnstest.NS) {
	t.Helper()
	lab := netnstest.New(t)
	near, far = lab.Namespace("near"), lab.Namespace("far")
	lab.Veth(near, "eth1", nearCIDRs, far, "eth1", farCIDRs)
	return near, far
}

// relayed is the same with a relay in the middle.
func relayed(t *testing.T, script func(*netnstest.Relay, netnstest.Frame)) (near, far *netnstest.NS) {
	t.Helper()
	lab := netnstest.New(t)
	near, far = lab.Namespace("near"), lab.Namespace("far")
	lab.Relay(near, "eth1", nearCIDRs, far, "eth1", farCIDRs, script)
	return near, far
}

func namespace(t *testing.T, ns *netnstest.NS) *netns.Namespace {
	t.Helper()
	n, err := netns.Open(ns.Path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

// reflectIn answers in ns until the test ends, on the socket unless edit says
// otherwise.
func reflectIn(t *testing.T, ns *netnstest.NS, edit func(*ReflectorConfig)) *Reflector {
	t.Helper()
	cfg := ReflectorConfig{
		Listen: []netip.AddrPort{netip.AddrPortFrom(netip.Addr{}, 862)}, AllowAny: true, RateLimit: 1_000_000, ExtendShort: true,
		Mode:      ReflectSocket,
		Namespace: namespace(t, ns), Logger: zaptest.NewLogger(t),
	}
	if edit != nil {
		edit(&cfg)
	}
	r, err := NewReflector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("reflector: %v", err)
		}
	})
	return r
}

// run is an engine measuring in a namespace.
type run struct {
	*Engine
	t      *testing.T
	cancel context.CancelFunc
	done   chan error

	mu      sync.Mutex
	samples []store.Sample
	emitted chan struct{}
}

func begin(t *testing.T, ns *netnstest.NS, edit func(*Config), targets ...target.Target) *run {
	t.Helper()
	r := prepare(t, ns, edit, targets...)
	r.start()
	return r
}

// prepare makes an engine that has not begun.
func prepare(t *testing.T, ns *netnstest.NS, edit func(*Config), targets ...target.Target) *run {
	t.Helper()
	r := &run{t: t, done: make(chan error, 1), emitted: make(chan struct{}, 1)}
	cfg := Config{
		Targets: targets, AtOnce: true, Namespace: namespace(t, ns), Logger: zaptest.NewLogger(t),
		Emit: func(_ int, s store.Sample) {
			r.mu.Lock()
			r.samples = append(r.samples, s)
			r.mu.Unlock()
			select {
			case r.emitted <- struct{}{}:
			default:
			}
		},
	}
	if edit != nil {
		edit(&cfg)
	}
	var err error
	if r.Engine, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *run) start() {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.done <- r.Run(ctx) }()
	r.t.Cleanup(func() { r.stop() })
}

// stop ends the engine and returns its samples.
func (r *run) stop() []store.Sample {
	r.t.Helper()
	r.cancel()
	return r.finish()
}

// finish waits for the engine's end and returns its samples.
func (r *run) finish() []store.Sample {
	r.t.Helper()
	if err, ok := <-r.done; ok {
		close(r.done)
		if err != nil {
			r.t.Errorf("engine: %v", err)
		}
	}
	return r.samples
}

// taken are the samples so far.
func (r *run) taken() []store.Sample {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.samples
}

// until waits until a sample fits.
func (r *run) until(what string, fits func(store.Sample) bool) {
	r.t.Helper()
	limit := time.After(30 * time.Second)
	for seen := 0; ; {
		r.mu.Lock()
		fresh := r.samples[seen:]
		seen = len(r.samples)
		r.mu.Unlock()
		for _, s := range fresh {
			if fits(s) {
				return
			}
		}
		select {
		case <-r.emitted:
		case <-limit:
			r.t.Fatalf("no sample %s within 30s", what)
		}
	}
}

// measureIn sends count probes to one target and returns what came of them.
func measureIn(t *testing.T, ns *netnstest.NS, n uint64, to target.Target) ([]store.Sample, PathStatus) {
	t.Helper()
	r := begin(t, ns, count(n), to)
	samples := r.finish()
	return samples, r.Paths()[0]
}

func to(address string, edit func(*target.Target)) target.Target {
	t := simTarget("a", 5*ms)
	t.Address = address
	t.Timeout, t.LateWindow = 500*ms, 500*ms
	if edit != nil {
		edit(&t)
	}
	return t
}

func TestLadderOnVeth(t *testing.T) {
	near, far := link(t)
	reflectIn(t, far, nil)
	tests := []struct {
		name    string
		address string
		edit    func(*target.Target)
		tx, rx  store.Source
	}{
		{"auto", farAddr, nil, store.TCEgress, store.TCIngress},
		{"tcx", farAddr, func(t *target.Target) { t.Attach = target.AttachTCX }, store.TCEgress, store.TCIngress},
		{"clsact", farAddr, func(t *target.Target) { t.Attach = target.AttachClsact }, store.TCEgress, store.TCIngress},
		{"bpf", farAddr, func(t *target.Target) { t.Timestamps = target.TimestampsBPF }, store.TCEgress, store.TCIngress},
		{"socket", farAddr, func(t *target.Target) { t.Timestamps = target.TimestampsSocket }, store.Socket, store.Socket},
		{"user", farAddr, func(t *target.Target) { t.Timestamps = target.TimestampsUser }, store.User, store.User},
		{"twamp-light", farAddr, func(t *target.Target) { t.Profile = target.ProfileTWAMPLight }, store.TCEgress, store.TCIngress},
		{"doublezero", farAddr, func(t *target.Target) { t.Profile = target.ProfileDoubleZero }, store.TCEgress, store.TCIngress},
		{"IPv6", farAddr6, nil, store.TCEgress, store.TCIngress},
		{"IPv6 clsact", farAddr6, func(t *target.Target) { t.Attach = target.AttachClsact }, store.TCEgress, store.TCIngress},
		{"IPv6 socket", farAddr6, func(t *target.Target) { t.Timestamps = target.TimestampsSocket }, store.Socket, store.Socket},
		{"full frame", farAddr, func(t *target.Target) { t.Size = 1472 }, store.TCEgress, store.TCIngress},
		{"odd size", farAddr, func(t *target.Target) { t.Size = 1001 }, store.TCEgress, store.TCIngress},
		{"fragments", farAddr, func(t *target.Target) { t.Size = 3000 }, store.Socket, store.Socket},
		{"IPv6 1432", farAddr6, func(t *target.Target) { t.Size = 1432 }, store.TCEgress, store.TCIngress},
		{"IPv6 1452", farAddr6, func(t *target.Target) { t.Size = 1452 }, store.TCEgress, store.TCIngress},
		{"IPv6 fragments", farAddr6, func(t *target.Target) { t.Size = 1500 }, store.Socket, store.Socket},
		{"named interface", farAddr, func(t *target.Target) { t.Interface = "eth1" }, store.TCEgress, store.TCIngress},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			samples, status := measureIn(t, near, 20, to(tt.address, tt.edit))
			if status.Received != 20 || status.Lost != 0 {
				t.Errorf("received %d, lost %d; want 20 and 0", status.Received, status.Lost)
			}
			for i, s := range samples {
				if s.TX != tt.tx || s.RX != tt.rx {
					t.Errorf("sample %d: tx %s, rx %s; want %s, %s", i, s.TX, s.RX, tt.tx, tt.rx)
				}
				if s.RTT <= 0 || s.TTL != 255 {
					t.Errorf("sample %d: RTT %d, TTL %d; want above 0, and 255", i, s.RTT, s.TTL)
				}
				stamps := status.Target.Profile != target.ProfileDoubleZero
				if s.HasDwell != stamps || s.Dwell > s.RTT || stamps && s.RemoteTTL != 255 {
					t.Errorf("sample %d: dwell %d (%t), remote TTL %d", i, s.Dwell, s.HasDwell, s.RemoteTTL)
				}
			}
		})
	}
}

func TestLinkLocalWithZone(t *testing.T) {
	near, far := link(t)
	reflectIn(t, far, nil)
	farLL := linkLocal(t, far)
	nearLL := linkLocal(t, near)
	for _, tt := range []struct {
		name string
		to   target.Target
	}{
		{"source", to(farLL+"%eth1", func(t *target.Target) { t.Source = netip.MustParseAddr(nearLL) })},
		{"zone", to(farLL+"%eth1", nil)},
		{"interface", to(farLL, func(t *target.Target) { t.Interface = "eth1" })},
	} {
		t.Run(tt.name, func(t *testing.T) {
			samples, status := measureIn(t, near, 5, tt.to)
			if status.Received != 5 {
				t.Errorf("received %d, want 5", status.Received)
			}
			for i, s := range samples {
				if s.TX != store.TCEgress || s.RX != store.TCIngress {
					t.Errorf("sample %d: tx %s, rx %s", i, s.TX, s.RX)
				}
			}
		})
	}
}

func linkLocal(t *testing.T, ns *netnstest.NS) (address string) {
	t.Helper()
	err := ns.Do(func() error {
		ifi, err := net.InterfaceByName("eth1")
		if err != nil {
			return err
		}
		addrs, err := ifi.Addrs()
		if err != nil {
			return err
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
				address = p.Addr().String()
			}
		}
		return nil
	})
	if err != nil || address == "" {
		t.Fatalf("no link-local address: %v", err)
	}
	return address
}

func TestLoopback(t *testing.T) {
	lab := netnstest.New(t)
	ns := lab.Namespace("one")
	reflectIn(t, ns, nil)
	for _, address := range []string{"localhost", "127.0.0.1", "::1"} {
		samples, status := measureIn(t, ns, 5, to(address, nil))
		if status.Received != 5 {
			t.Errorf("%s: received %d, want 5", address, status.Received)
		}
		for i, s := range samples {
			if s.TX != store.TCEgress || s.RX != store.TCIngress {
				t.Errorf("%s: sample %d: tx %s, rx %s", address, i, s.TX, s.RX)
			}
		}
	}
}

// steps are the ladder's steps that differ in who matches replies.
var steps = map[string]target.Timestamps{
	"bpf": target.TimestampsBPF, "socket": target.TimestampsSocket, "user": target.TimestampsUser,
}

func TestReplyFaultsOverRelay(t *testing.T) {
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			// The fault of each reply, by its place.
			const (
				fine = iota
				late
				tooLate
				twice
				swapped
				earlierRun
				badChecksum
			)
			script := []int{fine, late, fine, tooLate, fine, twice, fine, swapped, fine, fine, earlierRun, fine, badChecksum, fine}
			var (
				mu       sync.Mutex
				recorded []byte // a reply to the first run
				second   bool
				replies  int
				held     []byte
			)
			near, far := relayed(t, func(r *netnstest.Relay, f netnstest.Frame) {
				mu.Lock()
				defer mu.Unlock()
				if f.Direction == netnstest.AToB {
					r.Send(f.Direction, f.Data, 0)
					return
				}
				if !second {
					recorded = bytes.Clone(f.Data)
					r.Send(f.Direction, f.Data, 0)
					return
				}
				fault := fine
				if replies < len(script) {
					fault = script[replies]
				}
				replies++
				switch fault {
				case late:
					r.Send(f.Direction, f.Data, 400*ms)
				case tooLate:
					r.Send(f.Direction, f.Data, 1100*ms)
				case twice:
					r.Send(f.Direction, f.Data, 0)
					r.Send(f.Direction, f.Data, 20*ms)
				case swapped:
					held = f.Data
				case earlierRun:
					r.Send(f.Direction, recorded, 0)
					r.Send(f.Direction, f.Data, 0)
				case badChecksum:
					netnstest.UDPPayload(f.Data)[5] ^= 1
					r.Send(f.Direction, f.Data, 0)
				default:
					r.Send(f.Direction, f.Data, 0)
					if held != nil {
						r.Send(f.Direction, held, 0)
						held = nil
					}
				}
			})
			reflectIn(t, far, nil)
			edit := func(t *target.Target) {
				t.Interval, t.Timeout, t.LateWindow, t.Timestamps = 100*ms, 300*ms, 700*ms, step
			}
			measureIn(t, near, 1, to(farAddr, edit))
			mu.Lock()
			second = true
			mu.Unlock()

			r := begin(t, near, count(uint64(len(script))), to(farAddr, edit))
			samples := r.finish()
			status := r.Paths()[0]
			var want, got []store.Outcome
			for _, fault := range script {
				switch fault {
				case late:
					want = append(want, store.Late)
				case tooLate, badChecksum:
					want = append(want, store.Lost)
				default:
					want = append(want, store.OnTime)
				}
			}
			for _, s := range samples {
				got = append(got, s.Outcome)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("outcomes (-want +got):\n%s", diff)
			}
			// Behind the late reply comes the one after it, behind the held
			// one its neighbour: both make a reordered one.
			counters := status.Counters
			counters.LastReply = 0
			wantCounters := Counters{
				Sent: 14, Received: 12, Late: 1, Lost: 2, Duplicates: 1, Reordered: 2,
				NotSent: map[store.Reason]uint64{},
			}
			if diff := cmp.Diff(wantCounters, counters); diff != "" {
				t.Errorf("counters (-want +got):\n%s", diff)
			}
			for i, s := range samples {
				if s.Outcome == store.Late && (time.Duration(s.RTT) < 400*ms || time.Duration(s.RTT) > 900*ms) {
					t.Errorf("sample %d: late with RTT %s, want about 400ms", i, time.Duration(s.RTT))
				}
				if s.Outcome == store.OnTime && script[i] != swapped && time.Duration(s.RTT) > 300*ms {
					t.Errorf("sample %d: RTT %s: touched by its neighbour's fault", i, time.Duration(s.RTT))
				}
			}
		})
	}
}

func TestFullRingCostsDelayNotSamples(t *testing.T) {
	near, far := link(t)
	reflectIn(t, far, nil)
	r := &run{t: t, done: make(chan error, 1), emitted: make(chan struct{}, 1)}
	fast := to(farAddr, func(t *target.Target) { t.Timeout, t.LateWindow = 100*ms, 100*ms })
	engine, err := New(Config{
		Targets: []target.Target{fast}, AtOnce: true, Count: 10, Namespace: namespace(t, near), Logger: zaptest.NewLogger(t),
		Emit: func(_ int, s store.Sample) { r.samples = append(r.samples, s) },
	})
	if err != nil {
		t.Fatal(err)
	}
	// Nobody reads the ring, so that no record comes.
	engine.net = deaf{engine.net.(*hostNetwork)}
	if err := engine.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c := engine.Paths()[0]; c.Received != 10 || len(r.samples) != 10 {
		t.Errorf("received %d, %d samples; want 10 and 10", c.Received, len(r.samples))
	}
	for i, s := range r.samples {
		if s.Outcome != store.OnTime || s.RX != store.TCIngress || !s.HasDwell || s.TTL != 255 {
			t.Errorf("sample %d is not complete: %+v", i, s)
		}
	}
}

// deaf is a hostNetwork whose ring is not read.
type deaf struct{ *hostNetwork }

func (d deaf) run(ctx context.Context) { _ = d.pollLoop(ctx) }

func TestProbesFasterThanTheRoundTrip(t *testing.T) {
	// Case 27.
	near, far := relayed(t, func(r *netnstest.Relay, f netnstest.Frame) { r.Send(f.Direction, f.Data, 13*ms/2) })
	reflectIn(t, far, nil)
	samples, status := measureIn(t, near, 1000, to(farAddr, func(t *target.Target) { t.Interval = ms }))
	if status.Sent != 1000 || status.Received != 1000 {
		t.Errorf("sent %d, received %d; want 1000 of each", status.Sent, status.Received)
	}
	// On its schedule, but for what was left out when the machine stood still.
	took := time.Duration(samples[len(samples)-1].Mono - samples[0].Mono)
	if want := time.Duration(999+status.Skipped) * ms; took < want-150*ms || took > want+150*ms {
		t.Errorf("1000 probes at 1 ms, with %d moments left out, took %s to send", status.Skipped, took)
	}
}

func TestFirstPacketHasItsDSCP(t *testing.T) {
	// Case 32. The relay also shows that IPv6 probes have a checksum (case 29).
	type seen struct {
		tos      byte
		checksum bool
	}
	var mu sync.Mutex
	var probes, replies []seen
	near, far := relayed(t, func(r *netnstest.Relay, f netnstest.Frame) {
		ip := f.Data[14:]
		s := seen{tos: ip[1], checksum: binary.BigEndian.Uint16(ip[26:]) != 0}
		if ip[0]>>4 == 6 {
			s = seen{tos: byte(binary.BigEndian.Uint16(ip) >> 4), checksum: binary.BigEndian.Uint16(ip[46:]) != 0}
		}
		mu.Lock()
		if f.Direction == netnstest.AToB {
			probes = append(probes, s)
		} else {
			replies = append(replies, s)
		}
		mu.Unlock()
		r.Send(f.Direction, f.Data, 0)
	})
	reflectIn(t, far, nil)
	for _, address := range []string{farAddr, farAddr6} {
		mu.Lock()
		probes, replies = nil, nil
		mu.Unlock()
		_, status := measureIn(t, near, 3, to(address, func(t *target.Target) { t.DSCP = 46 }))
		if status.Received != 3 {
			t.Errorf("%s: received %d, want 3", address, status.Received)
		}
		mu.Lock()
		want := []seen{{0xb8, true}, {0xb8, true}, {0xb8, true}}
		if diff := cmp.Diff(want, probes, cmp.AllowUnexported(seen{})); diff != "" {
			t.Errorf("%s: probes (-want +got):\n%s", address, diff)
		}
		if diff := cmp.Diff(want, replies, cmp.AllowUnexported(seen{})); diff != "" {
			t.Errorf("%s: replies (-want +got):\n%s", address, diff)
		}
		mu.Unlock()
	}
}

func TestFlowStuckInAMiddlebox(t *testing.T) {
	// Case 35: one source port is swallowed for ever.
	var mu sync.Mutex
	var blocked uint16
	near, far := relayed(t, func(r *netnstest.Relay, f netnstest.Frame) {
		mu.Lock()
		defer mu.Unlock()
		if f.Direction == netnstest.AToB {
			port := binary.BigEndian.Uint16(f.Data[34:])
			if blocked == 0 {
				blocked = port
			}
			if port == blocked {
				return
			}
		}
		r.Send(f.Direction, f.Data, 0)
	})
	reflectIn(t, far, nil)
	r := begin(t, near, nil, to(farAddr, func(t *target.Target) {
		t.Interval, t.Timeout, t.LateWindow = 50*ms, 100*ms, 100*ms
	}))
	r.until("answered from a new port", func(s store.Sample) bool { return s.Outcome == store.OnTime })
	if lost := r.Paths()[0].Lost; lost < lossesBeforeNewPort {
		t.Errorf("lost %d before the change, want at least %d", lost, lossesBeforeNewPort)
	}
}

func TestFixedSourcePortIsShared(t *testing.T) {
	near, far := link(t)
	reflectIn(t, far, nil)
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			var targets []target.Target
			for i, address := range []string{farAddr, farAddr6, farAddr} {
				targets = append(targets, to(address, func(t *target.Target) {
					t.Name, t.SourcePort, t.Timestamps = fmt.Sprint("t", i), 5000, step
				}))
			}
			targets[2].SourcePort = 5001
			r := begin(t, near, count(20), targets...)
			r.finish()
			for _, p := range r.Paths() {
				if p.Received != 20 {
					t.Errorf("%s: received %d, not sent %v; want 20", p.Target.Name, p.Received, p.NotSent)
				}
			}
		})
	}
}

func TestFixedSourcePortSurvivesAReopen(t *testing.T) {
	near, far := link(t)
	reflectIn(t, far, nil)
	r := begin(t, near, nil, to(farAddr, func(t *target.Target) { t.Interval, t.SourcePort = 20*ms, 5000 }))
	stamped := func(s store.Sample) bool { return s.TX == store.TCEgress && s.RX == store.TCIngress }
	r.until("stamped", stamped)
	r.mu.Lock()
	before := len(r.samples)
	r.mu.Unlock()
	r.Engine.mu.Lock()
	p := r.Engine.paths[0]
	first := p.flow
	r.Engine.reopen(p)
	r.Engine.changed(p)
	r.Engine.mu.Unlock()
	r.until("stamped on another flow", func(s store.Sample) bool {
		r.Engine.mu.Lock()
		defer r.Engine.mu.Unlock()
		return p.flow != first && stamped(s) && p.flow.inFlight+int(p.counters.Received) > before+20
	})
	for i, s := range r.stop() {
		if s.Outcome != store.OnTime || !stamped(s) {
			t.Errorf("sample %d: %s, tx %s, rx %s", i, s.Outcome, s.TX, s.RX)
		}
	}
}

func TestDeadFarEndIsLoss(t *testing.T) {
	near, far := link(t)
	tests := []struct {
		name    string
		address string
	}{
		{"port unreachable", farAddr}, // nobody reflects
		{"port unreachable IPv6", farAddr6},
		{"no such neighbour", "10.1.0.77"},
	}
	_ = far
	for _, tt := range tests {
		for name, step := range steps {
			t.Run(tt.name+" "+name, func(t *testing.T) {
				_, status := measureIn(t, near, 30, to(tt.address, func(t *target.Target) {
					t.Interval, t.Timeout, t.LateWindow, t.Timestamps = 20*ms, 50*ms, 50*ms, step
				}))
				if status.Lost != 30 || len(status.NotSent) != 0 {
					t.Errorf("lost %d, not sent %v; want 30 lost", status.Lost, status.NotSent)
				}
			})
		}
	}
}

func TestWhyProbesAreNotSent(t *testing.T) {
	near, far := link(t)
	reflectIn(t, far, nil)
	near.Exec(t, "ip", "route", "add", "unreachable", "10.2.0.0/24")
	near.Exec(t, "ip", "route", "add", "blackhole", "10.3.0.0/24")
	tests := []struct {
		name string
		to   target.Target
		want store.Reason
	}{
		{"no route", to("192.0.2.1", nil), store.NoRoute},
		{"unreachable route", to("10.2.0.1", nil), store.NoRoute},
		{"blackhole route", to("10.3.0.1", nil), store.NoRoute},
		{"no route IPv6", to("2001:db8:1::1", nil), store.NoRoute},
		{"missing interface", to(farAddr, func(t *target.Target) { t.Interface = "eth9" }), store.NoInterface},
		{"missing source", to(farAddr, func(t *target.Target) { t.Source = netip.MustParseAddr("10.1.0.99") }), store.NoInterface},
		{"too big", to(farAddr, func(t *target.Target) { t.Size, t.DontFragment = 1473, true }), store.TooBig},
		{"too big IPv6", to(farAddr6, func(t *target.Target) { t.Size, t.DontFragment = 1453, true }), store.TooBig},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			samples, status := measureIn(t, near, 3, tt.to)
			if diff := cmp.Diff(map[store.Reason]uint64{tt.want: 3}, status.NotSent); diff != "" || status.Sent != 0 {
				t.Errorf("sent %d, not sent (-want +got):\n%s", status.Sent, diff)
			}
			for i, s := range samples {
				if s.Outcome != store.NotSent || s.Reason != tt.want {
					t.Errorf("sample %d = %s (%s)", i, s.Outcome, s.Reason)
				}
			}
		})
	}
}

func TestCarrierLostAndBack(t *testing.T) {
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			near, far := link(t)
			reflectIn(t, far, nil)
			r := begin(t, near, nil, to(farAddr, func(t *target.Target) {
				t.Interval, t.Timeout, t.LateWindow, t.Timestamps = 20*ms, 100*ms, 100*ms, step
			}))
			answered := func(s store.Sample) bool { return s.Outcome == store.OnTime }
			r.until("answered", answered)
			far.Exec(t, "ip", "link", "set", "eth1", "down")
			r.until("without carrier", func(s store.Sample) bool { return s.Outcome == store.NotSent && s.Reason == store.NoCarrier })
			far.Exec(t, "ip", "link", "set", "eth1", "up")
			r.until("answered again", answered)
			for reason, n := range r.Paths()[0].NotSent {
				// While the kernel changes queues it says that they are full.
				if reason != store.NoCarrier && (reason != store.NoBuffer || n > 10) {
					t.Errorf("%d not sent for %s too", n, reason)
				}
			}
		})
	}
}

func TestInterfaceComesLater(t *testing.T) {
	lab := netnstest.New(t)
	near, far := lab.Namespace("near"), lab.Namespace("far")
	r := begin(t, near, nil, to(farAddr, func(t *target.Target) {
		t.Interval, t.Timeout, t.LateWindow, t.Interface = 20*ms, 100*ms, 100*ms, "eth1"
	}))
	r.until("without interface", func(s store.Sample) bool { return s.Reason == store.NoInterface })
	lab.Veth(near, "eth1", nearCIDRs, far, "eth1", farCIDRs)
	reflectIn(t, far, nil)
	r.until("answered", func(s store.Sample) bool { return s.Outcome == store.OnTime })
	// The same with the interface made anew.
	near.Exec(t, "ip", "link", "del", "eth1")
	r.until("without interface again", func(s store.Sample) bool {
		return s.Outcome == store.NotSent || s.Reason == store.InterfaceGone
	})
	lab.Veth(near, "eth1", nearCIDRs, far, "eth1", farCIDRs)
	r.until("answered and stamped by the kernel again", func(s store.Sample) bool {
		return s.Outcome == store.OnTime && s.TX == store.TCEgress && s.RX == store.TCIngress
	})
}

func TestErrorQueueIsDrained(t *testing.T) {
	// Case 66, at 1,000 stamped sends a second.
	near, far := link(t)
	reflectIn(t, far, nil)
	samples, status := measureIn(t, near, 4000, to(farAddr, func(t *target.Target) {
		t.Interval, t.Timestamps = ms, target.TimestampsSocket
	}))
	if status.Lost != 0 || status.Received != status.Sent {
		t.Errorf("sent %d, received %d, lost %d", status.Sent, status.Received, status.Lost)
	}
	other := 0
	for _, s := range samples {
		if s.TX != store.Socket || s.RX != store.Socket {
			other++
		}
	}
	if other > 0 {
		t.Errorf("%d of %d samples lack a kernel stamp", other, len(samples))
	}
}

// answerIn answers UDP packets in ns by a function of each; nil: not at all.
func answerIn(t *testing.T, ns *netnstest.NS, answer func([]byte) []byte) {
	t.Helper()
	var conn net.PacketConn
	err := ns.Do(func() (err error) {
		conn, err = net.ListenPacket("udp", ":862")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 2000)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if a := answer(buf[:n]); a != nil {
				conn.WriteTo(a, from)
			}
		}
	}()
	t.Cleanup(func() { conn.Close(); <-done })
}

func TestFarSidesThatAnswerTheirOwnWay(t *testing.T) {
	tests := []struct {
		name    string
		profile string
		answer  func([]byte) []byte
		dwell   bool
		ttl     uint8
	}{
		{"48-byte echo", target.ProfileDoubleZero, func(b []byte) []byte {
			if len(b) != 48 || !bytes.Equal(b[12:], make([]byte, 36)) {
				return nil // as that far side does
			}
			return b
		}, false, 0},
		{"38 bytes", target.ProfileTWAMPLight, shortAnswer, true, 0},
		{"38 bytes to stamp", target.ProfileSTAMP, shortAnswer, true, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			near, far := link(t)
			answerIn(t, far, tt.answer)
			for name, step := range steps {
				samples, status := measureIn(t, near, 5, to(farAddr, func(t *target.Target) { t.Profile, t.Timestamps = tt.profile, step }))
				if status.Received != 5 {
					t.Errorf("%s: received %d, want 5", name, status.Received)
				}
				for i, s := range samples {
					if s.RTT <= 0 || s.HasDwell != tt.dwell || s.RemoteTTL != tt.ttl {
						t.Errorf("%s: sample %d: RTT %d, dwell %t, remote TTL %d", name, i, s.RTT, s.HasDwell, s.RemoteTTL)
					}
				}
			}
		})
	}
}

// shortAnswer is what a reflector sends that knows nothing after the sender's
// error estimate: vector V12's shape, with its own number and T2 = T3.
func shortAnswer(req []byte) []byte {
	if len(req) < 14 {
		return nil
	}
	now := uint64(twamp.FromUnix(twamp.NTP, time.Now().UnixNano()))
	a := binary.BigEndian.AppendUint32(nil, 3)
	a = binary.BigEndian.AppendUint64(a, now)
	a = append(a, 0, 1, 0, 0)
	a = binary.BigEndian.AppendUint64(a, now)
	return append(a, req[:14]...)
}

func TestKernelWithoutRingBuffer(t *testing.T) {
	// Case 60, as a kernel before 5.8 answers.
	near, far := link(t)
	reflectIn(t, far, nil)
	var opened []FlowInfo
	var samples []store.Sample
	log, logged := observer.New(zap.InfoLevel)
	engine, err := New(Config{
		Targets: []target.Target{to(farAddr, nil), func() target.Target { b := to(farAddr6, nil); b.Name = "b"; return b }()},
		AtOnce:  true, Count: 3, Namespace: namespace(t, near), Logger: zap.New(log),
		Emit:   func(_ int, s store.Sample) { samples = append(samples, s) },
		Opened: func(_ int, info FlowInfo, err error) { opened = append(opened, info) },
	})
	if err != nil {
		t.Fatal(err)
	}
	engine.net.(*hostNetwork).ladder.loadDatapath = func(bpf.Config) (*bpf.Datapath, error) {
		return nil, fmt.Errorf("create ring buffer: %w", bpf.ErrNotSupported)
	}
	if err := engine.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, info := range opened {
		if info.Step != StepSocket || !errors.Is(info.Refused, bpf.ErrNotSupported) {
			t.Errorf("opened with step %s, refused %v; want socket, ErrNotSupported", info.Step, info.Refused)
		}
	}
	for i, s := range samples {
		if s.Outcome != store.OnTime || s.TX != store.Socket || s.RX != store.Socket {
			t.Errorf("sample %d: %s, tx %s, rx %s", i, s.Outcome, s.TX, s.RX)
		}
	}
	if len(samples) != 6 || len(opened) != 2 {
		t.Errorf("%d samples on %d flows, want 6 on 2", len(samples), len(opened))
	}
	if n := logged.FilterMessageSnippet("cannot be loaded").Len(); n != 1 {
		t.Errorf("said %d times, want once", n)
	}
}

// unfollowed is a hostNetwork that is told of nothing that happens to it.
type unfollowed struct{ *hostNetwork }

func (u unfollowed) run(ctx context.Context) { u.read(ctx) }

func TestMissingStampIsNoStampOfZero(t *testing.T) {
	// Case 63: the programs are taken away behind the engine's back, first so
	// that they can come back and then for good.
	near, far := link(t)
	reflectIn(t, far, nil)
	r := prepare(t, near, nil, to(farAddr, func(t *target.Target) { t.Interval, t.Attach = 20*ms, target.AttachClsact }))
	r.Engine.net = unfollowed{r.Engine.net.(*hostNetwork)}
	r.start()
	byKernel := func(s store.Sample) bool { return s.TX == store.TCEgress && s.RX == store.TCIngress }
	r.until("stamped by the kernel half", byKernel)
	near.Exec(t, "tc", "qdisc", "del", "dev", "eth1", "clsact")
	away := false
	r.until("stamped by the kernel half again", func(s store.Sample) bool {
		away = away || s.TX == store.User
		return away && byKernel(s)
	})
	near.Exec(t, "sh", "-c", "tc qdisc del dev eth1 clsact && tc qdisc add dev eth1 ingress") // clsact's place
	r.until("stamped on the socket", func(s store.Sample) bool { return s.TX == store.Socket && s.RX == store.Socket })
	between, lost := 0, 0
	for i, s := range r.stop() {
		if s.Outcome == store.Lost {
			lost++ // to make or remove the qdisc, the kernel stops the interface
			continue
		}
		if s.Outcome != store.OnTime || s.RTT <= 0 || time.Duration(s.RTT) > 500*ms {
			t.Errorf("sample %d: %s with RTT %s", i, s.Outcome, time.Duration(s.RTT))
		}
		if s.TX == store.User {
			between++
		}
	}
	if between == 0 || between > 100 || lost > 20 {
		t.Errorf("%d samples were stamped by the process in between, %d lost; want a few of each", between, lost)
	}
}

// Case 95: a far end that lets little through gets the probes spread over the interval, so that most pass; sent at once nearly all would be
// lost.
func TestPolicedFarEnd(t *testing.T) {
	near, far := link(t)
	reflectIn(t, far, nil) // on the socket: the kernel half answers before packets come to where they are dropped here
	far.Exec(t, "nft", `table netdev police {
		chain ingress {
			type filter hook ingress device "eth1" priority 0
			udp dport 862 limit rate over 10/second burst 2 packets drop
		}
	}`)
	const links, interval = 10, 2000 * ms
	var targets []target.Target
	for i := range links {
		targets = append(targets, to(farAddr, func(t *target.Target) { t.Name, t.Interval = fmt.Sprint("peer", i), interval }))
	}
	r := begin(t, near, func(c *Config) { c.AtOnce = false }, targets...)
	sums := func() (answered, lost uint64) {
		for _, p := range r.Paths() {
			answered, lost = answered+p.Received, lost+p.Lost
		}
		return answered, lost
	}
	await(t, "the outcome of 50 probes", func() bool { answered, lost := sums(); return answered+lost >= 50 })
	answered, lost := sums()
	if answered < 2*lost {
		t.Errorf("%d answered, %d lost; want most answered", answered, lost)
	}
}

// An interface that the target names has a route to its neighbours also when nothing here has an address, but nobody could answer what is
// sent from none.
func TestWithoutAnAddressNothingIsSent(t *testing.T) {
	near, far := link(t)
	reflectIn(t, far, nil)
	near.Exec(t, "ip", "addr", "del", nearCIDRs[0], "dev", "eth1")
	e := begin(t, near, count(3), to(farAddr, func(t *target.Target) { t.Interface = "eth1" }))
	for _, s := range e.finish() {
		if s.Outcome != store.NotSent || s.Reason != store.NoInterface {
			t.Errorf("%s (%s), want not_sent (no_interface)", s.Outcome, s.Reason)
		}
	}
}
