// SPDX-License-Identifier: Apache-2.0

// Package bpf is the kernel half of the measurement and the only Go handle to
// it: it loads the programs that timestamp probes and their replies, attaches
// them, and gives back what they saw. It knows paths and packets, but neither
// schedules nor outcomes.
//
// The programs need Linux 5.10, CAP_BPF and CAP_NET_ADMIN; nothing is pinned,
// so they are gone with the process (but see [Clsact]).
package bpf

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
)

// Config sizes a [Datapath]. All fields but Batch are needed.
type Config struct {
	Slots     int // slots of all paths together, 72 bytes each
	Paths     int // paths at a time
	RingBytes int // rounded up to a power of two that holds a page

	// Batch: events wake nobody until the ring is half full; [Datapath.Look]
	// takes them before. Waking a reader for each is what costs most where
	// there are thousands a second. It is fixed here, as are the sizes, which
	// follow from the same rate.
	Batch bool
}

// EventBytes is what an event takes in the ring.
const EventBytes = int(unsafe.Sizeof(Event{})) + 8 // the kernel's header

func (c Config) validate() error {
	for _, f := range []struct {
		name  string
		value int
	}{{"slots", c.Slots}, {"paths", c.Paths}, {"ring bytes", c.RingBytes}} {
		if f.value < 1 || f.value > math.MaxInt32 {
			return fmt.Errorf("%s: %d is not between 1 and %d", f.name, f.value, math.MaxInt32)
		}
	}
	return nil
}

// ringSize is the smallest size of a ring buffer that the kernel takes and that
// holds n bytes: a power of two and a multiple of the page, which is 4, 16 or
// 64 KiB.
func ringSize(n, page int) uint32 {
	return 1 << bits.Len32(uint32(max(n, page))-1)
}

// Key tells a path's packets by their addresses and ports. IPv4 addresses and
// their IPv6-mapped form are the same; zones are ignored, as a packet has none.
type Key struct {
	Local, Remote netip.AddrPort
}

// ports are the local and the remote one, in the order of the programs.
func (k Key) ports() [2]uint16 { return [2]uint16{k.Local.Port(), k.Remote.Port()} }

func (k Key) encode() (xtwampPathKey, error) {
	if !k.Local.IsValid() || !k.Remote.IsValid() {
		return xtwampPathKey{}, fmt.Errorf("invalid address in %v, %v", k.Local, k.Remote)
	}
	return xtwampPathKey{
		Local:      addressWords(k.Local.Addr()),
		Remote:     addressWords(k.Remote.Addr()),
		LocalPort:  wire16(k.Local.Port()),
		RemotePort: wire16(k.Remote.Port()),
	}, nil
}

// Path says how the packets of a [Key] are read and where they are noted.
type Path struct {
	ID        uint32 // as events name it
	SlotBase  uint32 // first slot
	SlotMask  uint32 // number of slots, a power of two, less one
	Interface uint32 // index of the one that replies must come in on; 0 = any
	Device    uint32 // index of the one on which [XDP] may take replies; 0 = none
	SSID      uint16 // of profile stamp; a reply carries it or 0
	Profile   uint8  // 0 stamp, 1 twamp-light, 2 doublezero
}

// Datapath owns the maps and programs. Its methods may be called concurrently.
type Datapath struct {
	config       Config
	countForeign bool
	objects      objects // its programs are for devices with an Ethernet header

	reading atomic.Bool // by Run
	ringMu  sync.Mutex
	ring    *ring // nil while nobody runs it

	mu          sync.Mutex
	ip          tcPrograms    // for devices without; loaded when first needed
	xdp         *ebpf.Program // likewise
	attachments map[*Attachment]struct{}
	keys        map[xtwampPathKey]struct{}
	portUsers   [2]map[uint16]int    // of the local and of the remote ports
	ports       [2][portWords]uint64 // as the programs have it
	closed      bool
}

// objects are what the kernel holds for us.
type objects struct {
	xtwampMaps
	tcPrograms
	Globals *ebpf.Map `ebpf:".bss"` // the array ports and nothing else
}

func (o *objects) Close() error {
	return errors.Join(o.tcPrograms.Close(), o.xtwampMaps.Close(), o.Globals.Close())
}

// tcPrograms are those for tc. That for XDP is loaded only where it is asked for.
type tcPrograms struct {
	XtwampEgress  *ebpf.Program `ebpf:"xtwamp_egress"`
	XtwampIngress *ebpf.Program `ebpf:"xtwamp_ingress"`
}

func (p *tcPrograms) Close() error {
	return errors.Join(p.XtwampEgress.Close(), p.XtwampIngress.Close())
}

