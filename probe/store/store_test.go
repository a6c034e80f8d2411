// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerEnv); dir != "" {
		os.Exit(writer(dir)) // a child of the kill test
	}
	if path := os.Getenv(holderEnv); path != "" {
		os.Exit(holder(path)) // a child of the lock test
	}
	goleak.VerifyTestMain(m)
}

// testClock is a wall clock that only moves when told.
type testClock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *testClock { return &testClock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

func (c *testClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *testClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// fixture is a log in a file of its own that can be closed and opened again.
type fixture struct {
	testing.TB
	*Log
	cfg   Config
	clock *testClock
	logs  *observer.ObservedLogs
}

func newFixture(t testing.TB, change ...func(*Config)) *fixture {
	t.Helper()
	f := newClosedFixture(t, change...)
	f.open()
	return f
}

func newClosedFixture(t testing.TB, change ...func(*Config)) *fixture {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	f := &fixture{TB: t, clock: newClock(), logs: logs}
	f.cfg = Config{Path: filepath.Join(t.TempDir(), "samples.db"), Boot: "boot-1", NoSync: true, Logger: zap.New(core), Now: f.clock.Now}
	for _, c := range change {
		c(&f.cfg)
	}
	t.Cleanup(func() {
		if f.Log != nil {
			f.close()
		}
	})
	return f
}

func (f *fixture) open() {
	f.Helper()
	l, err := Open(f.cfg)
	if err != nil {
		f.Fatal(err)
	}
	f.Log = l
}

func (f *fixture) close() {
	f.Helper()
	if err := f.Log.Close(); err != nil {
		f.Error(err)
	}
	f.Log = nil
}

func (f *fixture) reopen() {
	f.Helper()
	f.close()
	f.open()
}

func (f *fixture) register(names ...string) []PathID {
	f.Helper()
	var ids []PathID
	for _, name := range names {
		p, err := f.Register(name, nil)
		if err != nil {
			f.Fatal(err)
		}
		ids = append(ids, p.ID)
	}
	return ids
}

// add appends n samples of a path, one each 10 s from number first on.
func (f *fixture) add(id PathID, first, n int) {
	f.Helper()
	var batch []Record
	for i := range n {
		batch = append(batch, Record{Path: id, Sample: sampleNumber(first + i)})
	}
	if err := f.Append(batch); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) read(id PathID) []Sample {
	f.Helper()
	samples, err := f.Read(id, 0, 1<<30)
	if err != nil {
		f.Fatal(err)
	}
	return samples
}

func (f *fixture) totals(sink string) Totals {
	f.Helper()
	totals, err := f.Totals(sink)
	if err != nil {
		f.Fatal(err)
	}
	sum := totals.Delivered + totals.Waiting
	for _, n := range totals.Dropped {
		sum += n
	}
	if sum != totals.Offered {
		f.Fatalf("sink %s: offered %d is not delivered %d + waiting %d + dropped %v", sink, totals.Offered, totals.Delivered, totals.Waiting, totals.Dropped)
	}
	return totals
}

func (f *fixture) status() Status {
	f.Helper()
	st, err := f.Status()
	if err != nil {
		f.Fatal(err)
	}
	return st
}

func (f *fixture) enable(sink string, backfill bool) {
	f.Helper()
	if err := f.Enable(sink, backfill, all); err != nil {
		f.Fatal(err)
	}
}

func all(Path) bool { return true }

// deliver takes up to n samples of a path from the store and commits them as delivered.
func (f *fixture) deliver(sink string, id PathID, n int) []Sample {
	f.Helper()
	samples, err := f.Next(sink, id, n)
	if err != nil {
		f.Fatal(err)
	}
	if len(samples) == 0 {
		return nil
	}
	u := Update{Positions: map[PathID]uint64{id: samples[len(samples)-1].Seq + 1}, Delivered: uint64(len(samples))}
	if err := f.Commit(sink, u); err != nil {
		f.Fatal(err)
	}
	return samples
}

// interval is the mono distance of two samples of sampleNumber.
const interval = 10 * time.Second

// sampleNumber makes different but realistic samples.
func sampleNumber(i int) Sample {
	s := Sample{
		Mono: int64(i)*int64(interval) + int64(i*7919%90_000), Outcome: OnTime,
		RTT: 500_000 + int64(i*7919%20_000), Dwell: 5_000 + int64(i*104729%900), HasDwell: true,
		TX: TCEgress, RX: TCIngress, TTL: 253, RemoteTTL: 253,
	}
	switch {
	case i%50 == 17:
		return Sample{Mono: s.Mono, Outcome: Lost, TX: TCEgress}
	case i%50 == 29:
		return Sample{Mono: s.Mono, Outcome: NotSent, Reason: NoCarrier}
	case i%50 == 31:
		s.Outcome = Late
	case i%50 == 41:
		s.HasOneWay, s.Forward, s.Backward, s.OneWayError = true, 250_000, -245_000, 11_000
	}
	return s
}

// wantNumbers returns what the store gives back for sampleNumber(from..to-1) with numbers base+from on, undated.
func wantNumbers(base uint64, from, to int) []Sample {
	var want []Sample
	for i := from; i < to; i++ {
		s := sampleNumber(i)
		s.Seq = base + uint64(i)
		want = append(want, s)
	}
	return want
}

func diff(t testing.TB, what string, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		if len(d) > 4000 {
			d = d[:4000] + "..."
		}
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func numbers(samples []Sample) (s []uint64) {
	for i := range samples {
		s = append(s, samples[i].Seq)
	}
	return s
}

// ranges prints numbers as "0-9 20-29".
func ranges(samples []Sample) string {
	out := ""
	for i := 0; i < len(samples); {
		j := i
		for j+1 < len(samples) && samples[j+1].Seq == samples[j].Seq+1 {
			j++
		}
		if out != "" {
			out += " "
		}
		out += fmt.Sprintf("%d-%d", samples[i].Seq, samples[j].Seq)
		i = j + 1
	}
	return out
}
