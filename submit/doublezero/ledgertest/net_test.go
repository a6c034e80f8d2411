// SPDX-License-Identifier: Apache-2.0

package ledgertest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// wire is a way to talk to an address.
type wire struct {
	name  string
	a     Address
	proto string
}

func wires() []wire {
	return []wire{
		{"http/1.1", Address{HTTP1: true}, "HTTP/1.1"},
		{"http/2", Address{}, "HTTP/2.0"},
		{"http/1.1 over tls", Address{HTTP1: true, TLS: true}, "HTTP/1.1"},
		{"http/2 over tls", Address{TLS: true}, "HTTP/2.0"},
	}
}

// client returns a client for w that ends with the test, and the scheme of its URLs. ping lets it notice dead HTTP/2 connections.
func (w wire) client(t testing.TB, l *Ledger, ping bool) (client *http.Client, scheme string) {
	t.Helper()
	tr := &http.Transport{DialContext: l.Dial, Protocols: new(http.Protocols)}
	tr.Protocols.SetHTTP1(w.proto == "HTTP/1.1" || w.a.TLS)
	tr.Protocols.SetHTTP2(w.proto == "HTTP/2.0" && w.a.TLS)
	tr.Protocols.SetUnencryptedHTTP2(w.proto == "HTTP/2.0" && !w.a.TLS)
	if ping {
		tr.HTTP2 = &http.HTTP2Config{SendPingTimeout: 3 * time.Second, PingTimeout: 2 * time.Second}
	}
	t.Cleanup(tr.CloseIdleConnections)
	if w.a.TLS {
		tr.TLSClientConfig = &tls.Config{RootCAs: l.CA(), ClientSessionCache: tls.NewLRUClientSessionCache(1)}
		return &http.Client{Transport: tr}, "https"
	}
	return &http.Client{Transport: tr}, "http"
}

const there = "192.0.2.9:8899"

// onEachWire runs f in simulated time, with a ledger at there.
func onEachWire(t *testing.T, f func(t *testing.T, w wire, l *Ledger)) {
	for _, w := range wires() {
		t.Run(w.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLedger(t, inMiddle)
				a := w.a
				a.Name = there
				l.Listen(a)
				f(t, w, l)
			})
		})
	}
}

func TestWires(t *testing.T) {
	onEachWire(t, func(t *testing.T, w wire, l *Ledger) {
		client, scheme := w.client(t, l, false)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				resp, body, err := post(client, scheme+"://"+there, request("getHealth", ""))
				if err != nil {
					t.Error(err)
					return
				}
				if want := `{"jsonrpc":"2.0","result":"ok","id":1}` + "\n"; body != want || resp.Proto != w.proto {
					t.Errorf("%s %s, want %s %s", resp.Proto, body, w.proto, want)
				}
			})
		}
		wg.Wait()
		for _, r := range l.Requests() {
			if r.Proto != w.proto || r.Address != there {
				t.Errorf("request %+v", r)
			}
		}
		if got := l.Count("getHealth", there); got != 20 {
			t.Errorf("%d requests, want 20", got)
		}
	})
}

// TestDeadConnections lets packets vanish on a connection that is in use.
func TestDeadConnections(t *testing.T) {
	onEachWire(t, func(t *testing.T, w wire, l *Ledger) {
		client, scheme := w.client(t, l, true)
		idle, _ := w.client(t, l, false) // has a connection on which nothing is lost
		ok := func(c *http.Client) bool {
			resp, _, err := post(c, scheme+"://"+there, request("getHealth", ""))
			return err == nil && resp.StatusCode == 200
		}
		if !ok(client) || !ok(idle) {
			t.Fatal("no answer")
		}
		before := l.Count("", "")
		l.Inject(Fault{Kind: Blackhole, Address: there, For: time.Minute})
		for range 3 {
			if ok(client) {
				t.Error("an answer out of a black hole")
			}
		}
		if got := l.Count("", ""); got != before {
			t.Errorf("%d requests got into the black hole", got-before)
		}
		pass(time.Minute)
		if !ok(client) || !ok(idle) {
			t.Error("no answer after the black hole")
		}
	})
}

