// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/bpf"
	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/probe/twamp"
)

// ReflectorMode is where a reflector answers. The socket is always there for
// what the kernel half passes on, and for interfaces that do not take it.
type ReflectorMode uint8

// The modes.
const (
	ReflectAuto   ReflectorMode = iota // tcx, else clsact, else on the socket
	ReflectTCX                         // tcx, else on the socket
	ReflectClsact                      // clsact, else on the socket
	ReflectXDP                         // the driver's XDP, else as auto
	ReflectSocket                      // on the socket alone
)

// ReflectorModes are the names of the modes.
var ReflectorModes = []string{"auto", "tcx", "clsact", "xdp", "socket"}

func (m ReflectorMode) String() string { return ReflectorModes[m] }

// ParseReflectorMode is the mode of a name.
func ParseReflectorMode(name string) (ReflectorMode, error) {
	i := slices.Index(ReflectorModes, name)
	if i < 0 {
		return 0, fmt.Errorf("mode %q: expected one of %s", name, strings.Join(ReflectorModes, ", "))
	}
	return ReflectorMode(i), nil
}

// steps are the hooks that a mode tries.
func (m ReflectorMode) steps() []Step {
	switch m {
	case ReflectAuto:
		return []Step{StepTCX, StepClsact}
	case ReflectTCX:
		return []Step{StepTCX}
	case ReflectClsact:
		return []Step{StepClsact}
	case ReflectXDP:
		return []Step{StepXDP, StepTCX, StepClsact}
	}
	return nil
}

const (
	// maxKernelEntries bounds addresses with ports, and allowed addresses.
	maxKernelEntries = 1 << 14
	maxPrefixes      = 4096
	maxDevices       = 1024
	maxRate          = 1_000_000_000 // per second: the kernel counts in ns
	// settle is how long changes of peers and interfaces are collected after
	// some were acted on.
	settle = 100 * time.Millisecond
	// The kernel half of a process that does not say for a while what the time
	// is, having been killed perhaps, leaves all packets to the sockets.
	clockGood  = 15 * time.Second
	clockAgain = clockGood / 3
)

// kernelReflector answers in the kernel what it can, for the sockets of a
// Reflector that are there for the rest.
type kernelReflector struct {
	cfg   ReflectorConfig
	log   *zap.Logger
	bound []netip.AddrPort // what the sockets are bound to
	again chan struct{}    // has room for one: look again

	mu      sync.Mutex
	program *bpf.Reflector // nil before it is loaded and after close
	closed  bool
	peers   []netip.AddrPort
	routes  map[netip.Addr]int // interface that leads there; 0: none
	vrf     int                // index of the one that it is for; 0: none
	stale   bool               // routes and interfaces may have changed
	devices map[int]*reflectingDevice
	refused map[int][]Refusal // by interface index
	names   map[int]string    // of devices and refused
	modes   map[string]Step   // by name of interface: how it was attached last
	counted map[string]bpf.ReflectCounts
}

// reflectingDevice is an interface with the program attached.
type reflectingDevice struct {
	step       Step
	attachment *bpf.Attachment
}

func newKernelReflector(cfg ReflectorConfig, bound []netip.AddrPort) *kernelReflector {
	cfg.History.refreshing.calm = minutely
	return &kernelReflector{
		cfg:     cfg,
		log:     cfg.Logger,
		bound:   bound,
		again:   make(chan struct{}, 1),
		routes:  make(map[netip.Addr]int),
		stale:   true,
		devices: make(map[int]*reflectingDevice),
		refused: make(map[int][]Refusal),
		names:   make(map[int]string),
		modes:   make(map[string]Step),
	}
}

// run keeps the kernel half in line with peers, addresses, interfaces and the
// clock until ctx ends. Whatever fails, the sockets answer.
func (k *kernelReflector) run(ctx context.Context) {
	if !k.load() {
		return
	}
	var loops sync.WaitGroup
	defer loops.Wait()
	loops.Go(func() {
		keep(ctx, k.log, "watching the clock for the reflector", func(ctx context.Context) error {
			return systemClock{}.watch(ctx, k.setClock)
		})
	})
	loops.Go(func() {
		tick := time.NewTicker(clockAgain)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				k.setClock()
			}
		}
	})
	loops.Go(func() {
		keep(ctx, k.log, "watching the interfaces for the reflector", func(ctx context.Context) error {
			return k.cfg.Namespace.Watch(ctx, func(c netns.Change) {
				if c.Links || k.reroutes(&c) {
					k.lookAgain(true)
				}
			})
		})
	})
	for {
		k.refresh()
		select { // a routing daemon changes many at once
		case <-ctx.Done():
			return
		case <-time.After(settle):
		}
		select {
		case <-ctx.Done():
			return
		case <-k.again:
		case <-time.After(resolveEvery): // routes change too
			k.lookAgain(true)
		}
	}
}

