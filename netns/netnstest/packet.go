// SPDX-License-Identifier: Apache-2.0

package netnstest

import "encoding/binary"

const (
	ethernetLen = 14
	ipv6Len     = 40
	udpLen      = 8

	etherTypeIPv4 = 0x0800
	etherTypeIPv6 = 0x86dd
	protocolUDP   = 17
)

// UDPPayload returns the payload of a UDP packet in an Ethernet frame: a part of frame, so that writing to it changes the
// frame (then [FixChecksum] is due). It is nil unless frame holds a whole UDP packet over IPv4 or, without extension
// headers, IPv6.
func UDPPayload(frame []byte) []byte {
	_, udp := splitUDP(frame)
	if udp == nil {
		return nil
	}
	return udp[udpLen:]
}

// FixChecksum computes the UDP checksum anew, and over IPv4 the header checksum, after a change to a frame for which
// [UDPPayload] is not nil.
func FixChecksum(frame []byte) {
	ip, udp := splitUDP(frame)
	if udp == nil {
		panic("netnstest: FixChecksum of a frame that holds no whole UDP packet")
	}
	var addresses []byte
	if ip[0]>>4 == 4 {
		addresses = ip[12:20]
		binary.BigEndian.PutUint16(ip[10:], 0)
		binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	} else {
		addresses = ip[8:ipv6Len]
	}
	pseudo := append([]byte(nil), addresses...)
	pseudo = append(pseudo, 0, protocolUDP)
	pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(len(udp)))

	binary.BigEndian.PutUint16(udp[6:], 0)
	sum := checksum(append(pseudo, udp...))
	if sum == 0 {
		sum = 0xffff // 0 says "no checksum", RFC 768
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
}

// splitUDP returns the IP header with options and the UDP packet, or nil for any other frame. Fragments are other frames.
func splitUDP(frame []byte) (ip, udp []byte) {
	if len(frame) < ethernetLen {
		return nil, nil
	}
	packet := frame[ethernetLen:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherTypeIPv4:
		if len(packet) < 20 {
			return nil, nil
		}
		header := int(packet[0]&15) * 4
		fragment := binary.BigEndian.Uint16(packet[6:])&0x3fff != 0 // "more" flag and offset
		if packet[0]>>4 != 4 || header < 20 || len(packet) < header || fragment || packet[9] != protocolUDP {
			return nil, nil
		}
		ip, udp = packet[:header], packet[header:]
	case etherTypeIPv6:
		if len(packet) < ipv6Len || packet[0]>>4 != 6 || packet[6] != protocolUDP {
			return nil, nil
		}
		ip, udp = packet[:ipv6Len], packet[ipv6Len:]
	default:
		return nil, nil
	}
	if len(udp) < udpLen {
		return nil, nil
	}
	length := int(binary.BigEndian.Uint16(udp[4:])) // what follows it is Ethernet padding
	if length < udpLen || length > len(udp) {
		return nil, nil
	}
	return ip, udp[:length]
}

// checksum is the internet checksum of RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
