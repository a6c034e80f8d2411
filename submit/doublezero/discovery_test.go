// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
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
	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/probe/target"
	"github.com/xtwamp/xtwamp/submit/doublezero/ledgertest"
)

const refreshInterval = time.Minute

// finality is more than how long it takes the ledger to finalize what was done.
const finality = 20 * time.Second

// finder is a Discovery with a ledger and a host, in simulated time.
type finder struct {
	*lab
	config DiscoveryConfig
	*Discovery

	mu        sync.Mutex
	addresses []LocalAddress
	hostErr   error
	asked     int                                       // for the addresses
	tamper    func(method string, answer []byte) []byte // changes answers

	liar bool // it ignores which slot is asked for, and says that it is far ahead

	lists  [][]target.Target // told so far
	cancel context.CancelFunc
	done   chan struct{}
}

// find runs f with a finder of a device without links.
func find(t *testing.T, f func(f *finder)) {
	t.Helper()
	simulate(t, 0, ledgertest.Options{}, func(l *lab) {
		program, _ := ServiceabilityProgram("devnet")
		d := &finder{lab: l}
		common := target.Defaults()
		common.Profile = target.ProfileDoubleZero
		common.Labels = map[string]string{"site": "ams"}
		d.config = DiscoveryConfig{
			Endpoints: d, Program: program, Device: l.device, Addresses: d.list, Target: common, Refresh: refreshInterval,
			State: filepath.Join(t.TempDir(), "links.json"), Logger: l.config.Logger,
		}
		d.putDevice(l.device, "ams-dz001")
		f(d)
		d.stop()
	})
}

func (f *finder) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var c call
	if err := json.Unmarshal(body, &c); err != nil {
		return nil, err
	}
	f.mu.Lock()
	tamper := f.tamper
	if f.liar {
		body = bytes.Replace(body, []byte(`"minContextSlot":`), []byte(`"x":`), 1)
		tamper = func(_ string, answer []byte) []byte {
			return bytes.Replace(answer, []byte(`"slot":`), []byte(`"slot":9`), 1)
		}
	}
	f.mu.Unlock()
	r = r.Clone(r.Context())
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	res, err := f.way.RoundTrip(r)
	if err != nil || tamper == nil {
		return res, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	res.Body = io.NopCloser(bytes.NewReader(tamper(c.Method, answer)))
	return res, nil
}

// list lists the host's addresses.
func (f *finder) list() ([]LocalAddress, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	return slices.Clone(f.addresses), f.hostErr
}

// host sets the host's addresses, as interface and prefix by turns.
func (f *finder) host(addresses ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.addresses = nil
	for a := range slices.Chunk(addresses, 2) {
		f.addresses = append(f.addresses, LocalAddress{Interface: a[0], Prefix: netip.MustParsePrefix(a[1])})
	}
}

func (f *finder) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *finder) putDevice(device Pubkey, code string) {
	f.ledger.PutDevice(ledgertest.Pubkey(device), ledgertest.Device{Status: ledgertest.DeviceActivated, Code: code})
}

// putLink makes a link, and the device at its other end.
func (f *finder) putLink(link Pubkey, code string, a, z Pubkey, net string, status LinkStatus) {
	for _, end := range []Pubkey{a, z} {
		if end != f.device {
			f.putDevice(end, strings.Fields(string(end[:]))[0]+"-dz001")
		}
	}
	k := ledgertest.Link{Status: uint8(status), Code: code, SideA: ledgertest.Pubkey(a), SideZ: ledgertest.Pubkey(z)}
	if net != "" {
		k.Tunnel = netip.MustParsePrefix(net)
	}
	f.ledger.PutLink(ledgertest.Pubkey(link), k)
}

// run runs the discovery, and waits until it has asked once.
func (f *finder) run() {
	f.Helper()
	var err error
	if f.Discovery, err = NewDiscovery(f.config); err != nil {
		f.Fatal(err)
	}
	var ctx context.Context
	ctx, f.cancel = context.WithCancel(context.Background())
	f.done = make(chan struct{})
	f.set(func() { f.lists = nil })
	go func() {
		defer close(f.done)
		if err := f.Run(ctx, func(list []target.Target) { f.set(func() { f.lists = append(f.lists, list) }) }); err != nil {
			f.Errorf("discovery: %v", err)
		}
	}()
	synctest.Wait()
}

func (f *finder) stop() {
	if f.cancel == nil {
		return
	}
	f.cancel()
	<-f.done
	f.cancel = nil
	f.transport.CloseIdleConnections()
}

// refreshed lets the discovery ask again, for what was done before to be in the answer.
func (f *finder) refreshed() {
	pass(finality + refreshInterval)
	synctest.Wait()
}

