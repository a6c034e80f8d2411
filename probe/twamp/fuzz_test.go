// SPDX-License-Identifier: Apache-2.0

package twamp

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var profiles = []Profile{STAMP, TWAMPLight, DoubleZero}

func FuzzParseRequest(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, p := range profiles {
			r, err := ParseRequest(b, p)
			if err != nil {
				if diff := cmp.Diff(Request{}, r); diff != "" {
					t.Errorf("%s: request beside error %v (-want +got):\n%s", p, err, diff)
				}
				continue
			}
			want := r
			want.Error = r.Error.sent()
			if p == DoubleZero {
				want.Error = 0
			}
			again := make([]byte, p.MinSize())
			if err := PutRequest(again, p, r); err != nil {
				t.Fatal(err)
			}
			got, err := ParseRequest(again, p)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: written and read again (-want +got):\n%s", p, diff)
			}
			if !bytes.Equal(again[:offError], b[:offError]) {
				t.Errorf("%s: written again: got %x, want %x", p, again[:offError], b[:offError])
			}
		}
	})
}

func FuzzParseReply(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, p := range profiles {
			r, err := ParseReply(b, p)
			if err != nil {
				if diff := cmp.Diff(Reply{}, r); diff != "" {
					t.Errorf("%s: reply beside error %v (-want +got):\n%s", p, err, diff)
				}
				continue
			}
			if p == DoubleZero || len(b) < baseSize {
				continue
			}
			// The request that this reply would be the answer to, answered.
			q := Request{Seq: r.SenderSeq, Time: r.SenderTime, Error: r.SenderError, SSID: r.SSID}
			req := make([]byte, baseSize)
			if err := PutRequest(req, p, q); err != nil {
				t.Fatal(err)
			}
			s := Stamp{Seq: r.Seq, Received: r.Received, Sent: r.Time, Error: r.Error, TTL: r.SenderTTL}
			want := r
			want.Error, want.SenderError = r.Error.sent(), r.SenderError.sent()
			got, err := ParseReply(AppendReply(nil, req, Classify(req, false), s), p)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: written and read again (-want +got):\n%s", p, diff)
			}
		}
	})
}

func FuzzAnswer(f *testing.F) {
	f.Fuzz(func(t *testing.T, req []byte, extendShort bool) {
		before := bytes.Clone(req)
		kind := Classify(req, extendShort)
		got := AppendReply(nil, req, kind, reflectorStamp)
		if !bytes.Equal(before, req) {
			t.Fatalf("request was changed from %x to %x", before, req)
		}
		switch {
		case kind == Short:
			if len(got) != 0 || len(req) >= 14 && extendShort || len(req) >= 44 {
				t.Fatalf("short: %d bytes, answer %x", len(req), got)
			}
			return
		case kind == Reflected:
			if len(got) != 0 || len(req) < 44 || bytes.Equal(req[16:24], make([]byte, 8)) {
				t.Fatalf("reflected: request %x, answer %x", req, got)
			}
			return
		case kind == Echo:
			if !bytes.Equal(got, req) {
				t.Fatalf("echo of %x: got %x", req, got)
			}
			return
		case len(got) != max(len(req), 44):
			t.Fatalf("%v: %d bytes in, %d out", kind, len(req), len(got))
		}
		// What the reflector adds is the same for each answer; the rest of the first 44 bytes is the request's or zero.
		want := unhex(t, answer44)
		extended := make([]byte, 44)
		copy(extended, req)
		copy(want[14:16], extended[14:16])
		copy(want[24:38], extended[0:14])
		if diff := diffBytes(want, got[:44]); diff != "" {
			t.Errorf("first 44 bytes (-want +got):\n%s", diff)
		}
		for i := 44; i < len(req); i++ {
			if mask := byte(0xe0); got[i] != req[i] && (kind == Answer || got[i]&^mask != req[i]&^mask) {
				t.Errorf("%v: byte %d: got %#02x, want %#02x", kind, i, got[i], req[i])
			}
		}
	})
}

func FuzzTLVs(f *testing.F) {
	f.Fuzz(func(t *testing.T, tail []byte) {
		req := append(unhex(t, request44), tail...)
		once := AppendReply(nil, req, Classify(req, false), reflectorStamp)
		// The answer's flags follow from types and lengths alone, so flags that are right do not change any more.
		req = append(unhex(t, request44), once[44:]...)
		twice := AppendReply(nil, req, Classify(req, false), reflectorStamp)
		if diff := diffBytes(once[44:], twice[44:]); diff != "" {
			t.Errorf("answered once and twice (-once +twice):\n%s", diff)
		}
		// Whatever the sender set in the flags of the first TLV that the reflector has to say, the answer is the same.
		if len(tail) < 4 || bytes.Equal(tail[:4], make([]byte, 4)) {
			return
		}
		req[44] |= 0xe0
		flagged := AppendReply(nil, req, Classify(req, false), reflectorStamp)
		if diff := diffBytes(once[44:], flagged[44:]); diff != "" {
			t.Errorf("answered without and with flags (-without +with):\n%s", diff)
		}
	})
}
