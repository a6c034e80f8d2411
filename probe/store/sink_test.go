// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestASinkStartsNowOrAtTheOldestSample(t *testing.T) {
	f := newFixture(t)
	old := f.register("old")[0]
	f.add(old, 0, 7)
	f.enable("now", false)
	f.enable("backfill", true)
	young := f.register("young")[0]
	f.add(young, 0, 3)
	f.add(old, 7, 2)
	for _, test := range []struct {
		sink         string
		old, waiting uint64
	}{{"now", 7, 5}, {"backfill", 0, 12}} {
		pos, err := f.Position(test.sink, old)
		if err != nil {
			t.Fatal(err)
		}
		diff(t, test.sink+": position", test.old, pos)
		totals := f.totals(test.sink)
		diff(t, test.sink+": waiting", test.waiting, totals.Waiting)
		diff(t, test.sink+": offered", test.waiting, totals.Offered)
	}
	f.reopen()
	f.register("registered while the sinks were off")
	f.add(young, 3, 1)
	f.add(3, 0, 2)
	f.enable("now", false)
	diff(t, "samples of a path that came while the sink was off", 2, len(f.deliver("now", 3, 10)))
	diff(t, "waiting", uint64(6), f.totals("now").Waiting)
}

func TestTakesDecidesWhichPathsCount(t *testing.T) {
	f := newFixture(t)
	labelled := func(p Path) bool { return p.Labels["link"] != "" }
	a := f.register("a")[0]
	if err := f.Enable("ledger", false, labelled); err != nil {
		t.Fatal(err)
	}
	f.add(a, 0, 4)
	diff(t, "offered of a path without label", uint64(0), f.totals("ledger").Offered)
	if got, err := f.Next("ledger", a, 10); err != nil || len(got) != 0 {
		t.Errorf("next: %v, %v", got, err)
	}
	label := func(link string) {
		t.Helper()
		if _, err := f.Register("a", map[string]string{"link": link}); err != nil {
			t.Fatal(err)
		}
	}
	label("x")
	f.add(a, 4, 6)
	diff(t, "numbers since it has a label", []uint64{4, 5, 6}, numbers(f.deliver("ledger", a, 3)))
	label("")
	f.add(a, 10, 5)
	got := f.totals("ledger")
	diff(t, "totals after the label went", Totals{Offered: 6, Delivered: 3, Dropped: map[string]uint64{"not_taken": 3}}, got)
	f.reopen()
	if err := f.Enable("ledger", false, labelled); err != nil {
		t.Fatal(err)
	}
	diff(t, "totals after reopening", got, f.totals("ledger"))
}

func TestCommitIsCheckedAndOneTransaction(t *testing.T) {
	f := newFixture(t)
	ids := f.register("a", "b", "not taken")
	if err := f.Enable("s", false, func(p Path) bool { return p.ID != ids[2] }); err != nil {
		t.Fatal(err)
	}
	f.add(ids[0], 0, 10)
	f.add(ids[1], 0, 10)
	f.add(ids[2], 0, 10)
	if err := f.Commit("s", Update{Positions: map[PathID]uint64{ids[0]: 4}, Delivered: 3, Dropped: map[string]uint64{"undated": 1},
		Put: map[string][]byte{"journal": []byte("one"), "empty": {}}}); err != nil {
		t.Fatal(err)
	}
	at := func(id PathID, n uint64) map[PathID]uint64 { return map[PathID]uint64{id: n} }
	put := map[string][]byte{"journal": []byte("two")}
	for name, test := range map[string]struct {
		update Update
		want   error
	}{
		"backwards":             {Update{Positions: at(ids[0], 3), Put: put}, ErrPosition},
		"beyond the end":        {Update{Positions: at(ids[0], 11), Delivered: 7, Put: put}, ErrPosition},
		"too few delivered":     {Update{Positions: at(ids[0], 6), Delivered: 1, Put: put}, ErrPosition},
		"too many delivered":    {Update{Positions: at(ids[0], 6), Delivered: 3, Put: put}, ErrPosition},
		"delivered out of thin": {Update{Delivered: 1, Put: put}, ErrPosition},
		"path not taken":        {Update{Positions: at(ids[2], 2), Delivered: 2, Put: put}, ErrPosition},
		"unknown path":          {Update{Positions: at(99, 1), Delivered: 1, Put: put}, ErrUnknownPath},
		"no key":                {Update{Put: map[string][]byte{"journal": []byte("two"), "": nil}}, nil},
	} {
		if err := f.Commit("s", test.update); err == nil || test.want != nil && !errors.Is(err, test.want) {
			t.Errorf("%s: error %v, want %v", name, err, test.want)
		}
	}
	if err := f.Commit("other", Update{}); !errors.Is(err, ErrUnknownSink) {
		t.Errorf("unknown sink: %v", err)
	}
	check := func(when string) {
		t.Helper()
		diff(t, when+": totals", Totals{Offered: 20, Delivered: 3, Waiting: 16, Dropped: map[string]uint64{"undated": 1}}, f.totals("s"))
		for key, want := range map[string]string{"journal": "one", "empty": ""} {
			got, err := f.Get("s", key)
			if err != nil || got == nil || string(got) != want {
				t.Errorf("%s: %s is %q, %v", when, key, got, err)
			}
		}
	}
	check("after refused updates")
	f.reopen()
	f.enable("s", false)
	diff(t, "the path that is taken now", uint64(10), f.totals("s").Offered-f.totals("s").Waiting+6)
	if err := f.Enable("s", false, func(p Path) bool { return p.ID != ids[2] }); err != nil {
		t.Fatal(err)
	}
	check("after reopening")
	if err := f.Commit("s", Update{Delete: []string{"journal", "never there"}}); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Get("s", "journal"); got != nil || err != nil {
		t.Errorf("deleted value: %q, %v", got, err)
	}
}

