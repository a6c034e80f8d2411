// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap/zaptest/observer"
)

// An outage of 22 h: names cannot be looked up, some addresses answer 503, some are silent, and some refuse. Calls go on all the time.
func TestA22HourOutageCostsFewLines(t *testing.T) {
	for _, tc := range []struct {
		name  string
		pause time.Duration
		lines int // at most
	}{
		{"at once", 0, 5},
		{"one after the other", time.Minute, 9},
	} {
		t.Run(tc.name, func(t *testing.T) {
			simulate(t, plainURL, five, graded, func(t *testing.T, w *world, p *Pool, logs *observer.ObservedLogs) {
				busy(t, p, 30*time.Second)
				pass(time.Hour)
				before := logs.Len()
				lookup := get(w, func() func(context.Context) ([]netip.Addr, error) { return w.lookup })
				w.set(func() {
					w.lookup = func(context.Context) ([]netip.Addr, error) { return nil, errors.New("server misbehaving") }
				})
				for i, addr := range five {
					<-time.After(tc.pause)
					w.set(func() {
						s := w.servers[addr]
						switch i {
						case 0, 3:
							s.status = http.StatusServiceUnavailable
						case 1:
							s.silent = true
						case 2:
							s.blackhole = true
						default:
							s.refuse, s.reset = true, true
						}
					})
				}
				pass(22 * time.Hour)
				if got := inUse(p); got.IsValid() {
					t.Fatalf("%v in use", got)
				}
				w.set(func() {
					w.lookup = lookup
					for _, s := range w.servers {
						s.status, s.silent, s.blackhole, s.refuse, s.reset = 0, false, false, false, false
					}
				})
				until(t, 3*time.Minute, "one good again", func() bool { return inUse(p).IsValid() })
				pass(time.Hour)

				got := lines(logs)[before:]
				for _, line := range got {
					t.Log(line)
				}
				if len(got) > tc.lines {
					t.Errorf("%d lines, want at most %d", len(got), tc.lines)
				}
				text := strings.Join(got, "\n")
				for _, want := range []string{"no endpoint is good", addrB.String() + ": no answer in time", addrE.String() + ": connection", "status 503",
					`"after":"2`, `"failures":`, "look-up of endpoint fails", "look-up of endpoint works again", "endpoint in use"} {
					if !strings.Contains(text, want) {
						t.Errorf("nothing in the log about %q", want)
					}
				}
			})
		})
	}
}

// Whatever fails for 22 hours, all the time or by turns, has few lines: one with the cause at once, and in the end one with how often
// and for how long.
func TestLogOver22Hours(t *testing.T) {
	const (
		outage = 22 * time.Hour
		ends   = "endpoint (in use|good again)"
	)
	all := func(fail func(s *server, fails bool)) func(*world, bool) {
		return func(w *world, fails bool) {
			for _, s := range w.servers {
				fail(s, fails)
			}
		}
	}
	for _, fault := range []struct {
		name        string
		set         func(w *world, fails bool)
		cause, ends string
		seldom      bool // it is tried once a minute, so that turns have to be longer
	}{
		{"status 503", all(func(s *server, fails bool) {
			if s.status = 0; fails {
				s.status = http.StatusServiceUnavailable
			}
		}), "status 503", ends, false},
		{"refused", all(func(s *server, fails bool) { s.refuse, s.reset = fails, fails }), "connection", ends, false},
		{"silent", all(func(s *server, fails bool) { s.silent = fails }), "no answer in time", ends, false},
		{"one of two", func(w *world, fails bool) {
			if w.servers[addrA].status = 0; fails {
				w.servers[addrA].status = http.StatusServiceUnavailable
			}
		}, "status 503", ends, false},
		{"look-up", func(w *world, fails bool) {
			w.lookup = func(context.Context) ([]netip.Addr, error) {
				if fails {
					return nil, errors.New("server misbehaving")
				}
				return two, nil
			}
		}, "server misbehaving", "look-up of endpoint works again", true},
		{"memory", func(w *world, fails bool) {
			if w.saveErr = nil; fails {
				w.saveErr = errors.New("disk full")
			}
		}, "disk full", "known endpoint addresses saved again", true},
	} {
		turn := 30 * time.Second
		if fault.seldom {
			turn = 7 * time.Minute
		}
		for name, fails := range map[string]func(time.Duration) bool{
			"all the time": func(time.Duration) bool { return true },
			"by turns":     func(after time.Duration) bool { return after%(2*turn) < turn },
		} {
			t.Run(fault.name+"/"+name, func(t *testing.T) {
				simulate(t, plainURL, two, aFirst, func(t *testing.T, w *world, p *Pool, logs *observer.ObservedLogs) {
					busy(t, p, 20*time.Second)
					pass(time.Hour)
					logs.TakeAll()
					begin := time.Now()
					for failing := false; time.Since(begin) < outage+3*time.Hour; pass(30 * time.Second) {
						after := time.Since(begin)
						if now := after < outage && fails(after); now != failing {
							failing = now
							w.set(func() { fault.set(w, now) })
							p.mu.Lock()
							p.saver.dirty = true // as if a look-up had given a new address
							p.mu.Unlock()
						}
					}
					entries, said := logs.All(), lines(logs)
					if len(said) < 2 || len(said) > 9 {
						t.Fatalf("%d lines, want 2 to 9: %q", len(said), said[:min(len(said), 20)])
					}
					if at := entries[0].Time.Sub(begin); at > 3*time.Minute || !strings.Contains(said[0], fault.cause) {
						t.Errorf("the first line, %v after the outage began, is %s; want the cause soon", at, said[0])
					}
					last := said[len(said)-1]
					if at := entries[len(said)-1].Time.Sub(begin); at > outage+2*time.Hour || !regexp.MustCompile(fault.ends).MatchString(last) ||
						!strings.Contains(last, `"after"`) || !strings.Contains(last, `"failures"`) {
						t.Errorf("the last line, %v after the outage began, is %s; want how often and for how long", at, last)
					}
				})
			})
		}
	}
}

