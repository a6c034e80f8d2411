// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/netns/netnstest"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
)

func TestUnchangedTargetsGoOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const interval = time.Second
		keep, change, drop := simTarget("keep", interval), simTarget("change", interval), simTarget("drop", interval)
		var names, ended []string
		var samples [5][]int64 // moments in ms, by number of the path
		s := simulate(t, func(c *Config) {
			c.AtOnce = false
			c.Emit = func(path int, m store.Sample) { samples[path] = append(samples[path], m.Mono/int64(ms)) }
			c.Began = func(path int, t target.Target) {
				if path != len(names) {
					panic(fmt.Sprintf("path %d began as the %dth", path, len(names)))
				}
				names = append(names, t.Name)
			}
			c.Ended = func(path int) { ended = append(ended, names[path]) }
		}, keep, change, drop)
		s.net.reach = func(p *simProbe) { p.answer(300 * ms) }
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		time.Sleep(10*interval + interval/2)

		before := s.Paths()
		changed, added := change, simTarget("new", interval)
		changed.DSCP = 46
		if err := s.SetTargets([]target.Target{added, keep, changed}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * interval)
		after := s.Paths()
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}

		if len(after) != 3 {
			t.Errorf("%d paths after the change", len(after))
		}
		for _, p := range after {
			sent := uint64(10)
			if p.Target.Name == "keep" {
				sent += before[0].Sent
			}
			if p.Sent < sent-1 || p.Sent > sent || p.Lost+p.Unknown+p.Duplicates != 0 || len(p.NotSent) != 0 {
				t.Errorf("%s: %+v, want %d sent", p.Target.Name, p.Counters, sent)
			}
			if p.Target.Name == "change" && p.Target.DSCP != 46 {
				t.Error("the changed path is as it was")
			}
		}
		if diff := cmp.Diff([]string{"keep", "change", "drop", "new", "change"}, names); diff != "" {
			t.Errorf("begun (-want +got)\n%s", diff)
		}
		slices.Sort(ended)
		if diff := cmp.Diff([]string{"change", "drop"}, ended); diff != "" {
			t.Errorf("ended (-want +got)\n%s", diff)
		}
		for i := 1; i < len(samples[0]); i++ {
			if samples[0][i]-samples[0][i-1] != interval.Milliseconds() {
				t.Errorf("the unchanged path sent at %v ms", samples[0])
				break
			}
		}
		for number := 1; number <= 2; number++ { // what was in flight has its sample
			if got, sent := uint64(len(samples[number])), before[number].Sent; got != sent {
				t.Errorf("%s: %d samples of %d probes", names[number], got, sent)
			}
		}
	})
}

func TestBadTargetsChangeNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		good := simTarget("good", time.Second)
		s := simulate(t, nil, good)
		bad := simTarget("bad", time.Second)
		bad.TTL = 0
		for _, targets := range [][]target.Target{{bad}, {good, good}} {
			if err := s.SetTargets(targets); err == nil {
				t.Error("accepted")
			}
			if got := s.Paths(); len(got) != 1 || got[0].Target.Name != "good" {
				t.Errorf("paths are %v", got)
			}
		}
	})
}

func TestSlotsAreUsedAgain(t *testing.T) {
	var s slotSpace
	path := func(window int) *path { return &path{window: make([]probe, window)} }
	a, b, c := path(4), path(16), path(4)
	if !s.take(a) || !s.take(b) || a.slotBase != 0 || b.slotBase != 4 {
		t.Errorf("slots from %d and %d", a.slotBase, b.slotBase)
	}
	size := s.fix()
	if least := 2 * 20; size < least {
		t.Errorf("room for %d slots, want %d at least", size, least)
	}
	s.give(a)
	s.give(a)
	if !s.take(c) || c.slotBase != 0 {
		t.Errorf("slots from %d, want those given back", c.slotBase)
	}
	big := path(1 << 20)
	if s.take(big) || big.hasSlots {
		t.Error("there was room for more than there is")
	}
	if s.fix() != size {
		t.Error("the size has changed")
	}
}

// Two thousand paths, one of which changes: no probe of the others is lost, in the kernel half neither.
func TestReloadOfThousandsOfPaths(t *testing.T) {
	near, far := link(t)
	stalls, start := netnstest.WatchStalls(t), now()
	const paths, probes = 2000, 3
	targets := manyFar(t, near, far, paths, func(t *target.Target) {
		t.Interval, t.Timeout, t.LateWindow = time.Second, time.Second, 3*time.Second
	})
	reflectIn(t, far, func(c *ReflectorConfig) { c.Mode, c.Logger = ReflectAuto, zap.NewNop() })
	var mu sync.Mutex
	faults := 0
	r := begin(t, near, func(c *Config) {
		c.AtOnce, c.Logger = false, zap.NewNop()
		emit := c.Emit
		c.Emit = func(path int, s store.Sample) {
			mu.Lock()
			defer mu.Unlock()
			if s.Outcome != store.NotSent && (s.Outcome != store.OnTime || s.TX != store.TCEgress || s.RX != store.TCIngress) {
				faults++
			}
			emit(path, s)
		}
	}, targets...)
	reached := func(least func(name string) uint64) {
		t.Helper()
		for limit := time.After(3 * time.Minute); ; {
			missing := 0
			for _, p := range r.Paths() {
				if p.Received < least(p.Target.Name) {
					missing++
				}
			}
			if missing == 0 {
				return
			}
			select {
			case <-time.After(100 * ms): // a look at so many paths holds the engine up
			case <-limit:
				t.Fatalf("%d paths lack replies after three minutes", missing)
			}
		}
	}
	reached(func(string) uint64 { return probes })
	before := make(map[string]PathStatus)
	for _, p := range r.Paths() {
		before[p.Target.Name] = p
	}
	changed := append([]target.Target(nil), targets...)
	changed[7].DSCP = 46
	if err := r.SetTargets(changed); err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Paths() {
		b := before[p.Target.Name]
		if p.Target.DSCP == 0 && (p.Sent < b.Sent || p.Received < b.Received) {
			t.Errorf("%s went back from %+v to %+v", p.Target.Name, b.Counters, p.Counters)
		}
	}
	reached(func(name string) uint64 {
		if name == targets[7].Name {
			return probes
		}
		return before[name].Received + probes
	})
	r.stop()
	for _, p := range r.Paths() {
		if p.Lost+p.Unknown+p.Duplicates != 0 || p.Sent != p.Received || p.Skipped != 0 && stalls.Within(start, now()) == 0 {
			t.Errorf("%s: %+v", p.Target.Name, p.Counters)
		}
		if b := before[p.Target.Name]; p.NotSent[store.NoRoute] != b.NotSent[store.NoRoute] && p.Target.DSCP == 0 {
			t.Errorf("%s: not sent %v, before %v", p.Target.Name, p.NotSent, b.NotSent)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if faults != 0 {
		t.Errorf("%d samples are not as they should be", faults)
	}
}
