// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

var two = []netip.Addr{addrA, addrB}

// aFirst makes the first server the faster one.
func aFirst(w *world) { w.servers[addrB].delay = 20 * time.Millisecond }

func TestACallThatFailsIsTriedOnceElsewhere(t *testing.T) {
	for _, tc := range []struct {
		name  string
		apply func(*server)
		kind  string
	}{
		{"503", func(s *server) { s.status = http.StatusServiceUnavailable }, FaultServerError},
		{"429", func(s *server) { s.status = http.StatusTooManyRequests }, FaultRateLimited},
		{"redirect", func(s *server) { s.status = http.StatusMovedPermanently }, FaultInvalid},
		{"reset", func(s *server) { s.reset = true }, FaultReset},
		{"broken off", func(s *server) { s.truncate = true }, FaultReset},
		{"silent", func(s *server) { s.silent = true }, FaultTimeout},
		{"blackholed", func(s *server) { s.blackhole = true }, FaultTimeout},
	} {
		for _, url := range []string{goodURL, plainURL} {
			t.Run(tc.name+" "+url[:5], func(t *testing.T) {
				simulate(t, url, []netip.Addr{addrA, addrB, addrC}, func(w *world) {
					aFirst(w)
					w.servers[addrC].delay = 30 * time.Millisecond
				}, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
					pass(time.Minute)
					w.set(func() { tc.apply(w.servers[addrA]) })
					start := time.Now()
					var r Route
					_, answer, err := send(WithRoute(t.Context(), &r), p, "hello")
					if err != nil || answer != "hello" {
						t.Errorf("got %q, %v", answer, err)
					}
					if took := time.Since(start); took > callTimeout {
						t.Errorf("took %v, want at most %v", took, callTimeout)
					}
					if r.Used != status(p, addrB).Name {
						t.Errorf("used %q, want %v", r.Used, addrB)
					}
					if got := inUse(p); got != addrB {
						t.Errorf("%v in use, want %v", got, addrB)
					}
					if s := status(p, addrA); s.Good || s.Faults[tc.kind] == 0 {
						t.Errorf("first one: %+v, want bad because of %s", s, tc.kind)
					}
					// With both bad there is one failover, not two.
					pass(time.Minute)
					w.set(func() {
						for _, s := range w.servers {
							s.onlyCalls, s.calls = true, 0
							tc.apply(s)
						}
					})
					start = time.Now()
					resp, _, err := send(t.Context(), p, "hello")
					if took := time.Since(start); took > callTimeout {
						t.Errorf("took %v, want at most %v", took, callTimeout)
					}
					if want := get(w, func() int { return w.servers[addrA].status }); want >= 400 {
						if err != nil || resp.StatusCode != want {
							t.Errorf("all bad: %v, %v, want status %d as it is", resp, err, want)
						}
					} else if failure, ok := errors.AsType[*Error](err); !ok || failure.Kind != tc.kind {
						t.Errorf("all bad: %v, want an *Error of kind %s", err, tc.kind)
					}
					total := 0
					w.set(func() {
						for _, s := range w.servers {
							total += s.calls
						}
					})
					if tc.kind != FaultTimeout && total != 2 {
						t.Errorf("%d tries, want 2", total)
					}
				})
			})
		}
	}
}

// What cannot be sent again is not: its caller has to know what became of it.
func TestARequestThatCannotBeRepeatedIsSentOnce(t *testing.T) {
	simulate(t, goodURL, two, aFirst, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
		pass(time.Minute)
		w.set(func() { w.servers[addrA].status = http.StatusServiceUnavailable })
		for _, repeatable := range []bool{false, true} {
			var r Route
			req, err := http.NewRequestWithContext(WithRoute(t.Context(), &r), http.MethodPost, "http://service.invalid/", strings.NewReader("hello"))
			if err != nil {
				t.Fatal(err)
			}
			if !repeatable {
				req.GetBody = nil
			}
			resp, err := p.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			want, status := status(p, addrA).Name, http.StatusServiceUnavailable
			if repeatable {
				want, status = inUseName(p), http.StatusOK
			}
			if r.Used != want || resp.StatusCode != status {
				t.Errorf("repeatable %v: %s answered with %d, want %s with %d", repeatable, r.Used, resp.StatusCode, want, status)
			}
		}
	})
}

