// SPDX-License-Identifier: Apache-2.0

package twamp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// dissected is a test packet as tshark understands it. It has no STAMP dissector, but STAMP has TWAMP-Test's fields in the
// same places, with the SSID where TWAMP has its first "must be zero". It takes every packet of 41 bytes or more for a
// reply, so what it shows of a request beyond the SSID is zero; an NTP time of zero it shows as the beginning of 1970.
type dissected struct {
	Seq         uint32
	Time        int64 // ns since 1970
	Error       estimate
	SSID        uint16
	Received    int64
	SenderSeq   uint32
	SenderTime  int64
	SenderError estimate
	TTL         uint8
	Padding     string
}

type estimate struct {
	Whole             uint16
	S, Z              bool
	Scale, Multiplier uint8
}

// tsharkFields are asked for in the order of dissected.
var tsharkFields = []string{
	"seq_number", "timestamp", "error_estimate",
	"error_estimate.s", "error_estimate.z", "error_estimate.scale", "error_estimate.multiplier",
	"mbz1", "receive_timestamp", "sender_seq_number", "sender_timestamp", "sender_error_estimate", "sender_ttl", "padding",
}

func TestTsharkReadsWhatWeWrite(t *testing.T) {
	requireTshark(t)
	var packets [][]byte
	var want []dissected

	for _, c := range []struct {
		profile Profile
		size    int
		ssid    uint16
		padding string
	}{
		{STAMP, 44, 0xbeef, "000000"},
		{STAMP, 47, 0, "000000" + "000000"},
		{STAMP, 48, 1, "000000" + "80010000"},
		{STAMP, 60, 0xffff, "000000" + "8001000c" + strings.Repeat("00", 12)},
		{TWAMPLight, 44, 0, "000000"},
		{TWAMPLight, 100, 0, strings.Repeat("00", 59)},
	} {
		q := Request{Seq: 0xfffffffe, Time: FromUnix(NTP, t1), Error: NewErrorEstimate(true, NTP, 10_000), SSID: c.ssid}
		req := make([]byte, c.size)
		if err := PutRequest(req, c.profile, q); err != nil {
			t.Fatal(err)
		}
		packets = append(packets, req)
		sent := estimate{0x88a8, true, false, 8, 168}
		want = append(want, dissected{Seq: 0xfffffffe, Time: t1, Error: sent, SSID: c.ssid, Padding: c.padding})

		// The reflector's clock counts in both formats; the sender's always in NTP here, since tshark reads the sender's
		// time as NTP whatever its Error Estimate says.
		for _, f := range []Format{NTP, PTP} {
			s := Stamp{
				Seq: 3, Received: FromUnix(f, t2), Sent: FromUnix(f, t3), Error: NewErrorEstimate(f == NTP, f, 1_000), TTL: 253,
			}
			packets = append(packets, AppendReply(nil, req, Classify(req, true), s))
			answered := estimate{0x8587, true, false, 5, 135}
			if f == PTP {
				answered = estimate{0x4587, false, true, 5, 135}
			}
			want = append(want, dissected{
				Seq: 3, Time: t3, Error: answered, SSID: c.ssid, Received: t2,
				SenderSeq: 0xfffffffe, SenderTime: t1, SenderError: estimate{Whole: 0x88a8}, TTL: 253,
				Padding: strings.Replace(c.padding, "8001", "0001", 1),
			})
		}
	}

	if diff := cmp.Diff(want, dissect(t, packets)); diff != "" {
		t.Errorf("packets as tshark reads them (-want +got):\n%s", diff)
	}
}

