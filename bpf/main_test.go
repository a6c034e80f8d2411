// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"io"
	"os"
	"testing"

	"github.com/cilium/ebpf/features"
	"go.uber.org/goleak"

	"github.com/xtwamp/xtwamp/netns"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		os.Exit(runChild(role))
	}
	goleak.VerifyTestMain(m)
}

// requireRoot skips a test that needs root, or fails it where skipping would
// hide that it did not run.
func requireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("XTWAMP_REQUIRE_ROOT") == "1" {
		t.Fatal("needs root, and XTWAMP_REQUIRE_ROOT=1 forbids to skip")
	}
	t.Skip("needs root")
}

func testLoad(t testing.TB, cfg Config) *Datapath {
	t.Helper()
	requireRoot(t)
	d, err := load(cfg, true)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// kernelHas says whether the kernel is as new as the version.
func kernelHas(major, minor uint32) (bool, error) {
	version, err := features.LinuxVersionCode()
	return version >= major<<16|minor<<8, err
}

// bestTC is the hook of tc that the kernel has to have.
func bestTC() (Hook, error) {
	tcx, err := kernelHas(6, 6)
	if tcx || err != nil {
		return TCX, err
	}
	return Clsact, nil
}

func tcHook(t testing.TB) Hook {
	t.Helper()
	h, err := bestTC()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// requireTCX skips what is about tcx alone where there is none.
func requireTCX(t testing.TB) {
	t.Helper()
	if tcHook(t) != TCX {
		t.Skip("tcx needs Linux 6.6")
	}
}

// ownFilters adds filters to the namespace of a process that never leaves it.
type ownFilters struct{}

func (ownFilters) AddFilter(ifindex int, egress bool, progFD int, name string) (io.Closer, error) {
	direction := netns.Ingress
	if egress {
		direction = netns.Egress
	}
	return netns.AddFilter(ifindex, direction, progFD, name)
}

// filters adds filters that can be asked and closed from any namespace.
type filters struct{}

func (filters) AddFilter(ifindex int, egress bool, progFD int, name string) (io.Closer, error) {
	ns, err := netns.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	f, err := ownFilters{}.AddFilter(ifindex, egress, progFD, name)
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return &filter{f.(*netns.Filter), ns}, nil
}

type filter struct {
	*netns.Filter
	ns *netns.Namespace
}

func (f *filter) Close() error {
	return errors.Join(f.ns.Do(f.Filter.Close), f.ns.Close())
}

func (f *filter) Alive() (alive bool) {
	err := f.ns.Do(func() error {
		alive = f.Filter.Alive()
		return nil
	})
	return alive && err == nil
}
