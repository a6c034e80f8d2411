// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// ErrGone means that the name of a namespace is gone, or leads to another one.
var ErrGone = errors.New("network namespace is gone")

const (
	// lookOften and lookSeldom are between two looks at a name, just after something happened to it and in the long run. Making
	// a name is two steps, of which only the first is told: the second is a mount.
	lookOften  = 10 * time.Millisecond
	lookSeldom = 5 * time.Second
)

// Each calls use with the open namespace each time that there is one, until ctx ends; it returns nil then. When the name is gone
// or leads to another namespace, the context of use ends, and [ErrGone] is its cause. As soon as use has returned, the
// namespace is closed, which is what lets the kernel free it, and Each waits for the next. So use must end every socket,
// subscription and attachment that it made there before it returns.
//
// If use returns while the namespace is still there, Each returns the same. An error from a namespace that went away meanwhile is
// passed on to waiting, which is told at each look that finds no namespace to use, every few seconds.
//
// The start namespace is always there: use is called once.
func (p Place) Each(ctx context.Context, use func(context.Context, *Namespace) error, waiting func(reason error)) error {
	if p.namespace == "" {
		return use(ctx, nil)
	}
	w := watchName(p.path())
	defer w.close()
	for ctx.Err() == nil {
		ns, err := p.Open()
		if err != nil {
			waiting(err)
			w.next(ctx)
			continue
		}
		gone, err := p.during(ctx, w, ns, use)
		if !gone {
			return err
		}
		waiting(err)
	}
	return nil
}

// during calls use, ends its context when ns is not the place's namespace any more, and closes ns. It says whether that is so, and
// what use returned.
func (p Place) during(ctx context.Context, w *nameWatch, ns *Namespace, use func(context.Context, *Namespace) error) (gone bool, err error) {
	inner, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		for w.next(inner) {
			if !p.leadsTo(ns) {
				cancel(ErrGone)
				return
			}
		}
	})
	defer func() {
		cancel(nil)
		watching.Wait()
		err = errors.Join(err, ns.Close())
	}()
	err = use(inner, ns)
	// What use met may be the end of the namespace, though nothing has told of it yet.
	if ctx.Err() != nil || inner.Err() == nil && p.leadsTo(ns) {
		return false, err
	}
	return true, errors.Join(fmt.Errorf("%s: %w", p, ErrGone), err)
}

// leadsTo reports whether the name leads to ns. What only keeps this process from looking, such as too many open files, is no sign
// that it does not.
func (p Place) leadsTo(ns *Namespace) bool {
	now, err := p.Open()
	if err != nil {
		return !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ENOTTY) && !errors.Is(err, unix.EINVAL)
	}
	defer func() { _ = now.Close() }() // nothing was written to it
	return now.Inode() == ns.Inode()
}

// nameWatch says when to look at a name: soon after something happened in its folder, and every few seconds because not all that
// happens is told (a mount over the name is not, nor is anything in /proc). One goroutine at a time may use it.
type nameWatch struct {
	path   string
	notify *fsnotify.Watcher // nil where the kernel refuses one: then the looks every few seconds must do
	events <-chan fsnotify.Event
	errors <-chan error
	pause  time.Duration // until the next look
}

func watchName(path string) *nameWatch {
	w := &nameWatch{path: filepath.Clean(path), pause: lookOften}
	if notify, err := fsnotify.NewWatcher(); err == nil {
		w.notify, w.events, w.errors = notify, notify.Events, notify.Errors
	}
	w.watchFolder()
	return w
}

func (w *nameWatch) close() {
	if w.notify != nil {
		_ = w.notify.Close() // has no error to return
	}
}

// watchFolder watches the folder of the name, or the nearest one above it that is there.
func (w *nameWatch) watchFolder() {
	if w.notify == nil {
		return
	}
	folder := filepath.Dir(w.path)
	for w.notify.Add(folder) != nil && folder != filepath.Dir(folder) {
		folder = filepath.Dir(folder)
	}
	for _, other := range w.notify.WatchList() {
		if other != folder {
			_ = w.notify.Remove(other) // it may be gone by itself
		}
	}
}

// next waits until it is time for a look; false means that ctx has ended.
func (w *nameWatch) next(ctx context.Context) bool {
	timer := time.NewTimer(w.pause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case event := <-w.events:
			if !strings.HasPrefix(w.path, event.Name) {
				continue // another name in that folder
			}
			w.pause = lookOften
		case <-w.errors: // an overflow: anything may have happened
			w.pause = lookOften
		case <-timer.C:
			w.pause = min(2*w.pause, lookSeldom)
		}
		w.watchFolder()
		return ctx.Err() == nil
	}
}
