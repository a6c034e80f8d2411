// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrNoRoute means that the kernel would not send a packet: no route, or one of type unreachable, blackhole or prohibit, or a
// source address that is not ours. The errno that a send would return stands beside it in the chain; test for
// ErrNoRoute first, since EACCES (prohibit) also counts as [os.ErrPermission].
var ErrNoRoute = errors.New("no route")

// Route is the way a packet would take now.
type Route struct {
	Link   int        // index of the egress interface
	Source netip.Addr // that the packet would carry; invalid if the kernel names none
	// Gateway is the router that the packet is handed to, be it of the other family; invalid if dst is on the link.
	Gateway netip.Addr
}

// RouteTo asks the kernel which way a packet to dst would take from the namespace of the calling thread. An invalid src
// leaves the choice of source address to the kernel; oif, if not 0, binds the packet to an interface or VRF as
// SO_BINDTODEVICE does (IPv4 then takes any destination for on-link if no route says otherwise). Zones of addresses are
// ignored: give oif.
//
// The error is [ErrNoRoute] or, for an oif that does not exist, [ErrNoLink].
func RouteTo(dst, src netip.Addr, oif int) (Route, error) {
	return routeTo(request, dst.Unmap(), src.Unmap(), oif)
}

// Routes answers as [RouteTo] does, for a namespace of its own and over one socket, which is most of what an answer costs.
// It may be used by several goroutines, on any thread.
type Routes struct {
	mu     sync.Mutex
	socket *nl.NetlinkSocket
}

// OpenRoutes makes a Routes for the namespace that the calling thread is in. It keeps that alive until it is closed.
func OpenRoutes() (*Routes, error) {
	socket, err := openSocket()
	if err != nil {
		return nil, err
	}
	return &Routes{socket: socket}, nil
}

// To is RouteTo.
func (r *Routes) To(dst, src netip.Addr, oif int) (Route, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ask := func(kind, flags int, reply uint16, data ...nl.NetlinkRequestData) ([][]byte, error) {
		return requestOn(r.socket, kind, flags, reply, data...)
	}
	return routeTo(ask, dst.Unmap(), src.Unmap(), oif)
}

// Close frees the socket. No call of To may be under way or follow.
func (r *Routes) Close() { r.socket.Close() }

func routeTo(ask asker, dst, src netip.Addr, oif int) (Route, error) {
	route, err := findRoute(ask, dst, src, oif)
	if err != nil {
		return Route{}, fmt.Errorf("route to %s: %w", dst, err)
	}
	return route, nil
}

func findRoute(ask asker, dst, src netip.Addr, oif int) (Route, error) {
	if !dst.IsValid() || src.IsValid() && src.Is4() != dst.Is4() {
		return Route{}, fmt.Errorf("source %s: %w", src, unix.EAFNOSUPPORT)
	}
	msg := &nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET, Dst_len: uint8(dst.BitLen())}}
	if dst.Is6() {
		msg.Family = unix.AF_INET6
	}
	data := []nl.NetlinkRequestData{msg, nl.NewRtAttr(unix.RTA_DST, dst.AsSlice())}
	if src.IsValid() {
		msg.Src_len = uint8(src.BitLen())
		data = append(data, nl.NewRtAttr(unix.RTA_SRC, src.AsSlice()))
	}
	if oif != 0 {
		data = append(data, nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(oif))))
	}
	route, err := getRoute(ask, data)
	if err != nil {
		// A missing interface is ENODEV in IPv4, and no more than a missing route in IPv6.
		if oif != 0 {
			if _, e := linkByIndex(ask, oif); errors.Is(e, ErrNoLink) {
				return Route{}, e
			}
		}
		return Route{}, err
	}
	if src.IsValid() {
		route.Source = src // the kernel does not repeat it
	}
	return route, nil
}

func getRoute(ask asker, data []nl.NetlinkRequestData) (Route, error) {
	replies, err := ask(unix.RTM_GETROUTE, 0, unix.RTM_NEWROUTE, data...)
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EACCES),
		errors.Is(err, unix.EINVAL): // blackhole, and in IPv4 some wrong sources
		return Route{}, fmt.Errorf("%w: %w", ErrNoRoute, err)
	case err != nil:
		return Route{}, err
	case len(replies) == 0:
		return Route{}, ErrNoRoute
	}
	return parseRoute(replies[0])
}

func parseRoute(b []byte) (Route, error) {
	msg := nl.DeserializeRtMsg(b)
	attrs, err := nl.ParseRouteAttr(b[msg.Len():])
	if err != nil {
		return Route{}, fmt.Errorf("parse route attributes: %w", err)
	}
	var route Route
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.RTA_OIF:
			route.Link = int(binary.NativeEndian.Uint32(a.Value))
		case unix.RTA_PREFSRC:
			route.Source, _ = netip.AddrFromSlice(a.Value)
		case unix.RTA_GATEWAY:
			route.Gateway, _ = netip.AddrFromSlice(a.Value)
		case unix.RTA_VIA: // struct rtvia: a family of two bytes before the address
			if len(a.Value) > 2 {
				route.Gateway, _ = netip.AddrFromSlice(a.Value[2:])
			}
		}
	}
	return route, nil
}
