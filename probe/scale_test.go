// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/bpf"
	"github.com/xtwamp/xtwamp/netns/netnstest"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
)

// manyTargets are targets of their own names at one address.
func manyTargets(n int, interval time.Duration) []target.Target {
	targets := make([]target.Target, n)
	for i := range targets {
		targets[i] = simTarget(fmt.Sprintf("t%05d", i), interval)
	}
	return targets
}

func TestTenThousandPaths(t *testing.T) {
	// Of the probes of each path the fifth is answered late, the sixth never,
	// the seventh twice.
	bubble(t, func(t *testing.T) {
		const paths, probes = 10_000, 10
		targets := manyTargets(paths, time.Second)
		var samples [paths][]store.Outcome
		s := simulate(t, func(c *Config) {
			c.AtOnce, c.Count, c.Device, c.Logger = false, probes, "d", zap.NewNop()
			c.Emit = func(path int, m store.Sample) { samples[path] = append(samples[path], m.Outcome) }
		}, targets...)
		s.net.reach = func(p *simProbe) {
			switch p.nth {
			case 4:
				p.answer(1500 * ms)
			case 5:
			case 6:
				p.answer(ms)
				p.answer(2 * ms)
			default:
				p.answer(30 * ms)
			}
		}
		s.measure(t)
		want := make([]store.Outcome, probes)
		want[4], want[5] = store.Late, store.Lost
		for path, got := range samples {
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("path %d (-want +got):\n%s", path, diff)
			}
		}
		for _, p := range s.Paths() {
			if p.Sent != probes || p.Received != probes-1 || p.Late != 1 || p.Lost != 1 || p.InFlight != 0 || p.Duplicates != 1 || p.Skipped != 0 {
				t.Fatalf("path %s: %+v", p.Target.Name, p)
			}
		}
	})
}

func TestSlotsFromAThousandProbesPerSecond(t *testing.T) {
	for _, c := range []struct {
		name  string
		paths int
		slots bool
	}{
		{"below", slotsFrom - 1, false},
		{"from there on", slotsFrom, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := simulate(t, func(c *Config) { c.AtOnce, c.Device, c.Logger = false, "d", zap.NewNop() },
					manyTargets(c.paths, time.Second)...)
				moments := make(map[int64]bool) // at which probes leave
				late, early, inSlot := 0, 0, 0
				s.net.reach = func(p *simProbe) {
					moments[p.sent] = true
					ph := phase("d", p.path.target.Name, time.Second)
					switch behind := (p.sent + s.clock.offset().ns - int64(ph)) % int64(time.Second); {
					case behind > int64(slot):
						early++ // or far too late
					case behind > 0:
						late++
					}
					if p.sent%int64(slot) == 0 {
						inSlot++
					}
					p.answer(30 * ms)
				}
				const seconds = 10
				s.measureFor(t, seconds*time.Second)
				sent := 0
				for _, p := range s.Paths() {
					sent += int(p.Sent)
				}
				if most := c.paths * seconds; sent < most-c.paths || sent > most || early > 0 {
					t.Errorf("%d probes sent, %d of them not at their time; want some %d and none", sent, early, most)
				}
				switch woken := len(moments); {
				case c.slots && (woken > seconds*100+1 || inSlot != sent || s.beats > 2*woken+2*c.paths):
					t.Errorf("%d probes left at %d moments, %d of them at the end of a slot; the scheduler woke %d times", sent, woken, inSlot, s.beats)
				case !c.slots && late > 0:
					t.Errorf("%d of %d probes left late", late, sent)
				}
				if got := newLadder(s.Engine, nil).config().Batch; got != c.slots {
					t.Errorf("the kernel half works in batches: %t", got)
				}
			})
		})
	}
}

func TestKernelHalfIsSizedByTheRate(t *testing.T) {
	for _, c := range []struct {
		paths    int
		interval time.Duration
		ring     int
	}{
		{20, 10 * time.Second, 64 << 10},
		{10_000, time.Second, 10_000 * 4 * bpf.EventBytes},
		{10_000, ms, 16 << 20},
	} {
		e := newEngine(Config{Targets: manyTargets(c.paths, c.interval)}, newSystemClock())
		if err := e.SetTargets(e.cfg.Targets); err != nil {
			t.Fatal(err)
		}
		got := newLadder(e, nil).config()
		least := c.paths * 2 * int(4*time.Second/c.interval)
		if got.RingBytes != c.ring || got.Paths < 2*c.paths || got.Slots < least {
			t.Errorf("%d paths each %s: %+v; want a ring of %d bytes, room for twice the paths, and %d slots",
				c.paths, c.interval, got, c.ring, least)
		}
	}
}

