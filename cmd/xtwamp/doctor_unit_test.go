// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/bpf"
	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/probe"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
	"github.com/xtwamp/xtwamp/submit/doublezero"
	"github.com/xtwamp/xtwamp/submit/doublezero/ledgertest"
)

// gist is what findings say, in short: level, subject and the start of what.
func gist(s findings) (lines []string) {
	for _, f := range s.all {
		lines = append(lines, f.Level+" "+f.Subject+": "+f.What)
	}
	return lines
}

// checkGist compares findings with the beginnings of their lines, and sees that
// each that is not good has a remedy.
func checkGist(t *testing.T, s findings, want ...string) {
	t.Helper()
	got := gist(s)
	for i := range min(len(got), len(want)) {
		if strings.HasPrefix(got[i], want[i]) {
			got[i] = want[i]
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
	for _, f := range s.all {
		if (f.Level == ok) != (f.Remedy == "") {
			t.Errorf("%s has the remedy %q", f.What, f.Remedy)
		}
	}
}

func TestDoctorOnKernels(t *testing.T) {
	for release, want := range map[string]string{
		"4.19.0-27-amd64":     "warning release: 4.19.0-27-amd64: sockets take the time stamps",
		"5.8.0":               "warning release: 5.8.0: sockets",
		"5.10.0-46-amd64":     "ok release: 5.10.0-46-amd64: clsact (tcx needs 6.6), socket stamps on tunnels (5.14), memory",
		"5.13.1":              "ok release: 5.13.1: clsact (tcx needs 6.6), socket stamps on tunnels (5.14)",
		"6.1.0-57-amd64":      "ok release: 6.1.0-57-amd64: clsact (tcx needs 6.6)",
		"6.6.0":               "ok release: 6.6.0: tcx, clsact",
		"something of a kind": "ok release: something of a kind",
	} {
		var s findings
		examineRelease(release, &s)
		checkGist(t, s, want)
	}
}

// Case 60: each obstacle has a remedy of its own.
func TestEachObstacleHasItsRemedy(t *testing.T) {
	seen := make(map[string]bpf.Obstacle)
	for o := bpf.OtherObstacle; o <= bpf.MissingConfig; o++ {
		r := obstacleRemedy(o)
		if other, twice := seen[r]; twice || r == "" {
			t.Errorf("obstacles %d and %d have the remedy %q", o, other, r)
		}
		seen[r] = o
	}
}

func TestRefusedInterfacesHaveARemedy(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("create clsact qdisc: %w", unix.EBUSY), "its ingress qdisc is where clsact would be: tc qdisc del dev eth1 ingress"},
		{fmt.Errorf("link type 280: %w", bpf.ErrNotSupported), "none: "},
		{unix.EINVAL, "report it"},
	} {
		var s findings
		refused := []probe.Refusal{{Step: probe.StepTCX, Err: bpf.ErrNotSupported}, {Step: probe.StepClsact, Err: tt.err}}
		link := netns.Link{Name: "eth1", MTU: 1500, Up: true, Carrier: true}
		examineInterface(&s, link, probe.Attachment{Interface: "eth1", Step: probe.StepSocket, Refused: refused}, []string{"tcx ingress other"})
		checkGist(t, s, "warning eth1: hardware, MTU 1500, socket time stamps (refused: tcx:ENOTSUP,clsact:")
		if f := s.all[0]; !strings.HasPrefix(f.Remedy, tt.want) || !strings.HasSuffix(f.What, "; left alone: tcx ingress other") {
			t.Errorf("%v: %q, with the remedy %q", tt.err, f.What, f.Remedy)
		}
	}
}

func TestEachSilenceIsExplained(t *testing.T) {
	seen := make(map[string]probe.Cause)
	info := probe.FlowInfo{Interface: "eth1", Local: netip.MustParseAddrPort("192.0.2.1:50000"), Remote: netip.MustParseAddrPort("192.0.2.2:862")}
	for c := probe.Silence; c <= probe.Expired; c++ {
		why := probe.Diagnosis{Cause: c, Profile: "doublezero", From: netip.MustParseAddr("192.0.2.9")}
		what, remedy := explainSilence(target.Defaults(), info, why)
		if other, twice := seen[what]; twice || remedy == "" {
			t.Errorf("cause %d says what %d says, %q, with the remedy %q", c, other, what, remedy)
		}
		seen[what] = c
	}
	what, _ := explainSilence(target.Defaults(), info, probe.Diagnosis{Cause: probe.Prohibited})
	if want := "filtered: a rule of this host forbids to send"; what != want {
		t.Errorf("a rule of this host: %q, want %q", what, want)
	}
}