// expect compares the list told last, a line per target: name, link, device, from where to where.
func (f *finder) expect(want ...string) {
	f.Helper()
	var got []string
	if lists := f.all(); len(lists) > 0 {
		for _, t := range lists[len(lists)-1] {
			if err := t.Validate(); err != nil {
				f.Errorf("target %s: %v", t.Name, err)
			}
			got = append(got, fmt.Sprintf("%s: %s to %s over %s, %s > %s", t.Name, short(t.Labels[LabelLink]), short(t.Labels[LabelTarget]),
				t.Interface, t.Source, t.Address))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		f.Errorf("targets (-want +got):\n%s\nstatus: %+v", diff, f.Status())
	}
}

// told compares how many lists were told.
func (f *finder) told(want int) {
	f.Helper()
	if n := len(f.all()); n != want {
		f.Errorf("%d lists, want %d", n, want)
	}
}

// all returns the lists told so far.
func (f *finder) all() [][]target.Target {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.lists)
}

// fails compares the error that is known, by a part of it.
func (f *finder) fails(part string) {
	f.Helper()
	if got := f.Status().LastError; part == "" && got != "" || !strings.Contains(got, part) {
		f.Errorf("error %q, want %q", got, part)
	}
}

// logged returns the messages of the discovery's log.
func (f *finder) logged() (lines []string) {
	for _, e := range f.logs.All() {
		lines = append(lines, e.Message)
	}
	return lines
}

// short is what the text of a test's key was made of.
func short(text string) string {
	k, err := ParsePubkey(text)
	if err != nil {
		return text
	}
	return strings.TrimRight(string(k[:31]), "\x00")
}

func TestLinksAreMeasuredFromBothEnds(t *testing.T) {
	find(t, func(f *finder) {
		f.putLink(key("link", 1), "ams-dz001:lon-dz001", f.device, key("lon", 0), "172.16.0.0/31", LinkActivated)
		f.putLink(key("link", 2), "fra-dz001:ams-dz001", key("fra", 0), f.device, "172.16.0.2/31", LinkActivated)
		f.putLink(key("link", 3), "fra-dz001:lon-dz001", key("fra", 0), key("lon", 0), "172.16.0.4/31", LinkActivated)
		f.host("lo", "127.0.0.1/8", "eth1", "172.16.0.0/31", "eth2", "172.16.0.3/31", "tu500", "169.254.0.0/31", "eth3", "2001:db8::/31")
		f.run()
		f.expect(
			"ams-dz001:lon-dz001: link 1 to lon 0 over eth1, 172.16.0.0 > 172.16.0.1",
			"fra-dz001:ams-dz001: link 2 to fra 0 over eth2, 172.16.0.3 > 172.16.0.2",
		)
		want := f.config.Target
		want.Name, want.Interface, want.Source, want.Address = "ams-dz001:lon-dz001", "eth1", netip.MustParseAddr("172.16.0.0"), "172.16.0.1"
		want.Labels = map[string]string{"site": "ams", LabelLink: key("link", 1).String(), LabelTarget: key("lon", 0).String()}
		if diff := cmp.Diff(want, f.all()[0][0], compareAddresses); diff != "" {
			t.Errorf("target (-want +got):\n%s", diff)
		}
		wantStatus := DiscoveryStatus{
			Device: f.device, Code: "ams-dz001", LastSuccess: time.Now(),
			Links: []DiscoveredLink{
				{
					Link: key("link", 1), Code: "ams-dz001:lon-dz001", Status: "activated", Device: key("lon", 0), DeviceCode: "lon-dz001",
					Target: "ams-dz001:lon-dz001", Interface: "eth1", Source: "172.16.0.0", Address: "172.16.0.1",
				},
				{
					Link: key("link", 2), Code: "fra-dz001:ams-dz001", Status: "activated", Device: key("fra", 0), DeviceCode: "fra-dz001",
					Target: "fra-dz001:ams-dz001", Interface: "eth2", Source: "172.16.0.3", Address: "172.16.0.2",
				},
			},
		}
		if diff := cmp.Diff(wantStatus, f.Status()); diff != "" {
			t.Errorf("status (-want +got):\n%s", diff)
		}
		if len(f.config.Target.Labels) != 1 {
			t.Errorf("labels of all targets: %v", f.config.Target.Labels)
		}
		// Three calls, and nothing is told or saved again while nothing changes.
		before := fileTime(t, f.config.State)
		for range 3 {
			f.refreshed()
		}
		f.told(1)
		if at := fileTime(t, f.config.State); at != before {
			t.Error("what has not changed is saved again")
		}
		if a, b := f.way.count("getProgramAccounts"), f.way.count("getMultipleAccounts"); a != 2*b || b < 4 || b > 6 {
			t.Errorf("%d and %d calls", a, b)
		}
	})
}

