// SPDX-License-Identifier: Apache-2.0

// Package doublezero holds all knowledge of the DoubleZero network: where its accounts are, what they contain, and how samples get into
// its ledger. Its promise: each sample is in the ledger once, in the epoch in which it was taken, at the index of its time, or counted
// as dropped with a reason, whatever the ledger, the network or a kill of the process does in the meantime.
//
// Nothing is known about an epoch before samples are flushed. An append to an account carries no number, so a write is signed, kept in
// the store's journal, and its very bytes are sent until the chain shows that they landed or never can.
package doublezero

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/submit"
	"github.com/xtwamp/xtwamp/submit/endpoint"
)

// Name of the sink.
const Name = "doublezero"

// Labels of the paths that the sink takes.
const (
	LabelLink     = "doublezero.link"     // public key of the link
	LabelTarget   = "doublezero.target"   // public key of the device at its other end
	LabelInterval = "doublezero.interval" // time between probes, as Go writes durations
)

// Endpoints is how the ledger is reached: a *endpoint.Pool.
type Endpoints interface {
	http.RoundTripper
	// Landed and Expired tell what became of a write that was sent through an endpoint.
	Landed(endpoint string)
	Expired(endpoint string)
}

// Config is what a Sink works with.
type Config struct {
	Endpoints Endpoints
	Log       log
	Keypair   *Keypair // signs and pays
	Program   Pubkey   // the telemetry program
	Device    Pubkey   // this device
	Version   string   // of this agent, into the account's header
	Commit    string
	Built     time.Time // a clock before it is wrong

	SampleInterval time.Duration // of accounts that the sink makes
	FlushInterval  time.Duration // between two flushes
	FillGaps       bool          // write zeros where there was no probe, so that the time axis stays true
	MaxConcurrency int           // accounts written at a time

	// Gone, if set, reports whether the ledger has confirmed that a link is no more: what has no account then is dropped.
	Gone func(link Pubkey) bool

	Logger *zap.Logger

	// Poll is the time between two looks at what was sent. Default 1 s.
	Poll time.Duration
	// Step, if set, is told of each step of a write as it is about to be taken. Tests stop the process there.
	Step func(name string)
}

// Sink writes samples into accounts of the ledger. It is a [submit.Concurrent].
type Sink struct {
	cfg     Config
	logger  *zap.Logger
	client  *client
	agent   *agent
	chain   *chain
	epochs  *epochs
	headers *batcher[Pubkey, found]
	sent    *batcher[Signature, signatureStatus]

	mu       sync.Mutex
	paths    map[store.PathID]*path
	troubles []*trouble
	zeros    map[string]uint64 // written since New, by cause
	clock    clock
	wallet   wallet
}

// New returns a Sink that does nothing until it is asked to submit.
func New(cfg Config) *Sink {
	if cfg.Poll == 0 {
		cfg.Poll = time.Second
	}
	s := &Sink{
		cfg:    cfg,
		logger: cfg.Logger.Named("doublezero"),
		client: newClient(cfg.Endpoints),
		agent:  &agent{keypair: cfg.Keypair, program: cfg.Program, release: newRelease(cfg.Version, cfg.Commit)},
		paths:  make(map[store.PathID]*path),
		zeros:  make(map[string]uint64),
	}
	s.troubles = newTroubles()
	s.clock.holding = submit.Outage{Begins: "holding all samples back", Ends: "the clock agrees with the ledger again", Level: zap.ErrorLevel}
	s.wallet.low = submit.Outage{Begins: "the payer's balance will soon be used up", Ends: "the payer's balance was filled up", Level: zap.ErrorLevel}
	s.chain = newChain(s.client)
	s.epochs = newEpochs(s.client, s.chain, cfg.Log, s.logger)
	s.headers = newBatcher(cfg.Poll/20, maxKeysPerCall, s.readHeaders)
	s.sent = newBatcher(cfg.Poll, maxSignaturesPerCall, s.readStatuses)
	return s
}

// found is an account's header, if the account exists.
type found struct {
	Header // zero if it is none of ours
	exists bool
}

// readHeaders reads the headers of accounts at finalized.
func (s *Sink) readHeaders(ctx context.Context, keys []Pubkey, minSlot uint64) (map[Pubkey]found, error) {
	accounts, err := caughtUp(ctx, func(ctx context.Context) ([]*accountInfo, error) {
		accounts, _, err := s.client.getMultipleAccounts(ctx, keys, headerSlice, finalized, minSlot)
		return accounts, err
	})
	if err != nil {
		return nil, err
	}
	headers := make(map[Pubkey]found, len(keys))
	for i, a := range accounts {
		// An account that only holds money is not there yet for the program.
		if a == nil || len(a.Data) == 0 {
			continue
		}
		h, err := DecodeHeader(a.Data)
		if a.Owner != s.cfg.Program || err != nil {
			h = Header{}
		}
		headers[keys[i]] = found{Header: h, exists: true}
	}
	return headers, nil
}

