// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"
)

const (
	answerRounds = 5
	// leastIdle is the share of the machine that has to stay idle: where there is no idle time, it does not tell what
	// something costs.
	leastIdle = 0.1
)

// nowhere is an address that the far namespace drops packets to.
const nowhere = "203.0.113.1"

// answers measures the CPU time that an answer costs the whole machine: what it is busy while requests come in at a fixed
// rate and are answered, less what it is busy while the same requests go to an address where the far side drops them. What
// it takes to receive the answers is in it; the near side drops them at its IP layer. The same by the CPU time of the
// processes alone is there to compare, and for machines that others keep busy.
func answers(ctx context.Context, w io.Writer) (_ []check, err error) {
	l, err := newLab(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	heading(w, `answers: CPU time per answer, at %d requests/s, less that of requests that are dropped; %v per measurement,
   medians of %d rounds`, floodRate, floodTime, answerRounds)

	kernel, err := l.answering(ctx, 1, "tcx")
	if err != nil {
		return nil, err
	}
	socket, err := l.answering(ctx, 2, "socket")
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		ip(ctx, "-n", l.near, "route", "add", nowhere, "via", socket.link.far),
		ip(ctx, "-n", l.far, "route", "add", "blackhole", nowhere),
	)
	if err != nil {
		return nil, err
	}

	var idle, own costs
	left := patience
	for range 2 * answerRounds { // twice as many, if others are busy
		dropped, err := l.flood(ctx, socket, nowhere, &left)
		if err != nil {
			return nil, err
		}
		byKernel, err := l.flood(ctx, kernel, kernel.link.far, &left)
		if err != nil {
			return nil, err
		}
		bySocket, err := l.flood(ctx, socket, socket.link.far, &left)
		if err != nil {
			return nil, err
		}
		if byKernel.Answered == 0 || bySocket.Answered == 0 {
			return nil, fmt.Errorf("answered were %d of %d by the kernel, %d of %d by the socket",
				byKernel.Answered, byKernel.Sent, bySocket.Answered, bySocket.Sent)
		}
		own.add(byKernel, bySocket, dropped, flooded.ownTime)
		if min(dropped.Idle, byKernel.Idle, bySocket.Idle) >= leastIdle {
			idle.add(byKernel, bySocket, dropped, flooded.machineTime)
		}
		if len(idle.ratios) == answerRounds {
			break
		}
	}
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "CPU time of\tby kernel (tcx), ns\tby socket, ns\tkernel / socket\tanswered\trounds")
	if len(idle.ratios) > 0 {
		idle.print(t, "the machine")
	}
	own.print(t, "both processes")
	t.Flush()
	c := check{what: "CPU time per answer, kernel / socket", got: median(idle.ratios), limit: 0.5}
	if len(idle.ratios) < answerRounds {
		c.missing = fmt.Sprintf("others kept the machine busy; by the CPU time of both processes it is %s", figure(median(own.ratios)))
	}
	return []check{c}, nil
}

// answering is a reflector behind a link.
type answering struct {
	link      link
	reflector *process
}

// answering starts a reflector behind a link that has routes for the sources of a flood: the far side sends the answers
// back, and the near side drops them.
func (l *lab) answering(ctx context.Context, n int, mode string) (a answering, err error) {
	if a.link, err = l.link(ctx, n); err != nil {
		return a, err
	}
	err = errors.Join(
		ip(ctx, "-n", l.far, "route", "add", floodPrefix(n), "via", a.link.near),
		ip(ctx, "-n", l.near, "route", "add", "blackhole", floodPrefix(n)),
	)
	if err != nil {
		return a, err
	}
	a.reflector, err = l.reflect(ctx, l.far, a.link.far, a.link, mode)
	return a, err
}

// flood runs one when the machine is quiet.
func (l *lab) flood(ctx context.Context, a answering, to string, left *time.Duration) (f flooded, err error) {
	if _, err := quietly(ctx, left); err != nil {
		return f, err
	}
	var out []byte
	err = l.run(ctx, l.near, &out, l.self, "as-flood", to, floodPrefix(a.link.number), a.link.name, strconv.Itoa(a.reflector.pid))
	if err != nil {
		return f, err
	}
	return f, json.Unmarshal(out, &f)
}

// costs are those of an answer, by rounds.
type costs struct {
	kernel, socket, ratios []float64 // ns of CPU time
	answered               []float64 // share of requests, the lesser of the two
}

func (c *costs) add(kernel, socket, dropped flooded, cpu func(flooded) time.Duration) {
	perAnswer := func(f flooded) float64 {
		requests := float64(cpu(dropped)) / float64(dropped.Sent) * float64(f.Sent)
		return (float64(cpu(f)) - requests) / float64(f.Answered)
	}
	c.kernel = append(c.kernel, perAnswer(kernel))
	c.socket = append(c.socket, perAnswer(socket))
	c.ratios = append(c.ratios, perAnswer(kernel)/perAnswer(socket))
	c.answered = append(c.answered, min(kernel.answeredShare(), socket.answeredShare()))
}

func (c *costs) print(w io.Writer, whose string) {
	fmt.Fprintf(w, "%s\t%s (%s)\t%s (%s)\t%s (%s)\t%.1f %%\t%d\n", whose, figure(median(c.kernel)), spread(c.kernel),
		figure(median(c.socket)), spread(c.socket), figure(median(c.ratios)), spread(c.ratios), 100*median(c.answered), len(c.ratios))
}
