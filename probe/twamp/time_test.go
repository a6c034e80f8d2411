// SPDX-License-Identifier: Apache-2.0

package twamp

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// halfRange is how far from its own clock a reader tells time stamps apart, less than a second short of 2^31 s.
const halfRange = (1<<31 - 1) * second

// ntpWrap is 2036-02-07T06:28:16Z, where the seconds of NTP begin at 0 again; ptpWrap is 2106-02-07T06:28:16Z.
var (
	ntpWrap = time.Date(2036, 2, 7, 6, 28, 16, 0, time.UTC).UnixNano()
	ptpWrap = time.Date(2106, 2, 7, 6, 28, 16, 0, time.UTC).UnixNano()
)

// clock generates moments that a clock may show, with those around the wraps more often than chance would have it.
func clock() *rapid.Generator[int64] {
	around := func(ns int64) *rapid.Generator[int64] { return rapid.Int64Range(ns-2*second, ns+2*second) }
	return rapid.OneOf(rapid.Int64Range(0, ptpWrap), around(ntpWrap), around(ptpWrap), around(0))
}

func format() *rapid.Generator[Format] { return rapid.SampledFrom([]Format{NTP, PTP}) }

func TestTimestampsOnTheWire(t *testing.T) {
	for _, c := range []struct {
		format Format
		ns     int64
		want   Timestamp
	}{
		{NTP, t1, ntpT1}, {NTP, t2, ntpT2}, {NTP, t3, ntpT3},
		{PTP, t1, ptpT1}, {PTP, t2, ptpT2}, {PTP, t3, ptpT3},
		{NTP, 0, 0x83aa7e80_00000000},
		{NTP, -1, 0x83aa7e7f_fffffffc},
		{NTP, 1785500000_500000000, 0xee170fe0_80000000},
		{NTP, 999_999_999, 0x83aa7e80_fffffffc},
		{NTP, 1, 0x83aa7e80_00000005},
		{NTP, ntpWrap - 1, 0xffffffff_fffffffc},
		{NTP, ntpWrap, 0},
		{NTP, ntpWrap + 1, 0x00000000_00000005},
		{PTP, 0, 0},
		{PTP, -1, 0xffffffff_3b9ac9ff},
		{PTP, ptpWrap - 1, 0xffffffff_3b9ac9ff},
		{PTP, ptpWrap + 1, 1},
	} {
		if got := FromUnix(c.format, c.ns); got != c.want {
			t.Errorf("FromUnix(%d, %d): got %#016x, want %#016x", c.format, c.ns, got, c.want)
		}
	}
}

func TestUnixChoosesTheNearestWrap(t *testing.T) {
	for _, c := range []struct {
		format Format
		stamp  Timestamp
		near   int64
		want   int64
	}{
		{NTP, 0xffffffff_00000000, ntpWrap + 10*second, ntpWrap - second}, // sent before the wrap, read after it
		{NTP, 0x00000001_00000000, ntpWrap - 10*second, ntpWrap + second}, // the other way round
		{NTP, 0x00000001_00000000, t1, ntpWrap + second},
		{NTP, 0x00000001_00000000, -60 * 365 * 24 * 3600 * second, ntpWrap + second - 1<<32*second}, // 1900
		{PTP, 0xffffffff_00000000, ptpWrap, ptpWrap - second},
		{PTP, 0x00000001_00000000, ptpWrap, ptpWrap + second},
		{PTP, 0xffffffff_00000000, 10 * second, -second}, // this clock stands at 1970
		{PTP, 0x00000001_00000000, 10 * second, second},
		// What other senders write: fractions that were rounded down, and a broken PTP nanosecond field.
		{NTP, 0xed135540_1f9add37, t1, t1 - 1},
		{NTP, 0xffffffff_fffffffb, ntpWrap, ntpWrap - 2},
		{NTP, 0x83aa7e80_ffffffff, 0, 999_999_999},
		{PTP, 0x00000001_ffffffff, 0, second + math.MaxUint32},
	} {
		if got := c.stamp.Unix(c.format, c.near); got != c.want {
			t.Errorf("%#016x.Unix(%d, %d): got %d, want %d", uint64(c.stamp), c.format, c.near, got, c.want)
		}
	}
}

func TestEveryTimeComesBackAsItWas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, ns := format().Draw(t, "format"), clock().Draw(t, "time")
		near := ns + rapid.Int64Range(-halfRange, halfRange).Draw(t, "clock error")
		if got := FromUnix(f, ns).Unix(f, near); got != ns {
			t.Fatalf("got %d, want %d", got, ns)
		}
	})
}

