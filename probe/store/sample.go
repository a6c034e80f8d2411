// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// PathID names a path within one store file. It stays the same for the life of the file and of the process; 0 is never used.
type PathID uint32

// Path is one measured path. Name is its identity for users, Labels are persisted with it.
type Path struct {
	ID     PathID
	Name   string
	Labels map[string]string
}

// Outcome is what became of one probe. The values are part of the file format.
type Outcome uint8

const (
	OnTime  Outcome = iota // answered within the timeout
	Late                   // answered within the late window after it
	Lost                   // no answer by then
	NotSent                // never left the host; see Reason
	Unknown                // cannot be told; see Reason
)

var outcomes = [...]string{"on_time", "late", "lost", "not_sent", "unknown"}

func (o Outcome) String() string { return enumName(outcomes[:], uint8(o)) }

// Reason says why a probe is NotSent or Unknown. The values are part of the file format.
type Reason uint8

const (
	NoReason Reason = iota
	NoInterface
	NoCarrier
	NoRoute
	TooBig
	NoBuffer
	Permission
	ClockStep
	InterfaceGone
)

var reasons = [...]string{"", "no_interface", "no_carrier", "no_route", "too_big", "no_buffer", "permission", "clock_step", "interface_gone"}

// String returns the reason in snake case, "" for NoReason.
func (r Reason) String() string { return enumName(reasons[:], uint8(r)) }

// Source says where a timestamp was taken. The values are part of the file format.
type Source uint8

const (
	NoSource Source = iota
	Hardware
	TCEgress
	XDP
	TCIngress
	Socket
	User
)

var sources = [...]string{"", "hardware", "tc_egress", "xdp", "tc_ingress", "socket", "user"}

// String returns the source in snake case, "" for NoSource.
func (s Source) String() string { return enumName(sources[:], uint8(s)) }

func enumName(names []string, v uint8) string {
	if int(v) < len(names) {
		return names[v]
	}
	return "invalid(" + strconv.Itoa(int(v)) + ")"
}

// Sample is the final result of one probe.
type Sample struct {
	Seq  uint64    // number on its path: assigned by Append, from 0, never reused
	Mono int64     // CLOCK_MONOTONIC ns of sending, in the boot that wrote it
	Time time.Time // wall time of sending, UTC; filled by readers; zero = not known

	Outcome Outcome
	Reason  Reason

	RTT, Dwell                     int64 // ns; RTT exists exactly for OnTime and Late, Dwell where HasDwell
	Forward, Backward, OneWayError int64 // ns; exist where HasOneWay
	HasDwell, HasOneWay            bool
	TX, RX                         Source
	TTL, RemoteTTL                 uint8 // 0 = not known
}

// hasRTT: for every other outcome an RTT has no meaning and is not stored.
func (s *Sample) hasRTT() bool { return s.Outcome == OnTime || s.Outcome == Late }

func (s *Sample) validate() error {
	switch {
	case int(s.Outcome) >= len(outcomes):
		return fmt.Errorf("outcome %d does not exist", s.Outcome)
	case int(s.Reason) >= len(reasons):
		return fmt.Errorf("reason %d does not exist", s.Reason)
	case int(s.TX) >= len(sources):
		return fmt.Errorf("tx source %d does not exist", s.TX)
	case int(s.RX) >= len(sources):
		return fmt.Errorf("rx source %d does not exist", s.RX)
	}
	return nil
}

// Record is one sample to append. Seq and Time of the sample are ignored.
type Record struct {
	Path   PathID
	Sample Sample
}

const jsonTime = "2006-01-02T15:04:05.000000000Z07:00"

// AppendJSON appends the sample as one JSON object without a newline. What is not known is left out; device "" is left out too.
func (s Sample) AppendJSON(dst []byte, device, path string) []byte {
	dst = append(dst, '{')
	if device != "" {
		dst = appendString(append(dst, `"device":`...), device)
		dst = append(dst, ',')
	}
	dst = appendString(append(dst, `"path":`...), path)
	dst = strconv.AppendUint(append(dst, `,"seq":`...), s.Seq, 10)
	if !s.Time.IsZero() {
		dst = s.Time.UTC().AppendFormat(append(dst, `,"time":"`...), jsonTime)
		dst = append(dst, '"')
	}
	dst = appendEnum(append(dst, `,"outcome":`...), s.Outcome.String())
	if s.Reason != NoReason {
		dst = appendEnum(append(dst, `,"reason":`...), s.Reason.String())
	}
	if s.hasRTT() {
		dst = strconv.AppendInt(append(dst, `,"rtt_ns":`...), s.RTT, 10)
	}
	if s.HasDwell {
		dst = strconv.AppendInt(append(dst, `,"dwell_ns":`...), s.Dwell, 10)
	}
	if s.HasOneWay {
		dst = strconv.AppendInt(append(dst, `,"forward_ns":`...), s.Forward, 10)
		dst = strconv.AppendInt(append(dst, `,"backward_ns":`...), s.Backward, 10)
		dst = strconv.AppendInt(append(dst, `,"one_way_error_ns":`...), s.OneWayError, 10)
	}
	if s.TX != NoSource {
		dst = appendEnum(append(dst, `,"tx":`...), s.TX.String())
	}
	if s.RX != NoSource {
		dst = appendEnum(append(dst, `,"rx":`...), s.RX.String())
	}
	if s.TTL != 0 {
		dst = strconv.AppendUint(append(dst, `,"ttl":`...), uint64(s.TTL), 10)
	}
	if s.RemoteTTL != 0 {
		dst = strconv.AppendUint(append(dst, `,"remote_ttl":`...), uint64(s.RemoteTTL), 10)
	}
	return append(dst, '}')
}

func appendEnum(dst []byte, name string) []byte {
	return append(append(append(dst, '"'), name...), '"')
}

func appendString(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, err := json.Marshal(s)
			if err != nil { // a string always marshals
				panic(err)
			}
			return append(dst, quoted...)
		}
	}
	return appendEnum(dst, s)
}
