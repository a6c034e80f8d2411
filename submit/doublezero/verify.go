// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/probe/store"
)

// Link is a path whose accounts are to be verified.
type Link struct {
	Path         string
	Target, Link Pubkey
	Interval     time.Duration // between probes
}

// LinkOf reads the labels of a path that the sink takes.
func LinkOf(p store.Path) (l Link, err error) {
	l.Path = p.Name
	if l.Link, err = ParsePubkey(p.Labels[LabelLink]); err != nil {
		return l, fmt.Errorf("link of path %s: %w", p.Name, err)
	}
	if l.Target, err = ParsePubkey(p.Labels[LabelTarget]); err != nil {
		return l, fmt.Errorf("target of path %s: %w", p.Name, err)
	}
	if text := p.Labels[LabelInterval]; text != "" {
		if l.Interval, err = time.ParseDuration(text); err != nil {
			return l, fmt.Errorf("interval of path %s: %w", p.Name, err)
		}
	}
	return l, nil
}

// VerifyConfig is what accounts are verified with. Nothing is written, and no key is needed.
type VerifyConfig struct {
	Endpoints http.RoundTripper
	Program   Pubkey
	Device    Pubkey
	// Samples gives those of a path in order.
	Samples func(ctx context.Context, path string) iter.Seq2[store.Sample, error]
}

// Report compares one account with the samples that belong into it.
type Report struct {
	Path    string         `json:"path"`
	Epoch   uint64         `json:"epoch"`
	Account Pubkey         `json:"account"`
	Exists  bool           `json:"exists"`
	Written int            `json:"written"` // values in the account
	Checked int            `json:"checked"` // values that the stored samples say something about
	Missing int            `json:"missing"` // samples with an RTT that the account has not, although it goes on behind them or its epoch is over
	Waiting int            `json:"waiting"` // samples behind the end of the account of the present epoch
	Zeros   map[string]int `json:"zeros,omitempty"`
	Wrong   int            `json:"wrong"`     // values that are no sample's
	Shifted int            `json:"shifted"`   // samples that stand at another index than that of their time
	Twice   int            `json:"duplicate"` // samples that stand there twice
	Start   time.Time      `json:"start,omitzero"`
}

// Equal reports whether the account holds what it should.
func (r Report) Equal() bool { return r.Missing+r.Wrong+r.Shifted+r.Twice == 0 }

// Verify compares the accounts of links with stored samples, for each epoch from which there are any.
func Verify(ctx context.Context, cfg VerifyConfig, links []Link) ([]Report, error) {
	c := newClient(cfg.Endpoints)
	ch := newChain(c)
	now, err := ch.tip(ctx, 0)
	if err != nil {
		return nil, err
	}
	when := newEpochs(c, ch, forgetful{}, zap.NewNop())
	var reports []Report
	for _, l := range links {
		r, err := verifyLink(ctx, cfg, c, when, now, l)
		if err != nil {
			return nil, fmt.Errorf("path %s: %w", l.Path, err)
		}
		reports = append(reports, r...)
	}
	return reports, nil
}

// forgetful is a log that keeps nothing.
type forgetful struct{}

func (forgetful) Get(string, string) ([]byte, error) { return nil, nil }
func (forgetful) Commit(string, store.Update) error  { return nil }

func verifyLink(ctx context.Context, cfg VerifyConfig, c *client, when *epochs, now tip, l Link) (reports []Report, err error) {
	var during period
	var samples []store.Sample
	finish := func() error {
		if len(samples) == 0 {
			return nil
		}
		r, err := verifyAccount(ctx, cfg, c, l, during, samples)
		reports, samples = append(reports, r), nil
		return err
	}
	for s, err := range cfg.Samples(ctx, l.Path) {
		if err != nil {
			return nil, err
		}
		if s.Time.IsZero() || s.Time.After(now.time) {
			continue
		}
		if during.start.IsZero() && during.end.IsZero() || !during.has(s.Time) {
			if err := finish(); err != nil {
				return nil, err
			}
			if during, err = when.of(ctx, s.Time, now); err != nil {
				return nil, err
			}
		}
		samples = append(samples, s)
	}
	return reports, finish()
}

func verifyAccount(ctx context.Context, cfg VerifyConfig, c *client, l Link, during period, samples []store.Sample) (Report, error) {
	key := AccountKey{Origin: cfg.Device, Target: l.Target, Link: l.Link, Epoch: during.epoch}
	address, _, err := key.Address(cfg.Program)
	if err != nil {
		return Report{}, err
	}
	r := Report{Path: l.Path, Epoch: during.epoch, Account: address, Zeros: make(map[string]int)}
	a, _, err := c.getAccountInfo(ctx, address, nil, finalized, 0)
	if err != nil {
		return r, fmt.Errorf("read account %s: %w", address, err)
	}
	over := !during.end.IsZero()
	if a == nil || len(a.Data) == 0 {
		r.compare(timeline{}, nil, samples, over)
		return r, nil
	}
	h, values, err := DecodeSamples(a.Data)
	if err != nil {
		return r, fmt.Errorf("account %s: %w", address, err)
	}
	r.Exists, r.Written = true, len(values)
	axis := timeline{start: time.UnixMicro(int64(h.StartMicros)), interval: time.Duration(h.IntervalMicros) * time.Microsecond, gaps: true}
	axis.coarse = l.Interval > 0 && l.Interval < axis.interval
	r.compare(axis, values, samples, over)
	if len(values) > 0 {
		r.Start = axis.start
	}
	return r, nil
}