func inUseName(p *Pool) string {
	for _, s := range p.Status() {
		if s.InUse {
			return s.Name
		}
	}
	return ""
}

func TestACallTakes10SecondsAtMost(t *testing.T) {
	for _, url := range []string{goodURL, plainURL} {
		t.Run(url[:5], func(t *testing.T) {
			simulate(t, url, []netip.Addr{addrA}, nil, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
				pass(time.Minute)
				w.set(func() { w.servers[addrA].onlyCalls, w.servers[addrA].silent = true, true })
				start := time.Now()
				_, _, err := send(t.Context(), p, "x")
				if took := time.Since(start); took != callTimeout {
					t.Errorf("took %v, want %v", took, callTimeout)
				}
				var timeout interface{ Timeout() bool }
				if !errors.As(err, &timeout) || !timeout.Timeout() || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v, want a timeout", err)
				}
			})
		})
	}
}

// What a caller does not wait for is not the endpoint's fault, unless it had a fair chance.
func TestOnlyAFairDeadlineCountsAgainstTheEndpoint(t *testing.T) {
	for _, tc := range []struct {
		name   string
		cancel bool
		after  time.Duration
		bad    bool
	}{
		{"cancelled after 3 s", true, 3 * time.Second, false},
		{"deadline of 100 ms", false, 100 * time.Millisecond, false},
		{"deadline of 1 s", false, time.Second, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			simulate(t, plainURL, two, aFirst, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
				pass(time.Minute)
				w.set(func() { w.servers[addrA].onlyCalls, w.servers[addrA].silent = true, true })
				ctx, cancel := context.WithCancel(t.Context())
				want := context.Canceled
				if tc.cancel {
					defer time.AfterFunc(tc.after, cancel).Stop()
				} else {
					ctx, cancel = context.WithTimeout(t.Context(), tc.after)
					want = context.DeadlineExceeded
				}
				defer cancel()
				if _, _, err := send(ctx, p, "x"); !errors.Is(err, want) {
					t.Errorf("%v, want %v", err, want)
				}
				if got := !status(p, addrA).Good; got != tc.bad {
					t.Errorf("bad %t, want %t", got, tc.bad)
				}
			})
		})
	}
}

// Case 85 of the field reports: one address, HTTP/2, and the flow that worked is dropped; new ones would pass.
func TestADroppedFlowCostsACallAndIsReplaced(t *testing.T) {
	simulate(t, goodURL, []netip.Addr{addrA}, nil, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
		pass(time.Minute)
		w.set(func() {
			for conn := range w.wires {
				conn.dropped = true
			}
		})
		failed := 0
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, _, err := send(ctx, p, "x"); err != nil {
				failed++
			}
			cancel()
			pass(time.Second)
		}
		if failed != 1 {
			t.Errorf("%d calls failed, want one", failed)
		}
	})
}

// Case 86 of the field reports: pings are for HTTP/2; here the deadline must close the socket.
func TestADeadlineClosesAnHTTP1Connection(t *testing.T) {
	simulate(t, goodURL, []netip.Addr{addrA}, func(w *world) { w.http1 = true }, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
		pass(time.Minute)
		w.set(func() { w.servers[addrA].onlyCalls, w.servers[addrA].silent = true, true })
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		before := get(w, func() map[*wire]struct{} { return maps.Clone(w.wires) })
		if _, _, err := send(ctx, p, "x"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want a timeout", err)
		}
		synctest.Wait()
		for conn := range get(w, func() map[*wire]struct{} { return maps.Clone(w.wires) }) {
			if _, same := before[conn]; same {
				t.Error("the silent connection is open")
			}
		}
		w.set(func() { w.servers[addrA].silent = false })
		dials := get(w, func() int { return w.dials })
		if _, answer, err := send(t.Context(), p, "x"); err != nil || answer != "x" {
			t.Errorf("next call: %q, %v", answer, err)
		}
		if get(w, func() int { return w.dials }) == dials {
			t.Error("the next call has not dialed")
		}
	})
}

