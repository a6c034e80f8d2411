// SPDX-License-Identifier: Apache-2.0

package target

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
)

const (
	// filesLook is the time between two looks at the files. One is read when it was the same at two looks in a row: whoever writes it may
	// do so in several steps.
	filesLook = 2 * time.Second
	// maxFile is the size of the largest file that is read, in bytes.
	maxFile = 64 << 20
)

// Files are targets that stand in files. A file that is damaged, or cannot be read, keeps the targets that it had before; one that is
// deleted has none. Its methods may be called concurrently.
type Files struct {
	patterns []string
	parse    func(file string, text []byte) ([]Target, error)
	logger   *zap.Logger

	mu       sync.Mutex
	files    map[string]*file // by name
	good     time.Time
	readings uint64 // that went well
	teller   Teller
	told     map[string]uint64 // the readings of files when there was a line
}

// file is one file as it was last read.
type file struct {
	text    []byte // that was parsed, well or not; nil if it could not be read
	targets []Target
	reading uint64 // of all that went well, which one gave the targets
	err     error  // why they are not those of text
}

// NewFiles returns the targets in all files whose names match one of the patterns, which are those of [filepath.Glob]. parse makes
// targets of a file. Nothing is read yet.
func NewFiles(patterns []string, parse func(file string, text []byte) ([]Target, error), logger *zap.Logger) (*Files, error) {
	for _, p := range patterns {
		if _, err := filepath.Match(p, ""); err != nil {
			return nil, fmt.Errorf("%q: %w", p, err)
		}
	}
	return &Files{patterns: patterns, parse: parse, logger: logger, files: make(map[string]*file)}, nil
}

// Read reads all files, and parses those that have changed, or all if afresh. It returns the targets of each, in the order of the
// files' names.
func (f *Files) Read(afresh bool) []Source {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := f.names()
	for name := range f.files {
		if !slices.Contains(names, name) {
			delete(f.files, name)
		}
	}
	var sources []Source
	for _, name := range names {
		sources = append(sources, Source{Name: name, Targets: f.read(name, afresh).targets})
	}
	f.judge()
	return sources
}

func (f *Files) look() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.judge()
}

// judge notes that all is well, if it is, and has the line about what there is in the files if that has changed.
func (f *Files) judge() {
	var damaged []error
	var changed, gone []string
	var state strings.Builder
	targets := 0
	for _, name := range slices.Sorted(maps.Keys(f.files)) {
		r := f.files[name]
		targets += len(r.targets)
		if r.err != nil {
			damaged = append(damaged, r.err)
		}
		if f.told[name] != r.reading {
			changed = append(changed, name)
		}
		fmt.Fprintln(&state, name, r.reading, r.err)
	}
	for name := range f.told {
		if f.files[name] == nil {
			gone = append(gone, name)
		}
	}
	if len(damaged) == 0 {
		f.good = time.Now()
	}
	fields, due := f.teller.Tell(state.String(), len(damaged) > 0)
	if !due {
		return
	}
	fields = append(fields, zap.Int("files", len(f.files)), zap.Int("targets", targets), zap.Strings("read", changed), zap.Strings("gone", gone))
	if len(damaged) > 0 {
		f.logger.Error("files of targets are damaged; what they had stays", append(fields, zap.Error(errors.Join(damaged...)))...)
	} else {
		f.logger.Info("files of targets", fields...)
	}
	f.told = make(map[string]uint64)
	for name, r := range f.files {
		f.told[name] = r.reading
	}
}

// names lists the files that match, each once, in order.
func (f *Files) names() []string {
	var names []string
	for _, p := range f.patterns {
		found, _ := filepath.Glob(p) // of a pattern that is one
		names = append(names, found...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (f *Files) read(name string, afresh bool) *file {
	r := f.files[name]
	if r == nil {
		r = new(file)
		f.files[name] = r
	}
	text, err := readFile(name)
	if err != nil {
		r.text = nil
	} else {
		if !afresh && r.text != nil && bytes.Equal(text, r.text) {
			return r
		}
		var targets []Target
		r.text = text
		if targets, err = f.parse(name, text); err == nil {
			f.readings++
			r.targets, r.reading = targets, f.readings
		}
	}
	r.err = err
	return r
}

// readFile reads a file of a size that can be one of targets. It waits for no pipe.
func readFile(name string) ([]byte, error) {
	switch info, err := os.Stat(name); {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file", name)
	case info.Size() > maxFile:
		return nil, fmt.Errorf("%s: %d bytes are too many", name, info.Size())
	}
	return os.ReadFile(name)
}

// Run looks at the files every 2 s until ctx ends, and returns nil then. When any has changed it reads them and calls changed. beat, if
// not nil, is called before each look with the time until the next.
func (f *Files) Run(ctx context.Context, changed func([]Source), beat func(next time.Duration)) error {
	ticker := time.NewTicker(filesLook)
	defer ticker.Stop()
	var read, before map[string]stamp
	for {
		if beat != nil {
			beat(filesLook)
		}
		f.look()
		now := f.stamps()
		if maps.Equal(now, before) && !maps.Equal(now, read) {
			changed(f.Read(false))
			read = now
		}
		before = now
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// stamp differs when a file does, or who may read it.
type stamp struct {
	inode   uint64
	size    int64
	changed syscall.Timespec
}

func (f *Files) stamps() map[string]stamp {
	stamps := make(map[string]stamp)
	for _, name := range f.names() {
		var s syscall.Stat_t
		if err := syscall.Stat(name, &s); err == nil {
			stamps[name] = stamp{s.Ino, s.Size, s.Ctim}
		}
	}
	return stamps
}

// Status says when last all files were good, and what is wrong with them now; nil if nothing is.
func (f *Files) Status() (good time.Time, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(f.files)) {
		errs = append(errs, f.files[name].err)
	}
	return f.good, errors.Join(errs...)
}
