// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// bbolt panics over a page with another number than its own. Whatever a transaction does, in a tree of three levels: it fails for that page
// before bbolt comes to it.
func TestBboltSeesNoPageThatWasNotChecked(t *testing.T) {
	const keys, limit = 300, 20 * time.Second
	begin := time.Now()
	name := []byte("x")
	key := func(n int) []byte { return fmt.Appendf(bytes.Repeat([]byte("k"), 200), "%03d", n) }
	cfg := Config{Path: filepath.Join(t.TempDir(), "tree.db"), MaxBytes: minMaxBytes, NoSync: true}
	open := func(t interface{ Fatal(...any) }, path string) *file {
		cfg := cfg
		cfg.Path = path
		f, err := openFile(cfg, false, func(error) {})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	// run does fn in a transaction and returns how it ended.
	run := func(f *file, fn func(*bucket) error) error {
		var tx *transaction
		err := guard(func() (err error) {
			if tx, err = f.begin(true); err != nil {
				return err
			}
			b, err := tx.CreateBucketIfNotExists(name)
			if err != nil {
				return err
			}
			if err := fn(b); err != nil {
				return err
			}
			return tx.bolt.Commit()
		})
		if err != nil && tx != nil {
			_ = guard(tx.bolt.Rollback)
		}
		return err
	}
	f := open(t, cfg.Path)
	err := run(f, func(b *bucket) error {
		for n := range keys {
			if err := b.Put(key(n), make([]byte, 700)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(cfg.Path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := readMeta(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	rapid.Check(t, func(rt *rapid.T) {
		if time.Since(begin) > limit {
			return
		}
		path := filepath.Join(t.TempDir(), "tree.db")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			rt.Fatal(err)
		}
		f := open(rt, path)
		defer func() {
			if err := f.close(); err != nil {
				rt.Error(err)
			}
		}()
		page := rapid.Int64Range(2, int64(m.pages)-1).Draw(rt, "page")
		spoil := func(page int64) { patch(t, path, page*pageSize, func(b []byte) { b[0] ^= 1 }, 1) }
		spoil(page)
		type operation struct{ kind, n, count int }
		operations := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) operation {
			return operation{rapid.IntRange(0, 4).Draw(rt, "kind"), rapid.IntRange(0, keys-1).Draw(rt, "n"), rapid.IntRange(0, 40).Draw(rt, "count")}
		}), 1, 4).Draw(rt, "operations")
		err := run(f, func(b *bucket) error {
			c := b.Cursor()
			for _, o := range operations {
				switch o.kind {
				case 0:
					for n := o.n; n < o.n+o.count; n++ {
						if err := b.Delete(key(n)); err != nil {
							return err
						}
					}
				case 1:
					if err := b.Put(key(o.n), make([]byte, 800)); err != nil {
						return err
					}
				case 2:
					b.Get(key(o.n))
				case 3:
					c.Seek(key(o.n))
					for range o.count {
						c.Next()
					}
				case 4:
					if k, _ := c.Before(key(o.n)); k != nil {
						c.Next()
					}
				}
			}
			for page := int64(2); page < int64(m.pages); page++ { // what the commit may not touch
				if _, ok := b.pages.seen[uint64(page)]; !ok {
					spoil(page)
				}
			}
			return nil
		})
		var bad *pageError
		if err != nil && !errors.As(err, &bad) {
			var p *panicError
			if errors.As(err, &p) {
				err = fmt.Errorf("%w\n%s", err, p.stack)
			}
			rt.Fatal(err)
		}
		if err != nil {
			found++
		}
	})
	if found == 0 {
		t.Error("no transaction came to a bad page")
	}
}
