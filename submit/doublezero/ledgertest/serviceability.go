// SPDX-License-Identifier: Apache-2.0

package ledgertest

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// First bytes of the serviceability program's accounts.
const (
	deviceType = 5
	linkType   = 6
)

// Statuses of devices and links that samples may be written for.
const (
	DeviceActivated = 1
	LinkActivated   = 1
)

func deviceTakesSamples(status uint8) bool {
	return status == DeviceActivated || 5 <= status && status <= 7
}
func linkTakesSamples(status uint8) bool {
	return status == LinkActivated || 6 <= status && status <= 8
}

// Device is what matters here of a device's account; Encode fills in the rest.
type Device struct {
	Status    uint8
	Code      string
	Location  Pubkey
	Publisher Pubkey // key that may write samples measured by this device
	VRF       string // management VRF
}

// Encode returns the bytes of an account that ends behind the number of users, as old ones do.
func (d Device) Encode() []byte {
	b := make([]byte, 50, 256)
	b[0] = deviceType
	b = append(b, d.Location[:]...)
	b = append(b, make([]byte, 32)...)       // exchange
	b = append(b, 0, 192, 0, 2, 1, d.Status) // hybrid, public address
	b = appendString(b, d.Code)
	b = append(b, 0, 0, 0, 0) // no prefixes
	b = append(b, d.Publisher[:]...)
	b = append(b, make([]byte, 32)...) // contributor
	b = appendString(b, d.VRF)
	return append(b, make([]byte, 4+4+2+2)...) // no interfaces, references, users
}

func decodeDevice(b []byte) (d Device, err error) {
	errShort := errors.New("no device account")
	if len(b) < 124 || b[0] != deviceType {
		return d, errShort
	}
	d.Location, d.Status = Pubkey(b[50:82]), b[119]
	code, rest, ok := cutString(b[120:])
	if !ok || len(rest) < 4 {
		return d, errShort
	}
	d.Code = code
	prefixes := uint64(binary.LittleEndian.Uint32(rest))
	if rest = rest[4:]; uint64(len(rest)) < 5*prefixes+64 {
		return d, errShort
	}
	rest = rest[5*prefixes:]
	d.Publisher = Pubkey(rest[:32])
	d.VRF, _, _ = cutString(rest[64:])
	return d, nil
}

// Link is what matters here of a link's account; Encode fills in the rest.
type Link struct {
	Status       uint8
	Code         string
	SideA, SideZ Pubkey
	Tunnel       netip.Prefix // side A has the first of its two addresses
}

// Encode returns the bytes of an account that ends behind the interface names, as old ones do.
func (k Link) Encode() []byte {
	le := binary.LittleEndian
	b := make([]byte, 50, 256)
	b[0] = linkType
	b = append(b, k.SideA[:]...)
	b = append(b, k.SideZ[:]...)
	b = append(b, 1) // WAN
	b = le.AppendUint64(b, 10e9)
	b = le.AppendUint32(b, 9000)
	b = le.AppendUint64(b, 1e6)   // delay
	b = le.AppendUint64(b, 100e3) // jitter
	b = le.AppendUint16(b, 1)
	net := [5]byte{}
	if k.Tunnel.IsValid() {
		addr := k.Tunnel.Addr().As4()
		copy(net[:], addr[:])
		net[4] = byte(k.Tunnel.Bits())
	}
	b = append(b, net[:]...)
	b = append(b, k.Status)
	b = appendString(b, k.Code)
	b = append(b, make([]byte, 32)...) // contributor
	return append(b, make([]byte, 4+4)...)
}

func decodeLink(b []byte) (k Link, err error) {
	errShort := errors.New("no link account")
	if len(b) < 155 || b[0] != linkType {
		return k, errShort
	}
	code, _, ok := cutString(b[151:])
	if !ok {
		return k, errShort
	}
	return Link{
		Status: b[150], Code: code, SideA: Pubkey(b[50:82]), SideZ: Pubkey(b[82:114]),
		Tunnel: netip.PrefixFrom(netip.AddrFrom4([4]byte(b[145:149])), int(b[149])),
	}, nil
}

func appendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(s))), s...)
}

func cutString(b []byte) (s string, rest []byte, ok bool) {
	if len(b) < 4 {
		return "", nil, false
	}
	n := uint64(binary.LittleEndian.Uint32(b))
	if uint64(len(b)-4) < n {
		return "", nil, false
	}
	return string(b[4 : 4+n]), b[4+n:], true
}
