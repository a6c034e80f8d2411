// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zaptest/observer"
)

var five = []netip.Addr{addrA, addrB, addrC, addrD, addrE}

// graded makes each server of five a little slower than the one before, by less than what is worth a move.
func graded(w *world) {
	for i, addr := range five {
		w.servers[addr].delay = time.Duration(10+3*i) * time.Millisecond
	}
}

// busy makes a call every interval until the test ends.
func busy(t *testing.T, p *Pool, interval time.Duration) {
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(interval):
				_, _, _ = send(ctx, p, "x") // what it is worth is checked elsewhere
			}
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// moves returns the addresses that are in use for a time, looking each second.
func moves(p *Pool, d time.Duration) []netip.Addr {
	var seen []netip.Addr
	for start := time.Now(); time.Since(start) < d; pass(time.Second) {
		if at := inUse(p); len(seen) == 0 || seen[len(seen)-1] != at {
			seen = append(seen, at)
		}
	}
	return seen
}

var faults = []struct {
	name      string
	onlyCalls bool // there is nothing to notice without calls
	apply     func(*server)
}{
	{"blackholed", false, func(s *server) { s.blackhole = true }},
	{"half dead: checks answered, calls get 503", true, func(s *server) { s.onlyCalls, s.status = true, http.StatusServiceUnavailable }},
	{"half dead: checks answered, calls hang", true, func(s *server) { s.onlyCalls, s.silent = true, true }},
	{"lagging", false, func(s *server) { s.lag = 300 }},
	{"lagging by little more than is allowed", false, func(s *server) { s.lag = 60 }},
	{"claiming a slot far ahead", false, func(s *server) { s.lag = -100_000 }},
	{"claiming a slot a little ahead", false, func(s *server) { s.lag = -100 }},
	{"claiming one slot all the time", false, func(s *server) { s.stuck = s.w.slot() }},
	{"refusing connections and closing those it has", false, func(s *server) { s.refuse, s.reset = true, true }},
	{"answering nonsense with status 200", false, func(s *server) { s.body = "<html>all is well</html>" }},
	{"breaking off its answers", false, func(s *server) { s.truncate = true }},
	{"redirecting", false, func(s *server) {
		s.status, s.header = http.StatusTemporaryRedirect, http.Header{"Location": {"http://elsewhere.example/"}}
	}},
}

// Whatever happens to the one in use, and at whatever moment between two checks, another one is in use within 15 s, and stays.
func TestABadOneIsLeftWithin15Seconds(t *testing.T) {
	for _, tc := range faults {
		for _, interval := range []time.Duration{0, 700 * time.Millisecond, 4 * time.Second} {
			if tc.onlyCalls && interval == 0 {
				continue
			}
			for _, offset := range []time.Duration{0, 1300 * time.Millisecond, 4900 * time.Millisecond, 8 * time.Second} {
				t.Run(fmt.Sprintf("%s/a call each %v/after %v", tc.name, interval, offset), func(t *testing.T) {
					simulate(t, plainURL, five, graded, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
						if interval > 0 {
							busy(t, p, interval)
						}
						pass(time.Minute + offset)
						if got := inUse(p); got != addrA {
							t.Fatalf("%v in use, want the fastest, %v", got, addrA)
						}
						at := w.servers[addrA]
						w.set(func() { tc.apply(at) })
						took := until(t, 15*time.Second, "another one in use", func() bool { got := inUse(p); return got != addrA && got.IsValid() })
						t.Logf("after %v", took)
						next := inUse(p)
						if diff := cmp.Diff([]netip.Addr{next}, moves(p, 3*time.Minute), compareAddr); diff != "" {
							t.Errorf("in use during the next minutes (-want +got):\n%s", diff)
						}
					})
				})
			}
		}
	}
}

