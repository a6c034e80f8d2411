// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/probe"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
)

type pingOptions struct {
	count      uint64
	ip4, ip6   bool
	source     string
	namespace  string
	timestamps string
	attach     string
	quiet      bool
	asJSON     bool
	verbose    bool
	target     target.Target
}

func newPingCommand(e env) *cobra.Command {
	o := pingOptions{target: target.Defaults()}
	cmd := &cobra.Command{
		Use:   "ping HOST",
		Short: "Measure one path now",
		Long: `Measure the round-trip time to a TWAMP-Light, STAMP or DoubleZero reflector.

A reply within the timeout is on time, one within as long again is late, and
after that the probe is lost. Exit code 0: all probes were answered; 1: some
were not; 2: nothing could be measured.

On a terminal one line shows how it goes, instead of a line for each probe, and
a histogram follows the summary.

With --attach xdp, replies are time-stamped in the driver (native XDP), with
auto behind it. Many drivers reset the port when a first XDP program comes and
when the last one goes, at the end of this command too: ixgbe, igb, i40e and
mlx5 do. On veth it halves TCP throughput. Where it is refused, auto it is.`,
		Example: `  xtwamp ping 192.0.2.2
  xtwamp ping --json -c 200 -i 10ms 192.0.2.2
  xtwamp ping --profile doublezero --dscp 46 -I eth1 192.0.2.2
  xtwamp ping --attach xdp --timestamps bpf -I eth1 192.0.2.2
  xtwamp ping fe80::1%eth0`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.target.Name, o.target.Address = "ping", args[0]
			return ping(cmd.Context(), e, o)
		},
	}
	f, t := cmd.Flags(), &o.target
	f.Uint64VarP(&o.count, "count", "c", 10, "probes to send; 0 goes on until stopped")
	f.DurationVarP(&t.Interval, "interval", "i", time.Second, "time between probes; at 1ms, the least, ten leave at a time")
	f.DurationVar(&t.Timeout, "timeout", time.Second, "a later reply is late")
	f.StringVar(&t.Profile, "profile", t.Profile, "wire profile: stamp, twamp-light or doublezero")
	f.Uint16VarP(&t.Port, "port", "p", t.Port, "UDP port of the reflector")
	f.IntVar(&t.Size, "size", 0, "UDP payload in bytes; 0 is the profile's smallest")
	f.Uint8Var(&t.DSCP, "dscp", 0, "DSCP of the probes")
	f.Uint8Var(&t.TTL, "ttl", t.TTL, "TTL or hop limit of the probes")
	f.BoolVar(&t.DontFragment, "df", false, "forbid fragments")
	f.BoolVarP(&o.ip4, "ipv4", "4", false, "resolve HOST to IPv4 only")
	f.BoolVarP(&o.ip6, "ipv6", "6", false, "resolve HOST to IPv6 only")
	f.StringVarP(&t.Interface, "interface", "I", "", "send by this interface, and want replies there")
	f.StringVarP(&o.source, "source", "S", "", "source address")
	f.StringVar(&o.namespace, "netns", "", "network namespace, name or path")
	f.StringVar(&o.timestamps, "timestamps", string(t.Timestamps), "time stamps: auto, bpf, socket or user")
	f.StringVar(&o.attach, "attach", string(t.Attach), "BPF hook: auto (tcx, else clsact), tcx, clsact or xdp (see above)")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print the summary only")
	f.BoolVar(&o.asJSON, "json", false, "print one JSON object per line")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "log what the engine does")
	cmd.MarkFlagsMutuallyExclusive("ipv4", "ipv6")
	return cmd
}

