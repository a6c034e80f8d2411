// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// BenchmarkPacket reports what a packet costs more than it does with an empty
// program in the same place: the interquartile mean over pairs of runs of
// BPF_PROG_TEST_RUN, one of either kind right after the other. As each counts
// whole nanoseconds, a median would do so too.
func BenchmarkPacket(b *testing.B) {
	requireRoot(b)
	const repeat = 10_000
	d, err := Load(Config{Slots: testSlots, Paths: 16, RingBytes: repeat * 128})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { d.Close() })
	empty := map[bool]*ebpf.Program{
		false: emptyProgram(b, ebpf.SchedCLS, tcUnspec),
		true:  emptyProgram(b, ebpf.XDP, xdpPass),
	}
	st := newStageOf(b, d)
	sent := sentSlot()

	for _, c := range []struct {
		name    string
		ingress bool
		xdp     bool
		v6      bool
		profile uint8
		change  func(s *scene)
		fresh   *Event // the slot's content before each packet
	}{
		{name: "egress/arp", change: put(-2, 0x08, 0x06)},
		{name: "egress/tcp", change: put(9, 6)},
		{name: "egress/tcp6", v6: true, change: put(6, 6)},
		{name: "egress/other port", change: func(s *scene) { s.packet = s.packet.withLocalPort(s, 5353) }},
		{name: "egress/other port6", v6: true, change: func(s *scene) { s.packet = s.packet.withLocalPort(s, 5353) }},
		{name: "egress/other remote port", change: func(s *scene) { s.packet = s.packet.withRemotePort(s, 5353) }},
		{name: "egress/other address", change: otherAddress},
		{name: "egress/probe", fresh: &Event{}},
		{name: "egress/probe6", v6: true, fresh: &Event{}},
		{name: "ingress/arp", ingress: true, change: put(-2, 0x08, 0x06)},
		{name: "ingress/tcp", ingress: true, change: put(9, 6)},
		{name: "ingress/tcp6", ingress: true, v6: true, change: put(6, 6)},
		{name: "ingress/other port", ingress: true, change: func(s *scene) { s.packet = s.packet.withLocalPort(s, 5353) }},
		{name: "ingress/other port6", ingress: true, v6: true, change: func(s *scene) { s.packet = s.packet.withLocalPort(s, 5353) }},
		{name: "ingress/other remote port", ingress: true, change: func(s *scene) { s.packet = s.packet.withRemotePort(s, 5353) }},
		{name: "ingress/other address", ingress: true, change: otherAddress},
		{name: "ingress/reply", ingress: true, fresh: &sent},
		{name: "ingress/reply6", ingress: true, v6: true, fresh: &sent},
		{name: "ingress/echo", ingress: true, profile: profileDoubleZero, fresh: &sent},
		{name: "ingress/reply of 1472 bytes", ingress: true, change: size(1472), fresh: &sent},
		{name: "xdp/arp", ingress: true, xdp: true, change: put(-2, 0x08, 0x06)},
		{name: "xdp/tcp", ingress: true, xdp: true, change: put(9, 6)},
		{name: "xdp/tcp6", ingress: true, xdp: true, v6: true, change: put(6, 6)},
		{name: "xdp/other port", ingress: true, xdp: true, change: func(s *scene) { s.packet = s.packet.withLocalPort(s, 5353) }},
		{name: "xdp/other port6", ingress: true, xdp: true, v6: true, change: func(s *scene) { s.packet = s.packet.withLocalPort(s, 5353) }},
		{name: "xdp/other remote port", ingress: true, xdp: true, change: func(s *scene) { s.packet = s.packet.withRemotePort(s, 5353) }},
		{name: "xdp/other address", ingress: true, xdp: true, change: otherAddress},
		{name: "xdp/other device", ingress: true, xdp: true, change: func(s *scene) { s.path.Device++ }},
		{name: "xdp/reply", ingress: true, xdp: true, fresh: &sent},
		{name: "xdp/reply6", ingress: true, xdp: true, v6: true, fresh: &sent},
		{name: "xdp/echo", ingress: true, xdp: true, profile: profileDoubleZero, fresh: &sent},
		{name: "xdp/reply of 1472 bytes", ingress: true, xdp: true, change: size(1472), fresh: &sent},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := baseScene(c.ingress, c.v6, false, c.profile)
			if c.change != nil {
				c.change(s)
			}
			in := s.packet.bytes()
			if s.raw != nil {
				in = s.raw(in)
			}
			if err := st.SetPath(s.key, *s.path); err != nil {
				b.Fatal(err)
			}
			defer func() {
				if err := st.DeletePath(s.key); err != nil {
					b.Fatal(err)
				}
			}()
			ours, base := st.program(b, c.ingress, false), empty[c.xdp]
			if c.xdp {
				ours = st.xdpProgram(b)
			}
			if c.fresh != nil {
				if err := st.objects.Slots.Put(uint32(slotIndex), c.fresh); err != nil {
					b.Fatal(err)
				}
				reset := setFlags(st.objects.Slots, c.fresh.Flags)
				ours, base = before(b, ours, reset...), before(b, base, reset...)
			}
			run := func(p *ebpf.Program) float64 {
				b.Helper()
				_, took, err := p.Benchmark(in, repeat, nil)
				if err != nil {
					b.Fatal(err)
				}
				return float64(took.Nanoseconds())
			}
			var more []float64
			for b.Loop() {
				more = append(more, -run(base)+run(ours))
				b.StopTimer()
				st.drain(b)
				b.StartTimer()
			}
			b.ReportMetric(middle(more), "ns/packet")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// middle is the mean of the middle half of values.
func middle(values []float64) float64 {
	slices.Sort(values)
	half := values[len(values)/4 : len(values)-len(values)/4]
	sum := 0.0
	for _, v := range half {
		sum += v
	}
	return sum / float64(len(half))
}

// setFlags sets the flags of the scene's slot.
func setFlags(slots *ebpf.Map, flags xtwampSampleFlag) []asm.Instruction {
	return []asm.Instruction{
		asm.StoreImm(asm.RFP, -4, slotIndex, asm.Word),
		asm.LoadMapPtr(asm.R1, slots.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "ready"),
		asm.StoreImm(asm.R0, 68, int64(flags), asm.Word),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("ready"),
	}
}

// BenchmarkReflect is the same for the reflector, with 2,000 allowed peers. As
// the runs share one packet, both its ends are ours and allowed, and its ports
// and times are put back before each run, with either program.
func BenchmarkReflect(b *testing.B) {
	requireRoot(b)
	const repeat = 10_000
	r, err := LoadReflector(ReflectorConfig{Rate: 1_000_000_000, Listeners: 16, Peers: 4096, Prefixes: 16, Sources: 64, Devices: 4})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { r.Close() })
	st := &reflectStage{Reflector: r, t: b}
	if err := r.SetClock(testOffset, testEstimate, time.Hour); err != nil {
		b.Fatal(err)
	}
	if err := r.beginCounting(Device{Index: 1}); err != nil {
		b.Fatal(err)
	}
	empty := map[bool]*ebpf.Program{
		false: emptyProgram(b, ebpf.SchedCLS, tcUnspec),
		true:  emptyProgram(b, ebpf.XDP, xdpPass),
	}
	for _, c := range []struct {
		name   string
		v6     bool
		change func(q *question)
		want   ReflectVerdict
	}{
		{name: "arp", change: func(q *question) { q.put(-2, 0x08, 0x06) }, want: ReflectNotIP},
		{name: "tcp", change: func(q *question) { q.put(9, 6) }, want: ReflectNotUDP},
		{name: "tcp6", v6: true, change: func(q *question) { q.put(6, 6) }, want: ReflectNotUDP},
		{name: "other port", change: func(q *question) { q.listeners = nil }, want: ReflectOtherPort},
		{name: "other port6", v6: true, change: func(q *question) { q.listeners = nil }, want: ReflectOtherPort},
		{name: "stranger", change: func(q *question) { q.from("9.9.9.9") }, want: ReflectNotAllowed},
		{name: "request", want: ReflectAnswered},
		{name: "request6", v6: true, want: ReflectAnswered},
		{name: "echo", change: func(q *question) { q.packet.payload = probePayload(profileDoubleZero) }, want: ReflectAnswered},
		{name: "request of 1472 bytes", change: func(q *question) { q.size(1472) }, want: ReflectAnswered},
		{name: "request by prefix", change: func(q *question) { q.allowAll(); q.peers = nil }, want: ReflectAnswered},
	} {
		for _, xdp := range []bool{false, true} {
			b.Run(map[bool]string{false: "tc/", true: "xdp/"}[xdp]+c.name, func(b *testing.B) {
				q := baseQuestion(c.v6, false)
				q.xdp = xdp
				if c.change != nil {
					c.change(q)
				}
				if q.listeners != nil {
					q.listeners = append(q.listeners, netip.AddrPortFrom(q.packet.source.Addr(), 862))
				}
				if q.peers != nil && c.want != ReflectNotAllowed {
					q.peers = append(q.peers, q.packet.destination.Addr())
					for a := netip.MustParseAddr("172.16.0.0"); len(q.peers) < 2000; a = a.Next() {
						q.peers = append(q.peers, a)
					}
				}
				if err := errors.Join(r.SetListeners(q.listen(testIfindex)), r.SetPeers(q.peers), r.SetPrefixes(q.prefixes)); err != nil {
					b.Fatal(err)
				}
				in := q.packet.bytes()
				if q.raw != nil {
					in = q.raw(in)
				}
				prepare, ours := askAgain(q.packet.udp()), r.objects.XtwampReflect
				if xdp {
					prepare, ours = askAgainInXDP(in, q.packet.udp()), st.xdpProgram(b)
				}
				ours, base := before(b, ours, prepare...), before(b, empty[xdp], prepare...)
				run := func(p *ebpf.Program) float64 {
					b.Helper()
					_, took, err := p.Benchmark(in, repeat, nil)
					if err != nil {
						b.Fatal(err)
					}
					return float64(took.Nanoseconds())
				}
				counted, err := r.counts(Device{Index: 1})
				if err != nil {
					b.Fatal(err)
				}
				var more []float64
				for b.Loop() {
					more = append(more, -run(base)+run(ours))
				}
				b.ReportMetric(middle(more), "ns/packet")
				b.ReportMetric(0, "ns/op")
				after, err := r.counts(Device{Index: 1})
				if err != nil {
					b.Fatal(err)
				}
				if c.want >= ReflectTagged && after[c.want]-counted[c.want] < uint64(len(more))*repeat { // an interrupted run is done again
					b.Errorf("%d of %d packets were %v", after[c.want]-counted[c.want], len(more)*repeat, c.want)
				}
			})
		}
	}
}

