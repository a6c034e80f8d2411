// SPDX-License-Identifier: Apache-2.0

package target

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// parseNames makes a target of each word of a text.
func parseNames(_ string, text []byte) (targets []Target, err error) {
	for _, name := range strings.Fields(string(text)) {
		t := named(name)
		if err := t.Validate(); err != nil {
			return nil, err
		}
		targets = append(targets, t)
	}
	if targets == nil {
		return nil, errors.New("nothing")
	}
	return targets, nil
}

// folder is a folder of files with targets, and what they were told to be.
type folder struct {
	*testing.T
	*Files
	dir  string
	logs *observer.ObservedLogs

	mu   sync.Mutex
	told [][]Source
}

func newFolder(t *testing.T) *folder {
	t.Helper()
	f := &folder{T: t, dir: t.TempDir()}
	core, logs := observer.New(zap.InfoLevel)
	f.logs = logs
	var err error
	f.Files, err = NewFiles([]string{filepath.Join(f.dir, "*.yml"), filepath.Join(f.dir, "a*")}, parseNames, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *folder) write(name, text string) {
	f.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o600); err != nil {
		f.Fatal(err)
	}
}

func (f *folder) remove(name string) {
	f.Helper()
	if err := os.Remove(filepath.Join(f.dir, name)); err != nil {
		f.Fatal(err)
	}
}

// inFiles writes out sources: each file's base name and its targets.
func inFiles(sources []Source) (out []string) {
	for _, s := range sources {
		out = append(out, filepath.Base(s.Name)+": "+strings.Join(names(s.Targets), " "))
	}
	return out
}

func (f *folder) expect(got []Source, want ...string) {
	f.Helper()
	if diff := cmp.Diff(want, inFiles(got)); diff != "" {
		f.Error(diff)
	}
}

func TestFiles(t *testing.T) {
	f := newFolder(t)
	f.expect(f.Read(false))
	f.write("b.yml", "x y")
	f.write("a.yml", "z") // which both patterns match
	f.write("other.txt", "t")
	f.expect(f.Read(false), "a.yml: z", "b.yml: x y")
	good, err := f.Status()
	if err != nil || good.IsZero() {
		t.Errorf("status: %v, good at %v", err, good)
	}

	f.write("b.yml", "x (")
	f.expect(f.Read(false), "a.yml: z", "b.yml: x y")
	f.Read(false)
	if n := f.logs.FilterMessageSnippet("damaged").Len(); n != 1 {
		t.Errorf("%d lines of one damage, want 1", n)
	}
	if at, err := f.Status(); err == nil || !strings.Contains(err.Error(), `"("`) || !at.Equal(good) {
		t.Errorf("status: %v, good at %v, want at %v", err, at, good)
	}
	f.write("b.yml", "x")
	f.remove("a.yml")
	f.expect(f.Read(false), "b.yml: x")
	if _, err := f.Status(); err != nil {
		t.Error(err)
	}
}

// A file that can be read again is good again, also if it says what it did.
func TestAFileThatCannotBeReadForAWhile(t *testing.T) {
	f := newFolder(t)
	f.write("a.yml", "x")
	f.expect(f.Read(false), "a.yml: x")
	f.remove("a.yml")
	if err := os.Mkdir(filepath.Join(f.dir, "a.yml"), 0o700); err != nil {
		t.Fatal(err)
	}
	f.expect(f.Read(false), "a.yml: x")
	if _, err := f.Status(); err == nil {
		t.Error("a folder is no error")
	}
	f.remove("a.yml")
	f.write("a.yml", "x")
	f.expect(f.Read(false), "a.yml: x")
	if _, err := f.Status(); err != nil {
		t.Error(err)
	}
}

