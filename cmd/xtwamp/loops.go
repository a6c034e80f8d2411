// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// loops knows when each long-lived loop has to be heard of again.
type loops struct {
	mu   sync.Mutex
	last map[string]beat
}

type beat struct {
	at   time.Time
	next time.Duration
}

// loopStatus is one loop at one moment.
type loopStatus struct {
	Name     string    `json:"name"`
	State    loopState `json:"state"`
	Since    time.Time `json:"since"` // when it was last heard of
	Deadline time.Time `json:"deadline"`
}

// loopState is how a loop keeps its deadline.
type loopState string

const (
	loopRuns    loopState = "running"
	loopOverdue loopState = "overdue" // the deadline has passed
	loopStuck   loopState = "stuck"   // it has passed three times over
)

// slack is what a loop gets on top, for a machine that is busy.
const slack = 5 * time.Second

func newLoops() *loops { return &loops{last: make(map[string]beat)} }

// beat returns the function by which a loop says that it lives.
func (l *loops) beat(name string) func(next time.Duration) {
	return func(next time.Duration) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.last[name] = beat{at: time.Now(), next: next + slack}
	}
}

// ended takes a loop off the list.
func (l *loops) ended(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.last, name)
}

func (l *loops) status() []loopStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	out := make([]loopStatus, 0, len(l.last))
	for name, b := range l.last {
		state := loopRuns
		switch silent := now.Sub(b.at); {
		case silent > 3*b.next:
			state = loopStuck
		case silent > b.next:
			state = loopOverdue
		}
		out = append(out, loopStatus{Name: name, State: state, Since: b.at, Deadline: b.at.Add(b.next)})
	}
	slices.SortFunc(out, func(a, b loopStatus) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// stuck is those whose deadline has passed three times over.
func (l *loops) stuck() []loopStatus {
	return slices.DeleteFunc(l.status(), func(s loopStatus) bool { return s.State != loopStuck })
}
