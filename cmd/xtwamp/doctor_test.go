// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/netns/netnstest"
)

// withoutBPF makes the test binary start itself anew under a seccomp filter that
// refuses bpf(2).
const withoutBPF = "XTWAMP_TEST_WITHOUT_BPF"

// execWithoutBPF returns only if it fails.
func execWithoutBPF() error {
	runtime.LockOSThread()
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the system call's number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_BPF, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0); err != nil {
		return err
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, withoutBPF+"=") })
	return syscall.Exec("/proc/self/exe", os.Args, env)
}

// runDoctor runs doctor in a namespace, and checks its exit code.
func runDoctor(t *testing.T, ns *netnstest.NS, file string, prepare func(*exec.Cmd)) []finding {
	t.Helper()
	cmd := program(t, "doctor", "--config", file, "--json")
	if prepare != nil {
		prepare(cmd)
	}
	out := startDoctor(t, ns, cmd)
	var doc doctorDocument
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	code := cmd.ProcessState.ExitCode()
	if want := resultOf(doc.Findings); doc.Result != want || results[code] != want {
		t.Errorf("result %s, exit %d; the findings say %s", doc.Result, code, want)
	}
	return doc.Findings
}

func startDoctor(t *testing.T, ns *netnstest.NS, cmd *exec.Cmd) string {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := ns.Do(cmd.Run); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if errs.Len() > 0 {
		t.Fatalf("doctor says on stderr: %s", &errs)
	}
	return out.String()
}

// variable is what differs between two runs of the same, and what stands for it.
var variable = []struct {
	is      *regexp.Regexp
	becomes string
}{
	{regexp.MustCompile(`/tmp/[^/ ]+/\d+`), "DIR"},
	{regexp.MustCompile(`by \S+ \(pid \d+\)`), "by OWNER (pid 42)"},
	{regexp.MustCompile(`pid \d+`), "pid 42"},
	{regexp.MustCompile(`[\d.]+ [KMGT]?i?B free`), "1 GiB free"},
	{regexp.MustCompile(`[\d.]+us`), "1.000us"},
	{regexp.MustCompile(`xtwt[\d]+-[\d]+-`), "lab-"},
}

func normal(text string) string {
	for _, v := range variable {
		text = v.is.ReplaceAllString(text, v.becomes)
	}
	return text
}

// checkDoctor compares findings with a golden file, as they are printed for
// people. The kernel and the clock are the host's.
func checkDoctor(t *testing.T, name string, all []finding) {
	t.Helper()
	for i := range all {
		f := &all[i]
		f.Subject, f.What, f.Remedy = normal(f.Subject), normal(f.What), normal(f.Remedy)
		switch f.Area {
		case "kernel":
			*f = finding{f.Area, f.Subject, ok, "6.18.0: tcx, clsact", ""}
		case "clock":
			*f = finding{f.Area, f.Subject, ok, "synchronised, error 1ms", ""}
		}
	}
	var b strings.Builder
	if err := printFindings(&b, all, false); err != nil {
		t.Fatal(err)
	}
	checkGolden(t, filepath.Join("doctor", name+".golden"), b.String())
}

// public lets everybody read what is in a directory of the test, and nobody
// write to it.
func public(t *testing.T, dir string) {
	t.Helper()
	for _, d := range []string{filepath.Dir(dir), dir} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
}

