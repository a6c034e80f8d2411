// SPDX-License-Identifier: Apache-2.0

package file

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/submit"
)

// What fails for 22 hours without holding samples back, all the time or by turns, has few lines: one with the cause at once, and in the
// end one with how often and for how long.
func TestLogOver22Hours(t *testing.T) {
	const outage = 22 * time.Hour
	for _, fault := range []struct {
		name        string
		set         func(b *bench, fails bool)
		cause, ends string
	}{
		{"file that cannot be deleted", func(b *bench, fails bool) {
			old := b.file("samples-19990101T000000Z-00000001.ndjson")
			if fails {
				b.must(os.MkdirAll(filepath.Join(old, "x"), 0o755))
			} else {
				b.must(os.RemoveAll(old))
			}
		}, "not empty", "old files are deleted again"},
		{"file that is removed", func(b *bench, fails bool) {
			if fails {
				for _, name := range b.names() {
					b.must(os.Remove(b.file(name)))
				}
			}
		}, "has 0 bytes of", "files are left alone again"},
	} {
		for _, pattern := range []struct {
			name  string
			step  time.Duration // between samples
			fails func(time.Duration) bool
		}{
			{"all the time", 5 * time.Minute, func(time.Duration) bool { return true }},
			{"by turns", 30 * time.Second, func(after time.Duration) bool { return after%time.Minute < 30*time.Second }},
		} {
			t.Run(fault.name+"/"+pattern.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBench(t, 1)
					b.cfg.Keep = 1
					s, err := submit.New(submit.Config{Log: b.log, Sink: b.sink(), Interval: 10 * time.Second, Logger: b.zap})
					if err != nil {
						t.Fatal(err)
					}
					stop := start(t, s)
					begin := time.Now().Add(10 * time.Minute)
					for time.Since(begin) < outage+2*time.Hour {
						after := time.Since(begin)
						synctest.Wait() // the submitter is at rest
						if after >= 0 {
							fault.set(b, after < outage && pattern.fails(after))
						}
						b.append(1)
						<-time.After(pattern.step)
					}
					stop()
					lines := b.logs.All()
					if len(lines) < 2 || len(lines) > 9 {
						t.Fatalf("%d lines, want 2 to 9: %v", len(lines), lines[:min(len(lines), 20)])
					}
					first, last := lines[0], lines[len(lines)-1]
					if first.Level < zap.WarnLevel || first.Time.Sub(begin).Abs() > time.Minute || !strings.Contains(fmt.Sprint(first.ContextMap()), fault.cause) {
						t.Errorf("the first line is %v: %v; want a warning with the cause at once", first.Message, first.ContextMap())
					}
					n, _ := last.ContextMap()["failed_attempts"].(int64)
					lasted, _ := last.ContextMap()["after"].(time.Duration)
					if last.Message != fault.ends || n < 100 || lasted < outage-6*time.Minute || lasted > outage+6*time.Minute {
						t.Errorf("the last line is %v: %v; want %q with how often and for how long", last.Message, last.ContextMap(), fault.ends)
					}
				})
			})
		}
	}
}

// start runs s until the returned function is called.
func start(t *testing.T, s *submit.Submitter) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func (b *bench) must(err error) {
	b.tb.Helper()
	if err != nil {
		b.tb.Fatal(err)
	}
}
