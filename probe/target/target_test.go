// SPDX-License-Identifier: Apache-2.0

package target

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func valid() Target {
	t := Defaults()
	t.Name, t.Address = "ams-lon", "192.0.2.1"
	return t
}

func TestValidate(t *testing.T) {
	ok := valid()
	if err := ok.Validate(); err != nil {
		t.Fatalf("the default target is refused: %v", err)
	}
	tests := []struct {
		name string
		edit func(*Target)
		key  string
		want string
	}{
		{"empty name", func(t *Target) { t.Name = "" }, "name", "expected 1 to 128"},
		{"name with a space", func(t *Target) { t.Name = "a b" }, "name", `"a b"`},
		{"no address", func(t *Target) { t.Address = "" }, "address", "missing"},
		{"multicast address", func(t *Target) { t.Address = "224.0.0.1" }, "address", "unicast"},
		{"link-local without zone", func(t *Target) { t.Address = "fe80::1" }, "address", "zone"},
		{"port 0", func(t *Target) { t.Port = 0 }, "port", "1 to 65535"},
		{"long interface", func(t *Target) { t.Interface = strings.Repeat("e", 16) }, "interface", "15"},
		{"source of the other family", func(t *Target) { t.Source = netip.MustParseAddr("2001:db8::1") }, "source", "family"},
		{"unspecified source", func(t *Target) { t.Source = netip.IPv4Unspecified() }, "source", "unicast"},
		{"interval of 0", func(t *Target) { t.Interval = 0 }, "interval", "1ms"},
		{"timeout of 0", func(t *Target) { t.Timeout = 0 }, "timeout", "more than 0"},
		{"timeout of an hour", func(t *Target) { t.Timeout = time.Hour }, "timeout", "at most 1m"},
		{"negative late window", func(t *Target) { t.LateWindow = -1 }, "late_window", "0 to 1m"},
		{"unknown profile", func(t *Target) { t.Profile = "owamp" }, "profile", "stamp, twamp-light or doublezero"},
		{"size below the smallest", func(t *Target) { t.Size = 43 }, "size", "44"},
		{"size of doublezero", func(t *Target) { t.Profile, t.Size = ProfileDoubleZero, 100 }, "size", "exactly 48"},
		{"size beyond IPv4", func(t *Target) { t.Size = 65508 }, "size", "65507"},
		{"dscp 64", func(t *Target) { t.DSCP = 64 }, "dscp", "0 to 63"},
		{"ttl 0", func(t *Target) { t.TTL = 0 }, "ttl", "1 to 255"},
		{"timestamps", func(t *Target) { t.Timestamps = "kernel" }, "timestamps", "auto, bpf, socket or user"},
		{"attach", func(t *Target) { t.Attach = "generic" }, "attach", "auto, tcx, clsact or xdp"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			target := valid()
			tt.edit(&target)
			err := target.Validate()
			var field *FieldError
			if !errors.As(err, &field) {
				t.Fatalf("Validate() = %v, want a *FieldError", err)
			}
			if field.Key != tt.key || !strings.Contains(field.Error(), tt.want) {
				t.Errorf("Validate() = %q, want key %q and %q in it", field, tt.key, tt.want)
			}
		})
	}
}

func TestValidateReportsEveryFault(t *testing.T) {
	target := valid()
	target.DSCP, target.TTL, target.Port = 99, 0, 0
	err := target.Validate()
	for _, key := range []string{"dscp: ", "ttl: ", "port: "} {
		if !strings.Contains(err.Error(), key) {
			t.Errorf("Validate() = %v, want a line for %q", err, key)
		}
	}
}

func TestWindowHoldsTwiceWhatCanBeInFlight(t *testing.T) {
	tests := []struct {
		interval, timeout, late time.Duration
		want                    int
	}{
		{10 * time.Second, time.Second, 3 * time.Second, 4},
		{time.Second, time.Second, 3 * time.Second, 16},
		{10 * time.Millisecond, time.Second, time.Second, 512},
		{time.Millisecond, time.Second, 3 * time.Second, 8192},
	}
	for _, tt := range tests {
		target := Target{Interval: tt.interval, Timeout: tt.timeout, LateWindow: tt.late}
		if got := target.Window(); got != tt.want {
			t.Errorf("Window() at %s with %s + %s = %d, want %d", tt.interval, tt.timeout, tt.late, got, tt.want)
		}
	}
}
