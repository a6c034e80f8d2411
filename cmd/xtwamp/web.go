// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/exporter-toolkit/web"
	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/probe/store"
)

// handler answers HTTP on the control socket and the web listener. Only on the
// former, or with web.lifecycle, may it be told to do something.
func (d *daemon) handler(lifecycle bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /-/reload", func(w http.ResponseWriter, r *http.Request) {
		if !lifecycle {
			http.Error(w, "not here: use the control socket, or set web.lifecycle", http.StatusForbidden)
			return
		}
		d.serveReload(w, r)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(d.registry, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	mux.HandleFunc("GET /-/healthy", d.serveHealthy)
	mux.HandleFunc("GET /-/ready", d.serveReady)
	stored := func(pattern string, serve func(w http.ResponseWriter, r *http.Request, log *store.Log)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if log := d.store.Load(); log != nil {
				serve(w, r, log)
			} else {
				http.Error(w, "the store is not open", http.StatusServiceUnavailable)
			}
		})
	}
	mux.HandleFunc("GET /api/v1/status", func(w http.ResponseWriter, _ *http.Request) { serveJSON(w, d.status()) })
	stored("GET /api/v1/paths", func(w http.ResponseWriter, _ *http.Request, log *store.Log) { servePaths(w, log) })
	stored("GET /api/v1/samples", func(w http.ResponseWriter, r *http.Request, log *store.Log) {
		serveSamples(w, r, log, d.cfg.Device)
	})
	mux.HandleFunc("GET /{$}", d.servePage)
	if d.cfg.Web.Pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	}
	var h http.Handler = mux
	if d.seams.web != nil {
		h = d.seams.web(h)
	}
	return d.recovering(h)
}

// recovering counts a panic of a handler and answers 500.
func (d *daemon) recovering(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		aborted := false
		err := d.supervisor.guard("web", func() error {
			defer func() {
				p := recover()
				if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
					aborted = true
				} else if p != nil {
					panic(p)
				}
			}()
			next.ServeHTTP(w, r)
			return nil
		})
		switch {
		case aborted:
			panic(http.ErrAbortHandler)
		case err != nil:
			http.Error(w, "internal error", http.StatusInternalServerError)
		}
	})
}

// serveHealthy says whether the work is done, not whether the process is
// there: 503 once a loop has missed its deadline three times.
func (d *daemon) serveHealthy(w http.ResponseWriter, _ *http.Request) {
	var stuck []string
	for _, l := range d.loops.stuck() {
		stuck = append(stuck, fmt.Sprintf("%s: silent since %s", l.Name, l.Since.UTC().Format(time.RFC3339)))
	}
	answer(w, stuck, "healthy")
}

// serveReady says whether the store is open and the sockets are bound.
func (d *daemon) serveReady(w http.ResponseWriter, _ *http.Request) {
	var missing []string
	if d.store.Load() == nil {
		missing = append(missing, "the store is not open")
	}
	if d.cfg.Reflector.Enabled && d.reflector.Load() == nil {
		missing = append(missing, "the reflector is off: its port is not bound")
	}
	answer(w, missing, "ready")
}

func answer(w http.ResponseWriter, faults []string, good string) {
	if len(faults) > 0 {
		http.Error(w, strings.Join(faults, "\n"), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, good)
}

// writeTimeout is how long a client may take what it asked for, and one of a
// long answer the next part of it.
const writeTimeout = 2 * time.Minute

// serveHTTP answers on l until ctx ends, with TLS and authentication if a file
// of exporter-toolkit says so.
func (d *daemon) serveHTTP(ctx context.Context, l net.Listener, lifecycle bool, file string) error {
	server := &http.Server{
		Handler:           d.handler(lifecycle),
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
	down := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(down)
		const patience = 2 * time.Second
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		if server.Shutdown(limited) != nil {
			server.Close()
		}
	})
	defer stop()
	// What it would log is that it serves, and what it returns.
	flags := web.FlagConfig{WebConfigFile: &file}
	if err := web.Serve(l, server, &flags, slog.New(slog.DiscardHandler)); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	<-down // what is being answered has its time
	return nil
}

// serveWeb listens on one address of the web listener, in its namespace while
// there is one.
func (d *daemon) serveWeb(ctx context.Context, address string) error {
	place, err := netns.ParsePlace(d.cfg.Namespaces.Web)
	if err != nil {
		return err
	}
	state := newUpkeep(d.log, "the web listener waits for its namespace", "the namespace of the web listener is there again")
	serve := func(ctx context.Context, _ *netns.Namespace) error {
		defer state.works()()
		l, err := place.Listen(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("listen for HTTP on %s: %w", address, err)
		}
		return d.serveHTTP(ctx, l, d.cfg.Web.Lifecycle, d.cfg.Web.ConfigFile)
	}
	return place.Each(ctx, serve, state.fails)
}

// serveControl listens on the control socket, which only its owner may use.
func (d *daemon) serveControl(ctx context.Context, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the directory of the control socket: %w", err)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return fmt.Errorf("control socket %s: another daemon answers there", path)
	}
	if err := removeSocket(path); err != nil {
		return fmt.Errorf("remove the stale control socket: %w", err)
	}
	// The socket's mode is that of its name, from the moment it has one.
	private := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var chmod error
		err := raw.Control(func(fd uintptr) { chmod = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, chmod)
	}}
	l, err := private.Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("listen on the control socket: %w", err)
	}
	return d.serveHTTP(ctx, l, true, "")
}

// removeSocket removes a socket that nobody listens on any more, and nothing
// but a socket.
func removeSocket(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is there and not a socket", path)
	}
	return os.Remove(path)
}