const portWords = 65536 / 64

// ObjectHash identifies the BPF object in this binary: the start of its
// SHA-256, in hex.
func ObjectHash() string {
	sum := sha256.Sum256(_XtwampBytes)
	return hex.EncodeToString(sum[:6])
}

// Load creates the maps and loads the programs. It attaches nothing.
//
// An error is [ErrNotSupported] if the kernel lacks what the programs need, and
// [ErrPermission] if the process may not load them; the text says which right
// or limit is in the way. A program that the verifier refused leaves an
// [*ebpf.VerifierError] in the chain, which prints the whole log with %+v.
func Load(cfg Config) (*Datapath, error) {
	return load(cfg, false)
}

func load(cfg Config, countForeign bool) (_ *Datapath, err error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("load bpf: %w", err)
	}
	d := &Datapath{
		config:       cfg,
		countForeign: countForeign,
		attachments:  make(map[*Attachment]struct{}),
		keys:         make(map[xtwampPathKey]struct{}),
		portUsers:    [2]map[uint16]int{{}, {}},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()

	// Kernels before 5.11 charge maps to RLIMIT_MEMLOCK. That the limit cannot
	// be raised matters only if it turns out to be too low.
	memlock := rlimit.RemoveMemlock()

	spec, err := d.spec(ethernetHeader)
	if err != nil {
		return nil, fmt.Errorf("load bpf: %w", err)
	}
	if err := spec.LoadAndAssign(&d.objects, nil); err != nil {
		return nil, fmt.Errorf("load bpf: %w", explain(err, inspect(memlock)))
	}
	return d, nil
}

// spec is the object, fitted to the configuration and to one kind of device.
func (d *Datapath) spec(linkHeader int) (*ebpf.CollectionSpec, error) {
	spec, err := loadXtwamp()
	if err != nil {
		return nil, err
	}
	spec.Maps[xtwampMapPaths].MaxEntries = uint32(d.config.Paths)
	spec.Maps[xtwampMapSlots].MaxEntries = uint32(d.config.Slots)
	ring := ringSize(d.config.RingBytes, os.Getpagesize())
	spec.Maps[xtwampMapEvents].MaxEntries = ring
	if d.config.Batch {
		if err := spec.Variables[xtwampVarWakeAt].Set(ring / 2); err != nil {
			return nil, err
		}
	}
	if err := spec.Variables[xtwampVarLinkHeader].Set(uint32(linkHeader)); err != nil {
		return nil, err
	}
	if err := spec.Variables[xtwampVarCountForeign].Set(d.countForeign); err != nil {
		return nil, err
	}
	return spec, nil
}

// programs returns those for a kind of device. The caller holds d.mu.
func (d *Datapath) programs(linkHeader int) (tcPrograms, error) {
	switch {
	case linkHeader == ethernetHeader:
		return d.objects.tcPrograms, nil
	case linkHeader != 0:
		return tcPrograms{}, fmt.Errorf("link header of %d bytes: %w", linkHeader, ErrNotSupported)
	case d.ip.XtwampEgress != nil:
		return d.ip, nil
	}
	if err := d.loadMore(0, &d.ip); err != nil {
		return tcPrograms{}, fmt.Errorf("load bpf for devices without link header: %w", err)
	}
	return d.ip, nil
}

// xdpProgram returns the one for XDP. The caller holds d.mu.
func (d *Datapath) xdpProgram(linkHeader int) (*ebpf.Program, error) {
	if linkHeader != ethernetHeader {
		return nil, fmt.Errorf("xdp with a link header of %d bytes: %w", linkHeader, ErrNotSupported)
	}
	if d.xdp != nil {
		return d.xdp, nil
	}
	var to struct {
		XDP *ebpf.Program `ebpf:"xtwamp_xdp"`
	}
	if err := d.loadMore(ethernetHeader, &to); err != nil {
		return nil, fmt.Errorf("load bpf for xdp: %w", err)
	}
	d.xdp = to.XDP
	return d.xdp, nil
}

// loadMore loads programs that share all maps with those loaded first.
func (d *Datapath) loadMore(linkHeader int, to any) error {
	spec, err := d.spec(linkHeader)
	if err != nil {
		return err
	}
	err = spec.LoadAndAssign(to, &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{
		xtwampMapPaths:    d.objects.Paths,
		xtwampMapSlots:    d.objects.Slots,
		xtwampMapEvents:   d.objects.Events,
		".bss":            d.objects.Globals,
		xtwampMapCounters: d.objects.Counters,
	}})
	if err != nil {
		return explain(err, inspect(nil))
	}
	return nil
}

