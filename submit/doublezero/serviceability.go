// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// First bytes of the serviceability program's accounts.
const (
	typeDevice = 5
	typeLink   = 6
)

// maxAccount is how much is read of an account, in bytes: several times what a device with a hundred interfaces has. What is made of
// an account takes up to ten times its size in memory.
const maxAccount = 64 << 10

// Offsets in a link's account of its ends, by which nodes can be asked for it.
const (
	offsetSideA = 50
	offsetSideZ = 82
)

// LinkStatus is where a link is in its life.
type LinkStatus uint8

// Statuses of links. Nobody sets pending and rejected any more.
const (
	LinkPending      LinkStatus = 0
	LinkActivated    LinkStatus = 1
	LinkDeleting     LinkStatus = 3
	LinkRejected     LinkStatus = 4
	LinkRequested    LinkStatus = 5
	LinkHardDrained  LinkStatus = 6
	LinkSoftDrained  LinkStatus = 7
	LinkProvisioning LinkStatus = 8
)

func (s LinkStatus) String() string {
	switch s {
	case LinkPending:
		return "pending"
	case LinkActivated:
		return "activated"
	case LinkDeleting:
		return "deleting"
	case LinkRejected:
		return "rejected"
	case LinkRequested:
		return "requested"
	case LinkHardDrained:
		return "hard-drained"
	case LinkSoftDrained:
		return "soft-drained"
	case LinkProvisioning:
		return "provisioning"
	}
	return fmt.Sprintf("status %d", uint8(s))
}

// Probed reports whether a link of that status is measured. For the same ones the telemetry program makes accounts.
func (s LinkStatus) Probed() bool {
	switch s {
	case LinkActivated, LinkHardDrained, LinkSoftDrained, LinkProvisioning:
		return true
	}
	return false
}

// DeviceStatus is where a device is in its life.
type DeviceStatus uint8

// Statuses of devices. Nobody sets pending and rejected any more.
const (
	DevicePending          DeviceStatus = 0
	DeviceActivated        DeviceStatus = 1
	DeviceDeleting         DeviceStatus = 3
	DeviceRejected         DeviceStatus = 4
	DeviceDrained          DeviceStatus = 5
	DeviceProvisioning     DeviceStatus = 6
	DeviceLinkProvisioning DeviceStatus = 7
)

func (s DeviceStatus) String() string {
	switch s {
	case DevicePending:
		return "pending"
	case DeviceActivated:
		return "activated"
	case DeviceDeleting:
		return "deleting"
	case DeviceRejected:
		return "rejected"
	case DeviceDrained:
		return "drained"
	case DeviceProvisioning:
		return "device-provisioning"
	case DeviceLinkProvisioning:
		return "link-provisioning"
	}
	return fmt.Sprintf("status %d", uint8(s))
}

// LinkAccount is what the ledger says of a link. Its texts are as their authors wrote them, fit for no log.
type LinkAccount struct {
	Owner        Pubkey
	Index        [16]byte // little-endian; the address is derived from it
	Bump         uint8
	SideA, SideZ Pubkey // devices
	Type         uint8  // 1: WAN, 127: DZX
	Bandwidth    uint64 // bit/s
	MTU          uint32
	DelayNS      uint64 // as its contributor declares it
	JitterNS     uint64
	TunnelID     uint16
	TunnelNet    netip.Prefix // of the addresses of both ends; invalid if the account's is
	Status       LinkStatus
	Code         string

	// What is from here on may be missing in an old account, and is zero then.

	Contributor                    Pubkey
	SideAInterface, SideZInterface string // as the switch names them, which need not be as its kernel does
	DelayOverrideNS                uint64 // 0: none
	Health                         uint8  // 1: pending, 2: ready for service, 3: impaired
	Desired                        LinkStatus
	Topologies                     []Pubkey
	Flags                          uint32 // bit 0: drained for unicast
}

