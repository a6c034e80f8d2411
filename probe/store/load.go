// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"
)

// formatVersion is what this program writes and the newest that it reads.
const formatVersion = 1

var (
	keyFormat = []byte("format") // uvarint; must stay readable in all versions
	keyBase   = []byte("base")   // uvarint; number of the first sample of a new path
)

// attach opens the file if none is open: on the first call it loads what it finds; after the last one was set aside it begins a new one
// with the paths and sinks that are known; after openAfresh it goes on where it was. The caller holds l.write.
func (l *Log) attach() error {
	if l.closed {
		return ErrClosed
	}
	if l.file != nil {
		return nil
	}
	for {
		if err := l.mayBegin(); err != nil {
			return err
		}
		before := len(l.cfg.History.asides)
		err := l.open()
		if err == nil || !errors.Is(err, ErrCorrupt) || len(l.cfg.History.asides) == before {
			return err
		}
	}
}

// open opens the file at the configured path; a corrupt one has been set aside, if that is possible, when it returns ErrCorrupt.
func (l *Log) open() error {
	f, err := openFile(l.cfg, l.readOnly, l.moveAside)
	if err != nil {
		return err
	}
	l.setFile(f)
	if err = l.begin(f); err == nil || l.file != f {
		return err
	}
	if errors.Is(err, ErrCorrupt) && !l.readOnly {
		l.setAside(f, err)
		return err
	}
	l.setFile(nil)
	return errors.Join(err, f.close())
}

// openAfresh closes the file after a commit that failed, because bbolt does not know its free pages any more. The next transaction opens it
// again. Whether the one that failed is in the file after all, as it may be, makes no difference: what it wrote will be written again.
func (l *Log) openAfresh(f *file) {
	l.setFile(nil)
	l.resume = f
	if err := f.close(); err != nil {
		l.trouble(troubleCommit, nil, zap.Error(err))
	}
}

func (l *Log) setFile(f *file) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.file = f
}

// begin loads the file, or fills it if it is empty.
func (l *Log) begin(f *file) error {
	resume := l.resume
	l.resume = nil
	if resume != nil && resume.same(f) {
		return nil
	}
	var version uint64
	var empty bool
	err := f.view(func(tx *transaction) (err error) {
		k, _ := tx.root.Cursor().First()
		if empty = k == nil; empty {
			return nil
		}
		version, err = readNumber(tx, keyFormat)
		return err
	})
	switch {
	case err != nil:
		return err
	case empty && l.readOnly:
		return fmt.Errorf("%s: %w: it is empty", l.cfg.Path, ErrCorrupt)
	case !empty && version > formatVersion:
		return fmt.Errorf("%s has format %d, this program knows up to %d: %w", l.cfg.Path, version, formatVersion, ErrVersion)
	case !empty && l.loaded:
		return fmt.Errorf("%w: it is not the one that was open", ErrCorrupt)
	case empty:
		l.mu.Lock()
		l.findBoot()
		skips := !l.loaded && (f.doubtful || hasAsides(l.cfg.Path))
		if skips {
			l.base = newBase(l.cfg.Now())
		}
		l.loaded = true
		l.mu.Unlock()
		if err := l.create(); err != nil {
			return err
		}
		if skips {
			l.log.Warn("a store file was here before, numbers skip ahead", zap.String("file", l.cfg.Path), zap.Uint64("number", l.base))
		}
		return nil
	}
	l.mu.Lock()
	var damaged [][]byte
	err = f.view(func(tx *transaction) (err error) {
		damaged, err = l.load(tx)
		return err
	})
	if err != nil {
		l.reset()
		l.mu.Unlock()
		return err
	}
	l.findBoot()
	l.loaded = true
	l.mu.Unlock()
	if l.readOnly {
		return nil
	}
	return l.recover(f, damaged)
}

