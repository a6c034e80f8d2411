// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
	"github.com/xtwamp/xtwamp/probe/twamp"
)

// outcome is the part of a sample that most tests are about.
type outcome struct {
	Outcome store.Outcome
	Reason  store.Reason
	RTT     time.Duration
}

func outcomes(samples []store.Sample) []outcome {
	var out []outcome
	for _, s := range samples {
		out = append(out, outcome{s.Outcome, s.Reason, time.Duration(s.RTT)})
	}
	return out
}

const ms = time.Millisecond

func TestEachReplyIsCreditedToItsProbe(t *testing.T) {
	// Case 19: the reply to the second probe comes after the third was sent,
	// the reply to the third never.
	bubble(t, func(t *testing.T) {
		s := simulate(t, count(4), simTarget("a", time.Second))
		s.net.reach = func(p *simProbe) {
			switch p.nth {
			case 1:
				p.answer(1500 * ms)
			case 2:
			default:
				p.answer(30 * ms)
			}
		}
		s.measure(t)
		want := []outcome{{RTT: 30 * ms}, {Outcome: store.Late, RTT: 1500 * ms}, {Outcome: store.Lost}, {RTT: 30 * ms}}
		if diff := cmp.Diff(want, outcomes(s.samples["a"])); diff != "" {
			t.Errorf("outcomes (-want +got):\n%s", diff)
		}
		got := s.counters("a").Counters
		want2 := Counters{Sent: 4, Received: 3, Late: 1, Lost: 1, LastReply: got.LastReply, NotSent: map[store.Reason]uint64{}}
		if diff := cmp.Diff(want2, got); diff != "" {
			t.Errorf("counters (-want +got):\n%s", diff)
		}
	})
}

func TestDuplicateAndUnknownReplies(t *testing.T) {
	// Case 21: a duplicate, then a number that was never sent.
	bubble(t, func(t *testing.T) {
		s := simulate(t, count(2), simTarget("a", time.Second))
		s.net.reach = func(p *simProbe) {
			p.answer(30 * ms)
			if p.nth == 0 {
				p.answer(82 * ms)
				p.answerEdited(90*ms, func(r *reply) { r.seq += 9999 })
				// The right number with another's time stamp is no answer.
				p.answerEdited(20*ms, func(r *reply) { r.wire++ })
			}
		}
		s.measure(t)
		c := s.counters("a")
		if c.Duplicates != 1 || s.Stats().Unmatched != 2 {
			t.Errorf("duplicates %d, unmatched %d, want 1 and 2", c.Duplicates, s.Stats().Unmatched)
		}
		want := []outcome{{RTT: 30 * ms}, {RTT: 30 * ms}}
		if diff := cmp.Diff(want, outcomes(s.samples["a"])); diff != "" {
			t.Errorf("outcomes (-want +got):\n%s", diff)
		}
	})
}

func TestOrderAndReordering(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := simulate(t, count(4), simTarget("a", 100*ms))
		delays := []time.Duration{10 * ms, 350 * ms, 20 * ms, 10 * ms} // 1 comes after 2 and 3
		s.net.reach = func(p *simProbe) { p.answer(delays[p.nth]) }
		s.measure(t)
		var want []outcome
		for _, d := range delays {
			want = append(want, outcome{RTT: d})
		}
		if diff := cmp.Diff(want, outcomes(s.samples["a"])); diff != "" {
			t.Errorf("samples in sending order (-want +got):\n%s", diff)
		}
		if got := s.counters("a").Reordered; got != 1 {
			t.Errorf("reordered = %d, want 1", got)
		}
	})
}

func TestNothingIsHandedOnAheadOfAnOlderProbe(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := simulate(t, count(3), simTarget("a", 100*ms))
		handedOn := 0
		s.net.reach = func(p *simProbe) {
			handedOn = len(s.samples["a"])
			if p.nth > 0 {
				p.answer(ms)
			}
		}
		s.measure(t)
		if handedOn != 0 {
			t.Errorf("%d samples were handed on while the first probe had no outcome", handedOn)
		}
		want := []outcome{{Outcome: store.Lost}, {RTT: ms}, {RTT: ms}}
		if diff := cmp.Diff(want, outcomes(s.samples["a"])); diff != "" {
			t.Errorf("outcomes (-want +got):\n%s", diff)
		}
	})
}

func TestReplyAfterTheLateWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := simulate(t, count(2), simTarget("a", 10*time.Second))
		s.net.reach = func(p *simProbe) {
			if p.nth == 0 {
				p.answer(4001 * ms)
			} else {
				p.answer(3999 * ms)
			}
		}
		s.measure(t)
		want := []outcome{{Outcome: store.Lost}, {Outcome: store.Late, RTT: 3999 * ms}}
		if diff := cmp.Diff(want, outcomes(s.samples["a"])); diff != "" {
			t.Errorf("outcomes (-want +got):\n%s", diff)
		}
		if c := s.counters("a"); c.Duplicates != 0 || s.Stats().Unmatched != 1 {
			t.Errorf("duplicates %d, unmatched %d, want 0 and 1", c.Duplicates, s.Stats().Unmatched)
		}
	})
}

func TestTargetWithoutInterfaceIsNotLoss(t *testing.T) {
	// Case 39.
	bubble(t, func(t *testing.T) {
		s := simulate(t, count(5), simTarget("a", time.Second))
		s.net.opens = func(openRequest) (netip.Addr, error) {
			return netip.Addr{}, down(store.NoInterface, "no interface eth7")
		}
		s.measure(t)
		c := s.counters("a")
		want := Counters{NotSent: map[store.Reason]uint64{store.NoInterface: 5}}
		if diff := cmp.Diff(want, c.Counters); diff != "" {
			t.Errorf("counters (-want +got):\n%s", diff)
		}
		for i, o := range outcomes(s.samples["a"]) {
			if want := (outcome{Outcome: store.NotSent, Reason: store.NoInterface}); o != want {
				t.Errorf("sample %d = %+v, want %+v", i, o, want)
			}
		}
	})
}

func TestPathComesAliveWithItsInterface(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := simulate(t, count(6), simTarget("a", time.Second))
		begin := time.Now()
		s.net.opens = func(openRequest) (netip.Addr, error) {
			if time.Since(begin) < 2500*ms {
				return netip.Addr{}, down(store.NoInterface, "no interface eth7")
			}
			return netip.MustParseAddr("192.0.2.1"), nil
		}
		s.net.reach = func(p *simProbe) { p.answer(ms) }
		s.measure(t)
		missing := outcome{Outcome: store.NotSent, Reason: store.NoInterface}
		want := []outcome{missing, missing, missing, {RTT: ms}, {RTT: ms}, {RTT: ms}}
		if diff := cmp.Diff(want, outcomes(s.samples["a"])[:6]); diff != "" {
			t.Errorf("outcomes (-want +got):\n%s", diff)
		}
	})
}

func TestOneDeadTargetDelaysNoOther(t *testing.T) {
	// Case 41.
	bubble(t, func(t *testing.T) {
		var sent []time.Duration
		begin := time.Now()
		s := simulate(t, count(20), simTarget("dead", 100*ms), simTarget("b", 100*ms), simTarget("c", 100*ms))
		s.net.reach = func(p *simProbe) {
			if p.path.target.Name != "dead" {
				sent = append(sent, time.Since(begin))
				p.answer(ms)
			}
		}
		s.measure(t)
		for _, name := range []string{"b", "c"} {
			if c := s.counters(name); c.Received != 20 {
				t.Errorf("%s received %d, want 20", name, c.Received)
			}
		}
		for i, at := range sent {
			if want := time.Duration(i/2) * 100 * ms; at != want {
				t.Errorf("probe %d sent at %s, want %s", i, at, want)
			}
		}
		if c := s.counters("dead"); c.Lost != 20 {
			t.Errorf("the dead target lost %d, want 20", c.Lost)
		}
	})
}

func TestMemoryIsFlatWithoutReplies(t *testing.T) {
	// Case 42, with a million probes.
	bubble(t, func(t *testing.T) {
		const probes = 1_000_000
		target := simTarget("a", 10*ms)
		var got uint64
		s := simulate(t, func(c *Config) {
			c.Count = probes
			c.Emit = func(int, store.Sample) { got++ }
		}, target)
		heap := func() uint64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		var early, late uint64
		s.net.reach = func(p *simProbe) {
			switch p.nth {
			case probes / 10:
				early = heap()
			case probes - 1:
				late = heap()
			}
		}
		window := len(s.paths[0].window)
		s.measure(t)
		if got != probes {
			t.Errorf("%d samples, want %d", got, probes)
		}
		if len(s.paths[0].window) != window {
			t.Errorf("the in-flight table grew from %d to %d", window, len(s.paths[0].window))
		}
		if late > early+1<<20 {
			t.Errorf("heap grew from %d to %d bytes", early, late)
		}
	})
}

