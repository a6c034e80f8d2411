// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/bpf"
	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/netns/netnstest"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
)

// bestTC is the step of tc that the kernel has to have.
func bestTC() Step {
	if kernelBefore(6, 6) {
		return StepClsact
	}
	return StepTCX
}

// lacking skips a test of devices that this kernel does not have, or fails it
// where all of them have to be there.
func lacking(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("XTWAMP_DEVICES") == "1" {
		t.Fatalf("%s, and XTWAMP_DEVICES=1 forbids to skip", what)
	}
	t.Skipf("%s: see make kernels", what)
}

// add makes a device; the test is skipped if the kernel does not know its kind.
func add(t *testing.T, ns *netnstest.NS, args ...string) {
	t.Helper()
	out, err := exec.Command("ip", append([]string{"-n", ns.Name, "link", "add"}, args...)...).CombinedOutput()
	if strings.Contains(string(out), "Unknown device type") || strings.Contains(string(out), "not supported") {
		lacking(t, strings.TrimSpace(string(out)))
	}
	if err != nil {
		t.Fatalf("ip link add %v: %v: %s", args, err, out)
	}
}

// up gives a device addresses 10.N.0.HOST and 2001:db8:N::HOST.
func up(t *testing.T, ns *netnstest.NS, name string, n, host int) {
	t.Helper()
	ns.Exec(t, "ip", "link", "set", name, "up")
	ns.Exec(t, "ip", "addr", "add", fmt.Sprintf("10.%d.0.%d/24", n, host), "dev", name)
	ns.Exec(t, "ip", "addr", "add", fmt.Sprintf("2001:db8:%d::%d/64", n, host), "dev", name, "nodad")
}

// measureOver has 20 probes of either family go over a device of that name at
// both ends, answered there and stamped there, once each.
func measureOver(t *testing.T, near, far *netnstest.NS, name string, n int, step Step) {
	t.Helper()
	r := kernelReflectIn(t, far, func(c *ReflectorConfig) { c.Interfaces = []string{name} }, name+" "+step.String())
	tx, rx := store.TCEgress, store.TCIngress
	if step == StepSocket {
		tx, rx = store.Socket, store.Socket
	}
	for i, address := range []string{fmt.Sprintf("10.%d.0.2", n), fmt.Sprintf("2001:db8:%d::2", n)} {
		e := begin(t, near, count(20), to(address, func(t *target.Target) { t.Interface = name }))
		samples := e.finish()
		if s := e.Paths()[0]; s.Received != 20 || s.Duplicates != 0 {
			t.Errorf("%s: received %d of 20, %d twice", address, s.Received, s.Duplicates)
		}
		if step == StepSocket {
			// The kernel begins to stamp what comes in a moment after it is asked to.
			samples = samples[len(samples)/2:]
		}
		checkSources(t, samples, tx, rx)
		if got, want := kernelResults(t, r)[name+" answered"], uint64(20*(i+1)); step != StepSocket && got != want {
			t.Errorf("%s: the kernel answered %d, want %d", address, got, want)
		}
		var attached []string // to one layer only
		for _, a := range e.Stats().Attachments {
			attached = append(attached, a.Interface+" "+a.Step.String())
		}
		want := []string{name + " " + step.String()}
		if step == StepSocket {
			want = nil
		}
		if diff := cmp.Diff(want, attached); diff != "" {
			t.Errorf("attached (-want +got):\n%s", diff)
		}
	}
}

// say tells scripts/kernels what came of a feature.
func say(t *testing.T, feature string, result any) {
	t.Helper()
	if !t.Failed() {
		t.Logf("result: %s = %v", feature, result)
	}
}

func TestEthernet(t *testing.T) {
	near, far := link(t)
	up(t, near, "eth1", 5, 1)
	up(t, far, "eth1", 5, 2)
	measureOver(t, near, far, "eth1", 5, bestTC())
	say(t, "Ethernet", bestTC())
}

func TestSocketReflector(t *testing.T) {
	near, far := link(t)
	reflectIn(t, far, nil)
	for _, address := range []string{farAddr, farAddr6} {
		samples, status := measureIn(t, near, 20, to(address, nil))
		if status.Received != 20 {
			t.Errorf("%s: received %d of 20", address, status.Received)
		}
		checkSources(t, samples, store.TCEgress, store.TCIngress)
	}
	say(t, "reflector on the socket", "yes")
}

