// SPDX-License-Identifier: Apache-2.0

package twamp

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// One exchange in many dialects: T1 is 2026-01-15T12:00:00.123456789Z, the reflector gets the packet 250 us later and
// sends the answer 5 us after that.
const (
	t1 = 1768478400_123456789
	t2 = t1 + 250_000
	t3 = t2 + 5_000
)

const (
	ntpT1, ntpT2, ntpT3 Timestamp = 0xed135540_1f9add38, 0xed135540_1fab3f86, 0xed135540_1fab9368
	ptpT1, ptpT2, ptpT3 Timestamp = 0x6968d6c0_075bcd15, 0x6968d6c0_075f9da5, 0x6968d6c0_075fb12d
)

// vectors are packets worked out from the RFCs' figures and read back with other decoders, by the name they have in
// packets.json. P1 is vector V1, and so on.
var vectors = map[string]string{
	"P1_twamp_light_sender_41": "00000007 ed135540 1f9add38 88a8" + strings.Repeat("00", 27),
	"P2_twamp_light_reflector_41": "00000007 ed135540 1fab9368 8587 0000 ed135540 1fab3f86" +
		"00000007 ed135540 1f9add38 88a8 0000 fd",
	"P3s_twamp_ptp_sender_42": "00000007 6968d6c0 075bcd15 c8a8" + strings.Repeat("00", 28),
	"P3_twamp_dscp_ecn_ptp_reflector_42": "00000003 6968d6c0 075fb12d c587 0000 6968d6c0 075f9da5" +
		"00000007 6968d6c0 075bcd15 c8a8 0000 fd b9",
	"P4_stamp_sender_tlvs_88": "00000007 ed135540 1f9add38 88a8 beef" + strings.Repeat("00", 28) +
		"8004 0004 b8000000" + "8005 000c 00000008 00000000 00000000" + "8008 0010 a28442f661c210ea07ef1757bddf3ba5",
	"P5_stamp_reflector_tlvs_88": "00000003 ed135540 1fab9368 8587 beef ed135540 1fab3f86" +
		"00000007 ed135540 1f9add38 88a8 0000 fd 000000" +
		"0004 0004 bae40000" + "0005 000c 00000008 00000004 00000004" + "0008 0010 9db4d904527194e23a545a2c6f1480dd",
	"P6_stamp_auth_sender_112": "00000007" + strings.Repeat("00", 12) + "ed135540 1f9add38 88a8 beef" +
		strings.Repeat("00", 68) + "08e53c2fdeeb6bbc06ddfe223fd9fa93",
	"P7_stamp_auth_reflector_112": "00000007" + strings.Repeat("00", 12) + "ed135540 1fab9368 8587 beef 00000000" +
		"ed135540 1fab3f86 0000000000000000 00000007" + strings.Repeat("00", 12) +
		"ed135540 1f9add38 88a8 000000000000 fd" + strings.Repeat("00", 15) + "f8d1b3dcec026f65e6a8c293d97870b6",
	"P8_doublezero_probe_48":    "00000007 ed135540 1f9add38" + strings.Repeat("00", 36),
	"P9_bad_multiplier_zero_41": "00000007 ed135540 1f9add38 8800" + strings.Repeat("00", 27),
	"P10_stamp_sender_base_44":  "00000007 ed135540 1f9add38 88a8" + strings.Repeat("00", 30),
	"P11_twampy_sender_14":      "00000007 ed135540 1f9add38 3fff",
	"P12_twampy_reflector_38":   "00000003 ed135540 1fab3f86 0001 0000 ed135540 1fab3f86 00000007 ed135540 1f9add38 3fff",
}

// fataler is a [testing.TB] or a rapid.T.
type fataler interface {
	Helper()
	Fatal(...any)
}

// unhex decodes hex digits with spaces anywhere.
func unhex(tb fataler, s string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// vector returns the packet whose name begins with number and an underscore.
func vector(tb fataler, number string) []byte {
	tb.Helper()
	for name, digits := range vectors {
		if strings.HasPrefix(name, number+"_") {
			return unhex(tb, digits)
		}
	}
	tb.Fatal("no vector", number)
	return nil
}

// diffBytes compares packets as hex, so that a failure can be read.
func diffBytes(want, got []byte) string {
	return cmp.Diff(hex.EncodeToString(want), hex.EncodeToString(got))
}

func TestVectorsAreThoseOfTheSharedFile(t *testing.T) {
	dir := os.Getenv("XTWAMP_VECTORS")
	if dir == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("XTWAMP_VECTORS is not set")
		}
		t.Skip("XTWAMP_VECTORS is not set")
	}
	data, err := os.ReadFile(filepath.Join(dir, "packets.json"))
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]string
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for name, digits := range vectors {
		got[name] = strings.ReplaceAll(digits, " ", "")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("vectors (-want +got):\n%s", diff)
	}
}

