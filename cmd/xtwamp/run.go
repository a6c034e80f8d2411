// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/probe"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
	"github.com/xtwamp/xtwamp/submit"
	"github.com/xtwamp/xtwamp/submit/doublezero"
	"github.com/xtwamp/xtwamp/submit/endpoint"
	"github.com/xtwamp/xtwamp/submit/file"
)

func newRunCommand(e env) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Measure all the time",
		Long: `Measure the configured targets and answer other measurers until stopped.

Exit code 0: stopped by SIGTERM or SIGINT with everything stored; 2: the
configuration is bad; 1: anything else.`,
		Example: "  xtwamp run --config /etc/xtwamp/xtwamp.yml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			read := func() (*config, error) {
				hostname, _ := e.hostname()
				return loadConfig(path, hostname)
			}
			cfg, err := read()
			if err != nil {
				return usage(err)
			}
			log, err := newLogger(e, cfg.Log)
			if err != nil {
				return usage(err)
			}
			d, err := newDaemon(cfg, log, seams{dropRights: e.dropRights})
			if err != nil {
				return usage(err)
			}
			d.read = read
			return d.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&path, "config", "/etc/xtwamp/xtwamp.yml", "configuration file")
	return cmd
}

// seams are the places at which tests put a daemon elsewhere or make it fail.
type seams struct {
	namespace  *netns.Namespace // nil: the process's own
	storeFault func(operation string)
	sink       func(submit.Sink) submit.Sink
	web        func(http.Handler) http.Handler
	network    network                                   // to the ledger; zero: the system's
	addresses  func() ([]doublezero.LocalAddress, error) // of interfaces; nil: the system's
	engine     func(probe.Config) (*probe.Engine, error)
	noSync     bool                                           // the store does not wait for the disk
	dropRights func(log *zap.Logger, keepSysAdmin bool) error // nil: the process keeps its rights
}

// wrap puts a test's sink around s.
func (m seams) wrap(s submit.Sink) submit.Sink {
	if m.sink == nil {
		return s
	}
	return m.sink(s)
}

// daemon is a running xtwamp: the measuring core, and around it, under one
// supervisor, all that may fail without costing a probe.
type daemon struct {
	cfg        *config
	log        *zap.Logger
	seams      seams
	engine     *probe.Engine
	ring       *probe.Ring
	registry   *prometheus.Registry
	supervisor *supervisor
	loops      *loops
	manager    *manager
	histograms *histograms
	recent     *recent
	read       func() (*config, error) // reads the configuration again; nil: there is none to read
	reloads    reloads
	started    time.Time

	store     atomic.Pointer[store.Log]      // nil until it is open
	stored    store.History                  // what was told about it, and set aside, until then
	recorder  atomic.Pointer[probe.Recorder] // nil until the store is open
	reflector atomic.Pointer[probe.Reflector]
	keypair   *doublezero.Keypair             // nil: nothing is to be signed
	ledger    atomic.Pointer[doublezero.Sink] // nil while samples do not go there

	interfaces netns.Place            // of probes and the reflector
	pool       *endpoint.Pool         // nil: the ledger is not needed
	latest     atomic.Pointer[config] // as it was last read: what it says of targets holds
	sources    sources
	files      *target.Files         // nil: there are none
	discovery  *doublezero.Discovery // nil: links are not discovered
	measuring  *milestone            // the engine runs
	reflected  *milestone            // the reflector has tried to have its port
	reflecting *upkeep
	reflectsAt string // as the log has told it
	reflectors probe.ReflectorHistory

	mu         sync.Mutex
	peers      map[int]netip.AddrPort // of the reflector: where targets are, by path
	repeered   chan struct{}          // has room for one: peers has changed
	submitters []sinkStatus
}

type sinkStatus struct {
	name      string
	submitter *submit.Submitter
}

