// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"unsafe"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/bpf"
	"github.com/xtwamp/xtwamp/probe/target"
)

const (
	// batchAtMost is how many probes one call hands to the kernel, and
	// batchPayload the size of the largest of them in bytes.
	batchAtMost  = 64
	batchPayload = maxBPFPayload
	// sendBuffer is for the packets of a slot that wait in a driver, in bytes.
	sendBuffer = 4 << 20
)

// sender is a UDP socket that many flows share: with thousands of paths, a socket each and a system call per probe are most of what
// a probe costs. It sends in batches (sendmmsg, since Linux 3.0), and where each packet goes and comes from is said with it. Its flows are
// those that the kernel half sees; what else reaches the socket is told apart by addresses. Guarded by Engine.mu.
type sender struct {
	network *hostNetwork
	kind    senderKind
	number  int // of the senders of its kind, in the order in which they were made
	fd      int
	port    uint16
	users   int // flows, and a batch being sent

	count    int
	messages [batchAtMost]message
	vectors  [batchAtMost]unix.Iovec
	waiting  [batchAtMost]waitingProbe
	buffer   []byte
}

// senderKind is what a socket sets for all that it sends.
type senderKind struct {
	ip4          bool
	device       string // bound to; empty: any
	oif          int    // its index
	dscp, ttl    uint8
	dontFragment bool
}

// message is the kernel's struct mmsghdr.
type message struct {
	header unix.Msghdr
	sent   uint32
}

// waitingProbe is a probe in a batch.
type waitingProbe struct {
	flow *hostFlow
	seq  uint32
}

// envelope is what is said with each packet of a flow: where it goes, and where from.
type envelope struct {
	to   unix.RawSockaddrInet6 // large enough for IPv4's
	size uint32
	from [64]byte // control message
	used int
}

func newEnvelope(local netip.Addr, remote netip.AddrPort, zone int) (e envelope) {
	var from []byte
	port := [2]byte{byte(remote.Port() >> 8), byte(remote.Port())} // in wire order
	if remote.Addr().Is4() {
		to := (*unix.RawSockaddrInet4)(unsafe.Pointer(&e.to))
		to.Family, to.Addr = unix.AF_INET, remote.Addr().As4()
		to.Port = *(*uint16)(unsafe.Pointer(&port))
		e.size = unix.SizeofSockaddrInet4
		from = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: local.As4()})
	} else {
		e.to.Family, e.to.Addr = unix.AF_INET6, remote.Addr().As16()
		e.to.Port = *(*uint16)(unsafe.Pointer(&port))
		if remote.Addr().IsLinkLocalUnicast() {
			e.to.Scope_id = uint32(zone)
		}
		e.size = unix.SizeofSockaddrInet6
		info := unix.Inet6Pktinfo{Addr: local.As16()}
		if local.IsLinkLocalUnicast() {
			info.Ifindex = uint32(zone)
		}
		from = unix.PktInfo6(&info)
	}
	e.used = copy(e.from[:], from)
	return e
}

// share gives a socket for f to share, or nil if it is to have its own. The port is one that the path did not have before: replies to
// its earlier flows are told apart by it, and so is what a middlebox remembers of them.
func (n *hostNetwork) share(f *hostFlow, t *target.Target) (*sender, error) {
	if t.SourcePort != 0 || t.PayloadSize() > batchPayload {
		return nil, nil
	}
	kind := senderKind{
		ip4: f.info.Remote.Addr().Is4(), device: t.Interface, dscp: t.DSCP, ttl: t.TTL, dontFragment: t.DontFragment,
	}
	if t.Interface != "" {
		kind.oif = f.oif
	}
	n.engine.mu.Lock()
	defer n.engine.mu.Unlock()
	if n.engine.slot == 0 {
		return nil, nil
	}
	n.easing.Do(func() {
		if err := easeTimers(); err != nil {
			n.engine.log.Warn("sending so many probes costs more than it has to", zap.Error(err))
		}
	})
	n.keysMu.Lock()
	defer n.keysMu.Unlock()
	var shared *sender
	for _, s := range n.senders {
		if s.kind == kind && s.number > f.path.sender && n.keys[f.keyFrom(s.port)] == nil {
			shared = s
			break
		}
	}
	if shared == nil {
		var err error
		if shared, err = n.newSender(kind, t); err != nil {
			return nil, err
		}
	}
	shared.users++
	f.path.sender = shared.number
	n.keys[f.keyFrom(shared.port)] = f // nobody else's from now on
	return shared, nil
}

// unshare undoes share. Engine.mu is held.
func (n *hostNetwork) unshare(f *hostFlow, s *sender) {
	if s == nil {
		return
	}
	n.keysMu.Lock()
	delete(n.keys, f.keyFrom(s.port))
	n.keysMu.Unlock()
	s.release()
}

