// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"os"
	"testing"
	"time"
)

func TestDeletionByAgeNeedsATrustedClock(t *testing.T) {
	for name, test := range map[string]struct {
		offsets func(f *fixture)
		deleted bool
	}{
		"no offset":             {func(*fixture) {}, false},
		"unsynchronized":        {func(f *fixture) { f.SetOffset(unsync(bootTime)); f.clock.advance(2 * time.Hour) }, false},
		"synchronized just now": {func(f *fixture) { f.SetOffset(synced(bootTime)); f.clock.advance(59 * time.Minute) }, false},
		"synchronized":          {func(f *fixture) { f.SetOffset(synced(bootTime)); f.clock.advance(time.Hour) }, true},
		"small moves": {func(f *fixture) {
			f.SetOffset(synced(bootTime))
			f.clock.advance(time.Hour)
			f.SetOffset(synced(bootTime.Add(4 * time.Millisecond)))
		}, true},
		"stepped": {func(f *fixture) {
			f.SetOffset(synced(bootTime))
			f.clock.advance(time.Hour)
			f.SetOffset(synced(bootTime.Add(6 * time.Millisecond)))
		}, false},
		"lost": {func(f *fixture) {
			f.SetOffset(synced(bootTime))
			f.clock.advance(time.Hour)
			f.SetOffset(unsync(bootTime))
		}, false},
		"lost and found": {func(f *fixture) {
			f.SetOffset(synced(bootTime))
			f.clock.advance(time.Hour)
			f.SetOffset(unsync(bootTime))
			f.SetOffset(synced(bootTime))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, func(c *Config) { c.Retention = 3 * time.Hour })
			id := f.register("a")[0]
			f.add(id, 0, 500)
			if err := f.fold(); err != nil {
				t.Fatal(err)
			}
			f.clock.now = at(bootTime, 500).Add(24 * time.Hour)
			test.offsets(f)
			if err := f.Maintain(); err != nil {
				t.Fatal(err)
			}
			if got := len(f.read(id)) < 500; got != test.deleted {
				t.Errorf("deleted: %v, want %v", got, test.deleted)
			}
		})
	}
}

func TestRetentionByAge(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.Retention = time.Hour })
	ids := f.register("a", "b")
	f.enable("takes", false)
	f.enable("sleeps", false)
	f.clock.now = at(bootTime, 0)
	f.SetOffset(synced(bootTime))
	f.add(ids[0], 0, 2000)
	f.add(ids[1], 1700, 300) // numbered from 0
	if err := f.fold(); err != nil {
		t.Fatal(err)
	}
	f.deliver("takes", ids[0], 5000)
	f.clock.now = at(bootTime, 2000)
	if err := f.Maintain(); err != nil {
		t.Fatal(err)
	}
	a := f.read(ids[0])
	limit := at(bootTime, 2000).Add(-time.Hour)
	if len(a) == 0 || !a[len(a)-1].Time.After(limit) || a[0].Time.Before(limit.Add(-maxRun*interval)) {
		t.Errorf("kept %s, the oldest from %v; limit %v", ranges(a), a[0].Time, limit)
	}
	diff(t, "the younger path", "0-299", ranges(f.read(ids[1])))
	gone := a[0].Seq
	if d := f.totals("sleeps").Dropped; d["retention"] != gone || len(d) != 1 {
		t.Errorf("sleeps dropped %v, want %d by retention", d, gone)
	}
	diff(t, "dropped of what was taken", 0, len(f.totals("takes").Dropped))
	diff(t, "status: oldest", a[0].Time, f.status().Oldest)

	// One line at the start of the run, one with the count at its end.
	f.add(ids[0], 2000, 500)
	if err := f.fold(); err != nil {
		t.Fatal(err)
	}
	f.clock.now = at(bootTime, 2500)
	if err := f.Maintain(); err != nil {
		t.Fatal(err)
	}
	diff(t, "log lines in the run", 1, f.logs.Len())
	total := f.totals("sleeps").Dropped["retention"]
	if total <= gone {
		t.Fatalf("nothing more was dropped: %d", total)
	}
	f.clock.advance(calm)
	if err := f.Maintain(); err != nil {
		t.Fatal(err)
	}
	total = f.totals("sleeps").Dropped["retention"]
	f.clock.advance(calm)
	if err := f.Maintain(); err != nil {
		t.Fatal(err)
	}
	logs := f.logs.FilterMessage("dropped samples that sinks had not taken").All()
	if len(logs) != 1 || f.logs.Len() != 2 {
		t.Fatalf("log lines: %v", f.logs.All())
	}
	takes := f.totals("takes").Dropped["retention"]
	diff(t, "counts in the last line", map[string]uint64{"sleeps": total, "takes": takes}, logs[0].ContextMap()["samples"])
}