func fileTime(t *testing.T, path string) time.Time {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode(); mode != 0o600 {
		t.Errorf("mode %v", mode)
	}
	return info.ModTime()
}

// Case 16.
func TestStatusesOfLinksThatAreMeasured(t *testing.T) {
	find(t, func(f *finder) {
		var addresses []string
		for i := range LinkStatus(10) {
			net := fmt.Sprintf("172.16.0.%d/31", 2*i)
			f.putLink(key("link", int(i)), fmt.Sprint("ams:lon", uint8(i)), f.device, key("lon", 0), net, i)
			addresses = append(addresses, fmt.Sprint("eth", uint8(i)), net)
		}
		f.host(addresses...)
		f.run()
		f.expect(
			"ams:lon1: link 1 to lon 0 over eth1, 172.16.0.2 > 172.16.0.3",
			"ams:lon6: link 6 to lon 0 over eth6, 172.16.0.12 > 172.16.0.13",
			"ams:lon7: link 7 to lon 0 over eth7, 172.16.0.14 > 172.16.0.15",
			"ams:lon8: link 8 to lon 0 over eth8, 172.16.0.16 > 172.16.0.17",
		)
		var why []string
		for _, l := range f.Status().Links {
			why = append(why, l.Why)
		}
		want := []string{
			"status is pending", "", "status is status 2", "status is deleting", "status is rejected", "status is requested", "", "", "",
			"status is status 9",
		}
		if diff := cmp.Diff(want, why); diff != "" {
			t.Errorf("why not (-want +got):\n%s", diff)
		}
		// One that is drained goes on; one that is deleted ends, and is gone once its account is.
		f.putLink(key("link", 1), "ams:lon1", f.device, key("lon", 0), "172.16.0.2/31", LinkSoftDrained)
		f.putLink(key("link", 6), "ams:lon6", f.device, key("lon", 0), "172.16.0.12/31", LinkDeleting)
		f.ledger.Delete(ledgertest.Pubkey(key("link", 7)))
		f.refreshed()
		f.expect(
			"ams:lon1: link 1 to lon 0 over eth1, 172.16.0.2 > 172.16.0.3",
			"ams:lon8: link 8 to lon 0 over eth8, 172.16.0.16 > 172.16.0.17",
		)
		if n := len(f.Status().Links); n != 9 {
			t.Errorf("%d links, want 9", n)
		}
	})
}

// Case 5.
func TestAFailedStepLeavesTheList(t *testing.T) {
	find(t, func(f *finder) {
		f.putLink(key("link", 1), "ams:lon", f.device, key("lon", 0), "172.16.0.0/31", LinkActivated)
		f.host("eth1", "172.16.0.0/31")
		f.run()
		list := "ams:lon: link 1 to lon 0 over eth1, 172.16.0.0 > 172.16.0.1"
		f.expect(list)

		f.set(func() { f.hostErr = errors.New("no addresses today") })
		f.putLink(key("link", 2), "ams:fra", f.device, key("fra", 0), "172.16.0.2/31", LinkActivated)
		f.refreshed()
		f.told(1)
		f.fails("no addresses today")
		if n := len(f.Status().Links); n != 1 {
			t.Errorf("%d links, want 1", n)
		}
		f.set(func() { f.hostErr = nil })
		pass(lookAgain)
		synctest.Wait()
		f.expect("ams:fra: link 2 to fra 0 over (no /31), 172.16.0.2 > 172.16.0.3", list)
		f.fails("")

		for _, method := range []string{"getProgramAccounts", "getMultipleAccounts"} {
			heal := f.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Unavailable, Methods: []string{method}})
			f.refreshed()
			f.fails("503")
			heal()
			f.refreshed()
			f.fails("")
		}
		f.told(2)
	})
}

