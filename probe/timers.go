// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"
)

// timersEased is how late the timers of a process that works in slots may be.
const timersEased = time.Millisecond

// easeTimers lets the kernel wake this process a little later than asked: while the process works, the Go runtime's monitor thread sets
// a timer of 20 us again and again. At 10,000 probes per second that is a fifth of all that they cost, and the interrupts fall between
// probes and their replies. No time stamp depends on the timers. Threads made later have it from those that make them. It needs
// CAP_SYS_NICE (/proc/PID/timerslack_ns, since Linux 4.6).
func easeTimers() error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("ease timers: %w", err)
	}
	var errs []error
	for _, t := range threads {
		err := os.WriteFile("/proc/"+t.Name()+"/timerslack_ns", []byte(strconv.FormatInt(timersEased.Nanoseconds(), 10)), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // it has ended
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("ease timers: %w", err)
	}
	return nil
}