// readStatuses asks what became of transactions.
func (s *Sink) readStatuses(ctx context.Context, sigs []Signature, _ uint64) (map[Signature]signatureStatus, error) {
	list, err := s.client.getSignatureStatuses(ctx, sigs, true)
	if err != nil {
		return nil, err
	}
	statuses := make(map[Signature]signatureStatus, len(sigs))
	for i, status := range list {
		if status != nil {
			statuses[sigs[i]] = *status
		}
	}
	return statuses, nil
}

// Name implements [submit.Sink].
func (s *Sink) Name() string { return Name }

// Concurrency implements [submit.Concurrent].
func (s *Sink) Concurrency() int { return s.cfg.MaxConcurrency }

// Takes implements [submit.Sink].
func (s *Sink) Takes(p store.Path) bool { return Takes(p) }

// Takes reports whether a path is known to be a link of the network: such are the ones that the sink takes.
func Takes(p store.Path) bool {
	return p.Labels[LabelLink] != "" && p.Labels[LabelTarget] != ""
}

// Submit implements [submit.Sink]: it writes what fits into one transaction and waits for it to be final, or goes on waiting for the one
// before. What it knows it reads from the store each time, so that it never runs ahead of what was committed.
func (s *Sink) Submit(ctx context.Context, stored store.Path, samples []store.Sample) (submit.Result, error) {
	p, err := s.path(stored)
	if err != nil {
		return submit.Result{}, err
	}
	var e entry
	if pending, err := load(s.cfg.Log, journalKey(stored), &e); err != nil {
		return submit.Result{}, err
	} else if pending {
		return s.follow(ctx, p, e, samples)
	}
	now, err := s.chain.tip(ctx, 5*s.cfg.Poll)
	if err != nil {
		return submit.Result{}, err
	}
	s.pay(ctx)
	if !s.clockAgrees(now) {
		return submit.Result{}, nil
	}
	if n := undated(samples); n > 0 {
		if s.clockSteadyFor(2 * s.cfg.FlushInterval) {
			return submit.Result{Again: true}, &submit.Refusal{Reason: "undated", Count: n}
		}
		return submit.Result{}, nil // of this boot: they get their time with the next commit
	}
	// What is newer than the finalized tip waits, so that a clock that runs ahead cannot fill an account with zeros.
	offered := samples
	samples = upTo(samples, func(t time.Time) bool { return !t.After(now.time) })
	if len(samples) == 0 {
		return submit.Result{}, nil
	}
	during, err := s.epochs.of(ctx, samples[0].Time, now)
	if errors.Is(err, errTooEarly) {
		return submit.Result{}, nil
	} else if err != nil {
		return submit.Result{}, err
	}
	samples = upTo(samples, during.has)
	a, err := p.account(s, during.epoch)
	if err != nil {
		return submit.Result{}, err
	}
	ready, err := s.open(ctx, p, a, now)
	s.report(p, a)
	switch {
	case errors.Is(err, errLinkGone):
		return submit.Result{Again: true}, &submit.Refusal{Reason: "link_gone", Count: len(samples)}
	case err != nil:
		return submit.Result{}, err
	case a.shut != "" && now.epoch > during.epoch:
		return submit.Result{Again: true}, &submit.Refusal{Reason: a.shut, Count: len(samples)}
	case !ready:
		return submit.Result{}, nil
	case a.full:
		return submit.Result{Again: true}, &submit.Refusal{Reason: reasonAccountFull, Count: len(samples)}
	}
	b, r := plan(a.timeline(p, s.cfg.FillGaps), samples)
	switch {
	case r.count > 0:
		return submit.Result{Again: true}, &submit.Refusal{Reason: r.reason, Count: r.count}
	case len(b.values) == 0:
		return submit.Result{Accepted: b.samples, Again: true}, nil
	}
	return s.write(ctx, p, a, b, now, offered)
}

// upTo returns the samples in front of the first one that does not fit.
func upTo(samples []store.Sample, fits func(time.Time) bool) []store.Sample {
	n := slices.IndexFunc(samples, func(s store.Sample) bool { return s.Time.IsZero() || !fits(s.Time) })
	if n < 0 {
		return samples
	}
	return samples[:n]
}

// undated counts the samples, from the front, whose time is not known.
func undated(samples []store.Sample) (n int) {
	for n < len(samples) && samples[n].Time.IsZero() {
		n++
	}
	return n
}

// Check is a real call through one endpoint: what the chain's finalized tip is and, now and then, which chain it is.
func Check(ctx context.Context, rt http.RoundTripper) (endpoint.Health, error) {
	c := newClient(rt)
	info, err := c.getEpochInfo(ctx, finalized, 0)
	if err != nil {
		return endpoint.Health{}, err
	}
	h := endpoint.Health{Slot: info.AbsoluteSlot}
	if endpoint.Identify(ctx) {
		genesis, err := c.getGenesisHash(ctx)
		if err != nil {
			return endpoint.Health{}, err
		}
		h.Cluster = genesis.String()
	}
	return h, nil
}
