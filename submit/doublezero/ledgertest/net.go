// SPDX-License-Identifier: Apache-2.0

package ledgertest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Node is a machine that answers for the ledger.
type Node struct {
	Name string // for faults and in requests; addresses may share a node by its name
	Lag  uint64 // slots that it is behind
}

// Address is where the ledger can be reached.
type Address struct {
	Name   string // ip:port, also for faults and in requests
	Nodes  []Node // that take turns; one with the address' name and no lag if there are none
	Pinned bool   // nodes take turns by connection, not by request
	TLS    bool   // with a certificate of [Ledger.CA] for any name
	HTTP1  bool   // no HTTP/2. Without TLS, HTTP/2 needs a client that knows
}

// network is the listeners of a ledger and what serves them.
type network struct {
	mu      sync.Mutex
	closed  bool
	servers []*http.Server
	conns   map[*conn]struct{} // that are open
	memory  map[string]*listener
	serving sync.WaitGroup
	ca      func() (authority, error)
	ctx     context.Context // ends with the ledger
	stop    context.CancelFunc
}

func (n *network) start() {
	n.conns = make(map[*conn]struct{})
	n.memory = make(map[string]*listener)
	n.ca = sync.OnceValues(newAuthority)
	n.ctx, n.stop = context.WithCancel(context.Background())
}

func (n *network) close() {
	n.mu.Lock()
	n.closed = true
	servers, conns := n.servers, slices.Collect(maps.Keys(n.conns))
	n.mu.Unlock()
	n.stop()
	// Before the servers, which would say goodbye to TLS clients with their lock held. In simulated time that never ends if a client
	// does not listen, because time stands still while anybody waits for a lock.
	for _, c := range conns {
		_ = c.Close() // closed already
	}
	for _, s := range servers {
		_ = s.Close() // listeners that are closed already
	}
	n.serving.Wait()
}

// track keeps c until it is closed. It reports false if it is too late for connections.
func (n *network) track(c *conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed {
		n.conns[c] = struct{}{}
	}
	return !n.closed
}

func (n *network) untrack(c *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.conns, c)
}

// Serve answers on ln, until the ledger is closed. It returns at once.
func (l *Ledger) Serve(ln net.Listener, a Address) {
	if len(a.Nodes) == 0 {
		a.Nodes = []Node{{Name: a.Name}}
	}
	h := &handler{Ledger: l, address: a}
	s := &http.Server{
		Handler:     h,
		ConnContext: h.connContext,
		BaseContext: func(net.Listener) context.Context { return l.network.ctx },
		Protocols:   new(http.Protocols),
		ErrorLog:    log.New(io.Discard, "", 0), // connections that break are what this is about
		TLSConfig:   &tls.Config{GetCertificate: l.certificate},
	}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(a.TLS && !a.HTTP1)
	s.Protocols.SetUnencryptedHTTP2(!a.TLS && !a.HTTP1)

	n := &l.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		_ = ln.Close()
		return
	}
	n.servers = append(n.servers, s)
	faulty := &faultyListener{Listener: ln, l: l, address: a.Name}
	n.serving.Go(func() { // both return ErrServerClosed
		if a.TLS {
			_ = s.ServeTLS(faulty, "", "")
		} else {
			_ = s.Serve(faulty)
		}
	})
}

// Listen answers at a.Name, which [Ledger.Dial] then finds, in memory.
func (l *Ledger) Listen(a Address) {
	ln := &listener{name: a.Name, conns: make(chan net.Conn), closed: make(chan struct{})}
	l.network.mu.Lock()
	l.network.memory[a.Name] = ln
	l.network.mu.Unlock()
	l.Serve(ln, a)
}

// Dial connects to an address that was given to [Ledger.Listen].
func (l *Ledger) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: addr(address), Err: err}
	}
	l.network.mu.Lock()
	ln := l.network.memory[address]
	l.network.mu.Unlock()
	if ln == nil || l.connectionFault(Refuse, address) {
		return fail(syscall.ECONNREFUSED)
	}
	for wait := time.Second; l.connectionFault(Blackhole, address); wait *= 2 { // as Linux repeats a SYN
		if wait > 64*time.Second {
			return fail(syscall.ETIMEDOUT)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fail(ctx.Err())
		case <-l.network.ctx.Done():
			return fail(syscall.ECONNREFUSED)
		}
	}
	client, server := net.Pipe()
	select {
	case ln.conns <- server:
		return client, nil
	case <-ln.closed:
		return fail(syscall.ECONNREFUSED)
	case <-ctx.Done():
		return fail(ctx.Err())
	}
}

