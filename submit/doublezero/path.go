// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/xtwamp/xtwamp/probe/store"
)

// path is a link as it is written: what is not in the store about it may be forgotten. Its accounts are used by one Submit at a time.
type path struct {
	store.Path
	target, link Pubkey
	interval     time.Duration // between probes; 0: not known
	accounts     map[uint64]*account
	sent         sent
	via          string // the endpoint that the write in the journal last went through

	// Under Sink.mu:
	offered time.Time // by the submitter, last
	trouble string    // why the account that it is at is not written; "": it is
}

// account is the place of a path's samples in one epoch.
type account struct {
	key     AccountKey
	address Pubkey
	record  *record // nil: this store knows nothing of it
	checked time.Time
	told    record // what Status last told; under Sink.mu

	full     bool      // the program said so
	shut     string    // why nothing of ours will ever be in it; known for sure when the epoch is over
	why      error     // what was last seen of what keeps it from being written
	init     *pending  // the transaction that makes it, if it is under way
	adopting *adoption // it is there and not ours yet
	other    bool      // somebody else writes to it; changed with Sink.mu held
	again    time.Time // when to try to adopt it
}

// pending is a transaction that makes an account.
type pending struct {
	signature Signature
	signed    []byte
	lastValid uint64
}

// adoption is the first of two looks at an account between which nobody may write to it.
type adoption struct {
	index  uint32
	height uint64
	at     time.Time
}

const (
	// adoptBlocks is after how many blocks a transaction that was sent before the first look can no longer land.
	adoptBlocks = 151
	// adoptEvery is how long an account is left alone that somebody else was seen to write to.
	adoptEvery = 10 * time.Minute
	// keepRecords is how many epochs back the store knows what it wrote.
	keepRecords = 3
)

func (s *Sink) path(stored store.Path) (*path, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.paths[stored.ID]; p != nil && p.Labels[LabelLink] == stored.Labels[LabelLink] && p.Labels[LabelTarget] == stored.Labels[LabelTarget] {
		p.offered = time.Now()
		return p, nil
	}
	l, err := LinkOf(stored)
	if err != nil {
		return nil, err
	}
	p := &path{Path: stored, target: l.Target, link: l.Link, interval: l.Interval, accounts: make(map[uint64]*account), offered: time.Now()}
	s.paths[stored.ID] = p
	return p, nil
}

