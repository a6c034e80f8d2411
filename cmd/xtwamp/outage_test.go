// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/xtwamp/xtwamp/probe"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/submit/doublezero"
	"github.com/xtwamp/xtwamp/submit/doublezero/ledgertest"
	"github.com/xtwamp/xtwamp/submit/endpoint"

	dto "github.com/prometheus/client_model/go"
)

// ledgerLab is a ledger behind one name with five addresses, and the configuration of a device with links, in simulated time.
type ledgerLab struct {
	testing.TB
	*ledgertest.Ledger
	addresses []string
	links     int
	dir       string
	config    string // file
}

const token = "s3cr3t-t0ken"

// named is a key that stands for something.
func named(kind string, n int) ledgertest.Pubkey {
	var k ledgertest.Pubkey
	copy(k[:], fmt.Sprintf("%s %d", kind, n))
	k[31] = 1
	return k
}

func newLedgerLab(t testing.TB, links int, o ledgertest.Options) *ledgerLab {
	t.Helper()
	l := &ledgerLab{TB: t, Ledger: ledgertest.New(o), links: links, dir: t.TempDir()}
	var addresses []netip.Addr
	for i := range 5 {
		a := netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})
		name := netip.AddrPortFrom(a, 443).String()
		l.Listen(ledgertest.Address{Name: name, TLS: true})
		addresses, l.addresses = append(addresses, a), append(l.addresses, name)
	}
	l.SetHost("ledger.example.net", addresses...)
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))
	numbers := make([]int, len(key)) // a slice of bytes would become base64
	for i, b := range key {
		numbers[i] = int(b)
	}
	text, err := json.Marshal(numbers)
	if err != nil {
		t.Fatal(err)
	}
	keypair := filepath.Join(l.dir, "key.json")
	if err := os.WriteFile(keypair, text, 0o600); err != nil {
		t.Fatal(err)
	}
	agent := ledgertest.PubkeyOf(key)
	l.Fund(agent, 1000e9)
	l.PutDevice(named("device", 0), ledgertest.Device{Status: ledgertest.DeviceActivated, Publisher: agent})
	var b strings.Builder
	fmt.Fprintf(&b, `
device: switch
control: {socket: ""}
web: {listen: []}
store: {path: %s/samples.db, min_free_bytes: 1MiB, commit_interval: 30s}
reflector: {enabled: false}
doublezero:
  network: devnet
  rpc_urls: ["https://user:%s@ledger.example.net/%s?key=%s"]
  device: %s
  keypair_file: %s
submit:
  doublezero: {enabled: true}
targets:
`, l.dir, token, token, token, named("device", 0), keypair)
	for i := range links {
		l.PutDevice(named("target", i), ledgertest.Device{Status: ledgertest.DeviceActivated})
		l.PutLink(named("link", i), ledgertest.Link{Status: ledgertest.LinkActivated, SideA: named("device", 0), SideZ: named("target", i)})
		fmt.Fprintf(&b, "  - {name: link%d, address: 198.51.100.%d, labels: {%s: %s, %s: %s}}\n", i, i+1,
			doublezero.LabelLink, named("link", i), doublezero.LabelTarget, named("target", i))
	}
	l.config = filepath.Join(l.dir, "xtwamp.yml")
	if err := os.WriteFile(l.config, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *ledgerLab) network() network {
	return network{lookup: l.Lookup, dial: l.Dial, tls: tlsConfig(l.CA())}
}

// run runs a daemon with a simulated engine until stop is called.
func (l *ledgerLab) run(reach func(target int, n uint64) (time.Duration, bool)) (d *daemon, logs *observer.ObservedLogs, stop func()) {
	l.Helper()
	return l.runOn(new(host), reach)
}

// runOn is run on a host with interfaces.
func (l *ledgerLab) runOn(h *host, reach func(target int, n uint64) (time.Duration, bool)) (d *daemon, logs *observer.ObservedLogs, stop func()) {
	l.Helper()
	cfg, err := loadConfig(l.config, "host")
	if err != nil {
		l.Fatal(err)
	}
	core, logs := observer.New(zapcore.InfoLevel)
	d, err = newDaemon(cfg, zap.New(core), seams{
		network: l.network(), noSync: true, addresses: h.list,
		engine: func(c probe.Config) (*probe.Engine, error) { return probe.Simulate(c, reach) },
	})
	if err != nil {
		l.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.run(ctx) }()
	return d, logs, func() {
		cancel()
		if err := <-done; err != nil {
			l.Errorf("daemon: %v", err)
		}
	}
}