func TestSinksDoNotSeeEachOther(t *testing.T) {
	f := newFixture(t)
	id := f.register("a")[0]
	f.enable("x", false)
	f.enable("y", false)
	f.add(id, 0, 10)
	if err := f.Commit("x", Update{Positions: map[PathID]uint64{id: 10}, Delivered: 10, Put: map[string][]byte{"k": []byte("v")}}); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Get("y", "k"); got != nil || err != nil {
		t.Errorf("y sees x's value: %q, %v", got, err)
	}
	diff(t, "y", Totals{Offered: 10, Waiting: 10, Dropped: map[string]uint64{}}, f.totals("y"))
	diff(t, "y delivers", 10, len(f.deliver("y", id, 100)))
}

// A sink that is handing samples over while they are dropped has delivered them; its commit must go through, and each is counted once.
func TestSamplesDroppedWhileASinkHandsThemOver(t *testing.T) {
	f := newFixture(t)
	id := f.register("a")[0]
	f.enable("s", false)
	f.add(id, 0, 400)
	if err := f.fold(); err != nil {
		t.Fatal(err)
	}
	given, err := f.Next("s", id, 300)
	if err != nil {
		t.Fatal(err)
	}
	f.write.Lock()
	_, err = f.drop(reasonMaxBytes, 1, func(*path, chunkHead) bool { return true })
	f.write.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	dropped := f.totals("s").Dropped["max_bytes"]
	if dropped == 0 || dropped >= 300 {
		t.Fatalf("%d dropped: the test wants a part of what was given", dropped)
	}
	u := Update{Positions: map[PathID]uint64{id: 300}, Delivered: uint64(len(given)) - 10, Dropped: map[string]uint64{"undated": 10}}
	if err := f.Commit("s", u); err != nil {
		t.Fatal(err)
	}
	diff(t, "totals", Totals{Offered: 400, Delivered: 290 - dropped, Waiting: 100, Dropped: map[string]uint64{"max_bytes": dropped, "undated": 10}}, f.totals("s"))
	// That tolerance is for this one update.
	if err := f.Commit("s", Update{Positions: map[PathID]uint64{id: 310}, Delivered: 11}); !errors.Is(err, ErrPosition) {
		t.Errorf("a wrong count afterwards: %v", err)
	}
}