// Case 84 of the field reports.
func TestA429IsBelievedForAsLongAsItSays(t *testing.T) {
	for _, tc := range []struct {
		name   string
		header func() http.Header
		wait   time.Duration
	}{
		{"seconds", func() http.Header { return http.Header{"Retry-After": {"7"}} }, 7 * time.Second},
		{"date", func() http.Header {
			return http.Header{"Retry-After": {time.Now().Add(90 * time.Second).UTC().Format(http.TimeFormat)}}
		}, 90 * time.Second},
		{"nothing", func() http.Header { return nil }, 10 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			simulate(t, plainURL, []netip.Addr{addrA}, nil, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
				pass(time.Minute)
				s := w.servers[addrA]
				w.set(func() {
					s.status, s.body, s.header = http.StatusTooManyRequests, "<html>slow down</html>", tc.header()
				})
				resp, answer, err := send(t.Context(), p, "x")
				if err != nil || resp.StatusCode != http.StatusTooManyRequests || answer != "<html>slow down</html>" {
					t.Fatalf("%v, %q, %v, want the 429 as it is", resp, answer, err)
				}
				limited := time.Now()
				sent := get(w, func() int { return s.requests })
				w.set(func() { s.status, s.body, s.header = 0, "", nil })

				// Meanwhile callers, many at a time, are told how long to wait, and nothing is sent, nor checked.
				for time.Since(limited) < tc.wait-time.Second {
					var wg sync.WaitGroup
					for range 3 {
						wg.Go(func() {
							resp, _, err := send(t.Context(), p, "x")
							if err != nil || resp.StatusCode != http.StatusTooManyRequests {
								t.Errorf("while limited: %v, %v", resp, err)
								return
							}
							left := tc.wait - time.Since(limited)
							if got := resp.Header.Get("Retry-After"); got != fmt.Sprint(int((left+time.Second-1)/time.Second)) {
								t.Errorf("Retry-After %s with %v left", got, left)
							}
						})
					}
					wg.Wait()
					pass(900 * time.Millisecond)
				}
				if n := get(w, func() int { return s.requests }); n != sent {
					t.Errorf("%d requests sent while limited", n-sent)
				}
				pass(2 * time.Second)
				if _, answer, err := send(t.Context(), p, "x"); err != nil || answer != "x" {
					t.Errorf("afterwards: %q, %v", answer, err)
				}
			})
		})
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		after, date string
		want        time.Duration
	}{
		{"7", "", 7 * time.Second},
		{" 120 ", "", 2 * time.Minute},
		{"0", "", 0},
		{"-5", "", 0},
		{"99999999999", "", maxRetryAfter},
		{"999999999999999999999", "", 0},
		{"soon", "", 0},
		{"", "", 0},
		// Our own clock says something else altogether.
		{now.Add(30 * time.Second).Format(http.TimeFormat), now.Format(http.TimeFormat), 30 * time.Second},
		{now.Add(-30 * time.Second).Format(http.TimeFormat), now.Format(http.TimeFormat), 0},
		{now.Add(48 * time.Hour).Format(http.TimeFormat), now.Format(http.TimeFormat), maxRetryAfter},
	} {
		h := http.Header{"Retry-After": {tc.after}, "Date": {tc.date}}
		if got := retryAfter(h); got != tc.want {
			t.Errorf("Retry-After %q, Date %q: %v, want %v", tc.after, tc.date, got, tc.want)
		}
	}
}

func TestTheSecondBestIsAskedOnRequest(t *testing.T) {
	simulate(t, plainURL, []netip.Addr{addrA, addrB, addrC}, func(w *world) {
		aFirst(w)
		w.servers[addrC].delay = 25 * time.Millisecond
	}, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
		pass(time.Minute)
		ask := func(avoid string) string {
			r := Route{Avoid: avoid}
			if _, _, err := send(WithRoute(t.Context(), &r), p, "x"); err != nil {
				t.Errorf("avoiding %q: %v", avoid, err)
			}
			return r.Used
		}
		if got := ask(plainName(addrA)); got != plainName(addrB) {
			t.Errorf("used %q, want the second best, %v", got, addrB)
		}
		if got := ask(plainName(addrB)); got != plainName(addrA) {
			t.Errorf("used %q, want %v", got, addrA)
		}
		w.set(func() { w.servers[addrB].status = http.StatusBadGateway })
		if got := ask(plainName(addrA)); got != plainName(addrC) {
			t.Errorf("with the second best failing: used %q, want %v", got, addrC)
		}
		w.set(func() { w.servers[addrC].status = http.StatusBadGateway })
		pass(time.Minute)
		if got := ask(plainName(addrA)); got != plainName(addrA) {
			t.Errorf("with nobody else: used %q, want %v", got, addrA)
		}
		if got := inUse(p); got != addrA {
			t.Errorf("%v in use, want %v", got, addrA)
		}
	})
}

