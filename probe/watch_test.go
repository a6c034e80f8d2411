// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/bpf"
	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/netns/netnstest"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
)

// leavesNothing checks, when all else of the test is over, that the process has
// no more kernel objects, namespaces and sockets than now, that no thread is left
// in a namespace, and that there are not many more of them.
func leavesNothing(t *testing.T) {
	t.Helper()
	netnstest.RequireRoot(t)
	before, threads := held(t), len(threadsAt(t))
	t.Cleanup(func() {
		var after string
		for late := time.After(10 * time.Second); ; {
			if after = held(t); after == before {
				break
			}
			select {
			case <-late:
				t.Errorf("held before: %s; after: %s", before, after)
				return
			case <-time.After(10 * ms):
			}
		}
		at := threadsAt(t)
		if homes := slices.Compact(slices.Sorted(slices.Values(at))); len(homes) != 1 {
			t.Errorf("threads are in the namespaces %v", homes)
		}
		if len(at) > threads+16 {
			t.Errorf("%d threads, %d before", len(at), threads)
		}
	})
}

// held counts what of the kernel the process has open, by kind.
func held(t *testing.T) string {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	kinds := make(map[string]int)
	for _, fd := range open {
		to, err := os.Readlink(filepath.Join("/proc/self/fd", fd.Name()))
		if err != nil {
			continue // that of the folder itself
		}
		for _, kind := range []string{"bpf-map", "bpf-prog", "bpf_link", "bpf-link", "net:", "socket:"} {
			if strings.Contains(to, kind) {
				kinds[kind]++
			}
		}
	}
	return fmt.Sprint(kinds)
}

// threadsAt is the network namespace of each thread.
func threadsAt(t *testing.T) (at []string) {
	t.Helper()
	threads, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		if ns, err := os.Readlink(thread); err == nil { // else it has ended
			at = append(at, ns)
		}
	}
	return at
}

// tapes are the samples of each path.
type tapes struct {
	*run
	t       *testing.T
	names   []string
	stalls  *netnstest.Stalls
	mu      sync.Mutex
	samples map[string][]store.Sample
}

func record(t *testing.T, ns *netnstest.NS, edit func(*Config), targets ...target.Target) *tapes {
	t.Helper()
	r := &tapes{t: t, stalls: netnstest.WatchStalls(t), samples: make(map[string][]store.Sample)}
	for _, target := range targets {
		r.names = append(r.names, target.Name)
	}
	r.run = begin(t, ns, func(c *Config) {
		if edit != nil {
			edit(c)
		}
		c.Emit = func(path int, s store.Sample) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.samples[r.names[path]] = append(r.samples[r.names[path]], s)
		}
	}, targets...)
	return r
}

// since are the samples of a path that were due at or after a moment.
func (r *tapes) since(name string, moment int64) []store.Sample {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.samples[name]
	i := slices.IndexFunc(all, func(s store.Sample) bool { return s.Mono >= moment })
	if i < 0 {
		return nil
	}
	return all[i:]
}

// good checks that a probe was answered, and stamped by the kernel half. One that was under way while the machine stood still says nothing:
// it may have been answered only when nobody waited for it any more.
func (r *tapes) good(what string, s store.Sample) {
	r.t.Helper()
	if s.Outcome == store.OnTime && s.TX == store.TCEgress && s.RX == store.TCIngress {
		return
	}
	const around = int64(2 * time.Second) // what the engine had to do about a change may have waited too
	if still := r.stalls.Within(s.Mono-around, s.Mono+around); still > 0 {
		r.t.Logf("%s: %s (%s), when the machine stood still for %s", what, s.Outcome, s.Reason, still)
		return
	}
	r.t.Errorf("%s: %s (%s), tx %s, rx %s; want it answered, and stamped by the kernel half", what, s.Outcome, s.Reason, s.TX, s.RX)
}

func now() int64 { return newSystemClock().mono() }

// resumes checks that each path, of what is due after a moment, has its second
// probe answered and stamped by the kernel half, and the next ones as well.
func (r *tapes) resumes(what string, moment int64, names ...string) {
	r.t.Helper()
	const enough = 4
	for _, name := range names {
		await(r.t, fmt.Sprintf("%d samples of %s after: %s", enough, name, what), func() bool { return len(r.since(name, moment)) >= enough })
		for i, s := range r.since(name, moment)[1:enough] {
			r.good(fmt.Sprintf("%s: probe %d of %s", what, i+2, name), s)
		}
	}
}

