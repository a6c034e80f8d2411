// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"
)

// floor is the build date: a wall clock before it has not been set yet, and a time before it is not known.
var floor = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	// offsetNoise is what an offset may move without being taken for a new one. Reading two clocks one after the other is not exact, and
	// every new offset costs a segment per path and a page per commit.
	offsetNoise = 100 * time.Microsecond
	// clockStep is a move of the offset that is a step of the wall clock.
	clockStep = 5 * time.Millisecond
	// steady is how long the clock must have been synchronized without a step before anything is deleted by its age.
	steady = time.Hour
)

// Offset is the difference of the wall clock to CLOCK_MONOTONIC: wall = mono + Nanoseconds.
type Offset struct {
	Nanoseconds  int64
	Synchronized bool // the wall clock was disciplined by NTP or PTP
}

// offset is an Offset that may not be known at all (the zero value).
type offset struct {
	Offset
	known bool
}

// wall returns the wall time of mono, zero if it is not known.
func (o offset) wall(mono int64) time.Time {
	if !o.known {
		return time.Time{}
	}
	if t := time.Unix(0, mono+o.Nanoseconds).UTC(); !t.Before(floor) {
		return t
	}
	return time.Time{}
}

const (
	flagKnown        = 0x01
	flagSynchronized = 0x02
)

func appendOffset(b []byte, o offset) []byte {
	var flags byte
	if o.known {
		flags |= flagKnown
	}
	if o.Synchronized {
		flags |= flagSynchronized
	}
	return binary.AppendVarint(append(b, flags), o.Nanoseconds)
}

func parseOffset(in *cursor) offset {
	flags := in.byte()
	return offset{known: flags&flagKnown != 0, Offset: Offset{Synchronized: flags&flagSynchronized != 0, Nanoseconds: in.varint()}}
}

// boot is one boot of the machine. Its number in the file is its index in Log.boots, which grows with time.
type boot struct {
	id     string
	offset offset // best known
	stored offset // what of it is on disk
	onDisk bool
}

func putBoot(tx *transaction, number uint32, b boot) error {
	key := []byte(b.id)
	payload := appendOffset(binary.AppendUvarint(nil, uint64(number)), b.offset)
	return putCounted(tx.Bucket(bucketBoots), key, seal(bucketBoots, key, payload))
}

// SetOffset tells the best known offset of the wall clock of this boot. All samples of the boot that no sink has taken yet are dated with
// it; an unsynchronized one does not replace a synchronized one. It is written with the next Append. Call it whenever the clock was
// looked at: deletion by age waits until an hour has passed without a step.
func (l *Log) SetOffset(o Offset) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clock.tell(o, l.cfg.Now())
	if int(l.boot) >= len(l.boots) {
		return // a read-only log has no boot of its own
	}
	best := &l.boots[l.boot].offset
	if best.known && best.Synchronized && !o.Synchronized {
		return
	}
	if best.known && best.Synchronized == o.Synchronized && apart(best.Nanoseconds, o.Nanoseconds) < offsetNoise {
		return
	}
	*best = offset{Offset: o, known: true}
}

func apart(a, b int64) time.Duration {
	if a < b {
		a, b = b, a
	}
	return time.Duration(a - b)
}

// clock judges the wall clock by what SetOffset told.
type clock struct {
	told  bool
	last  Offset
	since time.Time // synchronized and without a step
}

func (c *clock) tell(o Offset, now time.Time) {
	if !c.told || !c.last.Synchronized || apart(c.last.Nanoseconds, o.Nanoseconds) > clockStep {
		c.since = now
	}
	c.told, c.last = true, o
}

// steady reports whether samples may be deleted by their age.
func (c *clock) steady(now time.Time) bool {
	return c.told && c.last.Synchronized && now.Sub(c.since) >= steady
}

// segment fixes the times of the samples of one boot with numbers below to: a sink has taken one of them, so all readers are to see the
// time that it saw, whatever is learned about the clock later.
type segment struct {
	to     uint64
	boot   uint32
	offset offset
}

// appendSegment adds s behind the others, merged with the last one if they say the same.
func appendSegment(fixed []segment, s segment) []segment {
	if n := len(fixed); n > 0 && fixed[n-1].boot == s.boot && fixed[n-1].offset == s.offset {
		fixed[n-1].to = s.to
		return fixed
	}
	return append(fixed, s)
}

// pruneSegments leaves out the segments whose samples are all gone.
func pruneSegments(fixed []segment, first uint64) []segment {
	return fixed[segmentAt(fixed, first):]
}

