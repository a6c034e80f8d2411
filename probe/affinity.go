// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// heldFor is how late a thread may run before its CPU counts as somebody else's.
const heldFor = 10 * time.Millisecond

// affinity keeps a thread on the CPU where it is. Whoever sends from another CPU than before finds the kernel's data of the way
// to the interface and back in the caches of the former: on a busy machine a round trip over veth took 5 us so at the 90th
// percentile, 2 us without, and the wait for those lines is part of the RTT. It also has all probes take the same queue of an
// interface. A CPU that somebody holds, a process of real-time priority say, is left. One goroutine uses it.
type affinity struct {
	allowed unix.CPUSet // where the thread may run otherwise
	cpu     int         // where it is kept; -1: nowhere
}

// newAffinity ties the calling goroutine to its thread, until end. It is nil, which does nothing, if the thread may run on one CPU
// only.
func newAffinity() (*affinity, error) {
	a := &affinity{cpu: -1}
	runtime.LockOSThread()
	if err := unix.SchedGetaffinity(0, &a.allowed); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("ask for the thread's CPUs: %w", err)
	}
	if a.allowed.Count() == 1 {
		runtime.UnlockOSThread()
		return nil, nil
	}
	return a, nil
}

// ran is told how late the thread ran. If in time, it is kept on the CPU where it is now, which is another one when the kernel has
// taken the former away (CPU hotplug, cpusets); if late, it may run on any until it is in time.
func (a *affinity) ran(late time.Duration) error {
	switch {
	case a == nil:
		return nil
	case late > heldFor:
		return a.leave()
	}
	cpu, err := currentCPU()
	if err != nil || cpu == a.cpu {
		return err
	}
	var only unix.CPUSet
	only.Set(cpu)
	if err := unix.SchedSetaffinity(0, &only); err != nil {
		return fmt.Errorf("keep the thread on CPU %d: %w", cpu, err)
	}
	a.cpu = cpu
	return nil
}

// leave lets the thread run wherever it could before.
func (a *affinity) leave() error {
	if a.cpu < 0 {
		return nil
	}
	if err := unix.SchedSetaffinity(0, &a.allowed); err != nil {
		return fmt.Errorf("let the thread leave CPU %d: %w", a.cpu, err)
	}
	a.cpu = -1
	return nil
}

// end frees the thread from its CPU and the goroutine from the thread. One that cannot be freed ends with the goroutine.
func (a *affinity) end() {
	if a != nil && a.leave() == nil {
		runtime.UnlockOSThread()
	}
}

// currentCPU is where the calling thread runs (getcpu(2), since Linux 2.6.19).
func currentCPU() (int, error) {
	var cpu uint32
	if _, _, errno := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0); errno != 0 {
		return 0, fmt.Errorf("ask for the thread's CPU: %w", errno)
	}
	return int(cpu), nil
}
