// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/xtwamp/xtwamp/probe/store"
)

func monos(ms []Measured) (out []int64) {
	for _, m := range ms {
		out = append(out, m.Sample.Mono)
	}
	return out
}

func TestRingDropsTheOldestAndCounts(t *testing.T) {
	r := NewRing(100)
	for i := range int64(130) {
		r.Put(0, store.Sample{Mono: i})
	}
	if r.Len() != 100 || r.Dropped() != 30 {
		t.Errorf("len %d, dropped %d; want 100 and 30", r.Len(), r.Dropped())
	}
	got, upTo := r.Peek(nil, 3)
	if diff := cmp.Diff([]int64{30, 31, 32}, monos(got)); diff != "" {
		t.Errorf("oldest (-want +got):\n%s", diff)
	}
	// Between Peek and Discard one of them is overwritten: it was taken, so
	// that nothing is lost.
	r.Put(0, store.Sample{Mono: 130})
	r.Discard(upTo)
	if r.Dropped() != 30 {
		t.Errorf("dropped %d, want 30: the overwritten one was taken", r.Dropped())
	}
	got, _ = r.Peek(nil, 1)
	if diff := cmp.Diff([]int64{33}, monos(got)); diff != "" {
		t.Errorf("after discard (-want +got):\n%s", diff)
	}
	// Overwritten after a Peek whose taker failed, they are gone.
	for i := range int64(5) {
		r.Put(0, store.Sample{Mono: 131 + i})
	}
	r.Peek(nil, 1)
	if want := uint64(30 + 5 - 2); r.Dropped() != want {
		t.Errorf("dropped %d, want %d", r.Dropped(), want)
	}
}

func TestRingKeepsOrderWhileItGrows(t *testing.T) {
	r := NewRing(1000)
	var want []int64
	for i := range int64(50) {
		r.Put(0, store.Sample{Mono: i})
	}
	_, upTo := r.Peek(nil, 30)
	r.Discard(upTo)
	for i := int64(50); i < 700; i++ {
		r.Put(0, store.Sample{Mono: i})
	}
	for i := int64(30); i < 700; i++ {
		want = append(want, i)
	}
	got, _ := r.Peek(nil, 1000)
	if diff := cmp.Diff(want, monos(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// fakeLog is a store that fails on demand.
type fakeLog struct {
	mu        sync.Mutex
	fail      error
	records   []store.Record
	registers int
	maintain  func()
}

func (l *fakeLog) RegisterAll(paths []store.Path) ([]store.Path, error) {
	for i := range paths {
		l.registers++
		paths[i].ID = store.PathID(l.registers)
	}
	return paths, nil
}
func (l *fakeLog) SetOffset(store.Offset) {}
func (l *fakeLog) Maintain() error {
	if l.maintain != nil {
		l.maintain()
	}
	return nil
}

func (l *fakeLog) failWith(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail = err
}

func (l *fakeLog) Append(b []store.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		return l.fail
	}
	l.records = append(l.records, b...)
	return nil
}

func TestRecorderKeepsWhatTheStoreRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &fakeLog{fail: fmt.Errorf("append: %w", store.ErrNoSpace)}
		core, logged := observer.New(zap.InfoLevel)
		ring := NewRing(1000)
		ring.Began(0, simTarget("a", time.Second))
		ring.Began(1, simTarget("b", time.Second))
		r := NewRecorder(RecorderConfig{
			Ring: ring, Log: log,
			Clock: func() ClockState { return ClockState{} }, Interval: 10 * time.Second, Logger: zap.New(core),
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		for i := range int64(100) {
			ring.Put(int(i%2), store.Sample{Mono: i})
		}
		// The disk is full for 22 hours.
		<-time.After(22 * time.Hour)
		synctest.Wait()
		if r.Degraded() != "no_space" || ring.Len() != 100 {
			t.Errorf("degraded %q with %d in memory, want no_space with 100", r.Degraded(), ring.Len())
		}
		log.failWith(nil)
		<-time.After(11 * time.Second)
		synctest.Wait()
		if r.Degraded() != "" || ring.Len() != 0 || len(log.records) != 100 {
			t.Errorf("degraded %q, %d in memory, %d stored; want none, 0, 100", r.Degraded(), ring.Len(), len(log.records))
		}
		for i, rec := range log.records {
			if rec.Sample.Mono != int64(i) || rec.Path != store.PathID(i%2+1) {
				t.Fatalf("record %d is %d of path %d", i, rec.Sample.Mono, rec.Path)
			}
		}
		if n := logged.Len(); n == 0 || n > 9 {
			t.Errorf("%d log lines for one fault, want at most 9: %v", n, logged.All())
		}
		// What came since the last commit is committed at the stop.
		ring.Put(0, store.Sample{Mono: 100})
		cancel()
		if err := <-done; err != nil || len(log.records) != 101 {
			t.Errorf("stop: %v with %d records, want nil with 101", err, len(log.records))
		}
	})
}

func TestRecorderSaysWhatMemoryCouldNotHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &fakeLog{fail: errors.New("broken")}
		core, logged := observer.New(zap.InfoLevel)
		ring := NewRing(10)
		ring.Began(0, simTarget("a", time.Second))
		r := NewRecorder(RecorderConfig{
			Ring: ring, Log: log,
			Clock: func() ClockState { return ClockState{} }, Interval: time.Second, Logger: zap.New(core),
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		for i := range int64(3600) {
			ring.Put(0, store.Sample{Mono: i})
			<-time.After(time.Second)
		}
		log.failWith(nil)
		<-time.After(2 * time.Second)
		cancel()
		<-done
		dropped := uint64(3600 - len(log.records))
		if ring.Dropped() != dropped {
			t.Errorf("counted %d drops of %d", ring.Dropped(), dropped)
		}
		said := logged.FilterField(zap.Uint64("samples", dropped)).Len()
		if said != 1 || logged.Len() > 4 {
			t.Errorf("%d lines, %d with the count; want at most 4, 1: %v", logged.Len(), said, logged.All())
		}
	})
}

func TestRecorderCommitsWhatComesDuringTheLastPass(t *testing.T) {
	ring := NewRing(10)
	ring.Began(0, simTarget("a", time.Second))
	ctx, cancel := context.WithCancel(t.Context())
	log := &fakeLog{}
	log.maintain = func() { // the stop, and a last sample, come meanwhile
		ring.Put(0, store.Sample{Mono: 1})
		cancel()
	}
	r := NewRecorder(RecorderConfig{
		Ring: ring, Log: log,
		Clock: func() ClockState { return ClockState{} }, Interval: time.Second,
	})
	if err := r.Run(ctx); err != nil || len(log.records) != 1 || ring.Len() != 0 {
		t.Errorf("Run = %v with %d stored and %d in memory; want nil, 1, 0", err, len(log.records), ring.Len())
	}
}

func TestRecorderReportsAFailedLastCommit(t *testing.T) {
	log := &fakeLog{fail: errors.New("broken")}
	ring := NewRing(10)
	ring.Began(0, simTarget("a", time.Second))
	ring.Put(0, store.Sample{})
	r := NewRecorder(RecorderConfig{
		Ring: ring, Log: log,
		Clock: func() ClockState { return ClockState{} }, Interval: time.Second,
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Run(ctx); err == nil {
		t.Error("Run = nil although samples were left in memory")
	}
}
