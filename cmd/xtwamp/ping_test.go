// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/netns/netnstest"
	"github.com/xtwamp/xtwamp/probe"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
)

// twoHosts is two namespaces joined by one link.
func twoHosts(t *testing.T) (near, far *netnstest.NS) {
	t.Helper()
	lab := netnstest.New(t)
	near, far = lab.Namespace("near"), lab.Namespace("far")
	lab.Veth(near, "eth1", []string{"10.1.0.1/24", "2001:db8::1/64"}, far, "eth1", []string{"10.1.0.2/24", "2001:db8::2/64"})
	return near, far
}

// background runs one command line until the test ends or stop is called,
// which returns its exit code.
func background(t *testing.T, args ...string) (out, errs *output, stop func() int) {
	t.Helper()
	out, errs = new(output), new(output)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan int, 1)
	go func() {
		done <- execute(ctx, env{stdout: out, stderr: errs, hostname: func() (string, error) { return "host", nil }}, args)
	}()
	code, stopped := 0, false
	stop = func() int {
		cancel()
		if !stopped {
			code, stopped = <-done, true
		}
		return code
	}
	t.Cleanup(func() { stop() })
	return out, errs, stop
}

// await waits until ready says so.
func awaitState(t *testing.T, what string, ready func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
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

func reflectingIn(t *testing.T, ns *netnstest.NS, args ...string) (errs *output, stop func() int) {
	t.Helper()
	_, errs, stop = background(t, append([]string{"reflect", "--netns", ns.Name, "--allow", "any"}, args...)...)
	awaitState(t, "reflecting", func() bool { return strings.Contains(errs.String(), "reflecting") })
	return errs, stop
}

// pinged is what ping --json printed.
type pinged struct {
	samples []map[string]any
	summary summaryDocument
}

func parsePing(t *testing.T, out string) (p pinged) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	for _, line := range lines[:len(lines)-1] {
		var s map[string]any
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		if s["type"] != "sample" {
			t.Errorf("type of %q is not sample", line)
		}
		p.samples = append(p.samples, s)
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &p.summary); err != nil {
		t.Fatalf("%v in %q", err, lines[len(lines)-1])
	}
	return p
}

// Stamped in the driver here, answered in the driver there.
func TestPingAndReflectByXDP(t *testing.T) {
	near, far := twoHosts(t)
	errs, stop := reflectingIn(t, far, "--mode", "xdp", "--interface", "eth1")
	awaitState(t, "attached", func() bool { return strings.Contains(errs.String(), "the kernel answers") })
	for _, address := range []string{"10.1.0.2", "2001:db8::2"} {
		code, out, errs := invoke(t, "ping", "--netns", near.Name, "--json", "-c", "50", "-i", "10ms", "--attach", "xdp", address)
		if code != 0 || errs != "" {
			t.Errorf("%s: exit %d, stderr %q", address, code, errs)
		}
		if diff := cmp.Diff(map[string]uint64{"xdp": 50}, parsePing(t, out).summary.Timestamps.RX); diff != "" {
			t.Errorf("%s: rx (-want +got):\n%s", address, diff)
		}
	}
	stop()
	if said := errs.String(); !strings.Contains(said, `"mode": "xdp", "result": "answered", "count": 100`) &&
		!strings.Contains(said, `"mode":"xdp","result":"answered","count":100`) {
		t.Errorf("the kernel did not answer 100 by xdp: %s", said)
	}
}

