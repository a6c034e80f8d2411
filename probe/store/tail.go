// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Append stores a batch in one transaction and numbers its samples. It is durable when Append returns nil; on an error nothing of it is
// stored and no number is used, so the same batch can be given again. errors.Is tells the full disk (ErrNoSpace: Append has already
// dropped the oldest samples if that could help) and the damaged file (ErrCorrupt: it was set aside, the next call goes to a new one).
//
// One goroutine appends; the others (readers, sinks) go on meanwhile.
func (l *Log) Append(batch []Record) error {
	l.write.Lock()
	defer l.write.Unlock()
	if err := l.append(batch); err != nil {
		return fmt.Errorf("append %d samples: %w", len(batch), err)
	}
	return nil
}

func (l *Log) append(batch []Record) error {
	if len(batch) == 0 {
		return l.usable()
	}
	if err := l.prepare(transactionPages + len(batch)*tailSampleSize/pageSize); err != nil {
		return err
	}
	numbers, err := l.number(batch)
	if err != nil {
		return err
	}
	values := encodeTail(l.boot, batch, numbers)
	offered := l.offer(batch)
	err = l.commit("append", func(tx *transaction) error {
		tail := tx.Bucket(bucketTail)
		tail.fill(1) // keys only ever grow
		// After a commit that failed half-way the values of the batch may be there, under the same keys: they are replaced.
		for i, v := range values {
			key := key64(l.tailNext + uint64(i))
			if err := tail.Put(key, seal(bucketTail, key, v)); err != nil {
				return err
			}
		}
		if err := tail.SetSequence(l.tailNext + uint64(len(values))); err != nil {
			return err
		}
		return l.putSinks(tx, offered)
	})
	if err != nil {
		return err
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tailFirst == l.tailNext {
		l.tailSince = l.cfg.Now()
	}
	l.tailNext += uint64(len(values))
	for i := range batch {
		p := l.paths[batch[i].Path]
		p.tail = appendSample(p.tail, numbers[i], l.boot, &batch[i].Sample)
		p.next = numbers[i] + 1
	}
	l.applySinks(offered)
	l.recorded += uint64(len(batch))
	close(l.changed)
	l.changed = make(chan struct{})
	return nil
}

// tailSampleSize is a generous estimate of the bytes that one sample takes in the tail.
const tailSampleSize = 32

// number checks the batch and returns the number of each of its samples.
func (l *Log) number(batch []Record) ([]uint64, error) {
	numbers := make([]uint64, len(batch))
	next := make([]uint64, len(l.paths)) // how many samples of the path came before in the batch
	for i := range batch {
		p, err := l.path(batch[i].Path)
		if err != nil {
			return nil, err
		}
		if err := batch[i].Sample.validate(); err != nil {
			return nil, fmt.Errorf("path %s: %w", p.Name, err)
		}
		numbers[i] = p.next + next[p.ID]
		next[p.ID]++
	}
	return numbers, nil
}

// encodeTail codes a batch into as few values as maxValue allows. Each can be read by itself.
func encodeTail(boot uint32, batch []Record, numbers []uint64) (values [][]byte) {
	const most = maxSampleSize + 2*binary.MaxVarintLen64 + 4 // of one record, and the checksum
	var value []byte
	var c coder
	var path int64
	var number uint64
	for i := range batch {
		if value == nil || len(value)+most > maxValue {
			if value != nil {
				values = append(values, value)
			}
			value = binary.AppendUvarint(make([]byte, 0, maxValue), uint64(boot))
			c, path, number = coder{}, 0, 0
		}
		r := &batch[i]
		value = binary.AppendVarint(value, int64(r.Path)-path)
		value = binary.AppendVarint(value, int64(numbers[i]-number))
		value = c.append(value, &r.Sample)
		path, number = int64(r.Path), numbers[i]
	}
	return append(values, value)
}

// decodeTail calls fn for each sample of a tail value, in the order of the batch.
func decodeTail(payload []byte, fn func(boot uint32, id PathID, s *Sample) error) error {
	in := &cursor{rest: payload}
	boot := uint32(in.uvarint())
	var c coder
	var path int64
	var number uint64
	for in.more() {
		path += in.varint()
		number += uint64(in.varint())
		s := c.next(in)
		if s.Seq = number; in.broken {
			break
		}
		if err := fn(boot, PathID(path), &s); err != nil {
			return err
		}
	}
	return in.err()
}

// loadTail reads the tail into the paths. It returns the keys of the values that were damaged; an empty key stands for those that are gone.
func (l *Log) loadTail(tx *transaction) (damaged [][]byte, err error) {
	tail := tx.Bucket(bucketTail)
	l.tailFirst, l.tailNext = tx.Bucket(bucketChunks).Sequence(), tail.Sequence()
	expect := l.tailFirst
	c := tail.Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		if len(k) != 8 {
			return nil, fmt.Errorf("tail key %x: %w", k, corrupt(errDamaged))
		}
		number := binary.BigEndian.Uint64(k)
		if number != expect {
			damaged = append(damaged, nil)
		}
		expect = number + 1
		payload, err := unseal(bucketTail, k, v)
		if err == nil {
			err = decodeTail(payload, l.loadSample)
		}
		if errors.Is(err, errDamaged) {
			damaged = append(damaged, append([]byte(nil), k...))
		} else if err != nil {
			return nil, err
		}
	}
	if expect != l.tailNext {
		damaged = append(damaged, nil)
		l.tailNext = max(l.tailNext, expect)
	}
	return damaged, nil
}

func (l *Log) loadSample(boot uint32, id PathID, s *Sample) error {
	p, err := l.path(id)
	if err != nil || int(boot) >= len(l.boots) {
		return errDamaged
	}
	switch {
	case s.Seq < p.folded:
		return nil // folding was cut short between its transactions
	case s.Seq < p.next:
		return errDamaged
	case s.Seq > p.next: // what lay between was in a damaged value
		p.lost = addLost(p.lost, p.first, span{p.next, s.Seq})
	}
	p.tail = appendSample(p.tail, s.Seq, boot, s)
	p.next = s.Seq + 1
	return nil
}

// deleteTail deletes the tail values below upTo, all of which are in chunks, and notes that in the sequence of the chunks bucket.
func deleteTail(tx *transaction, upTo uint64) error {
	tail := tx.Bucket(bucketTail)
	var keys [][]byte
	c := tail.Cursor()
	for k, _ := c.First(); k != nil && binary.BigEndian.Uint64(k) < upTo; k, _ = c.Next() {
		keys = append(keys, append([]byte(nil), k...))
	}
	for _, k := range keys {
		if err := tail.Delete(k); err != nil {
			return err
		}
	}
	return tx.Bucket(bucketChunks).SetSequence(upTo)
}
