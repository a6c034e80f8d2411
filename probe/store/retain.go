// SPDX-License-Identifier: Apache-2.0

package store

import (
	"container/heap"
	"errors"
	"fmt"
	"time"
)

const (
	// foldSamples and foldAge say when Maintain folds: each fold writes a page or two per path, so it is worth waiting for a good part of a
	// chunk, while a tail that is too long costs memory and time to open.
	foldSamples = 64
	foldAge     = 10 * time.Minute
	foldValues  = 4096

	// transactionPages is what a small transaction writes: meta, root, and a few pages on the way to the leaves.
	transactionPages = 16

	// expireChunks is the most chunks that one transaction deletes by age.
	expireChunks = 16
)

// Maintain does what is due: it deletes what is too old, folds the tail, keeps the file within its bounds. The owner calls it each minute.
func (l *Log) Maintain() error {
	errs := []error{l.expire()}
	if l.foldDue() {
		errs = append(errs, l.fold())
	}
	l.write.Lock()
	defer l.write.Unlock()
	errs = append(errs, l.prepare(0))
	l.endTroubles(false)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("maintain store: %w", err)
	}
	return nil
}

func (l *Log) foldDue() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	values := l.tailNext - l.tailFirst
	if values > foldValues || values > 0 && l.cfg.Now().Sub(l.tailSince) >= foldAge {
		return true
	}
	for _, p := range l.paths[1:] {
		if len(p.tail) > 0 && p.next-p.tail[0].first >= foldSamples {
			return true
		}
	}
	return false
}

// pathPages estimates how many pages the records of n paths are on.
func (l *Log) pathPages(n int) int { return min(2*n, len(l.paths)/8+4) }

// reserve is the pages that always stay free, so that there are some to write on when samples have to be dropped for more.
func (l *Log) reserve() int64 { return min(max(l.cfg.MaxBytes/pageSize/64, 32), 512) }

// makeRoom sees to it that the file has this many free pages: it lets it grow, or else drops the oldest samples. It returns ErrNoSpace if
// neither is possible. The caller holds l.write.
func (l *Log) makeRoom(pages int64) error {
	need := pages + l.reserve() + l.margin
	if need >= l.file.maxPages {
		return fmt.Errorf("%w: more than the file may hold, %d bytes", ErrNoSpace, l.cfg.MaxBytes)
	}
	folded, pinned := false, false
	for {
		available, err := l.file.available()
		if errors.Is(err, ErrCorrupt) {
			l.setAside(l.file, err)
		}
		if err != nil || available >= need {
			return err
		}
		reason, full := l.file.grow(need - available)
		if reason == "" {
			if full != nil {
				return full
			}
			continue
		}
		n, err := l.drop(reason, int(l.reserve()/2), func(_ *path, head chunkHead) bool { return pinned || !l.pinned(head) })
		if err != nil {
			return err
		}
		if n > 0 {
			continue
		}
		if !folded && l.tailFirst < l.tailNext { // what could be dropped is in the tail: one last page or two make chunks of it
			folded = true
			if err := l.foldPaths(l.paths[1:], l.tailNext, true); err != nil {
				return err
			}
			continue
		}
		if !pinned { // better these than new samples: a sink that takes them all the same may still say so
			pinned = true
			continue
		}
		// Nothing is left to drop. It may still be enough for this transaction.
		if available >= pages+transactionPages {
			return nil
		}
		if full == nil {
			full = fmt.Errorf("%w: the file may have %d bytes", ErrNoSpace, l.cfg.MaxBytes)
		}
		return full
	}
}

// expire deletes what is older than the retention, if the clock can be trusted.
func (l *Log) expire() error {
	now := l.cfg.Now()
	l.mu.RLock()
	steady := l.clock.steady(now)
	l.mu.RUnlock()
	if l.cfg.Retention == 0 || !steady {
		return nil
	}
	limit := now.Add(-l.cfg.Retention)
	old := func(p *path, head chunkHead) bool {
		l.mu.RLock()
		defer l.mu.RUnlock()
		o, _ := l.offsetOf(p, head.end()-1, head.boot)
		t := o.wall(head.lastMono)
		return !t.IsZero() && t.Before(limit) && !l.pinned(head)
	}
	for {
		n, err := l.dropOld(old)
		if err != nil || n < expireChunks {
			return err
		}
	}
}

func (l *Log) dropOld(old func(*path, chunkHead) bool) (int, error) {
	l.write.Lock()
	defer l.write.Unlock()
	if err := l.prepare(0); err != nil {
		return 0, err
	}
	return l.drop(reasonRetention, expireChunks, old)
}

// oldestFirst is a heap of the oldest chunks of paths. Boots are numbered as they came, so this order needs no wall clock.
type oldestFirst []chunkHead

