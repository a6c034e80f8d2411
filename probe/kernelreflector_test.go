// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/xtwamp/xtwamp/netns/netnstest"
	"github.com/xtwamp/xtwamp/probe/twamp"
)

// until waits for what other loops do in their own time.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(ms)
	defer tick.Stop()
	for late := time.After(10 * time.Second); !ok(); {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("still not so: %s", what)
		}
	}
}

// kernelResults is what the kernel half counted: "eth1 answered".
func kernelResults(t *testing.T, r *Reflector) map[string]uint64 {
	t.Helper()
	return resultsBy(t, r, func(c ReflectorCount) string {
		if c.Mode == StepSocket {
			return ""
		}
		return c.Interface + " " + c.Result
	})
}

// allResults are those of the kernel and of the sockets: "answered".
func allResults(t *testing.T, r *Reflector) map[string]uint64 {
	t.Helper()
	return resultsBy(t, r, func(c ReflectorCount) string { return c.Result })
}

// resultsBy sums up counts by name; those without a name do not count.
func resultsBy(t *testing.T, r *Reflector, name func(ReflectorCount) string) map[string]uint64 {
	t.Helper()
	all, err := r.Counts()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]uint64)
	for _, c := range all {
		if n := name(c); n != "" {
			out[n] += c.Count
		}
	}
	return out
}

// attachedAt lists where the kernel answers: "eth1 tcx".
func attachedAt(r *Reflector) (out []string) {
	for _, a := range r.Attachments() {
		out = append(out, a.Interface+" "+a.Step.String())
	}
	return out
}

// kernelReflectIn is reflectIn with the kernel answering on the interfaces.
func kernelReflectIn(t *testing.T, ns *netnstest.NS, edit func(*ReflectorConfig), interfaces ...string) *Reflector {
	t.Helper()
	r := reflectIn(t, ns, func(c *ReflectorConfig) {
		c.Mode = ReflectAuto
		if edit != nil {
			edit(c)
		}
	})
	until(t, fmt.Sprintf("the kernel answers on %v", interfaces), func() bool {
		return slices.Equal(attachedAt(r), interfaces)
	})
	return r
}

// answer is what a client sees of one.
type answer struct {
	Payload  []byte
	TTL, TOS uint8
}

// observant has a client told the TTL and TOS of what it gets.
func (c *client) observant(v6 bool) *client {
	c.t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		c.t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		if v6 {
			failed = errors.Join(unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1),
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1),
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 200),
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 0xb9))
			return
		}
		failed = errors.Join(unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVTTL, 1),
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVTOS, 1),
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, 200),
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, 0xb9))
	})
	if err := errors.Join(err, failed); err != nil {
		c.t.Fatal(err)
	}
	return c
}

func (c *client) answer() answer {
	c.t.Helper()
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	buf, oob := make([]byte, 1<<16), make([]byte, 512)
	n, oobn, _, _, err := c.ReadMsgUDPAddrPort(buf, oob)
	if err != nil {
		c.t.Fatal(err)
	}
	q := parseRequest(buf[:n], oob[:oobn], netip.AddrPort{})
	return answer{Payload: buf[:n], TTL: q.ttl, TOS: q.tos}
}

// withoutTimes clears T2 and T3.
func withoutTimes(a answer) answer {
	if !bytes.Equal(a.Payload[12:], make([]byte, len(a.Payload)-12)) { // no echo
		clear(a.Payload[4:12])
		clear(a.Payload[16:24])
	}
	return a
}

// viaSocket is a request that the kernel passes to the socket, which answers:
// what was sent before it has been through both by then.
func viaSocket(seq uint32) []byte {
	return append(stampRequest(seq, 44), 0x80, 4, 0, 4, 0xb8, 0, 0, 0) // class of service
}