// One of five addresses after the other goes bad, each in its own way and each while in use, until one is left.
func TestTheLastGoodOneOfFiveIsUsed(t *testing.T) {
	simulate(t, plainURL, five, graded, func(t *testing.T, w *world, p *Pool, logs *observer.ObservedLogs) {
		busy(t, p, 10*time.Second)
		pass(2 * time.Minute)
		used := []netip.Addr{inUse(p)}
		for _, apply := range []func(*server){
			func(s *server) { s.blackhole = true },
			func(s *server) { s.onlyCalls, s.status = true, http.StatusInternalServerError },
			func(s *server) { s.lag = 300 },
			func(s *server) { s.lag = -1_000_000 },
		} {
			at := used[len(used)-1]
			w.set(func() { apply(w.servers[at]) })
			until(t, 15*time.Second, "another one in use", func() bool { got := inUse(p); return got.IsValid() && !slices.Contains(used, got) })
			used = append(used, inUse(p))
			used = append(used, moves(p, 5*time.Minute)[1:]...)
		}
		checked := get(w, func() int { return w.checked })
		used = append(used, moves(p, 6*time.Hour)[1:]...)
		if rate := float64(get(w, func() int { return w.checked })-checked) / (6 * time.Hour).Seconds(); rate > 0.5 {
			t.Errorf("%.2f requests of checks each second, want at most 0.5", rate)
		} else {
			t.Logf("%.2f requests of checks each second", rate)
		}
		if len(used) != 5 {
			t.Errorf("in use: %v, want each of five once", used)
		}
		slices.SortFunc(used, netip.Addr.Compare)
		if len(slices.Compact(used)) != 5 {
			t.Errorf("in use: %v, want each of five once", used)
		}
		for _, line := range lines(logs) {
			t.Log(line)
		}
	})
}

func TestChecksCostLittle(t *testing.T) {
	for _, tc := range []struct {
		name    string
		prepare func(*world)
		during  func(*world)
	}{
		{"all good", graded, func(*world) {}},
		{"all bad", graded, func(w *world) {
			for _, s := range w.servers {
				s.status = http.StatusBadGateway
			}
		}},
		{"the whole ledger halted", graded, func(w *world) { w.halted = 1_000_000 }},
		{"each one at a different speed", func(w *world) {
			for i, addr := range five {
				w.servers[addr].delay = time.Duration(1+i*400) * time.Millisecond
			}
		}, func(*world) {}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			simulate(t, plainURL, five, tc.prepare, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
				pass(time.Minute)
				w.set(func() { tc.during(w) })
				checked := get(w, func() int { return w.checked })
				pass(4 * time.Hour)
				rate := float64(get(w, func() int { return w.checked })-checked) / (4 * time.Hour).Seconds()
				t.Logf("%.2f requests each second", rate)
				if rate > 0.5 || rate < 0.05 {
					t.Errorf("%.2f requests each second, want at most 0.5 and not none", rate)
				}
			})
		})
	}
}

// A ledger that halts, and one that goes on again, is no reason to leave anybody.
func TestAHaltedLedgerMarksNobody(t *testing.T) {
	simulate(t, plainURL, five, graded, func(t *testing.T, w *world, p *Pool, logs *observer.ObservedLogs) {
		pass(2 * time.Minute)
		before := logs.Len()
		w.set(func() { w.halted = w.slot() })
		if diff := cmp.Diff([]netip.Addr{addrA}, moves(p, time.Hour), compareAddr); diff != "" {
			t.Errorf("in use (-want +got):\n%s", diff)
		}
		w.set(func() { w.begin, w.halted = w.begin.Add(time.Hour), 0 })
		if diff := cmp.Diff([]netip.Addr{addrA}, moves(p, time.Hour), compareAddr); diff != "" {
			t.Errorf("in use after it goes on (-want +got):\n%s", diff)
		}
		for _, s := range p.Status() {
			if !s.Good || s.Failed != 0 {
				t.Errorf("%+v, want good and nothing failed", s)
			}
		}
		if n := logs.Len() - before; n != 0 {
			t.Errorf("%d log lines, want none: %q", n, lines(logs)[before:])
		}
	})
}

var compareAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

