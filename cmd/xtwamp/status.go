// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/xtwamp/xtwamp/probe"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/submit/doublezero"
)

// daemonStatus is all that there is to know of a running daemon: the document of /api/v1/status. What is not known is left out.
type daemonStatus struct {
	Device   string    `json:"device"`
	Version  string    `json:"version"`
	Commit   string    `json:"commit"`
	Started  time.Time `json:"started"`
	Time     time.Time `json:"time"` // of this document
	State    string    `json:"state"`
	Problems []string  `json:"problems"` // why it is degraded

	Paths      []pathStatus    `json:"paths"`
	Interfaces []hookStatus    `json:"interfaces"` // of time stamps
	Reflector  reflectorStatus `json:"reflector"`
	Clock      clockStatus     `json:"clock"`
	Store      storeStatus     `json:"store"`
	Sinks      []sinkTotals    `json:"sinks"`
	Ledger     *ledgerStatus   `json:"ledger,omitempty"`
	Endpoints  []endpointInfo  `json:"endpoints,omitempty"`
	Discovery  discoveryStatus `json:"discovery"`
	Reload     reloadStatus    `json:"reload"`
	Loops      []loopStatus    `json:"loops"`
	Recent     []recentChange  `json:"recent"` // lines of the log, the newest first
}

const (
	stateHealthy  = "healthy"
	stateDegraded = "degraded"
)

// The states of a path, by its last probes (probe.Recent).
const (
	pathAnswers = "answering"
	pathLoses   = "losing"
	pathSilent  = "silent"   // silentAfter probes in a row were lost
	pathUnsent  = "not_sent" // Reason says why
	pathWaits   = "waiting"  // no outcome yet

	silentAfter = 3
)

// pathStatus is a measured path. Counts are those since it is measured.
type pathStatus struct {
	Path       string            `json:"path"`
	Address    string            `json:"address"`
	Interface  string            `json:"interface,omitempty"`
	Profile    string            `json:"profile"`
	Labels     map[string]string `json:"labels,omitempty"`
	State      string            `json:"state"`
	Timestamps string            `json:"timestamps,omitempty"` // step of the attach ladder
	Refused    string            `json:"refused,omitempty"`    // the steps above, and why
	Reason     string            `json:"reason,omitempty"`     // why nothing can be sent
	RTT        int64             `json:"rtt_ns,omitempty"`     // of the last reply
	LastReply  time.Time         `json:"last_reply,omitzero"`
	Sent       uint64            `json:"sent"`
	Received   uint64            `json:"received"`
	Late       uint64            `json:"late"`
	Lost       uint64            `json:"lost"`
	Unknown    uint64            `json:"unknown"`
	NotSent    map[string]uint64 `json:"not_sent"`
	Hour       hourStatus        `json:"last_hour"`
}

// hookStatus is how far up the attach ladder an interface got.
type hookStatus struct {
	Interface string `json:"interface"`
	Hook      string `json:"hook"`
	Refused   string `json:"refused,omitempty"`
}

type reflectorStatus struct {
	Enabled    bool         `json:"enabled"`
	On         bool         `json:"on"` // its port is bound
	Listen     []string     `json:"listen,omitempty"`
	Interfaces []hookStatus `json:"interfaces,omitempty"`
}

type clockStatus struct {
	Synchronized bool  `json:"synchronized"`
	Error        int64 `json:"error_ns"`
	Steps        int64 `json:"steps"`
}

type storeStatus struct {
	Open         bool      `json:"open"`
	Degraded     string    `json:"degraded,omitempty"` // why samples stay in memory
	Recorded     uint64    `json:"recorded"`
	Bytes        int64     `json:"bytes"`
	WrittenBytes int64     `json:"written_bytes"`
	Oldest       time.Time `json:"oldest,omitzero"`
	SetAside     []string  `json:"set_aside,omitempty"` // damaged files that were replaced
	DiskFull     bool      `json:"disk_full"`           // the file cannot grow
	InMemory     int       `json:"in_memory"`           // samples that are not in the file yet
	Dropped      uint64    `json:"dropped"`             // because memory was full
}

type sinkTotals struct {
	Sink          string            `json:"sink"`
	Offered       uint64            `json:"offered"`
	Delivered     uint64            `json:"delivered"`
	Waiting       uint64            `json:"waiting"`
	Dropped       map[string]uint64 `json:"dropped"`
	OldestWaiting time.Time         `json:"oldest_waiting,omitzero"`
	LastSuccess   time.Time         `json:"last_success,omitzero"`
	Failing       string            `json:"failing,omitempty"` // why samples wait now
}

