// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	dialTimeout = 5 * time.Second // also for a TLS handshake

	// A connection on which nothing came for pingAfter is pinged, and closed when the answer takes longer than pingTimeout. That is for
	// HTTP/2, where a deadline ends a request and keeps the connection; in HTTP/1.1 the deadline closes it.
	pingAfter   = 3 * time.Second
	pingTimeout = 2 * time.Second

	// idleTimeout is below the time between two checks of a candidate that is not in use: each of them proves that it can be
	// connected to, and nobody holds connections that he does not need.
	idleTimeout = 20 * time.Second

	maxIdle    = 16       // HTTP/1.1 connections kept for the next call
	maxHeaders = 64 << 10 // bytes
	maxAnswer  = 32 << 20 // bytes of a body; the largest sensible ones are a hundred accounts of 140 kB in base64
)

// link is a transport to one candidate, and its connections, of which none survives it.
type link struct {
	transport *http.Transport

	mu      sync.Mutex
	active  int // holders
	retired bool
	cut     bool // closed under whatever was under way
	conns   map[*conn]struct{}

	end  context.Context // ends with the link
	stop context.CancelFunc
}

// conn is a connection of a link.
type conn struct {
	net.Conn
	link *link
}

func (c *conn) Close() error {
	c.link.mu.Lock()
	delete(c.link.conns, c)
	c.link.mu.Unlock()
	return c.Conn.Close()
}

// newLink returns a link to addr at which the server proves by TLS that it is the one that the URL names.
func newLink(addr netip.AddrPort, base *tls.Config, dial func(ctx context.Context, network, address string) (net.Conn, error)) *link {
	config := new(tls.Config)
	if base != nil {
		config = base.Clone()
	}
	config.ServerName = "" // so that it is the host of the request
	l := &link{conns: make(map[*conn]struct{})}
	l.end, l.stop = context.WithCancel(context.Background())
	l.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			// The transport lets a dial go on when its request has ended.
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			defer context.AfterFunc(l.end, cancel)()
			raw, err := dial(ctx, "tcp", addr.String())
			if err != nil {
				return nil, err
			}
			return l.track(raw)
		},
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    dialTimeout,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout, WriteByteTimeout: dialTimeout},
		MaxIdleConnsPerHost:    maxIdle,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxHeaders,
	}
	return l
}

func (l *link) track(raw net.Conn) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over() {
		return nil, errors.Join(net.ErrClosed, raw.Close())
	}
	c := &conn{Conn: raw, link: l}
	l.conns[c] = struct{}{}
	return c, nil
}

// hold keeps the link from ending, unless it is cut, until release.
func (l *link) hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.active++
}

func (l *link) release() {
	l.mu.Lock()
	l.active--
	l.mu.Unlock()
	l.closeRetired()
}

// retire ends the link: at once, or when nobody holds it any more.
func (l *link) retire(atOnce bool) {
	l.mu.Lock()
	l.retired = true
	l.cut = l.cut || atOnce
	l.mu.Unlock()
	l.closeRetired()
}

// over says whether there is nothing left to wait for.
func (l *link) over() bool { return l.cut || l.retired && l.active == 0 }

// wasCut says that requests on the link failed because of us.
func (l *link) wasCut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut
}

// closeRetired closes all connections if the time has come.
func (l *link) closeRetired() {
	l.mu.Lock()
	over := l.over()
	conns := slices.Collect(maps.Keys(l.conns))
	l.mu.Unlock()
	if !over {
		return
	}
	l.stop()
	for _, c := range conns {
		_ = c.Close() // of a connection that nobody uses any more
	}
}

// roundTrip sends one request with the given body and reads the whole answer. The caller holds the link. It returns how long the answer took from the moment at
// which there was a connection.
func (l *link) roundTrip(req *http.Request, body []byte) (*http.Response, time.Duration, error) {
	var (
		mu        sync.Mutex // the transport may run hooks from goroutines of its own
		connected time.Time
	)
	req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) {
			mu.Lock()
			defer mu.Unlock()
			connected = time.Now()
		},
	}))
	if len(body) > 0 {
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		req.Body, _ = req.GetBody()
	} else {
		req.GetBody, req.Body = nil, http.NoBody
	}
	req.ContentLength = int64(len(body))

	resp, err := l.transport.RoundTrip(req)
	if err != nil {
		return nil, 0, err
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if cerr := resp.Body.Close(); err == nil {
		err = cerr
	}
	if err == nil && len(answer) > maxAnswer {
		err = errTooLarge
	}
	if err != nil {
		return nil, 0, err
	}
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(answer)), int64(len(answer))
	mu.Lock()
	defer mu.Unlock()
	return resp, time.Since(connected), nil
}
