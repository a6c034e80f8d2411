// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/probe"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
)

const (
	targetsAtMost   = 200
	probesPerTarget = 3
	probeSpacing    = 300 * time.Millisecond // at 200 targets the engine still sends each by itself
	probeTimeout    = time.Second
	// targetsWait bounds all probes; a name may take that long to resolve.
	targetsWait     = 6 * time.Second
	diagnosesAtOnce = 50
)

// examineTargets probes the targets and finds out why those are silent that do
// not answer.
func (d *doctor) examineTargets(ctx context.Context, s *findings) {
	s.all = append(s.all, d.sources.all...)
	targets := d.targets
	if d.nsErr != nil || len(targets) == 0 {
		return
	}
	if more := len(targets) - targetsAtMost; more > 0 {
		defer func() { s.ok("targets", "%d more are not probed here", more) }()
		targets = targets[:targetsAtMost]
	}
	probed, err := probeTargets(ctx, d.ns, targets)
	if err != nil {
		s.warn("targets", "report it with this text", "cannot be probed: %v", err)
		return
	}
	causes := make([]probe.Diagnosis, len(targets))
	var group errgroup.Group
	group.SetLimit(diagnosesAtOnce)
	for i := range probed {
		if p := &probed[i]; p.lost > 0 && len(p.rtts) == 0 {
			group.Go(func() error {
				causes[i], p.err = probe.Diagnose(ctx, d.ns, targets[i], p.info.Remote.Addr())
				return nil
			})
		}
	}
	_ = group.Wait() // each has its own error
	for i := range probed {
		probed[i].report(s, targets[i], causes[i])
	}
}

// probedTarget is what became of the probes of a target.
type probedTarget struct {
	info   probe.FlowInfo
	err    error // why it has no way, or no diagnosis
	rtts   []int64
	tx, rx store.Source
	lost   int
	reason store.Reason // of one that was not sent
	done   bool
}

