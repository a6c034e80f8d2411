// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/bpf"
	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
	"github.com/xtwamp/xtwamp/probe/twamp"
)

// hostFlow is a UDP socket connected to a far reflector, or a share of a
// sender, with its entry in the kernel half where that is in use.
type hostFlow struct {
	network *hostNetwork
	path    *path
	profile twamp.Profile
	fd      int
	sender  *sender // fd is its socket; nil: the flow's own
	// envelope is what the sender says with each packet.
	envelope envelope
	oif      int // index of the interface that was asked for; 0: any
	ifindex  int // of the one that the packets leave by
	route    netns.Route
	info     FlowInfo

	datapath *bpf.Datapath // nil unless the step is a BPF one
	key      bpf.Key
	slotBase uint32

	link   *linkState // of the interface; set before the first probe
	listed bool       // the local address was among those of the interfaces

	// sent holds the sequence number of the probe that the kernel's stamp
	// number n belongs to (SOF_TIMESTAMPING_OPT_ID), at n % len.
	sent   []uint32
	nextID uint32
}

// linkState is what the flows that leave by one interface know of it: of its
// carrier, CLOCK_MONOTONIC of the last look and of the last that found none.
type linkState struct {
	lookedAt, withoutAt int64
	gone                bool // from the namespace, for good: what comes back is another
}

// Largest UDP payload that the kernel half reads, in bytes: beyond it the
// checksum would cost too much there.
const maxBPFPayload = 1500

// drainAtMost is how many packets are read from one socket in a row. What is
// left makes it readable again at once.
const drainAtMost = 256

const (
	// carrierEvery is the time between two looks for a carrier.
	carrierEvery = 100 * time.Millisecond
	// carrierSettles is how long after the carrier is back the kernel may
	// still refuse packets.
	carrierSettles = 2 * time.Second
)

// receiveBuffer is for replies and stamps that wait while this process does
// not run, in bytes: the kernel counts some 1,000 for each.
const receiveBuffer = 1 << 20

// stampingStarts is what the first socket of a host that wants receive stamps
// waits for them: the kernel turns them on from a work queue.
const stampingStarts = 2 * time.Millisecond

// The ports that probes leave from, unless the target names one: the dynamic
// ones of RFC 6335.
const (
	firstPort = 49152
	lastPort  = 65535
)

// connect makes the socket. Everything that marks packets is set before the
// first can leave.
func (f *hostFlow) connect(t *target.Target, oif int) error {
	remote := f.info.Remote.Addr()
	fd, err := openSocket(remote.Is4(), t)
	if err != nil {
		return err
	}
	f.fd = fd
	// An ICMP error is told to the next send.
	level, opt := unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	if remote.Is4() {
		level, opt = unix.IPPROTO_IP, unix.IP_RECVERR
	}
	if err := unix.SetsockoptInt(fd, level, opt, 1); err != nil {
		return down(store.Permission, "ask for errors: %w", err)
	}
	if err := f.bind(t, oif); err != nil {
		return down(reasonOf(err), "bind to %s: %w", netip.AddrPortFrom(sourceOf(t, remote), t.SourcePort), err)
	}
	if err := unix.Connect(fd, sockaddr(f.info.Remote, oif)); err != nil {
		return down(reasonOf(err), "connect to %s: %w", f.info.Remote, err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return down(store.NoRoute, "get local address: %w", err)
	}
	f.info.Local = addrPort(sa)
	if f.info.Local.Addr().IsUnspecified() { // sent from there, nobody could answer
		return down(store.NoInterface, "connect to %s: no address to send from", f.info.Remote)
	}
	return nil
}

// openSocket makes a socket with all that is set for the probes of a target.
func openSocket(ip4 bool, t *target.Target) (fd int, err error) {
	family, level := unix.AF_INET6, unix.IPPROTO_IPV6
	if ip4 {
		family, level = unix.AF_INET, unix.IPPROTO_IP
	}
	fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, down(reasonOf(err), "open socket: %w", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	type option struct {
		name              string
		level, opt, value int
	}
	var options []option
	if ip4 {
		discover := unix.IP_PMTUDISC_DONT
		if t.DontFragment {
			discover = unix.IP_PMTUDISC_DO
		}
		options = []option{
			{"IP_TOS", level, unix.IP_TOS, int(t.DSCP) << 2},
			{"IP_TTL", level, unix.IP_TTL, int(t.TTL)},
			{"IP_MTU_DISCOVER", level, unix.IP_MTU_DISCOVER, discover},
			{"IP_RECVTTL", level, unix.IP_RECVTTL, 1},
		}
	} else {
		discover := unix.IPV6_PMTUDISC_DONT
		if t.DontFragment {
			discover = unix.IPV6_PMTUDISC_DO
		}
		options = []option{
			{"IPV6_TCLASS", level, unix.IPV6_TCLASS, int(t.DSCP) << 2},
			{"IPV6_UNICAST_HOPS", level, unix.IPV6_UNICAST_HOPS, int(t.TTL)},
			{"IPV6_MTU_DISCOVER", level, unix.IPV6_MTU_DISCOVER, discover},
			{"IPV6_RECVHOPLIMIT", level, unix.IPV6_RECVHOPLIMIT, 1},
		}
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.opt, o.value); err != nil {
			return -1, down(store.Permission, "set %s to %d: %w", o.name, o.value, err)
		}
	}
	if t.Interface != "" {
		if err := unix.BindToDevice(fd, t.Interface); err != nil {
			return -1, down(reasonOf(err), "bind to interface %s: %w", t.Interface, err)
		}
	}
	return fd, nil
}

// bind takes the target's source address and port, or a random port: a reply
// to an earlier run of this program must not find a socket.
func (f *hostFlow) bind(t *target.Target, oif int) error {
	source := sourceOf(t, f.info.Remote.Addr())
	if t.SourcePort != 0 {
		// Shared with the flows to other targets, and with the one that this
		// flow replaces: all are connected, which tells their replies apart.
		if err := unix.SetsockoptInt(f.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return err
		}
		return unix.Bind(f.fd, sockaddr(netip.AddrPortFrom(source, t.SourcePort), oif))
	}
	return bindRandom(f.fd, source, oif)
}

func bindRandom(fd int, source netip.Addr, zone int) error {
	for range 16 {
		port := uint16(firstPort + rand.N(lastPort-firstPort+1))
		err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(source, port), zone))
		if !errors.Is(err, unix.EADDRINUSE) {
			return err
		}
	}
	return unix.Bind(fd, sockaddr(netip.AddrPortFrom(source, 0), zone))
}

