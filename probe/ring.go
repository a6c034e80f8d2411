// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"sync"

	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
)

// Measured is one sample of the path with that number.
type Measured struct {
	Path   int
	Sample store.Sample
}

// Ring is the bounded memory between measuring and whoever takes the samples.
// When nobody takes them, the oldest are overwritten and counted. Put may be
// called from anywhere; there is one taker.
type Ring struct {
	filled chan struct{}

	mu          sync.Mutex
	capacity    uint64
	buf         []Measured // grows up to capacity as it is needed
	first, next uint64     // numbers of the oldest sample held, and of the next to come
	peeked      uint64     // the taker has seen the samples below this number
	overwritten uint64     // of those, so many since: dropped unless they are discarded
	dropped     uint64
	paths       map[int]*ringPath
	ended       []int // paths of which it may still hold samples
}

// ringPath is whose samples a ring holds.
type ringPath struct {
	target target.Target
	upTo   uint64 // number below which its samples are, once it has ended
}

// NewRing makes a ring that holds at most capacity samples.
func NewRing(capacity int) *Ring {
	return &Ring{capacity: uint64(capacity), filled: make(chan struct{}, 1), paths: make(map[int]*ringPath)}
}

// Allow lets it hold up to capacity samples, if that is more than before.
func (r *Ring) Allow(capacity int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.capacity = max(r.capacity, uint64(capacity))
}

// Began and Ended tell the ring of a path, before its first sample and after its last.
func (r *Ring) Began(path int, t target.Target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paths[path] = &ringPath{target: t}
}

// Ended is described at Began.
func (r *Ring) Ended(path int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.paths[path]; p != nil {
		p.upTo = r.next
		r.ended = append(r.ended, path)
		r.forget()
	}
}

// forget forgets paths that have ended and of which no sample is left.
func (r *Ring) forget() {
	for len(r.ended) > 0 && r.paths[r.ended[0]].upTo <= r.first {
		delete(r.paths, r.ended[0])
		r.ended = r.ended[1:]
	}
}

// Target is what a path measures; false if the ring holds none of its samples, nor ever will.
func (r *Ring) Target(path int) (target.Target, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.paths[path]; p != nil {
		return p.target, true
	}
	return target.Target{}, false
}

// Put adds a sample. It never blocks.
func (r *Ring) Put(path int, s store.Sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch held := r.next - r.first; {
	case held < uint64(len(r.buf)):
	case held < r.capacity:
		grown := make([]Measured, min(r.capacity, max(64, 2*held)))
		for n := r.first; n != r.next; n++ {
			grown[n%uint64(len(grown))] = r.buf[n%uint64(len(r.buf))]
		}
		r.buf = grown
	case r.first < r.peeked:
		r.first++
		r.overwritten++
	default:
		r.first++
		r.dropped++
	}
	r.buf[r.next%uint64(len(r.buf))] = Measured{path, s}
	r.next++
	select {
	case r.filled <- struct{}{}:
	default:
	}
}

// Filled has a value when samples came since it was last received from.
func (r *Ring) Filled() <-chan struct{} { return r.filled }

// Peek appends the oldest samples, at most max, to dst. They stay in the ring
// until Discard is given the number that Peek returned.
func (r *Ring) Peek(dst []Measured, max int) ([]Measured, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// What was seen before and not discarded was not taken.
	r.dropped += r.overwritten
	r.overwritten = 0
	n := r.first
	for ; n != r.next && max > 0; n++ {
		dst = append(dst, r.buf[n%uint64(len(r.buf))])
		max--
	}
	r.peeked = n
	return dst, n
}

// Discard removes what a Peek that returned upTo gave.
func (r *Ring) Discard(upTo uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.overwritten = 0
	r.first = max(r.first, upTo)
	r.forget()
}

// Dropped is how many samples were overwritten before anybody took them.
func (r *Ring) Dropped() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dropped
}

// Len is how many samples the ring holds.
func (r *Ring) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return int(r.next - r.first)
}
