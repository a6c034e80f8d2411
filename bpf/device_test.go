// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// sendPages sends a datagram whose payload stays in the page cache, so that the
// skb has nothing but headers in its own memory.
func sendPages(t *testing.T, c *net.UDPConn, payload []byte) {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(payload, 0); err != nil {
		t.Fatal(err)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var n int
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		n, sent = unix.Sendfile(int(fd), int(f.Fd()), nil, len(payload))
		return true
	})
	if err != nil || sent != nil || n != len(payload) {
		t.Fatalf("%d bytes, %v, %v", n, err, sent)
	}
}

// A payload in pages beside the skb is read all the same, in both directions.
func TestScatteredPayload(t *testing.T) {
	p := newPair(t)
	d := testLoad(t, testConfig)
	if err := d.SetPath(p.key, Path{ID: testPathID, SlotBase: testBase, SlotMask: testMask, SSID: testSSID}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.attach(t, d, tcHook(t), filters{}); err != nil {
		t.Fatal(err)
	}
	sendPages(t, p.socket, probePayload(profileStamp))
	b := make([]byte, 2048)
	_, from, err := p.reflector.ReadFromUDP(b)
	if err != nil {
		t.Fatal(err)
	}
	var back *net.UDPConn
	here := p.reflector.LocalAddr().(*net.UDPAddr)
	p.reflector.Close()
	inNamespace(t, p.far, func() { back, err = net.DialUDP("udp4", here, from) })
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	sendPages(t, back, replyPayload(profileStamp))

	eventually(t, "the answer is there", func() bool {
		e, err := d.Slot(slotIndex)
		return err == nil && e.Flags&FlagAnswered != 0 && e.RemoteTtl == 253
	})
	c, err := d.Counters()
	if err != nil {
		t.Fatal(err)
	}
	if c[VerdictProbeSent] != 1 || c[VerdictAnswered] != 1 || c[VerdictScattered] != 0 {
		t.Errorf("%v", c)
	}
}

// Headers beside the skb: a tap that takes frames as some drivers bring them,
// with nothing but the Ethernet header in the skb's own memory.
func TestScatteredHeaders(t *testing.T) {
	requireRoot(t)
	st := newStage(t, testConfig)
	ns := newNamespace(t)
	s := baseScene(true, false, false, profileStamp)
	if err := st.SetPath(s.key, *s.path); err != nil {
		t.Fatal(err)
	}
	if err := st.objects.Slots.Put(uint32(slotIndex), &s.slot); err != nil {
		t.Fatal(err)
	}
	fd := newTunnel(t, st.Datapath, ns, unix.IFF_TAP|unix.IFF_NAPI|unix.IFF_NAPI_FRAGS, ethernetHeader)

	frame := s.packet.bytes()
	if _, err := unix.Writev(fd, [][]byte{frame[:14], frame[14:30], frame[30:]}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the answer is there", func() bool {
		e, err := st.Slot(slotIndex)
		return err == nil && e.Flags&FlagAnswered != 0 && e.RemoteTtl == 253
	})
}

// attacher is a Datapath or a Reflector.
type attacher interface {
	Attach(Device, Hook, FilterAdder) (*Attachment, error)
}

// newTunnel makes a tap or tun device with 8.0.0.1/30, attaches to it, and
// returns the far end of its wire.
func newTunnel(t *testing.T, d attacher, ns string, flags uint16, header int) int {
	t.Helper()
	fd := -1
	t.Cleanup(func() { unix.Close(fd) })
	request, err := unix.NewIfreq("tunnel0")
	if err != nil {
		t.Fatal(err)
	}
	request.SetUint16(flags | unix.IFF_NO_PI)
	inNamespace(t, ns, func() {
		if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK, 0); err != nil {
			return
		}
		if err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			return
		}
		if flags&unix.IFF_TAP != 0 {
			if err = command("ip", "link", "set", "tunnel0", "address", "02:00:00:00:00:01"); err != nil {
				return
			}
		}
		if err = command("ip", "addr", "add", "8.0.0.1/30", "dev", "tunnel0"); err != nil {
			return
		}
		if err = command("ip", "link", "set", "tunnel0", "up"); err != nil {
			return
		}
		var i *net.Interface
		if i, err = net.InterfaceByName("tunnel0"); err != nil {
			return
		}
		_, err = d.Attach(Device{Index: i.Index, Name: i.Name, LinkHeader: header}, tcHook(t), filters{})
	})
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// A device without link header, on which the skb alone says what it carries.
func TestDeviceWithoutLinkHeader(t *testing.T) {
	requireRoot(t)
	d := testLoad(t, testConfig)
	ns := newNamespace(t)
	fd := newTunnel(t, d, ns, unix.IFF_TUN, 0)
	s := baseScene(true, false, true, profileStamp)
	if err := d.SetPath(s.key, *s.path); err != nil {
		t.Fatal(err)
	}
	var socket *net.UDPConn
	var err error
	inNamespace(t, ns, func() {
		socket, err = net.DialUDP("udp4", net.UDPAddrFromAddrPort(s.key.Local), net.UDPAddrFromAddrPort(s.key.Remote))
	})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if _, err := socket.Write(probePayload(profileStamp)); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(fd, s.packet.bytes()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the answer is there", func() bool {
		e, err := d.Slot(slotIndex)
		return err == nil && e.Flags&FlagAnswered != 0 && e.T4 > e.T1 && e.T1 > 0 && e.Ttl == 61
	})
}

// A reflector answers on both kinds of devices, also a packet whose headers lie
// beside the skb.
func TestReflectOnDevices(t *testing.T) {
	requireRoot(t)
	for _, c := range []struct {
		name  string
		flags uint16
		tap   bool
	}{
		{"tun", unix.IFF_TUN, false},
		{"tap", unix.IFF_TAP, true},
		{"tap, scattered", unix.IFF_TAP | unix.IFF_NAPI | unix.IFF_NAPI_FRAGS, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := testLoadReflector(t, testReflectorConfig)
			q := baseQuestion(false, !c.tap)
			if err := errors.Join(r.SetListeners(anywhere(q.listeners)), r.SetPeers(q.peers)); err != nil {
				t.Fatal(err)
			}
			header := 0
			if c.tap {
				header = ethernetHeader
			}
			ns := newNamespace(t)
			fd := newTunnel(t, r, ns, c.flags, header)
			// Merging would gather the headers before the program sees them.
			run(t, "ip", "netns", "exec", ns, "ethtool", "-K", "tunnel0", "gro", "off")
			start := monotonic(t)
			frame := q.packet.bytes()
			pieces := [][]byte{frame}
			if c.flags&unix.IFF_NAPI_FRAGS != 0 {
				pieces = [][]byte{frame[:14], frame[14:20], frame[20:]}
			}
			if _, err := unix.Writev(fd, pieces); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 2048)
			eventually(t, "the answer is there", func() bool {
				n, err := unix.Read(fd, b)
				// The stack has things of its own to say, some as long.
				if err != nil || n != len(frame) || b[header]>>4 != 4 {
					return false
				}
				b = b[:n]
				return true
			})
			st := &reflectStage{Reflector: r, t: t}
			st.check(t, q, reaction{verdict: ReflectAnswered, action: 7, frame: b}, start, monotonic(t))
		})
	}
}
