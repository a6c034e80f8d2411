// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"net"
	"testing"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/netns/netnstest"
)

func TestUnresolved(t *testing.T) {
	lab := netnstest.New(t)
	a, b := lab.Namespace("a"), lab.Namespace("b")
	lab.Veth(a, "wire0", []string{"192.0.2.1/24", "2001:db8::1/64"}, b, "far0", []string{"192.0.2.2/24", "2001:db8::2/64"})
	unresolved := func(neighbour string) (yes bool) {
		t.Helper()
		if err := a.Do(func() error {
			link, err := netns.LinkByName("wire0")
			if err != nil {
				return err
			}
			yes, err = netns.Unresolved(link.Index, addr(t, neighbour))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return yes
	}
	for neighbour, want := range map[string]bool{"192.0.2.2": false, "192.0.2.9": true, "2001:db8::2": false, "2001:db8::9": true} {
		if unresolved(neighbour) {
			t.Errorf("%s is unresolved before anybody asked", neighbour)
		}
		if err := a.Do(func() error {
			conn, err := net.Dial("udp", net.JoinHostPort(neighbour, "9"))
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write([]byte("x"))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if want {
			await(t, neighbour+" is unresolved", func() bool { return unresolved(neighbour) })
			continue
		}
		await(t, neighbour+" has a link-layer address", func() bool {
			return a.Exec(t, "ip", "neighbour", "show", "to", neighbour, "nud", "reachable", "nud", "delay") != ""
		})
		if unresolved(neighbour) {
			t.Errorf("%s is unresolved, and has an address", neighbour)
		}
	}
}
