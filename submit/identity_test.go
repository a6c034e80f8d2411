// SPDX-License-Identifier: Apache-2.0

package submit

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/zap"
	"pgregory.net/rapid"

	"github.com/xtwamp/xtwamp/probe/store"
)

const injected = "injected panic"

// testLog is a store of either kind.
type testLog interface {
	log
	Totals(sink string) (store.Totals, error)
}

// ledger stands on both sides of a Submitter. As the sink it decides at random about what it is offered and checks that each path is
// offered in order, from where the last commit left it; as the log it fails at random and keeps the books by what was committed.
type ledger struct {
	testLog
	t                  *rapid.T
	faults             bool
	next               map[store.PathID]uint64
	open               []outcome // decided and not committed
	delivered, dropped uint64
}

func (b *ledger) Name() string          { return "fake" }
func (b *ledger) Takes(store.Path) bool { return true }

func (b *ledger) Submit(_ context.Context, p store.Path, s []store.Sample) (Result, error) {
	for i, sample := range s {
		if want := b.next[p.ID] + uint64(i); sample.Seq != want {
			b.t.Fatalf("offered sample %d of %s, want %d", sample.Seq, p.Name, want)
		}
	}
	o := outcome{path: p, accepted: len(s)}
	var err error
	if b.faults {
		o.accepted = rapid.IntRange(0, len(s)).Draw(b.t, "accepted")
		switch rapid.SampledFrom([]string{"take", "refuse", "fail", "panic"}).Draw(b.t, "sink") {
		case "refuse":
			if o.refused = len(s) - o.accepted; o.refused > 0 {
				o.refused = rapid.IntRange(1, o.refused).Draw(b.t, "refused")
				err = &Refusal{Reason: "full", Count: o.refused}
			}
		case "fail":
			err = errDown
		case "panic":
			panic(injected)
		}
	}
	b.open = append(b.open, o)
	return Result{Accepted: o.accepted}, err
}

func (b *ledger) Commit(sink string, u store.Update) error {
	open := b.open
	b.open = nil
	if b.faults && rapid.IntRange(0, 4).Draw(b.t, "commit") == 0 {
		return errors.New("no space")
	}
	for _, o := range open {
		b.next[o.path.ID] += uint64(o.accepted + o.refused)
		b.delivered += uint64(o.accepted)
		b.dropped += uint64(o.refused)
	}
	return b.testLog.Commit(sink, u)
}

// check compares the totals of the store with the books.
func (b *ledger) check(offered uint64) {
	b.t.Helper()
	got, err := b.Totals("fake")
	if err != nil {
		b.t.Fatal(err)
	}
	if got.Offered != got.Delivered+got.Waiting+got.Dropped["full"] {
		b.t.Fatalf("offered is not delivered + waiting + dropped: %+v", got)
	}
	if got.Offered != offered || got.Delivered != b.delivered || got.Dropped["full"] != b.dropped {
		b.t.Fatalf("totals %+v, want %d offered, %d delivered, %d dropped", got, offered, b.delivered, b.dropped)
	}
}

// transactional is a ledger whose batches share a commit.
type transactional struct{ *ledger }

func (b transactional) Begin(context.Context) error { b.open = nil; return nil }

func (b transactional) Sync(context.Context) error {
	if b.faults && rapid.IntRange(0, 4).Draw(b.t, "sync") == 0 {
		return errDown
	}
	return nil
}

// testIdentity delivers at random from a store of three paths, to which add appends n samples of path 0, 1 or 2.
func testIdentity(t *rapid.T, l testLog, add func(path, n int)) {
	b := &ledger{testLog: l, t: t, next: make(map[store.PathID]uint64)}
	sink := Sink(b)
	if rapid.Bool().Draw(t, "transactional") {
		sink = transactional{b}
	}
	s, err := New(Config{Log: b, Sink: sink, Interval: time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	flush := func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				if p != injected {
					panic(p)
				}
				err = errDown
			}
		}()
		b.open = nil
		return s.flush(t.Context())
	}
	if err := flush(); err != nil {
		t.Fatal(err)
	}
	offered := uint64(0)
	for range rapid.IntRange(1, 20).Draw(t, "rounds") {
		n := rapid.SampledFrom([]int{1, 7, 300, batchSize}).Draw(t, "samples")
		add(rapid.IntRange(0, 2).Draw(t, "path"), n)
		offered += uint64(n)
		b.faults = rapid.Bool().Draw(t, "faults")
		if err := flush(); err != nil && !b.faults {
			t.Fatal(err)
		}
		b.check(offered)
	}
	b.faults = false
	if err := flush(); err != nil {
		t.Fatal(err)
	}
	b.check(offered)
	if b.delivered+b.dropped != offered {
		t.Fatalf("%d delivered and %d dropped of %d", b.delivered, b.dropped, offered)
	}
}

func TestEverySampleIsDeliveredOrDroppedExactlyOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newFakeLog(3)
		testIdentity(t, l, func(path, n int) { l.append(store.PathID(path+1), n) })
	})
}
