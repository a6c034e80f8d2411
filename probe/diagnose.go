// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/probe/target"
	"github.com/xtwamp/xtwamp/probe/twamp"
)

// Cause is why a far reflector does not answer.
type Cause uint8

// The causes, those that say most first.
const (
	// Silence: nothing comes back, not even an answer to ping.
	Silence Cause = iota
	// SilentPort: the far host answers ping, and the port says nothing.
	SilentPort
	// Answers: it does answer now, in the target's profile.
	Answers
	// OtherProfile: it answers in another profile, Diagnosis.Profile.
	OtherProfile
	// OtherSize: it answers a packet of the smallest size.
	OtherSize
	// OtherAnswer: what comes back is of no profile.
	OtherAnswer
	// OtherAddress: the answer comes from another address, Diagnosis.From.
	OtherAddress
	// NoNeighbour: the next hop, Diagnosis.From, has no link-layer address (ARP,
	// neighbour discovery).
	NoNeighbour
	// Refused: From says that nobody listens on the port.
	Refused
	// Prohibited: From says that a rule forbids it; if From is not valid, one of
	// this host.
	Prohibited
	// Unreachable: From knows no way on.
	Unreachable
	// TooBig: From says that the packet is too big for the next link.
	TooBig
	// Expired: the TTL was used up at From.
	Expired
)

// Diagnosis is what a look at a far reflector told.
type Diagnosis struct {
	Cause   Cause
	Profile string
	From    netip.Addr
}

const (
	// diagnosisSpacing is the time between two packets, so that no policer drops
	// the later ones for the first.
	diagnosisSpacing = 100 * time.Millisecond
	// diagnosisWait is how long after the last packet something may come back.
	diagnosisWait = time.Second
)

// Diagnose finds out why the reflector of t at remote, in a namespace, does not
// answer. It sends one request of each profile, in t's also one of the smallest
// size if t's is not, and a ping if the process may; it takes up to 2 s. It uses
// neither the kernel half nor t's source port, so that it disturbs nobody who
// measures. The error says that nothing could be sent.
func Diagnose(ctx context.Context, ns *netns.Namespace, t target.Target, remote netip.Addr) (Diagnosis, error) {
	d, err := newDiagnostician(ns, t, remote)
	if err != nil {
		return Diagnosis{}, err
	}
	defer d.close()
	for i := range d.requests {
		if err := d.send(i); err != nil {
			return Diagnosis{}, err
		}
		if d.listen(ctx, diagnosisSpacing) {
			break
		}
	}
	if !d.decided() {
		d.sendPing()
		d.listen(ctx, diagnosisWait)
	}
	if err := ctx.Err(); err != nil {
		return Diagnosis{}, err
	}
	return d.conclude(ns), nil
}

// diagnostician asks one far host in several ways.
type diagnostician struct {
	remote   netip.AddrPort
	oif      int
	fd, ping int // sockets; ping is -1 if the process may not have one
	requests []diagnosticRequest
	buf, oob []byte

	next     netip.Addr // hop
	link     int        // that it is on
	answered []bool     // by request
	strange  bool       // something of no profile came from remote
	other    netip.Addr // that something came from
	pong     bool
	icmp     Diagnosis // what an ICMP error said
	refused  bool      // by this host
}

type diagnosticRequest struct {
	profile twamp.Profile
	packet  []byte
	request twamp.Request
}

func newDiagnostician(ns *netns.Namespace, t target.Target, remote netip.Addr) (d *diagnostician, err error) {
	profile, err := twamp.ParseProfile(t.Profile)
	if err != nil {
		return nil, err
	}
	d = &diagnostician{remote: netip.AddrPortFrom(remote, t.Port), fd: -1, ping: -1, buf: make([]byte, 1<<16), oob: make([]byte, 512)}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if err := d.prepare(profile, t.PayloadSize()); err != nil {
		return nil, err
	}
	return d, ns.Do(func() error { return d.open(&t) })
}

// prepare makes the requests: first the one that the target has, then others.
func (d *diagnostician) prepare(own twamp.Profile, size int) error {
	add := func(p twamp.Profile, size int) error {
		q := diagnosticRequest{profile: p, packet: make([]byte, size), request: twamp.Request{
			Seq:   rand.Uint32(),
			Time:  twamp.FromUnix(twamp.NTP, clockNS(unix.CLOCK_REALTIME)),
			Error: twamp.NewErrorEstimate(false, twamp.NTP, -1),
		}}
		if p == twamp.STAMP {
			q.request.SSID = uint16(1 + rand.N(65535))
		}
		d.requests = append(d.requests, q)
		return twamp.PutRequest(q.packet, p, q.request)
	}
	if err := add(own, size); err != nil {
		return err
	}
	for _, p := range []twamp.Profile{own, twamp.STAMP, twamp.TWAMPLight, twamp.DoubleZero} {
		if p == own && (len(d.requests) > 1 || size == own.MinSize()) {
			continue
		}
		if err := add(p, p.MinSize()); err != nil {
			return err
		}
	}
	d.answered = make([]bool, len(d.requests))
	return nil
}

