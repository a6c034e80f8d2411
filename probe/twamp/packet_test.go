// SPDX-License-Identifier: Apache-2.0

package twamp

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// profile generates a profile with one of the sizes that it can send.
func profile() *rapid.Generator[struct {
	Profile Profile
	Size    int
}] {
	return rapid.Custom(func(t *rapid.T) (c struct {
		Profile Profile
		Size    int
	}) {
		c.Profile = rapid.SampledFrom([]Profile{STAMP, TWAMPLight, DoubleZero}).Draw(t, "profile")
		c.Size = 48
		if c.Profile != DoubleZero {
			c.Size = rapid.OneOf(rapid.IntRange(44, 60), rapid.IntRange(44, 65527)).Draw(t, "size")
		}
		return c
	})
}

// request generates a request as it can come out of a parser in the profile.
func request(p Profile) *rapid.Generator[Request] {
	return rapid.Custom(func(t *rapid.T) Request {
		r := Request{Seq: rapid.Uint32().Draw(t, "seq"), Time: Timestamp(rapid.Uint64().Draw(t, "time"))}
		if p != DoubleZero {
			r.Error = ErrorEstimate(rapid.Uint16().Draw(t, "error")&^0xff | rapid.Uint16Range(1, 255).Draw(t, "multiplier"))
		}
		if p == STAMP {
			r.SSID = rapid.Uint16().Draw(t, "ssid")
		}
		return r
	})
}

// stamp generates what a reflector adds.
func stamp() *rapid.Generator[Stamp] {
	return rapid.Custom(func(t *rapid.T) Stamp {
		return Stamp{
			Seq:      rapid.Uint32().Draw(t, "reflector seq"),
			Received: Timestamp(rapid.Uint64().Draw(t, "received")),
			Sent:     Timestamp(rapid.Uint64().Draw(t, "sent")),
			Error:    ErrorEstimate(rapid.Uint16().Draw(t, "error")&^0xff | rapid.Uint16Range(1, 255).Draw(t, "multiplier")),
			TTL:      rapid.Byte().Draw(t, "ttl"),
		}
	})
}

