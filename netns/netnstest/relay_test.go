// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"bytes"
	"container/heap"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	ipv4A, ipv4B = "192.0.2.0", "192.0.2.1"
	ipv6A, ipv6B = "2001:db8::1", "2001:db8::2"
)

var (
	addressesA = []string{ipv4A + "/31", ipv6A + "/64"}
	addressesB = []string{ipv4B + "/31", ipv6B + "/64"}
)

// patience bounds each wait for a packet that should come.
const patience = 5 * time.Second

func forward(r *Relay, f Frame) { r.Send(f.Direction, f.Data, 0) }

// exchange sends packets from a to an address of b and compares all that arrive with want. The last of want must be the last to
// arrive.
func exchange(t *testing.T, a, b *NS, address string, send, want []string) {
	t.Helper()
	var server, client *net.UDPConn
	if err := b.Do(func() (err error) {
		server, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(address)})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	if err := a.Do(func() (err error) {
		client, err = net.DialUDP("udp", nil, server.LocalAddr().(*net.UDPAddr))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()

	for _, payload := range send {
		if _, err := client.Write([]byte(payload)); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	buffer := make([]byte, 1<<16)
	for len(got) < len(want) {
		if err := server.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		n, err := server.Read(buffer)
		if err != nil {
			t.Fatalf("after %q: %v, want %q", got, err, want)
		}
		got = append(got, string(buffer[:n]))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("arrived over %s (-want +got):\n%s", address, diff)
	}
}

func TestRelayDoesWhatTheScriptSays(t *testing.T) {
	const delay = 50 * time.Millisecond
	for _, tc := range []struct {
		name string
		// script acts on one packet of the exchange.
		script     func(r *Relay, f Frame, payload string)
		send, want []string
		badSums    int // dropped by the receiving kernel
	}{
		{
			name:   "forward",
			script: func(r *Relay, f Frame, _ string) { forward(r, f) },
			send:   []string{"1", "2", "3"},
			want:   []string{"1", "2", "3"},
		},
		{
			name: "delay",
			script: func(r *Relay, f Frame, payload string) {
				r.Send(f.Direction, f.Data, map[string]time.Duration{"1": 2 * delay, "2": delay}[payload])
			},
			send: []string{"1", "2", "3"},
			want: []string{"3", "2", "1"},
		},
		{
			name: "equal delays keep the order",
			script: func(r *Relay, f Frame, _ string) {
				r.Send(f.Direction, f.Data, delay)
			},
			send: []string{"1", "2", "3", "4", "5"},
			want: []string{"1", "2", "3", "4", "5"},
		},
		{
			name: "drop",
			script: func(r *Relay, f Frame, payload string) {
				if payload != "2" {
					forward(r, f)
				}
			},
			send: []string{"1", "2", "3"},
			want: []string{"1", "3"},
		},
		{
			name: "duplicate",
			script: func(r *Relay, f Frame, payload string) {
				forward(r, f)
				if payload == "1" {
					forward(r, f)
				}
			},
			send: []string{"1", "2"},
			want: []string{"1", "1", "2"},
		},
		{
			name: "swap",
			script: func() func(r *Relay, f Frame, payload string) {
				var held *Frame
				return func(r *Relay, f Frame, payload string) {
					if payload == "1" {
						held = &f
						return
					}
					forward(r, f)
					if held != nil {
						forward(r, *held)
						held = nil
					}
				}
			}(),
			send: []string{"1", "2", "3"},
			want: []string{"2", "1", "3"},
		},
		{
			name: "bad checksum",
			script: func(r *Relay, f Frame, payload string) {
				if payload == "2" {
					UDPPayload(f.Data)[0] ^= 1
				}
				forward(r, f)
			},
			send:    []string{"1", "2", "3"},
			want:    []string{"1", "3"},
			badSums: 1,
		},
		{
			name: "change",
			script: func(r *Relay, f Frame, payload string) {
				// The copy that was sent first does not change.
				forward(r, f)
				UDPPayload(f.Data)[0] = 'x'
				FixChecksum(f.Data)
				forward(r, f)
			},
			send: []string{"odd", "even"},
			want: []string{"odd", "xdd", "even", "xven"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			lab := New(t)
			a, b := lab.Namespace("a"), lab.Namespace("b")
			lab.Relay(a, "a0", addressesA, b, "b0", addressesB, func(r *Relay, f Frame) {
				payload := string(UDPPayload(f.Data))
				whole := bytes.Clone(f.Data)
				if FixChecksum(whole); !bytes.Equal(whole, f.Data) {
					t.Errorf("checksum of %q is not complete", payload)
				}
				if f.Direction != AToB {
					t.Errorf("%q goes %s, want %s", payload, f.Direction, AToB)
				}
				tc.script(r, f, payload)
			})
			for _, address := range []string{ipv4B, ipv6B} {
				exchange(t, a, b, address, tc.send, tc.want)
			}
			if got := badSums(t, b); got != [2]int{tc.badSums, tc.badSums} {
				t.Errorf("kernel dropped %d packets over IPv4 and IPv6 for their checksum, want %d each", got, tc.badSums)
			}
		})
	}
}

// badSums returns how many UDP packets a namespace has dropped for their checksum, over IPv4 and IPv6.
func badSums(t *testing.T, n *NS) [2]int {
	t.Helper()
	var bad [2]int
	if err := n.Do(func() error {
		// /proc/net would be that of the process's main thread.
		ipv4, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		var header []string
		for line := range strings.Lines(string(ipv4)) {
			fields := strings.Fields(line)
			if fields[0] != "Udp:" {
				continue
			}
			if header == nil {
				header = fields
				continue
			}
			for i, name := range header {
				if name == "InCsumErrors" {
					if _, err := fmt.Sscan(fields[i], &bad[0]); err != nil {
						return err
					}
				}
			}
		}
		ipv6, err := os.ReadFile("/proc/thread-self/net/snmp6")
		if err != nil {
			return err
		}
		_, rest, ok := strings.Cut(string(ipv6), "Udp6InCsumErrors")
		if !ok || header == nil {
			return errors.New("kernel does not count bad checksums")
		}
		_, err = fmt.Sscan(rest, &bad[1])
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return bad
}

func TestRelayWorksBothWays(t *testing.T) {
	lab := New(t)
	a, b := lab.Namespace("a"), lab.Namespace("b")
	var seen [2]atomic.Int32
	lab.Relay(a, "a0", addressesA, b, "b0", addressesB, func(r *Relay, f Frame) {
		seen[f.Direction].Add(1)
		forward(r, f)
	})
	exchange(t, a, b, ipv4B, []string{"1"}, []string{"1"})
	exchange(t, b, a, ipv6A, []string{"2", "3"}, []string{"2", "3"})
	if got := [2]int32{seen[AToB].Load(), seen[BToA].Load()}; got != [2]int32{1, 2} {
		t.Errorf("script saw %d frames %s and %s, want 1 and 2", got, AToB, BToA)
	}
}

func TestRelaySendsForOthersToo(t *testing.T) {
	lab := New(t)
	a, b := lab.Namespace("a"), lab.Namespace("b")
	held := make(chan Frame, 1)
	r := lab.Relay(a, "a0", addressesA, b, "b0", addressesB, func(r *Relay, f Frame) { held <- f })
	go func() {
		f := <-held
		r.Send(f.Direction, f.Data, 0)
	}()
	exchange(t, a, b, ipv4B, []string{"1"}, []string{"1"})
}

// A stream shows that large segments, which the outer ends would like to leave to each other, arrive as they should.
func TestRelayCarriesEverythingElseUntouched(t *testing.T) {
	for _, address := range []string{ipv4B, ipv6B} {
		t.Run(address, func(t *testing.T) {
			lab := New(t)
			a, b := lab.Namespace("a"), lab.Namespace("b")
			lab.Relay(a, "a0", addressesA, b, "b0", addressesB, func(r *Relay, f Frame) {
				t.Errorf("script sees a frame that is not of UDP: %x", f.Data)
			}, MTU(1400))
			if out := a.Exec(t, "ip", "link", "show", "a0"); !strings.Contains(out, "mtu 1400") {
				t.Errorf("MTU of a0 is not 1400: %s", out)
			}
			want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
			var listener net.Listener
			if err := b.Do(func() (err error) {
				listener, err = net.Listen("tcp", net.JoinHostPort(address, "0"))
				return err
			}); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = listener.Close() }()
			var client net.Conn
			// One address, no name: nothing here needs a second goroutine in the namespace.
			if err := a.Do(func() (err error) {
				client, err = net.DialTimeout("tcp", listener.Addr().String(), patience)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			server, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = server.Close() }()
			written := make(chan error, 1)
			go func() {
				_, err := client.Write(want)
				written <- errors.Join(err, client.Close())
			}()
			if err := server.SetDeadline(time.Now().Add(4 * patience)); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(server)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("read %d bytes, %v, want the %d written", len(got), err, len(want))
			}
			if err := <-written; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRelayDropsWhatIsDelayedPastItsEnd(t *testing.T) {
	var r *Relay
	t.Run("lab", func(t *testing.T) {
		lab := New(t)
		a, b := lab.Namespace("a"), lab.Namespace("b")
		r = lab.Relay(a, "a0", addressesA, b, "b0", addressesB, forward)
		r.Send(AToB, make([]byte, 60), time.Hour)
	})
	r.Send(AToB, make([]byte, 60), 0)
	if len(r.queue) != 1 {
		t.Errorf("%d frames wait, want the one from before the end", len(r.queue))
	}
}

// On a cable that is cut, frames are lost; a relay goes on.
func TestRelayOutlivesALinkThatGoesDown(t *testing.T) {
	lab := New(t)
	a, b := lab.Namespace("a"), lab.Namespace("b")
	passed := make(chan struct{}, 1)
	lab.Relay(a, "a0", addressesA, b, "b0", addressesB, func(r *Relay, f Frame) {
		forward(r, f)
		if string(UDPPayload(f.Data)) == "lost" {
			passed <- struct{}{}
		}
	})
	middle := &NS{Name: lab.prefix + "relay1", Path: namedDir + "/" + lab.prefix + "relay1", t: t}
	lose := func() {
		t.Helper()
		if err := a.Do(func() error {
			conn, err := net.Dial("udp", net.JoinHostPort(ipv4B, "9"))
			if err != nil {
				return err
			}
			_, err = conn.Write([]byte("lost"))
			return errors.Join(err, conn.Close())
		}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-passed:
		case <-time.After(patience):
			t.Fatal("the packet did not reach the relay")
		}
	}
	exchange(t, a, b, ipv4B, []string{"1"}, []string{"1"})
	b.Exec(t, "ip", "link", "set", "dev", "b0", "down")
	lose()
	b.Exec(t, "ip", "link", "set", "dev", "b0", "up")
	lab.awaitCarrier(b, "b0")
	lab.awaitCarrier(middle, "b")
	exchange(t, a, b, ipv4B, []string{"2"}, []string{"2"})
	b.Exec(t, "ip", "link", "delete", "dev", "b0")
	lose()
	lose() // the relay has tried to send the first one by now
}

func TestRelayHasNoAddressesOfItsOwn(t *testing.T) {
	lab := New(t)
	a, b := lab.Namespace("a"), lab.Namespace("b")
	lab.Relay(a, "a0", addressesA, b, "b0", addressesB, forward)
	middle := &NS{Name: lab.prefix + "relay1", t: t}
	for _, name := range []string{"a", "b"} {
		if out := middle.Exec(t, "ip", "address", "show", "dev", name); strings.Contains(out, "inet") {
			t.Errorf("relay has addresses: %s", out)
		}
	}
}

func TestQueueKeepsTheOrderOfEquals(t *testing.T) {
	now := time.Now()
	var q queue
	for _, number := range []uint64{3, 0, 4, 1, 2} {
		heap.Push(&q, queued{due: now, number: number})
	}
	heap.Push(&q, queued{due: now.Add(-1), number: 5})
	var got []uint64
	for len(q) > 0 {
		got = append(got, heap.Pop(&q).(queued).number)
	}
	if diff := cmp.Diff([]uint64{5, 0, 1, 2, 3, 4}, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}
