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

const (
	// watchPause is the least time between two calls of Watch: links that flap make thousands of changes a second.
	watchPause = 50 * time.Millisecond
	// watchBackstop is the longest time between two calls, in case that a change was not told.
	watchBackstop = 30 * time.Second
	// watchBurst bounds how many changes one call stands for, so that it comes even if they never end.
	watchBurst = 10_000
)

// Watch calls changed when interfaces or addresses of the namespace may have changed, until ctx ends; it returns nil then. What
// they are now is for changed to ask: that way it does not matter in which order changes are told, nor if there were too many to
// tell. After the last change there is always another call. A single change is told at once, many at most every 50 ms, and
// every 30 s there is a call without any.
//
// It keeps the namespace alive until it returns.
func (n *Namespace) Watch(ctx context.Context, changed func()) error {
	socket, err := n.subscribe()
	if err != nil {
		return err
	}
	return watch(ctx, socket, watchBackstop, changed)
}

// subscribe opens a socket that is told of changes of interfaces and addresses.
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
	groups := uint32(1<<(unix.RTNLGRP_LINK-1) | 1<<(unix.RTNLGRP_IPV4_IFADDR-1) | 1<<(unix.RTNLGRP_IPV6_IFADDR-1))
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		return nil, errors.Join(fmt.Errorf("listen for changes of interfaces: %w", err), socket.Close())
	}
	return socket, nil
}

// watch is Watch on a socket, which it closes.
func watch(ctx context.Context, socket *os.File, backstop time.Duration, changed func()) error {
	defer func() { _ = socket.Close() }() // only read
	defer context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Unix(1, 0)) })()
	pause := time.NewTimer(0)
	defer pause.Stop()
	// The first call is for what changed before the socket listened, which is not told.
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
		changed()
		pause.Reset(watchPause)
		if err := socket.SetReadDeadline(time.Now().Add(backstop)); err != nil {
			return fmt.Errorf("listen for changes of interfaces: %w", err)
		}
		// An end of ctx before this line was perhaps overwritten, and one after it is not.
		if ctx.Err() != nil {
			return nil
		}
		if err := awaitChange(socket); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("listen for changes of interfaces: %w", err)
		}
	}
	return nil
}

// awaitChange waits until the socket has something to tell.
func awaitChange(socket *os.File) error {
	conn, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	waitErr := conn.Read(func(fd uintptr) (told bool) {
		told, failed = drain(int(fd))
		return told || failed != nil
	})
	return errors.Join(failed, waitErr)
}

// drain reads what is there and forgets it: that something changed is all that is needed.
func drain(fd int) (told bool, err error) {
	var message [1]byte // of which the kernel cuts off what does not fit
	for range watchBurst {
		switch _, err := unix.Read(fd, message[:]); err {
		case nil, unix.ENOBUFS: // more happened than there was room for, which is a change too
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
