// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// ReflectorConfig sizes a [Reflector]. All fields are needed.
type ReflectorConfig struct {
	Rate      int // requests per second and source; the burst is those of one second
	Listeners int // addresses and ports
	Peers     int // single addresses, and reflectors that are asked
	Prefixes  int
	Sources   int // that are remembered of those allowed by prefix
	Devices   int // attached to at a time
}

func (c ReflectorConfig) validate() error {
	for _, f := range []struct {
		name  string
		value int
	}{
		{"rate", c.Rate}, {"listeners", c.Listeners}, {"peers", c.Peers},
		{"prefixes", c.Prefixes}, {"sources", c.Sources}, {"devices", c.Devices},
	} {
		if f.value < 1 || f.value > math.MaxInt32 {
			return fmt.Errorf("%s: %d is not between 1 and %d", f.name, f.value, math.MaxInt32)
		}
	}
	return nil
}

// Reflector owns the program that answers test packets, and its maps. It
// answers nobody before it is told where sockets listen ([Reflector.SetListeners]),
// who is allowed and what the time is, and it has to be told the time again and
// again ([Reflector.SetClock]). Its methods may be called concurrently.
type Reflector struct {
	config       ReflectorConfig
	countForeign bool
	echoSeed     uint64
	objects      reflectorObjects // its program is for devices with an Ethernet header

	mu          sync.Mutex
	ip          *ebpf.Program // for devices without; loaded when first needed
	xdp         *ebpf.Program // likewise
	attachments map[*Attachment]Device
	listeners   map[reflectListenKey]reflectListener
	peers       map[reflectAddress]reflectBucket
	prefixes    map[reflectPrefixKey]uint8
	reflectors  map[reflectListenKey]uint8
	gone        map[string]ReflectCounts // of devices no longer attached, by name
	closed      bool
}

type reflectorObjects struct {
	reflectMaps
	XtwampReflect *ebpf.Program  `ebpf:"xtwamp_reflect"`
	Globals       *ebpf.Map      `ebpf:".bss"`
	Ports         *ebpf.Variable `ebpf:"ports"`
	ClockOffset   *ebpf.Variable `ebpf:"clock_offset"`
	ErrorEstimate *ebpf.Variable `ebpf:"error_estimate"`
	GoodUntil     *ebpf.Variable `ebpf:"good_until"`
}

func (o *reflectorObjects) Close() error {
	return errors.Join(o.XtwampReflect.Close(), o.reflectMaps.Close(), o.Globals.Close())
}

// LoadReflector creates the maps and loads the program. It attaches nothing.
// Errors are those of [Load].
func LoadReflector(cfg ReflectorConfig) (*Reflector, error) {
	return loadReflector(cfg, false)
}

func loadReflector(cfg ReflectorConfig, countForeign bool) (_ *Reflector, err error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("load reflector: %w", err)
	}
	r := &Reflector{
		config:       cfg,
		countForeign: countForeign,
		echoSeed:     rand.Uint64(),
		attachments:  make(map[*Attachment]Device),
		listeners:    make(map[reflectListenKey]reflectListener),
		peers:        make(map[reflectAddress]reflectBucket),
		prefixes:     make(map[reflectPrefixKey]uint8),
		reflectors:   make(map[reflectListenKey]uint8),
		gone:         make(map[string]ReflectCounts),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	memlock := rlimit.RemoveMemlock() // see load
	spec, err := r.spec(ethernetHeader)
	if err != nil {
		return nil, fmt.Errorf("load reflector: %w", err)
	}
	if err := spec.LoadAndAssign(&r.objects, nil); err != nil {
		return nil, fmt.Errorf("load reflector: %w", explain(err, inspect(memlock)))
	}
	return r, nil
}