// manyFar gives far addresses of its own, and returns targets there.
func manyFar(t *testing.T, near, far *netnstest.NS, n int, edit func(*target.Target)) []target.Target {
	t.Helper()
	var batch strings.Builder
	targets := make([]target.Target, n)
	for i := range targets {
		address := fmt.Sprintf("10.9.%d.%d", i/250, 1+i%250)
		fmt.Fprintf(&batch, "address add %s/32 dev lo\n", address)
		targets[i] = to(address, edit)
		targets[i].Name = fmt.Sprintf("t%05d", i)
	}
	cmd := exec.Command("ip", "-n", far.Name, "-batch", "-")
	cmd.Stdin = strings.NewReader(batch.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("add addresses: %v\n%s", err, out)
	}
	near.Exec(t, "ip", "route", "add", "10.9.0.0/16", "via", farAddr)
	return targets
}

func TestThousandsOfPathsOnVeth(t *testing.T) {
	near, far := link(t)
	const paths, probes = 2000, 3
	targets := manyFar(t, near, far, paths, func(t *target.Target) {
		t.Interval, t.Timeout, t.LateWindow = time.Second, time.Second, 3*time.Second
	})
	reflectIn(t, far, func(c *ReflectorConfig) { c.Mode, c.Logger = ReflectAuto, zap.NewNop() })
	r := begin(t, near, func(c *Config) { c.AtOnce, c.Logger = false, zap.NewNop() }, targets...)
	for path, limit := 0, time.After(3*time.Minute); path < paths; {
		select {
		case <-time.After(100 * ms): // a look at so many paths holds the engine up
		case <-limit:
			t.Fatalf("path %d has no %d replies after three minutes", path, probes)
		}
		for all := r.Paths(); path < paths && all[path].Received >= probes; path++ {
		}
	}
	samples := r.stop()
	var sent, full, notSent uint64
	for _, s := range samples {
		switch {
		case s.Outcome == store.NotSent: // before the path was open
			notSent++
		case s.Outcome == store.OnTime && s.TX == store.TCEgress && s.RX == store.TCIngress && s.HasDwell && s.RemoteTTL == 255:
			full++
		}
	}
	for _, p := range r.Paths() {
		sent += p.Sent
		if p.Sent != p.Received || p.InFlight != 0 || p.Duplicates != 0 {
			t.Errorf("path %s: %+v", p.Target.Name, p.Counters)
		}
	}
	if full != sent || sent+notSent != uint64(len(samples)) {
		t.Errorf("%d probes sent, %d not; %d samples, %d of them with all that a reply says", sent, notSent, len(samples), full)
	}
}

// unreadRing is the kernel's network but for its ring, which nobody reads.
type unreadRing struct{ *hostNetwork }

func (n unreadRing) run(ctx context.Context) {
	keep(ctx, n.engine.log, "reading the sockets", n.pollLoop)
}
func (n unreadRing) look() error { return nil }

func TestFullRingInBatchesCostsNoSample(t *testing.T) {
	near, far := link(t)
	const paths, probes = 200, 5
	targets := manyFar(t, near, far, paths, func(t *target.Target) { t.Interval = 100 * ms })
	reflectIn(t, far, func(c *ReflectorConfig) { c.Mode, c.Logger = ReflectAuto, zap.NewNop() })
	var samples []store.Sample
	var datapath *bpf.Datapath
	var full uint64 // times
	engine, err := New(Config{
		Targets: targets, Count: probes, Namespace: namespace(t, near), Logger: zap.NewNop(),
		Emit: func(_ int, s store.Sample) {
			if samples = append(samples, s); len(samples) == paths*probes {
				counters, err := datapath.Counters()
				if err != nil {
					t.Error(err)
				}
				full = counters[bpf.VerdictRingFull]
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	network := engine.net.(*hostNetwork)
	network.ladder.loadDatapath = func(c bpf.Config) (*bpf.Datapath, error) {
		if !c.Batch {
			t.Error("the kernel half does not work in batches")
		}
		c.RingBytes = 1
		var err error
		datapath, err = bpf.Load(c)
		return datapath, err
	}
	engine.net = unreadRing{network}
	if err := engine.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if full == 0 {
		t.Error("the ring was never full")
	}
	answered := 0
	for _, s := range samples {
		if s.Outcome == store.OnTime && s.TX == store.TCEgress && s.RX == store.TCIngress {
			answered++
		}
	}
	if len(samples) != paths*probes || answered != len(samples) {
		t.Errorf("%d samples, %d of them answered; want %d", len(samples), answered, paths*probes)
	}
}

// While something is being attached, which takes as long as the kernel is busy with interfaces, probes go on leaving.
func TestSchedulerWaitsForNoAttachment(t *testing.T) {
	n := newHostNetwork(newEngine(Config{}, newSystemClock()), nil, 0)
	n.ladder.mu.Lock()
	defer n.ladder.mu.Unlock()
	looked := make(chan error, 1)
	go func() { looked <- n.look() }()
	select {
	case err := <-looked:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the scheduler waits")
	}
}
