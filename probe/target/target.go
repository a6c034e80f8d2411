// SPDX-License-Identifier: Apache-2.0

// Package target says what to measure. A Target is plain data that has been
// checked: whoever holds one from New may rely on every field.
package target

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"time"
)

// Timestamps says which clock a target's probes may be stamped with.
type Timestamps string

// The steps from the most to the least precise. Auto takes the best that the
// host allows; BPF does too, and calls anything less a fault.
const (
	TimestampsAuto   Timestamps = "auto"
	TimestampsBPF    Timestamps = "bpf"
	TimestampsSocket Timestamps = "socket"
	TimestampsUser   Timestamps = "user"
)

// Attach says by which hook the kernel half may be attached to an interface.
type Attach string

// Auto tries tcx, then clsact. XDP takes the time of replies in the driver, in
// front of what auto attaches.
const (
	AttachAuto   Attach = "auto"
	AttachTCX    Attach = "tcx"
	AttachClsact Attach = "clsact"
	AttachXDP    Attach = "xdp"
)

// Names of the wire profiles, as package twamp spells them.
const (
	ProfileSTAMP      = "stamp"
	ProfileTWAMPLight = "twamp-light"
	ProfileDoubleZero = "doublezero"
)

// minSize is the smallest UDP payload of each profile, in bytes.
var minSize = map[string]int{ProfileSTAMP: 44, ProfileTWAMPLight: 44, ProfileDoubleZero: 48}

// MaxSize is the largest UDP payload that IPv4 can carry, in bytes.
const MaxSize = 65507

// Target is one path to measure: a far reflector and how to probe it.
type Target struct {
	// Name identifies the path in samples and metrics.
	Name string
	// Address is the far reflector: an IP address (IPv6 with a zone where it
	// is link-local) or a host name, resolved again while it is in use.
	Address string
	Port    uint16
	// Interface, if set, is the only one that probes leave by and replies may
	// come in by.
	Interface string
	// Source is the local address; the zero value leaves it to the route.
	Source netip.Addr
	// SourcePort 0 is a random one, changed after a long loss.
	SourcePort uint16
	Labels     map[string]string

	Interval   time.Duration
	Timeout    time.Duration
	LateWindow time.Duration

	Profile string
	// Size is the UDP payload in bytes; 0 is the profile's smallest.
	Size int
	DSCP uint8
	TTL  uint8
	// DontFragment forbids fragments: a probe too big for its route is not
	// sent.
	DontFragment bool

	Timestamps Timestamps
	Attach     Attach
}

// Defaults is what a target gets where nothing is said: a STAMP probe of the
// smallest size to port 862 each 10 s.
func Defaults() Target {
	return Target{
		Port:       862,
		Interval:   10 * time.Second,
		Timeout:    time.Second,
		LateWindow: 3 * time.Second,
		Profile:    ProfileSTAMP,
		TTL:        255,
		Timestamps: TimestampsAuto,
		Attach:     AttachAuto,
	}
}

// namePattern keeps names usable as metric labels, file names and in shells.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)

