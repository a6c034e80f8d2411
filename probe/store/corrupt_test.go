// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"go.etcd.io/bbolt"
	"pgregory.net/rapid"
)

// The file that the damage tests start from: 1000 samples in chunks, two appends of 20 in the tail; a sink has taken the first 100.
const (
	inChunks = 1000
	inTail   = 40
	taken    = 100
)

func damagedFixture(t testing.TB) *fixture {
	f := newFixture(t)
	id := f.register("a")[0]
	f.enable("s", false)
	f.add(id, 0, inChunks)
	if err := f.fold(); err != nil {
		t.Fatal(err)
	}
	f.deliver("s", id, taken)
	f.add(id, inChunks, inTail/2)
	f.add(id, inChunks+inTail/2, inTail/2)
	f.close()
	return f
}

// place returns where in the file the n-th value of a bucket (path of names) lies, its key, and its size. Small buckets bbolt may have
// copied: then all places with these bytes are returned, those in free pages too.
func place(t testing.TB, file string, n int, names ...string) (at []int64, key []byte, size int) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(file, 0, &bbolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(names[0]))
		for _, name := range names[1:] {
			b = b.Bucket([]byte(name))
		}
		c := b.Cursor()
		k, v := c.First()
		for range n {
			k, v = c.Next()
		}
		key, size = bytes.Clone(k), len(v)
		if offset := uintptr(unsafe.Pointer(&k[0])) - db.Info().Data; offset < uintptr(len(data)) {
			at = []int64{int64(offset)}
			return nil
		}
		both := append(bytes.Clone(k), v...)
		for from := 0; ; {
			i := bytes.Index(data[from:], both)
			if i < 0 {
				return nil
			}
			at, from = append(at, int64(from+i)), from+i+1
		}
	})
	if err != nil || len(at) == 0 {
		t.Fatalf("value %d of %v: not found, %v", n, names, err)
	}
	return at, key, size
}

func flip(t testing.TB, file string, at int64) {
	t.Helper()
	patch(t, file, at, func(b []byte) { b[0] ^= 0x10 }, 1)
}

func patch(t testing.TB, file string, at int64, change func([]byte), size int) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, size)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	change(b)
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

func truncate(t testing.TB, file string, size int64) {
	t.Helper()
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
}

// flipValue flips a bit in the middle of a value, or with inKey those bits of the last byte of its key.
func flipValue(n int, inKey byte, names ...string) func(testing.TB, string) {
	return func(t testing.TB, file string) {
		places, key, size := place(t, file, n, names...)
		for _, at := range places {
			if inKey != 0 {
				patch(t, file, at+int64(len(key))-1, func(b []byte) { b[0] ^= inKey }, 1)
			} else {
				flip(t, file, at+int64(len(key)+size/2))
			}
		}
	}
}