func TestParseRequestVectors(t *testing.T) {
	for _, c := range []struct {
		vector  string
		profile Profile
		want    Request
	}{
		{"P1", TWAMPLight, Request{Seq: 7, Time: ntpT1, Error: 0x88a8}},
		{"P3s", TWAMPLight, Request{Seq: 7, Time: ptpT1, Error: 0xc8a8}},
		{"P4", STAMP, Request{Seq: 7, Time: ntpT1, Error: 0x88a8, SSID: 0xbeef}},
		{"P4", TWAMPLight, Request{Seq: 7, Time: ntpT1, Error: 0x88a8}},
		{"P8", DoubleZero, Request{Seq: 7, Time: ntpT1}},
		{"P8", STAMP, Request{Seq: 7, Time: ntpT1}},
		{"P9", TWAMPLight, Request{Seq: 7, Time: ntpT1, Error: 0x8800}},
		{"P10", STAMP, Request{Seq: 7, Time: ntpT1, Error: 0x88a8}},
		{"P11", TWAMPLight, Request{Seq: 7, Time: ntpT1, Error: 0x3fff}},
		{"P11", STAMP, Request{Seq: 7, Time: ntpT1, Error: 0x3fff}},
		// Authenticated packets are read as what they are not: zeros lie where the time would be.
		{"P6", STAMP, Request{Seq: 7}},
	} {
		t.Run(c.vector+" as "+c.profile.String(), func(t *testing.T) {
			got, err := ParseRequest(vector(t, c.vector), c.profile)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseReplyVectors(t *testing.T) {
	light := Reply{
		Seq: 7, Time: ntpT3, Error: 0x8587, Received: ntpT2, HasTimes: true,
		SenderSeq: 7, SenderTime: ntpT1, SenderError: 0x88a8, SenderTTL: 253, HasTTL: true,
	}
	ptp := light
	ptp.Seq, ptp.Time, ptp.Error, ptp.Received, ptp.SenderTime, ptp.SenderError = 3, ptpT3, 0xc587, ptpT2, ptpT1, 0xc8a8
	stamp := light
	stamp.Seq, stamp.SSID, stamp.HasSSID = 3, 0xbeef, true
	stampAsLight := stamp
	stampAsLight.SSID, stampAsLight.HasSSID = 0, false

	for _, c := range []struct {
		vector  string
		profile Profile
		want    Reply
	}{
		{"P2", TWAMPLight, light},
		{"P2", STAMP, light},
		{"P3", TWAMPLight, ptp},
		{"P5", STAMP, stamp},
		{"P5", TWAMPLight, stampAsLight},
		{"P8", DoubleZero, Reply{SenderSeq: 7, SenderTime: ntpT1}},
		{"P12", TWAMPLight, Reply{
			Seq: 3, Time: ntpT2, Error: 0x0001, Received: ntpT2, HasTimes: true, // twampy: T3 is T2
			SenderSeq: 7, SenderTime: ntpT1, SenderError: 0x3fff,
		}},
		// A request that only came back, where STAMP was expected: no times, and no probe that it answers.
		{"P10", STAMP, Reply{Seq: 7, Time: ntpT1, Error: 0x88a8, HasTTL: true}},
		// An authenticated reply is read as what it is not.
		{"P7", STAMP, Reply{
			Seq: 7, Received: 0xed135540_1fab9368, SenderSeq: 0x8587beef, SenderTime: 0x00000000_ed135540,
			SenderError: 0x1fab, HasTTL: true,
		}},
	} {
		t.Run(c.vector+" as "+c.profile.String(), func(t *testing.T) {
			got, err := ParseReply(vector(t, c.vector), c.profile)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("reply (-want +got):\n%s", diff)
			}
		})
	}
}

func TestVectorTimes(t *testing.T) {
	for _, c := range []struct {
		number string
		format Format
		sent   int64
	}{
		{"P2", NTP, t1}, {"P3", PTP, t1}, {"P5", NTP, t1},
	} {
		r, err := ParseReply(vector(t, c.number), STAMP)
		if err != nil {
			t.Fatal(err)
		}
		type times struct {
			Format     Format
			T1, T2, T3 int64
			Dwell      int64
		}
		f := r.Error.Format()
		want := times{c.format, t1, t2, t3, 5_000}
		got := times{f, r.SenderTime.Unix(f, t1), r.Received.Unix(f, t1), r.Time.Unix(f, t1), r.Time.Sub(r.Received, f)}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.number, diff)
		}
	}
}

func TestPutRequestVectors(t *testing.T) {
	for _, c := range []struct {
		name    string
		profile Profile
		size    int
		request Request
		want    []byte
	}{
		{"stamp base", STAMP, 44, Request{7, FromUnix(NTP, t1), 0x88a8, 0}, vector(t, "P10")},
		{"stamp ssid", STAMP, 44, Request{7, FromUnix(NTP, t1), 0x88a8, 0xbeef}, vector(t, "P4")[:44]},
		{"twamp-light", TWAMPLight, 44, Request{7, FromUnix(NTP, t1), 0x88a8, 0}, append(vector(t, "P1"), 0, 0, 0)},
		{"twamp-light ptp", TWAMPLight, 44, Request{7, FromUnix(PTP, t1), 0xc8a8, 0}, append(vector(t, "P3s"), 0, 0)},
		{"doublezero", DoubleZero, 48, Request{7, FromUnix(NTP, t1), 0x88a8, 0xbeef}, vector(t, "P8")},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := bytes.Repeat([]byte{0xaa}, c.size) // what was in the buffer must not go out
			if err := PutRequest(got, c.profile, c.request); err != nil {
				t.Fatal(err)
			}
			if diff := diffBytes(c.want, got); diff != "" {
				t.Errorf("packet (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReplyVectors(t *testing.T) {
	ntp := Stamp{Seq: 7, Received: FromUnix(NTP, t2), Sent: FromUnix(NTP, t3), Error: 0x8587, TTL: 253}
	ptp := Stamp{Seq: 3, Received: FromUnix(PTP, t2), Sent: FromUnix(PTP, t3), Error: 0xc587, TTL: 253}
	stateful := ntp
	stateful.Seq = 3

	// The reflector knows none of V4's TLVs yet: it says so, and V5's values are not there.
	unknown := append(vector(t, "P5")[:44], vector(t, "P4")[44:]...)
	zeroEE := append(vector(t, "P2"), 0, 0, 0)
	copy(zeroEE[36:], []byte{0x88, 0x00})

	for _, c := range []struct {
		request string
		kind    Kind
		stamp   Stamp
		want    []byte
	}{
		{"P1", Answer, ntp, append(vector(t, "P2"), 0, 0, 0)},
		{"P3s", Answer, ptp, append(vector(t, "P3")[:41], 0, 0, 0)},
		{"P4", TLVs, stateful, unknown},
		{"P8", Echo, ntp, vector(t, "P8")},
		{"P9", Answer, ntp, zeroEE}, // case 25: still answered
		{"P10", Answer, ntp, append(vector(t, "P2"), 0, 0, 0)},
		{"P11", Answer, ntp, unhex(t, "00000007 ed135540 1fab9368 8587 0000 ed135540 1fab3f86"+
			"00000007 ed135540 1f9add38 3fff 0000 fd 000000")},
		{"P6", Answer, ntp, append(unhex(t, "00000007 ed135540 1fab9368 8587 0000 ed135540 1fab3f86"+
			"00000007 00000000 00000000 0000 0000 fd 000000"), vector(t, "P6")[44:]...)},
	} {
		t.Run(c.request, func(t *testing.T) {
			req := vector(t, c.request)
			kind := Classify(req, true)
			if kind != c.kind {
				t.Errorf("kind: got %v, want %v", kind, c.kind)
			}
			if diff := diffBytes(c.want, AppendReply(nil, req, kind, c.stamp)); diff != "" {
				t.Errorf("reply (-want +got):\n%s", diff)
			}
			if diff := diffBytes(vector(t, c.request), req); diff != "" {
				t.Errorf("request was changed (-want +got):\n%s", diff)
			}
		})
	}
}
