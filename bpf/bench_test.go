// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// BenchmarkPacket reports what a packet costs more than it does with an empty
// program in the same place: the median over pairs of runs of BPF_PROG_TEST_RUN,
// one of either kind right after the other. Each counts whole nanoseconds.
func BenchmarkPacket(b *testing.B) {
	requireRoot(b)
	const repeat = 10_000
	d, err := Load(Config{Slots: testSlots, Paths: 16, RingBytes: repeat * 128})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { d.Close() })
	empty, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.SchedCLS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
		License:      "Dual BSD/GPL",
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { empty.Close() })
	st := newStageOf(b, d)
	sent := sentSlot()

	for _, c := range []struct {
		name    string
		ingress bool
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
		{name: "egress/other path", change: func(s *scene) { s.packet = s.packet.withRemotePort(s, 5353) }},
		{name: "egress/probe", fresh: &Event{}},
		{name: "egress/probe6", v6: true, fresh: &Event{}},
		{name: "ingress/arp", ingress: true, change: put(-2, 0x08, 0x06)},
		{name: "ingress/tcp", ingress: true, change: put(9, 6)},
		{name: "ingress/tcp6", ingress: true, v6: true, change: put(6, 6)},
		{name: "ingress/other port", ingress: true, change: func(s *scene) { s.packet = s.packet.withLocalPort(s, 5353) }},
		{name: "ingress/other port6", ingress: true, v6: true, change: func(s *scene) { s.packet = s.packet.withLocalPort(s, 5353) }},
		{name: "ingress/other path", ingress: true, change: func(s *scene) { s.packet = s.packet.withRemotePort(s, 5353) }},
		{name: "ingress/reply", ingress: true, fresh: &sent},
		{name: "ingress/reply6", ingress: true, v6: true, fresh: &sent},
		{name: "ingress/echo", ingress: true, profile: profileDoubleZero, fresh: &sent},
		{name: "ingress/reply of 1472 bytes", ingress: true, change: size(1472), fresh: &sent},
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
			ours, base := st.program(b, c.ingress, false), empty
			if c.fresh != nil {
				if err := st.objects.Slots.Put(uint32(slotIndex), c.fresh); err != nil {
					b.Fatal(err)
				}
				reset := setFlags(st.objects.Slots, c.fresh.Flags)
				ours, base = before(b, ours, reset...), before(b, empty, reset...)
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
			slices.Sort(more)
			b.ReportMetric(more[len(more)/2], "ns/packet")
			b.ReportMetric(0, "ns/op")
		})
	}
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
