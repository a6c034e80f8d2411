// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var testReflectorConfig = ReflectorConfig{Rate: 1000, Listeners: 16, Peers: 16, Prefixes: 16, Sources: 64, Devices: 4}

const (
	testOffset   = 1_768_478_400_123_456_789 // ns: January 2026 at boot
	testEstimate = 0x8587
	packetHost   = 0
)

// question is a packet that asks for an answer, and all that decides over it.
// The base question of each kind is answered; a case changes one thing.
type question struct {
	linkless bool
	xdp      bool
	packet   packet
	raw      func([]byte) []byte // last change, of the bytes
	segments uint32
	tagged   bool
	keep     int // frame bytes left when the program sees it; 0: all
	kind     int32
	loopback bool
	asIs     bool // a DoubleZero probe has its time; else each has its own

	listeners  []netip.AddrPort
	peers      []netip.Addr
	prefixes   []netip.Prefix
	reflectors []netip.AddrPort // that we ask
}

func baseQuestion(v6, linkless bool) *question {
	// A linkless packet's bytes 12 and 13 make it what it is, see local4.
	from, to := local4, remote4
	if v6 {
		from, to = local6, remote6
	}
	return &question{
		linkless: linkless,
		packet: packet{source: from, destination: to, ttl: 61, tos: 0xb9, ethernet: !linkless,
			payload: probePayload(profileStamp)},
		kind:      packetHost,
		listeners: []netip.AddrPort{to, netip.MustParseAddrPort("192.0.2.1:863")},
		peers:     []netip.Addr{from.Addr()},
	}
}

// answerTo is the payload of the answer but for T2 and T3, or nil and why there
// is none. It follows the table of RFC 8762 and 8972 with no help from the
// program or from package twamp.
func answerTo(req []byte, ttl uint8) ([]byte, ReflectVerdict) {
	if len(req) < 44 {
		return nil, ReflectShort
	}
	if looksLikeDoubleZero(req) {
		return slices.Clone(req), ReflectAnswered
	}
	received, sent := binary.BigEndian.Uint64(req[16:]), binary.BigEndian.Uint64(req[4:])
	if received > 0 && received <= sent && sent-received < 1<<28 {
		return nil, ReflectIsReply
	}
	b := slices.Clone(req)
	clear(b[4:44])
	binary.BigEndian.PutUint16(b[12:], testEstimate)
	copy(b[14:16], req[14:16])
	copy(b[24:38], req[:14])
	b[40] = ttl
	tail := b[44:]
	if len(tail) < 4 || bytes.Equal(tail[:4], make([]byte, 4)) {
		return b, ReflectAnswered
	}
	if tail[1] != 1 || int(binary.BigEndian.Uint16(tail[2:])) != len(tail)-4 {
		return nil, ReflectTLVs
	}
	tail[0] &= 0x1f
	return b, ReflectAnswered
}

func looksLikeDoubleZero(req []byte) bool {
	return len(req) == 48 && bytes.Equal(req[12:], make([]byte, 36))
}

// decide is the model of the whole program, for packets that are what their
// headers say.
func decide(q *question) ReflectVerdict {
	source, at := q.packet.source, q.packet.destination
	loop := source.Addr().IsLoopback() || at.Addr().IsLoopback()
	allowed := slices.Contains(q.peers, source.Addr()) ||
		slices.ContainsFunc(q.prefixes, func(p netip.Prefix) bool { return p.Contains(source.Addr()) })
	ours := func(port uint16) bool {
		return slices.ContainsFunc(q.listeners, func(l netip.AddrPort) bool { return l.Port() == port })
	}
	switch {
	case !ours(at.Port()):
		return ReflectOtherPort
	case !slices.Contains(q.listeners, at):
		return ReflectOtherAddress
	case ours(source.Port()):
		return ReflectOwnPort
	case source.Addr().IsUnspecified(), source.Addr().IsMulticast(), source.Addr().Is4In6(),
		source.Addr() == netip.MustParseAddr("255.255.255.255"), source.Port() == 0, loop && !q.loopback,
		slices.Contains(q.listeners, netip.AddrPortFrom(source.Addr(), at.Port())) && !q.loopback:
		return ReflectBadAddress
	case !allowed:
		return ReflectNotAllowed
	case len(q.packet.payload) < 14:
		return ReflectTooShort
	case looksLikeDoubleZero(q.packet.payload) && slices.Contains(q.reflectors, source):
		return ReflectIsReply
	}
	_, v := answerTo(q.packet.payload, q.packet.ttl)
	return v
}

// failer is what testing and rapid have in common.
type failer interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Fatal(args ...any)
}

type reflectStage struct {
	*Reflector
	t         testing.TB // of the stage, not of one question
	namespace string
	device    uint32 // in namespace, and not loopback
	probes    uint64 // of DoubleZero so far
	prepared  map[reflectPreparation]*ebpf.Program
}

type reflectPreparation struct {
	linkless, tagged bool
	keep             int
	kind             int32
}

func testLoadReflector(t testing.TB, cfg ReflectorConfig) *Reflector {
	t.Helper()
	requireRoot(t)
	r, err := loadReflector(cfg, true)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := r.SetClock(testOffset, testEstimate, time.Hour); err != nil {
		t.Fatal(err)
	}
	return r
}

