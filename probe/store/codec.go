// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// maxValue bounds a tail or chunk value, so that four of them always fit into one 4096-byte page (bbolt splits no node of four or fewer
// keys). The file therefore never needs two neighbouring free pages to go on, however scattered its free pages are.
const maxValue = 960

// errDamaged is a value whose checksum is wrong or that does not decode.
var errDamaged = errors.New("damaged value")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum covers bucket and key too: a value that bbolt returns under a key that is not its own is as damaged as one with a flipped bit.
func checksum(bucket, key, payload []byte) uint32 {
	sum := crc32.Update(0, castagnoli, bucket)
	sum = crc32.Update(sum, castagnoli, key)
	return crc32.Update(sum, castagnoli, payload)
}

// seal returns payload followed by its checksum.
func seal(bucket, key, payload []byte) []byte {
	sealed := make([]byte, 0, len(payload)+crc32.Size)
	sealed = append(sealed, payload...)
	return binary.BigEndian.AppendUint32(sealed, checksum(bucket, key, payload))
}

// unseal returns the payload inside sealed (not a copy), or errDamaged.
func unseal(bucket, key, sealed []byte) ([]byte, error) {
	n := len(sealed) - crc32.Size
	if n < 0 || binary.BigEndian.Uint32(sealed[n:]) != checksum(bucket, key, sealed[:n]) {
		return nil, errDamaged
	}
	return sealed[:n], nil
}

// putCounted puts a value into a bucket whose sequence is the number of its keys. Nothing in bbolt's pages protects the number of keys of
// a page; where one key less would go unnoticed, checkCount notices.
func putCounted(b *bucket, key, sealed []byte) error {
	if b.Get(key) == nil {
		if _, err := b.NextSequence(); err != nil {
			return err
		}
	}
	return b.Put(key, sealed)
}

func deleteCounted(b *bucket, key []byte) error {
	if b.Get(key) != nil {
		if err := b.SetSequence(b.Sequence() - 1); err != nil {
			return err
		}
	}
	return b.Delete(key)
}

func checkCount(b *bucket, keys int) error {
	if b.Sequence() != uint64(keys) {
		return fmt.Errorf("%d of %d keys: %w", keys, b.Sequence(), corrupt(errDamaged))
	}
	return nil
}

func key32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }
func key64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

func appendText(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// cursor decodes a payload. After the first value that does not decode everything reads as zero and err returns errDamaged.
type cursor struct {
	rest   []byte
	broken bool
}

func (c *cursor) err() error {
	if c.broken {
		return errDamaged
	}
	return nil
}

func (c *cursor) more() bool { return !c.broken && len(c.rest) > 0 }

func (c *cursor) fail() { c.rest, c.broken = nil, true }

func (c *cursor) uvarint() uint64 {
	v, n := binary.Uvarint(c.rest)
	if n <= 0 {
		c.fail()
		return 0
	}
	c.rest = c.rest[n:]
	return v
}

func (c *cursor) varint() int64 {
	v, n := binary.Varint(c.rest)
	if n <= 0 {
		c.fail()
		return 0
	}
	c.rest = c.rest[n:]
	return v
}

func (c *cursor) bytes(n uint64) []byte {
	if n > uint64(len(c.rest)) {
		c.fail()
		return nil
	}
	b := c.rest[:n]
	c.rest = c.rest[n:]
	return b
}

func (c *cursor) byte() byte {
	if b := c.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (c *cursor) text() string { return string(c.bytes(c.uvarint())) }

// maxSampleSize is the most bytes that coder.append writes: flags, facts, and seven varints.
const maxSampleSize = 1 + factsSize + 7*binary.MaxVarintLen64

const factsSize = 5

// First byte of a coded sample.
const (
	outcomeMask   = 0x07
	flagDwell     = 0x08
	flagOneWay    = 0x10
	flagFacts     = 0x20 // reason, sources and TTLs differ from the sample before and follow
	flagsReserved = 0xc0
)

// coder codes a run of samples, each as its difference to the one before. The zero value starts a run. Encoding and decoding keep the
// same state, so a decoder that has read a run can go on encoding it.
type coder struct {
	mono, step                         int64 // the probe interval is nearly constant: what is coded is the change of the step
	rtt, dwell, forward, backward, err int64
	facts                              [factsSize]byte
}

func (c *coder) append(dst []byte, s *Sample) []byte {
	facts := [factsSize]byte{byte(s.Reason), byte(s.TX), byte(s.RX), s.TTL, s.RemoteTTL}
	flags := byte(s.Outcome)
	if s.HasDwell {
		flags |= flagDwell
	}
	if s.HasOneWay {
		flags |= flagOneWay
	}
	if facts != c.facts {
		flags |= flagFacts
	}
	dst = append(dst, flags)
	if facts != c.facts {
		dst = append(dst, facts[:]...)
		c.facts = facts
	}
	step := s.Mono - c.mono
	dst = binary.AppendVarint(dst, step-c.step)
	c.mono, c.step = s.Mono, step
	delta := func(last *int64, v int64) {
		dst = binary.AppendVarint(dst, v-*last)
		*last = v
	}
	if s.hasRTT() {
		delta(&c.rtt, s.RTT)
	}
	if s.HasDwell {
		delta(&c.dwell, s.Dwell)
	}
	if s.HasOneWay {
		delta(&c.forward, s.Forward)
		delta(&c.backward, s.Backward)
		delta(&c.err, s.OneWayError)
	}
	return dst
}

// next decodes one sample from in; in.err tells whether it is good.
func (c *coder) next(in *cursor) Sample {
	flags := in.byte()
	if flags&flagsReserved != 0 {
		in.fail()
	}
	s := Sample{Outcome: Outcome(flags & outcomeMask), HasDwell: flags&flagDwell != 0, HasOneWay: flags&flagOneWay != 0}
	if flags&flagFacts != 0 {
		copy(c.facts[:], in.bytes(factsSize))
	}
	s.Reason, s.TX, s.RX = Reason(c.facts[0]), Source(c.facts[1]), Source(c.facts[2])
	s.TTL, s.RemoteTTL = c.facts[3], c.facts[4]
	c.step += in.varint()
	c.mono += c.step
	s.Mono = c.mono
	delta := func(last *int64) int64 {
		*last += in.varint()
		return *last
	}
	if s.hasRTT() {
		s.RTT = delta(&c.rtt)
	}
	if s.HasDwell {
		s.Dwell = delta(&c.dwell)
	}
	if s.HasOneWay {
		s.Forward, s.Backward, s.OneWayError = delta(&c.forward), delta(&c.backward), delta(&c.err)
	}
	if s.validate() != nil {
		in.fail()
	}
	return s
}