// Case 48.
func TestVLAN(t *testing.T) {
	near, far := link(t)
	for i, ns := range []*netnstest.NS{near, far} {
		add(t, ns, "link", "eth1", "name", "eth1.10", "type", "vlan", "id", "10")
		up(t, ns, "eth1.10", 10, i+1)
	}
	measureOver(t, near, far, "eth1.10", 10, bestTC())
	say(t, "VLAN sub-interface", bestTC())

	e := begin(t, near, count(10), to("10.10.0.2", byXDP))
	e.finish()
	if got := e.Stats().Attachments[0]; got.Step != bestTC() || !strings.HasPrefix(got.Refusals(), "xdp:ENOTSUP") {
		t.Errorf("%v, refused %q", got.Step, got.Refusals())
	}
}

// bond is two namespaces joined by two links that are one.
func bond(t *testing.T) (near, far *netnstest.NS) {
	t.Helper()
	lab := netnstest.New(t)
	near, far = lab.Namespace("near"), lab.Namespace("far")
	for _, name := range []string{"eth1", "eth2"} {
		lab.Veth(near, name, nil, far, name, nil)
	}
	for i, ns := range []*netnstest.NS{near, far} {
		add(t, ns, "bond0", "type", "bond", "mode", "active-backup", "miimon", "10", "primary_reselect", "always")
		for _, name := range []string{"eth1", "eth2"} {
			ns.Exec(t, "ip", "link", "set", name, "down")
			ns.Exec(t, "ip", "link", "set", name, "master", "bond0")
		}
		up(t, ns, "bond0", 20, i+1)
		add(t, ns, "link", "bond0", "name", "bond0.20", "type", "vlan", "id", "20")
		up(t, ns, "bond0.20", 21, i+1)
	}
	for _, ns := range []*netnstest.NS{near, far} {
		until(t, "the bond has a carrier", func() (carrier bool) {
			err := ns.Do(func() error {
				link, err := netns.LinkByName("bond0.20")
				carrier = link.Carrier
				return err
			})
			return carrier && err == nil
		})
		ns.Exec(t, "ip", "link", "set", "bond0", "type", "bond", "active_slave", "eth1")
	}
	return near, far
}

// Case 49: attached to one layer only.
func TestBond(t *testing.T) {
	near, far := bond(t)
	measureOver(t, near, far, "bond0", 20, bestTC())
	say(t, "bond", bestTC())
}

func TestVLANOnBond(t *testing.T) {
	near, far := bond(t)
	measureOver(t, near, far, "bond0.20", 21, bestTC())
	say(t, "VLAN on a bond", bestTC())
}

// Case 49: attached to all layers, each packet is still answered once.
func TestBondAnswersOnce(t *testing.T) {
	near, far := bond(t)
	tc := " " + bestTC().String()
	r := kernelReflectIn(t, far, nil, "bond0"+tc, "bond0.20"+tc, "eth1"+tc, "eth2"+tc, "lo"+tc)
	for i, address := range []string{"10.20.0.2", "10.21.0.2"} {
		if _, s := measureIn(t, near, 20, to(address, nil)); s.Received != 20 || s.Duplicates != 0 {
			t.Errorf("%s: received %d of 20, %d twice", address, s.Received, s.Duplicates)
		}
		var answered uint64
		for key, n := range kernelResults(t, r) {
			if strings.HasSuffix(key, " answered") {
				answered += n
			}
		}
		if want := uint64(20 * (i + 1)); answered != want {
			t.Errorf("%s: answered %d, want %d", address, answered, want)
		}
	}
}

func TestVRF(t *testing.T) {
	near, far := link(t)
	for i, ns := range []*netnstest.NS{near, far} {
		add(t, ns, "vrf1", "type", "vrf", "table", "10")
		ns.Exec(t, "ip", "link", "set", "vrf1", "up")
		ns.Exec(t, "ip", "link", "set", "eth1", "master", "vrf1")
		up(t, ns, "eth1", 30, i+1)
	}
	measureOver(t, near, far, "eth1", 30, bestTC())
	say(t, "VRF", bestTC())
}

// vrfs has a VRF of each name in a namespace, with the interfaces that follow.
func vrfs(t *testing.T, ns *netnstest.NS, interfaces map[string]string) {
	t.Helper()
	table := 10
	for _, name := range slices.Sorted(maps.Keys(interfaces)) {
		add(t, ns, name, "type", "vrf", "table", strconv.Itoa(table))
		ns.Exec(t, "ip", "link", "set", name, "up")
		ns.Exec(t, "ip", "link", "set", interfaces[name], "master", name)
		table++
	}
}

