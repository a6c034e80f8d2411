// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"encoding/binary"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/xtwamp/xtwamp/netns/netnstest"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
)

// inSlots is a target fast enough for an engine to work in slots, and so to share sockets.
func inSlots(name, address string, edit func(*target.Target)) target.Target {
	return to(address, func(t *target.Target) {
		t.Name, t.Interval = name, ms
		t.Timeout, t.LateWindow = 100*ms, 100*ms
		if edit != nil {
			edit(t)
		}
	})
}

func TestFlowsShareSockets(t *testing.T) {
	near, far := link(t)
	reflectIn(t, far, func(c *ReflectorConfig) { c.Mode = ReflectAuto })
	others := manyFar(t, near, far, 2, nil)
	const probes = 50
	var mu sync.Mutex
	ports := make(map[string]uint16)
	var targets []target.Target
	r := begin(t, near, func(c *Config) {
		count(probes)(c)
		targets = c.Targets
		c.Opened = func(path int, f FlowInfo, _ error) {
			mu.Lock()
			defer mu.Unlock()
			ports[targets[path].Name] = f.Local.Port()
		}
	},
		inSlots("first", others[0].Address, nil),
		inSlots("second", others[1].Address, nil),
		inSlots("same-address-again", others[0].Address, nil),
		inSlots("other-mark", others[1].Address, func(t *target.Target) { t.DSCP = 46 }),
		inSlots("own-port", others[1].Address, func(t *target.Target) { t.SourcePort = 5000 }),
		inSlots("ipv6", farAddr6, nil),
		inSlots("link-local", linkLocal(t, far)+"%eth1", nil),
		inSlots("large", farAddr, func(t *target.Target) { t.Size = 1400 }),
	)
	for i, s := range r.finish() {
		if s.Outcome != store.OnTime || s.TX != store.TCEgress || s.RX != store.TCIngress {
			t.Errorf("sample %d: %s (%s), tx %s, rx %s", i, s.Outcome, s.Reason, s.TX, s.RX)
		}
	}
	for _, p := range r.Paths() {
		if p.Sent != probes || p.Received != probes || p.Duplicates != 0 {
			t.Errorf("%s: %+v", p.Target.Name, p.Counters)
		}
	}
	// Which of the two with one address comes first, and so shares with the others, is not said.
	for _, same := range [][2]string{{"second", "large"}, {"ipv6", "link-local"}} {
		if ports[same[0]] != ports[same[1]] {
			t.Errorf("%s and %s have a socket each: %v", same[0], same[1], ports)
		}
	}
	for _, other := range [][2]string{{"first", "same-address-again"}, {"second", "other-mark"}, {"second", "own-port"}} {
		if ports[other[0]] == ports[other[1]] {
			t.Errorf("%s and %s have one port: %v", other[0], other[1], ports)
		}
	}
	if ports["first"] != ports["second"] && ports["same-address-again"] != ports["second"] {
		t.Errorf("neither of those with one address shares a socket: %v", ports)
	}
	if n := r.net.(*hostNetwork); len(n.senders) != 0 || len(n.keys) != 0 {
		t.Errorf("%d sockets and %d keys are left", len(n.senders), len(n.keys))
	}
}

func TestProbesThatABatchCouldNotSend(t *testing.T) {
	near, far := link(t)
	reflectIn(t, far, nil)
	const probes = 30
	r := begin(t, near, count(probes),
		inSlots("good", farAddr, func(t *target.Target) { t.DontFragment = true }),
		inSlots("too-big", farAddr, func(t *target.Target) { t.Size, t.DontFragment = 1473, true }),
		inSlots("last", farAddr6, func(t *target.Target) { t.DontFragment = true }),
	)
	r.finish()
	for _, p := range r.Paths() {
		want := Counters{Sent: probes, Received: probes, NotSent: map[store.Reason]uint64{}}
		if p.Target.Name == "too-big" {
			want = Counters{NotSent: map[store.Reason]uint64{store.TooBig: probes}}
		}
		got := Counters{Sent: p.Sent, Received: p.Received, Lost: p.Lost, Unknown: p.Unknown, NotSent: p.NotSent}
		if diff := cmp.Diff(want, got); diff != "" || p.InFlight != 0 {
			t.Errorf("%s: %d in flight (-want +got)\n%s", p.Target.Name, p.InFlight, diff)
		}
	}
}

