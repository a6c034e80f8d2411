// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
)

func TestForeignTCX(t *testing.T) {
	requireRoot(t)
	ns := newNamespace(t)
	if tcHook(t) != TCX {
		inNamespace(t, ns, func() {
			if names, err := ForeignTCX(1); err != nil || names != nil {
				t.Errorf("without tcx: %q, %v", names, err)
			}
		})
		return
	}
	d := testLoad(t, testConfig)
	stranger, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "stranger", Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	inNamespace(t, ns, func() {
		a, err := d.Attach(Device{Index: 1, Name: "lo", LinkHeader: ethernetHeader}, TCX, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer a.Close()
		for _, side := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			l, err := link.AttachTCX(link.TCXOptions{Interface: 1, Program: stranger, Attach: side})
			if err != nil {
				t.Error(err)
				return
			}
			defer l.Close()
		}
		names, err := ForeignTCX(1)
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]string{"ingress stranger", "egress stranger"}, names); diff != "" {
			t.Errorf("programs (-want +got):\n%s", diff)
		}
	})
}