func TestRoundTripAboveTheInterval(t *testing.T) {
	// Case 43.
	bubble(t, func(t *testing.T) {
		s := simulate(t, count(50), simTarget("a", 100*ms))
		most := uint64(0)
		s.net.reach = func(p *simProbe) {
			c := p.path.counters
			most = max(most, c.Sent+1-c.Received)
			p.answer(250 * ms)
		}
		s.measure(t)
		if c := s.counters("a"); c.Received != 50 || c.Lost != 0 {
			t.Errorf("received %d, lost %d, want 50 and 0", c.Received, c.Lost)
		}
		if most < 3 {
			t.Errorf("at most %d probes in flight, want 3 or more", most)
		}
	})
}

func TestNameIsResolvedUntilItWorksAndAgainLater(t *testing.T) {
	// Case 45.
	bubble(t, func(t *testing.T) {
		a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.99")
		named := simTarget("a", time.Second)
		named.Address = "far.example"
		s := simulate(t, nil, named)
		attempts := 0
		begin := time.Now()
		s.net.opens = func(openRequest) (netip.Addr, error) {
			attempts++
			switch {
			case attempts <= 2:
				return netip.Addr{}, down(store.NoRoute, "resolve far.example: no such host")
			case time.Since(begin) < 150*time.Second:
				return a, nil
			default:
				return b, nil
			}
		}
		seen := map[netip.Addr]int{}
		s.net.reach = func(p *simProbe) {
			seen[p.path.flow.Remote.Addr()]++
			p.answer(ms)
		}
		s.measureFor(t, 5*time.Minute)
		if seen[a] < 100 || seen[b] < 100 {
			t.Errorf("probes by address: %v, want more than 100 to each", seen)
		}
		c := s.counters("a")
		if c.NotSent[store.NoRoute] != 1 || c.Lost != 0 {
			t.Errorf("not sent %d, lost %d; want 1 (while the name did not resolve) and 0", c.NotSent[store.NoRoute], c.Lost)
		}
	})
}

func TestNamesThatHangHoldUpNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		targets := []target.Target{simTarget("literal", time.Second)}
		for i := range 40 {
			named := simTarget(fmt.Sprintf("name%d", i), time.Second)
			named.Address = "hangs.example"
			targets = append(targets, named)
		}
		s := simulate(t, func(c *Config) { c.AtOnce = false }, targets...)
		s.net.hang = func(req openRequest) bool { return req.target.Address == "hangs.example" }
		s.net.reach = func(p *simProbe) { p.answer(ms) }
		s.measureFor(t, 30*time.Second)
		if c := s.counters("literal"); c.Received < 29 {
			t.Errorf("the literal target got %d replies in 30 s", c.Received)
		}
		// The others are counted meanwhile.
		if c := s.counters("name39"); c.NotSent[store.NoRoute] < 20 {
			t.Errorf("%d probes to a name that hangs are counted, want more than 20", c.NotSent[store.NoRoute])
		}
	})
}

func TestTroubleHasFewLines(t *testing.T) {
	// 22 hours of each fault, steady and coming and going.
	faults := map[string]func(s *simulation, p *simProbe) bool{ // whether it is answered
		"lost":         func(*simulation, *simProbe) bool { return false },
		"lost by half": func(_ *simulation, p *simProbe) bool { return p.nth%40 < 20 },
		"refused now and then": func(s *simulation, p *simProbe) bool {
			s.net.sending = nil
			if p.nth%3 == 2 {
				s.net.sending = down(store.NoBuffer, "no buffer space available")
				time.AfterFunc(1500*ms, func() {
					s.mu.Lock()
					defer s.mu.Unlock()
					s.net.sending = nil
				})
			}
			return true
		},
		"bypassed": func(_ *simulation, p *simProbe) bool {
			p.answerEdited(ms, func(r *reply) { r.txSource, r.rxSource = store.NoSource, store.User })
			return false
		},
	}
	for name, answered := range faults {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				core, logged := observer.New(zap.InfoLevel)
				s := simulate(t, func(c *Config) { c.Logger = zap.New(core) }, simTarget("a", time.Second))
				begin := time.Now()
				s.net.reach = func(p *simProbe) {
					if hour := time.Since(begin) / time.Hour; hour < 1 || hour >= 23 || answered(s, p) {
						p.answer(ms)
					}
				}
				s.measureFor(t, 24*time.Hour)
				n := logged.FilterLevelExact(zap.WarnLevel).Len() + logged.FilterLevelExact(zap.ErrorLevel).Len()
				if n == 0 || logged.Len() > 9 {
					t.Errorf("%d lines, %d of them warnings; want at most 9, and some", logged.Len(), n)
				}
				if name == "lost" && logged.FilterMessage("path works again").Len() != 1 {
					t.Error("no line says that the trouble is over")
				}
			})
		})
	}
}