// newReflectStage makes a reflector that counts for loopback and for another
// device, without being attached to either.
func newReflectStage(t testing.TB, cfg ReflectorConfig) *reflectStage {
	t.Helper()
	st := &reflectStage{
		t:         t,
		Reflector: testLoadReflector(t, cfg),
		namespace: newNamespace(t),
		device:    7,
		prepared:  make(map[reflectPreparation]*ebpf.Program),
	}
	run(t, "ip", "-n", st.namespace, "link", "add", "d0", "index", "7", "type", "veth", "peer", "name", "d1")
	run(t, "ip", "-n", st.namespace, "link", "set", "d0", "up")
	// XDP runs on a device for tests only if it could there anyway.
	pass := emptyProgram(t, ebpf.XDP, xdpPass)
	var l link.Link
	var err error
	inNamespace(t, st.namespace, func() {
		l, err = link.AttachXDP(link.XDPOptions{Program: pass, Interface: int(st.device), Flags: link.XDPDriverMode})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	for _, index := range []int{1, int(st.device)} {
		if err := st.beginCounting(Device{Index: index}); err != nil {
			t.Fatal(err)
		}
	}
	return st
}

// programFor sets what the skb says of a packet, as the kernel does on receive,
// and then runs ours.
func (st *reflectStage) programFor(p reflectPreparation) *ebpf.Program {
	t := st.t
	t.Helper()
	if prog := st.prepared[p]; prog != nil {
		return prog
	}
	header := ethernetHeader
	if p.linkless {
		header = 0
	}
	st.mu.Lock()
	prog, err := st.program(TCX, header)
	st.mu.Unlock()
	if err != nil {
		t.Fatalf("%+v", err)
	}
	insns := asm.Instructions{asm.Mov.Imm(asm.R2, p.kind), asm.FnSkbChangeType.Call(), asm.Mov.Reg(asm.R1, asm.R6)}
	if p.tagged {
		insns = append(insns,
			asm.Mov.Imm(asm.R2, 0x0081), // htons(ETH_P_8021Q)
			asm.Mov.Imm(asm.R3, 10),
			asm.FnSkbVlanPush.Call(),
			asm.Mov.Reg(asm.R1, asm.R6))
	}
	if p.keep > 0 {
		insns = append(insns,
			asm.Mov.Imm(asm.R2, int32(p.keep)),
			asm.Mov.Imm(asm.R3, 0),
			asm.FnSkbChangeTail.Call())
	}
	st.prepared[p] = before(t, prog, insns...)
	return st.prepared[p]
}

// What the programs return, and struct xdp_md as BPF_PROG_TEST_RUN takes it.
const (
	tcUnspec, tcShot, tcRedirect = -1, 2, 7
	xdpDrop, xdpPass, xdpTX      = 1, 2, 3
)

type xdpContext struct {
	_, DataEnd, _  uint32
	IngressIfindex uint32
	_, _           uint32
}

// emptyProgram does nothing but return.
func emptyProgram(t testing.TB, kind ebpf.ProgramType, action int32) *ebpf.Program {
	t.Helper()
	return newProgram(t, kind, asm.Instructions{asm.Mov.Imm(asm.R0, action), asm.Return()})
}

func (st *reflectStage) xdpProgram(t failer) *ebpf.Program {
	t.Helper()
	st.mu.Lock()
	defer st.mu.Unlock()
	prog, err := st.Reflector.program(XDP, ethernetHeader)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	return prog
}

// listen is what listens for the question.
func (q *question) listen(ifindex uint32) []Listener {
	out := anywhere(q.listeners)
	if q.xdp {
		for i := range out {
			out[i].Device, out[i].MAC = int(ifindex), ourMAC
		}
	}
	return out
}

var ourMAC = [6]byte{2, 0, 0, 0, 0, 1}

// reaction is what the program did.
type reaction struct {
	verdict ReflectVerdict
	action  int32
	frame   []byte
}

func (st *reflectStage) ask(t failer, q *question) reaction {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ifindex := st.device
	if q.loopback {
		ifindex = 1
	}
	must(st.SetListeners(q.listen(ifindex)))
	must(st.SetPeers(q.peers))
	must(st.SetPrefixes(q.prefixes))
	must(st.SetReflectors(q.reflectors))
	if looksLikeDoubleZero(q.packet.payload) && !q.asIs {
		st.probes++
		binary.BigEndian.PutUint64(q.packet.payload[4:], st.probes)
	}
	in := q.packet.bytes()
	if q.raw != nil {
		in = q.raw(in)
	}
	var prog *ebpf.Program
	var context any
	pass, drop := int32(tcUnspec), int32(tcShot)
	if q.xdp {
		pass, drop = xdpPass, xdpDrop
		if q.keep > 0 {
			in = in[:q.keep]
		}
		copy(in, [][]byte{ // as the kernel tells the kinds of packets apart
			packetHost: in[:6],
			1:          {0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
			2:          {0x33, 0x33, 0, 0, 0, 1},
			3:          {2, 0, 0, 0, 1, 1},
			4:          {2, 0, 0, 0, 0, 3},
		}[q.kind])
		prog = st.xdpProgram(t)
		context = xdpContext{DataEnd: uint32(len(in)), IngressIfindex: ifindex}
	} else {
		prog = st.programFor(reflectPreparation{q.linkless, q.tagged, q.keep, q.kind})
		context = skbContext{Ifindex: ifindex, GSOSegs: q.segments, GSOSize: q.segments * 8}
	}
	dev := Device{Index: int(ifindex), Name: "test"}
	before, err := st.counts(dev)
	must(err)
	opts := ebpf.RunOptions{Data: in, DataOut: make([]byte, len(in)+256), Context: context}
	var action uint32
	start := monotonic(st.t)
	inNamespace(st.t, st.namespace, func() { action, err = prog.Run(&opts) })
	must(err)
	end := monotonic(st.t)
	after, err := st.counts(dev)
	must(err)
	r := reaction{verdict: math.MaxUint32, action: int32(action), frame: opts.DataOut}
	for v := range ReflectVerdictMax {
		switch after[v] - before[v] {
		case 0:
		case 1:
			if r.verdict != math.MaxUint32 {
				t.Errorf("two verdicts: %v and %v", r.verdict, v)
			}
			r.verdict = v
		default:
			t.Errorf("%v: counted %d times", v, after[v]-before[v])
		}
	}
	if r.verdict == ReflectAnswered {
		st.check(t, q, r, start, end)
		return r
	}
	if q.keep > 0 {
		in = in[:q.keep]
	}
	if !bytes.Equal(in, r.frame) {
		t.Errorf("%v, but the packet is changed\n%s%s", r.verdict, hex.Dump(in), hex.Dump(r.frame))
	}
	want := pass
	if r.verdict > ReflectAnswered {
		want = drop
	}
	if r.action != want {
		t.Errorf("%v: action %d, want %d", r.verdict, r.action, want)
	}
	return r
}

// check compares every byte of an answer with what it has to be.
func (st *reflectStage) check(t failer, q *question, r reaction, start, end uint64) {
	t.Helper()
	if sent := map[bool]int32{false: tcRedirect, true: xdpTX}[q.xdp]; r.action != sent {
		t.Errorf("answered with action %d", r.action)
	}
	payload, verdict := answerTo(q.packet.payload, q.packet.ttl)
	if verdict != ReflectAnswered {
		t.Fatalf("answered what is %v", verdict)
	}
	p := q.packet
	if at := p.data(); !bytes.Equal(payload, p.payload) {
		// T2 and T3 lie within the run, and are rounded as they have to be.
		last := start
		for _, field := range []int{16, 4} {
			wire := binary.BigEndian.Uint64(r.frame[at+field:])
			fraction := wire & math.MaxUint32
			ns := (wire>>32-2_208_988_800)*1_000_000_000 + fraction*1_000_000_000>>32 - testOffset
			if ns < last || ns > end {
				t.Errorf("time at byte %d: %d is not between %d and %d", field, ns, last, end)
			}
			if nsec := (ns + testOffset) % 1_000_000_000; fraction != (nsec<<32+999_999_999)/1_000_000_000 {
				t.Errorf("%d ns are rounded to %#x", nsec, fraction)
			}
			last = ns + 1 // reading the clock again takes longer than that
			binary.BigEndian.PutUint64(payload[field:], wire)
		}
	}
	p.source, p.destination = p.destination, p.source
	p.ttl, p.tos, p.payload = 255, p.tos&^3, payload
	want := p.bytes()
	if p.ethernet {
		copy(want, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1})
	}
	if q.raw != nil {
		return // what the case changed is the case's to check
	}
	if !bytes.Equal(want, r.frame) {
		t.Errorf("answer\n%swant\n%s", hex.Dump(r.frame), hex.Dump(want))
	}
}

func (q *question) put(at int, b ...byte) {
	q.raw = func(in []byte) []byte {
		copy(in[q.packet.ip()+at:], b)
		return in
	}
}

func (q *question) from(a string) {
	q.packet.source = netip.AddrPortFrom(netip.MustParseAddr(a), q.packet.source.Port())
}

// to sends the question there, which is an address of ours.
func (q *question) to(a string) {
	q.packet.destination = netip.AddrPortFrom(netip.MustParseAddr(a), q.packet.destination.Port())
	q.listeners = append(q.listeners, q.packet.destination)
}

func (q *question) size(n int) {
	b := make([]byte, n)
	copy(b, q.packet.payload)
	q.packet.payload = b
}

func (q *question) tail(b ...byte) {
	q.packet.payload = append(slices.Clone(q.packet.payload[:44]), b...)
}

// reply makes it what a reflector sends that took dwell for it, in 2^-32 s.
func (q *question) reply(dwell uint64) {
	b := q.packet.payload
	binary.BigEndian.PutUint64(b[16:], binary.BigEndian.Uint64(b[4:])-dwell)
}

// echo makes it a DoubleZero probe, or the answer to one.
func (q *question) echo() { q.packet.payload = probePayload(profileDoubleZero) }

// asks has us ask the reflector there.
func (q *question) asks(at netip.AddrPort) { q.reflectors = []netip.AddrPort{at} }

func (q *question) allowAll() {
	q.prefixes = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
}

func v4Only(q *question) bool       { return q.packet.source.Addr().Is4() }
func v6Only(q *question) bool       { return q.packet.source.Addr().Is6() }
func ethernetOnly(q *question) bool { return !q.linkless }
func tcOnly(q *question) bool       { return !q.xdp }
func xdpOnly(q *question) bool      { return q.xdp }
func both(f, g func(*question) bool) func(*question) bool {
	return func(q *question) bool { return f(q) && g(q) }
}

var reflectCases = []struct {
	name   string
	only   func(*question) bool // nil: makes sense in every question
	change func(q *question)
	want   ReflectVerdict
}{
	{name: "base", change: func(q *question) {}, want: ReflectAnswered},
	{name: "doublezero", change: func(q *question) { q.packet.payload = probePayload(profileDoubleZero) }, want: ReflectAnswered},
	{name: "doublezero with its last byte set", change: func(q *question) {
		q.packet.payload = probePayload(profileDoubleZero)
		q.packet.payload[47] = 1
	}, want: ReflectTLVs},
	{name: "doublezero with byte 12 set", change: func(q *question) {
		q.packet.payload = probePayload(profileDoubleZero)
		q.packet.payload[12] = 1
	}, want: ReflectAnswered},
	{name: "zeros from byte 12 on, but of 47 bytes", change: func(q *question) { q.packet.payload = probePayload(profileDoubleZero)[:47] }, want: ReflectAnswered},
	{name: "error estimate 0", change: func(q *question) { clear(q.packet.payload[12:14]) }, want: ReflectAnswered},
	{name: "no byte zero", change: func(q *question) {
		for i := range q.packet.payload {
			q.packet.payload[i] |= 0x81
		}
	}, want: ReflectAnswered},
	{name: "all ones", change: func(q *question) {
		for i := range q.packet.payload {
			q.packet.payload[i] = 0xff
		}
	}, want: ReflectIsReply},
	{name: "all ones but for a T2 long ago", change: func(q *question) {
		for i := range q.packet.payload {
			q.packet.payload[i] = 0xff
		}
		q.packet.payload[16] = 0
	}, want: ReflectAnswered},
	{name: "all zeros", change: func(q *question) { clear(q.packet.payload) }, want: ReflectAnswered},
	{name: "tail of 1", change: func(q *question) { q.tail(0xff) }, want: ReflectAnswered},
	{name: "tail of 3", change: func(q *question) { q.tail(0x80, 1, 0) }, want: ReflectAnswered},
	{name: "tail of 4 zeros", change: func(q *question) { q.tail(0, 0, 0, 0) }, want: ReflectAnswered},
	{name: "zeros, then a TLV", change: func(q *question) { q.tail(0, 0, 0, 0, 0x80, 4, 0, 0) }, want: ReflectAnswered},
	{name: "1472 bytes, zeros", change: func(q *question) { q.size(1472) }, want: ReflectAnswered},
	{name: "1473 bytes, zeros", change: func(q *question) { q.size(1473) }, want: ReflectAnswered},
	{name: "1500 bytes", change: func(q *question) { q.size(1500) }, want: ReflectAnswered},
	{name: "1501 bytes at tc", only: tcOnly, change: func(q *question) { q.size(1501) }, want: ReflectAnswered},
	{name: "1501 bytes", only: xdpOnly, change: func(q *question) { q.size(1501) }, want: ReflectOversize},
	{name: "padding of 0", change: func(q *question) { q.tail(0x80, 1, 0, 0) }, want: ReflectAnswered},
	{name: "padding of 5", change: func(q *question) { q.tail(0x80, 1, 0, 5, 1, 2, 3, 4, 5) }, want: ReflectAnswered},
	{name: "padding with every flag", change: func(q *question) { q.tail(0xff, 1, 0, 1, 9) }, want: ReflectAnswered},
	{name: "padding without a flag", change: func(q *question) { q.tail(0, 1, 0, 1, 9) }, want: ReflectAnswered},
	{name: "padding of 1024", change: func(q *question) { q.tail(append([]byte{0x80, 1, 4, 0}, make([]byte, 1024)...)...) }, want: ReflectAnswered},
	{name: "padding that ends early", change: func(q *question) { q.tail(0x80, 1, 0, 1, 9, 9) }, want: ReflectTLVs},
	{name: "padding that ends late", change: func(q *question) { q.tail(0x80, 1, 0, 3, 9, 9) }, want: ReflectTLVs},
	{name: "padding of 256 too many", change: func(q *question) { q.tail(0x80, 1, 1, 1, 9) }, want: ReflectTLVs},
	{name: "class of service", change: func(q *question) { q.tail(0x80, 4, 0, 4, 0xb8, 0, 0, 0) }, want: ReflectTLVs},
	{name: "empty TLV of type 0", change: func(q *question) { q.tail(0x80, 0, 0, 0) }, want: ReflectTLVs},
	{name: "43 bytes", change: func(q *question) { q.size(43) }, want: ReflectShort},
	{name: "14 bytes", change: func(q *question) { q.size(14) }, want: ReflectShort},
	{name: "13 bytes", change: func(q *question) { q.size(13) }, want: ReflectTooShort},
	{name: "no payload", only: ethernetOnly, change: func(q *question) { q.size(0) }, want: ReflectTooShort},
	{name: "authenticated", change: func(q *question) {
		q.packet.payload = bytes.Repeat([]byte{0xa5}, 112)
		clear(q.packet.payload[4:16]) // RFC 8762 section 4.2.2
	}, want: ReflectTLVs},

	{name: "ttl 1", change: func(q *question) { q.packet.ttl = 1 }, want: ReflectAnswered},
	{name: "ttl 255", change: func(q *question) { q.packet.ttl = 255 }, want: ReflectAnswered},
	{name: "tos 0", change: func(q *question) { q.packet.tos = 0 }, want: ReflectAnswered},
	{name: "tos 0xff", change: func(q *question) { q.packet.tos = 0xff }, want: ReflectAnswered},

	{name: "arp", only: ethernetOnly, change: func(q *question) { q.put(-2, 0x08, 0x06) }, want: ReflectNotIP},
	{name: "tag in the frame", only: ethernetOnly, change: func(q *question) { q.put(-2, 0x81, 0x00) }, want: ReflectNotIP},
	{name: "tcp", only: v4Only, change: func(q *question) { q.put(9, 6) }, want: ReflectNotUDP},
	{name: "tcp6", only: v6Only, change: func(q *question) { q.put(6, 6) }, want: ReflectNotUDP},
	{name: "ip version 5", only: v4Only, change: func(q *question) { q.put(0, 0x55) }, want: ReflectUnparsed},
	{name: "ip header too short", only: v4Only, change: func(q *question) { q.put(0, 0x44) }, want: ReflectUnparsed},
	{name: "ip options", only: v4Only, change: func(q *question) { q.put(0, 0x46) }, want: ReflectIPOptions},
	{name: "first fragment", only: v4Only, change: func(q *question) { q.put(6, 0x20) }, want: ReflectFragment},
	{name: "last fragment", only: v4Only, change: func(q *question) { q.put(7, 1) }, want: ReflectFragment},
	{name: "fragment header", only: v6Only, change: func(q *question) { q.put(6, 44) }, want: ReflectFragment},
	{name: "hop-by-hop header", only: v6Only, change: func(q *question) { q.put(6, 0) }, want: ReflectExtensionHeader},
	{name: "routing header", only: v6Only, change: func(q *question) { q.put(6, 43) }, want: ReflectExtensionHeader},
	{name: "other port", change: func(q *question) {
		q.packet.destination = netip.AddrPortFrom(q.packet.destination.Addr(), 861)
	}, want: ReflectOtherPort},
	{name: "no listener", change: func(q *question) { q.listeners = nil }, want: ReflectOtherPort},
	{name: "not our address", change: func(q *question) {
		q.packet.destination = netip.AddrPortFrom(q.packet.destination.Addr().Next(), 862)
	}, want: ReflectOtherAddress},
	{name: "our port at another address", change: func(q *question) {
		q.packet.destination = netip.AddrPortFrom(q.packet.destination.Addr(), 863)
	}, want: ReflectOtherAddress},
	{name: "tag beside the frame", only: both(ethernetOnly, tcOnly), change: func(q *question) { q.tagged = true }, want: ReflectTagged},
	{name: "merged", only: tcOnly, change: func(q *question) { q.segments = 2 }, want: ReflectMerged},
	{name: "broadcast of the link", change: func(q *question) { q.kind = 1 }, want: ReflectOtherHost},
	{name: "multicast of the link", change: func(q *question) { q.kind = 2 }, want: ReflectOtherHost},
	{name: "for another host of the link", change: func(q *question) { q.kind = 3 }, want: ReflectOtherHost},
	{name: "for another host with nearly our address", only: xdpOnly, change: func(q *question) { q.kind = 4 }, want: ReflectOtherHost},
	{name: "udp length one more", change: func(q *question) { q.put(q.packet.udp()-q.packet.ip()+4, 0, 53) }, want: ReflectBadLength},
	{name: "udp length one less", change: func(q *question) { q.put(q.packet.udp()-q.packet.ip()+4, 0, 51) }, want: ReflectBadLength},
	{name: "udp length 7", change: func(q *question) { q.put(q.packet.udp()-q.packet.ip()+4, 0, 7) }, want: ReflectBadLength},
	{name: "ip length one more", only: v4Only, change: func(q *question) { q.put(2, 0, 73) }, want: ReflectBadLength},
	{name: "ip length 0", only: v4Only, change: func(q *question) { q.put(2, 0, 0) }, want: ReflectBadLength},
	{name: "payload length one more", only: v6Only, change: func(q *question) { q.put(4, 0, 53) }, want: ReflectBadLength},
	{name: "cut in the payload", only: ethernetOnly, change: func(q *question) { q.keep = q.packet.data() + 43 }, want: ReflectBadLength},
	{name: "cut in the udp header", only: both(ethernetOnly, v6Only), change: func(q *question) { q.keep = q.packet.data() - 1 }, want: ReflectUnparsed},
	{name: "no checksum", only: v6Only, change: func(q *question) { q.put(46, 0, 0) }, want: ReflectNoChecksum},

	{name: "from our own port", change: func(q *question) {
		q.packet.source = netip.AddrPortFrom(q.packet.source.Addr(), 862)
	}, want: ReflectOwnPort},
	{name: "from another port of ours", change: func(q *question) {
		q.packet.source = netip.AddrPortFrom(q.packet.source.Addr(), 863)
	}, want: ReflectOwnPort},
	{name: "from a low port", change: func(q *question) {
		q.packet.source = netip.AddrPortFrom(q.packet.source.Addr(), 861)
	}, want: ReflectAnswered},
	{name: "from port 0", change: func(q *question) {
		q.packet.source = netip.AddrPortFrom(q.packet.source.Addr(), 0)
	}, want: ReflectBadAddress},
	{name: "from our own address", change: func(q *question) {
		q.listeners = append(q.listeners, netip.AddrPortFrom(q.packet.source.Addr(), 862))
	}, want: ReflectBadAddress},
	{name: "from our own address on loopback", change: func(q *question) {
		q.listeners = append(q.listeners, netip.AddrPortFrom(q.packet.source.Addr(), 862))
		q.loopback = true
	}, want: ReflectAnswered},
	{name: "from our own port, a stranger", change: func(q *question) {
		q.packet.source = netip.AddrPortFrom(q.packet.source.Addr(), 862)
		q.peers = nil
	}, want: ReflectOwnPort},
	{name: "from nowhere", only: both(v4Only, ethernetOnly), change: func(q *question) { q.allowAll(); q.from("0.0.0.0") }, want: ReflectBadAddress},
	{name: "from multicast", only: both(v4Only, ethernetOnly), change: func(q *question) { q.allowAll(); q.from("224.0.0.1") }, want: ReflectBadAddress},
	{name: "from the last multicast", only: both(v4Only, ethernetOnly), change: func(q *question) { q.allowAll(); q.from("239.255.255.255") }, want: ReflectBadAddress},
	{name: "from class E", only: both(v4Only, ethernetOnly), change: func(q *question) { q.allowAll(); q.from("240.0.0.1") }, want: ReflectAnswered},
	{name: "from broadcast", only: both(v4Only, ethernetOnly), change: func(q *question) { q.allowAll(); q.from("255.255.255.255") }, want: ReflectBadAddress},
	{name: "from loopback", only: both(v4Only, ethernetOnly), change: func(q *question) { q.allowAll(); q.from("127.1.2.3") }, want: ReflectBadAddress},
	{name: "to loopback", only: both(v4Only, ethernetOnly), change: func(q *question) { q.allowAll(); q.to("127.0.0.1") }, want: ReflectBadAddress},
	{name: "loopback on loopback", only: both(v4Only, ethernetOnly), change: func(q *question) {
		q.allowAll()
		q.from("127.0.0.1")
		q.to("127.0.0.1")
		q.loopback = true
	}, want: ReflectAnswered},
	{name: "from nowhere6", only: both(v6Only, ethernetOnly), change: func(q *question) { q.allowAll(); q.from("::") }, want: ReflectBadAddress},
	{name: "from multicast6", only: both(v6Only, ethernetOnly), change: func(q *question) { q.allowAll(); q.from("ff02::1") }, want: ReflectBadAddress},
	{name: "from loopback6", only: both(v6Only, ethernetOnly), change: func(q *question) { q.allowAll(); q.from("::1") }, want: ReflectBadAddress},
	{name: "to loopback6", only: both(v6Only, ethernetOnly), change: func(q *question) { q.allowAll(); q.to("::1") }, want: ReflectBadAddress},
	{name: "from ::2", only: both(v6Only, ethernetOnly), change: func(q *question) { q.allowAll(); q.from("::2") }, want: ReflectAnswered},
	{name: "from a mapped address", only: both(v6Only, ethernetOnly), change: func(q *question) { q.allowAll(); q.from("::ffff:10.0.0.1") }, want: ReflectBadAddress},
	{name: "loopback6 on loopback", only: both(v6Only, ethernetOnly), change: func(q *question) {
		q.allowAll()
		q.from("::1")
		q.to("::1")
		q.loopback = true
	}, want: ReflectAnswered},
	{name: "link-local", only: both(v6Only, ethernetOnly), change: func(q *question) {
		q.from("fe80::2")
		q.to("fe80::1")
		q.peers = []netip.Addr{netip.MustParseAddr("fe80::2%eth1")}
	}, want: ReflectAnswered},

	{name: "nobody allowed", change: func(q *question) { q.peers = nil }, want: ReflectNotAllowed},
	{name: "another is allowed", change: func(q *question) { q.peers = []netip.Addr{q.packet.source.Addr().Next()} }, want: ReflectNotAllowed},
	{name: "allowed by prefix", change: func(q *question) {
		q.peers = nil
		q.prefixes = []netip.Prefix{netip.PrefixFrom(q.packet.source.Addr(), 24)}
	}, want: ReflectAnswered},
	{name: "allowed by whole address", change: func(q *question) {
		q.peers = nil
		q.prefixes = []netip.Prefix{netip.PrefixFrom(q.packet.source.Addr(), q.packet.source.Addr().BitLen())}
	}, want: ReflectAnswered},
	{name: "prefix of another", change: func(q *question) {
		q.peers = nil
		q.prefixes = []netip.Prefix{netip.MustParsePrefix("8.0.1.0/24"), netip.MustParsePrefix("2001:db8:86de::/48")}
	}, want: ReflectNotAllowed},
	{name: "prefix of the other family", change: func(q *question) {
		q.peers = nil
		q.prefixes = []netip.Prefix{netip.MustParsePrefix("::/0")}
		if v6Only(q) {
			q.prefixes = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
		}
	}, want: ReflectNotAllowed},
	{name: "everybody allowed", change: func(q *question) { q.peers = nil; q.allowAll() }, want: ReflectAnswered},
	{name: "a reply", change: func(q *question) { q.reply(1) }, want: ReflectIsReply},
	{name: "a reply at once", change: func(q *question) { q.reply(0) }, want: ReflectIsReply},
	{name: "a slow reply", change: func(q *question) { q.reply(1<<28 - 1) }, want: ReflectIsReply},
	{name: "no reply is as slow", change: func(q *question) { q.reply(1 << 28) }, want: ReflectAnswered},
	{name: "sent before it came", change: func(q *question) { q.reply(^uint64(0)) }, want: ReflectAnswered},
	{name: "a reply with padding", change: func(q *question) { q.size(1000); q.reply(1) }, want: ReflectIsReply},
	{name: "a reply with TLVs", change: func(q *question) { q.size(60); q.packet.payload[45] = 4; q.reply(1) }, want: ReflectIsReply},
	{name: "an echo of a reflector's", change: func(q *question) { q.echo(); q.asks(q.packet.source) }, want: ReflectIsReply},
	{name: "an echo from another port of its host", change: func(q *question) {
		q.echo()
		q.asks(netip.AddrPortFrom(q.packet.source.Addr(), q.packet.source.Port()+1))
	}, want: ReflectAnswered},
	{name: "an echo from its port on another host", change: func(q *question) {
		q.echo()
		q.asks(netip.AddrPortFrom(q.packet.source.Addr().Next(), q.packet.source.Port()))
	}, want: ReflectAnswered},
	{name: "no echo, from a reflector's port", change: func(q *question) { q.asks(q.packet.source) }, want: ReflectAnswered},
	{name: "48 bytes, no echo, from there", change: func(q *question) { q.size(48); q.asks(q.packet.source) }, want: ReflectAnswered},
	{name: "a reflector's echo, not allowed", change: func(q *question) { q.echo(); q.asks(q.packet.source); q.peers = nil }, want: ReflectNotAllowed},
	{name: "too short, a stranger", change: func(q *question) { q.size(13); q.peers = nil }, want: ReflectNotAllowed},
}

func TestReflect(t *testing.T) {
	st := newReflectStage(t, ReflectorConfig{Rate: 1_000_000, Listeners: 16, Peers: 16, Prefixes: 16, Sources: 64, Devices: 4})
	for _, v6 := range []bool{false, true} {
		for _, kind := range []string{"", ", without link header", ", xdp"} {
			t.Run(fmt.Sprintf("v6 %v%s", v6, kind), func(t *testing.T) {
				for _, c := range reflectCases {
					q := baseQuestion(v6, kind == ", without link header")
					q.xdp = kind == ", xdp"
					if c.only != nil && !c.only(q) {
						continue
					}
					t.Run(c.name, func(t *testing.T) {
						c.change(q)
						if got := st.ask(t, q); got.verdict != c.want {
							t.Errorf("verdict %v, want %v", got.verdict, c.want)
						}
					})
				}
			})
		}
	}
}

// A DoubleZero probe is answered once: what comes again is another reflector's answer to ours.
func TestReflectEchoesAProbeOnce(t *testing.T) {
	st := newReflectStage(t, ReflectorConfig{Rate: 1_000_000, Listeners: 16, Peers: 16, Prefixes: 16, Sources: 64, Devices: 4})
	for _, c := range []struct {
		name   string
		change func(q *question)
		want   ReflectVerdict
	}{
		{"the same", func(*question) {}, ReflectIsReply},
		{"the same with another TTL and TOS", func(q *question) { q.packet.ttl, q.packet.tos = 7, 4 }, ReflectIsReply},
		{"other sequence number", func(q *question) { q.packet.payload[3]++ }, ReflectAnswered},
		{"other second", func(q *question) { q.packet.payload[7]++ }, ReflectAnswered},
		{"other fraction", func(q *question) { q.packet.payload[8]++ }, ReflectAnswered},
		{"from another port", func(q *question) {
			q.packet.source = netip.AddrPortFrom(q.packet.source.Addr(), q.packet.source.Port()-1)
		}, ReflectAnswered},
		{"from another address", func(q *question) {
			q.packet.source = netip.AddrPortFrom(q.packet.destination.Addr().Next().Next(), q.packet.source.Port())
		}, ReflectAnswered},
		{"to another port", func(q *question) {
			q.packet.destination = netip.AddrPortFrom(q.packet.destination.Addr(), 863)
		}, ReflectAnswered},
		{"to another address", func(q *question) {
			q.packet.destination = netip.AddrPortFrom(q.packet.destination.Addr().Next(), 862)
		}, ReflectAnswered},
		{"no echo", func(q *question) { q.packet.payload[13] = 1 }, ReflectAnswered},
	} {
		for _, v6 := range []bool{false, true} {
			for _, xdp := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, v6 %v, xdp %v", c.name, v6, xdp), func(t *testing.T) {
					q := baseQuestion(v6, false)
					q.xdp = xdp
					q.allowAll()
					// Its lower byte has the highest bit.
					q.packet.source = netip.AddrPortFrom(q.packet.source.Addr(), 49152+128)
					at := q.packet.destination.Addr()
					q.listeners = []netip.AddrPort{
						netip.AddrPortFrom(at, 862), netip.AddrPortFrom(at, 863), netip.AddrPortFrom(at.Next(), 862),
					}
					q.echo()
					if got := st.ask(t, q); got.verdict != ReflectAnswered {
						t.Fatalf("first: verdict %v, want answered", got.verdict)
					}
					for range 100 {
						other := baseQuestion(v6, false)
						other.xdp, other.listeners, other.prefixes = xdp, q.listeners, q.prefixes
						other.echo()
						if got := st.ask(t, other); got.verdict != ReflectAnswered {
							t.Fatalf("another: verdict %v, want answered", got.verdict)
						}
					}
					q.asIs = true
					q.packet.payload = slices.Clone(q.packet.payload)
					c.change(q)
					if got := st.ask(t, q); got.verdict != c.want {
						t.Errorf("then: verdict %v, want %v", got.verdict, c.want)
					}
				})
			}
		}
	}
}