// newDaemon makes a daemon from a checked configuration. It touches nothing
// until it is run.
func newDaemon(cfg *config, log *zap.Logger, s seams) (*daemon, error) {
	static, err := cfg.targets(cfg.Targets)
	if err != nil {
		return nil, err
	}
	keypair, err := readKeypair(cfg)
	if err != nil {
		return nil, err
	}
	if s.network.dial == nil {
		if s.network, err = networkIn(cfg.Namespaces.Ledger); err != nil {
			return nil, err
		}
	}
	remembered := newRecent()
	log = log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core { return zapcore.NewTee(c, remembered) }))
	d := &daemon{
		cfg:        cfg,
		keypair:    keypair,
		log:        log,
		seams:      s,
		supervisor: newSupervisor(log),
		loops:      newLoops(),
		manager:    newManager(log),
		peers:      make(map[int]netip.AddrPort),
		repeered:   make(chan struct{}, 1),
		reloads:    reloads{success: time.Now()},
		started:    time.Now(),
		recent:     remembered,
		measuring:  newMilestone(),
		reflected:  newMilestone(),
		reflecting: newUpkeep(log, "the reflector is off; measuring goes on", "the reflector is on again"),
		sources: sources{sockets: submit.Outage{
			Begins: "some paths may not get a socket; raise LimitNOFILE", Ends: "all paths may have a socket",
		}},
	}
	// A fault in metrics must not reach the core; it is counted.
	guard := func(fn func() error) error { return d.supervisor.guard("metrics", fn) }
	d.histograms = newHistograms(cfg.Web.PerPathHistograms, guard)
	d.registry = d.newRegistry()
	if d.interfaces, err = netns.ParsePlace(cfg.Namespaces.Probe); err != nil {
		return nil, err
	}
	if err := d.newSources(static); err != nil {
		return nil, err
	}
	targets, conflicts := d.sources.merge()
	d.sources.settled(targets, conflicts)
	d.ring = probe.NewRing(memoryFor(targets, time.Duration(cfg.Store.CommitInterval)))
	beat := d.loops.beat("engine")
	newEngine := probe.New
	if s.engine != nil {
		newEngine = s.engine
	}
	d.engine, err = newEngine(probe.Config{
		Device:    cfg.Device,
		Namespace: s.namespace,
		Place:     d.interfaces,
		Targets:   targets,
		Emit: func(path int, s store.Sample) {
			d.ring.Put(path, s)
			d.histograms.observe(path, &s)
		},
		Began:  d.began,
		Ended:  d.ended,
		Opened: d.opened,
		Beat: func(next time.Duration) {
			beat(next)
			d.measuring.reach()
		},
		Logger: log.Named("probe"),
	})
	return d, err
}

// newSources makes the sources of targets, and reads those that need nobody.
func (d *daemon) newSources(static []target.Target) (err error) {
	d.latest.Store(d.cfg)
	d.sources.static = static
	if patterns := d.cfg.Discovery.Files; len(patterns) > 0 {
		parse := func(file string, text []byte) ([]target.Target, error) {
			return d.latest.Load().parseTargets(file, text)
		}
		if d.files, err = target.NewFiles(patterns, parse, d.log.Named("discovery")); err != nil {
			return err
		}
		d.sources.files = d.files.Read(true)
	}
	if d.cfg.usesLedger() {
		state := endpointState(d.cfg.endpointsFile())
		if d.pool, err = newPool(d.cfg.DoubleZero, d.seams.network, state, d.loops.beat("endpoints"), d.log.Named("submit")); err != nil {
			return err
		}
	}
	if d.cfg.Discovery.DoubleZero.Enabled {
		d.discovery, err = d.newDiscovery()
	}
	return err
}

// memoryFor is how many samples to hold in memory at most: those of two
// minutes, so that a store that is put right by hand costs none, and of three
// commits at least.
func memoryFor(targets []target.Target, commitInterval time.Duration) int {
	held := max(2*time.Minute, 3*commitInterval)
	return max(1<<16, int(target.Rate(targets)*held.Seconds()))
}