// The kernel and the socket give the same answers: the same bytes but for T2
// and T3, with the same TTL and TOS, whether or not the checksum is complete
// when the kernel sees it, and whether or not it has to be when it leaves.
func TestKernelAnswersAsTheSocketDoes(t *testing.T) {
	for _, mode := range []ReflectorMode{ReflectTCX, ReflectClsact, ReflectXDP} {
		near, far := link(t)
		passAll(t, near, "eth1")
		r := kernelReflectIn(t, far, func(c *ReflectorConfig) {
			c.Mode = mode
			c.Interfaces = []string{"eth1"}
		}, "eth1 "+mode.String())
		reflectIn(t, far, func(c *ReflectorConfig) {
			c.Listen = []netip.AddrPort{netip.AddrPortFrom(netip.Addr{}, 863)}
		})
		for _, offload := range []struct{ near, far string }{{"on", "on"}, {"on", "off"}, {"off", "on"}, {"off", "off"}} {
			near.Exec(t, "ethtool", "-K", "eth1", "tx", offload.near)
			far.Exec(t, "ethtool", "-K", "eth1", "tx", offload.far)
			for _, v6 := range []bool{false, true} {
				address, largest := farAddr, 1472
				if v6 {
					address, largest = "["+farAddr6+"]", 1452
				}
				kernel := dialIn(t, near, "", address+":862").observant(v6)
				socket := dialIn(t, near, "", address+":863").observant(v6)
				compare := func(rt interface {
					Helper()
					Fatalf(string, ...any)
				}, req []byte) {
					rt.Helper()
					before := kernelResults(t, r)["eth1 answered"]
					kernel.send(req)
					socket.send(req)
					kind := twamp.Classify(req, true)
					if kind == twamp.Short || kind == twamp.Reflected { // neither answers
						last := viaSocket(0xdecade)
						kernel.send(last)
						socket.send(last)
					}
					got, want := withoutTimes(kernel.answer()), withoutTimes(socket.answer())
					if diff := cmp.Diff(want, got); diff != "" {
						rt.Fatalf("%s, v6 %v, tx offload %v, %d bytes, %v: socket and kernel differ (-socket +kernel):\n%s",
							mode, v6, offload, len(req), kind, diff)
					}
					byKernel := kernelResults(t, r)["eth1 answered"] - before
					if want := uint64(1); (len(req) >= 44 && kind != twamp.TLVs && kind != twamp.Reflected) != (byKernel == want) {
						rt.Fatalf("%d bytes, %v: the kernel answered %d", len(req), kind, byKernel)
					}
				}
				compare(t, append(decode(t, "00000007 ed135540 1f9add38"), make([]byte, 36)...))
				for _, size := range []int{44, 45, 47, 48, 49, 127, 512, 1400, 1452} {
					compare(t, stampRequest(9, size)) // with Extra Padding
				}
				rapid.Check(t, func(rt *rapid.T) { compare(rt, drawRequest(rt, largest)) })
				if offload.near == "off" || offload.far == "off" {
					continue
				}
				for size := range largest + 1 {
					compare(t, append(stampRequest(uint32(size), max(size, 44))[:min(size, 44)], make([]byte, max(0, size-44))...))
				}
				if v6 {
					continue
				}
				for _, c := range []*client{kernel, socket} {
					c.noChecksum(1)
				}
				for size := range 120 {
					compare(t, append(stampRequest(uint32(size), 120)[:min(size, 44)], make([]byte, max(0, size-44))...))
				}
				compare(t, stampRequest(9, 1400))
				// What is wrong by the time it comes in is so when it comes back.
				for _, c := range []*client{kernel, socket} {
					from, to := c.LocalAddr().(*net.UDPAddr).AddrPort(), c.RemoteAddr().(*net.UDPAddr).AddrPort()
					rawUDP(t, near, from, to, 0x1234, stampRequest(7, 44))
					c.nothing()
				}
			}
		}
	}
}

