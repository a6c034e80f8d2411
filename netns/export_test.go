// SPDX-License-Identifier: Apache-2.0

package netns

// DoSetns is Do with another setns(2), so that a test can refuse the way home.
func (n *Namespace) DoSetns(fn func() error, setns func(fd, nstype int) error) error {
	return n.do(fn, setns)
}

// Current is the inode of the calling thread's namespace.
var Current = current

// Priority is that of all our filters.
const Priority = priority
