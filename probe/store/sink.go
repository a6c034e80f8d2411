// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"
)

// sink is what the process knows of one sink. Fields change only with Log.write and Log.mu both held, but for what Next notes in a
// position (seen, early, used): that changes under Log.mu alone.
type sink struct {
	name     string
	takes    func(Path) bool // nil: known from the file, not enabled in this process
	totals   totals
	known    PathID      // paths with a smaller ID existed when the sink was first enabled
	position []*position // by PathID; nil: the sink does not take this path
}

// totals are the persisted counters of a sink.
type totals struct {
	offered, delivered uint64
	dropped            map[string]uint64
}

func (t totals) clone() totals {
	t.dropped = maps.Clone(t.dropped)
	if t.dropped == nil {
		t.dropped = map[string]uint64{}
	}
	return t
}

func (t totals) accounted() uint64 {
	n := t.delivered
	for _, d := range t.dropped {
		n += d
	}
	return n
}

// position is where a sink is on one path.
type position struct {
	next uint64 // number of the first sample that is neither delivered nor dropped
	pin  uint64 // samples before it, and not before next, are not dropped: the sink is handing them over

	// The sink may be handing samples over while retention drops them. So that its Commit still fits:
	seen  uint64    // next, as the sink knows it from its last Next or Commit
	early uint64    // samples that were counted as dropped since then
	used  []segment // the times that it was told
}

func (s *sink) at(id PathID) *position {
	if int(id) < len(s.position) {
		return s.position[id]
	}
	return nil
}

// sinkChange is what one transaction changes of one sink: putSinks writes it, applySinks makes it so in memory after the commit.
type sinkChange struct {
	sink      *sink
	totals    totals
	positions map[PathID]uint64
	pins      map[PathID]uint64
	gone      []PathID
	dropped   map[PathID]uint64 // counted as dropped by the store
}

// moved returns the positions that change, by their next numbers or pins alone.
func (c *sinkChange) moved() map[PathID]position {
	moved := make(map[PathID]position, len(c.positions))
	for id, next := range c.positions {
		at := position{next: next}
		if old := c.sink.at(id); old != nil {
			at.pin = old.pin
		}
		moved[id] = at
	}
	for id, pin := range c.pins {
		at, ok := moved[id]
		if !ok {
			at.next = c.sink.at(id).next
		}
		at.pin = pin
		moved[id] = at
	}
	return moved
}

func changeOf(s *sink) *sinkChange {
	return &sinkChange{sink: s, totals: s.totals.clone(), positions: map[PathID]uint64{}, dropped: map[PathID]uint64{}}
}

// drop counts n samples of the path as dropped by the store.
func (c *sinkChange) drop(id PathID, n uint64, reason string) {
	c.totals.dropped[reason] += n
	c.dropped[id] += n
}

// Names within the sinks bucket: state and name, position bucket and name, key/value bucket and name.
const (
	sinkState     = "s"
	sinkPositions = "p"
	sinkValues    = "v"
)

func sinkKey(kind, name string) []byte { return []byte(kind + name) }

// putSinks writes changes. Totals are absolute, so writing them twice is harmless.
func (l *Log) putSinks(tx *transaction, changes []*sinkChange) error {
	sinks := tx.Bucket(bucketSinks)
	for _, c := range changes {
		name := c.sink.name
		key := sinkKey(sinkState, name)
		if err := putCounted(sinks, key, seal(bucketSinks, key, c.state())); err != nil {
			return err
		}
		if len(c.positions) == 0 && len(c.pins) == 0 && len(c.gone) == 0 {
			continue
		}
		positions, err := sinks.CreateBucketIfNotExists(sinkKey(sinkPositions, name))
		if err != nil {
			return err
		}
		for id, at := range c.moved() {
			key := key32(uint32(id))
			if err := putCounted(positions, key, seal(positionSeal(name), key, at.encode())); err != nil {
				return err
			}
		}
		for _, id := range c.gone {
			if err := deleteCounted(positions, key32(uint32(id))); err != nil {
				return err
			}
		}
	}
	return nil
}

