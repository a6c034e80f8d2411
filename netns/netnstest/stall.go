// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	stallLook = 20 * time.Millisecond
	// stallFrom is how long a CPU has to do nothing to stand still. On one that is merely busy, what waits runs sooner.
	stallFrom = 250 * time.Millisecond
)

// cpus are those that this process may use, asked before any thread of it is tied to one.
var cpus = ThreadCPUs()

// ThreadCPUs are the numbers of the CPUs that the calling thread may run on, ascending.
func ThreadCPUs() (cpus []int) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		panic(err) // it has room for 1,024
	}
	for cpu := range len(allowed) * 64 {
		if allowed.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// Stalls knows when a CPU of the machine stood still. A virtual machine's do so for seconds at times, and whatever was about to happen there,
// also in the kernel, happens after it: what took too long then was not made slow by what is tested. Its methods may be called at any time.
type Stalls struct {
	mu   sync.Mutex
	seen []stall
}

// stall is one, in ns of CLOCK_MONOTONIC.
type stall struct{ from, to int64 }

// WatchStalls watches each CPU until the test ends.
func WatchStalls(t testing.TB) *Stalls {
	t.Helper()
	s := new(Stalls)
	ctx, stop := context.WithCancel(context.Background())
	var watchers sync.WaitGroup
	t.Cleanup(func() { stop(); watchers.Wait() })
	for _, cpu := range cpus {
		watchers.Go(func() { s.watch(ctx, t, cpu) })
	}
	return s
}

func (s *Stalls) watch(ctx context.Context, t testing.TB, cpu int) {
	runtime.LockOSThread() // for good: the thread ends with the goroutine
	var only unix.CPUSet
	only.Set(cpu)
	if err := unix.SchedSetaffinity(0, &only); err != nil {
		t.Errorf("watch cpu %d: %v", cpu, err)
		return
	}
	pause := unix.NsecToTimespec(int64(stallLook))
	s.look(ctx, func() int64 {
		_ = unix.Nanosleep(&pause, nil) // cut short by a signal it is as good
		return monotonic()
	})
}

// look notes where the moments that next gives lie too far apart.
func (s *Stalls) look(ctx context.Context, next func() int64) {
	for last := next(); ctx.Err() == nil; {
		now := next()
		if now-last >= int64(stallFrom) {
			s.mu.Lock()
			s.seen = append(s.seen, stall{last, now})
			s.mu.Unlock()
		}
		last = now
	}
}

// Within is for how long the CPU that did so longest stood still at a stretch between two moments, in ns of CLOCK_MONOTONIC.
func (s *Stalls) Within(from, to int64) (longest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.seen {
		longest = max(longest, time.Duration(min(one.to, to)-max(one.from, from)))
	}
	return longest
}

func monotonic() int64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // every Linux has it
	return now.Nano()
}
