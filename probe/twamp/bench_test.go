// SPDX-License-Identifier: Apache-2.0

package twamp

import (
	"fmt"
	"maps"
	"slices"
	"testing"
)

// hotPath is every operation that runs once per packet, also on packets that are refused.
func hotPath(tb testing.TB) map[string]func() {
	tb.Helper()
	ops := make(map[string]func())
	dst := make([]byte, 0, 1500)
	for _, c := range []struct {
		profile Profile
		size    int
	}{{STAMP, 44}, {STAMP, 1472}, {TWAMPLight, 44}, {TWAMPLight, 1472}, {DoubleZero, 48}} {
		name := fmt.Sprintf("%s-%d", c.profile, c.size)
		request := Request{Seq: 7, Time: ntpT1, Error: 0x88a8, SSID: 0xbeef}
		buf := make([]byte, c.size)
		ops["put-request/"+name] = func() {
			if err := PutRequest(buf, c.profile, request); err != nil {
				tb.Fatal(err)
			}
		}
		req := make([]byte, c.size)
		if err := PutRequest(req, c.profile, request); err != nil {
			tb.Fatal(err)
		}
		ops["parse-request/"+name] = func() {
			if _, err := ParseRequest(req, c.profile); err != nil {
				tb.Fatal(err)
			}
		}
		ops["answer/"+name] = func() {
			if got := AppendReply(dst, req, Classify(req, true), reflectorStamp); len(got) != len(req) {
				tb.Fatal("answer has wrong length")
			}
		}
		reply := AppendReply(nil, req, Classify(req, true), reflectorStamp)
		ops["parse-reply/"+name] = func() {
			if r, err := ParseReply(reply, c.profile); err != nil || r.SenderSeq != 7 {
				tb.Fatal(r, err)
			}
		}
		ops["refuse/"+name] = func() {
			_, err1 := ParseRequest(req[:13], c.profile)
			_, err2 := ParseReply(reply[:35], c.profile)
			if err1 == nil || err2 == nil || Classify(req[:13], true) != Short {
				tb.Fatal("short packet accepted")
			}
		}
	}
	tlvs, short := vector(tb, "P4"), vector(tb, "P11")
	ops["answer/tlvs-88"] = func() { AppendReply(dst, tlvs, Classify(tlvs, true), reflectorStamp) }
	ops["answer/extended-14"] = func() { AppendReply(dst, short, Classify(short, true), reflectorStamp) }
	ops["time/ntp"] = func() {
		if FromUnix(NTP, t1).Unix(NTP, t2) != t1 {
			tb.Fatal("time did not come back")
		}
	}
	ops["time/error-estimate"] = func() {
		if _, ok := NewErrorEstimate(true, NTP, 10_000).Bound(); !ok {
			tb.Fatal("no bound")
		}
	}
	return ops
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	for name, op := range hotPath(t) {
		if n := testing.AllocsPerRun(100, op); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkHotPath(b *testing.B) {
	ops := hotPath(b)
	for _, name := range slices.Sorted(maps.Keys(ops)) {
		op := ops[name]
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				op()
			}
		})
	}
}
