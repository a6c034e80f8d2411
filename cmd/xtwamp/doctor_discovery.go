// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/probe/target"
	"github.com/xtwamp/xtwamp/submit/doublezero"
)

// linksWait is for how long the ledger may take to tell the links.
const linksWait = 3 * time.Second

// findTargets collects the targets that run would measure.
func (d *doctor) findTargets(ctx context.Context) {
	s := &d.sources
	s.area = "targets"
	var lists targetLists
	// The configuration has been checked, and so have the patterns.
	lists.static, _ = d.cfg.targets(d.cfg.Targets)
	if patterns := d.cfg.Discovery.Files; len(patterns) > 0 {
		if files, err := target.NewFiles(patterns, d.cfg.parseTargets, zap.NewNop()); err == nil {
			lists.files = files.Read(true)
			for _, f := range lists.files {
				if len(f.Targets) > 0 {
					s.ok(f.Name, "good: %d targets", len(f.Targets))
				}
			}
			_, damaged := files.Status()
			for _, f := range faults("discovery.files", damaged) {
				s.warn(f.Subject, "correct it; a daemon that has read it before goes on with what it had", "%s", f.What)
			}
		}
	}
	if d.cfg.Discovery.DoubleZero.Enabled && d.pool != nil && d.nsErr == nil {
		lists.links = d.findLinks(ctx)
	}
	targets, conflicts := lists.merge()
	for _, c := range conflicts {
		s.warn("left out", "give each target a name, and a source_port or address, of its own", "%s", c)
	}
	d.targets = targets
}

// findLinks asks the ledger for the links of this device. If that does not tell
// them in time, they are those that it told the daemon last.
func (d *doctor) findLinks(ctx context.Context) []target.Target {
	s := &d.sources
	c, err := d.cfg.links()
	if err != nil { // as the configuration has been checked
		return nil
	}
	c.Addresses, c.Logger = d.addresses, zap.NewNop()
	c.Endpoints = d.pool
	links, known := listLinks(ctx, c)
	if known.LastSuccess.IsZero() {
		c.State = d.cfg.linksFile() // which is written to when the ledger has told another list, and it is not asked
		c.Endpoints = nil
		links, known = listLinks(ctx, c)
		if !known.FromFile {
			s.warn("links", "see ledger", "the ledger does not tell them, and none are remembered")
			return nil
		}
		s.warn("links", "see ledger", "the ledger does not tell them: %d are remembered", len(known.Links))
	} else {
		s.ok("links", "the ledger tells %d", len(known.Links))
	}
	for _, l := range known.Links {
		switch {
		case l.Why == "":
		case l.Target == "":
			s.ok(l.Code, "not measured: %s", l.Why)
		default:
			s.warn(l.Code, "give the interface of this link its address in namespaces.probe", "not sent: %s", l.Why)
		}
	}
	return links
}

// listLinks runs a discovery until it has a list, or cannot have one. Without
// endpoints nobody is asked.
func listLinks(ctx context.Context, c doublezero.DiscoveryConfig) (links []target.Target, known doublezero.DiscoveryStatus) {
	ctx, cancel := context.WithTimeout(ctx, linksWait)
	defer cancel()
	if c.Endpoints == nil {
		c.Endpoints = nobody(cancel)
	}
	discovery, err := doublezero.NewDiscovery(c)
	if err != nil { // as the configuration has been checked
		return nil, known
	}
	// It ends with ctx, and has no error.
	_ = discovery.Run(ctx, func(list []target.Target) {
		links = list
		cancel()
	})
	return links, discovery.Status()
}

// nobody is a ledger that is not there. It says so to who asks.
type nobody func()

func (n nobody) RoundTrip(*http.Request) (*http.Response, error) {
	n()
	return nil, errors.New("nobody is asked")
}
