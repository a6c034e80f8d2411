// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"

	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/probe/store"
)

// follow measures in whichever namespace the place is, until ctx ends. While
// there is none, probes are not sent: no_interface.
func (e *Engine) follow(ctx context.Context) error {
	missing := newOngoing(e.log, "the namespace of the interfaces is not there; waiting for it", "the namespace of the interfaces is there again")
	return e.cfg.Place.Each(ctx, func(ctx context.Context, ns *netns.Namespace) error {
		defer missing.works()()
		n := newHostNetwork(e, ns, e.cfg.Family)
		e.enter(n)
		n.run(ctx)
		e.leave(n)
		return n.close()
	}, func(reason error) {
		e.mu.Lock()
		paths := len(e.paths) - len(e.free)
		e.mu.Unlock()
		missing.fails(reason, zap.Int("paths", paths))
	})
}

// enter has all paths opened on n.
func (e *Engine) enter(n network) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.net = n
	for _, p := range e.paths {
		if p != nil && !p.removed && !e.stopping && e.running {
			if p.opening {
				p.again = true
			} else {
				e.requestOpen(p)
			}
			e.replan(p)
		}
	}
}

// leave closes every way on n. What is in flight there can have no outcome.
func (e *Engine) leave(n network) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.net = &nowhere{e.cfg.Place}
	for _, p := range e.paths {
		if p == nil {
			continue
		}
		e.retire(p)
		p.reason = store.NoInterface
		for seq := p.head; seq != p.next; seq++ {
			if pr := &p.window[seq&p.mask]; !pr.done {
				pr.done = true
				pr.outcome, pr.reason = store.Unknown, store.InterfaceGone
				p.counters.Unknown++
			}
		}
		e.handOn(p)
		if !p.removed && !e.stopping && !p.opening {
			e.reopen(p)
		}
		e.replan(p)
	}
	e.wakeUp()
}

// nowhere is the network while there is no namespace.
type nowhere struct{ place netns.Place }

func (n *nowhere) run(ctx context.Context) { <-ctx.Done() }
func (n *nowhere) look() error             { return nil }
func (n *nowhere) flush()                  {}
func (n *nowhere) close() error            { return nil }

func (n *nowhere) open(context.Context, openRequest) (flow, FlowInfo, error) {
	d := down(store.NoInterface, "network namespace %s: %w", n.place, netns.ErrGone)
	d.cause = new(string)
	return nil, FlowInfo{}, d
}
