// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// allowFiles sees to it that the process may open a socket for each path, twice
// over as a path that goes on from another port has the old one for a while.
// Paths share sockets only where the kernel half sees their packets, which is
// not known yet. The runtime has raised the soft limit to the hard one; to raise that
// takes CAP_SYS_RESOURCE.
func allowFiles(paths int) error {
	const others = 256
	need := uint64(2*paths + others)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("get the limit of open files: %w", err)
	}
	if limit.Cur >= need {
		return nil
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: need, Max: max(need, limit.Max)}); err != nil {
		return fmt.Errorf("%d paths need up to %d open files, the limit is %d: %w", paths, need, limit.Cur, err)
	}
	return nil
}