// run measures until ctx ends, then stops in the order in which samples flow,
// so that none is left behind.
func (d *daemon) run(ctx context.Context) error {
	targets := len(d.engine.Paths())
	d.log.Info("starting", zap.String("version", version), zap.String("device", d.cfg.Device), zap.Int("targets", targets))
	d.sources.allow(targets, d.log)
	reloading := d.stage(ctx)
	reloading.start("reload", d.reloadOnSignal)
	reaching := d.stage(ctx)
	discovering := d.stage(ctx)
	web := d.stage(ctx)
	reflecting := d.stage(ctx)
	storing := d.stage(ctx)
	submitting := d.stage(ctx)

	if d.pool != nil {
		reaching.startLoop("endpoints", d.pool.Run)
	}
	if d.files != nil {
		discovering.startLoop("discovery files", d.discoverFiles)
	}
	if d.discovery != nil {
		discovering.startLoop("discovery", d.discoverLinks)
		if d.seams.addresses == nil {
			discovering.start("discovery addresses", d.watchAddresses)
		}
	}

	opened := make(chan struct{})
	storing.start("store", func(ctx context.Context) error {
		if err := d.openStore(); err != nil {
			return err
		}
		close(opened)
		return nil
	})
	storing.startLoop("recorder", func(ctx context.Context) error {
		if !await(ctx, opened) {
			return nil
		}
		return d.recorder.Load().Run(ctx)
	})
	if d.cfg.Submit.File.Enabled {
		submitting.startLoop("sink file", func(ctx context.Context) error {
			if !await(ctx, opened) {
				return nil
			}
			return d.submitFiles(ctx)
		})
	}
	if d.cfg.Submit.DoubleZero.Enabled {
		if every := time.Duration(d.cfg.Submit.DoubleZero.SampleInterval); every < leastSampleInterval {
			d.log.Warn("accounts of the ledger will be full before their epoch ends", zap.Duration("sample_interval", every))
		}
		submitting.startLoop("sink "+doublezero.Name, func(ctx context.Context) error {
			if !await(ctx, opened) {
				return nil
			}
			return d.submitToLedger(ctx)
		})
	}
	if d.cfg.Reflector.Enabled {
		reflecting.start("reflector peers", d.tellPeers)
		reflecting.start("reflector", func(ctx context.Context) error {
			state := newUpkeep(d.log, "the reflector waits for its namespace", "the namespace of the reflector is there again")
			return d.interfaces.Each(ctx, func(ctx context.Context, ns *netns.Namespace) error {
				defer state.works()()
				return d.reflect(ctx, ns)
			}, func(reason error) {
				d.reflected.reach()
				state.fails(reason)
			})
		})
	} else {
		d.reflected.reach()
	}
	if d.seams.dropRights != nil {
		web.start("rights", d.dropRights)
	}
	web.start("watchdog", func(ctx context.Context) error {
		if !await(ctx, d.measuring.done) {
			return nil
		}
		d.manager.ready()
		return d.manager.watchdog(ctx, d.loops)
	})
	defer context.AfterFunc(ctx, d.manager.stopping)()
	for _, address := range d.cfg.Web.Listen {
		web.start("web "+address, func(ctx context.Context) error { return d.serveWeb(ctx, address) })
	}
	if d.cfg.Control.Socket != "" {
		web.start("control", func(ctx context.Context) error { return d.serveControl(ctx, d.cfg.Control.Socket) })
	}

	err := d.engine.Run(ctx)
	d.loops.ended("engine")
	reloading.stop()
	discovering.stop()
	reflecting.stop()
	storing.stop()
	submitting.stop()
	reaching.stop() // the last flush needs it
	web.stop()
	if n := d.ring.Len(); n > 0 {
		err = errors.Join(err, fmt.Errorf("the store did not take the last %d samples: they are lost", n))
	}
	if log := d.store.Load(); log != nil {
		if closing := log.Close(); closing != nil {
			err = errors.Join(err, fmt.Errorf("close the store: %w", closing))
		}
	}
	d.log.Info("stopped", zap.Error(err))
	return err
}

// dropRights gives up what only the start takes, when that is over: with all
// rights a reflector can say who has its port. It waits for that no longer than
// a short while.
func (d *daemon) dropRights(ctx context.Context) error {
	const atMost = 10 * time.Second
	select {
	case <-d.reflected.done:
	case <-time.After(atMost):
	case <-ctx.Done():
		return nil
	}
	if !await(ctx, d.measuring.done) {
		return nil
	}
	return d.seams.dropRights(d.log, d.seams.namespace != nil || d.cfg.Namespaces != (namespacesConfig{}))
}

