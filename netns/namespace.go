// SPDX-License-Identifier: Apache-2.0

// Package netns enters network namespaces and asks the kernel about the links, routes and tc filters in them.
//
// Its promise: whatever happens inside [Namespace.Do], no goroutine ever runs on a thread that was left behind in another
// namespace. Everything else in the package acts on the network namespace of the calling thread, over netlink only, because
// /sys and most of /proc show the namespace of whoever mounted them or of the process leader.
package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// namedDir is where ip-netns(8) keeps named namespaces.
	namedDir = "/var/run/netns"
	// threadNamespace is the namespace of the calling thread; /proc/self would be that of the process leader.
	threadNamespace = "/proc/thread-self/ns/net"
)

// Namespace is an open network namespace. The nil *Namespace and the zero value stand for the one the process was started in.
//
// An open Namespace keeps the kernel's namespace alive after its name is gone, with all interfaces in it: close it once
// sockets and attachments are made, and open it again by name when it is needed again.
//
// All methods may be called concurrently.
type Namespace struct {
	name  string
	file  *os.File
	inode uint64
}

// Open opens a namespace by its name under /var/run/netns or, if nameOrPath contains a slash, by path.
//
// The error is [os.ErrNotExist] while nothing is there. Between the two steps in which ip-netns(8) creates a name, an empty
// file is there, which is refused with ENOTTY: both are worth another try later.
func Open(nameOrPath string) (*Namespace, error) {
	path := nameOrPath
	if !strings.Contains(path, "/") {
		path = filepath.Join(namedDir, path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	inode, err := inspect(file)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s is not a network namespace: %w", path, err), file.Close())
	}
	return &Namespace{name: nameOrPath, file: file, inode: inode}, nil
}

// inspect returns the inode of an open network namespace, and an error for any other file.
func inspect(file *os.File) (inode uint64, err error) {
	err = control(file, func(fd int) error {
		kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
		if err != nil {
			return err
		}
		if kind != unix.CLONE_NEWNET {
			return unix.EINVAL
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		inode = st.Ino
		return nil
	})
	return inode, err
}

// control calls fn with the descriptor of file and keeps it open meanwhile, even if Close is called.
func control(file *os.File, fn func(fd int) error) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := conn.Control(func(fd uintptr) { inner = fn(int(fd)) }); err != nil {
		return os.ErrClosed // the one reason, for which Control has an error nobody can test for
	}
	return inner
}

// current returns the inode of the calling thread's network namespace.
func current() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(threadNamespace, &st); err != nil {
		return 0, fmt.Errorf("stat %s: %w", threadNamespace, err)
	}
	return st.Ino, nil
}

// Close releases the namespace. Closing twice, or closing nil, does nothing.
func (n *Namespace) Close() error {
	if n.isStart() {
		return nil
	}
	if err := n.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close network namespace %s: %w", n, err)
	}
	return nil
}

// Inode identifies the namespace for as long as it is open: a name that leads to another inode is another namespace.
// It is 0 for the namespace the process was started in.
func (n *Namespace) Inode() uint64 {
	if n.isStart() {
		return 0
	}
	return n.inode
}

// String returns what was given to [Open], or "default".
func (n *Namespace) String() string {
	if n.isStart() {
		return "default"
	}
	return n.name
}

func (n *Namespace) isStart() bool { return n == nil || n.file == nil }

// PanicError is what [Namespace.Do] panics with when fn did: the goroutine that fn panicked on is gone by then, so its
// stack travels along.
type PanicError struct {
	Value any    // of fn's panic
	Stack []byte // as debug.Stack printed it at the panic
}

// Error prints the value and the stack: an uncaught panic shows both.
func (e *PanicError) Error() string {
	return fmt.Sprintf("panic in a network namespace: %v\n\n%s", e.Value, e.Stack)
}

// Unwrap returns the panic's value if it is an error, such as a runtime.Error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Do calls fn on a thread that is inside the namespace and returns fn's error once that thread is back. On nil it just calls
// fn. Sockets and netlink subscriptions opened in fn stay in the namespace for good; files of /proc and /sys may not show it.
//
// fn runs on a goroutine of its own and must not start goroutines that need the namespace. It may call Do again, on any
// Namespace. A panic in fn is carried to the caller as a [*PanicError], and [runtime.Goexit] (t.FailNow) as such.
//
// If the thread cannot return home, Do says so beside fn's error, and the thread dies instead of serving other goroutines.
func (n *Namespace) Do(fn func() error) error {
	if n.isStart() {
		return fn()
	}
	return n.do(fn, unix.Setns)
}

func (n *Namespace) do(fn func() error, setns func(fd, nstype int) error) error {
	var (
		err      error
		panicked *PanicError
		returned bool // stays false when fn calls Goexit
	)
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = n.visit(setns, func() error {
			defer func() {
				if v := recover(); v != nil {
					panicked = &PanicError{Value: v, Stack: debug.Stack()}
				}
			}()
			return fn()
		})
		returned = true
	}()
	<-done
	switch {
	case panicked != nil:
		panic(panicked)
	case !returned:
		runtime.Goexit()
	}
	return err
}

// visit takes the thread of the calling goroutine into the namespace, calls fn and takes it back. It unlocks the thread only
// where that is proved to be home: a goroutine that ends while locked takes its thread with it. (Linux cannot end the main
// thread that way; the runtime parks it for ever, which serves as well.)
func (n *Namespace) visit(setns func(fd, nstype int) error, fn func() error) (err error) {
	runtime.LockOSThread()
	// Home is read after the lock, else it could be the home of another thread.
	home, err := os.Open(threadNamespace)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter network namespace %s: %w", n, err)
	}
	defer func() { _ = home.Close() }() // nothing was written to it

	if err := control(n.file, func(fd int) error { return setns(fd, unix.CLONE_NEWNET) }); err != nil {
		runtime.UnlockOSThread() // a refused setns moves nothing
		return fmt.Errorf("enter network namespace %s: %w", n, err)
	}
	defer func() {
		if e := control(home, func(fd int) error { return setns(fd, unix.CLONE_NEWNET) }); e != nil {
			err = errors.Join(err, fmt.Errorf("return from network namespace %s, thread given up: %w", n, e))
			return
		}
		runtime.UnlockOSThread()
	}()
	return fn()
}