// newSender opens a socket that flows can share, within the namespace. Engine.mu is held.
func (n *hostNetwork) newSender(kind senderKind, t *target.Target) (_ *sender, err error) {
	fd, err := openSocket(kind.ip4, t)
	if err != nil {
		return nil, err
	}
	n.engine.sendersMade++
	s := &sender{network: n, kind: kind, number: n.engine.sendersMade, fd: fd, buffer: make([]byte, batchAtMost*batchPayload)}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	unspecified, level, info := netip.IPv6Unspecified(), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
	if kind.ip4 {
		unspecified, level, info = netip.IPv4Unspecified(), unix.IPPROTO_IP, unix.IP_PKTINFO
	}
	// An IPv6 socket would take the IPv4 port of the same number.
	if !kind.ip4 {
		if err := unix.SetsockoptInt(fd, level, unix.IPV6_V6ONLY, 1); err != nil {
			return nil, fmt.Errorf("set IPV6_V6ONLY: %w", err)
		}
	}
	if err := unix.SetsockoptInt(fd, level, info, 1); err != nil {
		return nil, fmt.Errorf("ask for the addresses of packets: %w", err)
	}
	// Without the right to go beyond net.core.wmem_max, that much has to do.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
	}
	if err := bindRandom(fd, unspecified, 0); err != nil {
		return nil, fmt.Errorf("bind to a port: %w", err)
	}
	local, err := unix.Getsockname(fd)
	if err != nil {
		return nil, fmt.Errorf("get local port: %w", err)
	}
	s.port = addrPort(local).Port()
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLERR, Fd: int32(fd)}
	if err := unix.EpollCtl(n.epoll, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return nil, fmt.Errorf("watch socket: %w", err)
	}
	n.senders = append(n.senders, s)
	return s, nil
}

// release ends one use of s, and s with the last.
func (s *sender) release() {
	if s.users--; s.users > 0 {
		return
	}
	n := s.network
	n.senders = slices.DeleteFunc(n.senders, func(other *sender) bool { return other == s })
	unix.Close(s.fd)
}

// put adds a probe to the batch.
func (s *sender) put(f *hostFlow, packet []byte, seq uint32) {
	if s.count == batchAtMost {
		s.flush()
	}
	i := s.count
	s.count++
	s.waiting[i] = waitingProbe{f, seq}
	payload := s.buffer[i*batchPayload:][:len(packet)]
	copy(payload, packet)
	s.vectors[i].Base = &payload[0]
	s.vectors[i].SetLen(len(payload))
	header := &s.messages[i].header
	*header = unix.Msghdr{
		Name: (*byte)(unsafe.Pointer(&f.envelope.to)), Namelen: f.envelope.size, Iov: &s.vectors[i], Control: &f.envelope.from[0],
	}
	header.SetIovlen(1)
	header.SetControllen(f.envelope.used)
}

// flush hands the batch to the kernel. What that does not take was not sent.
func (s *sender) flush() {
	if s.count == 0 {
		return
	}
	s.users++
	defer s.release()
	for first := 0; first < s.count; {
		sent, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.messages[first])),
			uintptr(s.count-first), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno == 0 { // at least one
			first += int(sent)
			continue
		}
		w := s.waiting[first]
		s.network.engine.unsent(w.flow.path, w.seq, w.flow.refusal(errno))
		first++
	}
	clear(s.waiting[:s.count])
	s.count = 0
}

// drain reads what the kernel half left of the replies.
func (s *sender) drain() {
	n := s.network
	for range drainAtMost {
		size, oobn, _, from, err := unix.Recvmsg(s.fd, n.buf, n.oob, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EBADF) {
			return
		}
		if err != nil {
			continue
		}
		local := netip.AddrPortFrom(destination(n.oob[:oobn]), s.port)
		n.keysMu.Lock()
		f := n.keys[bpf.Key{Local: local, Remote: addrPort(from)}]
		n.keysMu.Unlock()
		if f == nil {
			n.engine.unmatched++
			continue
		}
		f.reply(n.buf[:size], n.oob[:oobn])
	}
}

// destination is the address that a packet was sent to.
func destination(oob []byte) (to netip.Addr) {
	eachControl(oob, func(level, kind int32, data []byte) {
		switch {
		case level == unix.IPPROTO_IP && kind == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			to = netip.AddrFrom4([4]byte(data[8:12]))
		case level == unix.IPPROTO_IPV6 && kind == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			to = netip.AddrFrom16([16]byte(data[:16]))
		}
	})
	return to
}
