// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Unresolved reports whether the kernel asks, or has asked in vain, for the link-layer address of a neighbour (ARP, neighbour
// discovery) on an interface of the namespace of the calling thread. It is false for a neighbour that nothing was sent to
// lately, and where the link has no such addresses.
func Unresolved(ifindex int, neighbour netip.Addr) (bool, error) {
	neighbour = neighbour.Unmap().WithZone("")
	msg := &netlink.Ndmsg{Family: unix.AF_INET6}
	if neighbour.Is4() {
		msg.Family = unix.AF_INET
	}
	replies, err := request(unix.RTM_GETNEIGH, unix.NLM_F_DUMP, unix.RTM_NEWNEIGH, msg,
		nl.NewRtAttr(unix.NDA_IFINDEX, nl.Uint32Attr(uint32(ifindex)))) // older kernels list all
	if err != nil {
		return false, fmt.Errorf("list neighbours: %w", err)
	}
	for _, b := range replies {
		// struct ndmsg: family, 3 bytes of padding, index, state (16 bits), flags, type
		if len(b) < unix.SizeofNdMsg || int(int32(binary.NativeEndian.Uint32(b[4:]))) != ifindex {
			continue
		}
		attrs, err := nl.ParseRouteAttr(b[unix.SizeofNdMsg:])
		if err != nil {
			return false, fmt.Errorf("parse neighbour: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type != unix.NDA_DST {
				continue
			}
			if to, ok := netip.AddrFromSlice(a.Value); ok && to == neighbour {
				return binary.NativeEndian.Uint16(b[8:])&(unix.NUD_INCOMPLETE|unix.NUD_FAILED) != 0, nil
			}
		}
	}
	return false, nil
}
