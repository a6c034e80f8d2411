// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/xtwamp/xtwamp/netns"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// verdict stands in for a test and notes how it ended.
type verdict struct {
	testing.TB
	end string
}

func (v *verdict) Helper()      {}
func (v *verdict) Fatal(...any) { v.end = "failed" }
func (v *verdict) Skip(...any)  { v.end = "skipped" }

func TestRequireRootNeverSkipsWhereRootIsRequired(t *testing.T) {
	for _, tc := range []struct {
		euid      int
		env, want string
	}{
		{0, "", "goes on"},
		{0, "1", "goes on"},
		{1000, "", "skipped"},
		{1000, "0", "skipped"},
		{1000, "1", "failed"},
	} {
		t.Setenv("XTWAMP_REQUIRE_ROOT", tc.env)
		v := &verdict{TB: t, end: "goes on"}
		if requireRoot(v, tc.euid); v.end != tc.want {
			t.Errorf("uid %d, XTWAMP_REQUIRE_ROOT=%q: %s, want %s", tc.euid, tc.env, v.end, tc.want)
		}
	}
}

func TestVethCarriesBothFamiliesAtOnce(t *testing.T) {
	lab := New(t)
	a, b := lab.Namespace("a"), lab.Namespace("b")
	lab.Veth(a, "a0", []string{"192.0.2.0/31", "2001:db8::1/64"}, b, "b0", []string{"192.0.2.1/31", "2001:db8::2/64"}, MTU(9000))
	for _, address := range []string{"192.0.2.1", "2001:db8::2"} {
		exchange(t, a, b, address, []string{"hello"}, []string{"hello"})
	}
	exchange(t, a, a, "127.0.0.1", []string{"hello"}, []string{"hello"})
	if out := a.Exec(t, "ip", "-6", "address", "show", "dev", "a0", "scope", "link"); !strings.Contains(out, "fe80::") || strings.Contains(out, "tentative") {
		t.Errorf("link-local address is not usable: %s", out)
	}
	out := b.Exec(t, "ip", "link", "show", "b0")
	if !strings.Contains(out, "mtu 9000") {
		t.Errorf("MTU of b0 is not 9000: %s", out)
	}
	if out := b.Exec(t, "sh", "-c", "echo out; echo err >&2"); out != "out\nerr\n" {
		t.Errorf("Exec printed %q, want both outputs", out)
	}
}

func TestNothingAppearsOutsideTheLab(t *testing.T) {
	RequireRoot(t)
	before, err := netns.Links()
	if err != nil {
		t.Fatal(err)
	}
	lab := New(t)
	lab.Relay(lab.Namespace("a"), "a0", nil, lab.Namespace("b"), "b0", nil, forward)
	after, err := netns.Links()
	if err != nil {
		t.Fatal(err)
	}
	if len(before) != len(after) {
		t.Errorf("links were %+v, are %+v", before, after)
	}
}

// TestFailing is run by TestEverythingGoesWhenATestFails, in a process of its own.
func TestFailing(t *testing.T) {
	if os.Getenv("XTWAMP_TEST_FAIL") == "" {
		return // and not a skip: a full run may count those
	}
	lab := New(t)
	a, b := lab.Namespace("a"), lab.Namespace("b")
	lab.Relay(a, "a0", nil, b, "b0", nil, forward)
	// A child with a child of its own.
	child := a.Command("sh", "-c", "sleep 1000 & echo $! && wait")
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	pid, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("left %s %d %s %s\n", strings.TrimSpace(pid), child.Process.Pid, a.Path, b.Path)
	_ = a.Do(func() error {
		t.Fatal("on purpose, inside a namespace")
		return nil
	})
	fmt.Println("went on after t.Fatal")
}

func TestEverythingGoesWhenATestFails(t *testing.T) {
	RequireRoot(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestFailing$")
	cmd.Env = append(os.Environ(), "XTWAMP_TEST_FAIL=1")
	output, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(string(output), "on purpose") || strings.Contains(string(output), "went on") {
		t.Fatalf("child test: %v\n%s", err, output)
	}
	var grandchild, child int
	var a, b string
	_, left, _ := strings.Cut(string(output), "left ")
	if _, err := fmt.Sscan(left, &grandchild, &child, &a, &b); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	for _, path := range []string{a, b} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	for _, pid := range []int{grandchild, child} {
		if alive(t, pid) {
			t.Errorf("process %d is still alive", pid)
		}
	}
	names, err := os.ReadDir(namedDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range names {
		if strings.HasPrefix(entry.Name(), fmt.Sprintf("xtwt%d-", cmd.Process.Pid)) {
			t.Errorf("namespace %s is still there", entry.Name())
		}
	}
}

// alive tells a running process from a dead one, also if nobody has collected it yet.
func alive(t *testing.T, pid int) bool {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	_, state, _ := strings.Cut(string(status), ") ")
	return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}

func TestStartedCommandMayBeWaitedFor(t *testing.T) {
	lab := New(t)
	a := lab.Namespace("a")
	cmd := a.Start(t, "true")
	if err := cmd.Wait(); err != nil {
		t.Errorf("Wait: %v", err)
	}
}
