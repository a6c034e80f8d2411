// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

var (
	// ErrNotSupported means that the kernel lacks something; the text says what
	// has it.
	ErrNotSupported = errors.New("not supported by this kernel")
	// ErrPermission means that the process lacks a right; the text says which.
	ErrPermission = errors.New("not permitted")

	errClosed = errors.New("datapath is closed")
)

// Obstacle is what stands between the programs and the kernel. Each takes
// another remedy.
type Obstacle uint8

// The obstacles.
const (
	OtherObstacle Obstacle = iota // or not known
	MissingRight                  // a capability
	MemlockLimit                  // RLIMIT_MEMLOCK, before Linux 5.11
	Lockdown                      // of the kernel
	Forbidden                     // by a user namespace, seccomp or a security module; the capabilities are there
	OldKernel
	MissingConfig // the kernel was built without something
)

// ObstacleOf tells the obstacle from an error of [Load], [LoadReflector] or an
// Attach.
func ObstacleOf(err error) Obstacle {
	var e *explained
	if errors.As(err, &e) {
		return e.obstacle
	}
	return OtherObstacle
}

// explained is an error whose cause we know better than the text below it does.
type explained struct {
	kind     error // ErrNotSupported or ErrPermission
	obstacle Obstacle
	why      string
	err      error // kept for errors.Is and As; its text guesses at the cause
}

func (e *explained) Error() string   { return fmt.Sprintf("%v: %s", e.kind, e.why) }
func (e *explained) Unwrap() []error { return []error{e.kind, e.err} }

func notSupported(o Obstacle, why string, err error) error {
	return &explained{kind: ErrNotSupported, obstacle: o, why: why, err: err}
}

func notPermitted(o Obstacle, why string, err error) error {
	return &explained{kind: ErrPermission, obstacle: o, why: why, err: err}
}

// host is what decides over a refusal.
type host struct {
	kernel       uint32 // version, as KERNEL_VERSION makes it; 0 if it is not known
	capabilities uint64 // effective
	memlock      error  // of raising RLIMIT_MEMLOCK; nil if it does not matter
	memlockLimit uint64 // bytes
	lockdown     string // of the kernel: "", none, integrity, confidentiality
	seccomp      bool   // the process has a seccomp filter
	ringBuffer   error  // of the probe for this type of map
}

func inspect(memlock error) host {
	h := host{memlock: memlock, ringBuffer: features.HaveMapType(ebpf.RingBuf)}
	h.kernel, _ = features.LinuxVersionCode() // 0 with an error
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err == nil {
		h.capabilities = uint64(data[1].Effective)<<32 | uint64(data[0].Effective)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err == nil {
		h.memlockLimit = limit.Cur
	}
	// "none [integrity] confidentiality"
	if b, err := os.ReadFile("/sys/kernel/security/lockdown"); err == nil {
		_, after, _ := strings.Cut(string(b), "[")
		h.lockdown, _, _ = strings.Cut(after, "]")
	}
	if b, err := os.ReadFile("/proc/thread-self/status"); err == nil {
		h.seccomp = strings.Contains(string(b), "\nSeccomp:\t2\n")
	}
	return h
}

// has says whether one of the capabilities is effective.
func (h host) has(capabilities ...int) bool {
	for _, c := range capabilities {
		if h.capabilities>>c&1 != 0 {
			return true
		}
	}
	return false
}

// linux68 is the first version whose verifier wants no CAP_PERFMON for our
// programs. Before 6.6 it lets nobody else compare a packet pointer with the
// packet's end (d75e30dddf73), and from 5.16 to 6.7 it takes parts of a number
// on the stack for a spilled pointer (ab125ed3ec1c); some stable kernels have one
// of the two.
const linux68 = 6<<16 | 8<<8

// linux511 is the first version that charges BPF maps to control groups rather
// than to RLIMIT_MEMLOCK.
const linux511 = 5<<16 | 11<<8

// explain finds the reason for an error of the kernel. The verifier's own
// refusals are left as they are, unless a capability would have kept it quiet.
func explain(err error, h host) error {
	var ve *ebpf.VerifierError
	switch {
	case errors.As(err, &ve) && len(ve.Log) > 0:
		if errors.Is(err, unix.EACCES) && h.kernel < linux68 && !h.has(unix.CAP_PERFMON, unix.CAP_SYS_ADMIN) {
			return notPermitted(MissingRight, "CAP_PERFMON is missing, which the verifier wants before Linux 6.8", err)
		}
		return err
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		o, why := h.missing()
		return notPermitted(o, why, err)
	case errors.Is(err, unix.ENOSYS) && h.seccomp:
		return notPermitted(Forbidden, "a seccomp filter keeps bpf(2) from this process", err)
	case errors.Is(err, unix.ENOSYS):
		return notSupported(MissingConfig, "bpf(2) needs CONFIG_BPF_SYSCALL", err)
	case errors.Is(h.ringBuffer, ebpf.ErrNotSupported):
		return notSupported(OldKernel, "the ring buffer needs Linux 5.8", err)
	}
	return err
}

func (h host) missing() (Obstacle, string) {
	bpf := h.has(unix.CAP_BPF, unix.CAP_SYS_ADMIN)
	net := h.has(unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN)
	switch {
	case !bpf && !net:
		return MissingRight, "CAP_BPF and CAP_NET_ADMIN are missing"
	case !bpf:
		return MissingRight, "CAP_BPF is missing (CAP_SYS_ADMIN does as well)"
	case !net:
		return MissingRight, "CAP_NET_ADMIN is missing"
	case h.memlock != nil && h.kernel < linux511:
		return MemlockLimit, fmt.Sprintf("RLIMIT_MEMLOCK of %d bytes is too low and CAP_SYS_RESOURCE is missing to raise it (before Linux 5.11)", h.memlockLimit)
	case h.lockdown == "confidentiality":
		return Lockdown, "the kernel is locked down (confidentiality)"
	}
	return Forbidden, "the capabilities are there, but the kernel refuses (a user namespace, seccomp or a security module)"
}