// The outage that this program was written for, made longer: for 22 hours no address of the ledger answers, some with 503 and some
// with silence; an epoch ends in the meantime, and the addresses come back one after another.
func TestTheOutageOf22Hours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		<-time.After(time.Until(time.Date(2026, 7, 29, 12, 0, 0, 0, time.UTC)))
		// 12 h before the end of the epoch.
		const links, outage = 10, 22 * time.Hour
		l := newLedgerLab(t, links, ledgertest.Options{SlotIndex: 432_000 - 12*9000})
		defer l.Close()
		lost := func(target int, n uint64) bool { return n%97 == uint64(target) }
		d, logs, stop := l.run(func(target int, n uint64) (time.Duration, bool) {
			return time.Duration(target+1)*time.Millisecond + time.Duration(n%5000+1)*time.Microsecond, !lost(target, n)
		})
		began := time.Now()
		wait(30 * time.Minute)
		before := len(l.AllSamples())
		if before != links {
			t.Errorf("%d accounts after half an hour, want %d", before, links)
		}

		for i, a := range l.addresses {
			kind := []ledgertest.Kind{ledgertest.Unavailable, ledgertest.Blackhole, ledgertest.UnavailableJSON, ledgertest.Silence, ledgertest.Blackhole}[i]
			l.Inject(ledgertest.Fault{Kind: kind, Address: a})
		}
		wait(outage)
		l.Heal()
		recovered := time.Now()
		totals := func() (waiting, delivered, offered uint64, dropped map[string]uint64) {
			s, err := d.store.Load().Totals(doublezero.Name)
			if err != nil {
				t.Fatal(err)
			}
			return s.Waiting, s.Delivered, s.Offered, s.Dropped
		}
		for waiting, _, _, _ := totals(); waiting > 10*links && time.Since(recovered) < 30*time.Minute; waiting, _, _, _ = totals() {
			wait(time.Second)
		}
		took := time.Since(recovered)
		t.Logf("the backlog was drained %v after recovery", took)
		if took > 10*time.Minute {
			t.Errorf("the backlog was drained %v after recovery, want within 10 minutes", took)
		}
		wait(5 * time.Minute)

		// No probe was missed.
		due := uint64(time.Since(began)/(10*time.Second)) - 1
		for _, p := range d.engine.Paths() {
			if p.Sent < due || p.Skipped > 0 {
				t.Errorf("%s: %d probes sent, %d left out, want at least %d", p.Target.Name, p.Sent, p.Skipped, due)
			}
		}
		waiting, delivered, offered, dropped := totals()
		if delivered+waiting != offered || len(dropped) > 0 {
			t.Errorf("offered %d, delivered %d, waiting %d, dropped %v", offered, delivered, waiting, dropped)
		}

		// Every sample at its index, in both epochs.
		stop()
		reports, err := verification{config: l.config, store: filepath.Join(l.dir, "samples.db"), network: l.network()}.run(t.Context(), env{hostname: os.Hostname})
		if err != nil {
			t.Fatal(err)
		}
		if len(reports) != 2*links {
			t.Errorf("%d accounts, want those of %d links in two epochs", len(reports), links)
		}
		checked := 0
		for _, r := range reports {
			checked += r.Checked
			if !r.Equal() || r.Checked != r.Written || len(r.Zeros) != 1 {
				t.Errorf("account: %+v", r)
			}
		}
		if uint64(checked) < delivered { // there is one more flush at the end
			t.Errorf("%d samples in the ledger, want %d", checked, delivered)
		}

		lines := make(map[string][]string)
		for _, e := range logs.All() {
			if e.Message == "path is open" && e.Time.Sub(began) < time.Minute {
				continue // one for each link at the start
			}
			lines[e.LoggerName] = append(lines[e.LoggerName], e.Time.Format(time.TimeOnly)+" "+e.Message)
			if strings.Contains(fmt.Sprint(e.Message, e.ContextMap()), token) {
				t.Errorf("a token of the URL is in the log: %s %v", e.Message, e.ContextMap())
			}
		}
		for _, name := range slices.Sorted(maps.Keys(lines)) {
			t.Logf("%s:\n  %s", name, strings.Join(lines[name], "\n  "))
			if len(lines[name]) > 9 {
				t.Errorf("%d lines of %s, want at most 9", len(lines[name]), name)
			}
		}
	})
}

