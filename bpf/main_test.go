// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"os"
	"testing"

	"go.uber.org/goleak"
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
