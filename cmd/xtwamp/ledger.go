// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/submit"
	"github.com/xtwamp/xtwamp/submit/doublezero"
	"github.com/xtwamp/xtwamp/submit/endpoint"
)

// leastSampleInterval is how often an account can take a sample until its epoch, of about two days, is over.
const leastSampleInterval = 5 * time.Second

// network is how the ledger is reached; tests put another in its place.
type network struct {
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
	tls    *tls.Config
}

// networkIn reaches the ledger from a place.
func networkIn(place string) (network, error) {
	p, err := netns.ParsePlace(place)
	if err != nil {
		return network{}, err
	}
	return network{
		lookup: func(ctx context.Context, host string) ([]netip.Addr, error) { return p.LookupNetIP(ctx, "ip", host) },
		dial:   p.Dial,
	}, nil
}

// newPool makes the pool of the configured endpoints.
func newPool(c doublezeroConfig, n network, state endpoint.State, beat func(time.Duration), log *zap.Logger) (*endpoint.Pool, error) {
	cfg := endpoint.Config{
		Lookup: n.lookup, Dial: n.dial, Check: doublezero.Check, TLS: n.tls, State: state, Logger: log, Beat: beat,
	}
	for _, u := range c.RPCURLs {
		e, err := u.endpoint()
		if err != nil {
			return nil, err
		}
		cfg.URLs = append(cfg.URLs, e)
	}
	return endpoint.New(cfg)
}

// submitToLedger runs the ledger sink.
func (d *daemon) submitToLedger(ctx context.Context) error {
	c, l, log := d.cfg.DoubleZero, d.cfg.Submit.DoubleZero, d.store.Load()
	program, err := c.program()
	if err != nil {
		return err
	}
	device, err := doublezero.ParsePubkey(c.Device)
	if err != nil {
		return err
	}
	var gone func(doublezero.Pubkey) bool
	if d.discovery != nil {
		gone = d.discovery.Gone
	}
	sink := doublezero.New(doublezero.Config{
		Endpoints: d.pool, Log: log, Keypair: d.keypair, Program: program, Device: device, Version: version, Commit: commit, Built: built(),
		SampleInterval: time.Duration(l.SampleInterval), FlushInterval: time.Duration(l.Interval), FillGaps: l.FillGaps,
		MaxConcurrency: l.MaxConcurrency, Gone: gone, Logger: d.log.Named("submit"),
	})
	d.ledger.Store(sink)
	defer d.ledger.Store(nil)
	return d.runSubmitter(ctx, submit.Config{Log: log, Sink: d.seams.wrap(sink), Interval: time.Duration(l.Interval)})
}

// built is when this program was built, the zero time if it does not know.
func built() time.Time {
	t, err := time.Parse(time.RFC3339, date)
	if err != nil {
		return time.Time{}
	}
	return t
}

// readKeypair reads the key pair if something is to be signed.
func readKeypair(cfg *config) (*doublezero.Keypair, error) {
	if !cfg.Submit.DoubleZero.Enabled {
		return nil, nil
	}
	k, err := doublezero.ReadKeypair(cfg.DoubleZero.KeypairFile)
	if err != nil {
		return nil, fmt.Errorf("doublezero.keypair_file: %w", err)
	}
	return k, nil
}

var (
	descZeros       = desc("ledger_zeros_written_total", "Values without data written to the ledger, by why there is none.", "reason")
	descAccount     = desc("ledger_account_samples", "Samples in the path's account of the newest epoch that was written, of 35,000.", "path")
	descOtherWriter = desc("ledger_other_writer", "1 if somebody else writes to the path's account.", "path")
	descBalance     = desc("ledger_payer_balance_lamports", "What the payer has.")
	descClockHold   = desc("ledger_clock_hold", "1 while samples are held back because the clock is wrong.")
	descEndpointUp  = desc("ledger_endpoint_up", "1 if the endpoint does what it should.", "endpoint")
	descInUse       = desc("ledger_endpoint_in_use", "1 for the endpoint that calls go to.", "endpoint")
	descLatency     = desc("ledger_endpoint_latency_seconds", "How long the endpoint takes to answer.", "endpoint")
	descSlotLag     = desc("ledger_endpoint_slot_lag", "Slots that the endpoint is behind the median of all.", "endpoint")
	descRequests    = desc("ledger_endpoint_requests_total", "Requests to the endpoint.", "endpoint", "result")
)

func (c *collector) collectLedger(counter counterFunc, gauge gaugeFunc) {
	if sink := c.daemon.ledger.Load(); sink != nil {
		collectSink(sink.Status(), c.daemon.sources.names(), counter, gauge)
	}
	if c.daemon.pool == nil {
		return
	}
	for _, e := range c.daemon.pool.Status() {
		gauge(descEndpointUp, truth(e.Good), e.Name)
		gauge(descInUse, truth(e.InUse), e.Name)
		if e.Latency > 0 {
			gauge(descLatency, e.Latency.Seconds(), e.Name)
		}
		gauge(descSlotLag, float64(e.SlotLag), e.Name)
		counter(descRequests, e.OK, e.Name, "ok")
		for kind, n := range e.Faults {
			counter(descRequests, n, e.Name, kind)
		}
	}
}

// collectSink exports what the sink has for the measured paths.
func collectSink(s doublezero.Status, measured map[string]bool, counter counterFunc, gauge gaugeFunc) {
	for reason, n := range s.Zeros {
		counter(descZeros, n, reason)
	}
	newest := make(map[string]doublezero.AccountStatus)
	for _, a := range s.Accounts { // by path and epoch
		newest[a.Path] = a
	}
	for path, a := range newest {
		if !measured[path] {
			continue
		}
		gauge(descAccount, float64(a.Samples), path)
		gauge(descOtherWriter, truth(a.Other), path)
	}
	if s.Funded {
		gauge(descBalance, float64(s.Balance))
	}
	gauge(descClockHold, truth(s.Hold != ""))
}
