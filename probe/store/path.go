// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"errors"
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
	paths, err := l.RegisterAll([]Path{{Name: name, Labels: labels}})
	if err != nil {
		return Path{}, err
	}
	return paths[0], nil
}

// registerAtOnce bounds one transaction of RegisterAll, in paths, so that others do not wait for thousands of them.
const registerAtOnce = 256

// RegisterAll is Register for many paths, in few transactions; it fills in their IDs. After an error some of them may be registered.
func (l *Log) RegisterAll(wanted []Path) ([]Path, error) {
	registered := make([]Path, 0, len(wanted))
	for some := range slices.Chunk(wanted, registerAtOnce) {
		paths, err := l.register(some)
		if err != nil {
			if len(some) == 1 {
				return nil, fmt.Errorf("register path %s: %w", some[0].Name, err)
			}
			return nil, fmt.Errorf("register paths %s to %s: %w", some[0].Name, some[len(some)-1].Name, err)
		}
		registered = append(registered, paths...)
	}
	return registered, nil
}

func (l *Log) register(wanted []Path) ([]Path, error) {
	l.write.Lock()
	defer l.write.Unlock()
	if slices.ContainsFunc(wanted, func(p Path) bool { return p.Name == "" }) {
		return nil, errors.New("no name")
	}
	if l.usable() != nil || len(l.unregistered(wanted)) > 0 {
		if err := l.update(wanted); err != nil {
			return nil, err
		}
	}
	registered := make([]Path, len(wanted))
	for i, w := range wanted {
		registered[i] = l.names[w.Name].public()
	}
	return registered, nil
}

// update makes the wanted paths what they are to be. The caller holds l.write.
func (l *Log) update(wanted []Path) error {
	if err := l.prepare(transactionPages + l.pathPages(len(wanted)) + len(wanted)/4); err != nil {
		return err
	}
	updated := l.unregistered(wanted)
	if int64(len(l.paths)+len(updated)) > math.MaxUint32 {
		return errors.New("too many paths")
	}
	changes := l.subscribe(updated)
	err := l.commit("register", func(tx *transaction) error {
		for _, p := range updated {
			if err := putPath(tx, p); err != nil {
				return err
			}
		}
		return l.putSinks(tx, changes)
	})
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, u := range updated {
		if p := l.names[u.Name]; p != nil {
			p.Labels = u.Labels
			continue
		}
		l.paths = append(l.paths, u)
		l.names[u.Name] = u
	}
	l.applySinks(changes)
	return nil
}

// unregistered returns what the wanted paths that are new or have other labels are to become. The caller holds l.write.
func (l *Log) unregistered(wanted []Path) (updated []*path) {
	id := PathID(len(l.paths))
	seen := make(map[string]bool, len(wanted))
	for _, w := range wanted {
		p := l.names[w.Name]
		if seen[w.Name] || p != nil && maps.Equal(p.Labels, w.Labels) {
			continue
		}
		seen[w.Name] = true
		u := &path{Path: Path{ID: id, Name: w.Name}, first: l.base, folded: l.base, next: l.base}
		if p != nil {
			*u = *p
		} else {
			id++
		}
		u.Labels = maps.Clone(w.Labels)
		updated = append(updated, u)
	}
	return updated
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