// endless is a body that never ends.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestBodiesAreBounded(t *testing.T) {
	simulate(t, plainURL, []netip.Addr{addrA}, nil, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
		pass(time.Minute)
		closed := false
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://ledger.invalid/", closer{endless{}, &closed})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.RoundTrip(req); err == nil || !closed {
			t.Errorf("endless request: %v, body closed %t", err, closed)
		}
		w.set(func() { w.servers[addrA].onlyCalls, w.servers[addrA].body = true, strings.Repeat("x", maxAnswer+1) })
		_, _, err = send(t.Context(), p, "x")
		if failure, ok := errors.AsType[*Error](err); !ok || failure.Kind != FaultInvalid {
			t.Errorf("huge answer: %v, want invalid", err)
		}
	})
}

type closer struct {
	io.Reader
	closed *bool
}

func (c closer) Close() error { *c.closed = true; return nil }

// Other headers and methods pass as they are; user info becomes basic authentication.
func TestARequestKeepsItsHeadersAndGetsTheURLs(t *testing.T) {
	certificate()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, addrA)
		w.serve()
		cfg, _ := w.config("http://user:" + secret + "@rpc.example/v1/" + secret + "?api-key=" + secret)
		p, _ := w.start(cfg)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "https://placeholder.invalid/x?y=z", bytes.NewReader([]byte("hello")))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := p.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Request != req || resp.ContentLength != 5 {
			t.Errorf("response of %v with length %d, want the request as it was given and 5", resp.Request.URL, resp.ContentLength)
		}
		if req.URL.Host != "placeholder.invalid" || req.Header.Get("Authorization") != "" {
			t.Errorf("the caller's request was changed: %v", req)
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
		got := get(w, func() *http.Request { return w.servers[addrA].last })
		user, password, _ := got.BasicAuth()
		if diff := cmp.Diff([]string{"PUT", "application/json", "user", secret}, []string{got.Method, got.Header.Get("Content-Type"), user, password}); diff != "" {
			t.Errorf("sent (-want +got):\n%s", diff)
		}
	})
}

// At the start a call waits for the first candidate that answers, or until it is clear that there is none.
func TestTheFirstCallWaitsForTheFirstChecks(t *testing.T) {
	certificate()
	for _, tc := range []struct {
		name    string
		prepare func(*world)
		err     error
		took    time.Duration
	}{
		{"look-up of 3 s", func(w *world) {
			lookup := w.lookup
			w.lookup = func(ctx context.Context) ([]netip.Addr, error) { <-time.After(3 * time.Second); return lookup(ctx) }
		}, nil, 3*time.Second + 20*time.Millisecond},
		{"look-up that fails", func(w *world) {
			w.lookup = func(context.Context) ([]netip.Addr, error) { return nil, errors.New("no such host") }
		}, ErrNoCandidate, 0},
		{"look-up that blocks", func(w *world) {
			w.lookup = func(ctx context.Context) ([]netip.Addr, error) { <-ctx.Done(); return nil, ctx.Err() }
		}, ErrNoCandidate, lookupTimeout},
		{"no address", func(w *world) {
			w.lookup = func(context.Context) ([]netip.Addr, error) { return nil, nil }
		}, ErrNoCandidate, 0},
		{"everything slow", func(w *world) {
			w.servers[addrA].blackhole = true
			lookup := w.lookup
			w.lookup = func(ctx context.Context) ([]netip.Addr, error) { <-time.After(5 * time.Second); return lookup(ctx) }
		}, context.DeadlineExceeded, callTimeout},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, addrA)
				tc.prepare(w)
				w.serve()
				cfg, _ := w.config(plainURL)
				p, _ := w.start(cfg)
				start := time.Now()
				_, _, err := send(t.Context(), p, "x")
				if !errors.Is(err, tc.err) && !(tc.name == "everything slow" && errors.Is(err, ErrNoCandidate)) {
					t.Errorf("%v, want %v", err, tc.err)
				}
				if took := time.Since(start); took != tc.took {
					t.Errorf("took %v, want %v", took, tc.took)
				}
			})
		})
	}
}

