// SPDX-License-Identifier: Apache-2.0

// Package store is a durable log of samples in one bbolt file. Its promise: a sample whose Append has returned nil is there exactly once,
// under a number that never changes and is never used again, until every sink has taken it and it is too old, or until it had to go and
// was counted for each sink that had not taken it. FORMAT.md describes the file.
//
// A batch of samples of all paths goes into the tail with one transaction; Maintain folds the tail into chunks of one path each. What the
// tail holds is in memory too, so that a sink which keeps up reads no file at all.
//
// A Log may be used by several goroutines: one that appends, one that calls Maintain, one per sink, any number of readers. Readers take
// no lock that a writer waits for.
package store

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	berrors "go.etcd.io/bbolt/errors"
	"go.uber.org/zap"
)

var (
	// ErrNoSpace is a disk that is full, or that would have less than MinFreeBytes left, when nothing that could be dropped is left.
	ErrNoSpace = errors.New("no space")
	// ErrLocked is a file that another process has open.
	ErrLocked = errors.New("in use by another process")
	// ErrCorrupt is a damaged file. An open Log has set it aside and goes on with a new one: the call failed, the next one works.
	ErrCorrupt = errors.New("store file is corrupt")
	// ErrVersion is a file of a newer format. It is left alone.
	ErrVersion = errors.New("format is newer than this program")

	ErrUnknownSink = errors.New("sink is not enabled")
	ErrUnknownPath = errors.New("path is not registered")
	// ErrPosition is an update of a sink that does not fit its positions.
	ErrPosition = errors.New("position does not fit")
	ErrReadOnly = errors.New("store is open for reading only")
	ErrClosed   = errors.New("store is closed")
)

// Reasons of Totals.Dropped that are the store's own. A sink adds its own to them.
const (
	reasonRetention = "retention" // older than Config.Retention
	reasonMaxBytes  = "max_bytes" // the file is as large as it may be
	reasonNoSpace   = "no_space"  // the disk is
	reasonCorrupt   = "corrupt"   // in a damaged value or file
	reasonNotTaken  = "not_taken" // the sink does not take the path any more
)

// DropReasons returns the reasons of [Totals.Dropped] that are the store's own.
func DropReasons() []string {
	return []string{reasonRetention, reasonMaxBytes, reasonNoSpace, reasonCorrupt, reasonNotTaken}
}

// Config says where the log is and how large it may become.
type Config struct {
	Path         string
	Retention    time.Duration          // samples older than this are deleted; 0: never by age
	MaxBytes     int64                  // limit of the file's size, at least 1 MiB; 0: 256 MiB
	MinFreeBytes int64                  // the file does not grow if less would be free on its disk
	Boot         string                 // id of this boot; "": as the kernel says
	LockTimeout  time.Duration          // how long Open waits for another process; 0: 1 s
	NoSync       bool                   // for tests: do not wait for the disk
	Logger       *zap.Logger            // nil: none
	History      *History               // of this file in this process, for who opens it again and again; nil: there is none
	Now          func() time.Time       // for tests; nil: time.Now
	Fault        func(operation string) // for tests: called in each transaction, may panic
}

const (
	defaultMaxBytes    = 256 << 20
	minMaxBytes        = 1 << 20
	defaultLockTimeout = time.Second
	bootID             = "/proc/sys/kernel/random/boot_id"
)

