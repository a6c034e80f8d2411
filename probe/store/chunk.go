// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

const (
	// maxRun is the most samples that one chunk holds.
	maxRun = 256
	// foldPaths is how many paths one transaction folds, so that with thousands of paths an Append does not wait for all of them.
	foldPaths = 512
)

// run is consecutive samples of one path and one boot, coded. On disk it is a chunk; in memory it holds what the tail has of the path.
type run struct {
	first    uint64
	n        int
	boot     uint32
	lastMono int64
	coder    coder
	data     []byte
}

func (r *run) end() uint64 { return r.first + uint64(r.n) }

// appendSample adds the sample with number r.end() to the last run, or to a new one if it does not belong there.
func appendSample(runs []*run, number uint64, boot uint32, s *Sample) []*run {
	var last *run
	if len(runs) > 0 {
		last = runs[len(runs)-1]
	}
	if last == nil || last.boot != boot || last.end() != number || last.full() {
		last = &run{first: number, boot: boot}
		runs = append(runs, last)
	}
	last.data = last.coder.append(last.data, s)
	last.n++
	last.lastMono = s.Mono
	return runs
}

func (r *run) full() bool { return r.n >= maxRun || len(r.data)+maxSampleSize+chunkOverhead > maxValue }

// chunkOverhead is the most bytes of a chunk that are not samples: three varints and the checksum.
const chunkOverhead = 3*binary.MaxVarintLen64 + 4

// chunkHead is what a chunk says about itself.
type chunkHead struct {
	path     PathID
	first    uint64
	n        uint64
	boot     uint32
	lastMono int64
}

func (h chunkHead) end() uint64 { return h.first + h.n }

func chunkKey(id PathID, first uint64) []byte { return append(key32(uint32(id)), key64(first)...) }

func (r *run) chunk(id PathID) (key, value []byte) {
	key = chunkKey(id, r.first)
	payload := binary.AppendUvarint(nil, uint64(r.boot))
	payload = binary.AppendUvarint(payload, uint64(r.n))
	payload = binary.AppendVarint(payload, r.lastMono)
	return key, seal(bucketChunks, key, append(payload, r.data...))
}

// openChunk returns the head of a chunk and its coded samples (not a copy). With errDamaged the head still says what the key says.
func openChunk(key, value []byte) (head chunkHead, samples []byte, err error) {
	var padded [12]byte
	copy(padded[:], key)
	head.path, head.first = PathID(binary.BigEndian.Uint32(padded[:])), binary.BigEndian.Uint64(padded[4:])
	payload, err := unseal(bucketChunks, key, value)
	if err != nil || len(key) != len(padded) {
		return head, nil, errDamaged
	}
	in := &cursor{rest: payload}
	head.boot, head.n, head.lastMono = uint32(in.uvarint()), in.uvarint(), in.varint()
	if head.n == 0 || head.n > maxRun || head.end() < head.first {
		return head, nil, errDamaged
	}
	return head, in.rest, in.err()
}

// seekChunk moves c to the chunk that holds number n of the path, or to the one after it.
func seekChunk(c *keyCursor, id PathID, n uint64) (key, value []byte) {
	if n < math.MaxUint64 {
		if k, v := c.Before(chunkKey(id, n+1)); k != nil {
			if head, _, err := openChunk(k, v); head.path == id && (err != nil || head.end() > n) {
				return k, v
			}
		}
	}
	return c.Seek(chunkKey(id, n))
}

// decode appends the samples of a run to dst, without those below from and at most until it holds limit.
func decode(dst []Sample, first, n uint64, coded []byte, from uint64, limit int) ([]Sample, error) {
	in := &cursor{rest: coded}
	var c coder
	for i := range n {
		s := c.next(in)
		if in.broken {
			return dst, errDamaged
		}
		if s.Seq = first + i; s.Seq >= from {
			if len(dst) == limit {
				return dst, nil
			}
			dst = append(dst, s)
		}
	}
	return dst, nil
}

// bootRun says that the samples up to index end were written by this boot.
type bootRun struct {
	boot uint32
	end  int
}

// Read returns up to limit samples of a path in order, from the first one whose number is at least from. Numbers that retention deleted
// are skipped. It is safe for concurrent use, holds no transaction for longer than it takes to copy one chunk, and delays no Append.
func (l *Log) Read(id PathID, from uint64, limit int) ([]Sample, error) {
	l.mu.RLock()
	p, err := l.path(id)
	l.mu.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	samples, runs, err := l.read(p, from, limit)
	if err != nil {
		return nil, fmt.Errorf("read path %s: %w", p.Name, err)
	}
	l.date(p, samples, runs)
	return samples, nil
}

