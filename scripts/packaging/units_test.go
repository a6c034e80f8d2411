// SPDX-License-Identifier: Apache-2.0

// Package packaging tests what is installed beside the program: the systemd unit, and the packages.
package packaging

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/netns/netnstest"
)

// variants are the two ways in which the unit is used, with the highest exposure
// that systemd-analyze may find, in tenths.
var variants = []struct {
	name    string
	dropIn  string
	highest int
	uid     string
}{
	{"root", "", 30, "0"},
	{"single namespace", "single-namespace.conf", 23, "999"},
}

func read(t testing.TB, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestExposureOfTheUnit(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			dir := t.TempDir()
			put := func(name, text string) {
				t.Helper()
				file := filepath.Join(dir, "etc/systemd/system", name)
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			put("xtwamp.service", read(t, "xtwamp.service"))
			if v.dropIn != "" {
				put("xtwamp.service.d/variant.conf", read(t, v.dropIn))
			}
			out, err := exec.Command("systemd-analyze", "security", "--root="+dir, "--offline=true", "--no-pager",
				"--threshold="+strconv.Itoa(v.highest), "xtwamp.service").CombinedOutput()
			if err != nil || !strings.Contains(string(out), "Overall exposure level") {
				t.Errorf("more exposed than %d tenths: %v\n%s", v.highest, err, out)
			}
		})
	}
}

// build builds the program.
func build(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "xtwamp")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", file, "../../cmd/xtwamp")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return file
}

func awaitState(t testing.TB, what string, ready func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(30 * time.Second)
	for !ready() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("not within 30s: %s", what)
		}
	}
}

// get asks the daemon of a machine over its control socket.
func get(m *machine, path string) (int, string) {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", m.file("/run/xtwamp/xtwamp.sock"))
	}}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Get("http://xtwamp" + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(body)
}

// status is some fields of a process's /proc/PID/status.
func status(t testing.TB, pid string, fields ...string) map[string]string {
	t.Helper()
	got := make(map[string]string)
	for line := range strings.Lines(read(t, "/proc/"+pid+"/status")) {
		name, value, _ := strings.Cut(line, ":")
		for _, f := range fields {
			if name == f {
				got[name], _, _ = strings.Cut(strings.TrimSpace(value), "\t")
			}
		}
	}
	return got
}