func (c *Config) complete() error {
	if c.MaxBytes == 0 {
		c.MaxBytes = defaultMaxBytes
	}
	if c.LockTimeout == 0 {
		c.LockTimeout = defaultLockTimeout
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.History == nil {
		c.History = &History{}
	}
	if c.History.troubles == nil {
		c.History.troubles = map[kind]*trouble{}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Fault == nil {
		c.Fault = func(string) {}
	}
	if c.Boot == "" {
		id, err := os.ReadFile(bootID)
		if err != nil {
			return fmt.Errorf("boot id: %w", err)
		}
		c.Boot = strings.TrimSpace(string(id))
	}
	if c.MaxBytes < minMaxBytes {
		return fmt.Errorf("max bytes %d is below %d", c.MaxBytes, int64(minMaxBytes))
	}
	return nil
}

var (
	bucketMeta    = []byte("meta")
	bucketBoots   = []byte("boots")
	bucketPaths   = []byte("paths")
	bucketTail    = []byte("tail")
	bucketChunks  = []byte("chunks")
	bucketSinks   = []byte("sinks")
	bucketDamaged = []byte("damaged")
	allBuckets    = [][]byte{bucketMeta, bucketBoots, bucketPaths, bucketTail, bucketChunks, bucketSinks, bucketDamaged}
)

// Log is an open store. The zero value is not usable; see Open.
type Log struct {
	cfg      Config
	log      *zap.Logger
	readOnly bool

	// write is held by whatever changes the file. What is below mu changes only with both held, so holders of either may read it. What is
	// here mirrors the file and is what the next transaction writes: nothing is read back from the file but samples and sinks' values.
	write sync.Mutex
	mu    sync.RWMutex

	file   *file // nil: to be opened
	loaded bool  // what is below is valid
	resume *file // closed, but the next one to open: what is below is what it holds
	closed bool

	base  uint64  // number of the first sample of a new path
	paths []*path // by ID; [0] is nil
	names map[string]*path
	sinks map[string]*sink

	boots []boot // offset of the current one changes under mu alone
	boot  uint32 // index of the current one; len(boots) in a read-only log
	clock clock  // under mu alone

	tailFirst, tailNext uint64 // keys of the tail
	tailSince           time.Time
	changed             chan struct{}

	recorded uint64
	written  int64

	margin int64 // pages that turned out to be needed beyond the estimate; under write alone
}

// History is what one Log leaves to the next: without it a file that cannot be opened would have its lines, and as many files might be set
// aside, at each try. Only one Log at a time may have it.
type History struct {
	asides   []aside
	panics   uint64
	troubles map[kind]*trouble // under Log.write alone
}

// Open opens the log, or makes a new one. A file that is corrupt is set aside (renamed, never deleted) and a new one begun; the log and
// Status say so. It returns ErrLocked if another process keeps the file open for longer than LockTimeout, ErrNoSpace if there is no room
// for a new file, and ErrVersion for a file of a later format.
func Open(cfg Config) (*Log, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	l := newLog(cfg)
	l.write.Lock()
	defer l.write.Unlock()
	if err := l.attach(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	return l, nil
}

// OpenReadOnly opens the file of a process that has stopped. Several may read it at once; while a daemon has it open the result is
// ErrLocked. Whatever would write returns ErrReadOnly.
func OpenReadOnly(path string, lockTimeout time.Duration) (*Log, error) {
	cfg := Config{Path: path, LockTimeout: lockTimeout}
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	l := newLog(cfg)
	l.readOnly = true
	l.write.Lock()
	defer l.write.Unlock()
	if err := l.attach(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	return l, nil
}

func newLog(cfg Config) *Log {
	l := &Log{cfg: cfg, log: cfg.Logger, changed: make(chan struct{})}
	l.reset()
	return l
}

// reset forgets what was loaded.
func (l *Log) reset() {
	l.paths, l.names, l.sinks, l.boots = []*path{nil}, map[string]*path{}, map[string]*sink{}, nil
	l.base, l.boot, l.tailFirst, l.tailNext = 0, 0, 0, 0
}

// Close closes the file. It waits for readers, but not for long.
func (l *Log) Close() error {
	l.write.Lock()
	defer l.write.Unlock()
	l.endTroubles(true)
	l.mu.Lock()
	f := l.file
	l.file, l.closed = nil, true
	l.mu.Unlock()
	if f == nil {
		return nil
	}
	return f.close()
}

// Changed returns a channel that is closed at the next successful Append.
func (l *Log) Changed() <-chan struct{} {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.changed
}

// Status describes the log. Recorded and WrittenBytes count since Open.
type Status struct {
	Bytes        int64     // size of the file
	WrittenBytes int64     // to the file, in whole pages
	Recorded     uint64    // samples appended
	Oldest       time.Time // of the stored samples; zero if there is none or its time is not known
	SetAside     []string  // files that this process set aside
	DiskFull     bool      // the file may not grow, for less than MinFreeBytes would be left: the next samples take the place of the oldest
}

// Status returns the present state.
func (l *Log) Status() (Status, error) {
	l.mu.RLock()
	if l.closed {
		l.mu.RUnlock()
		return Status{}, fmt.Errorf("status: %w", ErrClosed)
	}
	st := Status{WrittenBytes: l.written, Recorded: l.recorded}
	if l.file != nil {
		st.Bytes = l.file.size()
		st.DiskFull = l.file.cramped()
	}
	for _, a := range l.cfg.History.asides {
		st.SetAside = append(st.SetAside, a.name)
	}
	firsts := map[*path]uint64{}
	for _, p := range l.paths[1:] {
		firsts[p] = p.first
	}
	l.mu.RUnlock()
	var err error
	if st.Oldest, err = l.oldest(firsts); err != nil {
		return Status{}, fmt.Errorf("status: %w", err)
	}
	return st, nil
}

// Panics is how many panics and memory faults made this process set a file aside.
func (l *Log) Panics() uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.cfg.History.panics
}

// usable returns why the log cannot be written, if so. The caller holds l.write.
func (l *Log) usable() error {
	switch {
	case l.closed:
		return ErrClosed
	case l.readOnly:
		return ErrReadOnly
	}
	return nil
}

// prepare gets the log ready for a transaction that writes about this many pages. It comes before the caller decides what to write,
// because it may drop samples. The caller holds l.write.
func (l *Log) prepare(pages int) error {
	if err := l.usable(); err != nil {
		return err
	}
	if err := l.attach(); err != nil {
		return err
	}
	return l.makeRoom(int64(pages))
}

// commit runs fn in one transaction. An error means that nothing has changed; if it is ErrCorrupt the file has been set aside. The caller
// holds l.write and has called prepare.
func (l *Log) commit(operation string, fn func(*transaction) error) error {
	f := l.file
	l.mu.RLock()
	number, current := l.boot, l.boots[l.boot]
	l.mu.RUnlock()
	newOffset := !current.onDisk || current.stored != current.offset
	var tx *transaction
	var id int
	err := guard(func() (err error) {
		if tx, err = f.begin(true); err != nil {
			return err
		}
		id = tx.bolt.ID()
		l.cfg.Fault(operation)
		if err := fn(tx); err != nil {
			return err
		}
		if newOffset {
			if err := putBoot(tx, number, current); err != nil {
				return err
			}
		}
		return tx.bolt.Commit()
	})
	if err != nil {
		// Not bbolt.DB.Update: after a panic that does what boltLogger keeps Commit from doing.
		if tx != nil {
			_ = guard(tx.bolt.Rollback)
		}
		if errors.Is(err, berrors.ErrMaxSizeReached) {
			l.margin = min(l.margin+growPages, f.maxPages/8)
		}
		if errors.Is(err, berrors.ErrIncompatibleValue) { // a value where a bucket was, or the other way round
			err = fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		var failed *commitError
		if errors.Is(err, ErrCorrupt) {
			l.setAside(f, err)
		} else if errors.As(err, &failed) {
			l.openAfresh(f)
		}
		return diskError(err)
	}
	f.committed(id)
	l.mu.Lock()
	defer l.mu.Unlock()
	if newOffset {
		l.boots[number].stored, l.boots[number].onDisk = current.offset, true
	}
	stats := tx.bolt.Stats()
	l.written += stats.GetPageAlloc() + pageSize // and the meta page
	return nil
}

// view runs fn in a read-only transaction; what it takes out of the file it must copy. The caller does not hold l.write.
func (l *Log) view(operation string, fn func(*transaction) error) error {
	for {
		l.mu.RLock()
		f, closed := l.file, l.closed
		l.mu.RUnlock()
		if closed {
			return ErrClosed
		}
		if f == nil {
			l.write.Lock()
			err := l.attach()
			l.write.Unlock()
			if err != nil {
				return err
			}
			continue
		}
		err := f.view(func(tx *transaction) error {
			l.cfg.Fault(operation)
			return fn(tx)
		})
		if errors.Is(err, errDead) {
			continue
		}
		if errors.Is(err, ErrCorrupt) {
			l.write.Lock()
			l.setAside(f, err)
			l.write.Unlock()
		}
		return err
	}
}

func (f *file) view(fn func(*transaction) error) error {
	var tx *transaction
	err := guard(func() (err error) {
		if tx, err = f.begin(false); err != nil {
			return err
		}
		return fn(tx)
	})
	if tx != nil {
		err = errors.Join(err, guard(tx.bolt.Rollback))
	}
	return err
}
