// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"net/netip"
	"slices"

	"github.com/xtwamp/xtwamp/netns"
)

// surroundings are the interfaces of a namespace and their addresses, at one
// moment.
type surroundings struct {
	links     map[int]netns.Link // by index
	addresses map[localAddress]bool
}

// localAddress is an address and, if that is needed to tell whose it is, the
// interface that has it.
type localAddress struct {
	address netip.Addr
	ifindex int
}

func newLocalAddress(a netip.Addr, ifindex int) localAddress {
	if !a.IsLinkLocalUnicast() {
		ifindex = 0
	}
	return localAddress{a, ifindex}
}

// lookAround reads them, from within the namespace.
func lookAround() (*surroundings, error) {
	links, err := netns.Links()
	if err != nil {
		return nil, err
	}
	addresses, err := netns.Addresses()
	if err != nil {
		return nil, err
	}
	s := &surroundings{links: make(map[int]netns.Link, len(links)), addresses: make(map[localAddress]bool, len(addresses))}
	for _, l := range links {
		s.links[l.Index] = l
	}
	for _, a := range addresses {
		s.addresses[newLocalAddress(a.Prefix.Addr(), a.Link)] = true
	}
	return s, nil
}

// link is the interface of that name, if there is one.
func (s *surroundings) link(name string) (netns.Link, bool) {
	for _, l := range s.links {
		if l.Name == name {
			return l, true
		}
	}
	return netns.Link{}, false
}

// follow has the paths follow what happens to interfaces, addresses and routes,
// until ctx ends.
func (n *hostNetwork) follow(ctx context.Context) error {
	err := n.ns.Watch(ctx, n.changed)
	n.engine.mu.Lock()
	defer n.engine.mu.Unlock()
	n.here = nil // what is not followed is not known
	return err
}

// changed brings attachments and paths in line with a change. Each 30 s there is
// one in which nothing need have changed.
func (n *hostNetwork) changed(c netns.Change) {
	e := n.engine
	var here *surroundings
	if c.Links {
		err := n.ns.Do(func() (err error) {
			if here, err = lookAround(); err == nil {
				n.ladder.release(here.links, c.Gone)
			}
			return err
		})
		n.following.attempt(e.log, err, "looking at the interfaces failed; trying on", "looking at the interfaces works again")
	}
	attached := n.ladder.attached()
	e.mu.Lock()
	defer e.mu.Unlock()
	if here != nil {
		n.here, n.absent = here, make(map[string]bool)
		n.looks++
		for index, l := range n.links {
			if _, there := here.links[index]; !there || slices.Contains(c.Gone, index) {
				l.gone = true
				delete(n.links, index)
			}
		}
	}
	e.waysChanged(func(f flow) bool {
		h, ok := f.(*hostFlow)
		return ok && here != nil && (n.lost(h) || h.datapath != nil && !attached[deviceKey{h.ifindex, h.info.Step}])
	}, c.Reroutes)
}

// lost reports whether the interface or the address of f is not what it was
// when f was opened. An address that was never listed may be one of a whole
// network that is ours. Engine.mu is held.
func (n *hostNetwork) lost(f *hostFlow) bool {
	if n.here == nil {
		return false
	}
	if link, there := n.here.links[f.ifindex]; !there || link.Name != f.info.Interface || f.link.gone {
		return true
	}
	if n.here.addresses[newLocalAddress(f.info.Local.Addr(), f.ifindex)] {
		f.listed = true
		return false
	}
	return f.listed
}

// waysChanged has each path looked at whose way may be another than it was, just
// ahead of its next probe, and opened anew if so. lost says so of a flow for
// sure, and rerouted of an address. Paths without a flow try before each probe
// anyway.
func (e *Engine) waysChanged(lost func(flow) bool, rerouted func(netip.Addr) bool) {
	if e.stopping {
		return
	}
	for _, p := range e.paths {
		switch {
		case p == nil || p.removed:
			continue
		case p.opening:
			p.look = true // it may have been before the change
			continue
		case p.flow == nil:
			continue
		case lost(p.flow.flow):
			e.reopen(p)
		case rerouted(p.flow.Remote.Addr()):
			e.recheck(p)
		default:
			continue
		}
		e.replan(p)
	}
	e.wakeUp()
}

// recheck has the way of p looked at: just ahead of its next probe, or at once
// if that is over.
func (e *Engine) recheck(p *path) {
	at := e.nextLook(p)
	if p.opening || p.reopenAt != 0 && (!p.want.refresh || p.reopenAt <= at) {
		return // something is to happen anyway
	}
	p.want.refresh, p.want.wayOnly = true, true
	p.reopenAt = at
}

func (e *Engine) nextLook(p *path) int64 {
	return max(p.due-int64(reopenAhead), p.openedAt+int64(reopenEvery))
}