func (h oldestFirst) Len() int      { return len(h) }
func (h oldestFirst) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h oldestFirst) Less(i, j int) bool {
	if h[i].boot != h[j].boot {
		return h[i].boot < h[j].boot
	}
	return h[i].lastMono < h[j].lastMono
}
func (h *oldestFirst) Push(x any) { *h = append(*h, x.(chunkHead)) }
func (h *oldestFirst) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

// drop deletes up to limit of the oldest chunks for which may returns true, and counts their samples, under reason, for the sinks that
// had not taken them. It returns how many it deleted. The caller holds l.write.
func (l *Log) drop(reason string, limit int, may func(*path, chunkHead) bool) (n int, err error) {
	heads, err := l.heads(may)
	if err != nil || len(heads) == 0 {
		return 0, err
	}
	first := map[PathID]uint64{}    // new first number of paths
	next := map[PathID]*chunkHead{} // and their new oldest chunk
	var changes []*sinkChange
	var lost map[string]uint64
	err = l.commit("drop", func(tx *transaction) error {
		chunks := tx.Bucket(bucketChunks)
		for n = 0; n < limit && len(heads) > 0; n++ {
			head := heap.Pop(&heads).(chunkHead)
			p := l.paths[head.path]
			if err := chunks.Delete(chunkKey(head.path, head.first)); err != nil {
				return err
			}
			first[p.ID], next[p.ID] = p.seek(head.end()), nil
			// Only forward: in a transaction that deletes, bbolt's Last and Prev never return once all leaves are empty.
			following, _, err := openChunk(chunks.Cursor().Seek(chunkKey(p.ID, head.end())))
			if err == nil && following.path == p.ID && following.first == first[p.ID] {
				next[p.ID] = &following
				if may(p, following) {
					heap.Push(&heads, following)
				}
			}
		}
		changes, lost = l.advance(first, reason)
		return l.putSinks(tx, changes)
	})
	if err != nil {
		return 0, fmt.Errorf("drop oldest samples: %w", err)
	}
	l.mu.Lock()
	for id, number := range first {
		p := l.paths[id]
		p.first, p.head = number, next[id]
		p.lost = addLost(p.lost, p.first)
		p.fixed = pruneSegments(p.fixed, p.first)
	}
	l.applySinks(changes)
	l.mu.Unlock()
	if len(lost) > 0 {
		l.trouble(troubleDrops.because(reason), lost)
	}
	return n, nil
}

// pinned reports whether a sink of this process is handing over samples of the chunk. The caller holds l.write.
func (l *Log) pinned(head chunkHead) bool {
	for _, s := range l.sinks {
		if at := s.at(head.path); at != nil && s.takes != nil && head.first < at.pin && at.next < min(at.pin, head.end()) {
			return true
		}
	}
	return false
}

// advance moves the positions of sinks that are behind the new first numbers and counts what they lose. lost is by enabled sink.
func (l *Log) advance(first map[PathID]uint64, reason string) (changes []*sinkChange, lost map[string]uint64) {
	lost = map[string]uint64{}
	for _, s := range l.sinks {
		c := changeOf(s)
		for id, number := range first {
			if at := s.at(id); at != nil && at.next < number {
				n := l.paths[id].count(at.next, number)
				c.positions[id] = number
				c.drop(id, n, reason)
				if s.takes != nil && n > 0 {
					lost[s.name] += n
				}
			}
		}
		if len(c.positions) > 0 {
			changes = append(changes, c)
		}
	}
	return changes, lost
}

// heads returns the oldest chunks of all paths for which may returns true, as a heap. A damaged one is repaired first.
func (l *Log) heads(may func(*path, chunkHead) bool) (oldestFirst, error) {
	unread, err := l.readHeads()
	if err != nil {
		return nil, err
	}
	for _, p := range unread {
		if err := l.repairLocked(p); err != nil {
			return nil, err
		}
	}
	if len(unread) > 0 {
		if _, err := l.readHeads(); err != nil {
			return nil, err
		}
	}
	var heads oldestFirst
	for _, p := range l.paths[1:] {
		if p.head != nil && may(p, *p.head) {
			heads = append(heads, *p.head)
		}
	}
	heap.Init(&heads)
	return heads, nil
}

// readHeads reads the heads that are not known yet. It returns the paths whose oldest chunk is not what it should be.
func (l *Log) readHeads() (bad []*path, err error) {
	read := map[PathID]*chunkHead{}
	err = l.file.view(func(tx *transaction) error {
		chunks := tx.Bucket(bucketChunks).Cursor()
		for _, p := range l.paths[1:] {
			if p.head != nil || p.first >= p.folded {
				continue
			}
			head, _, err := openChunk(seekChunk(chunks, p.ID, p.first))
			if err == nil && head.path == p.ID && head.first == p.first {
				read[p.ID] = &head
			} else {
				bad = append(bad, p)
			}
		}
		return nil
	})
	if err != nil {
		if errors.Is(err, ErrCorrupt) {
			l.setAside(l.file, err)
		}
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, head := range read {
		l.paths[id].head = head
	}
	return bad, nil
}
