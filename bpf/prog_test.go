// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// scene is one packet and all that decides over it. The base scene of each kind
// is a probe, or a reply, that the programs like; a case changes one thing.
type scene struct {
	ingress  bool
	xdp      bool // ingress, and the program for XDP
	profile  uint8
	linkless bool

	key    Key
	path   *Path // nil: none is set
	stored *xtwampProbePath
	slot   Event // before; of index slotIndex
	packet packet
	raw    func([]byte) []byte // last change, of the bytes
	skb    skbContext
	tagged bool // the tag is beside the packet, as offload has it
	keep   int  // frame bytes left when the program sees it; 0: all
}

// skbContext is struct __sk_buff as BPF_PROG_TEST_RUN takes it.
type skbContext struct {
	_       [10]uint32
	Ifindex uint32
	_       [10]uint32
	_       [15]uint32
	_       [5]uint32
	GSOSegs uint32
	_       [2]uint32
	GSOSize uint32
	_       [3]uint32
}

const (
	testSlots   = 64
	testPathID  = 77
	testBase    = 8
	testMask    = 7
	testSeq     = 0x01020304 // in slot 8 + 4
	testSSID    = 0xbeef
	testIfindex = 1 // loopback is in every namespace
	slotIndex   = testBase + testSeq&testMask

	wireT1 = 0xed1355401f9add38
	wireT2 = 0xed1355401fab3f86
	wireT3 = 0xed1355401fab9368
)

// Bytes 12 and 13 of the packets say 0x0800 and 0x86dd: without a link header
// BPF_PROG_TEST_RUN takes the protocol from there all the same.
var (
	local4  = netip.MustParseAddrPort("8.0.0.1:49152")
	remote4 = netip.MustParseAddrPort("8.0.0.2:862")
	local6  = netip.MustParseAddrPort("[2001:db8:86dd::1]:49152")
	remote6 = netip.MustParseAddrPort("[2001:db8:86dd::2]:862")
)

func wire64(v uint64) uint64 { return host64(v) }

// oldSlot is what an earlier probe left: no bit of it may show up later.
func oldSlot() Event {
	return Event{
		T1: 1, T4: 2, WireT1: 3, T2: 4, T3: 5, Path: 6, Seq: testSeq - 8, ReplySeq: 7, Ifindex: 8, ErrorEstimate: 9,
		Ssid: 10, Length: 11, Ttl: 12, RemoteTtl: 13, Tos: 14, Flags: FlagSent | FlagAnswered | FlagHasTimes | FlagHasTTL,
	}
}

func sentSlot() Event {
	return Event{T1: 1000, WireT1: wire64(wireT1), Path: testPathID, Seq: testSeq, Flags: FlagSent}
}

func (s *scene) answered() Event {
	e := sentSlot()
	e.T4, e.ReplySeq, e.Ifindex, e.Length, e.Ttl = 2000, 5, testIfindex, 44, 60
	e.Flags |= FlagAnswered
	return e
}

func probePayload(profile uint8) []byte {
	b := binary.BigEndian.AppendUint32(nil, testSeq)
	b = binary.BigEndian.AppendUint64(b, wireT1)
	if profile == profileDoubleZero {
		return append(b, make([]byte, 36)...)
	}
	b = append(b, 0x88, 0xa8, 0xbe, 0xef)
	return append(b, make([]byte, 28)...)
}

func replyPayload(profile uint8) []byte {
	if profile == profileDoubleZero {
		return probePayload(profile)
	}
	b := binary.BigEndian.AppendUint32(nil, 3)
	b = binary.BigEndian.AppendUint64(b, wireT3)
	b = append(b, 0x85, 0x87, 0xbe, 0xef)
	b = binary.BigEndian.AppendUint64(b, wireT2)
	b = binary.BigEndian.AppendUint32(b, testSeq)
	b = binary.BigEndian.AppendUint64(b, wireT1)
	return append(b, 0x88, 0xa8, 0, 0, 253, 0, 0, 0)
}

const (
	profileStamp      = uint8(xtwampProfilePROFILE_STAMP)
	profileTWAMPLight = uint8(xtwampProfilePROFILE_TWAMP_LIGHT)
	profileDoubleZero = uint8(xtwampProfilePROFILE_DOUBLEZERO)
)

func baseScene(ingress bool, v6, linkless bool, profile uint8) *scene {
	s := &scene{
		ingress:  ingress,
		profile:  profile,
		linkless: linkless,
		key:      Key{Local: local4, Remote: remote4},
		path: &Path{ID: testPathID, SlotBase: testBase, SlotMask: testMask, SSID: testSSID, Profile: profile,
			Device: testIfindex},
		slot: oldSlot(),
		skb:  skbContext{Ifindex: testIfindex},
	}
	if v6 {
		s.key = Key{Local: local6, Remote: remote6}
	}
	s.packet = packet{source: s.key.Local, destination: s.key.Remote, ttl: 255, tos: 0xb8,
		payload: probePayload(profile), ethernet: !linkless}
	if ingress {
		s.packet.source, s.packet.destination = s.key.Remote, s.key.Local
		s.packet.ttl = 61
		s.packet.payload = replyPayload(profile)
		s.slot = sentSlot()
	}
	return s
}

