// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xtwamp/xtwamp/probe"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/submit/doublezero"
	"github.com/xtwamp/xtwamp/submit/doublezero/ledgertest"
)

// What status tells of a device with two discovered links, one of which has no address yet, and with a bad endpoint. (The simulated engine
// sends without.)
func TestStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait(time.Until(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)))
		l := newLedgerLab(t, 2, ledgertest.Options{SlotIndex: 100_000})
		defer l.Close()
		l.discovering()
		h := new(host)
		h.has("eth1", "172.16.0.0/31")
		d, _, stop := l.runOn(h, func(_ int, n uint64) (time.Duration, bool) { return 500 * time.Microsecond, n%10 != 0 })
		defer stop()
		wait(10 * time.Minute)
		l.Inject(ledgertest.Fault{Kind: ledgertest.Unavailable, Address: l.addresses[2]})
		wait(10*time.Minute + 3*time.Second)
		s := d.status()

		z := s.Discovery.DoubleZero
		if z == nil || z.Code != "" || len(z.Links) != 2 || z.Links[0].Code != "near:far0" || z.Links[0].Interface != "eth1" || z.Links[1].Why == "" {
			t.Errorf("discovery: %+v", z)
		}
		if s.State != stateHealthy || len(s.Problems) != 0 {
			t.Errorf("%s: %q", s.State, s.Problems)
		}
		for _, p := range s.Paths {
			if p.Path == "near:far0" && (p.RTT != 500_000 || p.Lost == 0 || p.Received == 0 || s.Time.Sub(p.LastReply) > 25*time.Second) {
				t.Errorf("path: %+v", p)
			}
		}
		bad := 0
		for _, e := range s.Endpoints {
			if !e.Good {
				bad++
				if !strings.Contains(e.Endpoint, "192.0.2.3") || !strings.Contains(e.Reason, "503") {
					t.Errorf("bad endpoint: %+v", e)
				}
			}
		}
		if bad != 1 || len(s.Endpoints) != 5 {
			t.Errorf("%d of %d endpoints are bad", bad, len(s.Endpoints))
		}

		// Nothing is lost on the way through JSON.
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), token) {
			t.Error("a token of the URL is in the status")
		}
		var back daemonStatus
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(s, back, cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) })); diff != "" {
			t.Error(diff)
		}
		// All of the ledger is away: what does not work then, and what does.
		for _, a := range l.addresses {
			l.Inject(ledgertest.Fault{Kind: ledgertest.Blackhole, Address: a})
		}
		wait(10 * time.Minute)
		problems := strings.Join(d.status().Problems, "\n")
		for _, want := range []string{"sink doublezero fails, ", "no endpoint of the ledger is good", "links are not discovered: "} {
			if !strings.Contains(problems, want) {
				t.Errorf("no %q among the problems:\n%s", want, problems)
			}
		}
	})
}

// troubled is a device with one of each kind of trouble.
func troubled() daemonStatus {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.Local)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	balance := uint64(1_250_000_000)
	var key doublezero.Pubkey
	copy(key[:], "device")
	s := daemonStatus{
		Device: "ams-dz001", Version: "1.2.3", Started: ago(50 * time.Hour), Time: now, State: stateDegraded,
		Problems: []string{"nothing is sent to ams-fra: no_carrier", "the reflector is off: its port is not bound"},
		Paths: []pathStatus{
			{Path: "ams-lon", State: pathLoses, Address: "172.16.0.1:862", Interface: "eth1", Profile: "doublezero", Timestamps: "tcx", RTT: 4_321_987,
				LastReply: ago(2500 * time.Millisecond), Hour: hourStatus{Answered: 356, Lost: 4, P50: 4_300_000, P99: 5_123_456}},
			{Path: "ams-fra", State: pathUnsent, Address: "172.16.0.3", Profile: "stamp", Reason: "no_carrier"},
			{Path: "ams-par", State: pathAnswers, Address: "172.16.0.5:862", Interface: "gre1", Profile: "stamp", Timestamps: "socket", Refused: "tcx: tunnel"},
		},
		Interfaces: []hookStatus{{"eth1", "tcx", ""}, {"gre1", "none", "tcx:ENOTSUP"}},
		Reflector:  reflectorStatus{Enabled: true, Interfaces: []hookStatus{{"eth1", "tcx", ""}, {"eth9", "clsact", "tcx:EINVAL"}}},
		Store:      storeStatus{Open: true, Degraded: "no_space", Bytes: 5 << 20, Oldest: ago(72 * time.Hour), InMemory: 12, SetAside: []string{"/a.db.damaged"}},
		Sinks: []sinkTotals{{Sink: "doublezero", Offered: 100, Delivered: 60, Waiting: 30, Dropped: map[string]uint64{"link_gone": 10},
			OldestWaiting: ago(10 * time.Minute), LastSuccess: ago(11 * time.Minute)}},
		Ledger: &ledgerStatus{Balance: &balance, Zeros: map[string]uint64{"lost": 3, "gap": 1}, Accounts: []ledgerAccount{
			{"ams-lon", 193, 10, 10, nil, false}, {"ams-lon", 194, 15_840, 15_900, map[string]uint64{"lost": 2}, false},
			{"ams-fra", 195, 60, 60, map[string]uint64{"gap": 1}, false}, {"ams-lon", 195, 0, 60, nil, true}}},
		Endpoints: []endpointInfo{
			{Endpoint: "https://a.example.net:443/192.0.2.1", Good: true, InUse: true, Latency: 12_340_000, LastOK: ago(time.Second), Since: ago(time.Hour)},
			{Endpoint: "https://a.example.net:443/192.0.2.2", Reason: "status 503", SlotLag: 41},
		},
		Discovery: discoveryStatus{DoubleZero: &doublezero.DiscoveryStatus{Device: key, Code: "ams-dz001", LastSuccess: ago(30 * time.Second),
			Links: []doublezero.DiscoveredLink{
				{Link: key, Code: "ams-dz001:lon-dz001", Status: "activated", DeviceCode: "lon-dz001", Interface: "eth1", Address: "172.16.0.1"},
				{Link: key, Code: "ams-dz001:fra-dz001", Status: "deleting", DeviceCode: "fra-dz001", Why: "status is deleting"},
			}}},
		Loops: []loopStatus{{"engine", loopRuns, ago(time.Second), now.Add(time.Minute)}, {"recorder", loopStuck, ago(time.Hour), ago(50 * time.Minute)}},
		Recent: []recentChange{{ago(14200 * time.Millisecond), "warn", "probe", "interface cannot be used; trying on",
			"error=send to 172.16.0.3:862: no buffer space available, interface=eth2, paths=1, reason=no_carrier, times=1"},
			{ago(time.Hour), "info", "", "starting", ""}},
	}
	s.Ledger.sumUp()
	return s
}

