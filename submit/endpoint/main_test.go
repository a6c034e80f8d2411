// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The addresses and names of the tests.
var (
	addrA = netip.MustParseAddr("192.0.2.1")
	addrB = netip.MustParseAddr("192.0.2.2")
	addrC = netip.MustParseAddr("192.0.2.3")
	addrD = netip.MustParseAddr("192.0.2.4")
	addrE = netip.MustParseAddr("192.0.2.5")
)

const (
	hostName = "rpc.example"
	secret   = "sesame-7f3a91"
	goodURL  = "https://rpc.example/v1/" + secret + "?api-key=" + secret // of servers that speak HTTP/2
	plainURL = "http://rpc.example/v1/" + secret + "?api-key=" + secret  // quicker to simulate
)

// name returns the name of a candidate of goodURL or plainURL.
func name(addr netip.Addr) string      { return "https://rpc.example:443/" + addr.String() }
func plainName(addr netip.Addr) string { return "http://rpc.example:80/" + addr.String() }

// certificate is for hostName, and valid also in the year 2000, in which simulated time begins.
var certificate = sync.OnceValues(func() (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "test"},
		DNSNames:     []string{hostName},
		NotBefore:    time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:     time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
		IsCA:         true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, roots
})

// world is a service with several servers, the network in front of it, and its name.
type world struct {
	tb       testing.TB
	http1    bool // servers do not offer HTTP/2
	slotTime time.Duration
	first    uint64
	begin    time.Time
	servers  map[netip.Addr]*server

	mu      sync.Mutex
	halted  uint64 // slot at which the whole service stands still; 0: it does not
	lookup  func(ctx context.Context) ([]netip.Addr, error)
	dials   int
	dialing int                // under way
	wires   map[*wire]struct{} // connections that no client has closed
	anyHost bool               // requests may be for another host than hostName
	late    bool               // connections may outlive Run, for a call
	checked int                // requests of checks
	saved   []byte
	saveErr error
}

// server is one of them. What it does may be changed at any time by world.set.
type server struct {
	w         *world
	addr      netip.Addr
	listeners map[string]chan net.Conn

	blackhole bool // nothing passes, in either direction, and nobody says so
	refuse    bool
	reset     bool // accepts, reads, closes
	silent    bool // takes requests and never answers
	delay     time.Duration
	status    int // instead of 200
	header    http.Header
	body      string // instead of the answer
	truncate  bool   // break the answer off
	garbage   string // instead of HTTP
	onlyCalls bool   // reset, status, body, truncate, silent are for real calls; checks are answered
	lag       int64  // slots behind the truth; negative: ahead
	stuck     uint64 // the slot that it tells all the time
	cluster   string

	last     *http.Request
	requests int
	calls    int         // requests that were no checks
	at       []time.Time // when requests came
	bad      []string    // what was wrong with requests
}

// newWorld has healthy servers at the addresses, all of which the name has.
func newWorld(tb testing.TB, addrs ...netip.Addr) *world {
	tb.Helper()
	w := &world{tb: tb, begin: time.Now(), slotTime: 400 * time.Millisecond, first: 1_000_000, servers: make(map[netip.Addr]*server), wires: make(map[*wire]struct{})}
	for _, addr := range addrs {
		w.servers[addr] = &server{w: w, addr: addr, cluster: "main", delay: 10 * time.Millisecond, listeners: make(map[string]chan net.Conn)}
	}
	w.lookup = func(context.Context) ([]netip.Addr, error) { return addrs, nil }
	return w
}

// serve starts the servers, whose last goroutine ends with the test.
func (w *world) serve() {
	cert, _ := certificate()
	w.tb.Cleanup(func() { <-time.After(2 * time.Second) }) // connections end, see queued.Close
	for _, s := range w.servers {
		var protocols http.Protocols
		protocols.SetHTTP1(true)
		protocols.SetHTTP2(!w.http1)
		for _, port := range []string{"80", "443"} {
			l := &listener{conns: make(chan net.Conn), closed: make(chan struct{})}
			s.listeners[port] = l.conns
			srv := &http.Server{
				Handler:   s,
				Protocols: &protocols,
				TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}},
				ErrorLog:  log.New(io.Discard, "", 0),
			}
			served := make(chan struct{})
			go func() {
				defer close(served)
				if port == "443" {
					_ = srv.ServeTLS(l, "", "")
				} else {
					_ = srv.Serve(l)
				}
			}()
			w.tb.Cleanup(func() {
				_ = srv.Close()
				<-served
			})
		}
	}
}

// set changes what a server, or the world, does.
func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func get[T any](w *world, f func() T) T {
	w.mu.Lock()
	defer w.mu.Unlock()
	return f()
}

func (w *world) slot() uint64 {
	if w.halted != 0 {
		return w.halted
	}
	return w.first + uint64(time.Since(w.begin)/w.slotTime)
}

// listener is fed by dial.
type listener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Addr() net.Addr { return &net.TCPAddr{} }