// Case 81 of the field reports: two addresses, one 300 slots behind.
func TestALaggingOneIsNotUsedUntilItHasCaughtUp(t *testing.T) {
	simulate(t, plainURL, []netip.Addr{addrA, addrB}, func(w *world) {
		w.servers[addrB].delay, w.servers[addrB].lag = 5*time.Millisecond, 300 // and faster
	}, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
		pass(time.Minute)
		if got := inUse(p); got != addrA {
			t.Fatalf("%v in use, want %v", got, addrA)
		}
		s := status(p, addrB)
		if s.Good || s.SlotLag < 280 || s.SlotLag > 320 || s.Faults[FaultLagging] == 0 {
			t.Errorf("lagging one: %+v, want not good and about 300 behind", s)
		}
		w.set(func() { w.servers[addrB].lag = 0 })
		pass(2 * time.Minute)
		if s := status(p, addrB); !s.Good || s.Reason != "" || s.SlotLag > 40 {
			t.Errorf("after it has caught up: %+v, want good", s)
		}
	})
}

// It takes three good checks in a row, and a fast error is not fast.
func TestABadOneIsGoodAgainAfterThreeGoodChecks(t *testing.T) {
	simulate(t, plainURL, []netip.Addr{addrA, addrB}, func(w *world) {
		w.servers[addrB].status, w.servers[addrB].delay = http.StatusInternalServerError, 0
	}, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
		s := w.servers[addrB]
		requests := func() int { return get(w, func() int { return s.requests }) }
		until(t, time.Minute, "first check failed", func() bool { return status(p, addrB).Failed > 0 })
		if got := status(p, addrB); got.Good || got.Latency != 0 || got.Reason != "status 500" {
			t.Errorf("status %+v, want bad with status 500 and no latency", got)
		}
		// 10 s, then twice as long each time, at most 30 s.
		pass(10 * time.Minute)
		var gaps []time.Duration
		w.set(func() {
			for i := range s.at[1:] {
				gaps = append(gaps, s.at[i+1].Sub(s.at[i]).Round(time.Second))
			}
		})
		if diff := cmp.Diff([]time.Duration{10 * time.Second, 20 * time.Second, 30 * time.Second, 30 * time.Second}, gaps[:4]); diff != "" {
			t.Errorf("time between checks (-want +got):\n%s", diff)
		}

		w.set(func() { s.status = 0 })
		for _, good := range []bool{false, false} {
			n := requests()
			until(t, 2*time.Minute, "next check", func() bool { return requests() > n })
			if got := status(p, addrB).Good; got != good {
				t.Errorf("after a good check: good %t, want %t", got, good)
			}
		}
		w.set(func() { s.status = http.StatusInternalServerError }) // all over again
		n := requests()
		until(t, 2*time.Minute, "next check", func() bool { return requests() > n })
		w.set(func() { s.status = 0 })
		for _, good := range []bool{false, false, true} {
			n := requests()
			until(t, 2*time.Minute, "next check", func() bool { return requests() > n })
			if got := status(p, addrB).Good; got != good {
				t.Errorf("after another good check: good %t, want %t", got, good)
			}
		}
	})
}

// However long all were away, and in whatever way, each is good again within a minute.
func TestAllAreGoodAMinuteAfterAnOutage(t *testing.T) {
	for kind, away := range map[string]func(s *server, yes bool){
		"silent":   func(s *server, yes bool) { s.blackhole = yes },
		"refusing": func(s *server, yes bool) { s.refuse, s.reset = yes, yes },
	} {
		for outage := time.Duration(0); outage < 3*time.Minute; outage += 7 * time.Second {
			t.Run(fmt.Sprintf("%s for %v", kind, outage), func(t *testing.T) {
				simulate(t, plainURL, five, graded, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
					all := func(good bool) bool {
						return !slices.ContainsFunc(p.Status(), func(s Status) bool { return s.Good != good })
					}
					pass(time.Minute)
					w.set(func() {
						for _, s := range w.servers {
							away(s, true)
						}
					})
					until(t, 15*time.Second, "all are bad", func() bool { return all(false) })
					pass(outage)
					w.set(func() {
						for _, s := range w.servers {
							away(s, false)
						}
					})
					t.Logf("after %v", until(t, time.Minute, "all are good", func() bool { return all(true) }))
				})
			})
		}
	}
}