// outcome is all that a packet did, with clock readings checked and cleared.
type outcome struct {
	Verdicts  map[string]uint64
	Ended     bool
	Unchanged bool
	Slot      Event
	Events    []Event
}

// stage runs scenes on one datapath.
type stage struct {
	*Datapath
	t        testing.TB // of the stage, not of one scene
	ring     *ringbuf.Reader
	prepared map[preparation]*ebpf.Program
}

// preparation is what happens to a packet before our program sees it.
type preparation struct {
	program *ebpf.Program
	tagged  bool
	keep    int
}

func newStage(t testing.TB, cfg Config) *stage {
	t.Helper()
	return newStageOf(t, testLoad(t, cfg))
}

func newStageOf(t testing.TB, d *Datapath) *stage {
	t.Helper()
	r, err := ringbuf.NewReader(d.objects.Events)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return &stage{Datapath: d, t: t, ring: r, prepared: make(map[preparation]*ebpf.Program)}
}

var testConfig = Config{Slots: testSlots, Paths: 16, RingBytes: 4096}

func (st *stage) program(t testing.TB, ingress, linkless bool) *ebpf.Program {
	t.Helper()
	header := ethernetHeader
	if linkless {
		header = 0
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	progs, err := st.programs(header)
	if err != nil {
		t.Fatal(err)
	}
	if ingress {
		return progs.XtwampIngress
	}
	return progs.XtwampEgress
}

func (st *stage) xdpProgram(t testing.TB) *ebpf.Program {
	t.Helper()
	st.mu.Lock()
	defer st.mu.Unlock()
	prog, err := st.Datapath.xdpProgram(ethernetHeader)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	return prog
}

func monotonic(t testing.TB) uint64 {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return uint64(ts.Nano())
}

func (st *stage) play(t testing.TB, s *scene) outcome {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if s.path != nil {
		must(st.SetPath(s.key, *s.path))
		defer func() { must(st.DeletePath(s.key)) }()
		if s.stored != nil {
			key, err := s.key.encode()
			must(err)
			must(st.objects.Paths.Put(&key, s.stored))
		}
	}
	must(st.objects.Slots.Put(uint32(slotIndex), &s.slot))

	in := s.packet.bytes()
	if s.raw != nil {
		in = s.raw(in)
	}
	prog := st.program(t, s.ingress, s.linkless)
	if s.tagged || s.keep > 0 {
		prog = st.prepare(preparation{program: prog, tagged: s.tagged, keep: s.keep})
	}
	pass, end := int32(-1), int32(2) // TC_ACT_UNSPEC, TC_ACT_SHOT
	if s.xdp {
		prog, pass, end = st.xdpProgram(t), 2, 1 // XDP_PASS, XDP_DROP
		if s.keep > 0 {
			in = in[:s.keep]
		}
	}
	before, err := st.Counters()
	must(err)
	start := monotonic(t)
	out := make([]byte, len(in)+256)
	opts := ebpf.RunOptions{Data: in, DataOut: out, Context: s.skb}
	if s.xdp {
		opts.Context = nil // loopback's
	}
	action, err := prog.Run(&opts)
	must(err)
	last := monotonic(t)
	after, err := st.Counters()
	must(err)

	if s.keep > 0 {
		in = in[:s.keep]
	}
	o := outcome{Verdicts: make(map[string]uint64), Unchanged: bytes.Equal(opts.DataOut, in)}
	switch int32(action) {
	case pass:
	case end:
		o.Ended = true
	default:
		t.Errorf("action %d", int32(action))
	}
	for v := range VerdictMax {
		if n := after[v] - before[v]; n != 0 {
			o.Verdicts[v.String()] = n
		}
	}
	o.Slot, err = st.Slot(slotIndex)
	must(err)
	o.Events = st.drain(t)

	clock := func(name string, v *uint64, was uint64) {
		if *v == was || *v == 0 {
			return
		}
		if *v < start || *v > last {
			t.Errorf("%s = %d is not between %d and %d", name, *v, start, last)
		}
		*v = now
	}
	clock("slot t1", &o.Slot.T1, s.slot.T1)
	clock("slot t4", &o.Slot.T4, s.slot.T4)
	for i := range o.Events {
		clock("event t4", &o.Events[i].T4, 0)
	}
	return o
}

// now stands for a time during the run, once it is known to be one.
const now = 0x7777777777777777

func (st *stage) drain(t testing.TB) []Event {
	t.Helper()
	var events []Event
	st.ring.SetDeadline(time.Now())
	for {
		r, err := st.ring.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return events
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(r.RawSample) != int(st.objects.Slots.ValueSize()) {
			t.Errorf("ring record of %d bytes", len(r.RawSample))
		}
		e, err := decode(r.RawSample)
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
}

// prepare returns a program that puts a VLAN tag beside the packet, as receive
// offload does, or cuts it shorter than BPF_PROG_TEST_RUN takes it, and then
// runs ours.
func (st *stage) prepare(p preparation) *ebpf.Program {
	st.t.Helper()
	if prog := st.prepared[p]; prog != nil {
		return prog
	}
	var insns asm.Instructions
	if p.tagged {
		insns = append(insns,
			asm.Mov.Imm(asm.R2, 0x0081), // htons(ETH_P_8021Q)
			asm.Mov.Imm(asm.R3, 10),
			asm.FnSkbVlanPush.Call(),
		)
	}
	if p.keep > 0 {
		insns = append(insns,
			asm.Mov.Imm(asm.R2, int32(p.keep)),
			asm.Mov.Imm(asm.R3, 0),
			asm.FnSkbChangeTail.Call(),
		)
	}
	prog := before(st.t, p.program, insns...)
	st.prepared[p] = prog
	return prog
}

// before returns a program that runs the instructions, with the context in R1,
// and then prog.
func before(t testing.TB, prog *ebpf.Program, insns ...asm.Instruction) *ebpf.Program {
	t.Helper()
	table, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Close() })
	if err := table.Put(uint32(0), prog); err != nil {
		t.Fatal(err)
	}
	all := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}
	all = append(all, insns...)
	all = append(all,
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.LoadMapPtr(asm.R2, table.FD()),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, 99), // an action that no test expects
		asm.Return(),
	)
	return newProgram(t, prog.Type(), all)
}

