// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xtwamp/xtwamp/netns/netnstest"
)

// switchConfig writes the configuration of a daemon that measures 10.1.0.2 by
// IPv4 and IPv6, each 20 ms.
func switchConfig(t *testing.T, extra string) (dir, file string) {
	t.Helper()
	dir = t.TempDir()
	file = filepath.Join(dir, "xtwamp.yml")
	text := fmt.Sprintf(`
device: near
control: {socket: %[1]s/control.sock}
web: {listen: []}
store: {path: %[1]s/samples.db, commit_interval: 100ms, min_free_bytes: 1MiB}
probe: {interval: 20ms, timeout: 300ms, late_window: 300ms}
targets:
- {name: four, address: 10.1.0.2, interface: eth1, labels: {circuit: "42"}}
- {name: six, address: "2001:db8::2"}
submit: {file: {enabled: true, directory: %[1]s/out, rotate_bytes: 64KiB, keep: 1000}}
%[2]s`, dir, extra)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, file
}

// daemonProcess is a running xtwamp of its own.
type daemonProcess struct {
	*exec.Cmd
	t    *testing.T
	dir  string
	errs *output
}

func startDaemon(t *testing.T, ns *netnstest.NS, dir, file string) *daemonProcess {
	t.Helper()
	d := &daemonProcess{Cmd: program(t, "run", "--config", file), t: t, dir: dir, errs: new(output)}
	d.Stderr = d.errs
	if err := ns.Do(d.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if d.ProcessState == nil {
			d.Process.Kill()
			d.Wait()
		}
		if t.Failed() {
			t.Logf("log of the daemon:\n%s", d.errs)
		}
	})
	return d
}

// end sends a signal and returns the exit code.
func (d *daemonProcess) end(s syscall.Signal) int {
	d.t.Helper()
	if err := d.Process.Signal(s); err != nil {
		d.t.Fatal(err)
	}
	d.Wait()
	return d.ProcessState.ExitCode()
}

// get asks the daemon over its control socket.
func (d *daemonProcess) get(path string) (int, string) { return getFrom(d.t, d.dir, path) }

func getFrom(t *testing.T, dir, path string) (int, string) {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, "control.sock"))
	}}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get("http://xtwamp" + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, b.String()
}

// metric sums the series of a metric that have all of the label parts.
func metric(scrape, name string, labels ...string) (sum float64) {
	for line := range strings.Lines(scrape) {
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") {
			continue
		}
		if slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(line, l) }) {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " ")+1:]), 64)
		if err == nil {
			sum += v
		}
	}
	return sum
}

// awaitSamples waits until the daemon has stored n more samples.
func (d *daemonProcess) awaitSamples(n float64) {
	d.t.Helper()
	stored := func() float64 {
		_, scrape := d.get("/metrics")
		return metric(scrape, "xtwamp_store_samples_recorded_total")
	}
	before := stored()
	awaitState(d.t, fmt.Sprintf("%v more samples stored", n), func() bool { return stored() >= before+n })
}

// readNDJSON parses lines of samples.
func readNDJSON(t *testing.T, text string) (out []map[string]any) {
	t.Helper()
	for line := range strings.Lines(text) {
		var s map[string]any
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		out = append(out, s)
	}
	return out
}

// delivered is what the file sink wrote, in order.
func delivered(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "out", "*.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(files)
	var all strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	return all.String()
}

// exactlyOnce checks that the numbers of each path are 0, 1, 2 ... and returns
// how many there are.
func exactlyOnce(t *testing.T, what string, samples []map[string]any) map[string]int {
	t.Helper()
	next := make(map[string]int)
	for i, s := range samples {
		path := s["path"].(string)
		if s["seq"] != float64(next[path]) {
			t.Fatalf("%s: line %d has number %v of %s, want %d", what, i, s["seq"], path, next[path])
		}
		next[path]++
	}
	return next
}