func TestSpeedIsWorthAMoveOnlyWhenItIsMuchAndLasts(t *testing.T) {
	for _, tc := range []struct {
		name         string
		used, better time.Duration
		want         netip.Addr
	}{
		{"30 % but not 20 ms", 50 * time.Millisecond, 33 * time.Millisecond, addrA},
		{"20 ms but not 30 %", 200 * time.Millisecond, 150 * time.Millisecond, addrA},
		{"both", 100 * time.Millisecond, 60 * time.Millisecond, addrB},
	} {
		t.Run(tc.name, func(t *testing.T) {
			simulate(t, plainURL, []netip.Addr{addrA, addrB}, func(w *world) {
				w.servers[addrA].delay, w.servers[addrB].delay = 10*time.Millisecond, 20*time.Millisecond
			}, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
				pass(time.Minute)
				w.set(func() { w.servers[addrA].delay, w.servers[addrB].delay = tc.used, tc.better })
				pass(time.Minute)
				if got := inUse(p); got != addrA {
					t.Errorf("%v in use after 1 min, want still %v", got, addrA)
				}
				pass(5 * time.Minute)
				if got := inUse(p); got != tc.want {
					t.Errorf("%v in use after 6 min, want %v", got, tc.want)
				}
			})
		})
	}

	t.Run("every 10 minutes at most", func(t *testing.T) {
		simulate(t, plainURL, []netip.Addr{addrA, addrB}, nil, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
			pass(time.Minute)
			last, n := time.Time{}, 0
			for range 4 * 60 {
				slow, fast := w.servers[inUse(p)], w.servers[addrA]
				if slow == fast {
					fast = w.servers[addrB]
				}
				w.set(func() { slow.delay, fast.delay = 200*time.Millisecond, 10*time.Millisecond })
				before := inUse(p)
				pass(time.Minute)
				if inUse(p) != before {
					if n++; n > 1 && time.Since(last) < 9*time.Minute {
						t.Errorf("moved after %v", time.Since(last))
					}
					last = time.Now()
				}
			}
			if n < 10 || n > 24 {
				t.Errorf("%d moves in 4 h, want one each 10 min or more", n)
			}
		})
	})
}

// One that claimed too much has no say when the others are judged, even when only one of them is left.
func TestALiarCountsForNothing(t *testing.T) {
	for _, delay := range []time.Duration{0, 10 * time.Millisecond, 30 * time.Millisecond} { // the first to answer, or not
		t.Run(delay.String(), func(t *testing.T) { liarCountsForNothing(t, delay) })
	}
}

func liarCountsForNothing(t *testing.T, delay time.Duration) {
	simulate(t, plainURL, []netip.Addr{addrA, addrB, addrC}, func(w *world) {
		aFirst(w)
		w.servers[addrC].lag, w.servers[addrC].delay = -100_000, delay
	}, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
		pass(2 * time.Minute)
		if s := status(p, addrC); s.Good || s.Faults[FaultAhead] == 0 {
			t.Errorf("the liar: %+v", s)
		}
		w.set(func() { w.servers[addrA].blackhole = true })
		until(t, 15*time.Second, "b in use", func() bool { return inUse(p) == addrB })
		if diff := cmp.Diff([]netip.Addr{addrB}, moves(p, time.Hour), compareAddr); diff != "" {
			t.Errorf("in use (-want +got):\n%s", diff)
		}
	})
}

// The whole ledger goes on from an earlier slot, as after a restart from a snapshot. Nobody lies.
func TestALedgerThatIsSetBackIsFollowed(t *testing.T) {
	simulate(t, plainURL, five, graded, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
		pass(2 * time.Minute)
		w.set(func() { w.first -= 3000 })
		down := 0
		for range 10 * 60 {
			if pass(time.Second); !inUse(p).IsValid() {
				down++
			}
		}
		if down > 0 {
			t.Errorf("%d s with nothing good", down)
		}
		for _, s := range p.Status() {
			if !s.Good {
				t.Errorf("%+v, want good", s)
			}
		}
	})
}

func TestABadOneIsNotAskedAgainAtOnce(t *testing.T) {
	simulate(t, plainURL, five, graded, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
		pass(time.Minute)
		s := w.servers[addrA]
		w.set(func() { s.status = http.StatusInternalServerError })
		before := len(get(w, func() []time.Time { return s.at }))
		until(t, 15*time.Second, "another one in use", func() bool { return inUse(p).IsValid() && inUse(p) != addrA })
		pass(15 * time.Second)
		at := get(w, func() []time.Time { return s.at })[before:]
		if len(at) != 2 || at[1].Sub(at[0]) < firstBackoff {
			t.Errorf("asked at %v, want a second time after 10 s", at)
		}
	})
}

