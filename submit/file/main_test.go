// SPDX-License-Identifier: Apache-2.0

package file

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/submit"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childVariable); dir != "" {
		child(dir) // is killed
	}
	goleak.VerifyTestMain(m)
}

// bench is a store, a directory for the files, and what it takes to deliver from one to the other.
type bench struct {
	tb    testing.TB
	cfg   Config
	log   *store.Log
	paths []store.Path
	logs  *observer.ObservedLogs
	zap   *zap.Logger
	// commit, if set, takes the place of the store's Commit.
	commit func(sink string, u store.Update) error
}

func (b *bench) file(name string) string { return filepath.Join(b.cfg.Directory, name) }

// openStore opens the store in dir with n paths, p1 to pn.
func openStore(dir string, n int) (*store.Log, []store.Path, error) {
	l, err := store.Open(store.Config{
		Path:        filepath.Join(dir, "samples.db"),
		Retention:   time.Hour,
		MaxBytes:    256 << 20,
		Boot:        "b1",
		LockTimeout: time.Second,
		NoSync:      true,
	})
	if err != nil {
		return nil, nil, err
	}
	if err := l.Enable(Name, false, func(store.Path) bool { return true }); err != nil {
		return nil, nil, err
	}
	var paths []store.Path
	for i := range n {
		p, err := l.Register(fmt.Sprintf("p%d", i+1), nil)
		if err != nil {
			return nil, nil, err
		}
		paths = append(paths, p)
	}
	return l, paths, nil
}

// newBench has files that are large enough for everything.
func newBench(tb testing.TB, paths int) *bench {
	tb.Helper()
	dir := tb.TempDir()
	l, p, err := openStore(dir, paths)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := l.Close(); err != nil {
			tb.Error(err)
		}
	})
	core, logs := observer.New(zapcore.InfoLevel)
	cfg := Config{Directory: filepath.Join(dir, "out"), RotateBytes: 1 << 30, Keep: 1000, Device: "ams-dz001"}
	return &bench{tb: tb, cfg: cfg, log: l, paths: p, logs: logs, zap: zap.New(core)}
}

// append stores n more samples of each path.
func (b *bench) append(n int) {
	b.tb.Helper()
	var batch []store.Record
	for i := range n {
		for _, p := range b.paths {
			batch = append(batch, store.Record{Path: p.ID, Sample: store.Sample{Mono: int64(i + 1), RTT: 500_000}})
		}
	}
	if err := b.log.Append(batch); err != nil {
		b.tb.Fatal(err)
	}
}

// sink returns a sink that knows nothing of those before it, as after a restart.
func (b *bench) sink() *Sink {
	b.tb.Helper()
	s, err := New(b.cfg, b.log, b.zap)
	if err != nil {
		b.tb.Fatal(err)
	}
	return s
}

// brokenLog is a store whose Commit is somebody else's.
type brokenLog struct {
	*store.Log
	commit func(sink string, u store.Update) error
}

func (l brokenLog) Commit(sink string, u store.Update) error { return l.commit(sink, u) }

// deliver starts a Submitter, lets it deliver what is there, and stops it. It reports whether that went well.
func (b *bench) deliver() bool {
	b.tb.Helper()
	l := brokenLog{b.log, b.log.Commit}
	if b.commit != nil {
		l.commit = b.commit
	}
	s, err := submit.New(submit.Config{Log: l, Sink: b.sink(), Interval: time.Second, Logger: b.zap})
	if err != nil {
		b.tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Run(ctx); err != nil {
		b.tb.Fatal(err)
	}
	return s.Stats().Failed == 0
}

// mustDeliver is deliver where nothing is in its way.
func (b *bench) mustDeliver() {
	b.tb.Helper()
	if !b.deliver() {
		for _, e := range b.logs.All() {
			b.tb.Logf("%s: %v", e.Message, e.ContextMap())
		}
		b.tb.Fatal("delivery failed")
	}
}

// names returns what is in the directory.
func (b *bench) names() []string {
	b.tb.Helper()
	entries, err := os.ReadDir(b.cfg.Directory)
	if err != nil {
		b.tb.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// written returns the sequence numbers in the files, by path, in the order in which they stand there.
func (b *bench) written() map[string][]uint64 {
	b.tb.Helper()
	files, err := filepath.Glob(b.file("samples-*.ndjson"))
	if err != nil {
		b.tb.Fatal(err)
	}
	got := make(map[string][]uint64)
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			b.tb.Fatal(err)
		}
		if len(data) > 0 && data[len(data)-1] != '\n' {
			b.tb.Errorf("%s does not end with a line", name)
		}
		for line := range bytes.Lines(data) {
			var sample struct {
				Device, Path string
				Seq          uint64
			}
			if err := json.Unmarshal(line, &sample); err != nil {
				b.tb.Fatalf("%s: %q: %v", name, line, err)
			}
			if sample.Device != b.cfg.Device {
				b.tb.Errorf("device %q, want %q", sample.Device, b.cfg.Device)
			}
			got[sample.Path] = append(got[sample.Path], sample.Seq)
		}
	}
	return got
}

// stored returns the sequence numbers in the store, by path.
func (b *bench) stored() map[string][]uint64 {
	b.tb.Helper()
	got := make(map[string][]uint64)
	for _, p := range b.paths {
		for from := uint64(0); ; {
			samples, err := b.log.Read(p.ID, from, 256)
			if err != nil {
				b.tb.Fatal(err)
			}
			if len(samples) == 0 {
				break
			}
			for _, s := range samples {
				got[p.Name] = append(got[p.Name], s.Seq)
			}
			from = samples[len(samples)-1].Seq + 1
		}
	}
	return got
}

// checkExactlyOnce compares files and store.
func (b *bench) checkExactlyOnce() {
	b.tb.Helper()
	if diff := cmp.Diff(b.stored(), b.written()); diff != "" {
		b.tb.Errorf("samples in the files (-want +got):\n%s", diff)
	}
}

// messages returns the log lines since the last call.
func (b *bench) messages() []string {
	var m []string
	for _, e := range b.logs.TakeAll() {
		m = append(m, e.Message)
	}
	return m
}