func TestALinkWithoutAnAddressBeginsWithItsInterface(t *testing.T) {
	find(t, func(f *finder) {
		f.putLink(key("link", 1), "ams:lon", f.device, key("lon", 0), "172.16.0.0/31", LinkActivated)
		f.putLink(key("link", 2), "fra:ams", key("fra", 0), f.device, "172.16.0.2/31", LinkActivated)
		f.putLink(key("link", 3), "ams:par", f.device, key("par", 0), "172.16.0.4/30", LinkActivated)
		f.putLink(key("link", 4), "ams:nyc", f.device, key("nyc", 0), "", LinkActivated)
		f.putLink(key("link", 5), "ams:all", f.device, key("all", 0), "0.0.0.0/0", LinkActivated)
		f.putLink(key("link", 6), "ams:mul", f.device, key("mul", 0), "239.0.0.0/31", LinkActivated)
		f.putLink(key("link", 7), "ams:ams", f.device, f.device, "172.16.0.8/31", LinkActivated)
		f.putLink(key("link", 8), "ams:sin", f.device, key("sin", 0), "172.16.0.10/31", LinkActivated)
		f.ledger.Delete(ledgertest.Pubkey(key("sin", 0)))
		pass(finality)
		// The right address with another mask is none: who knows what it leads to.
		f.host("eth1", "172.16.0.0/30", "eth2", "172.16.0.3/32", "eth3", "172.16.0.4/30", "eth4", "172.16.0.12/31")
		f.run()
		f.expect(
			"ams:lon: link 1 to lon 0 over (no /31), 172.16.0.0 > 172.16.0.1",
			"ams:par: link 3 to par 0 over (no /31), 172.16.0.4 > 172.16.0.5",
			"fra:ams: link 2 to fra 0 over (no /31), 172.16.0.3 > 172.16.0.2",
		)
		why := make(map[string]string)
		for _, l := range f.Status().Links {
			why[l.Code] = l.Why
		}
		want := map[string]string{
			"ams:lon": "no interface has a /31 address in 172.16.0.0/31", "fra:ams": "no interface has a /31 address in 172.16.0.2/31",
			"ams:par": "no interface has a /31 address in 172.16.0.4/30", "ams:nyc": "no tunnel net", "ams:all": "no tunnel net",
			"ams:ams": "both ends are this device", "ams:sin": "the device at the other end does not exist",
			"ams:mul": why["ams:mul"], // the target's own
		}
		if diff := cmp.Diff(want, why); diff != "" || !strings.Contains(why["ams:mul"], "unicast") {
			t.Errorf("why not (-want +got):\n%s", diff)
		}

		// No ledger is needed to see the interfaces come, as the second half of a /30 too.
		f.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Unavailable})
		f.host("eth1", "172.16.0.0/31", "eth2", "172.16.0.3/31", "eth3", "172.16.0.7/31")
		asked := f.way.count("getProgramAccounts")
		f.Look()
		f.expect(
			"ams:lon: link 1 to lon 0 over eth1, 172.16.0.0 > 172.16.0.1",
			"ams:par: link 3 to par 0 over eth3, 172.16.0.7 > 172.16.0.6",
			"fra:ams: link 2 to fra 0 over eth2, 172.16.0.3 > 172.16.0.2",
		)
		if n := f.way.count("getProgramAccounts"); n != asked {
			t.Errorf("the ledger was asked %d times", n-asked)
		}
		f.Look()
		f.told(2)
		f.stop()
		f.host()
		f.Look()
		f.told(2)
	})
}

func TestSeveralLinksBetweenTwoDevices(t *testing.T) {
	find(t, func(f *finder) {
		lon := key("lon", 0)
		f.putLink(key("link", 2), "ams:lon", f.device, lon, "172.16.0.2/31", LinkActivated)
		f.putLink(key("link", 3), "ams lon!", lon, f.device, "172.16.0.4/31", LinkActivated)
		f.host("eth2", "172.16.0.2/31", "eth3", "172.16.0.5/31", "eth4", "172.16.0.6/31", "both", "172.16.0.9/31", "both", "172.16.0.8/31")
		f.run()
		f.expect(
			"ams-lon-: link 3 to lon 0 over eth3, 172.16.0.5 > 172.16.0.4",
			"ams:lon: link 2 to lon 0 over eth2, 172.16.0.2 > 172.16.0.3",
		)
		// One with the same code comes, whose key is before that of the other: the other keeps its name.
		f.putLink(key("link", 1), "ams:lon", f.device, lon, "172.16.0.6/31", LinkActivated)
		// The host has both addresses of this one.
		f.putLink(key("link", 4), "", f.device, lon, "172.16.0.8/31", LinkActivated)
		f.refreshed()
		own, none := key("link", 1).String()[:8], key("link", 4).String()
		want := []string{
			none + ": link 4 to lon 0 over both, 172.16.0.8 > 172.16.0.9",
			"ams-lon-: link 3 to lon 0 over eth3, 172.16.0.5 > 172.16.0.4",
			"ams:lon: link 2 to lon 0 over eth2, 172.16.0.2 > 172.16.0.3",
			"ams:lon-" + own + ": link 1 to lon 0 over eth4, 172.16.0.6 > 172.16.0.7",
		}
		f.expect(want...)
		// So it is after a start, in which the ledger says nothing of names.
		f.stop()
		f.run()
		f.expect(want...)
		f.told(1)
		f.ledger.Delete(ledgertest.Pubkey(key("link", 2)))
		f.refreshed()
		f.expect(slices.DeleteFunc(want, func(s string) bool { return strings.HasPrefix(s, "ams:lon: ") })...)
	})
}