// TestLostAnswer has the packets vanish between a request and its answer.
func TestLostAnswer(t *testing.T) {
	onEachWire(t, func(t *testing.T, w wire, l *Ledger) {
		client, scheme := w.client(t, l, false)
		l.Inject(Fault{Kind: Delay, Wait: 2 * time.Second})
		time.AfterFunc(time.Second, func() { l.Inject(Fault{Kind: Blackhole}) })
		if _, _, err := post(client, scheme+"://"+there, request("getHealth", "")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the answer: %v", err)
		}
		if got := l.Count("getHealth", there); got != 1 {
			t.Errorf("%d requests, want 1", got)
		}
	})
}

// TestLostBytes shows that a connection on which bytes were lost stays silent.
func TestLostBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, inMiddle)
		c, err := l.Dial(t.Context(), "tcp", here)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		heal := l.Inject(Fault{Kind: Blackhole})
		write := func(s string) {
			t.Helper()
			if _, err := c.Write([]byte(s)); err != nil {
				t.Error(err)
			}
		}
		write("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
		heal()
		write("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
		if err := c.SetReadDeadline(time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		var timeout net.Error
		if n, err := c.Read(make([]byte, 1)); !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("read %d bytes, %v", n, err)
		}
	})
}

// TestSilence has an address fall silent: HTTP/2 pings are answered on connections that are there, requests are not.
func TestSilence(t *testing.T) {
	onEachWire(t, func(t *testing.T, w wire, l *Ledger) {
		client, scheme := w.client(t, l, true)
		if _, _, err := post(client, scheme+"://"+there, request("getSlot", "")); err != nil {
			t.Fatal(err)
		}
		l.Inject(Fault{Kind: Silence, Address: there, For: time.Hour})
		body := request("getHealth", "")
		start := time.Now()
		if _, _, err := post(client, scheme+"://"+there, body); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a request on an established connection: %v", err)
		}
		if got := l.Count("getHealth", there); got != 1 {
			t.Errorf("%d requests, want the one that got no answer", got)
		}
		client, _ = w.client(t, l, false) // with pings, it would find out in just the same time
		if _, _, err := post(client, scheme+"://"+there, body); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a request on a new connection: %v", err)
		}
		if got := time.Since(start); got != 10*time.Second {
			t.Errorf("gave up after %v", got)
		}
		// Not even what needs no request, the handshake of TLS or the refusal of GET, is heard on a new connection.
		c, err := l.Dial(t.Context(), "tcp", there)
		if err != nil {
			t.Fatal(err)
		}
		if w.a.TLS {
			c = tls.Client(c, &tls.Config{RootCAs: l.CA(), ServerName: "192.0.2.9"})
		}
		if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		_, err = c.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
		if err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("on a new connection: %v", err)
		}
		c.Close()

		pass(time.Hour)
		client.CloseIdleConnections()
		if _, _, err := post(client, scheme+"://"+there, body); err != nil {
			t.Errorf("after the silence: %v", err)
		}
	})
}

func TestResetOnEachWire(t *testing.T) {
	onEachWire(t, func(t *testing.T, w wire, l *Ledger) {
		client, scheme := w.client(t, l, false)
		l.Inject(Fault{Kind: Reset, Skip: 1, Calls: 1})
		var got []bool
		for range 3 {
			resp, _, err := post(client, scheme+"://"+there, request("getHealth", ""))
			got = append(got, err == nil && resp.StatusCode == 200)
		}
		if diff := cmp.Diff([]bool{true, false, true}, got); diff != "" {
			t.Errorf("answers (-want +got):\n%s", diff)
		}
	})
}

