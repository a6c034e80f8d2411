// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// faulty is a fixture in which something fails when it is told to.
type faulty struct {
	*fixture
	id, old PathID // of samples of late, and of some too old
	next    int    // sample
	fault   func() // called when samples are appended; may panic
}

func newFaulty(t *testing.T, change func(*Config)) *faulty {
	f := &faulty{fault: func() {}, next: 200_000}
	f.fixture = newFixture(t, func(c *Config) {
		c.Fault = func(op string) {
			if op == "append" {
				f.fault()
			}
		}
		change(c)
	})
	ids := f.register("a", "old")
	f.id, f.old = ids[0], ids[1]
	f.enable("s", false)
	f.SetOffset(synced(bootTime))
	f.clock.advance(time.Hour)
	return f
}

// works appends a sample, unless too many files were set aside.
func (f *faulty) works() {
	f.Helper()
	f.fault = func() {}
	if err := f.Append([]Record{{f.id, sampleNumber(f.next)}}); err != nil && !strings.Contains(err.Error(), "waiting") {
		f.Fatal(err)
	}
	f.next++
}

// breaks appends a sample, and cannot.
func (f *faulty) breaks(fault func()) {
	f.Helper()
	f.fault = fault
	if err := f.Append([]Record{{f.id, sampleNumber(f.next)}}); err == nil {
		f.Fatal("nothing failed")
	}
	f.fault = func() {}
}

// ruin finds the meta pages of the open file overwritten, unless there is none because too many were set aside.
func (f *faulty) ruin() {
	f.Helper()
	if f.file == nil {
		return
	}
	if _, err := f.file.os.WriteAt(make([]byte, 2*pageSize), 0); err != nil {
		f.Fatal(err)
	}
	f.breaks(func() {})
}

func (f *faulty) remove() {
	f.Helper()
	if err := os.Remove(f.cfg.Path); err != nil {
		f.Fatal(err)
	}
}

// longName gives the file a name that leaves no room for what is added to it when it is set aside.
func longName(c *Config) { c.Path = filepath.Join(filepath.Dir(c.Path), strings.Repeat("x", 250)) }

// addFolded appends n samples of a path and folds them.
func (f *faulty) addFolded(id PathID, first, n int) {
	f.Helper()
	f.add(id, first, n)
	f.next += n
	if err := f.fold(); err != nil {
		f.Fatal(err)
	}
}

// Whatever fails for 22 hours, all the time or by turns, has few lines: one with the cause at once, and in the end one with how often
// and for how long.
func TestLogOver22Hours(t *testing.T) {
	const outage = 22 * time.Hour
	nothing := func(*Config) {}
	for _, fault := range []struct {
		name   string
		change func(*Config)
		kind   kind
		cause  string
		fail   func(f *faulty)
		heal   func(f *faulty)
		total  func(f *faulty) uint64 // what the ends have to sum up to; nil: times that it failed, at least
	}{
		{"corrupt", nothing, troubleAside, "no valid meta page", func(f *faulty) { f.works(); f.ruin() }, nil,
			func(f *faulty) uint64 { return uint64(len(f.status().SetAside)) }},
		{"panics", nothing, troubleAside.because("panic"), "cause", func(f *faulty) { f.breaks(func() { panic("cause") }) }, nil,
			(*faulty).Panics},
		{"corrupt and stays", longName, troubleStays, "too long",
			func(f *faulty) {
				if f.ruin(); f.file == nil {
					f.breaks(func() {})
				}
			}, func(f *faulty) {
				if f.file == nil {
					f.remove()
				}
			}, nil},
		{"corrupt and elsewhere", nothing, troubleElsewhere, "no valid meta page",
			func(f *faulty) { f.works(); f.remove(); f.ruin() }, nil, nil},
		{"not closed after a failed commit", nothing, troubleCommit, "closed",
			failCommit, nil, nil},
		{"damaged values", nothing, troubleDamage, "path", damageSomething, nil,
			func(f *faulty) uint64 { return f.totals("s").Dropped[reasonCorrupt] }},
		{"too large", func(c *Config) { c.MaxBytes = minMaxBytes }, troubleDrops.because(reasonMaxBytes), "max_bytes", dropSomething, nil,
			func(f *faulty) uint64 { return f.totals("s").Dropped[reasonMaxBytes] }},
		{"too old", func(c *Config) { c.Retention = 20 * 24 * time.Hour }, troubleDrops.because(reasonRetention), "retention",
			func(f *faulty) { f.addFolded(f.old, f.next-200_000, 20) }, nil,
			func(f *faulty) uint64 { return f.totals("s").Dropped[reasonRetention] }},
	} {
		for _, pattern := range []struct {
			name          string
			step          time.Duration
			period, fails time.Duration
		}{
			{"all the time", 15 * time.Minute, 15 * time.Minute, 15 * time.Minute},
			{"by turns", 3 * time.Minute, 6 * time.Minute, 3 * time.Minute},
			{"now and then", 10 * time.Minute, 40 * time.Minute, 20 * time.Minute},
			{"seldom", 10 * time.Minute, calm + 20*time.Minute, 10 * time.Minute},
			{"rarely", 10 * time.Minute, tellAgain + 10*time.Minute, 10 * time.Minute},
		} {
			if fault.name == "too large" && pattern.name == "by turns" {
				continue // now and then is enough of this slow one
			}
			t.Run(fault.name+"/"+pattern.name, func(t *testing.T) {
				f := newFaulty(t, fault.change)
				f.works()
				begin := f.clock.Now()
				var lines []observer.LoggedEntry
				failed := uint64(0)
				for after := time.Duration(0); after < outage+longCalm+time.Hour; after += pattern.step {
					if after < outage && after%pattern.period < pattern.fails {
						failed++
						fault.fail(f)
					} else {
						if fault.heal != nil {
							fault.heal(f)
						}
						f.works()
					}
					if err := f.Maintain(); err != nil && !errors.Is(err, ErrCorrupt) {
						t.Fatal(err)
					}
					for _, l := range f.logs.TakeAll() {
						if l.Message == fault.kind.begins || l.Message == fault.kind.ends {
							l.Time = f.clock.Now()
							lines = append(lines, l)
						} else {
							t.Fatalf("unexpected line: %v", l)
						}
					}
					f.clock.advance(pattern.step)
				}
				if len(lines) < 2 || len(lines) > 9 {
					t.Fatalf("%d lines, want 2 to 9: %v", len(lines), lines[:min(len(lines), 20)])
				}
				first, last := lines[0], lines[len(lines)-1]
				if first.Level < zap.WarnLevel || !first.Time.Equal(begin) || !strings.Contains(fmt.Sprint(first.ContextMap()), fault.cause) {
					t.Errorf("the first line is %v, %v after the outage began; want the cause at once", first, first.Time.Sub(begin))
				}
				var sum uint64
				var lasted time.Duration
				for _, l := range lines {
					if fields := l.ContextMap(); l.Message != fault.kind.ends {
						continue
					} else if samples, ok := fields["samples"].(map[string]uint64); ok {
						sum += samples["a"] + samples["s"]
					} else {
						sum += fields["times"].(uint64)
					}
					lasted += l.ContextMap()["after"].(time.Duration)
				}
				if fault.total == nil && sum < failed || fault.total != nil && sum != fault.total(f) || sum == 0 {
					t.Errorf("the ends sum up to %d of %d failures", sum, failed)
				}
				if last.Message != fault.kind.ends || lasted < outage-2*pattern.period-time.Hour || lasted > outage {
					t.Errorf("the last line is %v %v, all in all it lasted %v; want for how long", last.Message, last.ContextMap(), lasted)
				}
			})
		}
	}
}

