// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/xtwamp/xtwamp/submit/endpoint"
)

// tip is the newest finalized block that the ledger told of.
type tip struct {
	slot, height, epoch uint64
	time                time.Time // of the block
	read                time.Time // when we learned of it
}

// chain follows the ledger's finalized tip. It may be used by many goroutines.
type chain struct {
	client *client
	asking singleflight.Group

	mu      sync.Mutex
	last    tip
	refused time.Time // since when nodes say that they have not seen our tip; zero: they have
}

// forget is how long nodes may say that they have not seen our tip before we take it that the one who told us of it lied.
const forget = time.Minute

func newChain(c *client) *chain { return &chain{client: c} }

// cached returns the last tip that was read, the zero value if none was.
func (c *chain) cached() tip {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// tip returns one that was read at most age ago.
func (c *chain) tip(ctx context.Context, age time.Duration) (tip, error) {
	if t := c.cached(); !t.read.IsZero() && time.Since(t.read) <= age {
		return t, nil
	}
	t, err, _ := c.asking.Do("", func() (any, error) { return c.read(ctx) })
	return t.(tip), err
}

func (c *chain) read(ctx context.Context) (tip, error) {
	// Never back: what is decided from one tip must hold for what is read after it.
	info, err := caughtUp(ctx, func(ctx context.Context) (epochInfo, error) {
		return c.client.getEpochInfo(ctx, finalized, c.cached().slot)
	})
	c.note(err)
	if err != nil {
		return tip{}, fmt.Errorf("ask for the tip: %w", err)
	}
	at, err := caughtUp(ctx, func(ctx context.Context) (time.Time, error) {
		return c.client.getBlockTime(ctx, info.AbsoluteSlot)
	})
	if err != nil {
		return tip{}, fmt.Errorf("time of block %d: %w", info.AbsoluteSlot, err)
	}
	t := tip{slot: info.AbsoluteSlot, height: info.BlockHeight, epoch: info.Epoch, time: at, read: time.Now()}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = t
	return t, nil
}

// note drops a tip that nobody else has heard of.
func (c *chain) note(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case kindOf(err) != kindBehind:
		c.refused = time.Time{}
	case c.refused.IsZero():
		c.refused = time.Now()
	case time.Since(c.refused) > forget:
		c.last, c.refused = tip{}, time.Time{}
	}
}

// caughtUp asks again, and elsewhere if there is a choice, when the answer was that the node has not got there yet: an address can stand
// for several nodes.
func caughtUp[T any](ctx context.Context, ask func(context.Context) (T, error)) (T, error) {
	const tries = 3
	r := new(endpoint.Route)
	answer, err := ask(endpoint.WithRoute(ctx, r))
	for n := 1; n < tries && (kindOf(err) == kindBehind || kindOf(err) == kindNoBlock); n++ {
		answer, err = ask(endpoint.WithRoute(ctx, &endpoint.Route{Avoid: r.Used}))
	}
	return answer, err
}