// load loads the kernel half; false if the kernel does not allow it, or if it
// has been closed.
func (k *kernelReflector) load() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return false
	}
	program, err := bpf.LoadReflector(bpf.ReflectorConfig{
		Rate:      min(k.cfg.RateLimit, maxRate),
		Listeners: maxKernelEntries,
		Peers:     maxKernelEntries,
		Prefixes:  maxPrefixes,
		Sources:   maxSources,
		Devices:   maxDevices,
	})
	if err != nil {
		k.cfg.History.holds.lost(k.log, "the kernel half of the reflector cannot be loaded; answering on the socket", "", zap.Error(err))
		return false
	}
	k.program = program
	k.setClockLocked()
	return true
}

func (k *kernelReflector) setClock() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.setClockLocked()
}

func (k *kernelReflector) setClockLocked() {
	if k.program == nil {
		return
	}
	now := systemClock{}.state()
	estimate := twamp.NewErrorEstimate(now.Synchronized, twamp.NTP, int64(now.Error))
	err := k.program.SetClock(now.Offset, uint16(estimate), clockGood)
	k.cfg.History.setting.attempt(k.log, err, "cannot set the reflector's clock", "the reflector's clock is set again")
}

func (k *kernelReflector) setPeers(peers []netip.AddrPort) {
	k.mu.Lock()
	k.peers = slices.Clone(peers)
	k.mu.Unlock()
	k.lookAgain(false)
}

// lookAgain has the kernel half brought up to date. With all, also interfaces
// and routes are looked at that were known before.
func (k *kernelReflector) lookAgain(all bool) {
	if all {
		k.mu.Lock()
		k.stale = true
		k.mu.Unlock()
	}
	select {
	case k.again <- struct{}{}:
	default:
	}
}

// reroutes reports whether the way to somebody who may ask can have changed.
func (k *kernelReflector) reroutes(c *netns.Change) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for a := range k.routes {
		if c.Reroutes(a) {
			return true
		}
	}
	return false
}

func (k *kernelReflector) refresh() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.program == nil {
		return
	}
	if k.stale {
		clear(k.routes)
		k.stale = false
	}
	err := k.cfg.Namespace.Do(k.refreshIn)
	k.cfg.History.refreshing.attempt(k.log, err, "the kernel half of the reflector is not up to date; the socket answers what it does not",
		"the kernel half of the reflector is up to date again")
}

// refreshIn brings the maps and attachments up to date, from within the
// namespace. Who is allowed is known before anybody can ask.
func (k *kernelReflector) refreshIn() error {
	links, err := netns.Links()
	if err != nil {
		return err
	}
	addresses, err := netns.Addresses()
	if err != nil {
		return err
	}
	if k.vrf, links, addresses, err = inVRF(k.cfg.VRF, links, addresses); err != nil {
		return err
	}
	routes, err := netns.OpenRoutes() // to thousands of peers, perhaps
	if err != nil {
		return err
	}
	defer routes.Close()
	single, prefixes := k.allowed()
	errs := []error{
		k.program.SetReflectors(k.peers),
		k.program.SetPeers(single),
		k.program.SetPrefixes(prefixes),
	}
	wanted := k.interfaces(routes, links, addresses, single, prefixes)
	tagged := taggedAbove(links)
	errs = append(errs,
		k.program.SetListeners(k.listeners(links, addresses, wanted)),
		k.detach(links, wanted, tagged))
	for _, link := range links {
		if wanted[link.Index] {
			k.attach(link, tagged[link.Index])
		}
	}
	return errors.Join(errs...)
}