// ParseLink reads the account of a link. An old one may end behind its code; where it ends, or goes on with what cannot be understood,
// the fields are zero. Bytes behind the last field are ignored. An error means that it is no link's account, or damaged.
func ParseLink(data []byte) (LinkAccount, error) {
	f, err := accountFields(data, typeLink, "link")
	if err != nil {
		return LinkAccount{}, err
	}
	l := LinkAccount{
		Owner: f.key(), Index: [16]byte(f.take(16)), Bump: f.uint8(),
		SideA: f.key(), SideZ: f.key(), Type: f.uint8(), Bandwidth: f.uint64(), MTU: f.uint32(),
		DelayNS: f.uint64(), JitterNS: f.uint64(), TunnelID: f.uint16(), TunnelNet: f.network(),
		Status: LinkStatus(f.uint8()), Code: f.text(),
	}
	if f.ended {
		return LinkAccount{}, fmt.Errorf("link account cut: %d bytes", len(data))
	}
	l.Contributor = f.key()
	l.SideAInterface, l.SideZInterface = f.text(), f.text()
	l.DelayOverrideNS = f.uint64()
	l.Health, l.Desired = f.uint8(), LinkStatus(f.uint8())
	l.Topologies = list(f, (*fields).key)
	l.Flags = f.uint32()
	return l, nil
}

// DeviceAccount is what the ledger says of a device. Its texts are as their authors wrote them, fit for no log.
type DeviceAccount struct {
	Owner              Pubkey
	Index              [16]byte // little-endian; the address is derived from it
	Bump               uint8
	Location, Exchange Pubkey
	Type               uint8 // 0: hybrid, 1: transit, 2: edge
	PublicIP           netip.Addr
	Status             DeviceStatus
	Code               string

	// What is from here on may be missing in an old account, and is zero then.

	Prefixes    []netip.Prefix
	Publisher   Pubkey // key that may write samples measured by this device
	Contributor Pubkey
	VRF         string // for management; "": the default one

	References                                  uint32
	Users, MaxUsers                             uint16
	Health                                      uint8 // 1: pending, 2: ready for links, 3: ready for users, 4: impaired
	Desired                                     uint8 // 0: pending, 1: activated, 6: drained
	UnicastUsers, MulticastSubscribers          uint16
	MaxUnicastUsers, MaxMulticastSubscribers    uint16
	ReservedSeats                               uint16
	MulticastPublishers, MaxMulticastPublishers uint16

	// Interfaces are those of the newer of the two lists that an account may have, whose items tell their size, and else of the older.
	Interfaces []DeviceInterface
}

// DeviceInterface is an interface of a device.
type DeviceInterface struct {
	Version            uint8 // of its layout; the fields that it does not have are zero
	Status             uint8 // 1: unmanaged, 2: pending, 3: activated, 4: deleting, 5: rejecting, 6: unlinked
	Name               string
	Type               uint8  // 1: loopback, 2: physical
	CYOA, DIA          uint8  // how users and the internet are connected to it
	Loopback           uint8  // 1: vpnv4, 2: ipv4, 3: pim rp, 4: reserved
	Bandwidth, CIR     uint64 // bit/s
	MTU                uint16
	Routing            uint8 // 0: static, 1: bgp
	VLAN               uint16
	Net                netip.Prefix
	NodeSegment        uint16
	UserTunnelEndpoint bool
	Segments           []Segment
}

// Segment is the number of an interface in a topology.
type Segment struct {
	Topology Pubkey
	Index    uint16
}

// ParseDevice reads the account of a device, as forgiving as [ParseLink]. What stands behind an interface of the older list whose version
// is not known cannot be found, and is zero.
func ParseDevice(data []byte) (DeviceAccount, error) {
	f, err := accountFields(data, typeDevice, "device")
	if err != nil {
		return DeviceAccount{}, err
	}
	d := DeviceAccount{
		Owner: f.key(), Index: [16]byte(f.take(16)), Bump: f.uint8(),
		Location: f.key(), Exchange: f.key(), Type: f.uint8(), PublicIP: netip.AddrFrom4([4]byte(f.take(4))),
		Status: DeviceStatus(f.uint8()), Code: f.text(),
	}
	if f.ended {
		return DeviceAccount{}, fmt.Errorf("device account cut: %d bytes", len(data))
	}
	d.Prefixes = list(f, (*fields).network)
	d.Publisher, d.Contributor = f.key(), f.key()
	d.VRF = f.text()
	d.Interfaces = list(f, (*fields).olderInterface)
	d.References = f.uint32()
	d.Users, d.MaxUsers = f.uint16(), f.uint16()
	d.Health, d.Desired = f.uint8(), f.uint8()
	for _, n := range []*uint16{
		&d.UnicastUsers, &d.MulticastSubscribers, &d.MaxUnicastUsers, &d.MaxMulticastSubscribers, &d.ReservedSeats,
		&d.MulticastPublishers, &d.MaxMulticastPublishers,
	} {
		*n = f.uint16()
	}
	// The program keeps both lists alike; the newer one is not whole if it is shorter.
	if newer := list(f, (*fields).newerInterface); !f.ended && len(newer) == len(d.Interfaces) {
		d.Interfaces = newer
	}
	return d, nil
}