// open makes the sockets, within the namespace. They are not connected, so that
// answers from elsewhere are seen.
func (d *diagnostician) open(t *target.Target) (err error) {
	remote := d.remote.Addr()
	name := t.Interface
	if name == "" {
		name = remote.Zone()
	}
	if name != "" {
		link, err := netns.LinkByName(name)
		if err != nil {
			return err
		}
		d.oif = link.Index
	}
	route, err := netns.RouteTo(remote, t.Source, d.oif)
	if err != nil {
		return err
	}
	d.link, d.next = route.Link, route.Gateway
	if !d.next.IsValid() {
		d.next = remote
	}
	if d.fd, err = openSocket(remote.Is4(), t); err != nil {
		return err
	}
	level, opt := unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	if remote.Is4() {
		level, opt = unix.IPPROTO_IP, unix.IP_RECVERR
	}
	if err := unix.SetsockoptInt(d.fd, level, opt, 1); err != nil {
		return fmt.Errorf("ask for errors: %w", err)
	}
	if err := bindRandom(d.fd, sourceOf(t, remote), d.oif); err != nil {
		return fmt.Errorf("bind to %s: %w", sourceOf(t, remote), err)
	}
	d.openPing(t)
	return nil
}

// openPing makes a socket for ICMP. Without the right to one of either kind the
// diagnosis says less.
func (d *diagnostician) openPing(t *target.Target) {
	remote := d.remote.Addr()
	family, proto := unix.AF_INET6, unix.IPPROTO_ICMPV6
	if remote.Is4() {
		family, proto = unix.AF_INET, unix.IPPROTO_ICMP
	}
	for _, kind := range []int{unix.SOCK_DGRAM, unix.SOCK_RAW} {
		fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, proto)
		if err != nil {
			continue
		}
		if t.Interface != "" {
			err = unix.BindToDevice(fd, t.Interface)
		}
		// Connected, it hears of nobody else.
		if err != nil || unix.Connect(fd, sockaddr(netip.AddrPortFrom(remote, 0), d.oif)) != nil {
			unix.Close(fd)
			continue
		}
		d.ping = fd
		return
	}
}

func (d *diagnostician) close() {
	for _, fd := range []int{d.fd, d.ping} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// send sends a request. An error that the socket holds belongs to one before; it
// is in the error queue too, and this send takes it away.
func (d *diagnostician) send(i int) error {
	var err error
	for range 2 {
		if err = unix.Sendto(d.fd, d.requests[i].packet, 0, sockaddr(d.remote, d.oif)); err == nil {
			return nil
		}
	}
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		d.refused = true
	case errors.Is(err, unix.EMSGSIZE): // with the don't-fragment bit
		if !d.icmp.From.IsValid() {
			d.icmp = Diagnosis{Cause: TooBig}
		}
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH):
	default:
		return fmt.Errorf("send to %s: %w", d.remote, err)
	}
	return nil
}

const (
	icmpEchoRequest, icmpEchoReply     = 8, 0
	icmpv6EchoRequest, icmpv6EchoReply = 128, 129
)

func (d *diagnostician) sendPing() {
	if d.ping < 0 {
		return
	}
	echo := []byte{icmpv6EchoRequest, 0, 0, 0, 0x78, 0x74, 0, 1} // type, code, checksum, identifier, number
	if d.remote.Addr().Is4() {
		echo[0] = icmpEchoRequest
		// The kernel fills it in for ICMPv6 and for the unprivileged kind.
		sum := uint32(0)
		for i := 0; i < len(echo); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(echo[i:]))
		}
		binary.BigEndian.PutUint16(echo[2:], ^uint16(sum+sum>>16))
	}
	_ = unix.Send(d.ping, echo, 0) // without it, no pong
}

// decided reports whether waiting can tell nothing more.
func (d *diagnostician) decided() bool { return d.answered[0] || d.refused }

// listen takes what comes in for so long, or until that decides; it reports
// whether it did.
func (d *diagnostician) listen(ctx context.Context, wait time.Duration) bool {
	deadline := time.Now().Add(wait)
	for !d.decided() && ctx.Err() == nil {
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		fds := []unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLIN}, {Fd: int32(d.ping), Events: unix.POLLIN}}
		// Short, for the sake of ctx.
		if _, err := unix.Poll(fds, int(min(left, diagnosisSpacing)/time.Millisecond)+1); err != nil && !errors.Is(err, unix.EINTR) {
			return false
		}
		if fds[0].Revents != 0 {
			d.readErrors()
			d.readAnswers()
		}
		if fds[1].Revents != 0 {
			d.readPong()
		}
	}
	return d.decided()
}