// Any packet gets the verdict that the model gives it, and any answer is the
// model's byte for byte but for T2 and T3.
func TestReflectDecidesAsItsModel(t *testing.T) {
	st := newReflectStage(t, ReflectorConfig{Rate: 1_000_000, Listeners: 16, Peers: 16, Prefixes: 16, Sources: 64, Devices: 4})
	seen := make(map[ReflectVerdict]int)
	compare := func(rt *rapid.T) {
		v6 := rapid.Bool().Draw(rt, "v6")
		q := baseQuestion(v6, false)
		addresses := []string{"8.0.0.1", "8.0.0.2", "8.0.0.77", "9.9.9.9", "127.0.0.1", "224.1.1.1", "0.0.0.0", "255.255.255.255"}
		if v6 {
			addresses = []string{"2001:db8:86dd::1", "2001:db8:86dd::2", "2001:db8:86dd::77", "2001:db8:1::1", "::1", "ff02::5", "::", "::ffff:8.0.0.1", "fe80::1"}
		}
		address := func(name string) netip.Addr {
			return netip.MustParseAddr(rapid.SampledFrom(addresses).Draw(rt, name))
		}
		ports := rapid.SampledFrom([]uint16{862, 863, 861, 49152, 0})
		likely := rapid.IntRange(0, 3)
		if likely.Draw(rt, "source as it is") == 0 {
			q.packet.source = netip.AddrPortFrom(address("source"), ports.Draw(rt, "source port"))
		}
		if likely.Draw(rt, "destination as it is") == 0 {
			q.packet.destination = netip.AddrPortFrom(address("destination"), ports.Draw(rt, "port"))
		}
		if likely.Draw(rt, "allowed as it is") == 0 {
			q.peers = rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) netip.Addr { return address("peer") }), 0, 3).Draw(rt, "peers")
			if rapid.Bool().Draw(rt, "prefix") {
				q.prefixes = append(q.prefixes, netip.PrefixFrom(address("prefix"), rapid.IntRange(0, 32).Draw(rt, "bits")))
			}
		}
		if rapid.Bool().Draw(rt, "from a reflector") {
			q.asks(q.packet.source)
		}
		q.loopback = rapid.Bool().Draw(rt, "loopback")
		q.packet.ttl, q.packet.tos = rapid.Byte().Draw(rt, "ttl"), rapid.Byte().Draw(rt, "tos")
		q.packet.payload = requestPayload(rt)
		want := decide(q)
		for _, q.xdp = range []bool{false, true} {
			if got := st.ask(rt, q); got.verdict != want {
				rt.Fatalf("xdp %v: verdict %v, want %v", q.xdp, got.verdict, want)
			}
		}
		again, twice := *q, want
		again.asIs = true
		if looksLikeDoubleZero(q.packet.payload) && want == ReflectAnswered {
			twice = ReflectIsReply
		}
		for _, again.xdp = range []bool{false, true} {
			if got := st.ask(rt, &again); got.verdict != twice {
				rt.Fatalf("again, xdp %v: verdict %v, want %v", again.xdp, got.verdict, twice)
			}
		}
		seen[want]++
	}
	missing := []ReflectVerdict{ReflectOtherPort, ReflectOtherAddress, ReflectOwnPort, ReflectBadAddress,
		ReflectNotAllowed, ReflectTooShort, ReflectShort, ReflectTLVs, ReflectIsReply, ReflectAnswered}
	const rounds = 20 // some verdicts are seldom drawn
	for range rounds {
		rapid.Check(t, compare)
		missing = slices.DeleteFunc(missing, func(v ReflectVerdict) bool { return seen[v] > 0 })
		if len(missing) == 0 || t.Failed() {
			return
		}
	}
	t.Errorf("no packet was one of %v: the generator is too narrow", missing)
}