// findBoot sets l.boot, adding the boot of this process if it is new. It goes to disk with the next transaction.
func (l *Log) findBoot() {
	l.boot = uint32(len(l.boots))
	if l.readOnly {
		return
	}
	for i, b := range l.boots {
		if b.id == l.cfg.Boot {
			l.boot = uint32(i)
			return
		}
	}
	l.boots = append(l.boots, boot{id: l.cfg.Boot})
}

// create writes everything that is known into an empty file.
func (l *Log) create() error {
	if err := l.makeRoom(int64(transactionPages + len(l.paths)/4)); err != nil {
		return err
	}
	l.boots[l.boot].onDisk = false
	return l.commit("create", func(tx *transaction) error {
		for _, name := range allBuckets {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		if err := writeNumber(tx, keyFormat, formatVersion); err != nil {
			return err
		}
		if err := writeNumber(tx, keyBase, l.base); err != nil {
			return err
		}
		for _, p := range l.paths[1:] {
			if err := putPath(tx, p); err != nil {
				return err
			}
		}
		for _, s := range l.sinks {
			change := changeOf(s)
			for id, at := range s.position {
				if at != nil {
					change.positions[PathID(id)] = at.next
				}
			}
			if err := l.putSinks(tx, []*sinkChange{change}); err != nil {
				return err
			}
		}
		return nil
	})
}

func writeNumber(tx *transaction, key []byte, n uint64) error {
	return tx.Bucket(bucketMeta).Put(key, seal(bucketMeta, key, binary.AppendUvarint(nil, n)))
}

func readNumber(tx *transaction, key []byte) (uint64, error) {
	for _, name := range allBuckets {
		if tx.Bucket(name) == nil {
			return 0, fmt.Errorf("%w: no bucket %s", ErrCorrupt, name)
		}
	}
	payload, err := unseal(bucketMeta, key, tx.Bucket(bucketMeta).Get(key))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", key, corrupt(err))
	}
	in := &cursor{rest: payload}
	n := in.uvarint()
	return n, corrupt(in.err())
}

// load reads all but chunks and sinks' values. It returns the keys of damaged tail values.
func (l *Log) load(tx *transaction) (damaged [][]byte, err error) {
	if l.base, err = readNumber(tx, keyBase); err != nil {
		return nil, err
	}
	if err := l.loadBoots(tx); err != nil {
		return nil, err
	}
	if err := l.loadPaths(tx); err != nil {
		return nil, err
	}
	if err := l.loadSinks(tx); err != nil {
		return nil, err
	}
	return l.loadTail(tx)
}

func (l *Log) loadPaths(tx *transaction) error {
	chunks := tx.Bucket(bucketChunks).Cursor()
	err := tx.Bucket(bucketPaths).ForEach(func(k, v []byte) error {
		payload, err := unseal(bucketPaths, k, v)
		if err == nil && (len(k) != 4 || int64(binary.BigEndian.Uint32(k)) != int64(len(l.paths))) {
			err = errDamaged
		}
		if err != nil {
			return fmt.Errorf("path %x: %w", k, corrupt(err))
		}
		p, err := parsePath(PathID(len(l.paths)), payload)
		if err != nil {
			return fmt.Errorf("path %d: %w", len(l.paths), corrupt(err))
		}
		if head, _, _ := openChunk(chunks.Seek(chunkKey(p.ID, 0))); head.path == p.ID {
			p.first = min(head.first, p.folded)
		}
		p.lost = addLost(p.lost, p.first)
		p.fixed = pruneSegments(p.fixed, p.first)
		l.paths = append(l.paths, p)
		l.names[p.Name] = p
		return nil
	})
	if err != nil {
		return err
	}
	return checkCount(tx.Bucket(bucketPaths), len(l.paths)-1)
}

