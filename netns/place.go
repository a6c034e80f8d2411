// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// dialTimeout bounds what no context does.
	dialTimeout = 30 * time.Second
	// minShare is the least that one of several addresses gets of the time that is left, where that much is left.
	minShare = 2 * time.Second
)

// Place is where a role works: a namespace, or a VRF of the one the process was started in. The zero Place is that one as a
// whole. It holds nothing open: each call finds the namespace anew by its name, and so finds one that was made anew.
//
// All methods may be called concurrently.
type Place struct {
	namespace string // as Open takes it; "" is the start namespace
	device    string // a VRF of the start namespace
}

// ParsePlace reads a place as the configuration has it: "" for where the process was started, a name under /var/run/netns, a
// path (which contains a slash), or vrf:NAME. That there is such a place it does not ask.
func ParsePlace(s string) (Place, error) {
	device, isVRF := strings.CutPrefix(s, "vrf:")
	switch {
	case !isVRF && (s == "." || s == ".."):
		return Place{}, fmt.Errorf("%q is no name of a network namespace", s)
	case !isVRF:
		return Place{namespace: s}, nil
	case device == "" || len(device) >= unix.IFNAMSIZ || strings.ContainsAny(device, "/: \t\n"):
		return Place{}, fmt.Errorf("%q is no name of a VRF", device)
	}
	return Place{device: device}, nil
}

// Place is where the namespace was found. It may be gone from there.
func (n *Namespace) Place() Place {
	if n.isStart() {
		return Place{}
	}
	return Place{namespace: n.name}
}

// String returns what [ParsePlace] read, or "default".
func (p Place) String() string {
	switch {
	case p.device != "":
		return "vrf:" + p.device
	case p.namespace != "":
		return p.namespace
	}
	return "default"
}

// Device is the VRF that sockets must be bound to, or "". The methods that make sockets have done so.
func (p Place) Device() string { return p.device }

// Open opens the namespace, which for a VRF is the start namespace. The errors are those of [Open].
func (p Place) Open() (*Namespace, error) {
	if p.namespace == "" {
		return nil, nil // which stands for the start namespace
	}
	return Open(p.namespace)
}

// do calls fn inside the namespace, which is held open for so long only.
func (p Place) do(fn func() error) error {
	ns, err := p.Open()
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }() // nothing was written to it
	return ns.Do(fn)
}

// path is where the namespace is found, or "".
func (p Place) path() string {
	if p.isNamed() {
		return filepath.Join(namedDir, p.namespace)
	}
	return p.namespace
}

func (p Place) isNamed() bool { return p.namespace != "" && !strings.Contains(p.namespace, "/") }

// Dial connects to an address over TCP or UDP. A name is looked up in the place as well (see [Place.LookupNetIP]); its
// addresses are tried one after the other, each for its share of the time. That ends with ctx, and after 30 s.
//
// It is a DialContext for [net/http.Transport].
func (p Place) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if p == (Place{}) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	literals, err := p.literals(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("dial %s in %s: %w", address, p, err)
	}
	// What the first address, the best one, meets says most.
	var first error
	for i, literal := range literals {
		conn, err := p.dialShare(ctx, network, literal, len(literals)-i)
		if err == nil {
			return conn, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, fmt.Errorf("in %s: %w", p, first)
}

func (p Place) dialShare(ctx context.Context, network, literal string, left int) (net.Conn, error) {
	if deadline, ok := ctx.Deadline(); ok {
		share := max(time.Until(deadline)/time.Duration(left), minShare)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, share)
		defer cancel()
	}
	return p.dialLiteral(ctx, network, literal)
}

// dialLiteral connects to an IP address and port. With nothing to look up and no second address to race with, package net makes
// the socket on the thread that asks.
func (p Place) dialLiteral(ctx context.Context, network, literal string) (conn net.Conn, err error) {
	err = p.do(func() (err error) {
		conn, err = (&net.Dialer{Control: p.bindToDevice}).DialContext(ctx, network, literal)
		return err
	})
	return conn, err
}

// Listen listens over TCP. An address by name is looked up in the place as well, for its first IPv4 address or else its first.
func (p Place) Listen(ctx context.Context, network, address string) (listener net.Listener, err error) {
	err = p.listen(ctx, network, address, func(config net.ListenConfig, literal string) (err error) {
		listener, err = config.Listen(ctx, network, literal)
		return err
	})
	return listener, err
}

func (p Place) listen(ctx context.Context, network, address string, fn func(config net.ListenConfig, literal string) error) error {
	literals, err := p.literals(ctx, network, address)
	if err != nil {
		return fmt.Errorf("listen on %s in %s: %w", address, p, err)
	}
	literal := literals[0]
	for _, l := range literals {
		if a, err := netip.ParseAddrPort(l); err == nil && a.Addr().Is4() {
			literal = l
			break
		}
	}
	err = p.do(func() error { return fn(net.ListenConfig{Control: p.bindToDevice}, literal) })
	if err != nil {
		return fmt.Errorf("in %s: %w", p, err)
	}
	return nil
}

// literals replaces the host of an address by its IP addresses. Without a host (all addresses) it stays as it is.
func (p Place) literals(ctx context.Context, network, address string) ([]string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if host == "" {
		return []string{address}, nil
	}
	addrs, err := p.LookupNetIP(ctx, "ip"+strings.TrimLeft(network, "tcpud"), host)
	if err != nil {
		return nil, err
	}
	literals := make([]string, len(addrs))
	for i, a := range addrs {
		literals[i] = net.JoinHostPort(a.String(), port)
	}
	return literals, nil
}

// bindToDevice binds a new socket to the VRF, where the place is one.
func (p Place) bindToDevice(_, _ string, conn syscall.RawConn) error {
	if p.device == "" {
		return nil
	}
	var bound error
	if err := conn.Control(func(fd uintptr) { bound = unix.BindToDevice(int(fd), p.device) }); err != nil {
		return err
	}
	if errors.Is(bound, unix.ENODEV) {
		return fmt.Errorf("bind to %s: %w", p.device, ErrNoLink)
	}
	if bound != nil {
		return fmt.Errorf("bind to %s: %w", p.device, os.NewSyscallError("setsockopt SO_BINDTODEVICE", bound))
	}
	return nil
}
