// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
	"github.com/xtwamp/xtwamp/probe/twamp"
)

// Config says what an Engine measures and whom it tells.
type Config struct {
	// Device is the name of this host; with a path's name it sets the path's
	// phase.
	Device  string
	Targets []target.Target
	// Namespace holds the interfaces; nil is the process's own.
	Namespace *netns.Namespace
	// Place, if it is not the zero Place, is where to find the namespace that
	// holds the interfaces. It may come later, go, and come back as another.
	Place netns.Place
	// Count is the number of probes per target; 0 goes on until stopped.
	Count uint64
	// AtOnce sends each path's first probe as soon as it is open, rather than
	// at its phase.
	AtOnce bool
	// Family is 4 or 6 to resolve names to that family only, 0 for either.
	Family int
	// Emit is handed each sample, per path in sending order, exactly once. It
	// is called with the engine's lock held: it must not block, nor call the
	// engine. Paths have the numbers of Targets, from 0, and those that come
	// later go on from there; no number is used twice.
	Emit func(path int, s store.Sample)
	// Began and Ended, if not nil, are told of each path before its first
	// sample and after its last, under the conditions of Emit.
	Began func(path int, t target.Target)
	Ended func(path int)
	// Opened, if not nil, is told of each way opened to a target, and of each
	// attempt that failed, under the conditions of Emit.
	Opened func(path int, f FlowInfo, err error)
	// Beat, if not nil, is told how long the engine may now be silent.
	Beat   func(next time.Duration)
	Logger *zap.Logger
}

// Engine measures a set of targets, which may change while it does.
type Engine struct {
	cfg   Config
	log   *zap.Logger
	clock clock
	wake  chan struct{} // has room for one: the scheduler has to look again
	slot  time.Duration // what is due within one is handled together; 0: each by itself
	onCPU bool          // the scheduler keeps to one CPU

	mu          sync.Mutex
	net         network
	paths       []*path // by index; nil where one has ended
	free        []int   // such indexes
	begun       int     // paths so far
	slotSpace   slotSpace
	queue       queue
	packet      []byte // of the probe being sent
	sendersMade int
	running     bool
	stopping    bool
	opens       requests // of targets with an address
	lookups     requests // of targets with a name
	state       ClockState
	stamps      map[string]*stampCounts // by name of interface
	causes      map[string]*cause       // by name
	holds       holds                   // of tc, and the kernel half as a whole
	xdpHolds    holds
	unmatched   uint64
	clockSteps  uint64
	skipped     uint64
	heldUp      trouble
	looking     trouble // of the scheduler alone
	keeping     trouble // as well
	stepping    trouble // of the clock's watch alone
	adrift      trouble // as well: the clock is not synchronized
}

// stampCounts is how many time stamps came from each source.
type stampCounts struct {
	tx, rx [store.User + 1]uint64
}

// New makes an engine; it does nothing until Run. Targets must be valid, with
// names that differ.
func New(cfg Config) (*Engine, error) {
	e := newEngine(cfg, newSystemClock())
	e.onCPU = true
	if err := e.SetTargets(cfg.Targets); err != nil {
		return nil, err
	}
	if cfg.Place == (netns.Place{}) {
		e.net = newHostNetwork(e, cfg.Namespace, cfg.Family)
	} else {
		e.net = &nowhere{cfg.Place}
	}
	return e, nil
}

func newEngine(cfg Config, c clock) *Engine {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if cfg.Opened == nil {
		cfg.Opened = func(int, FlowInfo, error) {}
	}
	if cfg.Began == nil {
		cfg.Began = func(int, target.Target) {}
	}
	if cfg.Ended == nil {
		cfg.Ended = func(int) {}
	}
	if cfg.Beat == nil {
		cfg.Beat = func(time.Duration) {}
	}
	return &Engine{
		cfg:      cfg,
		log:      cfg.Logger,
		clock:    c,
		wake:     make(chan struct{}, 1),
		opens:    newRequests(),
		lookups:  newRequests(),
		stamps:   make(map[string]*stampCounts),
		causes:   make(map[string]*cause),
		state:    c.state(),
		stepping: trouble{calm: minutely}, adrift: trouble{calm: minutely},
	}
}