// inVRF returns the index of a VRF, its interfaces, and the addresses of these
// and its own; all there are if it has no name.
func inVRF(name string, links []netns.Link, addresses []netns.Address) (vrf int, in []netns.Link, at []netns.Address, err error) {
	if name == "" {
		return 0, links, addresses, nil
	}
	i := slices.IndexFunc(links, func(l netns.Link) bool { return l.Name == name && l.Kind == netns.KindVRF })
	if i < 0 {
		return 0, nil, nil, fmt.Errorf("VRF %q: %w", name, netns.ErrNoLink)
	}
	vrf = links[i].Index
	ours := map[int]bool{vrf: true}
	for _, l := range links {
		if l.Master == vrf {
			in = append(in, l)
			ours[l.Index] = true
		}
	}
	for _, a := range addresses {
		if ours[a.Link] {
			at = append(at, a)
		}
	}
	return vrf, in, at, nil
}

// allowed is whom the kernel half answers: single addresses and prefixes.
func (k *kernelReflector) allowed() (single []netip.Addr, prefixes []netip.Prefix) {
	for _, p := range k.peers {
		single = append(single, p.Addr())
	}
	for _, p := range k.cfg.Allow {
		if p.IsSingleIP() {
			single = append(single, p.Addr())
		} else {
			prefixes = append(prefixes, p)
		}
	}
	if k.cfg.AllowAny {
		prefixes = append(prefixes, netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0))
	}
	return single, prefixes
}

// listeners spells out which addresses of ours the sockets are bound to. XDP
// answers at those of its own interface, and at those of loopback, which are
// nobody else's.
func (k *kernelReflector) listeners(links []netns.Link, addresses []netns.Address, wanted map[int]bool) (out []bpf.Listener) {
	for _, b := range k.bound {
		bound := b.Addr().Unmap().WithZone("")
		for _, a := range addresses {
			local := a.Prefix.Addr()
			if local != bound && !(bound.IsUnspecified() && bound.Is4() == local.Is4()) {
				continue
			}
			at := netip.AddrPortFrom(local, b.Port())
			out = append(out, bpf.Listener{At: at})
			if k.cfg.Mode != ReflectXDP {
				continue
			}
			for _, l := range links {
				if wanted[l.Index] && (a.Link == l.Index || a.Link == loopbackIndex) {
					out = append(out, bpf.Listener{At: at, Device: l.Index, MAC: l.MAC})
				}
			}
		}
	}
	return out
}

// loopbackIndex is that of the loopback device in every namespace.
const loopbackIndex = 1

// taggedAbove are the interfaces that carry VLANs. Many take the tag off before
// XDP sees a packet, and a packet that XDP sends back would not have it again.
func taggedAbove(links []netns.Link) map[int]bool {
	tagged := make(map[int]bool)
	for _, l := range links {
		tagged[l.Lower] = true
	}
	return tagged
}

// interfaces tells on which interfaces to answer: the configured ones, else
// all that are up if anybody may ask, else those that lead to who may. To a
// prefix lead the route to its first address and each interface with an
// address in it; what comes in elsewhere gets its answer from the socket.
func (k *kernelReflector) interfaces(routes *netns.Routes, links []netns.Link, addresses []netns.Address,
	single []netip.Addr, prefixes []netip.Prefix) map[int]bool {
	wanted := make(map[int]bool)
	switch {
	case len(k.cfg.Interfaces) > 0:
		for _, l := range links {
			wanted[l.Index] = slices.Contains(k.cfg.Interfaces, l.Name)
		}
		return wanted
	case k.cfg.AllowAny:
		for _, l := range links {
			wanted[l.Index] = l.Up
		}
		return wanted
	}
	for _, a := range single {
		wanted[k.routeTo(routes, a, links)] = true
	}
	for _, p := range prefixes {
		first := p.Masked().Addr()
		if next := first.Next(); p.Contains(next) {
			first = next // not the subnet's own address
		}
		wanted[k.routeTo(routes, first, links)] = true
		for _, a := range addresses {
			if a.Prefix.Overlaps(p) {
				wanted[a.Link] = true
			}
		}
	}
	return wanted
}

// routeTo is the interface that leads to an address, or 0.
func (k *kernelReflector) routeTo(routes *netns.Routes, a netip.Addr, links []netns.Link) int {
	if index, known := k.routes[a]; known {
		return index
	}
	if i := slices.IndexFunc(links, func(l netns.Link) bool { return l.Name == a.Zone() }); i >= 0 {
		k.routes[a] = links[i].Index
	} else if route, err := routes.To(a.WithZone(""), netip.Addr{}, k.vrf); err == nil {
		k.routes[a] = route.Link
	} else {
		k.routes[a] = 0 // looked up again when something changes, and each minute
	}
	return k.routes[a]
}