func TestDoctorOnConfigurations(t *testing.T) {
	file := filepath.Join(t.TempDir(), "xtwamp.yml")
	load := func(text string) *doctor {
		t.Helper()
		d := &doctor{file: file}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		d.cfg, d.cfgErr = loadConfig(file, "host")
		return d
	}
	look := func(d *doctor) (s findings) {
		d.examineConfig(t.Context(), &s)
		return s
	}
	checkGist(t, look(load("device: a\n")), "ok "+file+": good: 0 targets", "ok daemon: none")
	checkGist(t, look(load("probe: {dscp: 99}\nlog: {level: loud}\n")),
		"failure "+file+":2: log.level: \"loud\"", "failure "+file+":1: probe.dscp: 99", "ok daemon: none")
	checkGist(t, look(load("devize: a\n")), "failure "+file+":1: unknown key", "ok daemon: none")
	checkGist(t, look(&doctor{file: file, cfgErr: &fs.PathError{Op: "open", Path: file, Err: fs.ErrNotExist}, daemon: 42}),
		"warning "+file+": missing", "ok daemon: running (pid 42)")
	checkGist(t, look(&doctor{file: file, cfgErr: fmt.Errorf("read configuration: %w", fs.ErrPermission)}),
		"failure "+file+": read configuration: permission denied", "ok daemon: none")
}