// Run measures until ctx ends or, with Count set, until all is measured. It
// then sends no more, waits for the outcome of what is in flight, and returns
// when everything that it opened is closed.
func (e *Engine) Run(ctx context.Context) error {
	// What is in flight is still read after ctx ended.
	reading, stopReading := context.WithCancel(context.WithoutCancel(ctx))
	defer stopReading()
	var background sync.WaitGroup
	background.Go(func() {
		if e.cfg.Place == (netns.Place{}) {
			e.net.run(reading)
			return
		}
		keep(reading, e.log, "following the namespace", e.follow)
	})
	background.Go(func() {
		keep(reading, e.log, "watching the clock", func(ctx context.Context) error { return e.clock.watch(ctx, e.readClock) })
	})
	opening, stopOpening := context.WithCancel(ctx)
	defer stopOpening()
	// Names may take long to resolve, and hold up nobody but each other.
	for _, queue := range []requests{e.opens, e.lookups} {
		background.Go(func() { e.openLoop(opening, queue) })
	}

	e.mu.Lock()
	e.running = true
	for _, p := range e.paths {
		if p != nil {
			e.begin(p)
		}
	}
	e.mu.Unlock()
	e.schedule(ctx)

	stopOpening()
	stopReading()
	background.Wait()
	e.mu.Lock()
	for _, p := range e.paths {
		if p != nil && p.flow != nil {
			p.flow.close()
			p.flow = nil
		}
	}
	net := e.net
	e.mu.Unlock()
	return net.close()
}

const (
	// slotsFrom is the rate in probes per second from which on it is cheaper to
	// wake up for each slot than for each probe and each reply.
	slotsFrom = 1000
	slot      = 10 * time.Millisecond
	// openers is how many paths of a kind are opened at once.
	openers = 4
	// beginWithin is how long a path's schedule waits for its first way.
	beginWithin = 5 * time.Second
)

