// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/netns/netnstest"
	"github.com/xtwamp/xtwamp/probe/twamp"
)

// client is a UDP socket connected to a reflector.
type client struct {
	*net.UDPConn
	t *testing.T
}

func dialIn(t *testing.T, ns *netnstest.NS, local, remote string) *client {
	t.Helper()
	c := &client{t: t}
	err := ns.Do(func() error {
		var from *net.UDPAddr
		if local != "" {
			from = net.UDPAddrFromAddrPort(netip.MustParseAddrPort(local))
		}
		var err error
		c.UDPConn, err = net.DialUDP("udp", from, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(remote)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func (c *client) send(b []byte) {
	c.t.Helper()
	if _, err := c.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

// receive gives the next packet.
func (c *client) receive() []byte {
	c.t.Helper()
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	buf := make([]byte, 1<<16)
	n, err := c.Read(buf)
	if err != nil {
		c.t.Fatal(err)
	}
	return buf[:n]
}

// nothing fails the test if anything but the answer to a last, good request
// came: sockets keep the order, so there is no time to wait for.
func (c *client) nothing() {
	c.t.Helper()
	last := stampRequest(0xdecade, 44)
	c.send(last)
	if got := c.receive(); binary.BigEndian.Uint32(got[24:]) != 0xdecade {
		c.t.Errorf("an answer came where none was due: %x", got)
	}
}

func stampRequest(seq uint32, size int) []byte {
	b := make([]byte, size)
	err := twamp.PutRequest(b, twamp.STAMP, twamp.Request{
		Seq: seq, Time: twamp.FromUnix(twamp.NTP, time.Now().UnixNano()), Error: 0x88a8, SSID: 0xbeef,
	})
	if err != nil {
		panic(err)
	}
	return b
}

// doubleZeroProbe is one that was not sent before.
func doubleZeroProbe(seq uint32) []byte {
	return append(stampRequest(seq, 44)[:12], make([]byte, 36)...)
}

func decode(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// results are those of the socket.
func results(r *Reflector) map[string]uint64 {
	out := make(map[string]uint64)
	for _, c := range r.socketCounts() {
		out[c.Interface+" "+c.Result] += c.Count
	}
	return out
}

func TestReflectorAnswers(t *testing.T) {
	near, far := link(t)
	reflectIn(t, far, nil)
	for _, remote := range []string{farAddr + ":862", "[" + farAddr6 + "]:862"} {
		c := dialIn(t, near, "", remote)

		// The DoubleZero probe of vector V8 comes back byte for byte.
		echo := append(decode(t, "00000007 ed135540 1f9add38"), make([]byte, 36)...)
		c.send(echo)
		if diff := cmp.Diff(echo, c.receive()); diff != "" {
			t.Errorf("%s: DoubleZero echo (-want +got):\n%s", remote, diff)
		}

		for _, tt := range []struct {
			name string
			req  []byte
			size int
		}{
			{"TWAMP-Light, 14 bytes (V11)", decode(t, "00000007 ed135540 1f9add38 3fff"), 44},
			{"TWAMP-Light, 41 bytes (V1)", append(decode(t, "00000007 ed135540 1f9add38 88a8"), make([]byte, 27)...), 44},
			{"STAMP, 44 bytes (V10)", append(decode(t, "00000007 ed135540 1f9add38 88a8"), make([]byte, 30)...), 44},
			{"Error Estimate 0 (case 25)", append(decode(t, "00000007 ed135540 1f9add38 0000"), make([]byte, 30)...), 44},
		} {
			before := time.Now()
			c.send(tt.req)
			got := c.receive()
			after := time.Now()
			if len(got) != tt.size {
				t.Errorf("%s, %s: %d bytes, want %d", remote, tt.name, len(got), tt.size)
				continue
			}
			reply, err := twamp.ParseReply(got, twamp.STAMP)
			if err != nil {
				t.Fatal(err)
			}
			if reply.Seq != 7 || reply.SenderSeq != 7 || !bytes.Equal(got[24:38], tt.req[:14]) {
				t.Errorf("%s, %s: does not copy the request: %x", remote, tt.name, got)
			}
			if reply.SenderTTL != 64 {
				t.Errorf("%s, %s: TTL %d, want 64", remote, tt.name, reply.SenderTTL)
			}
			// T2 and T3 lie within the exchange, in order: case 24.
			t2 := reply.Received.Unix(twamp.NTP, before.UnixNano())
			t3 := reply.Time.Unix(twamp.NTP, before.UnixNano())
			if t2 < before.UnixNano() || t3 <= t2 || t3 > after.UnixNano() {
				t.Errorf("%s, %s: T2 %d, T3 %d outside of %d..%d", remote, tt.name, t2, t3, before.UnixNano(), after.UnixNano())
			}
			if got[13] == 0 {
				t.Errorf("%s, %s: Error Estimate multiplier is 0", remote, tt.name)
			}
			if !bytes.Equal(got[38:40], []byte{0, 0}) || !bytes.Equal(got[41:44], []byte{0, 0, 0}) {
				t.Errorf("%s, %s: bytes that must be zero are not: %x", remote, tt.name, got[36:])
			}
		}
	}
}

func TestReflectorShowsItsDwell(t *testing.T) {
	// Case 24: the packet lies 5 ms between receive and send, and came with
	// TTL 253.
	near, far := link(t)
	r := reflectIn(t, far, nil)
	c := dialIn(t, near, "", farAddr+":862")
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, 253) })
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock() // what the rate limit is kept under
	c.send(stampRequest(1, 44))
	<-time.After(5 * ms)
	r.mu.Unlock()
	reply, err := twamp.ParseReply(c.receive(), twamp.STAMP)
	if err != nil {
		t.Fatal(err)
	}
	if d := reply.Time.Sub(reply.Received, twamp.NTP); d < int64(4*ms) || d > int64(5*time.Second) {
		t.Errorf("T3 - T2 = %s, want about 5ms", time.Duration(d))
	}
	if reply.SenderTTL != 253 {
		t.Errorf("TTL = %d, want 253", reply.SenderTTL)
	}
}

func TestReflectorNeverAmplifies(t *testing.T) {
	near, far := link(t)
	reflectIn(t, far, nil)
	c := dialIn(t, near, "", farAddr+":862")
	for size := 14; size <= 1472; size++ {
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(i*7 + size) // no zeros, no TLVs that make sense
		}
		c.send(b)
		if got := len(c.receive()); got > max(size, 44) {
			t.Errorf("%d bytes were answered by %d", size, got)
		}
	}
}

func TestReflectorRefuses(t *testing.T) {
	near, far := link(t)
	far.Exec(t, "ip", "addr", "add", "10.9.9.1/32", "dev", "lo")
	near.Exec(t, "ip", "addr", "add", "10.1.0.50/24", "dev", "eth1")
	r := reflectIn(t, far, func(c *ReflectorConfig) {
		c.AllowAny = false
		c.Allow = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/28")}
		c.ExtendShort = false
	})
	good := dialIn(t, near, nearAddr+":0", farAddr+":862")
	for _, size := range []int{0, 1, 13, 14, 43} {
		good.send(make([]byte, size))
	}
	good.nothing()
	// From the reflector's own port: two reflectors would go on for ever.
	own := dialIn(t, near, nearAddr+":862", farAddr+":862")
	own.send(stampRequest(1, 44))
	// Other low ports are fine: routers send from them.
	low := dialIn(t, near, nearAddr+":861", farAddr+":862")
	low.nothing()
	stranger := dialIn(t, near, "10.1.0.50:0", farAddr+":862")
	stranger.send(stampRequest(1, 44))
	good.nothing() // so that the stranger's was seen
	// Then it becomes a peer.
	r.SetPeers([]netip.AddrPort{netip.MustParseAddrPort("10.1.0.50:862")})
	stranger.nothing()
	good.nothing()
	want := map[string]uint64{"eth1 too_short": 5, "eth1 own_port": 1, "eth1 not_allowed": 1, "eth1 answered": 5}
	// An answer is counted when it has been sent.
	until(t, "the last answer is counted", func() bool { return results(r)["eth1 answered"] >= want["eth1 answered"] })
	if diff := cmp.Diff(want, results(r)); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

func TestReflectorLimitsEachSource(t *testing.T) {
	near, far := link(t)
	near.Exec(t, "ip", "addr", "add", "10.1.0.50/24", "dev", "eth1")
	r := reflectIn(t, far, func(c *ReflectorConfig) { c.RateLimit = 1 })
	flood := dialIn(t, near, "10.1.0.50:0", farAddr+":862")
	for i := range uint32(50) {
		flood.send(stampRequest(i, 44))
	}
	other := dialIn(t, near, nearAddr+":0", farAddr+":862")
	other.nothing()
	got := results(r)
	if got["eth1 rate_limited"] < 40 || got["eth1 answered"] > 11 {
		t.Errorf("counts %v, want most of the flood refused", got)
	}
}

func TestReflectorDropsLoopbackAddressesFromOutside(t *testing.T) {
	lab := netnstest.New(t)
	ns := lab.Namespace("one")
	r := reflectIn(t, ns, nil)
	dialIn(t, ns, "", "127.0.0.1:862").nothing()
	dialIn(t, ns, "", "[::1]:862").nothing()
	until(t, "the last answer is counted", func() bool { return results(r)["lo answered"] >= 2 })
	if diff := cmp.Diff(map[string]uint64{"lo answered": 2}, results(r)); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	s := &reflecting{Reflector: r, port: 862}
	loop := netip.MustParseAddr("127.0.0.1")
	for _, q := range []request{
		{ifindex: 2, from: netip.AddrPortFrom(loop, 5000), to: netip.MustParseAddr("10.1.0.1")},
		{ifindex: 2, from: netip.MustParseAddrPort("10.1.0.2:5000"), to: loop},
		{ifindex: 2, from: netip.MustParseAddrPort("224.0.0.1:5000"), to: netip.MustParseAddr("10.1.0.1")},
		{ifindex: 2, from: netip.MustParseAddrPort("0.0.0.0:5000"), to: netip.MustParseAddr("10.1.0.1")},
		{ifindex: 2, from: netip.MustParseAddrPort("255.255.255.255:5000"), to: netip.MustParseAddr("10.1.0.1")},
		{ifindex: 2, from: netip.MustParseAddrPort("10.1.0.2:5000"), to: netip.MustParseAddr("224.0.0.1")},
		{ifindex: 2, from: netip.MustParseAddrPort("10.1.0.2:5000")}, // broadcast
		{ifindex: 2, from: netip.MustParseAddrPort("10.1.0.2:0"), to: netip.MustParseAddr("10.1.0.1")},
	} {
		q.payload = stampRequest(1, 44)
		if got := s.handle(q); got != ResultBadAddress {
			t.Errorf("from %s to %s: %s, want bad_address", q.from, q.to, got)
		}
	}
}

func TestReflectorAnswersFromTheAddressAsked(t *testing.T) {
	near, far := link(t)
	far.Exec(t, "ip", "addr", "add", "10.5.5.5/32", "dev", "lo")
	near.Exec(t, "ip", "route", "add", "10.5.5.5/32", "via", farAddr)
	reflectIn(t, far, nil)
	c := dialIn(t, near, "", "10.5.5.5:862") // connected: only answers from there arrive
	c.nothing()
}

func TestStatefulReflectorNumbersSessions(t *testing.T) {
	near, far := link(t)
	reflectIn(t, far, func(c *ReflectorConfig) { c.Stateful = true })
	a, b := dialIn(t, near, "", farAddr+":862"), dialIn(t, near, "", farAddr+":862")
	ask := func(c *client, seq uint32) (own, sender uint32) {
		c.send(stampRequest(seq, 44))
		got := c.receive()
		return binary.BigEndian.Uint32(got), binary.BigEndian.Uint32(got[24:])
	}
	for i, tt := range []struct {
		c         *client
		seq, want uint32
	}{{a, 100, 0}, {a, 105, 1}, {b, 7, 0}, {a, 106, 2}, {b, 8, 1}} {
		if own, sender := ask(tt.c, tt.seq); own != tt.want || sender != tt.seq {
			t.Errorf("request %d: numbered %d of %d, want %d of %d", i, own, sender, tt.want, tt.seq)
		}
	}
}

func TestTakenPortNamesItsOwner(t *testing.T) {
	near, _ := link(t)
	reflectIn(t, near, nil)
	_, err := NewReflector(ReflectorConfig{
		Listen: []netip.AddrPort{netip.MustParseAddrPort(nearAddr + ":862")}, Namespace: namespace(t, near),
	})
	var taken *PortTakenError
	if !errors.As(err, &taken) || !errors.Is(err, unix.EADDRINUSE) {
		t.Fatalf("NewReflector on a taken port = %v, want a *PortTakenError", err)
	}
	comm, _ := os.ReadFile("/proc/self/comm")
	if want := strings.TrimSpace(string(comm)); !strings.HasPrefix(taken.Owner, want+" (pid ") {
		t.Errorf("owner = %q, want %q", taken.Owner, want)
	}
}

func TestReflectorStops(t *testing.T) {
	lab := netnstest.New(t)
	ns := lab.Namespace("one")
	r, err := NewReflector(ReflectorConfig{Listen: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:862")}, AllowAny: true, RateLimit: 1, Namespace: namespace(t, ns)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Run(ctx); err != nil {
		t.Errorf("Run after a stop = %v, want nil", err)
	}
}
