// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Frames whose checksums another implementation computed.
const (
	ethernet = "020000000002 020000000001 "
	udpIPv4  = ethernet + "0800 4500001f 00004000 4011b6cc c0000200 c0000201 04d2 1a85 000b 981c 616263"
	udpIPv6  = ethernet + "86dd 60000000 000b 11 40 20010db8000000000000000000000001 20010db8000000000000000000000002 04d2 1a85 000b c0a9 616263"
)

func frame(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestUDPPayload(t *testing.T) {
	for _, tc := range []struct{ name, frame, want string }{
		{"ipv4", udpIPv4, "abc"},
		{"ipv6", udpIPv6, "abc"},
		{"ethernet padding", udpIPv4 + "0000000000", "abc"},
		{"ip options", strings.Replace(strings.Replace(udpIPv4, "4500", "4600", 1), "c0000201", "c0000201 01010101", 1), "abc"},
		{"first fragment", strings.Replace(udpIPv4, "4000 40", "2000 40", 1), ""},
		{"later fragment", strings.Replace(udpIPv4, "4000 40", "0001 40", 1), ""},
		{"tcp", strings.Replace(udpIPv4, "4011", "4006", 1), ""},
		{"ipv6 extension header", strings.Replace(udpIPv6, "000b 11", "000b 00", 1), ""},
		{"arp", strings.Replace(udpIPv4, "0800", "0806", 1), ""},
		{"length beyond the frame", strings.Replace(udpIPv4, "000b", "000c", 1), ""},
		{"length below the header", strings.Replace(udpIPv4, "000b", "0007", 1), ""},
		{"ipv4 with ipv6's version", strings.Replace(udpIPv4, "4500", "6500", 1), ""},
		{"ipv4 with a short header", strings.Replace(udpIPv4, "4500", "4400", 1), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, string(UDPPayload(frame(t, tc.frame)))); diff != "" {
				t.Errorf("payload (-want +got):\n%s", diff)
			}
		})
	}
	for _, s := range []string{udpIPv4, udpIPv6} {
		whole := frame(t, s)
		for n := range whole {
			if got := UDPPayload(whole[:n:n]); got != nil {
				t.Errorf("first %d bytes of %x: payload %x, want none", n, whole, got)
			}
		}
	}
}

func TestFixChecksum(t *testing.T) {
	for _, s := range []string{udpIPv4, udpIPv6} {
		want := frame(t, s)
		got := frame(t, s)
		_, udp := splitUDP(got)
		binary.BigEndian.PutUint16(udp[6:], 0x1234)
		if got[14]>>4 == 4 {
			binary.BigEndian.PutUint16(got[24:], 0x5678)
		}
		FixChecksum(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("frame (-want +got):\n%s", diff)
		}

		// A checksum of zero is sent as all ones. It comes out if the old one is added to a word of the payload.
		payload := UDPPayload(got)
		word := uint32(binary.BigEndian.Uint16(payload)) + uint32(binary.BigEndian.Uint16(udp[6:]))
		binary.BigEndian.PutUint16(payload, uint16(word>>16+word&0xffff))
		FixChecksum(got)
		if sum := binary.BigEndian.Uint16(udp[6:]); sum != 0xffff {
			t.Errorf("checksum %#04x, want 0xffff", sum)
		}
	}
}
