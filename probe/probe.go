// SPDX-License-Identifier: Apache-2.0

// Package probe is the measuring engine: it sends test packets on schedule,
// takes their time stamps at the best place the host offers, decides each
// probe's outcome and hands the samples on, in sending order, exactly once.
// Nothing it waits for lies outside of this host.
package probe

import (
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/twamp"
)

// probe is one test packet from sending until its outcome is final.
type probe struct {
	seq    uint32
	wire   twamp.Timestamp // T1 as written into the packet: the nonce of its reply
	flow   *openFlow       // nil if it was not sent
	done   bool            // the outcome below is final
	sent   int64           // CLOCK_MONOTONIC just before sending, or of the attempt
	tx, rx stamp
	// txSource and rxSource are NoSource until a stamp is there.
	txSource store.Source
	rxSource store.Source
	offset   offset // of the clocks when it was sent; socket step only

	outcome store.Outcome
	reason  store.Reason
	rtt     int64
	dwell   int64 // -1: not known
	ttl     uint8
	remote  uint8 // the TTL with which the probe reached the far side
}

// reply is what came back for a probe, from whichever step of the ladder.
type reply struct {
	seq      uint32
	wire     twamp.Timestamp
	tx       stamp // txSource NoSource: the probe's own stamp holds
	rx       stamp
	txSource store.Source
	rxSource store.Source

	hasTimes  bool // received and sent below
	received  twamp.Timestamp
	sent      twamp.Timestamp
	errorEst  twamp.ErrorEstimate
	ttl       uint8 // of the reply; 0: not known
	remoteTTL uint8 // as the far side saw the probe; 0: not reported
}

// sample is the stored form of a finished probe.
func (p *probe) sample() store.Sample {
	s := store.Sample{
		Mono:      p.sent,
		Outcome:   p.outcome,
		Reason:    p.reason,
		TX:        p.txSource,
		RX:        p.rxSource,
		TTL:       p.ttl,
		RemoteTTL: p.remote,
	}
	if p.txSource != store.NoSource && !p.tx.wall {
		s.Mono = p.tx.ns
	}
	if p.outcome == store.OnTime || p.outcome == store.Late {
		s.RTT = p.rtt
		if p.dwell >= 0 {
			s.Dwell, s.HasDwell = p.dwell, true
		}
	}
	return s
}
