// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

const writerEnv = "XTWAMP_STORE_TEST_WRITER"

var killPaths = []string{"a", "b"}

const killBatch = 7 // samples per path

// writer is the child of the kill test: it appends, folds and delivers as fast as it can and says on standard output, after each commit,
// what must never be lost: "a NEXT" after an append, "d POSITION" after a delivery. Every path has the same numbers.
func writer(dir string) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	l, err := Open(Config{Path: filepath.Join(dir, "samples.db")})
	if err != nil {
		return fail(err)
	}
	var ids []PathID
	for _, name := range killPaths {
		p, err := l.Register(name, nil)
		if err != nil {
			return fail(err)
		}
		ids = append(ids, p.ID)
	}
	if err := l.Enable("sink", false, all); err != nil {
		return fail(err)
	}
	next := l.paths[ids[0]].next
	for round := 0; ; round++ {
		var batch []Record
		for range killBatch {
			for _, id := range ids {
				batch = append(batch, Record{id, sampleNumber(int(next))})
			}
			next++
		}
		if err := l.Append(batch); err != nil {
			return fail(err)
		}
		fmt.Println("a", next)
		if round%5 == 4 {
			if err := l.fold(); err != nil {
				return fail(err)
			}
		}
		if round%3 != 2 {
			continue
		}
		u := Update{Positions: map[PathID]uint64{}, Put: map[string][]byte{"offset": fmt.Append(nil, next)}}
		for _, id := range ids {
			samples, err := l.Next("sink", id, 1000)
			if err != nil {
				return fail(err)
			}
			u.Positions[id] = next
			u.Delivered += uint64(len(samples))
		}
		if err := l.Commit("sink", u); err != nil {
			return fail(err)
		}
		fmt.Println("d", next)
	}
}

func TestKillLosesNothingThatWasAcknowledged(t *testing.T) {
	const rounds = 25
	f := newClosedFixture(t)
	var appended, delivered uint64 // as acknowledged
	for round := range rounds {
		a, d := runAndKill(t, filepath.Dir(f.cfg.Path), time.Duration(rand.Int64N(int64(60*time.Millisecond))))
		appended, delivered = max(appended, a), max(delivered, d)

		f.open()
		for _, name := range killPaths {
			got := f.read(f.register(name)[0])
			if n := uint64(len(got)); n < appended || n > appended+killBatch {
				t.Fatalf("round %d: %d samples, %d acknowledged", round, n, appended)
			}
			diff(t, "samples", wantNumbers(0, 0, len(got)), got)
		}
		f.enable("sink", false)
		totals := f.totals("sink")
		var positions []uint64
		for id := range PathID(len(killPaths)) {
			n, err := f.Position("sink", id+1)
			if err != nil {
				t.Fatal(err)
			}
			positions = append(positions, n)
		}
		offset, err := f.Get("sink", "offset")
		if err != nil {
			t.Fatal(err)
		}
		if positions[0] < delivered || positions[0] != positions[1] || totals.Delivered != 2*positions[0] ||
			positions[0] > 0 && string(offset) != fmt.Sprint(positions[0]) || len(totals.Dropped) > 0 {
			t.Fatalf("round %d: positions %v, offset %q, totals %+v; %d acknowledged", round, positions, offset, totals, delivered)
		}
		appended, delivered = uint64(len(f.read(1))), positions[0]
		if st := f.status(); len(st.SetAside) > 0 || f.logs.Len() > 0 {
			t.Fatalf("round %d: %+v, %v", round, st, f.logs.All())
		}
		f.close()
	}
	if appended < 20*killBatch || delivered == 0 {
		t.Errorf("only %d samples appended, %d delivered in %d rounds: this tests nothing", appended, delivered, rounds)
	}
	diff(t, "files", 1, len(filesBeside(t, f.cfg.Path)))
}

// runAndKill runs a writer, kills it some time after its first acknowledged append, and returns the last things that it acknowledged.
func runAndKill(t *testing.T, dir string, after time.Duration) (appended, delivered uint64) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), writerEnv+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var kill *time.Timer
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if kill == nil {
			kill = time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
		}
		var what string
		var n uint64
		if _, err := fmt.Sscan(lines.Text(), &what, &n); err != nil || !slices.Contains([]string{"a", "d"}, what) {
			continue // cut off by the kill
		}
		if what == "a" {
			appended = n
		} else {
			delivered = n
		}
	}
	_ = cmd.Wait()
	if kill == nil || cmd.ProcessState.ExitCode() != -1 {
		t.Fatalf("writer was not killed but ended: %v", cmd.ProcessState)
	}
	return appended, delivered
}