// SetHost gives a host name its addresses; without any there is no such name.
func (l *Ledger) SetHost(host string, addrs ...netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hosts[host] = slices.Clone(addrs)
}

// Lookup returns the addresses of a host name.
func (l *Ledger) Lookup(_ context.Context, host string) ([]netip.Addr, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	addrs := l.hosts[host]
	if len(addrs) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return slices.Clone(addrs), nil
}

// listener accepts connections in memory.
type listener struct {
	name   string
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (ln *listener) Accept() (net.Conn, error) {
	select {
	case c := <-ln.conns:
		return c, nil
	case <-ln.closed:
		return nil, net.ErrClosed
	}
}

func (ln *listener) Close() error {
	ln.once.Do(func() { close(ln.closed) })
	return nil
}

func (ln *listener) Addr() net.Addr { return addr(ln.name) }

type addr string

func (addr) Network() string  { return "tcp" }
func (a addr) String() string { return string(a) }

// faultyListener lets the faults of connections strike.
type faultyListener struct {
	net.Listener
	l       *Ledger
	address string
}

func (ln *faultyListener) Accept() (net.Conn, error) {
	for {
		c, err := ln.Listener.Accept()
		if err != nil {
			return nil, err
		}
		fc := &conn{Conn: c, l: ln.l, address: ln.address}
		if !ln.l.network.track(fc) {
			_ = fc.Close()
			return nil, net.ErrClosed
		}
		if ln.l.connectionFault(Refuse, ln.address) {
			fc.reset()
			continue
		}
		fc.lost.Store(ln.l.connectionFault(Silence, ln.address))
		return fc, nil
	}
}

// conn is the ledger's end of a connection.
type conn struct {
	net.Conn
	l       *Ledger
	address string
	lost    atomic.Bool // something was lost on it, so that nothing can come through any more
}

func (c *conn) silent() bool {
	if !c.lost.Load() && c.l.connectionFault(Blackhole, c.address) {
		c.lost.Store(true)
	}
	return c.lost.Load()
}

func (c *conn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		switch {
		case n == 0 || !c.silent():
			return n, err
		case err != nil:
			return 0, err
		}
	}
}

func (c *conn) Write(p []byte) (int, error) {
	if c.silent() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *conn) Close() error {
	c.l.network.untrack(c)
	return c.Conn.Close()
}

// reset closes the connection so that the other side sees an error.
func (c *conn) reset() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // closed already
	}
	_ = c.Close()
}

// authority issues certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	leaf map[string]*tls.Certificate
	mu   *sync.Mutex
}

var certificateLife = [2]time.Time{time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)}

func newAuthority() (authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return authority{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ledgertest"}, NotBefore: certificateLife[0], NotAfter: certificateLife[1],
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return authority{}, err
	}
	cert, err := x509.ParseCertificate(der)
	return authority{cert: cert, key: key, leaf: make(map[string]*tls.Certificate), mu: new(sync.Mutex)}, err
}

// CA returns what the certificates of the ledger's addresses are to be verified with. It is made for this ledger alone.
func (l *Ledger) CA() *x509.CertPool {
	ca, err := l.network.ca()
	if err != nil {
		panic(fmt.Sprintf("ledgertest: make a certificate authority: %v", err))
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// certificate returns one for the name that the client asks for, or for the address that it has connected to.
func (l *Ledger) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	ca, err := l.network.ca()
	if err != nil {
		return nil, err
	}
	name := hello.ServerName
	if name == "" {
		c, ok := hello.Conn.(*conn)
		if !ok {
			return nil, errors.New("no server name")
		}
		host, _, err := net.SplitHostPort(c.address)
		if err != nil {
			return nil, err
		}
		name = host
	}
	ca.mu.Lock()
	defer ca.mu.Unlock()
	if cert := ca.leaf[name]; cert != nil {
		return cert, nil
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(int64(len(ca.leaf)) + 2), Subject: pkix.Name{CommonName: name},
		NotBefore: certificateLife[0], NotAfter: certificateLife[1],
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, ca.key.Public(), ca.key)
	if err != nil {
		return nil, err
	}
	cert := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: ca.key}
	ca.leaf[name] = cert
	return cert, nil
}
