// SPDX-License-Identifier: Apache-2.0

package probe

import "math"

// never is a time that does not come.
const never = int64(math.MaxInt64)

// queue knows which path wants to act next: a heap of all of them. It holds
// numbers alone, close together: with thousands of paths, what it costs is what
// it has to fetch from memory.
type queue struct {
	heap  []turn
	place []int32 // in heap, by path
}

// turn is when a path wants to act, CLOCK_MONOTONIC.
type turn struct {
	at   int64
	path int32
}

// grow makes room for one more path.
func (q *queue) grow() {
	q.heap = append(q.heap, turn{})
	q.place = append(q.place, 0)
	q.put(len(q.heap)-1, turn{never, int32(len(q.place) - 1)})
}

// next is the path whose turn is the next, and when that is; -1 if there are
// no paths.
func (q *queue) next() (path int, at int64) {
	if len(q.heap) == 0 {
		return -1, never
	}
	return int(q.heap[0].path), q.heap[0].at
}

// set says when a path wants to act next.
func (q *queue) set(path int, at int64) {
	i := int(q.place[path])
	before := q.heap[i].at
	switch t := (turn{at, int32(path)}); {
	case at < before:
		q.up(i, t)
	case at > before:
		q.down(i, t)
	}
}

// up moves the hole at i towards the top, to where t fits in.
func (q *queue) up(i int, t turn) {
	for i > 0 {
		parent := (i - 1) / 2
		if q.heap[parent].at <= t.at {
			break
		}
		q.put(i, q.heap[parent])
		i = parent
	}
	q.put(i, t)
}

// down moves the hole at i towards the bottom, to where t fits in.
func (q *queue) down(i int, t turn) {
	for {
		child := 2*i + 1
		if child >= len(q.heap) {
			break
		}
		if child+1 < len(q.heap) && q.heap[child+1].at < q.heap[child].at {
			child++
		}
		if q.heap[child].at >= t.at {
			break
		}
		q.put(i, q.heap[child])
		i = child
	}
	q.put(i, t)
}

func (q *queue) put(i int, t turn) {
	q.heap[i] = t
	q.place[t.path] = int32(i)
}
