// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap/zaptest/observer"
)

// The ways in which the first address fails after it has worked, with the second one healthy all the time.
var wedges = []struct {
	name  string
	http1 bool
	fault func(s *server)
}{
	{"503 from a pinned address", false, func(s *server) { s.status = http.StatusServiceUnavailable }},
	{"blackholed connection", false, func(s *server) { s.blackhole = true }},
	{"silence after accept on http/1.1", true, func(s *server) { s.silent = true }},
}

// The stock client stays with an address that fails although another one behind the same name is healthy.
func TestTheStockClientIsWedged(t *testing.T) {
	certificate()
	for _, tc := range wedges {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, addrA, addrB)
				w.http1 = tc.http1
				w.serve()
				_, roots := certificate()
				stock := &http.Transport{DialContext: w.dialName, TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
				defer stock.CloseIdleConnections()
				call := func() error {
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
					defer cancel()
					req, err := http.NewRequestWithContext(ctx, http.MethodPost, goodURL, http.NoBody)
					if err != nil {
						t.Fatal(err)
					}
					resp, err := stock.RoundTrip(req)
					if err != nil {
						return err
					}
					if tc.http1 != (resp.ProtoMajor == 1) {
						t.Errorf("%s, want http/1.1: %t", resp.Proto, tc.http1)
					}
					if resp.StatusCode != http.StatusOK {
						err = &Error{Endpoint: "stock", Kind: FaultServerError}
					}
					if cerr := resp.Body.Close(); err == nil {
						err = cerr
					}
					return err
				}

				if err := call(); err != nil {
					t.Fatalf("healthy: %v", err)
				}
				w.set(func() { tc.fault(w.servers[addrA]) })
				for broke := time.Now(); time.Since(broke) < time.Minute; pass(time.Second) {
					err := call()
					if n := get(w, func() int { return w.servers[addrB].requests }); n != 0 {
						t.Fatalf("recovered after %v, the last call with %v: nothing left to show", time.Since(broke), err)
					}
				}
				w.set(func() { *w.servers[addrA] = server{w: w, addr: addrA} }) // lets go of what is under way
				pass(time.Minute)
			})
		})
	}
}

func TestThePoolRecoversWhereTheStockClientIsWedged(t *testing.T) {
	for _, tc := range wedges {
		t.Run(tc.name, func(t *testing.T) {
			simulate(t, goodURL, []netip.Addr{addrA, addrB}, func(w *world) {
				w.http1 = tc.http1
				w.servers[addrB].delay = 50 * time.Millisecond // so that a is chosen
			}, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
				call := func() error {
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
					defer cancel()
					resp, _, err := send(ctx, p, "x")
					if err == nil && tc.http1 != (resp.ProtoMajor == 1) {
						t.Errorf("%s, want http/1.1: %t", resp.Proto, tc.http1)
					}
					return err
				}
				if err := call(); err != nil {
					t.Fatalf("healthy: %v", err)
				}
				if got := inUse(p); got != addrA {
					t.Fatalf("%v in use, want %v", got, addrA)
				}
				w.set(func() { tc.fault(w.servers[addrA]) })
				broke := time.Now()
				for call() != nil {
					if time.Since(broke) > 15*time.Second {
						t.Fatal("not recovered within 15 s")
					}
					pass(time.Second)
				}
				if got := inUse(p); got != addrB {
					t.Errorf("%v in use, want %v", got, addrB)
				}
				if s := status(p, addrA); s.Good {
					t.Errorf("%v is good", addrA)
				}
			})
		})
	}
}

// Nobody calls: the checks alone notice, and the first call afterwards finds the way.
func TestAnIdlePoolLeavesABlackholedAddress(t *testing.T) {
	simulate(t, goodURL, []netip.Addr{addrA, addrB}, func(w *world) {
		w.servers[addrB].delay = 50 * time.Millisecond
	}, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
		pass(time.Minute)
		w.set(func() { w.servers[addrA].blackhole = true })
		until(t, 15*time.Second, "b in use", func() bool { return inUse(p) == addrB })
		w.set(func() { w.servers[addrA].blackhole = false })
		pass(5 * time.Minute)
		if s := status(p, addrA); !s.Good || s.InUse {
			t.Errorf("after it works again: %+v, want good and not in use", s)
		}
	})
}
