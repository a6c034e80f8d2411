// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/netns/netnstest"
	"github.com/xtwamp/xtwamp/submit/doublezero/ledgertest"
)

// device is a switch with one link, whose management has a namespace of its own: with the ledger, a name server that alone knows its name,
// and Prometheus.
type device struct {
	*testing.T
	links, management, third *netnstest.NS
	ledger                   *ledgertest.Ledger
	ledgerAt                 []net.Listener // its listeners
	keypair                  string         // file
	scraper                  *http.Client
}

const ledgerName = "ledger.xtwamp.example"

func newDevice(t *testing.T) *device {
	t.Helper()
	lab := netnstest.New(t)
	d := &device{T: t, links: lab.Namespace("links"), management: lab.Namespace("management"), third: lab.Namespace("third")}
	far := lab.Namespace("far")
	lab.Veth(d.links, "eth1", []string{"172.16.0.0/31"}, far, "eth1", []string{"172.16.0.1/31"})
	reflectingIn(t, far)
	d.serveLedger()
	d.serveNames()
	d.scrape("global: {scrape_interval: 500ms}\nscrape_configs: [{job_name: xtwamp, static_configs: [{targets: [\"" + webAddress + "\"]}]}]\n")
	return d
}

// serveLedger has a ledger in the management namespace that knows the link.
func (d *device) serveLedger() {
	d.Helper()
	d.ledger = ledgertest.New(ledgertest.Options{SlotTime: 20 * time.Millisecond, Finality: 16, SlotIndex: 100_000})
	d.Cleanup(d.ledger.Close)
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))
	d.keypair = filepath.Join(d.TempDir(), "key.json")
	text := "[" + strings.Join(strings.Fields(strings.Trim(fmt.Sprint([]byte(key)), "[]")), ",") + "]"
	if err := os.WriteFile(d.keypair, []byte(text), 0o600); err != nil {
		d.Fatal(err)
	}
	agent := ledgertest.PubkeyOf(key)
	d.ledger.Fund(agent, 1000e9)
	d.ledger.PutDevice(named("device", 0), ledgertest.Device{Status: ledgertest.DeviceActivated, Code: "near-dz001", Publisher: agent})
	d.ledger.PutDevice(named("target", 0), ledgertest.Device{Status: ledgertest.DeviceActivated, Code: "far-dz001"})
	d.ledger.PutLink(named("link", 0), ledgertest.Link{
		Status: ledgertest.LinkActivated, Code: "near:far", SideA: named("device", 0), SideZ: named("target", 0),
		Tunnel: netip.MustParsePrefix("172.16.0.0/31"),
	})
	d.openLedger()
}

// openLedger has the ledger listen.
func (d *device) openLedger() {
	d.Helper()
	d.ledgerAt = nil
	for _, address := range []string{"127.0.0.1:8899", "127.0.0.2:8899"} {
		l := d.listen(address)
		d.ledger.Serve(l, ledgertest.Address{Name: address})
		d.ledgerAt = append(d.ledgerAt, l)
	}
}

func (d *device) listen(address string) (l net.Listener) {
	d.Helper()
	if err := d.management.Do(func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	}); err != nil {
		d.Fatal(err)
	}
	return l
}

