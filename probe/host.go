// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/bpf"
	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
	"github.com/xtwamp/xtwamp/probe/twamp"
)

// hostNetwork is the kernel's network, in one namespace: a connected socket
// per flow, or at high rates one that many share, all read by one epoll loop,
// and the kernel half where it can be attached.
type hostNetwork struct {
	engine *Engine
	ns     *netns.Namespace
	family int
	ladder *ladder

	epoll, wakeup int
	closed        bool                // Engine.mu
	opens         sync.WaitGroup      // those under way
	flows         map[int32]*hostFlow // with a socket of their own, by file descriptor; Engine.mu
	senders       []*sender           // in the order in which they were made; Engine.mu
	links         map[int]*linkState  // by index of interface; Engine.mu
	here          *surroundings       // at the last look; nil before it; Engine.mu
	looks         uint64              // so far; Engine.mu
	absent        map[string]bool     // interfaces that were asked for since, and are not there; Engine.mu
	following     trouble             // of follow alone
	keysMu        sync.Mutex
	keys          map[bpf.Key]*hostFlow // who registered a key with the kernel half last
	buf, oob      []byte                // of the epoll loop and settle; Engine.mu
	routesMu      sync.Mutex
	routes        *netns.Routes // nil before it is needed
	stamping      sync.Once     // the kernel stamps received packets
	easing        sync.Once     // timers are eased
	closeOnce     sync.Once
}

func newHostNetwork(e *Engine, ns *netns.Namespace, family int) *hostNetwork {
	return &hostNetwork{
		engine: e,
		ns:     ns,
		family: family,
		ladder: newLadder(e, ns),
		epoll:  -1,
		wakeup: -1,
		flows:  make(map[int32]*hostFlow),
		links:  make(map[int]*linkState),
		keys:   make(map[bpf.Key]*hostFlow),
		buf:    make([]byte, 1<<16),
		oob:    make([]byte, 512),
	}
}

func (n *hostNetwork) run(ctx context.Context) {
	var loops sync.WaitGroup
	defer loops.Wait()
	loops.Go(func() { keep(ctx, n.engine.log, "watching the interfaces", n.follow) })
	n.read(ctx)
}

// read takes what arrives at the sockets and in the ring, until ctx ends.
func (n *hostNetwork) read(ctx context.Context) {
	var loops sync.WaitGroup
	defer loops.Wait()
	loops.Go(func() { keep(ctx, n.engine.log, "reading the sockets", n.pollLoop) })
	select { // a target that wants the kernel half may come later
	case <-ctx.Done():
	case <-n.ladder.ready:
		dp := n.ladder.loaded()
		keep(ctx, n.engine.log, "reading the ring", func(ctx context.Context) error { return dp.Run(ctx, n.events) })
	}
}

func wantsBPF(t target.Target) bool {
	return t.Timestamps == target.TimestampsAuto || t.Timestamps == target.TimestampsBPF
}

// look takes what the ring holds.
func (n *hostNetwork) look() error {
	if dp := n.ladder.loaded(); dp != nil {
		return dp.Look()
	}
	return nil
}

// flush sends what waits in batches.
func (n *hostNetwork) flush() {
	for _, s := range slices.Clone(n.senders) { // one may end with its last flow
		s.flush()
	}
}

// events takes records off the ring.
func (n *hostNetwork) events(events []bpf.Event) {
	e := n.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range events {
		if ev := &events[i]; int(ev.Path) < len(e.paths) && e.paths[ev.Path] != nil {
			e.received(e.paths[ev.Path], eventReply(ev))
		}
	}
}

