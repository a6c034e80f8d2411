// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// ethernetHeader is the length of the one link header that is understood.
const ethernetHeader = 14

// Hook is a place in the kernel's packet path that programs attach to.
type Hook uint8

const (
	// TCX needs Linux 6.6. The programs go in front of others, and are detached
	// when the process dies.
	TCX Hook = iota
	// Clsact works on every kernel that has CONFIG_NET_CLS_BPF and
	// CONFIG_NET_SCH_INGRESS. Its filters outlive a killed process; their name
	// tells whose they were, see [FilterOwnerDead].
	Clsact
	// XDP is the driver's own, never the generic kind, and needs Linux 5.9. Its
	// one place on a device is taken or not: nobody's program is ever replaced.
	// It is for devices with an Ethernet header. Many drivers reset the port as
	// the first program comes or the last one goes, be it with the process.
	XDP
)

func (h Hook) String() string {
	switch h {
	case TCX:
		return "tcx"
	case Clsact:
		return "clsact"
	case XDP:
		return "xdp"
	}
	return fmt.Sprintf("hook %d", uint8(h))
}

// FilterAdder adds a tc filter in direct-action mode to the clsact qdisc of an
// interface of the calling thread's network namespace. Closing what it returns
// removes the filter.
type FilterAdder interface {
	AddFilter(ifindex int, egress bool, progFD int, name string) (io.Closer, error)
}

// Device is what the programs attach to.
type Device struct {
	Index      int
	Name       string // for error texts
	LinkHeader int    // bytes in front of the IP header: 14 (Ethernet, loopback) or 0
}

// Attachment is what is attached to a device, at tc by a [Datapath] one program
// per direction.
type Attachment struct {
	owner owner
	parts []io.Closer // in the order attached

	once sync.Once
	err  error
}

// owner is who attached something, and closes it if nobody else does.
type owner interface {
	has(*Attachment) bool
	forget(*Attachment)
}

func (d *Datapath) has(a *Attachment) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.attachments[a]
	return ok
}

func (d *Datapath) forget(a *Attachment) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.attachments, a)
}

// Attach puts the programs on both directions of a device, or on none. The
// thread must be in the device's network namespace. fa is used for [Clsact].
//
// [XDP] takes T4 earlier, of the paths of that device; it has no egress side.
// It is for devices that another hook is attached to, which takes T1 and has
// what XDP passes on.
//
// An error is [ErrNotSupported] if the kernel has no such hook, [ErrPermission]
// if the process may not use it; the kernel's errno is in the chain.
func (d *Datapath) Attach(dev Device, h Hook, fa FilterAdder) (_ *Attachment, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("attach to %s: %w", dev.Name, errClosed)
	}
	type part struct {
		prog *ebpf.Program
		role role
	}
	var parts []part
	if h == XDP {
		prog, err := d.xdpProgram(dev.LinkHeader)
		if err != nil {
			return nil, fmt.Errorf("attach to %s: %w", dev.Name, err)
		}
		parts = []part{{prog, roleIngress}}
	} else {
		progs, err := d.programs(dev.LinkHeader)
		if err != nil {
			return nil, fmt.Errorf("attach to %s: %w", dev.Name, err)
		}
		// Ingress first: a probe that gets a T1 then never lacks a T4 for want
		// of the program.
		parts = []part{{progs.XtwampIngress, roleIngress}, {progs.XtwampEgress, roleEgress}}
	}

	a := &Attachment{owner: d}
	for _, p := range parts {
		part, err := attachOne(dev, h, fa, p.prog, p.role)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("attach to %s: %w", dev.Name, err), a.close())
		}
		a.parts = append(a.parts, part)
	}
	d.attachments[a] = struct{}{}
	return a, nil
}

func attachOne(dev Device, h Hook, fa FilterAdder, prog *ebpf.Program, r role) (io.Closer, error) {
	egress := r == roleEgress
	switch h {
	case TCX:
		at := ebpf.AttachTCXIngress
		if egress {
			at = ebpf.AttachTCXEgress
		}
		l, err := link.AttachTCX(link.TCXOptions{
			Interface: dev.Index,
			Program:   prog,
			Attach:    at,
			Anchor:    link.Head(),
		})
		if errors.Is(err, ebpf.ErrNotSupported) {
			return nil, notSupported(OldKernel, "tcx needs Linux 6.6", err)
		}
		if err != nil {
			return nil, explain(err, inspect(nil))
		}
		return l, nil

	case Clsact:
		name, err := filterName(r)
		if err != nil {
			return nil, err
		}
		f, err := fa.AddFilter(dev.Index, egress, prog.FD(), name)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
			return nil, notSupported(MissingConfig, "clsact needs CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS", err)
		}
		if err != nil {
			return nil, explain(fmt.Errorf("clsact: %w", err), inspect(nil))
		}
		return f, nil

	case XDP:
		l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: dev.Index, Flags: link.XDPDriverMode})
		switch {
		case errors.Is(err, unix.EOPNOTSUPP):
			return nil, notSupported(OtherObstacle, "the driver of "+dev.Name+" has no XDP", err)
		case errors.Is(err, ebpf.ErrNotSupported):
			return nil, notSupported(OldKernel, "xdp links need Linux 5.9", err)
		case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
			// EEXIST: it is of the other kind, driver's or generic.
			return nil, fmt.Errorf("somebody else's xdp program is there: %w", err)
		case err != nil:
			return nil, explain(err, inspect(nil))
		}
		return l, nil
	}
	return nil, fmt.Errorf("%v: %w", h, ErrNotSupported)
}

// Alive says whether all of it is still attached. It is false once the
// device is gone, even if one of the same name has taken its place. For
// [Clsact] it can only tell if what the [FilterAdder] returned has a method
// Alive() bool, called on this thread; otherwise it is true until Close.
func (a *Attachment) Alive() bool {
	if !a.owner.has(a) {
		return false
	}
	for _, p := range a.parts {
		switch p := p.(type) {
		case link.Link:
			info, err := p.Info()
			if err != nil {
				return false
			}
			var ifindex uint32 // 0 without a device
			if tcx := info.TCX(); tcx != nil {
				ifindex = tcx.Ifindex
			} else if xdp := info.XDP(); xdp != nil {
				ifindex = xdp.Ifindex
			}
			if ifindex == 0 {
				return false
			}
		case interface{ Alive() bool }:
			if !p.Alive() {
				return false
			}
		}
	}
	return true
}

// Close detaches the programs. It may be called again.
func (a *Attachment) Close() error {
	err := a.close()
	a.owner.forget(a) // whatever they did is known by now
	return err
}

// close detaches in reverse order, so that no probe gets a T1 any more when
// replies are no longer seen.
func (a *Attachment) close() error {
	a.once.Do(func() {
		var errs []error
		for i := len(a.parts) - 1; i >= 0; i-- {
			errs = append(errs, a.parts[i].Close())
		}
		if err := errors.Join(errs...); err != nil {
			a.err = fmt.Errorf("detach: %w", err)
		}
	})
	return a.err
}