func ping(ctx context.Context, e env, o pingOptions) error {
	t := o.target
	t.Timestamps, t.Attach = target.Timestamps(o.timestamps), target.Attach(o.attach)
	t.LateWindow = t.Timeout
	if o.source != "" {
		source, err := netip.ParseAddr(o.source)
		if err != nil {
			return usage(fmt.Errorf("source %q: expected an IP address", o.source))
		}
		t.Source = source
	}
	if err := t.Validate(); err != nil {
		return usage(err)
	}
	var ns *netns.Namespace
	if o.namespace != "" {
		var err error
		if ns, err = netns.Open(o.namespace); err != nil {
			return usage(err)
		}
		defer ns.Close()
	}
	p := newPinger(e.stdout, t, o.asJSON, o.quiet)
	if p.live != nil {
		defer p.live.clear()
		if e.terminal {
			e.stderr = p.live.above(e.stderr)
		}
	}
	log := zap.NewNop()
	if o.verbose {
		var err error
		if log, err = newLogger(e, logConfig{Level: "debug", Format: "auto"}); err != nil {
			return err
		}
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	family := 0
	switch {
	case o.ip4:
		family = 4
	case o.ip6:
		family = 6
	}
	ring := probe.NewRing(1 << 16)
	opened, everOpen := make(chan probe.FlowInfo, 1), false
	engine, err := probe.New(probe.Config{
		Targets:   []target.Target{t},
		Namespace: ns,
		Count:     o.count,
		AtOnce:    true,
		Family:    family,
		Emit:      ring.Put,
		Opened: func(_ int, info probe.FlowInfo, err error) {
			if err == nil && t.Timestamps == target.TimestampsBPF && !info.Step.Kernel() {
				err = info.Refused
			}
			switch {
			case everOpen: // an outage is what is to be seen
			case err != nil:
				cancel(usage(err))
			default:
				everOpen = true
				opened <- info
			}
		},
		Logger: log,
	})
	if err != nil {
		return usage(err)
	}
	finished := make(chan error, 1)
	go func() { finished <- engine.Run(ctx) }()

	// The first way opened names the target; without one there is nothing to
	// measure.
	select {
	case info := <-opened:
		p.begin(info)
	case err := <-finished:
		var exit *exitError
		if cause := context.Cause(ctx); errors.As(cause, &exit) {
			return exit
		}
		if err == nil {
			err = errors.New("stopped before anything could be sent")
		}
		return usage(err)
	}
	if err := p.follow(ring, func() int64 { return engine.Clock().Offset }, finished); err != nil {
		return usage(err)
	}
	return p.end(engine.Paths()[0].Counters)
}

// pinger prints samples as they come, and the summary.
type pinger struct {
	out    io.Writer
	target target.Target
	json   bool
	quiet  bool
	live   *live // nil: a line for each sample
	info   probe.FlowInfo

	batch []probe.Measured
	line  []byte
	seq   uint64
	sum   summary
	err   error
}

func newPinger(out io.Writer, t target.Target, asJSON, quiet bool) *pinger {
	p := &pinger{out: out, target: t, json: asJSON, quiet: quiet, sum: newSummary()}
	if !asJSON && !quiet {
		p.live = newLive(out)
	}
	if p.live != nil {
		p.out = p.live.above(out)
	}
	return p
}

func (p *pinger) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.out, format, args...)
	}
}

func (p *pinger) begin(info probe.FlowInfo) {
	p.info = info
	if p.json {
		return
	}
	p.printf("xtwamp %s to %s from %s by %s: %d bytes, time stamps %s\n", p.target.Profile, info.Remote,
		info.Local.Addr(), info.Interface, p.target.PayloadSize(), info.Step)
	if info.Refused != nil {
		p.printf("better time stamps were refused: %s\n", strings.ReplaceAll(info.Refused.Error(), "\n", "; "))
	}
}

