// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/netns/netnstest"
)

// follower runs Each with a use that lasts as long as the namespace.
type follower struct {
	began   chan uint64   // inode
	ended   chan error    // cause
	waiting chan error    // reason, once
	again   atomic.Uint64 // how often a reason was the one before
	done    chan error
	cancel  context.CancelFunc
}

func follow(t *testing.T, place string) *follower {
	t.Helper()
	p := parsePlace(t, place)
	ctx, cancel := context.WithCancel(t.Context())
	f := &follower{
		began: make(chan uint64, 10), ended: make(chan error, 10), waiting: make(chan error, 10), done: make(chan error, 1), cancel: cancel,
	}
	last := ""
	go func() {
		f.done <- p.Each(ctx, func(ctx context.Context, ns *netns.Namespace) error {
			inode := uint64(0)
			if err := ns.Do(func() (err error) {
				inode, err = netns.Current()
				return err
			}); err != nil {
				return err
			}
			f.began <- inode
			<-ctx.Done()
			f.ended <- context.Cause(ctx)
			return nil
		}, func(reason error) {
			if reason.Error() == last {
				f.again.Add(1)
				return
			}
			last = reason.Error()
			f.waiting <- reason
		})
	}()
	t.Cleanup(cancel)
	return f
}

// expectReason waits for a reason, past one that was there only while ip(8) made the name.
func (f *follower) expectReason(t *testing.T, want error) {
	t.Helper()
	reason := receive(t, "the reason to wait", f.waiting)
	if errors.Is(reason, unix.ENOTTY) && !errors.Is(want, unix.ENOTTY) {
		reason = receive(t, "another reason to wait", f.waiting)
	}
	if !errors.Is(reason, want) {
		t.Errorf("waits because of %v, want %v", reason, want)
	}
}

func (f *follower) stop(t *testing.T) {
	t.Helper()
	f.cancel()
	if err := receive(t, "Each to end", f.done); err != nil {
		t.Errorf("Each = %v, want nil", err)
	}
}

