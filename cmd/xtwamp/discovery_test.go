// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"

	"github.com/xtwamp/xtwamp/submit/doublezero"
	"github.com/xtwamp/xtwamp/submit/doublezero/ledgertest"
)

// host is the interfaces of a host that is not there.
type host struct {
	mu        sync.Mutex
	addresses []doublezero.LocalAddress
}

func (h *host) list() ([]doublezero.LocalAddress, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.addresses), nil
}

func (h *host) has(iface, prefix string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.addresses = append(h.addresses, doublezero.LocalAddress{Interface: iface, Prefix: netip.MustParsePrefix(prefix)})
}

// measuredNames are the names of what a daemon measures.
func measuredNames(d *daemon) (names []string) {
	for _, p := range d.engine.Paths() {
		names = append(names, p.Target.Name)
	}
	slices.Sort(names)
	return names
}

// seriesOf lists the metric families that have a series with a label of this value.
func seriesOf(t *testing.T, d *daemon, value string) (families []string) {
	t.Helper()
	all, err := d.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if slices.ContainsFunc(f.GetMetric(), func(m *dto.Metric) bool {
			return slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == value })
		}) {
			families = append(families, f.GetName())
		}
	}
	return families
}

// edit replaces a text of the configuration, which must be there.
func (l *ledgerLab) edit(old, with string) {
	l.Helper()
	edit(l, l.config, old, with)
}

// edit replaces a text of a file, which must be there.
func edit(t testing.TB, file, old, with string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), old) {
		t.Fatalf("no %q in %s", old, file)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), old, with, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// discovering makes l one of a device whose links are discovered: those of the lab, without their targets in the configuration.
func (l *ledgerLab) discovering() {
	l.Helper()
	for i := range l.links {
		l.PutDevice(named("target", i), ledgertest.Device{Status: ledgertest.DeviceActivated, Code: fmt.Sprintf("far%d-dz001", i)})
		l.putLink(i, ledgertest.LinkActivated)
	}
	text, err := os.ReadFile(l.config)
	if err != nil {
		l.Fatal(err)
	}
	before, _, _ := strings.Cut(string(text), "targets:\n")
	before += "discovery: {doublezero: {enabled: true}}\n"
	if err := os.WriteFile(l.config, []byte(before), 0o600); err != nil {
		l.Fatal(err)
	}
}

func (l *ledgerLab) putLink(i int, status uint8) {
	l.PutLink(named("link", i), ledgertest.Link{
		Status: status, Code: fmt.Sprintf("near:far%d", i), SideA: named("device", 0), SideZ: named("target", i),
		Tunnel: netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, 0, byte(2 * i)}), 31),
	})
}

// answered is a far end that always answers.
func answered(int, uint64) (time.Duration, bool) { return 500 * time.Microsecond, true }

