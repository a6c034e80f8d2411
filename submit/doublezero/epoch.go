// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/singleflight"

	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/submit/endpoint"
)

const (
	// boundarySearch is how many slots from its first one on an epoch may be without a block.
	boundarySearch = 512
	// boundaryDepth is how many slots an epoch must be old before a node that has no block at its start is believed: one that lags says
	// the same.
	boundaryDepth = 150
)

// errTooEarly means that the epoch is so young that where it began is not known for sure.
var errTooEarly = errors.New("the epoch has only just begun")

// period is an epoch in time: [start, end). The end of the present one is not known, so zero.
type period struct {
	epoch      uint64
	start, end time.Time
}

func (p period) has(t time.Time) bool {
	return !t.Before(p.start) && (p.end.IsZero() || t.Before(p.end))
}

// epochs knows when epochs begin. A boundary once decided is stored and never changes. It may be used by many goroutines.
type epochs struct {
	client *client
	chain  *chain
	log    log
	logger *zap.Logger
	asking singleflight.Group

	mu       sync.Mutex
	starts   map[uint64]time.Time
	schedule *epochSchedule
	blocks   blockTimes // nil: not loaded
}

func newEpochs(c *client, ch *chain, l log, logger *zap.Logger) *epochs {
	return &epochs{client: c, chain: ch, log: l, logger: logger, starts: make(map[uint64]time.Time)}
}

// of returns the epoch in which t, which is not after the tip, lies.
func (e *epochs) of(ctx context.Context, t time.Time, now tip) (period, error) {
	p := period{epoch: now.epoch}
	for {
		start, err := e.start(ctx, p.epoch)
		if err != nil {
			return period{}, fmt.Errorf("when epoch %d began: %w", p.epoch, err)
		}
		p.start = start
		if p.has(t) || p.epoch == 0 {
			return p, nil
		}
		p = period{epoch: p.epoch - 1, end: start}
	}
}

// known returns the time of the first block of an epoch if nobody need be asked for it.
func (e *epochs) known(epoch uint64) (time.Time, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t, known := e.starts[epoch]
	return t, known
}

// start returns the time of the first block of an epoch.
func (e *epochs) start(ctx context.Context, epoch uint64) (time.Time, error) {
	if t, known := e.known(epoch); known {
		return t, nil
	}
	found, err, _ := e.asking.Do(strconv.FormatUint(epoch, 10), func() (any, error) { return e.find(ctx, epoch) })
	return found.(time.Time), err
}

