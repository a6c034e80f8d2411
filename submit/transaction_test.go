// SPDX-License-Identifier: Apache-2.0

package submit

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xtwamp/xtwamp/probe/store"
)

// staged is a Transactional sink: what it accepts lands when the log says that the transaction is committed.
type staged struct {
	fakeSink
	log     *fakeLog
	steps   []string
	syncErr error
}

func (f *staged) Begin(context.Context) error {
	f.steps = append(f.steps, "begin")
	return nil
}

func (f *staged) Sync(context.Context) error {
	f.steps = append(f.steps, fmt.Sprintf("sync %d commits=%d", len(f.offered), len(f.log.commits)))
	return f.syncErr
}

func TestATransactionOfManyPathsIsCommittedOnce(t *testing.T) {
	l := newFakeLog(3)
	sink := &staged{log: l}
	for id := range store.PathID(3) {
		l.append(id+1, 2)
	}
	s, _ := newSubmitter(t, l, sink, time.Minute)
	if err := s.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"begin", "sync 3 commits=0"}, sink.steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	want := []store.Update{{Positions: map[store.PathID]uint64{1: 2, 2: 2, 3: 2}, Delivered: 6}}
	if diff := cmp.Diff(want, l.commits); diff != "" {
		t.Errorf("commits (-want +got):\n%s", diff)
	}
}

func TestATransactionIsBegunButNotSyncedWhenNothingWaits(t *testing.T) {
	l := newFakeLog(3)
	sink := &staged{log: l}
	s, _ := newSubmitter(t, l, sink, time.Minute)
	if err := s.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"begin"}, sink.steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

func TestATransactionThatCannotBeSyncedIsNotCommitted(t *testing.T) {
	l := newFakeLog(1)
	sink := &staged{log: l, syncErr: errDown}
	l.append(1, 2)
	s, _ := newSubmitter(t, l, sink, time.Minute)
	if err := s.flush(t.Context()); err == nil {
		t.Error("flush succeeded")
	}
	if len(l.commits) != 0 {
		t.Errorf("committed %+v", l.commits)
	}
	sink.syncErr = nil
	if err := s.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := l.positions[1]; got != 2 {
		t.Errorf("position %d, want 2", got)
	}
}

func TestATransactionIsBounded(t *testing.T) {
	const paths = 9
	l := newFakeLog(paths)
	sink := &staged{log: l}
	for id := range store.PathID(paths) {
		l.append(id+1, 3*batchSize)
	}
	s, _ := newSubmitter(t, l, sink, time.Minute)
	if err := s.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, u := range l.commits {
		if u.Delivered > transactionSize {
			t.Errorf("commit %d holds %d samples, want at most %d", i, u.Delivered, transactionSize)
		}
	}
	// The ninth path did not fit into the first transaction, so the second begins with it.
	if got := sink.offered[transactionSize/batchSize].Path; got != "p9" {
		t.Errorf("second transaction begins with %s, want p9", got)
	}
	for _, p := range l.paths {
		if diff := cmp.Diff(sequence(0, 3*batchSize), sink.took()[p.Name]); diff != "" {
			t.Errorf("delivered of %s (-want +got):\n%s", p.Name, diff)
		}
	}
}

func TestTheLastWordOnAKeyCounts(t *testing.T) {
	put := func(keys ...string) Result {
		r := Result{Put: make(map[string][]byte)}
		for _, key := range keys {
			r.Put[key] = []byte(key)
		}
		return r
	}
	for _, tc := range []struct {
		name    string
		results []Result
		put     []string
		del     []string
	}{
		{"put after put", []Result{put("a"), put("a", "b")}, []string{"a", "b"}, nil},
		{"delete after put", []Result{put("a", "b"), {Delete: []string{"a"}}}, []string{"b"}, []string{"a"}},
		{"put after delete", []Result{{Delete: []string{"a", "b"}}, put("a")}, []string{"a"}, []string{"b"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var tx transaction
			for _, r := range tc.results {
				tx.add(outcome{}, nil, r)
			}
			if tx.empty() {
				t.Error("transaction is empty")
			}
			if diff := cmp.Diff(tc.put, slices.Sorted(maps.Keys(tx.update.Put))); diff != "" {
				t.Errorf("puts (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.del, tx.update.Delete, cmp.Transformer("nil", func(s []string) []string { return append([]string(nil), s...) })); diff != "" {
				t.Errorf("deletes (-want +got):\n%s", diff)
			}
		})
	}
}