// What Run has begun ends with it, and does not wait for a deadline.
func TestTheEndOfRunEndsEverything(t *testing.T) {
	certificate()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, five...)
		w.servers[addrA].blackhole, w.servers[addrB].silent = true, true
		w.serve()
		cfg, _ := w.config(goodURL)
		cfg.URLs = append(cfg.URLs, URL{URL: "https://other.example"})
		lookup := cfg.Lookup
		cfg.Lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			if host != hostName {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return lookup(ctx, host)
		}
		_, stop := w.start(cfg)
		pass(2 * time.Second)
		if n := get(w, func() int { return w.dialing }); n != 1 {
			t.Errorf("%d dials under way, want 1", n)
		}
		end := time.Now()
		stop()
		if took := time.Since(end); took != 0 {
			t.Errorf("took %v", took)
		}
	})
}

// Pings notice within seconds what a deadline alone would leave open, and what no check has tried.
func TestALinkNoticesThatItIsDead(t *testing.T) {
	certificate()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, addrA)
		w.serve()
		_, roots := certificate()
		l := newLink(netip.AddrPortFrom(addrA, 443), &tls.Config{RootCAs: roots, ServerName: "overridden.example"}, w.dial)
		call := func() error {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, goodURL, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _, err = l.roundTrip(req, []byte("x"))
			return err
		}
		if err := call(); err != nil {
			t.Fatal(err)
		}
		w.set(func() {
			for conn := range w.wires {
				conn.dropped = true
			}
		})
		start := time.Now()
		err := call()
		if f := transportFault(err, strings.ToUpper); f.kind != FaultTimeout || f.text != "no answer to a ping" {
			t.Errorf("%v is classified as %+v", err, f)
		}
		if took := time.Since(start); took > pingAfter+pingTimeout {
			t.Errorf("noticed after %v, want at most %v", took, pingAfter+pingTimeout)
		}
		if err := call(); err != nil {
			t.Errorf("next call: %v", err)
		}
		l.hold()
		l.retire(false)
		if err := call(); err != nil {
			t.Errorf("on a retired link: %v", err)
		}
		l.release()
		if n := get(w, func() int { return len(w.wires) }); n != 0 {
			t.Errorf("%d connections open", n)
		}
		l.hold()
		l.retire(true)
		if err := call(); err == nil || !l.wasCut() {
			t.Errorf("on a link that was cut: %v", err)
		}
	})
}

// A connection that comes when its link has ended is closed.
func TestALateConnectionIsClosed(t *testing.T) {
	certificate()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, addrA)
		w.serve()
		l := newLink(netip.AddrPortFrom(addrA, 80), nil, func(ctx context.Context, network, address string) (net.Conn, error) {
			<-time.After(time.Second) // and it does not look at ctx
			return w.dial(context.WithoutCancel(ctx), network, address)
		})
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, plainURL, nil)
		if err != nil {
			t.Fatal(err)
		}
		l.hold()
		if _, _, err := l.roundTrip(req, nil); err == nil {
			t.Error("want a timeout")
		}
		l.release()
		l.retire(false)
		pass(2 * time.Second)
		if dials, open := get(w, func() int { return w.dials }), get(w, func() int { return len(w.wires) }); dials != 1 || open != 0 {
			t.Errorf("%d connections open of %d, want 0 of 1", open, dials)
		}
	})
}

