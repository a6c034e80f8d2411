// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

const (
	lockPoll   = 20 * time.Millisecond
	closeLimit = time.Second

	// growPages is by how much the file grows at once, if there is room for it.
	growPages = 64
)

// file is one open and locked database file.
type file struct {
	bolt     *bbolt.DB
	os       *os.File // owned by bolt
	doubtful bool     // when it was opened a meta page was not valid, or it was there and empty: something may have been lost

	maxPages int64 // the file never has more
	minFree  int64 // bytes that growing leaves free on the disk

	info fs.FileInfo // when it was opened

	mu   sync.Mutex // held while a transaction begins
	dead bool       // closed or set aside: begin no more transactions
	tx   uint64     // the last transaction that was committed
}

var errDead = errors.New("file was set aside")

// openLocked opens and locks path. It returns ErrLocked if another process holds the lock for longer than timeout.
// created tells whether the file is new.
func openLocked(path string, readOnly bool, timeout time.Duration) (f *os.File, created bool, err error) {
	flag, lock := os.O_RDWR, unix.LOCK_EX
	if readOnly {
		flag, lock = os.O_RDONLY, unix.LOCK_SH
	}
	for deadline := time.Now().Add(timeout); ; {
		f, err = os.OpenFile(path, flag, 0)
		if created = errors.Is(err, fs.ErrNotExist) && !readOnly; created {
			f, err = os.OpenFile(path, flag|os.O_CREATE|os.O_EXCL, 0o600)
		}
		if errors.Is(err, fs.ErrExist) {
			continue // another process was faster
		}
		if err != nil {
			return nil, false, diskError(err)
		}
		for {
			err = unix.Flock(int(f.Fd()), lock|unix.LOCK_NB)
			if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(deadline) {
				break
			}
			time.Sleep(lockPoll)
		}
		switch {
		case errors.Is(err, unix.EWOULDBLOCK):
			f.Close()
			return nil, false, fmt.Errorf("%s: %w", path, ErrLocked)
		case err != nil:
			f.Close()
			return nil, false, fmt.Errorf("lock %s: %w", path, err)
		}
		// While we waited its owner may have set it aside and begun a new one.
		if samePlace(path, f) {
			return f, created, nil
		}
		f.Close()
	}
}

// samePlace reports whether path still names the open file f.
func samePlace(path string, f *os.File) bool {
	there, err := os.Stat(path)
	if err != nil {
		return false
	}
	here, err := f.Stat()
	return err == nil && os.SameFile(here, there)
}

