// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/submit"
	"github.com/xtwamp/xtwamp/submit/doublezero/ledgertest"
)

const (
	flushInterval = time.Minute
	probeInterval = 10 * time.Second
	ledgerAddress = "192.0.2.1:80"
)

// seed of the agent's key.
var seed = [ed25519.SeedSize]byte{1}

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		if err := runChild(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// birth is when a lab's time begins: when the outage that this program is there to survive began.
var birth = time.Date(2026, 7, 29, 12, 0, 0, 0, time.UTC)

// lab is a device with a store and a ledger, in simulated time. Its links are measured by add alone.
type lab struct {
	testing.TB
	ledger    *ledgertest.Ledger
	transport *http.Transport
	way       *direct
	keypair   *Keypair
	config    Config // of the sink
	storePath string
	store     *store.Log
	retention time.Duration // of the store
	offset    int64         // of the wall clock from the monotonic one
	paths     []store.Path
	device    Pubkey
	links     []Pubkey
	targets   []Pubkey
	logs      *observer.ObservedLogs

	// of the submitter that runs:
	sink   *Sink
	cancel context.CancelFunc
	done   chan struct{}
	stats  *submit.Submitter
}

func key(kind string, n int) (k Pubkey) {
	copy(k[:], fmt.Sprintf("%s %d", kind, n))
	k[31] = 1
	return k
}

// simulate runs f with a lab of n links in simulated time.
func simulate(t *testing.T, n int, o ledgertest.Options, f func(l *lab)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		pass(time.Until(birth))
		l := newLab(t, n, o)
		defer l.close()
		f(l)
	})
}

func pass(d time.Duration) { <-time.After(d) }

func newLab(t testing.TB, n int, o ledgertest.Options) *lab {
	t.Helper()
	core, logs := observer.New(zapcore.InfoLevel)
	l := &lab{TB: t, ledger: ledgertest.New(o), keypair: newKeypair(seed), logs: logs, device: key("device", 0), retention: 72 * time.Hour}
	l.ledger.Listen(ledgertest.Address{Name: ledgerAddress, Nodes: []ledgertest.Node{{Name: "a"}, {Name: "b"}}})
	l.transport = &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return l.ledger.Dial(ctx, network, ledgerAddress)
	}}
	l.way = &direct{RoundTripper: l.transport, calls: make(map[string]int)}
	agent := ledgertest.Pubkey(l.keypair.Public())
	l.ledger.Fund(agent, 100e9)
	l.ledger.PutDevice(ledgertest.Pubkey(l.device), ledgertest.Device{Status: ledgertest.DeviceActivated, Publisher: agent})
	for i := range n {
		l.targets = append(l.targets, key("target", i))
		l.links = append(l.links, key("link", i))
		l.ledger.PutDevice(ledgertest.Pubkey(l.targets[i]), ledgertest.Device{Status: ledgertest.DeviceActivated})
		l.ledger.PutLink(ledgertest.Pubkey(l.links[i]), ledgertest.Link{
			Status: ledgertest.LinkActivated, SideA: ledgertest.Pubkey(l.device), SideZ: ledgertest.Pubkey(l.targets[i]),
		})
	}
	program, err := ParsePubkey("C9xqH76NSm11pBS6maNnY163tWHT8Govww47uyEmSnoG")
	if err != nil {
		t.Fatal(err)
	}
	l.config = Config{
		Endpoints: l.way, Keypair: l.keypair, Program: program, Device: l.device, Version: "1.0.0", Commit: "abcd1234",
		SampleInterval: probeInterval, FlushInterval: flushInterval, FillGaps: true, MaxConcurrency: 10,
		Logger: zap.New(core),
	}
	l.storePath = filepath.Join(t.TempDir(), "samples.db")
	l.openStore()
	return l
}

// dialer leads to an address whatever the URL says.
func dialer(address string) *http.Transport {
	return &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
}