// One that has failed while it was in use is good again, and the other one fails: it is used, and nothing but its own failure, or much
// better speed, changes that.
func TestCallsGoToTheOneInUse(t *testing.T) {
	simulate(t, plainURL, two, aFirst, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
		pass(time.Minute)
		for _, addr := range two {
			w.set(func() { w.servers[addr].status = http.StatusBadGateway })
			pass(10 * time.Second)
			w.set(func() { w.servers[addr].status = 0 })
			pass(2 * time.Minute)
		}
		if got := inUse(p); got != addrA {
			t.Fatalf("%v in use, want %v", got, addrA)
		}
		if got := moves(p, time.Hour); len(got) != 1 {
			t.Errorf("in use: %v", got)
		}
		var r Route
		if _, _, err := send(WithRoute(t.Context(), &r), p, "x"); err != nil || r.Used != plainName(addrA) {
			t.Errorf("used %q, %v, want %v", r.Used, err, addrA)
		}
	})
}

// A submitter's last flush may come after the pool's loop has ended.
func TestCallsWorkAfterRunHasEnded(t *testing.T) {
	certificate()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, addrA, addrB)
		w.serve()
		cfg, _ := w.config(goodURL)
		p, stop := w.start(cfg)
		pass(time.Minute)
		slow := make(chan error)
		w.set(func() { w.servers[addrA].delay = 2 * time.Second; w.servers[addrB].delay = 2 * time.Second })
		go func() {
			_, _, err := send(t.Context(), p, "x")
			slow <- err
		}()
		pass(time.Second)
		w.late = true
		stop()
		if err := <-slow; err != nil {
			t.Errorf("call under way: %v", err)
		}
		if _, answer, err := send(t.Context(), p, "y"); err != nil || answer != "y" {
			t.Errorf("later call: %q, %v", answer, err)
		}
		synctest.Wait()
		if n := get(w, func() int { return len(w.wires) }); n != 0 {
			t.Errorf("%d connections open", n)
		}
	})
}

// The errors of a real network are what the simulated one makes them out to be.
func TestTheKernelsErrorsAreUnderstood(t *testing.T) {
	for _, tc := range []struct {
		kind   string
		accept func(conn *net.TCPConn) error // nil: nobody listens
	}{
		{FaultRefused, nil},
		{FaultReset, func(conn *net.TCPConn) error { return errors.Join(conn.SetLinger(0), conn.Close()) }},
		{FaultReset, func(conn *net.TCPConn) error { return conn.Close() }},
		{FaultInvalid, func(conn *net.TCPConn) error {
			if _, err := conn.Read(make([]byte, 4096)); err != nil { // else net/http logs, by the standard logger
				return err
			}
			_, err := io.WriteString(conn, "SSH-2.0-OpenSSH_9.9\r\n")
			return errors.Join(err, conn.CloseWrite(), drain(conn), conn.Close())
		}},
	} {
		t.Run(tc.kind, func(t *testing.T) {
			listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				t.Fatal(err)
			}
			var accepting sync.WaitGroup
			if tc.accept == nil {
				if err := listener.Close(); err != nil {
					t.Fatal(err)
				}
			} else {
				accepting.Go(func() {
					for {
						conn, err := listener.AcceptTCP()
						if err != nil {
							return
						}
						if err := tc.accept(conn); err != nil {
							t.Errorf("server: %v", err)
						}
					}
				})
			}
			p, err := New(Config{
				URLs:   []URL{{URL: "http://" + listener.Addr().String()}},
				Lookup: func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New("not needed") },
				Dial:   new(net.Dialer).DialContext,
				Check:  checkCall,
				Logger: zap.NewNop(),
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ran := make(chan error)
			go func() { ran <- p.Run(ctx) }()
			_, _, err = send(ctx, p, "x")
			if failure, ok := errors.AsType[*Error](err); !ok || failure.Kind != tc.kind {
				t.Errorf("%v, want an *Error of kind %s", err, tc.kind)
			}
			cancel()
			if err := <-ran; err != nil {
				t.Errorf("Run: %v", err)
			}
			if tc.accept != nil {
				if err := listener.Close(); err != nil {
					t.Error(err)
				}
			}
			accepting.Wait()
		})
	}
}

// drain reads what a client still sends.
func drain(conn net.Conn) error {
	_, err := io.Copy(io.Discard, conn)
	return err
}
