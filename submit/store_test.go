// SPDX-License-Identifier: Apache-2.0

package submit

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/xtwamp/xtwamp/probe/store"
)

// The real store is the only other implementation of log.
var _ testLog = (*store.Log)(nil)

// openStore opens a store on disk with n paths, p1 to pn.
func openStore(dir string, n int) (*store.Log, []store.Path, error) {
	l, err := store.Open(store.Config{
		Path:        filepath.Join(dir, "samples.db"),
		Retention:   time.Hour,
		MaxBytes:    64 << 20,
		Boot:        "b1",
		LockTimeout: time.Second,
		NoSync:      true,
	})
	if err != nil {
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

func records(p store.Path, n int) []store.Record {
	batch := make([]store.Record, n)
	for i := range batch {
		batch[i] = store.Record{Path: p.ID, Sample: store.Sample{Mono: int64(i + 1), Outcome: store.Lost}}
	}
	return batch
}

func TestTheIdentityHoldsInTheRealStore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "submit")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		l, paths, err := openStore(dir, 3)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		testIdentity(t, l, func(path, n int) {
			if err := l.Append(records(paths[path], n)); err != nil {
				t.Fatal(err)
			}
		})
	})
}

func TestTheRealStoreWakesTheSubmitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, paths, err := openStore(t.TempDir(), 2)
		if err != nil {
			t.Fatal(err)
		}
		sink := new(fakeSink)
		s, logs := newSubmitter(t, l, sink, time.Hour)
		stop := start(t, s)
		synctest.Wait()
		for _, p := range paths {
			if err := l.Append(records(p, 2)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		want := map[string][]uint64{"p1": {0, 1}, "p2": {0, 1}}
		if diff := cmp.Diff(want, sink.took()); diff != "" {
			t.Errorf("delivered (-want +got):\n%s", diff)
		}
		stop()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if n := logs.Len(); n != 0 {
			t.Errorf("log: %q, want nothing", messages(logs))
		}
	})
}