// askAgain makes the answer in the packet a question again, as far as the
// program looks: from 49152 to 862, T1 now and T2 long ago, and for this host.
func askAgain(udp int) asm.Instructions {
	store := func(at int, stack, size int32) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Imm(asm.R2, int32(at)),
			asm.Mov.Reg(asm.R3, asm.RFP),
			asm.Add.Imm(asm.R3, stack),
			asm.Mov.Imm(asm.R4, size),
			asm.Mov.Imm(asm.R5, 0),
			asm.FnSkbStoreBytes.Call(),
		}
	}
	return slices.Concat(asm.Instructions{
		asm.Mov.Imm(asm.R2, packetHost),
		asm.FnSkbChangeType.Call(),
		asm.FnKtimeGetNs.Call(),
		asm.StoreMem(asm.RFP, -16, asm.R0, asm.DWord),
		asm.StoreImm(asm.RFP, -4, 0x5e0300c0, asm.Word),
		asm.StoreImm(asm.RFP, -8, 0, asm.Word),
	}, store(udp, -4, 4), store(udp+8+4, -16, 8), store(udp+8+16, -8, 4))
}

func askAgainInXDP(frame []byte, udp int) asm.Instructions {
	word := func(at int) int64 { return int64(int32(binary.NativeEndian.Uint32(frame[at:]))) }
	return asm.Instructions{
		asm.FnKtimeGetNs.Call(),
		asm.LoadMem(asm.R2, asm.R6, 0, asm.Word), // data
		asm.LoadMem(asm.R3, asm.R6, 4, asm.Word), // data_end
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, int32(udp+8+20)),
		asm.JGT.Reg(asm.R4, asm.R3, "ready"),
		asm.StoreImm(asm.R2, 0, word(0), asm.Word),
		asm.StoreImm(asm.R2, 4, int64(int16(word(4))), asm.Half),
		asm.StoreImm(asm.R2, int16(udp), 0x5e0300c0, asm.Word),
		asm.StoreMem(asm.R2, int16(udp+8+4), asm.R0, asm.DWord),
		asm.StoreImm(asm.R2, int16(udp+8+16), 0, asm.Word),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("ready"),
	}
}
