// SPDX-License-Identifier: Apache-2.0

// Package twamp encodes and decodes unauthenticated TWAMP-Light (RFC 5357 appendix I), STAMP (RFC 8762, with the session
// identifier and the TLV headers of RFC 8972) and DoubleZero test packets, for the sender and for the reflector.
//
// It promises that what it writes is exact to the byte and that nothing it reads can make it fail: every input is either
// decoded or refused with an error. It does no I/O, keeps no state, works in the caller's buffers and allocates nothing
// unless it returns an error of [PutRequest] or of the text functions. All functions may be called concurrently.
//
// A packet is always the UDP payload. All times are nanoseconds.
package twamp

import (
	"errors"
	"fmt"
)

// DefaultPort is the UDP port of the TWAMP-Test and STAMP reflector (RFC 8545).
const DefaultPort = 862

var (
	// ErrSize says that a packet of this size does not exist in the profile.
	ErrSize = errors.New("twamp: impossible packet size")
	// ErrPadding says that padding which has to be zero is not.
	ErrPadding = errors.New("twamp: padding is not zero")
)

// A Profile is a dialect of the test packets.
type Profile uint8

const (
	// STAMP is RFC 8762 with the SSID and the TLVs of RFC 8972.
	STAMP Profile = iota
	// TWAMPLight is RFC 5357 appendix I.
	TWAMPLight
	// DoubleZero is a 48-byte packet that comes back unchanged: sequence number, NTP time, zeros.
	DoubleZero
)

var profileNames = [...]string{STAMP: "stamp", TWAMPLight: "twamp-light", DoubleZero: "doublezero"}

// ParseProfile is the inverse of [Profile.String].
func ParseProfile(s string) (Profile, error) {
	for p, name := range profileNames {
		if s == name {
			return Profile(p), nil
		}
	}
	return 0, fmt.Errorf("unknown profile %q: want stamp, twamp-light or doublezero", s)
}

func (p Profile) String() string {
	if int(p) < len(profileNames) {
		return profileNames[p]
	}
	return fmt.Sprintf("Profile(%d)", uint8(p))
}

// MarshalText implements [encoding.TextMarshaler].
func (p Profile) MarshalText() ([]byte, error) {
	if int(p) >= len(profileNames) {
		return nil, fmt.Errorf("unknown profile %d", uint8(p))
	}
	return []byte(profileNames[p]), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (p *Profile) UnmarshalText(text []byte) error {
	parsed, err := ParseProfile(string(text))
	if err != nil {
		return err
	}
	*p = parsed
	return nil
}

// MinSize returns the smallest request that is sent, in bytes of UDP payload. TWAMP-Light could do with 14, but then the
// answer would be longer than the request, and the two directions would not be alike.
func (p Profile) MinSize() int {
	if p == DoubleZero {
		return doubleZeroSize
	}
	return baseSize
}
