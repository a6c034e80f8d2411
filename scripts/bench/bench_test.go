// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestPercentile(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i) // 100 .. 1
	}
	for _, tt := range []struct {
		name   string
		values []float64
		p      float64
		want   float64
	}{
		{"half of a hundred", hundred, 50, 50},
		{"99 of a hundred", hundred, 99, 99},
		{"all of a hundred", hundred, 100, 100},
		{"none of a hundred is the least", hundred, 0, 1},
		{"99 of three is the greatest", []float64{3, 1, 2}, 99, 3},
		{"of one", []float64{7}, 50, 7},
		{"of none", nil, 50, math.NaN()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, percentile(tt.values, tt.p), cmpopts.EquateNaNs()); diff != "" {
				t.Errorf("percentile (-want +got):\n%s", diff)
			}
		})
	}
	if hundred[0] != 100 {
		t.Error("percentile has sorted its argument")
	}
}

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		name   string
		values []float64
		want   float64
	}{
		{"odd", []float64{5, 1, 3}, 3},
		{"even", []float64{4, 1, 3, 2}, 2.5},
		{"none", nil, math.NaN()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, median(tt.values), cmpopts.EquateNaNs()); diff != "" {
				t.Errorf("median (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name   string
		check  check
		missed bool
		want   string
	}{
		{"below the most", check{what: "p50", got: 2.9, limit: 3, unit: " us"}, false, "PASS  p50: 2.90 us (at most 3 us)"},
		{"at the most", check{what: "p50", got: 3, limit: 3}, false, "PASS  p50: 3.00 (at most 3)"},
		{"above the most", check{what: "p50", got: 3.1, limit: 3}, true, "MISS  p50: 3.10 (at most 3)"},
		{"at the least", check{what: "ratio", got: 4, limit: 4, atLeast: true}, false, "PASS  ratio: 4.00 (at least 4)"},
		{"below the least", check{what: "ratio", got: 3.9, limit: 4, atLeast: true}, true, "MISS  ratio: 3.90 (at least 4)"},
		{"no number", check{what: "p50", got: math.NaN(), limit: 3}, true, "MISS  p50: NaN (at most 3)"},
		{"no number at least", check{what: "p50", got: math.NaN(), limit: 3, atLeast: true}, true, "MISS  p50: NaN (at least 3)"},
		{"not available", check{what: "xdp", got: math.NaN(), limit: 3, missing: "no driver"}, false, "----  xdp (at most 3): not available: no driver"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.check.missed(); got != tt.missed {
				t.Errorf("missed: want %v, got %v", tt.missed, got)
			}
			if diff := cmp.Diff(tt.want, tt.check.String()); diff != "" {
				t.Errorf("text (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseCPU(t *testing.T) {
	got, err := parseCPU("cpu  100 2 30 400 50 6 7 8 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
	if err != nil {
		t.Fatal(err)
	}
	want := cpuTimes{idle: 4500 * time.Millisecond, steal: 80 * time.Millisecond}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(cpuTimes{})); diff != "" {
		t.Errorf("times (-want +got):\n%s", diff)
	}
	for _, bad := range []string{"", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8 9", "cpu 1 2 3 4 x 6 7 8 9"} {
		if _, err := parseCPU(bad); err == nil {
			t.Errorf("no error for %q", bad)
		}
	}
}

func TestPingTrips(t *testing.T) {
	got, err := pingTrips([]byte("PING 198.18.1.1 (198.18.1.1) 56(84) bytes of data.\n" +
		"64 bytes from 198.18.1.1: icmp_seq=1 ttl=64 time=0.250 ms\n" +
		"64 bytes from 198.18.1.1: icmp_seq=2 ttl=64 time=12.0 ms\n" +
		"64 bytes from 198.18.1.1: icmp_seq=3 ttl=64 time=0.125 ms\n" +
		"\n--- 198.18.1.1 ping statistics ---\n3 packets transmitted, 3 received, 0% packet loss, time 3ms\n"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(trips{p50: 250, p99: 12000, answered: 3}, got, cmp.AllowUnexported(trips{})); diff != "" {
		t.Errorf("times (-want +got):\n%s", diff)
	}
	if _, err := pingTrips([]byte("PING 198.18.1.1\n")); err == nil {
		t.Error("no error without an answer")
	}
}

func TestSummaryTrips(t *testing.T) {
	const summary = `{"type":"summary","received":200,"rtt_ns":{"p50":1500,"p99":9000},"timestamps":{"tx":{"tc_egress":200},"rx":{"xdp":198,"user":2}}}`
	for _, tt := range []struct {
		name   string
		line   string
		tx, rx string
		want   trips
		fails  bool
	}{
		{"its own time stamps, but for a few", summary, "tc_egress", "xdp", trips{p50: 1.5, p99: 9, answered: 200}, false},
		{"other time stamps on sending", summary, "socket", "xdp", trips{}, true},
		{"other time stamps on arrival", summary, "tc_egress", "tc_ingress", trips{}, true},
		{"nothing answered", `{"type":"summary","received":0,"timestamps":{"tx":{},"rx":{}}}`, "tc_egress", "xdp", trips{}, true},
		{"no summary", "", "tc_egress", "xdp", trips{}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := (&method{tx: tt.tx, rx: tt.rx}).summaryTrips([]byte(tt.line))
			if (err != nil) != tt.fails {
				t.Errorf("error: %v", err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(trips{})); diff != "" {
				t.Errorf("times (-want +got):\n%s", diff)
			}
		})
	}
}

func TestProgramChecks(t *testing.T) {
	got := programChecks(`goos: linux
BenchmarkPacket/egress/arp-2                  	    2659	         2.000 ns/packet	      32 B/op	       0 allocs/op
BenchmarkPacket/egress/other_port6-16         	    2420	        16.00 ns/packet
BenchmarkPacket/ingress/reply_of_1472_bytes-2 	     337	       293.0 ns/packet	      24 B/op	       0 allocs/op
BenchmarkReflect/tc/request_by_prefix-2       	     511	       162.0 ns/packet	      16 B/op	       0 allocs/op
BenchmarkOther-2                              	     511	       162.0 ns/op
PASS
`)
	want := []check{
		{what: "Packet/egress/arp (not UDP)", got: 2, limit: 2, unit: " ns"},
		{what: "Packet/egress/other port6 (other UDP)", got: 16, limit: 15, unit: " ns"},
		{what: "Reflect/tc/request by prefix (reflect)", got: 162, limit: 250, unit: " ns"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(check{})); diff != "" {
		t.Errorf("checks (-want +got):\n%s", diff)
	}
}