func TestPing(t *testing.T) {
	near, far := twoHosts(t)
	reflectingIn(t, far, "--mode", "socket")
	tests := []struct {
		args   []string
		tx, rx string
	}{
		{[]string{"10.1.0.2"}, "tc_egress", "tc_ingress"},
		{[]string{"--attach", "clsact", "10.1.0.2"}, "tc_egress", "tc_ingress"},
		{[]string{"--attach", "xdp", "10.1.0.2"}, "tc_egress", "xdp"},
		{[]string{"--timestamps", "socket", "10.1.0.2"}, "socket", "socket"},
		{[]string{"--timestamps", "user", "10.1.0.2"}, "user", "user"},
		{[]string{"--profile", "twamp-light", "10.1.0.2"}, "tc_egress", "tc_ingress"},
		{[]string{"--profile", "doublezero", "10.1.0.2"}, "tc_egress", "tc_ingress"},
		{[]string{"-6", "2001:db8::2"}, "tc_egress", "tc_ingress"},
		{[]string{"--size", "1472", "10.1.0.2"}, "tc_egress", "tc_ingress"},
		{[]string{"--dscp", "46", "-I", "eth1", "10.1.0.2"}, "tc_egress", "tc_ingress"},
	}
	const probes = 200
	for _, tt := range tests {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			code, out, errs := invoke(t, append([]string{"ping", "--netns", near.Name, "--json", "-c", fmt.Sprint(probes), "-i", "10ms"}, tt.args...)...)
			if code != 0 || errs != "" {
				t.Errorf("exit %d, stderr %q", code, errs)
			}
			p := parsePing(t, out)
			if len(p.samples) != probes {
				t.Errorf("%d samples, want %d", len(p.samples), probes)
			}
			for i, s := range p.samples {
				if s["seq"] != float64(i) || s["outcome"] != "on_time" || s["time"] == nil || s["path"] == "" {
					t.Errorf("sample %d = %v", i, s)
				}
			}
			s := p.summary
			if s.Sent != probes || s.Received != probes || s.Lost != 0 || s.Type != "summary" {
				t.Errorf("summary %+v", s)
			}
			want := map[string]uint64{tt.tx: probes}
			if diff := cmp.Diff(want, s.Timestamps.TX); diff != "" {
				t.Errorf("tx (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(map[string]uint64{tt.rx: probes}, s.Timestamps.RX); diff != "" {
				t.Errorf("rx (-want +got):\n%s", diff)
			}
			r := s.RTT
			if r == nil || r.Min <= 0 || r.Min > r.P50 || r.P50 > r.P90 || r.P90 > r.P99 || r.P99 > r.Max || r.Mean < float64(r.Min) || r.Mean > float64(r.Max) {
				t.Errorf("rtt_ns = %+v", r)
			}
		})
	}
}

// measuredOnce is one sample of each kind.
func measuredOnce() *probe.Ring {
	ring := probe.NewRing(16)
	for i, s := range []store.Sample{
		{RTT: 45_123, Dwell: 5_001, HasDwell: true, TX: store.TCEgress, RX: store.TCIngress, TTL: 64},
		{RTT: 40_000, TX: store.TCEgress, RX: store.Socket},
		{Outcome: store.Late, RTT: 1_200_000_000, TX: store.TCEgress, RX: store.TCIngress},
		{Outcome: store.Lost, TX: store.TCEgress},
		{Outcome: store.NotSent, Reason: store.NoRoute},
		{Outcome: store.NotSent, Reason: store.NoRoute},
		{Outcome: store.Unknown, Reason: store.ClockStep},
	} {
		s.Mono = int64(i+1) * 1e9
		ring.Put(0, s)
	}
	return ring
}

// countedOnce are the counters of measuredOnce.
func countedOnce() probe.Counters {
	return probe.Counters{Sent: 5, Received: 3, Late: 1, Lost: 1, Unknown: 1, NotSent: map[store.Reason]uint64{store.NoRoute: 2}}
}

// openedOnce is a way of which the better steps were refused.
func openedOnce() probe.FlowInfo {
	return probe.FlowInfo{
		Local: netip.MustParseAddrPort("10.1.0.1:40000"), Remote: netip.MustParseAddrPort("10.1.0.2:862"),
		Interface: "eth1", Refused: errors.Join(errors.New("xdp: EBUSY"), errors.New("tcx: EPERM")),
	}
}

func TestPingOffATerminal(t *testing.T) {
	for _, tt := range []struct {
		golden        string
		asJSON, quiet bool
	}{
		{"ping.golden", false, false},
		{"ping-quiet.golden", false, true},
		{"ping-json.golden", true, false},
	} {
		t.Run(tt.golden, func(t *testing.T) {
			var out output
			p := newPinger(&out, target.Defaults(), tt.asJSON, tt.quiet)
			p.begin(openedOnce())
			p.take(measuredOnce(), 1_700_000_000e9)
			var exit *exitError
			if err := p.end(countedOnce()); !errors.As(err, &exit) || exit.code != 1 {
				t.Errorf("%v, want exit code 1", err)
			}
			checkGolden(t, tt.golden, out.String())
		})
	}
}

