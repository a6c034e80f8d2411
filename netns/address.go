// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Address is an address of an interface.
type Address struct {
	Link   int          // index of the interface
	Prefix netip.Prefix // not masked: the address, and how much of it is the subnet's
}

// Addresses lists the addresses of all interfaces in the namespace of the calling thread. IPv6 ones that are still being
// checked for duplicates are among them.
func Addresses() ([]Address, error) {
	replies, err := request(unix.RTM_GETADDR, unix.NLM_F_DUMP, unix.RTM_NEWADDR, nl.NewIfAddrmsg(unix.AF_UNSPEC))
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	out := make([]Address, 0, len(replies))
	for _, b := range replies {
		msg := nl.DeserializeIfAddrmsg(b)
		attrs, err := nl.ParseRouteAttr(b[msg.Len():])
		if err != nil {
			return nil, fmt.Errorf("parse address attributes: %w", err)
		}
		// On a point-to-point link IFA_ADDRESS is the other end's, and IFA_LOCAL ours. IPv6 has IFA_LOCAL there only.
		var local, address netip.Addr
		for _, a := range attrs {
			switch a.Attr.Type {
			case unix.IFA_LOCAL:
				local, _ = netip.AddrFromSlice(a.Value)
			case unix.IFA_ADDRESS:
				address, _ = netip.AddrFromSlice(a.Value)
			}
		}
		if !local.IsValid() {
			local = address
		}
		if local.IsValid() {
			out = append(out, Address{Link: int(msg.Index), Prefix: netip.PrefixFrom(local, int(msg.Prefixlen))})
		}
	}
	return out, nil
}
