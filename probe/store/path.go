// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
)

// path is what the process knows of one path. Fields change only with Log.write and Log.mu both held; so whoever holds one of them may
// read. Numbers in [first, folded) are in chunks, those in [folded, next) in the tail.
type path struct {
	Path
	first  uint64 // oldest stored number; next if there is none
	folded uint64
	next   uint64 // number of the next sample

	tail  []*run
	lost  []span    // numbers within [first, next) that hold no sample any more
	fixed []segment // times that a sink has seen

	head *chunkHead // of the chunk that begins at first; nil: not read yet
}

// span is the numbers in [from, to).
type span struct{ from, to uint64 }

func (s span) overlap(t span) uint64 {
	from, to := max(s.from, t.from), min(s.to, t.to)
	if from >= to {
		return 0
	}
	return to - from
}

// count returns how many samples have numbers in [from, to).
func (p *path) count(from, to uint64) uint64 {
	all := span{max(from, p.first), to}
	n := all.overlap(all)
	for _, hole := range p.lost {
		n -= hole.overlap(all)
	}
	return n
}

// seek returns the smallest number from n on that holds a sample, or next.
func (p *path) seek(n uint64) uint64 {
	n = max(n, p.first)
	for _, hole := range p.lost {
		if n >= hole.from && n < hole.to {
			n = hole.to
		}
	}
	return min(n, p.next)
}

// addLost adds holes, keeping the list sorted, merged and within [first, next).
func addLost(holes []span, first uint64, more ...span) []span {
	holes = append(slices.Clone(holes), more...)
	slices.SortFunc(holes, func(a, b span) int {
		if a.from < b.from {
			return -1
		}
		return 1
	})
	merged := holes[:0]
	for _, h := range holes {
		if h.from = max(h.from, first); h.from >= h.to {
			continue
		}
		if n := len(merged); n > 0 && h.from <= merged[n-1].to {
			merged[n-1].to = max(merged[n-1].to, h.to)
			continue
		}
		merged = append(merged, h)
	}
	return merged
}

// record codes the path for the paths bucket; see FORMAT.md.
func (p *path) record() []byte {
	b := binary.AppendUvarint(nil, p.folded)
	b = appendText(b, p.Name)
	b = binary.AppendUvarint(b, uint64(len(p.Labels)))
	for _, k := range slices.Sorted(maps.Keys(p.Labels)) {
		b = appendText(appendText(b, k), p.Labels[k])
	}
	lost := addLost(p.lost, p.first)
	b = binary.AppendUvarint(b, uint64(len(lost)))
	for _, h := range lost {
		b = binary.AppendUvarint(binary.AppendUvarint(b, h.from), h.to)
	}
	fixed := pruneSegments(p.fixed, p.first)
	b = binary.AppendUvarint(b, uint64(len(fixed)))
	for _, s := range fixed {
		b = binary.AppendUvarint(binary.AppendUvarint(b, s.to), uint64(s.boot))
		b = appendOffset(b, s.offset)
	}
	return b
}

func parsePath(id PathID, payload []byte) (*path, error) {
	in := &cursor{rest: payload}
	p := &path{Path: Path{ID: id}}
	p.folded = in.uvarint()
	p.Name = in.text()
	for n := in.uvarint(); n > 0 && !in.broken; n-- {
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		key := in.text()
		p.Labels[key] = in.text()
	}
	for n := in.uvarint(); n > 0 && !in.broken; n-- {
		p.lost = append(p.lost, span{in.uvarint(), in.uvarint()})
	}
	for n := in.uvarint(); n > 0 && !in.broken; n-- {
		p.fixed = append(p.fixed, segment{to: in.uvarint(), boot: uint32(in.uvarint()), offset: parseOffset(in)})
	}
	p.first, p.next = p.folded, p.folded
	return p, in.err()
}

func putPath(tx *transaction, p *path) error {
	key := key32(uint32(p.ID))
	return putCounted(tx.Bucket(bucketPaths), key, seal(bucketPaths, key, p.record()))
}

// Register returns the path with this name, made if it is new; the labels replace those that it had. Both are on disk when it returns.
func (l *Log) Register(name string, labels map[string]string) (Path, error) {
	l.write.Lock()
	defer l.write.Unlock()
	if name == "" {
		return Path{}, fmt.Errorf("register path: no name")
	}
	if p := l.names[name]; p != nil && maps.Equal(p.Labels, labels) && l.usable() == nil {
		return p.public(), nil
	}
	if err := l.prepare(transactionPages); err != nil {
		return Path{}, fmt.Errorf("register path %s: %w", name, err)
	}
	p := l.names[name]
	updated := path{Path: Path{Name: name, Labels: maps.Clone(labels)}}
	if p != nil {
		updated = *p
		updated.Labels = maps.Clone(labels)
	} else {
		if len(l.paths) > math.MaxUint32 {
			return Path{}, fmt.Errorf("register path %s: too many paths", name)
		}
		updated.ID = PathID(len(l.paths))
		updated.first, updated.folded, updated.next = l.base, l.base, l.base
	}
	changes := l.subscribe(&updated)
	err := l.commit("register", func(tx *transaction) error {
		if err := putPath(tx, &updated); err != nil {
			return err
		}
		return l.putSinks(tx, changes)
	})
	if err != nil {
		return Path{}, fmt.Errorf("register path %s: %w", name, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if p != nil {
		p.Labels = updated.Labels
	} else {
		p = &updated
		l.paths = append(l.paths, p)
		l.names[name] = p
	}
	l.applySinks(changes)
	return p.public(), nil
}

// Paths returns every path that was ever registered, by ID.
func (l *Log) Paths() ([]Path, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return nil, ErrClosed
	}
	all := make([]Path, 0, len(l.paths))
	for _, p := range l.paths[1:] {
		all = append(all, p.public())
	}
	return all, nil
}

func (p *path) public() Path { return Path{ID: p.ID, Name: p.Name, Labels: maps.Clone(p.Labels)} }

// path returns the path with this ID. The caller holds l.write or l.mu.
func (l *Log) path(id PathID) (*path, error) {
	if id == 0 || int64(id) >= int64(len(l.paths)) {
		return nil, fmt.Errorf("path %d: %w", id, ErrUnknownPath)
	}
	return l.paths[id], nil
}
