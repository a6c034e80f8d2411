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

// ring is the reader of the events.
type ring struct {
	reader *ringbuf.Reader
	record ringbuf.Record
	batch  []Event
	fn     func([]Event)
}

// Run hands the events of the ring to fn in batches, in the order in which they
// were recorded, until ctx ends; what was recorded by then is still delivered.
// It returns nil then. It sleeps until there is an event or, with
// [Config.Batch], until the ring is half full. The slice that fn gets is used
// again afterwards. Events stay in the ring while nobody runs it; only one call
// may run at a time.
func (d *Datapath) Run(ctx context.Context, fn func([]Event)) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("read ring: %w", err)
		}
	}()
	if !d.reading.CompareAndSwap(false, true) {
		return errors.New("somebody is reading it already")
	}
	defer d.reading.Store(false)
	reader, err := d.openRing(fn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.closeRing()) }()
	w, err := newWaiter(d.objects.Events.FD())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.file.Close()) }()
	defer context.AfterFunc(ctx, w.interrupt)()
	least := 1
	if d.config.Batch {
		least = reader.BufferSize() / 2
	}
	for {
		last := ctx.Err() != nil
		if err := d.Look(); err != nil || last {
			return err
		}
		if err := w.wait(func() bool { return reader.AvailableBytes() >= least }); err != nil {
			return err
		}
	}
}

func (d *Datapath) openRing(fn func([]Event)) (*ringbuf.Reader, error) {
	reader, err := ringbuf.NewReader(d.objects.Events)
	if err != nil {
		return nil, err
	}
	reader.SetDeadline(time.Unix(1, 0)) // it gives what there is
	d.ringMu.Lock()
	defer d.ringMu.Unlock()
	d.ring = &ring{reader: reader, batch: make([]Event, 0, batchMax), fn: fn}
	return reader, nil
}

func (d *Datapath) closeRing() error {
	d.ringMu.Lock()
	defer d.ringMu.Unlock()
	reader := d.ring.reader
	d.ring = nil
	return reader.Close()
}

// Look has the events that are in the ring handed to the function that
// [Datapath.Run] was given, which must not call it, and returns after that.
// While nobody runs it they stay where they are.
func (d *Datapath) Look() error {
	d.ringMu.Lock()
	defer d.ringMu.Unlock()
	if d.ring == nil {
		return nil
	}
	return d.ring.drain()
}

func (r *ring) drain() error {
	for {
		err := r.reader.ReadInto(&r.record)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
		e, err := decode(r.record.RawSample)
		if err != nil {
			return err
		}
		r.batch = append(r.batch, e)
		// Nothing in the ring is ever discarded, so that more bytes are more
		// events, and the next read does not come back without one.
		if r.record.Remaining == 0 || len(r.batch) == cap(r.batch) {
			r.fn(r.batch)
			r.batch = r.batch[:0]
		}
	}
}

// waiter waits for a ring to have something, with the runtime's poller: a thread
// that comes and goes in epoll_wait keeps the runtime's monitor awake.
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
// the kernel wakes the ring's reader, and when it is interrupted.
func (w waiter) wait(woken func() bool) error {
	err := w.conn.Read(func(uintptr) bool { return woken() })
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// interrupt ends a wait under way, and each later one.
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
