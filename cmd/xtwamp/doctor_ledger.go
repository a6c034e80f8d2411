// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/submit/endpoint"
)

// ledgerWait is for how long the endpoints of the ledger may be silent: a look-up
// and a check of the pool's, and a little.
const ledgerWait = 8 * time.Second

// examineLedger checks the endpoints of the ledger as the daemon does.
func (d *doctor) examineLedger(ctx context.Context, s *findings) {
	c := d.cfg.DoubleZero
	if d.cfg.Submit.DoubleZero.Enabled {
		if _, err := readKeypair(d.cfg); err != nil {
			s.fail("key", "make it readable for the user that runs xtwamp and for nobody else (chmod 600), or correct doublezero.keypair_file", "%v", err)
		} else {
			s.ok("key", "%s is readable, for its owner only", c.KeypairFile)
		}
	}
	if len(c.RPCURLs) == 0 {
		return
	}
	if d.poolErr != nil {
		s.fail("endpoints", "correct doublezero.rpc_urls", "%v", d.poolErr)
		return
	}
	endpoints := checkedEndpoints(ctx, d.pool, len(c.RPCURLs))
	for _, e := range endpoints {
		switch {
		case e.Good:
			s.ok(e.Name, "answers in %s, at slot %d", e.Latency.Round(time.Millisecond/10), e.Slot)
		case e.Faults[endpoint.FaultWrongCluster] > 0:
			s.warn(e.Name, "correct doublezero.rpc_urls; if the network was begun anew, delete "+d.cfg.endpointsFile()+
				", where the old one is remembered, and restart xtwamp", "%s", e.Reason)
		case e.Since.IsZero():
			s.warn(e.Name, "see whether this host, in namespaces.ledger, has a way there", "no answer within %s", ledgerWait)
		default:
			s.warn(e.Name, "see whether this host, in namespaces.ledger, has a way there and the URL is right", "%s", e.Reason)
		}
	}
	for _, u := range c.RPCURLs {
		d.examineName(ctx, s, u, endpoints)
	}
	if len(endpoints) == 1 {
		s.warn("endpoints", "name others in doublezero.rpc_urls, or give its other addresses", "one address alone: while it is down samples wait")
	}
}

// examineName says why a URL has no address.
func (d *doctor) examineName(ctx context.Context, s *findings, u rpcURL, known []endpoint.Status) {
	p, err := url.Parse(u.URL)
	if err != nil { // as the configuration has been checked
		return
	}
	port := map[string]string{"http": "80", "https": "443"}[p.Scheme]
	label := p.Scheme + "://" + net.JoinHostPort(p.Hostname(), cmp.Or(p.Port(), port))
	if slices.ContainsFunc(known, func(e endpoint.Status) bool { return strings.EqualFold(e.URL, label) }) {
		return
	}
	const atMost = 2 * time.Second // the pool has tried for long enough
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	if _, err := d.network.lookup(ctx, p.Hostname()); err != nil {
		s.warn(label, "see to the resolver of namespaces.ledger (/etc/netns/NAME/resolv.conf), or give addresses beside the URL", "%v", err)
	}
}

// reachLedger runs the pool of endpoints, if there are any, until stop is called.
func (d *doctor) reachLedger(ctx context.Context) (stop func()) {
	if len(d.cfg.DoubleZero.RPCURLs) == 0 {
		return func() {}
	}
	state := remembered{endpointState(d.cfg.endpointsFile())}
	if d.pool, d.poolErr = newPool(d.cfg.DoubleZero, d.network, state, nil, zap.NewNop()); d.poolErr != nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = d.pool.Run(ctx) // ends with ctx and has no error
	}()
	return func() {
		cancel()
		<-ended
	}
}

// checkedEndpoints waits until each address of a pool has been checked.
func checkedEndpoints(ctx context.Context, pool *endpoint.Pool, urls int) []endpoint.Status {
	const look = 20 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, ledgerWait)
	defer cancel()
	again := time.NewTicker(look)
	defer again.Stop()
	for {
		all := pool.Status()
		names := make(map[string]bool)
		checked := true
		for _, e := range all {
			names[e.URL] = true
			checked = checked && !e.Since.IsZero()
		}
		if checked && len(names) == urls {
			return all
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return all
		}
	}
}

// remembered is what the daemon remembers of endpoints. It is never written to.
type remembered struct{ endpointState }

func (remembered) Save([]byte) error { return nil }