// requestPayload draws requests near every border of the table.
func requestPayload(rt *rapid.T) []byte {
	size := rapid.OneOf(rapid.IntRange(0, 60), rapid.IntRange(0, 1472), rapid.Just(48)).Draw(rt, "size")
	b := make([]byte, size)
	if rapid.Bool().Draw(rt, "random") {
		copy(b, rapid.SliceOfN(rapid.Byte(), size, size).Draw(rt, "bytes"))
	} else {
		copy(b, probePayload(profileStamp))
	}
	switch rapid.IntRange(0, 4).Draw(rt, "tail") {
	case 0:
		clear(b[min(size, 44):])
	case 1:
		clear(b[min(size, 12):])
	case 2, 3:
		if size >= 48 {
			b[45] = 1
			binary.BigEndian.PutUint16(b[46:], uint16(size-48+rapid.SampledFrom([]int{0, 0, 0, 1, -1}).Draw(rt, "off by")))
		}
	}
	if size >= 24 && rapid.IntRange(0, 3).Draw(rt, "times") == 0 {
		dwell := rapid.SampledFrom([]uint64{0, 1, 1<<28 - 1, 1 << 28, 1 << 32, ^uint64(0)}).Draw(rt, "dwell")
		binary.BigEndian.PutUint64(b[16:], binary.BigEndian.Uint64(b[4:])-dwell)
	}
	return b
}