// newProgram loads one that may call, and be called by, those of the objects.
func newProgram(t testing.TB, kind ebpf.ProgramType, insns asm.Instructions) *ebpf.Program {
	t.Helper()
	spec := &ebpf.ProgramSpec{Type: kind, Instructions: insns, License: "Dual BSD/GPL"}
	if kind == ebpf.XDP {
		spec.AttachType = ebpf.AttachXDP // which tail calls compare
	}
	p, err := ebpf.NewProgram(spec)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// packetCase changes one thing of the base scene. What is not said is expected
// to be so: the slot as it was, no event, the packet passed.
type packetCase struct {
	name   string
	only   func(s *scene) bool // nil: makes sense in every scene
	change func(s *scene)
	want   Verdict
	ended  bool
	slot   func(s *scene) Event
	events func(s *scene) []Event
}

func (c packetCase) run(t *testing.T, st *stage, s *scene) {
	t.Helper()
	if c.change != nil {
		c.change(s)
	}
	want := outcome{Verdicts: map[string]uint64{c.want.String(): 1}, Ended: c.ended, Unchanged: true, Slot: s.slot}
	if c.slot != nil {
		want.Slot = c.slot(s)
	}
	if c.events != nil {
		want.Events = c.events(s)
	}
	if diff := cmp.Diff(want, st.play(t, s)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func runCases(t *testing.T, ingress bool, cases []packetCase) {
	st := newStage(t, testConfig)
	for _, profile := range []uint8{profileStamp, profileTWAMPLight, profileDoubleZero} {
		for _, v6 := range []bool{false, true} {
			for _, kind := range []string{"", ", without link header", ", xdp"} {
				if kind == ", xdp" && !ingress {
					continue
				}
				name := fmt.Sprintf("profile %d, v6 %v%s", profile, v6, kind)
				t.Run(name, func(t *testing.T) {
					for _, c := range cases {
						s := baseScene(ingress, v6, kind == ", without link header", profile)
						s.xdp = kind == ", xdp"
						if c.only != nil && !c.only(s) {
							continue
						}
						t.Run(c.name, func(t *testing.T) { c.run(t, st, s) })
					}
				})
			}
		}
	}
}

func (s *scene) is4() bool      { return s.key.Local.Addr().Is4() }
func (s *scene) is6() bool      { return !s.is4() }
func (s *scene) ethernet() bool { return !s.linkless }
func (s *scene) tc() bool       { return !s.xdp }
func (s *scene) inXDP() bool    { return s.xdp }
func (s *scene) echo() bool     { return s.profile == profileDoubleZero }
func (s *scene) times() bool    { return !s.echo() }
func (s *scene) stamp() bool    { return s.profile == profileStamp }
func (s *scene) light() bool    { return s.profile == profileTWAMPLight }

// put overwrites bytes at an offset from the IP header.
func put(at int, b ...byte) func(*scene) {
	return func(s *scene) {
		s.raw = func(in []byte) []byte {
			copy(in[s.packet.ip()+at:], b)
			return in
		}
	}
}

// cut shortens the frame to n bytes from the IP header on.
func cut(n int) func(*scene) {
	return func(s *scene) { s.keep = s.packet.ip() + n }
}

func putPayload(at int, b ...byte) func(*scene) {
	return func(s *scene) { copy(s.packet.payload[at:], b) }
}

// size cuts the payload, or adds bytes that a checksum cannot do without.
func size(n int) func(*scene) {
	return func(s *scene) {
		b := slices.Clone(s.packet.payload)
		for len(b) < n {
			b = append(b, byte(len(b))|1)
		}
		s.packet.payload = b[:n]
	}
}

// otherAddress sends the packet to an address that no path has.
func otherAddress(s *scene) {
	s.packet.destination = netip.AddrPortFrom(s.packet.destination.Addr().Next().Next(), s.packet.destination.Port())
}

// addLength changes a big-endian length at an offset from the IP header.
func addLength(at func(s *scene) int, n int) func(*scene) {
	return func(s *scene) {
		s.raw = func(in []byte) []byte {
			b := in[s.packet.ip()+at(s):]
			binary.BigEndian.PutUint16(b, uint16(int(binary.BigEndian.Uint16(b))+n))
			return in
		}
	}
}

func udpLengthAt(s *scene) int { return s.packet.udp() - s.packet.ip() + 4 }

func ipLengthAt(s *scene) int {
	if s.is4() {
		return 2
	}
	return 4
}

// headerCases hold in both directions: nothing of this is looked at closer.
func headerCases() []packetCase {
	is4, is6 := (*scene).is4, (*scene).is6
	cases := []packetCase{
		{name: "arp", only: (*scene).ethernet, change: put(-2, 0x08, 0x06), want: VerdictNotIP},
		{name: "tag in the packet", only: (*scene).ethernet, change: put(-2, 0x81, 0x00), want: VerdictNotIP},
		{name: "tag beside the packet", only: func(s *scene) bool { return s.ethernet() && s.tc() }, change: func(s *scene) { s.tagged = true }, want: VerdictTagged},
		{name: "several datagrams in one", only: (*scene).tc, change: func(s *scene) { s.skb.GSOSegs, s.skb.GSOSize = 2, 22 }, want: VerdictMerged},
		{name: "tcp", only: is4, change: put(9, 6), want: VerdictNotUDP},
		{name: "tcp with options of ip", only: is4, change: put(0, 0x46, 0, 0, 72, 0, 0, 0, 0, 64, 6), want: VerdictNotUDP},
		{name: "tcp over ipv6", only: is6, change: put(6, 6), want: VerdictNotUDP},
		{name: "icmp over ipv6", only: is6, change: put(6, 58), want: VerdictNotUDP},
		{name: "ip options", only: is4, change: put(0, 0x46), want: VerdictIPOptions},
		{name: "most ip options", only: is4, change: put(0, 0x4f), want: VerdictIPOptions},
		{name: "ip header too short", only: is4, change: put(0, 0x44), want: VerdictUnparsed},
		{name: "wrong version", only: is4, change: put(0, 0x55), want: VerdictUnparsed},
		{name: "wrong version of ipv6", only: is6, change: put(0, 0x4b), want: VerdictUnparsed},
		{name: "first fragment", only: is4, change: put(6, 0x20), want: VerdictFragment},
		{name: "middle fragment", only: is4, change: put(6, 0x20, 0x10), want: VerdictFragment},
		{name: "last fragment", only: is4, change: put(6, 0x00, 0x10), want: VerdictFragment},
		{name: "last fragment, far offset", only: is4, change: put(6, 0x10, 0x00), want: VerdictFragment},
		{name: "fragment header", only: is6, change: put(6, 44), want: VerdictFragment},
		{name: "hop-by-hop options", only: is6, change: put(6, 0), want: VerdictExtensionHeader},
		{name: "routing header", only: is6, change: put(6, 43), want: VerdictExtensionHeader},
		{name: "authentication header", only: is6, change: put(6, 51), want: VerdictExtensionHeader},
		{name: "destination options", only: is6, change: put(6, 60), want: VerdictExtensionHeader},
		{name: "other local port", change: func(s *scene) { s.packet = s.packet.withLocalPort(s, 49153) }, want: VerdictOtherPort},
		{name: "other remote port", change: func(s *scene) { s.packet = s.packet.withRemotePort(s, 863) }, want: VerdictOtherPort},
		{name: "other source address", change: func(s *scene) {
			s.packet.source = netip.AddrPortFrom(s.packet.source.Addr().Next().Next(), s.packet.source.Port())
		}, want: VerdictOtherPath},
		{name: "other destination address", change: otherAddress, want: VerdictOtherPath},
		{name: "no path", change: func(s *scene) { s.path = nil }, want: VerdictOtherPort},
		{name: "udp length one more", change: addLength(udpLengthAt, 1), want: VerdictBadLength},
		{name: "udp length one less", change: addLength(udpLengthAt, -1), want: VerdictBadLength},
		{name: "ip length one more", change: addLength(ipLengthAt, 1), want: VerdictBadLength},
		{name: "ip length one less", change: addLength(ipLengthAt, -1), want: VerdictBadLength},
		{name: "udp length zero", change: func(s *scene) { addLength(udpLengthAt, -8-len(s.packet.payload))(s) }, want: VerdictBadLength},
		{name: "ip length zero", change: func(s *scene) {
			n := 8 + len(s.packet.payload)
			if s.is4() {
				n += 20
			}
			addLength(ipLengthAt, -n)(s)
		}, want: VerdictBadLength},
		{name: "shorter than a udp header, says udp and ip", change: func(s *scene) {
			s.raw = func(in []byte) []byte {
				less := len(s.packet.payload) + 1
				for _, at := range []int{udpLengthAt(s), ipLengthAt(s)} {
					b := in[s.packet.ip()+at:]
					binary.BigEndian.PutUint16(b, binary.BigEndian.Uint16(b)-uint16(less))
				}
				return in
			}
		}, want: VerdictBadLength},
		{name: "last byte cut off", change: func(s *scene) { s.keep = len(s.packet.bytes()) - 1 }, want: VerdictBadLength},
		{name: "cut after the udp header", change: func(s *scene) { cut(s.packet.data() - s.packet.ip())(s) }, want: VerdictBadLength},
		{name: "cut in the udp header", change: func(s *scene) { cut(s.packet.data() - s.packet.ip() - 1)(s) }, want: VerdictUnparsed},
		{name: "cut before the udp header", change: func(s *scene) { cut(s.packet.udp() - s.packet.ip())(s) }, want: VerdictUnparsed},
		{name: "cut in the ip header", change: cut(19), want: VerdictUnparsed},
		{name: "slots outside the map", change: func(s *scene) {
			s.stored = &xtwampProbePath{Id: testPathID, SlotBase: testSlots - 4, SlotMask: testMask, Profile: xtwampProfile(s.profile), Device: testIfindex}
		}, want: VerdictNoSlot},
	}
	return cases
}

func (p packet) withLocalPort(s *scene, port uint16) packet {
	if s.ingress {
		p.destination = netip.AddrPortFrom(p.destination.Addr(), port)
	} else {
		p.source = netip.AddrPortFrom(p.source.Addr(), port)
	}
	return p
}

func (p packet) withRemotePort(s *scene, port uint16) packet {
	if s.ingress {
		p.source = netip.AddrPortFrom(p.source.Addr(), port)
	} else {
		p.destination = netip.AddrPortFrom(p.destination.Addr(), port)
	}
	return p
}

func TestEgress(t *testing.T) {
	sent := func(s *scene) Event {
		e := sentSlot()
		e.T1 = now
		return e
	}
	runCases(t, false, append(headerCases(), []packetCase{
		{name: "probe", want: VerdictProbeSent, slot: sent},
		{name: "probe into an empty slot", change: func(s *scene) { s.slot = Event{} }, want: VerdictProbeSent, slot: sent},
		{name: "zero probe into an empty slot", change: func(s *scene) {
			s.slot = Event{}
			s.path.SlotMask = 0
			s.path.SlotBase = slotIndex
			copy(s.packet.payload, make([]byte, 12))
		}, want: VerdictProbeSent, slot: func(s *scene) Event { return Event{T1: now, Path: testPathID, Flags: FlagSent} }},
		{name: "second pass", change: func(s *scene) { s.slot = sentSlot() }, want: VerdictProbeSeen},
		{name: "second pass after the reply", change: func(s *scene) { s.slot = s.answered() }, want: VerdictProbeSeen},
		{name: "same number, other time", change: func(s *scene) { s.slot = s.answered(); s.slot.WireT1++ }, want: VerdictProbeSent, slot: sent},
		{name: "same time, other number", change: func(s *scene) { s.slot = s.answered(); s.slot.Seq += 8 }, want: VerdictProbeSent, slot: sent},
		{name: "last slot of the path", change: func(s *scene) {
			s.path.SlotBase = slotIndex - 7
			putPayload(3, 0xff)(s)
		}, want: VerdictProbeSent, slot: func(s *scene) Event { e := sent(s); e.Seq |= 0xff; return e }},
		{name: "path of four slots", change: func(s *scene) { s.path.SlotBase, s.path.SlotMask = slotIndex, 3 }, want: VerdictProbeSent, slot: sent},
		{name: "path of another interface", change: func(s *scene) { s.path.Interface = testIfindex + 1 }, want: VerdictProbeSent, slot: sent},
		{name: "wrong checksum", change: func(s *scene) {
			s.raw = func(in []byte) []byte { in[s.packet.udp()+6] ^= 1; return in }
		}, want: VerdictProbeSent, slot: sent},
		{name: "large", change: size(1472), want: VerdictProbeSent, slot: sent},
		{name: "ethernet padding behind it", change: func(s *scene) {
			s.raw = func(in []byte) []byte { return append(in, make([]byte, 6)...) }
		}, want: VerdictProbeSent, slot: sent},
		{name: "12 bytes", change: size(12), want: VerdictProbeSent, slot: sent},
		{name: "11 bytes", change: size(11), want: VerdictBadFormat},
		{name: "no payload", only: (*scene).ethernet, change: size(0), want: VerdictBadFormat},
	}...))
}

// reply is the sample that the base reply makes, by profile and payload.
func reply(s *scene) Event {
	e := sentSlot()
	e.T4 = now
	e.Ifindex = testIfindex
	e.Ttl, e.Tos = 61, 0xb8
	e.Length = uint16(len(s.packet.payload))
	e.Flags |= FlagAnswered
	if s.xdp {
		e.Flags |= FlagXDP
	}
	if s.echo() {
		e.ReplySeq = testSeq
		return e
	}
	e.ReplySeq = 3
	e.T2, e.T3 = wire64(wireT2), wire64(wireT3)
	e.ErrorEstimate = wire16(0x8587)
	e.Flags |= FlagHasTimes
	if len(s.packet.payload) >= 41 {
		e.RemoteTtl = 253
		e.Flags |= FlagHasTTL
	}
	if s.stamp() && len(s.packet.payload) >= 44 {
		e.Ssid = binary.BigEndian.Uint16(s.packet.payload[14:])
	}
	return e
}

func replies(s *scene) []Event { return []Event{reply(s)} }

func TestIngress(t *testing.T) {
	answered := func(c packetCase) packetCase {
		c.want, c.ended, c.slot, c.events = VerdictAnswered, true, reply, replies
		return c
	}
	both := func(fs ...func(*scene)) func(*scene) {
		return func(s *scene) {
			for _, f := range fs {
				f(s)
			}
		}
	}
	putCheck := func(check func(s *scene, is uint16) uint16) func(*scene) {
		return func(s *scene) {
			s.raw = func(in []byte) []byte {
				b := in[s.packet.udp()+6:]
				binary.BigEndian.PutUint16(b, check(s, binary.BigEndian.Uint16(b)))
				return in
			}
		}
	}
	partial := putCheck(func(s *scene, _ uint16) uint16 { return onesSum(s.packet.pseudoHeader()) })
	none := putCheck(func(*scene, uint16) uint16 { return 0 })
	times, echo, stamp, light := (*scene).times, (*scene).echo, (*scene).stamp, (*scene).light

	cases := append(headerCases(), []packetCase{
		answered(packetCase{name: "reply"}),
		answered(packetCase{name: "path of four slots", change: func(s *scene) { s.path.SlotBase, s.path.SlotMask = slotIndex, 3 }}),
		answered(packetCase{name: "reply on the right interface", change: func(s *scene) { s.path.Interface = testIfindex }}),
		answered(packetCase{name: "ethernet padding behind it", change: func(s *scene) {
			s.raw = func(in []byte) []byte { return append(in, 1, 2, 3) }
		}}),

		// Length and format, facts 1.11.
		answered(packetCase{name: "36 bytes", only: times, change: size(36)}),
		answered(packetCase{name: "38 bytes", only: times, change: size(38)}),
		answered(packetCase{name: "40 bytes", only: times, change: size(40)}),
		answered(packetCase{name: "41 bytes", only: times, change: size(41)}),
		answered(packetCase{name: "43 bytes", only: times, change: size(43)}),
		answered(packetCase{name: "48 bytes", only: times, change: size(48)}),
		answered(packetCase{name: "1500 bytes", only: times, change: size(1500)}),
		{name: "35 bytes", only: times, change: size(35), want: VerdictBadFormat},
		{name: "no payload", only: (*scene).ethernet, change: size(0), want: VerdictBadFormat},
		{name: "1501 bytes", only: times, change: size(1501), want: VerdictOversize},
		{name: "47 bytes echoed", only: echo, change: size(47), want: VerdictBadFormat},
		{name: "49 bytes echoed", only: echo, change: size(49), want: VerdictBadFormat},

		// Matching.
		{name: "other number", only: times, change: putPayload(27, testSeq&0xff+8), want: VerdictUnmatched},
		{name: "other number echoed", only: echo, change: putPayload(3, testSeq&0xff+8), want: VerdictUnmatched},
		{name: "other time", only: times, change: putPayload(35, 0), want: VerdictUnmatched},
		{name: "other time, high half", only: times, change: putPayload(28, 0), want: VerdictUnmatched},
		{name: "other time echoed", only: echo, change: putPayload(11, 0), want: VerdictUnmatched},
		{name: "nothing sent", change: func(s *scene) { s.slot.Flags = 0 }, want: VerdictUnmatched},
		{name: "zero reply to an empty slot", change: func(s *scene) {
			s.slot = Event{}
			s.path.SlotMask, s.path.SlotBase = 0, slotIndex
			clear(s.packet.payload)
		}, want: VerdictUnmatched},
		{name: "slot of a later probe", change: func(s *scene) { s.slot.Seq += 8 }, want: VerdictUnmatched},

		// SSID, RFC 8972 section 3.
		answered(packetCase{name: "no ssid", only: stamp, change: putPayload(14, 0, 0)}),
		{name: "other ssid", only: stamp, change: putPayload(15, 0xee), want: VerdictWrongSSID},
		answered(packetCase{name: "other ssid in a short reply", only: stamp, change: both(size(43), putPayload(15, 0xee))}),
		answered(packetCase{name: "other ssid in twamp light", only: light, change: putPayload(15, 0xee)}),

		{name: "other interface", change: func(s *scene) { s.path.Interface = testIfindex + 1 }, want: VerdictWrongInterface},
		{name: "path of a device above", only: (*scene).inXDP, change: func(s *scene) { s.path.Device = testIfindex + 1 }, want: VerdictOtherPath},
		answered(packetCase{name: "path of another device", only: (*scene).tc, change: func(s *scene) { s.path.Device = testIfindex + 1 }}),

		// Checksum.
		answered(packetCase{name: "checksum left to offload", change: partial}),
		answered(packetCase{name: "large, checksum left to offload", only: times, change: both(size(1400), partial)}),
		answered(packetCase{name: "no checksum", only: (*scene).is4, change: none}),
		{name: "no checksum over ipv6", only: (*scene).is6, change: none, want: VerdictBadChecksum},
		{name: "checksum off by one", change: putCheck(func(_ *scene, is uint16) uint16 { return is + 1 }), want: VerdictBadChecksum},
		{name: "checksum off by one, large", only: times, change: both(size(1400), putCheck(func(_ *scene, is uint16) uint16 { return is - 1 })), want: VerdictBadChecksum},
		answered(packetCase{name: "sum of zero, sent as ffff", only: times, change: func(s *scene) {
			// With bytes 38 and 39 (MBZ) as complement the sum becomes zero.
			in := s.packet.bytes()
			copy(s.packet.payload[38:], in[s.packet.udp()+6:][:2])
			if in := s.packet.bytes(); binary.BigEndian.Uint16(in[s.packet.udp()+6:]) != 0xffff {
				panic("the sum is not zero")
			}
		}}),

		{name: "duplicate", change: func(s *scene) { s.slot = s.answered() }, want: VerdictDuplicate, ended: true,
			events: func(s *scene) []Event { e := reply(s); e.Flags |= FlagDuplicate; return []Event{e} }},
		{name: "duplicate with a bad checksum", change: func(s *scene) {
			s.slot = s.answered()
			putCheck(func(_ *scene, is uint16) uint16 { return is ^ 1 })(s)
		}, want: VerdictBadChecksum},
		{name: "duplicate on another interface", change: func(s *scene) {
			s.slot = s.answered()
			s.path.Interface = testIfindex + 1
		}, want: VerdictWrongInterface},
	}...)
	for at := 12; at < 48; at++ {
		cases = append(cases, packetCase{name: fmt.Sprintf("byte %d echoed is not zero", at), only: echo, change: putPayload(at, 1), want: VerdictBadFormat})
	}
	runCases(t, true, cases)
}

// Every bit of a reply is either of no consequence or makes it no reply.
func TestNoFlippedBitPasses(t *testing.T) {
	for _, xdp := range []bool{false, true} {
		testNoFlippedBitPasses(t, xdp)
	}
}

func testNoFlippedBitPasses(t *testing.T, xdp bool) {
	st := newStage(t, testConfig)
	for _, profile := range []uint8{profileStamp, profileDoubleZero} {
		for _, v6 := range []bool{false, true} {
			s := baseScene(true, v6, false, profile)
			s.xdp = xdp
			free := func(bit int) bool { // what no checksum here covers and no field demands
				at := bit/8 - 14
				switch {
				case at < -2: // MAC addresses
					return true
				case v6:
					// class and flow label; hop limit
					return at == 0 && bit%8 >= 4 || at >= 1 && at <= 3 || at == 7
				default:
					// TOS, id, the reserved bit and DF, TTL, header checksum
					return at == 1 || at == 4 || at == 5 || at == 6 && bit%8 < 2 || at == 8 || at == 10 || at == 11
				}
			}
			for bit := range 8 * len(s.packet.bytes()) {
				s.raw = func(in []byte) []byte { in[bit/8] ^= 0x80 >> (bit % 8); return in }
				if got := st.play(t, s); got.Ended != free(bit) || (len(got.Events) == 1) != free(bit) {
					t.Errorf("xdp %v, profile %d, v6 %v, byte %d bit %d: ended %v, %v", xdp, profile, v6, bit/8, bit%8, got.Ended, got.Verdicts)
				}
			}
		}
	}
}

// Of each size and content, the right checksum is right and a changed byte not.
func TestChecksumOfAnySize(t *testing.T) {
	st := newStage(t, testConfig)
	rapid.Check(t, func(rt *rapid.T) {
		s := baseScene(true, rapid.Bool().Draw(rt, "v6"), false, profileTWAMPLight)
		s.xdp = rapid.Bool().Draw(rt, "xdp")
		tail := rapid.SliceOfN(rapid.Byte(), 0, 1500-36).Draw(rt, "tail")
		s.packet.payload = append(s.packet.payload[:36], tail...)
		if got := st.play(t, s); !got.Ended || got.Verdicts["answered"] != 1 {
			rt.Fatalf("%d bytes: %v", len(s.packet.payload), got.Verdicts)
		}
		if len(tail) == 0 {
			return
		}
		at := rapid.IntRange(0, len(tail)-1).Draw(rt, "at")
		by := byte(rapid.IntRange(1, 254).Draw(rt, "by")) // ff would turn 00 into ff, the same in one's complement
		s.raw = func(in []byte) []byte { in[s.packet.data()+36+at] ^= by; return in }
		if got := st.play(t, s); got.Ended || got.Verdicts["bad_checksum"] != 1 {
			rt.Fatalf("%d bytes, byte %d of the tail changed: %v", len(s.packet.payload), at, got.Verdicts)
		}
	})
}

// Without room on the ring the sample is in the slot, and nothing waits.
func TestRingFull(t *testing.T) {
	st := newStage(t, Config{Slots: testSlots, Paths: 1, RingBytes: 1})
	s := baseScene(true, false, false, profileStamp)
	prog := st.program(t, true, false)
	if err := st.SetPath(s.key, *s.path); err != nil {
		t.Fatal(err)
	}
	run := func(slot Event, times uint32) {
		t.Helper()
		if err := st.objects.Slots.Put(uint32(slotIndex), &slot); err != nil {
			t.Fatal(err)
		}
		for range times { // one by one: repeated runs begin anew after a signal
			action, err := prog.Run(&ebpf.RunOptions{Data: s.packet.bytes(), Context: s.skb})
			if err != nil || action != 2 {
				t.Fatalf("action %d, %v", int32(action), err)
			}
		}
	}
	room := uint32(os.Getpagesize() / (8 + int(st.objects.Slots.ValueSize())))
	run(sentSlot(), room+3) // one answer, then duplicates
	run(sentSlot(), 1)

	got, err := st.Counters()
	if err != nil {
		t.Fatal(err)
	}
	want := [VerdictMax]uint64{VerdictAnswered: 1, VerdictDuplicate: uint64(room) - 1, VerdictDuplicateRingFull: 3, VerdictRingFull: 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counters (-want +got)\n%s", diff)
	}
	slot, err := st.Slot(slotIndex)
	if err != nil {
		t.Fatal(err)
	}
	slot.T4 = now
	if diff := cmp.Diff(reply(s), slot); diff != "" {
		t.Errorf("slot (-want +got)\n%s", diff)
	}
	if events := st.drain(t); len(events) != int(room) {
		t.Errorf("%d events, want %d", len(events), room)
	}
}

// In a running program foreign traffic is not counted, anything else is.
func TestForeignTrafficIsNotCounted(t *testing.T) {
	requireRoot(t)
	d, err := Load(testConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	st := &stage{Datapath: d}
	for _, c := range []struct {
		want   Verdict
		change func(s *scene)
	}{
		{VerdictNotIP, put(-2, 0x08, 0x06)},
		{VerdictNotUDP, put(9, 6)},
		{VerdictOtherPort, func(s *scene) { s.packet = s.packet.withLocalPort(s, 1) }},
		{VerdictOtherPath, otherAddress},
		{VerdictFragment, put(6, 0x20)},
	} {
		s := baseScene(false, false, false, profileStamp)
		c.change(s)
		if err := d.SetPath(s.key, *s.path); err != nil {
			t.Fatal(err)
		}
		in := s.packet.bytes()
		if s.raw != nil {
			in = s.raw(in)
		}
		if _, err := st.program(t, false, false).Run(&ebpf.RunOptions{Data: in}); err != nil {
			t.Fatal(err)
		}
	}
	// What passes XDP meets tc ingress, which counts it.
	xdp := st.xdpProgram(t)
	for _, s := range []*scene{baseScene(true, false, false, profileStamp), baseScene(true, true, false, profileStamp)} {
		if err := d.SetPath(s.key, *s.path); err != nil {
			t.Fatal(err)
		}
		for _, in := range [][]byte{s.packet.bytes()[:60], s.packet.bytes()} { // cut off; nothing was sent
			if action, err := xdp.Run(&ebpf.RunOptions{Data: in}); err != nil || action != xdpPass {
				t.Errorf("action %d, %v", action, err)
			}
		}
	}
	got, err := d.Counters()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([VerdictMax]uint64{VerdictFragment: 1}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
