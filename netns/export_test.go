// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// DoSetns is Do with another setns(2), so that a test can refuse the way home.
func (n *Namespace) DoSetns(fn func() error, setns func(fd, nstype int) error) error {
	return n.do(fn, setns)
}

// Current is the inode of the calling thread's namespace.
var Current = current

// Priority is that of all our filters.
const Priority = priority

// WatchWith is Watch with another backstop and, if it is not 0, a receive buffer of so many bytes.
func (n *Namespace) WatchWith(ctx context.Context, buffer int, backstop time.Duration, changed func(Change)) error {
	socket, err := n.subscribe()
	if err != nil {
		return err
	}
	if buffer != 0 {
		conn, err := socket.SyscallConn()
		if err != nil {
			return err
		}
		if err := conn.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, buffer) }); err != nil {
			return err
		}
	}
	return watch(ctx, socket, backstop, changed)
}

// WatchName returns what waits for something to be told of a name, however long that takes.
func WatchName(path string) (next func(context.Context) bool, stop func()) {
	w := watchName(path)
	return func(ctx context.Context) bool {
		w.pause = time.Hour
		return w.next(ctx)
	}, w.close
}