// Whatever happens to files for 22 hours, all the time or by turns, has few lines: one at once, and in the end one about what there is.
func TestLogOver22Hours(t *testing.T) {
	const outage = 22 * time.Hour
	for _, fault := range []struct {
		name  string
		set   func(f *folder, fails bool)
		level zapcore.Level
		text  string // in the first line
	}{
		{"damaged", func(f *folder, fails bool) {
			for _, name := range []string{"a.yml", "b.yml"} {
				if f.write(name, "x"); fails {
					f.write(name, "x ((")
				}
			}
		}, zap.ErrorLevel, `"(("`},
		{"gone", func(f *folder, fails bool) {
			if f.write("a.yml", "x"); fails {
				f.remove("a.yml")
			}
		}, zap.InfoLevel, "a.yml"},
		{"rewritten", func(f *folder, fails bool) {
			if f.write("a.yml", "x"); fails {
				f.write("a.yml", "x y")
			}
		}, zap.InfoLevel, "a.yml"},
	} {
		for name, fails := range map[string]func(time.Duration) bool{
			"all the time": func(time.Duration) bool { return true },
			"by turns":     func(after time.Duration) bool { return after%time.Minute < 30*time.Second },
			"now and then": func(after time.Duration) bool { return after%time.Hour < 20*time.Minute },
		} {
			if fault.level == zap.InfoLevel && name != "by turns" {
				continue // it takes seconds, and is the same to whoever writes the lines
			}
			t.Run(fault.name+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFolder(t)
					fault.set(f, false)
					ctx, cancel := context.WithCancel(t.Context())
					var ended sync.WaitGroup
					ended.Go(func() { _ = f.Files.Run(ctx, func([]Source) {}, nil) })
					<-time.After(time.Hour)
					f.logs.TakeAll()
					begin, last := time.Now(), false
					for time.Since(begin) < outage+3*time.Hour {
						after := time.Since(begin)
						if now := after < outage && fails(after); now != last {
							last = now
							fault.set(f, now)
						}
						<-time.After(10 * time.Second)
					}
					cancel()
					ended.Wait()
					lines := f.logs.All()
					if len(lines) < 2 || len(lines) > 9 {
						t.Fatalf("%d lines, want 2 to 9: %v", len(lines), lines[:min(len(lines), 20)])
					}
					first, end := lines[0], lines[len(lines)-1]
					if text := fmt.Sprint(first.ContextMap()); first.Level != fault.level || first.Time.Sub(begin) > time.Minute || !strings.Contains(text, fault.text) {
						t.Errorf("the first line is %v %v, %v after the outage began", first.Level, text, first.Time.Sub(begin))
					}
					fields := end.ContextMap()
					_, counted := fields["changes"].(int64)
					if _, lasted := fields["after"].(time.Duration); end.Level != zap.InfoLevel || end.Time.Sub(begin) < outage || !counted || !lasted {
						t.Errorf("the last line is %v %v, %v after the outage began", end.Level, fields, end.Time.Sub(begin))
					}
				})
			})
		}
	}
}

// What is no file of targets costs nothing but itself, and waits for nobody.
func TestFilesOfOtherKinds(t *testing.T) {
	f := newFolder(t)
	f.write("a.yml", "x")
	if err := syscall.Mkfifo(filepath.Join(f.dir, "pipe.yml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(f.dir, "dir.yml"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(f.dir, "link.yml")); err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(f.dir, "large.yml")
	if err := os.WriteFile(large, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, maxFile+1); err != nil {
		t.Fatal(err)
	}
	f.expect(f.Read(false), "a.yml: x", "dir.yml: ", "large.yml: ", "link.yml: ", "pipe.yml: ")
	_, err := f.Status()
	for _, name := range []string{"pipe.yml", "dir.yml", "link.yml", "large.yml"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in: %v", name, err)
		}
	}
}

// A file counts when it has been left alone, and a change of anything is seen.
func TestFilesAreReadWhenTheyChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFolder(t)
		f.write("a.yml", "x")
		f.expect(f.Read(false), "a.yml: x")
		ctx, cancel := context.WithCancel(t.Context())
		var ended sync.WaitGroup
		var beats int
		ended.Go(func() {
			_ = f.Files.Run(ctx, func(s []Source) {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.told = append(f.told, s)
			}, func(time.Duration) { beats++ })
		})
		last := func() []Source {
			synctest.Wait()
			f.mu.Lock()
			defer f.mu.Unlock()
			if len(f.told) == 0 {
				return nil
			}
			return f.told[len(f.told)-1]
		}
		<-time.After(filesLook / 2) // between two looks
		looks := func(n int) { <-time.After(time.Duration(n) * filesLook) }
		looks(3)
		f.expect(last(), "a.yml: x")
		told := len(f.told)
		looks(100)
		if len(f.told) != told {
			t.Errorf("told %d times of nothing", len(f.told)-told)
		}
		if good, err := f.Status(); err != nil || time.Since(good) > filesLook {
			t.Errorf("status: %v, good %v ago", err, time.Since(good))
		}
		// Written bit by bit, it is not read before the end.
		for _, text := range []string{"", "y", "y z", "y z ((", "y z u"} { // each of another size: some file systems date changes to 4 ms
			f.write("a.yml", text)
			looks(1)
			f.expect(last(), "a.yml: x")
		}
		looks(2)
		f.expect(last(), "a.yml: y z u")
		if n := f.logs.FilterMessageSnippet("damaged").Len(); n > 0 {
			t.Errorf("%d lines of a damaged file", n)
		}
		f.write("b.yml.new", "v")
		if err := os.Rename(filepath.Join(f.dir, "b.yml.new"), filepath.Join(f.dir, "b.yml")); err != nil {
			t.Fatal(err)
		}
		looks(3)
		f.expect(last(), "a.yml: y z u", "b.yml: v")
		f.remove("a.yml")
		looks(3)
		f.expect(last(), "b.yml: v")
		if beats < 100 {
			t.Errorf("%d beats", beats)
		}
		cancel()
		ended.Wait()
	})
}

func TestFilesWantPatterns(t *testing.T) {
	if _, err := NewFiles([]string{"/etc/[a"}, parseNames, zap.NewNop()); err == nil || !strings.Contains(err.Error(), "/etc/[a") {
		t.Errorf("NewFiles: %v, want an error that names the pattern", err)
	}
}