func TestAStartInAnOutage(t *testing.T) {
	find(t, func(f *finder) {
		f.putLink(key("link", 1), "ams:lon", f.device, key("lon", 0), "172.16.0.0/31", LinkActivated)
		f.host("eth1", "172.16.0.0/31")
		list := "ams:lon: link 1 to lon 0 over eth1, 172.16.0.0 > 172.16.0.1"
		f.run()
		f.stop()
		saved, err := os.ReadFile(f.config.State)
		if err != nil {
			t.Fatal(err)
		}

		heal := f.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Blackhole})
		f.run()
		f.expect(list)
		if s := f.Status(); !s.FromFile || !s.LastSuccess.IsZero() || s.Code != "ams-dz001" {
			t.Errorf("status %+v", s)
		}
		pass(22 * time.Hour)
		f.told(1)
		f.fails("deadline")
		heal()
		f.transport.CloseIdleConnections()
		f.refreshed()
		f.told(1)
		if s := f.Status(); s.FromFile || s.LastSuccess.IsZero() || s.LastError != "" {
			t.Errorf("status %+v", s)
		}
		f.stop()
		want := []string{
			"links of the device", "begin with saved links",
			"the ledger does not tell the links, the last list stays", "the ledger tells the links again",
		}
		if diff := cmp.Diff(want, slices.Compact(f.logged())); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}

		// A damaged file, or another device's, costs nothing but itself.
		heal = f.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Unavailable})
		for name, text := range map[string][]byte{
			"empty":   {},
			"cut":     saved[:len(saved)-10],
			"changed": bytes.Replace(saved, []byte(":lon"), []byte(":lax"), 1),
			"zeros":   make([]byte, len(saved)),
			"other":   []byte(`{"sha256":"","topology":null}`),
		} {
			if err := os.WriteFile(f.config.State, text, 0o600); err != nil {
				t.Fatal(err)
			}
			f.logs.TakeAll()
			f.run()
			f.told(0)
			if got := f.logged(); len(got) != 2 || !strings.Contains(got[0], "cannot be read") {
				t.Errorf("%s: log %q", name, got)
			}
			f.stop()
		}
		if err := os.WriteFile(f.config.State, saved, 0o600); err != nil {
			t.Fatal(err)
		}
		f.config.Device = key("device", 1)
		f.run()
		f.told(0)
		f.stop()
		f.config.Device = f.device

		// What is there instead is replaced.
		heal()
		f.transport.CloseIdleConnections()
		if err := os.WriteFile(f.config.State, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f.config.State+".tmp", []byte("of a crash"), 0o644); err != nil {
			t.Fatal(err)
		}
		f.run()
		f.expect(list)
		fileTime(t, f.config.State)
		if got, err := os.ReadFile(f.config.State); err != nil || !bytes.Equal(got, saved) {
			t.Errorf("saved %s, error %v", got, err)
		}
	})
}

// A link that comes and goes for 22 hours has few lines, the last about what it is in the end. It is measured whenever it is there.
func TestALinkThatComesAndGoes(t *testing.T) {
	find(t, func(f *finder) {
		const outage, half = 22 * time.Hour, 5 * time.Minute
		f.host("eth1", "172.16.0.0/31", "eth2", "172.16.0.2/31")
		f.putLink(key("link", 1), "ams:lon", f.device, key("lon", 0), "172.16.0.0/31", LinkActivated)
		f.run()
		f.refreshed()
		f.logs.TakeAll()
		begin := time.Now()
		for i := 0; time.Since(begin) < outage; i++ {
			f.putLink(key("link", 2), "ams:fra", f.device, key("fra", 0), "172.16.0.2/31", []LinkStatus{LinkActivated, LinkDeleting}[i%2])
			pass(half)
		}
		f.stop()
		if changes := len(f.all()); changes < int(outage/half) {
			t.Errorf("%d lists were told, want one for each change", changes)
		}
		lines := f.logs.All()
		if len(lines) < 3 || len(lines) > 9 {
			t.Fatalf("%d lines, want 3 to 9: %v", len(lines), lines[:min(len(lines), 20)])
		}
		for i, want := range []string{"added:[ams:fra]", "changed:[ams:fra]"} {
			if text := fmt.Sprint(lines[i].ContextMap()); !strings.Contains(text, want) {
				t.Errorf("line %d is %v, want %s", i, text, want)
			}
		}
	})
}

