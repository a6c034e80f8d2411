// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/netns/netnstest"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/submit"
)

// runInside runs a daemon of this process whose probes are in ns.
func runInside(t *testing.T, ns *netnstest.NS, file string, s seams) (d *daemon, stop func() error) {
	t.Helper()
	cfg, err := loadConfig(file, "host")
	if err != nil {
		t.Fatal(err)
	}
	s.namespace, err = netns.Open(ns.Path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.namespace.Close() })
	core, logged := observer.New(zap.InfoLevel)
	d, err = newDaemon(cfg, zap.New(core), s)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.run(ctx) }()
	stopped := false
	stop = func() (err error) {
		cancel()
		if !stopped {
			stopped = true
			err = <-done
		}
		return err
	}
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			for _, e := range logged.All() {
				t.Log(e.Level, e.Message, e.ContextMap())
			}
		}
	})
	return d, stop
}

// panicking is a sink that panics while it is told to.
type panicking struct {
	submit.Sink
	on *atomic.Bool
}

func (p panicking) Submit(ctx context.Context, path store.Path, s []store.Sample) (submit.Result, error) {
	if p.on.Load() {
		panic("sink")
	}
	return p.Sink.Submit(ctx, path, s)
}

func TestPanicsCostNoProbe(t *testing.T) {
	near, far := twoHosts(t)
	reflectingIn(t, far)
	dir, file := switchConfig(t, "")
	var inSink, inWeb atomic.Bool
	var storePanics atomic.Int32 // still to come
	d, stop := runInside(t, near, file, seams{
		storeFault: func(string) {
			if storePanics.Load() > 0 && storePanics.Add(-1) >= 0 {
				panic("store")
			}
		},
		sink: func(s submit.Sink) submit.Sink { return panicking{s, &inSink} },
		web: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if inWeb.Load() {
					panic("web")
				}
				next.ServeHTTP(w, r)
			})
		},
	})
	received := func() (n uint64) {
		for _, p := range d.engine.Paths() {
			n += p.Received
		}
		return n
	}
	more := func(n uint64) {
		t.Helper()
		before := received()
		awaitState(t, "more replies", func() bool { return received() >= before+n })
	}
	awaitState(t, "ready", func() bool { code, _ := getFrom(t, dir, "/-/ready"); return code == http.StatusOK })
	more(20)

	inWeb.Store(true)
	if code, _ := getFrom(t, dir, "/metrics"); code != http.StatusInternalServerError {
		t.Errorf("a panicking handler answered %d, want 500", code)
	}
	inWeb.Store(false)

	inSink.Store(true)
	awaitState(t, "a panic of the sink", func() bool { return d.supervisor.panicked()["sink file"] > 0 })
	more(20)
	inSink.Store(false)

	storePanics.Store(1)
	awaitState(t, "a panic of the store", func() bool { return storePanics.Load() <= 0 })
	more(20)
	awaitState(t, "a store that works again", func() bool { return d.recorder.Load().Degraded() == "" })
	more(20)

	_, scrape := getFrom(t, dir, "/metrics")
	for _, component := range []string{"web", "sink file", "store"} {
		if n := metric(scrape, "xtwamp_panics_total", `component="`+component+`"`); n < 1 {
			t.Errorf("panics of %s: %v", component, n)
		}
	}
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	for _, p := range d.engine.Paths() {
		if p.Lost+p.Unknown+p.Skipped != 0 || len(p.NotSent) != 0 || p.Sent != p.Received {
			t.Errorf("%s: %+v: a panic cost probes", p.Target.Name, p.Counters)
		}
	}
	if d.ring.Dropped() != 0 {
		t.Errorf("%d samples were dropped from memory", d.ring.Dropped())
	}
	// The store that panicked was set aside, not deleted, and all samples are
	// in one of the two files.
	aside, _ := filepath.Glob(filepath.Join(dir, "samples.db.corrupt-*"))
	if len(aside) == 0 {
		t.Error("the store that panicked was not set aside")
	}
	total := 0
	for _, f := range append(aside, filepath.Join(dir, "samples.db")) {
		code, out, errs := invoke(t, "samples", "--store", f, "--json")
		if code != 0 {
			t.Errorf("%s cannot be read: %s", f, errs)
		}
		total += strings.Count(out, "\n")
	}
	if sent := d.engine.Paths()[0].Sent + d.engine.Paths()[1].Sent; total != int(sent) {
		t.Errorf("%d samples are stored of %d probes sent", total, sent)
	}
}

func TestInterfaceThatDoesNotExistYet(t *testing.T) {
	lab := netnstest.New(t)
	near, far := lab.Namespace("near"), lab.Namespace("far")
	dir, file := switchConfig(t, "")
	d := startDaemon(t, near, dir, file)
	awaitState(t, "probes that are not sent", func() bool {
		_, scrape := d.get("/metrics")
		return metric(scrape, "xtwamp_probes_not_sent_total", `path="four"`, `reason="no_interface"`) > 10
	})
	if !strings.Contains(d.errs.String(), `interface \"eth1\": no such interface`) {
		t.Errorf("the log does not name the interface:\n%s", d.errs)
	}
	// The interface that a path names, and a path that has no route.
	if n := strings.Count(d.errs.String(), "cannot be used"); n != 2 {
		t.Errorf("%d lines for two paths that cannot be used, want 2:\n%s", n, d.errs)
	}
	lab.Veth(near, "eth1", []string{"10.1.0.1/24", "2001:db8::1/64"}, far, "eth1", []string{"10.1.0.2/24", "2001:db8::2/64"})
	reflectingIn(t, far)
	awaitState(t, "replies on both paths", func() bool {
		_, scrape := d.get("/metrics")
		return metric(scrape, "xtwamp_probes_received_total", `path="four"`) > 10 && metric(scrape, "xtwamp_probes_received_total", `path="six"`) > 10
	})
	if code := d.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit %d after SIGTERM, want 0", code)
	}
}

func TestStoreThatCannotBeOpened(t *testing.T) {
	near, far := twoHosts(t)
	reflectingIn(t, far)
	dir, file := switchConfig(t, "")
	// A directory where the file belongs; then it goes.
	blocked := filepath.Join(dir, "samples.db")
	if err := os.MkdirAll(filepath.Join(blocked, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	d, stop := runInside(t, near, file, seams{})
	awaitState(t, "replies without a store", func() bool { return d.engine.Paths()[0].Received > 20 })
	if code, body := getFrom(t, dir, "/-/ready"); code != http.StatusServiceUnavailable || !strings.Contains(body, "the store is not open") {
		t.Errorf("/-/ready = %d %q", code, body)
	}
	if err := os.RemoveAll(blocked); err != nil {
		t.Fatal(err)
	}
	awaitState(t, "an open store", func() bool { return d.store.Load() != nil })
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	code, out, errs := invoke(t, "samples", "--store", blocked, "--json")
	sent := d.engine.Paths()[0].Sent + d.engine.Paths()[1].Sent
	if code != 0 || strings.Count(out, "\n") != int(sent) {
		t.Errorf("exit %d, %d samples of %d probes: what was measured before was lost; %s", code, strings.Count(out, "\n"), sent, errs)
	}
}
