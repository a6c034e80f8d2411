// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// priority is where our filters run among those of others: early, because an earlier filter that ends a packet
// hides it from all later ones, while ours let every packet pass on. It is the same for all our processes, so that their
// filters share one classifier and the kernel gives each its own handle; left to the kernel it would start at 49152, behind
// everybody who chose a number. It is none of the round numbers, since others `replace` priority 1 handle 1 with no look at
// whose filter that is.
const priority = 7

// clsactKind is the qdisc that carries filters for both directions and queues nothing.
const clsactKind = "clsact"

// errOtherNamespace: an interface index is meaningless outside its namespace.
var errOtherNamespace = errors.New("called outside the interface's network namespace")

// Direction is a side of an interface where a filter runs.
type Direction uint8

const (
	Ingress Direction = iota
	Egress
)

func (d Direction) String() string {
	if d == Egress {
		return "egress"
	}
	return "ingress"
}

func (d Direction) parent() uint32 {
	if d == Egress {
		return netlink.HANDLE_MIN_EGRESS
	}
	return netlink.HANDLE_MIN_INGRESS
}

// Filter is a BPF program on one side of an interface. It outlives the process unless it is closed.
type Filter struct {
	mu        sync.Mutex
	closed    bool
	namespace uint64 // inode
	entry     entry
}

// entry is a cls_bpf filter as the kernel lists it.
type entry struct {
	at   nl.TcMsg // interface, parent, handle, priority and protocol: all that names it
	name string
	id   uint32 // of the program
}

// AddFilter runs the program (BPF_PROG_TYPE_SCHED_CLS, direct action) for every packet that passes the interface in the
// direction. name is how later runs know the owner (see [SweepFilters]); the kernel keeps up to 255 bytes. A missing clsact
// qdisc is created and never removed, for others may use it by then. Filters of the same and of other processes may be on
// the interface; none is replaced.
//
// It acts on the namespace of the calling thread and needs CAP_NET_ADMIN and the program's descriptor only during the
// call. The error is EBUSY if the interface has an ingress qdisc in clsact's place: that would run egress filters on ingress.
func AddFilter(ifindex int, d Direction, progFD int, name string) (*Filter, error) {
	filter, err := addFilter(ifindex, d, progFD, name)
	if err != nil {
		return nil, fmt.Errorf("add %s filter %s to interface %d: %w", d, name, ifindex, err)
	}
	return filter, nil
}

func addFilter(ifindex int, d Direction, progFD int, name string) (*Filter, error) {
	namespace, err := current()
	if err != nil {
		return nil, err
	}
	if err := ensureClsact(ifindex); err != nil {
		return nil, err
	}
	options := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
	options.AddRtAttr(nl.TCA_BPF_FD, nl.Uint32Attr(uint32(progFD)))
	options.AddRtAttr(nl.TCA_BPF_NAME, nl.ZeroTerminated(name))
	options.AddRtAttr(nl.TCA_BPF_FLAGS, nl.Uint32Attr(nl.TCA_BPF_FLAG_ACT_DIRECT))
	// ECHO returns the filter as the kernel made it, with the handle that it chose: no other filter of the same name can be
	// mistaken for it, which a look at the list afterwards could not rule out.
	replies, err := request(unix.RTM_NEWTFILTER, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ECHO|unix.NLM_F_ACK, unix.RTM_NEWTFILTER,
		&nl.TcMsg{
			Family:  unix.AF_UNSPEC,
			Ifindex: int32(ifindex),
			Parent:  d.parent(),
			Info:    netlink.MakeHandle(priority, nl.Swap16(unix.ETH_P_ALL)),
		},
		nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("bpf")),
		options)
	if err != nil {
		return nil, err
	}
	if len(replies) != 1 {
		return nil, fmt.Errorf("kernel did not say which filter it made: %w", unix.ENOMSG)
	}
	e, ok, err := parseFilter(replies[0])
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("kernel made another kind of filter: %w", unix.ENOMSG)
	}
	return &Filter{namespace: namespace, entry: e}, nil
}

func ensureClsact(ifindex int) error {
	_, err := request(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, 0,
		&nl.TcMsg{
			Family:  unix.AF_UNSPEC,
			Ifindex: int32(ifindex),
			Handle:  netlink.MakeHandle(0xffff, 0),
			Parent:  netlink.HANDLE_CLSACT,
		},
		nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(clsactKind)))
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("create clsact qdisc: %w", err)
	}
	// clsact and the older ingress qdisc sit in the same place, and EEXIST does not tell them apart.
	kind, err := ingressQdisc(ifindex)
	if err != nil {
		return fmt.Errorf("look at ingress qdisc: %w", err)
	}
	if kind != clsactKind {
		return fmt.Errorf("interface has qdisc %s, not %s: %w", kind, clsactKind, unix.EBUSY)
	}
	return nil
}

// ingressQdisc returns the kind of the qdisc in clsact's place. It reads the whole list, as the kernel answers a request for one
// qdisc by telling all its listeners.
func ingressQdisc(ifindex int) (kind string, err error) {
	replies, err := request(unix.RTM_GETQDISC, unix.NLM_F_DUMP, unix.RTM_NEWQDISC,
		&nl.TcMsg{Family: unix.AF_UNSPEC, Ifindex: int32(ifindex)})
	if err != nil {
		return "", err
	}
	for _, b := range replies {
		msg := nl.DeserializeTcMsg(b)
		if int(msg.Ifindex) != ifindex || msg.Parent != netlink.HANDLE_CLSACT {
			continue
		}
		attrs, err := nl.ParseRouteAttr(b[nl.SizeofTcMsg:])
		if err != nil {
			return "", fmt.Errorf("parse qdisc: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type == nl.TCA_KIND {
				return unix.ByteSliceToString(a.Value), nil
			}
		}
	}
	return "", unix.ENOENT
}