func TestRunStoresAndDeliversEachSampleOnce(t *testing.T) {
	near, far := twoHosts(t)
	reflectingIn(t, far)
	dir, file := switchConfig(t, "")
	for range 3 { // each start goes on where the last stop was
		d := startDaemon(t, near, dir, file)
		awaitState(t, "ready", func() bool { code, _ := d.get("/-/ready"); return code == http.StatusOK })
		d.awaitSamples(100)
		if code, body := d.get("/-/healthy"); code != http.StatusOK {
			t.Errorf("/-/healthy = %d %s", code, body)
		}
		_, scrape := d.get("/metrics")
		if n := metric(scrape, "go_goroutines"); n > 30 {
			t.Errorf("%v goroutines", n)
		}
		for _, path := range []string{"four", "six"} {
			label := `path="` + path + `"`
			sent, received, lost := metric(scrape, "xtwamp_probes_sent_total", label), metric(scrape, "xtwamp_probes_received_total", label), metric(scrape, "xtwamp_probes_lost_total", label)
			if sent == 0 || received < sent-2 || lost != 0 {
				t.Errorf("%s: sent %v, received %v, lost %v", path, sent, received, lost)
			}
			// The two are not read at the same instant.
			if n := metric(scrape, "xtwamp_round_trip_time_seconds_count", label); n < received-2 {
				t.Errorf("%s: %v round trips in the histogram of %v replies", path, n, received)
			}
		}
		if code, out, errs := invoke(t, "samples", "--store", filepath.Join(dir, "samples.db")); code != 2 || !strings.Contains(errs, "a running daemon holds it") {
			t.Errorf("samples --store beside the daemon: exit %d, stdout %q, stderr %q", code, out, errs)
		}
		if code := d.end(syscall.SIGTERM); code != 0 {
			t.Errorf("exit %d after SIGTERM, want 0", code)
		}
		if out := near.Exec(t, "tc", "filter", "show", "dev", "eth1", "ingress"); out != "" {
			t.Errorf("left attached:\n%s", out)
		}
	}
	code, stored, errs := invoke(t, "samples", "--store", filepath.Join(dir, "samples.db"), "--json")
	if code != 0 {
		t.Fatalf("samples --store: exit %d, %s", code, errs)
	}
	inStore := exactlyOnce(t, "store", readNDJSON(t, stored))
	inFiles := exactlyOnce(t, "files", readNDJSON(t, delivered(t, dir)))
	if diff := cmp.Diff(inStore, inFiles); diff != "" || inStore["four"] < 100 || inStore["six"] < 100 {
		t.Errorf("samples by path (-stored +delivered):\n%s", diff)
	}
	for _, s := range readNDJSON(t, delivered(t, dir)) {
		if s["device"] != "near" || s["outcome"] != "on_time" || s["tx"] != "tc_egress" || s["rx"] != "tc_ingress" || s["time"] == nil {
			t.Errorf("sample %v", s)
		}
	}
}

func TestKilledRunLeavesNothingThatDisturbsTheNext(t *testing.T) {
	// Case 55, on the hook whose filters outlive their process.
	near, far := twoHosts(t)
	reflectingIn(t, far)
	for _, attach := range []string{"clsact", "tcx"} {
		t.Run(attach, func(t *testing.T) {
			dir, file := switchConfig(t, "")
			attachBy(t, file, attach)
			for range 3 {
				d := startDaemon(t, near, dir, file)
				awaitState(t, "ready", func() bool { code, _ := d.get("/-/ready"); return code == http.StatusOK })
				d.awaitSamples(20)
				if n := strings.Count(near.Exec(t, "tc", "filter", "show", "dev", "eth1", "ingress"), "xtwamp-"); attach == "clsact" && n != 1 {
					t.Errorf("%d filters of ours on ingress, want 1", n)
				}
				_, scrape := d.get("/metrics")
				if n := metric(scrape, "xtwamp_probes_duplicates_total"); n != 0 {
					t.Errorf("%v duplicates: two programs see each packet", n)
				}
				d.end(syscall.SIGKILL)
			}
			d := startDaemon(t, near, dir, file)
			awaitState(t, "ready", func() bool { code, _ := d.get("/-/ready"); return code == http.StatusOK })
			d.awaitSamples(20)
			if code := d.end(syscall.SIGTERM); code != 0 {
				t.Errorf("exit %d after SIGTERM, want 0", code)
			}
			exactlyOnce(t, "files", readNDJSON(t, delivered(t, dir)))
			if out := near.Exec(t, "tc", "filter", "show", "dev", "eth1", "ingress"); strings.Contains(out, "xtwamp-") {
				t.Errorf("filters left:\n%s", out)
			}
		})
	}
}

