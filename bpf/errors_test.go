// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Cases 60 and 61, where this kernel cannot show them.
func TestEveryRefusalIsExplainedByItsOwnCause(t *testing.T) {
	const all = 1<<unix.CAP_BPF | 1<<unix.CAP_NET_ADMIN
	// cilium/ebpf guesses at RLIMIT_MEMLOCK whatever the cause.
	eperm := fmt.Errorf("load program: %w (MEMLOCK may be too low, consider rlimit.RemoveMemlock)", unix.EPERM)
	verifier := fmt.Errorf("load program: %w", &ebpf.VerifierError{Cause: unix.EACCES, Log: []string{"R1 invalid mem access"}})
	noRing := fmt.Errorf("probe: %w", ebpf.ErrNotSupported)
	for _, c := range []struct {
		name     string
		err      error
		host     host
		kind     error // nil: left alone
		obstacle Obstacle
		text     string
	}{
		{"no capability", eperm, host{memlock: unix.EPERM}, ErrPermission, MissingRight, "CAP_BPF and CAP_NET_ADMIN are missing"},
		{"net admin alone", eperm, host{capabilities: 1 << unix.CAP_NET_ADMIN}, ErrPermission, MissingRight, "CAP_BPF is missing"},
		{"bpf alone", eperm, host{capabilities: 1 << unix.CAP_BPF}, ErrPermission, MissingRight, "CAP_NET_ADMIN is missing"},
		{"memlock", eperm, host{capabilities: all, memlock: unix.EPERM, memlockLimit: 65536}, ErrPermission, MemlockLimit, "RLIMIT_MEMLOCK of 65536 bytes is too low"},
		{"memlock of an admin", eperm, host{capabilities: 1 << unix.CAP_SYS_ADMIN, memlock: unix.EPERM}, ErrPermission, MemlockLimit, "RLIMIT_MEMLOCK"},
		{"lockdown", eperm, host{capabilities: all, lockdown: "confidentiality"}, ErrPermission, Lockdown, "locked down"},
		{"lockdown of integrity", eperm, host{capabilities: all, lockdown: "integrity"}, ErrPermission, Forbidden, "a security module"},
		{"no access", unix.EACCES, host{capabilities: all}, ErrPermission, Forbidden, "a security module"},
		{"verifier", verifier, host{kernel: linux68}, nil, OtherObstacle, "R1 invalid mem access"},
		{"verifier of an old kernel", verifier, host{kernel: linux68 - 1, capabilities: all}, ErrPermission, MissingRight, "CAP_PERFMON is missing"},
		{"verifier of an old kernel that leaves it be", verifier, host{kernel: linux68 - 1, capabilities: all | 1<<unix.CAP_PERFMON}, nil, OtherObstacle, "R1 invalid mem access"},
		{"no ring buffer", unix.EINVAL, host{capabilities: all, ringBuffer: noRing}, ErrNotSupported, OldKernel, "the ring buffer needs Linux 5.8"},
		{"memlock where it does not count", eperm, host{kernel: linux511, capabilities: all, memlock: unix.EPERM}, ErrPermission, Forbidden, "a security module"},
		{"no bpf", unix.ENOSYS, host{capabilities: all}, ErrNotSupported, MissingConfig, "CONFIG_BPF_SYSCALL"},
		{"seccomp", unix.ENOSYS, host{capabilities: all, seccomp: true}, ErrPermission, Forbidden, "a seccomp filter"},
		{"something else", unix.EINVAL, host{capabilities: all}, nil, OtherObstacle, "invalid argument"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := explain(c.err, c.host)
			if !strings.Contains(got.Error(), c.text) {
				t.Errorf("%q does not say %q", got, c.text)
			}
			if o := ObstacleOf(fmt.Errorf("load bpf: %w", got)); o != c.obstacle {
				t.Errorf("obstacle %d, want %d", o, c.obstacle)
			}
			for _, kind := range []error{ErrPermission, ErrNotSupported} {
				if want := errors.Is(c.kind, kind); errors.Is(got, kind) != want {
					t.Errorf("%v is %q: want %v", got, kind, want)
				}
			}
			if !errors.Is(got, c.err) {
				t.Errorf("%v has lost its cause", got)
			}
			if c.kind != nil && strings.Contains(got.Error(), "may be too low") {
				t.Errorf("%q passes on a guess", got)
			}
		})
	}
}