func TestAListThatCannotBeSaved(t *testing.T) {
	find(t, func(f *finder) {
		f.putLink(key("link", 1), "ams:lon", f.device, key("lon", 0), "172.16.0.0/31", LinkActivated)
		dir := filepath.Dir(f.config.State)
		f.config.State = filepath.Join(dir, "sub", "links.json")
		f.run()
		f.told(1)
		f.refreshed()
		if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
			t.Fatal(err)
		}
		f.refreshed()
		fileTime(t, f.config.State)
		want := []string{"links of the device", "the list of links cannot be saved", "the list of links is saved again"}
		if diff := cmp.Diff(want, f.logged()); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}

func TestLinksThatAnAnswerLeavesOut(t *testing.T) {
	find(t, func(f *finder) {
		f.putLink(key("link", 1), "ams:lon", f.device, key("lon", 0), "172.16.0.0/31", LinkActivated)
		f.putLink(key("link", 2), "fra:ams", key("fra", 0), f.device, "172.16.0.2/31", LinkActivated)
		f.host("eth1", "172.16.0.0/31", "eth2", "172.16.0.3/31")
		f.run()
		both := []string{
			"ams:lon: link 1 to lon 0 over eth1, 172.16.0.0 > 172.16.0.1",
			"fra:ams: link 2 to fra 0 over eth2, 172.16.0.3 > 172.16.0.2",
		}
		f.expect(both...)

		// A node that finds nothing, of links that are there.
		f.way.set(func(method string) (int, string) {
			if method == "getProgramAccounts" {
				return http.StatusOK, fmt.Sprintf(`"result":{"context":{"slot":%d},"value":[]}`, f.ledger.Slot()-32)
			}
			return 0, ""
		})
		for range 2 * believeEmpty {
			f.refreshed()
		}
		f.expect(both...)
		f.fails("")
		f.way.set(nil)

		// One is gone: so it is.
		f.ledger.Delete(ledgertest.Pubkey(key("link", 2)))
		f.refreshed()
		f.expect(both[:1]...)
		if !f.Gone(key("link", 2)) || f.Gone(key("link", 1)) || f.Gone(key("link", 3)) {
			t.Error("the link that is gone is not known to be, or another is")
		}

		// All are: that has to be heard more than once, in a row.
		f.ledger.Delete(ledgertest.Pubkey(key("link", 1)))
		f.refreshed()
		f.fails("answer 1 of")
		f.putLink(key("link", 1), "ams:lon", f.device, key("lon", 0), "172.16.0.0/31", LinkActivated)
		f.refreshed()
		f.fails("")
		f.ledger.Delete(ledgertest.Pubkey(key("link", 1)))
		pass(finality)
		for n := 1; n < believeEmpty; n++ {
			pass(refreshInterval)
			synctest.Wait()
			f.expect(both[:1]...)
			f.fails(fmt.Sprintf("no link is left of 1: answer %d of %d", n, believeEmpty))
		}
		pass(refreshInterval)
		synctest.Wait()
		f.expect()
		f.told(3)
		f.fails("")

		// The next process knows which are gone, until they are there again.
		f.stop()
		f.run()
		if !f.Gone(key("link", 1)) || !f.Gone(key("link", 2)) {
			t.Error("after a restart links that are gone are forgotten")
		}
		f.putLink(key("link", 2), "fra:ams", key("fra", 0), f.device, "172.16.0.2/31", LinkActivated)
		f.refreshed()
		if f.Gone(key("link", 2)) || !f.Gone(key("link", 1)) {
			t.Error("a link that is there again is gone, or the other is not")
		}
	})
}

func TestADeviceWithoutLinks(t *testing.T) {
	find(t, func(f *finder) {
		f.run()
		f.told(1)
		f.expect()
		if s := f.Status(); s.LastError != "" || s.Links == nil {
			t.Errorf("status %+v", s)
		}
		f.stop()
		f.config.Device = key("nobody", 0)
		f.config.State = ""
		f.run()
		f.told(0)
		f.fails("no such account")
	})
}

func TestHostileAnswers(t *testing.T) {
	find(t, func(f *finder) {
		f.putLink(key("link", 1), "ams:lon", f.device, key("lon", 0), "172.16.0.0/31", LinkActivated)
		f.putLink(key("link", 2), "fra:ams", key("fra", 0), f.device, "172.16.0.2/31", LinkActivated)
		f.host("eth1", "172.16.0.0/31")
		f.run()
		program, other := f.config.Program.String(), f.lab.config.Program.String()
		// accounts changes the accounts in answers of a method.
		accounts := func(method string, change func(list []any) []any) func(string, []byte) []byte {
			return func(m string, answer []byte) []byte {
				if m != method {
					return answer
				}
				var a map[string]any
				d := json.NewDecoder(bytes.NewReader(answer))
				d.UseNumber()
				if err := d.Decode(&a); err != nil {
					t.Error(err)
				}
				result := a["result"].(map[string]any)
				result["value"] = change(result["value"].([]any))
				return asJSON(a)
			}
		}
		data := func(text string) func(list []any) []any {
			return func(list []any) []any {
				for _, a := range list {
					a, _ := a.(map[string]any)
					if inner, ok := a["account"].(map[string]any); ok {
						a = inner
					}
					if a != nil {
						a["data"] = []string{text, "base64"}
					}
				}
				return list
			}
		}
		for name, test := range map[string]struct {
			tamper func(string, []byte) []byte
			want   string
		}{
			"links of another program": {func(m string, answer []byte) []byte {
				if m == "getProgramAccounts" {
					return bytes.ReplaceAll(answer, []byte(program), []byte(other))
				}
				return answer
			}, "account of program"},
			"devices of another program": {func(m string, answer []byte) []byte {
				if m == "getMultipleAccounts" {
					return bytes.ReplaceAll(answer, []byte(program), []byte(other))
				}
				return answer
			}, "belongs to program"},
			"a link twice":       {accounts("getProgramAccounts", func(l []any) []any { return append(l, l...) }), "there twice"},
			"short links":        {accounts("getProgramAccounts", data("BgAA")), "link account cut"},
			"links without data": {accounts("getProgramAccounts", data("")), "without data"},
			"devices as links":   {accounts("getProgramAccounts", data("BQAA")), "not a link"},
			"others' links":      {accounts("getProgramAccounts", data("Bg"+strings.Repeat("A", 300)+"AA")), "none of this device"},
			"short devices":      {accounts("getMultipleAccounts", data("BQAA")), "device account cut"},
			"links as devices":   {accounts("getMultipleAccounts", data("BgAA")), "not a device"},
			"no devices":         {accounts("getMultipleAccounts", func(l []any) []any { return make([]any, len(l)) }), "no such account"},
			"too few":            {accounts("getMultipleAccounts", func(l []any) []any { return l[1:] }), "nonsense"},
			"of long ago": {func(_ string, answer []byte) []byte {
				return bytes.Replace(answer, []byte(`"slot":`), []byte(`"slot":1,"x":`), 1)
			}, "answer is of slot 1"},
		} {
			f.set(func() { f.tamper = test.tamper })
			pass(refreshInterval + 10*time.Second)
			synctest.Wait()
			if got := f.Status().LastError; !strings.Contains(got, test.want) {
				t.Errorf("%s: error %q, want %q", name, got, test.want)
			}
			f.set(func() { f.tamper = nil })
			f.refreshed()
			f.fails("")
			f.told(1)
		}
	})
}

func TestANodeThatIsAheadOfTheLedger(t *testing.T) {
	find(t, func(f *finder) {
		f.putLink(key("link", 1), "ams:lon", f.device, key("lon", 0), "172.16.0.0/31", LinkActivated)
		f.set(func() { f.liar = true })
		f.run()
		f.told(1)
		f.set(func() { f.liar = false })
		f.putLink(key("link", 2), "ams:fra", f.device, key("fra", 0), "172.16.0.2/31", LinkActivated)
		f.refreshed()
		f.fails("Minimum context slot")
		f.told(1)
		pass(5 * refreshInterval) // it is believed for two, and the next attempt may be one later
		synctest.Wait()
		f.fails("")
		f.told(2)
	})
}

func TestARefreshThatHangs(t *testing.T) {
	find(t, func(f *finder) {
		f.putLink(key("link", 1), "ams:lon", f.device, key("lon", 0), "172.16.0.0/31", LinkActivated)
		var beats []time.Duration
		last := time.Now()
		late := time.Duration(0)
		f.config.Beat = func(next time.Duration) {
			if n := len(beats); n > 0 {
				late = max(late, time.Since(last)-beats[n-1])
			}
			beats, last = append(beats, next), time.Now()
		}
		f.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Silence})
		f.host("eth1", "172.16.0.0/31")
		f.run()
		began := time.Now()
		f.Look() // waits for nothing
		if d := time.Since(began); d != 0 {
			t.Errorf("a look took %v", d)
		}
		pass(refreshLimit)
		synctest.Wait()
		f.fails("deadline")
		f.ledger.Heal()
		f.transport.CloseIdleConnections()
		f.refreshed()
		f.expect("ams:lon: link 1 to lon 0 over eth1, 172.16.0.0 > 172.16.0.1")
		pass(10 * refreshInterval)

		// It ends with its context, whatever is under way.
		f.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Silence})
		f.transport.CloseIdleConnections()
		pass(refreshInterval)
		began = time.Now()
		f.stop()
		if d := time.Since(began); d != 0 {
			t.Errorf("it took %v to stop", d)
		}
		if late > 0 {
			t.Errorf("a beat was %v late", late)
		}
	})
}

