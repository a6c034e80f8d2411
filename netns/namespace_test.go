// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/netns/netnstest"
)

// The main goroutine keeps the main thread, which alone does not end when its goroutine does: the test that waits for a lost
// thread to die must not get it.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start is where every thread belongs: read before any test has moved one.
var start, startErr = netns.Current()

func here(t testing.TB) uint64 {
	t.Helper()
	inode, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	return inode
}

func open(t testing.TB, ns *netnstest.NS) *netns.Namespace {
	t.Helper()
	n, err := netns.Open(ns.Name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// requireAllHome looks at more threads than the runtime keeps idle, all held at once so that none is looked at twice.
func requireAllHome(t *testing.T) {
	t.Helper()
	if startErr != nil {
		t.Fatal(startErr)
	}
	const threads = 100
	var all, seen sync.WaitGroup
	seen.Add(threads)
	inodes := make([]uint64, threads)
	errs := make([]error, threads)
	for i := range threads {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			inodes[i], errs[i] = netns.Current()
			seen.Done()
			seen.Wait()
		})
	}
	all.Wait()
	for i := range threads {
		if errs[i] != nil || inodes[i] != start {
			t.Fatalf("thread %d: in namespace %d, %v, want %d", i, inodes[i], errs[i], start)
		}
	}
}

func TestDoEntersAndReturns(t *testing.T) {
	lab := netnstest.New(t)
	ns := lab.Namespace("a")
	n := open(t, ns)

	var st unix.Stat_t
	if err := unix.Stat(ns.Path, &st); err != nil {
		t.Fatal(err)
	}
	want := st.Ino
	if n.Inode() != want || n.String() != ns.Name {
		t.Errorf("namespace is %s, inode %d, want %s, %d", n, n.Inode(), ns.Name, want)
	}
	failure := errors.New("fn's own")
	for _, fnErr := range []error{nil, failure} {
		var inside uint64
		err := n.Do(func() error {
			inside = here(t)
			return fnErr
		})
		if !errors.Is(err, fnErr) || (err == nil) != (fnErr == nil) {
			t.Errorf("Do: %v, want %v", err, fnErr)
		}
		if inside != want {
			t.Errorf("fn ran in namespace %d, want %d", inside, want)
		}
		requireAllHome(t)
	}
}

func TestThreadsThatCameHomeAreUsedAgain(t *testing.T) {
	lab := netnstest.New(t)
	n := open(t, lab.Namespace("a"))
	const visits = 500
	threads := map[int]bool{}
	for range visits {
		if err := n.Do(func() error { threads[unix.Gettid()] = true; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if len(threads) > visits/2 {
		t.Errorf("%d visits took %d threads", visits, len(threads))
	}
}

func TestDoWithoutNamespaceCallsFnHere(t *testing.T) {
	for _, n := range []*netns.Namespace{nil, {}} {
		runtime.LockOSThread()
		tid, inside := unix.Gettid(), 0
		failure := errors.New("fn's own")
		err := n.Do(func() error {
			inside = unix.Gettid()
			return failure
		})
		runtime.UnlockOSThread()
		if inside != tid || !errors.Is(err, failure) {
			t.Errorf("fn ran on thread %d, want %d; %v", inside, tid, err)
		}
		if err := n.Close(); err != nil || n.Inode() != 0 || n.String() != "default" {
			t.Errorf("got %v, inode %d, %q", err, n.Inode(), n)
		}
	}
}

func TestOpenRefusesWhatIsNoNetworkNamespace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, open string
		want       error
	}{
		{"missing name", fmt.Sprintf("xtwt%d-missing", os.Getpid()), fs.ErrNotExist},
		{"missing path", file + "2", fs.ErrNotExist},
		{"name without its mount", file, unix.ENOTTY},
		{"another kind of namespace", "/proc/self/ns/mnt", unix.EINVAL},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, err := netns.Open(tc.open)
			if !errors.Is(err, tc.want) {
				t.Errorf("Open: %v, %v, want %v", n, err, tc.want)
			}
		})
	}
}