func TestPingBesideRun(t *testing.T) {
	near, far := twoHosts(t)
	reflectingIn(t, far)
	// The kernel stops an interface for a moment to give it its first clsact
	// qdisc, and drops what is sent meanwhile.
	near.Exec(t, "tc", "qdisc", "add", "dev", "eth1", "clsact")
	for _, hook := range []string{"tcx", "clsact"} {
		dir, file := switchConfig(t, "")
		attachBy(t, file, hook)
		d := startDaemon(t, near, dir, file)
		awaitState(t, "ready", func() bool { code, _ := d.get("/-/ready"); return code == http.StatusOK })
		d.awaitSamples(10)
		for _, attach := range []string{"tcx", "clsact"} {
			code, out, errs := invoke(t, "ping", "--netns", near.Name, "--attach", attach, "--json", "-c", "100", "-i", "10ms", "10.1.0.2")
			p := parsePing(t, out)
			if code != 0 || p.summary.Received != 100 || p.summary.Timestamps.RX["tc_ingress"] != 100 {
				t.Errorf("ping by %s beside run by %s: exit %d, %s, %+v", attach, hook, code, errs, p.summary)
			}
		}
		d.awaitSamples(10)
		_, scrape := d.get("/metrics")
		if metric(scrape, "xtwamp_attach_info", `hook="`+hook+`"`, `mode="bpf"`) != 1 {
			t.Errorf("the daemon is not attached by %s", hook)
		}
		lost, user := metric(scrape, "xtwamp_probes_lost_total"), metric(scrape, "xtwamp_timestamps_total", `source="user"`)
		if lost != 0 || user != 0 {
			t.Errorf("the daemon by %s lost %v and stamped %v by itself", hook, lost, user)
		}
		if code := d.end(syscall.SIGTERM); code != 0 {
			t.Errorf("exit %d after SIGTERM, want 0", code)
		}
	}
}

// attachBy edits a configuration to attach by one hook only.
func attachBy(t *testing.T, file, hook string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte("probe: {"), []byte("probe: {attach: "+hook+", "), 1)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRunWithATakenReflectorPort(t *testing.T) {
	near, far := twoHosts(t)
	reflectingIn(t, far)
	reflectingIn(t, near)
	dir, file := switchConfig(t, "")
	d := startDaemon(t, near, dir, file)
	awaitState(t, "the store is open", func() bool { code, _ := d.get("/api/v1/samples"); return code == http.StatusOK })
	d.awaitSamples(20)
	code, body := d.get("/-/ready")
	if code != http.StatusServiceUnavailable || body != "the reflector is off: its port is not bound\n" {
		t.Errorf("/-/ready = %d %q", code, body)
	}
	if code, _ := d.get("/-/healthy"); code != http.StatusOK {
		t.Errorf("/-/healthy = %d: measuring works", code)
	}
	if n := strings.Count(d.errs.String(), "the reflector is off"); n != 1 || !strings.Contains(d.errs.String(), "the port is taken by ") {
		t.Errorf("%d lines about the port, want 1 that names its owner:\n%s", n, d.errs)
	}
}

