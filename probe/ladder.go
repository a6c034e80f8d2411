// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/bpf"
	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/probe/target"
)

type closer = io.Closer

// Step is a step of the attach ladder: where a path's time stamps come from.
type Step uint8

// The steps. TCX (since Linux 6.6) and Clsact are two ways to attach the same
// programs, and XDP is one of them with a program of the driver's in front.
const (
	StepTCX Step = iota
	StepClsact
	StepSocket // SO_TIMESTAMPING
	StepUser   // clock readings of this process
	StepXDP
)

func (s Step) String() string {
	return [...]string{"tcx", "clsact", "socket", "user", "xdp"}[s]
}

// hook is what the kernel half attaches to, on the steps that it is for.
func (s Step) hook() bpf.Hook {
	switch s {
	case StepXDP:
		return bpf.XDP
	case StepClsact:
		return bpf.Clsact
	}
	return bpf.TCX
}

// Kernel says whether the kernel half takes the stamps on the step.
func (s Step) Kernel() bool { return s == StepTCX || s == StepClsact || s == StepXDP }

// Refusal is a step of the ladder that an interface did not allow.
type Refusal struct {
	Step Step
	Err  error
}

// Attachment says how far up the ladder an interface got.
type Attachment struct {
	Interface string
	Step      Step
	Refused   []Refusal
}

// ladder attaches the kernel half to interfaces of one namespace, as high up
// as each allows.
type ladder struct {
	engine *Engine
	ns     *netns.Namespace
	log    *zap.Logger

	once         sync.Once
	loadDatapath func(bpf.Config) (*bpf.Datapath, error) // bpf.Load but in tests
	datapath     atomic.Pointer[bpf.Datapath]            // nil: loadErr says why
	loadErr      error                                   // set by once
	ready        chan struct{}                           // closed when datapath is there

	mu       sync.Mutex // of what is below; held while attaching, which waits for whatever the kernel does to interfaces
	devices  map[deviceKey]*device
	refused  map[int][]Refusal // by interface index
	names    map[int]string
	lookedAt time.Time // at the attachments
}

// attachmentsEvery is the least time between two looks at what is attached.
const attachmentsEvery = time.Second

type deviceKey struct {
	ifindex int
	step    Step
}

// device is one interface with the kernel half attached.
type device struct {
	datapath   *bpf.Datapath
	step       Step
	attachment *bpf.Attachment
}

func newLadder(e *Engine, ns *netns.Namespace) *ladder {
	return &ladder{
		engine:       e,
		ns:           ns,
		log:          e.log,
		loadDatapath: bpf.Load,
		ready:        make(chan struct{}),
		devices:      make(map[deviceKey]*device),
		refused:      make(map[int][]Refusal),
		names:        make(map[int]string),
	}
}

// load loads the kernel half, once; nil if the kernel does not allow it.
func (l *ladder) load() *bpf.Datapath {
	l.once.Do(func() {
		dp, err := l.loadDatapath(l.config())
		if err != nil {
			l.engine.holds.lost(l.log, "the kernel half cannot be loaded; using socket timestamps", "", zap.Error(err))
		}
		l.loadErr = err
		if dp != nil {
			l.datapath.Store(dp)
			close(l.ready)
		}
	})
	return l.datapath.Load()
}

// loaded is the kernel half, nil if it is not there or not yet. It waits for nothing: the scheduler asks.
func (l *ladder) loaded() *bpf.Datapath { return l.datapath.Load() }

// config sizes the kernel half by the targets that the engine has now, with
// room for others.
func (l *ladder) config() bpf.Config {
	const (
		// What a ring that nobody reads holds, between bounds: beyond it there
		// are still the slots.
		ringHolds          = 4 * time.Second
		ringLeast, ringMax = 64 << 10, 16 << 20
	)
	l.engine.mu.Lock()
	defer l.engine.mu.Unlock()
	perSecond, paths := 0.0, 0
	for _, p := range l.engine.paths {
		if p != nil {
			perSecond += float64(time.Second) / float64(p.target.Interval)
			paths++
		}
	}
	return bpf.Config{
		Slots: l.engine.slotSpace.fix(),
		// Room for the flow in use and retired ones of each path.
		Paths:     4 * max(paths, 256),
		RingBytes: int(min(max(perSecond*ringHolds.Seconds()*float64(bpf.EventBytes), ringLeast), ringMax)),
		Batch:     l.engine.slot != 0,
	}
}

// attach gives the device of link with the kernel half attached by the best
// allowed hook. It is called within the namespace. The error joins those of the
// steps that were tried.
func (l *ladder) attach(link netns.Link, want target.Attach) (*device, error) {
	dp := l.load()
	if dp == nil {
		return nil, l.loadErr
	}
	header, err := linkHeader(link)
	if err != nil {
		return nil, err
	}
	to := bpf.Device{Index: link.Index, Name: link.Name, LinkHeader: header}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(link)
	l.names[link.Index] = link.Name
	dev, err := l.attachTC(to, want)
	if err != nil || want != target.AttachXDP {
		return dev, err
	}
	return l.attachXDP(to, dev)
}