func TestDoctor(t *testing.T) {
	near, far := twoHosts(t)
	reflectingIn(t, far)

	t.Run("full rights", func(t *testing.T) {
		_, file := switchConfig(t, "")
		checkDoctor(t, "full-rights", runDoctor(t, near, file, nil))
	})

	t.Run("no rights", func(t *testing.T) {
		dir, file := switchConfig(t, "")
		public(t, dir)
		if err := os.Chmod(file, 0o644); err != nil {
			t.Fatal(err)
		}
		checkDoctor(t, "no-rights", runDoctor(t, near, file, func(cmd *exec.Cmd) {
			cmd.Path = "/proc/self/exe" // nobody may not go to a test binary in a directory of root's
			unprivileged(cmd)
		}))
	})

	t.Run("no right to a namespace", func(t *testing.T) {
		dir, file := switchConfig(t, "namespaces: {probe: "+near.Name+"}\n")
		public(t, dir)
		if err := os.Chmod(file, 0o644); err != nil {
			t.Fatal(err)
		}
		var s findings
		for _, f := range runDoctor(t, far, file, func(cmd *exec.Cmd) {
			cmd.Path = "/proc/self/exe"
			unprivileged(cmd, unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_PERFMON, unix.CAP_NET_BIND_SERVICE)
		}) {
			if !slices.Contains([]string{"config", "kernel", "bpf", "clock", "store"}, f.Area) {
				s.all = append(s.all, f)
			}
		}
		checkGist(t, s,
			"ok capabilities: CAP_NET_ADMIN, CAP_NET_BIND_SERVICE, CAP_BPF, CAP_PERFMON",
			"warning CAP_SYS_ADMIN: missing: no other network namespace can be entered",
			"failure probe: "+near.Name+" cannot be entered: ",
			"ok allow: 2 targets get answers",
			"ok firewall: ",
		)
	})

	t.Run("bpf forbidden", func(t *testing.T) {
		_, file := switchConfig(t, "")
		checkDoctor(t, "bpf-forbidden", runDoctor(t, near, file, func(cmd *exec.Cmd) {
			cmd.Env = append(cmd.Env, withoutBPF+"=1")
		}))
	})

	t.Run("port taken", func(t *testing.T) {
		_, file := switchConfig(t, "")
		reflectingIn(t, near, "--mode", "socket")
		checkDoctor(t, "port-taken", runDoctor(t, near, file, nil))
	})

	t.Run("beside a daemon", func(t *testing.T) {
		dir, file := switchConfig(t, "")
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		fixed := strings.Replace(string(text), "probe: {", "probe: {source_port: 50862, timestamps: socket, ", 1)
		if err := os.WriteFile(file, []byte(fixed), 0o600); err != nil {
			t.Fatal(err)
		}
		d := startDaemon(t, near, dir, file)
		awaitState(t, "ready", func() bool { code, _ := d.get("/-/ready"); return code == http.StatusOK })
		d.awaitSamples(20)
		checkDoctor(t, "beside-a-daemon", runDoctor(t, near, file, nil))
		_, scrape := d.get("/metrics")
		if lost := metric(scrape, "xtwamp_probes_lost_total"); lost != 0 {
			t.Errorf("the daemon has lost %v probes to it", lost)
		}
		if code := d.end(syscall.SIGTERM); code != 0 {
			t.Errorf("the daemon ended with %d", code)
		}
	})
}

// The far side knows nothing but the 48-byte echo.
func TestDoctorFindsAnotherProfile(t *testing.T) {
	near, far := twoHosts(t)
	for _, address := range []string{"10.1.0.2:862", "[2001:db8::2]:862"} {
		echoing(t, far, address)
	}
	_, file := switchConfig(t, "")
	checkDoctor(t, "wrong-profile", runDoctor(t, near, file, nil))
}

// echoing sends back what has 48 bytes, until the test ends.
func echoing(t *testing.T, ns *netnstest.NS, address string) {
	t.Helper()
	var conn net.PacketConn
	if err := ns.Do(func() (err error) {
		conn, err = net.ListenPacket("udp", address)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if n == 48 {
				_, _ = conn.WriteTo(buf[:n], from)
			}
		}
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
}

// What people see is what --json says.
func TestDoctorForPeople(t *testing.T) {
	near, far := twoHosts(t)
	reflectingIn(t, far)
	_, file := switchConfig(t, "")
	var b strings.Builder
	if err := printFindings(&b, runDoctor(t, near, file, nil), false); err != nil {
		t.Fatal(err)
	}
	out := startDoctor(t, near, program(t, "doctor", "--config", file))
	if diff := cmp.Diff(normal(b.String()), normal(out)); diff != "" {
		t.Errorf("printed (-json +people):\n%s", diff)
	}
	if strings.Contains(out, "\x1b") {
		t.Error("colours without a terminal")
	}
}

func TestDoctorPaints(t *testing.T) {
	var b strings.Builder
	all := []finding{{"bpf", "x", ok, "good", ""}, {"bpf", "y", failure, "bad", "mend it"}}
	if err := printFindings(&b, all, true); err != nil {
		t.Fatal(err)
	}
	want := "\x1b[32mok     \x1b[0m  bpf         x  good\n\x1b[31mfailure\x1b[0m  bpf         y  bad\n" +
		fmt.Sprintf("%21s", "") + "mend it\n\x1b[31munusable\x1b[0m: 1 ok, 0 warnings, 1 failure\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("painted (-want +got):\n%s", diff)
	}
}

