// SPDX-License-Identifier: Apache-2.0

package twamp

import "math"

const (
	second    = 1_000_000_000 // ns
	ntpOrigin = 2_208_988_800 // seconds from 1900, where NTP time begins, to 1970
)

// A Format says how a [Timestamp] counts. Its values are those of the Z bit of the Error Estimate (RFC 8186).
type Format uint8

const (
	// NTP is seconds since 1900 and units of 2^-32 s. It wraps on 2036-02-07.
	NTP Format = iota
	// PTP is the truncated time of IEEE 1588: the low 32 bits of seconds since 1970, and nanoseconds. IEEE 1588 counts
	// TAI; like many senders, this package writes UTC.
	PTP
)

// origin returns what the format's seconds are ahead of Unix seconds.
func (f Format) origin() int64 {
	if f == PTP {
		return 0
	}
	return ntpOrigin
}

// A Timestamp is the eight bytes of a time on the wire, as a big-endian number. What it means depends on a [Format].
type Timestamp uint64

// FromUnix returns the time stamp for ns nanoseconds since 1970 UTC.
//
// An NTP fraction is rounded up and [Timestamp.Unix] rounds down. As a nanosecond is more than four units of 2^-32 s, this
// returns every nanosecond as it was, also in other readers that round down, as they do. Rounding down on both sides would
// lose 1 ns nearly always.
func FromUnix(f Format, ns int64) Timestamp {
	sec, nsec := splitUnix(ns)
	low := uint64(nsec)
	if f == NTP {
		low = (low<<32 + second - 1) / second
	}
	return Timestamp(uint64(sec+f.origin())<<32 | low)
}

// Unix returns t in nanoseconds since 1970 UTC. Of the moments that t may mean, 2^32 s (136 years) apart, it chooses the
// one nearest to near, which is the reader's own idea of the time in nanoseconds since 1970.
func (t Timestamp) Unix(f Format, near int64) int64 {
	sec, _ := splitUnix(near)
	away := int32(t.seconds() - uint32(sec+f.origin()))
	return (sec+int64(away))*second + t.nanoseconds(f)
}

// Sub returns t-u in nanoseconds, for two time stamps of the same format that lie less than 68 years apart. It is right
// across the wrap of the seconds, and exact if both were whole nanoseconds when they were encoded.
func (t Timestamp) Sub(u Timestamp, f Format) int64 {
	return int64(int32(t.seconds()-u.seconds()))*second + t.nanoseconds(f) - u.nanoseconds(f)
}

func (t Timestamp) seconds() uint32 { return uint32(t >> 32) }

// nanoseconds returns the part below one second. A broken PTP sender can make it up to 2^32-1.
func (t Timestamp) nanoseconds(f Format) int64 {
	low := uint64(uint32(t))
	if f == NTP {
		low = low * second >> 32
	}
	return int64(low)
}

// splitUnix splits ns into seconds and 0..999,999,999 ns, also before 1970.
func splitUnix(ns int64) (sec, nsec int64) {
	sec, nsec = ns/second, ns%second
	if nsec < 0 {
		sec, nsec = sec-1, nsec+second
	}
	return sec, nsec
}

// An ErrorEstimate is the field that says how good the time stamps beside it are (RFC 4656 section 4.1.2, RFC 8186): S
// (synchronised to UTC), Z (the format), six bits Scale and eight bits Multiplier. The error is
// Multiplier * 2^Scale * 2^-32 s.
type ErrorEstimate uint16

const (
	estimateS ErrorEstimate = 1 << 15
	estimateZ ErrorEstimate = 1 << 14
	// estimateUnknown is the largest error that there is, 17,000 years.
	estimateUnknown ErrorEstimate = 0x3fff
)

// NewErrorEstimate returns an estimate of errorNS nanoseconds, which is never below it and at most 1/64 above. An errorNS
// that is negative or over 136 years becomes the largest estimate there is, which stands for "not known". The Multiplier is
// never 0.
func NewErrorEstimate(synchronized bool, f Format, errorNS int64) ErrorEstimate {
	e := estimateUnknown
	if sec, nsec := errorNS/second, errorNS%second; errorNS >= 0 && sec < 1<<32 {
		units := uint64(sec)<<32 + uint64(nsec)<<32/second
		scale := 0
		for ; units >= math.MaxUint8; scale++ {
			units >>= 1
		}
		e = ErrorEstimate(scale<<8) | ErrorEstimate(units+1) // +1: the bits shifted out
	}
	if synchronized {
		e |= estimateS
	}
	if f == PTP {
		e |= estimateZ
	}
	return e
}

// Synchronized reports whether the clock says that an external source keeps it at UTC.
func (e ErrorEstimate) Synchronized() bool { return e&estimateS != 0 }

// Format returns the format of the time stamps that e is about.
func (e ErrorEstimate) Format() Format {
	if e&estimateZ != 0 {
		return PTP
	}
	return NTP
}

// Bound returns the error in nanoseconds, rounded up, at most [math.MaxInt64]. It is false if the Multiplier is 0, which
// RFC 4656 forbids but which is seen: such an estimate says nothing, and one-way values cannot be built on it.
func (e ErrorEstimate) Bound() (ns int64, ok bool) {
	multiplier, scale := uint64(e&0xff), e>>8&0x3f
	if multiplier == 0 {
		return 0, false
	}
	bound := multiplier * second // times 2^(scale-32)
	if scale <= 32 {
		down := 32 - scale
		return int64((bound + 1<<down - 1) >> down), true
	}
	up := scale - 32
	if bound > math.MaxInt64>>up {
		return math.MaxInt64, true
	}
	return int64(bound << up), true
}

// sent returns e as it may go out. RFC 4656 forbids a Multiplier of 0 and receivers drop it, and a 48-byte TWAMP-Light
// request with an estimate of 0 would be taken for a DoubleZero one. So an estimate that nobody filled in says "unknown".
func (e ErrorEstimate) sent() ErrorEstimate {
	if e&0xff == 0 {
		e |= estimateUnknown
	}
	return e
}