// 48 bytes are DoubleZero's only if no bit is set behind the time stamp.
func TestReflectEchoesNothingButZeros(t *testing.T) {
	cfg := testReflectorConfig
	cfg.Rate = 1_000_000
	st := newReflectStage(t, cfg)
	for at := 12; at < 48; at++ {
		for _, bit := range []byte{1, 0x80} {
			q := baseQuestion(false, false)
			q.packet.payload = probePayload(profileDoubleZero)
			q.packet.payload[at] = bit
			_, want := answerTo(q.packet.payload, 0) // ask compares the bytes
			if got := st.ask(t, q).verdict; got != want {
				t.Errorf("byte %d is %#x: %v, want %v", at, bit, got, want)
			}
		}
	}
}

// Over IPv4 a request without a checksum is answered without one.
func TestReflectKeepsNoChecksum(t *testing.T) {
	st := newReflectStage(t, testReflectorConfig)
	q := baseQuestion(false, false)
	q.put(26, 0, 0)
	for _, q.xdp = range []bool{false, true} {
		got := st.ask(t, q)
		if got.verdict != ReflectAnswered || got.frame[40] != 0 || got.frame[41] != 0 {
			t.Errorf("xdp %v: %v, checksum %x, want answered, 0", q.xdp, got.verdict, got.frame[40:42])
		}
	}
}

