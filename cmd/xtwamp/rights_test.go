// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/bpf"
	"github.com/xtwamp/xtwamp/netns/netnstest"
)

// asRightless makes the test binary drop its rights and print what is left; its
// value is none or namespaces.
const asRightless = "XTWAMP_TEST_RIGHTLESS"

// afterwards is what a process can do that has dropped its rights.
type afterwards struct {
	Threads     []string // what is different about the threads, one line each
	Load, Setns string   // errors
}

// rightless prints an afterwards. It drops rights while threads of all kinds are
// there: some locked, some that start meanwhile.
func rightless(keepSysAdmin bool) int {
	const threads = 8
	stop, stopped := make(chan struct{}), sync.WaitGroup{}
	ready := make(chan struct{})
	for range threads {
		stopped.Go(func() {
			runtime.LockOSThread() // and the thread ends with the goroutine
			ready <- struct{}{}
			<-stop
		})
	}
	stopped.Go(func() { // threads that come and go
		for {
			select {
			case <-stop:
				return
			default:
				done := make(chan struct{})
				go func() {
					runtime.LockOSThread()
					close(done)
				}()
				<-done
			}
		}
	})
	for range threads {
		<-ready
	}
	log, err := newLogger(systemEnv(), logConfig{Level: "info", Format: "json"})
	if err != nil {
		return 1
	}
	if err := dropRights(log, keepSysAdmin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	left := afterwards{Threads: threadRights("self")}
	if d, err := bpf.Load(bpf.Config{Slots: 16, Paths: 1, RingBytes: 4096}); err != nil {
		left.Load = err.Error()
	} else {
		d.Close()
	}
	runtime.LockOSThread()
	own, err := unix.Open("/proc/self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Setns(own, unix.CLONE_NEWNET)
	}
	if err != nil {
		left.Setns = err.Error()
	}
	close(stop)
	stopped.Wait()
	if err := json.NewEncoder(os.Stdout).Encode(left); err != nil {
		return 1
	}
	return 0
}

// threadRights lists the different sets of capabilities and no_new_privs that
// the threads of a process have.
func threadRights(pid string) (different []string) {
	files, _ := filepath.Glob("/proc/" + pid + "/task/*/status")
	for _, file := range files {
		status, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		var sets []string
		for line := range strings.Lines(string(status)) {
			if strings.HasPrefix(line, "Cap") || strings.HasPrefix(line, "NoNewPrivs") {
				sets = append(sets, strings.Join(strings.Fields(line), " "))
			}
		}
		different = append(different, strings.Join(sets, " "))
	}
	slices.Sort(different)
	return slices.Compact(different)
}

// onlyRights is the line of threadRights for a set that is permitted, effective
// and bounding, and nothing else.
func onlyRights(capabilities ...int) string {
	var set uint64
	for _, c := range capabilities {
		set |= 1 << c
	}
	return fmt.Sprintf("CapInh: %016x CapPrm: %016x CapEff: %016x CapBnd: %016x CapAmb: %016x NoNewPrivs: 1", 0, set, set, set, 0)
}

// lifelong is what stays on this kernel.
var lifelong = []int{unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE, unix.CAP_BPF, unix.CAP_PERFMON}

func TestDroppedRightsAreGoneFromAllThreads(t *testing.T) {
	netnstest.RequireRoot(t)
	// Without CAP_SETPCAP the bounding set stays what it was.
	bounding := regexp.MustCompile("CapBnd: [0-9a-f]+")
	unbounded := func(line string) string {
		return bounding.ReplaceAllLiteralString(line, bounding.FindString(threadRights("self")[0]))
	}
	const refused = "operation not permitted"
	for _, tt := range []struct {
		name    string
		nobody  bool
		ambient []uintptr
		keep    string
		want    afterwards
		missing []string
	}{
		{"root", false, nil, "none", afterwards{[]string{onlyRights(lifelong...)}, "", refused}, nil},
		{"root with namespaces", false, nil, "namespaces", afterwards{[]string{onlyRights(append(lifelong, unix.CAP_SYS_ADMIN)...)}, "", ""}, nil},
		{
			"nobody with capabilities", true,
			[]uintptr{unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE, unix.CAP_CHOWN}, "none",
			afterwards{[]string{unbounded(onlyRights(unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE))}, "", refused},
			[]string{"cap_perfmon"},
		},
		{
			"CAP_SYS_ADMIN instead of CAP_BPF", true,
			[]uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_SETPCAP}, "none",
			afterwards{[]string{onlyRights(unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN)}, "", ""},
			[]string{"cap_net_bind_service"},
		},
		{
			"nobody", true, nil, "namespaces",
			afterwards{[]string{unbounded(onlyRights())}, "load bpf: not permitted: CAP_BPF and CAP_NET_ADMIN are missing", refused},
			[]string{"cap_net_admin", "cap_net_bind_service", "cap_bpf", "cap_perfmon", "cap_sys_admin"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), asRightless+"="+tt.keep)
			if tt.nobody {
				unprivileged(cmd, tt.ambient...)
			}
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v: %s", err, &errs)
			}
			var got afterwards
			if err := json.Unmarshal(out.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("afterwards (-want +got):\n%s", diff)
			}
			var missing []string
			for lines := json.NewDecoder(&errs); ; {
				var line struct{ Msg, Capability, Without string }
				if err := lines.Decode(&line); err == io.EOF {
					break
				} else if err != nil || line.Msg != "a capability is missing" || line.Without == "" {
					t.Fatalf("log line %+v, %v", line, err)
				}
				missing = append(missing, line.Capability)
			}
			if diff := cmp.Diff(tt.missing, missing); diff != "" {
				t.Errorf("missing capabilities that the log names (-want +got):\n%s", diff)
			}
		})
	}
}

// An interface that comes later needs no more rights.
func TestRunAndReflectGoOnWithTheRightsOfLife(t *testing.T) {
	lab := netnstest.New(t)
	near, far := lab.Namespace("near"), lab.Namespace("far")
	join := func() {
		lab.Veth(near, "eth1", []string{"10.1.0.1/24", "2001:db8::1/64"}, far, "eth1", []string{"10.1.0.2/24", "2001:db8::2/64"})
	}
	join()
	reflector := program(t, "reflect", "--allow", "10.1.0.0/24", "--allow", "2001:db8::/64")
	if err := far.Do(reflector.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		reflector.Process.Kill()
		reflector.Wait()
	})
	dir, file := switchConfig(t, "")
	d := startDaemon(t, near, dir, file)
	want := []string{onlyRights(lifelong...)}
	for _, p := range []*os.Process{reflector.Process, d.Process} {
		awaitState(t, "rights that are dropped", func() bool { return cmp.Equal(threadRights(strconv.Itoa(p.Pid)), want) })
	}
	near.Exec(t, "ip", "link", "del", "eth1")
	join()
	_, scrape := d.get("/metrics")
	before := metric(scrape, "xtwamp_timestamps_total", `source="tc_ingress"`)
	awaitState(t, "kernel stamps on the new interface", func() bool {
		_, scrape := d.get("/metrics")
		return metric(scrape, "xtwamp_timestamps_total", `source="tc_ingress"`) > before+20
	})
	if code := d.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit %d after SIGTERM, want 0", code)
	}
}