// noChecksum has an IPv4 client send without checksums, or with.
func (c *client) noChecksum(without int) {
	c.t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		c.t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK, without) })
	if err := errors.Join(err, failed); err != nil {
		c.t.Fatal(err)
	}
}

// drawRequest draws requests of every kind and size.
func drawRequest(rt *rapid.T, largest int) []byte {
	size := rapid.OneOf(rapid.IntRange(0, 60), rapid.IntRange(0, largest)).Draw(rt, "size")
	b := rapid.SliceOfN(rapid.Byte(), size, size).Draw(rt, "bytes")
	switch rapid.IntRange(0, 4).Draw(rt, "tail") {
	case 0:
		clear(b[min(size, 44):])
	case 1:
		clear(b[min(size, 12):])
	case 2, 3:
		if size >= 48 {
			b[45] = 1
			binary.BigEndian.PutUint16(b[46:], uint16(size-48))
		}
	}
	if size >= 24 && rapid.IntRange(0, 5).Draw(rt, "times") == 0 { // as in a reply, all but
		dwell := rapid.SampledFrom([]uint64{0, 1, 1<<28 - 1, 1 << 28, ^uint64(0)}).Draw(rt, "dwell")
		binary.BigEndian.PutUint64(b[16:], binary.BigEndian.Uint64(b[4:])-dwell)
	}
	return b
}

func TestKernelAnswersAtOnce(t *testing.T) {
	near, far := link(t)
	kernelReflectIn(t, far, func(c *ReflectorConfig) { c.Interfaces = []string{"eth1"} }, "eth1 tcx")
	for _, remote := range []string{farAddr + ":862", "[" + farAddr6 + "]:862"} {
		c := dialIn(t, near, "", remote)
		var dwells []time.Duration
		for i := range uint32(101) {
			before := time.Now().UnixNano()
			c.send(stampRequest(i, 44))
			reply, err := twamp.ParseReply(c.receive(), twamp.STAMP)
			after := time.Now().UnixNano()
			if err != nil {
				t.Fatal(err)
			}
			t2, t3 := reply.Received.Unix(twamp.NTP, before), reply.Time.Unix(twamp.NTP, before)
			// The offset between the clocks is known to some hundred ns.
			const slack = 10_000
			if t2 < before-slack || t3 < t2 || t3 > after+slack {
				t.Errorf("T2 %d, T3 %d outside of %d..%d", t2, t3, before, after)
			}
			dwells = append(dwells, time.Duration(t3-t2))
		}
		slices.Sort(dwells)
		t.Logf("%s: dwell p50 %v", remote, dwells[50])
		if dwells[50] > 20*time.Microsecond {
			t.Errorf("%s: dwell p50 %v, want far below 20µs", remote, dwells[50])
		}
	}
}

func TestKernelReflectorRefuses(t *testing.T) {
	for _, mode := range []ReflectorMode{ReflectTCX, ReflectXDP} {
		t.Run(mode.String(), func(t *testing.T) { testKernelReflectorRefuses(t, mode) })
	}
}