// Case 64. What a local peer leaves to its hardware has not been done where XDP
// sees the packet, and nobody does it after. All sizes: no byte is left out, and
// none is added.
func TestReflectInXDPCompletesChecksums(t *testing.T) {
	st := newReflectStage(t, ReflectorConfig{Rate: 1_000_000, Listeners: 16, Peers: 16, Prefixes: 16, Sources: 64, Devices: 4})
	for _, v6 := range []bool{false, true} {
		for size := 44; size <= 1500; size++ {
			q := baseQuestion(v6, false)
			q.xdp = true
			q.size(size)
			switch {
			case size%2 == 0 && size > 48:
				binary.BigEndian.PutUint32(q.packet.payload[44:], 0x80010000|uint32(size-48))
				fallthrough
			case size > 48:
				for i := 48; i < size; i++ {
					q.packet.payload[i] = byte(i) | 1
				}
			case size == 48 && v6:
				q.packet.payload = probePayload(profileDoubleZero)
			}
			p := q.packet
			q.raw = func(in []byte) []byte {
				binary.BigEndian.PutUint16(in[p.udp()+6:], onesSum(p.pseudoHeader()))
				return append(in, 0xaa, 0xbb, 0xcc) // the frame's, not the datagram's
			}
			got := st.ask(t, q)
			p.source, p.destination = p.destination, p.source
			sum := onesSum(append(p.pseudoHeader(), got.frame[p.udp():len(got.frame)-3]...))
			if got.verdict != ReflectAnswered || sum != 0xffff {
				t.Errorf("%d bytes, v6 %v: %v, sum %#x", size, v6, got.verdict, sum)
			}
		}
	}
}

