// SPDX-License-Identifier: Apache-2.0

package file

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/netns/netnstest"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/submit"
)

func TestLinesAreTheSamples(t *testing.T) {
	b := newBench(t, 1)
	b.append(2)
	b.mustDeliver()
	samples, err := b.log.Read(b.paths[0].ID, 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	var want []byte
	for _, s := range samples {
		want = append(s.AppendJSON(want, "ams-dz001", "p1"), '\n')
	}
	names := b.names()
	if len(names) != 1 || !regexp.MustCompile(`^samples-\d{8}T\d{6}Z-00000001\.ndjson$`).MatchString(names[0]) {
		t.Fatalf("files %q, want one", names)
	}
	got, err := os.ReadFile(b.file(names[0]))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("file (-want +got):\n%s", diff)
	}
}

func TestADirectoryIsCreatedWithItsParents(t *testing.T) {
	b := newBench(t, 1)
	b.cfg.Directory = filepath.Join(b.cfg.Directory, "a", "b")
	b.append(1)
	b.mustDeliver()
	b.checkExactlyOnce()
	info, err := os.Stat(b.cfg.Directory)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode(); got != fs.ModeDir|0o755 {
		t.Errorf("mode %v, want %v", got, fs.ModeDir|0o755)
	}
}

func TestAnUnaccountedTailIsCutOff(t *testing.T) {
	for _, tc := range []struct {
		name string
		tail string
		more int // samples that wait
	}{
		{"a torn line", `{"device":"ams-dz001","pa`, 3},
		{"a torn line, nothing waiting", `{"device":"ams-dz001","pa`, 0},
		{"whole lines", `{"device":"ams-dz001","path":"p1","seq":5}` + "\n", 3},
		{"zeros longer than what follows", strings.Repeat("\x00", 4096), 3},
		{"no tail", "", 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, 2)
			b.append(5)
			b.mustDeliver()
			name := b.file(b.names()[0])
			f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteString(tc.tail); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			if tc.more > 0 {
				b.append(tc.more)
			}
			b.mustDeliver()
			b.checkExactlyOnce()
			if m := b.messages(); len(m) != 0 {
				t.Errorf("log %q, want nothing: a tail is the ordinary trace of a kill", m)
			}
		})
	}
}

func TestAnInterruptedTransactionIsRepeatedAsAWhole(t *testing.T) {
	for _, rotate := range []int64{1, 300, 1 << 30} {
		for _, steps := range []int{0, 1, 2, 3} { // begin, submit, sync, commit
			b := newBench(t, 1)
			b.cfg.RotateBytes = rotate
			b.append(5)
			for range 3 { // at the first file, and later
				s := b.sink()
				if err := s.Begin(t.Context()); err != nil {
					t.Fatal(err)
				}
				if steps < 1 {
					continue
				}
				samples, err := b.log.Next(Name, b.paths[0].ID, 100)
				if err != nil {
					t.Fatal(err)
				}
				r, err := s.Submit(t.Context(), b.paths[0], samples)
				if err != nil {
					t.Fatal(err)
				}
				if steps < 2 {
					continue
				}
				if err := s.Sync(t.Context()); err != nil {
					t.Fatal(err)
				}
				if steps < 3 {
					continue
				}
				if r.Accepted == 0 {
					break // all delivered
				}
				u := store.Update{
					Positions: map[store.PathID]uint64{b.paths[0].ID: samples[r.Accepted-1].Seq + 1},
					Delivered: uint64(r.Accepted),
					Put:       r.Put,
				}
				if err := b.log.Commit(Name, u); err != nil {
					t.Fatal(err)
				}
			}
			b.append(2)
			b.mustDeliver()
			b.checkExactlyOnce()
			if t.Failed() {
				t.Fatalf("with rotate_bytes %d and %d steps of each transaction", rotate, steps)
			}
		}
	}
}

func TestAStoreThatCannotCommit(t *testing.T) {
	for _, tc := range []struct {
		name  string
		apply bool // the commit takes effect although it reports an error
	}{{"commit without effect", false}, {"commit with effect", true}} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, 2)
			b.cfg.RotateBytes = 500
			calls := 0
			b.commit = func(sink string, u store.Update) error {
				if calls++; calls%2 == 0 {
					return b.log.Commit(sink, u)
				}
				if tc.apply {
					if err := b.log.Commit(sink, u); err != nil {
						t.Fatal(err)
					}
				}
				return errors.New("no space")
			}
			failed := 0
			for range 20 {
				b.append(3)
				if !b.deliver() {
					failed++
				}
			}
			if failed < 5 {
				t.Errorf("%d deliveries failed, want more", failed)
			}
			b.commit = nil
			b.mustDeliver()
			b.checkExactlyOnce()
		})
	}
}

