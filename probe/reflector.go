// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/probe/twamp"
)

// ReflectorConfig says whom a reflector answers, where and how.
type ReflectorConfig struct {
	// Listen are the addresses to answer on; an invalid address is every one
	// of both families.
	Listen []netip.AddrPort
	// Allow are the sources that get answers beside those of SetPeers.
	Allow []netip.Prefix
	// AllowAny answers everybody.
	AllowAny bool
	// Stateful counts the sequence number of answers per session, rather than
	// copying the sender's (RFC 8762 section 4.2).
	Stateful bool
	// RateLimit is how many requests of one source are answered per second.
	RateLimit int
	// ExtendShort answers requests of 14 to 43 bytes with 44.
	ExtendShort bool
	// Mode is where to answer. A reflector that is Stateful answers on the
	// socket whatever it says: the kernel half keeps no sessions.
	Mode ReflectorMode
	// Interfaces are those on which the kernel answers; none: those that lead
	// to who is allowed, or with AllowAny all that are up.
	Interfaces []string
	// VRF, if set, is the one whose interfaces it answers on, and no others.
	VRF       string
	Namespace *netns.Namespace
	Logger    *zap.Logger
	// History is of this reflector in this process, for who makes it anew
	// again and again; nil: there is none.
	History *ReflectorHistory
}

// ReflectorHistory is what one Reflector leaves to the next: without it each
// would have all lines about the kernel half that the one before has had.
// Only one Reflector at a time may have it.
type ReflectorHistory struct {
	holds               holds
	setting, refreshing trouble
}

// Result is what became of a packet that reached the reflector.
type Result uint8

// The results. Only ResultAnswered sent anything.
const (
	ResultAnswered Result = iota
	ResultTooShort
	ResultNotAllowed
	ResultRateLimited
	ResultOwnPort    // from a port of the reflector's own: two of them could go on for ever
	ResultIsReply    // of a reflector on another port: the same
	ResultBadAddress // from or to an address that has no business here
	ResultSendFailed
	resultMax
)

func (r Result) String() string {
	return [...]string{
		"answered", "too_short", "not_allowed", "rate_limited", "own_port", "is_reply", "bad_address", "send_failed",
	}[r]
}

// Bounds on what strangers can make the reflector remember.
const (
	maxSources  = 4096
	maxSessions = 4096
)

// Reflector answers test packets on UDP sockets: T2 is the kernel's receive
// time, T3 is read just before sending. Where it can, it has the kernel answer
// before they get there.
type Reflector struct {
	cfg    ReflectorConfig
	log    *zap.Logger
	conns  []*net.UDPConn
	ports  map[uint16]bool  // of conns
	kernel *kernelReflector // nil: on the sockets alone
	peers  atomic.Pointer[peers]

	mu       sync.Mutex
	counts   map[int]*[resultMax]uint64 // by interface index
	names    map[int]string
	limits   map[netip.Addr]*rate.Limiter
	sessions map[session]uint32 // next sequence number
}

// peers are whom this host asks in turn.
type peers struct {
	addresses  map[netip.Addr]bool
	reflectors map[netip.AddrPort]bool
}

type session struct {
	remote netip.AddrPort
	local  netip.AddrPort
	ssid   uint16
}

// bind opens the reflector's sockets. The error is a *PortTakenError if
// somebody has the port.
func (cfg ReflectorConfig) bind() ([]*net.UDPConn, error) {
	var conns []*net.UDPConn
	for _, l := range cfg.Listen {
		families := []string{"udp4", "udp6"}
		switch {
		case l.Addr().Is4():
			families = families[:1]
		case l.Addr().Is6():
			families = families[1:]
		}
		for _, network := range families {
			c, err := cfg.listen(network, l)
			if err != nil {
				// A host without IPv6 is asked for it only by the wildcard.
				if len(families) == 2 && network == "udp6" && errors.Is(err, unix.EAFNOSUPPORT) {
					continue
				}
				for _, c := range conns {
					c.Close()
				}
				return nil, err
			}
			conns = append(conns, c)
		}
	}
	return conns, nil
}