// Links are found, measured and delivered with nothing about them in the configuration. The next process measures them at once though
// the ledger is away, and one that ends is forgotten by all.
func TestDiscoveredLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		<-time.After(time.Until(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)))
		l := newLedgerLab(t, 2, ledgertest.Options{})
		defer l.Close()
		l.discovering()
		h := new(host)
		h.has("lo", "127.0.0.1/8")
		h.has("eth1", "172.16.0.0/31")
		h.has("eth2", "172.16.0.2/31")
		d, _, stop := l.runOn(h, answered)
		wait(time.Minute)
		want := []string{"near:far0", "near:far1"}
		if diff := cmp.Diff(want, measuredNames(d)); diff != "" {
			t.Fatal(diff)
		}
		for _, p := range d.engine.Paths() {
			i := strings.TrimPrefix(p.Target.Name, "near:far")
			got := []string{p.Target.Address, p.Target.Source.String(), p.Target.Interface, p.Target.Profile, p.Target.Labels[doublezero.LabelInterval]}
			if diff := cmp.Diff(map[string][]string{
				"0": {"172.16.0.1", "172.16.0.0", "eth1", "doublezero", "10s"}, "1": {"172.16.0.3", "172.16.0.2", "eth2", "doublezero", "10s"},
			}[i], got); diff != "" {
				t.Error(diff)
			}
		}
		wait(10 * time.Minute)
		for i, samples := range l.AllSamples() {
			if len(samples.Values) < 50 {
				t.Errorf("account %s has %d samples", i, len(samples.Values))
			}
		}
		if n := len(l.AllSamples()); n != 2 {
			t.Errorf("%d accounts", n)
		}
		stop()
		reports, err := verification{config: l.config, store: filepath.Join(l.dir, "samples.db"), network: l.network()}.run(t.Context(), env{hostname: os.Hostname})
		if err != nil || len(reports) != 2 || !reports[0].Equal() || !reports[1].Equal() || reports[0].Checked < 50 {
			t.Errorf("ledger verify: %v %+v", err, reports)
		}

		// An outage, and a start in it.
		for _, a := range l.addresses {
			l.Inject(ledgertest.Fault{Kind: ledgertest.Blackhole, Address: a})
		}
		d, _, stop = l.runOn(h, answered)
		defer func() { stop() }()
		wait(15 * time.Second)
		for _, p := range d.engine.Paths() {
			if p.Sent == 0 {
				t.Errorf("%s is not measured", p.Target.Name)
			}
		}
		if diff := cmp.Diff(want, measuredNames(d)); diff != "" {
			t.Error(diff)
		}
		l.Heal()
		wait(2 * time.Minute)

		l.putLink(1, 3) // deleting
		wait(2 * time.Minute)
		if diff := cmp.Diff(want[:1], measuredNames(d)); diff != "" {
			t.Error(diff)
		}
		if series := seriesOf(t, d, "near:far1"); len(series) > 0 {
			t.Errorf("series of the link that ended: %v", series)
		}
		if len(seriesOf(t, d, "near:far0")) < 10 {
			t.Error("there are no series of the other link")
		}
	})
}

// With submit off links are measured, and nothing is written, whose key ever it is.
func TestDiscoveryWithoutSubmit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedgerLab(t, 1, ledgertest.Options{})
		defer l.Close()
		l.discovering()
		l.edit("doublezero: {enabled: true}\ndiscovery", "doublezero: {enabled: false}\ndiscovery")
		l.edit("  keypair_file: "+filepath.Join(l.dir, "key.json")+"\n", "")
		l.edit("device: switch", "device: switch\nprobe: {port: 8862, interval: 1s, size: 100}")
		h := new(host)
		d, _, stop := l.runOn(h, answered)
		defer func() { stop() }()
		wait(time.Minute)
		p := d.engine.Paths()[0]
		if p.Target.Port != 8862 || p.Target.Interval != time.Second || p.Target.PayloadSize() != 48 {
			t.Errorf("target %+v", p.Target)
		}
		// There is no address for it yet: it is measured, and nothing is sent.
		if diff := cmp.Diff("(no /31)", p.Target.Interface); diff != "" {
			t.Error(diff)
		}
		h.has("eth1", "172.16.0.0/31")
		d.discovery.Look()
		wait(time.Minute)
		if p := d.engine.Paths()[0]; p.Target.Interface != "eth1" || p.Received == 0 {
			t.Errorf("with an address: %+v", p)
		}

		// A reload says how links are measured from now on.
		l.edit("interval: 1s", "interval: 2s")
		d.read = func() (*config, error) { return loadConfig(l.config, "host") }
		if _, err := d.reload(); err != nil {
			t.Fatal(err)
		}
		if p := d.engine.Paths()[0]; p.Target.Interval != 2*time.Second || p.Target.Labels[doublezero.LabelInterval] != "2s" {
			t.Errorf("after the reload: %+v", p.Target)
		}
		wait(10 * time.Minute)
		if n := len(l.AllSamples()); n > 0 {
			t.Errorf("%d accounts were written", n)
		}
		for name, want := range map[string]float64{"static": 0, "doublezero": 1} {
			if got := gauge(t, d, "xtwamp_discovery_targets", name); got != want {
				t.Errorf("%v targets of %s, want %v", got, name, want)
			}
		}
		if at := time.Unix(int64(gauge(t, d, "xtwamp_discovery_last_success_timestamp_seconds", "doublezero")), 0); time.Since(at) > 2*time.Minute {
			t.Errorf("last success %v ago", time.Since(at))
		}
	})
}

