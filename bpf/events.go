// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"
)

// Event is one probe as the programs noted it, in a slot or on the ring. Times
// T1 and T4 are CLOCK_MONOTONIC in nanoseconds. Fields that came from the wire
// as they are (WireT1, T2, T3, ErrorEstimate) are in network byte order; use
// [Event.WireTimes] and [Event.WireErrorEstimate].
type Event = xtwampSample

// Flags of an [Event].
const (
	FlagSent      = xtwampSampleFlagSAMPLE_SENT      // T1, WireT1, Seq and Path are valid
	FlagAnswered  = xtwampSampleFlagSAMPLE_ANSWERED  // T4 and what the reply said is valid
	FlagHasTimes  = xtwampSampleFlagSAMPLE_HAS_TIMES // T2, T3 and ErrorEstimate are valid
	FlagHasTTL    = xtwampSampleFlagSAMPLE_HAS_TTL   // RemoteTtl is valid
	FlagDuplicate = xtwampSampleFlagSAMPLE_DUPLICATE // the probe was answered before
	FlagXDP       = xtwampSampleFlagSAMPLE_XDP       // T4 is of XDP, else of tc ingress
)

// WireTimes returns the 64-bit timestamps of the packets: the probe's own, and
// the far side's of receiving it and of sending the reply.
func (e *Event) WireTimes() (t1, t2, t3 uint64) {
	return host64(e.WireT1), host64(e.T2), host64(e.T3)
}

// WireErrorEstimate returns the far side's Error Estimate (RFC 4656 section 4.1.2).
func (e *Event) WireErrorEstimate() uint16 {
	return wire16(e.ErrorEstimate)
}

// batchMax bounds how long a reader that cannot keep up is without its events.
const batchMax = 256

// Run hands the events of the ring to fn in batches, in the order in which they
// were recorded, until ctx ends; what was recorded by then is still delivered.
// It returns nil then. The slice that fn gets is used again afterwards. Events
// stay in the ring while nobody runs it; only one call may run at a time.
func (d *Datapath) Run(ctx context.Context, fn func([]Event)) (err error) {
	if !d.reading.CompareAndSwap(false, true) {
		return errors.New("read ring: somebody is reading it already")
	}
	defer d.reading.Store(false)
	r, err := ringbuf.NewReader(d.objects.Events)
	if err != nil {
		return fmt.Errorf("read ring: %w", err)
	}
	defer func() {
		if e := r.Close(); e != nil {
			err = errors.Join(err, fmt.Errorf("close ring: %w", e))
		}
	}()
	defer context.AfterFunc(ctx, func() { _ = r.Flush() })() // fails only if r is closed

	var record ringbuf.Record
	batch := make([]Event, 0, batchMax)
	for {
		err := r.ReadInto(&record)
		if errors.Is(err, ringbuf.ErrFlushed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read ring: %w", err)
		}
		e, err := decode(record.RawSample)
		if err != nil {
			return fmt.Errorf("read ring: %w", err)
		}
		batch = append(batch, e)
		// Nothing in the ring is ever discarded, so that more bytes are more
		// events, and the next read does not block.
		if record.Remaining == 0 || len(batch) == cap(batch) {
			fn(batch)
			batch = batch[:0]
		}
	}
}

// decode copies the bytes of a struct sample, whose layout Event has.
func decode(raw []byte) (e Event, err error) {
	if len(raw) < int(unsafe.Sizeof(e)) {
		return e, fmt.Errorf("event of %d bytes", len(raw))
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&e)), unsafe.Sizeof(e)), raw)
	return e, nil
}

// wire16 turns a number into network byte order, or back.
func wire16(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}

func host64(v uint64) uint64 {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], v)
	return binary.BigEndian.Uint64(b[:])
}

func addressWords(a netip.Addr) [2]uint64 {
	b := a.As16()
	return [2]uint64{binary.NativeEndian.Uint64(b[:8]), binary.NativeEndian.Uint64(b[8:])}
}
