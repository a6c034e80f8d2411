// SPDX-License-Identifier: Apache-2.0

package store

import (
	"testing"
	"time"
)

// at is the wall time of sampleNumber(i) under an offset.
func at(o time.Time, i int) time.Time { return o.Add(time.Duration(sampleNumber(i).Mono)) }

func times(samples []Sample) (t []time.Time) {
	for _, s := range samples {
		t = append(t, s.Time)
	}
	return t
}

func since(o time.Time, from, to int) (t []time.Time) {
	for i := from; i < to; i++ {
		t = append(t, at(o, i))
	}
	return t
}

func unsync(o time.Time) Offset { return Offset{Nanoseconds: o.UnixNano()} }
func synced(o time.Time) Offset { return Offset{Nanoseconds: o.UnixNano(), Synchronized: true} }

var (
	bootTime = time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)
	in1970   = time.Unix(100, 0)
)

func TestTheBestOffsetDatesAllThatNoSinkHasTaken(t *testing.T) {
	f := newFixture(t)
	id := f.register("a")[0]
	f.add(id, 0, 2)
	diff(t, "no offset", []time.Time{{}, {}}, times(f.read(id)))
	f.SetOffset(unsync(in1970))
	diff(t, "1970 is not known", []time.Time{{}, {}}, times(f.read(id)))
	f.SetOffset(unsync(bootTime))
	diff(t, "newer beats older", since(bootTime, 0, 2), times(f.read(id)))
	better := bootTime.Add(3 * time.Second)
	f.SetOffset(synced(better))
	diff(t, "synchronized beats unsynchronized", since(better, 0, 2), times(f.read(id)))
	f.SetOffset(unsync(bootTime))
	diff(t, "unsynchronized does not beat synchronized", since(better, 0, 2), times(f.read(id)))
	f.SetOffset(synced(better.Add(offsetNoise / 2)))
	diff(t, "noise is no news", since(better, 0, 2), times(f.read(id)))
	best := better.Add(time.Second)
	f.SetOffset(synced(best))
	diff(t, "newer synchronized beats older", since(best, 0, 2), times(f.read(id)))

	f.add(id, 2, 1) // this makes it durable
	f.cfg.Boot = "boot-2"
	f.reopen()
	f.add(id, 3, 1)
	diff(t, "boot 1 stays dated, boot 2 is not", append(since(best, 0, 3), time.Time{}), times(f.read(id)))
	f.cfg.Boot = "boot-1"
	f.reopen()
	f.SetOffset(unsync(bootTime))
	diff(t, "a restart does not forget what is better", since(best, 0, 3), times(f.read(id))[:3])
}

// A switch that boots in 1970 and then gets NTP dates its first samples right, whatever is deleted meanwhile.
func TestA1970ClockThenNTP(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.Retention = 2 * time.Hour })
	id := f.register("a")[0]
	f.clock.now = in1970
	f.SetOffset(unsync(in1970))
	f.add(id, 0, 500)
	if err := f.fold(); err != nil {
		t.Fatal(err)
	}
	f.clock.now = at(bootTime, 500)
	f.SetOffset(synced(bootTime))
	if err := f.Maintain(); err != nil {
		t.Fatal(err)
	}
	diff(t, "times", since(bootTime, 0, 500), times(f.read(id)))
	f.clock.advance(59 * time.Minute)
	if err := f.Maintain(); err != nil {
		t.Fatal(err)
	}
	diff(t, "samples within an hour of the step", "0-499", ranges(f.read(id)))
	f.clock.advance(time.Minute)
	if err := f.Maintain(); err != nil {
		t.Fatal(err)
	}
	left := f.read(id)
	if len(left) == 0 || len(left) == 500 {
		t.Fatalf("%d samples left", len(left))
	}
	diff(t, "times of what is left", since(bootTime, 500-len(left), 500), times(left))
}

