// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zaptest/observer"
)

func addresses(p *Pool) []string {
	var all []string
	for _, s := range p.Status() {
		all = append(all, s.Address.String())
	}
	return all
}

func TestAddressesAreKeptForAWeekAfterTheirNameLastGaveThem(t *testing.T) {
	simulate(t, plainURL, []netip.Addr{addrA, addrB}, aFirst, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
		pass(time.Minute)
		w.set(func() {
			w.lookup = func(context.Context) ([]netip.Addr, error) { return []netip.Addr{addrB}, nil }
			for _, s := range w.servers { // which makes a week short
				s.refuse, s.reset = true, true
			}
		})
		pass(keepAddress - time.Hour)
		if diff := cmp.Diff([]string{"192.0.2.1", "192.0.2.2"}, addresses(p)); diff != "" {
			t.Errorf("within a week (-want +got):\n%s", diff)
		}
		pass(2 * time.Hour)
		if diff := cmp.Diff([]string{"192.0.2.2"}, addresses(p)); diff != "" {
			t.Errorf("after a week (-want +got):\n%s", diff)
		}
		w.set(func() { w.servers[addrB].refuse, w.servers[addrB].reset = false, false })
		until(t, 2*time.Minute, "the one that is left in use", func() bool { return inUse(p) == addrB })
	})
}

func TestNothingIsForgottenWhileLookUpsFail(t *testing.T) {
	simulate(t, plainURL, two, aFirst, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
		pass(time.Minute)
		w.set(func() {
			w.lookup = func(context.Context) ([]netip.Addr, error) { return nil, errors.New("server misbehaving") }
			for _, s := range w.servers {
				s.refuse, s.reset = true, true
			}
		})
		pass(keepAddress + time.Hour)
		if diff := cmp.Diff([]string{"192.0.2.1", "192.0.2.2"}, addresses(p)); diff != "" {
			t.Errorf("addresses (-want +got):\n%s", diff)
		}
		w.set(func() {
			for _, s := range w.servers {
				s.refuse, s.reset = false, false
			}
		})
		if _, answer, err := send(t.Context(), p, "x"); err != nil || answer != "x" {
			t.Errorf("call: %q, %v", answer, err)
		}
	})
}

// A name that gives another address with each look-up, for ever, does not fill the memory.
func TestThereIsALimitToAddresses(t *testing.T) {
	simulate(t, plainURL, []netip.Addr{addrA}, nil, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
		pass(time.Minute)
		n := 0
		w.set(func() {
			w.lookup = func(context.Context) ([]netip.Addr, error) {
				n++
				return []netip.Addr{netip.AddrFrom4([4]byte{198, 51, 100, byte(n)}), netip.IPv6Unspecified()}, nil
			}
		})
		pass(3 * time.Hour)
		if got := len(p.Status()); got > maxAddresses+1 {
			t.Errorf("%d candidates, want at most %d", got, maxAddresses+1)
		}
		if got := inUse(p); got != addrA {
			t.Errorf("%v in use, want the one that works, %v", got, addrA)
		}
	})
}

// The name moves to other addresses, and the old ones go away.
func TestANameThatMovesIsFollowed(t *testing.T) {
	simulate(t, plainURL, five, graded, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
		pass(time.Minute)
		w.set(func() {
			w.lookup = func(context.Context) ([]netip.Addr, error) { return []netip.Addr{addrE}, nil }
			for _, addr := range []netip.Addr{addrA, addrB, addrC, addrD} {
				w.servers[addr].blackhole = true
			}
		})
		until(t, 15*time.Second, "the new address in use", func() bool { return inUse(p) == addrE })
	})
}

func TestARestartKnowsWhatWasKnown(t *testing.T) {
	certificate()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, addrA, addrB, addrC)
		w.serve()
		cfg, _ := w.config(plainURL)
		_, stop := w.start(cfg)
		pass(time.Minute)
		stop()
		saved := string(get(w, func() []byte { return w.saved }))
		if !strings.Contains(saved, "192.0.2.3") || !strings.Contains(saved, `"main"`) || strings.Contains(saved, secret) {
			t.Errorf("saved %s", saved)
		}

		// In the middle of an outage of the resolver; and the answers come from another cluster.
		w.set(func() {
			w.lookup = func(context.Context) ([]netip.Addr, error) { return nil, errors.New("server misbehaving") }
			w.servers[addrA].cluster, w.servers[addrB].cluster = "other", "other"
		})
		p, stop := w.start(cfg)
		pass(time.Minute)
		if diff := cmp.Diff([]string{"192.0.2.1", "192.0.2.2", "192.0.2.3"}, addresses(p)); diff != "" {
			t.Errorf("addresses (-want +got):\n%s", diff)
		}
		if got := inUse(p); got != addrC {
			t.Errorf("%v in use, want %v, of the cluster that was recorded", got, addrC)
		}
		stop()

		// The host that the record came from is not configured any more.
		w.set(func() { w.servers[addrC].cluster = "other" })
		cfg.URLs = []URL{{URL: "http://192.0.2.1/v1/" + secret + "?api-key=" + secret}}
		w.anyHost = true
		p, stop = w.start(cfg)
		pass(time.Minute)
		if got := inUse(p); got != addrA {
			t.Errorf("%v in use, want %v", got, addrA)
		}
		if diff := cmp.Diff([]string{"192.0.2.1"}, addresses(p)); diff != "" {
			t.Errorf("addresses (-want +got):\n%s", diff)
		}
		stop()
	})
}