// account returns the path's account in an epoch, with what the store knows of it.
func (p *path) account(s *Sink, epoch uint64) (*account, error) {
	a := p.accounts[epoch]
	if a == nil {
		a = &account{key: AccountKey{Origin: s.cfg.Device, Target: p.target, Link: p.link, Epoch: epoch}}
		var err error
		if a.address, _, err = a.key.Address(s.cfg.Program); err != nil {
			return nil, err
		}
	}
	var r record
	known, err := load(s.cfg.Log, recordKey(p.Path, epoch), &r)
	if err != nil {
		return nil, err
	}
	a.record = nil
	if known && r.Account == a.address {
		a.record = &r
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.accounts[epoch] == nil {
		a.told = r
		p.accounts[epoch] = a
	}
	for old := range p.accounts {
		if old+keepRecords < epoch {
			delete(p.accounts, old)
		}
	}
	return a, nil
}

// timeline is the time axis along which the account goes on.
func (a *account) timeline(p *path, gaps bool) timeline {
	l := timeline{next: a.record.Next, interval: a.record.interval(), gaps: gaps}
	if l.next > 0 {
		l.start = time.UnixMicro(int64(a.record.StartUS))
	}
	l.coarse = p.interval > 0 && p.interval < l.interval
	return l
}

// open reports whether the account is there and ours to continue. If it is not there yet, it makes it.
func (s *Sink) open(ctx context.Context, p *path, a *account, now tip) (bool, error) {
	if a.record != nil && time.Since(a.checked) < 5*s.cfg.Poll {
		return true, nil
	}
	if a.init != nil {
		return s.initialized(ctx, p, a)
	}
	h, err := s.headers.get(ctx, a.address, now.slot)
	if err != nil {
		return false, err
	}
	a.shut = ""
	switch {
	case !h.exists && a.record != nil && a.record.Next > 0:
		return false, fmt.Errorf("account %s of %s, with %d samples, is gone from the ledger", a.address, p.Name, a.record.Next)
	case !h.exists:
		a.adopting = nil
		return s.initialize(ctx, p, a, now)
	}
	if reason, why := s.unusable(p, h); reason != "" {
		a.shut, a.why = reason, why
		return false, nil
	}
	switch {
	case a.record == nil:
		return s.adopt(p, a, h, now)
	case h.NextIndex != a.record.Next:
		return false, s.otherWriter(p, a, h)
	}
	a.checked = time.Now()
	return true, nil
}

// unusable says why an account can never be written by us, with what was seen of it; "" if it can.
func (s *Sink) unusable(p *path, h found) (reason string, why error) {
	interval := time.Duration(h.IntervalMicros) * time.Microsecond
	switch {
	case h.Version != 1: // or not of samples at all: a zero header
		return reasonAccountType, errors.New("it is none of the samples that the program writes")
	case h.Agent != s.cfg.Keypair.Public():
		return reasonOtherAgent, fmt.Errorf("it is that of agent %s", h.Agent)
	case interval == s.cfg.SampleInterval || p.interval > 0 && interval > 0 && interval%p.interval == 0:
		return "", nil
	default:
		return reasonOtherInterval, fmt.Errorf("its samples are %v apart", interval)
	}
}

// otherWriter stops the account: its index is not where our writes have left it.
func (s *Sink) otherWriter(p *path, a *account, h found) error {
	s.alienate(a, h, a.record.Next)
	return s.forget(p, a)
}

// alienate takes note of another writer: the account's index is not the one expected.
func (s *Sink) alienate(a *account, h found, expected uint32) {
	a.adopting, a.again = nil, time.Now().Add(adoptEvery)
	a.why = fmt.Errorf("its index is %d, expected %d", h.NextIndex, expected)
	s.mu.Lock()
	defer s.mu.Unlock()
	a.other = true
}

// forget makes the store know nothing of the account, so that it has to be adopted again.
func (s *Sink) forget(p *path, a *account) error {
	return s.cfg.Log.Commit(Name, store.Update{Delete: []string{recordKey(p.Path, a.key.Epoch)}})
}

// remember stores that the account is ours as its header says.
func (s *Sink) remember(p *path, a *account, h found) error {
	r := record{Account: a.address, Epoch: a.key.Epoch, Next: h.NextIndex, StartUS: h.StartMicros, IntervalUS: h.IntervalMicros}
	u := store.Update{Put: map[string][]byte{recordKey(p.Path, a.key.Epoch): asJSON(r)}}
	if a.key.Epoch >= keepRecords {
		u.Delete = []string{recordKey(p.Path, a.key.Epoch-keepRecords)}
	}
	if err := s.cfg.Log.Commit(Name, u); err != nil {
		return err
	}
	a.record, a.checked = &r, time.Now()
	a.init, a.adopting = nil, nil
	s.mu.Lock()
	defer s.mu.Unlock()
	a.other = false
	return nil
}

// adopt makes an account ours that is there and of which the store knows nothing: a store was lost, or another agent or a second copy
// of this one is at work. Nobody may have written to it while every transaction that was under way has expired.
func (s *Sink) adopt(p *path, a *account, h found, now tip) (bool, error) {
	if time.Now().Before(a.again) {
		return false, nil
	}
	first := a.adopting
	switch {
	case first == nil:
		a.adopting = &adoption{index: h.NextIndex, height: now.height, at: time.Now()}
		if !a.other {
			a.why = fmt.Errorf("it holds %d samples", h.NextIndex)
		}
		return false, nil
	case h.NextIndex != first.index:
		s.alienate(a, h, first.index)
		return false, nil
	case now.height < first.height+adoptBlocks || time.Since(first.at) < 2*s.cfg.FlushInterval:
		return false, nil
	}
	return true, s.remember(p, a, h)
}

// errLinkGone means that no account can be made because there is no such link any more.
var errLinkGone = errors.New("the link is gone")

// notMade is why the program did not make the account, which it may do later unless the link is gone.
func (s *Sink) notMade(p *path, a *account, err error) error {
	if s.cfg.Gone != nil && s.cfg.Gone(p.link) {
		return errLinkGone
	}
	return setback(fmt.Errorf("make account %s of %s: %w", a.address, p.Name, err))
}

// initialize makes the account. That is no append: it may be tried any number of times.
func (s *Sink) initialize(ctx context.Context, p *path, a *account, now tip) (bool, error) {
	hash, err := s.blockhash(ctx, now)
	if err != nil {
		return false, err
	}
	signed, signature, err := s.agent.initializeTransaction(a.key, uint64(s.cfg.SampleInterval/time.Microsecond), hash.Hash)
	if err != nil {
		return false, err
	}
	s.step("initialize")
	err = s.client.sendTransaction(ctx, signed, sendOptions{Commitment: finalized, MinSlot: hash.Slot})
	switch {
	case customOf(err) == customExists:
		return false, nil // its header shows it when it is final
	case refused(err) && conclusive(err):
		return false, s.notMade(p, a, err)
	}
	a.init = &pending{signature: signature, signed: signed, lastValid: hash.LastValid}
	s.step("initialize sent")
	return s.initialized(ctx, p, a)
}

// initialized waits until the account is there at finalized.
func (s *Sink) initialized(ctx context.Context, p *path, a *account) (ready bool, fault error) {
	for poll := 1; ; poll++ {
		status, err := s.sent.get(ctx, a.init.signature, 0)
		if ctx.Err() != nil {
			return false, fault
		}
		if fault = nil; err != nil && kindOf(err) != kindNoHistory {
			fault = err
			pause(ctx, s.cfg.Poll)
		}
		if err == nil && status.Level == finalized {
			return s.made(ctx, p, a, status)
		}
		if poll%resendEvery == 0 && status.Level == "" {
			_ = s.client.sendTransaction(ctx, a.init.signed, sendOptions{SkipPreflight: true})
		}
		if poll%tipEvery != 0 {
			continue
		}
		now, err := s.chain.tip(ctx, tipEvery*s.cfg.Poll)
		if err != nil {
			fault = err
		} else if now.height > a.init.lastValid {
			a.init = nil
			return false, nil // whether it landed all the same its header shows
		}
	}
}

// made looks at the account that our transaction has, or has not, made.
func (s *Sink) made(ctx context.Context, p *path, a *account, status signatureStatus) (bool, error) {
	if status.Err != nil {
		a.init = nil
		if status.Err.Custom == customExists {
			return false, nil
		}
		return false, s.notMade(p, a, status.Err)
	}
	h, err := s.headers.get(ctx, a.address, status.Slot)
	if err != nil {
		return false, err // the next Submit goes on here
	}
	a.init = nil
	if reason, _ := s.unusable(p, h); !h.exists || h.NextIndex > 0 || reason != "" {
		return false, nil // what it is then is found out as with an account that was there before
	}
	return true, s.remember(p, a, h)
}