// attachTC attaches by the best allowed hook of tc, unless one is in use.
func (l *ladder) attachTC(to bpf.Device, want target.Attach) (*device, error) {
	steps := []Step{StepTCX, StepClsact}
	switch want {
	case target.AttachTCX:
		steps = steps[:1]
	case target.AttachClsact:
		steps = steps[1:]
	}
	for _, step := range steps {
		if dev := l.devices[deviceKey{to.Index, step}]; dev != nil {
			return dev, nil
		}
	}
	sweepFilters(l.log, to)
	var refused []Refusal
	for _, step := range steps {
		dev, err := l.attachBy(to, step)
		if err == nil {
			l.refused[to.Index] = refused
			l.engine.holds.attached(l.log, attachedTo, to.Name, step, refused)
			return dev, nil
		}
		refused = append(refused, Refusal{step, err})
	}
	l.engine.holds.lost(l.log, "cannot attach to interface; using socket timestamps", to.Name, zap.String("refused", refusals(refused)))
	l.refused[to.Index] = refused
	errs := make([]error, len(refused))
	for i, r := range refused {
		errs[i] = r.Err
	}
	return nil, errors.Join(errs...)
}

// attachXDP attaches in front of what tc has, or goes down to that. An interface
// that has refused once is not asked again: its port may go down each time.
func (l *ladder) attachXDP(to bpf.Device, tc *device) (*device, error) {
	if dev := l.devices[deviceKey{to.Index, StepXDP}]; dev != nil {
		return dev, nil
	}
	refused := l.refused[to.Index]
	if i := slices.IndexFunc(refused, func(r Refusal) bool { return r.Step == StepXDP }); i >= 0 {
		return l.belowXDP(refused[i], tc)
	}
	dev, err := l.attachBy(to, StepXDP)
	if err == nil {
		l.engine.xdpHolds.attached(l.log, attachedTo, to.Name, StepXDP, nil)
		return dev, nil
	}
	r := Refusal{StepXDP, err}
	l.refused[to.Index] = append([]Refusal{r}, refused...)
	dev, err = l.belowXDP(r, tc)
	using := StepSocket
	if dev != nil {
		using = dev.step
	}
	l.engine.xdpHolds.lost(l.log, "cannot attach xdp to interface", to.Name, zap.Stringer("using", using), zap.Error(r.Err))
	return dev, err
}

// belowXDP is the step down after a refusal: none if a right is missing, which
// is for the operator to mend.
func (l *ladder) belowXDP(r Refusal, tc *device) (*device, error) {
	if errors.Is(r.Err, bpf.ErrPermission) {
		return nil, r.Err
	}
	return tc, nil
}

// steppedDown is why dev does not take stamps by XDP, if that is wanted.
func (l *ladder) steppedDown(dev *device, link netns.Link, want target.Attach) error {
	if want != target.AttachXDP || dev.step == StepXDP {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.refused[link.Index] {
		if r.Step == StepXDP {
			return r.Err
		}
	}
	return nil
}

func (l *ladder) attachBy(to bpf.Device, step Step) (*device, error) {
	dp := l.loaded()
	a, err := dp.Attach(to, step.hook(), filters{})
	if err != nil {
		return nil, err
	}
	dev := &device{datapath: dp, step: step, attachment: a}
	l.devices[deviceKey{to.Index, step}] = dev
	return dev, nil
}

// attached is what there is attached.
func (l *ladder) attached() map[deviceKey]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[deviceKey]bool, len(l.devices))
	for key := range l.devices {
		out[key] = true
	}
	return out
}

// release closes what was attached to interfaces that are not here any more, or
// that left, and what somebody has taken away, and forgets those interfaces. It
// is called within the namespace.
func (l *ladder) release(here map[int]netns.Link, left []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	look := time.Since(l.lookedAt) >= attachmentsEvery
	if look {
		l.lookedAt = time.Now()
	}
	stays := func(ifindex int) bool {
		_, there := here[ifindex]
		return there && !slices.Contains(left, ifindex)
	}
	for key, dev := range l.devices {
		if !stays(key.ifindex) {
			l.detach(key, dev)
		} else if look && !dev.attachment.Alive() {
			l.detach(key, dev)
			l.holds(key.step).lost(l.log, "somebody has detached from interface; attaching again", l.names[key.ifindex],
				zap.Stringer("hook", key.step))
		} else {
			l.holds(key.step).lasts(l.log, attachedTo, l.names[key.ifindex])
		}
	}
	for ifindex := range l.names {
		if stays(ifindex) {
			l.names[ifindex] = here[ifindex].Name
			continue
		}
		delete(l.names, ifindex)
		delete(l.refused, ifindex)
	}
}

const attachedTo = "attached to interface" // a line's text

func (l *ladder) holds(s Step) *holds {
	if s == StepXDP {
		return &l.engine.xdpHolds
	}
	return &l.engine.holds
}

