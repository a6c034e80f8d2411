// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/netns/netnstest"
	"github.com/xtwamp/xtwamp/probe/target"
)

func diagnose(t *testing.T, ns *netns.Namespace, to target.Target, want Diagnosis) {
	t.Helper()
	got, err := Diagnose(t.Context(), ns, to, netip.MustParseAddr(to.Address))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("diagnosis of %s (-want +got):\n%s", to.Address, diff)
	}
}

// echo48 is a far side that knows nothing but the 48-byte echo.
func echo48(b []byte) []byte {
	if len(b) != 48 || !bytes.Equal(b[12:], make([]byte, 36)) {
		return nil
	}
	return b
}

func TestDiagnoseWhatTheFarSideAnswers(t *testing.T) {
	profile := func(name string) func(*target.Target) {
		return func(t *target.Target) { t.Profile = name }
	}
	for _, tt := range []struct {
		name   string
		answer func([]byte) []byte
		to     target.Target
		want   Diagnosis
	}{
		{"its profile", shortAnswer, to(farAddr, nil), Diagnosis{Cause: Answers}},
		{"doublezero to stamp", echo48, to(farAddr, nil), Diagnosis{Cause: OtherProfile, Profile: "doublezero"}},
		{"doublezero to twamp-light by IPv6", echo48, to(farAddr6, profile("twamp-light")), Diagnosis{Cause: OtherProfile, Profile: "doublezero"}},
		{"stamp to doublezero", shortAnswer, to(farAddr, profile("doublezero")), Diagnosis{Cause: OtherProfile, Profile: "stamp"}},
		{"small packets only", func(b []byte) []byte {
			if len(b) > 100 {
				return nil
			}
			return shortAnswer(b)
		}, to(farAddr, func(t *target.Target) { t.Size = 1000 }), Diagnosis{Cause: OtherSize}},
		{"something else", func(b []byte) []byte { return []byte("what?") }, to(farAddr, nil), Diagnosis{Cause: OtherAnswer}},
		{"nothing", func([]byte) []byte { return nil }, to(farAddr, nil), Diagnosis{Cause: SilentPort}},
		{"nothing by IPv6", func([]byte) []byte { return nil }, to(farAddr6, nil), Diagnosis{Cause: SilentPort}},
		{"from another address", shortAnswer, to("10.1.0.3", nil), Diagnosis{Cause: OtherAddress, From: netip.MustParseAddr(farAddr)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // each waits for what does not come
			near, far := link(t)
			far.Exec(t, "ip", "address", "add", "10.1.0.3/24", "dev", "eth1")
			answerIn(t, far, tt.answer)
			diagnose(t, namespace(t, near), tt.to, tt.want)
		})
	}
}