func testKernelReflectorRefuses(t *testing.T, mode ReflectorMode) {
	near, far := link(t)
	passAll(t, near, "eth1")
	near.Exec(t, "ip", "addr", "add", "10.1.0.50/24", "dev", "eth1")
	near.Exec(t, "ip", "route", "add", "10.5.5.5/32", "via", farAddr)
	r := kernelReflectIn(t, far, func(c *ReflectorConfig) {
		c.AllowAny, c.Mode = false, mode
		c.Allow = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/28")}
		c.Listen = append(c.Listen, netip.AddrPortFrom(netip.Addr{}, 863))
	}, "eth1 "+mode.String())
	good := dialIn(t, near, nearAddr+":0", farAddr+":862")
	good.send(make([]byte, 13))
	// From a port of the reflector's own: two reflectors would go on for ever.
	for _, port := range []string{":862", ":863"} {
		dialIn(t, near, nearAddr+port, farAddr+":862").send(stampRequest(1, 44))
	}
	low := dialIn(t, near, nearAddr+":861", farAddr+":862")
	low.nothing()
	stranger := dialIn(t, near, "10.1.0.50:0", farAddr+":862")
	for range 100 {
		stranger.send(stampRequest(1, 44))
		stranger.send(viaSocket(1))
	}
	// To an address that is not there: as if nobody had looked.
	dialIn(t, near, nearAddr+":0", "10.5.5.5:862").send(stampRequest(1, 44))
	for i := range uint32(10) {
		good.send(viaSocket(i))
		good.receive()
		good.nothing()
	}
	want := map[string]uint64{
		"eth1 too_short": 1, "eth1 own_port": 2, "eth1 not_allowed": 200, "eth1 answered": 11, "eth1 tlvs": 10,
	}
	if diff := cmp.Diff(want, kernelResults(t, r)); diff != "" {
		t.Errorf("the kernel's counts (-want +got):\n%s", diff)
	}
	// The stranger's flood never reached the socket.
	until(t, "the last answer is counted", func() bool { return results(r)["eth1 answered"] >= 10 })
	if diff := cmp.Diff(map[string]uint64{"eth1 answered": 10}, results(r)); diff != "" {
		t.Errorf("the socket's counts (-want +got):\n%s", diff)
	}
	// Then the stranger becomes a peer.
	r.SetPeers([]netip.AddrPort{netip.MustParseAddrPort("10.1.0.50:862")})
	before := kernelResults(t, r)["eth1 answered"]
	until(t, "a new peer gets answers", func() bool {
		stranger.send(stampRequest(0, 44))
		return kernelResults(t, r)["eth1 answered"] > before
	})
}

// Two reflectors, and a packet that makes one believe that the other asked.
func TestTwoKernelReflectorsDoNotLoop(t *testing.T) {
	for _, mode := range []ReflectorMode{ReflectTCX, ReflectXDP} {
		near, far := link(t)
		both := func(c *ReflectorConfig) { c.Mode, c.Interfaces = mode, []string{"eth1"} }
		a := kernelReflectIn(t, near, both, "eth1 "+mode.String())
		b := kernelReflectIn(t, far, both, "eth1 "+mode.String())
		from, to := netip.MustParseAddrPort(nearAddr+":862"), netip.MustParseAddrPort(farAddr+":862")
		for range 10 {
			rawUDP(t, near, from, to, 0, stampRequest(1, 44))
		}
		until(t, "they are dropped", func() bool { return kernelResults(t, b)["eth1 own_port"] == 10 })
		// Both are there.
		dialIn(t, near, "", to.String()).nothing()
		dialIn(t, far, "", from.String()).nothing()
		one := map[string]uint64{"eth1 answered": 1}
		if diff := cmp.Diff(one, kernelResults(t, a)); diff != "" {
			t.Errorf("%v: the first (-want +got):\n%s", mode, diff)
		}
		one["eth1 own_port"] = 10
		if diff := cmp.Diff(one, kernelResults(t, b)); diff != "" {
			t.Errorf("%v: the second (-want +got):\n%s", mode, diff)
		}
	}
}

// reflectAt answers on eth1 at a port of any address.
func reflectAt(t *testing.T, ns *netnstest.NS, port uint16, mode ReflectorMode, allowAny bool) *Reflector {
	t.Helper()
	edit := func(c *ReflectorConfig) {
		c.Mode, c.Interfaces, c.AllowAny = mode, []string{"eth1"}, allowAny
		c.Listen = []netip.AddrPort{netip.AddrPortFrom(netip.Addr{}, port)}
	}
	if mode == ReflectSocket {
		return reflectIn(t, ns, edit)
	}
	return kernelReflectIn(t, ns, edit, "eth1 "+mode.String())
}

