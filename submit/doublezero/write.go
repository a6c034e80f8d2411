// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/submit"
	"github.com/xtwamp/xtwamp/submit/endpoint"
)

// fate is what became of a write.
type fate uint8

const (
	undecided fate = iota // it may still land
	landed
	expired   // it never will
	failed    // it was executed and refused, or refused before it was passed on
	displaced // expired, and the account is where neither it nor nothing would have left it
)

// write signs a batch, journals it, sends it, and follows it.
func (s *Sink) write(ctx context.Context, p *path, a *account, b batch, now tip, samples []store.Sample) (submit.Result, error) {
	hash, err := s.blockhash(ctx, now)
	if err != nil {
		return submit.Result{}, err
	}
	e := entry{
		Account: a.address, Epoch: a.key.Epoch,
		Before: b.first, After: b.first + uint32(len(b.values)),
		StartUS:   uint64(b.start.UnixMicro()),
		LastValid: hash.LastValid,
		UpTo:      samples[0].Seq,
		Zeros:     b.causes(),
	}
	if b.samples > 0 {
		e.UpTo = samples[b.samples-1].Seq + 1
	}
	// The start differs from that of every other batch of the account, the blockhash is new: no two batches are the same bytes.
	if e.Signed, e.Signature, err = s.agent.writeTransaction(a.address, e.StartUS, b.values, hash.Hash); err != nil {
		return submit.Result{}, err
	}
	s.step("journal")
	err = s.cfg.Log.Commit(Name, store.Update{
		Put: map[string][]byte{journalKey(p.Path): asJSON(e)},
		Pin: map[store.PathID]uint64{p.ID: e.UpTo},
	})
	if err != nil {
		return submit.Result{}, err // and nothing is sent
	}
	s.step("send")
	err = s.send(ctx, p, e, &endpoint.Route{}, sendOptions{Commitment: finalized, MinSlot: hash.Slot})
	if refused(err) && conclusive(err) {
		// The only attempt with these bytes, and it went nowhere: they can be forgotten.
		return s.dead(p, a, err)
	}
	p.sent = sent{signature: e.Signature, at: time.Now()}
	s.step("sent")
	return s.follow(ctx, p, e, samples)
}

// blockhash returns one that every node which has seen the tip knows.
func (s *Sink) blockhash(ctx context.Context, now tip) (latestBlockhash, error) {
	return caughtUp(ctx, func(ctx context.Context) (latestBlockhash, error) {
		return s.client.getLatestBlockhash(ctx, finalized, now.slot)
	})
}

// send passes a write on, and remembers through which endpoint.
func (s *Sink) send(ctx context.Context, p *path, e entry, r *endpoint.Route, o sendOptions) error {
	err := s.client.sendTransaction(endpoint.WithRoute(ctx, r), e.Signed, o)
	if r.Used != "" {
		p.via = r.Used
	}
	return err
}

// follow waits for the write in the journal to land, or for the proof that it never will, and says what that means for the samples.
func (s *Sink) follow(ctx context.Context, p *path, e entry, samples []store.Sample) (submit.Result, error) {
	a, err := p.account(s, e.Epoch)
	if err != nil {
		return submit.Result{}, err
	}
	defer s.report(p, a)
	became, h, err := s.settle(ctx, p, e)
	switch became {
	case landed:
		s.cfg.Endpoints.Landed(p.via)
		s.step("landed")
		return s.booked(p, a, e, h, samples)
	case expired:
		s.cfg.Endpoints.Expired(p.via)
		s.step("expired")
		return submit.Result{Delete: []string{journalKey(p.Path)}, Again: true}, nil
	case displaced:
		if e.Account != a.address { // the path was another link when this was sent
			return submit.Result{Delete: []string{journalKey(p.Path)}, Again: true}, nil
		}
		s.alienate(a, h, e.After)
		return submit.Result{Delete: []string{journalKey(p.Path), recordKey(p.Path, e.Epoch)}}, nil
	case failed:
		return s.dead(p, a, err)
	}
	if err != nil {
		return submit.Result{}, fmt.Errorf("transaction %s of %s: %w", e.Signature, p.Name, err)
	}
	return submit.Result{Again: true}, nil
}

// booked counts the samples of a write that landed.
func (s *Sink) booked(p *path, a *account, e entry, h found, samples []store.Sample) (submit.Result, error) {
	r := submit.Result{Put: make(map[string][]byte), Delete: []string{journalKey(p.Path)}}
	for r.Accepted < len(samples) && samples[r.Accepted].Seq < e.UpTo {
		r.Accepted++
	}
	// A backlog goes on at once; what came while this was under way waits for the next flush. Its age is by the ledger's clock, before
	// whose finalized tip nothing may be submitted.
	rest := samples[r.Accepted:]
	r.Again = e.After-e.Before == MaxSamplesPerWrite || len(rest) > 0 && s.chain.cached().time.Sub(rest[0].Time) > s.cfg.FlushInterval
	switch {
	case e.Account != a.address: // the path was another link when this was sent
	case h.NextIndex != e.After: // by its signature it landed, but not alone
		s.alienate(a, h, e.After)
		r.Delete = append(r.Delete, recordKey(p.Path, e.Epoch))
		return r, nil
	default:
		after := record{Account: e.Account, Epoch: e.Epoch, Next: e.After, StartUS: h.StartMicros, IntervalUS: h.IntervalMicros}
		if a.record != nil {
			after.Zeros = a.record.Zeros
		}
		r.Put[recordKey(p.Path, e.Epoch)] = asJSON(after.with(e.Zeros))
		a.checked = time.Now()
	}
	times, err := s.epochs.note(s.chain.cached())
	for key, value := range times {
		r.Put[key] = value
	}
	return r, err
}