func TestDiagnoseTheWay(t *testing.T) {
	near, far := link(t)
	setting := func(key, value string) {
		t.Helper()
		if err := far.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/"+key, []byte(value), 0) }); err != nil {
			t.Fatal(err)
		}
	}
	setting("ip_forward", "1")
	setting("icmp_ratelimit", "0")
	// Of errors of its routes a host tells another five in a row, then one a second, whatever its settings are: so two ask from addresses of
	// their own.
	for _, own := range []string{"10.1.0.4/24", "10.1.0.5/24"} {
		near.Exec(t, "ip", "address", "add", own, "dev", "eth1")
	}
	from := func(source string) func(*target.Target) {
		return func(t *target.Target) { t.Source = netip.MustParseAddr(source) }
	}
	near.Exec(t, "ip", "route", "add", "10.2.0.0/16", "via", farAddr)
	near.Exec(t, "ip", "route", "add", "10.3.0.0/24", "via", "10.1.0.98")
	far.Exec(t, "ip", "route", "add", "prohibit", "10.2.1.0/24")
	far.Exec(t, "ip", "route", "add", "blackhole", "10.2.2.0/24")
	far.Exec(t, "ip", "route", "add", "10.2.3.0/24", "dev", "eth1", "mtu", "lock", "1000")
	ns := namespace(t, near)
	router := netip.MustParseAddr(farAddr)
	t.Run("together", func(t *testing.T) {
		for _, tt := range []struct {
			name string
			to   target.Target
			want Diagnosis
		}{
			{"nobody listens", to(farAddr, nil), Diagnosis{Cause: Refused, From: router}},
			{"nobody listens IPv6", to(farAddr6, nil), Diagnosis{Cause: Refused, From: netip.MustParseAddr(farAddr6)}},
			{"prohibited", to("10.2.1.1", from("10.1.0.4")), Diagnosis{Cause: Prohibited, From: router}},
			{"silence", to("10.2.2.1", nil), Diagnosis{Cause: Silence}},
			{"no way on", to("10.2.4.1", from("10.1.0.5")), Diagnosis{Cause: Unreachable, From: router}},
			{"too big", to("10.2.3.1", func(t *target.Target) { t.Size, t.DontFragment = 1200, true }), Diagnosis{Cause: TooBig, From: router}},
			{"ttl", to("10.2.3.1", func(t *target.Target) { t.TTL = 1 }), Diagnosis{Cause: Expired, From: router}},
			{"no neighbour", to("10.1.0.99", nil), Diagnosis{Cause: NoNeighbour, From: netip.MustParseAddr("10.1.0.99")}},
			{"no neighbour IPv6", to("2001:db8::99", nil), Diagnosis{Cause: NoNeighbour, From: netip.MustParseAddr("2001:db8::99")}},
			{"no next hop", to("10.3.0.1", nil), Diagnosis{Cause: NoNeighbour, From: netip.MustParseAddr("10.1.0.98")}},
		} {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				diagnose(t, ns, tt.to, tt.want)
			})
		}
	})
	if _, err := Diagnose(t.Context(), ns, to("192.0.2.1", nil), netip.MustParseAddr("192.0.2.1")); !errors.Is(err, netns.ErrNoRoute) {
		t.Errorf("without a route: %v", err)
	}
}

func TestTryLadder(t *testing.T) {
	near, _ := link(t)
	near.Exec(t, "ip", "tuntap", "add", "tun0", "mode", "tun")
	ns := namespace(t, near)
	var links []netns.Link
	if err := ns.Do(func() (err error) {
		links, err = netns.Links()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	strange := netns.Link{Index: 1 << 30, Name: "strange", Type: 280} // CAN
	before := bpfFiles(t)
	got, err := TryLadder(ns, append(links, strange))
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range got {
		switch {
		case a.Interface == "strange" && (a.Step != StepSocket || a.Refusals() != "tcx:ENOTSUP"):
			t.Errorf("a CAN bus has %s, refused %s", a.Step, a.Refusals())
		case a.Interface != "strange" && a.Step != bestTC():
			t.Errorf("%s has %s, refused %s", a.Interface, a.Step, a.Refusals())
		}
	}
	if after := bpfFiles(t); after != before {
		t.Errorf("%d programs, maps and links are open, %d before", after, before)
	}
	if out := near.Exec(t, "tc", "filter", "show", "dev", "eth1", "ingress"); out != "" {
		t.Errorf("left at eth1: %s", out)
	}
}

// bpfFiles counts what this process holds of BPF. Nothing is pinned, so what is
// attached is among it.
func bpfFiles(t *testing.T) (n int) {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if to, err := os.Readlink(f); err == nil && strings.Contains(to, "bpf") {
			n++
		}
	}
	return n
}

func TestTryListen(t *testing.T) {
	ns := netnstest.New(t).Namespace("one")
	cfg := ReflectorConfig{Listen: []netip.AddrPort{netip.AddrPortFrom(netip.Addr{}, 862)}, Namespace: namespace(t, ns)}
	for range 2 { // it leaves the port free
		if err := cfg.TryListen(); err != nil {
			t.Fatal(err)
		}
	}
	reflectIn(t, ns, nil)
	var taken *PortTakenError
	if err := cfg.TryListen(); !errors.As(err, &taken) || taken.PID != os.Getpid() {
		t.Errorf("on a taken port: %v, want it to be process %d", err, os.Getpid())
	}
}
