// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"encoding/binary"
	"net/netip"
)

// packet builds a UDP packet with right lengths and checksums. Everything is
// worked out from the RFCs here, independently of the programs.
type packet struct {
	source, destination netip.AddrPort
	ttl, tos            uint8
	payload             []byte
	ethernet            bool
}

func (p packet) bytes() []byte {
	var b []byte
	v6 := p.source.Addr().Is6()
	if p.ethernet {
		b = append(b, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2)
		if v6 {
			b = append(b, 0x86, 0xdd)
		} else {
			b = append(b, 0x08, 0x00)
		}
	}
	udpLength := uint16(8 + len(p.payload))
	if v6 {
		b = append(b, 0x60|p.tos>>4, p.tos<<4, 0, 0)
		b = binary.BigEndian.AppendUint16(b, udpLength)
		b = append(b, 17, p.ttl)
	} else {
		h := []byte{0x45, p.tos}
		h = binary.BigEndian.AppendUint16(h, 20+udpLength)
		h = append(h, 0x12, 0x34, 0x40, 0, p.ttl, 17, 0, 0)
		h = append(h, p.source.Addr().AsSlice()...)
		h = append(h, p.destination.Addr().AsSlice()...)
		binary.BigEndian.PutUint16(h[10:], ^onesSum(h))
		b = append(b, h[:12]...)
	}
	b = append(b, p.source.Addr().AsSlice()...)
	b = append(b, p.destination.Addr().AsSlice()...)

	udp := binary.BigEndian.AppendUint16(nil, p.source.Port())
	udp = binary.BigEndian.AppendUint16(udp, p.destination.Port())
	udp = binary.BigEndian.AppendUint16(udp, udpLength)
	udp = append(udp, 0, 0)
	udp = append(udp, p.payload...)
	check := ^onesSum(append(p.pseudoHeader(), udp...))
	if check == 0 {
		check = 0xffff
	}
	binary.BigEndian.PutUint16(udp[6:], check)
	return append(b, udp...)
}

func (p packet) pseudoHeader() []byte {
	h := append(p.source.Addr().AsSlice(), p.destination.Addr().AsSlice()...)
	h = append(h, 0, 17)
	return binary.BigEndian.AppendUint16(h, uint16(8+len(p.payload)))
}

// ip, udp and data are offsets into bytes().
func (p packet) ip() int {
	if p.ethernet {
		return 14
	}
	return 0
}

func (p packet) udp() int {
	if p.source.Addr().Is6() {
		return p.ip() + 40
	}
	return p.ip() + 20
}

func (p packet) data() int { return p.udp() + 8 }

func onesSum(b []byte) uint16 {
	var sum uint32
	for i, c := range b {
		if i%2 == 0 {
			sum += uint32(c) << 8
		} else {
			sum += uint32(c)
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}
