// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// requireRoot skips a test that cannot run without root, and fails it where it must run.
func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("XTWAMP_REQUIRE_ROOT") == "1" {
		t.Fatal("needs root")
	}
	t.Skip("needs root")
}

const diskSize = 2 << 20

// smallDisk mounts a tmpfs of 2 MiB.
func smallDisk(t *testing.T) string {
	t.Helper()
	requireRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("xtwamp-store-test", dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Fatalf("mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func freeBytes(t *testing.T, dir string) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// fillDisk takes all but keep bytes.
func fillDisk(t *testing.T, dir string, keep int64) (file string) {
	t.Helper()
	file = filepath.Join(dir, "filler")
	if err := os.WriteFile(file, make([]byte, freeBytes(t, dir)-keep), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Case 90.
func TestAFullDiskDropsTheOldest(t *testing.T) {
	const floor = 256 << 10
	dir := smallDisk(t)
	f := newFixture(t, func(c *Config) {
		c.Path, c.MaxBytes, c.MinFreeBytes = filepath.Join(dir, "samples.db"), diskSize, floor
	})
	id := f.register("a")[0]
	f.enable("s", false)
	next := 0
	grow := func(rounds int) {
		t.Helper()
		for range rounds {
			f.add(id, next, 400)
			next += 400
			if next%2000 == 0 {
				if err := f.Maintain(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for next < 600*400 {
		grow(10)
		if free := freeBytes(t, dir); free < floor {
			t.Fatalf("%d bytes free after %d samples, the floor is %d", free, next, floor)
		}
	}
	kept := f.read(id)
	diff(t, "samples", wantNumbers(0, next-len(kept), next), kept)
	diff(t, "totals", Totals{Offered: uint64(next), Waiting: uint64(len(kept)), Dropped: map[string]uint64{"no_space": uint64(next - len(kept))}}, f.totals("s"))
	if len(kept) < 30_000 {
		t.Errorf("only %d samples kept", len(kept))
	}

	// Somebody else takes the last byte: the free pages of the file are still there.
	filler := fillDisk(t, dir, 0)
	grow(100)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	grow(10)
	kept = f.read(id)
	diff(t, "samples after the disk was full to the last byte", wantNumbers(0, next-len(kept), next), kept)
	f.reopen()
	diff(t, "samples after reopening", wantNumbers(0, next-len(kept), next), f.read(id))
	diff(t, "files set aside", 0, len(f.status().SetAside))
	diff(t, "log", 2, f.logs.Len()) // the start and the end of one run
}

// It is told before the file has to grow, and not of a file that is as large as it may be.
func TestAFullDiskIsTold(t *testing.T) {
	const floor, most = 256 << 10, 1 << 20
	dir := smallDisk(t)
	f := newFixture(t, func(c *Config) { c.Path, c.MaxBytes, c.MinFreeBytes = filepath.Join(dir, "samples.db"), most, floor })
	id := f.register("a")[0]
	told := func(when string, keep int64, want bool) {
		t.Helper()
		filler := fillDisk(t, dir, keep)
		diff(t, "a full disk "+when, want, f.status().DiskFull)
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		diff(t, "a full disk later than "+when, false, f.status().DiskFull)
	}
	told("with space for a page", floor+pageSize, false)
	told("without", floor, true)
	for next := 0; f.status().Bytes < most; next += 400 {
		f.add(id, next, 400)
	}
	told("that the file does not need", floor, false)
}

func TestAFullDiskWithNothingToDrop(t *testing.T) {
	dir := smallDisk(t)
	f := newClosedFixture(t, func(c *Config) {
		c.Path, c.MaxBytes, c.MinFreeBytes = filepath.Join(dir, "samples.db"), diskSize, 64<<10
	})
	filler := fillDisk(t, dir, 0)
	if _, err := Open(f.cfg); !errors.Is(err, ErrNoSpace) || errors.Is(err, ErrCorrupt) {
		t.Fatalf("open on a full disk: %v", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	f.open()
	id := f.register("a")[0]
	f.enable("s", false)
	f.add(id, 0, 5)
	filler = fillDisk(t, dir, 0)
	batch := make([]Record, 30_000) // more than the file has pages for
	for i := range batch {
		batch[i] = Record{id, sampleNumber(5 + i)}
	}
	if err := f.Append(batch); !errors.Is(err, ErrNoSpace) || errors.Is(err, ErrCorrupt) {
		t.Fatalf("append on a full disk: %v", err)
	}
	diff(t, "samples after an append that failed", 0, len(f.read(id))) // the five were dropped to make room
	diff(t, "totals", Totals{Offered: 5, Dropped: map[string]uint64{"no_space": 5}}, f.totals("s"))
	diff(t, "next number", uint64(5), f.paths[id].next)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := f.Append(batch); err != nil {
		t.Fatalf("the same batch when there is space again: %v", err)
	}
	f.reopen()
	f.enable("s", false)
	diff(t, "samples", wantNumbers(0, 5, 30_005), f.read(id))
	if d := f.totals("s").Dropped; d["corrupt"] > 0 || len(f.status().SetAside) > 0 {
		t.Errorf("dropped %v, set aside %v", d, f.status().SetAside)
	}
}

// The disk itself is full where the store did not see it coming: another process took the space between the check and the write.
func TestWritingToAFullDiskIsNotCorruption(t *testing.T) {
	dir := smallDisk(t)
	f := newFixture(t, func(c *Config) { c.Path, c.MaxBytes = filepath.Join(dir, "samples.db"), diskSize })
	id := f.register("a")[0]
	f.add(id, 0, 10)
	if reason, err := f.file.grow(200); reason != "" || err != nil {
		t.Fatal(reason, err)
	}
	m, err := readMeta(f.file.os)
	if err != nil {
		t.Fatal(err)
	}
	// Holes: blocks that were promised are gone, as on a file system without fallocate.
	hole := int64(m.pages) * pageSize
	if err := unix.Fallocate(int(f.file.os.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, hole, f.file.size()-hole); err != nil {
		t.Fatal(err)
	}
	filler := fillDisk(t, dir, 0)
	batch := make([]Record, 4000)
	for i := range batch {
		batch[i] = Record{id, sampleNumber(10 + i)}
	}
	file := f.file
	var failed *commitError
	if err := f.Append(batch); !errors.Is(err, ErrNoSpace) || errors.Is(err, ErrCorrupt) || !errors.As(err, &failed) {
		t.Fatalf("append: %v", err)
	}
	diff(t, "samples meanwhile", wantNumbers(0, 0, 10), f.read(id))
	if f.file == file {
		t.Error("the file was not opened afresh")
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := f.Append(batch); err != nil {
		t.Fatalf("the same batch with space: %v", err)
	}
	diff(t, "samples", wantNumbers(0, 0, 4010), f.read(id))
	diff(t, "files set aside", 0, len(f.status().SetAside))
}