// fields takes the fields of an account one after another, all integers little-endian. Where a field is not there whole, or has a value
// that nobody knows how to go on behind, the account has ended: that field and all behind it are zero.
type fields struct {
	rest  []byte
	ended bool
}

// accountFields returns the fields behind the type.
func accountFields(data []byte, want byte, what string) (*fields, error) {
	switch {
	case len(data) == 0:
		return nil, fmt.Errorf("%s account without data", what)
	case data[0] != want:
		return nil, fmt.Errorf("not a %s: account type %d, expected %d", what, data[0], want)
	}
	return &fields{rest: data[1:min(len(data), maxAccount)]}, nil
}

func (f *fields) end() { f.rest, f.ended = nil, true }

// take returns the next n bytes. They are zeros if the account has ended, so n must not be what the account says.
func (f *fields) take(n int) []byte {
	if len(f.rest) < n {
		f.end()
	}
	if f.ended {
		return make([]byte, n)
	}
	b := f.rest[:n]
	f.rest = f.rest[n:]
	return b
}

func (f *fields) uint8() uint8   { return f.take(1)[0] }
func (f *fields) uint16() uint16 { return binary.LittleEndian.Uint16(f.take(2)) }
func (f *fields) uint32() uint32 { return binary.LittleEndian.Uint32(f.take(4)) }
func (f *fields) uint64() uint64 { return binary.LittleEndian.Uint64(f.take(8)) }
func (f *fields) key() Pubkey    { return Pubkey(f.take(32)) }

// network returns an address and a length as they are, the latter -1 if it is none.
func (f *fields) network() netip.Prefix {
	b := f.take(5)
	return netip.PrefixFrom(netip.AddrFrom4([4]byte(b)), int(b[4]))
}

func (f *fields) text() string {
	n := f.uint32()
	if uint64(n) > uint64(len(f.rest)) {
		f.end()
		return ""
	}
	return string(f.take(int(n)))
}

// list returns as many items as the account says there are, or those that are there. It grows with what was read, whatever was said.
func list[T any](f *fields, item func(*fields) T) (items []T) {
	for n := f.uint32(); n > 0; n-- {
		v := item(f)
		if f.ended {
			break
		}
		items = append(items, v)
	}
	return items
}

// olderInterface takes an item whose size follows from its version alone.
func (f *fields) olderInterface() DeviceInterface {
	switch version := f.uint8(); version {
	case 0:
		return DeviceInterface{
			Status: f.uint8(), Name: f.text(), Type: f.uint8(), Loopback: f.uint8(), VLAN: f.uint16(),
			Net: f.network(), NodeSegment: f.uint16(), UserTunnelEndpoint: f.uint8() != 0,
		}
	case 1, 2:
		return f.interfaceBody(version)
	case 3:
		i := f.interfaceBody(version)
		i.Segments = list(f, (*fields).segment)
		return i
	default:
		f.end()
		return DeviceInterface{}
	}
}

// newerInterface takes an item that begins with its size, so that what a later version adds to it can be skipped.
func (f *fields) newerInterface() DeviceInterface {
	const (
		head      = 2 + 1
		leastBody = 38 // with an empty name
	)
	size, version := int(f.uint16())-head, f.uint8()
	if size < leastBody || size > len(f.rest) {
		f.end()
		return DeviceInterface{}
	}
	item := &fields{rest: f.take(size)}
	i := item.interfaceBody(version)
	i.Segments = list(item, (*fields).segment)
	return i
}

func (f *fields) interfaceBody(version uint8) DeviceInterface {
	return DeviceInterface{
		Version: version, Status: f.uint8(), Name: f.text(), Type: f.uint8(), CYOA: f.uint8(), DIA: f.uint8(), Loopback: f.uint8(),
		Bandwidth: f.uint64(), CIR: f.uint64(), MTU: f.uint16(), Routing: f.uint8(), VLAN: f.uint16(),
		Net: f.network(), NodeSegment: f.uint16(), UserTunnelEndpoint: f.uint8() != 0,
	}
}

func (f *fields) segment() Segment { return Segment{Topology: f.key(), Index: f.uint16()} }
