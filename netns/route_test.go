// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/netns/netnstest"
)

func TestRouteTo(t *testing.T) {
	lab := netnstest.New(t)
	a, b := lab.Namespace("a"), lab.Namespace("b")
	lab.Veth(a, "wire0", []string{"192.0.2.0/31", "192.0.2.10/32", "2001:db8::1/64", "2001:db8::2/64"}, b, "far0", nil)
	lab.Veth(a, "wire1", []string{"192.0.2.2/31", "2001:db8:1::1/64"}, b, "far1", nil)
	for _, route := range [][]string{
		{"198.51.100.0/24", "via", "192.0.2.1"},
		{"unreachable", "203.0.113.0/26"}, {"prohibit", "203.0.113.64/26"}, {"blackhole", "203.0.113.128/26"}, {"throw", "203.0.113.192/26"},
		{"203.0.114.0/24", "via", "inet6", "2001:db8::9", "dev", "wire0"},
		{"2001:db8:2::/64", "via", "2001:db8::9"},
		{"2001:db8:3::/64", "via", "2001:db8:1::9", "src", "2001:db8::2"},
		{"unreachable", "2001:db8:f0::/48"}, {"prohibit", "2001:db8:f1::/48"}, {"blackhole", "2001:db8:f2::/48"},
	} {
		a.Exec(t, append([]string{"ip", "route", "add"}, route...)...)
	}
	index := map[string]int{"": 0, "missing": 1 << 30}
	if err := a.Do(func() error {
		links, err := netns.Links()
		for _, link := range links {
			index[link.Name] = link.Index
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}

	var routes *netns.Routes
	if err := a.Do(func() (err error) {
		routes, err = netns.OpenRoutes()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer routes.Close()

	for _, tc := range []struct {
		name, dst, src, oif string
		link, source        string
		gateway             string
		want, errno         error
	}{
		{name: "on link", dst: "192.0.2.1", link: "wire0", source: "192.0.2.0"},
		{name: "through a gateway", dst: "198.51.100.7", link: "wire0", source: "192.0.2.0", gateway: "192.0.2.1"},
		{name: "source chosen", dst: "198.51.100.7", src: "192.0.2.10", link: "wire0", source: "192.0.2.10", gateway: "192.0.2.1"},
		{name: "through a gateway of the other family", dst: "203.0.114.1", link: "wire0", source: "192.0.2.0", gateway: "2001:db8::9"},
		{name: "interface chosen", dst: "198.51.100.7", oif: "wire1", link: "wire1", source: "192.0.2.2"},
		{name: "mapped address", dst: "::ffff:192.0.2.1", link: "wire0", source: "192.0.2.0"},
		{name: "loopback", dst: "127.0.0.1", link: "lo", source: "127.0.0.1"},
		{name: "own address", dst: "192.0.2.2", link: "lo", source: "192.0.2.2"},
		{name: "no route", dst: "100.64.0.1", want: netns.ErrNoRoute, errno: unix.ENETUNREACH},
		{name: "unreachable", dst: "203.0.113.1", want: netns.ErrNoRoute, errno: unix.EHOSTUNREACH},
		{name: "prohibit", dst: "203.0.113.65", want: netns.ErrNoRoute, errno: unix.EACCES},
		{name: "blackhole", dst: "203.0.113.129", want: netns.ErrNoRoute, errno: unix.EINVAL},
		{name: "throw", dst: "203.0.113.193", want: netns.ErrNoRoute, errno: unix.ENETUNREACH},
		{name: "source of somebody else", dst: "192.0.2.1", src: "192.0.2.77", want: netns.ErrNoRoute},
		{name: "interface missing", dst: "192.0.2.1", oif: "missing", want: netns.ErrNoLink},
		{name: "families mixed", dst: "192.0.2.1", src: "2001:db8::1", want: unix.EAFNOSUPPORT},
		{name: "no destination", want: unix.EAFNOSUPPORT},

		{name: "ipv6 on link", dst: "2001:db8:1::9", link: "wire1", source: "2001:db8:1::1"},
		{name: "ipv6 through a gateway", dst: "2001:db8:2::7", link: "wire0", source: "2001:db8::2", gateway: "2001:db8::9"},
		{name: "ipv6 route with its own source", dst: "2001:db8:3::7", link: "wire1", source: "2001:db8::2", gateway: "2001:db8:1::9"},
		{name: "ipv6 source chosen", dst: "2001:db8:2::7", src: "2001:db8::1", link: "wire0", source: "2001:db8::1", gateway: "2001:db8::9"},
		{name: "ipv6 interface chosen", dst: "fe80::1", oif: "wire1", link: "wire1"},
		{name: "ipv6 loopback", dst: "::1", link: "lo", source: "::1"},
		{name: "ipv6 no route", dst: "2001:db8:aaaa::1", want: netns.ErrNoRoute, errno: unix.ENETUNREACH},
		{name: "ipv6 unreachable", dst: "2001:db8:f0::1", want: netns.ErrNoRoute, errno: unix.EHOSTUNREACH},
		{name: "ipv6 prohibit", dst: "2001:db8:f1::1", want: netns.ErrNoRoute, errno: unix.EACCES},
		{name: "ipv6 blackhole", dst: "2001:db8:f2::1", want: netns.ErrNoRoute, errno: unix.EINVAL},
		{name: "ipv6 interface missing", dst: "2001:db8::9", oif: "missing", want: netns.ErrNoLink},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got netns.Route
			err := a.Do(func() (err error) {
				got, err = netns.RouteTo(addr(t, tc.dst), addr(t, tc.src), index[tc.oif])
				return err
			})
			if !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) || tc.errno != nil && !errors.Is(err, tc.errno) {
				t.Fatalf("RouteTo: %+v, %v, want %v, %v", got, err, tc.want, tc.errno)
			}
			if err != nil {
				if _, again := routes.To(addr(t, tc.dst), addr(t, tc.src), index[tc.oif]); again == nil || again.Error() != err.Error() {
					t.Errorf("by the socket that is kept: %v, want %v", again, err)
				}
				return
			}
			want := netns.Route{Link: index[tc.link], Source: addr(t, tc.source), Gateway: addr(t, tc.gateway)}
			if tc.dst == "fe80::1" {
				want.Source = got.Source // made from a random MAC
				if !got.Source.IsLinkLocalUnicast() {
					t.Errorf("source %s, want a link-local address", got.Source)
				}
			}
			if again, err := routes.To(addr(t, tc.dst), addr(t, tc.src), index[tc.oif]); err != nil || again != got {
				t.Errorf("by the socket that is kept: %+v, %v", again, err)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("route (-want +got):\n%s", diff)
			}
		})
	}
}

func addr(t *testing.T, s string) netip.Addr {
	t.Helper()
	if s == "" {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