// openFile opens the file at cfg.Path, or an empty new one. If the file is corrupt it returns ErrCorrupt and has called aside, with the
// file still locked, to put it out of the way. A new file that could not be filled is gone again.
func openFile(cfg Config, readOnly bool, aside func(cause error)) (_ *file, err error) {
	f, created, err := openLocked(cfg.Path, readOnly, cfg.LockTimeout)
	if err != nil {
		return nil, err
	}
	defer func() {
		if errors.Is(err, ErrCorrupt) {
			aside(err)
		} else if err != nil && created {
			err = errors.Join(err, os.Remove(cfg.Path))
		}
		if err != nil {
			f.Close() // bbolt may have
			err = diskError(err)
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	d := &file{os: f, info: info, maxPages: cfg.MaxBytes / pageSize, minFree: cfg.MinFreeBytes}
	if created {
		err = d.checkFree(growPages)
	} else if d.doubtful = info.Size() == 0; !d.doubtful || readOnly {
		var m meta
		m, err = verify(f)
		d.doubtful, d.tx = m.torn, m.tx
	}
	if err != nil {
		return nil, err
	}
	err = guard(func() (err error) {
		d.bolt, err = bbolt.Open(cfg.Path, 0o600, &bbolt.Options{
			OpenFile:        func(string, int, os.FileMode) (*os.File, error) { return f, nil },
			Timeout:         cfg.LockTimeout, // held already
			ReadOnly:        readOnly,
			NoFreelistSync:  true,
			FreelistType:    bbolt.FreelistMapType,
			PageSize:        pageSize,
			MaxSize:         int(max(cfg.MaxBytes, info.Size())),
			InitialMmapSize: int(max(cfg.MaxBytes, info.Size()) + growPages*pageSize), // never remapped, so no reader delays a writer
			NoSync:          cfg.NoSync,
			Logger:          boltLogger{&bbolt.DefaultLogger{Logger: log.New(io.Discard, "", 0)}},
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	d.bolt.AllocSize = 0 // grow by what is needed and count MaxSize exactly; see grow
	return d, nil
}

// begin starts a transaction. Of bbolt's locks this is where a panic could leave one locked that others wait for without a limit, so the
// pages that it would stumble over are read first.
func (f *file) begin(writable bool) (*transaction, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
		return nil, errDead
	}
	m, err := readMeta(f.os)
	if err != nil {
		return nil, err
	}
	if m.tx < f.tx { // bbolt would go on from the one before, and use pages twice
		return nil, fmt.Errorf("%w: transaction %d is gone with its meta page", ErrCorrupt, f.tx)
	}
	if writable { // it may free the page of the free list
		if err := newWalker(f.os, m.pages).freelist(m.free); err != nil {
			return nil, &pageError{err}
		}
	}
	tx, err := f.bolt.Begin(writable)
	if err != nil {
		return nil, fmt.Errorf("begin transaction: %w", err)
	}
	return newTransaction(tx, f.os), nil
}

// same reports whether g is f opened again and holds what f held, the transaction that failed at the end included or not.
func (f *file) same(g *file) bool {
	return os.SameFile(f.info, g.info) && (g.tx == f.tx || g.tx == f.tx+1)
}

// committed tells that the transaction with this id is on disk.
func (f *file) committed(id int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tx = uint64(id)
}

// close closes the file, but does not wait for locks that a panic may have left locked: then the handle stays open, unused and without
// its lock on the file.
func (f *file) close() error {
	f.mu.Lock()
	f.dead = true
	f.mu.Unlock()
	fd := int(f.os.Fd())
	done := make(chan error, 1)
	go func() { done <- guard(f.bolt.Close) }()
	select {
	case err := <-done:
		return err
	case <-time.After(closeLimit):
		return errors.Join(fmt.Errorf("close: still busy after %v, abandoned", closeLimit), unix.Flock(fd, unix.LOCK_UN))
	}
}

// size returns the size of the file in bytes.
func (f *file) size() int64 {
	info, err := f.os.Stat()
	if err != nil {
		return 0
	}
	return info.Size()
}

// available returns how many pages a transaction may allocate without the file growing. It is negative if the limit was lowered below
// what is in use.
func (f *file) available() (int64, error) {
	m, err := readMeta(f.os)
	if err != nil {
		return 0, err
	}
	stats := f.bolt.Stats()
	free := int64(stats.FreePageN + stats.PendingPageN)
	used := int64(m.pages) - free
	end := min(f.size()/pageSize, f.maxPages) - 1 // bbolt wants one page beyond the last
	return min(free+max(0, end-int64(m.pages)), f.maxPages-used), nil
}

// grow makes the file longer by at least n pages, with disk blocks behind them, so that a full disk shows here and not within a
// transaction. If it may not, it returns why: reasonMaxBytes or reasonNoSpace with the error of the disk.
func (f *file) grow(n int64) (reason string, err error) {
	size := f.size()
	room := f.maxPages - size/pageSize
	if room < n {
		return reasonMaxBytes, nil
	}
	if more := min(growPages, room); n < more && f.checkFree(more) == nil {
		n = more
	}
	if err := f.checkFree(n); err != nil {
		return reasonNoSpace, err
	}
	end := (size/pageSize + n) * pageSize
	err = unix.Fallocate(int(f.os.Fd()), 0, size, end-size)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		err = f.os.Truncate(end)
	}
	if err = diskError(err); errors.Is(err, ErrNoSpace) {
		return reasonNoSpace, err
	}
	if err != nil {
		return "", fmt.Errorf("grow to %d bytes: %w", end, err)
	}
	return "", nil
}

// checkFree returns ErrNoSpace if n more pages would leave less than minFree on the disk.
func (f *file) checkFree(n int64) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.os.Fd()), &st); err != nil {
		return fmt.Errorf("free space of the disk: %w", err)
	}
	if free := int64(st.Bavail) * st.Bsize; free-n*pageSize < f.minFree {
		return fmt.Errorf("%w: %d bytes free, %d are to stay free", ErrNoSpace, free, f.minFree)
	}
	return nil
}

// cramped reports whether the file could grow by its own bound and may not for want of space on the disk.
func (f *file) cramped() bool {
	return f.size()/pageSize < f.maxPages && errors.Is(f.checkFree(1), ErrNoSpace)
}

// diskError makes a full disk ErrNoSpace, also where bbolt hides the errno.
func diskError(err error) error {
	if err == nil || errors.Is(err, ErrNoSpace) {
		return err
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, berrors.ErrMaxSizeReached) || strings.Contains(err.Error(), unix.ENOSPC.Error()) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

const asideInfix = ".corrupt-"

// hasAsides reports whether files were set aside from path, by this process or by one that was killed before it could begin a new file.
func hasAsides(path string) bool {
	entries, err := os.ReadDir(filepath.Dir(path))
	return err == nil && slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return strings.HasPrefix(e.Name(), filepath.Base(path)+asideInfix)
	})
}