// recover brings a file that was just loaded into order: the tail is folded; if something of it was damaged, or the last transaction may
// be gone with its meta page, numbers go on where none can have been used, and what was lost is counted.
func (l *Log) recover(f *file, damaged [][]byte) error {
	if err := l.makeRoom(transactionPages); err != nil && !errors.Is(err, ErrNoSpace) {
		return err
	}
	for from := 1; ; from += foldPaths {
		end := min(from+foldPaths, len(l.paths))
		last := end == len(l.paths)
		paths := l.paths[min(from, end):end]
		upTo := l.tailNext
		if len(damaged) > 0 {
			upTo = l.tailFirst // the damaged values are moved below
		}
		if err := l.foldPaths(paths, upTo, last); errors.Is(err, ErrNoSpace) && len(damaged) == 0 && !f.doubtful && !l.behind() {
			return nil // the tail can wait until there is room
		} else if err != nil {
			return err
		}
		if last {
			break
		}
	}
	if len(damaged) > 0 || f.doubtful || l.behind() {
		return l.skipAhead(damaged)
	}
	return nil
}

// behind reports whether a sink waits for samples older than the oldest: their chunk is gone, and not because it was dropped.
func (l *Log) behind() bool {
	for _, s := range l.sinks {
		for _, p := range l.paths[1:] {
			if at := s.at(p.ID); at != nil && at.next < p.first {
				return true
			}
		}
	}
	return false
}

// skipAhead moves the next number of every path, its tail folded, to one that cannot have been used, keeps the damaged tail values for
// analysis, and counts what the sinks lost.
func (l *Log) skipAhead(damaged [][]byte) error {
	base := newBase(l.cfg.Now())
	var paths []*path
	for _, p := range l.paths[1:] {
		updated := *p
		updated.next = max(p.next, base)
		for _, s := range l.sinks {
			if at := s.at(p.ID); at != nil {
				updated.next = max(updated.next, at.next)
			}
		}
		updated.lost = addLost(p.lost, p.first, span{p.next, updated.next})
		updated.folded = updated.next
		if p.first == p.next {
			updated.first, updated.lost = updated.next, nil
		}
		paths = append(paths, &updated)
	}
	var changes []*sinkChange
	lost := map[string]uint64{}
	for _, s := range l.sinks {
		c := changeOf(s)
		known := c.totals.accounted()
		for _, p := range paths {
			if at := s.at(p.ID); at != nil {
				known += p.count(at.next, p.next)
				if at.next < p.first {
					c.positions[p.ID] = p.first
				}
			}
		}
		if known < c.totals.offered {
			lost[s.name] = c.totals.offered - known
			c.totals.dropped[reasonCorrupt] += lost[s.name]
		}
		changes = append(changes, c)
	}
	err := l.commit("recover", func(tx *transaction) error {
		if err := keepDamaged(tx, l.cfg.Now(), bucketTail, damaged); err != nil {
			return err
		}
		if err := deleteTail(tx, l.tailNext); err != nil {
			return err
		}
		for _, p := range paths {
			if err := putPath(tx, p); err != nil {
				return err
			}
		}
		if err := writeNumber(tx, keyBase, base); err != nil {
			return err
		}
		return l.putSinks(tx, changes)
	})
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.base, l.tailFirst = base, l.tailNext
	for _, p := range paths {
		*l.paths[p.ID] = *p
	}
	l.applySinks(changes)
	l.log.Error("store file was damaged, numbers skip ahead", zap.String("file", l.cfg.Path),
		zap.Int("damaged_values", len(damaged)), zap.Any("samples", lost), zap.Uint64("number", base))
	return nil
}

// unsetBase is where numbers begin at the least if the wall clock is not set: beyond all that a clock will say, and below 2^53 so that
// every JSON reader can take it.
const unsetBase = 1 << 51

// newBase returns a number for the next sample of each path that none had before, when nothing is known of those that were used: the
// wall clock's milliseconds, as no path is measured more than once in one. With a clock that is not set a random number has to do.
func newBase(now time.Time) uint64 {
	if now.Before(floor) {
		return unsetBase + rand.Uint64N(unsetBase)
	}
	return uint64(now.UnixMilli())
}