func TestDamageAtNamedPlaces(t *testing.T) {
	newest := func(t testing.TB, file string) int64 {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m, err := readMeta(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		return int64(m.tx%2) * pageSize
	}
	const meta = pageHeader + 20
	const everything = "0-1039"
	for name, test := range map[string]struct {
		damage func(testing.TB, string)
		aside  bool   // the whole file is set aside
		left   string // numbers that survive
		lost   uint64 // of the samples that the sink had not taken
		skips  bool   // numbers go on far beyond
	}{
		"nothing":          {damage: func(testing.TB, string) {}, left: everything},
		"newest meta page": {damage: func(t testing.TB, p string) { flip(t, p, newest(t, p)+meta) }, left: "0-1019", skips: true},
		"older meta page":  {damage: func(t testing.TB, p string) { flip(t, p, pageSize-newest(t, p)+meta) }, left: everything, skips: true},
		"both meta pages":  {damage: func(t testing.TB, p string) { flip(t, p, meta); flip(t, p, pageSize+meta) }, aside: true},
		"first tail value": {damage: flipValue(0, 0, "tail"), left: "0-999 1020-1039", lost: 20, skips: true},
		"last tail value":  {damage: flipValue(1, 0, "tail"), left: "0-1019", lost: 20, skips: true},
		"tail key":         {damage: flipValue(0, 0x40, "tail"), aside: true}, // the keys are out of order then
		"first chunk":      {damage: flipValue(0, 0, "chunks"), left: chunksBut(t, 0, everything), lost: chunkSize(t, 0) - taken},
		"a chunk":          {damage: flipValue(2, 0, "chunks"), left: chunksBut(t, 2, everything), lost: chunkSize(t, 2)},
		"last chunk":       {damage: flipValue(-1+chunkCount(t), 0, "chunks"), left: chunksBut(t, chunkCount(t)-1, everything), lost: chunkSize(t, chunkCount(t)-1)},
		"a chunk's key":    {damage: flipValue(2, 1, "chunks"), left: chunksBut(t, 2, everything), lost: chunkSize(t, 2)},
		"first chunk is gone": {damage: func(t testing.TB, p string) {
			db, err := bbolt.Open(p, 0, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			err = db.Update(func(tx *bbolt.Tx) error {
				k, _ := tx.Bucket(bucketChunks).Cursor().First()
				return tx.Bucket(bucketChunks).Delete(k)
			})
			if err != nil {
				t.Fatal(err)
			}
		}, left: chunksBut(t, 0, everything), lost: chunkSize(t, 0) - taken, skips: true},
		"number of positions": {damage: func(t testing.TB, p string) {
			places, _, _ := place(t, p, 0, "sinks", "ps")
			for _, at := range places { // the bucket lies within its parent's page: header, one element, key
				patch(t, p, at-elementHeader-pageHeader+10, func(b []byte) { b[0] ^= 1 }, 1)
			}
		}, aside: true},
		"a path":                    {damage: flipValue(0, 0, "paths"), aside: true},
		"a boot":                    {damage: flipValue(0, 0, "boots"), aside: true},
		"a sink's position":         {damage: flipValue(0, 0, "sinks", "ps"), aside: true},
		"the format":                {damage: flipValue(1, 0, "meta"), aside: true},
		"cut in the middle":         {damage: func(t testing.TB, p string) { truncate(t, p, 4*pageSize) }, aside: true},
		"cut behind the meta pages": {damage: func(t testing.TB, p string) { truncate(t, p, 2*pageSize) }, aside: true},
		"cut in a meta page":        {damage: func(t testing.TB, p string) { truncate(t, p, pageSize+100) }, aside: true},
		"cut to one byte":           {damage: func(t testing.TB, p string) { truncate(t, p, 1) }, aside: true},
		"cut to nothing":            {damage: func(t testing.TB, p string) { truncate(t, p, 0) }, skips: true},
		"one junk byte appended":    {damage: appendBytes("x"), left: everything}, // case 88
		"a page of junk appended":   {damage: appendBytes(strings.Repeat("junk", 1024)), left: everything},
		"garbage": {damage: func(t testing.TB, p string) {
			patch(t, p, 0, func(b []byte) { copy(b, strings.Repeat("no", 5000)) }, 10000)
		}, aside: true},
		"page of a chunk zeroed":     {damage: zeroPage(2, "chunks"), aside: true},
		"page of the tail zeroed":    {damage: zeroPage(0, "tail"), aside: true},
		"page of the sinks zeroed":   {damage: zeroPage(0, "sinks"), aside: true},
		"another program's database": {damage: foreign, aside: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := damagedFixture(t)
			test.damage(t, f.cfg.Path)
			damaged, err := os.ReadFile(f.cfg.Path)
			if err != nil {
				t.Fatal(err)
			}
			f.open()
			id := f.register("a")[0]
			f.enable("s", false)
			diff(t, "what survives", test.left, ranges(f.read(id)))
			checkSamples(t, f.read(id))
			diff(t, "lost", test.lost, f.totals("s").Dropped["corrupt"])

			// It goes on, with numbers that none had before, and stays right.
			next := f.paths[id].next
			if floor := uint64(f.clock.Now().UnixMilli()); test.aside || test.skips {
				if next != floor {
					t.Errorf("next number is %d, want %d", next, floor)
				}
			} else if next != inChunks+inTail {
				t.Errorf("next number is %d", next)
			}
			f.add(id, 0, 300)
			if err := f.fold(); err != nil {
				t.Fatal(err)
			}
			f.add(id, 300, 10)
			want := strings.TrimSpace(fmt.Sprintf("%s %d-%d", test.left, next, next+309))
			if !test.skips && !test.aside {
				want = strings.TrimSuffix(test.left, "1039") + "1349"
			}
			for range 2 {
				diff(t, "all samples", want, ranges(f.read(id)))
				f.deliver("s", id, 50)
				f.totals("s")
				f.reopen()
				f.enable("s", false)
			}
			for range 100 {
				f.deliver("s", id, 50)
			}
			totals := f.totals("s")
			diff(t, "waiting at the end", uint64(0), totals.Waiting)
			diff(t, "lost at the end", test.lost, totals.Dropped["corrupt"])

			var asides []string
			for _, file := range filesBeside(t, f.cfg.Path) {
				if file != f.cfg.Path {
					asides = append(asides, file)
				}
			}
			if !test.aside {
				diff(t, "files set aside", 0, len(asides))
				return
			}
			diff(t, "files set aside", []string{f.cfg.Path + ".corrupt-20260301T120000.000Z"}, asides)
			if kept, err := os.ReadFile(asides[0]); err != nil || !bytes.Equal(kept, damaged) {
				t.Errorf("the file that was set aside is not the damaged one: %v", err)
			}
		})
	}
}

func appendBytes(s string) func(testing.TB, string) {
	return func(t testing.TB, file string) {
		t.Helper()
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(s); err != nil {
			t.Fatal(err)
		}
	}
}

func zeroPage(n int, names ...string) func(testing.TB, string) {
	return func(t testing.TB, file string) {
		at, _, _ := place(t, file, n, names...)
		patch(t, file, at[0]/pageSize*pageSize, func(b []byte) { clear(b) }, pageSize)
	}
}

func foreign(t testing.TB, file string) {
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(file, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Update(func(tx *bbolt.Tx) error { _, err := tx.CreateBucket([]byte("theirs")); return err }); err != nil {
		t.Fatal(err)
	}
}

// checkSamples checks that samples with small numbers are what sampleNumber made.
func checkSamples(t testing.TB, samples []Sample) {
	t.Helper()
	for _, got := range samples {
		want := sampleNumber(int(got.Seq))
		if want.Seq, want.Time = got.Seq, got.Time; got != want {
			t.Fatalf("sample %d is %+v, want %+v", got.Seq, got, want)
		}
	}
}

// chunkStarts returns the first numbers of the chunks of the damaged fixture, and the number after the last.
func chunkStarts(t testing.TB) []uint64 {
	t.Helper()
	f := damagedFixture(t)
	var starts []uint64
	db, err := bbolt.Open(f.cfg.Path, 0, &bbolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketChunks).ForEach(func(k, v []byte) error {
			head, _, err := openChunk(k, v)
			starts = append(starts, head.first)
			return err
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return append(starts, inChunks)
}

func chunkCount(t testing.TB) int { return len(chunkStarts(t)) - 1 }

func chunkSize(t testing.TB, n int) uint64 {
	starts := chunkStarts(t)
	return starts[n+1] - starts[n]
}

// chunksBut returns "0-1039" without the n-th chunk.
func chunksBut(t testing.TB, n int, everything string) string {
	starts := chunkStarts(t)
	from, end, _ := strings.Cut(everything, "-")
	rest := fmt.Sprintf("%d-%s", starts[n+1], end)
	if n == 0 {
		return rest
	}
	return fmt.Sprintf("%s-%d %s", from, starts[n]-1, rest)
}

func TestDamagedValuesAreKept(t *testing.T) {
	f := damagedFixture(t)
	flipValue(1, 0, "chunks")(t, f.cfg.Path)
	flipValue(0, 0, "tail")(t, f.cfg.Path)
	_, chunk, chunkBytes := place(t, f.cfg.Path, 1, "chunks")
	_, tail, tailBytes := place(t, f.cfg.Path, 0, "tail")
	f.open()
	f.read(1)
	var got []string
	err := f.view("test", func(tx *transaction) error {
		return tx.Bucket(bucketDamaged).ForEach(func(_, v []byte) error {
			in := &cursor{rest: v}
			in.varint()
			got = append(got, fmt.Sprintf("%s %x %d", in.text(), in.text(), len(in.rest)))
			return in.err()
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "kept", []string{fmt.Sprintf("tail %x %d", tail, tailBytes), fmt.Sprintf("chunks %x %d", chunk, chunkBytes)}, got)
	if f.logs.FilterMessage("damaged samples given up").Len() != 1 || f.logs.FilterMessage("store file was damaged, numbers skip ahead").Len() != 1 {
		t.Errorf("log: %v", f.logs.All())
	}
}

func TestDamageReadWithoutADaemon(t *testing.T) {
	f := damagedFixture(t)
	flipValue(2, 0, "chunks")(t, f.cfg.Path)
	before, err := os.ReadFile(f.cfg.Path)
	if err != nil {
		t.Fatal(err)
	}
	l, err := OpenReadOnly(f.cfg.Path, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	got, err := l.Read(1, 0, 5000)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	diff(t, "samples", chunksBut(t, 2, "0-1039"), ranges(got))
	zeroPage(2, "chunks")(t, f.cfg.Path)
	if _, err := OpenReadOnly(f.cfg.Path, time.Second); !errors.Is(err, ErrCorrupt) {
		t.Errorf("open of a corrupt file: %v", err)
	}
	patch(t, f.cfg.Path, 0, func(b []byte) { copy(b, before) }, len(before))
	diff(t, "files", 1, len(filesBeside(t, f.cfg.Path)))
}

// Whatever bytes flip, in a file at rest or under an open log: nothing crashes, nothing that is read is wrong, and it goes on. A slow
// machine tries fewer files.
func TestRandomDamage(t *testing.T) {
	const limit = 30 * time.Second
	begin := time.Now()
	pristine := damagedFixture(t)
	data, err := os.ReadFile(pristine.cfg.Path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := readMeta(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		if time.Since(begin) > limit {
			return
		}
		f := newClosedFixture(t)
		if err := os.WriteFile(f.cfg.Path, data, 0o600); err != nil {
			rt.Fatal(err)
		}
		damage := func() {
			for range rapid.IntRange(1, 8).Draw(rt, "flips") {
				at := rapid.Int64Range(0, int64(m.pages)*pageSize-1).Draw(rt, "at")
				if rapid.Bool().Draw(rt, "structure") {
					at = at/pageSize*pageSize + at%(pageHeader+8*elementHeader)
				}
				patch(t, f.cfg.Path, at, func(b []byte) { b[0] ^= byte(rapid.IntRange(1, 255).Draw(rt, "bits")) }, 1)
			}
			if rapid.IntRange(0, 9).Draw(rt, "zero") == 0 {
				page := rapid.Int64Range(0, int64(m.pages)-1).Draw(rt, "page")
				patch(t, f.cfg.Path, page*pageSize, func(b []byte) { clear(b) }, pageSize)
			}
		}
		live := rapid.Bool().Draw(rt, "live")
		if !live {
			damage()
		}
		f.open()
		defer func() { _ = f.Log.Close(); f.Log = nil }() // may find that it has to abandon the file
		if live {
			damage()
		}
		// Each step may find the file corrupt, and then works when tried again; bbolt may have several ways to stumble.
		try := func(what string, fn func() error) {
			for range 4 {
				err := fn()
				if err == nil {
					return
				}
				if !errors.Is(err, ErrCorrupt) {
					rt.Fatalf("%s: %v", what, err)
				}
			}
			rt.Fatalf("%s: still corrupt: %v", what, fn())
		}
		var id PathID
		try("register", func() error {
			p, err := f.Register("a", nil)
			id = p.ID
			return err
		})
		try("enable", func() error { return f.Enable("s", false, all) })
		for range 2 {
			var got []Sample
			try("read", func() (err error) { got, err = f.Read(id, 0, 5000); return err })
			for _, s := range got {
				if s.Seq < inChunks+inTail {
					want := sampleNumber(int(s.Seq))
					if want.Seq = s.Seq; want != s {
						rt.Fatalf("sample %d is %+v, want %+v", s.Seq, s, want)
					}
				}
			}
			lost, err := f.Totals("s")
			quiet := len(f.status().SetAside) == 0 && f.logs.FilterMessage("store file was damaged, numbers skip ahead").Len() == 0
			if n := len(got) + int(lost.Dropped["corrupt"]); !errors.Is(err, ErrCorrupt) && quiet && n < inChunks+inTail-taken {
				rt.Fatalf("%d of %d samples are gone and nobody says so", inChunks+inTail-taken-n, inChunks+inTail)
			}
			try("append", func() error { return f.Append([]Record{{id, sampleNumber(0)}}) })
			try("fold", f.fold)
			try("deliver", func() error {
				got, err := f.Next("s", id, 700)
				if err != nil || len(got) == 0 {
					return err
				}
				to := got[len(got)-1].Seq + 1
				return f.Commit("s", Update{Positions: map[PathID]uint64{id: to}, Delivered: uint64(len(got))})
			})
			try("maintain", f.Maintain)
			totals, err := f.Totals("s")
			for errors.Is(err, ErrCorrupt) {
				totals, err = f.Totals("s")
			}
			if sum := totals.Delivered + totals.Waiting + totals.Dropped["corrupt"]; err != nil || sum != totals.Offered {
				rt.Fatalf("totals %+v, %v", totals, err)
			}
		}
	})
}

func TestAPanicCountsAsCorruption(t *testing.T) {
	for operation, call := range map[string]func(f *fixture) error{
		"append": func(f *fixture) error { return f.Append([]Record{{1, sampleNumber(0)}}) },
		"read":   func(f *fixture) error { _, err := f.Read(1, 0, 10); return err },
		"fold":   func(f *fixture) error { return f.fold() },
		"commit": func(f *fixture) error {
			return f.Commit("s", Update{Positions: map[PathID]uint64{1: 200}, Delivered: 100})
		},
		"get":      func(f *fixture) error { _, err := f.Get("s", "key"); return err },
		"register": func(f *fixture) error { _, err := f.Register("new", nil); return err },
	} {
		t.Run(operation, func(t *testing.T) {
			panics := 0
			f := newFixture(t, func(c *Config) {
				c.Fault = func(op string) {
					if op == operation && panics > 0 {
						panics--
						panic("injected")
					}
				}
			})
			id := f.register("a")[0]
			f.enable("s", false)
			f.enable("idle", false)
			f.add(id, 0, 300)
			if err := f.fold(); err != nil {
				t.Fatal(err)
			}
			f.deliver("s", id, 100)
			f.add(id, 300, 5)
			panics = 1
			err := call(f)
			if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "injected") {
				t.Fatalf("error %v", err)
			}
			st := f.status()
			diff(t, "set aside", []string{f.cfg.Path + ".corrupt-20260301T120000.000Z"}, st.SetAside)
			logs := f.logs.FilterMessage("store file is corrupt: set aside, a new one is begun").All()
			if len(logs) != 1 || !strings.Contains(fmt.Sprint(logs[0].ContextMap()["stack"]), "corrupt_test.go") {
				t.Errorf("log: %v", f.logs.All())
			}
			diff(t, "totals of s", Totals{Offered: 305, Delivered: 100, Dropped: map[string]uint64{"corrupt": 205}}, f.totals("s"))
			diff(t, "totals of idle", Totals{Offered: 305, Dropped: map[string]uint64{"corrupt": 305}}, f.totals("idle"))

			base := uint64(f.clock.Now().UnixMilli())
			f.add(id, 0, 10) // the next call works
			diff(t, "samples in the new file", wantNumbers(base, 0, 10), f.read(id))
			diff(t, "delivered in the new file", 10, len(f.deliver("s", id, 100)))
			f.reopen()
			f.enable("s", false)
			diff(t, "samples after reopening", wantNumbers(base, 0, 10), f.read(id))
			diff(t, "totals after reopening", Totals{Offered: 315, Delivered: 110, Dropped: map[string]uint64{"corrupt": 205}}, f.totals("s"))
			old := f.cfg
			old.Path = st.SetAside[0]
			l, err := Open(old)
			if err != nil {
				t.Fatalf("the file that was set aside (a sound one, here): %v", err)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestNumbersNeverComeTwice(t *testing.T) {
	panics := false
	f := newFixture(t, func(c *Config) {
		c.Fault = func(op string) {
			if op == "append" && panics {
				panics = false
				panic("injected")
			}
		}
	})
	id := f.register("a")[0]
	f.clock.now = in1970 // the clock is not set
	var highest uint64
	for round := range 3 {
		f.add(id, 0, 5)
		got := numbers(f.read(id))
		if round > 0 && (got[0] <= highest || got[0] < unsetBase || got[4] > 1<<53) {
			t.Errorf("round %d: numbers %v after %d", round, got, highest)
		}
		highest = got[4]
		panics = true
		if err := f.Append([]Record{{id, sampleNumber(0)}}); !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
	}
	if a, b := newBase(in1970), newBase(in1970); a == b {
		t.Errorf("two files would begin at the same number, %d", a)
	}
	f.clock.now = newClock().now // now it is, and below what was used
	panics = true
	if err := f.Append([]Record{{id, sampleNumber(0)}}); !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
	f.add(id, 0, 1)
	if got := numbers(f.read(id)); got[0] <= highest {
		t.Errorf("number %d after %d", got[0], highest)
	}
}

// Killed, or out of space, between setting a file aside and beginning the next one: the numbers in it must not come again.
func TestANewFileBesideOneThatWasSetAside(t *testing.T) {
	f := damagedFixture(t)
	if _, err := moveAside(f.cfg.Path, f.clock.Now()); err != nil {
		t.Fatal(err)
	}
	f.open()
	id := f.register("a")[0]
	f.add(id, 0, 1)
	diff(t, "numbers", []uint64{uint64(f.clock.Now().UnixMilli())}, numbers(f.read(id)))
}

func TestFilesAreNotSetAsideForEver(t *testing.T) {
	f := newFixture(t, func(c *Config) {
		c.Fault = func(op string) {
			if op == "append" {
				panic("always")
			}
		}
	})
	id := f.register("a")[0]
	for range 3 * maxAsides {
		if err := f.Append([]Record{{id, sampleNumber(0)}}); !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
	}
	diff(t, "files set aside", maxAsides, len(f.status().SetAside))
	f.clock.advance(asideWindow)
	if err := f.Append([]Record{{id, sampleNumber(0)}}); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "always") {
		t.Errorf("an hour later: %v", err)
	}
	diff(t, "files beside each other, the names all different", maxAsides+1, len(filesBeside(t, f.cfg.Path)))
}

// A file that gets shorter under the mapping makes reading it a memory fault.
func TestAFileCutUnderTheLog(t *testing.T) {
	for name, size := range map[string]int64{"to nothing": 0, "behind the meta pages": 2 * pageSize} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			id := f.register("a")[0]
			f.enable("s", false)
			f.add(id, 0, 1000)
			if err := f.fold(); err != nil {
				t.Fatal(err)
			}
			truncate(t, f.cfg.Path, size)
			if _, err := f.Read(id, 0, 10); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("read: %v", err)
			}
			f.add(id, 0, 10)
			diff(t, "samples", 10, len(f.read(id)))
			diff(t, "totals", Totals{Offered: 1010, Waiting: 10, Dropped: map[string]uint64{"corrupt": 1000}}, f.totals("s"))
		})
	}
}

func TestAFileThatCannotBeClosedIsAbandoned(t *testing.T) {
	panics := false
	f := newFixture(t, func(c *Config) {
		c.Fault = func(op string) {
			if op == "append" && panics {
				panics = false
				panic("injected")
			}
		}
	})
	id := f.register("a")[0]
	f.add(id, 0, 10)
	file := f.file
	reading, release, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- file.view(func(*transaction) error {
			close(reading)
			<-release
			return nil
		})
	}()
	<-reading
	panics = true
	if err := f.Append([]Record{{id, sampleNumber(0)}}); !errors.Is(err, ErrCorrupt) { // must not wait for the reader
		t.Fatal(err)
	}
	f.add(id, 0, 10)
	diff(t, "samples", 10, len(f.read(id)))
	close(release)
	if err := <-done; err != nil {
		t.Errorf("the reader: %v", err)
	}
}

func TestAsideNamesAreNeverOverwritten(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	now := newClock().Now()
	seen := map[string]bool{}
	for i := range 3 {
		if err := os.WriteFile(path, []byte{byte(i)}, 0o600); err != nil {
			t.Fatal(err)
		}
		name, err := moveAside(path, now)
		if err != nil || seen[name] {
			t.Fatalf("%s, %v", name, err)
		}
		seen[name] = true
		if data, err := os.ReadFile(name); err != nil || data[0] != byte(i) {
			t.Errorf("%s holds %v, %v", name, data, err)
		}
	}
}

// The newest meta page goes bad under an open log: bbolt would go on from the transaction before and use its pages twice.
func TestMetaPageDamagedUnderTheLog(t *testing.T) {
	for name, call := range map[string]func(f *fixture) error{
		"append": func(f *fixture) error { return f.Append([]Record{{1, sampleNumber(0)}}) },
		"read":   func(f *fixture) error { _, err := f.Read(1, 0, 10); return err },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			id := f.register("a")[0]
			f.add(id, 0, 300)
			if err := f.fold(); err != nil {
				t.Fatal(err)
			}
			m, err := readMeta(f.file.os)
			if err != nil {
				t.Fatal(err)
			}
			older := int64(1-m.tx%2) * pageSize
			flip(t, f.cfg.Path, older+pageHeader)
			f.add(id, 300, 1) // the older one does not matter: it is written next
			flip(t, f.cfg.Path, older+pageHeader)
			if err := call(f); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("error %v", err)
			}
			f.add(id, 0, 1)
			diff(t, "files set aside", 1, len(f.status().SetAside))
		})
	}
}

// All of this ends the process, or makes what it writes go wrong for ever, if bbolt gets to see it: it believes its pages.
func TestPagesDamagedUnderTheLog(t *testing.T) {
	const firstElement = pageHeader
	set32 := func(v uint32) func([]byte) { return func(b []byte) { order.PutUint32(b, v) } }
	set64 := func(v uint64) func([]byte) { return func(b []byte) { order.PutUint64(b, v) } }
	for name, damage := range map[string]func(t *testing.T, f *fixture, branch, leaf int64){
		"a branch that leads to itself": func(t *testing.T, f *fixture, branch, leaf int64) { // endless recursion
			patch(t, f.cfg.Path, branch*pageSize+firstElement+8, set64(uint64(branch)), 8)
		},
		"a leaf that is a branch to itself": func(t *testing.T, f *fixture, branch, leaf int64) {
			patch(t, f.cfg.Path, leaf*pageSize+8, func(b []byte) { b[0] = flagBranch }, 1)
			patch(t, f.cfg.Path, leaf*pageSize+firstElement+8, set64(uint64(leaf)), 8)
		},
		"a value of 1.4 GB": func(t *testing.T, f *fixture, branch, leaf int64) { // a page of that size, and no room for it in the file
			patch(t, f.cfg.Path, leaf*pageSize+firstElement+12, func(b []byte) { b[3] ^= 0x5b }, 4)
		},
		"a key of 4 GB": func(t *testing.T, f *fixture, branch, leaf int64) {
			patch(t, f.cfg.Path, leaf*pageSize+firstElement+8, set32(1<<32-1), 4)
		},
		"a position 16 MB away": func(t *testing.T, f *fixture, branch, leaf int64) {
			patch(t, f.cfg.Path, leaf*pageSize+firstElement+4, func(b []byte) { b[3] ^= 1 }, 4)
		},
		"a page with more pages": func(t *testing.T, f *fixture, branch, leaf int64) { // freed with it, though in use or none
			patch(t, f.cfg.Path, leaf*pageSize+12, set32(1<<20), 4)
		},
		"a page with one page more": func(t *testing.T, f *fixture, branch, leaf int64) {
			patch(t, f.cfg.Path, leaf*pageSize+12, set32(1), 4)
		},
		"more keys than fit": func(t *testing.T, f *fixture, branch, leaf int64) {
			patch(t, f.cfg.Path, leaf*pageSize+10, func(b []byte) { order.PutUint16(b, 0xfffe) }, 2)
		},
		"a key less": func(t *testing.T, f *fixture, branch, leaf int64) {
			patch(t, f.cfg.Path, leaf*pageSize+10, func(b []byte) { order.PutUint16(b, order.Uint16(b)-1) }, 2)
		},
		"a position outside a small bucket": func(t *testing.T, f *fixture, branch, leaf int64) { // a pointer into nowhere on the heap
			data, err := os.ReadFile(f.cfg.Path)
			if err != nil {
				t.Fatal(err)
			}
			var sinks int64
			inView(t, f, func(tx *transaction) { sinks = int64(tx.Bucket(bucketSinks).bolt.Root()) })
			at := bytes.Index(data[sinks*pageSize:(sinks+1)*pageSize], []byte("ps")) // the key, then bucket and page header, then an element
			patch(t, f.cfg.Path, sinks*pageSize+int64(at)+2+bucketHeader+pageHeader+4, func(b []byte) { b[2] ^= 0x80 }, 4)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := damagedFixture(t)
			f.open()
			id := f.register("a")[0]
			f.enable("s", false)
			var branch, leaf int64
			inView(t, f, func(tx *transaction) {
				chunks := tx.Bucket(bucketChunks)
				chunks.Cursor().Before(chunkKey(id+1, 0))
				branch, leaf = int64(chunks.bolt.Root()), int64(chunks.top.pages[len(chunks.top.pages)-1])
			})
			f.add(id, 0, 1)
			damage(t, f, branch, leaf)

			found := 0
			for what, call := range map[string]func() error{
				"append": func() error { return f.Append([]Record{{id, sampleNumber(0)}}) },
				"read":   func() error { _, err := f.Read(id, 0, 5000); return err },
				"fold":   f.fold,
				"deliver": func() error {
					got, err := f.Next("s", id, 10)
					if err != nil || len(got) == 0 {
						return err
					}
					to := got[len(got)-1].Seq + 1
					return f.Commit("s", Update{Positions: map[PathID]uint64{id: to}, Delivered: uint64(len(got))})
				},
			} {
				if err := call(); errors.Is(err, ErrCorrupt) {
					found++
				} else if err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			runtime.GC() // looks at every pointer that is left
			diff(t, "calls that found it", 1, found)
			diff(t, "files set aside", 1, len(f.status().SetAside))
			diff(t, "panics", uint64(0), f.Panics())
			f.add(id, 0, 300)
			if err := f.fold(); err != nil {
				t.Error(err)
			}
			f.totals("s")
			f.reopen()
			diff(t, "panics", uint64(0), f.Panics())
		})
	}
}

func inView(t *testing.T, f *fixture, fn func(*transaction)) {
	t.Helper()
	if err := f.view("test", func(tx *transaction) error { fn(tx); return nil }); err != nil {
		t.Fatal(err)
	}
}

// A process that was killed before its first transaction leaves a file as bbolt begins it: with a page for the free list.
func TestFreeListOfANewFileDamaged(t *testing.T) {
	for name, test := range map[string]struct {
		damage func([]byte)
		aside  int
	}{
		"nothing":                   {damage: func([]byte) {}},
		"a page far beyond":         {func(b []byte) { order.PutUint16(b[10:], 1); order.PutUint64(b[16:], 1<<40) }, 1},
		"a page in use":             {func(b []byte) { order.PutUint16(b[10:], 1); order.PutUint64(b[16:], 3) }, 1},
		"a meta page":               {func(b []byte) { order.PutUint16(b[10:], 1); order.PutUint64(b[16:], 1) }, 1},
		"more pages than there are": {func(b []byte) { order.PutUint16(b[10:], 0xffff); order.PutUint64(b[16:], 1<<40) }, 1},
		"another kind of page":      {func(b []byte) { order.PutUint16(b[8:], flagLeaf) }, 1},
		"more pages of its own":     {func(b []byte) { order.PutUint32(b[12:], 1<<20) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newClosedFixture(t)
			db, err := bbolt.Open(f.cfg.Path, 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			patch(t, f.cfg.Path, 2*pageSize, test.damage, pageSize)
			f.open()
			f.add(f.register("a")[0], 0, 300)
			diff(t, "files set aside", test.aside, len(f.status().SetAside))
			diff(t, "panics", uint64(0), f.Panics())
		})
	}
}