func (l *ladder) detach(key deviceKey, dev *device) {
	_ = dev.attachment.Close() // what is left to close is ours alone
	delete(l.devices, key)
}

// forget closes what is not attached to link any more, and what was to an
// earlier interface with its name.
func (l *ladder) forget(link netns.Link) {
	for key, dev := range l.devices {
		namesake := l.names[key.ifindex] == link.Name && key.ifindex != link.Index
		if namesake || key.ifindex == link.Index && !dev.attachment.Alive() {
			l.detach(key, dev)
		}
	}
	for ifindex, name := range l.names {
		if name == link.Name && ifindex != link.Index {
			delete(l.names, ifindex)
			delete(l.refused, ifindex)
		}
	}
}

// sweepFilters removes filters that a killed process of ours left on the
// interface.
func sweepFilters(log *zap.Logger, link bpf.Device) {
	removed, err := netns.SweepFilters(link.Index, bpf.FilterOwnerDead)
	if err != nil {
		log.Debug("cannot sweep filters", zap.String("interface", link.Name), zap.Error(err))
	}
	if len(removed) > 0 {
		log.Info("removed filters of a process that is gone", zap.String("interface", link.Name),
			zap.Strings("filters", removed))
	}
}

// attachments lists every interface on which the kernel half was tried.
func (l *ladder) attachments() []Attachment {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Attachment
	for ifindex, refused := range l.refused {
		a := Attachment{Interface: l.names[ifindex], Step: StepSocket, Refused: refused}
		for _, step := range []Step{StepClsact, StepTCX, StepXDP} { // the last that there is
			if l.devices[deviceKey{ifindex, step}] != nil {
				a.Step = step
			}
		}
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b Attachment) int { return strings.Compare(a.Interface, b.Interface) })
	return out
}

// TryLadder attaches the kernel half to interfaces of a namespace, as high up as
// each allows, and detaches it again: the steps are those that a path would get
// now. XDP is not tried, since that can reset a port. Without a result, the error
// says why the kernel half cannot be loaded.
func TryLadder(ns *netns.Namespace, links []netns.Link) (_ []Attachment, err error) {
	l := newLadder(newEngine(Config{}, newSystemClock()), ns)
	if l.load() == nil {
		return nil, l.loadErr
	}
	defer func() { err = errors.Join(err, l.close()) }()
	out := make([]Attachment, len(links))
	err = ns.Do(func() error {
		for i, link := range links {
			out[i] = Attachment{Interface: link.Name, Step: StepSocket}
			dev, err := l.attach(link, target.AttachAuto)
			if err == nil {
				out[i].Step = dev.step
			}
			out[i].Refused = l.refused[link.Index]
			if err != nil && len(out[i].Refused) == 0 { // of a kind that nothing is attached to
				out[i].Refused = []Refusal{{StepTCX, err}}
			}
		}
		return nil
	})
	return out, err
}

func (l *ladder) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	errs := []error{l.ns.Do(func() error {
		var errs []error
		for _, dev := range l.devices {
			errs = append(errs, dev.attachment.Close())
		}
		return errors.Join(errs...)
	})}
	if dp := l.loaded(); dp != nil {
		errs = append(errs, dp.Close())
	}
	return errors.Join(errs...)
}

// refusals names the refused steps and the errno of each: "tcx:ENOTSUP".
func refusals(refused []Refusal) string {
	parts := make([]string, len(refused))
	for i, r := range refused {
		parts[i] = r.Step.String() + ":" + errnoName(r.Err)
	}
	return strings.Join(parts, ",")
}

// linkHeader is the number of bytes before the IP header on a kind of link.
// It goes by the link's type (ARPHRD), never by what its packets look like.
func linkHeader(link netns.Link) (int, error) { return linkHeaderOn(link, kernelBefore(5, 14)) }

// linkHeaderOn is linkHeader, where outer says that tc sees the outer headers of
// what comes out of a tunnel, as before Linux 5.14.
func linkHeaderOn(link netns.Link, outer bool) (int, error) {
	const (
		ethernet = 1
		loopback = 772
		// Without a header: IPIP, IP6 tunnel, SIT, GRE, and "none" (TUN).
		ipip    = 768
		ip6tnl  = 769
		sit     = 776
		ipgre   = 778
		rawNone = 65534
	)
	switch link.Type {
	case ethernet, loopback:
		return 14, nil
	case rawNone:
		return 0, nil
	case ipip, ip6tnl, sit, ipgre:
		if outer {
			return 0, fmt.Errorf("attach to %s: tunnels need Linux 5.14: %w", link.Name, bpf.ErrNotSupported)
		}
		return 0, nil
	default:
		return 0, fmt.Errorf("attach to %s: link type %d: %w", link.Name, link.Type, bpf.ErrNotSupported)
	}
}

// kernelBefore says whether the kernel is older than a version; not if it does
// not say what it is.
func kernelBefore(major, minor int) bool {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return false
	}
	var x, y int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &x, &y); err != nil {
		return false
	}
	return x < major || x == major && y < minor
}
