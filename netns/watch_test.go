// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/netns/netnstest"
)

// told collects what a Watch of a namespace tells, until the test ends.
type told struct {
	t       *testing.T
	mu      sync.Mutex
	changes []netns.Change
}

func watchIn(t *testing.T, ns *netnstest.NS) *told {
	t.Helper()
	n := open(t, ns)
	ctx, cancel := context.WithCancel(context.Background())
	w := &told{t: t}
	done := make(chan error, 1)
	go func() {
		done <- n.Watch(ctx, func(c netns.Change) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.changes = append(w.changes, c)
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch = %v, want nil", err)
		}
	})
	return w
}

// next waits until a change fits, and forgets it and those before.
func (w *told) next(what string, fits func(*netns.Change) bool) netns.Change {
	w.t.Helper()
	for late := time.After(10 * time.Second); ; {
		w.mu.Lock()
		i := slices.IndexFunc(w.changes, func(c netns.Change) bool { return fits(&c) })
		if i >= 0 {
			c := w.changes[i]
			w.changes = w.changes[i+1:]
			w.mu.Unlock()
			return c
		}
		w.mu.Unlock()
		select {
		case <-late:
			w.t.Fatalf("nothing was told of %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

func TestWatchTellsWhichRoutes(t *testing.T) {
	lab := netnstest.New(t)
	ns := lab.Namespace("a")
	ns.Exec(t, "ip", "link", "add", "veth0", "type", "veth", "peer", "name", "veth1")
	ns.Exec(t, "ip", "link", "set", "veth0", "up")
	ns.Exec(t, "ip", "link", "set", "veth1", "up")
	ns.Exec(t, "ip", "addr", "add", "10.1.0.1/24", "dev", "veth0")
	ns.Exec(t, "ip", "addr", "add", "2001:db8::1/64", "dev", "veth0", "nodad")
	w := watchIn(t, ns)
	w.next("what was there before", func(c *netns.Change) bool {
		return c.Links && c.Reroutes(netip.MustParseAddr("192.0.2.1")) && c.Reroutes(netip.MustParseAddr("2001:db8:9::1"))
	})
	const all4, all6 = "203.0.113.1", "2001:db8:ffff::1" // which no narrow route leads to
	for _, tt := range []struct {
		name             string
		command          []string
		concerns, others []string
	}{
		{"IPv4", []string{"route", "add", "192.0.2.0/25", "via", "10.1.0.2"}, []string{"192.0.2.0", "192.0.2.127"}, []string{"192.0.2.128", all4, all6, "::"}},
		{"IPv4 removed", []string{"route", "del", "192.0.2.0/25"}, []string{"192.0.2.5"}, []string{"192.0.2.128", all4, all6}},
		{"IPv6", []string{"route", "add", "2001:db8:2::/48", "via", "2001:db8::2"}, []string{"2001:db8:2:9::1"}, []string{"2001:db8:3::1", all4, all6}},
		{"IPv4 default", []string{"route", "add", "default", "via", "10.1.0.2"}, []string{all4, "192.0.2.1"}, []string{all6}},
		{"IPv6 default", []string{"-6", "route", "add", "default", "via", "2001:db8::2"}, []string{all6}, []string{all4}},
		{"blackhole", []string{"route", "add", "blackhole", "198.51.100.7"}, []string{"198.51.100.7"}, []string{"198.51.100.6", all4}},
		{"another table", []string{"route", "add", "192.0.2.0/25", "via", "10.1.0.2", "table", "77"}, []string{"192.0.2.5"}, []string{all4}},
		{"a rule", []string{"rule", "add", "from", "10.1.0.1", "table", "77"}, []string{all4, all6}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w.t = t
			ns.Exec(t, append([]string{"ip"}, tt.command...)...)
			c := w.next("the route", func(c *netns.Change) bool { return c.Reroutes(netip.MustParseAddr(tt.concerns[0])) })
			for _, a := range tt.concerns {
				if !c.Reroutes(netip.MustParseAddr(a)) {
					t.Errorf("%s is not said to be concerned", a)
				}
			}
			for _, a := range tt.others {
				if c.Reroutes(netip.MustParseAddr(a)) {
					t.Errorf("%s is said to be concerned", a)
				}
			}
			if c.Links {
				t.Error("interfaces are said to have changed")
			}
		})
	}
}

// An interface that left and came back with its old index looks as it did before.
func TestWatchTellsOfAnInterfaceThatCameBack(t *testing.T) {
	lab := netnstest.New(t)
	a, b := lab.Namespace("a"), lab.Namespace("b")
	a.Exec(t, "ip", "link", "add", "veth0", "index", "77", "type", "veth", "peer", "name", "veth1", "index", "78")
	a.Exec(t, "ip", "link", "add", "br0", "index", "79", "type", "bridge")
	a.Exec(t, "ip", "link", "set", "veth1", "master", "br0")
	w := watchIn(t, a)
	w.next("what was there before", func(c *netns.Change) bool { return c.Links })
	// No more than a member of a bridge that leaves it.
	a.Exec(t, "ip", "link", "set", "veth1", "nomaster")
	a.Exec(t, "ip", "link", "set", "veth1", "alias", "last")
	if c := w.next("a port that left its bridge", func(c *netns.Change) bool { return c.Links }); len(c.Gone) != 0 {
		t.Errorf("%v left the namespace; want none", c.Gone)
	}
	a.Exec(t, "ip", "link", "set", "veth0", "netns", b.Name)
	b.Exec(t, "ip", "link", "set", "veth0", "netns", a.Name)
	w.next("the interface that left", func(c *netns.Change) bool { return slices.Contains(c.Gone, 77) })
	if err := a.Do(func() error {
		link, err := netns.LinkByName("veth0")
		if err == nil && link.Index != 77 {
			t.Skipf("it came back as %d", link.Index)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
