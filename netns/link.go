// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrNoLink means that no such interface is in the network namespace of the calling thread.
var ErrNoLink = errors.New("no such interface")

// running is set while packets can pass: the interface is up, it has a carrier, and its operational state is up or not
// reported (a VLAN on a dead port is "lowerlayerdown", a port that waits for 802.1X is "dormant").
const running = unix.IFF_UP | unix.IFF_LOWER_UP | unix.IFF_RUNNING

// skipStats is RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h: counters are most of an answer, and nobody here reads them.
const skipStats = 1 << 3

// KindVRF is the Kind of an l3mdev VRF.
const KindVRF = "vrf"

// Link is what the kernel says about an interface at one moment.
type Link struct {
	Index   int // meaningless outside its namespace
	Name    string
	Type    uint16 // ARPHRD_*: 1 is Ethernet, 772 loopback, 65534 none (a tunnel without link header)
	MTU     int    // bytes, without the link header
	Up      bool   // administratively
	Carrier bool   // packets can pass
	Flags   net.Flags
	Kind    string // of a virtual interface: "veth", "vlan", "vrf"; empty for hardware and loopback
	Master  int    // index of the bridge, bond or VRF that it belongs to; 0: none
	Lower   int    // of a VLAN: the index of the interface that it is on; 0 without one, or in another namespace
	MAC     [6]byte
	XDP     bool // a program is attached there, of whatever mode
}

// LinkByName finds an interface by its name or one of its alternative names, in the namespace of the calling thread. The
// error is [ErrNoLink] if there is none.
func LinkByName(name string) (Link, error) {
	attr := unix.IFLA_IFNAME
	if len(name) >= unix.IFNAMSIZ {
		attr = unix.IFLA_ALT_IFNAME // since 5.5; only these may be that long
	}
	link, err := oneLink(request, nl.NewIfInfomsg(unix.AF_UNSPEC), nl.NewRtAttr(attr, nl.ZeroTerminated(name)))
	if err != nil {
		return Link{}, fmt.Errorf("interface %q: %w", name, err)
	}
	return link, nil
}

// LinkByIndex finds an interface by its index, in the namespace of the calling thread. The error is [ErrNoLink] if there is none.
func LinkByIndex(index int) (Link, error) { return linkByIndex(request, index) }

func linkByIndex(ask asker, index int) (Link, error) {
	if index <= 0 {
		return Link{}, fmt.Errorf("interface %d: %w", index, ErrNoLink)
	}
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	link, err := oneLink(ask, msg)
	if err != nil {
		return Link{}, fmt.Errorf("interface %d: %w", index, err)
	}
	return link, nil
}

// Links lists all interfaces in the namespace of the calling thread, by index.
func Links() ([]Link, error) {
	links, err := getLinks(request, unix.NLM_F_DUMP, nl.NewIfInfomsg(unix.AF_UNSPEC))
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	return links, nil
}

func oneLink(ask asker, data ...nl.NetlinkRequestData) (Link, error) {
	links, err := getLinks(ask, 0, data...)
	switch {
	case errors.Is(err, unix.ENODEV) || err == nil && len(links) == 0:
		return Link{}, ErrNoLink
	case err != nil:
		return Link{}, err
	}
	return links[0], nil
}

func getLinks(ask asker, flags int, data ...nl.NetlinkRequestData) ([]Link, error) {
	data = append(data, nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)))
	replies, err := ask(unix.RTM_GETLINK, flags, unix.RTM_NEWLINK, data...)
	if err != nil {
		return nil, err
	}
	links := make([]Link, 0, len(replies))
	for _, b := range replies {
		link, err := parseLink(b)
		if err != nil {
			return nil, err
		}
		links = append(links, link)
	}
	return links, nil
}

func parseLink(b []byte) (Link, error) {
	msg := nl.DeserializeIfInfomsg(b)
	link := Link{
		Index:   int(msg.Index),
		Type:    msg.Type,
		Up:      msg.Flags&unix.IFF_UP != 0,
		Carrier: msg.Flags&running == running,
		Flags:   netFlags(msg.Flags),
	}
	attrs, err := nl.ParseRouteAttr(b[msg.Len():])
	if err != nil {
		return Link{}, fmt.Errorf("parse link attributes: %w", err)
	}
	var lower int
	var elsewhere bool
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.IFLA_MASTER:
			link.Master = int(binary.NativeEndian.Uint32(a.Value))
		case unix.IFLA_LINK:
			lower = int(binary.NativeEndian.Uint32(a.Value))
		case unix.IFLA_LINK_NETNSID:
			elsewhere = true
		case unix.IFLA_ADDRESS:
			if len(a.Value) == len(link.MAC) {
				copy(link.MAC[:], a.Value)
			}
		case unix.IFLA_IFNAME:
			link.Name = unix.ByteSliceToString(a.Value)
		case unix.IFLA_MTU:
			link.MTU = int(binary.NativeEndian.Uint32(a.Value))
		case unix.IFLA_XDP:
			nested, err := nl.ParseRouteAttr(a.Value)
			if err != nil {
				return Link{}, fmt.Errorf("parse xdp state: %w", err)
			}
			for _, x := range nested {
				if x.Attr.Type == nl.IFLA_XDP_ATTACHED && len(x.Value) > 0 {
					link.XDP = x.Value[0] != 0 // XDP_ATTACHED_NONE
				}
			}
		case unix.IFLA_LINKINFO:
			infos, err := nl.ParseRouteAttr(a.Value)
			if err != nil {
				return Link{}, fmt.Errorf("parse link kind: %w", err)
			}
			for _, info := range infos {
				if info.Attr.Type == unix.IFLA_INFO_KIND {
					link.Kind = unix.ByteSliceToString(info.Value)
				}
			}
		}
	}
	if link.Kind == "vlan" && !elsewhere {
		link.Lower = lower
	}
	return link, nil
}

// netFlags translates the kernel's IFF_* as package net does.
func netFlags(raw uint32) net.Flags {
	var flags net.Flags
	for bit, flag := range map[uint32]net.Flags{
		unix.IFF_UP:          net.FlagUp,
		unix.IFF_BROADCAST:   net.FlagBroadcast,
		unix.IFF_LOOPBACK:    net.FlagLoopback,
		unix.IFF_POINTOPOINT: net.FlagPointToPoint,
		unix.IFF_MULTICAST:   net.FlagMulticast,
		unix.IFF_RUNNING:     net.FlagRunning,
	} {
		if raw&bit != 0 {
			flags |= flag
		}
	}
	return flags
}