func TestNewSourcePortAfterLongLoss(t *testing.T) {
	// Case 35, with a middlebox that swallows one source port.
	bubble(t, func(t *testing.T) {
		s := simulate(t, nil, simTarget("a", 100*ms))
		var blocked uint16
		s.net.reach = func(p *simProbe) {
			port := p.path.flow.Local.Port()
			if p.nth == 10 {
				blocked = port
			}
			if port != blocked {
				p.answer(5 * ms)
			}
		}
		s.measureFor(t, 20*time.Second)
		c := s.counters("a")
		// The loss of the fifth is known 4.4 s after the first was sent.
		if c.Lost < lossesBeforeNewPort || c.Lost > 60 {
			t.Errorf("lost %d, want 5 to 60", c.Lost)
		}
		if got := outcomes(s.samples["a"]); got[len(got)-1].Outcome != store.OnTime {
			t.Errorf("the last sample is %v, want on time", got[len(got)-1])
		}
		ports := len(s.net.opened)
		if ports != 2 {
			t.Errorf("opened %d times, want 2: a new port once", ports)
		}
	})
}

func TestNewSourcePortAlsoAfterASlowRefresh(t *testing.T) {
	// The fifth loss falls into a refresh that takes long.
	bubble(t, func(t *testing.T) {
		named := simTarget("a", time.Second)
		named.Address = "far.example"
		s := simulate(t, nil, named)
		begin := time.Now()
		var stuck uint16
		s.net.hang = func(req openRequest) bool { return req.refresh && time.Since(begin) < 90*time.Second }
		s.net.reach = func(p *simProbe) {
			port := p.path.flow.Local.Port()
			if time.Since(begin) < 56*time.Second {
				stuck = port
				p.answer(ms)
			} else if port != stuck {
				p.answer(ms)
			}
		}
		s.measureFor(t, 5*time.Minute)
		if got := outcomes(s.samples["a"]); got[len(got)-1].Outcome != store.OnTime {
			t.Errorf("the last sample is %v, want on time: stuck on the first port", got[len(got)-1])
		}
	})
}

func TestRecordOfWhatTheSlotToldIsNoDuplicate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := simulate(t, count(1), simTarget("a", time.Second))
		s.net.reach = func(p *simProbe) {
			var first reply
			p.answerEdited(ms, func(r *reply) { first = *r })
			p.answerEdited(5*ms, func(r *reply) { *r = first })
		}
		s.measure(t)
		if c := s.counters("a"); c.Duplicates != 0 || c.Received != 1 {
			t.Errorf("duplicates %d, received %d; want 0 and 1", c.Duplicates, c.Received)
		}
	})
}

func TestStampFromBeforeTheProbeIsAnothers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := simulate(t, count(1), simTarget("a", time.Second))
		s.net.step = StepSocket
		s.net.misnumbered = 20 * ms
		s.net.reach = func(p *simProbe) { p.answer(ms) }
		s.measure(t)
		if got := s.samples["a"][0]; got.TX != store.User || got.RTT != int64(ms) {
			t.Errorf("tx %s, RTT %s; want user, 1ms", got.TX, time.Duration(got.RTT))
		}
	})
}

func TestWindowHoldsWhatIsCaughtUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		fast := simTarget("a", 10*ms)
		fast.Timeout, fast.LateWindow = 10*ms, 0
		s := simulate(t, count(100), fast)
		s.net.reach = func(p *simProbe) {
			if p.nth == 10 {
				time.Sleep(95 * ms) // the scheduler itself
			}
			p.answer(ms)
		}
		s.measure(t)
		if c := s.counters("a"); c.Sent != 100 || c.Skipped != 0 {
			t.Errorf("sent %d, skipped %d; want 100 and 0", c.Sent, c.Skipped)
		}
	})
}

func TestFixedSourcePortStays(t *testing.T) {
	bubble(t, func(t *testing.T) {
		fixed := simTarget("a", 100*ms)
		fixed.SourcePort = 51000
		s := simulate(t, count(100), fixed)
		s.measure(t)
		if n := len(s.net.opened); n != 1 {
			t.Errorf("opened %d times, want once", n)
		}
	})
}