// moveAside renames path to a name that did not exist and returns it.
func moveAside(path string, now time.Time) (string, error) {
	base := path + asideInfix + now.UTC().Format("20060102T150405.000Z")
	for i := 1; ; i++ {
		name := base
		if i > 1 {
			name = fmt.Sprintf("%s-%d", base, i)
		}
		err := unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, name, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // not on this file system
			if _, err = os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
				err = os.Rename(path, name)
			} else if err == nil {
				err = fs.ErrExist
			}
		}
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("rename %s: %w", path, err)
		}
		return name, syncDir(filepath.Dir(path))
	}
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// panicError is a panic or memory fault out of bbolt or out of what it returned.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// Is makes a panic a kind of corruption.
func (e *panicError) Is(target error) bool { return target == ErrCorrupt }

// commitError is why a transaction could not be committed. The handle must not be used any more.
type commitError struct{ err error }

func (e *commitError) Error() string { return e.err.Error() }
func (e *commitError) Unwrap() error { return e.err }

// boltLogger keeps a commit that failed from being rolled back by bbolt, which then reads all pages through the mapping in a goroutine of
// its own: where a disk fails a page of these may fail too, and that memory fault would end the process. bbolt logs each such failure just
// before; here that is a panic, which guard turns into a commitError, and the file is opened afresh with all that openFile checks.
type boltLogger struct{ *bbolt.DefaultLogger }

var commitFailures = []string{"spilling data", "growing db size failed", "writing data failed", "writeMeta failed"}

func (boltLogger) Errorf(format string, args ...any) {
	for _, begin := range commitFailures {
		if err, ok := last(args).(error); ok && strings.HasPrefix(format, begin) {
			panic(&commitError{err})
		}
	}
}

func last(args []any) any {
	if len(args) == 0 {
		return nil
	}
	return args[len(args)-1]
}

// guard runs fn and turns a panic or a memory fault (bbolt reads the file through a mapping: a page that cannot be read is a fault) into
// a panicError.
func guard(fn func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(old)
	defer func() {
		switch v := recover().(type) {
		case nil:
		case *commitError:
			err = v
		case *pageError:
			err = v
		default:
			err = &panicError{value: v, stack: debug.Stack()}
		}
	}()
	return fn()
}