func (cfg ReflectorConfig) listen(network string, l netip.AddrPort) (conn *net.UDPConn, err error) {
	address := ":" + fmt.Sprint(l.Port())
	if l.Addr().IsValid() {
		address = l.String()
	}
	lc := net.ListenConfig{Control: func(network, _ string, raw syscall.RawConn) error {
		return errors.Join(reflectorOptions(network, raw), cfg.bindToVRF(raw))
	}}
	err = cfg.Namespace.Do(func() error {
		c, err := lc.ListenPacket(context.Background(), network, address)
		if err != nil {
			if errors.Is(err, unix.EADDRINUSE) {
				taken := &PortTakenError{Address: address, Err: err}
				taken.Owner, taken.PID = portOwner(l.Port())
				return taken
			}
			return fmt.Errorf("listen on %s: %w", address, err)
		}
		conn = c.(*net.UDPConn)
		return nil
	})
	return conn, err
}

// bindToVRF lets a socket have what comes in by the VRF, and nothing else.
func (cfg ReflectorConfig) bindToVRF(raw syscall.RawConn) (err error) {
	if cfg.VRF == "" {
		return nil
	}
	if e := raw.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), cfg.VRF) }); e != nil {
		return e
	}
	if err != nil {
		return fmt.Errorf("bind to VRF %s: %w", cfg.VRF, err)
	}
	return nil
}

// TryListen binds the sockets of a reflector at cfg.Listen and closes them again.
// The error is that of NewReflector.
func (cfg ReflectorConfig) TryListen() error {
	conns, err := cfg.bind()
	for _, c := range conns {
		c.Close()
	}
	return err
}

// PortTakenError says that somebody else has the reflector's port.
type PortTakenError struct {
	Address string
	// Owner is the process that has it, as far as this one may see: "name
	// (pid 42)"; "" if not known.
	Owner string
	PID   int // of Owner; 0 if not known
	Err   error
}

func (e *PortTakenError) Error() string {
	if e.Owner == "" {
		return fmt.Sprintf("listen on %s: the port is taken", e.Address)
	}
	return fmt.Sprintf("listen on %s: the port is taken by %s", e.Address, e.Owner)
}

func (e *PortTakenError) Unwrap() error { return e.Err }

// NewReflector binds the sockets of a reflector, which answers when it is run.
func NewReflector(cfg ReflectorConfig) (*Reflector, error) {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if cfg.History == nil {
		cfg.History = new(ReflectorHistory)
	}
	r := &Reflector{
		cfg:      cfg,
		log:      cfg.Logger,
		counts:   make(map[int]*[resultMax]uint64),
		names:    make(map[int]string),
		limits:   make(map[netip.Addr]*rate.Limiter),
		sessions: make(map[session]uint32),
	}
	var err error
	r.conns, err = cfg.bind()
	if err != nil {
		return nil, err
	}
	r.ports = make(map[uint16]bool)
	for _, a := range r.Addrs() {
		r.ports[a.Port()] = true
	}
	if cfg.Mode != ReflectSocket && !cfg.Stateful {
		r.kernel = newKernelReflector(cfg, r.Addrs())
	}
	r.SetPeers(nil)
	return r, nil
}

// SetPeers replaces which reflectors this host asks itself. Requests from their
// addresses get answers. But what comes from their very ports and looks like a
// DoubleZero probe is an answer to one, which looks the same.
func (r *Reflector) SetPeers(reflectors []netip.AddrPort) {
	set := peers{make(map[netip.Addr]bool, len(reflectors)), make(map[netip.AddrPort]bool, len(reflectors))}
	for _, p := range reflectors {
		a := p.Addr().Unmap().WithZone("")
		set.addresses[a] = true
		set.reflectors[netip.AddrPortFrom(a, p.Port())] = true
	}
	r.peers.Store(&set)
	if r.kernel != nil {
		r.kernel.setPeers(reflectors)
	}
}

