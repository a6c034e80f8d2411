// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAllowFiles(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := allowFiles(0); err != nil {
		t.Errorf("nothing to raise: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil && unix.Geteuid() == 0 {
			t.Error(err)
		}
	})
	const low = 1000
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: low, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	if err := allowFiles(500); err != nil {
		t.Fatal(err)
	}
	var got unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &got); err != nil {
		t.Fatal(err)
	}
	if got.Cur != 1256 || got.Max != before.Max {
		t.Errorf("limits %+v, want 1256 and %d", got, before.Max)
	}
	// More than any kernel allows.
	if err := allowFiles(1 << 40); !errors.Is(err, unix.EPERM) {
		t.Errorf("got %v, want %v", err, unix.EPERM)
	}
}