func TestRequestSizes(t *testing.T) {
	head := "01020304 1112131415161718 88a8"
	r := Request{Seq: 0x01020304, Time: 0x1112131415161718, Error: 0x88a8, SSID: 0xbeef}
	zeros := func(n int) string { return fmt.Sprintf("%0*d", 2*n, 0) }

	for _, c := range []struct {
		profile Profile
		size    int
		want    string // "" = impossible
	}{
		{STAMP, 0, ""},
		{STAMP, 43, ""},
		{STAMP, 44, head + "beef" + zeros(28)},
		{STAMP, 45, head + "beef" + zeros(29)}, // no room for a TLV header
		{STAMP, 46, head + "beef" + zeros(30)},
		{STAMP, 47, head + "beef" + zeros(31)},
		{STAMP, 48, head + "beef" + zeros(28) + "80010000"},
		{STAMP, 49, head + "beef" + zeros(28) + "80010001 00"},
		{STAMP, 1472, head + "beef" + zeros(28) + "80010590" + zeros(1424)},
		{STAMP, 65527, head + "beef" + zeros(28) + "8001ffc7" + zeros(65479)},
		{STAMP, 65528, ""},
		{TWAMPLight, 14, ""},
		{TWAMPLight, 43, ""},
		{TWAMPLight, 44, head + zeros(30)},
		{TWAMPLight, 48, head + zeros(34)},
		{TWAMPLight, 1472, head + zeros(1458)},
		{TWAMPLight, 65528, ""},
		{DoubleZero, 44, ""},
		{DoubleZero, 47, ""},
		{DoubleZero, 48, "01020304 1112131415161718" + zeros(36)},
		{DoubleZero, 49, ""},
	} {
		t.Run(fmt.Sprintf("%s %d", c.profile, c.size), func(t *testing.T) {
			before := bytes.Repeat([]byte{0xaa}, c.size)
			got := bytes.Clone(before)
			err := PutRequest(got, c.profile, r)
			if c.want == "" {
				if !errors.Is(err, ErrSize) {
					t.Errorf("error: got %v, want %v", err, ErrSize)
				}
				if diff := diffBytes(before, got); diff != "" {
					t.Errorf("buffer was changed (-want +got):\n%s", diff)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := diffBytes(unhex(t, c.want), got); diff != "" {
				t.Errorf("packet (-want +got):\n%s", diff)
			}
		})
	}
}

// TestMultiplierIsNeverZeroOnTheWire is case 25 (a), and keeps a 48-byte TWAMP-Light request from being one of DoubleZero.
func TestMultiplierIsNeverZeroOnTheWire(t *testing.T) {
	for given, want := range map[ErrorEstimate]ErrorEstimate{
		0x0000: 0x3fff, 0x8000: 0xbfff, 0x4000: 0x7fff, 0x8800: 0xbfff, 0x8801: 0x8801,
	} {
		for _, p := range []Profile{STAMP, TWAMPLight} {
			buf := make([]byte, 48)
			if err := PutRequest(buf, p, Request{Seq: 1, Time: ntpT1, Error: given}); err != nil {
				t.Fatal(err)
			}
			r, err := ParseRequest(buf, p)
			if err != nil || r.Error != want {
				t.Errorf("request with %#04x: got %#04x, %v, want %#04x", given, r.Error, err, want)
			}
			kind := Classify(buf, true)
			if kind == Echo {
				t.Errorf("%s request with %#04x is a DoubleZero request", p, given)
			}
			reply, err := ParseReply(AppendReply(nil, buf, kind, Stamp{Error: given}), p)
			if err != nil || reply.Error != want {
				t.Errorf("reply with %#04x: got %#04x, %v, want %#04x", given, reply.Error, err, want)
			}
		}
	}
}

func TestParseRequestRefuses(t *testing.T) {
	padded := func(i int) []byte {
		b := vector(t, "P8")
		b[i] = 1
		return b
	}
	for _, c := range []struct {
		name    string
		packet  []byte
		profile Profile
		want    error
	}{
		{"nothing", nil, STAMP, ErrSize},
		{"13 bytes", vector(t, "P11")[:13], STAMP, ErrSize},
		{"13 bytes", vector(t, "P11")[:13], TWAMPLight, ErrSize},
		{"nothing", nil, DoubleZero, ErrSize},
		{"47 bytes", vector(t, "P8")[:47], DoubleZero, ErrSize},
		{"49 bytes", append(vector(t, "P8"), 0), DoubleZero, ErrSize},
		{"a 44-byte request", vector(t, "P10"), DoubleZero, ErrSize},
		{"byte 12 set", padded(12), DoubleZero, ErrPadding},
		{"byte 30 set", padded(30), DoubleZero, ErrPadding},
		{"byte 47 set", padded(47), DoubleZero, ErrPadding},
	} {
		t.Run(c.name+" as "+c.profile.String(), func(t *testing.T) {
			got, err := ParseRequest(c.packet, c.profile)
			if !errors.Is(err, c.want) {
				t.Errorf("error: got %v, want %v", err, c.want)
			}
			if diff := cmp.Diff(Request{}, got); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
		})
	}
}

func TestShortRequestsHaveWhatFitsInThem(t *testing.T) {
	for size := 14; size <= 88; size++ {
		want := Request{Seq: 7, Time: ntpT1, Error: 0x88a8}
		if size >= 16 {
			want.SSID = 0xbeef
		}
		got, err := ParseRequest(vector(t, "P4")[:size:size], STAMP)
		if err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d bytes (-want +got):\n%s", size, diff)
		}
	}
}

func TestParseReplyRefuses(t *testing.T) {
	padded := vector(t, "P8")
	padded[47] = 1
	for _, c := range []struct {
		name    string
		packet  []byte
		profile Profile
		want    error
	}{
		{"nothing", nil, STAMP, ErrSize},
		{"35 bytes", vector(t, "P2")[:35], STAMP, ErrSize},
		{"35 bytes", vector(t, "P2")[:35], TWAMPLight, ErrSize},
		{"a standard reply", vector(t, "P2"), DoubleZero, ErrSize},
		{"47 bytes", vector(t, "P8")[:47], DoubleZero, ErrSize},
		{"49 bytes", append(vector(t, "P8"), 0), DoubleZero, ErrSize},
		{"a standard reply of 48 bytes", append(vector(t, "P2"), make([]byte, 7)...), DoubleZero, ErrPadding},
		{"byte 47 set", padded, DoubleZero, ErrPadding},
	} {
		t.Run(c.name+" as "+c.profile.String(), func(t *testing.T) {
			got, err := ParseReply(c.packet, c.profile)
			if !errors.Is(err, c.want) {
				t.Errorf("error: got %v, want %v", err, c.want)
			}
			if diff := cmp.Diff(Reply{}, got); diff != "" {
				t.Errorf("reply (-want +got):\n%s", diff)
			}
		})
	}
}

func TestShortRepliesHaveWhatFitsInThem(t *testing.T) {
	whole := Reply{
		Seq: 3, Time: ntpT3, Error: 0x8587, SSID: 0xbeef, HasSSID: true, Received: ntpT2, HasTimes: true,
		SenderSeq: 7, SenderTime: ntpT1, SenderError: 0x88a8, SenderTTL: 253, HasTTL: true,
	}
	for size := 36; size <= 88; size++ {
		want := whole
		if size < 44 {
			want.SSID, want.HasSSID = 0, false
		}
		if size < 41 {
			want.SenderTTL, want.HasTTL = 0, false
		}
		if size < 38 {
			want.SenderError = 0
		}
		packet := vector(t, "P5")[:size:size]
		got, err := ParseReply(packet, STAMP)
		if err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d bytes (-want +got):\n%s", size, diff)
		}
	}
}