func TestAFileIsFinishedByTheLineThatReachesTheLimit(t *testing.T) {
	line := int64(len(store.Sample{RTT: 500_000}.AppendJSON(nil, "ams-dz001", "p1")) + 1)
	for _, tc := range []struct {
		name   string
		rotate int64
		lines  []int // of each file, after 9 samples
	}{
		{"less than a line", 1, []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 0}},
		{"one line", line, []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 0}},
		{"a byte more than a line", line + 1, []int{2, 2, 2, 2, 1}},
		{"a byte less than three lines", 3*line - 1, []int{3, 3, 3, 0}},
		{"three lines", 3 * line, []int{3, 3, 3, 0}},
		{"a byte more than three lines", 3*line + 1, []int{4, 4, 1}},
		{"nine lines", 9 * line, []int{9, 0}},
		{"more", 9*line + 1, []int{9}},
	} {
		for _, batch := range []int{1, 3, 9} {
			b := newBench(t, 1)
			b.cfg.RotateBytes = tc.rotate
			for range 9 / batch {
				b.append(batch)
				b.mustDeliver()
			}
			b.mustDeliver() // begins the last file, if the one before was just finished
			var got []int
			for _, name := range b.names() {
				data, err := os.ReadFile(b.file(name))
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, strings.Count(string(data), "\n"))
			}
			if diff := cmp.Diff(tc.lines, got); diff != "" {
				t.Errorf("%s, %d samples at a time: lines by file (-want +got):\n%s", tc.name, batch, diff)
			}
			b.checkExactlyOnce()
		}
	}
}