type ledgerStatus struct {
	Hold     string            `json:"hold,omitempty"` // why all is held back
	Balance  *uint64           `json:"balance_lamports,omitempty"`
	Zeros    map[string]uint64 `json:"zeros"`
	Epochs   []ledgerEpoch     `json:"epochs"` // the present one and the one before
	Accounts []ledgerAccount   `json:"accounts"`
}

// ledgerEpoch is how complete the accounts of an epoch are. Zeros are a part of what is written.
type ledgerEpoch struct {
	Epoch    uint64            `json:"epoch"`
	Accounts int               `json:"accounts"`
	Written  uint64            `json:"written"`
	Expected uint64            `json:"expected"`
	Zeros    map[string]uint64 `json:"zeros"`
}

type ledgerAccount struct {
	Path        string            `json:"path"`
	Epoch       uint64            `json:"epoch"`
	Samples     uint32            `json:"samples"`
	Expected    uint32            `json:"expected"`
	Zeros       map[string]uint64 `json:"zeros"`
	OtherWriter bool              `json:"other_writer,omitempty"`
}

type endpointInfo struct {
	Endpoint string    `json:"endpoint"`
	Good     bool      `json:"good"`
	InUse    bool      `json:"in_use,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Reason   string    `json:"reason,omitempty"`
	Latency  int64     `json:"latency_ns,omitempty"`
	SlotLag  int64     `json:"slot_lag"`
	LastOK   time.Time `json:"last_ok,omitzero"`
	Named    time.Time `json:"named,omitzero"` // when its name last led to this address
}

type discoveryStatus struct {
	Targets    map[string]int              `json:"targets"` // by source
	LeftOut    []string                    `json:"left_out,omitempty"`
	Files      string                      `json:"files,omitempty"` // what is wrong with them
	DoubleZero *doublezero.DiscoveryStatus `json:"doublezero,omitempty"`
}

type reloadStatus struct {
	Successful bool      `json:"successful"`
	Time       time.Time `json:"time"` // of the last success
}

// status says how the daemon is now.
func (d *daemon) status() daemonStatus {
	s := daemonStatus{
		Device: d.cfg.Device, Version: version, Commit: commit, Started: d.started, Time: time.Now(), State: stateHealthy, Problems: []string{},
		Paths: []pathStatus{}, Interfaces: []hookStatus{}, Sinks: []sinkTotals{}, Loops: d.loops.status(), Recent: d.recent.newest(),
	}
	d.statusOfMeasuring(&s)
	d.statusOfStore(&s)
	d.statusOfLedger(&s)
	d.statusOfDiscovery(&s)
	s.Reload.Successful, s.Reload.Time = d.reloads.status()
	s.findProblems()
	return s
}

func (d *daemon) statusOfMeasuring(s *daemonStatus) {
	stats := d.engine.Stats()
	s.Clock = clockStatus{stats.Clock.Synchronized, stats.Clock.Error.Nanoseconds(), int64(stats.ClockSteps)}
	s.Interfaces = append(s.Interfaces, hooks(stats.Attachments)...)
	hours := d.histograms.hours(s.Time.UnixNano() - stats.Clock.Offset)
	for _, p := range d.engine.Paths() {
		path := pathStatus{
			Path: p.Target.Name, Address: p.Target.Address, Interface: p.Target.Interface, Profile: p.Target.Profile, Labels: p.Target.Labels,
			RTT: p.LastRTT, Sent: p.Sent, Received: p.Received, Late: p.Late, Lost: p.Lost, Unknown: p.Unknown,
			State: pathState(p), NotSent: make(map[string]uint64), Hour: hours[p.Target.Name],
		}
		if p.Flow != nil {
			path.Address, path.Interface = p.Flow.Remote.String(), p.Flow.Interface
			path.Timestamps, path.Refused = p.Flow.Step.String(), refusal(p.Flow.Refused)
		}
		if p.Reason != store.NoReason {
			path.Reason = p.Reason.String()
		}
		if p.LastReply != 0 {
			path.LastReply = time.Unix(0, p.LastReply+stats.Clock.Offset)
		}
		for reason, n := range p.NotSent {
			path.NotSent[reason.String()] = n
		}
		s.Paths = append(s.Paths, path)
	}
	s.Reflector.Enabled = d.cfg.Reflector.Enabled
	if r := d.reflector.Load(); r != nil {
		s.Reflector.On, s.Reflector.Interfaces = true, hooks(r.Attachments())
		for _, a := range r.Addrs() {
			s.Reflector.Listen = append(s.Reflector.Listen, a.String())
		}
	}
}

func pathState(p probe.PathStatus) string {
	switch {
	case p.Reason != store.NoReason:
		return pathUnsent
	case p.Recent.Known == 0:
		return pathWaits
	case p.Recent.LostInRow >= silentAfter:
		return pathSilent
	case p.Recent.Lost > 0:
		return pathLoses
	default:
		return pathAnswers
	}
}

// answering says how many of the links answer, and which do not though something is sent to them.
func (s *daemonStatus) answering() (lines []string) {
	names := make(map[string][]string)
	for _, p := range s.Paths {
		names[p.State] = append(names[p.State], p.Path)
	}
	lines = append(lines, fmt.Sprintf("%d of %d links answer", len(names[pathAnswers]), len(s.Paths)))
	for _, state := range []string{pathSilent, pathLoses} {
		if bad := names[state]; len(bad) > 0 {
			lines = append(lines, fmt.Sprintf("%s: %s", state, some(bad)))
		}
	}
	return lines
}

// stateText is a state as people read it.
func stateText(state string) string { return strings.ReplaceAll(state, "_", " ") }

func hooks(attachments []probe.Attachment) (out []hookStatus) {
	for _, a := range attachments {
		out = append(out, hookStatus{a.Interface, hookName(a.Step), a.Refusals()})
	}
	slices.SortFunc(out, func(a, b hookStatus) int { return strings.Compare(a.Interface, b.Interface) })
	return out
}

func refusal(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (d *daemon) statusOfStore(s *daemonStatus) {
	s.Store.InMemory, s.Store.Dropped = d.ring.Len(), d.ring.Dropped()
	if r := d.recorder.Load(); r != nil {
		s.Store.Degraded = r.Degraded()
	}
	log := d.store.Load()
	if log == nil {
		return
	}
	s.Store.Open = true
	if stored, err := log.Status(); err == nil {
		s.Store.Recorded, s.Store.Bytes, s.Store.WrittenBytes = stored.Recorded, stored.Bytes, stored.WrittenBytes
		s.Store.Oldest, s.Store.SetAside, s.Store.DiskFull = stored.Oldest, stored.SetAside, stored.DiskFull
	}
	for _, sink := range d.sinks() {
		stats := sink.submitter.Stats()
		t := sinkTotals{Sink: sink.name, LastSuccess: stats.LastSuccess, Failing: stats.Failing}
		if totals, err := log.Totals(sink.name); err == nil {
			t.Offered, t.Delivered, t.Waiting, t.Dropped = totals.Offered, totals.Delivered, totals.Waiting, totals.Dropped
			t.OldestWaiting = totals.OldestWaiting
		}
		s.Sinks = append(s.Sinks, t)
	}
}

func (d *daemon) statusOfLedger(s *daemonStatus) {
	if sink := d.ledger.Load(); sink != nil {
		status := sink.Status()
		s.Ledger = &ledgerStatus{Hold: status.Hold, Zeros: status.Zeros, Accounts: []ledgerAccount{}}
		if status.Funded {
			s.Ledger.Balance = &status.Balance
		}
		for _, a := range status.Accounts {
			zeros := make(map[string]uint64, len(a.Zeros))
			for cause, n := range a.Zeros {
				zeros[cause] = uint64(n)
			}
			s.Ledger.Accounts = append(s.Ledger.Accounts, ledgerAccount{a.Path, a.Epoch, a.Samples, a.Expected, zeros, a.Other})
		}
		s.Ledger.sumUp()
	}
	if d.pool == nil {
		return
	}
	for _, e := range d.pool.Status() {
		s.Endpoints = append(s.Endpoints, endpointInfo{
			e.Name, e.Good, e.InUse, e.Since, e.Reason, e.Latency.Nanoseconds(), e.SlotLag, e.LastOK, e.Named,
		})
	}
}

// sumUp tells how complete the accounts of the last two epochs are, the newest first.
func (l *ledgerStatus) sumUp() {
	sums := make(map[uint64]*ledgerEpoch)
	for _, a := range l.Accounts {
		sum := sums[a.Epoch]
		if sum == nil {
			sum = &ledgerEpoch{Epoch: a.Epoch, Zeros: make(map[string]uint64)}
			sums[a.Epoch] = sum
		}
		sum.Accounts++
		sum.Written += uint64(a.Samples)
		sum.Expected += uint64(a.Expected)
		for cause, n := range a.Zeros {
			sum.Zeros[cause] += n
		}
	}
	l.Epochs = []ledgerEpoch{}
	for _, epoch := range slices.Backward(slices.Sorted(maps.Keys(sums))) {
		if l.Epochs = append(l.Epochs, *sums[epoch]); len(l.Epochs) == 2 {
			return
		}
	}
}

func (d *daemon) statusOfDiscovery(s *daemonStatus) {
	s.Discovery.Targets = d.sources.counts()
	s.Discovery.LeftOut = d.sources.leftOut()
	if d.files != nil {
		_, err := d.files.Status()
		s.Discovery.Files = refusal(err)
	}
	if d.discovery != nil {
		status := d.discovery.Status()
		s.Discovery.DoubleZero = &status
	}
}

// findProblems says what is not as it should be. A link that loses probes is none: that is what is measured.
func (s *daemonStatus) findProblems() {
	problem := func(format string, args ...any) { s.Problems = append(s.Problems, fmt.Sprintf(format, args...)) }
	for _, l := range s.Loops {
		if l.State != loopRuns {
			problem("loop %s is %s: not heard of since %s", l.Name, l.State, l.Since.UTC().Format(time.RFC3339))
		}
	}
	unusable := make(map[string][]string)
	for _, p := range s.Paths {
		if p.Reason != "" {
			unusable[p.Reason] = append(unusable[p.Reason], p.Path)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(unusable)) {
		problem("nothing is sent to %s: %s", some(unusable[reason]), reason)
	}
	for _, i := range s.Interfaces {
		if i.Hook == "none" && i.Refused != "" {
			problem("interface %s has socket stamps only: refused %s", i.Interface, i.Refused)
		}
	}
	if s.Reflector.Enabled && !s.Reflector.On {
		problem("the reflector is off: its port is not bound")
	}
	switch {
	case !s.Store.Open:
		problem("the store is not open: samples stay in memory")
	case s.Store.Degraded != "":
		problem("samples stay in memory: %s", s.Store.Degraded)
	}
	if s.Store.DiskFull {
		problem("the store's disk is full: less than store.min_free_bytes is free, and the oldest samples make room for new ones")
	}
	if s.Store.Dropped > 0 {
		problem("%d samples were dropped: memory was full", s.Store.Dropped)
	}
	for _, sink := range s.Sinks {
		if sink.Failing != "" {
			problem("sink %s fails, %d samples wait: %s", sink.Sink, sink.Waiting, sink.Failing)
		}
	}
	s.findLedgerProblems(problem)
	if !s.Reload.Successful {
		problem("the configuration could not be reloaded")
	}
	if len(s.Problems) > 0 {
		s.State = stateDegraded
	}
}

func (s *daemonStatus) findLedgerProblems(problem func(format string, args ...any)) {
	if s.Ledger != nil {
		if s.Ledger.Hold != "" {
			problem("nothing is written to the ledger: %s", s.Ledger.Hold)
		}
		for _, a := range s.Ledger.Accounts {
			if a.OtherWriter {
				problem("somebody else writes to the account of %s in epoch %d", a.Path, a.Epoch)
			}
		}
	}
	good := 0
	for _, e := range s.Endpoints {
		if e.Good {
			good++
		}
	}
	switch {
	case len(s.Endpoints) == 0:
	case good == 0:
		problem("no endpoint of the ledger is good")
	case len(s.Endpoints) == 1:
		problem("there is one endpoint of the ledger only")
	}
	if len(s.Discovery.LeftOut) > 0 {
		problem("targets are left out: %s", some(s.Discovery.LeftOut))
	}
	if s.Discovery.Files != "" {
		problem("files of targets are damaged: %s", s.Discovery.Files)
	}
	if z := s.Discovery.DoubleZero; z != nil && z.LastError != "" {
		problem("links are not discovered: %s", z.LastError)
	}
}

// some names the first of many.
func some(names []string) string {
	const most = 3
	if len(names) <= most+1 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d others", strings.Join(names[:most], ", "), len(names)-most)
}