func TestTheFileStaysWithinMaxBytes(t *testing.T) {
	const limit = 2 << 20
	f := newFixture(t, func(c *Config) { c.MaxBytes = limit })
	ids := f.register("a", "b", "c")
	f.enable("s", false)
	next := 0
	for round := range 600 {
		for _, id := range ids {
			f.add(id, next, 400)
		}
		next += 400
		if info, err := os.Stat(f.cfg.Path); err != nil || info.Size() > limit {
			t.Fatalf("round %d: %d bytes, %v", round, info.Size(), err)
		}
		if round%7 == 0 {
			if err := f.Maintain(); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
	}
	var kept uint64
	for _, id := range ids {
		got := f.read(id)
		kept += uint64(len(got))
		diff(t, "samples", wantNumbers(0, next-len(got), next), got)
		if skew := len(got) - len(f.read(ids[0])); skew < -1000 || skew > 1000 {
			t.Errorf("path %d keeps %d more than path %d: not the oldest first", id, skew, ids[0])
		}
	}
	totals := f.totals("s")
	diff(t, "waiting", kept, totals.Waiting)
	diff(t, "dropped", map[string]uint64{"max_bytes": uint64(3*next) - kept}, totals.Dropped)
	if kept < 50_000 {
		t.Errorf("only %d samples fit into %d bytes", kept, limit)
	}
	diff(t, "log lines while it drops", 1, f.logs.Len())

	// A lower limit takes hold at the next start.
	f.cfg.MaxBytes = limit / 2
	f.reopen()
	if err := f.Maintain(); err != nil {
		t.Fatal(err)
	}
	stats := f.file.bolt.Stats()
	m, err := readMeta(f.file.os)
	if err != nil {
		t.Fatal(err)
	}
	if used := (int64(m.pages) - int64(stats.FreePageN+stats.PendingPageN)) * pageSize; used > limit/2 {
		t.Errorf("%d bytes in use after the limit was lowered", used)
	}
	if len(f.read(ids[0])) == 0 {
		t.Error("nothing left")
	}
}

// What an earlier boot wrote is older, however long that boot had been up.
func TestTheOldestIsOfTheFirstBoot(t *testing.T) {
	f := newFixture(t)
	ids := f.register("a", "b")
	f.add(ids[1], 5000, 200)
	f.cfg.Boot = "boot-2"
	f.reopen()
	f.add(ids[0], 0, 200)
	if err := f.fold(); err != nil {
		t.Fatal(err)
	}
	f.write.Lock()
	_, err := f.drop(reasonMaxBytes, 1, func(*path, chunkHead) bool { return true })
	f.write.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "samples of the second boot", 200, len(f.read(ids[0])))
	if n := len(f.read(ids[1])); n >= 200 {
		t.Errorf("%d samples of the first boot are left", n)
	}
}

func TestConfigIsChecked(t *testing.T) {
	f := newClosedFixture(t, func(c *Config) { c.MaxBytes = minMaxBytes - 1 })
	if l, err := Open(f.cfg); err == nil {
		l.Close()
		t.Error("a file of next to nothing was allowed")
	}
	f.cfg.MaxBytes, f.cfg.MinFreeBytes = 0, 1<<60
	if l, err := Open(f.cfg); !errors.Is(err, ErrNoSpace) {
		if err == nil {
			l.Close()
		}
		t.Errorf("open without the free space that must stay: %v", err)
	}
}

func TestPinnedSamplesOutliveTheirAge(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.Retention = time.Hour })
	id := f.register("a")[0]
	f.enable("ledger", false)
	f.clock.now = at(bootTime, 0)
	f.SetOffset(synced(bootTime))
	f.add(id, 0, 2000)
	if err := f.fold(); err != nil {
		t.Fatal(err)
	}
	pin := func(to uint64) {
		t.Helper()
		if err := f.Commit("ledger", Update{Pin: map[PathID]uint64{id: to}}); err != nil {
			t.Fatal(err)
		}
	}
	age := func() uint64 {
		t.Helper()
		f.clock.now = at(bootTime, 2000).Add(24 * time.Hour)
		f.SetOffset(synced(bootTime))
		f.clock.advance(2 * time.Hour)
		if err := f.Maintain(); err != nil {
			t.Fatal(err)
		}
		if left := f.read(id); len(left) > 0 {
			return left[0].Seq
		}
		return 2000
	}
	f.deliver("ledger", id, 300)
	pin(400)
	oldest := age()
	if oldest == 0 || oldest > 300 {
		t.Errorf("oldest is %d with samples 300 to 399 pinned, want the first of their chunk", oldest)
	}
	f.reopen()
	f.enable("ledger", false)
	diff(t, "oldest after a restart", oldest, age())
	diff(t, "dropped", map[string]uint64{}, f.totals("ledger").Dropped)

	f.deliver("ledger", id, 100)
	diff(t, "oldest, delivered", uint64(2000), age())
	if err := f.Commit("ledger", Update{Pin: map[PathID]uint64{id + 1: 1}}); err == nil {
		t.Error("a pin on a path that does not exist was taken")
	}
}
