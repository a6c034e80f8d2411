// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/netns/netnstest"
)

func TestLinksOfANamespace(t *testing.T) {
	lab := netnstest.New(t)
	a, b := lab.Namespace("a"), lab.Namespace("b")
	lab.Veth(a, "wire0", nil, b, "far0", nil, netnstest.MTU(9000))
	a.Exec(t, "ip", "link", "property", "add", "dev", "wire0", "altname", "a-name-longer-than-fifteen")
	a.Exec(t, "ip", "link", "add", "bridge0", "type", "bridge")
	a.Exec(t, "ip", "tuntap", "add", "tun0", "mode", "tun")

	const up = net.FlagUp | net.FlagRunning
	want := []netns.Link{
		{Name: "lo", Type: 772, MTU: 65536, Up: true, Carrier: true, Flags: up | net.FlagLoopback},
		{Name: "wire0", Type: 1, MTU: 9000, Up: true, Carrier: true, Flags: up | net.FlagBroadcast | net.FlagMulticast, Kind: "veth"},
		{Name: "bridge0", Type: 1, MTU: 1500, Flags: net.FlagBroadcast | net.FlagMulticast, Kind: "bridge"},
		{Name: "tun0", Type: 65534, MTU: 1500, Flags: net.FlagPointToPoint | net.FlagMulticast, Kind: "tun"},
	}
	if err := a.Do(func() error {
		links, err := netns.Links()
		if err != nil {
			return err
		}
		if diff := cmp.Diff(want, links, cmpopts.IgnoreFields(netns.Link{}, "Index", "MAC")); diff != "" {
			t.Errorf("links (-want +got):\n%s", diff)
		}
		for _, link := range links {
			i, err := net.InterfaceByIndex(link.Index)
			if err != nil {
				return err
			}
			if mac := i.HardwareAddr; len(mac) == 6 && link.MAC != [6]byte(mac) || len(mac) == 0 && link.MAC != [6]byte{} {
				t.Errorf("%s has MAC address %x, want %v", link.Name, link.MAC, mac)
			}
			byName, err := netns.LinkByName(link.Name)
			if diff := cmp.Diff(link, byName); diff != "" || err != nil {
				t.Errorf("%s by name: %v (-want +got):\n%s", link.Name, err, diff)
			}
			byIndex, err := netns.LinkByIndex(link.Index)
			if diff := cmp.Diff(link, byIndex); diff != "" || err != nil {
				t.Errorf("%s by index: %v (-want +got):\n%s", link.Name, err, diff)
			}
		}
		other, err := netns.LinkByName("a-name-longer-than-fifteen")
		if err != nil || other.Name != "wire0" {
			t.Errorf("by alternative name: %+v, %v, want wire0", other, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestLinkTellsOfAnXDPProgram(t *testing.T) {
	w := newWire(t)
	fd := minusOne(t, unix.BPF_PROG_TYPE_XDP)
	for _, mode := range []int{nl.XDP_FLAGS_SKB_MODE, nl.XDP_FLAGS_DRV_MODE} {
		for _, there := range []bool{true, false} {
			program := fd
			if !there {
				program = -1
			}
			w.do(func() error {
				return netlink.LinkSetXdpFdWithFlags(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: w.index}}, program, mode)
			})
			w.do(func() error {
				link, err := netns.LinkByIndex(w.index)
				if link.XDP != there {
					t.Errorf("mode %#x: XDP is %t, want %t", mode, link.XDP, there)
				}
				return err
			})
		}
	}
}

func TestMissingLink(t *testing.T) {
	lab := netnstest.New(t)
	a, b := lab.Namespace("a"), lab.Namespace("b")
	lab.Veth(a, "only-in-a", nil, b, "only-in-b", nil)
	if err := a.Do(func() error {
		for _, name := range []string{"only-in-b", "", strings.Repeat("long", 10)} {
			if link, err := netns.LinkByName(name); !errors.Is(err, netns.ErrNoLink) {
				t.Errorf("LinkByName(%q): %+v, %v, want %v", name, link, err, netns.ErrNoLink)
			}
		}
		for _, index := range []int{1 << 30, 0, -1} {
			if link, err := netns.LinkByIndex(index); !errors.Is(err, netns.ErrNoLink) {
				t.Errorf("LinkByIndex(%d): %+v, %v, want %v", index, link, err, netns.ErrNoLink)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestCarrierFollowsTheFarEndAndTheLowerLink(t *testing.T) {
	lab := netnstest.New(t)
	a, b := lab.Namespace("a"), lab.Namespace("b")
	lab.Veth(a, "wire0", nil, b, "far0", nil)
	a.Exec(t, "ip", "link", "add", "top0", "link", "wire0", "type", "macvlan")
	a.Exec(t, "ip", "link", "set", "top0", "up")

	awaitLink := func(name string, up, carrier bool) {
		t.Helper()
		await(t, name, func() bool {
			var link netns.Link
			if err := a.Do(func() (err error) {
				link, err = netns.LinkByName(name)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			return link.Up == up && link.Carrier == carrier
		})
	}
	awaitLink("top0", true, true)
	b.Exec(t, "ip", "link", "set", "far0", "down")
	awaitLink("wire0", true, false)
	awaitLink("top0", true, false)
	b.Exec(t, "ip", "link", "set", "far0", "up")
	awaitLink("wire0", true, true)
	awaitLink("top0", true, true)
	a.Exec(t, "ip", "link", "set", "wire0", "down")
	awaitLink("wire0", false, false)
	awaitLink("top0", true, false)
}