func TestPingLoopbackByName(t *testing.T) {
	ns := netnstest.New(t).Namespace("one")
	reflectingIn(t, ns)
	code, out, errs := invoke(t, "ping", "--netns", ns.Name, "-c", "5", "-i", "10ms", "localhost")
	if code != 0 || errs != "" {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
	for _, want := range []string{"by lo: 44 bytes, time stamps tcx\n", "seq=4 from ", "5 sent, 5 received, 0 lost (0.0%)\n", "time stamps tx tc_egress 5, rx tc_ingress 5\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

func TestPingExitCodes(t *testing.T) {
	near, _ := twoHosts(t)
	code, out, _ := invoke(t, "ping", "--netns", near.Name, "-q", "-c", "3", "-i", "10ms", "--timeout", "100ms", "10.1.0.2")
	if code != 1 || !strings.Contains(out, "3 sent, 0 received, 3 lost (100.0%)\n") {
		t.Errorf("without a reflector: exit %d:\n%s", code, out)
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"192.0.2.1"}, "no route"},
		{[]string{"-I", "eth9", "10.1.0.2"}, "eth9"},
		{[]string{"no-such-host.invalid"}, "resolve no-such-host.invalid"},
		{[]string{"--timestamps", "bpf", "--size", "2000", "10.1.0.2"}, "2000 bytes are more than the 1500 that the kernel half reads"},
		{[]string{"--timestamps", "bpf", "--size", "1473", "10.1.0.2"}, "1473 bytes leave in fragments at an MTU of 1500"},
	} {
		code, out, errs := invoke(t, append([]string{"ping", "--netns", near.Name, "-c", "3"}, tt.args...)...)
		if code != 2 || out != "" || !strings.Contains(errs, tt.want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: exit %d, stdout %q, stderr %q; want 2 and one line about %q", tt.args, code, out, errs, tt.want)
		}
	}
}

func TestPingGoesOnThroughAnOutage(t *testing.T) {
	near, far := twoHosts(t)
	reflectingIn(t, far)
	out, errs, stop := background(t, "ping", "--netns", near.Name, "-c", "0", "-i", "20ms", "--timeout", "100ms", "-I", "eth1", "10.1.0.2")
	awaitState(t, "replies", func() bool { return strings.Count(out.String(), "rtt=") > 5 })
	near.Exec(t, "ip", "addr", "del", "10.1.0.1/24", "dev", "eth1")
	awaitState(t, "probes that are not sent", func() bool { return strings.Contains(out.String(), "not_sent (") })
	n := strings.Count(out.String(), "rtt=")
	near.Exec(t, "ip", "addr", "add", "10.1.0.1/24", "dev", "eth1")
	awaitState(t, "replies again", func() bool { return strings.Count(out.String(), "rtt=") > n+5 })
	if code := stop(); code != 1 || errs.String() != "" {
		t.Errorf("exit %d, stderr %q; want 1 and nothing", code, errs)
	}
}

func TestReflectOnATakenPort(t *testing.T) {
	ns := netnstest.New(t).Namespace("one")
	reflectingIn(t, ns)
	code, _, errs := invoke(t, "reflect", "--netns", ns.Name, "--allow", "any")
	if code != 2 || !strings.Contains(errs, "listen on :862: the port is taken by ") || strings.Count(errs, "\n") != 1 {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
}

// unprivileged runs cmd as nobody, without capabilities but those named.
func unprivileged(cmd *exec.Cmd, ambient ...uintptr) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, AmbientCaps: ambient}
}

func TestWithoutPrivileges(t *testing.T) {
	lab := netnstest.New(t)
	ns := lab.Namespace("one")
	reflectingIn(t, ns)
	run := func(ambient []uintptr, args ...string) (int, string, string) {
		t.Helper()
		var out, errs bytes.Buffer
		cmd := program(t, args...)
		cmd.Stdout, cmd.Stderr = &out, &errs
		// nobody may not read a test binary in a directory of root's.
		public := fmt.Sprintf("/tmp/xtwamp-test-%d", os.Getpid())
		binary, err := os.ReadFile(cmd.Path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(public, binary, 0o755); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(public)
		cmd.Path = public
		unprivileged(cmd, ambient...)
		err = ns.Do(cmd.Run)
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), out.String(), errs.String()
	}
	code, out, errs := run(nil, "ping", "-c", "3", "-i", "10ms", "127.0.0.1")
	if code != 0 || !strings.Contains(out, "time stamps socket\n") || !strings.Contains(out, "CAP_BPF") {
		t.Errorf("ping: exit %d, stderr %q; want socket stamps and the missing capability named:\n%s", code, errs, out)
	}
	code, _, errs = run(nil, "ping", "-c", "3", "--timestamps", "bpf", "127.0.0.1")
	if code != 2 || !strings.Contains(errs, "CAP_BPF") || strings.Count(errs, "\n") != 1 {
		t.Errorf("ping --timestamps bpf: exit %d, stderr %q; want 2 and one line that names CAP_BPF", code, errs)
	}
	code, _, errs = run(nil, "reflect", "--allow", "any", "--listen", "127.0.0.1:861")
	if code != 2 || !strings.Contains(errs, "permission denied") || strings.Count(errs, "\n") != 1 {
		t.Errorf("reflect on a low port: exit %d, stderr %q", code, errs)
	}
	code, out, errs = run([]uintptr{unix.CAP_BPF, unix.CAP_NET_ADMIN}, "ping", "-c", "3", "-i", "10ms", "127.0.0.1")
	if code != 0 || !strings.Contains(out, "tx tc_egress 3, rx tc_ingress 3\n") {
		t.Errorf("ping with CAP_BPF and CAP_NET_ADMIN: exit %d, stderr %q\n%s", code, errs, out)
	}
}