// expected is what the store says of one index.
type expected struct {
	known bool
	value uint32
	cause cause
}

// compare counts what is right and wrong in the values of an account whose epoch is over, or not.
func (r *Report) compare(axis timeline, values []uint32, samples []store.Sample, over bool) {
	want := make([]expected, len(values))
	previous := int64(-1)
	var first, last int64 = -1, -1 // indexes that the store covers
	for _, s := range samples {
		if len(values) == 0 {
			r.behind(s, over)
			continue
		}
		index := axis.index(s.Time, previous)
		if previous < 0 { // the store may begin in the middle of the account, or before it
			if index = int64(s.Time.Sub(axis.start).Round(axis.interval) / axis.interval); index < 0 {
				continue
			}
		}
		switch {
		case index <= previous:
			continue // the first probe of an index is its value
		case index >= int64(len(values)):
			r.behind(s, over)
		default:
			b := batch{}
			want[index] = expected{known: true, value: b.value(s)}
			for c, n := range b.zeros {
				if n > 0 {
					want[index].cause = cause(c)
				}
			}
			if first < 0 {
				first = index
			}
			last = index
		}
		previous = index
	}
	if first < 0 {
		return
	}
	for i := first; i <= last; i++ {
		r.Checked++
		if !want[i].known {
			want[i] = expected{known: true, cause: causeGap}
		}
		if want[i].value == 0 && values[i] == 0 {
			r.Zeros[want[i].cause.String()]++
		}
	}
	r.judge(values, want, first, last)
	// Nothing is written before the store has it: what is left behind the last sample is too much, or was moved there by what is twice.
	r.Wrong += max(0, len(values)-1-int(last)-r.Twice)
}

// behind counts a sample for which the account is too short.
func (r *Report) behind(s store.Sample, over bool) {
	switch {
	case !over:
		r.Waiting++
	case s.Outcome == store.OnTime:
		r.Missing++
	}
}

// judge says what is wrong with the values from first to last.
func (r *Report) judge(values []uint32, want []expected, first, last int64) {
	for i := first; i <= last; {
		if values[i] == want[i].value {
			i++
			continue
		}
		// Where the samples from here on stand instead, if they do.
		by, run := displacement(values, want, i, last)
		switch {
		case run == 0 && values[i] == 0:
			r.Missing++
			i++
		case run == 0 && want[i].value == 0 && repeats(values, want, i):
			r.Twice++
			i++
		case run == 0 && belongs(values[i], want, i): // what comes later took the place, and is counted there
			if want[i].value != 0 {
				r.Missing++
			}
			i++
		case run == 0:
			r.Wrong++
			i++
		case by > 0 && repeats(values, want, i): // what was put in between stood there before
			r.Twice += int(by)
			r.Shifted += run
			i += int64(run)
		default:
			r.Shifted += run
			i += int64(run)
		}
	}
}

// leastRun is how many samples in a row have to agree to be taken for the same: RTTs repeat.
const leastRun = 4

// displacement looks for the samples from index i on elsewhere in the account, and returns by how much they are displaced and how many.
func displacement(values []uint32, want []expected, i, last int64) (by int64, run int) {
	const farthest = 1000
	for d := int64(1); d <= farthest; d++ {
		for _, by := range []int64{d, -d} {
			n, real := 0, 0
			for j := i; j <= last && j+by >= 0 && j+by < int64(len(values)) && values[j+by] == want[j].value && values[j] != want[j].value; j++ {
				n++
				if want[j].value != 0 {
					real++
				}
			}
			if real >= leastRun {
				return by, n
			}
		}
	}
	return 0, 0
}

// belongs reports whether a value is that of a sample close behind index i.
func belongs(value uint32, want []expected, i int64) bool {
	for _, w := range want[i+1 : min(i+2*MaxSamplesPerWrite, int64(len(want)))] {
		if w.value == value {
			return true
		}
	}
	return false
}

// repeats reports whether the value at index i stands for a sample that stands a little before it too.
func repeats(values []uint32, want []expected, i int64) bool {
	if values[i] == 0 {
		return false
	}
	for j := i - 1; j >= 0 && j >= i-2*MaxSamplesPerWrite; j-- {
		if want[j].known && want[j].value == values[i] && values[j] == values[i] {
			return true
		}
	}
	return false
}