// TestTsharkReadsEveryNanosecond has tshark decode fractions: it rounds down, and must find what was encoded.
func TestTsharkReadsEveryNanosecond(t *testing.T) {
	requireTshark(t)
	var packets [][]byte
	var want, got []int64
	for ns := int64(t1 - t1%second); ns < t1-t1%second+second; ns += 999_983 { // a prime
		buf := make([]byte, 44)
		if err := PutRequest(buf, TWAMPLight, Request{Time: FromUnix(NTP, ns)}); err != nil {
			t.Fatal(err)
		}
		packets, want = append(packets, buf), append(want, ns)
	}
	for _, d := range dissect(t, packets) {
		got = append(got, d.Time)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("times (-want +got):\n%s", diff)
	}
}

func requireTshark(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("tshark"); err != nil {
		if os.Getenv("CI") == "true" || os.Getenv("XTWAMP_REQUIRE_ROOT") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// dissect lets tshark read packets as the payload of UDP to port 862.
func dissect(t *testing.T, packets [][]byte) []dissected {
	t.Helper()
	args := []string{"-r", "-", "-d", "udp.port==862,twamp.test", "-T", "fields", "-E", "separator=/t", "-E", "occurrence=f"}
	for _, f := range tsharkFields {
		args = append(args, "-e", "twamp.test."+f)
	}
	cmd := exec.Command("tshark", args...)
	cmd.Stdin = bytes.NewReader(capture(packets))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v\n%s", err, &stderr)
	}

	var all []dissected
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != len(tsharkFields) {
			t.Fatalf("tshark: got %d fields, want %d: %q", len(f), len(tsharkFields), line)
		}
		all = append(all, dissected{
			Seq:  number[uint32](t, f[0]),
			Time: moment(t, f[1]),
			Error: estimate{
				number[uint16](t, f[2]), f[3] == "1" || f[3] == "True", f[4] == "1" || f[4] == "True",
				number[uint8](t, f[5]), number[uint8](t, f[6]),
			},
			SSID:        number[uint16](t, f[7]),
			Received:    moment(t, f[8]),
			SenderSeq:   number[uint32](t, f[9]),
			SenderTime:  moment(t, f[10]),
			SenderError: estimate{Whole: number[uint16](t, f[11])},
			TTL:         number[uint8](t, f[12]),
			Padding:     f[13],
		})
	}
	return all
}

// number reads a decimal or hexadecimal field.
func number[T uint8 | uint16 | uint32](t *testing.T, s string) T {
	t.Helper()
	var n T
	if _, err := fmt.Sscanf(s, "%v", &n); err != nil {
		t.Fatalf("number %q: %v", s, err)
	}
	return n
}

// moment reads a time as tshark 4.0 writes it, or in ISO 8601 as newer ones do.
func moment(t *testing.T, s string) int64 {
	t.Helper()
	for _, layout := range []string{"Jan _2, 2006 15:04:05.000000000 MST", time.RFC3339Nano} {
		if m, err := time.Parse(layout, s); err == nil {
			return m.Unix()*second + int64(m.Nanosecond())
		}
	}
	t.Fatalf("time %q has no known layout", s)
	return 0
}

// capture returns a pcap file with one IPv4 UDP datagram per payload.
func capture(payloads [][]byte) []byte {
	const linkTypeIPv4 = 228
	le, be := binary.LittleEndian, binary.BigEndian
	file := le.AppendUint32(nil, 0xa1b2c3d4)
	file = le.AppendUint16(le.AppendUint16(file, 2), 4) // version
	file = append(file, make([]byte, 8)...)
	file = le.AppendUint32(le.AppendUint32(file, 1<<16), linkTypeIPv4)
	for _, p := range payloads {
		size := 20 + 8 + len(p)
		file = append(file, make([]byte, 8)...) // when it was captured
		file = le.AppendUint32(le.AppendUint32(file, uint32(size)), uint32(size))
		file = be.AppendUint16(append(file, 0x45, 0), uint16(size))
		file = append(file, 0, 0, 0, 0, 255, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2)
		file = be.AppendUint16(be.AppendUint16(file, 49152), DefaultPort)
		file = be.AppendUint16(be.AppendUint16(file, uint16(8+len(p))), 0)
		file = append(file, p...)
	}
	return file
}
