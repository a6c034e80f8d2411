// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/xtwamp/xtwamp/probe/target"
)

// SetTargets makes targets the ones that are measured, or changes nothing and returns why. A target that is the same as before goes on
// as if nothing had happened. One that is gone, or has changed in any way, sends no more; what it has in flight gets its outcome. It
// may be called at any time, also before Run.
func (e *Engine) SetTargets(targets []target.Target) error {
	names := make(map[string]bool, len(targets))
	for _, t := range targets {
		if err := t.Validate(); err != nil {
			return fmt.Errorf("target %q: %w", t.Name, err)
		}
		if names[t.Name] {
			return fmt.Errorf("target %q: the name is used twice", t.Name)
		}
		names[t.Name] = true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	measured := make(map[string]*path)
	for _, p := range e.paths {
		if p != nil && !p.removed {
			measured[p.target.Name] = p
		}
	}
	var added []*path
	for _, t := range targets {
		if p := measured[t.Name]; p != nil && reflect.DeepEqual(p.target, t) {
			delete(measured, t.Name)
			continue
		}
		p, err := newPath(t, e.cfg.Count)
		if err != nil {
			return err
		}
		added = append(added, p)
	}
	// Nothing can go wrong from here on.
	for _, p := range measured {
		e.remove(p)
	}
	for _, p := range added {
		e.add(p)
	}
	if target.Rate(targets) >= slotsFrom {
		e.slot = slot // and so it stays: the kernel half was made for it
	}
	e.wakeUp()
	return nil
}

// add makes p one of the engine's paths.
func (e *Engine) add(p *path) {
	p.number = e.begun
	e.begun++
	if n := len(e.free); n > 0 {
		p.index, e.free = e.free[n-1], e.free[:n-1]
		e.paths[p.index] = p
	} else {
		p.index = len(e.paths)
		e.paths = append(e.paths, p)
		e.queue.grow()
	}
	p.want = openRequest{path: p, target: p.target}
	e.slotSpace.take(p)
	e.packet = slices.Grow(e.packet[:0], p.target.PayloadSize())
	e.cfg.Began(p.number, p.target)
	if e.running && !e.stopping {
		e.begin(p)
	}
}

// begin lets p look for a way, and be scheduled.
func (e *Engine) begin(p *path) {
	p.beginBy = e.clock.mono() + int64(beginWithin)
	e.requestOpen(p)
	e.replan(p)
}

// remove lets p send no more; the scheduler ends it when it has nothing in
// flight.
func (e *Engine) remove(p *path) {
	p.removed, p.remaining, p.reopenAt = true, 0, 0
	e.replan(p)
}

// end forgets p, which is removed and finished.
func (e *Engine) end(p *path) {
	e.retire(p)
	e.blame(p, nil)
	e.slotSpace.give(p)
	e.queue.set(p.index, never)
	e.paths[p.index] = nil
	e.free = append(e.free, p.index)
	e.cfg.Ended(p.number)
}

// slotSpace is which slots of the kernel half belong to which path.
type slotSpace struct {
	size int              // of the kernel half; 0: not made yet, as large as need be
	used int              // all above were never given to anybody
	free map[int][]uint32 // first slots of what was given back, by number of slots
}

// take gives p its slots, if there is room.
func (s *slotSpace) take(p *path) bool {
	n := len(p.window)
	switch free := s.free[n]; {
	case len(free) > 0:
		p.slotBase, s.free[n] = free[len(free)-1], free[:len(free)-1]
	case s.size == 0 || s.used+n <= s.size:
		p.slotBase = uint32(s.used)
		s.used += n
	default:
		return false
	}
	p.hasSlots = true
	return true
}

// give takes them back.
func (s *slotSpace) give(p *path) {
	if !p.hasSlots {
		return
	}
	if s.free == nil {
		s.free = make(map[int][]uint32)
	}
	s.free[len(p.window)] = append(s.free[len(p.window)], p.slotBase)
	p.hasSlots = false
}

// fix gives the kernel half a size, with room for targets to come.
func (s *slotSpace) fix() int {
	if s.size == 0 {
		s.size = 2*s.used + 1024
	}
	return s.size
}

// requests are paths that wait to be opened. Each waits once at most.
type requests struct {
	*requestList
	some chan struct{} // has a value while there are any
}

type requestList struct {
	mu   sync.Mutex
	list []openRequest
}

func newRequests() requests {
	return requests{new(requestList), make(chan struct{}, 1)}
}

func (r requests) add(req openRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, req)
	r.signal()
}

func (r requests) signal() {
	select {
	case r.some <- struct{}{}:
	default:
	}
}

// next waits for a request; false when ctx ends.
func (r requests) next(ctx context.Context) (openRequest, bool) {
	for {
		select {
		case <-ctx.Done():
			return openRequest{}, false
		case <-r.some:
		}
		r.mu.Lock()
		if len(r.list) == 0 {
			r.mu.Unlock()
			continue
		}
		req := r.list[0]
		r.list[0] = openRequest{}
		if r.list = r.list[1:]; len(r.list) > 0 {
			r.signal()
		}
		r.mu.Unlock()
		return req, true
	}
}
