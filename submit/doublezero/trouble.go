// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"slices"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/xtwamp/xtwamp/submit"
)

// Why an account that is there is not written. The first three are also reasons of drops, when its epoch is over.
const (
	reasonAccountType   = "account_type"
	reasonOtherAgent    = "other_agent"
	reasonOtherInterval = "other_interval"
	reasonOtherWriter   = "other_writer"
	reasonNoRecord      = "no_record" // of it in the store
)

// notOffered is after how long, beside two flushes, a path that has nothing to write is taken to be gone.
const notOffered = time.Hour

// trouble is one thing that keeps accounts from being written. It is one outage, of however many accounts.
type trouble struct {
	submit.Outage // its attempts are looks at accounts
	kind          string
	last          []zap.Field // which account was met last
}

func newTroubles() (all []*trouble) {
	begin := func(kind, begins, ends string, level zapcore.Level) {
		all = append(all, &trouble{kind: kind, Outage: submit.Outage{Begins: begins, Ends: ends, Level: level}})
	}
	for _, kind := range []string{reasonAccountType, reasonOtherAgent, reasonOtherInterval} {
		begin(kind, "the account cannot be written; samples are kept until its epoch is over", "no account is left that cannot be written",
			zap.ErrorLevel)
	}
	begin(reasonOtherWriter, "somebody else writes to the account; it is left alone", "nobody else writes to an account any more", zap.ErrorLevel)
	begin(reasonNoRecord, "the store knows nothing of the account; it is left alone until it is sure that nobody writes to it",
		"no account is left that the store knows nothing of", zap.WarnLevel)
	return all
}

// trouble is why the account, which was looked at in an epoch, is not written. If nothing of ours is kept for it any more, that is none.
func (a *account) trouble(now uint64) string {
	switch {
	case a.shut != "" && now > a.key.Epoch:
		return ""
	case a.shut != "":
		return a.shut
	case a.other:
		return reasonOtherWriter
	case a.adopting != nil:
		return reasonNoRecord
	}
	return ""
}

// report takes note of the account that the path is at, and of what that means for all.
func (s *Sink) report(p *path, a *account) {
	now := s.chain.cached().epoch
	s.mu.Lock()
	defer s.mu.Unlock()
	p.trouble = a.trouble(now)
	accounts := make(map[string]int)
	for _, other := range s.paths {
		if time.Since(other.offered) < notOffered+2*s.cfg.FlushInterval {
			accounts[other.trouble]++
		}
	}
	for _, t := range s.troubles {
		switch {
		case t.kind == p.trouble:
			t.last = []zap.Field{zap.String("path", p.Name), zap.Stringer("account", a.address), zap.Uint64("epoch", a.key.Epoch),
				zap.String("reason", t.kind)}
			t.GoesOn(s.logger, a.why, append(slices.Clip(t.last), zap.Int("accounts", accounts[t.kind]))...)
		case accounts[t.kind] == 0:
			t.Over(s.logger, slices.Clip(t.last)...)
		}
	}
}
