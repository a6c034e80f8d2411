// SPDX-License-Identifier: Apache-2.0

package twamp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// reflectorStamp and answer44 are what every answer in the tables below begins with, to a request that begins with
// request44.
var reflectorStamp = Stamp{Seq: 0x0a0b0c0d, Received: ntpT2, Sent: ntpT3, Error: 0x8587, TTL: 253}

const (
	request44 = "00000007 ed135540 1f9add38 88a8 beef 21222324 25262728 29303132 33343536 37383940 41424344 45464748"
	answer44  = "0a0b0c0d ed135540 1fab9368 8587 beef ed135540 1fab3f86 00000007 ed135540 1f9add38 88a8 0000 fd 000000"
)

// TestReflectorTable goes through the rows of the reflector's table. Bytes 16 to 43 of a request mean nothing; here they
// are not zero, so that what is copied by mistake shows.
func TestReflectorTable(t *testing.T) {
	const header = "00000007 ed135540 1f9add38"
	zeros := func(n int) string { return strings.Repeat("00", n) }
	ff := func(n int) string { return strings.Repeat("ff", n) }

	for _, c := range []struct {
		name, request string
		kind          Kind
		want          string
	}{
		{"44", request44, Answer, answer44},
		{"44, error estimate 0", header + "0000" + zeros(30), Answer,
			"0a0b0c0d ed135540 1fab9368 8587 0000 ed135540 1fab3f86" + header + "0000 0000 fd 000000"},
		{"44, all zero", zeros(44), Answer,
			"0a0b0c0d ed135540 1fab9368 8587 0000 ed135540 1fab3f86" + zeros(14) + "0000 fd 000000"},

		{"48, doublezero", header + zeros(36), Echo, header + zeros(36)},
		{"48, all zero", zeros(48), Echo, zeros(48)},
		{"48, first byte of padding set", header + "80" + zeros(35), Answer,
			"0a0b0c0d ed135540 1fab9368 8587 0000 ed135540 1fab3f86" + header + "8000 0000 fd 000000" + zeros(4)},
		{"48, last byte of padding set", header + zeros(35) + "01", TLVs, // an unknown TLV that is too long
			"0a0b0c0d ed135540 1fab9368 8587 0000 ed135540 1fab3f86" + header + "0000 0000 fd 000000" + "c0000001"},
		{"47, else like doublezero", header + zeros(35), Answer,
			"0a0b0c0d ed135540 1fab9368 8587 0000 ed135540 1fab3f86" + header + "0000 0000 fd 000000" + zeros(3)},
		{"49, else like doublezero", header + zeros(37), Answer,
			"0a0b0c0d ed135540 1fab9368 8587 0000 ed135540 1fab3f86" + header + "0000 0000 fd 000000" + zeros(5)},

		{"tail of 1", request44 + "ff", Answer, answer44 + "ff"},
		{"tail of 3", request44 + "800100", Answer, answer44 + "800100"},
		{"tail of 4 zeros", request44 + zeros(4), Answer, answer44 + zeros(4)},
		{"tail of zeros", request44 + zeros(1428), Answer, answer44 + zeros(1428)},
		{"tail with 4 zeros first", request44 + zeros(4) + "80010000", Answer, answer44 + zeros(4) + "80010000"},
		{"tail with 3 zeros first", request44 + "00000001 ff", TLVs, answer44 + "80000001 ff"},

		{"extra padding, empty", request44 + "80010000", Padding, answer44 + "00010000"},
		{"extra padding, as we send it", request44 + "80010004" + zeros(4), Padding, answer44 + "00010004" + zeros(4)},
		{"extra padding, random", request44 + "80010003 a1b2c3", Padding, answer44 + "00010003 a1b2c3"},
		{"extra padding, long", request44 + "80010590" + ff(1424), Padding, answer44 + "00010590" + ff(1424)},
		{"extra padding, U not set", request44 + "00010002 ffff", Padding, answer44 + "00010002 ffff"},
		{"extra padding, all flags set", request44 + "ff010002 ffff", Padding, answer44 + "1f010002 ffff"},
		{"extra padding, one byte too long", request44 + "80010003 ffff", TLVs, answer44 + "40010003 ffff"},
		{"extra padding, one byte too short", request44 + "80010001 ffff", TLVs, answer44 + "00010001 ffff"},
		{"extra padding, then zeros", request44 + "80010001 ff" + zeros(8), TLVs, answer44 + "00010001 ff" + zeros(8)},
		{"extra padding twice", request44 + "80010001 ff 80010000", TLVs, answer44 + "00010001 ff 00010000"},

		{"unknown", request44 + "80040004 b8000000", TLVs, answer44 + "80040004 b8000000"},
		{"unknown, U not set", request44 + "00fb0001 77", TLVs, answer44 + "80fb0001 77"},
		{"unknown, M and I set", request44 + "e0fb0001 77", TLVs, answer44 + "80fb0001 77"},
		{"unknown, reserved flag", request44 + "90fb0001 77", TLVs, answer44 + "90fb0001 77"},
		{"unknown, then extra padding", request44 + "80fb0001 77 80010002 aaaa", TLVs,
			answer44 + "80fb0001 77 00010002 aaaa"},
		{"type 0 with a value", request44 + "00000001 77", TLVs, answer44 + "80000001 77"},
		{"type 0 without a value, U set", request44 + "80000000", TLVs, answer44 + "80000000"},
		{"unknown, then a short tail", request44 + "00fb0001 77 00fb00", TLVs, answer44 + "80fb0001 77 00fb00"},
		{"unknown, then padding", request44 + "00fb0001 77 00000000 00fb0000", TLVs,
			answer44 + "80fb0001 77 00000000 00fb0000"},

		{"reply", answer44, Reflected, ""},
		{"reply at once", "00000007 ed135540 1f9add38 88a8 beef ed135540 1f9add38" + zeros(20), Reflected, ""},
		{"reply, as late as one is told", "00000007 ed135540 1f9add38 88a8 beef ed135540 0f9add39" + zeros(20), Reflected, ""},
		{"reply, later", "00000007 ed135540 1f9add38 88a8 beef ed135540 0f9add38" + zeros(20), Answer,
			"0a0b0c0d ed135540 1fab9368 8587 beef ed135540 1fab3f86 00000007 ed135540 1f9add38 88a8 0000 fd 000000"},
		{"reply before it was asked", "00000007 ed135540 1f9add38 88a8 beef ed135540 1f9add39" + zeros(20), Answer,
			"0a0b0c0d ed135540 1fab9368 8587 beef ed135540 1fab3f86 00000007 ed135540 1f9add38 88a8 0000 fd 000000"},
		{"reply with padding", answer44 + zeros(56), Reflected, ""},
		{"reply with extra padding", answer44 + "00010004" + zeros(4), Reflected, ""},
		{"reply with an unknown TLV", answer44 + "80fb0001 77", Reflected, ""},

		{"malformed", request44 + "8004ffff b8000000", TLVs, answer44 + "c004ffff b8000000"},
		{"malformed, one byte too long", request44 + "80040005 b8000000", TLVs, answer44 + "c0040005 b8000000"},
		{"malformed, the next is not looked at", request44 + "8004ffff 00fb0000", TLVs, answer44 + "c004ffff 00fb0000"},
		{"malformed after a good one", request44 + "00fb0000 0004ffff", TLVs, answer44 + "80fb0000 c004ffff"},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := unhex(t, c.request)
			for _, extendShort := range []bool{true, false} { // it concerns none of these
				if got := Classify(req, extendShort); got != c.kind {
					t.Errorf("kind with extendShort %t: got %v, want %v", extendShort, got, c.kind)
				}
			}
			if diff := diffBytes(unhex(t, c.want), AppendReply(nil, req, c.kind, reflectorStamp)); diff != "" {
				t.Errorf("reply (-want +got):\n%s", diff)
			}
			if diff := diffBytes(unhex(t, c.request), req); diff != "" {
				t.Errorf("request was changed (-want +got):\n%s", diff)
			}
		})
	}
}