// A switch boots in 1970, and the clock that saved was right.
func TestAClockThatIsWrongForgetsNothing(t *testing.T) {
	certificate()
	synctest.Test(t, func(t *testing.T) {
		for _, named := range []string{"1970-01-01T00:00:00Z", "2040-01-01T00:00:00Z"} {
			w := newWorld(t, addrA)
			w.serve()
			w.servers[addrA].refuse = true
			w.saved = []byte(`{"record":{},"addresses":[{"host":"rpc.example","address":"192.0.2.1","named":"` + named + `"}]}`)
			w.lookup = func(context.Context) ([]netip.Addr, error) { return nil, errors.New("server misbehaving") }
			cfg, _ := w.config(plainURL)
			p, stop := w.start(cfg)
			pass(8 * 24 * time.Hour)
			if diff := cmp.Diff([]string{"192.0.2.1"}, addresses(p)); diff != "" {
				t.Errorf("addresses named in %s (-want +got):\n%s", named, diff)
			}
			stop()
		}
	})
}

func TestAStateThatFailsCostsOnlyTheMemory(t *testing.T) {
	certificate()
	for _, saved := range []string{"", "{", `{"addresses":[{"host":"rpc.example","address":"nonsense"}]}`} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, addrA)
			w.saved, w.saveErr = []byte(saved), errors.New("disk full")
			w.serve()
			cfg, logs := w.config(plainURL)
			p, _ := w.start(cfg)
			pass(time.Hour)
			if got := inUse(p); got != addrA {
				t.Errorf("%v in use, want %v", got, addrA)
			}
			w.set(func() { w.saveErr = nil })
			pass(2 * time.Minute)
			if len(get(w, func() []byte { return w.saved })) < 20 {
				t.Error("not saved when that is possible")
			}
			if n := logs.Len(); n > 4 {
				t.Errorf("%d lines: %q", n, lines(logs))
			}
		})
	}
}

func TestFixedAddressesNeedNoLookUp(t *testing.T) {
	certificate()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, addrA, addrB)
		w.serve()
		w.lookup = func(context.Context) ([]netip.Addr, error) { return nil, errors.New("server misbehaving") }
		cfg, _ := w.config(goodURL)
		cfg.URLs[0].Addresses = []netip.Addr{netip.MustParseAddr("::ffff:192.0.2.2")}
		p, _ := w.start(cfg)
		if _, answer, err := send(t.Context(), p, "x"); err != nil || answer != "x" {
			t.Errorf("call: %q, %v", answer, err)
		}
		s := p.Status()
		if len(s) != 1 || !s[0].Fixed || s[0].Name != name(addrB) {
			t.Errorf("status %+v, want one fixed candidate", s)
		}
	})
}

// Two keys at the same provider are two URLs, told apart without telling the keys.
func TestNamesAreUniqueAndWithoutSecrets(t *testing.T) {
	w := newWorld(t)
	cfg, _ := w.config(goodURL)
	cfg.State = nil
	cfg.URLs = nil
	for _, url := range []string{"https://RPC.example/x?key=1", "https://rpc.example:443/x?key=2", "http://rpc.example/x", "https://[2001:db8::1]:8899/x"} {
		cfg.URLs = append(cfg.URLs, URL{URL: url, Addresses: []netip.Addr{addrA}})
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range p.Status() {
		got = append(got, s.Name)
	}
	want := []string{
		"https://rpc.example:443/192.0.2.1", "https://rpc.example:443#2/192.0.2.1", "http://rpc.example:80/192.0.2.1",
		"https://[2001:db8::1]:8899/192.0.2.1", "https://[2001:db8::1]:8899/2001:db8::1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

// A panic in a check comes out of Run, where a supervisor can catch it, and Run may be called again.
func TestAPanicInACheckEndsRunAndNoMore(t *testing.T) {
	certificate()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, addrA, addrB)
		w.serve()
		cfg, _ := w.config(plainURL)
		check, broken := cfg.Check, true
		cfg.Check = func(ctx context.Context, rt http.RoundTripper) (Health, error) {
			if get(w, func() bool { return broken }) {
				panic("no such thing")
			}
			return check(ctx, rt)
		}
		p, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		run := func(ctx context.Context) (caught string) {
			defer func() {
				if r := recover(); r != nil {
					caught = fmt.Sprint(r)
				}
			}()
			if err := p.Run(ctx); err != nil {
				t.Error(err)
			}
			return ""
		}
		if got := run(t.Context()); !strings.Contains(got, "no such thing") || !strings.Contains(got, "memory_test.go") {
			t.Errorf("caught %q, want the panic and its stack", got)
		}
		w.set(func() { broken = false })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go func() {
			pass(30 * time.Second)
			if got := inUse(p); !got.IsValid() {
				t.Error("nothing in use after Run was called again")
			}
		}()
		if got := run(ctx); got != "" {
			t.Errorf("caught %q", got)
		}
	})
}

func TestRunFeedsTheWatchdog(t *testing.T) {
	certificate()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, addrA)
		w.serve()
		w.servers[addrA].blackhole = true
		cfg, _ := w.config(plainURL)
		var due time.Time
		beats := 0
		cfg.Beat = func(next time.Duration) {
			if beats++; beats > 1 && time.Now().After(due) {
				t.Errorf("beat %v too late", time.Since(due))
			}
			due = time.Now().Add(next)
		}
		_, stop := w.start(cfg)
		pass(time.Hour)
		stop()
		if beats < 100 {
			t.Errorf("%d beats in an hour", beats)
		}
	})
}