// read is Read without times.
func (l *Log) read(p *path, from uint64, limit int) (samples []Sample, runs []bootRun, err error) {
	repaired := false
	for len(samples) < limit {
		l.mu.RLock()
		from = p.seek(from)
		next, folded, closed, f := p.next, p.folded, l.closed, l.file
		var tail []run
		if from >= folded {
			for _, r := range p.tail {
				if r.end() > from {
					tail = append(tail, *r) // appending to the tail later does not change what the copy sees
				}
			}
		}
		l.mu.RUnlock()
		if closed {
			return nil, nil, ErrClosed
		}
		if from >= next {
			break
		}
		if from >= folded {
			for _, r := range tail {
				if samples, err = decode(samples, r.first, uint64(r.n), r.data, from, limit); err != nil {
					return nil, nil, err
				}
				runs = append(runs, bootRun{r.boot, len(samples)})
			}
			break
		}
		head, coded, err := l.readChunk(p.ID, from)
		if err == nil {
			samples, err = decode(samples, head.first, head.n, coded, from, limit)
		}
		if errors.Is(err, errDamaged) && !repaired {
			if err := l.repair(p); err != nil {
				return nil, nil, err
			}
			repaired = true
			continue
		}
		if errors.Is(err, errDamaged) { // the tree is out of order: what one finds by key is not what one finds in line
			err = corrupt(err)
			l.write.Lock()
			l.setAside(f, err)
			l.write.Unlock()
		}
		if err != nil {
			return nil, nil, err
		}
		repaired = false
		runs = append(runs, bootRun{head.boot, len(samples)})
		from = head.end()
	}
	return samples, runs, nil
}

// readChunk copies the chunk that holds number n out of the file. None there is errDamaged too.
func (l *Log) readChunk(id PathID, n uint64) (head chunkHead, coded []byte, err error) {
	err = l.view("read", func(tx *transaction) error {
		k, v := seekChunk(tx.Bucket(bucketChunks).Cursor(), id, n)
		if k == nil {
			return errDamaged
		}
		var err error
		if head, coded, err = openChunk(k, v); err != nil {
			return err
		}
		if head.path != id || head.first > n || head.end() <= n {
			return errDamaged
		}
		coded = slices.Clone(coded)
		return nil
	})
	return head, coded, err
}

// fold moves the samples of the tail into chunks, filling up the last chunk of a path first. It takes l.write for some paths at a time;
// whatever is in a chunk already is ignored in the tail, so it may stop in between.
func (l *Log) fold() error {
	l.write.Lock()
	upTo := l.tailNext
	l.write.Unlock()
	for from := 1; ; from += foldPaths {
		l.write.Lock()
		end := min(from+foldPaths, len(l.paths))
		last := end == len(l.paths)
		err := l.usable()
		if err == nil {
			err = l.prepare(l.foldPages(l.paths[from:end]))
		}
		if err == nil {
			err = l.foldPaths(l.paths[from:end], upTo, last)
		}
		l.write.Unlock()
		if err != nil || last {
			return err
		}
	}
}

// foldPages estimates how many pages folding these paths writes: those of their records, and for each the page of the chunk that is
// filled up and those of new ones.
func (l *Log) foldPages(paths []*path) int {
	n, chunks := 0, 0
	for _, p := range paths {
		if len(p.tail) > 0 {
			n++
			chunks += len(p.tail)
		}
	}
	return transactionPages + l.pathPages(n) + n + chunks/2
}

// foldPaths folds the tails of some paths in one transaction and, with the last of them, deletes the tail values below upTo. The caller
// holds l.write.
func (l *Log) foldPaths(paths []*path, upTo uint64, last bool) error {
	idle := !slices.ContainsFunc(paths, func(p *path) bool { return len(p.tail) > 0 })
	if idle && !(last && l.tailFirst < upTo) {
		return nil
	}
	err := l.commit("fold", func(tx *transaction) error {
		chunks := tx.Bucket(bucketChunks)
		chunks.fill(0.9)
		var samples []Sample // memory for those of one path after the other
		for _, p := range paths {
			if len(p.tail) == 0 {
				continue
			}
			if err := foldPath(chunks, p, &samples); err != nil {
				return err
			}
			folded := *p
			folded.folded = p.next
			if err := putPath(tx, &folded); err != nil {
				return err
			}
		}
		if !last {
			return nil
		}
		return deleteTail(tx, upTo)
	})
	if err != nil {
		return fmt.Errorf("fold: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range paths {
		if len(p.tail) > 0 {
			p.tail, p.folded, p.head = nil, p.next, nil
		}
	}
	if last {
		l.tailFirst = upTo
		l.tailSince = l.cfg.Now()
	}
	return nil
}

func foldPath(chunks *bucket, p *path, samples *[]Sample) error {
	runs := lastChunk(chunks, p, samples)
	for _, r := range p.tail {
		tail, err := decode((*samples)[:0], r.first, uint64(r.n), r.data, 0, r.n)
		if err != nil {
			return err
		}
		for i := range tail {
			runs = appendSample(runs, tail[i].Seq, r.boot, &tail[i])
		}
		*samples = tail
	}
	for _, r := range runs {
		key, value := r.chunk(p.ID)
		if err := chunks.Put(key, value); err != nil {
			return err
		}
	}
	return nil
}

// lastChunk returns the last chunk of p as a run to go on with, none if there is none or it is full or damaged (who reads it finds out).
func lastChunk(chunks *bucket, p *path, samples *[]Sample) (runs []*run) {
	k, v := chunks.Cursor().Before(chunkKey(p.ID, p.folded))
	head, coded, err := openChunk(k, v)
	if err != nil || head.path != p.ID || head.end() != p.tail[0].first || head.boot != p.tail[0].boot {
		return nil
	}
	chunk, err := decode((*samples)[:0], head.first, head.n, coded, 0, maxRun)
	if err != nil {
		return nil
	}
	for i := range chunk {
		runs = appendSample(runs, chunk[i].Seq, head.boot, &chunk[i])
	}
	*samples = chunk
	return runs
}