// Run answers until ctx ends, and then closes the sockets.
func (r *Reflector) Run(ctx context.Context) error {
	serving, end := context.WithCancel(ctx)
	closed := make(chan struct{})
	context.AfterFunc(serving, func() {
		defer close(closed)
		r.close()
	})
	var group errgroup.Group
	for _, c := range r.conns {
		group.Go(func() error {
			defer end() // one that fails ends the others
			return r.serve(c)
		})
	}
	if r.kernel != nil {
		group.Go(func() error {
			r.kernel.run(serving)
			return nil
		})
	}
	err := group.Wait()
	end()
	<-closed // the ports are free when Run returns
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// close ends answering in the kernel first: it must not answer on a port that
// is somebody else's by then.
func (r *Reflector) close() {
	if r.kernel != nil {
		r.kernel.close()
	}
	for _, c := range r.conns {
		c.Close()
	}
}

// Addrs are the addresses that the sockets are bound to.
func (r *Reflector) Addrs() []netip.AddrPort {
	out := make([]netip.AddrPort, len(r.conns))
	for i, c := range r.conns {
		out[i] = c.LocalAddr().(*net.UDPAddr).AddrPort()
	}
	return out
}

func (r *Reflector) serve(c *net.UDPConn) error {
	s := &reflecting{
		Reflector: r,
		conn:      c,
		port:      c.LocalAddr().(*net.UDPAddr).AddrPort().Port(),
		packet:    make([]byte, 1<<16),
		answer:    make([]byte, 0, 1<<16),
		oob:       make([]byte, 512),
		echoes:    newEchoes(),
	}
	for {
		n, oobn, _, from, err := c.ReadMsgUDPAddrPort(s.packet, s.oob)
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH):
			continue // of an answer sent before
		case err != nil:
			return fmt.Errorf("read requests on %s: %w", c.LocalAddr(), err)
		}
		req := parseRequest(s.packet[:n], s.oob[:oobn], from)
		r.count(req.ifindex, s.handle(req))
	}
}

// request is one received packet and what the kernel says of it.
type request struct {
	payload  []byte
	from     netip.AddrPort
	to       netip.Addr // destination address of the packet
	ifindex  int
	received int64 // CLOCK_REALTIME: the kernel's stamp, or when it was read
	ttl      uint8
	tos      uint8
}

func parseRequest(payload, oob []byte, from netip.AddrPort) request {
	q := request{
		payload: payload, from: netip.AddrPortFrom(from.Addr().Unmap(), from.Port()),
		// The kernel stamps a little while after it was asked to.
		received: clockNS(unix.CLOCK_REALTIME),
	}
	eachControl(oob, func(level, kind int32, data []byte) {
		switch {
		case isTimestamping(level, kind):
			if s := softwareStamp(data); s.ns != 0 {
				q.received = s.ns
			}
		case isTTL(level, kind) && len(data) >= 4:
			q.ttl = uint8(binary.NativeEndian.Uint32(data))
		case level == unix.IPPROTO_IP && kind == unix.IP_TOS && len(data) >= 1:
			q.tos = data[0]
		case level == unix.IPPROTO_IPV6 && kind == unix.IPV6_TCLASS && len(data) >= 4:
			q.tos = uint8(binary.NativeEndian.Uint32(data))
		case level == unix.IPPROTO_IP && kind == unix.IP_PKTINFO && len(data) >= 12:
			// struct in_pktinfo: ifindex, spec_dst, addr. The last is where the
			// packet went, the one before it our address: a broadcast if they
			// differ.
			q.ifindex = int(binary.NativeEndian.Uint32(data))
			if q.to = netip.AddrFrom4([4]byte(data[8:12])); [4]byte(data[4:8]) != q.to.As4() {
				q.to = netip.Addr{}
			}
		case level == unix.IPPROTO_IPV6 && kind == unix.IPV6_PKTINFO && len(data) >= 20:
			q.to = netip.AddrFrom16([16]byte(data[:16]))
			q.ifindex = int(binary.NativeEndian.Uint32(data[16:]))
		}
	})
	return q
}

// reflecting is one socket being served.
type reflecting struct {
	*Reflector
	conn   *net.UDPConn
	port   uint16
	packet []byte
	answer []byte
	oob    []byte
	ctl    [96]byte // room for two control messages
	echoes *echoes

	clock     ClockState
	clockRead time.Time
}