// TestIdentity drives the log with random operations and compares it with a model after each: offered = delivered + waiting + dropped, per
// sink, and every sample there under its number until it was dropped.
func TestIdentity(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := newFixture(t, func(c *Config) { c.MaxBytes, c.Retention = 1<<20, 24*time.Hour })
		defer func() { f.close() }()
		f.SetOffset(Offset{Nanoseconds: f.clock.Now().UnixNano(), Synchronized: true})
		m := model{next: map[PathID]int{}, sinks: map[string]*modelSink{}}
		takes := map[string]func(Path) bool{
			"all": all,
			"odd": func(p Path) bool { return p.ID%2 == 1 },
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": func(rt *rapid.T) { m.check(rt, f) },
			"register": func(rt *rapid.T) {
				if len(m.next) < 6 {
					id := f.register(fmt.Sprintf("path-%d", len(m.next)))[0]
					m.next[id] = 0
					for name, s := range m.sinks {
						if takes[name](Path{ID: id}) {
							s.position[id] = 0
						}
					}
				}
			},
			"append": func(rt *rapid.T) {
				var batch []Record
				for id, n := range m.next {
					for i := range rapid.SampledFrom([]int{0, 1, 3, 200}).Draw(rt, "n") {
						batch = append(batch, Record{id, sampleNumber(n + i)})
						m.next[id]++
					}
				}
				for _, s := range m.sinks {
					for _, r := range batch {
						if _, ok := s.position[r.Path]; ok {
							s.offered++
						}
					}
				}
				if err := f.Append(batch); err != nil {
					rt.Fatal(err)
				}
			},
			"enable": func(rt *rapid.T) {
				name := rapid.SampledFrom([]string{"all", "odd"}).Draw(rt, "sink")
				backfill := rapid.Bool().Draw(rt, "backfill")
				if err := f.Enable(name, backfill, takes[name]); err != nil {
					rt.Fatal(err)
				}
				if m.sinks[name] != nil {
					return
				}
				s := &modelSink{position: map[PathID]uint64{}, dropped: map[string]uint64{}}
				m.sinks[name] = s
				for id := range m.next {
					if !takes[name](Path{ID: id}) {
						continue
					}
					s.position[id] = uint64(m.next[id])
					if backfill {
						s.position[id] = f.paths[id].first
						s.offered += uint64(m.next[id]) - s.position[id]
					}
				}
			},
			"deliver": func(rt *rapid.T) {
				for _, name := range slices.Sorted(maps.Keys(m.sinks)) {
					s := m.sinks[name]
					u := Update{Positions: map[PathID]uint64{}, Dropped: map[string]uint64{}}
					for _, id := range slices.Sorted(maps.Keys(s.position)) {
						got, err := f.Next(name, id, rapid.SampledFrom([]int{1, 50, 1000}).Draw(rt, "max"))
						if err != nil {
							rt.Fatal(err)
						}
						if len(got) == 0 {
							continue
						}
						u.Positions[id] = got[len(got)-1].Seq + 1
						refused := uint64(rapid.IntRange(0, min(2, len(got))).Draw(rt, "refused"))
						u.Dropped["refused"] += refused
						u.Delivered += uint64(len(got)) - refused
					}
					if err := f.Commit(name, u); err != nil {
						rt.Fatal(err)
					}
					maps.Copy(s.position, u.Positions)
				}
			},
			"maintain": func(rt *rapid.T) {
				f.clock.advance(rapid.SampledFrom([]time.Duration{time.Minute, time.Hour}).Draw(rt, "pause"))
				f.SetOffset(Offset{Nanoseconds: newClock().Now().UnixNano(), Synchronized: true})
				if err := f.Maintain(); err != nil {
					rt.Fatal(err)
				}
			},
			"drop": func(rt *rapid.T) {
				f.write.Lock()
				defer f.write.Unlock()
				if _, err := f.drop(reasonMaxBytes, 2, func(*path, chunkHead) bool { return true }); err != nil {
					rt.Fatal(err)
				}
			},
			"reopen": func(rt *rapid.T) {
				f.reopen()
				for name := range m.sinks {
					if err := f.Enable(name, false, takes[name]); err != nil {
						rt.Fatal(err)
					}
				}
			},
		})
	})
}

// model is what the log should hold.
type model struct {
	next  map[PathID]int
	sinks map[string]*modelSink
}

type modelSink struct {
	offered  uint64
	position map[PathID]uint64
	dropped  map[string]uint64
}

func (m *model) check(t *rapid.T, f *fixture) {
	for id, next := range m.next {
		got, err := f.Read(id, 0, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		first := next - len(got)
		for i, s := range got {
			want := sampleNumber(first + i)
			want.Seq, want.Time = uint64(first+i), s.Time
			if s != want {
				t.Fatalf("path %d: got %+v, want %+v", id, s, want)
			}
		}
	}
	for name, s := range m.sinks {
		totals, err := f.Totals(name)
		if err != nil {
			t.Fatal(err)
		}
		var waiting uint64
		for id, pos := range s.position {
			waiting += uint64(m.next[id]) - max(pos, f.paths[id].first)
		}
		sum := totals.Delivered + totals.Waiting
		for reason, n := range totals.Dropped {
			if n < s.dropped[reason] {
				t.Fatalf("sink %s: dropped %s went from %d to %d", name, reason, s.dropped[reason], n)
			}
			s.dropped[reason] = n
			sum += n
		}
		if totals.Offered != s.offered || totals.Waiting != waiting || sum != s.offered || totals.Dropped["corrupt"] > 0 {
			t.Fatalf("sink %s: %+v; want offered %d, waiting %d", name, totals, s.offered, waiting)
		}
	}
}