// The unit under a systemd of its own: what it forbids is forbidden, and the
// program does all of its work.
func TestWorksUnderTheUnit(t *testing.T) {
	netnstest.RequireRoot(t)
	program := build(t)
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			lab := netnstest.New(t)
			near, far := lab.Namespace("near"), lab.Namespace("far")
			lab.Veth(near, "eth1", []string{"10.1.0.1/24"}, far, "eth1", []string{"10.1.0.2/24"})
			far.Start(t, program, "reflect", "--allow", "10.1.0.1")

			r := newRoot(t)
			r.write("/usr/bin/xtwamp", read(t, program))
			if err := os.Chmod(r.path("/usr/bin/xtwamp"), 0o755); err != nil {
				t.Fatal(err)
			}
			r.write("/etc/passwd", "root:x:0:0::/:/bin/sh\nxtwamp:x:999:999::/:/bin/false\nnobody:x:65534:65534::/:/bin/false\n")
			r.write("/etc/group", "root:x:0:\nxtwamp:x:999:\nnogroup:x:65534:\n")
			r.write("/etc/xtwamp/xtwamp.yml", `
device: near
web: {listen: []}
store: {commit_interval: 100ms, min_free_bytes: 1MiB}
probe: {interval: 20ms, timeout: 300ms, late_window: 300ms}
targets: [{name: far, address: 10.1.0.2, interface: eth1}]
submit: {file: {enabled: true}}
`)
			r.write(unitPath+"/xtwamp.service", read(t, "xtwamp.service"))
			r.write(unitPath+"/xtwamp.service.d/test.conf", "[Service]\nStandardError=file:/xtwamp.log\n")
			r.write(unitPath+"/reflect.service", read(t, "xtwamp.service"))
			if v.dropIn != "" {
				r.write(unitPath+"/xtwamp.service.d/variant.conf", read(t, v.dropIn))
				r.write(unitPath+"/reflect.service.d/variant.conf", read(t, v.dropIn))
			}
			m := r.boot(near, "xtwamp.service")
			t.Cleanup(func() {
				if t.Failed() {
					state, _ := m.systemctl("status", "--no-pager", "--full", "xtwamp.service", "reflect.service")
					log, _ := os.ReadFile(m.file("/xtwamp.log"))
					t.Logf("%s\n%s", state, log)
				}
			})

			// The store, its sink, and all of the kernel's part.
			awaitState(t, "samples stamped by the kernel", func() bool {
				files, _ := filepath.Glob(m.file("/var/lib/xtwamp/out/*"))
				stamped := 0
				for _, f := range files {
					text, _ := os.ReadFile(f)
					for line := range strings.Lines(string(text)) {
						var s struct{ Outcome, TX, RX string }
						if json.Unmarshal([]byte(line), &s) == nil && s.Outcome == "on_time" && s.TX == "tc_egress" && s.RX == "tc_ingress" {
							stamped++
						}
					}
				}
				return stamped > 20
			})
			awaitState(t, "the reflector's port", func() bool { code, _ := get(m, "/-/ready"); return code == http.StatusOK })
			_, scrape := get(m, "/metrics")
			if !strings.Contains(scrape, `xtwamp_attach_info{hook="tcx",interface="eth1",mode="reflector"`) {
				t.Errorf("the kernel does not reflect:\n%s", scrape)
			}
			var clock unix.Timex
			if _, err := unix.Adjtimex(&clock); err != nil {
				t.Fatal(err)
			}
			if log := read(t, m.file("/xtwamp.log")); strings.Contains(log, `"level":"error"`) {
				t.Error("the log has errors")
			}
			if clock.Esterror != 0 && strings.Contains(scrape, "\nxtwamp_clock_error_seconds 0\n") {
				t.Error("the clock's state cannot be read")
			}
			for property, want := range map[string]string{"ActiveState": "active", "NRestarts": "0", "WatchdogUSec": "1min"} {
				if got := m.property("xtwamp.service", property); got != want {
					t.Errorf("%s = %s, want %s", property, got, want)
				}
			}

			// The rights of life, also of root's variant, as no role has a namespace.
			rights := uint64(1<<unix.CAP_BPF | 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_PERFMON)
			pid := m.mainPID("xtwamp.service")
			want := map[string]string{"Uid": v.uid, "CapPrm": fmt.Sprintf("%016x", rights), "CapAmb": fmt.Sprintf("%016x", 0), "NoNewPrivs": "1", "Seccomp": "2"}
			awaitState(t, "rights that are dropped", func() bool {
				return status(t, pid, "CapPrm")["CapPrm"] == want["CapPrm"]
			})
			if diff := cmp.Diff(want, status(t, pid, "Uid", "CapPrm", "CapAmb", "NoNewPrivs", "Seccomp")); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}

			// A namespace that comes later is seen, and can be entered by root's variant only.
			late := lab.Namespace("late")
			var inside, outside unix.Stat_t
			if err := unix.Stat(late.Path, &outside); err != nil {
				t.Fatal(err)
			}
			seen := filepath.Join("/proc", pid, "root", "run/netns", late.Name)
			if err := unix.Stat(seen, &inside); err != nil || inside.Ino != outside.Ino || inside.Dev != outside.Dev {
				t.Errorf("the service does not see a later namespace: %v", err)
			}
			override := "[Service]\nType=exec\nRestart=no\nWatchdogSec=0\nStandardError=file:/reflect.log\nExecStart=\n" +
				"ExecStart=/usr/bin/xtwamp reflect --netns " + late.Name + " --allow 127.0.0.1 --listen 127.0.0.1:862 --interface lo\n"
			dropIn := m.file(unitPath + "/reflect.service.d/override.conf")
			if err := os.MkdirAll(filepath.Dir(dropIn), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(dropIn, []byte(override), 0o644); err != nil {
				t.Fatal(err)
			}
			for _, args := range [][]string{{"daemon-reload"}, {"start", "reflect.service"}} {
				if out, err := m.systemctl(args...); err != nil {
					t.Fatalf("systemctl %v: %v\n%s", args, err, out)
				}
			}
			if v.uid == "0" {
				awaitState(t, "a reflector in the later namespace", func() bool {
					return late.Command(program, "ping", "-c", "1", "--timeout", "200ms", "127.0.0.1").Run() == nil
				})
			} else {
				awaitState(t, "a reflector that is refused", func() bool { return m.property("reflect.service", "ActiveState") == "failed" })
				if log := read(t, m.file("/reflect.log")); !strings.Contains(log, "operation not permitted") {
					t.Errorf("log %q, want a namespace that cannot be entered", log)
				}
			}

			if out, err := m.systemctl("stop", "xtwamp.service"); err != nil {
				t.Errorf("systemctl stop: %v\n%s", err, out)
			}
			if got := m.property("xtwamp.service", "Result"); got != "success" {
				t.Errorf("Result = %s after a stop, want success", got)
			}
		})
	}
}