func TestSharedSocketHearsNothingOfDeadFarEnds(t *testing.T) {
	near, _ := link(t)
	const probes = 30
	r := begin(t, near, count(probes),
		inSlots("port-unreachable", farAddr, nil), // nobody reflects
		inSlots("port-unreachable-IPv6", farAddr6, nil),
		inSlots("no-such-neighbour", "10.1.0.77", nil),
	)
	r.finish()
	for _, p := range r.Paths() {
		if p.Lost != probes || len(p.NotSent) != 0 {
			t.Errorf("%s: lost %d, not sent %v; want %d lost", p.Target.Name, p.Lost, p.NotSent, probes)
		}
	}
}

func TestSharedFlowStuckInAMiddlebox(t *testing.T) {
	// Case 35, of one of two paths on a socket: the other stays where it is.
	var mu sync.Mutex
	blocked := make(map[byte]uint16) // by last byte of the far address
	seen := make(map[byte]map[uint16]bool)
	near, far := relayed(t, func(r *netnstest.Relay, f netnstest.Frame) {
		mu.Lock()
		defer mu.Unlock()
		if f.Direction == netnstest.AToB && len(f.Data) > 36 && f.Data[23] == 17 {
			port, to := binary.BigEndian.Uint16(f.Data[34:]), f.Data[33]
			if seen[to] == nil {
				seen[to], blocked[to] = make(map[uint16]bool), port
			}
			seen[to][port] = true
			if to == 1 && port == blocked[to] {
				return
			}
		}
		r.Send(f.Direction, f.Data, 0)
	})
	reflectIn(t, far, nil)
	others := manyFar(t, near, far, 2, nil)
	r := begin(t, near, nil, inSlots("stuck", others[0].Address, nil), inSlots("free", others[1].Address, nil))
	r.until("answered from a new port", func(store.Sample) bool { return r.Paths()[0].Received > 0 })
	r.stop()
	mu.Lock()
	defer mu.Unlock()
	if blocked[1] != blocked[2] {
		t.Errorf("the paths had a socket each: %v", blocked)
	}
	if len(seen[2]) != 1 {
		t.Errorf("the path that worked sent from %d ports", len(seen[2]))
	}
}

func TestRepliesThatReachASharedSocket(t *testing.T) {
	near, far := link(t)
	reflectIn(t, far, nil)
	r := begin(t, near, nil, inSlots("a", farAddr, nil), inSlots("b", farAddr6, nil))
	stamped := func(s store.Sample) bool { return s.RX == store.TCIngress }
	r.until("stamped", func(s store.Sample) bool {
		paths := r.Paths()
		return stamped(s) && paths[0].Received > 0 && paths[1].Received > 0
	})
	n := r.net.(*hostNetwork)
	before := len(r.taken())
	func() {
		r.Engine.mu.Lock()
		defer r.Engine.mu.Unlock()
		for _, p := range r.Engine.paths {
			f := p.flow.flow.(*hostFlow)
			if err := f.datapath.DeletePath(f.key); err != nil {
				t.Error(err)
			}
		}
	}()
	r.until("not stamped", func(s store.Sample) bool { return s.RX == store.User })
	r.until("stamped again", func(s store.Sample) bool { return len(r.taken()) > before+200 && stamped(s) })
	for i, s := range r.stop() {
		if s.Outcome != store.OnTime {
			t.Errorf("sample %d: %s (%s)", i, s.Outcome, s.Reason)
		}
	}
	if len(n.senders) != 0 {
		t.Errorf("%d sockets are left", len(n.senders))
	}
	for _, p := range r.Paths() {
		if p.Sent != p.Received+p.Lost+p.Unknown {
			t.Error(fmt.Sprint(p.Counters))
		}
	}
}
