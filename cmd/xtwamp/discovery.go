// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/probe/target"
	"github.com/xtwamp/xtwamp/submit"
	"github.com/xtwamp/xtwamp/submit/doublezero"
)

// discoveryConfig says where targets come from beside the configuration.
type discoveryConfig struct {
	Files      []string       `yaml:"files"`
	DoubleZero linksDiscovery `yaml:"doublezero"`
}

// linksDiscovery says how the links of this device are measured.
type linksDiscovery struct {
	Enabled bool     `yaml:"enabled"`
	Refresh duration `yaml:"refresh"`
	Profile string   `yaml:"profile"`
}

func (c *config) checkDiscovery(bad func(key, format string, args ...any)) {
	for i, pattern := range c.Discovery.Files {
		if _, err := filepath.Match(pattern, ""); err != nil || pattern == "" {
			bad(fmt.Sprintf("discovery.files[%d]", i), "%q: expected a file name, which may have *, ? and [a-z] in it", pattern)
		}
	}
	z := c.Discovery.DoubleZero
	if r := time.Duration(z.Refresh); r < time.Second || r > 24*time.Hour {
		bad("discovery.doublezero.refresh", "%s: expected 1s to 24h", r)
	}
	link := c.linkTarget()
	link.Name, link.Address = "link", "192.0.2.1"
	checkProbe("discovery.doublezero.", link, false, bad)
	if z.Enabled {
		c.checkLinkInterval("discovery.doublezero", link.Interval, bad)
	}
}

// linkTarget is what the targets that are links have in common.
func (c *config) linkTarget() target.Target {
	t := target.Defaults()
	c.Probe.apply(&t)
	if profile := c.Discovery.DoubleZero.Profile; profile != t.Profile {
		t.Profile, t.Size = profile, 0 // the size was meant for the other profile
	}
	t.Labels = map[string]string{doublezero.LabelInterval: t.Interval.String()}
	return t
}

// Where targets come from, as metrics and status call it.
const (
	sourceStatic = "static" // the configuration
	sourceFiles  = "file"
	sourceLinks  = doublezero.Name
)

// sources is what is measured, and from where it comes.
type sources struct {
	mu sync.Mutex
	targetLists
	conflicts []string        // of the targets that are left out
	measured  map[string]bool // by name; replaced as a whole

	leaving target.Teller // of the conflicts
	short   error         // why some paths may not get a socket
	sockets submit.Outage
}

// names are those of the measured targets.
func (s *sources) names() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.measured
}

// targetLists are the targets of each source. Of two that cannot be measured side by side the first stays.
type targetLists struct {
	static []target.Target
	files  []target.Source
	links  []target.Target
}

func (l targetLists) merge() (targets []target.Target, conflicts []string) {
	all := append([]target.Source{{Name: "the configuration", Targets: l.static}}, l.files...)
	return target.Merge(append(all, target.Source{Name: "the ledger", Targets: l.links}))
}

// counts is how many targets each source has.
func (s *sources) counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	inFiles := 0
	for _, f := range s.files {
		inFiles += len(f.Targets)
	}
	return map[string]int{sourceStatic: len(s.static), sourceFiles: inFiles, sourceLinks: len(s.links)}
}

// leftOut are the targets that are not measured because others have their name or source port.
func (s *sources) leftOut() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conflicts
}

// settled notes what is measured and which targets are left out.
func (s *sources) settled(targets []target.Target, conflicts []string) {
	s.measured = make(map[string]bool, len(targets))
	for _, t := range targets {
		s.measured[t.Name] = true
	}
	s.conflicts = conflicts
}

// reported is beat, which is called again and again, with a look at what is due to be logged.
func (s *sources) reported(log *zap.Logger, beat func(time.Duration)) func(time.Duration) {
	return func(next time.Duration) {
		s.mu.Lock()
		s.report(log)
		s.mu.Unlock()
		beat(next)
	}
}

// allow sees to it that so many paths may have a socket.
func (s *sources) allow(paths int, log *zap.Logger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.short = allowFiles(paths)
	s.report(log)
}

// report logs what is amiss with the targets, and when that is over. What comes and goes has few lines. s.mu is held.
func (s *sources) report(log *zap.Logger) {
	switch fields, due := s.leaving.Tell(strings.Join(s.conflicts, "\n"), len(s.conflicts) > 0); {
	case due && len(s.conflicts) > 0:
		log.Error("targets are left out", append(fields, zap.Strings("targets", s.conflicts))...)
	case due:
		log.Info("no target is left out any more", fields...)
	}
	if s.short != nil {
		s.sockets.GoesOn(log, s.short)
	} else {
		s.sockets.Over(log)
	}
}

// measure changes the sources and measures what they have then. If that is not possible nothing changes.
func (d *daemon) measure(change func(*targetLists)) error {
	s := &d.sources
	s.mu.Lock()
	defer s.mu.Unlock()
	lists := s.targetLists
	change(&lists)
	targets, conflicts := lists.merge()
	s.short = allowFiles(len(targets))
	d.ring.Allow(memoryFor(targets, time.Duration(d.cfg.Store.CommitInterval)))
	if err := d.engine.SetTargets(targets); err != nil {
		return err
	}
	s.targetLists = lists
	s.settled(targets, conflicts)
	s.report(d.log)
	d.histograms.keep(s.measured)
	return nil
}