// TestRealListener does over TCP what the other tests do in memory.
func TestRealListener(t *testing.T) {
	for _, w := range wires() {
		t.Run(w.name, func(t *testing.T) {
			l := newLedger(t, Options{SlotTime: time.Millisecond})
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			a := w.a
			a.Name = ln.Addr().String()
			l.Serve(ln, a)
			client, scheme := w.client(t, l, true)
			tr := client.Transport.(*http.Transport)
			tr.DialContext = new(net.Dialer).DialContext
			call := func(timeout time.Duration) error {
				client.Timeout = timeout
				resp, _, err := post(client, scheme+"://"+a.Name, request("getHealth", ""))
				if err == nil && resp.StatusCode != 200 {
					return fmt.Errorf("HTTP %d", resp.StatusCode)
				}
				return err
			}
			if err := call(5 * time.Second); err != nil {
				t.Fatal(err)
			}
			for _, kind := range []Kind{Blackhole, Silence} {
				heal := l.Inject(Fault{Kind: kind})
				if err := call(50 * time.Millisecond); err == nil {
					t.Errorf("%s: an answer on an established connection", kind)
				}
				tr.CloseIdleConnections()
				if err := call(50 * time.Millisecond); err == nil {
					t.Errorf("%s: an answer on a new connection", kind)
				}
				heal()
				tr = tr.Clone() // HTTP/2 has not noticed yet that its connection is dead
				t.Cleanup(tr.CloseIdleConnections)
				client.Transport = tr
				if err := call(5 * time.Second); err != nil {
					t.Errorf("after %s: %v", kind, err)
				}
			}
			l.Inject(Fault{Kind: Reset, Calls: 1})
			if err := call(5 * time.Second); err == nil || w.name == "http/1.1" && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("reset: %v", err)
			}
			heal := l.Inject(Fault{Kind: Refuse})
			if err := call(5 * time.Second); err == nil {
				t.Error("refuse: an answer")
			}
			heal()
			if err := call(5 * time.Second); err != nil {
				t.Errorf("after refuse: %v", err)
			}
			// Dead connections of the client that nobody waits for any more end with the ledger.
		})
	}
}

func TestNames(t *testing.T) {
	l := New(Options{})
	t.Cleanup(l.Close)
	l.SetHost("ledger.test", netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"))
	for _, a := range []string{"192.0.2.1:443", "192.0.2.2:443"} {
		l.Listen(Address{Name: a, TLS: true})
	}
	addrs, err := l.Lookup(t.Context(), "ledger.test")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		tr := &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: l.CA()},
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return l.Dial(ctx, network, netip.AddrPortFrom(a, 443).String())
			},
		}
		t.Cleanup(tr.CloseIdleConnections)
		for _, host := range []string{"ledger.test", a.String()} { // a certificate for the name, and one for the address
			if _, _, err := post(&http.Client{Transport: tr}, "https://"+host, request("getHealth", "")); err != nil {
				t.Error(err)
			}
		}
		if got := l.Count("", a.String()+":443"); got != 2 {
			t.Errorf("%d requests at %s, want 2", got, a)
		}
	}
	var notFound *net.DNSError
	if _, err := l.Lookup(t.Context(), "other.test"); !errors.As(err, &notFound) || !notFound.IsNotFound {
		t.Errorf("lookup of an unknown name: %v", err)
	}
	if _, err := l.Dial(t.Context(), "tcp", "192.0.2.3:443"); err == nil {
		t.Error("connected to an address where nobody listens")
	}
}

// TestDialGivesUp waits for a connection through a black hole as long as Linux does.
func TestDialGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, inMiddle)
		l.Inject(Fault{Kind: Blackhole})
		start := time.Now()
		if _, err := l.Dial(t.Context(), "tcp", here); err == nil {
			t.Error("connected")
		}
		if got := time.Since(start); got != 127*time.Second {
			t.Errorf("gave up after %v", got)
		}
	})
}