// follow prints what comes into the ring until the engine has finished, and
// returns the error that it finished with.
func (p *pinger) follow(ring *probe.Ring, offset func() int64, finished <-chan error) error {
	var redraw <-chan time.Time
	if p.live != nil {
		ticker := time.NewTicker(redrawEvery)
		defer ticker.Stop()
		redraw = ticker.C
		p.live.draw(&p.sum.rtt)
	}
	for {
		select {
		case <-ring.Filled():
			p.take(ring, offset())
		case <-redraw:
			p.live.draw(&p.sum.rtt)
		case err := <-finished:
			p.take(ring, offset())
			return err
		}
	}
}

// take prints what the ring holds; offset is the wall clock's from the
// monotonic one.
func (p *pinger) take(ring *probe.Ring, offset int64) {
	var upTo uint64
	p.batch, upTo = ring.Peek(p.batch[:0], ring.Len())
	ring.Discard(upTo)
	for _, m := range p.batch {
		s := m.Sample
		s.Seq = p.seq
		p.seq++
		s.Time = time.Unix(0, s.Mono+offset)
		p.sum.add(s)
		switch {
		case p.live != nil && !p.live.take(s):
		case p.quiet:
		case p.json:
			p.line = s.AppendJSON(append(p.line[:0], `{"type":"sample",`...), "", p.target.Address)
			p.printf("%s\n", fuse(p.line))
		default:
			p.printf("%s\n", describe(s, p.info))
		}
	}
}

// fuse joins the beginning of an object to the object that follows it.
func fuse(line []byte) []byte {
	head := len(`{"type":"sample",`)
	return append(line[:head], line[head+1:]...)
}

func describe(s store.Sample, info probe.FlowInfo) string {
	var b strings.Builder
	fmt.Fprintf(&b, "seq=%d ", s.Seq)
	switch s.Outcome {
	case store.OnTime, store.Late:
		fmt.Fprintf(&b, "from %s: rtt=%s", info.Remote.Addr(), microseconds(s.RTT))
		if s.HasDwell {
			fmt.Fprintf(&b, " dwell=%s", microseconds(s.Dwell))
		}
		if s.TTL != 0 {
			fmt.Fprintf(&b, " ttl=%d", s.TTL)
		}
		if s.Outcome == store.Late {
			b.WriteString(" late")
		}
	default:
		b.WriteString(s.Outcome.String())
		if s.Reason != store.NoReason {
			fmt.Fprintf(&b, " (%s)", s.Reason)
		}
	}
	return b.String()
}

func microseconds(ns int64) string { return fmt.Sprintf("%.3fus", float64(ns)/1e3) }

// end prints the summary; the error carries the exit code.
func (p *pinger) end(c probe.Counters) error {
	notSent := uint64(0)
	for _, n := range c.NotSent {
		notSent += n
	}
	if p.json {
		line, err := json.Marshal(p.sum.document(p.info.Remote.String(), p.target.Profile, c, notSent))
		if err != nil {
			return err
		}
		p.printf("%s\n", line)
	} else {
		loss := 0.0
		if c.Lost > 0 {
			loss = 100 * float64(c.Lost) / float64(c.Received+c.Lost)
		}
		p.printf("--- %s %s ---\n", p.info.Remote, p.target.Profile)
		p.printf("%d sent, %d received, %d lost (%.1f%%)", c.Sent, c.Received, c.Lost, loss)
		for _, extra := range []struct {
			n    uint64
			what string
		}{{c.Late, "late"}, {notSent, "not sent"}, {c.Skipped, "skipped"}, {c.Unknown, "unknown"}, {c.Duplicates, "duplicates"}, {c.Reordered, "reordered"}} {
			if extra.n > 0 {
				p.printf(", %d %s", extra.n, extra.what)
			}
		}
		p.printf("\n%s", p.sum.text())
		if p.live != nil {
			p.printf("%s", p.live.rtts.histogram(p.live.columns(), blocksShow()))
		}
	}
	switch {
	case p.err != nil:
		return usage(fmt.Errorf("print: %w", p.err))
	case c.Sent == 0 || c.Received < c.Sent || notSent > 0:
		return &exitError{code: 1}
	}
	return nil
}