// Case 64: a sum of zero is sent as ffff (RFC 768). 0 would say that there is
// none, which IPv6 forbids.
func TestReflectInXDPSendsNoSumOfZero(t *testing.T) {
	st := newReflectStage(t, testReflectorConfig)
	for _, v6 := range []bool{false, true} {
		q := baseQuestion(v6, false)
		q.xdp = true
		q.packet.payload, q.asIs = probePayload(profileDoubleZero), true
		clear(q.packet.payload[2:4])
		at := q.packet.udp() + 6
		copy(q.packet.payload[2:4], q.packet.bytes()[at:]) // a sum and its complement are zero
		if sum := binary.BigEndian.Uint16(q.packet.bytes()[at:]); sum != 0xffff {
			t.Fatalf("sum %#x", sum)
		}
		q.raw = func(in []byte) []byte {
			binary.BigEndian.PutUint16(in[at:], onesSum(q.packet.pseudoHeader()))
			return in
		}
		got := st.ask(t, q)
		if sum := binary.BigEndian.Uint16(got.frame[at:]); got.verdict != ReflectAnswered || sum != 0xffff {
			t.Errorf("v6 %v: %v with sum %#x, want ffff", v6, got.verdict, sum)
		}
	}
}

// Of a device above, XDP sees packets first, and leaves them to it.
func TestReflectInXDPLeavesOtherDevicesAlone(t *testing.T) {
	st := newReflectStage(t, testReflectorConfig)
	q := baseQuestion(false, false)
	q.xdp = true
	if v := st.ask(t, q).verdict; v != ReflectAnswered {
		t.Fatal(v)
	}
	prog := st.xdpProgram(t)
	for _, c := range []struct {
		name   string
		device int
		want   ReflectVerdict
	}{{"this one", int(st.device), ReflectAnswered}, {"another", int(st.device) + 1, ReflectOtherAddress}, {"tc's", 0, ReflectOtherAddress}} {
		at := q.listen(st.device)
		for i := range at {
			at[i].Device = c.device
		}
		if err := st.SetListeners(at); err != nil {
			t.Fatal(err)
		}
		before, err := st.counts(Device{Index: int(st.device)})
		if err != nil {
			t.Fatal(err)
		}
		in := q.packet.bytes()
		inNamespace(t, st.namespace, func() {
			_, err = prog.Run(&ebpf.RunOptions{Data: in, Context: xdpContext{DataEnd: uint32(len(in)), IngressIfindex: st.device}})
		})
		if err != nil {
			t.Fatal(err)
		}
		after, err := st.counts(Device{Index: int(st.device)})
		if err != nil {
			t.Fatal(err)
		}
		if after[c.want] != before[c.want]+1 {
			t.Errorf("%s: not %v", c.name, c.want)
		}
	}
	// A device that gets another address is told by it at once.
	at := q.listen(st.device)
	at[0].MAC[5]++
	if err := st.SetListeners(at); err != nil {
		t.Fatal(err)
	}
	var got reflectListener
	key := reflectListenKey{Address: reflectAddress{Words: addressWords(at[0].At.Addr())}, Device: st.device, Port: wire16(at[0].At.Port())}
	if err := st.objects.Listeners.Lookup(key, &got); err != nil || got.Mac != at[0].MAC {
		t.Errorf("%v, %v", got, err)
	}
}

// What was damaged on its way here stays so: no checksum is made right that was
// wrong.
func TestReflectHidesNoDamage(t *testing.T) {
	st := newReflectStage(t, testReflectorConfig)
	for _, v6 := range []bool{false, true} {
		q := baseQuestion(v6, false)
		q.tail(0x80, 1, 0, 4, 1, 2, 3, 4)
		for at := q.packet.data(); at < q.packet.data()+52; at++ {
			if tlv := at - q.packet.data() - 44; tlv >= 0 && tlv < 4 {
				continue // another request altogether
			}
			q.raw = func(in []byte) []byte {
				in[at] ^= 0x10
				return in
			}
			q.packet.ttl++
			for _, q.xdp = range []bool{false, true} {
				got := st.ask(t, q)
				p := q.packet
				p.payload = got.frame[p.data():]
				p.source, p.destination = p.destination, p.source
				if sum := onesSum(append(p.pseudoHeader(), got.frame[p.udp():]...)); got.verdict != ReflectAnswered || sum == 0xffff {
					t.Errorf("xdp %v, byte %d: %v with sum %#x", q.xdp, at, got.verdict, sum)
				}
			}
		}
	}
	q := baseQuestion(false, false)
	q.put(4, 0x55) // of the identification
	for _, q.xdp = range []bool{false, true} {
		if got := st.ask(t, q); got.verdict != ReflectAnswered || onesSum(got.frame[14:34]) == 0xffff {
			t.Errorf("xdp %v: a damaged IP header came out right, %v", q.xdp, got.verdict)
		}
	}
}

// No size from 0 to 1472 gets a longer answer.
func TestReflectNeverAmplifies(t *testing.T) {
	st := newReflectStage(t, ReflectorConfig{Rate: 1_000_000, Listeners: 16, Peers: 16, Prefixes: 16, Sources: 64, Devices: 4})
	for _, c := range []struct{ v6, xdp bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
		answered := 0
		for size := range 1473 {
			q := baseQuestion(c.v6, false)
			q.xdp = c.xdp
			q.size(size)
			got := st.ask(t, q)
			if len(got.frame) > len(q.packet.bytes()) {
				t.Errorf("%d bytes: %v with %d bytes more", size, got.verdict, len(got.frame)-len(q.packet.bytes()))
			}
			if got.verdict == ReflectAnswered {
				answered++
			}
		}
		if want := 1473 - 44; answered != want {
			t.Errorf("%d sizes were answered, want %d", answered, want)
		}
	}
}