// queued is one end of a net.Pipe whose Write does not wait for the reader, as in a network: both ends of an HTTP/2 connection start by
// writing.
type queued struct {
	net.Conn
	queue  chan []byte
	closed chan struct{}
	once   sync.Once
}

func queue(pipe net.Conn) *queued {
	q := &queued{Conn: pipe, queue: make(chan []byte, 1024), closed: make(chan struct{})}
	go func() {
		defer pipe.Close()
		for {
			select {
			case p := <-q.queue:
				if _, err := pipe.Write(p); err != nil {
					return
				}
				continue
			default:
			}
			select {
			case p := <-q.queue:
				if _, err := pipe.Write(p); err != nil {
					return
				}
			case <-q.closed:
				if len(q.queue) == 0 {
					return
				}
			}
		}
	}()
	return q
}

func (q *queued) Write(p []byte) (int, error) {
	select {
	case <-q.closed:
		return 0, net.ErrClosed
	case q.queue <- bytes.Clone(p):
		return len(p), nil
	}
}

func (q *queued) Read(p []byte) (int, error) {
	n, err := q.Conn.Read(p)
	select {
	case <-q.closed:
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

// Close sends what is queued, if the other side reads it soon.
func (q *queued) Close() error {
	q.once.Do(func() {
		close(q.closed)
		_ = q.Conn.SetDeadline(time.Now().Add(time.Second))
		_ = q.Conn.SetReadDeadline(time.Unix(1, 0))
	})
	return nil
}

// wire is the client's end of a connection.
type wire struct {
	net.Conn
	s       *server
	dropped bool // a blackhole for this connection alone
}

func (c *wire) dark() bool { return get(c.s.w, func() bool { return c.s.blackhole || c.dropped }) }

func (c *wire) Write(p []byte) (int, error) {
	if c.dark() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *wire) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.dark() {
			return n, err
		}
	}
}

func (c *wire) Close() error {
	c.s.w.set(func() { delete(c.s.w.wires, c) })
	return c.Conn.Close()
}

func (w *world) dial(ctx context.Context, _, address string) (net.Conn, error) {
	addr, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err // dial is only for literal addresses
	}
	w.mu.Lock()
	w.dials++
	s := w.servers[addr.Addr()]
	var refuse, dark bool
	if s != nil {
		refuse, dark = s.refuse, s.blackhole
	}
	w.mu.Unlock()
	if dark {
		w.set(func() { w.dialing++ })
		<-ctx.Done()
		w.set(func() { w.dialing-- })
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: ctx.Err()}
	}
	if err := ctx.Err(); err != nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err}
	}
	if s == nil || refuse {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	near, far := net.Pipe()
	client, server := queue(near), queue(far)
	select {
	case s.listeners[fmt.Sprint(addr.Port())] <- server:
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), client.Close(), server.Close())
	}
	c := &wire{Conn: client, s: s}
	w.set(func() { w.wires[c] = struct{}{} })
	return c, nil
}

// dialName is what a resolver and a dialer of the system would do: the addresses in order.
func (w *world) dialName(ctx context.Context, network, address string) (net.Conn, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	addrs, err := w.resolve(ctx, hostName)
	for _, addr := range addrs {
		each, cancel := context.WithTimeout(ctx, 5*time.Second)
		var conn net.Conn
		conn, err = w.dial(each, network, net.JoinHostPort(addr.String(), port))
		cancel()
		if err == nil {
			return conn, nil
		}
	}
	return nil, err
}

func (w *world) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if host != hostName {
		return nil, fmt.Errorf("lookup %s: no such host", host)
	}
	return get(w, func() func(context.Context) ([]netip.Addr, error) { return w.lookup })(ctx)
}

func (s *server) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	request, _ := io.ReadAll(r.Body)
	s.w.mu.Lock()
	s.requests++
	s.last = r
	s.at = append(s.at, time.Now())
	if want := "/v1/" + secret + "?api-key=" + secret; r.RequestURI != want || r.Host != hostName && !s.w.anyHost {
		s.bad = append(s.bad, r.Host+" "+r.RequestURI)
	}
	check := string(request) == "check"
	if check {
		s.w.checked++
	} else {
		s.calls++
	}
	now := *s
	s.w.mu.Unlock()
	if check && now.onlyCalls {
		now.reset, now.silent, now.status, now.body, now.truncate = false, false, 0, "", false
	}
	if now.reset {
		panic(http.ErrAbortHandler)
	}
	select {
	case <-time.After(now.delay):
	case <-r.Context().Done():
	}
	if now.silent {
		<-r.Context().Done()
		panic(http.ErrAbortHandler) // returning is an answer, which a client that is just giving up may still get
	}
	if now.garbage != "" {
		if conn, _, err := rw.(http.Hijacker).Hijack(); err == nil {
			_, _ = io.WriteString(conn, now.garbage)
			_ = conn.Close()
		}
		return
	}
	for key, values := range now.header {
		rw.Header()[key] = values
	}
	if now.truncate {
		rw.Header().Set("Content-Length", "1000")
	}
	rw.WriteHeader(max(now.status, http.StatusOK))
	if now.body != "" {
		_, _ = io.WriteString(rw, now.body)
		return
	}
	if !check {
		_, _ = rw.Write(request)
		return
	}
	slot := get(s.w, s.w.slot)
	slot -= uint64(now.lag)
	if now.stuck != 0 {
		slot = now.stuck
	}
	_ = json.NewEncoder(rw).Encode(Health{Slot: slot, Cluster: now.cluster})
}