func TestAttemptsInAnOutage(t *testing.T) {
	find(t, func(f *finder) {
		f.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Unavailable})
		f.run()
		pass(10 * time.Second)
		if n := f.way.count("getProgramAccounts"); n < 3 || n > 6 {
			t.Errorf("%d attempts in 10 s", n)
		}
		pass(22 * time.Hour)
		if n := f.way.count("getProgramAccounts"); n < 22*50 || n > 22*75 {
			t.Errorf("%d attempts in 22 h", n)
		}
		if got := slices.Compact(f.logged()); len(got) != 1 {
			t.Errorf("log %q", got)
		}
		// After it the first attempts come soon again.
		f.ledger.Heal()
		f.refreshed()
		f.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Unavailable})
		before := f.way.count("getProgramAccounts")
		pass(refreshInterval + 10*time.Second)
		if n := f.way.count("getProgramAccounts") - before; n < 3 {
			t.Errorf("%d attempts at the start of the next outage", n)
		}
		f.ledger.Heal()
		f.refreshed()
		// By turns it works and fails: that is no news.
		f.logs.TakeAll()
		for range 100 {
			heal := f.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Unavailable, For: 90 * time.Second})
			pass(3 * time.Minute)
			heal()
		}
		if got := f.logged(); len(got) > 2 {
			t.Errorf("log %q", got)
		}
	})
}