// positionSeal and valueSeal name the bucket in the checksum, so that a value of one sink is not taken for that of another.
func positionSeal(name string) []byte { return sinkKey(sinkPositions, name) }
func valueSeal(name string) []byte    { return sinkKey(sinkValues, name) }

func (p position) encode() []byte {
	b := binary.AppendUvarint(nil, p.next)
	if p.pin > p.next {
		b = binary.AppendUvarint(b, p.pin)
	}
	return b
}

func (c *sinkChange) state() []byte {
	b := binary.AppendUvarint(nil, uint64(c.sink.known))
	b = binary.AppendUvarint(b, c.totals.offered)
	b = binary.AppendUvarint(b, c.totals.delivered)
	b = binary.AppendUvarint(b, uint64(len(c.totals.dropped)))
	for _, reason := range slices.Sorted(maps.Keys(c.totals.dropped)) {
		b = binary.AppendUvarint(appendText(b, reason), c.totals.dropped[reason])
	}
	return b
}

// applySinks makes changes so. The caller holds l.write and l.mu.
func (l *Log) applySinks(changes []*sinkChange) {
	for _, c := range changes {
		s := c.sink
		s.totals = c.totals
		for id, next := range c.positions {
			for int(id) >= len(s.position) {
				s.position = append(s.position, nil)
			}
			if s.position[id] == nil {
				s.position[id] = &position{seen: next}
			}
			s.position[id].next = next
		}
		for id, pin := range c.pins {
			s.position[id].pin = pin
		}
		for id, n := range c.dropped {
			if p := s.at(id); p != nil {
				p.early += n
			}
		}
		for _, id := range c.gone {
			s.position[id] = nil
		}
	}
}

// loadSinks reads the sinks bucket.
func (l *Log) loadSinks(tx *transaction) error {
	sinks := tx.Bucket(bucketSinks)
	err := sinks.ForEach(func(k, v []byte) error {
		kind, name := string(k[:1]), string(k[1:])
		isBucket := v == nil
		switch {
		case isBucket && (kind == sinkPositions || kind == sinkValues) && sinks.Get(sinkKey(sinkState, name)) != nil:
			return nil // belongs to a sink
		case isBucket || kind != sinkState:
			return fmt.Errorf("sinks: %q: %w", k, corrupt(errDamaged))
		}
		s := &sink{name: name}
		if err := s.load(sinks, k, v, len(l.paths)); err != nil {
			return fmt.Errorf("sink %s: %w", s.name, corrupt(err))
		}
		l.sinks[s.name] = s
		return nil
	})
	if err != nil {
		return err
	}
	return checkCount(sinks, len(l.sinks))
}

func (s *sink) load(sinks *bucket, key, value []byte, paths int) error {
	payload, err := unseal(bucketSinks, key, value)
	if err != nil {
		return err
	}
	in := &cursor{rest: payload}
	s.known = PathID(in.uvarint())
	s.totals = totals{offered: in.uvarint(), delivered: in.uvarint(), dropped: map[string]uint64{}}
	for n := in.uvarint(); n > 0 && !in.broken; n-- {
		reason := in.text()
		s.totals.dropped[reason] = in.uvarint()
	}
	if in.broken {
		return errDamaged
	}
	s.position = make([]*position, paths)
	positions := sinks.Bucket(sinkKey(sinkPositions, s.name))
	if positions == nil {
		return nil
	}
	n := 0
	err = positions.ForEach(func(k, v []byte) error {
		n++
		payload, err := unseal(positionSeal(s.name), k, v)
		if err != nil || len(k) != 4 || int64(binary.BigEndian.Uint32(k)) >= int64(paths) {
			return errDamaged
		}
		in := &cursor{rest: payload}
		at := &position{next: in.uvarint()}
		if at.seen = at.next; len(in.rest) > 0 {
			at.pin = in.uvarint()
		}
		s.position[binary.BigEndian.Uint32(k)] = at
		return in.err()
	})
	if err != nil {
		return err
	}
	return checkCount(positions, n)
}