func TestDoctorOnStores(t *testing.T) {
	dir := t.TempDir()
	look := func(path string, daemon int, least byteSize) (s findings) {
		c := defaultConfig("host")
		c.Store.Path, c.Store.MinFreeBytes = path, least
		d := &doctor{cfg: &c, daemon: daemon}
		d.examineStore(t.Context(), &s)
		return s
	}
	path := filepath.Join(dir, "samples.db")
	checkGist(t, look(path, 0, 0), "ok "+dir+": writable, ", "ok "+path+": not there yet")
	deep := filepath.Join(dir, "a", "b", "samples.db")
	checkGist(t, look(deep, 0, 0), "ok "+filepath.Dir(deep)+": not there yet, and can be made, ", "ok "+deep+": not there yet")
	if _, err := os.Stat(filepath.Dir(deep)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it made the directory: %v", err)
	}
	checkGist(t, look(path, 0, 1<<62), "warning "+dir+": ", "ok "+path+": not there yet")
	// What root may not do either.
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	checkGist(t, look(filepath.Join(plain, "x.db"), 0, 0), "failure "+plain+": "+plain+" cannot be written to", "failure "+filepath.Join(plain, "x.db")+": ")
	if err := os.Remove(plain); err != nil {
		t.Fatal(err)
	}

	log, err := store.Open(store.Config{Path: path, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	checkGist(t, look(path, 0, 0), "ok "+dir+": writable", "failure "+path+": held by another process")
	checkGist(t, look(path, 42, 0), "ok "+dir+": writable", "ok "+path+": held by the running daemon (pid 42)")
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	checkGist(t, look(path, 0, 0), "ok "+dir+": writable", "ok "+path+": good: 0 paths")

	if err := os.WriteFile(path, make([]byte, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	checkGist(t, look(path, 0, 0), "ok "+dir+": writable", "warning "+path+": open store: ")
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("it left %v, %v", files, err)
	}
}

func TestDoctorOnNamespaces(t *testing.T) {
	c := defaultConfig("host")
	c.Namespaces = namespacesConfig{Probe: "no-such", Web: "vrf:no-such", Ledger: "/dev/null"}
	c.DoubleZero.RPCURLs = []rpcURL{{URL: "https://ledger.example.net"}}
	var s findings
	(&doctor{cfg: &c}).examineNamespaces(t.Context(), &s)
	checkGist(t, s, "failure probe: no-such is not there", "warning ledger: /dev/null: ", "warning web: vrf:no-such is not there")
}

func TestDoctorOnLedgers(t *testing.T) {
	const name = "https://ledger.example.net:443"
	for _, tt := range []struct {
		name    string
		prepare func(*testing.T, *ledgerLab)
		want    []string
	}{
		{"good", func(*testing.T, *ledgerLab) {}, []string{
			"ok key: ", "ok " + name + "/192.0.2.1: answers in ", "ok " + name + "/192.0.2.2: answers", "ok " + name + "/192.0.2.3: answers",
			"ok " + name + "/192.0.2.4: answers", "ok " + name + "/192.0.2.5: answers",
		}},
		{"one address", func(_ *testing.T, l *ledgerLab) {
			l.SetHost("ledger.example.net", netip.MustParseAddr("192.0.2.1"))
		}, []string{"ok key: ", "ok " + name + "/192.0.2.1: answers", "warning endpoints: one address alone"}},
		{"some down", func(_ *testing.T, l *ledgerLab) {
			l.SetHost("ledger.example.net", netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3"))
			l.Inject(ledgertest.Fault{Kind: ledgertest.Unavailable, Address: l.addresses[0]})
			l.Inject(ledgertest.Fault{Kind: ledgertest.Blackhole, Address: l.addresses[1]})
		}, []string{
			"ok key: ", "warning " + name + "/192.0.2.1: status 503", "warning " + name + "/192.0.2.2: no answer in time",
			"ok " + name + "/192.0.2.3: answers",
		}},
		{"no name", func(_ *testing.T, l *ledgerLab) { l.SetHost("ledger.example.net") }, []string{"ok key: ", "warning " + name + ": "}},
		{"open key", func(t *testing.T, l *ledgerLab) {
			l.SetHost("ledger.example.net", netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"))
			if err := os.Chmod(filepath.Join(l.dir, "key.json"), 0o644); err != nil {
				t.Fatal(err)
			}
		}, []string{"failure key: doublezero.keypair_file: ", "ok " + name + "/192.0.2.1: answers", "ok " + name + "/192.0.2.2: answers"}},
		{"another network", func(t *testing.T, l *ledgerLab) {
			l.SetHost("ledger.example.net", netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"))
			memory := `{"record": {"cluster": "another", "host": "ledger.example.net"}}`
			if err := os.WriteFile(filepath.Join(l.dir, "endpoints.json"), []byte(memory), 0o600); err != nil {
				t.Fatal(err)
			}
		}, []string{
			"ok key: ", "warning " + name + "/192.0.2.1: belongs to cluster ", "warning " + name + "/192.0.2.2: belongs to cluster ",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLedgerLab(t, 1, ledgertest.Options{SlotIndex: 100_000})
				defer l.Close()
				tt.prepare(t, l)
				cfg, err := loadConfig(l.config, "host")
				if err != nil {
					t.Fatal(err)
				}
				var s findings
				began := time.Now()
				d := &doctor{cfg: cfg, network: l.network()}
				defer d.reachLedger(t.Context())()
				d.examineLedger(t.Context(), &s)
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("it took %s", took)
				}
				checkGist(t, s, tt.want...)
				for _, f := range s.all {
					if strings.Contains(f.Subject+f.What+f.Remedy, token) {
						t.Errorf("a secret is told: %+v", f)
					}
				}
			})
		})
	}
}

// The links that are looked at are those that the daemon would measure.
func TestDoctorFindsLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		<-time.After(time.Until(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)))
		l := newLedgerLab(t, 3, ledgertest.Options{})
		defer l.Close()
		l.discovering()
		l.putLink(2, uint8(doublezero.LinkRequested))
		h := new(host)
		h.has("eth1", "172.16.0.0/31")
		look := func() *doctor {
			t.Helper()
			cfg, err := loadConfig(l.config, "host")
			if err != nil {
				t.Fatal(err)
			}
			d := &doctor{cfg: cfg, network: l.network(), addresses: h.list}
			defer d.reachLedger(t.Context())()
			d.findTargets(t.Context())
			return d
		}
		told := []string{"warning near:far1: not sent: no interface has", "ok near:far2: not measured: status is requested"}
		d := look()
		checkGist(t, d.sources, append([]string{"ok links: the ledger tells 3"}, told...)...)
		var names []string
		for _, target := range d.targets {
			names = append(names, target.Name+" by "+target.Interface)
		}
		if diff := cmp.Diff([]string{"near:far0 by eth1", "near:far1 by (no /31)"}, names); diff != "" {
			t.Errorf("targets (-want +got):\n%s", diff)
		}
		if _, err := os.Stat(d.cfg.linksFile()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("it wrote to the daemon's list: %v", err)
		}

		for _, a := range l.addresses {
			l.Inject(ledgertest.Fault{Kind: ledgertest.Blackhole, Address: a})
		}
		checkGist(t, look().sources, "warning links: the ledger does not tell them, and none are remembered")
		l.Heal()
		_, _, stop := l.runOn(h, answered)
		wait(time.Minute)
		stop()
		before, err := os.ReadFile(d.cfg.linksFile())
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range l.addresses {
			l.Inject(ledgertest.Fault{Kind: ledgertest.Blackhole, Address: a})
		}
		checkGist(t, look().sources, append([]string{"warning links: the ledger does not tell them: 3 are remembered"}, told...)...)
		if after, err := os.ReadFile(d.cfg.linksFile()); err != nil || string(after) != string(before) {
			t.Errorf("the daemon's list has changed, %v:\n%s", err, after)
		}
	})
}

func TestDoctorReadsFilesOfTargets(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.yml": "- {name: one, address: 192.0.2.1}\n- {name: two, address: 192.0.2.2}\n",
		"b.yml": "- {name: one, address: 192.0.2.3}\n",
		"c.yml": "\n- {name: three, addresses: 192.0.2.4}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := defaultConfig("host")
	c.Discovery.Files = []string{filepath.Join(dir, "*.yml")}
	d := &doctor{cfg: &c}
	d.findTargets(t.Context())
	at := func(name string) string { return filepath.Join(dir, name) }
	checkGist(t, d.sources, "ok "+at("a.yml")+": good: 2 targets", "ok "+at("b.yml")+": good: 1 targets",
		"warning "+at("c.yml")+":2: [0]: unknown key", "warning left out: one of "+at("b.yml"))
	if len(d.targets) != 2 {
		t.Errorf("%d targets, want 2", len(d.targets))
	}
}