// segmentAt returns the index of the first segment that may hold number n.
func segmentAt(fixed []segment, n uint64) int {
	i, _ := slices.BinarySearchFunc(fixed, n, func(s segment, n uint64) int {
		if s.to <= n {
			return -1
		}
		return 1
	})
	return i
}

// best returns the best known offset of a boot.
func (l *Log) best(boot uint32) offset {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if int(boot) < len(l.boots) {
		return l.boots[boot].offset
	}
	return offset{}
}

// offsetOf returns the offset to date a sample of p with: the fixed one, or the best of its boot. The caller holds l.mu.
func (l *Log) offsetOf(p *path, number uint64, boot uint32) (o offset, fixed bool) {
	for _, s := range p.fixed[segmentAt(p.fixed, number):] {
		if s.boot == boot {
			return s.offset, true
		}
	}
	if int(boot) < len(l.boots) {
		o = l.boots[boot].offset
	}
	return o, false
}

// date fills in the times of samples, which lie in the given runs, and returns the segments that dated those whose time is not fixed yet.
func (l *Log) date(p *path, samples []Sample, runs []bootRun) (used []segment) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	i := 0
	for _, r := range runs {
		for ; i < r.end; i++ {
			s := &samples[i]
			o, fixed := l.offsetOf(p, s.Seq, r.boot)
			s.Time = o.wall(s.Mono)
			if !fixed {
				used = appendSegment(used, segment{to: s.Seq + 1, boot: r.boot, offset: o})
			}
		}
	}
	return used
}

// fix returns p's segments extended to number to: what a sink moves over has been seen with the times that used names or, where used
// says nothing, with the best offset. The range that is not fixed yet begins at from.
func (l *Log) fix(tx *transaction, p *path, from, to uint64, used []segment) ([]segment, error) {
	if n := len(p.fixed); n > 0 {
		from = max(from, p.fixed[n-1].to)
	}
	if from >= to {
		return p.fixed, nil
	}
	boots, err := bootsOf(tx, p, from, to)
	if err != nil {
		return nil, err
	}
	fixed := slices.Clone(p.fixed)
	for _, part := range boots {
		for _, u := range used {
			if u.boot == part.boot && u.to > from && from < part.to {
				from = min(u.to, part.to)
				fixed = appendSegment(fixed, segment{to: from, boot: part.boot, offset: u.offset})
			}
		}
		if from < part.to {
			from = part.to
			fixed = appendSegment(fixed, segment{to: from, boot: part.boot, offset: l.best(part.boot)})
		}
	}
	return fixed, nil
}

// bootsOf returns which boots wrote the samples of p in [from, to), as segments without offsets.
func bootsOf(tx *transaction, p *path, from, to uint64) (boots []segment, err error) {
	if from < p.folded {
		chunks := tx.Bucket(bucketChunks).Cursor()
		for k, v := seekChunk(chunks, p.ID, from); k != nil; k, v = chunks.Next() {
			head, _, err := openChunk(k, v)
			if head.path != p.ID || head.first >= to {
				break
			}
			if err != nil {
				continue // lost; whoever reads it finds out
			}
			boots = appendSegment(boots, segment{to: min(head.end(), to), boot: head.boot})
		}
	}
	for _, r := range p.tail {
		if r.first < to && r.end() > from {
			boots = appendSegment(boots, segment{to: min(r.end(), to), boot: r.boot})
		}
	}
	return boots, nil
}

// loadBoots reads the boots bucket.
func (l *Log) loadBoots(tx *transaction) error {
	n := 0
	err := tx.Bucket(bucketBoots).ForEach(func(k, v []byte) error {
		n++
		payload, err := unseal(bucketBoots, k, v)
		if err != nil {
			return fmt.Errorf("boot %q: %w", k, corrupt(err))
		}
		in := &cursor{rest: payload}
		number := in.uvarint()
		b := boot{id: string(k), offset: parseOffset(in)}
		b.stored, b.onDisk = b.offset, true
		if err := in.err(); err != nil || number > maxBoots {
			return fmt.Errorf("boot %q: %w", k, corrupt(err))
		}
		for uint64(len(l.boots)) <= number {
			l.boots = append(l.boots, boot{})
		}
		l.boots[number] = b
		return nil
	})
	if err != nil {
		return err
	}
	return checkCount(tx.Bucket(bucketBoots), n)
}

// maxBoots is far more than any machine boots; a larger number is damage.
const maxBoots = 1 << 24
