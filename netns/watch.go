// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// watchPause is the least time between two calls of Watch: links that flap make thousands of changes a second.
	watchPause = 50 * time.Millisecond
	// watchBackstop is the longest time between two calls, in case that a change was not told.
	watchBackstop = 30 * time.Second
	// watchBurst bounds how many changes one call stands for, so that it comes even if they never end.
	watchBurst = 10_000
)

// watchGroups are the changes that a Watch is told of: the multicast groups of rtnetlink. A kernel that lacks one (next hops are
// objects since 5.3) leaves it out.
const watchGroups = 1<<(unix.RTNLGRP_LINK-1) |
	1<<(unix.RTNLGRP_IPV4_IFADDR-1) | 1<<(unix.RTNLGRP_IPV6_IFADDR-1) |
	1<<(unix.RTNLGRP_IPV4_ROUTE-1) | 1<<(unix.RTNLGRP_IPV6_ROUTE-1) |
	1<<(unix.RTNLGRP_IPV4_RULE-1) | 1<<(unix.RTNLGRP_IPV6_RULE-1) |
	1<<(unix.RTNLGRP_NEXTHOP-1)

// Change says what may have changed in a namespace since the last time. What it is now is to be asked for.
type Change struct {
	// Links: interfaces or addresses may have.
	Links bool
	// Gone are interfaces that left the namespace, by index. One may be there again with that index.
	Gone []int

	routes  map[netip.Prefix]struct{} // destinations of routes
	lengths []int                     // that those have, in bits
}

// Reroutes reports whether packets to dst may go another way, as far as routes decide that: those of IPv4 that end with their
// interface are not told.
func (c *Change) Reroutes(dst netip.Addr) bool {
	for _, bits := range c.lengths {
		if p, err := dst.Prefix(bits); err == nil {
			if _, there := c.routes[p]; there {
				return true
			}
		}
	}
	return false
}

// Watch calls changed when interfaces, addresses or routes of the namespace may have changed, until ctx ends; it returns nil then.
// What they are now is for changed to ask: that way it does not matter in which order changes are told, nor if there were too many
// to tell, when all may have changed. After the last change there is always another call. A single change is told at once, many at
// most every 50 ms, and every 30 s there is a call for interfaces and addresses without any. The first call is for all that was
// there before.
//
// It keeps the namespace alive until it returns.
func (n *Namespace) Watch(ctx context.Context, changed func(Change)) error {
	socket, err := n.subscribe()
	if err != nil {
		return err
	}
	return watch(ctx, socket, watchBackstop, changed)
}

// subscribe opens a socket that is told of changes.
func (n *Namespace) subscribe() (*os.File, error) {
	fd := -1
	err := n.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	socket := os.NewFile(uintptr(fd), "netlink")
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: watchGroups}); err != nil {
		return nil, errors.Join(fmt.Errorf("listen for changes of interfaces: %w", err), socket.Close())
	}
	return socket, nil
}

// watch is Watch on a socket, which it closes.
func watch(ctx context.Context, socket *os.File, backstop time.Duration, changed func(Change)) error {
	defer func() { _ = socket.Close() }() // only read
	defer context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Unix(1, 0)) })()
	pause := time.NewTimer(0)
	defer pause.Stop()
	var change Change
	change.everything() // what changed before the socket listened is not told
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
		changed(change)
		pause.Reset(watchPause)
		if err := socket.SetReadDeadline(time.Now().Add(backstop)); err != nil {
			return fmt.Errorf("listen for changes of interfaces: %w", err)
		}
		// An end of ctx before this line was perhaps overwritten, and one after it is not.
		if ctx.Err() != nil {
			return nil
		}
		var err error
		change, err = awaitChange(socket)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			change.Links = true
		} else if err != nil {
			return fmt.Errorf("listen for changes of interfaces: %w", err)
		}
	}
	return nil
}

// awaitChange waits until the socket has something to tell.
func awaitChange(socket *os.File) (change Change, err error) {
	conn, err := socket.SyscallConn()
	if err != nil {
		return Change{}, err
	}
	var failed error
	waitErr := conn.Read(func(fd uintptr) (told bool) {
		told, failed = change.drain(int(fd))
		return told || failed != nil
	})
	return change, errors.Join(failed, waitErr)
}

// drain notes what is there to read, and says whether there was anything.
func (c *Change) drain(fd int) (told bool, err error) {
	var message [128]byte // of which the kernel cuts off what does not fit
	for range watchBurst {
		switch n, err := unix.Read(fd, message[:]); err {
		case nil:
			c.note(message[:n])
			told = true
		case unix.ENOBUFS: // more happened than there was room for
			c.everything()
			told = true
		case unix.EAGAIN:
			return told, nil
		case unix.EINTR:
		default:
			return told, os.NewSyscallError("read", err)
		}
	}
	return told, nil
}

// everything may have changed.
func (c *Change) everything() {
	c.Links = true
	c.allRoutes()
}

func (c *Change) allRoutes() {
	c.route(netip.PrefixFrom(netip.IPv4Unspecified(), 0))
	c.route(netip.PrefixFrom(netip.IPv6Unspecified(), 0))
}

func (c *Change) route(to netip.Prefix) {
	if c.routes == nil {
		c.routes = make(map[netip.Prefix]struct{})
	}
	c.routes[to] = struct{}{}
	if !slices.Contains(c.lengths, to.Bits()) {
		c.lengths = append(c.lengths, to.Bits())
	}
}

// note takes what one message tells. Of the message there may be no more than the beginning.
func (c *Change) note(message []byte) {
	if len(message) < unix.SizeofNlMsghdr {
		c.everything()
		return
	}
	body := message[unix.SizeofNlMsghdr:]
	switch binary.NativeEndian.Uint16(message[4:]) {
	case unix.RTM_DELLINK:
		// A bridge tells so of a port that leaves it, as another family.
		if len(body) >= unix.SizeofIfInfomsg && body[0] == unix.AF_UNSPEC {
			c.Gone = append(c.Gone, int(int32(binary.NativeEndian.Uint32(body[4:]))))
		}
		c.Links = true
	case unix.RTM_NEWLINK, unix.RTM_NEWADDR, unix.RTM_DELADDR:
		c.Links = true
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		c.noteRoute(body)
	default: // rules, next hops: any route may be another
		c.allRoutes()
	}
}

// noteRoute takes the destination out of a struct rtmsg and its attributes.
func (c *Change) noteRoute(body []byte) {
	if len(body) < unix.SizeofRtMsg {
		c.allRoutes()
		return
	}
	var dst netip.Addr // a default route has none
	switch body[0] {
	case unix.AF_INET:
		dst = netip.IPv4Unspecified()
	case unix.AF_INET6:
		dst = netip.IPv6Unspecified()
	default:
		return // of multicast, perhaps
	}
	bits := int(body[1])
	found := bits == 0
	for attrs := body[unix.SizeofRtMsg:]; !found && len(attrs) >= unix.SizeofRtAttr; {
		size := int(binary.NativeEndian.Uint16(attrs))
		if size < unix.SizeofRtAttr || size > len(attrs) {
			break
		}
		if binary.NativeEndian.Uint16(attrs[2:]) == unix.RTA_DST {
			dst, found = netip.AddrFromSlice(attrs[unix.SizeofRtAttr:size])
		}
		attrs = attrs[min((size+3)&^3, len(attrs)):]
	}
	to, err := dst.Prefix(bits)
	if !found || err != nil {
		c.allRoutes()
		return
	}
	c.route(to)
}
