// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"

	"github.com/xtwamp/xtwamp/netns/netnstest"
)

// The slack is that of threads, which all tests of a process share, so this is one in a process of its own.
func TestTimersAreEasedInSlots(t *testing.T) {
	const child = "XTWAMP_TEST_INTERVAL"
	if interval, err := time.ParseDuration(os.Getenv(child)); err == nil {
		// What this process has from its parent may be eased already.
		if _, _, errno := psx.Syscall3(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, 50_000, 0); errno != 0 {
			t.Fatal(errno)
		}
		near, far := link(t)
		reflectIn(t, far, nil)
		target := to(farAddr, nil)
		target.Interval = interval
		measureIn(t, near, 20, target)
		threads, err := filepath.Glob("/proc/self/task/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, thread := range threads {
			slack, err := os.ReadFile(filepath.Join("/proc", filepath.Base(thread), "timerslack_ns"))
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // it has ended
				t.Fatal(err)
			}
			t.Logf("slack=%s;", strings.TrimSpace(string(slack)))
		}
		return
	}
	netnstest.RequireRoot(t)
	for interval, want := range map[string]string{"1ms": "slack=1000000;", "2ms": "slack=50000;"} {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), child+"="+interval)
		out, err := cmd.CombinedOutput()
		if threads := strings.Count(string(out), "slack="); err != nil || threads < 2 || strings.Count(string(out), want) < threads-1 {
			t.Errorf("at an interval of %s, want %s, got %v\n%s", interval, want, err, out)
		}
	}
}
