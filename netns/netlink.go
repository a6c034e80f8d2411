// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink/nl"
	vishns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	// netlinkTimeout bounds each wait for the kernel. Drivers that reset a port hold the lock behind rtnetlink for seconds.
	netlinkTimeout = 10 * time.Second
	// dumpAttempts bounds how often a dump is repeated that a change of the dumped table interrupted.
	dumpAttempts = 5
)

// asker is request, or the same on a socket that is kept.
type asker func(kind, flags int, reply uint16, data ...nl.NetlinkRequestData) ([][]byte, error)

// request sends one rtnetlink request and returns the replies of type reply, without their netlink header.
//
// The socket is opened for the call: a netlink socket belongs for life to the namespace it was opened in, so a kept one would
// answer for another namespace than the caller's thread is in. Kernel errors stay in the chain as errno; one that waited
// too long is EAGAIN.
func request(kind, flags int, reply uint16, data ...nl.NetlinkRequestData) ([][]byte, error) {
	socket, err := openSocket()
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	return requestOn(socket, kind, flags, reply, data...)
}

func openSocket() (*nl.NetlinkSocket, error) {
	socket, err := nl.GetNetlinkSocketAt(vishns.None(), vishns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	timeout := unix.NsecToTimeval(netlinkTimeout.Nanoseconds())
	if err := errors.Join(socket.SetSendTimeout(&timeout), socket.SetReceiveTimeout(&timeout)); err != nil {
		socket.Close()
		return nil, fmt.Errorf("set netlink timeout: %w", err)
	}
	// The kernel's own words beside the errno, where it has any. Refused before 4.12 only.
	if err := socket.SetExtAck(true); err != nil {
		socket.Close()
		return nil, fmt.Errorf("ask for netlink error messages: %w", err)
	}
	return socket, nil
}

func requestOn(socket *nl.NetlinkSocket, kind, flags int, reply uint16, data ...nl.NetlinkRequestData) (replies [][]byte, err error) {
	req := nl.NewNetlinkRequest(kind, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	for _, d := range data {
		req.AddData(d)
	}
	for range dumpAttempts {
		replies, err = req.Execute(unix.NETLINK_ROUTE, reply)
		if !errors.Is(err, nl.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, err // also of an incomplete dump: half a table is no answer
	}
	return replies, nil
}