// pollLoop reads the sockets of all flows as they become readable, until ctx
// ends.
func (n *hostNetwork) pollLoop(ctx context.Context) error {
	if err := n.openPoll(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() {
		// Adding to an eventfd far below its limit cannot fail.
		_, _ = unix.Write(n.wakeup, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	})
	defer stop()
	events := make([]unix.EpollEvent, 256)
	for ctx.Err() == nil {
		count, err := unix.EpollWait(n.epoll, events, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for replies: %w", err)
		}
		n.engine.mu.Lock()
		for _, ev := range events[:count] {
			if f := n.flows[ev.Fd]; f != nil {
				f.drain()
			} else if i := slices.IndexFunc(n.senders, func(s *sender) bool { return s.fd == int(ev.Fd) }); i >= 0 {
				n.senders[i].drain()
			}
		}
		n.engine.mu.Unlock()
	}
	return nil
}

// openPoll makes the epoll instance, which both the loop and open need.
func (n *hostNetwork) openPoll() error {
	n.engine.mu.Lock()
	defer n.engine.mu.Unlock()
	if n.epoll >= 0 {
		return nil
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("create epoll instance: %w", err)
	}
	wakeup, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(epoll)
		return fmt.Errorf("create eventfd: %w", err)
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(wakeup)}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, wakeup, &ev); err != nil {
		unix.Close(epoll)
		unix.Close(wakeup)
		return fmt.Errorf("watch eventfd: %w", err)
	}
	n.epoll, n.wakeup = epoll, wakeup
	return nil
}

func (n *hostNetwork) close() error {
	var err error
	n.closeOnce.Do(func() {
		n.engine.mu.Lock()
		n.closed = true
		n.engine.mu.Unlock()
		n.opens.Wait()
		if n.epoll >= 0 {
			unix.Close(n.epoll)
			unix.Close(n.wakeup)
		}
		if n.routes != nil {
			n.routes.Close()
		}
		err = n.ladder.close()
	})
	return err
}

// open resolves the target's address and opens a flow to it.
func (n *hostNetwork) open(ctx context.Context, req openRequest) (flow, FlowInfo, error) {
	n.engine.mu.Lock()
	if n.closed {
		n.engine.mu.Unlock()
		return nil, FlowInfo{}, down(store.NoInterface, "network namespace %s: %w", n.ns, netns.ErrGone)
	}
	n.opens.Add(1)
	n.engine.mu.Unlock()
	defer n.opens.Done()
	if err := n.openPoll(); err != nil {
		return nil, FlowInfo{}, err
	}
	remote, err := n.resolve(ctx, req)
	if err != nil {
		return nil, FlowInfo{}, down(store.NoRoute, "%w", err)
	}
	if req.refresh && remote == req.current && n.unchanged(req) {
		return nil, FlowInfo{}, errUnchanged
	}
	f, err := n.openTo(req, remote)
	var d *downError
	switch {
	case err == nil:
		return f, f.info, nil
	case errors.As(err, &d) && n.broken(req.via):
		d.cause = &req.via
	}
	return nil, FlowInfo{}, err
}

// openTo opens a flow to remote. That there is no way it finds out at little
// cost: thousands of paths may ask before each of their probes.
func (n *hostNetwork) openTo(req openRequest, remote netip.Addr) (f *hostFlow, err error) {
	e, name := n.engine, interfaceOf(&req.target, remote)
	var link netns.Link
	e.mu.Lock()
	looks, known := n.looks, n.here != nil
	absent := known && n.absent[name]
	if known && name != "" {
		link, known = n.here.link(name)
	}
	e.mu.Unlock()
	if absent {
		return nil, noInterface(name, fmt.Errorf("interface %q: %w", name, netns.ErrNoLink))
	}
	if known {
		routes, err := n.openRoutes()
		if err != nil {
			return nil, err
		}
		if _, err := wayTo(routes.To, &req.target, remote, link); errors.Is(err, netns.ErrNoRoute) {
			return nil, err
		}
	}
	err = n.ns.Do(func() (err error) {
		f, err = n.openIn(req, remote)
		return err
	})
	if errors.Is(err, netns.ErrNoLink) && name != "" {
		e.mu.Lock()
		if n.here != nil && n.looks == looks {
			n.absent[name] = true
		}
		e.mu.Unlock()
	}
	return f, err
}

// noInterface says that the interface of a path is not there.
func noInterface(name string, err error) *downError {
	d := down(store.NoInterface, "%w", err)
	d.cause = &name
	return d
}

// broken reports whether it is known of an interface that nothing can pass it.
func (n *hostNetwork) broken(name string) bool {
	n.engine.mu.Lock()
	defer n.engine.mu.Unlock()
	if name == "" || n.here == nil {
		return false
	}
	link, _ := n.here.link(name)
	return !link.Carrier
}