func TestTheNewestFilesAreKept(t *testing.T) {
	b := newBench(t, 1)
	b.cfg.RotateBytes, b.cfg.Keep = 1, 4
	if err := os.Mkdir(b.cfg.Directory, 0o755); err != nil {
		t.Fatal(err)
	}
	foreign := []string{"README", "samples-1.ndjson", "samples-20000101T000000Z-00000001.ndjson.gz"}
	for _, name := range foreign {
		if err := os.WriteFile(b.file(name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// Of ours, and the oldest.
	if err := os.WriteFile(b.file("samples-20000101T000000Z-00000001.ndjson.unaccounted"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	b.append(10)
	b.mustDeliver()
	var counters []string
	for _, name := range b.names() {
		if m := pattern.FindStringSubmatch(name); m != nil {
			counters = append(counters, m[2])
		} else if !slices.Contains(foreign, name) {
			t.Errorf("unexpected file %s", name)
		}
	}
	// The counter goes on behind the file that was there before.
	if diff := cmp.Diff([]string{"00000008", "00000009", "00000010", "00000011"}, counters); diff != "" {
		t.Errorf("files kept (-want +got):\n%s", diff)
	}
	for _, name := range foreign {
		if _, err := os.Stat(b.file(name)); err != nil {
			t.Errorf("somebody else's file: %v", err)
		}
	}
}

func TestFilesThatCannotBeDeletedHoldBackNothing(t *testing.T) {
	b := newBench(t, 1)
	b.cfg.Keep, b.cfg.RotateBytes = 1, 1
	// A directory with something in it cannot be removed like a file.
	if err := os.MkdirAll(b.file("samples-20000101T000000Z-00000001.ndjson/x"), 0o755); err != nil {
		t.Fatal(err)
	}
	b.append(5)
	b.mustDeliver()
	if diff := cmp.Diff([]string{"old files cannot be deleted"}, b.messages()); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	if n, err := b.log.Position(Name, b.paths[0].ID); n != 5 || err != nil {
		t.Errorf("position %d, %v, want 5", n, err)
	}
}

func TestNamesSortByAgeWhateverTheClockDoes(t *testing.T) {
	b := newBench(t, 1)
	if err := os.Mkdir(b.cfg.Directory, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.file("samples-29991231T235959Z-00000041.ndjson"), []byte("{}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.cfg.RotateBytes = 1
	b.append(2)
	b.mustDeliver()
	b.mustDeliver()
	want := []string{
		"samples-29991231T235959Z-00000041.ndjson",
		"samples-29991231T235959Z-00000042.ndjson",
		"samples-29991231T235959Z-00000043.ndjson",
		"samples-29991231T235959Z-00000044.ndjson",
	}
	if diff := cmp.Diff(want, b.names()); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if data, err := os.ReadFile(b.file(want[0])); string(data) != "{}\n" || err != nil {
		t.Errorf("the file of an earlier store holds %q, %v, want it untouched", data, err)
	}
}

func TestNamesCarryTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		<-time.After(90 * time.Second)
		s := &Sink{newest: "samples-20000101T000000Z-00000009.ndjson"}
		if got, want := s.nextName(), "samples-20000101T000130Z-00000010.ndjson"; got != want {
			t.Errorf("name %s, want %s", got, want)
		}
	})
}

func TestFilesThatTheStoreDoesNotKnowAreSetAside(t *testing.T) {
	b := newBench(t, 1)
	b.append(3)
	b.mustDeliver()
	current := b.names()[0]
	newer := strings.Replace(current, "-00000001", "-00000002", 1)
	if err := os.WriteFile(b.file(newer), []byte("{}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		keep   int
		rotate int64
	}{
		{keep: 1000, rotate: 1 << 30},
		{keep: 1, rotate: 1 << 30}, // the current file is not the newest, and yet not deleted
		{keep: 1000, rotate: 1},
	} {
		b.cfg.Keep, b.cfg.RotateBytes = step.keep, step.rotate
		b.append(1)
		b.mustDeliver()
	}
	b.mustDeliver() // begins the next file
	b.checkExactlyOnce()
	data, err := os.ReadFile(b.file(newer + asideExt))
	if string(data) != "{}\n" || err != nil {
		t.Errorf("set aside: %q, %v, want the data", data, err)
	}
	// The next file does not take the name of the one that was set aside.
	if names := b.names(); len(names) != 3 || !strings.HasSuffix(names[2], "-00000003.ndjson") {
		t.Errorf("files %q, want a third", names)
	}
	if diff := cmp.Diff([]string{"set aside files that the store does not account for"}, b.messages()); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

func TestAFileThatSomebodyRemovedIsFollowedByANewOne(t *testing.T) {
	for name, harm := range map[string]func(string) error{
		"removed": os.Remove,
		"cut":     func(name string) error { return os.Truncate(name, 10) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 1)
			b.append(3)
			b.mustDeliver()
			old := b.names()[0]
			if err := harm(b.file(old)); err != nil {
				t.Fatal(err)
			}
			b.append(2)
			b.mustDeliver()
			if err := os.RemoveAll(b.file(old)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[string][]uint64{"p1": {3, 4}}, b.written()); diff != "" {
				t.Errorf("samples in the files (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"file was removed or cut by somebody else, starting a new one"}, b.messages()); diff != "" {
				t.Errorf("log (-want +got):\n%s", diff)
			}
		})
	}
}

func TestADirectoryThatCannotBeUsedIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		if err := os.WriteFile(b.cfg.Directory, nil, 0o644); err != nil { // in the way
			t.Fatal(err)
		}
		s, err := submit.New(submit.Config{Log: b.log, Sink: b.sink(), Interval: 10 * time.Second, Logger: b.zap})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		for range 100 {
			b.append(1)
			<-time.After(10 * time.Second)
		}
		if err := os.Remove(b.cfg.Directory); err != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Second)
		synctest.Wait()
		b.checkExactlyOnce()
		if s.Stats().Failed < 100 {
			t.Errorf("%d failed attempts, want at least one per interval", s.Stats().Failed)
		}
		if diff := cmp.Diff([]string{"delivery fails, samples wait in the store", "delivering again"}, b.messages()); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestAFullDiskIsWaitedFor(t *testing.T) {
	netnstest.RequireRoot(t)
	b := newBench(t, 2)
	if err := os.Mkdir(b.cfg.Directory, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", b.cfg.Directory, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(b.cfg.Directory, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	b.append(10)
	b.mustDeliver()
	b.append(1000) // more than fits, so that the write stops in the middle
	before := b.written()
	if b.deliver() {
		t.Fatal("delivery succeeded on a disk that is too small")
	}
	entries := b.logs.All()
	if len(entries) != 1 {
		t.Fatalf("log %q, want one line", b.messages())
	}
	if msg := entries[0].ContextMap()["error"].(string); !strings.Contains(msg, unix.ENOSPC.Error()) {
		t.Errorf("error %q does not say %q", msg, unix.ENOSPC.Error())
	}
	if n, err := b.log.Position(Name, b.paths[0].ID); n != 10 || err != nil {
		t.Errorf("position %d, %v, want 10", n, err)
	}
	if err := b.sink().Begin(t.Context()); err != nil {
		t.Errorf("begin on a full disk: %v", err)
	}
	if diff := cmp.Diff(before, b.written()); diff != "" {
		t.Errorf("samples in the files (-want +got):\n%s", diff)
	}
	if err := unix.Mount("tmpfs", b.cfg.Directory, "tmpfs", unix.MS_REMOUNT, "size=4m"); err != nil {
		t.Fatal(err)
	}
	b.mustDeliver()
	b.checkExactlyOnce()
}

func TestConfigIsValidated(t *testing.T) {
	good := Config{Directory: "/var/lib/xtwamp/out", RotateBytes: 64 << 20, Keep: 20}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Config){
		"directory":    func(c *Config) { c.Directory = "" },
		"rotate_bytes": func(c *Config) { c.RotateBytes = 0 },
		"keep":         func(c *Config) { c.Keep = 0 },
	} {
		c := good
		spoil(&c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("%s: %v, want an error that names the key", name, err)
		}
		if _, err := New(c, nil, nil); err == nil {
			t.Errorf("%s: accepted by New", name)
		}
	}
}