// detach takes the program off what is not wanted any more, and forgets
// interfaces that are gone.
func (k *kernelReflector) detach(links []netns.Link, wanted, tagged map[int]bool) error {
	names := make(map[int]string, len(links))
	for _, l := range links {
		names[l.Index] = l.Name
	}
	var errs []error
	for index, dev := range k.devices {
		if wanted[index] && names[index] == k.names[index] && dev.attachment.Alive() && !(dev.step == StepXDP && tagged[index]) {
			continue
		}
		errs = append(errs, dev.attachment.Close())
		delete(k.devices, index)
		if names[index] != "" {
			k.cfg.History.holds.lost(k.log, "the kernel half of the reflector is off an interface", k.names[index])
		}
	}
	for index := range k.names {
		if !wanted[index] || names[index] == "" {
			delete(k.names, index)
			delete(k.refused, index)
		}
	}
	return errors.Join(errs...)
}

// attach has the kernel answer on an interface, by the first hook of the mode
// that works. XDP that lacks a right is no reason to go on: the operator may
// mend it.
func (k *kernelReflector) attach(link netns.Link, tagged bool) {
	const answers = "the kernel answers on interface"
	if k.devices[link.Index] != nil {
		k.cfg.History.holds.lasts(k.log, answers, link.Name)
		return
	}
	k.names[link.Index] = link.Name
	sweepFilters(k.log, bpf.Device{Index: link.Index, Name: link.Name})
	var refused []Refusal
	for _, step := range k.cfg.Mode.steps() {
		a, err := k.attachBy(link, step, tagged)
		if err == nil {
			k.devices[link.Index] = &reflectingDevice{step: step, attachment: a}
			k.refused[link.Index] = refused
			k.modes[link.Name] = step
			k.cfg.History.holds.attached(k.log, answers, link.Name, step, refused)
			return
		}
		refused = append(refused, Refusal{step, err})
		if step == StepXDP && errors.Is(err, bpf.ErrPermission) {
			break
		}
	}
	k.cfg.History.holds.lost(k.log, "the kernel does not answer on interface; the socket does", link.Name,
		zap.String("refused", refusals(refused)), zap.NamedError("last", refused[len(refused)-1].Err))
	k.refused[link.Index] = refused
}

func (k *kernelReflector) attachBy(link netns.Link, step Step, tagged bool) (*bpf.Attachment, error) {
	header, err := linkHeader(link)
	if err != nil {
		return nil, err
	}
	if step == StepXDP && tagged {
		return nil, fmt.Errorf("%s carries VLANs, whose tags xdp may not see: %w", link.Name, bpf.ErrNotSupported)
	}
	return k.program.Attach(bpf.Device{Index: link.Index, Name: link.Name, LinkHeader: header}, step.hook(), filters{})
}

// close ends answering in the kernel: when it returns, no packet is answered
// or dropped there any more.
func (k *kernelReflector) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	if k.program == nil {
		return
	}
	err := k.program.SetListeners(nil)
	counts, e := k.program.Counters()
	k.counted = counts
	err = errors.Join(err, e, k.cfg.Namespace.Do(func() error {
		var errs []error
		for _, dev := range k.devices {
			errs = append(errs, dev.attachment.Close())
		}
		return errors.Join(errs...)
	}), k.program.Close())
	k.program = nil
	if err != nil {
		k.log.Error("cannot take the reflector out of the kernel cleanly", zap.Error(err))
	}
}

// counts is what the kernel half did. Verdicts that passed a packet on are
// among it, and the socket counts such a packet again.
func (k *kernelReflector) counts() ([]ReflectorCount, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	counted := k.counted
	if k.program != nil {
		var err error
		if counted, err = k.program.Counters(); err != nil {
			return nil, err
		}
	}
	var out []ReflectorCount
	for _, name := range slices.Sorted(maps.Keys(counted)) {
		for v, n := range counted[name] {
			if n > 0 {
				out = append(out, ReflectorCount{name, k.modes[name], bpf.ReflectVerdict(v).String(), n})
			}
		}
	}
	return out, nil
}

// attachments lists the interfaces on which the kernel is to answer.
func (k *kernelReflector) attachments() []Attachment {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []Attachment
	for index, name := range k.names {
		a := Attachment{Interface: name, Step: StepSocket, Refused: k.refused[index]}
		if dev := k.devices[index]; dev != nil {
			a.Step = dev.step
		}
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b Attachment) int { return strings.Compare(a.Interface, b.Interface) })
	return out
}