func (s *reflecting) handle(q request) Result {
	kind := twamp.Classify(q.payload, s.cfg.ExtendShort)
	source := q.from.Addr().WithZone("")
	switch {
	case s.ports[q.from.Port()]:
		return ResultOwnPort
	case !s.proper(q, source):
		return ResultBadAddress
	case !s.allowed(source):
		return ResultNotAllowed
	case kind == twamp.Short:
		return ResultTooShort
	case !s.withinRate(source):
		return ResultRateLimited
	case kind == twamp.Reflected,
		kind == twamp.Echo && (s.peers.Load().reflectors[netip.AddrPortFrom(source, q.from.Port())] || s.echoes.seenBefore(q)):
		return ResultIsReply
	}
	st := twamp.Stamp{TTL: q.ttl}
	if request, err := twamp.ParseRequest(q.payload, twamp.TWAMPLight); err == nil {
		st.Seq = request.Seq
	}
	if s.cfg.Stateful {
		st.Seq = s.nextSeq(q)
	}
	st.Error = s.errorEstimate()
	st.Received = twamp.FromUnix(twamp.NTP, q.received)
	st.Sent = twamp.FromUnix(twamp.NTP, clockNS(unix.CLOCK_REALTIME))
	s.answer = twamp.AppendReply(s.answer[:0], q.payload, kind, st)
	if _, _, err := s.conn.WriteMsgUDPAddrPort(s.answer, s.control(q), q.from); err != nil {
		return ResultSendFailed
	}
	return ResultAnswered
}

// errorEstimate says how good our clock is, as of the last second.
func (s *reflecting) errorEstimate() twamp.ErrorEstimate {
	if now := time.Now(); now.Sub(s.clockRead) > time.Second {
		s.clock, s.clockRead = systemClock{}.state(), now
	}
	return twamp.NewErrorEstimate(s.clock.Synchronized, twamp.NTP, int64(s.clock.Error))
}

// proper reports whether a packet between these addresses may be answered.
func (s *reflecting) proper(q request, source netip.Addr) bool {
	if source.IsUnspecified() || source.IsMulticast() || source == broadcast || q.from.Port() == 0 {
		return false
	}
	if !q.to.IsValid() || q.to.IsMulticast() {
		return false
	}
	return !source.IsLoopback() && !q.to.IsLoopback() || s.onLoopback(q.ifindex)
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

func (r *Reflector) allowed(source netip.Addr) bool {
	return r.cfg.AllowAny || r.peers.Load().addresses[source] ||
		slices.ContainsFunc(r.cfg.Allow, func(p netip.Prefix) bool { return p.Contains(source) })
}

// withinRate takes a token of the source's bucket. Only allowed sources get
// here, and no more of them than maxSources are remembered.
func (r *Reflector) withinRate(source netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	limit := r.limits[source]
	if limit == nil {
		if len(r.limits) >= maxSources {
			clear(r.limits)
		}
		limit = rate.NewLimiter(rate.Limit(r.cfg.RateLimit), r.cfg.RateLimit)
		r.limits[source] = limit
	}
	return limit.Allow()
}

func (s *reflecting) nextSeq(q request) uint32 {
	key := session{remote: q.from, local: netip.AddrPortFrom(q.to, s.port)}
	if len(q.payload) >= 16 {
		key.ssid = binary.BigEndian.Uint16(q.payload[14:])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.sessions[key]; !ok && len(s.sessions) >= maxSessions {
		clear(s.sessions)
	}
	seq := s.sessions[key]
	s.sessions[key]++
	return seq
}

// control asks for the answer to leave from the address that the request came
// to, with the request's DSCP and no ECN.
func (s *reflecting) control(q request) []byte {
	b := s.ctl[:0]
	tos := uint32(q.tos &^ 3)
	if q.to.Is4() {
		// struct in_pktinfo: ifindex (the route decides), spec_dst, addr
		var info []byte
		b, info = appendControl(b, unix.IPPROTO_IP, unix.IP_PKTINFO, 12)
		to := q.to.As4()
		copy(info[4:], to[:])
		b, info = appendControl(b, unix.IPPROTO_IP, unix.IP_TOS, 4)
		binary.NativeEndian.PutUint32(info, tos)
		return b
	}
	var info []byte
	b, info = appendControl(b, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, 20)
	to := q.to.As16()
	copy(info, to[:])
	if q.to.IsLinkLocalUnicast() {
		binary.NativeEndian.PutUint32(info[16:], uint32(q.ifindex))
	}
	b, info = appendControl(b, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 4)
	binary.NativeEndian.PutUint32(info, tos)
	return b
}

// appendControl appends a control message with room for size bytes of data,
// and gives that room. b has the capacity.
func appendControl(b []byte, level, kind int32, size int) (_, data []byte) {
	start := len(b)
	b = b[:start+unix.CmsgSpace(size)]
	clear(b[start:])
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[start]))
	h.Level, h.Type = level, kind
	h.SetLen(unix.CmsgLen(size))
	return b, b[start+unix.CmsgLen(0):][:size]
}

