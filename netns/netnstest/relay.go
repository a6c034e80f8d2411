// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"bytes"
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/netns"
)

// Direction is a way across a relay, named after the arguments of [Lab.Relay].
type Direction int

const (
	AToB Direction = iota
	BToA
)

func (d Direction) String() string {
	if d == BToA {
		return "b to a"
	}
	return "a to b"
}

// Frame is an Ethernet frame on its way.
type Frame struct {
	Direction Direction
	Data      []byte // the script's own to keep and change; see UDPPayload and FixChecksum
}

// Relay is the middle of a link.
type Relay struct {
	script func(*Relay, Frame)
	// port[d] is the packet socket where frames of direction d come in; they leave by the other one.
	port [2]int
	wake int // eventfd: the queue has changed, or stop is set

	mu    sync.Mutex
	queue queue
	sent  uint64 // frames queued so far
	stop  bool
}

// Relay joins two namespaces like [Lab.Veth], but by two veth pairs with a namespace between them that has no addresses and
// carries frames from one to the other. script sees each UDP packet over IPv4 and IPv6 (not fragments) and forwards it with
// [Relay.Send]: now, later, more than once, changed, or not at all. Everything else, ARP and neighbour discovery
// among it, passes untouched; VLAN tags do not.
//
// script runs on the relay's goroutine, for one frame at a time. Checksums are complete when it sees them, as on a cable, so
// that one which the script breaks is found out by the receiver. Frames still delayed at the end of the test are dropped.
func (l *Lab) Relay(a *NS, aIf string, aCIDRs []string, b *NS, bIf string, bCIDRs []string, script func(*Relay, Frame), options ...LinkOption) *Relay {
	l.t.Helper()
	l.relays++
	middle := l.Namespace(fmt.Sprintf("relay%d", l.relays))
	middle.sysctl("net/ipv6/conf/default/disable_ipv6", "1") // else it would talk itself
	l.pair(a, aIf, middle, "a", options)
	l.pair(b, bIf, middle, "b", options)
	for _, end := range []struct {
		ns   *NS
		name string
	}{{a, aIf}, {b, bIf}} {
		if err := end.ns.Do(func() error { return completeChecksums(end.name) }); err != nil {
			l.t.Fatalf("%s in %s: %v", end.name, end.ns.Name, err)
		}
	}

	r := &Relay{script: script}
	var err error
	if r.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		l.t.Fatalf("eventfd: %v", err)
	}
	l.t.Cleanup(func() { _ = unix.Close(r.wake) })
	for d, name := range []string{AToB: "a", BToA: "b"} {
		if err := middle.Do(func() (err error) {
			r.port[d], err = packetSocket(name)
			return err
		}); err != nil {
			l.t.Fatalf("relay port %s: %v", name, err)
		}
		l.t.Cleanup(func() { _ = unix.Close(r.port[d]) })
	}

	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.run(); err != nil {
			l.t.Errorf("relay %s to %s: %v", aIf, bIf, err)
		}
	}()
	l.t.Cleanup(func() {
		r.mu.Lock()
		r.stop = true
		r.kick()
		r.mu.Unlock()
		<-done
		for d, fd := range r.port {
			stats, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
			switch {
			case err != nil:
				l.t.Errorf("relay %s to %s: %v", aIf, bIf, os.NewSyscallError("getsockopt PACKET_STATISTICS", err))
			case stats.Drops != 0:
				l.t.Errorf("relay %s to %s: %d frames %s lost before the script saw them", aIf, bIf, stats.Drops, Direction(d))
			}
		}
	})

	l.address(a, aIf, aCIDRs)
	l.address(b, bIf, bCIDRs)
	return r
}

// Send puts a copy of data on the wire after a delay. Frames that are due at the same time leave in the order of their Sends.
// It may be called from any goroutine; after the end of the test it does nothing.
func (r *Relay) Send(d Direction, data []byte, delay time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop {
		return
	}
	heap.Push(&r.queue, queued{due: time.Now().Add(delay), number: r.sent, direction: d, data: bytes.Clone(data)})
	r.sent++
	r.kick()
}

// kick makes run look again. Callers hold mu: only then is the descriptor sure to be open. EAGAIN means that run looks anyway.
func (r *Relay) kick() {
	if _, err := unix.Write(r.wake, binary.NativeEndian.AppendUint64(nil, 1)); err != nil && !errors.Is(err, unix.EAGAIN) {
		panic(os.NewSyscallError("write eventfd", err))
	}
}