// find looks a boundary up in the store, or else on the chain, and keeps it.
func (e *epochs) find(ctx context.Context, epoch uint64) (time.Time, error) {
	key := boundaryKey(epoch)
	var unix int64
	found, err := load(e.log, key, &unix)
	if err != nil {
		return time.Time{}, err
	}
	t := time.Unix(unix, 0)
	if !found {
		b, err := e.search(ctx, epoch)
		if err != nil {
			return time.Time{}, err
		}
		t = b.time
		if err := e.log.Commit(Name, store.Update{Put: map[string][]byte{key: asJSON(t.Unix())}}); err != nil {
			return time.Time{}, err
		}
		if b.after > 0 { // told once it is decided, and not each time that it could not be stored
			e.logger.Warn("no node knows when the epoch began: samples close to its start may be written into the one beside it",
				zap.Uint64("epoch", epoch), zap.Time("taken_for", t.UTC()), zap.Uint64("between_slot", b.before), zap.Uint64("and_slot", b.after))
		}
		e.logger.Info("an epoch begins", zap.Uint64("epoch", epoch), zap.Time("first_block", t.UTC()))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.starts[epoch] = t
	return t, nil
}

// boundary is when an epoch began.
type boundary struct {
	time          time.Time
	before, after uint64 // slots between whose blocks it was worked out; 0: it is the time of a block
}

// search asks the chain for the time of the first block of an epoch.
func (e *epochs) search(ctx context.Context, epoch uint64) (boundary, error) {
	first, err := e.firstSlot(ctx, epoch)
	if err != nil {
		return boundary{}, err
	}
	tip := e.chain.cached()
	if tip.slot < first+boundaryDepth {
		return boundary{}, errTooEarly
	}
	var doubtful []uint64 // slots that a node does not have, which may be because it lags
	for slot := first; slot < first+boundarySearch && slot <= tip.slot; slot++ {
		t, err := e.client.getBlockTime(ctx, slot)
		switch kind := kindOf(err); {
		case err == nil:
			t, err = e.earlier(ctx, doubtful, t)
			return boundary{time: t}, err
		case kind == kindSkipped:
		case kind == kindPruned:
			return e.pruned(ctx, slot, tip)
		case kind == kindNoBlock:
			doubtful = append(doubtful, slot)
		default:
			return boundary{}, err
		}
	}
	return boundary{}, fmt.Errorf("no block in %d slots from slot %d on", boundarySearch, first)
}

// earlier asks a second time for slots that had no block, and returns the first block's time, or else t.
func (e *epochs) earlier(ctx context.Context, doubtful []uint64, t time.Time) (time.Time, error) {
	for _, slot := range doubtful {
		again, err := e.elsewhere(ctx, slot)
		switch kind := kindOf(err); {
		case err == nil:
			return again, nil
		case kind != kindSkipped && kind != kindNoBlock:
			return time.Time{}, err
		}
	}
	return t, nil
}

// elsewhere asks for the time of a block at another endpoint than the one in use.
func (e *epochs) elsewhere(ctx context.Context, slot uint64) (time.Time, error) {
	r := new(endpoint.Route)
	if t, err := e.client.getBlockTime(endpoint.WithRoute(ctx, r), slot); err == nil {
		return t, nil
	}
	return e.client.getBlockTime(endpoint.WithRoute(ctx, &endpoint.Route{Avoid: r.Used}), slot)
}

// pruned handles a node that has deleted the blocks of an epoch's start: another one may have them, and if not, their time lies on the
// line between two blocks whose times we know.
func (e *epochs) pruned(ctx context.Context, slot uint64, now tip) (boundary, error) {
	switch t, err := e.elsewhere(ctx, slot); {
	case err == nil:
		return boundary{time: t}, nil
	case kindOf(err) != kindPruned:
		return boundary{}, err // not now
	}
	e.mu.Lock()
	blocks, err := e.loadBlockTimes()
	if err == nil {
		blocks = blocks.with(now)
	}
	e.mu.Unlock()
	if err != nil {
		return boundary{}, err
	}
	t, before, after, ok := blocks.at(slot)
	if !ok {
		return boundary{}, fmt.Errorf("every node has deleted block %d, and no times of blocks around it are known", slot)
	}
	return boundary{time: t, before: before, after: after}, nil
}

// firstSlot returns the first slot of an epoch.
func (e *epochs) firstSlot(ctx context.Context, epoch uint64) (uint64, error) {
	e.mu.Lock()
	s := e.schedule
	e.mu.Unlock()
	if s == nil {
		read, err := e.client.getEpochSchedule(ctx)
		if err != nil {
			return 0, fmt.Errorf("ask for the epoch schedule: %w", err)
		}
		s = &read
		e.mu.Lock()
		e.schedule = s
		e.mu.Unlock()
	}
	return s.firstSlot(epoch), nil
}

// note keeps the time of a block and returns what to store of it, nil while that would be too often.
func (e *epochs) note(t tip) (put map[string][]byte, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	blocks, err := e.loadBlockTimes()
	if err != nil {
		return nil, err
	}
	more, changed := blocks.add(t)
	if !changed {
		return nil, nil
	}
	e.blocks = more
	return map[string][]byte{blockTimesKey: asJSON(more)}, nil
}

// loadBlockTimes returns what is kept. The caller holds e.mu.
func (e *epochs) loadBlockTimes() (blockTimes, error) {
	if e.blocks == nil {
		e.blocks = blockTimes{}
		if _, err := load(e.log, blockTimesKey, &e.blocks); err != nil {
			e.blocks = nil
			return nil, err
		}
	}
	return e.blocks, nil
}

// blockTimes are pairs of a slot and the time of its block in seconds since 1970, in order: one an hour for ten days.
type blockTimes [][2]int64

const (
	blockTimesEvery = time.Hour
	blockTimesKept  = 240
)

// add returns b with one more block, and whether there was a need for it.
func (b blockTimes) add(t tip) (blockTimes, bool) {
	if n := len(b); n > 0 {
		last := b[n-1]
		if int64(t.slot) <= last[0] || t.time.Unix()-last[1] < int64(blockTimesEvery/time.Second) {
			return b, false
		}
	}
	more := b.with(t)
	return more[max(0, len(more)-blockTimesKept):], true
}

// with returns b and the tip behind it.
func (b blockTimes) with(t tip) blockTimes {
	return append(slices.Clone(b), [2]int64{int64(t.slot), t.time.Unix()})
}

// at interpolates the time of a slot and says between which slots. Before the first pair it takes the pace of the first two.
func (b blockTimes) at(slot uint64) (t time.Time, before, after uint64, ok bool) {
	i, _ := slices.BinarySearchFunc(b, int64(slot), func(pair [2]int64, slot int64) int { return int(pair[0] - slot) })
	i = max(i, 1)
	if i >= len(b) || b[i][0] == b[i-1][0] {
		return time.Time{}, 0, 0, false
	}
	from, to := b[i-1], b[i]
	pace := float64(to[1]-from[1]) / float64(to[0]-from[0])
	seconds := float64(from[1]) + pace*float64(int64(slot)-from[0])
	return time.Unix(0, int64(seconds*float64(time.Second))), uint64(from[0]), uint64(to[0]), true
}