// A half dead one is the fastest by far and passes its checks. Each time that it is believed it fails, and is believed less.
func TestAHalfDeadOneIsBelievedLessAndLess(t *testing.T) {
	simulate(t, plainURL, two, func(w *world) {
		w.servers[addrB].delay = 300 * time.Millisecond
	}, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
		busy(t, p, 10*time.Second)
		pass(time.Minute)
		w.set(func() { w.servers[addrA].onlyCalls, w.servers[addrA].status = true, http.StatusInternalServerError })
		// After 10, 20, 40, 80 and 160 min, with the first time now.
		if n := len(moves(p, 6*time.Hour)); n < 5 || n > 13 {
			t.Errorf("%d moves in 6 h, want at most 13", n)
		}
	})
}

// A verdict needs somebody to compare with; one alone that is ahead may be the one that is wrong, if there are others to ask.
func TestOneWitnessProvesNothingWhereThereAreMore(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(seconds int, slot uint64) sighting {
		t := now.Add(time.Duration(seconds) * time.Second)
		return sighting{asked: t, told: t, slot: slot}
	}
	suspect := &candidate{good: true, seen: []sighting{at(10, 1000)}}
	witness := &candidate{good: true, seen: []sighting{at(5, 2000)}}
	for _, tc := range []struct {
		name   string
		others []*candidate
		want   int64
	}{
		{"nobody", nil, 0},
		{"one", []*candidate{witness}, 1000},
		{"one, and one who has said nothing", []*candidate{witness, {good: true}}, 0},
		{"one, and one who has said something later", []*candidate{witness, {good: true, seen: []sighting{at(11, 2000)}}}, 0},
		{"one, and one who has said something long ago", []*candidate{witness, {good: true, seen: []sighting{at(-200, 1000)}}}, 0},
		{"one, and one who is down", []*candidate{witness, {kind: FaultTimeout}}, 1000},
		{"one, and one who lies", []*candidate{witness, {kind: FaultAhead, seen: []sighting{at(5, 9000)}}}, 1000},
		{"two", []*candidate{witness, {good: true, seen: []sighting{at(4, 1900)}}}, 900},
		{"two who differ", []*candidate{witness, {good: true, seen: []sighting{at(4, 1010)}}}, 10},
	} {
		p := &Pool{candidates: append([]*candidate{suspect}, tc.others...)}
		if got := p.behind(suspect, suspect.seen[0]); got != tc.want {
			t.Errorf("%s: %d behind, want %d", tc.name, got, tc.want)
		}
	}
}

func TestWhoIsTheBest(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	before, after := now.Add(-time.Minute), now.Add(time.Minute)
	latency := func(ms int) []time.Duration { return []time.Duration{time.Duration(ms) * time.Millisecond} }
	all := []*candidate{
		{name: "in use", good: true, since: before, heldUntil: after, latencies: latency(90)},
		{name: "trusted", good: true, since: before, latencies: latency(80)},
		{name: "trusted, slower", good: true, since: before, latencies: latency(95)},
		{name: "proven", good: true, since: before, heldUntil: after, latencies: latency(10)},
		{name: "alive", up: true, since: before, latencies: latency(5)},
		{name: "not checked yet"},
		{name: "failed first", since: before, lastFail: before},
		{name: "failed last", since: before, lastFail: now},
	}
	limited := &candidate{name: "limited", good: true, since: before, silentUntil: after, latencies: latency(1)}
	p := &Pool{candidates: slices.Concat(all[4:], []*candidate{limited}, all[:4]), inUse: all[0]}
	var got, want []string
	taken := make(map[*candidate]bool)
	for _, c := range all {
		want = append(want, c.name)
		best := p.best(now, func(c *candidate) bool { return taken[c] })
		if best == nil {
			t.Fatalf("nobody after %q", got)
		}
		got, taken[best] = append(got, best.name), true
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("from the best to the worst (-want +got):\n%s", diff)
	}
	if best := p.best(now, func(c *candidate) bool { return taken[c] }); best != nil {
		t.Errorf("%q, which is not to be asked now", best.name)
	}
}