// A source has a second's worth of requests at once, and then its rate. Nobody
// else's requests count.
func TestReflectLimitsEachSource(t *testing.T) {
	for _, c := range []struct{ byPrefix, xdp bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
		cfg := testReflectorConfig
		cfg.Rate = 5
		st := newReflectStage(t, cfg)
		q := baseQuestion(false, false)
		q.xdp = c.xdp
		other := netip.MustParseAddr("8.0.0.77")
		q.peers = append(q.peers, other)
		if c.byPrefix {
			q.peers = nil
			q.prefixes = []netip.Prefix{netip.MustParsePrefix("8.0.0.0/16")}
		}
		got := make(map[ReflectVerdict]int)
		start := monotonic(t)
		for range 50 {
			got[st.ask(t, q).verdict]++
		}
		// Each fifth of a second that the loop took brought one more.
		most := 5 + int((monotonic(t)-start)/200_000_000) + 1
		if n := got[ReflectAnswered]; n < 5 || n > most || got[ReflectRateLimited] != 50-n {
			t.Errorf("%+v: %v, want 5 to %d answered and the rest rate_limited", c, got, most)
		}
		q.packet.source = netip.AddrPortFrom(other, 5000)
		if v := st.ask(t, q).verdict; v != ReflectAnswered {
			t.Errorf("another source: %v", v)
		}
	}
}

// Without news of the process behind it, the program leaves all packets alone.
func TestReflectNeedsSomebodyBehindIt(t *testing.T) {
	st := newReflectStage(t, testReflectorConfig)
	for _, c := range []struct {
		good time.Duration
		want ReflectVerdict
	}{{-1, ReflectStale}, {time.Minute, ReflectAnswered}, {0, ReflectStale}} {
		if err := st.SetClock(testOffset, testEstimate, c.good); err != nil {
			t.Fatal(err)
		}
		for _, strange := range []bool{false, true} {
			q := baseQuestion(false, false)
			want := c.want
			if strange {
				q.peers = nil
				if want == ReflectAnswered {
					want = ReflectNotAllowed
				}
			}
			if got := st.ask(t, q).verdict; got != want {
				t.Errorf("good for %v, stranger %v: %v, want %v", c.good, strange, got, want)
			}
		}
	}
}

// A stranger's flood takes nobody's tokens and no place in the maps.
func TestReflectStrangersCostNothing(t *testing.T) {
	cfg := testReflectorConfig
	cfg.Sources, cfg.Rate = 1, 1
	st := newReflectStage(t, cfg)
	for _, xdp := range []bool{false, true} {
		q := baseQuestion(false, false)
		q.xdp = xdp
		for i := range 2000 {
			q.packet.source = netip.AddrPortFrom(netip.AddrFrom4([4]byte{9, 9, byte(i >> 8), byte(i)}), 5000)
			if v := st.ask(t, q).verdict; v != ReflectNotAllowed {
				t.Fatalf("stranger: %v", v)
			}
		}
		q.packet.source = local4
		if err := st.SetPeers(nil); err != nil { // a full bucket again
			t.Fatal(err)
		}
		if v := st.ask(t, q).verdict; v != ReflectAnswered {
			t.Errorf("a peer: %v", v)
		}
		var key reflectAddress
		if err := st.objects.Buckets.NextKey(nil, &key); err == nil {
			t.Errorf("a stranger is remembered: %v", key)
		}
	}
}

// Traffic that is not ours is not counted: a counter would cost it most.
func TestReflectDoesNotCountForeignTraffic(t *testing.T) {
	requireRoot(t)
	r, err := LoadReflector(testReflectorConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := errors.Join(r.beginCounting(Device{Index: 1}), r.SetClock(testOffset, testEstimate, time.Hour)); err != nil {
		t.Fatal(err)
	}
	q := baseQuestion(false, false)
	send := func(b []byte) {
		t.Helper()
		if _, err := r.objects.XtwampReflect.Run(&ebpf.RunOptions{Data: b, Context: skbContext{Ifindex: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	send(q.packet.bytes()) // nobody listens
	if err := r.SetListeners(anywhere([]netip.AddrPort{netip.MustParseAddrPort("8.0.0.77:862")})); err != nil {
		t.Fatal(err)
	}
	send(q.packet.bytes()) // elsewhere
	q.put(6, 0x20)
	send(q.raw(q.packet.bytes())) // a fragment of anything
	if err := r.SetListeners(anywhere(q.listeners)); err != nil {
		t.Fatal(err)
	}
	send(q.packet.bytes()) // for us, but by its link header for another host
	got, err := r.counts(Device{Index: 1})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ReflectCounts{ReflectOtherHost: 1}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestBadReflectorConfigIsRefused(t *testing.T) {
	for i := range 6 {
		cfg := testReflectorConfig
		*[]*int{&cfg.Rate, &cfg.Listeners, &cfg.Peers, &cfg.Prefixes, &cfg.Sources, &cfg.Devices}[i] = 0
		if r, err := LoadReflector(cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
			r.Close()
		}
	}
}

// What does not fit is said, and what fitted stays right.
func TestReflectorSaysWhatDoesNotFit(t *testing.T) {
	cfg := testReflectorConfig
	cfg.Peers = 1
	r := testLoadReflector(t, cfg)
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	if err := r.SetPeers([]netip.Addr{a, b}); err == nil {
		t.Fatal("two peers fit where there is room for one")
	}
	for _, only := range []netip.Addr{b, a, b} {
		if err := r.SetPeers([]netip.Addr{only}); err != nil {
			t.Fatal(err)
		}
		var got reflectBucket
		if err := r.objects.Peers.Lookup(reflectAddress{Words: addressWords(only)}, &got); err != nil {
			t.Errorf("%v: %v", only, err)
		}
	}
}

// What is answered while the program is being taken off is counted too.
func TestReflectorCountsToTheEnd(t *testing.T) {
	r := testLoadReflector(t, testReflectorConfig)
	dev := Device{Index: 1, Name: "lo", LinkHeader: ethernetHeader}
	values := make([]uint64, ebpf.MustPossibleCPU())
	values[0] = 3
	a, err := r.Attach(dev, Clsact, lastWord(func() error {
		return r.objects.Counters.Update(counterKey(dev, ReflectAnswered), values, ebpf.UpdateExist)
	}))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := r.Counters()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]ReflectCounts{"lo": {ReflectAnswered: 3}}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// lastWord is a filter that does something as it is removed.
type lastWord func() error

func (f lastWord) AddFilter(int, bool, int, string) (io.Closer, error) { return closeFunc(f), nil }

func TestReflectorCountsOutliveTheirDevice(t *testing.T) {
	r := testLoadReflector(t, testReflectorConfig)
	ns := newNamespace(t)
	run(t, "ip", "-n", ns, "link", "add", "d0", "index", "7", "type", "veth", "peer", "name", "d1")
	run(t, "ip", "-n", ns, "link", "set", "d0", "up")
	for round := range uint64(2) {
		var a *Attachment
		var err error
		dev := Device{Index: 7, Name: "d0", LinkHeader: ethernetHeader}
		inNamespace(t, ns, func() { a, err = r.Attach(dev, tcHook(t), filters{}) })
		if err != nil {
			t.Fatal(err)
		}
		if !a.Alive() {
			t.Error("not attached")
		}
		values := make([]uint64, ebpf.MustPossibleCPU())
		values[0] = 3
		if err := r.objects.Counters.Put(counterKey(dev, ReflectAnswered), values); err != nil {
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if a.Alive() {
			t.Error("alive after Close")
		}
		got, err := r.Counters()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]ReflectCounts{"d0": {ReflectAnswered: 3 * (round + 1)}}, got); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Attach(Device{Index: 1, Name: "lo", LinkHeader: ethernetHeader}, tcHook(t), filters{}); err == nil {
		t.Error("a closed reflector attaches")
	}
}

// anywhere is what listens for requests that tc sees.
func anywhere(at []netip.AddrPort) []Listener {
	out := make([]Listener, len(at))
	for i, a := range at {
		out[i] = Listener{At: a}
	}
	return out
}