func TestTheFirstSinkFixesTheTime(t *testing.T) {
	f := newFixture(t)
	id := f.register("a")[0]
	f.enable("x", false)
	f.enable("y", false)
	first, second, third := bootTime, bootTime.Add(time.Minute), bootTime.Add(time.Hour)
	f.SetOffset(synced(first))
	f.add(id, 0, 30)
	got, err := f.Next("x", id, 10)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "what x is told", since(first, 0, 10), times(got))
	f.SetOffset(synced(second)) // between Next and Commit: x has already passed on what it was told
	if err := f.Commit("x", Update{Positions: map[PathID]uint64{id: 10}, Delivered: 10}); err != nil {
		t.Fatal(err)
	}
	want := append(since(first, 0, 10), since(second, 10, 30)...)
	diff(t, "all readers", want, times(f.read(id)))
	diff(t, "the next of x", since(second, 10, 20), times(f.deliver("x", id, 10)))
	f.SetOffset(synced(third))
	want = append(want[:20], since(third, 20, 30)...)
	diff(t, "y is told what x was", want, times(f.deliver("y", id, 100)))
	f.SetOffset(synced(first))
	diff(t, "all is fixed", want, times(f.read(id)))
	if err := f.fold(); err != nil {
		t.Fatal(err)
	}
	f.reopen()
	diff(t, "all is fixed after a restart", want, times(f.read(id)))
	diff(t, "segments", 3, len(f.paths[id].fixed))
	f.SetOffset(synced(third))
	f.add(id, 30, 1)
	f.enable("x", false)
	f.deliver("x", id, 100)
	diff(t, "equal segments are merged", 3, len(f.paths[id].fixed))
	diff(t, "and pruned with their samples", 1, len(pruneSegments(f.paths[id].fixed, 20)))
}

func TestTimesAreFixedPerBoot(t *testing.T) {
	f := newFixture(t)
	id := f.register("a")[0]
	f.enable("x", false)
	boots := []time.Time{bootTime, bootTime.Add(time.Hour), bootTime.Add(2 * time.Hour)}
	for i, o := range boots {
		f.SetOffset(synced(o))
		f.add(id, i*300, 300)
		f.cfg.Boot += "x"
		f.reopen()
		f.enable("x", false)
	}
	f.SetOffset(synced(bootTime.Add(3 * time.Hour)))
	f.add(id, 900, 10)
	var want []time.Time
	for i, o := range boots {
		want = append(want, since(o, i*300, i*300+300)...)
	}
	want = append(want, since(bootTime.Add(3*time.Hour), 900, 910)...)
	// The sink commits without having asked Next, as one does that finds its samples in a journal.
	if err := f.Commit("x", Update{Positions: map[PathID]uint64{id: 905}, Delivered: 905}); err != nil {
		t.Fatal(err)
	}
	f.SetOffset(synced(bootTime))
	f.cfg.Boot = "boot-1"
	f.add(id, 910, 1) // persists the offset
	f.reopen()
	f.SetOffset(synced(bootTime.Add(-time.Hour)))
	want = append(want[:905], since(bootTime, 905, 911)...)
	diff(t, "times", want, times(f.read(id)))
}

func TestTimesAreFixedFromWithinAChunk(t *testing.T) {
	f := newFixture(t)
	id := f.register("a")[0]
	f.enable("x", false)
	f.SetOffset(synced(bootTime))
	f.add(id, 0, 100)
	f.deliver("x", id, 50)
	f.cfg.Boot = "boot-2"
	f.reopen() // and fold: the chunk of the first boot holds what was delivered and what was not
	f.enable("x", false)
	f.add(id, 100, 10)
	if err := f.Commit("x", Update{Positions: map[PathID]uint64{id: 105}, Delivered: 55}); err != nil {
		t.Fatal(err)
	}
	f.cfg.Boot = "boot-1"
	f.reopen()
	f.SetOffset(synced(bootTime.Add(time.Hour)))
	diff(t, "times", since(bootTime, 0, 100), times(f.read(id))[:100])
}

func TestAnUndatedSampleThatASinkTookStaysUndated(t *testing.T) {
	f := newFixture(t)
	id := f.register("a")[0]
	f.enable("x", false)
	f.add(id, 0, 5)
	f.deliver("x", id, 3)
	f.SetOffset(synced(bootTime))
	diff(t, "times", append(make([]time.Time, 3), since(bootTime, 3, 5)...), times(f.read(id)))
	diff(t, "oldest waiting", at(bootTime, 3), f.totals("x").OldestWaiting)
	diff(t, "oldest known", time.Time{}, f.status().Oldest)
}