// With one candidate there is nothing to choose: it is tried for ever, and used again at once when it works.
func TestASingleCandidateIsKept(t *testing.T) {
	simulate(t, plainURL, []netip.Addr{addrA}, nil, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
		pass(time.Minute)
		w.set(func() { w.servers[addrA].status = http.StatusBadGateway })
		pass(time.Hour)
		if resp, _, err := send(t.Context(), p, "x"); err != nil || resp.StatusCode != http.StatusBadGateway {
			t.Errorf("while it fails: %v, %v, want status 502", resp, err)
		}
		w.set(func() { w.servers[addrA].status = 0 })
		if _, answer, err := send(t.Context(), p, "x"); err != nil || answer != "x" {
			t.Errorf("when it works: %q, %v", answer, err)
		}
	})
}

// After an outage of all, calls succeed as soon as one candidate has answered a check: nobody waits for three.
func TestWorkGoesOnAtTheFirstGoodCheck(t *testing.T) {
	simulate(t, goodURL, five, graded, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
		pass(time.Minute)
		w.set(func() {
			for i, addr := range five {
				w.servers[addr].blackhole = i%2 == 0
				w.servers[addr].refuse, w.servers[addr].reset = i%2 != 0, i%2 != 0
			}
		})
		pass(3 * time.Hour)
		if got := inUse(p); got.IsValid() {
			t.Fatalf("%v is good", got)
		}
		w.set(func() { w.servers[addrD].refuse, w.servers[addrD].reset = false, false })
		n := get(w, func() int { return w.checked })
		until(t, 61*time.Second, "a check answered", func() bool { return get(w, func() int { return w.checked }) > n })
		if status(p, addrD).Good {
			t.Error("good after one check")
		}
		for range 5 {
			if _, answer, err := send(t.Context(), p, "x"); err != nil || answer != "x" {
				t.Errorf("call: %q, %v", answer, err)
			}
		}
		until(t, 30*time.Second, "good again", func() bool { return inUse(p) == addrD })
	})
}

func TestTheClusterOfMostCandidatesCounts(t *testing.T) {
	simulate(t, plainURL, []netip.Addr{addrA, addrB, addrC}, func(w *world) {
		w.servers[addrA].cluster, w.servers[addrA].delay = "other", time.Millisecond // the first to answer
		w.servers[addrC].delay = 3 * time.Second                                     // and the last, by far
	}, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
		pass(5 * time.Minute)
		if got := inUse(p); got != addrB {
			t.Errorf("%v in use, want %v", got, addrB)
		}
		if s := status(p, addrA); s.Good || s.Faults[FaultWrongCluster] == 0 || s.Reason != "belongs to cluster other, not main" {
			t.Errorf("one of another cluster: %+v", s)
		}
		// One that changes sides is found out within the hour.
		w.set(func() { w.servers[addrB].cluster = "other" })
		pass(61 * time.Minute)
		if got := inUse(p); got != addrC {
			t.Errorf("%v in use, want %v", got, addrC)
		}
		// One that was away is asked at once.
		w.set(func() { w.servers[addrC].refuse, w.servers[addrC].reset = true, true })
		pass(30 * time.Second)
		w.set(func() {
			w.servers[addrC].refuse, w.servers[addrC].reset, w.servers[addrC].cluster = false, false, "other"
		})
		pass(5 * time.Minute)
		if got := inUse(p); got.IsValid() {
			t.Errorf("%v in use, of another cluster", got)
		}
		w.set(func() { w.servers[addrC].cluster = "main" })
		pass(5 * time.Minute)
		if got := inUse(p); got != addrC {
			t.Errorf("%v in use, want %v", got, addrC)
		}
		// And it is not asked even if nobody else answers.
		w.set(func() { w.servers[addrC].refuse, w.servers[addrC].reset = true, true })
		calls := func() int { return get(w, func() int { return w.servers[addrA].calls + w.servers[addrB].calls }) }
		n := calls()
		for range 10 {
			if _, answer, err := send(t.Context(), p, "x"); err == nil {
				t.Errorf("answer %q", answer)
			}
			pass(10 * time.Second)
		}
		if more := calls() - n; more != 0 {
			t.Errorf("%d calls to the wrong cluster", more)
		}
	})
}

