// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"hash/fnv"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
	"github.com/xtwamp/xtwamp/probe/twamp"
)

const (
	// lossesBeforeNewPort is how many probes in a row a flow may lose before
	// the path is opened anew from another source port: a stateful middlebox
	// can hold one flow in a bad state for ever.
	lossesBeforeNewPort = 5
	// bypassesBeforeReopen is how many replies in a row may reach the socket
	// past the kernel half before the path is opened anew.
	bypassesBeforeReopen = 3
	// reopenEvery is the least time between two attempts to open a path, and
	// reopenAhead how long before a probe the attempt is made.
	reopenEvery = 100 * time.Millisecond
	reopenAhead = 50 * time.Millisecond
	// tellAgain is the time between two lines about one fault.
	tellAgain = 4 * time.Hour
	// troubleOver is how long a path has to work until its trouble is over.
	troubleOver = time.Minute
	// resolveEvery is how often a host name is looked up while it is in use,
	// and the route to an address; of those at most routesPerMinute together.
	resolveEvery    = time.Minute
	routesPerMinute = 1000
)

// path is one target being measured. All of it is guarded by Engine.mu.
type path struct {
	// What each probe and reply needs lies together: with thousands of paths
	// most of it has to be fetched from memory each time.
	index int

	// window holds the last probes, each at seq & mask. Those from head to
	// next-1 have not been handed on.
	window     []probe
	mask       uint32
	head, next uint32
	nextSeq    uint32 // RFC 4737 NextExp: one beyond the highest reply so far

	flow      *openFlow // nil while the path cannot be used
	scheduled bool
	opening   bool
	removed   bool // sends no more, and is forgotten when nothing is in flight
	hasSlots  bool
	again     bool   // to be opened anew when the present attempt is over
	look      bool   // its way is to be looked at then
	literal   bool   // the target's address needs no lookup
	due       int64  // CLOCK_MONOTONIC of the next probe, once scheduled
	remaining uint64 // probes still to send
	reopenAt  int64  // CLOCK_MONOTONIC of the next attempt to open; 0: none
	counters  Counters
	lastRTT   int64 // of the last reply, ns; 0 before the first
	recent    recent

	target  target.Target
	profile twamp.Profile
	// slotBase is the first of the path's slots in the kernel.
	slotBase uint32
	// ssid is its STAMP session identifier (RFC 8972), never 0. A flow that
	// replaces another has the same, so that replies to either are taken.
	ssid uint16

	reason   store.Reason // why there is no flow
	unsent   store.Reason // why the last probe was not sent; none if it was
	bypasses int          // flows given up because replies bypassed the kernel half
	beginBy  int64        // CLOCK_MONOTONIC at which it is scheduled, open or not
	openedAt int64        // CLOCK_MONOTONIC of the last attempt to open; 0: none yet
	// refreshAt is the CLOCK_MONOTONIC at which its name and route are looked up
	// again though nothing has happened.
	refreshAt int64
	via       string // the interface that it leaves by, or should; empty: not known yet
	want      openRequest
	sender    int // number of the last shared socket that a flow was on
	number    int // of all paths of the engine; the index may be another's later

	trouble trouble // its own
	cause   *cause  // of the trouble that it has in common with others
}

// Counters counts a path's probes since the engine was made.
// Sent = Received + Lost + Unknown + in flight.
type Counters struct {
	Sent, Received, Late, Lost, Unknown uint64
	Duplicates, Reordered               uint64
	NotSent                             map[store.Reason]uint64
	// Skipped are moments of the schedule that passed while the process did
	// not run.
	Skipped uint64
	// LastReply is the CLOCK_MONOTONIC of the last reply, 0 before the first.
	LastReply int64
}

// RecentProbes is how many probes PathStatus.Recent is about.
const RecentProbes = 10

// Recent is what became of the last RecentProbes probes of a path that were
// answered or lost.
type Recent struct {
	Known     int // how many there are so far
	Lost      int
	LostInRow int // up to the last one
}

// recent has one bit for each, the last one lowest; 1: lost.
type recent struct {
	lost  uint16
	known uint8
}

func (r *recent) add(o store.Outcome) {
	lost := uint16(0)
	switch o {
	case store.OnTime, store.Late:
	case store.Lost:
		lost = 1
	default:
		return
	}
	r.lost = (r.lost<<1 | lost) & (1<<RecentProbes - 1)
	r.known = min(r.known+1, RecentProbes)
}

func (r recent) sum() Recent {
	return Recent{int(r.known), bits.OnesCount16(r.lost), bits.TrailingZeros16(^r.lost)}
}

