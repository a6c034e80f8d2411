// SPDX-License-Identifier: Apache-2.0

package file

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/submit"
)

const (
	childVariable = "XTWAMP_FILE_TEST_CHILD" // directory of a child of the kill test
	childPaths    = 3
	killRounds    = 40
)

// childConfig rotates often, and keeps all.
func childConfig(dir string) Config {
	return Config{Directory: filepath.Join(dir, "out"), RotateBytes: 32 << 10, Keep: 1 << 20, Device: "ams-dz001"}
}

// child stores and delivers samples until it is killed, and prints a line each time it has stored some.
func child(dir string) {
	l, paths, err := openStore(dir, childPaths)
	if err != nil {
		panic(err)
	}
	sink, err := New(childConfig(dir), l, zap.NewNop())
	if err != nil {
		panic(err)
	}
	s, err := submit.New(submit.Config{Log: l, Sink: sink, Interval: 10 * time.Millisecond, Logger: zap.NewNop()})
	if err != nil {
		panic(err)
	}
	go func() { panic(s.Run(context.Background())) }()
	for range time.Tick(2 * time.Millisecond) {
		batch := make([]store.Record, 1+rand.IntN(20))
		for i := range batch {
			batch[i] = store.Record{Path: paths[rand.IntN(childPaths)].ID, Sample: store.Sample{Mono: int64(i + 1), RTT: rand.Int64N(1e9)}}
		}
		if err := l.Append(batch); err != nil {
			panic(err)
		}
		fmt.Println("stored")
	}
}

func TestAKillAtAnyMomentNeitherLosesNorRepeatsASample(t *testing.T) {
	dir := t.TempDir()
	cut := 0
	for range killRounds {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childVariable+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for range 1 + rand.IntN(60) {
			if !lines.Scan() {
				t.Fatalf("child ended by itself: %v", cmd.Wait())
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // says that it was killed

		if tail(t, dir) > 0 {
			cut++
		}
	}
	b := newBench(t, 0)
	l, paths, err := openStore(dir, childPaths)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b.log, b.paths, b.cfg = l, paths, childConfig(dir)
	b.mustDeliver()
	b.checkExactlyOnce()
	t.Logf("%d files, %d of %d kills left a tail to cut", len(b.names()), cut, killRounds)
	for _, name := range b.names() {
		if filepath.Ext(name) == asideExt {
			t.Errorf("%s: a kill must not leave a file that the store does not know", name)
		}
	}
}

// tail returns the number of unaccounted bytes in the files of a killed child.
func tail(t *testing.T, dir string) int64 {
	t.Helper()
	l, _, err := openStore(dir, childPaths)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s, err := New(childConfig(dir), l, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	at, err := s.cursor()
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(s.path(at.Name))
	if err != nil {
		return 0 // not created yet
	}
	return info.Size() - at.Offset
}