// gauge is the value of the series of a family that has a label of this value.
func gauge(t *testing.T, d *daemon, family, label string) float64 {
	t.Helper()
	all, err := d.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		for _, m := range f.GetMetric() {
			if f.GetName() == family && slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == label }) {
				return m.GetGauge().GetValue()
			}
		}
	}
	t.Errorf("no %s of %s", family, label)
	return 0
}

// Targets in files come and go with these, beside those of the configuration, and a damaged file costs nothing.
func TestTargetsInFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedgerLab(t, 1, ledgertest.Options{})
		defer l.Close()
		l.edit("doublezero: {enabled: true}", "doublezero: {enabled: false}")
		l.edit("targets:\n", "discovery: {files: ["+filepath.Join(l.dir, "*.targets")+"]}\ntargets:\n")
		file := filepath.Join(l.dir, "a.targets")
		write := func(text string) {
			t.Helper()
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			wait(10 * time.Second)
		}
		if err := os.WriteFile(file, []byte("- {name: a, address: 192.0.2.1}\n- {name: b, address: 192.0.2.2, interval: 20s}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		d, logs, stop := l.run(answered)
		defer func() { stop() }()
		expect := func(want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, measuredNames(d)); diff != "" {
				t.Error(diff)
			}
		}
		wait(time.Minute)
		expect("a", "b", "link0")
		if got := gauge(t, d, "xtwamp_discovery_targets", "file"); got != 2 {
			t.Errorf("%v targets in files", got)
		}

		write("- {name: a, address: 192.0.2.1}\n- {name: b, address: 192.0.2.2, dscp: 64}\n")
		expect("a", "b", "link0")
		if lines := logs.FilterMessageSnippet("damaged").All(); len(lines) != 1 || !strings.Contains(fmt.Sprint(lines[0].ContextMap()["error"]), "a.targets:2: [1].dscp: 64") {
			t.Errorf("log of the damage: %v", lines)
		}
		good := gauge(t, d, "xtwamp_discovery_last_success_timestamp_seconds", "file")
		wait(time.Minute)
		if got := gauge(t, d, "xtwamp_discovery_last_success_timestamp_seconds", "file"); got != good {
			t.Error("a damaged file counts as a success")
		}
		// The configuration's target stays, and says whose name was taken.
		write("- {name: link0, address: 192.0.2.1}\n- {name: c, address: 192.0.2.3}\n")
		expect("c", "link0")
		if logs.FilterMessageSnippet("left out").Len() != 1 || d.engine.Paths()[0].Target.Address != "198.51.100.1" {
			t.Error("the target of the file has taken the place of the configured one, or nobody knows")
		}
		if series := seriesOf(t, d, "b"); len(series) > 0 { // case 92
			t.Errorf("series of a target that is gone: %v", series)
		}
		write("- {name: c, address: 192.0.2.3}\n")
		expect("c", "link0")
		if logs.FilterMessage("no target is left out any more").Len() != 1 {
			t.Error("nobody knows that all are measured")
		}
		// A reload reads files again, with what holds for all targets then.
		l.edit("device: switch", "device: switch\nprobe: {interval: 5s}")
		d.read = func() (*config, error) { return loadConfig(l.config, "host") }
		if _, err := d.reload(); err != nil {
			t.Fatal(err)
		}
		for _, p := range d.engine.Paths() {
			if p.Target.Interval != 5*time.Second {
				t.Errorf("%s has the interval %v after the reload", p.Target.Name, p.Target.Interval)
			}
		}
	})
}
