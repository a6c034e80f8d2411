// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// batcher answers many callers with one call: the first of them waits for others to join and then asks for all. The answers are shared,
// errors too. It has no goroutine of its own.
type batcher[K comparable, V any] struct {
	wait time.Duration // for others to join
	most int           // keys in one call
	call func(ctx context.Context, keys []K, minSlot uint64) (map[K]V, error)

	mu   sync.Mutex
	open *round[K, V] // takes more keys; nil: the next caller begins one
}

// round is one call and those who wait for it.
type round[K comparable, V any] struct {
	keys    map[K]struct{}
	minSlot uint64
	done    chan struct{} // closed when answers and err are set
	answers map[K]V
	err     error
}

func newBatcher[K comparable, V any](wait time.Duration, most int, call func(context.Context, []K, uint64) (map[K]V, error)) *batcher[K, V] {
	return &batcher[K, V]{wait: wait, most: most, call: call}
}

// get returns the answer for key from a node that has seen minSlot. A key that the call does not answer has the zero value.
func (b *batcher[K, V]) get(ctx context.Context, key K, minSlot uint64) (V, error) {
	var none V
	b.mu.Lock()
	r, leads := b.open, false
	if r == nil {
		r, leads = &round[K, V]{keys: make(map[K]struct{}), done: make(chan struct{})}, true
		b.open = r
	}
	r.keys[key] = struct{}{}
	r.minSlot = max(r.minSlot, minSlot)
	if len(r.keys) == b.most {
		b.open = nil
	}
	b.mu.Unlock()

	if leads {
		b.lead(ctx, r)
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
	if r.err != nil {
		return none, r.err
	}
	return r.answers[key], nil
}

// lead makes the call of a round.
func (b *batcher[K, V]) lead(ctx context.Context, r *round[K, V]) {
	defer close(r.done)
	timer := time.NewTimer(b.wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	b.mu.Lock()
	if b.open == r {
		b.open = nil
	}
	b.mu.Unlock() // nobody joins from here on
	if ctx.Err() != nil {
		r.err = fmt.Errorf("whoever asked for all gave up: %w", context.Cause(ctx))
		return
	}
	r.answers, r.err = b.call(ctx, slices.Collect(maps.Keys(r.keys)), r.minSlot)
}
