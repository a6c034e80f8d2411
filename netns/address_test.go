// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
		done <- n.Watch(ctx, func(netns.Change) {
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

// view is what a role keeps of its namespace: read again each time that Watch says so.
type view struct {
	Links     []netns.Link
	Addresses []netns.Address
}

func look() (v view, err error) {
	if v.Links, err = netns.Links(); err == nil {
		v.Addresses, err = netns.Addresses()
	}
	return v, err
}

// keep watches a namespace and keeps a view of it. A view that could not be read stays as it is, as another call will follow.
type keep struct {
	mu    sync.Mutex
	view  view
	calls int
}

func (k *keep) read(n *netns.Namespace) {
	var v view
	err := n.Do(func() (err error) {
		v, err = look()
		return err
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls++
	if err == nil {
		k.view = v
	}
}

func (k *keep) now() (view, int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.view, k.calls
}

// expectKernel waits until the view is what the kernel has, and shows the difference if that never comes.
func (k *keep) expectKernel(t *testing.T, n *netns.Namespace) {
	t.Helper()
	var want view
	if err := n.Do(func() (err error) {
		want, err = look()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	same := func() bool { got, _ := k.now(); return cmp.Equal(want, got, addressesEqual) }
	for late := time.After(10 * time.Second); !same(); {
		select {
		case <-late:
			got, calls := k.now()
			t.Fatalf("after %d calls the view is not the kernel's (-want +got):\n%s", calls, cmp.Diff(want, got, addressesEqual))
		case <-time.After(time.Millisecond):
		}
	}
}

var addressesEqual = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

// batch runs lines of ip(8) in the namespace, one after the other and fast.
func batch(t *testing.T, ns *netnstest.NS, lines string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "batch")
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	ns.Exec(t, "ip", "-batch", file)
}

const flaps = 2000

// flap leaves the link down and with an address that it had not before.
func flap(t *testing.T, ns *netnstest.NS, link string) {
	t.Helper()
	batch(t, ns, strings.Repeat("link set dev "+link+" up\nlink set dev "+link+" down\n", flaps)+
		"address add 192.0.2.77/24 dev "+link+"\n")
}

// Case 72.
func TestWatchOutlivesAnOverflow(t *testing.T) {
	lab := netnstest.New(t)
	ns := lab.Namespace("a")
	ns.Exec(t, "ip", "link", "add", "dummy0", "type", "veth", "peer", "name", "dummy1")
	n := open(t, ns)
	ctx, cancel := context.WithCancel(t.Context())
	var k keep
	began, overflown := make(chan struct{}), make(chan struct{})
	var once sync.Once
	done := make(chan error, 1)
	go func() {
		const tiny = 1 // the kernel makes of it the least that it allows
		done <- n.WatchWith(ctx, tiny, time.Hour, func(netns.Change) {
			k.read(n)
			once.Do(func() {
				close(began)
				<-overflown // meanwhile nobody reads the socket
			})
		})
	}()
	<-began
	flap(t, ns, "dummy0")
	close(overflown)
	k.expectKernel(t, n)
	// It still hears of what comes now.
	ns.Exec(t, "ip", "link", "set", "dev", "dummy1", "name", "renamed")
	k.expectKernel(t, n)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Watch = %v, want nil", err)
	}
}

func TestWatchTellsOfAStormInFewCalls(t *testing.T) {
	lab := netnstest.New(t)
	ns := lab.Namespace("a")
	ns.Exec(t, "ip", "link", "add", "dummy0", "type", "veth", "peer", "name", "dummy1")
	n := open(t, ns)
	ctx, cancel := context.WithCancel(t.Context())
	var k keep
	done := make(chan error, 1)
	start := time.Now()
	go func() { done <- n.Watch(ctx, func(netns.Change) { k.read(n) }) }()
	flap(t, ns, "dummy0")
	k.expectKernel(t, n)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Watch = %v, want nil", err)
	}
	_, calls := k.now()
	if most := int(time.Since(start)/(50*time.Millisecond)) + 1; calls > most {
		t.Errorf("%d flaps made %d calls in %s, want at most %d: one each 50 ms", flaps, calls, time.Since(start), most)
	}
}

// Case 74: the address comes back when it was just seen to be gone, and before that call has returned.
func TestWatchAfterAnAddressLeftAndCameBack(t *testing.T) {
	lab := netnstest.New(t)
	ns := lab.Namespace("a")
	ns.Exec(t, "ip", "address", "add", "192.0.2.1/31", "dev", "lo")
	n := open(t, ns)
	address := netns.Address{Link: 1, Prefix: netip.MustParsePrefix("192.0.2.1/31")}
	ctx, cancel := context.WithCancel(t.Context())
	var k keep
	watching, back := make(chan struct{}, 1), make(chan struct{}, 1)
	done := make(chan error, 1)
	go func() {
		done <- n.Watch(ctx, func(netns.Change) {
			k.read(n)
			if got, calls := k.now(); calls == 1 {
				watching <- struct{}{}
			} else if !slices.Contains(got.Addresses, address) {
				if err := exec.Command("ip", "-n", ns.Name, "address", "add", "192.0.2.1/31", "dev", "lo").Run(); err == nil {
					back <- struct{}{}
				}
			}
		})
	}()
	receive(t, "the first call", watching)
	for range 5 {
		ns.Exec(t, "ip", "address", "del", "192.0.2.1/31", "dev", "lo")
		receive(t, "the address to be added again", back)
		k.expectKernel(t, n)
	}
	cancel()
	if err := receive(t, "Watch to end", done); err != nil {
		t.Errorf("Watch = %v, want nil", err)
	}
	if got, _ := k.now(); !slices.Contains(got.Addresses, address) {
		t.Errorf("addresses are %v, want %v among them", got.Addresses, address)
	}
}

func TestWatchLooksWithoutBeingTold(t *testing.T) {
	lab := netnstest.New(t)
	n := open(t, lab.Namespace("a"))
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	err := n.WatchWith(ctx, 0, time.Millisecond, func(netns.Change) {
		if calls++; calls == 3 {
			cancel()
		}
	})
	if err != nil || calls != 3 {
		t.Errorf("Watch = %v after %d calls, want nil after 3", err, calls)
	}
}