// Case 1: no answer of the ledger is needed for a single probe, not even at the start.
func TestMeasuringStartsInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait(time.Until(time.Date(2026, 7, 29, 12, 0, 0, 0, time.UTC)))
		l := newLedgerLab(t, 2, ledgertest.Options{SlotIndex: 100_000})
		defer l.Close()
		for i, a := range l.addresses {
			l.Inject(ledgertest.Fault{Kind: []ledgertest.Kind{ledgertest.Unavailable, ledgertest.Blackhole}[i%2], Address: a})
		}
		d, _, stop := l.run(func(int, uint64) (time.Duration, bool) { return time.Millisecond, true })
		defer stop()
		wait(10 * time.Minute)
		for _, p := range d.engine.Paths() {
			if p.Received < 58 || p.Received != p.Sent {
				t.Errorf("%s: %d sent, %d received in 10 minutes, want 60", p.Target.Name, p.Sent, p.Received)
			}
		}
		totals, err := d.store.Load().Totals(doublezero.Name)
		if err != nil {
			t.Fatal(err)
		}
		if totals.Waiting != totals.Offered || totals.Offered < 110 {
			t.Errorf("totals in the outage: %+v", totals)
		}
		l.Heal()
		wait(4 * time.Minute)
		if totals, err = d.store.Load().Totals(doublezero.Name); err != nil || totals.Delivered < 120 {
			t.Errorf("totals after it: %+v, %v", totals, err)
		}
	})
}

// wait lets simulated time go by.
func wait(d time.Duration) { <-time.After(d) }

func tlsConfig(roots *x509.CertPool) *tls.Config { return &tls.Config{RootCAs: roots} }

// What the exporter says about the ledger, and that nothing of a URL that may be secret is in it.
func TestLedgerMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait(time.Until(time.Date(2026, 7, 29, 12, 0, 0, 0, time.UTC)))
		l := newLedgerLab(t, 2, ledgertest.Options{SlotIndex: 100_000})
		defer l.Close()
		l.Inject(ledgertest.Fault{Kind: ledgertest.Delay, Wait: 20 * time.Millisecond})
		d, _, stop := l.run(func(_ int, n uint64) (time.Duration, bool) { return time.Millisecond, n%10 != 0 })
		defer stop()
		wait(5 * time.Minute)
		l.Inject(ledgertest.Fault{Kind: ledgertest.Unavailable, Address: l.addresses[0]})
		wait(8 * time.Minute) // the balance is read every 10 minutes
		gathered, err := d.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		checkGolden(t, "ledger-metrics.golden", families(gathered, "xtwamp_ledger_"))
		for _, f := range gathered {
			if text := f.String(); strings.Contains(text, token) || strings.Contains(text, "user") && strings.Contains(text, "ledger.example") {
				t.Errorf("secret in a metric: %s", text)
			}
		}
		value := func(name, label string) (v float64, found bool) {
			for _, f := range gathered {
				for _, m := range f.GetMetric() {
					if f.GetName() == name && (label == "" || slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == label })) {
						return m.GetGauge().GetValue() + m.GetCounter().GetValue(), true
					}
				}
			}
			return 0, false
		}
		first := "https://ledger.example.net:443/192.0.2.1"
		for name, want := range map[string]float64{
			"xtwamp_ledger_endpoint_up": 0, "xtwamp_ledger_endpoint_in_use": 0, "xtwamp_ledger_clock_hold": 0,
		} {
			label := first
			if name == "xtwamp_ledger_clock_hold" {
				label = ""
			}
			if v, ok := value(name, label); !ok || v != want {
				t.Errorf("%s{%s} = %v (there: %v), want %v", name, label, v, ok, want)
			}
		}
		// What has not happened yet is 0, so that rate() sees the first time.
		for name, label := range map[string]string{
			"xtwamp_ledger_endpoint_requests_total": endpoint.FaultTimeout, "xtwamp_samples_dropped_total": store.DropReasons()[0],
		} {
			if v, ok := value(name, label); !ok || v != 0 {
				t.Errorf("%s of %s = %v (there: %v), want 0", name, label, v, ok)
			}
		}
		if v, _ := value("xtwamp_ledger_account_samples", "link1"); v < 60 || v > 78 {
			t.Errorf("account samples = %v after 13 minutes, want about 70", v)
		}
		if v, _ := value("xtwamp_ledger_zeros_written_total", "lost"); v < 10 || v > 16 {
			t.Errorf("zeros = %v, want one in ten of two links", v)
		}
		if v, _ := value("xtwamp_ledger_payer_balance_lamports", ""); v < 900e9 || v >= 1000e9 {
			t.Errorf("balance = %v", v)
		}
	})
}