func TestWithOnlyTheWrongClusterCallsFail(t *testing.T) {
	simulate(t, plainURL, []netip.Addr{addrA}, func(w *world) {
		w.saved = []byte(`{"record":{"cluster":"main","host":"rpc.example"}}`)
		w.servers[addrA].cluster = "other"
	}, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
		_, _, err := send(t.Context(), p, "x")
		if failure, ok := errors.AsType[*Error](err); !ok || failure.Kind != FaultWrongCluster {
			t.Errorf("%v, want an *Error of kind %s", err, FaultWrongCluster)
		}
	})
}

// What answers calls with status 200 and makes no sense, as a captive portal does, is not taken for the one that works.
func TestNonsenseIsNoSignOfLife(t *testing.T) {
	simulate(t, plainURL, two, aFirst, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
		pass(time.Minute)
		w.set(func() { w.servers[addrB].body = "<html>log in first</html>" })
		pass(time.Minute)
		w.set(func() { w.servers[addrA].refuse, w.servers[addrA].reset = true, true })
		busy(t, p, time.Second)
		pass(time.Hour)
		w.set(func() { w.servers[addrA].refuse, w.servers[addrA].reset = false, false })
		if s := status(p, addrB); s.InUse || s.Good || s.OK == 0 {
			t.Errorf("the one that makes no sense: %+v, want calls answered, but not in use", s)
		}
		ok := status(p, addrA).OK
		until(t, 61*time.Second, "a good check", func() bool { return status(p, addrA).OK > ok })
		for range 5 {
			if _, answer, err := send(t.Context(), p, "x"); err != nil || answer != "x" {
				t.Errorf("call: %q, %v", answer, err)
			}
		}
		w.set(func() {
			if s := w.servers[addrB]; s.requests-s.calls > 3600/5+100 {
				t.Errorf("%d checks of the one that makes no sense in an hour", s.requests-s.calls)
			}
		})
	})
}

func TestOneWhoseSendsNeverLandIsLeft(t *testing.T) {
	type call struct {
		landed bool
		addr   netip.Addr
	}
	for _, tc := range []struct {
		name  string
		calls []call
		bad   bool
	}{
		{"two expired while another's landed", []call{{false, addrA}, {true, addrB}, {false, addrA}}, true},
		{"two expired, then another's landed", []call{{false, addrA}, {false, addrA}, {true, addrB}}, true},
		{"another's landed before", []call{{true, addrB}, {false, addrA}, {false, addrA}}, false},
		{"one expired", []call{{false, addrA}, {true, addrB}}, false},
		{"one landed between", []call{{false, addrA}, {true, addrA}, {true, addrB}, {false, addrA}}, false},
		{"all expire", []call{{false, addrA}, {false, addrB}, {false, addrA}, {false, addrB}}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			simulate(t, plainURL, []netip.Addr{addrA, addrB}, func(w *world) {
				w.servers[addrB].delay = 20 * time.Millisecond
			}, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
				pass(time.Minute)
				for _, call := range tc.calls {
					if call.landed {
						p.Landed(plainName(call.addr))
					} else {
						p.Expired(plainName(call.addr))
					}
					pass(time.Millisecond)
				}
				p.Landed("nobody")
				p.Expired("nobody")
				if got := !status(p, addrA).Good; got != tc.bad {
					t.Errorf("bad %t, want %t", got, tc.bad)
				}
				if want := map[bool]netip.Addr{false: addrA, true: addrB}[tc.bad]; inUse(p) != want {
					t.Errorf("%v in use, want %v", inUse(p), want)
				}
			})
		})
	}
}

// The standing of candidates must not depend on when they were asked: with slots of 5 ms, 30 s between two checks are 6,000.
func TestAFastLedgerMarksNobody(t *testing.T) {
	simulate(t, plainURL, five, graded, func(t *testing.T, w *world, p *Pool, _ *observer.ObservedLogs) {
		w.set(func() { w.slotTime = 5 * time.Millisecond })
		if got := moves(p, time.Hour); len(got) > 2 {
			t.Errorf("in use: %v", got)
		}
		for _, s := range p.Status() {
			if s.Failed != 0 {
				t.Errorf("%+v, want nothing failed", s)
			}
		}
	})
}