// TestEveryNanosecondComesBackAsItWas goes through the second in steps that are prime, from another start each time.
func TestEveryNanosecondComesBackAsItWas(t *testing.T) {
	for ns := t1 + time.Now().UnixNano()%997; ns < t1+second; ns += 997 {
		if got := FromUnix(NTP, ns).Unix(NTP, t1); got != ns {
			t.Fatalf("got %d ns, want %d", got, ns)
		}
	}
}

func TestSubIsTheDifferenceOfTheTimes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, ns := format().Draw(t, "format"), clock().Draw(t, "time")
		want := rapid.OneOf(rapid.Int64Range(-halfRange, halfRange), rapid.Int64Range(-1000, 1000)).Draw(t, "difference")
		if got := FromUnix(f, ns+want).Sub(FromUnix(f, ns), f); got != want {
			t.Fatalf("got %d, want %d", got, want)
		}
	})
}

func TestErrorEstimatesOnTheWire(t *testing.T) {
	for _, c := range []struct {
		wire         ErrorEstimate
		synchronized bool
		format       Format
		bound        int64
		ok           bool
	}{
		{0x8001, true, NTP, 1, true},
		{0x0001, false, NTP, 1, true},
		{0x3fff, false, NTP, math.MaxInt64, true},
		{0x88a8, true, NTP, 10_014, true}, // 10.0136 us
		{0x8587, true, NTP, 1_006, true},  // 1.00583 us
		{0xc8a8, true, PTP, 10_014, true},
		{0x4587, false, PTP, 1_006, true},
		{0x2001, false, NTP, second, true},
		{0x3f01, false, NTP, 1 << 31 * second, true},
		{0x3f04, false, NTP, 1 << 33 * second, true},
		{0x3f05, false, NTP, math.MaxInt64, true},
		{0x8800, true, NTP, 0, false},
		{0x0000, false, NTP, 0, false},
	} {
		t.Run(fmt.Sprintf("%04x", uint16(c.wire)), func(t *testing.T) {
			if got := c.wire.Synchronized(); got != c.synchronized {
				t.Errorf("synchronized: got %t, want %t", got, c.synchronized)
			}
			if got := c.wire.Format(); got != c.format {
				t.Errorf("format: got %d, want %d", got, c.format)
			}
			if got, ok := c.wire.Bound(); got != c.bound || ok != c.ok {
				t.Errorf("bound: got %d, %t, want %d, %t", got, ok, c.bound, c.ok)
			}
		})
	}
}

func TestNewErrorEstimate(t *testing.T) {
	for _, c := range []struct {
		synchronized bool
		format       Format
		errorNS      int64
		want         ErrorEstimate
	}{
		{true, NTP, 10_000, 0x88a8},
		{true, NTP, 1_000, 0x8587},
		{true, PTP, 10_000, 0xc8a8},
		{false, PTP, 1_000, 0x4587},
		{false, NTP, 0, 0x0001}, // case 25: the Multiplier is never 0
		{true, NTP, 59, 0x80fe},
		{true, NTP, 60, 0x8181},
		{true, NTP, -1, 0xbfff},
		{false, NTP, math.MinInt64, 0x3fff},
		{false, PTP, math.MaxInt64, 0x7fff},
		{false, NTP, 1<<32*second - 1, 0x3980},
		{false, NTP, 1 << 32 * second, 0x3fff},
	} {
		if got := NewErrorEstimate(c.synchronized, c.format, c.errorNS); got != c.want {
			t.Errorf("NewErrorEstimate(%t, %d, %d): got %#04x, want %#04x", c.synchronized, c.format, c.errorNS, got, c.want)
		}
	}
}

func TestAnErrorEstimateIsABound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		synchronized, f := rapid.Bool().Draw(t, "synchronized"), format().Draw(t, "format")
		shift := rapid.IntRange(2, 63).Draw(t, "shift") // any order of magnitude
		want := rapid.Int64Min(0).Draw(t, "error") >> shift
		e := NewErrorEstimate(synchronized, f, want)
		got, ok := e.Bound()
		if !ok || got < want || got-want > want/64+2 {
			t.Errorf("bound of %#04x: got %d, %t, want %d to %d", e, got, ok, want, want+want/64+2)
		}
		if e.Synchronized() != synchronized || e.Format() != f {
			t.Errorf("%#04x: got %t, %d, want %t, %d", e, e.Synchronized(), e.Format(), synchronized, f)
		}
	})
}