func sourceOf(t *target.Target, remote netip.Addr) netip.Addr {
	switch {
	case t.Source.IsValid():
		return t.Source.Unmap()
	case remote.Is4():
		return netip.IPv4Unspecified()
	default:
		return netip.IPv6Unspecified()
	}
}

func sockaddr(a netip.AddrPort, zone int) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	sa := &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	if a.Addr().IsLinkLocalUnicast() {
		sa.ZoneId = uint32(zone)
	}
	return sa
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	default:
		return netip.AddrPort{}
	}
}

// unreadable says why the kernel half could not read probes of this size: they
// would leave in fragments, or their checksum would cost too much there.
func (f *hostFlow) unreadable(t *target.Target) error {
	size := t.PayloadSize()
	if size > maxBPFPayload {
		return fmt.Errorf("%d bytes are more than the %d that the kernel half reads", size, maxBPFPayload)
	}
	level, opt, headers := unix.IPPROTO_IPV6, unix.IPV6_MTU, 40+8
	if f.info.Remote.Addr().Is4() {
		level, opt, headers = unix.IPPROTO_IP, unix.IP_MTU, 20+8
	}
	mtu, err := unix.GetsockoptInt(f.fd, level, opt)
	if err == nil && size+headers > mtu && !t.DontFragment {
		return fmt.Errorf("%d bytes leave in fragments at an MTU of %d", size, mtu)
	}
	return nil
}

// register lets the kernel half stamp and match this flow's packets.
func (f *hostFlow) register(dev *device, t *target.Target, demanded uint32) error {
	if t.Interface == "" {
		demanded = 0 // only a target that names its interface demands it
	}
	f.key = f.keyFrom(f.info.Local.Port())
	f.slotBase = f.path.slotBase
	n := f.network
	n.keysMu.Lock()
	defer n.keysMu.Unlock()
	err := dev.datapath.SetPath(f.key, bpf.Path{
		ID:        uint32(f.path.index),
		SlotBase:  f.slotBase,
		SlotMask:  f.path.mask,
		Interface: demanded,
		Device:    uint32(f.ifindex),
		SSID:      f.path.ssid,
		Profile:   uint8(f.profile),
	})
	if err != nil {
		return fmt.Errorf("register flow with the kernel half: %w", err)
	}
	n.keys[f.key] = f
	f.datapath = dev.datapath
	f.info.Step = dev.step
	return nil
}