// interfaceOf is the interface that a target names; empty: none.
func interfaceOf(t *target.Target, remote netip.Addr) string {
	return cmp.Or(t.Interface, remote.Zone(), t.Source.Zone())
}

// resolve gives the address to probe: the current one as long as the target's
// name has it, or does not resolve.
func (n *hostNetwork) resolve(ctx context.Context, req openRequest) (netip.Addr, error) {
	if req.refresh && req.wayOnly {
		return req.current, nil
	}
	host := req.target.Address
	if a, err := netip.ParseAddr(host); err == nil {
		a = a.Unmap()
		if a.Is6() && a.IsLinkLocalUnicast() && a.Zone() == "" {
			a = a.WithZone(req.target.Interface)
		}
		return a, nil
	}
	network := "ip"
	switch {
	case n.family != 0:
		network += strconv.Itoa(n.family)
	case req.target.Source.IsValid() && req.target.Source.Unmap().Is4():
		network = "ip4"
	case req.target.Source.IsValid():
		network = "ip6"
	}
	place := n.ns.Place()
	if p := n.engine.cfg.Place; p.Device() != "" {
		place = p
	}
	addrs, err := place.LookupNetIP(ctx, network, host)
	switch {
	case err != nil && req.current.IsValid():
		return req.current, nil // as good as it was
	case err != nil:
		return netip.Addr{}, fmt.Errorf("resolve %s: %w", host, err)
	}
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	if slices.Contains(addrs, req.current) {
		return req.current, nil
	}
	return addrs[0], nil
}

// openIn opens a flow to remote from within the namespace.
func (n *hostNetwork) openIn(req openRequest, remote netip.Addr) (_ *hostFlow, err error) {
	t := &req.target
	var link netns.Link
	if name := interfaceOf(t, remote); name != "" {
		if link, err = netns.LinkByName(name); err != nil {
			return nil, noInterface(name, err)
		}
	}
	oif := link.Index // 0: whichever the route says
	receive := oif    // where replies must come in; in a VRF at any of its interfaces
	if link.Kind == netns.KindVRF {
		receive = 0
	}
	route, err := wayTo(netns.RouteTo, t, remote, link)
	if err != nil {
		return nil, err
	}
	if route.Link != link.Index {
		if link, err = netns.LinkByIndex(route.Link); err != nil {
			return nil, down(store.NoInterface, "%w", err)
		}
	}

	f := &hostFlow{
		network: n,
		path:    req.path,
		profile: req.path.profile,
		fd:      -1,
		oif:     oif,
		ifindex: link.Index,
		route:   route,
		info: FlowInfo{
			Remote:    netip.AddrPortFrom(remote, t.Port),
			Interface: link.Name,
			Step:      StepUser,
		},
	}
	defer func() {
		if err != nil {
			f.closeLocked()
		}
	}()
	if err := f.connect(t, oif); err != nil {
		return nil, err
	}
	switch {
	case wantsBPF(*t):
		err := n.openBPF(f, req, link, receive)
		if err == nil {
			break
		}
		f.info.Refused = err
		fallthrough
	case t.Timestamps != target.TimestampsUser:
		if err := f.stampOnSocket(); err != nil {
			f.info.Refused = errors.Join(f.info.Refused, err)
			break
		}
		f.info.Step = StepSocket
	}
	return f, n.watch(f)
}

// wayTo asks which way a target's packets would take, by link if it names one. A
// *downError says why there is none.
func wayTo(ask func(dst, src netip.Addr, oif int) (netns.Route, error), t *target.Target, remote netip.Addr, link netns.Link) (netns.Route, error) {
	route, err := ask(remote, t.Source, link.Index)
	if err == nil {
		return route, nil
	}
	reason := store.NoRoute
	if link.Index != 0 && !link.Carrier {
		reason = store.NoCarrier
	} else if t.Source.IsValid() {
		if _, err := ask(remote, netip.Addr{}, link.Index); err == nil {
			reason = store.NoInterface // none has the source address
		}
	}
	return netns.Route{}, down(reason, "%w", err)
}

