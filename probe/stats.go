// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"maps"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/bpf"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
)

// PathStatus is a path at one moment.
type PathStatus struct {
	Target target.Target
	// Flow is the way in use; nil while the path cannot be used.
	Flow *FlowInfo
	// Reason is why the path cannot be used, or the last probe was not sent; none if neither is so.
	Reason store.Reason
	// InFlight is how many probes await their outcome.
	InFlight uint64
	// LastRTT is that of the last reply, T4 - T1 in nanoseconds; 0 before the first.
	LastRTT int64
	Recent  Recent
	Counters
}

// Paths is the state of each path. Those of Config.Targets are in their order.
func (e *Engine) Paths() []PathStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]PathStatus, 0, len(e.paths))
	for _, p := range e.paths {
		if p == nil || p.removed {
			continue
		}
		s := PathStatus{Target: p.target, Reason: p.reason, LastRTT: p.lastRTT, Recent: p.recent.sum(), Counters: p.counters}
		s.NotSent = maps.Clone(p.counters.NotSent)
		s.InFlight = s.Sent - s.Received - s.Lost - s.Unknown
		if p.flow != nil {
			info := p.flow.FlowInfo
			s.Flow, s.Reason = &info, p.unsent
		}
		out = append(out, s)
	}
	return out
}

// StampCount is how many time stamps came from a source on an interface.
type StampCount struct {
	Interface string
	TX        bool
	Source    store.Source
	Count     uint64
}

// Stats is what the engine counts beside its paths.
type Stats struct {
	Clock  ClockState
	Stamps []StampCount
	// Unmatched are packets on our sockets that answer no probe in flight.
	Unmatched   uint64
	ClockSteps  uint64
	Attachments []Attachment
}

// Stats is the state of the engine.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	s := Stats{Clock: e.state, Unmatched: e.unmatched, ClockSteps: e.clockSteps}
	for iface, counts := range e.stamps {
		for source := store.NoSource + 1; source <= store.User; source++ {
			for _, c := range []StampCount{{iface, true, source, counts.tx[source]}, {iface, false, source, counts.rx[source]}} {
				if c.Count > 0 {
					s.Stamps = append(s.Stamps, c)
				}
			}
		}
	}
	net := e.net
	e.mu.Unlock()
	if h, ok := net.(*hostNetwork); ok {
		s.Attachments = h.ladder.attachments()
	}
	return s
}

// Clock is the last known state of the wall clock.
func (e *Engine) Clock() ClockState {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state
}

// DatapathCounters is how many packets met each verdict of the kernel half;
// nil while it is not loaded.
func (e *Engine) DatapathCounters() (map[string]uint64, error) {
	e.mu.Lock()
	h, ok := e.net.(*hostNetwork)
	e.mu.Unlock()
	if !ok {
		return nil, nil
	}
	return h.ladder.counters()
}

func (l *ladder) counters() (map[string]uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	dp := l.loaded()
	if dp == nil {
		return nil, nil
	}
	counts, err := dp.Counters()
	if err != nil {
		return nil, err
	}
	out := make(map[string]uint64, len(counts))
	for v, n := range counts {
		out[bpf.Verdict(v).String()] = n
	}
	return out, nil
}

// Refusals names the steps that an interface did not allow, and the errno of
// each, as in "tcx:EPERM".
func (a Attachment) Refusals() string { return refusals(a.Refused) }

func errnoName(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		if name := unix.ErrnoName(errno); name != "" {
			return name
		}
	}
	if errors.Is(err, bpf.ErrNotSupported) {
		return "ENOTSUP"
	}
	return "failed"
}
