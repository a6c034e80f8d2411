// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// timersEased is how late the timers of a process that works in slots may be.
const timersEased = time.Millisecond

// easeTimers lets the kernel wake this process a little later than asked: while the process works, the Go runtime's monitor thread sets
// a timer of 20 us again and again. At 10,000 probes per second that is a fifth of all that they cost, and the interrupts fall between
// probes and their replies. No time stamp depends on the timers. It is set for all threads (PR_SET_TIMERSLACK, since Linux 2.6.28);
// those made later have it from those that make them.
func easeTimers() error {
	if _, _, errno := psx.Syscall3(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, uintptr(timersEased.Nanoseconds()), 0); errno != 0 {
		return fmt.Errorf("ease timers: %w", errno)
	}
	return nil
}
