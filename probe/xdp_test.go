// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/xtwamp/xtwamp/bpf"
	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/netns/netnstest"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
)

// passAll gives an interface a driver's XDP program that passes everything: one
// of ours that knows no path. A veth receives what the far end sends by XDP only
// where there is one.
func passAll(t *testing.T, ns *netnstest.NS, name string) *bpf.Attachment {
	t.Helper()
	d, err := bpf.Load(bpf.Config{Slots: 1, Paths: 1, RingBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	var a *bpf.Attachment
	err = namespace(t, ns).Do(func() error {
		link, err := netns.LinkByName(name)
		if err != nil {
			return err
		}
		a, err = d.Attach(bpf.Device{Index: link.Index, Name: name, LinkHeader: 14}, bpf.XDP, nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func byXDP(t *target.Target) { t.Attach = target.AttachXDP }

// checkSources wants every sample to have been stamped there.
func checkSources(t *testing.T, samples []store.Sample, tx, rx store.Source) {
	t.Helper()
	for i, s := range samples {
		if s.TX != tx || s.RX != rx || s.RTT <= 0 {
			t.Errorf("sample %d: tx %s, rx %s, RTT %d; want %s, %s", i, s.TX, s.RX, s.RTT, tx, rx)
		}
	}
}

// Case 63: T1 is that of tc egress, as XDP never sees what is sent.
func TestXDPTimestamps(t *testing.T) {
	near, far := link(t)
	reflectIn(t, far, nil)
	for _, tt := range []struct {
		name    string
		address string
		edit    func(*target.Target)
	}{
		{"IPv4", farAddr, nil},
		{"IPv6", farAddr6, nil},
		{"full frame", farAddr, func(t *target.Target) { t.Size = 1472 }},
		{"doublezero", farAddr, func(t *target.Target) { t.Profile = target.ProfileDoubleZero }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := begin(t, near, count(20), to(tt.address, func(t *target.Target) {
				byXDP(t)
				if tt.edit != nil {
					tt.edit(t)
				}
			}))
			samples := r.finish()
			if status := r.Paths()[0]; status.Received != 20 {
				t.Errorf("received %d of 20", status.Received)
			}
			checkSources(t, samples, store.TCEgress, store.XDP)
			refused := ""
			if bestTC() != StepTCX { // behind XDP
				refused = "tcx:ENOTSUP"
			}
			if got := r.Stats().Attachments; len(got) != 1 || got[0].Interface != "eth1" || got[0].Step != StepXDP || got[0].Refusals() != refused {
				t.Errorf("attachments %+v, want eth1 at xdp, refused %q", got, refused)
			}
		})
	}
}

// What is for a path of another device passes XDP, and is stamped by tc: as with
// a VLAN's, whose replies the device below sees first.
func TestXDPLeavesOtherDevicesAlone(t *testing.T) {
	lab := netnstest.New(t)
	near, far := lab.Namespace("near"), lab.Namespace("far")
	lab.Veth(near, "eth1", nearCIDRs, far, "eth1", farCIDRs)
	lab.Veth(near, "eth2", []string{"10.2.0.1/24"}, far, "eth2", []string{"10.2.0.2/24"})
	near.Exec(t, "ip", "addr", "add", "10.6.6.6/32", "dev", "lo")
	far.Exec(t, "ip", "route", "add", "10.6.6.6/32", "via", nearAddr) // back by eth1
	reflectIn(t, far, nil)
	named := func(name, address string, attach target.Attach) target.Target {
		return to(address, func(t *target.Target) {
			t.Name, t.Attach = name, attach
			if name == "c" {
				t.Source = netip.MustParseAddr("10.6.6.6")
			}
		})
	}
	var samples [3][]store.Sample
	r := begin(t, near, func(c *Config) {
		count(50)(c)
		c.Emit = func(path int, s store.Sample) { samples[path] = append(samples[path], s) }
	}, named("a", farAddr, target.AttachXDP), named("b", farAddr6, target.AttachAuto), named("c", "10.2.0.2", target.AttachXDP))
	r.finish()
	for i, status := range r.Paths() {
		if status.Received != 50 || status.Duplicates != 0 || len(samples[i]) != 50 {
			t.Errorf("path %d: received %d of 50, duplicates %d", i, status.Received, status.Duplicates)
		}
	}
	checkSources(t, samples[0], store.TCEgress, store.XDP)
	// Replies to c come in by eth1, which has a program only since a path of its own is open.
	c := samples[2]
	for len(c) > 40 && c[0].RX == store.User {
		c = c[1:]
	}
	checkSources(t, c, store.TCEgress, store.TCIngress)
	want := []Attachment{{Interface: "eth1", Step: StepXDP}, {Interface: "eth2", Step: StepXDP}}
	if diff := cmp.Diff(want, r.Stats().Attachments); diff != "" {
		t.Errorf("attachments (-want +got):\n%s", diff)
	}
}

// Cases 46 and 47: a place that is taken, or frames that are too large, mean tc;
// and whoever was there stays.
func TestXDPStepsDown(t *testing.T) {
	for _, tt := range []struct {
		name  string
		setUp func(t *testing.T) (near, far *netnstest.NS, taken *bpf.Attachment)
		want  string
	}{
		{"taken", func(t *testing.T) (near, far *netnstest.NS, taken *bpf.Attachment) {
			near, far = link(t)
			passAll(t, near, "eth1")
			return near, far, passAll(t, far, "eth1")
		}, "xdp:EBUSY"},
		{"large frames", func(t *testing.T) (near, far *netnstest.NS, taken *bpf.Attachment) {
			lab := netnstest.New(t)
			near, far = lab.Namespace("near"), lab.Namespace("far")
			lab.Veth(near, "eth1", nearCIDRs, far, "eth1", farCIDRs, netnstest.MTU(8901))
			return near, far, nil
		}, "xdp:ERANGE"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			near, far, taken := tt.setUp(t)
			r := kernelReflectIn(t, far, func(c *ReflectorConfig) {
				c.Mode, c.Interfaces = ReflectXDP, []string{"eth1"}
			}, "eth1 tcx")
			if got := r.Attachments()[0].Refusals(); got != tt.want {
				t.Errorf("reflector refused %q, want %q", got, tt.want)
			}
			var flow FlowInfo // under the engine's lock, and read when it has ended
			e := begin(t, near, func(c *Config) {
				c.Count = 20
				c.Opened = func(_ int, info FlowInfo, _ error) { flow = info }
			}, to(farAddr, byXDP))
			checkSources(t, e.finish(), store.TCEgress, store.TCIngress)
			if flow.Step != StepTCX || refusals([]Refusal{{StepXDP, flow.Refused}}) != tt.want {
				t.Errorf("the path is open by %s, refused %v; want tcx, %q", flow.Step, flow.Refused, tt.want)
			}
			if got := e.Stats().Attachments[0]; got.Step != StepTCX || got.Refusals() != tt.want {
				t.Errorf("%v, refused %q; want tcx, %q", got.Step, got.Refusals(), tt.want)
			}
			if got := kernelResults(t, r)["eth1 answered"]; got != 20 {
				t.Errorf("the kernel answered %d of 20", got)
			}
			if taken != nil && !taken.Alive() {
				t.Error("whoever was there has gone")
			}
		})
	}
}

// Case 48: bridge, tun and loopback have no XDP of their own.
func TestXDPIsNotForEveryInterface(t *testing.T) {
	ns := netnstest.New(t).Namespace("one")
	ns.Exec(t, "ip", "link", "add", "br0", "type", "bridge")
	ns.Exec(t, "ip", "tuntap", "add", "tun0", "mode", "tun")
	for _, name := range []string{"br0", "tun0"} {
		ns.Exec(t, "ip", "link", "set", name, "up")
	}
	r := kernelReflectIn(t, ns, func(c *ReflectorConfig) { c.Mode = ReflectXDP }, "br0 tcx", "lo tcx", "tun0 tcx")
	for _, a := range r.Attachments() {
		if got := a.Refusals(); got != "xdp:ENOTSUP" {
			t.Errorf("%s: refused %q, want xdp:ENOTSUP", a.Interface, got)
		}
	}
	dialIn(t, ns, "", "127.0.0.1:862").nothing()
	if diff := cmp.Diff(map[string]uint64{"lo answered": 1}, kernelResults(t, r)); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	e := begin(t, ns, count(10), to("127.0.0.1", byXDP))
	checkSources(t, e.finish(), store.TCEgress, store.TCIngress)
	if got := e.Stats().Attachments[0]; got.Step != StepTCX || got.Refusals() != "xdp:ENOTSUP" {
		t.Errorf("%v, refused %q", got.Step, got.Refusals())
	}
}

// A missing right is not what another step is for.
func TestXDPWithoutRightsIsAnError(t *testing.T) {
	tc := &device{step: StepTCX}
	for _, tt := range []struct {
		err  error
		want *device
	}{
		{fmt.Errorf("attach: %w", bpf.ErrPermission), nil},
		{fmt.Errorf("attach: %w", bpf.ErrNotSupported), tc},
	} {
		got, err := new(ladder).belowXDP(Refusal{StepXDP, tt.err}, tc)
		if got != tt.want || tt.want == nil && !errors.Is(err, bpf.ErrPermission) {
			t.Errorf("after %v: %v, %v", tt.err, got, err)
		}
	}
}

// XDP may not see the tag of a VLAN, and what it sends back has none: it is for
// interfaces that carry no VLANs, and goes when one comes.
func TestXDPDoesNotAnswerOverVLANs(t *testing.T) {
	near, far := link(t)
	passAll(t, near, "eth1")
	r := kernelReflectIn(t, far, func(c *ReflectorConfig) { c.Mode, c.Interfaces = ReflectXDP, []string{"eth1"} }, "eth1 xdp")
	k := r.kernel
	k.mu.Lock()
	err := namespace(t, far).Do(func() error {
		eth1, err := netns.LinkByName("eth1")
		if err != nil {
			return err
		}
		links := []netns.Link{eth1, {Index: 4711, Name: "eth1.10", Kind: "vlan", Lower: eth1.Index}}
		tagged := taggedAbove(links)
		if err := k.detach(links, map[int]bool{eth1.Index: true}, tagged); err != nil {
			return err
		}
		k.attach(eth1, tagged[eth1.Index])
		return nil
	})
	k.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"eth1 tcx"}
	if diff := cmp.Diff(want, attachedAt(r)); diff != "" {
		t.Errorf("attached (-want +got):\n%s", diff)
	}
	if got := r.Attachments()[0].Refusals(); got != "xdp:ENOTSUP" {
		t.Errorf("refused %q, want xdp:ENOTSUP", got)
	}
}

// A changed MAC address is noticed, and answered to.
func TestXDPFollowsTheMACAddress(t *testing.T) {
	near, far := link(t)
	passAll(t, near, "eth1")
	r := kernelReflectIn(t, far, func(c *ReflectorConfig) { c.Mode, c.Interfaces = ReflectXDP, []string{"eth1"} }, "eth1 xdp")
	c := dialIn(t, near, "", farAddr+":862")
	c.nothing()
	far.Exec(t, "ip", "link", "set", "eth1", "address", "02:00:00:00:77:77")
	before := kernelResults(t, r)["eth1 answered"]
	until(t, "the new address answers", func() bool {
		c.send(stampRequest(1, 44))
		c.receive()
		return kernelResults(t, r)["eth1 answered"] > before
	})
	if got := attachedAt(r); !slices.Equal(got, []string{"eth1 xdp"}) {
		t.Errorf("attached %v", got)
	}
}

// XDP answers at the addresses of its interface and of loopback; another
// interface's are passed on.
func TestXDPAnswersAtItsOwnAddresses(t *testing.T) {
	near, far := link(t)
	passAll(t, near, "eth1")
	far.Exec(t, "ip", "link", "add", "br0", "type", "bridge")
	far.Exec(t, "ip", "addr", "add", "10.8.0.1/32", "dev", "br0")
	far.Exec(t, "ip", "link", "set", "br0", "up")
	far.Exec(t, "ip", "addr", "add", "10.9.0.1/32", "dev", "lo")
	near.Exec(t, "ip", "route", "add", "10.8.0.0/15", "via", farAddr)
	r := kernelReflectIn(t, far, func(c *ReflectorConfig) { c.Mode, c.Interfaces = ReflectXDP, []string{"eth1"} }, "eth1 xdp")
	for i, address := range []string{farAddr, "10.9.0.1", "10.8.0.1"} {
		dialIn(t, near, "", address+":862").nothing()
		want := map[string]uint64{"eth1 answered": uint64(min(i+1, 2))}
		if diff := cmp.Diff(want, kernelResults(t, r)); diff != "" {
			t.Errorf("after %s (-want +got):\n%s", address, diff)
		}
	}
	until(t, "the socket has answered", func() bool { return results(r)["eth1 answered"] == 1 })
}

// rawUDP sends a datagram whose header says what it likes.
func rawUDP(t *testing.T, ns *netnstest.NS, from, to netip.AddrPort, check uint16, payload []byte) {
	t.Helper()
	err := ns.Do(func() error {
		c, err := net.DialIP("ip4:udp", &net.IPAddr{IP: from.Addr().AsSlice()}, &net.IPAddr{IP: to.Addr().AsSlice()})
		if err != nil {
			return err
		}
		defer c.Close()
		length := 8 + len(payload)
		b := []byte{byte(from.Port() >> 8), byte(from.Port()), byte(to.Port() >> 8), byte(to.Port()),
			byte(length >> 8), byte(length), byte(check >> 8), byte(check)}
		_, err = c.Write(append(b, payload...))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
