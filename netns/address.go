// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

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

// Watch calls changed each time that interfaces or addresses of the namespace may have changed, until ctx ends; it
// returns nil then. Changes come in bursts.
func (n *Namespace) Watch(ctx context.Context, changed func()) error {
	fd := -1
	err := n.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	socket := os.NewFile(uintptr(fd), "netlink")
	defer socket.Close()
	groups := uint32(1<<(unix.RTNLGRP_LINK-1) | 1<<(unix.RTNLGRP_IPV4_IFADDR-1) | 1<<(unix.RTNLGRP_IPV6_IFADDR-1))
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		return fmt.Errorf("listen for changes of interfaces: %w", err)
	}
	defer context.AfterFunc(ctx, func() { socket.SetReadDeadline(time.Unix(1, 0)) })()
	// What changed before the socket listened is not told.
	changed()
	buf := make([]byte, 1<<16)
	for ctx.Err() == nil {
		// ENOBUFS: more happened than there was room for, which is a change too.
		if _, err := socket.Read(buf); err != nil && !errors.Is(err, unix.ENOBUFS) {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("listen for changes of interfaces: %w", err)
		}
		changed()
	}
	return nil
}
