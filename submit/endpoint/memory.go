// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"
)

const (
	keepAddress  = 7 * 24 * time.Hour // after a look-up last gave it
	maxAddresses = 16                 // of one site that are kept because of look-ups
	saveInterval = time.Hour          // for the times at which addresses were named; new ones are saved at once
	saveRetry    = time.Minute
)

// record is the network to which all candidates have to belong, and the host which said so. Without that host in the configuration
// it means nothing: a wrong URL that was first must not lock out the right ones when it is gone.
type record struct {
	Cluster string `json:"cluster,omitempty"`
	Host    string `json:"host,omitempty"`
}

// memory is what is kept in the State.
type memory struct {
	Record    record          `json:"record"`
	Addresses []memoryAddress `json:"addresses"`
}

type memoryAddress struct {
	Host    string     `json:"host"`
	Address netip.Addr `json:"address"`
	Named   time.Time  `json:"named"`
}

// saver is how far the memory has been saved.
type saver struct {
	dirty  bool // something new is to be saved
	saving bool
	saved  time.Time
	after  time.Time // no try before
	failed uint64
	teller teller
}

// remember makes candidates of what the State holds. A memory that cannot be read costs nothing but itself.
func (p *Pool) remember() {
	if p.cfg.State == nil {
		return
	}
	data, err := p.cfg.State.Load()
	var m memory
	if err == nil && len(data) > 0 {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		p.logger.Warn("known endpoint addresses cannot be read", zap.String("reason", p.mask(err.Error())))
		return
	}
	now := time.Now()
	for _, s := range p.sites {
		if s.host == m.Record.Host {
			p.cluster = m.Record
		}
		for _, a := range m.Addresses {
			if a.Host == s.host && usable(a.Address) {
				c := p.add(s, a.Address)
				c.named = now.Add(-max(now.Sub(a.Named), 0)) // with a monotonic reading, and not in the future
			}
		}
	}
	p.saver.saved = now
}

// forget drops addresses of a site whose look-up has just worked: those that it has not given for too long, and too many.
// Without a look-up that works nothing is forgotten.
func (p *Pool) forget(s *site, now time.Time) {
	var kept []*candidate
	for _, c := range slices.Clone(p.candidates) {
		switch {
		case c.site != s || c.fixed:
		case c == p.inUse && c.good: // why leave what works
		case now.Sub(c.named) > keepAddress:
			p.remove(c)
			p.saver.dirty = true
		default:
			kept = append(kept, c)
		}
	}
	slices.SortStableFunc(kept, func(a, b *candidate) int { return b.named.Compare(a.named) })
	for _, c := range kept[min(len(kept), maxAddresses):] {
		p.remove(c)
		p.saver.dirty = true
	}
}

// save writes the memory if it is time to.
func (p *Pool) save(j *jobs, now time.Time) {
	m := &p.saver
	if p.cfg.State == nil || m.saving || !m.dirty && now.Sub(m.saved) < saveInterval || now.Before(m.after) {
		return
	}
	data, err := json.Marshal(p.remembered(now))
	if err != nil {
		panic(err) // it consists of texts, addresses and times
	}
	m.saving, m.dirty, m.saved = true, false, now
	j.start(func() {
		err := p.cfg.State.Save(data)
		p.mu.Lock()
		defer p.mu.Unlock()
		m.saving = false
		if err != nil {
			m.dirty, m.after = true, time.Now().Add(saveRetry)
		}
		p.reportSave(err)
	})
}

// remembered returns what is to be saved.
func (p *Pool) remembered(now time.Time) memory {
	m := memory{Record: p.cluster}
	for _, c := range p.candidates {
		if c.named.IsZero() {
			continue
		}
		// The clock may have been set since: what counts is how long ago it was.
		a := memoryAddress{Host: c.site.host, Address: c.addr, Named: now.Round(0).Add(-now.Sub(c.named)).UTC()}
		if !slices.ContainsFunc(m.Addresses, func(b memoryAddress) bool { return a.Host == b.Host && a.Address == b.Address }) {
			m.Addresses = append(m.Addresses, a)
		}
	}
	return m
}

// recordCluster makes the network that most candidates belong to, and in doubt that of the first of them, the one that counts. It is
// called when all were asked, so that none which is quick to answer decides alone.
func (p *Pool) recordCluster() {
	votes := make(map[string]int)
	var winner *candidate
	for _, c := range p.candidates {
		if c.held {
			votes[c.cluster]++
		}
	}
	for _, c := range p.candidates {
		if c.held && (winner == nil || votes[c.cluster] > votes[winner.cluster]) {
			winner = c
		}
	}
	if winner == nil {
		return
	}
	p.cluster = record{Cluster: winner.cluster, Host: winner.site.host}
	p.saver.dirty = true
	for _, c := range p.candidates {
		if c.held {
			c.held = false
			if f := p.wrongCluster(c); f.kind != "" {
				c.seen = nil // of another network
				p.failed(c, f)
			} else {
				p.passed(c)
			}
		}
	}
}

// wrongCluster says what is wrong with the network that a candidate belongs to.
func (p *Pool) wrongCluster(c *candidate) fault {
	if p.cluster.Cluster == "" || c.cluster == "" || c.cluster == p.cluster.Cluster {
		return fault{}
	}
	return fault{kind: FaultWrongCluster, text: fmt.Sprintf("belongs to cluster %s, not %s", p.mask(c.cluster), p.mask(p.cluster.Cluster))}
}