// openBPF has the kernel half stamp the packets of f, with replies at receive
// alone if that is not 0, or says why it cannot.
func (n *hostNetwork) openBPF(f *hostFlow, req openRequest, link netns.Link, receive int) error {
	if req.noBPF {
		return errors.New("replies bypass the kernel half")
	}
	if err := f.unreadable(&req.target); err != nil {
		return err
	}
	n.engine.mu.Lock()
	room := req.path.hasSlots
	n.engine.mu.Unlock()
	if !room {
		return errors.New("the kernel half was made for fewer paths; others end, or a restart, make room")
	}
	dev, err := n.ladder.attach(link, req.target.Attach)
	if err != nil {
		return err
	}
	s, err := n.share(f, &req.target)
	if err != nil {
		return err
	}
	own := f.info.Local
	if s != nil {
		f.info.Local = netip.AddrPortFrom(own.Addr(), s.port)
	}
	f.info.Refused = n.ladder.steppedDown(dev, link, req.target.Attach)
	if err := f.register(dev, &req.target, uint32(receive)); err != nil {
		n.engine.mu.Lock()
		defer n.engine.mu.Unlock()
		n.unshare(f, s)
		f.info.Local = own
		return err
	}
	if s != nil {
		unix.Close(f.fd)
		f.sender, f.fd = s, s.fd
		f.envelope = newEnvelope(own.Addr(), f.info.Remote, f.oif)
	}
	return nil
}

// unchanged reports whether the path's flow is still the way to its address. It
// is asked once a minute for each path, and whenever routes to it change: where
// there are thousands, more than one question to the kernel would be felt.
func (n *hostNetwork) unchanged(req openRequest) bool {
	n.engine.mu.Lock()
	var f *hostFlow
	if req.path.flow != nil {
		f, _ = req.path.flow.flow.(*hostFlow)
	}
	alive := f != nil && f.alive() && !n.lost(f)
	n.engine.mu.Unlock()
	if !alive || f.info.Step.Kernel() && !n.ladder.attached()[deviceKey{f.ifindex, f.info.Step}] {
		return false
	}
	routes, err := n.openRoutes()
	if err != nil {
		return false
	}
	route, err := routes.To(req.current, req.target.Source, f.oif)
	return err == nil && route == f.route
}

// openRoutes gives what knows the routes of the namespace, made when it is first
// needed.
func (n *hostNetwork) openRoutes() (*netns.Routes, error) {
	n.routesMu.Lock()
	defer n.routesMu.Unlock()
	if n.routes != nil {
		return n.routes, nil
	}
	err := n.ns.Do(func() (err error) {
		n.routes, err = netns.OpenRoutes()
		return err
	})
	return n.routes, err
}

// watch lets the epoll loop read f.
func (n *hostNetwork) watch(f *hostFlow) error {
	n.engine.mu.Lock()
	defer n.engine.mu.Unlock()
	if f.sender == nil {
		ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLERR, Fd: int32(f.fd)}
		if err := unix.EpollCtl(n.epoll, unix.EPOLL_CTL_ADD, f.fd, &ev); err != nil {
			return fmt.Errorf("watch socket: %w", err)
		}
		n.flows[int32(f.fd)] = f
	}
	if f.link = n.links[f.ifindex]; f.link == nil {
		f.link = new(linkState)
		n.links[f.ifindex] = f.link
	}
	return nil
}

// eventReply reads a record of the kernel half.
func eventReply(ev *bpf.Event) reply {
	wire, received, sent := ev.WireTimes()
	r := reply{
		seq:      ev.Seq,
		wire:     twamp.Timestamp(wire),
		tx:       stamp{ns: int64(ev.T1)},
		txSource: store.TCEgress,
		rx:       stamp{ns: int64(ev.T4)},
		rxSource: store.TCIngress,
		ttl:      ev.Ttl,
	}
	if ev.Flags&bpf.FlagXDP != 0 {
		r.rxSource = store.XDP
	}
	if ev.Flags&bpf.FlagHasTimes != 0 {
		r.hasTimes = true
		r.received, r.sent = twamp.Timestamp(received), twamp.Timestamp(sent)
		r.errorEst = twamp.ErrorEstimate(ev.WireErrorEstimate())
	}
	if ev.Flags&bpf.FlagHasTTL != 0 {
		r.remoteTTL = ev.RemoteTtl
	}
	return r
}
