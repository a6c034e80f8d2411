// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// XDP in front of tc takes T4; whatever it takes, tc does not see.
func TestXDPTakesReplies(t *testing.T) {
	p := newPair(t)
	d := testLoad(t, testConfig)
	path := Path{ID: testPathID, SlotBase: testBase, SlotMask: testMask, SSID: testSSID, Device: uint32(p.device.Index)}
	if err := d.SetPath(p.key, path); err != nil {
		t.Fatal(err)
	}
	if _, err := p.attach(t, d, tcHook(t), filters{}); err != nil {
		t.Fatal(err)
	}
	a, err := p.attach(t, d, XDP, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !a.Alive() {
		t.Error("not alive once attached")
	}
	next := func() Event {
		t.Helper()
		p.exchange(t)
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		var events []Event
		if err := d.Run(ctx, func(e []Event) { events = append(events, e...); stop() }); err != nil {
			t.Fatal(err)
		}
		if len(events) != 1 {
			t.Fatalf("%d events", len(events))
		}
		return events[0]
	}
	e := next()
	if rtt := time.Duration(e.T4 - e.T1); e.Flags&FlagXDP == 0 || e.Ifindex != uint32(p.device.Index) || e.RemoteTtl != 253 || rtt <= 0 || rtt > time.Minute {
		t.Errorf("%+v", e)
	}
	// Without it, tc goes on.
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if a.Alive() {
		t.Error("alive when closed")
	}
	if err := d.objects.Slots.Put(uint32(slotIndex), &Event{}); err != nil {
		t.Fatal(err)
	}
	if e := next(); e.Flags&FlagXDP != 0 {
		t.Errorf("still from XDP: %+v", e)
	}
	// And a path of a device above is tc's too.
	if _, err := p.attach(t, d, XDP, nil); err != nil {
		t.Fatal(err)
	}
	path.Device++
	if err := errors.Join(d.SetPath(p.key, path), d.objects.Slots.Put(uint32(slotIndex), &Event{})); err != nil {
		t.Fatal(err)
	}
	if e := next(); e.Flags&FlagXDP != 0 {
		t.Errorf("another device's from XDP: %+v", e)
	}
	counters, err := d.Counters()
	if err != nil {
		t.Fatal(err)
	}
	if counters[VerdictProbeSent] != 3 || counters[VerdictAnswered] != 3 || counters[VerdictUnmatched] != 0 {
		t.Errorf("%v", counters)
	}
}

// Case 63: XDP alone never sees what is sent, and without T1 it takes no reply.
func TestXDPAloneTakesNothing(t *testing.T) {
	p := newPair(t)
	d := testLoad(t, testConfig)
	if err := d.SetPath(p.key, Path{ID: testPathID, SlotBase: testBase, SlotMask: testMask, SSID: testSSID, Device: uint32(p.device.Index)}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.attach(t, d, XDP, nil); err != nil {
		t.Fatal(err)
	}
	p.exchange(t)
	b := make([]byte, 2048)
	if n, err := p.socket.Read(b); err != nil || !bytes.Equal(b[:n], replyPayload(profileStamp)) {
		t.Errorf("the socket got %x, %v", b[:n], err)
	}
	if e, err := d.Slot(slotIndex); err != nil || e != (Event{}) {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestXDPDiesWithItsDevice(t *testing.T) {
	p := newPair(t)
	d := testLoad(t, testConfig)
	a, err := p.attach(t, d, XDP, nil)
	if err != nil {
		t.Fatal(err)
	}
	run(t, "ip", "-n", p.near, "link", "del", "near0")
	if a.Alive() {
		t.Error("alive without its device")
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

// Case 46: taken is taken, by a program of the same kind (EBUSY) or of the other
// (EEXIST), and whoever has it keeps it.
func TestXDPReplacesNobody(t *testing.T) {
	for _, c := range []struct {
		name  string
		flags link.XDPAttachFlags
		want  error
	}{{"driver", link.XDPDriverMode, unix.EBUSY}, {"generic", link.XDPGenericMode, unix.EEXIST}} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t)
			other := emptyProgram(t, ebpf.XDP, xdpPass)
			var theirs link.Link
			var err error
			inNamespace(t, p.near, func() {
				theirs, err = link.AttachXDP(link.XDPOptions{Program: other, Interface: p.device.Index, Flags: c.flags})
			})
			if err != nil {
				t.Fatal(err)
			}
			defer theirs.Close()
			for _, a := range []attacher{testLoad(t, testConfig), testLoadReflector(t, testReflectorConfig)} {
				inNamespace(t, p.near, func() { _, err = a.Attach(p.device, XDP, nil) })
				if !errors.Is(err, c.want) || errors.Is(err, ErrPermission) || errors.Is(err, ErrNotSupported) {
					t.Errorf("%T: %v, want %v", a, err, c.want)
				}
			}
			info, err := theirs.Info()
			if err != nil || info.XDP().Ifindex != uint32(p.device.Index) || info.Program != programID(t, other) {
				t.Errorf("the other's: %+v, %v", info, err)
			}
		})
	}
}

// Case 47. Never the generic kind, which would work.
func TestXDPIsRefusedForLargeFrames(t *testing.T) {
	p := newPair(t)
	run(t, "ip", "-n", p.near, "link", "set", "near0", "mtu", "8901")
	run(t, "ip", "-n", p.far, "link", "set", "far0", "mtu", "8901")
	if _, err := p.attach(t, testLoad(t, testConfig), XDP, nil); !errors.Is(err, unix.ERANGE) || errors.Is(err, ErrPermission) {
		t.Errorf("got %v, want %v", err, unix.ERANGE)
	}
}

// Case 48.
func TestXDPIsNotForEveryDevice(t *testing.T) {
	requireRoot(t)
	d := testLoad(t, testConfig)
	r := testLoadReflector(t, testReflectorConfig)
	ns := newNamespace(t)
	run(t, "ip", "-n", ns, "link", "add", "br0", "type", "bridge")
	run(t, "ip", "-n", ns, "tuntap", "add", "tun0", "mode", "tun")
	for name, header := range map[string]int{"lo": ethernetHeader, "br0": ethernetHeader, "tun0": 0} {
		for _, a := range []attacher{d, r} {
			var err error
			inNamespace(t, ns, func() {
				var i *net.Interface
				if i, err = net.InterfaceByName(name); err == nil {
					_, err = a.Attach(Device{Index: i.Index, Name: name, LinkHeader: header}, XDP, nil)
				}
			})
			if !errors.Is(err, ErrNotSupported) || header != 0 && !errors.Is(err, unix.EOPNOTSUPP) {
				t.Errorf("%s, %T: %v, want %v", name, a, err, ErrNotSupported)
			}
		}
	}
}

// An answer by XDP_TX arrives, where there is a program to receive it.
func TestReflectInXDPOverALink(t *testing.T) {
	p := newPair(t)
	pass := emptyProgram(t, ebpf.XDP, xdpPass)
	var l link.Link
	var err error
	inNamespace(t, p.near, func() {
		l, err = link.AttachXDP(link.XDPOptions{Program: pass, Interface: p.device.Index, Flags: link.XDPDriverMode})
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := testLoadReflector(t, testReflectorConfig)
	var a *Attachment
	listener := Listener{At: p.key.Remote}
	inNamespace(t, p.far, func() {
		var i *net.Interface
		if i, err = net.InterfaceByName("far0"); err != nil {
			return
		}
		listener.Device = i.Index
		copy(listener.MAC[:], i.HardwareAddr)
		a, err = r.Attach(Device{Index: i.Index, Name: i.Name, LinkHeader: ethernetHeader}, XDP, nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	if !a.Alive() {
		t.Error("not alive once attached")
	}
	if err := errors.Join(r.SetListeners([]Listener{listener}), r.SetPeers([]netip.Addr{p.key.Local.Addr()})); err != nil {
		t.Fatal(err)
	}
	if _, err := p.socket.Write(probePayload(profileStamp)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 2048)
	n, err := p.socket.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := answerTo(probePayload(profileStamp), 64)
	copy(want[4:12], b[4:])
	copy(want[16:24], b[16:])
	if diff := cmp.Diff(want, b[:n]); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	counts, err := r.Counters()
	if err != nil {
		t.Fatal(err)
	}
	if got := counts["far0"]; got[ReflectAnswered] != 1 {
		t.Errorf("%v", got)
	}
	if err := a.Close(); err != nil || a.Alive() {
		t.Errorf("after Close: %v, alive %v", err, a.Alive())
	}
}