// probeTargets sends some probes to each target, from ports of their own: the
// one that is configured may be the running daemon's.
func probeTargets(ctx context.Context, ns *netns.Namespace, targets []target.Target) ([]probedTarget, error) {
	ctx, cancel := context.WithTimeout(ctx, targetsWait)
	defer cancel()
	probes := slices.Clone(targets)
	for i := range probes {
		t := &probes[i]
		t.SourcePort, t.Interval, t.Timeout, t.LateWindow = 0, probeSpacing, probeTimeout, 0
		if t.Attach == target.AttachXDP {
			t.Attach = target.AttachAuto
		}
	}
	// The engine calls Emit and Opened one at a time.
	out := make([]probedTarget, len(probes))
	left := len(probes)
	finish := func(p *probedTarget) {
		if p.done {
			return
		}
		p.done = true
		if left--; left == 0 {
			cancel()
		}
	}
	engine, err := probe.New(probe.Config{
		Targets: probes, Namespace: ns, Count: probesPerTarget, AtOnce: true,
		Emit: func(path int, sample store.Sample) {
			p := &out[path]
			switch sample.Outcome {
			case store.OnTime, store.Late:
				p.rtts, p.tx, p.rx = append(p.rtts, sample.RTT), sample.TX, sample.RX
			case store.NotSent:
				p.reason = sample.Reason
			default:
				p.lost++
			}
			if len(p.rtts)+p.lost == probesPerTarget || sample.Outcome == store.NotSent {
				finish(p)
			}
		},
		Opened: func(path int, info probe.FlowInfo, err error) {
			p := &out[path]
			if err == nil {
				p.info = info
				return
			}
			if p.info.Remote == (netip.AddrPort{}) { // it has had no way yet
				p.err = err
				finish(p)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return out, engine.Run(ctx)
}

// report tells what became of a target's probes.
func (p *probedTarget) report(s *findings, t target.Target, why probe.Diagnosis) {
	subject := t.Name
	way := fmt.Sprintf("by %s from %s", p.info.Interface, p.info.Local.Addr())
	switch {
	case len(p.rtts) > 0 && p.lost > 0:
		s.warn(subject, "look at the link: errors, a policer, load", "%d of %d probes lost; rtt %s, tx %s, rx %s, %s",
			p.lost, p.lost+len(p.rtts), microseconds(slices.Min(p.rtts)), p.tx, p.rx, way)
	case len(p.rtts) > 0 && t.Timestamps == target.TimestampsBPF && p.info.Refused != nil:
		s.warn(subject, "see interfaces and bpf, or set timestamps: auto", "answers, but without the kernel's time stamps that it asks for: %v", p.info.Refused)
	case len(p.rtts) > 0:
		s.ok(subject, "answers: rtt %s, tx %s, rx %s, %s", microseconds(slices.Min(p.rtts)), p.tx, p.rx, way)
	case p.lost == 0:
		p.reportUnsent(s, t)
	case p.err != nil:
		s.warn(subject, "xtwamp ping -v "+t.Address+" may tell more", "no answer from %s, and why is not known: %v", p.info.Remote, p.err)
	default:
		what, remedy := explainSilence(t, p.info, why)
		s.warn(subject, remedy, "%s", what)
	}
}

// reportUnsent says why no probe left.
func (p *probedTarget) reportUnsent(s *findings, t target.Target) {
	var name *net.DNSError
	err := p.err
	switch {
	case err == nil && !p.info.Remote.IsValid():
		err = fmt.Errorf("%s has no address yet after %s", t.Address, targetsWait)
	case err == nil:
		err = fmt.Errorf("probes to %s were not sent", p.info.Remote)
	}
	remedy := "see whether interface, source and address are right"
	reason := p.reason.String()
	switch {
	case errors.As(err, &name):
		reason, remedy = "no_address", "see to the resolver of namespaces.probe (/etc/netns/NAME/resolv.conf), or give an IP address"
	case errors.Is(err, netns.ErrNoLink):
		reason, remedy = "no_interface", "make the interface, or correct the target's"
	case errors.Is(err, netns.ErrNoRoute):
		reason, remedy = "no_route", "give this host a route (ip route get "+t.Address+"), or correct the target's address or source"
	case p.reason == store.NoCarrier:
		remedy = "see interfaces"
	case p.reason == store.TooBig:
		remedy = "lower size, or leave df off"
	case p.reason == store.Permission:
		remedy = "see rights, and the firewall's rules for what this host sends"
	}
	s.warn(t.Name, remedy, "%s: %v", cmp.Or(reason, "not sent"), err)
}

// explainSilence puts a diagnosis into words.
func explainSilence(t target.Target, info probe.FlowInfo, why probe.Diagnosis) (what, remedy string) {
	far := info.Remote
	allow := fmt.Sprintf("let UDP from %s to port %d pass, in firewalls and in the far reflector's own list (reflector.allow, --allow)",
		info.Local.Addr(), far.Port())
	switch why.Cause {
	case probe.Answers:
		return fmt.Sprintf("%d probes lost, then it answered: the link loses packets, or the replies come in elsewhere than the kernel half sees", probesPerTarget),
			"look at the link: errors, a policer, load; run xtwamp ping"
	case probe.OtherProfile:
		return fmt.Sprintf("wrong_profile: %s answers %s, not %s", far, why.Profile, t.Profile),
			fmt.Sprintf("set profile: %s for it, or have the far side answer %s", why.Profile, t.Profile)
	case probe.OtherAnswer:
		return fmt.Sprintf("wrong_profile: %s answers, but as in no profile that there is", far), "see what listens there on UDP port " + fmt.Sprint(far.Port())
	case probe.OtherSize:
		return fmt.Sprintf("too_big: %s answers the smallest packets, not those of %d bytes", far, t.PayloadSize()), "lower size, or mend the MTU of the way"
	case probe.OtherAddress:
		return fmt.Sprintf("other_address: the answer to %s comes from %s", far.Addr(), why.From), "name that address, or have the far side answer from the one it is asked at"
	case probe.NoNeighbour:
		return fmt.Sprintf("no_neighbour: %s on %s does not say its link-layer address", why.From, info.Interface),
			"see whether it is up and on the same link, with addresses of one subnet (ip neighbour show dev " + info.Interface + ")"
	case probe.Refused:
		return fmt.Sprintf("refused: %s says that nobody listens on UDP port %d", why.From, far.Port()), "start the reflector there, or correct port"
	case probe.Prohibited:
		if !why.From.IsValid() {
			return "filtered: a rule of this host forbids to send", "let UDP to " + far.String() + " pass on output"
		}
		return fmt.Sprintf("filtered: %s forbids it", why.From), allow
	case probe.Unreachable:
		return fmt.Sprintf("no_route: %s knows no way to %s", why.From, far.Addr()), "see to the routes there, or correct the target's address"
	case probe.TooBig:
		return fmt.Sprintf("too_big: packets of %d bytes do not fit the way", t.PayloadSize()), "lower size, or leave df off"
	case probe.Expired:
		return fmt.Sprintf("ttl_exceeded: %d hops lead to %s and no further", t.TTL, why.From), "raise ttl, or look for a loop in the routes"
	case probe.SilentPort:
		return fmt.Sprintf("filtered: %s answers ping, but nothing comes from UDP port %d", far.Addr(), far.Port()), allow
	}
	return fmt.Sprintf("silent: nothing comes back from %s, nor to ping", far.Addr()), "see whether it is up and has a way back to " + info.Local.Addr().String() + "; " + allow
}