// stage is a group of supervised services that start and stop together.
type stage struct {
	daemon *daemon
	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// stage makes a stage that outlives ctx: it ends when it is stopped.
func (d *daemon) stage(ctx context.Context) *stage {
	s := &stage{daemon: d}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return s
}

func (s *stage) start(component string, serve func(context.Context) error) {
	s.done.Go(func() { s.daemon.supervisor.run(s.ctx, component, serve) })
}

// startLoop starts a service that has to be heard of: it is overdue also while
// it fails again and again, or never gets to its first beat.
func (s *stage) startLoop(component string, serve func(context.Context) error) {
	const begins = 30 * time.Second
	s.daemon.loops.beat(component)(begins)
	s.done.Go(func() {
		defer s.daemon.loops.ended(component)
		s.daemon.supervisor.run(s.ctx, component, serve)
	})
}

func (s *stage) stop() {
	s.cancel()
	s.done.Wait()
}

// milestone is a point of the start that others wait for.
type milestone struct {
	once sync.Once
	done chan struct{}
}

func newMilestone() *milestone { return &milestone{done: make(chan struct{})} }

// reach may be called again, and does nothing then.
func (m *milestone) reach() { m.once.Do(func() { close(m.done) }) }

// await waits for c to close, and reports whether it did before ctx ended.
func await(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-ctx.Done():
		return false
	}
}

// openStore opens the store and puts a recorder in front of it.
func (d *daemon) openStore() error {
	c := d.cfg.Store
	if err := os.MkdirAll(filepath.Dir(c.Path), 0o755); err != nil {
		return fmt.Errorf("make the directory of the store: %w", err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return fmt.Errorf("read the boot id: %w", err)
	}
	log, err := store.Open(store.Config{
		Path:         c.Path,
		Retention:    time.Duration(c.Retention),
		MaxBytes:     int64(c.MaxBytes),
		MinFreeBytes: int64(c.MinFreeBytes),
		Boot:         strings.TrimSpace(string(boot)),
		LockTimeout:  time.Second,
		Logger:       d.log.Named("store"),
		History:      &d.stored,
		NoSync:       d.seams.noSync,
		Fault:        d.seams.storeFault,
	})
	if err != nil {
		return err
	}
	if err := d.enableSinks(log); err != nil {
		return errors.Join(err, log.Close())
	}
	d.recorder.Store(probe.NewRecorder(probe.RecorderConfig{
		Ring:     d.ring,
		Log:      log,
		Clock:    d.engine.Clock,
		Interval: time.Duration(c.CommitInterval),
		Beat:     d.loops.beat("recorder"),
		Logger:   d.log.Named("store"),
	}))
	d.store.Store(log)
	return nil
}

// enableSinks makes the sinks known to the store before the first sample is in it, so that a new one gets them all.
func (d *daemon) enableSinks(log *store.Log) error {
	if d.cfg.Submit.File.Enabled {
		if err := log.Enable(file.Name, false, func(store.Path) bool { return true }); err != nil {
			return err
		}
	}
	if l := d.cfg.Submit.DoubleZero; l.Enabled {
		return log.Enable(doublezero.Name, l.Backfill, doublezero.Takes)
	}
	return nil
}

// submitFiles runs the file sink.
func (d *daemon) submitFiles(ctx context.Context) error {
	c, log := d.cfg.Submit.File, d.store.Load()
	sink, err := file.New(file.Config{
		Directory:   c.Directory,
		RotateBytes: int64(c.RotateBytes),
		Keep:        c.Keep,
		Device:      d.cfg.Device,
	}, log, d.log.Named("submit"))
	if err != nil {
		return err
	}
	return d.runSubmitter(ctx, submit.Config{
		Log: log, Sink: d.seams.wrap(sink), Interval: max(time.Second, time.Duration(d.cfg.Store.CommitInterval)),
	})
}

// runSubmitter runs a submitter and lets metrics see it.
func (d *daemon) runSubmitter(ctx context.Context, c submit.Config) error {
	name := c.Sink.Name()
	c.Logger = d.log.Named("submit")
	c.Beat = d.loops.beat("sink " + name)
	submitter, err := submit.New(c)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.submitters = slices.DeleteFunc(d.submitters, func(old sinkStatus) bool { return old.name == name })
	d.submitters = append(d.submitters, sinkStatus{name, submitter})
	d.mu.Unlock()
	return submitter.Run(ctx)
}

func (d *daemon) sinks() []sinkStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.submitters)
}