func TestOpenByPathAndCloseTwice(t *testing.T) {
	n, err := netns.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if n.Inode() != here(t) {
		t.Errorf("inode %d, want %d", n.Inode(), here(t))
	}
	for range 2 {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
	called := false
	if err := n.Do(func() error { called = true; return nil }); !errors.Is(err, os.ErrClosed) || called {
		t.Errorf("Do after Close: %v, fn called: %v, want %v", err, called, os.ErrClosed)
	}
	requireAllHome(t)
}

func TestPanicIsCarriedHome(t *testing.T) {
	lab := netnstest.New(t)
	n := open(t, lab.Namespace("a"))
	var got any
	func() {
		defer func() { got = recover() }()
		_ = n.Do(func() error { return explode() })
	}()
	carried, ok := got.(*netns.PanicError)
	if !ok {
		t.Fatalf("recovered %T %v, want *PanicError", got, got)
	}
	var cause runtime.Error
	if !errors.As(carried, &cause) {
		t.Errorf("the chain of %v lacks the runtime.Error", carried.Value)
	}
	if !strings.Contains(carried.Error(), "explode") {
		t.Errorf("stack does not show where it happened:\n%v", carried)
	}
	requireAllHome(t)
}

func explode() error {
	none := os.Args[:0]
	return errors.New(none[len(none)])
}

func TestGoexitIsCarriedHome(t *testing.T) {
	lab := netnstest.New(t)
	n := open(t, lab.Namespace("a"))
	var after bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = n.Do(func() error { runtime.Goexit(); return nil })
		after = true
	}()
	<-done
	if after {
		t.Error("caller went on")
	}
	requireAllHome(t)
}

func TestRefusedEntryRunsNothing(t *testing.T) {
	lab := netnstest.New(t)
	n := open(t, lab.Namespace("a"))
	called := false
	err := n.DoSetns(func() error { called = true; return nil }, func(int, int) error { return unix.EPERM })
	if !errors.Is(err, unix.EPERM) || called {
		t.Errorf("Do: %v, fn called: %v, want %v", err, called, unix.EPERM)
	}
	requireAllHome(t)
}

// Case 68.
func TestThreadThatCannotReturnHomeDies(t *testing.T) {
	lab := netnstest.New(t)
	n := open(t, lab.Namespace("a"))
	failure := errors.New("fn's own")
	for _, tc := range []struct {
		name string
		end  func() error
		want error
	}{
		{"fn succeeds", func() error { return nil }, unix.EMFILE},
		{"fn fails", func() error { return failure }, failure},
		{"fn panics", func() error { panic(failure) }, failure},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var tid int
			var inside uint64
			calls := 0
			err := recoverError(func() error {
				return n.DoSetns(func() error {
					tid, inside = unix.Gettid(), here(t)
					return tc.end()
				}, func(fd, nstype int) error {
					if calls++; calls == 2 {
						return unix.EMFILE
					}
					return unix.Setns(fd, nstype)
				})
			})
			if !errors.Is(err, tc.want) {
				t.Errorf("Do: %v, want %v", err, tc.want)
			}
			if inside != n.Inode() || calls != 2 {
				t.Fatalf("ran in %d after %d calls of setns, want %d, 2", inside, calls, n.Inode())
			}
			requireAllHome(t)
			await(t, fmt.Sprintf("thread %d to die", tid), func() bool {
				_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid))
				return errors.Is(err, fs.ErrNotExist)
			})
		})
	}
}

func recoverError(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = v.(error)
		}
	}()
	return fn()
}

// await checks a condition that only the kernel knows about, again and again.
func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("waited 10 s for %s", what)
		case <-again.C:
		}
	}
}

// patience bounds each wait for what should come.
const patience = 20 * time.Second

func receive[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("waited %s for %s", patience, what)
		panic("unreachable")
	}
}

// Case 69.
func TestManyNestedAtOnce(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	lab := netnstest.New(t)
	a, b := open(t, lab.Namespace("a")), open(t, lab.Namespace("b"))
	if a.Inode() == b.Inode() {
		t.Fatal("both namespaces are one")
	}
	expect := func(where string, want uint64) error {
		runtime.Gosched()
		got, err := netns.Current()
		if err == nil && got != want {
			err = fmt.Errorf("%s: in namespace %d, want %d", where, got, want)
		}
		runtime.Gosched()
		return err
	}
	const goroutines, rounds = 50, 20
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for range rounds {
				err := errors.Join(
					a.Do(func() error {
						return errors.Join(
							expect("in a", a.Inode()),
							b.Do(func() error {
								return errors.Join(
									expect("in b in a", b.Inode()),
									a.Do(func() error { return expect("in a in b", a.Inode()) }),
									expect("in b again", b.Inode()))
							}),
							expect("in a again", a.Inode()))
					}),
					expect("back", start))
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	requireAllHome(t)
}