// Two VRFs of one host lead to neighbours that have the same address. A target that names a VRF is measured by it, and a reflector
// of one answers there alone.
func TestRolesInVRFs(t *testing.T) {
	lab := netnstest.New(t)
	host, left, right := lab.Namespace("host"), lab.Namespace("left"), lab.Namespace("right")
	lab.Veth(host, "eth1", nil, left, "eth1", nil)
	lab.Veth(host, "eth2", nil, right, "eth1", nil)
	vrfs(t, host, map[string]string{"blue": "eth1", "red": "eth2"})
	up(t, host, "eth1", 30, 1)
	up(t, host, "eth2", 30, 1)
	up(t, left, "eth1", 30, 2)
	up(t, right, "eth1", 30, 2)

	// The neighbours answer.
	answered := func(r *Reflector) uint64 { return kernelResults(t, r)["eth1 answered"] }
	atLeft := kernelReflectIn(t, left, func(c *ReflectorConfig) { c.Interfaces = []string{"eth1"} }, "eth1 "+bestTC().String())
	atRight := kernelReflectIn(t, right, func(c *ReflectorConfig) { c.Interfaces = []string{"eth1"} }, "eth1 "+bestTC().String())
	for _, address := range []string{"10.30.0.2", "2001:db8:30::2"} {
		for _, stamps := range []target.Timestamps{target.TimestampsAuto, target.TimestampsSocket} {
			before := answered(atRight)
			_, status := measureIn(t, host, 20, to(address, func(t *target.Target) { t.Interface, t.Timestamps = "red", stamps }))
			if status.Received != 20 {
				t.Errorf("%s, %s: received %d of 20", address, stamps, status.Received)
			}
			if n := answered(atRight) - before; n != 20 || answered(atLeft) != 0 {
				t.Errorf("%s, %s: the neighbour in the VRF answered %d, the other one %d", address, stamps, n, answered(atLeft))
			}
		}
		samples, _ := measureIn(t, host, 20, to(address, func(t *target.Target) { t.Interface = "red" }))
		checkSources(t, samples, store.TCEgress, store.TCIngress)
	}

	// They ask.
	for _, mode := range []ReflectorMode{ReflectSocket, ReflectAuto} {
		t.Run(mode.String(), func(t *testing.T) {
			r := reflectIn(t, host, func(c *ReflectorConfig) { c.VRF, c.Mode = "blue", mode })
			if mode == ReflectAuto {
				until(t, "the kernel answers in the VRF", func() bool {
					return slices.Equal(attachedAt(r), []string{"eth1 " + bestTC().String()})
				})
			}
			for _, address := range []string{"10.30.0.1", "2001:db8:30::1"} {
				if _, s := measureIn(t, left, 10, to(address, nil)); s.Received != 10 {
					t.Errorf("%s answered %d of 10 in the VRF", address, s.Received)
				}
				if _, s := measureIn(t, right, 10, to(address, nil)); s.Received != 0 {
					t.Errorf("%s answered %d of 10 in another VRF", address, s.Received)
				}
			}
		})
	}
}

// Cases 50 and 52.
func TestTunnels(t *testing.T) {
	want := bestTC()
	if kernelBefore(5, 14) {
		want = StepSocket
	}
	for _, kind := range []string{"gre", "ipip"} {
		t.Run(kind, func(t *testing.T) {
			near, far := link(t)
			ends := []string{nearAddr, farAddr}
			for i, ns := range []*netnstest.NS{near, far} {
				add(t, ns, "tunnel1", "type", kind, "local", ends[i], "remote", ends[1-i])
				up(t, ns, "tunnel1", 40, i+1)
			}
			if kind == "ipip" {
				measureIPv4Over(t, near, far, "tunnel1", want)
			} else {
				measureOver(t, near, far, "tunnel1", 40, want)
			}
			say(t, strings.ToUpper(kind), want)
		})
	}
}