// keep runs loop until ctx ends, and again after a pause whenever it fails.
func keep(ctx context.Context, log *zap.Logger, what string, loop func(context.Context) error) {
	const pause = time.Second
	state := newOngoing(log, what+" failed; trying on", what+" works again")
	for ctx.Err() == nil {
		stop := state.works()
		err := loop(ctx)
		stop()
		if ctx.Err() != nil || err == nil {
			return
		}
		state.fails(err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// idle is how long the scheduler sleeps at most.
const idle = time.Minute

// schedule acts on each path when its time has come, and sleeps in between. Its
// thread stays on one CPU.
func (e *Engine) schedule(ctx context.Context) {
	var cpu *affinity
	if e.onCPU {
		var err error
		if cpu, err = newAffinity(); err != nil {
			e.log.Warn("probes leave from any CPU", zap.Error(err))
		}
		defer cpu.end()
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	stop := ctx.Done()
	for {
		e.mu.Lock()
		next, left := e.tick()
		net, inSlots := e.net, e.slot != 0
		net.flush()
		e.mu.Unlock()
		if inSlots {
			e.look(net)
		}
		if !left {
			return
		}
		e.cfg.Beat(next)
		asleep := time.Now()
		timer.Reset(next)
		select {
		case <-timer.C:
			e.keeping.attempt(e.log, cpu.ran(time.Since(asleep)-next),
				"sending cannot keep to one CPU; trying on", "sending keeps to one CPU again")
		case <-e.wake:
		case <-stop:
			stop = nil
			e.mu.Lock()
			e.stop()
			e.mu.Unlock()
		}
	}
}

// tickAtMost is how many paths act before others get hold of the engine.
const tickAtMost = 256

// tick acts on paths that are due, first the one that is so for longest. It returns how long until
// the next one is, and whether anything is left to do at all.
func (e *Engine) tick() (time.Duration, bool) {
	now := e.clock.mono()
	for range tickAtMost {
		i, at := e.queue.next()
		if at > now {
			if e.finished() {
				return 0, false
			}
			return e.sleep(now, at), true
		}
		p := e.paths[i]
		e.expire(p, now)
		if p.ended() {
			e.end(p)
			continue
		}
		if !p.scheduled && !e.cfg.AtOnce && p.beginBy <= now {
			e.plan(p, now)
		}
		if p.reopenAt != 0 && p.reopenAt <= now && !p.opening {
			e.requestOpen(p)
		}
		if p.scheduled && p.remaining > 0 && p.due <= now {
			e.fire(p, now)
		}
		e.replan(p)
		now = e.clock.mono()
	}
	return 0, true
}

// sleep is how long the scheduler sleeps if at is when something is due next:
// until then or, in slots, to the end of the present one. A probe may so leave
// up to a slot late; it is dated when it leaves.
func (e *Engine) sleep(now, at int64) time.Duration {
	if e.slot != 0 {
		return e.slot - time.Duration(now)%e.slot
	}
	return min(time.Duration(at-now), idle)
}

// look takes what has arrived since the last slot.
func (e *Engine) look(net network) {
	e.looking.attempt(e.log, net.look(), "looking into the ring failed; trying on", "looking into the ring works again")
}

// finished reports whether nothing is left to send or to wait for. An engine
// without targets is finished when it is stopped.
func (e *Engine) finished() bool {
	if !e.stopping && (e.cfg.Count == 0 || len(e.paths) == len(e.free)) {
		return false
	}
	for _, p := range e.paths {
		if p != nil && !p.finished() {
			return false
		}
	}
	return true
}

// changed lets the scheduler look at p again at once.
func (e *Engine) changed(p *path) {
	e.replan(p)
	e.wakeUp()
}

// replan finds p its place in the queue again.
func (e *Engine) replan(p *path) { e.queue.set(p.index, p.turn()) }

func (e *Engine) wakeUp() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// stop ends sending; what is in flight gets its outcome.
func (e *Engine) stop() {
	e.stopping = true
	for _, p := range e.paths {
		if p != nil {
			p.remaining, p.reopenAt = 0, 0
			e.replan(p)
		}
	}
}

// fire sends the probe of p that is due at or before now, and sets when the
// next is. Sending is isochronous: a moment that passed while the process did
// not run is made up for only within an interval or target.CatchUp; beyond that it
// is left out and counted.
func (e *Engine) fire(p *path, now int64) {
	interval := int64(p.target.Interval)
	if behind := now - p.due; behind >= max(interval, int64(target.CatchUp)) {
		missed := uint64(behind / interval)
		p.due += int64(missed) * interval
		p.counters.Skipped += missed
		e.skipped += missed
		if missed > 0 && e.heldUp.note() {
			e.log.Warn("the schedule was held up; probes were left out", zap.String("path", p.target.Name),
				zap.Uint64("probes_so_far", e.skipped), zap.Duration("behind", time.Duration(behind)))
		}
	} else if e.heldUp.over() {
		e.log.Info("the schedule is kept again", append(e.heldUp.history(), zap.Uint64("probes_so_far", e.skipped))...)
		e.heldUp.end()
	}
	p.due += interval
	if p.full() { // the window has room for all that can be caught up with
		p.counters.Skipped++
		return
	}
	p.remaining--

	pr := p.push(now)
	if p.flow == nil {
		e.notSent(p, pr, cmp.Or(p.reason, store.NoRoute)) // no reason yet: not open yet
		return
	}
	if err := e.transmit(p, pr); err != nil {
		var d *downError
		if !errors.As(err, &d) {
			d = down(store.NoBuffer, "%w", err)
		}
		e.notSent(p, pr, d.reason)
		e.sendFailed(p, d)
	}
}

func (e *Engine) transmit(p *path, pr *probe) error {
	f := p.flow
	if err := f.ready(); err != nil {
		return err
	}
	packet := e.packet[:p.target.PayloadSize()]
	pr.sent = e.clock.mono()
	pr.wire = twamp.FromUnix(twamp.NTP, pr.sent+e.state.Offset)
	err := twamp.PutRequest(packet, p.profile, twamp.Request{
		Seq:   pr.seq,
		Time:  pr.wire,
		Error: twamp.NewErrorEstimate(e.state.Synchronized, twamp.NTP, int64(e.state.Error)),
		SSID:  p.ssid,
	})
	if err != nil {
		return down(store.TooBig, "encode probe: %w", err)
	}
	if f.Step == StepSocket {
		pr.offset = e.clock.offset()
	}
	pr.flow = f
	f.inFlight++
	pr.sent = e.clock.mono()
	if err := f.send(packet, pr.seq); err != nil {
		pr.flow = nil
		f.inFlight--
		return err
	}
	p.counters.Sent++
	p.unsent = store.NoReason
	return nil
}

// unsent takes back a probe that was put off, and could not leave after all.
func (e *Engine) unsent(p *path, seq uint32, d *downError) {
	pr := p.find(seq)
	if pr == nil || pr.done || pr.flow == nil {
		return
	}
	f := pr.flow
	pr.flow = nil
	p.counters.Sent--
	e.notSent(p, pr, d.reason)
	e.sendFailed(p, d)
	if f.inFlight--; f.retired && f.inFlight == 0 {
		f.close()
	}
	e.changed(p)
}

// sendFailed reacts to a probe that could not leave: where the way itself may
// have changed, the path is opened anew, or looked at.
func (e *Engine) sendFailed(p *path, d *downError) {
	e.hindered(p, "probes cannot be sent", d)
	switch {
	case d.reopen || d.reason == store.NoInterface || d.reason == store.NoRoute:
		e.reopen(p)
	case d.reason == store.NoCarrier:
		e.recheck(p)
	}
}

func (e *Engine) notSent(p *path, pr *probe, reason store.Reason) {
	pr.outcome, pr.reason, pr.done = store.NotSent, reason, true
	p.counters.NotSent[reason]++
	p.unsent = reason
	e.handOn(p)
}

// transmitted notes the kernel's stamp of a probe's departure.
func (e *Engine) transmitted(p *path, seq uint32, s stamp, source store.Source) {
	pr := p.find(seq)
	if pr == nil || pr.done || pr.flow == nil || pr.txSource != store.NoSource {
		return
	}
	if s.wall && s.ns-pr.offset.ns < pr.sent-pr.offset.uncertainty && !pr.offset.moved(e.clock.offset()) {
		return // of another packet: it was stamped before this one was sent
	}
	pr.tx, pr.txSource = s, source
}

// received takes one reply: it decides the outcome of the probe that it
// answers, or counts it as what it is. Engine.mu is held.
func (e *Engine) received(p *path, r reply) {
	pr := p.find(r.seq)
	if pr == nil || pr.flow == nil || pr.wire != r.wire {
		e.unmatched++
		return
	}
	if pr.rxSource != store.NoSource {
		if pr.rxSource != r.rxSource || pr.rx != r.rx { // not the record of what its slot told before
			p.counters.Duplicates++
		}
		return
	}
	if pr.done { // given up already
		e.unmatched++
		return
	}
	switch {
	case r.txSource != store.NoSource:
		pr.tx, pr.txSource = r.tx, r.txSource
	case pr.txSource == store.NoSource:
		pr.tx, pr.txSource = stamp{ns: pr.sent}, store.User
	}
	pr.rx, pr.rxSource, pr.ttl, pr.remote = r.rx, r.rxSource, r.ttl, r.remoteTTL
	now := e.clock.mono()
	x := exchange{sent: pr.sent, received: now, before: pr.offset}
	if r.rx.wall || pr.tx.wall {
		x.after = e.clock.offset()
	}
	rtt, ok := x.roundTrip(pr.tx, r.rx)
	pr.done = true
	switch {
	case !ok:
		pr.outcome, pr.reason = store.Unknown, store.ClockStep
		p.counters.Unknown++
	case rtt <= int64(p.target.Expiry()):
		pr.rtt, pr.outcome = rtt, store.OnTime
		p.counters.Received++
		if rtt > int64(p.target.Timeout) {
			pr.outcome = store.Late
			p.counters.Late++
		}
		if p.reordered(pr.seq) {
			p.counters.Reordered++
		}
		pr.dwell = dwell(r, rtt)
		p.counters.LastReply, p.lastRTT = now, rtt
	default: // came, but when nobody waited any more
		pr.outcome = store.Lost
		p.counters.Lost++
	}
	e.answered(p, pr)
	e.handOn(p)
	e.replan(p)
	if p.finished() {
		e.wakeUp()
	}
}

// dwell is the time that the far side held the probe, T3 - T2, or -1 where
// what it says cannot be.
func dwell(r reply, rtt int64) int64 {
	if !r.hasTimes || r.received == 0 || r.sent == 0 {
		return -1
	}
	d := r.sent.Sub(r.received, r.errorEst.Format())
	if d < 0 || d > rtt {
		return -1
	}
	return d
}

// answered keeps the flow's books after a reply.
func (e *Engine) answered(p *path, pr *probe) {
	f := pr.flow
	f.losses = 0
	e.relief(p)
	if !f.Step.Kernel() {
		return
	}
	if (pr.rxSource == store.TCIngress || pr.rxSource == store.XDP) && pr.txSource == store.TCEgress {
		f.bypassed = 0
		return
	}
	f.bypassed++
	if f.bypassed%bypassesBeforeReopen == 0 && f == p.flow {
		p.bypasses++
		// The interface may have been made anew, so try the kernel half once
		// more before doing without.
		p.want.noBPF = p.bypasses > 1
		e.trouble(p, "replies bypass the kernel half; opening the path anew", zap.String("interface", f.Interface))
		e.reopen(p)
	}
}

// expire gives up every probe of p whose time is over.
func (e *Engine) expire(p *path, now int64) {
	for {
		pr := p.oldest()
		if pr == nil || pr.done || pr.sent+int64(p.target.Expiry()) > now {
			return
		}
		pr.flow.settle(pr)
		if p.oldest() != pr || pr.done {
			continue // settle found its reply
		}
		e.giveUp(p, pr)
	}
}

func (e *Engine) giveUp(p *path, pr *probe) {
	f := pr.flow
	pr.done = true
	if f.alive() {
		pr.outcome = store.Lost
		p.counters.Lost++
		f.losses++
		if f.losses%lossesBeforeNewPort == 0 && f == p.flow && p.target.SourcePort == 0 {
			e.trouble(p, "nothing comes back; trying other source ports", zap.Stringer("remote", f.Remote))
			e.reopen(p)
		}
	} else {
		pr.outcome, pr.reason = store.Unknown, store.InterfaceGone
		p.counters.Unknown++
		if f == p.flow {
			e.reopen(p)
		}
	}
	e.handOn(p)
}

// handOn emits the finished probes at the front of p's window, in order.
func (e *Engine) handOn(p *path) {
	for pr := p.oldest(); pr != nil && pr.done; pr = p.oldest() {
		e.cfg.Emit(p.number, pr.sample())
		p.recent.add(pr.outcome)
		p.head++
		if f := pr.flow; f != nil {
			f.stamps.tx[pr.txSource]++
			f.stamps.rx[pr.rxSource]++
			f.inFlight--
			if f.retired && f.inFlight == 0 {
				f.close()
			}
		}
	}
}

// requestOpen lets the openers open p; Engine.mu is held.
func (e *Engine) requestOpen(p *path) {
	p.opening, p.reopenAt, p.again, p.look = true, 0, false, false
	if !p.hasSlots && e.slotSpace.take(p) {
		p.want.refresh = false
	}
	queue := e.lookups
	if p.literal || p.want.refresh && p.want.wayOnly {
		queue = e.opens
	}
	p.want.via = p.via
	queue.add(p.want)
	p.want.refresh, p.want.wayOnly = false, false
}

// reopen has p opened anew: just ahead of its next probe, or at once if that
// is over.
func (e *Engine) reopen(p *path) {
	p.want.refresh = false
	if p.opening {
		p.again = true
		return
	}
	p.reopenAt = e.nextLook(p)
}

// openLoop opens paths as they are asked for, some at once, until ctx ends.
func (e *Engine) openLoop(ctx context.Context, queue requests) {
	var group errgroup.Group
	group.SetLimit(openers)
	defer func() { _ = group.Wait() }() // none fails
	for {
		req, ok := queue.next(ctx)
		if !ok {
			return
		}
		group.Go(func() error { e.open(ctx, req); return nil })
	}
}

func (e *Engine) open(ctx context.Context, req openRequest) {
	const limit = 10 * time.Second
	e.mu.Lock()
	net := e.net
	e.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, limit)
	f, info, err := net.open(limited, req)
	cancel()
	e.mu.Lock()
	defer e.mu.Unlock()
	if net == e.net {
		e.opened(req.path, f, info, err)
	} else { // it is another one by now
		if f != nil {
			f.close()
		}
		e.requestOpen(req.path)
	}
	e.changed(req.path)
}

// opened puts the outcome of an open into effect.
func (e *Engine) opened(p *path, f flow, info FlowInfo, err error) {
	now := e.clock.mono()
	p.opening = false
	p.openedAt = now
	if e.stopping || p.removed {
		if f != nil {
			f.close()
		}
		return
	}
	if !p.scheduled {
		e.plan(p, now)
	}
	var d *downError
	switch {
	case errors.Is(err, errUnchanged):
		e.refreshLater(p, now)
		return
	case err == nil:
	default:
		if !errors.As(err, &d) {
			d = down(store.NoRoute, "%w", err)
		}
		e.hindered(p, "path cannot be used; trying on", d)
		e.retire(p)
		p.reason = d.reason
		e.reopen(p)
		if p.literal && p.due-int64(reopenAhead) <= now { // too late for that probe
			p.reopenAt = max(p.reopenAt, p.due+int64(p.target.Interval-reopenAhead))
		}
		e.cfg.Opened(p.number, info, d)
		return
	}
	before := p.flow
	e.retire(p)
	if e.stamps[info.Interface] == nil {
		e.stamps[info.Interface] = new(stampCounts)
	}
	p.flow = &openFlow{flow: f, FlowInfo: info, stamps: e.stamps[info.Interface]}
	p.via = info.Interface
	p.want.current = info.Remote.Addr()
	p.want.noBPF = false
	p.reason = store.NoReason
	if p.trouble.times == 0 && p.cause == nil && (before == nil || !before.sameWay(info)) {
		fields := []zap.Field{zap.String("path", p.target.Name), zap.Stringer("local", info.Local),
			zap.Stringer("remote", info.Remote), zap.String("interface", info.Interface), zap.Stringer("timestamps", info.Step)}
		if info.Refused != nil {
			fields = append(fields, zap.NamedError("refused", info.Refused))
		}
		e.log.Info("path is open", fields...)
	}
	e.refreshLater(p, now)
	e.cfg.Opened(p.number, info, nil)
}

// refreshLater has the name and the route of p looked up again in a while, or
// what was asked for meanwhile done at once.
func (e *Engine) refreshLater(p *path, now int64) {
	if p.again {
		p.again = false
		e.reopen(p)
		return
	}
	if p.refreshAt <= now {
		every := resolveEvery
		if p.literal { // only its route can have changed
			every = max(every, time.Duration(len(e.paths))*time.Minute/routesPerMinute)
		}
		p.refreshAt = now + int64(every)
	}
	p.want.refresh, p.reopenAt = true, p.refreshAt
	if p.look {
		p.look = false
		e.recheck(p)
	}
}

// plan sets when p's first probe is due.
func (e *Engine) plan(p *path, now int64) {
	p.scheduled, p.due = true, now
	if !e.cfg.AtOnce {
		ph := phase(e.cfg.Device, p.target.Name, p.target.Interval)
		p.due = nextOnGrid(now+e.state.Offset, p.target.Interval, ph) - e.state.Offset
	}
}

// retire takes the current flow of p out of use.
func (e *Engine) retire(p *path) {
	f := p.flow
	if f == nil {
		return
	}
	p.flow = nil
	f.retired = true
	if f.inFlight == 0 {
		f.close()
	}
}

// readClock takes the state of the wall clock, and says so when it was
// stepped.
func (e *Engine) readClock() {
	now := e.clock.state()
	e.mu.Lock()
	before := e.state
	e.state = now
	step := time.Duration(now.Offset - before.Offset)
	stepped := step.Abs() > time.Millisecond
	if stepped {
		e.clockSteps++
	}
	e.mu.Unlock()
	if stepped {
		if e.stepping.note() {
			e.log.Info("the wall clock was stepped", zap.Duration("by", step), zap.Uint64("times", e.stepping.times))
		}
	} else if e.stepping.over() {
		if e.stepping.times > 1 {
			e.log.Info("the wall clock is not stepped any more", e.stepping.history()...)
		}
		e.stepping.end()
	}
	const changed = "clock synchronization changed"
	switch synchronized := zap.Bool("synchronized", now.Synchronized); {
	case now.Synchronized == before.Synchronized && e.adrift.times == 0:
	case !now.Synchronized:
		if e.adrift.note() {
			e.log.Info(changed, synchronized, zap.Uint64("times", e.adrift.times))
		}
	case e.adrift.times == 0:
		e.log.Info(changed, synchronized)
	case e.adrift.over():
		e.log.Info(changed, append(e.adrift.history(), synchronized)...)
		e.adrift.end()
	}
}