func TestZeroTimesAreNoTimes(t *testing.T) {
	for name, offset := range map[string]int{"received": offReceived, "sent": offTime} {
		packet := vector(t, "P2")
		clear(packet[offset : offset+8])
		got, err := ParseReply(packet, TWAMPLight)
		if err != nil {
			t.Fatal(err)
		}
		if got.HasTimes {
			t.Errorf("%s time 0: the reply has times", name)
		}
	}
}

func TestAnswers(t *testing.T) {
	q := Request{Seq: 7, Time: ntpT1, Error: 0x88a8, SSID: 0xbeef}
	r := Reply{Seq: 3, SenderSeq: 7, SenderTime: ntpT1, SSID: 0xbeef, HasSSID: true}
	for _, c := range []struct {
		name   string
		change func(*Request, *Reply)
		want   bool
	}{
		{"all the same", func(*Request, *Reply) {}, true},
		{"other sequence number", func(_ *Request, r *Reply) { r.SenderSeq++ }, false},
		{"other time", func(_ *Request, r *Reply) { r.SenderTime++ }, false},
		{"other session", func(_ *Request, r *Reply) { r.SSID++ }, false},
		{"reflector without sessions", func(_ *Request, r *Reply) { r.SSID, r.HasSSID = 0, false }, true},
		{"session that was not asked for", func(q *Request, _ *Reply) { q.SSID = 0 }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			q, r := q, r
			c.change(&q, &r)
			if got := r.Answers(q); got != c.want {
				t.Errorf("got %t, want %t", got, c.want)
			}
		})
	}
}

func TestRequestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := profile().Draw(t, "packet")
		want := request(c.Profile).Draw(t, "request")
		buf := make([]byte, c.Size)
		if err := PutRequest(buf, c.Profile, want); err != nil {
			t.Fatal(err)
		}
		got, err := ParseRequest(buf, c.Profile)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("request (-want +got):\n%s", diff)
		}
	})
}

func TestReplyToOurRequestAnswersIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := profile().Draw(t, "packet")
		q, s := request(c.Profile).Draw(t, "request"), stamp().Draw(t, "stamp")
		req := make([]byte, c.Size)
		if err := PutRequest(req, c.Profile, q); err != nil {
			t.Fatal(err)
		}
		packet := AppendReply(nil, req, Classify(req, rapid.Bool().Draw(t, "extend short")), s)
		if len(packet) != len(req) {
			t.Fatalf("reply has %d bytes, request %d", len(packet), len(req))
		}
		got, err := ParseReply(packet, c.Profile)
		if err != nil {
			t.Fatal(err)
		}
		if !got.Answers(q) {
			t.Fatalf("%+v does not answer %+v", got, q)
		}
		want := Reply{SenderSeq: q.Seq, SenderTime: q.Time}
		if c.Profile != DoubleZero {
			want = Reply{
				Seq: s.Seq, Time: s.Sent, Error: s.Error, SSID: q.SSID, Received: s.Received,
				SenderSeq: q.Seq, SenderTime: q.Time, SenderError: q.Error, SenderTTL: s.TTL,
				HasTimes: s.Sent != 0 && s.Received != 0, HasSSID: q.SSID != 0, HasTTL: true,
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("reply (-want +got):\n%s", diff)
		}
	})
}