// measureIPv4Over is measureOver on a device that has no IPv6.
func measureIPv4Over(t *testing.T, near, far *netnstest.NS, name string, step Step) {
	t.Helper()
	kernelReflectIn(t, far, func(c *ReflectorConfig) { c.Interfaces = []string{name} }, name+" "+step.String())
	e := begin(t, near, count(20), to("10.40.0.2", func(t *target.Target) { t.Interface = name }))
	samples := e.finish()
	if s := e.Paths()[0]; s.Received != 20 || s.Duplicates != 0 {
		t.Errorf("received %d of 20, %d twice", s.Received, s.Duplicates)
	}
	tx, rx := store.TCEgress, store.TCIngress
	if step == StepSocket {
		tx, rx, samples = store.Socket, store.Socket, samples[len(samples)/2:] // as in measureOver
	}
	checkSources(t, samples, tx, rx)
}

func TestTUN(t *testing.T) {
	lab := netnstest.New(t)
	near, far := lab.Namespace("near"), lab.Namespace("far")
	var ends [2]*os.File
	for i, ns := range []*netnstest.NS{near, far} {
		request, err := unix.NewIfreq("tun0")
		if err != nil {
			t.Fatal(err)
		}
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = ns.Do(func() error {
			fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
				return errors.Join(err, unix.Close(fd))
			}
			ends[i] = os.NewFile(uintptr(fd), "tun0")
			return nil
		})
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
			lacking(t, "no TUN")
		}
		if err != nil {
			t.Fatal(err)
		}
		up(t, ns, "tun0", 50, i+1)
	}
	var copying sync.WaitGroup
	for i := range ends {
		copying.Go(func() {
			buf := make([]byte, 1<<16)
			for {
				n, err := ends[i].Read(buf)
				if err != nil {
					return // closed
				}
				_, _ = ends[1-i].Write(buf[:n]) // lost, as on a wire
			}
		})
	}
	t.Cleanup(func() {
		for _, end := range ends {
			end.Close()
		}
		copying.Wait()
	})
	measureOver(t, near, far, "tun0", 50, bestTC())
	say(t, "TUN", bestTC())
}

// Native XDP on a driver of hardware: two cards joined back to back, which the
// environment names.
func TestXDPOnHardware(t *testing.T) {
	lab := netnstest.New(t)
	cards := strings.Fields(os.Getenv("XTWAMP_NICS"))
	if len(cards) < 2 {
		lacking(t, "no two network cards")
	}
	near, far := lab.Namespace("near"), lab.Namespace("far")
	for i, ns := range []*netnstest.NS{near, far} {
		if out, err := exec.Command("ip", "link", "set", cards[i], "netns", ns.Name, "name", "card").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		t.Cleanup(func() { ns.Exec(t, "ip", "link", "set", "card", "netns", "1", "name", cards[i]) })
		up(t, ns, "card", 60, i+1)
	}
	r := kernelReflectIn(t, far, func(c *ReflectorConfig) {
		c.Mode, c.Interfaces = ReflectXDP, []string{"card"}
	}, "card xdp")
	for i, address := range []string{"10.60.0.2", "2001:db8:60::2"} {
		e := begin(t, near, count(20), to(address, byXDP))
		checkSources(t, e.finish(), store.TCEgress, store.XDP)
		if s := e.Paths()[0]; s.Received != 20 || s.Duplicates != 0 {
			t.Errorf("%s: received %d of 20, %d twice", address, s.Received, s.Duplicates)
		}
		if got := kernelResults(t, r)["card answered"]; got != uint64(20*(i+1)) {
			t.Errorf("%s: the kernel answered %d, want %d", address, got, 20*(i+1))
		}
		if got := e.Stats().Attachments[0]; got.Step != StepXDP {
			t.Errorf("%s: %v, refused %q; want xdp", address, got.Step, got.Refusals())
		}
	}
	say(t, "native XDP on virtio_net", "both ends")
}

// Case 52, whatever this kernel is.
func TestTunnelsOfOldKernelsShowOuterHeaders(t *testing.T) {
	for kind, tunnel := range map[uint16]bool{1: false, 772: false, 768: true, 769: true, 776: true, 778: true, 65534: false} {
		_, err := linkHeaderOn(netns.Link{Type: kind}, true)
		if errors.Is(err, bpf.ErrNotSupported) != tunnel {
			t.Errorf("before 5.14, type %d: %v", kind, err)
		}
		if _, err := linkHeaderOn(netns.Link{Type: kind}, false); err != nil {
			t.Errorf("since 5.14, type %d: %v", kind, err)
		}
	}
}