// Validate says everything that is wrong with t, in one joined error whose
// parts each begin with the configuration key they are about.
func (t *Target) Validate() error {
	var errs []error
	bad := func(key, format string, args ...any) {
		errs = append(errs, &FieldError{Key: key, Err: fmt.Errorf(format, args...)})
	}
	if !namePattern.MatchString(t.Name) {
		bad("name", "%q: expected 1 to 128 letters, digits or . _ : - beginning with a letter or digit", t.Name)
	}
	if t.Address == "" {
		bad("address", "missing: expected an IP address or a host name")
	}
	if t.Port == 0 {
		bad("port", "0: expected 1 to 65535")
	}
	if len(t.Interface) > 15 {
		bad("interface", "%q: an interface name has at most 15 characters", t.Interface)
	}
	if t.Source.IsValid() && (t.Source.IsUnspecified() || t.Source.IsMulticast()) {
		bad("source", "%s: expected a unicast address of this host", t.Source)
	}
	if a, err := netip.ParseAddr(t.Address); err == nil {
		if t.Source.IsValid() && a.Unmap().Is4() != t.Source.Unmap().Is4() {
			bad("source", "%s: not of the same family as address %s", t.Source, t.Address)
		}
		if a.IsUnspecified() || a.IsMulticast() {
			bad("address", "%s: expected a unicast address", t.Address)
		}
		if a.Is6() && a.IsLinkLocalUnicast() && a.Zone() == "" && t.Interface == "" {
			bad("address", "%s: a link-local address needs a zone (%s%%eth0) or an interface", t.Address, t.Address)
		}
	}
	if t.Interval < time.Millisecond {
		bad("interval", "%s: expected at least 1ms", t.Interval)
	}
	if t.Timeout <= 0 || t.Timeout > time.Minute {
		bad("timeout", "%s: expected more than 0 and at most 1m", t.Timeout)
	}
	if t.LateWindow < 0 || t.LateWindow > time.Minute {
		bad("late_window", "%s: expected 0 to 1m", t.LateWindow)
	}
	if least, ok := minSize[t.Profile]; !ok {
		bad("profile", "%q: expected stamp, twamp-light or doublezero", t.Profile)
	} else if t.Size != 0 {
		switch {
		case t.Profile == ProfileDoubleZero && t.Size != least:
			bad("size", "%d: profile %s has exactly %d bytes", t.Size, t.Profile, least)
		case t.Size < least || t.Size > MaxSize:
			bad("size", "%d: expected 0 (the smallest) or %d to %d for profile %s", t.Size, least, MaxSize, t.Profile)
		}
	}
	if t.DSCP > 63 {
		bad("dscp", "%d: expected 0 to 63", t.DSCP)
	}
	if t.TTL == 0 {
		bad("ttl", "0: expected 1 to 255")
	}
	switch t.Timestamps {
	case TimestampsAuto, TimestampsBPF, TimestampsSocket, TimestampsUser:
	default:
		bad("timestamps", "%q: expected auto, bpf, socket or user", t.Timestamps)
	}
	switch t.Attach {
	case AttachAuto, AttachTCX, AttachClsact, AttachXDP:
	default:
		bad("attach", "%q: expected auto, tcx, clsact or xdp", t.Attach)
	}
	return errors.Join(errs...)
}

// FieldError is one fault of a target, with the configuration key it is about.
type FieldError struct {
	Key string
	Err error
}

func (e *FieldError) Error() string { return e.Key + ": " + e.Err.Error() }
func (e *FieldError) Unwrap() error { return e.Err }

// PayloadSize is the UDP payload of a probe in bytes.
func (t *Target) PayloadSize() int {
	if t.Size != 0 {
		return t.Size
	}
	return minSize[t.Profile]
}

// Expiry is how long after it was sent the outcome of a probe is final.
func (t *Target) Expiry() time.Duration { return t.Timeout + t.LateWindow }

// Rate is how many probes per second targets call for together.
func Rate(targets []Target) (perSecond float64) {
	for _, t := range targets {
		perSecond += float64(time.Second) / float64(t.Interval)
	}
	return perSecond
}

// CatchUp is for how much of its schedule, at least, an engine that was held up
// makes up afterwards.
const CatchUp = 100 * time.Millisecond

// Window is how many probes can be without a final outcome at once: a power
// of two, at least 2 x (timeout + late window) / interval + 2, and what CatchUp
// may send in one instant. It sizes the in-flight table of a path and its slots
// in the kernel.
func (t *Target) Window() int {
	need := 2*int((t.Expiry()+t.Interval-1)/t.Interval) + 2 + int(CatchUp/t.Interval)
	n := 4
	for n < need {
		n <<= 1
	}
	return n
}