// offer returns what a batch adds to the sinks that take its paths.
func (l *Log) offer(batch []Record) (changes []*sinkChange) {
	for _, s := range l.sinks {
		var n uint64
		for i := range batch {
			if s.at(batch[i].Path) != nil {
				n++
			}
		}
		if n > 0 {
			c := &sinkChange{sink: s, totals: s.totals}
			c.totals.offered += n
			changes = append(changes, c)
		}
	}
	return changes
}

// Enable makes a sink known, for the life of the file, or again known in this process. The first time it starts at the present end of
// each path, with backfill at the oldest stored sample; paths registered later it takes from their first sample on. takes decides which
// paths count; when it changes its mind about a path, the samples that wait there are dropped with reason "not_taken".
func (l *Log) Enable(name string, backfill bool, takes func(Path) bool) error {
	l.write.Lock()
	defer l.write.Unlock()
	if name == "" {
		return fmt.Errorf("enable sink: no name")
	}
	if err := l.prepare(transactionPages + l.pathPages(len(l.paths))); err != nil {
		return fmt.Errorf("enable sink %s: %w", name, err)
	}
	s := l.sinks[name]
	isNew := s == nil
	if isNew {
		s = &sink{name: name, known: PathID(len(l.paths))}
	}
	change := changeOf(s)
	for _, p := range l.paths[1:] {
		start := p.next
		if backfill || p.ID >= s.known {
			start = p.first
		}
		subscribe(change, p, takes(p.public()), start)
	}
	if isNew || len(change.positions) > 0 || len(change.gone) > 0 {
		err := l.commit("enable", func(tx *transaction) error {
			return l.putSinks(tx, []*sinkChange{change})
		})
		if err != nil {
			return fmt.Errorf("enable sink %s: %w", name, err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.takes = takes
	l.sinks[name] = s
	l.applySinks([]*sinkChange{change})
	return nil
}

// subscribe gives the sink a position at start on a path that it takes, or takes away the one that it has.
func subscribe(c *sinkChange, p *path, takes bool, start uint64) {
	at := c.sink.at(p.ID)
	switch {
	case takes && at == nil:
		c.positions[p.ID] = start
		c.totals.offered += p.count(start, p.next)
	case !takes && at != nil:
		c.gone = append(c.gone, p.ID)
		if n := p.count(at.next, p.next); n > 0 {
			c.drop(p.ID, n, reasonNotTaken)
		}
	}
}

// subscribe returns what changes for the sinks when paths are registered or get other labels.
func (l *Log) subscribe(paths []*path) (changes []*sinkChange) {
	for _, s := range l.sinks {
		if s.takes == nil {
			continue
		}
		c := changeOf(s)
		for _, p := range paths {
			subscribe(c, p, s.takes(p.public()), p.next)
		}
		if len(c.positions) > 0 || len(c.gone) > 0 {
			changes = append(changes, c)
		}
	}
	return changes
}

// enabled returns a sink that Enable has made known in this process.
func (l *Log) enabled(name string) (*sink, error) {
	if l.closed {
		return nil, ErrClosed
	}
	s := l.sinks[name]
	if s == nil || s.takes == nil {
		return nil, fmt.Errorf("sink %s: %w", name, ErrUnknownSink)
	}
	return s, nil
}

// Next returns up to limit samples of a path that wait for the sink, in order. The times that it returns are the ones that stay, for all
// readers, once Commit has moved the position past them. None are returned if the sink does not take the path.
func (l *Log) Next(name string, id PathID, limit int) ([]Sample, error) {
	p, from, err := l.startNext(name, id)
	if err != nil {
		return nil, fmt.Errorf("next: %w", err)
	}
	if p == nil {
		return nil, nil
	}
	samples, runs, err := l.read(p, from, limit)
	if err != nil {
		return nil, fmt.Errorf("next of path %s for sink %s: %w", p.Name, name, err)
	}
	used := l.date(p, samples, runs)
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := l.sinks[name].at(id); at != nil {
		at.used = used
	}
	return samples, nil
}

func (l *Log) startNext(name string, id PathID) (*path, uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.enabled(name)
	if err != nil {
		return nil, 0, err
	}
	p, err := l.path(id)
	if err != nil {
		return nil, 0, err
	}
	at := s.at(id)
	if at == nil {
		return nil, 0, nil
	}
	at.seen, at.early, at.used = at.next, 0, nil
	return p, at.next, nil
}

// Position returns the number of the first sample of a path that the sink has neither taken nor lost.
func (l *Log) Position(name string, id PathID) (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	s, err := l.enabled(name)
	if err != nil {
		return 0, fmt.Errorf("position: %w", err)
	}
	p, err := l.path(id)
	if err != nil {
		return 0, fmt.Errorf("position: %w", err)
	}
	if at := s.at(id); at != nil {
		return at.next, nil
	}
	return p.next, nil
}

// Update is what a sink commits: its new positions, what became of the samples that they move over, and its own keys and values.
type Update struct {
	Positions map[PathID]uint64
	Delivered uint64
	Dropped   map[string]uint64 // by the sink's own reasons
	Put       map[string][]byte
	Delete    []string

	// Pin keeps the samples of a path that wait for the sink and have smaller numbers than this from being dropped by their age, and for
	// space as long as others can be, until the position has passed them or another Pin takes the place of this one. It is for a sink
	// that has handed samples over and does not know yet whether they arrived.
	Pin map[PathID]uint64
}

// Commit stores an update in one transaction. It refuses positions that go backwards or beyond the last sample, and counts that are not
// those of the samples moved over. If the store dropped samples (for space, by age) that the sink was just handing over, they stay
// counted as dropped and the update is taken all the same.
func (l *Log) Commit(name string, u Update) error {
	l.write.Lock()
	defer l.write.Unlock()
	if err := l.commitSink(name, u); err != nil {
		return fmt.Errorf("commit of sink %s: %w", name, err)
	}
	return nil
}

func (l *Log) commitSink(name string, u Update) error {
	if err := l.prepare(transactionPages + l.pathPages(len(u.Positions)+len(u.Pin)) + putPages(u.Put)); err != nil {
		return err
	}
	s, err := l.enabled(name)
	if err != nil {
		return err
	}
	change := changeOf(s)
	used, err := l.account(change, u)
	if err != nil {
		return err
	}
	for id := range u.Pin {
		if s.at(id) == nil {
			return fmt.Errorf("%w: pin on path %d, which is not taken", ErrPosition, id)
		}
	}
	change.pins = u.Pin
	fixed := map[PathID][]segment{}
	err = l.commit("commit", func(tx *transaction) error {
		for id, next := range change.positions {
			p := l.paths[id]
			f, err := l.fix(tx, p, s.position[id].next, next, used[id])
			if err != nil {
				return err
			}
			if len(f) == len(p.fixed) && (len(f) == 0 || f[len(f)-1] == p.fixed[len(f)-1]) {
				continue
			}
			fixed[id] = f
			updated := *p
			updated.fixed = f
			if err := putPath(tx, &updated); err != nil {
				return err
			}
		}
		if err := l.putSinks(tx, []*sinkChange{change}); err != nil {
			return err
		}
		return putValues(tx, name, u)
	})
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, f := range fixed {
		l.paths[id].fixed = pruneSegments(f, l.paths[id].first)
	}
	l.applySinks([]*sinkChange{change})
	for id := range u.Positions {
		at := s.position[id]
		at.seen, at.early, at.used = at.next, 0, nil
	}
	return nil
}

// account checks an update against the positions and enters it into change. It returns the times that the sink was told.
func (l *Log) account(change *sinkChange, u Update) (used map[PathID][]segment, err error) {
	l.mu.RLock() // for what Next notes
	defer l.mu.RUnlock()
	used = map[PathID][]segment{}
	var moved, early uint64
	for id, to := range u.Positions {
		p, err := l.path(id)
		if err != nil {
			return nil, err
		}
		at := change.sink.at(id)
		switch {
		case at == nil:
			return nil, fmt.Errorf("%w: path %s is not taken", ErrPosition, p.Name)
		case to < at.seen:
			return nil, fmt.Errorf("%w: path %s from %d back to %d", ErrPosition, p.Name, at.seen, to)
		case to > p.next:
			return nil, fmt.Errorf("%w: path %s to %d, only %d exist", ErrPosition, p.Name, to, p.next)
		}
		early += at.early
		used[id] = at.used
		if to > at.next {
			moved += p.count(at.next, to)
			change.positions[id] = to
		}
	}
	reported := totals{delivered: u.Delivered, dropped: u.Dropped}.accounted()
	if reported < moved || reported > moved+early {
		return nil, fmt.Errorf("%w: %d samples delivered or dropped, positions move over %d", ErrPosition, reported, moved)
	}
	already := reported - moved // counted as dropped by the store meanwhile
	less := min(already, u.Delivered)
	change.totals.delivered += u.Delivered - less
	already -= less
	for reason, n := range u.Dropped {
		less := min(already, n)
		already -= less
		if n > less {
			change.totals.dropped[reason] += n - less
		}
	}
	return used, nil
}

func putPages(put map[string][]byte) (pages int) {
	for k, v := range put {
		pages += 1 + (len(k)+len(v))/pageSize
	}
	return pages
}

func putValues(tx *transaction, name string, u Update) error {
	if len(u.Put) == 0 && len(u.Delete) == 0 {
		return nil
	}
	values, err := tx.Bucket(bucketSinks).CreateBucketIfNotExists(sinkKey(sinkValues, name))
	if err != nil {
		return err
	}
	for k, v := range u.Put {
		if err := values.Put([]byte(k), seal(valueSeal(name), []byte(k), v)); err != nil {
			return fmt.Errorf("put %q: %w", k, err)
		}
	}
	for _, k := range u.Delete {
		if err := values.Delete([]byte(k)); err != nil {
			return fmt.Errorf("delete %q: %w", k, err)
		}
	}
	return nil
}

// Get returns a copy of the value that the sink stored under key, nil if there is none.
func (l *Log) Get(name, key string) (value []byte, err error) {
	l.mu.RLock()
	_, err = l.enabled(name)
	l.mu.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	err = l.view("get", func(tx *transaction) error {
		value = nil
		values := tx.Bucket(bucketSinks).Bucket(sinkKey(sinkValues, name))
		if values == nil {
			return nil
		}
		sealed := values.Get([]byte(key))
		if sealed == nil {
			return nil
		}
		payload, err := unseal(valueSeal(name), []byte(key), sealed)
		if err != nil {
			return corrupt(err)
		}
		value = append([]byte{}, payload...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("get %q of sink %s: %w", key, name, err)
	}
	return value, nil
}

// Totals are a sink's counts since it was first enabled. Offered = Delivered + Waiting + the sum of Dropped, always.
type Totals struct {
	Offered, Delivered, Waiting uint64
	Dropped                     map[string]uint64 // by reason
	OldestWaiting               time.Time         // zero if nothing waits or its time is not known
}

// Totals returns the counts of a sink.
func (l *Log) Totals(name string) (Totals, error) {
	l.mu.RLock()
	s, err := l.enabled(name)
	if err != nil {
		l.mu.RUnlock()
		return Totals{}, fmt.Errorf("totals: %w", err)
	}
	kept := s.totals.clone()
	t := Totals{Offered: kept.offered, Delivered: kept.delivered, Dropped: kept.dropped}
	waiting := map[*path]uint64{}
	for _, p := range l.paths[1:] {
		if at := s.at(p.ID); at != nil {
			if n := p.count(at.next, p.next); n > 0 {
				t.Waiting += n
				waiting[p] = at.next
			}
		}
	}
	l.mu.RUnlock()
	if t.OldestWaiting, err = l.oldest(waiting); err != nil {
		return Totals{}, fmt.Errorf("oldest sample that waits for sink %s: %w", name, err)
	}
	return t, nil
}

// oldest returns the earliest known time among the samples at (or next after) the given numbers.
func (l *Log) oldest(at map[*path]uint64) (oldest time.Time, err error) {
	for p, from := range at {
		samples, runs, err := l.read(p, from, 1)
		if err != nil {
			return time.Time{}, err
		}
		l.date(p, samples, runs)
		for _, s := range samples {
			if !s.Time.IsZero() && (oldest.IsZero() || s.Time.Before(oldest)) {
				oldest = s.Time
			}
		}
	}
	return oldest, nil
}
