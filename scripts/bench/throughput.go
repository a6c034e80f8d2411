// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

const tcpRounds = 20

// variant is a link with a kind of programs at both ends.
type variant struct {
	programs string
	link     link
	missing  string
	streams  []streamed
}

// throughput measures one TCP stream over veth with the measuring program and the reflector attached to both ends, against
// one over a pair without, right after each other and in changing order. The sender and the receiver each have a CPU.
func throughput(ctx context.Context, w io.Writer) (_ []check, err error) {
	l, err := newLab(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	heading(w, "throughput: one TCP stream over veth with programs at both ends, %v at a time; medians of %d rounds", tcpTime, tcpRounds)

	none := &variant{programs: "none"}
	tcx := &variant{programs: "tcx"}
	xdp := &variant{programs: "xdp"}
	variants := []*variant{none, tcx, xdp}
	for i, v := range variants {
		if v.link, err = l.link(ctx, i+1); err != nil {
			return nil, err
		}
		switch err := l.attach(ctx, v.link, v.programs); {
		case err != nil && v == xdp:
			v.missing = err.Error()
		case err != nil:
			return nil, err
		}
	}
	var quietRounds []int
	left := patience
	for round := 0; round < 2*tcpRounds && len(quietRounds) < tcpRounds; round++ { // twice as many, if others are busy
		quiet, err := quietly(ctx, &left)
		if err != nil {
			return nil, err
		}
		if quiet {
			quietRounds = append(quietRounds, round)
		}
		for i := range variants {
			v := variants[(i+round)%len(variants)]
			if v.missing != "" {
				continue
			}
			s, err := l.stream(ctx, v.link)
			if err != nil {
				return nil, err
			}
			v.streams = append(v.streams, s)
		}
	}
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "programs\tGbit/s\t% of none\tGbit per second of CPU time\t% of none")
	for _, v := range variants {
		if v.missing != "" {
			fmt.Fprintf(t, "%s\tnot available: %s\n", v.programs, v.missing)
			continue
		}
		speeds, efforts := shares(v, none, streamed.speed), shares(v, none, streamed.effort)
		fmt.Fprintf(t, "%s\t%s\t%s (%s)\t%s\t%s (%s)\n", v.programs, figure(median(each(v.streams, streamed.speed))), figure(median(speeds)),
			spread(speeds), figure(median(each(v.streams, streamed.effort))), figure(median(efforts)), spread(efforts))
	}
	t.Flush()

	speeds := shares(tcx, none, streamed.speed)
	var judged []float64
	for _, round := range quietRounds {
		judged = append(judged, speeds[round])
	}
	c := check{what: "TCP throughput with tcx programs", got: median(judged), limit: 97, atLeast: true, unit: " % of without"}
	if len(judged) < tcpRounds {
		c.missing = fmt.Sprintf("others kept the machine busy; per second of CPU time it is %s %%",
			figure(median(shares(tcx, none, streamed.effort))))
	}
	return []check{c}, nil
}

func each(streams []streamed, of func(streamed) float64) (values []float64) {
	for _, s := range streams {
		values = append(values, of(s))
	}
	return values
}

// shares compares each stream with the one of the same round without programs, in percent.
func shares(v, none *variant, of func(streamed) float64) (percent []float64) {
	for round, s := range v.streams {
		percent = append(percent, 100*of(s)/of(none.streams[round]))
	}
	return percent
}

// attach has the programs of a kind on both ends of a link: reflectors, and for tcx something that measures too. (An
// interface has room for one XDP program.)
func (l *lab) attach(ctx context.Context, k link, kind string) error {
	if kind == "none" {
		return nil
	}
	for _, end := range []struct{ namespace, own, other string }{{l.near, k.near, k.far}, {l.far, k.far, k.near}} {
		if _, err := l.reflect(ctx, end.namespace, end.own, k, kind); err != nil {
			return err
		}
		if kind != "tcx" {
			continue
		}
		p, err := l.start(ctx, end.namespace, xtwamp, "ping", "--verbose", "--quiet", "-c", "0", "--interface", k.name,
			"--timestamps", "bpf", "--attach", kind, end.other)
		if err != nil {
			return err
		}
		if _, err := p.await(ctx, func(line logLine) bool { return line.Interface == k.name && line.Hook == kind }); err != nil {
			return err
		}
	}
	return nil
}

// streamed is what became of one TCP stream.
type streamed struct {
	Bits     float64
	Time     time.Duration // of the receiver, from accepting to the end
	Sender   time.Duration // CPU time
	Receiver time.Duration // CPU time
}

// speed is in Gbit per second, effort in Gbit per second of CPU time.
func (s streamed) speed() float64  { return s.Bits / float64(s.Time) }
func (s streamed) effort() float64 { return s.Bits / float64(s.Sender+s.Receiver) }

// stream sends over a link for tcpTime.
func (l *lab) stream(ctx context.Context, k link) (s streamed, err error) {
	sender, err := l.start(ctx, l.near, l.self, "as-tcp-sender", k.far)
	if err != nil {
		return s, err
	}
	defer sender.stop()
	var out []byte
	if err := l.run(ctx, l.far, &out, l.self, "as-tcp-receiver", k.far); err != nil {
		return s, err
	}
	<-sender.done
	sent, err := sender.output()
	if err = errors.Join(sender.err, err); err != nil {
		return s, fmt.Errorf("sender: %w", err)
	}
	return s, errors.Join(json.Unmarshal(out, &s), json.Unmarshal(sent, &s))
}