// run carries frames until stop. All sending happens here, so that order is what the queue says.
func (r *Relay) run() error {
	buffer := make([]byte, 1<<16)
	for {
		next, stop, err := r.flush()
		if err != nil || stop {
			return err
		}
		fds := []unix.PollFd{
			{Fd: int32(r.port[AToB]), Events: unix.POLLIN},
			{Fd: int32(r.port[BToA]), Events: unix.POLLIN},
			{Fd: int32(r.wake), Events: unix.POLLIN},
		}
		var timeout *unix.Timespec
		if !next.IsZero() {
			ts := unix.NsecToTimespec(max(0, time.Until(next).Nanoseconds()))
			timeout = &ts
		}
		if _, err := unix.Ppoll(fds, timeout, nil); err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("ppoll", err)
		}
		if _, err := unix.Read(r.wake, buffer); err != nil && !errors.Is(err, unix.EAGAIN) {
			return os.NewSyscallError("read eventfd", err)
		}
		for d := range r.port {
			if err := r.receive(Direction(d), buffer); err != nil {
				return err
			}
		}
	}
}

// receive takes one frame, if there is one, so that neither a busy direction nor a long queue is held up.
func (r *Relay) receive(d Direction, buffer []byte) error {
	n, _, err := unix.Recvfrom(r.port[d], buffer, unix.MSG_DONTWAIT)
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return nil
	case errors.Is(err, unix.ENETDOWN): // a test may take links down
		return nil
	case err != nil:
		return os.NewSyscallError("recvfrom", err)
	}
	data := bytes.Clone(buffer[:n])
	if UDPPayload(data) == nil {
		r.Send(d, data, 0)
		return nil
	}
	r.script(r, Frame{Direction: d, Data: data})
	return nil
}

// flush sends what is due and returns when the next frame is, or the zero time.
func (r *Relay) flush() (next time.Time, stop bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.stop && len(r.queue) > 0 {
		first := r.queue[0]
		if first.due.After(time.Now()) {
			return first.due, false, nil
		}
		heap.Pop(&r.queue)
		if err := unix.Sendto(r.port[1-first.direction], first.data, 0, nil); err != nil && !isLinkDown(err) {
			return time.Time{}, false, fmt.Errorf("send %d bytes %s: %w", len(first.data), first.direction, err)
		}
	}
	return time.Time{}, r.stop, nil
}

// isLinkDown tells a link without carrier, down or gone, on which frames are lost as on a real one.
func isLinkDown(err error) bool {
	return errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENOBUFS)
}

// packetSocket opens a socket that sees all frames of an interface, except those that it sent out of it itself.
func packetSocket(name string) (fd int, err error) {
	link, err := netns.LinkByName(name)
	if err != nil {
		return 0, err
	}
	// No protocol before bind, else frames of other interfaces come in meanwhile.
	fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, unix.Close(fd))
		}
	}()
	const receiveBuffer = 8 << 20 // bytes: the relay must not lose frames that the script would forward
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer); err != nil {
		return 0, os.NewSyscallError("setsockopt SO_RCVBUFFORCE", err)
	}
	all := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL}) // in wire order
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}); err != nil {
		return 0, os.NewSyscallError("bind", err)
	}
	return fd, nil
}

// completeChecksums makes an interface send packets with their checksums computed, instead of leaving that to a hardware which a
// veth pair lacks. Without checksum offload the kernel uses no segmentation offload either.
func completeChecksums(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(fd) }()                                           // only carries the ioctl
	value := struct{ command, data uint32 }{command: unix.ETHTOOL_STXCSUM, data: 0} // struct ethtool_value
	request := struct {                                                             // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte // the rest of its union
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:unix.IFNAMSIZ-1], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	runtime.KeepAlive(&value)
	if errno != 0 {
		return os.NewSyscallError("ioctl ETHTOOL_STXCSUM", errno)
	}
	return nil
}

// queued is a frame that waits to be sent.
type queued struct {
	due       time.Time
	number    uint64 // order among equals
	direction Direction
	data      []byte
}

// queue is a heap with the next frame on top.
type queue []queued

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	if !q[i].due.Equal(q[j].due) {
		return q[i].due.Before(q[j].due)
	}
	return q[i].number < q[j].number
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(queued)) }
func (q *queue) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}