func TestAPanicIsNotTheEnd(t *testing.T) {
	find(t, func(f *finder) {
		f.putLink(key("link", 1), "ams:lon", f.device, key("lon", 0), "172.16.0.0/31", LinkActivated)
		d, err := NewDiscovery(f.config)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for n := range 2 {
			var told int
			func() {
				defer func() { _ = recover() }()
				_ = d.Run(ctx, func(list []target.Target) {
					told = len(list)
					if n == 0 {
						panic("no")
					}
					cancel()
				})
			}()
			if told != 1 {
				t.Errorf("run %d: told of %d", n, told)
			}
		}
	})
}

// However often the discovery panics, a list that cannot be read has one line.
func TestADamagedListIsToldOnce(t *testing.T) {
	find(t, func(f *finder) {
		f.must(os.WriteFile(f.config.State, []byte("x"), 0o600))
		f.config.Beat = func(time.Duration) { panic("no") }
		d, err := NewDiscovery(f.config)
		f.must(err)
		for range 10 {
			func() {
				defer func() { _ = recover() }()
				_ = d.Run(t.Context(), func([]target.Target) {})
			}()
		}
		if got := f.logged(); len(got) != 1 || !strings.Contains(got[0], "cannot be read") {
			t.Errorf("log %q", got)
		}
	})
}

func TestDiscoveryConfig(t *testing.T) {
	list := func() ([]LocalAddress, error) { return nil, nil }
	right := DiscoveryConfig{
		Endpoints: http.DefaultTransport, Program: key("program", 0), Device: key("device", 0), Addresses: list, Target: target.Defaults(),
		Refresh: time.Second, Logger: zap.NewNop(),
	}
	if err := right.Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(c *DiscoveryConfig){
		"no endpoints": func(c *DiscoveryConfig) { c.Endpoints = nil },
		"no addresses": func(c *DiscoveryConfig) { c.Addresses = nil },
		"no logger":    func(c *DiscoveryConfig) { c.Logger = nil },
		"no program":   func(c *DiscoveryConfig) { c.Program = Pubkey{} },
		"no device":    func(c *DiscoveryConfig) { c.Device = Pubkey{} },
		"no refresh":   func(c *DiscoveryConfig) { c.Refresh = 0 },
		"no interval":  func(c *DiscoveryConfig) { c.Target.Interval = 0 },
	} {
		c := right
		change(&c)
		if _, err := NewDiscovery(c); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

func TestPrograms(t *testing.T) {
	for _, network := range Networks() {
		a, ok := TelemetryProgram(network)
		b, alsoOK := ServiceabilityProgram(network)
		if !ok || !alsoOK || a == b {
			t.Errorf("%s: %s, %s", network, a, b)
		}
	}
	if k, ok := ServiceabilityProgram("nonet"); ok {
		t.Errorf("a network of no name has program %s", k)
	}
	if k, _ := ServiceabilityProgram("devnet"); ledgertest.Pubkey(k) != ledgertest.New(ledgertest.Options{}).Serviceability() {
		t.Errorf("devnet: %s", k)
	}
}
