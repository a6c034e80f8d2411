// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
)

// recentPrinted is how many of the last changes are printed.
const recentPrinted = 10

func newStatusCommand(e env) *cobra.Command {
	var (
		c      connection
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how a running daemon is",
		Long: `Show how a running daemon is: what is wrong, its links with the last RTT and
percentiles and loss of the last hour, where time stamps are taken, the store,
the sinks, the ledger's endpoints, discovery, the loops that do the work, and
what changed lately.

Exit code 0: healthy; 1: degraded; 2: no daemon answers.`,
		Example: `  xtwamp status
  xtwamp status --url http://192.0.2.1:9862 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := askStatus(cmd.Context(), c)
			if err != nil {
				return usage(err)
			}
			if asJSON {
				err = printJSON(e.stdout, s)
			} else {
				err = s.print(e.stdout)
			}
			if err == nil && s.State != stateHealthy {
				return &exitError{code: 1}
			}
			return err
		},
	}
	c.addFlags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return cmd
}

func askStatus(ctx context.Context, c connection) (daemonStatus, error) {
	const patience = 30 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	body, err := c.get(ctx, "/api/v1/status")
	if err != nil {
		return daemonStatus{}, err
	}
	defer body.Close()
	var s daemonStatus
	if err := json.NewDecoder(body).Decode(&s); err != nil {
		return s, fmt.Errorf("read status: %w", err)
	}
	return s, nil
}

// print shows s to people.
func (s *daemonStatus) print(w io.Writer) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
	line("%s is %s: xtwamp %s, up %s", s.Device, s.State, s.Version, s.span(s.Started))
	for _, p := range s.Problems {
		line("  - %s", p)
	}
	line("%s", strings.Join(s.answering(), "; "))
	s.printPaths(line)
	s.printHooks(line)
	s.printStore(line)
	s.printLedger(line)
	s.printDiscovery(line)
	line("")
	line("LOOP\tSTATE\tLAST HEARD OF\tDEADLINE")
	for _, l := range s.Loops {
		line("%s\t%s\t%s\t%s", l.Name, l.State, s.ago(l.Since), l.Deadline.Local().Format(time.TimeOnly))
	}
	if len(s.Recent) > 0 {
		line("")
		line("RECENT\tLEVEL\tWHAT")
	}
	for _, r := range s.Recent[:min(len(s.Recent), recentPrinted)] {
		what := r.Message
		if r.Logger != "" {
			what = r.Logger + ": " + what
		}
		if r.Fields != "" {
			what += " (" + r.Fields + ")"
		}
		line("%s\t%s\t%s", s.ago(r.Time), r.Level, what)
	}
	return out.Flush()
}

type printLine func(format string, args ...any)

func (s *daemonStatus) printPaths(line printLine) {
	line("")
	line("PATH\tSTATE\tADDRESS\tINTERFACE\tPROFILE\tRTT\tP50 1H\tP99 1H\tLOSS 1H\tLAST REPLY\tTIME STAMPS")
	for _, p := range s.Paths {
		stamps := p.Timestamps
		if p.Reason != "" {
			stamps = p.Reason
		} else if p.Refused != "" {
			stamps += " (" + p.Refused + ")"
		}
		line("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s", p.Path, stateText(p.State), p.Address, dash(p.Interface), p.Profile, shortRTT(p.RTT),
			shortRTT(p.Hour.P50), shortRTT(p.Hour.P99), lossShare(p.Hour), s.ago(p.LastReply), stamps)
	}
}

func (s *daemonStatus) printHooks(line printLine) {
	line("")
	line("INTERFACE\tTIME STAMPS\tREFLECTOR")
	reflected := make(map[string]hookStatus)
	for _, i := range s.Reflector.Interfaces {
		reflected[i.Interface] = i
	}
	hook := func(h hookStatus) string {
		if h.Refused != "" {
			return h.Hook + " (" + h.Refused + ")"
		}
		return cmp.Or(h.Hook, "-")
	}
	for _, i := range s.Interfaces {
		line("%s\t%s\t%s", i.Interface, hook(i), hook(reflected[i.Interface]))
		delete(reflected, i.Interface)
	}
	for _, name := range slices.Sorted(maps.Keys(reflected)) {
		line("%s\t-\t%s", name, hook(reflected[name]))
	}
	state := "off: its port is not bound"
	switch {
	case !s.Reflector.Enabled:
		state = "not enabled"
	case s.Reflector.On:
		state = "on, listening on " + strings.Join(s.Reflector.Listen, ", ")
	}
	line("Reflector: %s", state)
}

func (s *daemonStatus) printStore(line printLine) {
	line("")
	state := "open"
	switch {
	case !s.Store.Open:
		state = "not open"
	case s.Store.Degraded != "":
		state = "degraded (" + s.Store.Degraded + ")"
	}
	line("Store: %s, %s, oldest sample %s; %d samples in memory, %d dropped", state, humanize.IBytes(uint64(s.Store.Bytes)),
		s.ago(s.Store.Oldest), s.Store.InMemory, s.Store.Dropped)
	for _, f := range s.Store.SetAside {
		line("  damaged file set aside: %s", f)
	}
	if len(s.Sinks) == 0 {
		return
	}
	line("")
	line("SINK\tOFFERED\tDELIVERED\tWAITING\tDROPPED\tOLDEST WAITING\tLAST SUCCESS")
	for _, k := range s.Sinks {
		line("%s\t%d\t%d\t%d\t%s\t%s\t%s", k.Sink, k.Offered, k.Delivered, k.Waiting, counts(k.Dropped), s.ago(k.OldestWaiting), s.ago(k.LastSuccess))
	}
}

func (s *daemonStatus) printLedger(line printLine) {
	if l := s.Ledger; l != nil {
		line("")
		balance := "not known"
		if l.Balance != nil {
			balance = fmt.Sprintf("%.4f SOL", float64(*l.Balance)/1e9)
		}
		line("Ledger: payer has %s; values without data written: %s", balance, counts(l.Zeros))
		line("EPOCH\tACCOUNTS\tWRITTEN\tEXPECTED\tWITHOUT DATA")
		for _, e := range l.Epochs {
			line("%d\t%d\t%d\t%d (%s)\t%s", e.Epoch, e.Accounts, e.Written, e.Expected, percent(e.Written, e.Expected), counts(e.Zeros))
		}
		line("")
		line("ACCOUNT OF\tEPOCH\tWRITTEN\tEXPECTED\tWITHOUT DATA\tWRITER")
		for _, a := range l.Accounts {
			writer := "this device"
			if a.OtherWriter {
				writer = "somebody else"
			}
			line("%s\t%d\t%d\t%d\t%s\t%s", a.Path, a.Epoch, a.Samples, a.Expected, counts(a.Zeros), writer)
		}
	}
	if len(s.Endpoints) == 0 {
		return
	}
	line("")
	line("ENDPOINT\tSTATE\tLATENCY\tSLOT LAG\tLAST ANSWER\tSINCE")
	for _, e := range s.Endpoints {
		state, latency := "good", "-"
		switch {
		case e.InUse && e.Good:
			state = "in use"
		case !e.Good:
			state = cmp.Or(e.Reason, "not checked yet")
		}
		if e.Latency > 0 {
			latency = fmt.Sprintf("%.1fms", float64(e.Latency)/1e6)
		}
		line("%s\t%s\t%s\t%d\t%s\t%s", e.Endpoint, state, latency, e.SlotLag, s.ago(e.LastOK), s.ago(e.Since))
	}
}

func (s *daemonStatus) printDiscovery(line printLine) {
	z := s.Discovery.DoubleZero
	if z == nil {
		return
	}
	line("")
	from := "the ledger said so " + s.ago(z.LastSuccess)
	if z.FromFile {
		from = "remembered, the ledger has not answered yet"
	}
	line("Device %s, %s: %s", z.Device, cmp.Or(z.Code, "code not known"), from)
	line("LINK\tCODE\tSTATUS\tTO\tINTERFACE\tADDRESS\tNOT MEASURED BECAUSE")
	for _, l := range z.Links {
		line("%s\t%s\t%s\t%s\t%s\t%s\t%s", l.Link, l.Code, l.Status, cmp.Or(l.DeviceCode, l.Device.String()), dash(l.Interface), dash(l.Address), l.Why)
	}
}

// span is how long ago t was, at the time of s. What came in while s was put together is new.
func (s *daemonStatus) span(t time.Time) string {
	d := max(0, s.Time.Sub(t))
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	case d >= time.Minute:
		return d.Truncate(time.Second).String()
	default:
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
}

func (s *daemonStatus) ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return s.span(t) + " ago"
}