// direct leads to one address without a choice. A test may answer calls in its place.
type direct struct {
	http.RoundTripper
	mu     sync.Mutex
	answer func(method string) (status int, result string) // "": the ledger answers; result has the member result or error
	calls  map[string]int
}

func (*direct) Landed(string)  {}
func (*direct) Expired(string) {}

func (d *direct) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var call struct {
		ID     uint64
		Method string
	}
	if err := json.Unmarshal(body, &call); err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.calls[call.Method]++
	answer := d.answer
	d.mu.Unlock()
	if answer != nil {
		if status, result := answer(call.Method); result != "" {
			text := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,%s}`, call.ID, result)
			return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
		}
	}
	r = r.Clone(r.Context())
	r.URL.Host = ledgerAddress
	r.Body = io.NopCloser(bytes.NewReader(body))
	return d.RoundTripper.RoundTrip(r)
}

func (d *direct) set(answer func(method string) (int, string)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer = answer
}

func (d *direct) count(method string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[method]
}

// openStore opens the store and makes the paths known.
func (l *lab) openStore() {
	l.Helper()
	var err error
	l.store, err = store.Open(store.Config{Path: l.storePath, Boot: "boot", NoSync: true, Retention: l.retention})
	if err != nil {
		l.Fatal(err)
	}
	if l.offset == 0 {
		l.offset = time.Now().UnixNano() - int64(time.Hour)
	}
	l.store.SetOffset(store.Offset{Nanoseconds: l.offset, Synchronized: true})
	l.paths = nil
	for i := range l.links {
		p, err := l.store.Register(fmt.Sprintf("link%d", i), map[string]string{
			LabelLink: l.links[i].String(), LabelTarget: l.targets[i].String(), LabelInterval: probeInterval.String(),
		})
		if err != nil {
			l.Fatal(err)
		}
		l.paths = append(l.paths, p)
	}
	l.config.Log = l.store
	if err := l.store.Enable(Name, false, Takes); err != nil {
		l.Fatal(err)
	}
}

// start runs the submitter.
func (l *lab) start() {
	l.Helper()
	l.sink = New(l.config)
	s, err := submit.New(submit.Config{Log: l.store, Sink: l.sink, Interval: l.config.FlushInterval, Logger: l.config.Logger})
	if err != nil {
		l.Fatal(err)
	}
	l.stats = s
	var ctx context.Context
	ctx, l.cancel = context.WithCancel(context.Background())
	l.done = make(chan struct{})
	go func() {
		defer close(l.done)
		if err := s.Run(ctx); err != nil {
			l.Errorf("submitter: %v", err)
		}
	}()
}

// stop stops the submitter as at the end of the process.
func (l *lab) stop() {
	if l.cancel == nil {
		return
	}
	l.cancel()
	<-l.done
	l.cancel = nil
	l.transport.CloseIdleConnections()
}

func (l *lab) close() {
	l.stop()
	if err := l.store.Close(); err != nil {
		l.Error(err)
	}
	l.ledger.Close()
}

// add stores one sample of each path, of now.
func (l *lab) add(s store.Sample) {
	l.Helper()
	s.Mono = time.Now().UnixNano() - l.offset
	var batch []store.Record
	for _, p := range l.paths {
		batch = append(batch, store.Record{Path: p.ID, Sample: s})
	}
	if err := l.store.Append(batch); err != nil {
		l.Fatal(err)
	}
}

// measure measures all links for n intervals. The nth probe of a lab comes back after n microseconds.
func (l *lab) measure(n int) {
	l.Helper()
	for range n {
		pass(probeInterval - time.Since(birth)%probeInterval)
		l.add(store.Sample{Outcome: store.OnTime, RTT: l.nth()})
	}
}

// nth is the RTT, in nanoseconds, of a probe sent now.
func (l *lab) nth() int64 { return int64(time.Since(birth)/probeInterval) * 1000 }

// address is where the samples of a link are.
func (l *lab) address(link int, epoch uint64) ledgertest.Pubkey {
	return l.ledger.SamplesAddress(ledgertest.Pubkey(l.device), ledgertest.Pubkey(l.targets[link]), ledgertest.Pubkey(l.links[link]), epoch)
}

// account reads an account.
func (l *lab) account(link int, epoch uint64) ledgertest.Samples {
	l.Helper()
	s, err := l.ledger.Samples(l.address(link, epoch))
	if err != nil {
		l.Errorf("account of link %d in epoch %d: %v", link, epoch, err)
	}
	return s
}

// settled waits until nothing waits for the sink, at most for d.
func (l *lab) settled(d time.Duration) {
	l.Helper()
	for end := time.Now().Add(d); ; pass(time.Second) {
		totals, err := l.store.Totals(Name)
		if err != nil {
			l.Fatal(err)
		}
		if totals.Waiting == 0 {
			return
		}
		if time.Now().After(end) {
			l.Errorf("%d samples still wait after %v; log:", totals.Waiting, d)
			for _, e := range l.logs.All() {
				l.Logf("%v %s %v", e.Time, e.Message, e.ContextMap())
			}
			return
		}
	}
}

// identity checks the counts that the store keeps.
func (l *lab) identity(want store.Totals) {
	l.Helper()
	got, err := l.store.Totals(Name)
	if err != nil {
		l.Fatal(err)
	}
	if want.Dropped == nil {
		want.Dropped = map[string]uint64{}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		l.Errorf("totals (-want +got):\n%s", diff)
	}
}

// check looks at all accounts: each probe is in them at most once, at the index of its time, and in the right epoch; in order; and what
// is missing is what was counted as dropped.
func (l *lab) check() {
	l.Helper()
	totals, err := l.store.Totals(Name)
	if err != nil {
		l.Fatal(err)
	}
	var dropped uint64
	for _, n := range totals.Dropped {
		dropped += n
	}
	var there uint64
	for link := range l.links {
		seen := make(map[uint32]bool)
		for _, a := range l.ledger.AllSamples() {
			if a.Link != ledgertest.Pubkey(l.links[link]) {
				continue
			}
			from, to := l.ledger.EpochStart(a.Epoch), l.ledger.EpochStart(a.Epoch+1)
			for index, v := range a.Values {
				if v == 0 {
					continue
				}
				there++
				if seen[v] {
					l.Errorf("link %d, epoch %d, index %d: probe %d is there twice", link, a.Epoch, index, v)
				}
				seen[v] = true
				sent := birth.Add(time.Duration(v) * probeInterval)
				at := time.UnixMicro(int64(a.StartMicros) + int64(index)*int64(a.IntervalMicros))
				if off := at.Sub(sent).Abs(); off >= probeInterval*3/4 {
					l.Errorf("link %d, epoch %d, index %d: probe %d is off by %v", link, a.Epoch, index, v, off)
				}
				if sent.Before(from.Truncate(time.Second)) || !to.IsZero() && !sent.Before(to) {
					l.Errorf("link %d: probe %d, sent %v, is in epoch %d, %v to %v", link, v, sent, a.Epoch, from, to)
				}
			}
		}
	}
	if want := totals.Offered - totals.Waiting - dropped; there != want {
		l.Errorf("%d probes in the ledger, want %d: %+v", there, want, totals)
	}
}

// identityHolds checks that each sample offered was delivered, or dropped with a reason, or waits.
func (l *lab) identityHolds() {
	l.Helper()
	t, err := l.store.Totals(Name)
	if err != nil {
		l.Fatal(err)
	}
	sum := t.Delivered + t.Waiting
	for _, n := range t.Dropped {
		sum += n
	}
	if sum != t.Offered {
		l.Errorf("offered %d, but %+v", t.Offered, t)
	}
}