// A DoubleZero reply looks like its probe, so that one that comes from where a target is is taken for what it is.
func TestRunDoesNotAnswerItsTargetsReplies(t *testing.T) {
	near, far := twoHosts(t)
	dir, file := switchConfig(t, `reflector: {listen: [":863"]}`)
	listen := func(address string) (c net.PacketConn) {
		err := far.Do(func() (err error) {
			c, err = net.ListenPacket("udp", address)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	target, other := listen("10.1.0.2:862"), listen("10.1.0.2:0")
	d := startDaemon(t, near, dir, file)
	echo := append([]byte("sequence+T1."), make([]byte, 36)...)
	results := func(result string) float64 {
		_, scrape := d.get("/metrics")
		return metric(scrape, "xtwamp_reflector_packets_total", `result="`+result+`"`)
	}
	awaitState(t, "a reply is known, a probe answered", func() bool {
		for _, c := range []net.PacketConn{target, other} {
			if _, err := c.WriteTo(echo, &net.UDPAddr{IP: net.IPv4(10, 1, 0, 1), Port: 863}); err != nil {
				t.Fatal(err)
			}
		}
		return results("is_reply") > 0 && results("answered") > 0
	})
	answer := make([]byte, 100)
	other.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, _, err := other.ReadFrom(answer); err != nil || !bytes.Equal(answer[:n], echo) {
		t.Errorf("a probe had the answer %x, %v", answer[:n], err)
	}
	// What has come to the target, up to a last packet.
	if _, err := other.WriteTo([]byte("last"), target.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	target.SetReadDeadline(time.Now().Add(10 * time.Second))
	for got := ""; got != "last"; {
		n, _, err := target.ReadFrom(answer)
		if err != nil {
			t.Fatal(err)
		}
		if got = string(answer[:n]); got == string(echo) {
			t.Fatal("a reply was answered")
		}
	}
	if code := d.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit %d after SIGTERM, want 0", code)
	}
}

func TestControlSocketReplacesNothingElse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(path, []byte("data"), 0o644); err != nil {
		t.Fatal(err)
	}
	d := &daemon{}
	if err := d.serveControl(t.Context(), path); err == nil || !strings.Contains(err.Error(), "is there and not a socket") {
		t.Errorf("serveControl on a file = %v, want an error", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "data" {
		t.Errorf("the file is now %q, %v", b, err)
	}
}

func TestMetricsAfterAnInterfaceIsMadeAnew(t *testing.T) {
	lab := netnstest.New(t)
	near, far := lab.Namespace("near"), lab.Namespace("far")
	join := func() {
		lab.Veth(near, "eth1", []string{"10.1.0.1/24", "2001:db8::1/64"}, far, "eth1", []string{"10.1.0.2/24", "2001:db8::2/64"})
	}
	join()
	reflectingIn(t, far)
	dir, file := switchConfig(t, "")
	d := startDaemon(t, near, dir, file)
	stamped := func() float64 {
		_, scrape := d.get("/metrics")
		return metric(scrape, "xtwamp_timestamps_total", `interface="eth1"`, `source="tc_ingress"`)
	}
	files := func() int {
		names, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	awaitState(t, "kernel stamps", func() bool { return stamped() > 10 })
	before := files()
	for range 3 {
		near.Exec(t, "ip", "link", "del", "eth1")
		join()
		n := stamped()
		awaitState(t, "kernel stamps on the new interface", func() bool { return stamped() > n+20 })
		if code, body := d.get("/metrics"); code != http.StatusOK {
			t.Fatalf("/metrics = %d %s", code, body)
		}
	}
	awaitState(t, "no file left open", func() bool { return files() <= before+2 })
}

func TestSamplesFromTheDaemon(t *testing.T) {
	near, far := twoHosts(t)
	reflectingIn(t, far)
	dir, file := switchConfig(t, "")
	d := startDaemon(t, near, dir, file)
	awaitState(t, "ready", func() bool { code, _ := d.get("/-/ready"); return code == http.StatusOK })
	d.awaitSamples(50)
	socket := filepath.Join(dir, "control.sock")
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("control socket: %v, %v; want mode 0600", info, err)
	}
	code, out, errs := invoke(t, "samples", "--socket", socket, "--path", "six", "--after", "4", "--limit", "10", "--since", "1h", "--json")
	got := readNDJSON(t, out)
	if code != 0 || len(got) != 10 {
		t.Fatalf("exit %d, %d samples, want 10; %s", code, len(got), errs)
	}
	for i, s := range got {
		if s["path"] != "six" || s["seq"] != float64(5+i) {
			t.Errorf("sample %d = %v", i, s)
		}
	}
	code, out, _ = invoke(t, "samples", "--socket", socket, "--limit", "3")
	scan := bufio.NewScanner(strings.NewReader(out))
	scan.Scan()
	if header := strings.Fields(scan.Text()); code != 0 || len(header) != 9 || strings.Count(out, "\n") != 4 {
		t.Errorf("exit %d, want a header and 3 lines:\n%s", code, out)
	}
	if code, _, errs := invoke(t, "samples", "--socket", socket, "--path", "seven"); code != 2 || !strings.Contains(errs, `no such path: "seven"`) {
		t.Errorf("unknown path: exit %d, stderr %q", code, errs)
	}
	if code, _ := d.get("/api/v1/samples?limit=x"); code != http.StatusBadRequest {
		t.Errorf("limit=x: status %d, want 400", code)
	}
}