// serveNames has a name server in the management namespace, that its resolv.conf names.
func (d *device) serveNames() {
	d.Helper()
	zone, err := dns.NewRR(ledgerName + ". A 127.0.0.1")
	if err != nil {
		d.Fatal(err)
	}
	other, err := dns.NewRR(ledgerName + ". A 127.0.0.2")
	if err != nil {
		d.Fatal(err)
	}
	server := &dns.Server{Handler: dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		reply := new(dns.Msg).SetReply(r)
		if q := r.Question[0]; q.Name == ledgerName+"." && q.Qtype == dns.TypeA {
			reply.Answer = []dns.RR{zone, other}
		} else if q.Name != ledgerName+"." {
			reply.Rcode = dns.RcodeNameError
		}
		_ = w.WriteMsg(reply) // who asked sees what is missing
	})}
	if err := d.management.Do(func() (err error) {
		server.PacketConn, err = net.ListenPacket("udp", "127.0.0.1:53")
		return err
	}); err != nil {
		d.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.ActivateAndServe() }()
	d.Cleanup(func() {
		server.PacketConn.Close()
		<-ended
	})
	folder := filepath.Join("/etc/netns", d.management.Name)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() {
		os.RemoveAll(folder)
		os.Remove("/etc/netns") // if nothing else is in it
	})
	if err := os.WriteFile(filepath.Join(folder, "resolv.conf"), []byte("nameserver 127.0.0.1\n"), 0o644); err != nil {
		d.Fatal(err)
	}
}

// scrape runs a Prometheus with a configuration in the management namespace, which scrapes the web listener there.
func (d *device) scrape(text string) {
	d.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		d.Fatal(err)
	}
	dir := d.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		d.Fatal(err)
	}
	cmd := exec.Command(program, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:9090")
	logged := new(output)
	cmd.Stderr = logged
	if err := d.management.Do(cmd.Start); err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if d.Failed() {
			d.Logf("Prometheus:\n%s", logged)
		}
	})
	transport := &http.Transport{DialContext: placeOf(d, d.management).Dial}
	d.Cleanup(transport.CloseIdleConnections)
	d.scraper = &http.Client{Transport: transport, Timeout: 5 * time.Second}
}

func placeOf(t testing.TB, ns *netnstest.NS) netns.Place {
	t.Helper()
	place, err := netns.ParsePlace(ns.Name)
	if err != nil {
		t.Fatal(err)
	}
	return place
}

// query is the value that Prometheus has for an expression; false if it has none.
func (d *device) query(expression string) (value string, ok bool) {
	d.Helper()
	series := d.ask(expression)
	if len(series) == 0 {
		return "", false
	}
	return fmt.Sprint(series[0].Value[1]), true
}

// promSeries is a series with its value.
type promSeries struct {
	Metric map[string]string
	Value  [2]any // time and value
}

