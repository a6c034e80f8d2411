// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// userTick is the unit of /proc/stat (USER_HZ).
const userTick = 10 * time.Millisecond

// cpuTimes is what all CPUs together have done since boot. Linux measures their idle time and only samples the rest, at
// each tick: so busy is what is not idle.
type cpuTimes struct {
	at          time.Time
	idle, steal time.Duration
}

func readCPU() (cpuTimes, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpuTimes{}, err
	}
	t, err := parseCPU(string(stat))
	t.at = time.Now()
	return t, err
}

// parseCPU reads the line of all CPUs: cpu, user, nice, system, idle, iowait, irq, softirq, steal, ... (proc_stat(5)).
func parseCPU(stat string) (t cpuTimes, err error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return t, fmt.Errorf("/proc/stat begins with %q", line)
	}
	ticks := func(i int) time.Duration {
		n, parseErr := strconv.ParseInt(fields[i], 10, 64)
		if parseErr != nil {
			err = parseErr
		}
		return time.Duration(n) * userTick
	}
	t.idle, t.steal = ticks(4)+ticks(5), ticks(8)
	return t, err
}

// busy returns how long CPUs worked since before, summed up over all of them.
func (t cpuTimes) busy(before cpuTimes) time.Duration {
	return t.available(before) - (t.idle - before.idle)
}

// busyShare is busy as a share of what there was.
func (t cpuTimes) busyShare(before cpuTimes) float64 {
	return float64(t.busy(before)) / float64(t.available(before))
}

// available is the time of all CPUs that the hypervisor did not give to others.
func (t cpuTimes) available(before cpuTimes) time.Duration {
	return time.Duration(runtime.NumCPU())*t.at.Sub(before.at) - (t.steal - before.steal)
}

// processTime returns the CPU time of all threads of processes. What the kernel does for packets is in it where it runs in
// the process that sent them, and is not where it runs in an idle CPU, or the kernel counts interrupts apart
// (CONFIG_IRQ_TIME_ACCOUNTING).
func processTime(pids ...int) (sum time.Duration, err error) {
	for _, pid := range pids {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		if err != nil {
			return 0, err
		}
		for _, thread := range threads {
			text, err := os.ReadFile(thread)
			if errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrNotExist) {
				continue // it has just ended
			} else if err != nil {
				return 0, err
			}
			var ns int64
			if _, err := fmt.Sscan(string(text), &ns); err != nil {
				return 0, fmt.Errorf("%s: %w", thread, err)
			}
			sum += time.Duration(ns)
		}
	}
	return sum, nil
}

const (
	// quiet is the share of the machine that others may use while something is measured on idle CPUs.
	quiet = 0.1
	// patience is how long a part of the benchmarks waits for others to become quiet, in all.
	patience = 30 * time.Second
)

// quietly waits until nobody else uses the machine, or until the patience that is left has been used up: then it reports
// false.
func quietly(ctx context.Context, left *time.Duration) (bool, error) {
	const window = 200 * time.Millisecond
	for {
		before, err := readCPU()
		if err != nil {
			return false, err
		}
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-time.After(window):
		}
		after, err := readCPU()
		if err != nil {
			return false, err
		}
		if after.busyShare(before) <= quiet {
			return true, nil
		}
		if *left <= 0 {
			return false, nil
		}
		*left -= window
	}
}