// discoverFiles measures what stands in files, whenever that changes.
func (d *daemon) discoverFiles(ctx context.Context) error {
	measuring := submit.Outage{Begins: "targets of files are not measured", Ends: "targets of files are measured", Level: zap.ErrorLevel}
	return d.files.Run(ctx, func([]target.Source) {
		// Read again, as a reload may have read them anew since.
		if err := d.measure(func(l *targetLists) { l.files = d.files.Read(false) }); err != nil {
			measuring.GoesOn(d.log, err)
		} else {
			measuring.Over(d.log)
		}
	}, d.sources.reported(d.log, d.loops.beat("discovery files")))
}

// discoverLinks measures the links that the ledger tells of.
func (d *daemon) discoverLinks(ctx context.Context) error {
	measuring := submit.Outage{Begins: "discovered links are not measured", Ends: "discovered links are measured", Level: zap.ErrorLevel}
	return d.discovery.Run(ctx, func(links []target.Target) {
		if err := d.measure(func(l *targetLists) { l.links = links }); err != nil {
			measuring.GoesOn(d.log, err)
		} else {
			measuring.Over(d.log)
		}
	})
}

// watchAddresses has discovery look at the addresses of interfaces when these change.
func (d *daemon) watchAddresses(ctx context.Context) error {
	return d.interfaces.Each(ctx, func(ctx context.Context, ns *netns.Namespace) error {
		if ns == nil {
			ns = d.seams.namespace
		}
		return ns.Watch(ctx, func(netns.Change) { d.discovery.Look() })
	}, func(error) {}) // it is discovery that says so, as soon as it needs them
}

// localAddresses lists the addresses of interfaces.
func (d *daemon) localAddresses() (found []doublezero.LocalAddress, err error) {
	if ns := d.seams.namespace; ns != nil {
		return addressesIn(ns)
	}
	ns, err := d.interfaces.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = ns.Close() }() // nothing was written to it
	return addressesIn(ns)
}

func addressesIn(ns *netns.Namespace) (found []doublezero.LocalAddress, err error) {
	err = ns.Do(func() error {
		links, err := netns.Links()
		if err != nil {
			return err
		}
		addresses, err := netns.Addresses()
		if err != nil {
			return err
		}
		names := make(map[int]string, len(links))
		for _, l := range links {
			names[l.Index] = l.Name
		}
		for _, a := range addresses {
			if name, ok := names[a.Link]; ok {
				found = append(found, doublezero.LocalAddress{Interface: name, Prefix: a.Prefix})
			}
		}
		return nil
	})
	return found, err
}

// newDiscovery makes the discovery of links.
func (d *daemon) newDiscovery() (*doublezero.Discovery, error) {
	c, err := d.cfg.links()
	if err != nil {
		return nil, err
	}
	c.Endpoints, c.Addresses = d.pool, d.localAddresses
	if d.seams.addresses != nil {
		c.Addresses = d.seams.addresses
	}
	c.State, c.Beat, c.Logger = d.cfg.linksFile(), d.sources.reported(d.log, d.loops.beat("discovery")), d.log
	return doublezero.NewDiscovery(c)
}

// links is what the configuration says of the discovery of links.
func (c *config) links() (doublezero.DiscoveryConfig, error) {
	program, err := c.DoubleZero.serviceability()
	if err != nil {
		return doublezero.DiscoveryConfig{}, err
	}
	device, err := doublezero.ParsePubkey(c.DoubleZero.Device)
	return doublezero.DiscoveryConfig{
		Program: program, Device: device, Target: c.linkTarget(), Refresh: time.Duration(c.Discovery.DoubleZero.Refresh),
	}, err
}

// Where the links that the ledger told last, and its endpoints, are remembered.
func (c *config) linksFile() string     { return c.stateFile("links.json") }
func (c *config) endpointsFile() string { return c.stateFile("endpoints.json") }

// stateFile is where a memory is kept that the next start can do without.
func (c *config) stateFile(name string) string {
	return filepath.Join(filepath.Dir(c.Store.Path), name)
}

// endpointState keeps the memory of the pool in a file (endpoint.State).
type endpointState string

func (s endpointState) Load() ([]byte, error) {
	b, err := os.ReadFile(string(s))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

func (s endpointState) Save(b []byte) error { return submit.ReplaceFile(string(s), b) }

var (
	descTargets   = desc("discovery_targets", "Targets that the source has.", "source")
	descDiscovery = desc("discovery_last_success_timestamp_seconds", "When the source last gave its targets without a fault.", "source")
)

func (c *collector) collectDiscovery(gauge gaugeFunc) {
	d := c.daemon
	sourced := map[string]bool{sourceStatic: true, sourceFiles: d.files != nil, sourceLinks: d.discovery != nil}
	for source, n := range d.sources.counts() {
		if sourced[source] {
			gauge(descTargets, float64(n), source)
		}
	}
	_, read := d.reloads.status()
	moment(gauge, descDiscovery, read, sourceStatic)
	if d.files != nil {
		good, _ := d.files.Status()
		moment(gauge, descDiscovery, good, sourceFiles)
	}
	if d.discovery != nil {
		moment(gauge, descDiscovery, d.discovery.Status().LastSuccess, sourceLinks)
	}
}
