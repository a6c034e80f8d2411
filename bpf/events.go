// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
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
// It returns nil then. It sleeps until there is an event or, with
// [Config.Batch], for that long. The slice that fn gets is used again
// afterwards. Events stay in the ring while nobody runs it; only one call may
// run at a time.
func (d *Datapath) Run(ctx context.Context, fn func([]Event)) (err error) {
	if !d.reading.CompareAndSwap(false, true) {
		return errors.New("read ring: somebody is reading it already")
	}
	defer d.reading.Store(false)
	defer func() {
		if err != nil {
			err = fmt.Errorf("read ring: %w", err)
		}
	}()
	r, err := ringbuf.NewReader(d.objects.Events)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	r.SetDeadline(time.Unix(1, 0)) // it gives what there is
	w, err := newWaiter(d.objects.Events.FD())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.file.Close()) }()
	defer context.AfterFunc(ctx, w.interrupt)()
	woken := func() bool { return r.AvailableBytes() > 0 }
	if d.config.Batch != 0 {
		woken = func() bool { return r.AvailableBytes() >= r.BufferSize()/2 }
	}
	batch := make([]Event, 0, batchMax)
	for {
		last := ctx.Err() != nil
		if batch, err = drain(r, batch, fn); err != nil || last {
			return err
		}
		if err := w.wait(ctx, d.config.Batch, woken); err != nil {
			return err
		}
	}
}

// drain hands to fn all that is in the ring. It uses batch for that, and
// returns it for the next time.
func drain(r *ringbuf.Reader, batch []Event, fn func([]Event)) ([]Event, error) {
	var record ringbuf.Record
	for {
		err := r.ReadInto(&record)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return batch, nil
		}
		if err != nil {
			return batch, err
		}
		e, err := decode(record.RawSample)
		if err != nil {
			return batch, err
		}
		batch = append(batch, e)
		// Nothing in the ring is ever discarded, so that more bytes are more
		// events, and the next read does not come back without one.
		if record.Remaining == 0 || len(batch) == cap(batch) {
			fn(batch)
			batch = batch[:0]
		}
	}
}

// waiter waits for a ring to have something, with the runtime's poller. A
// thread that blocks in epoll_wait for a few milliseconds at a time would keep
// the runtime's monitor awake, which then sleeps for 20 us at a time: that costs
// more than all the reading.
type waiter struct {
	file *os.File
	conn syscall.RawConn
}

func newWaiter(ring int) (waiter, error) {
	fd, err := unix.FcntlInt(uintptr(ring), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return waiter{}, err
	}
	if err := unix.SetNonblock(fd, true); err != nil { // else the poller does not take it
		unix.Close(fd)
		return waiter{}, err
	}
	w := waiter{file: os.NewFile(uintptr(fd), "ring")}
	if w.conn, err = w.file.SyscallConn(); err == nil {
		err = w.file.SetReadDeadline(time.Time{}) // fails if the poller did not take it
	}
	if err != nil {
		return waiter{}, errors.Join(err, w.file.Close())
	}
	return w, nil
}

// wait returns when woken says so, which it is asked first and each time that
// the kernel wakes the ring's reader; when limit (if not 0) has passed; and when
// ctx has ended.
func (w waiter) wait(ctx context.Context, limit time.Duration, woken func() bool) error {
	if limit != 0 {
		if err := w.file.SetReadDeadline(time.Now().Add(limit)); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	err := w.conn.Read(func(uintptr) bool { return woken() })
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// interrupt ends a wait under way, and each later one that has no limit.
func (w waiter) interrupt() {
	_ = w.file.SetReadDeadline(time.Unix(1, 0)) // fails only if there is nobody to interrupt any more
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