// ask is query for all series.
func (d *device) ask(expression string) []promSeries {
	d.Helper()
	resp, err := d.scraper.Get("http://127.0.0.1:9090/api/v1/query?query=" + url.QueryEscape(expression))
	if err != nil {
		return nil // it is not up yet
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusServiceUnavailable {
		return nil // nor is it now
	}
	var answer struct {
		Status, Error string
		Data          struct {
			Result []promSeries
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Status != "success" {
		d.Fatalf("%s: %v %s", expression, err, answer.Error)
	}
	return answer.Data.Result
}

// config is that of a daemon with a role in each of two namespaces.
func (d *device) config(device string) (dir, file string) {
	d.Helper()
	dir = d.TempDir()
	file = filepath.Join(dir, "xtwamp.yml")
	text := fmt.Sprintf(`
device: %s
control: {socket: %[2]s/control.sock}
web: {listen: ["%[3]s"]}
namespaces: {probe: %[4]s, ledger: %[5]s, web: %[5]s}
store: {path: %[2]s/samples.db, commit_interval: 200ms, min_free_bytes: 1MiB}
probe: {interval: 100ms, timeout: 300ms, late_window: 300ms}
discovery: {doublezero: {enabled: true, refresh: 1s}}
doublezero: {network: devnet, rpc_urls: ["http://%[6]s:8899"], device: %[7]s, keypair_file: %[8]s}
submit: {doublezero: {enabled: true, interval: 1s, sample_interval: 100ms}}
`, device, dir, webAddress, d.links.Name, d.management.Name, ledgerName, named("device", 0), d.keypair)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		d.Fatal(err)
	}
	return dir, file
}

// Whichever namespace it is started in, links are found and measured in that of the links, the ledger is found and reached from the
// management's, and metrics are there for Prometheus.
func TestStartedAnywhere(t *testing.T) {
	d := newDevice(t)
	for _, start := range []*netnstest.NS{d.links, d.management, d.third} {
		name := start.Name[strings.LastIndex(start.Name, "-")+1:]
		t.Run(name, func(t *testing.T) {
			d := *d
			d.T = t
			before := d.written()
			dir, file := d.config("started-in-" + name)
			p := startDaemon(t, start, dir, file)
			awaitMeasuring(t, dir)
			if !strings.Contains(d.links.Exec(t, "ss", "-Hlun"), ":862") {
				t.Error("the reflector is not where the interfaces are")
			}
			if !listensIn(t, d.management) || listensIn(t, d.links) || listensIn(t, d.third) {
				t.Error("the web listener is not in its namespace, or in another too")
			}
			awaitState(t, "samples in the ledger", func() bool { return d.written() > before+10 })
			awaitState(t, "the path in Prometheus", func() bool {
				up, _ := d.query(`xtwamp_path_info{path="near:far",interface="eth1"} and on() xtwamp_ledger_account_samples > 0`)
				return up == "1"
			})
			code, out, errs := invoke(t, "status", "--socket", filepath.Join(dir, "control.sock"))
			if code != 0 || !strings.Contains(out, "near-dz001") || !strings.Contains(out, "http://"+ledgerName+":8899/127.0.0.2") {
				t.Errorf("status: exit %d %s\n%s", code, errs, out)
			}
			if code := p.end(syscall.SIGINT); code != 0 {
				t.Errorf("ended with %d\n%s", code, p.errs)
			}
		})
	}
}

// written is how many samples with data the ledger has.
func (d *device) written() (n int) {
	for _, account := range d.ledger.AllSamples() {
		for _, v := range account.Values {
			if v != 0 {
				n++
			}
		}
	}
	return n
}

// A discovered link whose address is not there yet is not sent to, and begins when the interface has it. The next process measures it though
// the ledger is away.
func TestADiscoveredLinkBeginsWithItsAddress(t *testing.T) {
	d := newDevice(t)
	d.links.Exec(t, "ip", "address", "del", "172.16.0.0/31", "dev", "eth1")
	dir, file := d.config("near")
	edit(t, file, "refresh: 1s", "refresh: 1m") // an address is not to wait for that
	p := startDaemon(t, d.links, dir, file)
	scraped := func(name, label string) float64 {
		_, scrape := getFrom(t, dir, "/metrics")
		return metric(scrape, name, `path="near:far"`, label)
	}
	awaitState(t, "probes that are not sent", func() bool { return scraped("xtwamp_probes_not_sent_total", `reason="no_interface"`) > 3 })
	if n := scraped("xtwamp_probes_sent_total", ""); n != 0 {
		t.Errorf("%v probes sent without an address", n)
	}
	d.links.Exec(t, "ip", "address", "add", "172.16.0.0/31", "dev", "eth1")
	awaitState(t, "replies", func() bool { return scraped("xtwamp_probes_received_total", "") > 3 })
	if code := p.end(syscall.SIGINT); code != 0 {
		t.Errorf("ended with %d\n%s", code, p.errs)
	}

	for _, address := range []string{"127.0.0.1:8899", "127.0.0.2:8899"} {
		d.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Silence, Address: address})
	}
	p = startDaemon(t, d.links, dir, file)
	awaitState(t, "replies though the ledger is away", func() bool { return scraped("xtwamp_probes_received_total", "") > 3 })
	if _, scrape := getFrom(t, dir, "/metrics"); metric(scrape, "xtwamp_ledger_endpoint_up") != 0 {
		t.Error("an endpoint is good")
	}
	if code := p.end(syscall.SIGINT); code != 0 {
		t.Errorf("ended with %d\n%s", code, p.errs)
	}
}