// What people see of it.
func TestStatusForPeople(t *testing.T) {
	s := troubled()
	var out bytes.Buffer
	if err := s.print(&out); err != nil {
		t.Fatal(err)
	}
	checkGolden(t, "status.golden", out.String())
}

// A reply can be younger than the status that tells of it.
func TestNothingIsInTheFuture(t *testing.T) {
	s := daemonStatus{Time: time.Now()}
	if got := s.ago(s.Time.Add(100 * time.Millisecond)); got != "0.0s ago" {
		t.Errorf("a later reply came %s", got)
	}
}

// The command asks a running daemon, and its exit code says how that is.
func TestStatusCommand(t *testing.T) {
	near, far := twoHosts(t)
	reflectingIn(t, far)
	dir, file := switchConfig(t, "")
	socket := filepath.Join(dir, "control.sock")
	if code, out, errs := invoke(t, "status", "--socket", socket); code != 2 || out != "" || !strings.Contains(errs, "no daemon answers") {
		t.Errorf("without a daemon: exit %d, %q, %q", code, out, errs)
	}
	d := startDaemon(t, near, dir, file)
	awaitMeasuring(t, dir)
	code, out, errs := invoke(t, "status", "--socket", socket)
	if code != 0 || errs != "" || !strings.Contains(out, "near is healthy") || !strings.Contains(out, "four  answering") {
		t.Errorf("exit %d, %q\n%s", code, errs, out)
	}
	far.Exec(t, "ip", "link", "set", "eth1", "down")
	awaitState(t, "a degraded daemon", func() bool {
		code, out, _ = invoke(t, "status", "--socket", socket, "--json")
		return code == 1
	})
	var s daemonStatus
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Problems) == 0 || !strings.Contains(s.Problems[0], "no_carrier") {
		t.Errorf("problems: %q", s.Problems)
	}
	if code := d.end(syscall.SIGINT); code != 0 {
		t.Errorf("ended with %d\n%s", code, d.errs)
	}
}

// A path is what its last probes were.
func TestPathStates(t *testing.T) {
	for _, c := range []struct {
		reason store.Reason
		recent probe.Recent
		want   string
	}{
		{store.NoReason, probe.Recent{}, pathWaits},
		{store.NoCarrier, probe.Recent{}, pathUnsent},
		{store.NoCarrier, probe.Recent{Known: 10, Lost: 10, LostInRow: 10}, pathUnsent},
		{store.NoReason, probe.Recent{Known: 1}, pathAnswers},
		{store.NoReason, probe.Recent{Known: 10, Lost: 9}, pathLoses},
		{store.NoReason, probe.Recent{Known: 10, Lost: 2, LostInRow: 2}, pathLoses},
		{store.NoReason, probe.Recent{Known: 3, Lost: 3, LostInRow: 3}, pathSilent},
	} {
		if got := pathState(probe.PathStatus{Reason: c.reason, Recent: c.recent}); got != c.want {
			t.Errorf("%s, %+v: %s, want %s", c.reason, c.recent, got, c.want)
		}
	}
}