// reflectorOptions sets up a socket before it is bound: everything that is
// needed to know of a request, and how answers leave.
func reflectorOptions(network string, raw syscall.RawConn) error {
	type option struct{ level, opt, value int }
	options := []option{{unix.SOL_SOCKET, unix.SO_TIMESTAMPING, rxTimestamping}}
	if network == "udp4" {
		options = append(options,
			option{unix.IPPROTO_IP, unix.IP_TTL, 255},
			option{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT},
			option{unix.IPPROTO_IP, unix.IP_RECVTTL, 1},
			option{unix.IPPROTO_IP, unix.IP_RECVTOS, 1},
			option{unix.IPPROTO_IP, unix.IP_PKTINFO, 1})
	} else {
		options = append(options,
			option{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 255},
			option{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DONT},
			option{unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1},
			option{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1},
			option{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1})
	}
	var failed error
	err := raw.Control(func(fd uintptr) {
		for _, o := range options {
			if err := unix.SetsockoptInt(int(fd), o.level, o.opt, o.value); err != nil {
				failed = fmt.Errorf("set socket option %d/%d: %w", o.level, o.opt, err)
				return
			}
		}
	})
	return errors.Join(err, failed)
}

// onLoopback reports whether an interface is the loopback device, which has
// index 1 in every namespace (LOOPBACK_IFINDEX).
func (*Reflector) onLoopback(ifindex int) bool { return ifindex == loopbackIndex }

// ReflectorCount is how many packets of an interface met a result.
type ReflectorCount struct {
	Interface string
	Mode      Step   // where: tcx, clsact, xdp or socket
	Result    string // of a Result or, in the kernel, a bpf.ReflectVerdict
	Count     uint64
}

func (r *Reflector) count(ifindex int, result Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.counts[ifindex]
	if c == nil {
		c = new([resultMax]uint64)
		r.counts[ifindex] = c
		// The name may be gone already; the index then has to do.
		name := fmt.Sprintf("if%d", ifindex)
		_ = r.cfg.Namespace.Do(func() error {
			link, err := netns.LinkByIndex(ifindex)
			if err == nil {
				name = link.Name
			}
			return err
		})
		r.names[ifindex] = name
	}
	c[result]++
}

// Counts is what became of all packets so far. What the kernel passed on to
// the socket is counted by both.
func (r *Reflector) Counts() ([]ReflectorCount, error) {
	out := r.socketCounts()
	if r.kernel == nil {
		return out, nil
	}
	more, err := r.kernel.counts()
	return append(out, more...), err
}

// Attachments says how far up the attach ladder each interface got on which
// the kernel is to answer.
func (r *Reflector) Attachments() []Attachment {
	if r.kernel == nil {
		return nil
	}
	return r.kernel.attachments()
}

func (r *Reflector) socketCounts() []ReflectorCount {
	r.mu.Lock()
	defer r.mu.Unlock()
	// An interface made anew has the name of the one before.
	named := make(map[string]*[resultMax]uint64)
	for ifindex, counts := range r.counts {
		sum := named[r.names[ifindex]]
		if sum == nil {
			sum = new([resultMax]uint64)
			named[r.names[ifindex]] = sum
		}
		for result, n := range counts {
			sum[result] += n
		}
	}
	var out []ReflectorCount
	for _, name := range slices.Sorted(maps.Keys(named)) {
		for result, n := range named[name] {
			if n > 0 {
				out = append(out, ReflectorCount{name, StepSocket, Result(result).String(), n})
			}
		}
	}
	return out
}
