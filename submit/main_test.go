// SPDX-License-Identifier: Apache-2.0

package submit

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/xtwamp/xtwamp/probe/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errDown = errors.New("sink is down")

// fakeLog is a store in memory for one sink that was enabled before the first sample.
type fakeLog struct {
	mu        sync.Mutex
	paths     []store.Path
	samples   map[store.PathID][]store.Sample
	positions map[store.PathID]uint64
	delivered uint64
	dropped   map[string]uint64
	values    map[string][]byte
	changed   chan struct{}
	commits   []store.Update
	enabled   int                   // calls of Enable that succeeded
	fail      func(op string) error // nil: nothing fails
}

// newFakeLog has paths p1 to pn.
func newFakeLog(n int) *fakeLog {
	l := &fakeLog{
		samples:   make(map[store.PathID][]store.Sample),
		positions: make(map[store.PathID]uint64),
		dropped:   make(map[string]uint64),
		values:    make(map[string][]byte),
		changed:   make(chan struct{}),
	}
	for i := 1; i <= n; i++ {
		l.paths = append(l.paths, store.Path{ID: store.PathID(i), Name: "p" + string(rune('0'+i))})
	}
	return l
}

// append stores n more samples of a path.
func (l *fakeLog) append(id store.PathID, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range n {
		l.samples[id] = append(l.samples[id], store.Sample{Seq: uint64(len(l.samples[id]))})
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *fakeLog) failing(op string) error {
	if l.fail == nil {
		return nil
	}
	return l.fail(op)
}

func (l *fakeLog) Enable(string, bool, func(store.Path) bool) error {
	if err := l.failing("enable"); err != nil {
		return err
	}
	l.enabled++
	return nil
}

func (l *fakeLog) Paths() ([]store.Path, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.paths), l.failing("paths")
}

func (l *fakeLog) Next(_ string, id store.PathID, limit int) ([]store.Sample, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.failing("next"); err != nil {
		return nil, err
	}
	s := l.samples[id][l.positions[id]:]
	return slices.Clone(s[:min(limit, len(s))]), nil
}

func (l *fakeLog) Commit(_ string, u store.Update) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.failing("commit"); err != nil {
		return err
	}
	l.commits = append(l.commits, u)
	maps.Copy(l.positions, u.Positions)
	maps.Copy(l.values, u.Put)
	for _, key := range u.Delete {
		delete(l.values, key)
	}
	l.delivered += u.Delivered
	for reason, n := range u.Dropped {
		l.dropped[reason] += n
	}
	return nil
}

func (l *fakeLog) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

func (l *fakeLog) Totals(string) (store.Totals, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := store.Totals{Delivered: l.delivered, Dropped: maps.Clone(l.dropped)}
	for id, s := range l.samples {
		t.Offered += uint64(len(s))
		t.Waiting += uint64(len(s)) - l.positions[id]
	}
	return t, nil
}

// fakeSink remembers what it accepted. Its script decides about each batch; without one it accepts all.
type fakeSink struct {
	mu      sync.Mutex
	script  func(ctx context.Context, p store.Path, s []store.Sample) (Result, error)
	got     map[string][]uint64 // sequence numbers by path
	offered []offer
}

// offer is one call of Submit.
type offer struct {
	At   time.Duration // since the first one
	Path string
	From uint64
	N    int
}

func (f *fakeSink) Name() string            { return "fake" }
func (f *fakeSink) Takes(p store.Path) bool { return p.Labels["skip"] == "" }

func (f *fakeSink) set(script func(context.Context, store.Path, []store.Sample) (Result, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script = script
}

func (f *fakeSink) Submit(ctx context.Context, p store.Path, s []store.Sample) (Result, error) {
	f.mu.Lock()
	script := f.script
	f.offered = append(f.offered, offer{At: time.Since(bubbleStart), Path: p.Name, From: s[0].Seq, N: len(s)})
	f.mu.Unlock()

	r, err := Result{Accepted: len(s)}, error(nil)
	if script != nil {
		r, err = script(ctx, p, s)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.got == nil {
		f.got = make(map[string][]uint64)
	}
	for _, sample := range s[:min(max(r.Accepted, 0), len(s))] {
		f.got[p.Name] = append(f.got[p.Name], sample.Seq)
	}
	return r, err
}

// took returns the numbers of the samples that it has taken so far, by path.
func (f *fakeSink) took() map[string][]uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.got) // what is there of a slice does not change
}

// offers returns the calls so far.
func (f *fakeSink) offers() []offer {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.offered)
}

// bubbleStart is when the clock of a synctest bubble starts.
var bubbleStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func down(context.Context, store.Path, []store.Sample) (Result, error) { return Result{}, errDown }

// sequence returns from, ..., to-1.
func sequence(from, to uint64) []uint64 {
	var s []uint64
	for ; from < to; from++ {
		s = append(s, from)
	}
	return s
}

// newSubmitter returns a Submitter and what it logs at info or above.
func newSubmitter(tb testing.TB, l log, sink Sink, interval time.Duration) (*Submitter, *observer.ObservedLogs) {
	tb.Helper()
	core, logs := observer.New(zapcore.InfoLevel)
	s, err := New(Config{Log: l, Sink: sink, Interval: interval, Logger: zap.New(core)})
	if err != nil {
		tb.Fatal(err)
	}
	return s, logs
}

// start runs s until the end of the test or until the returned function is called, which waits for Run.
func start(tb testing.TB, s *Submitter) (stop func()) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("Run: %v", err)
		}
	})
	tb.Cleanup(stop)
	return stop
}

// pass lets time go by.
func pass(d time.Duration) { <-time.After(d) }

func messages(logs *observer.ObservedLogs) []string {
	var m []string
	for _, e := range logs.All() {
		m = append(m, e.Message)
	}
	return m
}

// changes are the messages without those that say the same again.
func changes(logs *observer.ObservedLogs) []string { return slices.Compact(messages(logs)) }