// openFlow is one socket's worth of a path, from opening until the last of
// its probes is final.
type openFlow struct {
	flow
	FlowInfo
	stamps   *stampCounts
	inFlight int
	retired  bool // replaced; closes when nothing is in flight
	losses   int  // in a row
	bypassed int  // in a row
}

// FlowInfo describes the way a path's packets take.
type FlowInfo struct {
	Local, Remote netip.AddrPort
	// Interface is the one that probes leave by.
	Interface string
	// Step is the step of the attach ladder in use.
	Step Step
	// Refused says why the steps above Step are not in use; nil if they are
	// not wanted.
	Refused error
}

// sameWay reports whether nothing but the source port differs.
func (f FlowInfo) sameWay(other FlowInfo) bool {
	return f.Local.Addr() == other.Local.Addr() && f.Remote == other.Remote &&
		f.Interface == other.Interface && f.Step == other.Step
}

func newPath(t target.Target, count uint64) (*path, error) {
	profile, err := twamp.ParseProfile(t.Profile)
	if err != nil {
		return nil, fmt.Errorf("target %s: %w", t.Name, err)
	}
	if count == 0 {
		count = ^uint64(0)
	}
	p := &path{
		target:    t,
		profile:   profile,
		window:    make([]probe, t.Window()),
		remaining: count,
		// A reply to an earlier run must not fit.
		head: rand.Uint32(),
		ssid: uint16(1 + rand.N(65535)),
	}
	p.mask = uint32(len(p.window) - 1)
	p.next, p.nextSeq = p.head, p.head
	address, err := netip.ParseAddr(t.Address)
	p.literal = err == nil
	p.via = interfaceOf(&t, address)
	p.counters.NotSent = make(map[store.Reason]uint64)
	return p, nil
}

// phase is where in its interval a path fires: spread over the paths of a
// device, so that they do not all fire in one instant, and the same after a
// restart.
func phase(device, name string, interval time.Duration) time.Duration {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s", device, name)
	return time.Duration(h.Sum64() % uint64(interval))
}

// nextOnGrid is the first instant at or after wall that lies ph past a whole
// multiple of interval; both are Unix times in nanoseconds.
func nextOnGrid(wall int64, interval, ph time.Duration) int64 {
	past := (wall - int64(ph)) % int64(interval)
	if past == 0 {
		return wall
	}
	if past < 0 {
		past += int64(interval)
	}
	return wall + int64(interval) - past
}

// push begins the next probe.
func (p *path) push(now int64) *probe {
	pr := &p.window[p.next&p.mask]
	*pr = probe{seq: p.next, sent: now, dwell: -1}
	p.next++
	return pr
}

// find is the probe with that sequence number, nil if it was never sent or is
// forgotten. A probe is remembered beyond its outcome, until its place in the
// window is taken, so that a second reply to it is known as what it is.
func (p *path) find(seq uint32) *probe {
	if age := p.next - seq; age == 0 || age > uint32(len(p.window)) {
		return nil
	}
	pr := &p.window[seq&p.mask]
	if pr.seq != seq {
		return nil
	}
	return pr
}

func (p *path) oldest() *probe {
	if p.head == p.next {
		return nil
	}
	return &p.window[p.head&p.mask]
}

func (p *path) full() bool { return p.next-p.head == uint32(len(p.window)) }

// finished reports whether nothing is left to send or to wait for.
func (p *path) finished() bool { return p.remaining == 0 && p.head == p.next }

// ended reports whether it is time to forget the path.
func (p *path) ended() bool { return p.removed && p.finished() && !p.opening }

// reordered applies RFC 4737 to the arrival of seq, not a duplicate.
func (p *path) reordered(seq uint32) bool {
	if int32(seq-p.nextSeq) >= 0 {
		p.nextSeq = seq + 1
		return false
	}
	return true
}

// turn is when the path wants the scheduler next.
func (p *path) turn() int64 {
	if p.ended() {
		return 0 // as soon as can be
	}
	at := never
	if p.scheduled && p.remaining > 0 {
		at = min(at, p.due)
	}
	if pr := p.oldest(); pr != nil {
		at = min(at, pr.sent+int64(p.target.Expiry()))
	}
	if !p.scheduled && p.remaining > 0 && p.beginBy != 0 {
		at = min(at, p.beginBy)
	}
	if p.reopenAt != 0 && !p.opening && p.remaining > 0 {
		at = min(at, p.reopenAt)
	}
	return at
}