func TestVanishedInterfaceIsNotLoss(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := simulate(t, count(3), simTarget("a", time.Second))
		s.net.reach = func(p *simProbe) {
			if p.nth == 2 {
				s.net.gone = true
				return
			}
			p.answer(ms)
		}
		s.measure(t)
		want := []outcome{{RTT: ms}, {RTT: ms}, {Outcome: store.Unknown, Reason: store.InterfaceGone}}
		if diff := cmp.Diff(want, outcomes(s.samples["a"])); diff != "" {
			t.Errorf("outcomes (-want +got):\n%s", diff)
		}
	})
}

func TestWhatTheKernelRefusesIsNotSent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := simulate(t, count(2), simTarget("a", time.Second))
		s.net.sending = down(store.Permission, "send: operation not permitted")
		s.measure(t)
		want := outcome{Outcome: store.NotSent, Reason: store.Permission}
		if diff := cmp.Diff([]outcome{want, want}, outcomes(s.samples["a"])); diff != "" {
			t.Errorf("outcomes (-want +got):\n%s", diff)
		}
		if c := s.counters("a"); c.Sent != 0 || c.InFlight != 0 {
			t.Errorf("sent %d, in flight %d, want 0 and 0", c.Sent, c.InFlight)
		}
	})
}

func TestSteppedWallClock(t *testing.T) {
	// Case 20, and "a stepped wall clock changes no RTT".
	for _, step := range []Step{StepTCX, StepSocket} {
		t.Run(step.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := simulate(t, count(20), simTarget("a", time.Second))
				s.net.step = step
				s.net.reach = func(p *simProbe) {
					switch p.nth {
					case 5:
						time.AfterFunc(100*ms, func() { s.clock.step(2 * time.Hour) })
					case 9:
						time.AfterFunc(100*ms, func() { s.clock.step(-3 * time.Second) })
					}
					p.answer(200 * ms)
				}
				s.measure(t)
				for i, o := range outcomes(s.samples["a"]) {
					if want := (outcome{RTT: 200 * ms}); o != want {
						t.Errorf("sample %d = %+v, want %+v", i, o, want)
					}
				}
				if got := s.Stats().ClockSteps; got != 2 {
					t.Errorf("clock steps = %d, want 2", got)
				}
			})
		})
	}
}

func TestStepThatCannotBeTakenOut(t *testing.T) {
	// A step smaller than the flight: either offset could be right.
	bubble(t, func(t *testing.T) {
		s := simulate(t, count(2), simTarget("a", time.Second))
		s.net.step = StepSocket
		s.net.reach = func(p *simProbe) {
			if p.nth == 0 {
				time.AfterFunc(100*ms, func() { s.clock.step(20 * ms) })
			}
			p.answerEdited(200*ms, func(r *reply) {
				if p.nth == 0 { // stamped before the step, read 50 ms later
					r.rx.ns -= int64(70 * ms)
				}
			})
		}
		s.measure(t)
		want := []outcome{{Outcome: store.Unknown, Reason: store.ClockStep}, {RTT: 200 * ms}}
		if diff := cmp.Diff(want, outcomes(s.samples["a"])); diff != "" {
			t.Errorf("outcomes (-want +got):\n%s", diff)
		}
	})
}

