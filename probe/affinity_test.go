// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/netns/netnstest"
	"github.com/xtwamp/xtwamp/probe/target"
)

// onThread calls fn on a thread that ends with it.
func onThread(fn func()) {
	var done sync.WaitGroup
	done.Go(func() {
		runtime.LockOSThread()
		fn()
	})
	done.Wait()
}

// keepOn has the calling thread run on one CPU only.
func keepOn(t *testing.T, cpu int) {
	t.Helper()
	var only unix.CPUSet
	only.Set(cpu)
	if err := unix.SchedSetaffinity(0, &only); err != nil {
		t.Error(err)
	}
}

// needTwoCPUs skips the test where there are not.
func needTwoCPUs(t *testing.T) {
	t.Helper()
	if len(netnstest.ThreadCPUs()) < 2 {
		t.Skip("this takes two CPUs")
	}
}

func TestAffinity(t *testing.T) {
	t.Run("two CPUs", func(t *testing.T) {
		needTwoCPUs(t)
		onThread(func() {
			before := netnstest.ThreadCPUs()
			a, err := newAffinity()
			if err != nil {
				t.Error(err)
				return
			}
			ran := func(late time.Duration, cpu int, want []int) {
				t.Helper()
				if err := a.ran(late); err != nil {
					t.Error(err)
				}
				if got := netnstest.ThreadCPUs(); !slices.Equal(got, want) {
					t.Errorf("%v late it may run on %v, want %v", late, got, want)
				}
				if a.cpu != cpu {
					t.Errorf("%v late it is kept on %d, want %d", late, a.cpu, cpu)
				}
			}
			if err := a.ran(0); err != nil {
				t.Error(err)
			}
			first := a.cpu
			ran(heldFor, first, []int{first})
			ran(heldFor+1, -1, before)
			ran(heldFor+1, -1, before)

			// The kernel takes a CPU away, and gives another.
			second := before[(slices.Index(before, first)+1)%len(before)]
			keepOn(t, second)
			ran(0, second, []int{second})
			a.end()
			if got := netnstest.ThreadCPUs(); !slices.Equal(got, before) {
				t.Errorf("in the end it may run on %v, want %v", got, before)
			}
		})
	})
	t.Run("one CPU", func(t *testing.T) {
		onThread(func() {
			cpu, err := currentCPU()
			if err != nil {
				t.Error(err)
			}
			keepOn(t, cpu)
			a, err := newAffinity()
			if a != nil || err != nil {
				t.Errorf("got %v, %v, want nothing to do", a, err)
			}
			for _, late := range []time.Duration{0, time.Second} {
				if err := a.ran(late); err != nil {
					t.Error(err)
				}
			}
			a.end()
			if got := netnstest.ThreadCPUs(); !slices.Equal(got, []int{cpu}) {
				t.Errorf("it may run on %v, want %v", got, cpu)
			}
		})
	})
}

// Sending stays on one CPU until something of higher priority holds it, and then on another.
func TestSendingStaysOnACPUThatIsToBeHad(t *testing.T) {
	needTwoCPUs(t)
	near, far := link(t)
	reflectIn(t, far, nil)
	var kept atomic.Int64
	const nowhere = -1
	kept.Store(nowhere)
	begin(t, near, func(c *Config) {
		c.Beat = func(time.Duration) { // by the thread that sends
			if cpus := netnstest.ThreadCPUs(); len(cpus) == 1 {
				kept.Store(int64(cpus[0]))
			} else {
				kept.Store(nowhere)
			}
		}
	}, to(farAddr, func(t *target.Target) { t.Interval = 20 * ms }))
	await(t, "CPU that sending stays on", func() bool { return kept.Load() != nowhere })

	first := kept.Load()
	holder := exec.CommandContext(t.Context(), "chrt", "--fifo", "1", "taskset", "--cpu-list", strconv.FormatInt(first, 10),
		"sh", "-c", "ulimit -t 60; while :; do :; done") // each executes the next in its place
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = holder.Wait() }) // the test's end has killed it
	await(t, "other CPU that sending stays on", func() bool { now := kept.Load(); return now != nowhere && now != first })
	if err := holder.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("CPU %d was not held: %v", first, err)
	}
}