// Each way in which a target can be out of reach.
func TestDoctorOnTargets(t *testing.T) {
	near, far := twoHosts(t)
	reflectingIn(t, far)
	near.Exec(t, "ip", "link", "add", "down0", "type", "veth", "peer", "name", "down1")
	near.Exec(t, "ip", "address", "add", "10.9.0.1/24", "dev", "down0")
	near.Exec(t, "ip", "link", "set", "dev", "down0", "up") // and its peer down
	dir := t.TempDir()
	file := filepath.Join(dir, "xtwamp.yml")
	text := fmt.Sprintf(`
control: {socket: %[1]s/control.sock}
web: {listen: []}
store: {path: %[1]s/samples.db, min_free_bytes: 1MiB}
reflector: {enabled: false}
targets:
- {name: good, address: 10.1.0.2, interface: eth1, attach: xdp}
- {name: no-route, address: 192.0.2.1}
- {name: no-interface, address: 10.1.0.2, interface: eth9}
- {name: no-neighbour, address: 10.1.0.99}
- {name: no-carrier, address: 10.9.0.2, interface: down0}
- {name: no-name, address: host.invalid}
- {name: too-big, address: 10.1.0.2, size: 3000, df: true}
- {name: no-listener, address: 10.1.0.2, port: 863}
- {name: itself, address: "2001:db8::1"}
`, dir)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var s findings
	for _, f := range runDoctor(t, near, file, nil) {
		if f.Area == "targets" || f.Area == "interfaces" {
			f.What = normal(f.What)
			s.all = append(s.all, f)
		}
	}
	checkGist(t, s,
		"warning eth9: not there",
		"ok lo: loopback, MTU 65536, tcx",
		"ok eth1: veth, MTU 1500, tcx",
		"warning down0: no carrier; veth, MTU 1500, tcx",
		"ok xdp: asked for, and not tried here",
		"ok good: answers: rtt 1.000us, tx tc_egress, rx tc_ingress, by eth1 from 10.1.0.1",
		"warning no-route: no_route: ",
		"warning no-interface: no_interface: ",
		"warning no-neighbour: no_neighbour: 10.1.0.99 on eth1 ",
		"warning no-carrier: no_carrier: ",
		"warning no-name: no_address: ",
		"warning too-big: too_big: ",
		"warning no-listener: refused: 10.1.0.2 says that nobody listens on UDP port 863",
		"warning itself: refused: 2001:db8::1 says that nobody listens on UDP port 862",
	)
}

func TestDoctorOnManyTargets(t *testing.T) {
	near, far := twoHosts(t)
	reflectingIn(t, far)
	_, file := switchConfig(t, "")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	more := "targets:\n"
	for i := range targetsAtMost {
		more += fmt.Sprintf("- {name: t%d, address: 10.1.0.2}\n", i)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), "targets:\n", more, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	all := runDoctor(t, near, file, nil)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
	answered := 0
	for _, f := range all {
		if f.Area == "targets" && strings.HasPrefix(f.What, "answers: ") {
			answered++
		}
	}
	if last := all[len(all)-1]; answered != targetsAtMost || last.Subject != "targets" || last.What != "2 more are not probed here" {
		t.Errorf("%d answer, %+v", answered, last)
	}
}

// Without a configuration the host is examined all the same.
func TestDoctorWithoutConfiguration(t *testing.T) {
	near, _ := twoHosts(t)
	var s findings
	for _, f := range runDoctor(t, near, "/no/such/xtwamp.yml", nil) {
		if f.Area == "config" || f.Area == "interfaces" || f.Area == "targets" {
			s.all = append(s.all, f)
		}
	}
	checkGist(t, s, "warning /no/such/xtwamp.yml: missing", "ok daemon: ", "ok eth1: veth, MTU 1500, tcx")
}
