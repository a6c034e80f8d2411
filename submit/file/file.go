// SPDX-License-Identifier: Apache-2.0

// Package file writes samples to NDJSON files in a directory. Its promise: every delivered sample stands in the files exactly once,
// and in order per path, whenever the process or the machine is killed.
//
// How: the name of the file being written and its length are committed to the store together with the positions. What lies behind
// that length was never accounted for, will be offered again, and is cut off before the next write. No other file is ever written
// to: a full file is finished, and its successor is begun only once the store has its name.
package file

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/submit"
)

const (
	Name       = "file" // of the sink
	cursorKey  = "cursor"
	timeLayout = "20060102T150405Z"
	asideExt   = ".unaccounted"
)

// pattern tells the files of this package from everybody else's. Names sort by age: see nextName.
var pattern = regexp.MustCompile(`^samples-(\d{8}T\d{6}Z)-(\d{8})\.ndjson(\.unaccounted)?$`)

// Config says where samples go. Every field but Device is needed.
type Config struct {
	Directory   string // created with mode 0755 if it is missing, as are its parents
	RotateBytes int64  // a file of at least this size is finished; it exceeds it by less than one line
	Keep        int    // files to keep, the one being written included; older ones are deleted
	Device      string // written into each line; "" = left out
}

// Validate reports the first field that cannot work.
func (c Config) Validate() error {
	switch {
	case c.Directory == "":
		return errors.New("directory: must not be empty")
	case c.RotateBytes < 1:
		return fmt.Errorf("rotate_bytes %d: must be above 0", c.RotateBytes)
	case c.Keep < 1:
		return fmt.Errorf("keep %d: must be above 0", c.Keep)
	}
	return nil
}

// log is the part of *store.Log that holds the sink's cursor.
type log interface {
	Get(sink, key string) ([]byte, error)
	Commit(sink string, u store.Update) error
}

// cursor is a position in the files: everything before it is delivered, nothing behind it is.
type cursor struct {
	Name   string `json:"name"`
	Offset int64  `json:"offset"`
}

func (c cursor) put() map[string][]byte {
	b, err := json.Marshal(c)
	if err != nil {
		panic(err) // a struct of a string and a number
	}
	return map[string][]byte{cursorKey: b}
}

// Sink implements [submit.Transactional]. It is used by one goroutine, and no second one may write to its directory.
//
// Samples are gathered in memory and reach the file by one write and one fsync per transaction, whatever the number of paths: flash
// wears by the fsync.
type Sink struct {
	cfg    Config
	log    log
	logger *zap.Logger

	committed cursor
	buf       []byte // lines to be written at committed
	full      bool   // the file is finished by the lines in buf
	newest    string // the newest name in use
	pruning   submit.Outage
	removing  submit.Outage // of files, by somebody else
}

var _ submit.Transactional = (*Sink)(nil)

// New returns a sink that keeps its cursor in l. It touches nothing before its first transaction.
func New(cfg Config, l log, logger *zap.Logger) (*Sink, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Sink{
		cfg: cfg, log: l, logger: logger.Named("file"),
		pruning:  submit.Outage{Begins: "old files cannot be deleted", Ends: "old files are deleted again"},
		removing: submit.Outage{Begins: "file was removed or cut by somebody else, starting a new one", Ends: "files are left alone again"},
	}, nil
}

// Name implements [submit.Sink].
func (s *Sink) Name() string { return Name }

// Takes implements [submit.Sink]: every path.
func (s *Sink) Takes(store.Path) bool { return true }

// Begin implements [submit.Transactional]: it makes directory and file what the store says they are.
func (s *Sink) Begin(context.Context) error {
	s.buf, s.full = s.buf[:0], false
	if err := makeDirectory(s.cfg.Directory); err != nil {
		return err
	}
	at, err := s.cursor()
	if err != nil {
		return err
	}
	names, err := s.names()
	if err != nil {
		return err
	}
	s.newest = at.Name
	if len(names) > 0 {
		s.newest = max(s.newest, names[len(names)-1])
	}
	if at.Name == "" {
		// A new store. Files of ours that are here already stem from an earlier one and are good.
		at, err = s.startFile()
	} else if err = s.setAside(names, at.Name); err == nil {
		at, err = s.cut(at)
	}
	if err != nil {
		return err
	}
	if at.Offset == 0 {
		if err := s.create(at.Name); err != nil {
			return err
		}
	}
	s.committed = at
	s.prune()
	return nil
}

// Submit implements [submit.Sink]. It takes samples until the file is full, and none then until the transaction is committed.
func (s *Sink) Submit(_ context.Context, p store.Path, samples []store.Sample) (submit.Result, error) {
	accepted := 0
	for _, sample := range samples {
		if s.full {
			break
		}
		s.buf = append(sample.AppendJSON(s.buf, s.cfg.Device, p.Name), '\n')
		s.full = s.end() >= s.cfg.RotateBytes
		accepted++
	}
	if accepted == 0 {
		return submit.Result{}, nil
	}
	next := cursor{Name: s.committed.Name, Offset: s.end()}
	if s.full {
		next = cursor{Name: s.nextName()}
	}
	return submit.Result{Accepted: accepted, Put: next.put()}, nil
}

// end returns the size of the file once buf is in it.
func (s *Sink) end() int64 { return s.committed.Offset + int64(len(s.buf)) }

