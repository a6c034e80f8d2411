// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/probe"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
	"github.com/xtwamp/xtwamp/submit/doublezero/ledgertest"
)

// page is the status page of a daemon.
func page(t *testing.T, d *daemon) string {
	t.Helper()
	w := httptest.NewRecorder()
	d.handler(false).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
		t.Fatalf("status %d, %s", w.Code, w.Header().Get("Content-Type"))
	}
	return w.Body.String()
}

// The page has what status tells, of none, one and many links, and asks for nothing from elsewhere.
func TestPage(t *testing.T) {
	for _, links := range []int{0, 1, 500} {
		t.Run(fmt.Sprint(links), func(t *testing.T) {
			cfg := defaultConfig("switch")
			cfg.Store.Path = filepath.Join(t.TempDir(), "samples.db")
			for i := range links {
				cfg.Targets = append(cfg.Targets, targetConfig{Name: fmt.Sprintf("link%d", i), Address: fmt.Sprintf("198.51.%d.%d", i/250, i%250+1)})
			}
			d, err := newDaemon(&cfg, zap.NewNop(), seams{engine: func(c probe.Config) (*probe.Engine, error) {
				return probe.Simulate(c, answered)
			}})
			if err != nil {
				t.Fatal(err)
			}
			text := page(t, d)
			if n := strings.Count(text, `<svg class="chart"`); n != links {
				t.Errorf("%d charts of %d links", n, links)
			}
			if none := strings.Contains(text, "No targets yet"); none != (links == 0) {
				t.Errorf("says that there are no targets: %t", none)
			}
			if found := regexp.MustCompile(`(?i)<script|\son[a-z]+=|https?://|url\(|@import|<iframe|<img`).FindString(text); found != "" {
				t.Errorf("%q in the page", found)
			}
		})
	}
}

// What is wrong is on the page, and nothing in it can be more than text.
func TestPageShowsTrouble(t *testing.T) {
	s := daemonStatus{
		Device: "a", State: stateDegraded, Time: time.Now(), Problems: []string{`<script>alert("x")</script>`},
		Paths: []pathStatus{{Path: "quiet", State: pathSilent}, {Path: "fine", State: pathAnswers}, {Path: "link", State: pathUnsent, Reason: "no_carrier", Hour: hourStatus{
			Answered: 1, Lost: 1, P50: 1_234_567, P99: 1_234_567, Median: []int64{0, 1_234_567}, Most: []int64{0, 1_300_000}, LostIn: []int64{1, 0},
		}}},
		Store:     storeStatus{Open: true, DiskFull: true},
		Sinks:     []sinkTotals{{Sink: "file", Failing: "disk <full>"}},
		Endpoints: []endpointInfo{{Endpoint: "https://a.example.net:443/192.0.2.1", Reason: "status 503"}},
		Loops:     []loopStatus{{Name: "engine", State: loopStuck}},
		Recent:    []recentChange{{Level: "error", Message: "it broke", Fields: "error=x"}},
	}
	var out bytes.Buffer
	if err := pageTemplate.Execute(&out, &s); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, want := range []string{
		"<title>a: degraded, 1 of 3 links answer", "&lt;script&gt;alert", `class="bad">not sent</td>`, "no_carrier", "silent: quiet", "1.23 ms", "50.00 %", "The disk is full.",
		"disk &lt;full&gt;", "status 503", "stuck", "it broke",
		`aria-label="RTT of link in the last hour: median 1.23 ms, 99th percentile 1.23 ms, loss 50.00 %"`, `class="lost" d="M0 0h4v36h-4z"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the page", want)
		}
	}
	if strings.Contains(text, "<script") {
		t.Error("what a program said became a part of the page")
	}
}

// The hour on the page is that of the samples, and what changed is there, the newest first.
func TestPageOfARunningDaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait(time.Until(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)))
		l := newLedgerLab(t, 1, ledgertest.Options{SlotIndex: 100_000})
		defer l.Close()
		d, _, stop := l.run(func(_ int, n uint64) (time.Duration, bool) {
			return time.Duration(n%100+1) * time.Millisecond, n%10 != 0
		})
		defer stop()
		wait(65 * time.Minute)
		s := d.status()
		hour := s.Paths[0].Hour
		if n := hour.Answered + hour.Lost; n < 348 || n > 360 || hour.Lost < 34 || hour.Lost > 37 || hour.P50 < 45e6 || hour.P50 > 55e6 || hour.P99 < 95e6 {
			t.Errorf("hour: %d answered, %d lost, p50 %d, p99 %d", hour.Answered, hour.Lost, hour.P50, hour.P99)
		}
		if n := len(s.Recent); n == 0 || s.Recent[n-1].Message != "starting" || !slices.IsSortedFunc(s.Recent, func(a, b recentChange) int { return b.Time.Compare(a.Time) }) {
			t.Errorf("recent: %+v", s.Recent)
		}
		if e := s.Ledger.Epochs; len(e) != 1 || e[0].Written > e[0].Expected || e[0].Written < 370 || e[0].Expected > 391 || e[0].Zeros["lost"] != (e[0].Written+9)/10 {
			t.Errorf("epochs: %+v", e)
		}
		text := page(t, d)
		for _, want := range []string{fmt.Sprintf(`Written">%d<`, s.Ledger.Epochs[0].Written), "link0", "10.", "https://ledger.example.net:443/192.0.2.1", "sink doublezero", "starting", "Each account"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in the page", want)
			}
		}
		if strings.Contains(text, token) {
			t.Error("a token of the URL is in the page")
		}
	})
}

func TestRecentKeepsTheLast(t *testing.T) {
	r := newRecent()
	log := zap.New(r).Named("x").With(zap.Int("a", 1))
	log.Debug("not that")
	for i := range recentKept + 10 {
		log.Info(fmt.Sprint(i), zap.Int("b", i), zap.String("stack", "long"), zap.String("empty", ""))
	}
	lines := r.newest()
	if len(lines) != recentKept || lines[0].Message != "59" || lines[recentKept-1].Message != "10" {
		t.Fatalf("%d lines, from %q to %q", len(lines), lines[0].Message, lines[len(lines)-1].Message)
	}
	if l := lines[0]; l.Fields != "a=1, b=59" || l.Logger != "x" || l.Level != "info" {
		t.Errorf("%+v", l)
	}
}

func BenchmarkObserve(b *testing.B) {
	h := newHistograms(true, func(fn func() error) error { return fn() })
	paths := 10_000
	for i := range paths {
		h.began(i, target.Target{Name: fmt.Sprint(i)})
	}
	s := store.Sample{Outcome: store.OnTime, RTT: 1000}
	for i := 0; b.Loop(); i++ {
		s.Mono = int64(time.Hour) + int64(i)*int64(time.Second)/int64(paths)
		h.observe(i%paths, &s)
	}
}