// keyFrom is the flow's key if it sends from a port. Packets have no zones.
func (f *hostFlow) keyFrom(port uint16) bpf.Key {
	remote := netip.AddrPortFrom(f.info.Remote.Addr().WithZone(""), f.info.Remote.Port())
	return bpf.Key{Local: netip.AddrPortFrom(f.info.Local.Addr(), port), Remote: remote}
}

// unregister undoes register, unless another flow has the key by now.
func (f *hostFlow) unregister() {
	n := f.network
	n.keysMu.Lock()
	defer n.keysMu.Unlock()
	if n.keys[f.key] == f {
		delete(n.keys, f.key)
		// Fails only if the entry is gone already.
		_ = f.datapath.DeletePath(f.key)
	}
}

const (
	txTimestamping = unix.SOF_TIMESTAMPING_TX_SOFTWARE | unix.SOF_TIMESTAMPING_OPT_TSONLY | unix.SOF_TIMESTAMPING_OPT_ID
	rxTimestamping = unix.SOF_TIMESTAMPING_RX_SOFTWARE | unix.SOF_TIMESTAMPING_SOFTWARE
)

// stampOnSocket asks the kernel to stamp this socket's packets
// (SO_TIMESTAMPING; OPT_TSONLY since Linux 4.0). It numbers the stamps of what
// is sent by OPT_ID.
func (f *hostFlow) stampOnSocket() error {
	// Without the right to go beyond net.core.rmem_max, that much has to do.
	if unix.SetsockoptInt(f.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		_ = unix.SetsockoptInt(f.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
	if err := unix.SetsockoptInt(f.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPING, txTimestamping|rxTimestamping); err != nil {
		return fmt.Errorf("set SO_TIMESTAMPING: %w", err)
	}
	f.sent = make([]uint32, len(f.path.window))
	f.network.stamping.Do(func() { time.Sleep(stampingStarts) })
	return nil
}

// ready reports a carrier that is missing.
func (f *hostFlow) ready() error {
	if f.carrier() {
		return nil
	}
	d := down(store.NoCarrier, "send to %s: interface %s has no carrier", f.info.Remote, f.info.Interface)
	d.cause = &f.info.Interface
	return d
}

// send transmits one probe. An error that the socket holds belongs to an
// earlier probe (ICMP, RFC 1122 4.1.3.3). The send that it fails takes it away,
// so what is not for want of buffers is tried once more.
func (f *hostFlow) send(packet []byte, seq uint32) error {
	if f.sender != nil {
		f.sender.put(f, packet, seq)
		return nil
	}
	if f.sent != nil { // a failed send costs the numbers: clear the way
		_, _ = unix.GetsockoptInt(f.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	}
	err := unix.Send(f.fd, packet, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	// Kernels differ in whether a failed send uses up a number. Without the
	// numbers, stamps are of no use: let the path have a fresh socket.
	unnumbered := err != nil && f.sent != nil
	if unnumbered {
		f.sent = nil
	}
	if err != nil && reasonOf(err) != store.NoBuffer {
		err = unix.Send(f.fd, packet, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}
	if err == nil {
		if f.sent != nil {
			f.sent[f.nextID%uint32(len(f.sent))] = seq
			f.nextID++
		}
		if unnumbered {
			f.network.engine.reopen(f.path)
		}
		return nil
	}
	d := f.refusal(err)
	d.reopen = unnumbered
	return d
}

// refusal says why the kernel did not take a probe.
func (f *hostFlow) refusal(err error) *downError {
	reason := reasonOf(err)
	if reason == store.NoBuffer && f.changingCarrier() {
		reason = store.NoCarrier
	}
	d := down(reason, "send to %s: %w", f.info.Remote, err)
	// Routes go before their interface does, and when it is taken down.
	if flags, known := f.flags(); reason == store.NoCarrier || !known || flags&unix.IFF_UP == 0 {
		d.cause = &f.info.Interface
	}
	return d
}

// reasonOf says why the kernel would not take a packet.
func reasonOf(err error) store.Reason {
	switch {
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO), errors.Is(err, unix.EADDRNOTAVAIL):
		return store.NoInterface
	case errors.Is(err, unix.ENETDOWN):
		return store.NoCarrier
	case errors.Is(err, unix.EMSGSIZE):
		return store.TooBig
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return store.Permission
	case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM),
		errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return store.NoBuffer
	default:
		return store.NoRoute
	}
}

// carrier reports whether the flow's interface was up and running at the last
// look, at most carrierEvery ago: the kernel takes packets without a carrier
// and drops them without a word (noop_qdisc). It is asked on the socket, whose
// namespace is the right one; this takes none of the kernel's big locks.
func (f *hostFlow) carrier() bool {
	now := f.network.engine.clock.mono()
	if now-f.link.lookedAt < int64(carrierEvery) && now-f.link.withoutAt >= int64(carrierEvery) {
		return true
	}
	f.link.lookedAt = now
	flags, known := f.flags()
	const running = unix.IFF_UP | unix.IFF_RUNNING
	if !known || flags&running == running { // not known: gone altogether, and sending will say so
		return true
	}
	f.link.withoutAt = now
	return false
}

// flags asks for the interface's flags (netdevice(7)), unless it is gone.
func (f *hostFlow) flags() (flags uint16, known bool) {
	ifr, err := unix.NewIfreq(f.info.Interface)
	if err != nil || !f.alive() || unix.IoctlIfreq(f.fd, unix.SIOCGIFFLAGS, ifr) != nil {
		return 0, false
	}
	return ifr.Uint16(), true
}

// changingCarrier reports whether a refusal for want of buffers comes from the
// carrier. The driver knows that it is gone before the interface's flags do,
// and when it is back, the kernel's queue refuses everything for a while.
func (f *hostFlow) changingCarrier() bool {
	now := f.network.engine.clock.mono()
	if f.alive() && !hasCarrier(f.fd, f.info.Interface) {
		f.link.withoutAt = now
	}
	return f.link.withoutAt != 0 && now-f.link.withoutAt < int64(carrierSettles)
}

// hasCarrier asks the driver, which knows before the interface's flags do; an
// interface that cannot be asked has one.
func hasCarrier(fd int, name string) bool {
	value := struct{ command, data uint32 }{command: unix.ETHTOOL_GLINK}
	request := struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:unix.IFNAMSIZ-1], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	return errno != 0 || value.data != 0
}

// alive reports whether the interface that the flow was opened on exists, and
// has since then.
func (f *hostFlow) alive() bool {
	if f.link.gone {
		return false
	}
	// Asked for a name that no interface has, the kernel looks for a module of that name, for seconds perhaps. An index has no such
	// effect.
	ifr, err := unix.NewIfreq("")
	if err != nil {
		return true
	}
	ifr.SetUint32(uint32(f.ifindex))
	if err := unix.IoctlIfreq(f.fd, unix.SIOCGIFNAME, ifr); err != nil {
		return !errors.Is(err, unix.ENODEV)
	}
	return ifr.Name() == f.info.Interface
}

// settle reads what is queued, and the probe's slot in the kernel.
func (f *hostFlow) settle(pr *probe) {
	f.drain()
	if f.datapath == nil || pr.done {
		return
	}
	ev, ok := f.slot(pr.seq, pr.wire)
	if !ok {
		return
	}
	if ev.Flags&bpf.FlagAnswered != 0 {
		f.network.engine.received(f.path, eventReply(&ev))
		return
	}
	f.network.engine.transmitted(f.path, pr.seq, stamp{ns: int64(ev.T1)}, store.TCEgress)
}

// slot is what the kernel half noted of a probe, if it saw it leave.
func (f *hostFlow) slot(seq uint32, wire twamp.Timestamp) (bpf.Event, bool) {
	ev, err := f.datapath.Slot(f.slotBase + seq&f.path.mask)
	sent, _, _ := ev.WireTimes()
	return ev, err == nil && ev.Flags&bpf.FlagSent != 0 && ev.Seq == seq && twamp.Timestamp(sent) == wire
}

// drain reads all that the socket holds: first the error queue, so that a
// probe's stamp is there before its reply, and so that it never fills the
// receive buffer.
func (f *hostFlow) drain() {
	if f.sender != nil {
		f.sender.drain()
		return
	}
	f.drainErrors()
	n := f.network
	for range drainAtMost {
		size, oobn, _, _, err := unix.Recvmsg(f.fd, n.buf, n.oob, unix.MSG_DONTWAIT)
		switch {
		case err == nil:
			f.reply(n.buf[:size], n.oob[:oobn])
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EBADF):
			return
		default: // an ICMP error, reported once: the probe is simply not answered
		}
	}
}

func (f *hostFlow) drainErrors() {
	n := f.network
	for range drainAtMost {
		_, oobn, _, _, err := unix.Recvmsg(f.fd, n.buf, n.oob, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if err != nil {
			return
		}
		var sent stamp
		var id uint32
		var ours bool
		eachControl(n.oob[:oobn], func(level, kind int32, data []byte) {
			switch {
			case isTimestamping(level, kind):
				sent = softwareStamp(data)
			case isExtendedError(level, kind) && len(data) >= 16:
				// struct sock_extended_err: errno, origin, type, code, pad, info, data
				ours = data[4] == unix.SO_EE_ORIGIN_TIMESTAMPING
				id = binary.NativeEndian.Uint32(data[12:])
			}
		})
		if ours && sent.ns != 0 && f.sent != nil && f.nextID-id-1 < uint32(len(f.sent)) {
			n.engine.transmitted(f.path, f.sent[id%uint32(len(f.sent))], sent, store.Socket)
		}
	}
}

// reply hands one received packet to the engine.
func (f *hostFlow) reply(packet, oob []byte) {
	e := f.network.engine
	got, err := twamp.ParseReply(packet, f.profile)
	if err != nil || got.HasSSID && got.SSID != f.path.ssid {
		e.unmatched++
		return
	}
	r := reply{
		seq:      got.SenderSeq,
		wire:     got.SenderTime,
		rx:       stamp{ns: e.clock.mono()},
		rxSource: store.User,
		hasTimes: got.HasTimes,
		received: got.Received,
		sent:     got.Time,
		errorEst: got.Error,
	}
	if got.HasTTL {
		r.remoteTTL = got.SenderTTL
	}
	eachControl(oob, func(level, kind int32, data []byte) {
		switch {
		case isTimestamping(level, kind):
			if s := softwareStamp(data); s.ns != 0 {
				r.rx, r.rxSource = s, store.Socket
			}
		case isTTL(level, kind) && len(data) >= 4:
			r.ttl = uint8(binary.NativeEndian.Uint32(data))
		}
	})
	if f.info.Step == StepSocket {
		f.drainErrors() // the stamp of its probe may have come in between
	} else if f.datapath != nil {
		// The kernel half may have seen the probe leave, if not its reply.
		if ev, ok := f.slot(r.seq, r.wire); ok {
			e.transmitted(f.path, r.seq, stamp{ns: int64(ev.T1)}, store.TCEgress)
		}
	}
	e.received(f.path, r)
}

func (f *hostFlow) close() {
	if f.sender == nil {
		delete(f.network.flows, int32(f.fd))
	}
	f.closeLocked()
}

// closeLocked closes what the flow holds; it is not, or no longer, watched.
func (f *hostFlow) closeLocked() {
	if f.datapath != nil {
		f.unregister()
		f.datapath = nil
	}
	switch {
	case f.sender != nil:
		f.sender.release()
		f.sender = nil
	case f.fd >= 0:
		unix.Close(f.fd) // leaves the epoll set with it
	}
	f.fd = -1
}

// eachControl walks the control messages of a received packet.
func eachControl(oob []byte, visit func(level, kind int32, data []byte)) {
	for len(oob) >= unix.CmsgLen(0) {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return
		}
		visit(h.Level, h.Type, data)
		oob = rest
	}
}

func isTimestamping(level, kind int32) bool {
	return level == unix.SOL_SOCKET && kind == unix.SCM_TIMESTAMPING
}

func isExtendedError(level, kind int32) bool {
	return level == unix.IPPROTO_IP && kind == unix.IP_RECVERR ||
		level == unix.IPPROTO_IPV6 && kind == unix.IPV6_RECVERR
}

func isTTL(level, kind int32) bool {
	return level == unix.IPPROTO_IP && kind == unix.IP_TTL ||
		level == unix.IPPROTO_IPV6 && kind == unix.IPV6_HOPLIMIT
}

// softwareStamp reads the first of the three times of struct
// scm_timestamping: the kernel's own, CLOCK_REALTIME.
func softwareStamp(data []byte) stamp {
	if len(data) < 16 {
		return stamp{}
	}
	sec := int64(binary.NativeEndian.Uint64(data))
	nsec := int64(binary.NativeEndian.Uint64(data[8:]))
	return stamp{ns: sec*1e9 + nsec, wall: true}
}

// filters lets the kernel half attach through clsact, which needs netlink.
type filters struct{}

func (filters) AddFilter(ifindex int, egress bool, progFD int, name string) (closer, error) {
	d := netns.Ingress
	if egress {
		d = netns.Egress
	}
	return netns.AddFilter(ifindex, d, progFD, name)
}