// Sync implements [submit.Transactional]: it writes what was accepted. What an error leaves in the file, the next Begin cuts off.
func (s *Sink) Sync(context.Context) error {
	if len(s.buf) == 0 {
		return nil
	}
	f, err := os.OpenFile(s.path(s.committed.Name), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("write samples: %w", err)
	}
	_, err = f.WriteAt(s.buf, s.committed.Offset)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write samples: %w", err)
	}
	return nil
}

// cursor reads the cursor that the store has; the zero cursor if it has none.
func (s *Sink) cursor() (cursor, error) {
	var c cursor
	b, err := s.log.Get(Name, cursorKey)
	if err != nil {
		return c, fmt.Errorf("read file cursor: %w", err)
	}
	if b == nil {
		return c, nil
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("read file cursor %q: %w", b, err)
	}
	return c, nil
}

// names lists the files of ours, oldest first.
func (s *Sink) names() ([]string, error) {
	entries, err := os.ReadDir(s.cfg.Directory)
	if err != nil {
		return nil, fmt.Errorf("list files: %w", err)
	}
	var names []string
	for _, e := range entries {
		if pattern.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// nextName returns a name that sorts behind every name in use: by the time, or by the counter alone while the clock stands before
// the time of the newest file.
func (s *Sink) nextName() string {
	stamp, counter := time.Now().UTC().Format(timeLayout), uint64(0)
	if m := pattern.FindStringSubmatch(s.newest); m != nil {
		stamp = max(stamp, m[1])
		counter, _ = strconv.ParseUint(m[2], 10, 64) // eight digits
	}
	return fmt.Sprintf("samples-%s-%08d.ndjson", stamp, counter+1)
}

// startFile has the store point at a file that does not exist yet. Recording a name first is what makes a kill at any later moment
// harmless: a file that the store does not know is never ours to repair.
func (s *Sink) startFile() (cursor, error) {
	at := cursor{Name: s.nextName()}
	if err := s.log.Commit(Name, store.Update{Put: at.put()}); err != nil {
		return cursor{}, fmt.Errorf("record new file: %w", err)
	}
	s.newest = at.Name
	return at, nil
}

// cut removes what was written behind the cursor. If the file lacks what was delivered to it, somebody else removed that, and a new
// file is begun. The cut is not synced: should it be undone by a crash, it is done again.
func (s *Sink) cut(at cursor) (cursor, error) {
	info, err := os.Stat(s.path(at.Name))
	size := int64(0)
	switch {
	case err == nil:
		size = info.Size()
	case !errors.Is(err, fs.ErrNotExist):
		return cursor{}, fmt.Errorf("look at file: %w", err)
	}
	switch {
	case size < at.Offset:
		lost := at
		if at, err = s.startFile(); err != nil {
			return cursor{}, err
		}
		s.removing.GoesOn(s.logger, fmt.Errorf("%s has %d bytes of %d", lost.Name, size, lost.Offset))
		return at, nil
	case size > at.Offset:
		if err := os.Truncate(s.path(at.Name), at.Offset); err != nil {
			return cursor{}, fmt.Errorf("cut file: %w", err)
		}
		s.logger.Debug("cut unaccounted tail", zap.String("file", at.Name), zap.Int64("bytes", size-at.Offset))
	}
	s.removing.Over(s.logger)
	return at, nil
}

// create creates the file if it is not there. The directory is synced even if it is: the attempt that created it may have failed to.
func (s *Sink) create(name string) error {
	f, err := os.OpenFile(s.path(name), os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("create file: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("create file: %w", err)
	}
	return syncDirectory(s.cfg.Directory)
}

// setAside renames the files that are newer than current. This sink never makes one, so the store is older than the files: it was
// restored from a copy. Their samples may be delivered again, so they must not be read as part of the series, and those that the
// store has lost exist nowhere else, so they must not be deleted either.
func (s *Sink) setAside(names []string, current string) error {
	var aside []string
	for _, name := range names {
		if name <= current || filepath.Ext(name) == asideExt {
			continue
		}
		if err := os.Rename(s.path(name), s.path(name+asideExt)); err != nil {
			return fmt.Errorf("set file aside: %w", err)
		}
		aside = append(aside, name)
	}
	if len(aside) == 0 {
		return nil
	}
	s.logger.Warn("set aside files that the store does not account for", zap.Strings("files", aside), zap.String("renamed_to", "*"+asideExt))
	return syncDirectory(s.cfg.Directory)
}

// prune deletes the oldest files, those set aside included. Failing to is no reason to hold back samples.
func (s *Sink) prune() {
	names, err := s.names()
	for i := 0; i < len(names)-s.cfg.Keep && err == nil; i++ {
		if names[i] != s.committed.Name {
			err = os.Remove(s.path(names[i]))
		}
	}
	if err != nil {
		s.pruning.GoesOn(s.logger, err)
	} else {
		s.pruning.Over(s.logger)
	}
}

func (s *Sink) path(name string) string { return filepath.Join(s.cfg.Directory, name) }

// makeDirectory creates dir and its parents where they are missing, each durably.
func makeDirectory(dir string) error {
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeDirectory(filepath.Dir(dir)); err != nil {
			return err
		}
		err = os.Mkdir(dir, 0o755)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil // or is no directory, which shows when it is read
	}
	if err != nil {
		return fmt.Errorf("create directory: %w", err)
	}
	return syncDirectory(filepath.Dir(dir))
}

func syncDirectory(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}