// send makes one call.
func send(ctx context.Context, rt http.RoundTripper, body string) (*http.Response, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://ledger.invalid/", strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	resp, err := (&http.Client{Transport: rt}).Do(req)
	if err != nil {
		return nil, "", err
	}
	answer, err := io.ReadAll(resp.Body)
	return resp, string(answer), errors.Join(err, resp.Body.Close())
}

// checkCall is a check as a caller of the package would write it, with the carelessness of quoting the answer in an error.
func checkCall(ctx context.Context, rt http.RoundTripper) (h Health, err error) {
	resp, answer, err := send(ctx, rt, "check")
	switch {
	case err != nil:
		return h, err
	case resp.StatusCode != http.StatusOK:
		return h, fmt.Errorf("status %s: %s", resp.Status, answer)
	}
	if err := json.Unmarshal([]byte(answer), &h); err != nil {
		return h, fmt.Errorf("decode %q: %w", answer, err)
	}
	if !Identify(ctx) {
		h.Cluster = ""
	}
	return h, nil
}

func (w *world) config(url string) (Config, *observer.ObservedLogs) {
	_, roots := certificate()
	core, logs := observer.New(zapcore.InfoLevel)
	return Config{
		URLs:   []URL{{URL: url}},
		Lookup: w.resolve,
		Dial:   w.dial,
		Check:  checkCall,
		TLS:    &tls.Config{RootCAs: roots},
		Logger: zap.New(core),
		State:  w,
	}, logs
}

// Load and Save make the world a State.
func (w *world) Load() ([]byte, error) { return get(w, func() []byte { return w.saved }), nil }

func (w *world) Save(data []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.saveErr != nil {
		return w.saveErr
	}
	w.saved = bytes.Clone(data)
	return nil
}

// start runs a pool until the end of the test or until stop is called, which waits for Run, and then expects no connection.
func (w *world) start(cfg Config) (p *Pool, stop func()) {
	w.tb.Helper()
	p, err := New(cfg)
	if err != nil {
		w.tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.tb.Errorf("Run: %v", err)
		}
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.wires) != 0 && !w.late {
			w.tb.Errorf("%d connections open after Run", len(w.wires))
		}
		if w.dialing != 0 {
			w.tb.Errorf("%d dials under way after Run", w.dialing)
		}
		for _, s := range w.servers {
			if len(s.bad) > 0 {
				w.tb.Errorf("%v was sent %q", s.addr, s.bad)
			}
		}
	})
	w.tb.Cleanup(stop)
	return p, stop
}

// simulate runs a test of a pool in simulated time.
func simulate(t *testing.T, url string, addrs []netip.Addr, prepare func(*world), test func(t *testing.T, w *world, p *Pool, logs *observer.ObservedLogs)) {
	t.Helper()
	certificate() // not in the bubble
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, addrs...)
		if prepare != nil {
			prepare(w)
		}
		w.serve()
		cfg, logs := w.config(url)
		p, _ := w.start(cfg)
		test(t, w, p, logs)
	})
}

// pass lets time go by, and everything happen that is due then.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// inUse returns the address in use if it is good, else the zero address.
func inUse(p *Pool) netip.Addr {
	for _, s := range p.Status() {
		if s.InUse && s.Good {
			return s.Address
		}
	}
	return netip.Addr{}
}

// status returns that of an address.
func status(p *Pool, addr netip.Addr) Status {
	i := slices.IndexFunc(p.Status(), func(s Status) bool { return s.Address == addr })
	if i < 0 {
		return Status{}
	}
	return p.Status()[i]
}

// until returns how long it took until a condition held.
func until(tb testing.TB, limit time.Duration, what string, condition func() bool) time.Duration {
	tb.Helper()
	start := time.Now()
	for {
		synctest.Wait()
		if condition() {
			return time.Since(start)
		}
		if time.Since(start) > limit {
			tb.Fatalf("after %v not yet: %s", limit, what)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// lines returns the log as text, all fields included.
func lines(logs *observer.ObservedLogs) []string {
	encoder := zapcore.NewJSONEncoder(zap.NewDevelopmentEncoderConfig())
	var texts []string
	for _, entry := range logs.All() {
		buf, err := encoder.EncodeEntry(entry.Entry, entry.Context)
		if err != nil {
			panic(err)
		}
		texts = append(texts, strings.TrimSpace(buf.String()))
	}
	return texts
}
