// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/probe/target"
	"github.com/xtwamp/xtwamp/submit/doublezero"
	"github.com/xtwamp/xtwamp/submit/endpoint"
)

func newDoctorCommand(e env) *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this host can and cannot do, and how to mend it",
		Long: `Examine this host, the configuration, and the way to each target and to the
ledger. Each finding that is not good has its remedy below it.

It works beside a running daemon and without one, and without a configuration.
It binds and frees the reflector's port where that is free, attaches the kernel
half to interfaces for a moment as ping does (never XDP, which can reset a
port), and sends three probes to each target, of 200 targets at most; those that
do not answer get a ping and a probe of each other profile.

Exit code 0: all is good; 1: it works, but not as well as it could; 2: run would
not start, or would measure or keep nothing.`,
		Example: `  xtwamp doctor
  xtwamp doctor --config ./xtwamp.yml
  xtwamp doctor --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			findings, err := examine(cmd.Context(), e, o)
			if err != nil {
				return usage(err)
			}
			result := resultOf(findings)
			if o.json {
				err = printJSON(e.stdout, doctorDocument{findings, result})
			} else {
				err = printFindings(e.stdout, findings, coloured(e.stdout))
			}
			if err != nil {
				return usage(fmt.Errorf("print: %w", err))
			}
			if code := slices.Index(results, result); code > 0 {
				return &exitError{code: code}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.config, "config", defaultConfigFile, "configuration file")
	f.StringVar(&o.socket, "socket", "", "control socket of the daemon (default as configured)")
	f.BoolVar(&o.json, "json", false, "print JSON")
	return cmd
}

const defaultConfigFile = "/etc/xtwamp/xtwamp.yml"

type doctorOptions struct {
	config, socket string
	json           bool
}

// doctorDocument is what doctor --json prints.
type doctorDocument struct {
	Findings []finding `json:"findings"`
	Result   string    `json:"result"`
}

// The levels of a finding, and the result of all: the worst level, whose index is
// the exit code.
const (
	ok      = "ok"
	warning = "warning" // it works, but less well
	failure = "failure" // run does not start, or measures or keeps nothing
)

var (
	levels  = []string{ok, warning, failure}
	results = []string{"good", "degraded", "unusable"}
)

// finding is one thing that was looked at.
type finding struct {
	Area    string `json:"area"`
	Subject string `json:"subject"`
	Level   string `json:"level"`
	What    string `json:"what"`
	Remedy  string `json:"remedy,omitempty"`
}

func resultOf(findings []finding) string {
	worst := 0
	for _, f := range findings {
		worst = max(worst, slices.Index(levels, f.Level))
	}
	return results[worst]
}

// findings collects those of one area.
type findings struct {
	area string
	all  []finding
}

func (s *findings) ok(subject, format string, args ...any) {
	s.all = append(s.all, finding{s.area, subject, ok, oneLine(fmt.Sprintf(format, args...)), ""})
}

func (s *findings) warn(subject, remedy, format string, args ...any) {
	s.all = append(s.all, finding{s.area, subject, warning, oneLine(fmt.Sprintf(format, args...)), remedy})
}

func (s *findings) fail(subject, remedy, format string, args ...any) {
	s.all = append(s.all, finding{s.area, subject, failure, oneLine(fmt.Sprintf(format, args...)), remedy})
}

// oneLine makes one line of a joined error.
func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }

// doctor examines the host that it runs on.
type doctor struct {
	file    string // of the configuration
	cfg     *config
	cfgErr  error // cfg is the default then
	daemon  int   // pid of the running daemon; 0: none is seen
	network network
	pool    *endpoint.Pool // to the ledger; nil without rpc_urls
	poolErr error
	place   netns.Place      // of the interfaces
	ns      *netns.Namespace // at place; nil if it is the default one, or nsErr
	nsErr   error            // why it cannot be entered

	addresses func() ([]doublezero.LocalAddress, error)
	targets   []target.Target
	sources   findings // what there is to say of where targets come from
}

// examine makes all findings, in the order of areas.
func examine(ctx context.Context, e env, o doctorOptions) ([]finding, error) {
	hostname, _ := e.hostname()
	d := &doctor{file: o.config}
	if d.cfg, d.cfgErr = loadConfig(o.config, hostname); d.cfgErr != nil {
		c := defaultConfig(hostname)
		d.cfg = &c
	}
	d.daemon = daemonAt(cmp.Or(o.socket, d.cfg.Control.Socket))
	var err error
	if d.place, err = netns.ParsePlace(d.cfg.Namespaces.Probe); err != nil {
		return nil, err
	}
	if d.network, err = networkIn(d.cfg.Namespaces.Ledger); err != nil {
		return nil, err
	}
	d.ns, d.nsErr = d.place.Open()
	defer d.ns.Close()
	if d.nsErr == nil {
		d.nsErr = d.ns.Do(func() error { return nil })
	}
	d.addresses = func() ([]doublezero.LocalAddress, error) { return addressesIn(d.ns) }
	defer d.reachLedger(ctx)()
	d.findTargets(ctx)

	areas := []struct {
		name    string
		examine func(context.Context, *findings)
	}{
		{"config", d.examineConfig},
		{"kernel", d.examineKernel},
		{"bpf", d.examineBPF},
		{"rights", d.examineRights},
		{"namespaces", d.examineNamespaces},
		{"interfaces", d.examineInterfaces},
		{"reflector", d.examineReflector},
		{"clock", d.examineClock},
		{"store", d.examineStore},
		{"ledger", d.examineLedger},
		{"targets", d.examineTargets},
	}
	found := make([]findings, len(areas))
	var slow sync.WaitGroup
	for i, a := range areas {
		found[i].area = a.name
		switch a.name {
		case "ledger", "targets": // they wait for others
			slow.Go(func() { a.examine(ctx, &found[i]) })
		default:
			a.examine(ctx, &found[i])
		}
	}
	slow.Wait()
	var all []finding
	for _, f := range found {
		all = append(all, f.all...)
	}
	return all, ctx.Err()
}

// daemonAt is the pid of the daemon that listens on a control socket, or 0.
func daemonAt(socket string) int {
	if socket == "" {
		return 0
	}
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return 0
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	var peer *unix.Ucred
	if raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }) != nil || err != nil {
		return 0
	}
	return int(peer.Pid)
}

func (d *doctor) examineConfig(_ context.Context, s *findings) {
	switch {
	case d.cfgErr == nil:
		s.ok(d.file, "good: %d targets", len(d.cfg.Targets))
	case errors.Is(d.cfgErr, fs.ErrNotExist):
		s.warn(d.file, "write one (README, Using it), or name another with --config; ping and reflect need none", "missing: the defaults are examined")
	case errors.As(d.cfgErr, new(*configError)):
		for _, f := range faults(d.file, d.cfgErr) {
			s.fail(f.Subject, "correct it; until then the defaults are examined here", "%s", f.What)
		}
	default:
		s.fail(d.file, "make it readable for the user that runs xtwamp", "%v", d.cfgErr)
	}
	if d.daemon != 0 {
		s.ok("daemon", "running (pid %d)", d.daemon)
	} else {
		s.ok("daemon", "none is seen to run")
	}
}

// faults takes an error about files apart: each fault with where it is, or else
// with subject.
func faults(subject string, err error) (found []finding) {
	var joined interface{ Unwrap() []error }
	var one *configError
	switch {
	case errors.As(err, &joined):
		for _, e := range joined.Unwrap() {
			found = append(found, faults(subject, e)...)
		}
	case errors.As(err, &one):
		subject = one.file
		if one.line > 0 {
			subject = fmt.Sprintf("%s:%d", one.file, one.line)
		}
		found = append(found, finding{Subject: subject, What: strings.TrimPrefix(one.key+": "+one.what, ": ")})
	case err != nil:
		found = append(found, finding{Subject: subject, What: err.Error()})
	}
	return found
}

// printFindings prints findings for people, one a line, and a summary.
func printFindings(w io.Writer, all []finding, colour bool) error {
	const subjectAtMost = 32
	width := 0
	for _, f := range all {
		width = max(width, min(len(f.Subject), subjectAtMost))
	}
	paint := func(level, text string) string {
		if !colour {
			return text
		}
		return map[string]string{ok: "\x1b[32m", warning: "\x1b[33m", failure: "\x1b[31m"}[level] + text + "\x1b[0m"
	}
	var b strings.Builder
	count := make(map[string]int)
	for _, f := range all {
		count[f.Level]++
		fmt.Fprintf(&b, "%s  %-10s  %-*s  %s\n", paint(f.Level, fmt.Sprintf("%-7s", f.Level)), f.Area, width, f.Subject, f.What)
		if f.Remedy != "" {
			fmt.Fprintf(&b, "%21s%s\n", "", f.Remedy)
		}
	}
	result := resultOf(all)
	fmt.Fprintf(&b, "%s: %d ok, %s, %s\n", paint(levels[slices.Index(results, result)], result), count[ok],
		plural(count[warning], warning), plural(count[failure], failure))
	_, err := io.WriteString(w, b.String())
	return err
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// coloured says whether w is a terminal that colours are wanted on.
func coloured(w io.Writer) bool { return os.Getenv("NO_COLOR") == "" && isTerminal(w) }