// A file that cannot be opened is tried again and again by another Log each time.
func TestLogOver22HoursOfAFileThatCannotBeOpened(t *testing.T) {
	for name, test := range map[string]struct {
		kind   kind
		change func(c *Config, fails *bool)
		asides int // at most
	}{
		"it stays": {troubleStays, func(c *Config, _ *bool) { longName(c) }, 0},
		"each new one is bad": {troubleAside.because("panic"), func(c *Config, fails *bool) {
			c.Fault = func(op string) {
				if op == "create" && *fails {
					panic("cause")
				}
			}
		}, 22 * maxAsides},
	} {
		t.Run(name, func(t *testing.T) {
			fails := true
			f := newClosedFixture(t, func(c *Config) { test.change(c, &fails); c.History = &History{} })
			if test.asides == 0 {
				if err := os.WriteFile(f.cfg.Path, make([]byte, 4*pageSize), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for range 22 * 60 {
				if _, err := Open(f.cfg); !errors.Is(err, ErrCorrupt) {
					t.Fatalf("open: %v", err)
				}
				f.clock.advance(time.Minute)
			}
			if fails = false; test.asides == 0 {
				if err := os.Remove(f.cfg.Path); err != nil {
					t.Fatal(err)
				}
			}
			f.clock.advance(calm)
			f.open()
			if err := f.Maintain(); err != nil {
				t.Fatal(err)
			}
			begins := f.logs.FilterMessage(test.kind.begins).All()
			if n := f.logs.Len(); n < 2 || n > 9 {
				t.Errorf("%d lines, want 2 to 9", n)
			}
			ends := f.logs.FilterMessage(test.kind.ends).All()
			if len(begins) == 0 || len(ends) != 1 || ends[0].ContextMap()["times"].(uint64) < 100 {
				t.Errorf("begins %v, the end is %v; want how often", begins, ends)
			}
			if n := len(f.status().SetAside); n > test.asides || test.asides > 0 && n == 0 {
				t.Errorf("%d files set aside, want %d at most", n, test.asides)
			}
		})
	}
}

// damageSomething makes a chunk of samples unreadable that the sink has not taken, and reads it.
func damageSomething(f *faulty) {
	f.Helper()
	f.addFolded(f.id, f.next, 10)
	f.write.Lock()
	err := f.commit("damage", func(tx *transaction) error {
		chunks := tx.Bucket(bucketChunks)
		k, v := chunks.Cursor().Seek(chunkKey(f.id, f.paths[f.id].first))
		v = append([]byte(nil), v...)
		v[len(v)/2] ^= 1
		return chunks.Put(append([]byte(nil), k...), v)
	})
	f.write.Unlock()
	if err != nil {
		f.Fatal(err)
	}
	f.read(f.id)
}

// dropSomething appends until the store has to drop samples.
func dropSomething(f *faulty) {
	f.Helper()
	for before := f.totals("s"); f.totals("s").Dropped[reasonMaxBytes] == before.Dropped[reasonMaxBytes]; {
		f.addFolded(f.id, f.next, 400)
	}
}

// failCommit closes the file before it can be written.
func failCommit(f *faulty) {
	f.Helper()
	f.works()
	f.write.Lock()
	defer f.write.Unlock()
	err := f.commit("test", func(tx *transaction) error {
		if err := writeNumber(tx, keyBase, 0); err != nil {
			return err
		}
		return f.file.os.Close()
	})
	var failed *commitError
	if !errors.As(err, &failed) {
		f.Fatal(err)
	}
}