func (d *diagnostician) readAnswers() {
	for range drainAtMost {
		n, _, _, from, err := unix.Recvmsg(d.fd, d.buf, d.oob, unix.MSG_DONTWAIT)
		if err != nil {
			return // nothing left, or an error that the queue has told
		}
		d.answer(d.buf[:n], addrPort(from))
	}
}

// answer takes note of a packet that came in.
func (d *diagnostician) answer(packet []byte, from netip.AddrPort) {
	here := from.Addr().Unmap().WithZone("") == d.remote.Addr().WithZone("") && from.Port() == d.remote.Port()
	for i, q := range d.requests {
		reply, err := twamp.ParseReply(packet, q.profile)
		if err != nil || !reply.Answers(q.request) {
			continue
		}
		if here {
			d.answered[i] = true
		} else {
			d.other = from.Addr()
		}
		return
	}
	d.strange = d.strange || here
}

func (d *diagnostician) readErrors() {
	for range drainAtMost {
		_, oobn, _, _, err := unix.Recvmsg(d.fd, d.buf, d.oob, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if err != nil {
			return
		}
		eachControl(d.oob[:oobn], func(level, kind int32, data []byte) {
			if isExtendedError(level, kind) && len(data) >= 16 {
				d.icmpError(data)
			}
		})
	}
}

// icmpError reads a struct sock_extended_err (errno, origin, type, code, padding,
// info, data) and the address of who sent the error behind it.
func (d *diagnostician) icmpError(data []byte) {
	origin, kind, code := data[4], data[5], data[6]
	var found Diagnosis
	switch origin {
	case unix.SO_EE_ORIGIN_ICMP:
		found.Cause = icmpCause(kind, code)
		if len(data) >= 16+8 { // struct sockaddr_in: family, port, address
			found.From = netip.AddrFrom4([4]byte(data[20:24]))
		}
	case unix.SO_EE_ORIGIN_ICMP6:
		found.Cause = icmp6Cause(kind, code)
		if len(data) >= 16+24 { // struct sockaddr_in6: family, port, flow, address
			found.From = netip.AddrFrom16([16]byte(data[24:40]))
		}
	default:
		return
	}
	if found.Cause != Silence && (!d.icmp.From.IsValid() || found.Cause == Refused) {
		d.icmp = found
	}
}

// icmpCause reads an ICMP error (RFC 792, RFC 1812).
func icmpCause(kind, code uint8) Cause {
	const unreachable, exceeded = 3, 11
	switch {
	case kind == exceeded:
		return Expired
	case kind != unreachable:
		return Silence
	}
	switch code {
	case 2, 3: // protocol, port
		return Refused
	case 4:
		return TooBig
	case 9, 10, 13: // prohibited: network, host, by a filter
		return Prohibited
	}
	return Unreachable
}

// icmp6Cause reads an ICMPv6 error (RFC 4443).
func icmp6Cause(kind, code uint8) Cause {
	const unreachable, tooBig, exceeded = 1, 2, 3
	switch {
	case kind == tooBig:
		return TooBig
	case kind == exceeded:
		return Expired
	case kind != unreachable:
		return Silence
	}
	switch code {
	case 1, 5, 6: // prohibited, source address failed policy, reject route
		return Prohibited
	case 4:
		return Refused
	}
	return Unreachable
}

func (d *diagnostician) readPong() {
	for range drainAtMost {
		n, err := unix.Read(d.ping, d.buf)
		if err != nil {
			return
		}
		b := d.buf[:n]
		if d.remote.Addr().Is4() && n > 0 && b[0]>>4 == 4 { // a raw socket's packets have their header
			b = b[min(n, int(b[0]&15)*4):]
		}
		if len(b) > 0 && (d.remote.Addr().Is4() && b[0] == icmpEchoReply || d.remote.Addr().Is6() && b[0] == icmpv6EchoReply) {
			d.pong = true
		}
	}
}

// conclude says what all that was seen means.
func (d *diagnostician) conclude(ns *netns.Namespace) Diagnosis {
	for i, q := range d.requests {
		switch {
		case !d.answered[i]:
		case i == 0:
			return Diagnosis{Cause: Answers}
		case q.profile == d.requests[0].profile:
			return Diagnosis{Cause: OtherSize}
		default:
			return Diagnosis{Cause: OtherProfile, Profile: q.profile.String()}
		}
	}
	switch {
	case d.strange:
		return Diagnosis{Cause: OtherAnswer}
	case d.other.IsValid():
		return Diagnosis{Cause: OtherAddress, From: d.other}
	case d.refused:
		return Diagnosis{Cause: Prohibited}
	}
	var unresolved bool
	// If the kernel does not say, something less exact is told.
	_ = ns.Do(func() (err error) {
		unresolved, err = netns.Unresolved(d.link, d.next)
		return err
	})
	switch {
	case unresolved:
		return Diagnosis{Cause: NoNeighbour, From: d.next}
	case d.icmp.Cause != Silence:
		return d.icmp
	case d.pong:
		return Diagnosis{Cause: SilentPort}
	}
	return Diagnosis{Cause: Silence}
}