// began makes a path known to those that take its samples. The engine calls it.
func (d *daemon) began(path int, t target.Target) {
	d.ring.Began(path, t)
	d.histograms.began(path, t)
	// Whoever has an address gets answers from the start.
	if a, err := netip.ParseAddr(t.Address); err == nil {
		d.setPeer(path, netip.AddrPortFrom(a, t.Port))
	}
}

// ended forgets a path after its last sample. The engine calls it.
func (d *daemon) ended(path int) {
	d.ring.Ended(path)
	d.histograms.ended(path)
	d.setPeer(path, netip.AddrPort{})
}

// opened lets the reflector answer a target whose address is known now. The
// engine calls it.
func (d *daemon) opened(path int, info probe.FlowInfo, err error) {
	if err == nil {
		d.setPeer(path, info.Remote)
	}
}

// setPeer notes where a path's far end is, nowhere if it has ended.
func (d *daemon) setPeer(path int, a netip.AddrPort) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.peers[path] == a:
		return
	case a.IsValid():
		d.peers[path] = a
	default:
		delete(d.peers, path)
	}
	select {
	case d.repeered <- struct{}{}:
	default:
	}
}

// tellPeers tells the reflector of its peers as they change. The engine does not wait for that: each time costs as much as
// there are peers, and thousands may come at once.
func (d *daemon) tellPeers(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.repeered:
		}
		d.mu.Lock()
		r, peers := d.reflector.Load(), slices.Collect(maps.Values(d.peers))
		d.mu.Unlock()
		if r != nil {
			r.SetPeers(peers)
		}
	}
}

// reflect runs the reflector. While somebody else has its port it is off, and
// tried again each minute: measuring does not need it.
func (d *daemon) reflect(ctx context.Context, ns *netns.Namespace) error {
	const again = time.Minute
	if ns == nil {
		ns = d.seams.namespace
	}
	c := d.cfg.Reflector
	allow, everybody, err := parseAllow(c.Allow)
	if err != nil {
		return err
	}
	mode, err := parseReflectorMode(c.Mode, c.Stateful)
	if err != nil {
		return err
	}
	rc := probe.ReflectorConfig{
		Mode: mode, Allow: allow, AllowAny: everybody, Stateful: c.Stateful, RateLimit: c.RateLimit, ExtendShort: c.ExtendShort,
		VRF: d.interfaces.Device(), Namespace: ns, Logger: d.log.Named("reflector"), History: &d.reflectors,
	}
	for _, l := range c.Listen {
		address, err := parseListen(l)
		if err != nil {
			return err
		}
		rc.Listen = append(rc.Listen, address)
	}
	for {
		r, err := probe.NewReflector(rc)
		d.reflected.reach()
		var taken *probe.PortTakenError
		switch {
		case err == nil:
			stop := d.reflecting.works()
			defer stop()
			return d.runReflector(ctx, r)
		case !errors.As(err, &taken):
			return err
		}
		d.reflecting.fails(err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(again):
		}
	}
}

func (d *daemon) runReflector(ctx context.Context, r *probe.Reflector) error {
	d.mu.Lock()
	r.SetPeers(slices.Collect(maps.Values(d.peers)))
	d.reflector.Store(r)
	d.mu.Unlock()
	defer d.reflector.Store(nil)
	if at := fmt.Sprint(r.Addrs()); at != d.reflectsAt { // a namespace that comes and goes has lines of its own
		d.reflectsAt = at
		d.log.Info("reflecting", zap.Stringers("listen", r.Addrs()), zap.String("mode", d.cfg.Reflector.Mode))
	}
	return r.Run(ctx)
}
