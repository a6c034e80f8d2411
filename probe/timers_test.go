// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/xtwamp/xtwamp/netns/netnstest"
)

// The slack is that of threads, which all tests of a process share, so this is one in a process of its own.
func TestTimersAreEasedInSlots(t *testing.T) {
	const child = "XTWAMP_TEST_INTERVAL"
	if interval, err := time.ParseDuration(os.Getenv(child)); err == nil {
		const own = "/proc/self/timerslack_ns" // of the first thread, which has it from this one's parent
		if err := os.WriteFile(own, []byte("50000"), 0); err != nil {
			t.Fatal(err)
		}
		near, far := link(t)
		reflectIn(t, far, nil)
		target := to(farAddr, nil)
		target.Interval = interval
		measureIn(t, near, 20, target)
		slack, err := os.ReadFile(own)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("slack=%s;", strings.TrimSpace(string(slack)))
		return
	}
	netnstest.RequireRoot(t)
	for interval, want := range map[string]string{"1ms": "slack=1000000;", "2ms": "slack=50000;"} {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), child+"="+interval)
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("at an interval of %s, want %s, got %v\n%s", interval, want, err, out)
		}
	}
}