// explain adds to the error of a transaction what the programs logged, if a node still has it.
func (s *Sink) explain(ctx context.Context, sig Signature, err *rpcError) error {
	if t, terr := s.client.getTransaction(ctx, sig); terr == nil && t != nil && t.Err != nil {
		return t.Err
	}
	return err
}

// dead forgets a write that the ledger refused for good, and says why.
func (s *Sink) dead(p *path, a *account, err error) (submit.Result, error) {
	r := submit.Result{Delete: []string{journalKey(p.Path)}}
	a.checked = time.Time{} // look at the account again: it is not as we thought
	if customOf(err) == customFull {
		a.full, r.Again = true, true
		return r, nil
	}
	if e, ok := errors.AsType[*rpcError](err); ok && len(e.Logs) > 0 {
		err = fmt.Errorf("%w; the programs logged %q", err, e.Logs)
	}
	return r, setback(fmt.Errorf("write samples of %s: %w", p.Name, err))
}

// conclusive reports whether a refusal is about the transaction and not about the node that it was shown to.
func conclusive(err error) bool {
	switch kindOf(err) {
	case kindTransient, kindBehind, kindBlockhash:
		return false
	}
	return true
}

// setback wraps an error that the ledger would only repeat if it were asked again at once.
func setback(err error) error {
	if !conclusive(err) {
		return err
	}
	return &submit.Setback{Err: err}
}

const (
	resendEvery = 2 // polls between two times the same bytes are sent, until they are seen in a block
	elsewhereAt = 5 // polls after which they are sent through another endpoint too
	readEvery   = 5 // polls between two looks at the account while the signature says nothing
	tipEvery    = 5 // polls that a tip is good enough
)

// settle sends the bytes of a write again and again until the chain shows what became of it, or ctx ends.
func (s *Sink) settle(ctx context.Context, p *path, e entry) (became fate, h found, fault error) {
	if p.sent.signature != e.Signature { // by a process before this one, or it was about to
		p.sent = sent{signature: e.Signature}
	}
	for poll := 0; ; poll++ {
		if poll%resendEvery == 0 && !p.sent.seen && (poll > 0 || p.sent.at.IsZero()) {
			s.step("resend")
			s.resend(ctx, p, e, poll >= elsewhereAt)
		}
		status, err := s.sent.get(ctx, e.Signature, 0)
		if ctx.Err() != nil {
			return undecided, found{}, fault
		}
		if fault = nil; err != nil && kindOf(err) != kindNoHistory {
			fault = err
			pause(ctx, s.cfg.Poll)
		}
		var slot uint64
		p.sent.seen = err == nil && status.Level != "" // a fork that held it may be gone
		if err == nil && status.Level == finalized {
			if status.Err != nil {
				return failed, found{}, s.explain(ctx, e.Signature, status.Err)
			}
			slot = status.Slot
		} else if poll%readEvery != readEvery-1 {
			continue
		}
		now, err := s.chain.tip(ctx, tipEvery*s.cfg.Poll)
		if err != nil {
			fault = err
			continue
		}
		h, err = s.headers.get(ctx, e.Account, max(slot, now.slot))
		switch {
		case err != nil:
			fault = err
		case h.NextIndex == e.After || slot > 0 && h.NextIndex > e.After:
			return landed, h, nil
		case now.height <= e.LastValid:
		case h.NextIndex == e.Before:
			return expired, h, nil
		default:
			return displaced, h, nil
		}
	}
}

// resend sends the same bytes once more. What comes of it only the chain can tell.
func (s *Sink) resend(ctx context.Context, p *path, e entry, elsewhere bool) {
	r := new(endpoint.Route)
	_ = s.send(ctx, p, e, r, sendOptions{SkipPreflight: true})
	if elsewhere {
		_ = s.send(ctx, p, e, &endpoint.Route{Avoid: r.Used}, sendOptions{SkipPreflight: true})
	}
	p.sent.at = time.Now()
}

// sent is what this process knows of the write in the journal.
type sent struct {
	signature Signature
	at        time.Time // of the last attempt; zero: none in this process
	seen      bool      // in a block
}

func (s *Sink) step(name string) {
	if s.cfg.Step != nil {
		s.cfg.Step(name)
	}
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