// spec is the object, fitted to the configuration and to one kind of device.
func (r *Reflector) spec(linkHeader int) (*ebpf.CollectionSpec, error) {
	spec, err := loadReflect()
	if err != nil {
		return nil, err
	}
	for name, entries := range map[string]int{
		reflectMapListeners:  r.config.Listeners,
		reflectMapPeers:      r.config.Peers,
		reflectMapPrefixes:   r.config.Prefixes,
		reflectMapBuckets:    r.config.Sources,
		reflectMapReflectors: r.config.Peers,
		reflectMapCounters:   r.config.Devices * int(ReflectVerdictMax),
	} {
		spec.Maps[name].MaxEntries = uint32(entries)
	}
	const second = 1_000_000_000 // ns
	return spec, errors.Join(
		spec.Variables[reflectVarLinkHeader].Set(uint32(linkHeader)),
		spec.Variables[reflectVarCountForeign].Set(r.countForeign),
		spec.Variables[reflectVarEchoSeed].Set(r.echoSeed),
		spec.Variables[reflectVarRequestInterval].Set(uint64(second/r.config.Rate)),
	)
}

// program returns the one for a hook and a kind of device. The caller holds
// r.mu.
func (r *Reflector) program(h Hook, linkHeader int) (*ebpf.Program, error) {
	switch {
	case linkHeader == ethernetHeader && h == XDP:
		return r.loaded(&r.xdp, ethernetHeader, "xtwamp_reflect_xdp", "for xdp")
	case linkHeader == ethernetHeader:
		return r.objects.XtwampReflect, nil
	case linkHeader == 0 && h != XDP:
		return r.loaded(&r.ip, 0, "xtwamp_reflect", "for devices without link header")
	}
	return nil, fmt.Errorf("%v with a link header of %d bytes: %w", h, linkHeader, ErrNotSupported)
}

// loaded loads a program into at unless it is there. It shares all maps with
// the one loaded first.
func (r *Reflector) loaded(at **ebpf.Program, linkHeader int, name, what string) (*ebpf.Program, error) {
	if *at != nil {
		return *at, nil
	}
	spec, err := r.spec(linkHeader)
	if err != nil {
		return nil, err
	}
	spec.Programs = map[string]*ebpf.ProgramSpec{name: spec.Programs[name]}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{
		reflectMapListeners:  r.objects.Listeners,
		reflectMapPeers:      r.objects.Peers,
		reflectMapPrefixes:   r.objects.Prefixes,
		reflectMapBuckets:    r.objects.Buckets,
		reflectMapReflectors: r.objects.Reflectors,
		reflectMapEchoes:     r.objects.Echoes,
		reflectMapCounters:   r.objects.Counters,
		".bss":               r.objects.Globals,
	}})
	if err != nil {
		return nil, fmt.Errorf("load reflector %s: %w", what, explain(err, inspect(nil)))
	}
	defer c.Close()
	*at = c.DetachProgram(name)
	return *at, nil
}

// Attach puts the program on the ingress side of a device. See
// [Datapath.Attach], also for errors. A device is attached to once at a time.
func (r *Reflector) Attach(dev Device, h Hook, fa FilterAdder) (*Attachment, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, fmt.Errorf("attach reflector to %s: %w", dev.Name, errClosed)
	}
	prog, err := r.program(h, dev.LinkHeader)
	if err != nil {
		return nil, fmt.Errorf("attach reflector to %s: %w", dev.Name, err)
	}
	if err := r.beginCounting(dev); err != nil {
		return nil, errors.Join(fmt.Errorf("attach reflector to %s: %w", dev.Name, err), r.endCounting(dev))
	}
	part, err := attachOne(dev, h, fa, prog, roleReflect)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attach reflector to %s: %w", dev.Name, err), r.endCounting(dev))
	}
	a := &Attachment{owner: r}
	a.parts = append(a.parts, part)
	r.attachments[a] = dev
	return a, nil
}

func (r *Reflector) has(a *Attachment) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.attachments[a]
	return ok
}