// stops waits until the path has a probe that was not sent for that reason.
func (r *tapes) stops(what string, moment int64, name string, reason store.Reason) {
	r.t.Helper()
	await(r.t, fmt.Sprintf("%s not sent for %s: %s", name, reason, what), func() bool {
		return slices.ContainsFunc(r.since(name, moment), func(s store.Sample) bool {
			return s.Outcome == store.NotSent && s.Reason == reason
		})
	})
}

// bpfAttached attaches the programs of another process, as it seems, to an
// interface.
func bpfAttached(t *testing.T, ns *netnstest.NS, name string, hook bpf.Hook) *bpf.Attachment {
	t.Helper()
	d, err := bpf.Load(bpf.Config{Slots: 1, Paths: 1, RingBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	n := namespace(t, ns)
	var a *bpf.Attachment
	err = n.Do(func() error {
		link, err := netns.LinkByName(name)
		if err != nil {
			return err
		}
		a, err = d.Attach(bpf.Device{Index: link.Index, Name: name, LinkHeader: 14}, hook, filters{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = n.Do(a.Close) // the filter may have gone with its interface
		d.Close()
	})
	return a
}

// The interface of one of two measured links goes through all that an interface
// goes through.
func TestInterfacesThatComeAndGo(t *testing.T) {
	for _, attach := range []target.Attach{target.AttachAuto, target.AttachClsact} {
		t.Run(string(attach), func(t *testing.T) { testInterfacesThatComeAndGo(t, attach) })
	}
}

func testInterfacesThatComeAndGo(t *testing.T, attach target.Attach) {
	leavesNothing(t)
	lab := netnstest.New(t)
	near, far, elsewhere := lab.Namespace("near"), lab.Namespace("far"), lab.Namespace("elsewhere")
	wire := func() { lab.Veth(near, "eth1", nearCIDRs, far, "eth1", farCIDRs) }
	wire()
	lab.Veth(near, "eth2", []string{"10.2.0.1/24"}, far, "eth2", []string{"10.2.0.2/24"})
	tc := " " + bestTC().String()
	reflector := kernelReflectIn(t, far, nil, "eth1"+tc, "eth2"+tc, "lo"+tc)

	named := func(name, address string, edit func(*target.Target)) target.Target {
		return to(address, func(t *target.Target) {
			t.Name, t.Interval, t.Attach = name, 500*ms, attach
			if edit != nil {
				edit(t)
			}
		})
	}
	r := record(t, near, nil,
		named("named", farAddr, func(t *target.Target) { t.Interface = "eth1" }),
		named("routed", farAddr, nil), named("six", farAddr6, nil),
		named("other", "10.2.0.2", nil))
	link1 := []string{"named", "routed", "six"}
	r.resumes("start", now(), append(link1, "other")...)
	start := now()
	before := r.Paths()[3]

	step := func(what string, change func()) {
		t.Helper()
		change()
		forgetNeighbours(t, near, "eth1")
		r.resumes(what, now(), link1...)
		awaitAttached(t, reflector, what, "eth1"+tc, "eth2"+tc, "lo"+tc)
		answered := kernelResults(t, reflector)["eth1 answered"]
		await(t, "answers by the kernel: "+what, func() bool { return kernelResults(t, reflector)["eth1 answered"] >= answered+3 })
	}
	gone := func(what string, moment int64) {
		t.Helper()
		r.stops(what, moment, "named", store.NoInterface)
		r.stops(what, moment, "routed", store.NoRoute)
		if at := namesOf(r.Stats().Attachments); slices.Contains(at, "eth1") {
			t.Errorf("%s: attached at %v", what, at)
		}
	}
	rename := func(ns *netnstest.NS, from, to string, cidrs []string) {
		t.Helper()
		ns.Exec(t, "ip", "link", "set", from, "down") // before Linux 6.2 it has to be
		ns.Exec(t, "ip", "link", "set", from, "name", to)
		ns.Exec(t, "ip", "link", "set", to, "up")
		ns.Exec(t, "ip", "addr", "replace", cidrs[1], "dev", to, "nodad")
		awaitCarrier(t, ns, to)
	}
	back := func(to *netnstest.NS, cidrs []string) {
		t.Helper()
		elsewhere.Exec(t, "ip", "link", "set", "eth1", "netns", to.Name)
		to.Exec(t, "ip", "link", "set", "eth1", "up")
		to.Exec(t, "ip", "addr", "add", cidrs[0], "dev", "eth1")
		to.Exec(t, "ip", "addr", "add", cidrs[1], "dev", "eth1", "nodad")
		awaitCarrier(t, to, "eth1")
	}

	// Case 53, and case 97.
	step("deleted and made anew at once", func() {
		near.Exec(t, "ip", "link", "del", "eth1")
		wire()
	})
	step("deleted and made anew later", func() {
		moment := now()
		near.Exec(t, "ip", "link", "del", "eth1")
		gone("deleted", moment)
		wire()
	})
	step("renamed and back", func() {
		moment := now()
		rename(near, "eth1", "lan1", nearCIDRs)
		r.stops("renamed", moment, "named", store.NoInterface)
		forgetNeighbours(t, near, "lan1")
		r.resumes("renamed", now(), "routed", "six")
		rename(near, "lan1", "eth1", nearCIDRs)
	})
	step("moved and back at once", func() {
		near.Exec(t, "ip", "link", "set", "eth1", "netns", elsewhere.Name)
		back(near, nearCIDRs)
	})
	step("moved and back later", func() {
		moment := now()
		near.Exec(t, "ip", "link", "set", "eth1", "netns", elsewhere.Name)
		gone("moved", moment)
		nothingAttached(t, elsewhere, "eth1")
		back(near, nearCIDRs)
	})
	step("the far end renamed and back", func() {
		rename(far, "eth1", "lan1", farCIDRs)
		awaitAttached(t, reflector, "renamed", "eth2"+tc, "lan1"+tc, "lo"+tc)
		rename(far, "lan1", "eth1", farCIDRs)
	})
	step("the far end moved and back", func() {
		far.Exec(t, "ip", "link", "set", "eth1", "netns", elsewhere.Name)
		awaitAttached(t, reflector, "moved", "eth2"+tc, "lo"+tc)
		nothingAttached(t, elsewhere, "eth1")
		back(far, farCIDRs)
	})
	step("the far end without addresses for a while", func() {
		for _, cidr := range farCIDRs {
			far.Exec(t, "ip", "addr", "del", cidr, "dev", "eth1")
		}
		far.Exec(t, "ip", "addr", "add", farCIDRs[0], "dev", "eth1")
		far.Exec(t, "ip", "addr", "add", farCIDRs[1], "dev", "eth1", "nodad")
	})
	step("given other addresses", func() {
		near.Exec(t, "ip", "addr", "del", nearCIDRs[0], "dev", "eth1")
		near.Exec(t, "ip", "addr", "del", nearCIDRs[1], "dev", "eth1")
		near.Exec(t, "ip", "addr", "add", "10.1.0.3/24", "dev", "eth1")
		near.Exec(t, "ip", "addr", "add", "2001:db8::3/64", "dev", "eth1", "nodad")
	})
	for _, p := range r.Paths()[:3] {
		if local := p.Flow.Local.Addr().String(); local != "10.1.0.3" && local != "2001:db8::3" {
			t.Errorf("%s is probed from %s", p.Target.Name, local)
		}
	}
	step("carrier flapped", func() {
		batch := exec.Command("ip", "-n", far.Name, "-batch", "-")
		batch.Stdin = strings.NewReader(strings.Repeat("link set eth1 down\nlink set eth1 up\n", 50))
		if out, err := batch.CombinedOutput(); err != nil {
			t.Fatalf("flap: %v: %s", err, out)
		}
		far.Exec(t, "ip", "addr", "replace", farCIDRs[1], "dev", "eth1", "nodad")
		awaitCarrier(t, near, "eth1")
		awaitCarrier(t, far, "eth1")
	})
	hooks := []bpf.Hook{bpf.Clsact, bpf.XDP}
	if bestTC() == StepTCX {
		hooks = append(hooks, bpf.TCX)
	}
	var foreign []*bpf.Attachment
	for _, hook := range hooks {
		step("with a program of others at "+hook.String(), func() { foreign = append(foreign, bpfAttached(t, near, "eth1", hook)) })
	}
	for i, a := range foreign {
		if err := namespace(t, near).Do(func() error {
			if !a.Alive() {
				return fmt.Errorf("the program of others at %s is gone", hooks[i])
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	step("made anew with a program of others there first", func() {
		near.Exec(t, "ip", "link", "del", "eth1")
		wire()
		for _, hook := range hooks {
			bpfAttached(t, near, "eth1", hook)
		}
	})

	r.stop()
	for _, s := range r.since("other", start) {
		r.good("on the other link", s)
	}
	if p := r.Paths()[3]; p.Sent <= before.Sent || p.Sent != p.Received+p.Lost || p.Duplicates != 0 {
		t.Errorf("on the other link: %+v, earlier %+v", p.Counters, before.Counters)
	}
	for _, name := range link1 {
		for _, s := range r.since(name, start) {
			if s.Outcome == store.Unknown && s.Reason != store.InterfaceGone {
				t.Errorf("%s: unknown for %s", name, s.Reason)
			}
		}
	}
	nothingAttached(t, near, "eth2")
}

// forgetNeighbours lets the next probe ask for its neighbour. One that asked
// before the neighbour had its address would have the kernel wait for a second.
func forgetNeighbours(t *testing.T, ns *netnstest.NS, name string) {
	t.Helper()
	ns.Exec(t, "ip", "neigh", "flush", "dev", name)
}

func namesOf(attachments []Attachment) (names []string) {
	for _, a := range attachments {
		names = append(names, a.Interface)
	}
	return names
}

func awaitAttached(t *testing.T, r *Reflector, what string, want ...string) {
	t.Helper()
	await(t, fmt.Sprintf("reflector at %v: %s", want, what), func() bool { return slices.Equal(attachedAt(r), want) })
}

func awaitCarrier(t *testing.T, ns *netnstest.NS, name string) {
	t.Helper()
	await(t, "carrier of "+name, func() (carrier bool) {
		err := ns.Do(func() error {
			link, err := netns.LinkByName(name)
			carrier = link.Carrier
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return carrier
	})
}

// nothingAttached checks that none of our programs is at an interface where
// netlink shows them.
func nothingAttached(t *testing.T, ns *netnstest.NS, name string) {
	t.Helper()
	for _, direction := range []string{"ingress", "egress"} {
		if out := ns.Exec(t, "tc", "filter", "show", "dev", name, direction); strings.Contains(out, "xtwamp") {
			t.Errorf("left at %s of %s: %s", direction, name, out)
		}
	}
	if out := ns.Exec(t, "ip", "link", "show", "dev", name); strings.Contains(out, "xdp") {
		t.Errorf("left at %s: %s", name, out)
	}
}

// Thousands of paths stop and go on with their interface, which is one event.
func TestThousandsOfPathsFollowTheirInterface(t *testing.T) {
	lab := netnstest.New(t)
	near, far := lab.Namespace("near"), lab.Namespace("far")
	wire := func() { lab.Veth(near, "eth1", nearCIDRs, far, "eth1", farCIDRs) }
	wire()
	lab.Veth(near, "eth2", []string{"10.2.0.1/24"}, far, "eth2", []string{"10.2.0.2/24"})
	const paths = 2000
	slow := func(t *target.Target) { t.Interval, t.Timeout, t.LateWindow = time.Second, time.Second, time.Second }
	targets := manyFar(t, near, far, paths, slow)
	other := to("10.2.0.2", slow)
	other.Name = "other"
	reflectIn(t, far, func(c *ReflectorConfig) { c.Mode, c.Logger = ReflectAuto, zap.NewNop() })
	core, logged := observer.New(zap.WarnLevel)
	r := record(t, near, func(c *Config) { c.AtOnce, c.Logger = false, zap.New(core) }, append(targets, other)...)
	all := func(what string, moment int64, want func([]store.Sample) bool) {
		t.Helper()
		await(t, what+" on all paths", func() bool {
			for _, target := range targets {
				if !want(r.since(target.Name, moment)) {
					return false
				}
			}
			return true
		})
	}
	answered := func(s store.Sample) bool { return s.Outcome == store.OnTime && s.TX == store.TCEgress }
	all("replies", 0, func(s []store.Sample) bool { return slices.ContainsFunc(s, answered) })
	begun, moment := now(), now()
	near.Exec(t, "ip", "link", "del", "eth1")
	all("none sent", moment, func(s []store.Sample) bool {
		return slices.ContainsFunc(s, func(s store.Sample) bool { return s.Outcome == store.NotSent && s.Reason == store.NoRoute })
	})
	wire()
	near.Exec(t, "ip", "route", "add", "10.9.0.0/16", "via", farAddr)
	moment = now()
	// When, depends on how fast this machine opens that many.
	all("replies again", moment, func(s []store.Sample) bool { return slices.ContainsFunc(s, answered) })
	r.stop()
	for _, s := range r.since("other", begun) {
		if !answered(s) {
			t.Errorf("on the other link: %s (%s), tx %s", s.Outcome, s.Reason, s.TX)
		}
	}
	if lines := logged.All(); len(lines) != 1 || lines[0].ContextMap()["paths"] != int64(paths) || lines[0].ContextMap()["interface"] != "eth1" {
		t.Errorf("%d lines: %v; want one, of eth1 and %d paths", len(lines), lines[:min(len(lines), 3)], paths)
	}
}

// A probe may find the routes of an interface gone before anything has told of
// the interface: that is its trouble too, not the path's alone.
func TestRoutesThatGoBeforeTheirInterface(t *testing.T) {
	near, far := link(t)
	reflectIn(t, far, nil)
	r := begin(t, near, nil, to(farAddr, nil))
	r.until("answered", func(s store.Sample) bool { return s.Outcome == store.OnTime })
	cause := func() string {
		d := r.Engine.paths[0].flow.flow.(*hostFlow).refusal(unix.ENETUNREACH)
		if d.cause == nil {
			return ""
		}
		return *d.cause
	}
	r.Engine.mu.Lock() // so that it hears of nothing
	before := cause()
	near.Exec(t, "ip", "link", "set", "eth1", "down")
	after := cause()
	r.Engine.mu.Unlock()
	if before != "" || after != "eth1" {
		t.Errorf("caused by %q while eth1 is up, by %q while it is down", before, after)
	}
	r.stop()
}

// What somebody has taken away is noticed when the engine looks around, as it
// does each 30 s, and not by replies that pass.
func TestFiltersThatSomebodyRemoved(t *testing.T) {
	near, far := link(t)
	reflectIn(t, far, nil)
	r := record(t, near, nil, to(farAddr, func(t *target.Target) { t.Interval, t.Attach = 500*ms, target.AttachClsact }))
	r.resumes("start", now(), "a")
	near.Exec(t, "tc", "filter", "del", "dev", "eth1", "ingress")
	r.net.(*hostNetwork).changed(netns.Change{Links: true})
	r.resumes("removed", now(), "a")
}

// A namespace that is not there has one line, however many paths want it.
func TestMissingNamespaceHasOneLine(t *testing.T) {
	place, err := netns.ParsePlace(fmt.Sprintf("xtwt%d-missing", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	const paths = 50
	core, logged := observer.New(zap.InfoLevel)
	samples := make(chan store.Sample, 1000)
	e, err := New(Config{
		Targets: manyTargets(paths, 100*ms), Place: place, AtOnce: true, Count: 3, Logger: zap.New(core),
		Emit: func(_ int, s store.Sample) { samples <- s },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(samples)
	for s := range samples {
		if s.Outcome != store.NotSent || s.Reason != store.NoInterface {
			t.Fatalf("%s for %s", s.Outcome, s.Reason)
		}
	}
	if lines := logged.All(); len(lines) != 1 || lines[0].ContextMap()["paths"] != int64(paths) {
		t.Errorf("%d lines: %v; want one, of %d paths", len(lines), lines[:min(len(lines), 3)], paths)
	}
}

// Of two thousand paths those of the one interface that changes are opened anew,
// and those to where routes changed are looked at, each just ahead of its next
// probe.
func TestChangesConcernTheirPathsAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const paths, interval = 2000, 10 * time.Second
		targets := manyTargets(paths, interval)
		for i := range targets {
			targets[i].Interface = fmt.Sprintf("eth%d", i%50)
			targets[i].Address = fmt.Sprintf("192.0.2.%d", i%100)
		}
		samples := make([][]store.Sample, paths)
		s := simulate(t, func(c *Config) {
			c.AtOnce, c.Device, c.Logger = false, "d", zap.NewNop()
			c.Emit = func(path int, m store.Sample) { samples[path] = append(samples[path], m) }
		}, targets...)
		s.net.reach = func(p *simProbe) { p.answer(ms) }
		s.net.opens = func(req openRequest) (netip.Addr, error) { return netip.MustParseAddr(req.target.Address), nil }
		s.net.leavesBy = func(req openRequest) string { return req.target.Interface }
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		time.Sleep(2*interval + interval/2)

		tell := func(lost func(flow) bool, rerouted func(netip.Addr) bool) []openRequest {
			s.mu.Lock()
			s.net.opened = nil
			for range 3 { // more of the same costs nothing
				s.waysChanged(lost, rerouted)
			}
			s.mu.Unlock()
			time.Sleep(interval + reopenAhead)
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.net.opened
		}
		none := func(netip.Addr) bool { return false }
		opened := tell(func(f flow) bool { return f.(*simFlow).path.flow.Interface == "eth7" }, none)
		for _, req := range opened {
			if req.target.Interface != "eth7" || req.refresh {
				t.Errorf("%s of %s was opened; refresh: %t", req.target.Name, req.target.Interface, req.refresh)
			}
		}
		looked := tell(func(flow) bool { return false }, func(a netip.Addr) bool { return a == netip.MustParseAddr("192.0.2.33") })
		for _, req := range looked {
			if req.target.Address != "192.0.2.33" || !req.refresh || !req.wayOnly {
				t.Errorf("%s to %s was looked at; refresh: %t", req.target.Name, req.target.Address, req.refresh)
			}
		}
		if len(opened) != paths/50 || len(looked) != paths/100 {
			t.Errorf("%d paths were opened anew and %d looked at, want %d and %d", len(opened), len(looked), paths/50, paths/100)
		}
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		for i, p := range s.Paths() {
			if p.Sent != p.Received || len(p.NotSent) != 0 || uint64(len(samples[i])) != p.Sent {
				t.Errorf("%s: %+v, %d samples", p.Target.Name, p.Counters, len(samples[i]))
			}
		}
	})
}

// Routes that never rest do not have a name looked up more often, nor less.
func TestRoutesThatNeverRest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		named := simTarget("a", 100*ms)
		named.Address = "far.example"
		s := simulate(t, nil, named)
		s.net.reach = func(p *simProbe) { p.answer(ms) }
		names, ways := 0, 0
		s.net.opens = func(req openRequest) (netip.Addr, error) {
			if req.refresh && req.wayOnly {
				ways++
			} else {
				names++
			}
			return netip.MustParseAddr("192.0.2.1"), nil
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		const minutes = 10
		for range minutes * 60 * 20 {
			time.Sleep(50 * ms)
			s.mu.Lock()
			s.waysChanged(func(flow) bool { return false }, func(netip.Addr) bool { return true })
			s.mu.Unlock()
		}
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if names < minutes || names > minutes+2 {
			t.Errorf("the name was looked up %d times in %d minutes", names, minutes)
		}
		if most := minutes * 60 * 10; ways < most/2 || ways > most {
			t.Errorf("the way was looked at %d times, want about once for each of %d probes", ways, most)
		}
	})
}

// What keeps many paths from being used has one line, and so has its end.
func TestTroubleInCommonHasOneLine(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const paths = 200
		targets := manyTargets(paths, 10*time.Second)
		for i := range targets {
			targets[i].Interface = fmt.Sprintf("eth%d", i%2)
		}
		core, logged := observer.New(zap.InfoLevel)
		s := simulate(t, func(c *Config) {
			c.Logger = zap.New(core)
			c.Emit = func(int, store.Sample) {}
		}, targets...)
		s.net.leavesBy = func(req openRequest) string { return req.target.Interface }
		s.net.reach = func(p *simProbe) { p.answer(ms) }
		absent := false
		s.net.opens = func(req openRequest) (netip.Addr, error) {
			if absent && req.target.Interface == "eth1" {
				return netip.Addr{}, noInterface("eth1", netns.ErrNoLink)
			}
			return netip.MustParseAddr("192.0.2.1"), nil
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		time.Sleep(20 * time.Second)
		logged.TakeAll()
		for range 2 { // it comes back for a moment
			s.mu.Lock()
			absent = true
			s.waysChanged(func(f flow) bool { return f.(*simFlow).path.flow.Interface == "eth1" }, func(netip.Addr) bool { return false })
			s.mu.Unlock()
			time.Sleep(10 * time.Minute)
			s.mu.Lock()
			absent = false
			s.mu.Unlock()
			time.Sleep(20 * time.Second)
		}
		time.Sleep(10 * time.Minute)
		var said []string
		for _, line := range logged.TakeAll() {
			said = append(said, fmt.Sprint(line.Message, " ", line.ContextMap()["interface"], " ", line.ContextMap()["paths"]))
		}
		want := []string{"interface cannot be used; trying on eth1 100", "interface works again eth1 100"}
		if diff := cmp.Diff(want, said); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		if err := s.SetTargets(nil); err != nil {
			t.Error(err)
		}
		time.Sleep(20 * time.Second)
		s.mu.Lock()
		for name, c := range s.causes {
			if c.paths != 0 || c.times != 0 {
				t.Errorf("what was wrong with %q is left: %+v", name, c)
			}
		}
		s.mu.Unlock()
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}