// SetPath makes the programs measure the packets of a key, or changes how.
// Slots are not cleared: a sequence number and timestamp that nobody has sent
// before tell an old entry from a new one.
func (d *Datapath) SetPath(k Key, p Path) error {
	key, err := k.encode()
	if err != nil {
		return fmt.Errorf("set path: %w", err)
	}
	if p.SlotMask&(p.SlotMask+1) != 0 || uint64(p.SlotBase)+uint64(p.SlotMask) >= uint64(d.config.Slots) {
		return fmt.Errorf("set path %v: slots from %d with mask %#x: not a power of two within %d",
			k, p.SlotBase, p.SlotMask, d.config.Slots)
	}
	if xtwampProfile(p.Profile) > xtwampProfilePROFILE_DOUBLEZERO {
		return fmt.Errorf("set path %v: unknown profile %d", k, p.Profile)
	}
	value := xtwampProbePath{
		Id:        p.ID,
		SlotBase:  p.SlotBase,
		SlotMask:  p.SlotMask,
		Interface: p.Interface,
		Device:    p.Device,
		Ssid:      p.SSID,
		Profile:   xtwampProfile(p.Profile),
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.objects.Paths.Put(&key, &value); err != nil {
		return fmt.Errorf("set path %v: %w", k, err)
	}
	if _, known := d.keys[key]; known {
		return nil
	}
	d.keys[key] = struct{}{}
	for side, port := range k.ports() {
		d.portUsers[side][port]++
	}
	if err := d.putPorts(k); err != nil {
		return errors.Join(fmt.Errorf("set path %v: %w", k, err), d.deletePath(key, k))
	}
	return nil
}

// DeletePath makes the programs let the packets of a key alone. A key that is
// not set is no error.
func (d *Datapath) DeletePath(k Key) error {
	key, err := k.encode()
	if err != nil {
		return fmt.Errorf("delete path: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.keys[key]; !known {
		return nil
	}
	if err := d.deletePath(key, k); err != nil {
		return fmt.Errorf("delete path %v: %w", k, err)
	}
	return nil
}

// deletePath needs d.mu. On an error the bits of the ports may stay set, which
// costs a hash lookup per packet and nothing else.
func (d *Datapath) deletePath(key xtwampPathKey, k Key) error {
	if err := d.objects.Paths.Delete(&key); err != nil {
		return err
	}
	delete(d.keys, key)
	for side, port := range k.ports() {
		if d.portUsers[side][port]--; d.portUsers[side][port] == 0 {
			delete(d.portUsers[side], port)
		}
	}
	return d.putPorts(k)
}

// putPorts brings the bits of a key's ports in line with d.portUsers. It needs
// d.mu.
func (d *Datapath) putPorts(k Key) error {
	ports := d.ports
	for side, port := range k.ports() {
		index, bit := port/64, uint64(1)<<(port%64)
		ports[side][index] &^= bit
		if d.portUsers[side][port] > 0 {
			ports[side][index] |= bit
		}
	}
	if ports == d.ports {
		return nil
	}
	if err := d.objects.Globals.Put(uint32(0), &ports); err != nil {
		return err
	}
	d.ports = ports
	return nil
}

// Slot returns what slot i holds, be it of the probe that the caller has in
// mind or an older one: Seq and WireT1 tell. A reply that arrives during the
// call may be missing from the result, but never there by half.
func (d *Datapath) Slot(i uint32) (Event, error) {
	var e Event
	if err := d.objects.Slots.Lookup(i, &e); err != nil {
		return Event{}, fmt.Errorf("read slot %d: %w", i, err)
	}
	if e.Flags&FlagAnswered == 0 {
		return e, nil
	}
	// The kernel copies the slot while a program may be writing it, flags last.
	// What the first read saw finished, the second reads whole.
	if err := d.objects.Slots.Lookup(i, &e); err != nil {
		return Event{}, fmt.Errorf("read slot %d: %w", i, err)
	}
	return e, nil
}

// Close detaches what is still attached and frees programs and maps. It may be
// called again, and on a value that [Load] left half-built.
func (d *Datapath) Close() error {
	d.mu.Lock()
	attachments := d.attachments
	d.attachments = nil
	closed := d.closed
	d.closed = true
	d.mu.Unlock()
	if closed {
		return nil
	}
	var errs []error
	for a := range attachments {
		errs = append(errs, a.Close())
	}
	errs = append(errs, d.xdp.Close(), d.ip.Close(), d.objects.Close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close bpf: %w", err)
	}
	return nil
}