// forget keeps what was counted on the device of a.
func (r *Reflector) forget(a *Attachment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	dev, ok := r.attachments[a]
	if !ok {
		return
	}
	delete(r.attachments, a)
	// What cannot be read has been counted in vain; it stops no one.
	if counts, err := r.counts(dev); err == nil {
		r.gone[dev.Name] = counts.add(r.gone[dev.Name])
	}
	_ = r.endCounting(dev)
}

// beginCounting makes the counters of a device, all zero. It needs r.mu.
func (r *Reflector) beginCounting(dev Device) error {
	zero := make([]uint64, ebpf.MustPossibleCPU())
	for v := range ReflectVerdictMax {
		if err := r.objects.Counters.Put(counterKey(dev, v), zero); err != nil {
			return fmt.Errorf("make counters: %w", err)
		}
	}
	return nil
}

// endCounting deletes the counters of a device, as far as there are any. It
// needs r.mu.
func (r *Reflector) endCounting(dev Device) error {
	for v := range ReflectVerdictMax {
		if err := r.objects.Counters.Delete(counterKey(dev, v)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete counters: %w", err)
		}
	}
	return nil
}

func counterKey(dev Device, v ReflectVerdict) reflectCounterKey {
	return reflectCounterKey{Ifindex: uint32(dev.Index), Verdict: v}
}

// ReflectCounts says how many packets the reflector left by each verdict.
type ReflectCounts [ReflectVerdictMax]uint64

func (c ReflectCounts) add(d ReflectCounts) ReflectCounts {
	for v := range c {
		c[v] += d[v]
	}
	return c
}

// counts needs r.mu.
func (r *Reflector) counts(dev Device) (sum ReflectCounts, err error) {
	var perCPU []uint64
	for v := range ReflectVerdictMax {
		if err := r.objects.Counters.Lookup(counterKey(dev, v), &perCPU); err != nil {
			return sum, fmt.Errorf("read counters of %s: %w", dev.Name, err)
		}
		for _, n := range perCPU {
			sum[v] += n
		}
	}
	return sum, nil
}

// Counters returns what was counted since the load, by name of the device.
func (r *Reflector) Counters() (map[string]ReflectCounts, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	sums := maps.Clone(r.gone)
	for _, dev := range r.attachments {
		counts, err := r.counts(dev)
		if err != nil {
			return nil, err
		}
		sums[dev.Name] = counts.add(sums[dev.Name])
	}
	return sums, nil
}

// SetClock says what CLOCK_REALTIME - CLOCK_MONOTONIC is in nanoseconds, what
// the Error Estimate of answers is (RFC 4656 section 4.1.2), and for how long
// from now both are good. After that all packets pass to the sockets: a process
// that is killed leaves its filters on [Clsact]. The three take effect one
// after the other.
func (r *Reflector) SetClock(offset int64, errorEstimate uint16, good time.Duration) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("set reflector's clock: %w", err)
	}
	err := errors.Join(
		r.objects.ClockOffset.Set(uint64(offset)),
		r.objects.ErrorEstimate.Set(wire16(errorEstimate)),
		r.objects.GoodUntil.Set(uint64(now.Nano()+int64(good))),
	)
	if err != nil {
		return fmt.Errorf("set reflector's clock: %w", err)
	}
	return nil
}

// Listener is an address and port that one of our own sockets is bound to.
type Listener struct {
	At netip.AddrPort
	// Device is 0 for [TCX] and [Clsact], which answer there wherever the
	// request comes in. [XDP] answers on this device alone, since it sees what is
	// for devices above it as well, and only to MAC, the device's own address.
	Device int
	MAC    [6]byte
}