func TestDwell(t *testing.T) {
	at := func(ns int64) twamp.Timestamp { return twamp.FromUnix(twamp.NTP, 1_800_000_000_000_000_000+ns) }
	tests := []struct {
		name     string
		received twamp.Timestamp
		sent     twamp.Timestamp
		rtt      int64
		want     int64
	}{
		{"within the RTT", at(0), at(5000), 500_000, 5000},
		{"as long as the RTT", at(0), at(500_000), 500_000, 500_000},
		{"longer than the RTT", at(0), at(500_001), 500_000, -1},
		{"negative", at(5000), at(0), 500_000, -1},
		{"none", 0, 0, 500_000, -1},
	}
	for _, tt := range tests {
		r := reply{hasTimes: true, received: tt.received, sent: tt.sent}
		if got := dwell(r, tt.rtt); got != tt.want {
			t.Errorf("%s: dwell = %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestEveryProbeHasOneOutcomeInOrder(t *testing.T) {
	// Whatever comes back, and however often.
	for seed := range uint64(20) {
		bubble(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			const probes = 500
			fast := simTarget("a", 10*ms)
			fast.Timeout, fast.LateWindow = 100*ms, 200*ms
			s := simulate(t, count(probes), fast)
			s.net.reach = func(p *simProbe) {
				for range random.IntN(3) {
					p.answer(time.Duration(random.Int64N(int64(400 * ms))))
				}
			}
			s.measure(t)
			c := s.counters("a")
			samples := s.samples["a"]
			if len(samples) != probes || c.Sent != probes || c.InFlight != 0 {
				t.Errorf("seed %d: %d samples, %d sent, %d in flight; want %d, %d, 0", seed, len(samples), c.Sent, c.InFlight, probes, probes)
			}
			if c.Sent != c.Received+c.Lost+c.Unknown {
				t.Errorf("seed %d: sent %d != received %d + lost %d + unknown %d", seed, c.Sent, c.Received, c.Lost, c.Unknown)
			}
			if !slices.IsSortedFunc(samples, func(a, b store.Sample) int { return int(a.Mono - b.Mono) }) {
				t.Errorf("seed %d: samples are not in sending order", seed)
			}
			var late uint64
			for i, m := range samples {
				answered := m.Outcome == store.OnTime || m.Outcome == store.Late
				if answered != (m.RTT != 0) || time.Duration(m.RTT) > fast.Expiry() {
					t.Errorf("seed %d: sample %d: outcome %s with RTT %d", seed, i, m.Outcome, m.RTT)
				}
				if m.Outcome == store.Late {
					late++
				}
			}
			if late != c.Late || late == 0 || c.Lost == 0 || c.Duplicates == 0 || c.Reordered == 0 {
				t.Errorf("seed %d: counters %+v, late samples %d: some case did not occur", seed, c.Counters, late)
			}
		})
	}
}

func TestPhasesAreSpreadAndStay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var targets []target.Target
		for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
			targets = append(targets, simTarget(name, 10*time.Second))
		}
		run := func() map[string][]int64 {
			at := make(map[string][]int64)
			s := simulate(t, func(c *Config) { c.AtOnce, c.Count, c.Device = false, 3, "switch" }, targets...)
			s.net.reach = func(p *simProbe) {
				at[p.path.target.Name] = append(at[p.path.target.Name], time.Now().UnixNano()%int64(10*time.Second))
				p.answer(ms)
			}
			s.measure(t)
			return at
		}
		first := run()
		time.Sleep(3333 * ms) // simulated
		second := run()
		if diff := cmp.Diff(first, second); diff != "" {
			t.Errorf("phases changed over a restart (-before +after):\n%s", diff)
		}
		seen := make(map[int64]bool)
		for name, at := range first {
			if at[0] != at[1] || at[1] != at[2] {
				t.Errorf("%s fires at %v of its interval, want always the same", name, at)
			}
			seen[at[0]] = true
		}
		if len(seen) != len(targets) {
			t.Errorf("%d paths fire at %d moments", len(targets), len(seen))
		}
	})
}

func TestProbesLeftOutWhileTheProcessStoodStill(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := simulate(t, count(10), simTarget("a", 100*ms))
		s.net.reach = func(p *simProbe) {
			if p.nth == 2 {
				time.Sleep(450 * ms) // the scheduler itself
			}
			p.answer(ms)
		}
		s.measure(t)
		c := s.counters("a")
		// 350 ms late for the fourth: it goes out for the last moment passed.
		if c.Sent != 10 || c.Skipped != 3 {
			t.Errorf("sent %d, skipped %d; want 10 and 3", c.Sent, c.Skipped)
		}
	})
}

func TestSleepsWhenNothingIsDue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := simulate(t, count(10), simTarget("a", 10*time.Second))
		s.net.reach = func(p *simProbe) { p.answer(ms) }
		s.measure(t)
		// A beat per probe, a look for the name each minute, and the ends.
		if s.beats > 30 {
			t.Errorf("the scheduler woke %d times for 10 probes", s.beats)
		}
	})
}

func TestStopWaitsForWhatIsInFlight(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := simulate(t, nil, simTarget("a", 100*ms))
		s.net.reach = func(p *simProbe) { p.answer(90 * ms) }
		s.measureFor(t, 1050*ms)
		c := s.counters("a")
		if c.Sent == 0 || c.Sent != c.Received {
			t.Errorf("sent %d, received %d: the last were not waited for", c.Sent, c.Received)
		}
		if c.Sent != 11 {
			t.Errorf("sent %d, want 11: none after the stop", c.Sent)
		}
	})
}
