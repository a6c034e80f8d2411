// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
)

const (
	// maxAsides files are set aside within asideWindow, no more: if new files go bad at once too, it is the disk or this program, and one
	// file after the other would only fill the disk.
	maxAsides   = 5
	asideWindow = time.Hour

	// maxDamaged is how many damaged values a file keeps for analysis.
	maxDamaged = 64
)

// corrupt makes a damaged value that nothing can do without an ErrCorrupt.
func corrupt(err error) error {
	if errors.Is(err, errDamaged) {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return err
}

// aside is a file that was set aside.
type aside struct {
	name string
	at   time.Time
}

// mayBegin returns an error if too many files were set aside lately to begin another one.
func (l *Log) mayBegin() error {
	if n := len(l.cfg.History.asides); n >= maxAsides && l.cfg.Now().Sub(l.cfg.History.asides[n-maxAsides].at) < asideWindow {
		return fmt.Errorf("%w: %d files set aside within %v, waiting", ErrCorrupt, maxAsides, asideWindow)
	}
	return nil
}

// setAside puts f, in which cause was found, out of the way. The next transaction begins a new file. The caller holds l.write.
func (l *Log) setAside(f *file, cause error) {
	if l.file != f || l.readOnly {
		return // done already, or not ours
	}
	if samePlace(l.cfg.Path, f.os) {
		l.moveAside(cause)
	} else {
		l.trouble(troubleElsewhere, nil, zap.Error(cause))
	}
	if err := f.close(); err != nil {
		l.trouble(troubleClose, nil, zap.Error(err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.file, l.resume = nil, nil
	l.forget()
}

// moveAside renames the file at the configured path, which this process has locked, and remembers it.
func (l *Log) moveAside(cause error) {
	if l.readOnly {
		return
	}
	now := l.cfg.Now()
	name, err := moveAside(l.cfg.Path, now)
	fields := []zap.Field{zap.NamedError("cause", cause)}
	what, stays := troubleAside, troubleStays
	var p *panicError
	if errors.As(cause, &p) { // its first stack is to be in the log
		what, stays = what.because("panic"), stays.because("panic")
		fields = append(fields, zap.ByteString("stack", p.stack))
		l.mu.Lock()
		l.cfg.History.panics++
		l.mu.Unlock()
	}
	if err != nil {
		l.trouble(stays, nil, append(fields, zap.Error(err))...)
		return
	}
	l.trouble(what, nil, append(fields, zap.String("set_aside", name))...)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cfg.History.asides = append(l.cfg.History.asides, aside{name: name, at: now})
}

// forget turns what is known into the beginning of a new file: the paths and sinks stay, their samples are gone and counted, numbers go
// on beyond all that were used.
func (l *Log) forget() {
	if !l.loaded {
		return
	}
	l.base = newBase(l.cfg.Now())
	l.tailFirst, l.tailNext = 0, 0
	for _, p := range l.paths[1:] {
		start := max(l.base, p.next)
		for _, s := range l.sinks {
			if at := s.at(p.ID); at != nil {
				if n := p.count(at.next, p.next); n > 0 {
					s.totals = s.totals.clone()
					s.totals.dropped[reasonCorrupt] += n
				}
				*at = position{next: start, seen: start}
			}
		}
		p.first, p.folded, p.next = start, start, start
		p.tail, p.lost, p.fixed, p.head = nil, nil, nil, nil
	}
}

// repair finds out which chunks of a path are damaged or missing. Their samples are given up and counted, the rest stays; the damaged
// bytes are kept in the file for analysis. The caller does not hold l.write.
func (l *Log) repair(p *path) error {
	l.write.Lock()
	defer l.write.Unlock()
	if l.closed {
		return ErrClosed
	}
	if err := l.attach(); err != nil {
		return err
	}
	return l.repairLocked(p)
}

func (l *Log) repairLocked(p *path) error {
	var damaged [][]byte
	updated := *p
	err := l.file.view(func(tx *transaction) error {
		damaged, updated.lost = scanChunks(tx, p)
		return nil
	})
	if err != nil {
		if errors.Is(err, ErrCorrupt) {
			l.setAside(l.file, err)
		}
		return err
	}
	if len(damaged) == 0 && slices.Equal(updated.lost, p.lost) {
		return nil // it was deleted while somebody looked for it
	}
	updated.first = updated.seek(p.first)
	updated.lost = addLost(updated.lost, updated.first)
	updated.head = nil
	changes := l.lose(p, &updated)
	if !l.readOnly {
		err := l.commit("repair", func(tx *transaction) error {
			if err := keepDamaged(tx, l.cfg.Now(), bucketChunks, damaged); err != nil {
				return err
			}
			if err := putPath(tx, &updated); err != nil {
				return err
			}
			return l.putSinks(tx, changes)
		})
		if err != nil {
			return fmt.Errorf("repair path %s: %w", p.Name, err)
		}
	}
	gone := p.count(p.first, p.next) - updated.count(updated.first, updated.next)
	l.trouble(troubleDamage, map[string]uint64{p.Name: gone}, zap.String("path", p.Name), zap.Int("damaged_values", len(damaged)))
	l.mu.Lock()
	defer l.mu.Unlock()
	*p = updated
	l.applySinks(changes)
	return nil
}

// scanChunks returns the keys of the damaged chunks of a path and all its holes.
func scanChunks(tx *transaction, p *path) (damaged [][]byte, lost []span) {
	var holes []span
	expect := p.first
	c := tx.Bucket(bucketChunks).Cursor()
	for k, v := c.Seek(chunkKey(p.ID, 0)); k != nil; k, v = c.Next() {
		head, coded, err := openChunk(k, v)
		if head.path != p.ID {
			break
		}
		if err == nil {
			_, err = decode(nil, head.first, head.n, coded, 0, maxRun)
		}
		if err != nil {
			damaged = append(damaged, append([]byte(nil), k...))
			continue
		}
		if head.first > expect {
			holes = append(holes, span{expect, head.first})
		}
		expect = max(expect, head.end())
	}
	if expect < p.folded {
		holes = append(holes, span{expect, p.folded})
	}
	return damaged, addLost(p.lost, p.first, holes...)
}

// lose returns what the sinks lose when path p becomes updated.
func (l *Log) lose(p, updated *path) (changes []*sinkChange) {
	for _, s := range l.sinks {
		at := s.at(p.ID)
		if at == nil {
			continue
		}
		c := changeOf(s)
		if n := p.count(at.next, p.next) - updated.count(at.next, updated.next); n > 0 {
			c.drop(p.ID, n, reasonCorrupt)
		}
		if at.next < updated.first {
			c.positions[p.ID] = updated.first
		}
		changes = append(changes, c)
	}
	return changes
}

// keepDamaged moves values of a bucket into the damaged bucket, which keeps the last few.
func keepDamaged(tx *transaction, now time.Time, bucket []byte, keys [][]byte) error {
	from, to := tx.Bucket(bucket), tx.Bucket(bucketDamaged)
	for _, k := range keys {
		if len(k) == 0 {
			continue // nothing is left of it
		}
		n, err := to.NextSequence()
		if err != nil {
			return err
		}
		record := binary.AppendVarint(nil, now.Unix())
		record = appendText(appendText(record, string(bucket)), string(k))
		record = append(record, from.Get(k)...)
		if err := to.Put(key64(n), record); err != nil {
			return err
		}
		if n > maxDamaged {
			if err := to.Delete(key64(n - maxDamaged)); err != nil {
				return err
			}
		}
		if err := from.Delete(k); err != nil {
			return err
		}
	}
	return nil
}
