// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/submit"
	"github.com/xtwamp/xtwamp/submit/doublezero/ledgertest"
)

// childEnv holds a childConfig: TestMain then runs a submitter in place of the tests.
const childEnv = "XTWAMP_TEST_SUBMITTER"

// childConfig is what a submitter process works with, and when it kills itself.
type childConfig struct {
	Store, Address string
	Device         Pubkey
	Step           string // at which it dies; "": it ends when all is delivered
	Nth            int    // time it comes to that step
}

// killInterval is the time between samples in the kill test; its epochs last 100 s, so that a few hundred seconds hold several.
const killInterval = 100 * time.Millisecond

// runChild submits what is in a store until all is delivered.
func runChild(text string) error {
	var c childConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	l, err := store.Open(store.Config{Path: c.Store, Boot: "boot", NoSync: true})
	if err != nil {
		return err
	}
	program, err := ParsePubkey("C9xqH76NSm11pBS6maNnY163tWHT8Govww47uyEmSnoG")
	if err != nil {
		return err
	}
	config := Config{
		Endpoints: &direct{RoundTripper: dialer(c.Address), calls: make(map[string]int)}, Log: l, Keypair: newKeypair(seed), Program: program,
		Device: c.Device, SampleInterval: killInterval, FlushInterval: 50 * time.Millisecond, FillGaps: true, MaxConcurrency: 4,
		Logger: zap.NewNop(), Poll: 20 * time.Millisecond,
		Step: func(name string) {
			if name != c.Step {
				return
			}
			if c.Nth--; c.Nth == 0 {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		},
	}
	s, err := submit.New(submit.Config{Log: l, Sink: New(config), Interval: 50 * time.Millisecond, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for {
		if totals, err := l.Totals(Name); err == nil && totals.Waiting == 0 && totals.Offered > 0 {
			cancel()
			return <-done
		}
		pass(20 * time.Millisecond)
	}
}

type killStep struct {
	name  string
	fault ledgertest.Fault
}

// killSteps are the steps of ledger.md 3 at which a process may be killed, and what has to happen so that it comes to them.
var killSteps = []killStep{
	{name: "initialize"},
	{name: "initialize sent"},
	{name: "journal"},
	{name: "send"},
	{name: "sent"},
	{name: "resend", fault: ledgertest.Fault{Kind: ledgertest.NotForwarded, Calls: 2}},
	{name: "landed"},
	{name: "expired", fault: ledgertest.Fault{Kind: ledgertest.NotForwarded}},
}

// everyWrite are the steps that each write takes.
var everyWrite = []string{"journal", "send", "sent", "landed"}

// A submitter that is killed again and again, at each step at least twice, leaves in the ledger what one leaves that nobody disturbs.
func TestKilledSubmittersLeaveTheSameAccounts(t *testing.T) {
	const links, kills = 3, 50
	l := ledgertest.New(ledgertest.Options{SlotTime: 5 * time.Millisecond, SlotsPerEpoch: 20_000, SlotIndex: 15_000})
	defer l.Close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Serve(ln, ledgertest.Address{Name: ln.Addr().String()})
	agent := ledgertest.Pubkey(newKeypair(seed).Public())
	l.Fund(agent, 1000e9)

	now := time.Now()
	var sides [2]childConfig
	for i, name := range []string{"killed", "undisturbed"} {
		device := key(name, 0)
		sides[i] = childConfig{Store: filepath.Join(t.TempDir(), "samples.db"), Address: ln.Addr().String(), Device: device}
		l.PutDevice(ledgertest.Pubkey(device), ledgertest.Device{Status: ledgertest.DeviceActivated, Publisher: agent})
		for n := range links {
			target, link := key("target of "+name, n), key("link of "+name, n)
			l.PutDevice(ledgertest.Pubkey(target), ledgertest.Device{Status: ledgertest.DeviceActivated})
			l.PutLink(ledgertest.Pubkey(link), ledgertest.Link{
				Status: ledgertest.LinkActivated, SideA: ledgertest.Pubkey(device), SideZ: ledgertest.Pubkey(target),
			})
		}
		fill(t, sides[i].Store, name, links, now)
	}

	killed := make(map[string]int)
	random := rand.New(rand.NewPCG(1, 2))
	for n := 0; n < kills; {
		step := killSteps[n%len(killSteps)]
		if n >= 2*len(killSteps) {
			step = killStep{name: everyWrite[random.IntN(len(everyWrite))]}
		}
		c := sides[0]
		c.Step, c.Nth = step.name, 1
		if n >= 2*len(killSteps) {
			c.Nth += random.IntN(3)
		}
		heal := func() {}
		if step.fault.Kind != "" {
			heal = l.Inject(step.fault)
		}
		finished := runSubmitter(t, c)
		heal()
		if finished {
			t.Fatalf("all was delivered after %d kills, before %q came to pass %d times", n, c.Step, c.Nth)
		}
		killed[step.name]++
		n++
	}
	for _, step := range killSteps {
		if killed[step.name] < 2 {
			t.Errorf("killed %d times at %q, want twice or more", killed[step.name], step.name)
		}
	}
	for _, c := range sides {
		if !runSubmitter(t, c) {
			t.Fatal("a submitter that nobody kills was killed")
		}
	}
	if total := l.Transactions(); len(total) < kills {
		t.Errorf("%d transactions", len(total))
	}

	accounts := [2]map[string][]byte{{}, {}}
	for _, a := range l.AllSamples() {
		for i := range sides {
			if a.Origin != ledgertest.Pubkey(sides[i].Device) {
				continue
			}
			name := fmt.Sprintf("link %s in epoch %d", bytes.TrimRight(a.Link[len("link of "):31], "\x00")[len([]string{"killed", "undisturbed"}[i])+1:], a.Epoch)
			a.Origin, a.Target, a.Link = ledgertest.Pubkey{}, ledgertest.Pubkey{}, ledgertest.Pubkey{}
			accounts[i][name] = a.Encode()
		}
	}
	if len(accounts[1]) < 5*links {
		t.Errorf("%d accounts, want those of %d links in five epochs", len(accounts[1]), links)
	}
	for name, want := range accounts[1] {
		if got := accounts[0][name]; !bytes.Equal(want, got) {
			a, _ := ledgertest.DecodeSamples(want)
			b, _ := ledgertest.DecodeSamples(got)
			t.Errorf("%s (-want +got):\n%s", name, cmp.Diff(a, b))
		}
	}
	if len(accounts[0]) != len(accounts[1]) {
		t.Errorf("%d accounts, want %d", len(accounts[0]), len(accounts[1]))
	}
}

// fill makes a store with samples of the last 500 s: some lost, some not sent, some missing.
func fill(t *testing.T, path, side string, links int, now time.Time) {
	t.Helper()
	l, err := store.Open(store.Config{Path: path, Boot: "boot", NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	offset := now.Add(-time.Hour).UnixNano()
	l.SetOffset(store.Offset{Nanoseconds: offset, Synchronized: true})
	if err := l.Enable(Name, true, Takes); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(3, 4))
	for n := range links {
		p, err := l.Register(fmt.Sprintf("p%d", n), map[string]string{
			LabelLink: key("link of "+side, n).String(), LabelTarget: key("target of "+side, n).String(), LabelInterval: killInterval.String(),
		})
		if err != nil {
			t.Fatal(err)
		}
		var batch []store.Record
		for i := range 5000 {
			s := store.Sample{Mono: now.Add(time.Duration(i-5000)*killInterval).UnixNano() - offset, Outcome: store.OnTime, RTT: int64(i+1) * 1000}
			switch random.IntN(20) {
			case 0:
				s.Outcome, s.RTT = store.Lost, 0
			case 1:
				s.Outcome, s.Reason, s.RTT = store.NotSent, store.NoCarrier, 0
			case 2:
				continue
			}
			if i/400 == n+2 {
				continue // a gap that is longer than one write
			}
			batch = append(batch, store.Record{Path: p.ID, Sample: s})
		}
		if err := l.Append(batch); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// runSubmitter runs a submitter process and reports whether it ended by itself.
func runSubmitter(t *testing.T, c childConfig) (finished bool) {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return true
	case ctx.Err() == nil && errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL:
		return false
	}
	t.Fatalf("submitter that dies at %q (time %d): %v\n%s", c.Step, c.Nth, err, out)
	return false
}