// Case 6 of the field reports, its second half: the name rotates, and connections never last.
func TestRotatingAddressesAreNoNews(t *testing.T) {
	certificate()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, addrA, addrB)
		looked := 0
		w.lookup = func(context.Context) ([]netip.Addr, error) {
			looked++
			return []netip.Addr{addrA, addrB}[looked%2 : looked%2+1], nil
		}
		for _, s := range w.servers {
			s.header = http.Header{"Connection": {"close"}}
		}
		w.serve()
		cfg, logs := w.config(plainURL)
		p, _ := w.start(cfg)
		pass(time.Minute)
		for i := range 100 {
			avoid := plainName([]netip.Addr{addrA, addrB}[i%2])
			if _, _, err := send(WithRoute(t.Context(), &Route{Avoid: avoid}), p, "x"); err != nil {
				t.Error(err)
			}
			pass(time.Minute)
		}
		if n := get(w, func() int { return w.dials }); n < 100 {
			t.Errorf("%d dials, want 100 or more", n)
		}
		if n := logs.Len(); n == 0 || n > 2 {
			t.Errorf("%d lines, want one or two: %q", n, lines(logs))
		}
		if got := len(p.Status()); got != 2 {
			t.Errorf("%d candidates, want 2", got)
		}
	})
}

// A name that gives another dead address at each look-up for 22 hours beside a good one.
func TestDeadAddressesHaveFewLines(t *testing.T) {
	certificate()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, addrA)
		dead := netip.MustParseAddr("198.51.100.0")
		w.lookup = func(context.Context) ([]netip.Addr, error) {
			if dead = dead.Next(); !dead.IsValid() || dead.As4()[0] != 198 {
				t.Error("all addresses are used up")
			}
			return []netip.Addr{addrA, dead}, nil
		}
		w.serve()
		cfg, logs := w.config(plainURL)
		p, _ := w.start(cfg)
		pass(22 * time.Hour)
		if inUse(p) != addrA {
			t.Errorf("%v is in use", inUse(p))
		}
		bad := logs.FilterMessage("endpoint bad").Len()
		if n := logs.Len(); bad == 0 || n > 9 {
			t.Errorf("%d lines, %d of them about dead addresses; want 9 at most, and some: %q", n, bad, lines(logs)[:min(n, 20)])
		}
	})
}

// An endpoint that flaps for a day is worth a line an hour, and the first few.
func TestFlappingCostsALineAnHour(t *testing.T) {
	simulate(t, plainURL, two, aFirst, func(t *testing.T, w *world, p *Pool, logs *observer.ObservedLogs) {
		pass(time.Minute)
		for i := range 24 * 30 {
			w.set(func() {
				for _, s := range w.servers {
					s.status = []int{http.StatusBadGateway, 0}[i%2]
				}
			})
			pass(2 * time.Minute)
		}
		if n := logs.Len(); n < 4 || n > 24 {
			t.Errorf("%d lines, want 4 to 24: %q", n, lines(logs)[:24])
		}
	})
}

func TestATellerTellsWhatLasts(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	tl := teller{told: stateGood}
	state := func(after time.Duration, state string) bool {
		now = now.Add(after)
		told := tl.due(now, state)
		if told {
			tl.tell(now, 0)
		}
		return told
	}
	for i := range freeLines {
		if !state(time.Second, []string{stateBad, stateGood}[i%2]) {
			t.Errorf("change %d is not told", i)
		}
	}
	if state(time.Second, stateBad) || state(firstPatience-time.Second, stateBad) {
		t.Error("told although it has not lasted")
	}
	if !state(time.Second, stateBad) {
		t.Error("not told although it lasts")
	}
	if state(time.Second, stateGood) || state(firstPatience, stateGood) || !state(firstPatience, stateGood) {
		t.Error("want the next one told after twice the time")
	}
	// A line of the pool stands for it for some time, after which it is as it was before: that has not lasted.
	if state(time.Minute, stateBad) {
		t.Error("told although it has not lasted")
	}
	now = now.Add(time.Hour)
	tl.assume(now, stateGood, 0, 0)
	if state(time.Second, stateBad) || state(time.Minute, stateBad) {
		t.Error("told although another state was assumed in between")
	}
	tl.assume(now, stateGood, 0, 0)
	if !state(quiet+time.Second, stateBad) {
		t.Error("not told at once after a quiet time")
	}
}
