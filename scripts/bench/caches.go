// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	lineSize = 64
	// cacheLines make up one page, so that no more than its own use of the caches disturbs what is measured.
	cacheLines = 64
	// lookInterval is how long a busy process leaves its lines alone before it looks at them: as long as xtwamp pauses.
	lookInterval = 10 * time.Millisecond
	// A line that is farther away than this comes from memory (some 100 ns), not from a cache (5 to 20).
	farAway = 40 * time.Nanosecond
)

// looks is how often busy processes have looked at their lines, and found that all caches had been emptied of them: by
// other processes, or by other guests of the same host, which nothing else in the guest tells of. Safe for concurrent use,
// also by several processes.
type looks struct {
	all, emptied atomic.Uint64
}

// openLooks maps a file that processes count in together, and makes it if it is not there.
func openLooks(path string) (*looks, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close() // the mapping stays
	size := int(unsafe.Sizeof(looks{}))
	if err := file.Truncate(int64(size)); err != nil {
		return nil, err
	}
	shared, err := unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return (*looks)(unsafe.Pointer(&shared[0])), nil
}

// seen is what looks held at some time.
type seen struct{ all, emptied uint64 }

func (l *looks) load() seen { return seen{l.all.Load(), l.emptied.Load()} }

func (s seen) since(before seen) seen { return seen{s.all - before.all, s.emptied - before.emptied} }

func (s seen) plus(t seen) seen { return seen{s.all + t.all, s.emptied + t.emptied} }

// emptiedShare is NaN without a look.
func (s seen) emptiedShare() float64 { return float64(s.emptied) / float64(s.all) }

// lines is memory in which each line says which is next, in an order that no CPU guesses.
type lines []byte

func newLines() (lines, error) {
	page, err := unix.Mmap(-1, 0, cacheLines*lineSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map a page: %w", err)
	}
	order := rand.Perm(cacheLines)
	for i, line := range order {
		page[line*lineSize] = byte(order[(i+1)%len(order)])
	}
	return page, nil
}

func (l lines) next(line byte) byte { return l[int(line)*lineSize] }

// busy is a process that computes without end, and looks now and then whether what it has left alone is still in a cache.
// Its argument is the file of looks.
func busy(args []string) error {
	if len(args) != 1 {
		return errors.New("wants a file to count in")
	}
	found, err := openLooks(args[0])
	if err != nil {
		return err
	}
	own, err := newLines()
	if err != nil {
		return err
	}
	x, line := 0.5, byte(0)
	looked := time.Now()
	for until := looked.Add(time.Hour); looked.Before(until); {
		for time.Since(looked) < lookInterval {
			for range 10_000 {
				x = math.Mod(x*3.7*(1-x), 1)
			}
		}
		begin := time.Now()
		for range cacheLines {
			line = own.next(line)
		}
		looked = time.Now()
		found.all.Add(1)
		if looked.Sub(begin) > cacheLines*farAway {
			found.emptied.Add(1)
		}
	}
	return fmt.Errorf("nobody stopped it, at %v and %v", x, line)
}