// SetListeners replaces where to answer, wildcards spelled out. With none,
// nothing is answered or dropped.
func (r *Reflector) SetListeners(at []Listener) error {
	want := make(map[reflectListenKey]reflectListener, len(at))
	var ports [portWords]uint64
	for _, l := range at {
		port := l.At.Port()
		want[listenKey(l.At, l.Device)] = reflectListener{Mac: l.MAC}
		ports[port/64] |= 1 << (port % 64)
	}
	return r.set("listeners", func() error {
		// Ports first: nobody gets an answer before it is known which source
		// ports do not.
		return errors.Join(r.objects.Ports.Set(ports), replace(r.objects.Listeners, r.listeners, want))
	})
}

// set changes the maps, unless they are closed.
func (r *Reflector) set(what string, change func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return fmt.Errorf("set %s: %w", what, errClosed)
	}
	if err := change(); err != nil {
		return fmt.Errorf("set %s: %w", what, err)
	}
	return nil
}

func listenKey(at netip.AddrPort, device int) reflectListenKey {
	return reflectListenKey{
		Address: reflectAddress{Words: addressWords(at.Addr())},
		Device:  uint32(device),
		Port:    wire16(at.Port()),
	}
}

// SetPeers replaces the single addresses that are allowed. IPv4 addresses and
// their IPv6-mapped form are the same; zones are ignored. Who stays keeps what
// is left of his rate.
func (r *Reflector) SetPeers(peers []netip.Addr) error {
	want := make(map[reflectAddress]reflectBucket, len(peers))
	for _, p := range peers {
		want[reflectAddress{Words: addressWords(p)}] = reflectBucket{}
	}
	return r.set("peers", func() error { return replace(r.objects.Peers, r.peers, want) })
}

// SetPrefixes replaces the prefixes whose addresses are allowed.
func (r *Reflector) SetPrefixes(prefixes []netip.Prefix) error {
	want := make(map[reflectPrefixKey]uint8, len(prefixes))
	for _, p := range prefixes {
		key := reflectPrefixKey{Length: 32 + uint32(p.Bits()), Family: 6}
		if p.Addr().Is4() {
			key.Length, key.Family = key.Length+96, 4
		}
		b := p.Masked().Addr().As16()
		for i := range key.Address {
			key.Address[i] = binary.NativeEndian.Uint32(b[4*i:])
		}
		want[key] = 1
	}
	return r.set("prefixes", func() error { return replace(r.objects.Prefixes, r.prefixes, want) })
}

// SetReflectors replaces where the reflectors listen that this host asks. What
// comes from there and looks like a DoubleZero probe is an answer to one, which
// looks the same, and gets none: two reflectors could go on for ever. It allows
// nobody.
func (r *Reflector) SetReflectors(at []netip.AddrPort) error {
	want := make(map[reflectListenKey]uint8, len(at))
	for _, a := range at {
		want[listenKey(a, 0)] = 1
	}
	return r.set("reflectors", func() error { return replace(r.objects.Reflectors, r.reflectors, want) })
}

// replace makes a map, which has the keys of has and was last given the values
// of has, that of want. An entry that is the same in both is left alone. has is
// right also after an error.
func replace[K, V comparable](m *ebpf.Map, has, want map[K]V) error {
	var errs []error
	for k := range has {
		if _, keep := want[k]; keep {
			continue
		}
		if err := m.Delete(k); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(has, k)
	}
	for k, v := range want {
		if was, there := has[k]; there && was == v {
			continue
		}
		if err := m.Put(k, v); err != nil {
			errs = append(errs, err)
			break // full, or out of memory: so it is for the others
		}
		has[k] = v
	}
	return errors.Join(errs...)
}

// Close detaches what is still attached and frees program and maps. It may be
// called again, and on a value that [LoadReflector] left half-built.
func (r *Reflector) Close() error {
	r.mu.Lock()
	attachments := maps.Clone(r.attachments)
	closed := r.closed
	r.closed = true
	r.mu.Unlock()
	if closed {
		return nil
	}
	var errs []error
	for a := range attachments {
		errs = append(errs, a.Close())
	}
	errs = append(errs, r.ip.Close(), r.xdp.Close(), r.objects.Close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close reflector: %w", err)
	}
	return nil
}