func inodeOf(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func TestEachFollowsAName(t *testing.T) {
	lab := netnstest.New(t)
	ns, far := lab.Namespace("a"), lab.Namespace("b")
	ip(t, "netns", "delete", ns.Name) // so that there is a name and nothing behind it
	f := follow(t, ns.Name)
	f.expectReason(t, fs.ErrNotExist)
	await(t, "the reason to be told again", func() bool { return f.again.Load() > 1 })
	ip(t, "netns", "add", ns.Name)
	first := receive(t, "the first namespace", f.began)
	if want := inodeOf(t, ns.Path); first != want {
		t.Errorf("uses namespace %d, want %d", first, want)
	}

	// Nothing keeps it alive when it has no name any more: the other end of its link goes with it.
	lab.Veth(ns, "near", nil, far, "far", nil)
	ip(t, "netns", "delete", ns.Name)
	if cause := receive(t, "the end of the first namespace", f.ended); !errors.Is(cause, netns.ErrGone) {
		t.Errorf("first namespace ended because of %v, want %v", cause, netns.ErrGone)
	}
	f.expectReason(t, netns.ErrGone)
	f.expectReason(t, fs.ErrNotExist)
	await(t, "the first namespace to die", func() bool {
		err := far.Do(func() error { _, err := netns.LinkByName("far"); return err })
		return errors.Is(err, netns.ErrNoLink)
	})

	ip(t, "netns", "add", ns.Name)
	second := receive(t, "the second namespace", f.began)
	// At once: there is hardly a moment without the name.
	batch := filepath.Join(t.TempDir(), "batch")
	if err := os.WriteFile(batch, []byte("netns delete "+ns.Name+"\nnetns add "+ns.Name+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ip(t, "-batch", batch)
	receive(t, "the end of the second namespace", f.ended)
	third := receive(t, "the third namespace", f.began)
	if want := inodeOf(t, ns.Path); third == second || third != want {
		t.Errorf("uses namespace %d after %d, want %d", third, second, want)
	}
	f.stop(t)
	if cause := receive(t, "the end of the third namespace", f.ended); !errors.Is(cause, context.Canceled) {
		t.Errorf("third namespace ended because of %v, want %v", cause, context.Canceled)
	}
}

// Nothing tells of mounts, and of the folder only that above it does.
func TestEachFollowsAPath(t *testing.T) {
	lab := netnstest.New(t)
	a, b := lab.Namespace("a"), lab.Namespace("b")
	folder := filepath.Join(t.TempDir(), "not", "there", "yet")
	path := filepath.Join(folder, "name")
	f := follow(t, path)
	f.expectReason(t, fs.ErrNotExist)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f.expectReason(t, unix.ENOTTY)
	mount := func(ns *netnstest.NS) {
		t.Helper()
		if err := unix.Mount(ns.Path, path, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) }) // the test has perhaps done so
	}
	mount(a)
	if got, want := receive(t, "the first namespace", f.began), inodeOf(t, a.Path); got != want {
		t.Errorf("uses namespace %d, want %d", got, want)
	}
	mount(b)
	receive(t, "the end of the first namespace", f.ended)
	if got, want := receive(t, "the second namespace", f.began), inodeOf(t, b.Path); got != want {
		t.Errorf("uses namespace %d, want %d", got, want)
	}
	for range 2 {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
	}
	receive(t, "the end of the second namespace", f.ended)
	f.stop(t)
}

func TestEachEndsAsUseDoes(t *testing.T) {
	lab := netnstest.New(t)
	ns := lab.Namespace("a")
	failure := errors.New("use's own")
	for _, place := range []string{"", "vrf:none", ns.Name} {
		for _, want := range []error{nil, failure} {
			p := parsePlace(t, place)
			calls := 0
			got := p.Each(t.Context(), func(_ context.Context, n *netns.Namespace) error {
				calls++
				if (n.Inode() == 0) != (place != ns.Name) {
					t.Errorf("%s: used namespace %d", p, n.Inode())
				}
				return want
			}, func(reason error) { t.Errorf("%s: waits because of %v", p, reason) })
			if !errors.Is(got, want) || (got == nil) != (want == nil) || calls != 1 {
				t.Errorf("%s: Each = %v after %d calls, want %v after 1", p, got, calls, want)
			}
		}
	}
}

// What use says while its namespace goes away is passed on and does not end it all.
func TestEachOutlivesWhatTheEndOfANamespaceCauses(t *testing.T) {
	lab := netnstest.New(t)
	path := filepath.Join(t.TempDir(), "name")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(lab.Namespace("a").Path, path, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	p := parsePlace(t, path)
	failure := errors.New("no such device")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var reasons []string
	err := p.Each(ctx, func(context.Context, *netns.Namespace) error {
		return errors.Join(unix.Unmount(path, unix.MNT_DETACH), failure) // before anybody has looked again
	}, func(reason error) {
		if len(reasons) == 0 && !errors.Is(reason, failure) {
			t.Errorf("waits because of %v, want %v", reason, failure)
		}
		if reasons = append(reasons, reason.Error()); len(reasons) == 2 {
			cancel()
		}
	})
	if err != nil {
		t.Errorf("Each = %v, want nil", err)
	}
	if len(reasons) != 2 {
		t.Errorf("reasons to wait are %q, want two", strings.Join(reasons, "; "))
	}
}

func TestFoldersTellOfNames(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "folder")
	name := filepath.Join(folder, "name")
	next, stop := netns.WatchName(name)
	defer stop()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"the folder is made", func() error { return os.Mkdir(folder, 0o700) }},
		{"the name is made", func() error { return os.Mkdir(name, 0o700) }},
		{"the name is removed", func() error { return os.Remove(name) }},
		{"the folder is removed", func() error { return os.Remove(folder) }},
		{"the folder is made anew", func() error { return os.Mkdir(folder, 0o700) }},
		{"the name is made anew", func() error { return os.Symlink("elsewhere", name) }},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		told := make(chan bool, 1)
		go func() { told <- next(ctx) }()
		if !receive(t, "news that "+step.name, told) {
			t.Fatalf("stopped before news that %s", step.name)
		}
	}
	cancel()
	if next(ctx) {
		t.Error("there is news after a stop")
	}
}
