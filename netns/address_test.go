// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/netns/netnstest"
)

func prefixes(t *testing.T, ns *netnstest.NS) map[string]int {
	t.Helper()
	out := make(map[string]int)
	err := ns.Do(func() error {
		all, err := netns.Addresses()
		for _, a := range all {
			if !a.Prefix.Addr().IsLinkLocalUnicast() {
				out[a.Prefix.String()] = a.Link
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAddressesAreOurEnds(t *testing.T) {
	lab := netnstest.New(t)
	a, b := lab.Namespace("a"), lab.Namespace("b")
	lab.Veth(a, "eth1", []string{"10.1.0.1/24", "2001:db8::1/64"}, b, "eth1", nil)
	a.Exec(t, "ip", "addr", "add", "10.2.0.1", "peer", "10.2.0.9", "dev", "eth1")
	a.Exec(t, "ip", "addr", "add", "2001:db8:2::1", "peer", "2001:db8:2::9", "dev", "eth1")
	var eth1 netns.Link
	err := a.Do(func() (err error) {
		eth1, err = netns.LinkByName("eth1")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{
		"127.0.0.1/8": 1, "::1/128": 1,
		"10.1.0.1/24": eth1.Index, "2001:db8::1/64": eth1.Index,
		"10.2.0.1/32": eth1.Index, "2001:db8:2::1/128": eth1.Index,
	}
	if diff := cmp.Diff(want, prefixes(t, a)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestWatchTellsOfChanges(t *testing.T) {
	lab := netnstest.New(t)
	ns := lab.Namespace("a")
	n, err := netns.Open(ns.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	told := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- n.Watch(ctx, func() {
			select {
			case told <- struct{}{}:
			default:
			}
		})
	}()
	wait := func(what string, there func() bool) {
		t.Helper()
		for late := time.After(10 * time.Second); !there(); {
			select {
			case <-told:
			case err := <-done:
				t.Fatalf("Watch ended: %v", err)
			case <-late:
				t.Fatalf("nothing was told of %s", what)
			}
		}
	}
	const address = "192.0.2.1/32"
	<-told
	ns.Exec(t, "ip", "addr", "add", address, "dev", "lo")
	wait("an address", func() bool { return prefixes(t, ns)[address] == 1 })
	ns.Exec(t, "ip", "addr", "del", address, "dev", "lo")
	wait("the end of an address", func() bool { return prefixes(t, ns)[address] == 0 })
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Watch after a stop = %v, want nil", err)
	}
}