// The same on two ports: there the second knows an answer by its times.
func TestReflectorsOnTwoPortsDoNotLoop(t *testing.T) {
	tlv := append(stampRequest(1, 44), 0x80, 251, 0, 1, 7)
	for _, tt := range []struct {
		name    string
		request []byte
	}{
		{"too short for the kernel", stampRequest(1, 44)[:14]},
		{"smallest", stampRequest(1, 44)},
		{"with zeros", append(stampRequest(1, 44), make([]byte, 56)...)},
		{"with Extra Padding", stampRequest(1, 100)},
		{"with a TLV for the socket", tlv},
	} {
		for _, mode := range []ReflectorMode{ReflectSocket, ReflectTCX, ReflectXDP} {
			t.Run(fmt.Sprintf("%s, %v", tt.name, mode), func(t *testing.T) {
				near, far := link(t)
				a, b := reflectAt(t, near, 862, mode, true), reflectAt(t, far, 863, mode, true)
				rawUDP(t, near, netip.MustParseAddrPort(nearAddr+":862"), netip.MustParseAddrPort(farAddr+":863"), 0, tt.request)
				until(t, "the answer is known for one", func() bool { return allResults(t, a)["is_reply"] == 1 })
				until(t, "the answer is counted", func() bool { return allResults(t, b)["answered"] > 0 })
				if diff := cmp.Diff(map[string]uint64{"is_reply": 1}, allResults(t, a)); diff != "" {
					t.Errorf("who seems to have asked (-want +got):\n%s", diff)
				}
				got := allResults(t, b)
				delete(got, "short") // passed on by the kernel
				delete(got, "tlvs")
				if diff := cmp.Diff(map[string]uint64{"answered": 1}, got); diff != "" {
					t.Errorf("who was asked (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// A DoubleZero reply is the probe again. It is known by where it comes from, which takes one who asks there.
func TestDoubleZeroReflectorsOnTwoPortsDoNotLoop(t *testing.T) {
	for _, mode := range []ReflectorMode{ReflectSocket, ReflectTCX, ReflectXDP} {
		for _, both := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v, both ask %v", mode, both), func(t *testing.T) {
				near, far := link(t)
				start := func(ns *netnstest.NS, port uint16, peer string) *Reflector {
					r := reflectAt(t, ns, port, mode, peer == "")
					if peer != "" {
						r.SetPeers([]netip.AddrPort{netip.MustParseAddrPort(peer)})
					}
					return r
				}
				a := start(near, 862, farAddr+":863")
				b := start(far, 863, map[bool]string{true: nearAddr + ":862"}[both])
				echo := doubleZeroProbe(1)
				// Peers are answered on other ports, and so it is known when all is set up.
				for r, c := range map[*Reflector]*client{
					a: dialIn(t, far, "", nearAddr+":862"),
					b: dialIn(t, near, "", farAddr+":863"),
				} {
					sent := uint32(0)
					until(t, "a peer is answered", func() bool {
						sent++
						c.send(doubleZeroProbe(1 + sent))
						return allResults(t, r)["answered"] > 0
					})
					until(t, "all are counted", func() bool {
						all := allResults(t, r)
						return all["answered"]+all["not_allowed"] == uint64(sent)
					})
				}
				answered := allResults(t, b)["answered"]
				dropper, want := b, uint64(0)
				if !both {
					dropper, want = a, 1
				}
				rawUDP(t, near, netip.MustParseAddrPort(nearAddr+":862"), netip.MustParseAddrPort(farAddr+":863"), 0, echo)
				until(t, "the answer is known for one", func() bool { return allResults(t, dropper)["is_reply"] > 0 })
				until(t, "the answer is counted", func() bool { return allResults(t, b)["answered"] >= answered+want })
				if got := allResults(t, b)["answered"] - answered; got != want {
					t.Errorf("%d answers, want %d", got, want)
				}
				if got := allResults(t, dropper)["is_reply"]; got != 1 {
					t.Errorf("%d were known as answers, want 1", got)
				}
			})
		}
	}
}

// Two that do not ask each other know it by having answered it before.
func TestDoubleZeroReflectorsThatAskNobodyDoNotLoop(t *testing.T) {
	const forged = 100 // under way at the same time
	for _, mode := range []ReflectorMode{ReflectSocket, ReflectTCX, ReflectXDP} {
		t.Run(mode.String(), func(t *testing.T) {
			near, far := link(t)
			a, b := reflectAt(t, near, 862, mode, true), reflectAt(t, far, 863, mode, true)
			for i := range uint32(forged) {
				rawUDP(t, near, netip.MustParseAddrPort(nearAddr+":862"), netip.MustParseAddrPort(farAddr+":863"), 0, doubleZeroProbe(i))
			}
			// One answer of each: to the packet, and to that answer.
			want := map[string]uint64{"answered": forged, "is_reply": forged}
			until(t, "all have come to an end", func() bool { return allResults(t, b)["is_reply"] == forged })
			until(t, "their answers are counted", func() bool { return allResults(t, b)["answered"] >= forged })
			if diff := cmp.Diff(want, allResults(t, b)); diff != "" {
				t.Errorf("who was asked (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(map[string]uint64{"answered": forged}, allResults(t, a)); diff != "" {
				t.Errorf("who seems to have asked (-want +got):\n%s", diff)
			}
		})
	}
}

func TestKernelAnswersOnTheInterfacesThatLeadToPeers(t *testing.T) {
	lab := netnstest.New(t)
	near, far := lab.Namespace("near"), lab.Namespace("far")
	for i := 1; i <= 3; i++ {
		lab.Veth(near, fmt.Sprintf("eth%d", i), []string{fmt.Sprintf("10.%d.0.1/24", i)},
			far, fmt.Sprintf("eth%d", i), []string{fmt.Sprintf("10.%d.0.2/24", i)})
	}
	far.Exec(t, "ip", "route", "add", "192.0.2.0/24", "via", "10.3.0.1")
	for _, tt := range []struct {
		name string
		edit func(*ReflectorConfig)
		want []string
	}{
		{"given", func(c *ReflectorConfig) { c.Interfaces = []string{"eth2", "eth9"} }, []string{"eth2 tcx"}},
		{"anybody", func(c *ReflectorConfig) {}, []string{"eth1 tcx", "eth2 tcx", "eth3 tcx", "lo tcx"}},
		{"one address", func(c *ReflectorConfig) {
			c.AllowAny, c.Allow = false, []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32")}
		}, []string{"eth3 tcx"}},
		{"a subnet of ours", func(c *ReflectorConfig) {
			c.AllowAny, c.Allow = false, []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}
		}, []string{"eth1 tcx"}},
		{"more than a subnet", func(c *ReflectorConfig) {
			c.AllowAny, c.Allow = false, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/14")}
		}, []string{"eth1 tcx", "eth2 tcx", "eth3 tcx"}},
		{"a network behind a router", func(c *ReflectorConfig) {
			c.AllowAny, c.Allow = false, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/25")}
		}, []string{"eth3 tcx"}},
		{"nobody", func(c *ReflectorConfig) { c.AllowAny = false }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := kernelReflectIn(t, far, tt.edit, tt.want...)
			if tt.name != "nobody" {
				return
			}
			r.SetPeers([]netip.AddrPort{netip.MustParseAddrPort("10.2.0.1:862")})
			until(t, "a peer's interface is attached to", func() bool { return slices.Equal(attachedAt(r), []string{"eth2 tcx"}) })
			r.SetPeers([]netip.AddrPort{netip.MustParseAddrPort("10.1.0.1:862")})
			until(t, "another peer's is instead", func() bool { return slices.Equal(attachedAt(r), []string{"eth1 tcx"}) })
		})
	}
}

func TestKernelFollowsAddressesAndInterfaces(t *testing.T) {
	lab := netnstest.New(t)
	near, far := lab.Namespace("near"), lab.Namespace("far")
	lab.Veth(near, "eth1", nearCIDRs, far, "eth1", farCIDRs)
	r := kernelReflectIn(t, far, func(c *ReflectorConfig) { c.Interfaces = []string{"eth1"} }, "eth1 tcx")
	near.Exec(t, "ip", "route", "add", "10.5.5.5/32", "via", farAddr)
	c := dialIn(t, near, "", "10.5.5.5:862")
	answered := func() uint64 { return kernelResults(t, r)["eth1 answered"] }

	far.Exec(t, "ip", "addr", "add", "10.5.5.5/32", "dev", "lo")
	until(t, "the new address answers", func() bool {
		c.send(stampRequest(1, 44))
		return answered() > 0
	})
	far.Exec(t, "ip", "addr", "del", "10.5.5.5/32", "dev", "lo")
	until(t, "the old address does not", func() bool {
		before := answered()
		_, _ = c.Write(stampRequest(1, 44)) // also ICMP errors come back
		return answered() == before
	})

	near.Exec(t, "ip", "link", "del", "eth1")
	until(t, "the interface is forgotten", func() bool { return attachedAt(r) == nil })
	before := answered()
	if before == 0 {
		t.Error("its counts are forgotten")
	}
	lab.Veth(near, "eth1", nearCIDRs, far, "eth1", farCIDRs)
	until(t, "the new interface is attached to", func() bool { return slices.Equal(attachedAt(r), []string{"eth1 tcx"}) })
	again := dialIn(t, near, "", farAddr+":862")
	until(t, "the new interface answers", func() bool {
		again.send(stampRequest(1, 44))
		again.receive()
		return answered() > before
	})
}

// Others may remove filters, and the qdisc with all of them.
func TestKernelReflectorComesBackToClsact(t *testing.T) {
	near, far := link(t)
	r := kernelReflectIn(t, far, func(c *ReflectorConfig) {
		c.Mode = ReflectClsact
		c.Interfaces = []string{"eth1"}
	}, "eth1 clsact")
	far.Exec(t, "tc", "qdisc", "del", "dev", "eth1", "clsact")
	r.kernel.lookAgain(true) // qdiscs are looked at each minute
	c := dialIn(t, near, "", farAddr+":862")
	until(t, "the kernel answers again", func() bool {
		c.send(stampRequest(1, 44)) // and again: while the new qdisc is put in, packets are lost
		return kernelResults(t, r)["eth1 answered"] > 0
	})
}

// Each refused step has its errno, and the socket answers.
func TestKernelReflectorStepsDown(t *testing.T) {
	near, far := link(t)
	far.Exec(t, "tc", "qdisc", "add", "dev", "eth1", "ingress") // clsact's place
	r := kernelReflectIn(t, far, func(c *ReflectorConfig) {
		c.Mode = ReflectClsact
		c.Interfaces = []string{"eth1"}
	}, "eth1 socket")
	if got := r.Attachments()[0].Refusals(); got != "clsact:EBUSY" {
		t.Errorf("refused %q, want clsact:EBUSY", got)
	}
	dialIn(t, near, "", farAddr+":862").nothing()
	until(t, "the socket has answered", func() bool { return results(r)["eth1 answered"] == 1 })
}

func TestKernelReflectorLeavesNothing(t *testing.T) {
	near, far := link(t)
	passAll(t, near, "eth1")
	for _, mode := range []ReflectorMode{ReflectTCX, ReflectClsact, ReflectXDP} {
		r := kernelReflectIn(t, far, func(c *ReflectorConfig) {
			c.Mode = mode
			c.Interfaces = []string{"eth1"}
		}, "eth1 "+mode.String())
		c := dialIn(t, near, "", farAddr+":862")
		c.nothing()
		r.close()
		c.send(stampRequest(1, 44))
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := c.Read(make([]byte, 100)); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%v: after the end: %v, want refused", mode, err)
		}
		if got := kernelResults(t, r)["eth1 answered"]; got != 1 {
			t.Errorf("%v: answered %d after the end, want 1", mode, got)
		}
		if out := far.Exec(t, "tc", "filter", "show", "dev", "eth1", "ingress"); out != "" {
			t.Errorf("%v: left %s", mode, out)
		}
		if out := far.Exec(t, "ip", "link", "show", "dev", "eth1"); strings.Contains(out, "xdp") {
			t.Errorf("%v: left %s", mode, out)
		}
	}
}

// A reflector that is made anew, say since its namespace came back, has no lines about what is as it was.
func TestAReflectorMadeAnewRepeatsNothing(t *testing.T) {
	_, far := link(t)
	core, logs := observer.New(zap.InfoLevel)
	history := new(ReflectorHistory)
	for i := range 3 {
		t.Run(fmt.Sprint("number ", i+1), func(t *testing.T) { // with its end the reflector's sockets are closed
			kernelReflectIn(t, far, func(c *ReflectorConfig) {
				c.Mode, c.Interfaces, c.Logger, c.History = ReflectClsact, []string{"eth1"}, zap.New(core), history
			}, "eth1 clsact")
		})
	}
	if n := logs.FilterMessage("the kernel answers on interface").Len(); n != 1 || logs.Len() != 1 {
		t.Errorf("%d lines, want one: %v", logs.Len(), logs.All())
	}
}

// Whoever has the port gets its packets, whatever we would like.
func TestKernelDoesNotAnswerAtATakenPort(t *testing.T) {
	near, far := link(t)
	var owner *net.UDPConn
	err := far.Do(func() (err error) {
		owner, err = net.ListenUDP("udp", &net.UDPAddr{Port: 862})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	_, err = NewReflector(ReflectorConfig{
		Listen: []netip.AddrPort{netip.AddrPortFrom(netip.Addr{}, 862)}, AllowAny: true, RateLimit: 1000, Namespace: namespace(t, far),
	})
	var taken *PortTakenError
	if !errors.As(err, &taken) {
		t.Fatalf("NewReflector on a taken port = %v", err)
	}
	req := stampRequest(1, 44)
	dialIn(t, near, "", farAddr+":862").send(req)
	owner.SetReadDeadline(time.Now().Add(10 * time.Second))
	buf := make([]byte, 100)
	if n, err := owner.Read(buf); err != nil || !bytes.Equal(buf[:n], req) {
		t.Errorf("the owner got %x, %v", buf[:n], err)
	}
}

// On loopback both ends are this host's.
func TestKernelAnswersOnLoopback(t *testing.T) {
	ns := netnstest.New(t).Namespace("one")
	r := kernelReflectIn(t, ns, nil, "lo tcx")
	dialIn(t, ns, "", "127.0.0.1:862").nothing()
	dialIn(t, ns, "", "[::1]:862").nothing()
	if diff := cmp.Diff(map[string]uint64{"lo answered": 2}, kernelResults(t, r)); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

// The kernel half keeps no sessions.
func TestStatefulReflectorStaysOnTheSocket(t *testing.T) {
	ns := netnstest.New(t).Namespace("one")
	r := reflectIn(t, ns, func(c *ReflectorConfig) { c.Mode, c.Stateful = ReflectTCX, true })
	if r.kernel != nil {
		t.Error("the kernel answers for a stateful reflector")
	}
}

func TestReflectorModesHaveNames(t *testing.T) {
	for i, name := range ReflectorModes {
		m, err := ParseReflectorMode(name)
		if err != nil || m != ReflectorMode(i) || m.String() != name {
			t.Errorf("%q is %v, %v", name, m, err)
		}
	}
	if _, err := ParseReflectorMode("generic"); err == nil {
		t.Error("generic is a mode")
	}
}