func TestShortRequests(t *testing.T) {
	request, answer := unhex(t, request44), unhex(t, answer44)
	for size := range 44 {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			req := request[:size:size] // reading on beyond the end would be a panic
			if got := Classify(req, false); got != Short {
				t.Errorf("kind without extendShort: got %v, want %v", got, Short)
			}
			kind, want := Answer, bytes.Clone(answer)
			switch {
			case size < 14:
				kind, want = Short, nil
			case size < 16: // the SSID ends with the request
				clear(want[size:16])
			}
			if got := Classify(req, true); got != kind {
				t.Errorf("kind with extendShort: got %v, want %v", got, kind)
			}
			if diff := diffBytes(want, AppendReply(nil, req, kind, reflectorStamp)); diff != "" {
				t.Errorf("reply (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDwellAndTTLComeBack is case 24.
func TestDwellAndTTLComeBack(t *testing.T) {
	for _, f := range []Format{NTP, PTP} {
		s := Stamp{
			Seq: 7, Received: FromUnix(f, t2), Sent: FromUnix(f, t2+5_000_000),
			Error: NewErrorEstimate(true, f, 0), TTL: 253,
		}
		got, err := ParseReply(AppendReply(nil, vector(t, "P1"), Answer, s), TWAMPLight)
		if err != nil {
			t.Fatal(err)
		}
		if dwell := got.Time.Sub(got.Received, got.Error.Format()); dwell != 5_000_000 || got.SenderTTL != 253 {
			t.Errorf("format %d: got dwell %d, TTL %d, want 5000000, 253", f, dwell, got.SenderTTL)
		}
		if _, ok := got.Error.Bound(); !ok {
			t.Errorf("format %d: error estimate %#04x has multiplier 0", f, got.Error)
		}
	}
}

func TestAppendReplyAppends(t *testing.T) {
	for _, number := range []string{"P1", "P4", "P8", "P11"} {
		req := vector(t, number)
		kind := Classify(req, true)
		want := append([]byte("before"), AppendReply(nil, req, kind, reflectorStamp)...)
		if diff := diffBytes(want, AppendReply([]byte("before"), req, kind, reflectorStamp)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", number, diff)
		}
	}
	if got := AppendReply([]byte("before"), vector(t, "P11")[:13], Short, reflectorStamp); string(got) != "before" {
		t.Errorf("short request: got %q", got)
	}
}

// TestNoAnswerIsLongerThanItsRequest holds for whatever comes in, save for the extension to 44 bytes that was asked for.
func TestNoAnswerIsLongerThanItsRequest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		req := rapid.SliceOfN(rapid.OneOf(rapid.Just(byte(0)), rapid.Byte()), -1, 200).Draw(t, "request")
		extendShort := rapid.Bool().Draw(t, "extend short")
		kind := Classify(req, extendShort)
		want := len(req)
		switch {
		case len(req) < 14, len(req) < 44 && !extendShort:
			want = 0
		case len(req) < 44:
			want = 44
		}
		if got := len(AppendReply(nil, req, kind, stamp().Draw(t, "stamp"))); got != want {
			t.Fatalf("%v request of %d bytes: answer has %d, want %d", kind, len(req), got, want)
		}
	})
}

// TestAnyListOfTLVs builds a list together with its answer.
func TestAnyListOfTLVs(t *testing.T) {
	type item struct {
		Flags, Type byte
		Value       []byte
	}
	items := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) item {
		return item{
			Flags: rapid.Byte().Draw(t, "flags") | 0x80, // or type 0 could be padding
			Type:  rapid.OneOf(rapid.Just(byte(1)), rapid.Byte()).Draw(t, "type"),
			Value: rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "value"),
		}
	}), 1, -1)
	end := rapid.SampledFrom([]string{"", "01", "0102", "010203", "00000000", "0000000000ff", "malformed"})

	rapid.Check(t, func(t *rapid.T) {
		request, want := unhex(t, request44), unhex(t, answer44)
		for _, i := range items.Draw(t, "TLVs") {
			flags := i.Flags & 0x1f
			if i.Type != 1 {
				flags |= 0x80
			}
			rest := append(binary.BigEndian.AppendUint16([]byte{i.Type}, uint16(len(i.Value))), i.Value...)
			request = append(append(request, i.Flags), rest...)
			want = append(append(want, flags), rest...)
		}
		switch end := end.Draw(t, "end"); end {
		case "malformed":
			over := rapid.Uint16Range(1, 1000).Draw(t, "bytes over the end")
			request = append(binary.BigEndian.AppendUint16(append(request, 0x00, 0x08), 2+over), 0x80, 0x80)
			want = append(binary.BigEndian.AppendUint16(append(want, 0xc0, 0x08), 2+over), 0x80, 0x80)
		default:
			request, want = append(request, unhex(t, end)...), append(want, unhex(t, end)...)
		}
		if diff := diffBytes(want, AppendReply(nil, request, Classify(request, true), reflectorStamp)); diff != "" {
			t.Fatalf("reply (-want +got):\n%s", diff)
		}
	})
}