// Close removes the filter, and only if it is still the one that was added: a handle freed by somebody else may have a new
// owner. That the filter or its interface is gone already is no error. Call it in the namespace that the filter
// was added in, else it changes nothing and says so. A second Close does nothing; after an error it tries again.
func (f *Filter) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	if err := f.remove(); err != nil {
		return fmt.Errorf("remove filter %s from interface %d: %w", f.entry.name, f.entry.at.Ifindex, err)
	}
	f.closed = true
	return nil
}

// Alive says whether the kernel still has the filter: others remove them, and qdiscs, and interfaces. It has to be called in
// the namespace that the filter was added in.
func (f *Filter) Alive() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	if namespace, err := current(); err != nil || namespace != f.namespace {
		return false
	}
	there, err := f.entry.exists()
	return err == nil && there
}

func (f *Filter) remove() error {
	namespace, err := current()
	if err != nil {
		return err
	}
	if namespace != f.namespace {
		return errOtherNamespace
	}
	return f.entry.remove()
}

// SweepFilters removes the BPF filters of both directions whose name dead says belongs to nobody any more, and returns
// the names of those removed, also beside an error. A missing interface or qdisc has no filters. It acts on the namespace of
// the calling thread.
func SweepFilters(ifindex int, dead func(name string) bool) (removed []string, err error) {
	for _, d := range []Direction{Ingress, Egress} {
		entries, e := listFilters(ifindex, d.parent())
		if e != nil {
			err = errors.Join(err, fmt.Errorf("list %s filters of interface %d: %w", d, ifindex, e))
			continue
		}
		for _, entry := range entries {
			if !dead(entry.name) {
				continue
			}
			if e := entry.remove(); e != nil {
				err = errors.Join(err, fmt.Errorf("remove %s filter %s from interface %d: %w", d, entry.name, ifindex, e))
				continue
			}
			removed = append(removed, entry.name)
		}
	}
	return removed, err
}

// FilterNames names the BPF filters of both directions of an interface of the namespace of the calling thread. A missing
// interface or qdisc has none.
func FilterNames(ifindex int) (names []string, err error) {
	for _, d := range []Direction{Ingress, Egress} {
		entries, err := listFilters(ifindex, d.parent())
		if err != nil {
			return nil, fmt.Errorf("list %s filters of interface %d: %w", d, ifindex, err)
		}
		for _, e := range entries {
			names = append(names, e.name)
		}
	}
	return names, nil
}

// remove deletes the filter if the kernel still lists it as it is here. Two processes may sweep the same
// interface, and interfaces go at any time, so what counts is that the filter is gone, not who did it.
func (e entry) remove() error {
	there, err := e.exists()
	if err != nil || !there {
		return err
	}
	at := e.at
	if _, err := request(unix.RTM_DELTFILTER, unix.NLM_F_ACK, 0, &at, nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("bpf"))); err != nil {
		if there, e := e.exists(); e == nil && !there {
			return nil
		}
		return err
	}
	return nil
}

func (e entry) exists() (bool, error) {
	entries, err := listFilters(int(e.at.Ifindex), e.at.Parent)
	if err != nil {
		return false, err
	}
	for _, other := range entries {
		if other == e {
			return true, nil
		}
	}
	return false, nil
}

func listFilters(ifindex int, parent uint32) ([]entry, error) {
	replies, err := request(unix.RTM_GETTFILTER, unix.NLM_F_DUMP, unix.RTM_NEWTFILTER,
		&nl.TcMsg{Family: unix.AF_UNSPEC, Ifindex: int32(ifindex), Parent: parent})
	if err != nil {
		return nil, err
	}
	var entries []entry
	for _, b := range replies {
		e, ok, err := parseFilter(b)
		if err != nil {
			return nil, err
		}
		if ok {
			entries = append(entries, e)
		}
	}
	return entries, nil
}

// parseFilter reads a filter; ok is false unless it is one of cls_bpf in the chain that we use.
func parseFilter(b []byte) (_ entry, ok bool, _ error) {
	e := entry{at: *nl.DeserializeTcMsg(b)}
	e.at.Pad = [3]byte{} // padding, not part of a filter's identity
	attrs, err := nl.ParseRouteAttr(b[nl.SizeofTcMsg:])
	if err != nil {
		return entry{}, false, fmt.Errorf("parse filter: %w", err)
	}
	var kind string
	var chain uint32
	var options []byte
	for _, a := range attrs {
		switch a.Attr.Type {
		case nl.TCA_KIND:
			kind = unix.ByteSliceToString(a.Value)
		case nl.TCA_CHAIN:
			chain = binary.NativeEndian.Uint32(a.Value)
		case nl.TCA_OPTIONS:
			options = a.Value
		}
	}
	// Handle 0 stands for the classifier that holds the filters.
	if kind != "bpf" || chain != 0 || e.at.Handle == 0 {
		return entry{}, false, nil
	}
	attrs, err = nl.ParseRouteAttr(options)
	if err != nil {
		return entry{}, false, fmt.Errorf("parse bpf filter: %w", err)
	}
	for _, a := range attrs {
		switch a.Attr.Type {
		case nl.TCA_BPF_NAME:
			e.name = unix.ByteSliceToString(a.Value)
		case nl.TCA_BPF_ID:
			e.id = binary.NativeEndian.Uint32(a.Value)
		}
	}
	return e, true, nil
}
