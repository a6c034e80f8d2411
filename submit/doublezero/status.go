// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/submit"
)

// clockSlack is how far the device's clock may be behind the ledger's.
const clockSlack = 5 * time.Second

// clock is how the device's clock stands to the ledger's.
type clock struct {
	holding submit.Outage
	hold    string    // why nothing is submitted; "": it is right
	steady  time.Time // since when it has been right; zero: it is not
}

// clockAgrees reports whether the device's clock may be right, and says so when that changes.
func (s *Sink) clockAgrees(now tip) bool {
	device := time.Now()
	hold := ""
	switch behind := now.time.Sub(device); {
	case device.Before(s.cfg.Built):
		hold = fmt.Sprintf("clock at %s, before this program was built", device.UTC().Format(time.RFC3339))
	case behind > clockSlack:
		hold = fmt.Sprintf("clock %s behind the ledger", behind.Truncate(time.Second))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock.hold = hold
	if hold != "" {
		s.clock.steady = time.Time{}
		s.clock.holding.GoesOn(s.logger, errors.New(hold))
		return false
	}
	if s.clock.steady.IsZero() {
		s.clock.steady = device
	}
	s.clock.holding.Over(s.logger)
	return true
}

// clockSteadyFor reports whether the clock has been right for so long.
func (s *Sink) clockSteadyFor(d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.clock.steady.IsZero() && time.Since(s.clock.steady) >= d
}

const (
	balanceEvery = 10 * time.Minute
	// enoughFor is how long the payer's balance has to last, so that it is filled up in time.
	enoughFor = 3 * 24 * time.Hour

	lamportsPerSample = 27_840 // rent of four bytes
	lamportsPerWrite  = 5_000  // fee
)

// wallet is what the payer has.
type wallet struct {
	lamports uint64
	known    bool
	next     time.Time // when to look again
	low      submit.Outage
}

// pay looks at the payer's balance now and then.
func (s *Sink) pay(ctx context.Context) {
	s.mu.Lock()
	due := !time.Now().Before(s.wallet.next)
	if due {
		s.wallet.next = time.Now().Add(balanceEvery)
	}
	s.mu.Unlock()
	if !due {
		return
	}
	lamports, err := s.client.getBalance(ctx, s.cfg.Keypair.Public(), finalized)
	if err != nil {
		return // if that lasts, much else fails and says so
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	perDay := float64(24*time.Hour) * float64(len(s.paths)) *
		(lamportsPerSample/float64(s.cfg.SampleInterval) + lamportsPerWrite/float64(s.cfg.FlushInterval))
	lasts := time.Duration(float64(24*time.Hour) * float64(lamports) / max(perDay, 1))
	if lasts < enoughFor {
		s.wallet.low.GoesOn(s.logger, fmt.Errorf("it lasts %v", lasts.Truncate(time.Minute)),
			zap.Stringer("payer", s.cfg.Keypair.Public()), zap.Uint64("lamports", lamports))
	} else {
		s.wallet.low.Over(s.logger, zap.Uint64("lamports", lamports))
	}
	s.wallet.lamports, s.wallet.known = lamports, true
}

// AccountStatus is one account that is, or was, written.
type AccountStatus struct {
	Path     string
	Epoch    uint64
	Samples  uint32            // that it holds, of MaxSamples
	Expected uint32            // that it would hold if all were written: from its first one until now, or until its epoch was over
	Zeros    map[string]uint32 // that we wrote, by cause
	Other    bool              // somebody else writes to it
}

// Status is the state of the sink.
type Status struct {
	Accounts []AccountStatus   // by path and epoch
	Zeros    map[string]uint64 // written since New, by cause
	Hold     string            // why nothing is submitted; "": it is
	Balance  uint64            // lamports
	Funded   bool              // Balance is known
}

// Status may be called from any goroutine.
func (s *Sink) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Hold: s.clock.hold, Balance: s.wallet.lamports, Funded: s.wallet.known}
	for _, p := range s.paths {
		newest := uint64(0)
		for epoch, a := range p.accounts {
			s.tell(p, a)
			st.Accounts = append(st.Accounts, s.accountStatus(p, a.told, epoch, a.other))
			newest = max(newest, epoch)
		}
		// After a restart nothing is asked about the account before the present one, unless something waits for it.
		var r record
		if newest == 0 || p.accounts[newest-1] != nil {
			continue
		}
		key := AccountKey{Origin: s.cfg.Device, Target: p.target, Link: p.link, Epoch: newest - 1}
		address, _, err := key.Address(s.cfg.Program)
		if err != nil {
			continue
		}
		// A path may have been another link then.
		if known, err := load(s.cfg.Log, recordKey(p.Path, newest-1), &r); err == nil && known && r.Account == address {
			st.Accounts = append(st.Accounts, s.accountStatus(p, r, newest-1, false))
		}
	}
	st.Zeros = maps.Clone(s.zeros)
	slices.SortFunc(st.Accounts, func(a, b AccountStatus) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Epoch, b.Epoch))
	})
	return st
}

func (s *Sink) accountStatus(p *path, r record, epoch uint64, other bool) AccountStatus {
	a := AccountStatus{Path: p.Name, Epoch: epoch, Samples: r.Next, Zeros: maps.Clone(r.Zeros), Other: other}
	if interval := r.interval(); r.StartUS > 0 && interval > 0 {
		until := time.Now()
		if end, over := s.epochs.known(epoch + 1); over {
			until = end
		}
		indexes := int64(until.Sub(time.UnixMicro(int64(r.StartUS)))/interval) + 1
		a.Expected = uint32(min(max(indexes, int64(r.Next)), MaxSamples))
	}
	return a
}

// tell takes note of what was committed of an account. What cannot be read now is told the next time. The caller holds s.mu.
func (s *Sink) tell(p *path, a *account) {
	var r record
	if known, err := load(s.cfg.Log, recordKey(p.Path, a.key.Epoch), &r); err != nil || !known || r.Account != a.address {
		return
	}
	for cause, n := range r.Zeros {
		if before := a.told.Zeros[cause]; n > before {
			s.zeros[cause] += uint64(n - before)
		}
	}
	a.told = r
}
