// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Whatever goes wrong, and however much of the request a server or a check quotes, no secret comes out.
func TestNoSecretComesOut(t *testing.T) {
	certificate()
	const user = "agent-5150"
	quoting := `{"error":"no route for /v1/` + secret + `?api-key=` + secret + ` of ` + user + `"}`
	for _, tc := range []struct {
		name  string
		apply func(w *world, s *server)
	}{
		{"healthy", func(*world, *server) {}},
		{"refused", func(_ *world, s *server) { s.refuse, s.reset = true, true }},
		{"blackholed", func(_ *world, s *server) { s.blackhole = true }},
		{"status 404 that quotes", func(_ *world, s *server) { s.status, s.body = http.StatusNotFound, quoting }},
		{"status 503 that quotes", func(_ *world, s *server) { s.status, s.body = http.StatusServiceUnavailable, quoting }},
		{"nonsense that quotes", func(_ *world, s *server) { s.body = "<html>" + quoting }},
		{"redirect", func(_ *world, s *server) {
			s.status, s.header = http.StatusFound, http.Header{"Location": {"https://rpc.example/v2/" + secret}}
		}},
		{"cluster that quotes", func(_ *world, s *server) { s.cluster = secret }},
		{"broken off", func(_ *world, s *server) { s.truncate = true }},
		{"protocol error that quotes", func(_ *world, s *server) { s.garbage = "HTTP/9 " + secret + " " + user + "\r\n\r\n" }},
		{"look-up error that quotes", func(w *world, s *server) {
			w.lookup = func(context.Context) ([]netip.Addr, error) { return nil, errors.New("lookup " + secret) }
			s.refuse, s.reset = true, true
		}},
		{"state error that quotes", func(w *world, _ *server) { w.saveErr = errors.New("save " + secret) }},
		{"wrong certificate", func(*world, *server) {}},
	} {
		for _, scheme := range []string{"http", "https"} {
			t.Run(tc.name+" "+scheme, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, addrA, addrB)
					w.http1 = true
					w.serve()
					cfg, logs := w.config(scheme + "://" + user + ":" + secret + "@rpc.example/v1/" + secret + "?api-key=" + secret)
					var said []string
					say := func(v ...any) { said = append(said, fmt.Sprintf("%v %+v %#v", v, v, v)) }
					if tc.name == "wrong certificate" {
						cfg.TLS = &tls.Config{}
					}
					p, stop := w.start(cfg)
					pass(10 * time.Second)
					w.set(func() {
						for _, s := range w.servers {
							tc.apply(w, s)
						}
					})
					for range 20 {
						ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
						req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://ledger.invalid/", strings.NewReader("x"))
						if err != nil {
							t.Fatal(err)
						}
						r := new(Route)
						resp, err := (&http.Client{Transport: p}).Do(req.WithContext(WithRoute(ctx, r)))
						if err == nil {
							say(resp.Request.URL.String(), resp.Status)
							err = resp.Body.Close()
						}
						for e := err; e != nil; e = errors.Unwrap(e) {
							say(e.Error(), fmt.Sprintf("%v %+v", e, e))
						}
						say(r.Used)
						cancel()
						pass(10 * time.Second)
					}
					if tc.name == "cluster that quotes" {
						pass(identifyEvery)
					}
					status, err := json.Marshal(p.Status())
					if err != nil {
						t.Fatal(err)
					}
					say(string(status), p.String())
					stop()
					said = append(said, lines(logs)...)
					if tc.name != "cluster that quotes" { // nobody would call that a secret
						said = append(said, string(get(w, func() []byte { return w.saved })))
					}
					for _, text := range said {
						for _, word := range []string{secret, user, "api-key", "/v1"} {
							if strings.Contains(text, word) {
								t.Errorf("%q in %s", word, text)
							}
						}
					}
					if len(logs.All()) == 0 {
						t.Error("nothing was logged: the test proves nothing")
					}
				})
			})
		}
	}
}

func TestABadURLIsNotQuoted(t *testing.T) {
	for _, url := range []string{
		"https://user:" + secret + "@host:port/",
		"https://host/%zz" + secret,
		"ftp://host/" + secret,
		secret + "://host/",
		secret,
		"https:///" + secret,
		"https://host:99999/" + secret,
		"https://host:0/" + secret,
		"https://host/" + secret + " \x7f",
		"",
	} {
		w := newWorld(t)
		cfg, _ := w.config(url)
		_, err := New(cfg)
		if err == nil {
			t.Errorf("%q is accepted", url)
		} else if strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), secret) {
			t.Errorf("%q quoted: %v", url, err)
		}
	}

	w := newWorld(t)
	cfg, _ := w.config(goodURL)
	cfg.URLs = append(cfg.URLs, cfg.URLs[0])
	if _, err := New(cfg); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("the same twice: %v", err)
	}
	cfg.URLs = []URL{{URL: goodURL, Addresses: []netip.Addr{netip.IPv4Unspecified()}}}
	if _, err := New(cfg); err == nil {
		t.Error("0.0.0.0 is accepted")
	}
}
