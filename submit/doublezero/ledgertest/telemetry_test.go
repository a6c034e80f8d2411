// SPDX-License-Identifier: Apache-2.0

package ledgertest

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// someoneElse is a key that has nothing to do with the agent.
var someoneElse = Pubkey{1: 99}

// runNow runs one instruction with the agent, or else someoneElse, as the only signer and payer, on the ledger's newest state, keeps
// what it changed, and returns its error as JSON.
func runNow(t *testing.T, l *Ledger, agentSigns bool, data []byte, accounts ...accountRef) string {
	t.Helper()
	payer := someoneElse
	if agentSigns {
		payer = agent
	}
	tx := &transaction{keys: []Pubkey{payer}, signatures: make([][64]byte, 1)}
	tx.instructions = []instruction{{l.options.Telemetry, accounts, data}}
	slot := l.Slot()
	x := l.execution(tx, slot)
	err, _ := x.run()
	if err != nil {
		b, err := json.Marshal(err)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for key, a := range x.changed {
		l.bank.put(key, slot, a)
	}
	return ""
}

func refs(agentSigns bool, account Pubkey, more ...Pubkey) []accountRef {
	list := []accountRef{{account, false, true}, {agent, agentSigns, agentSigns}}
	for _, k := range more {
		list = append(list, accountRef{key: k})
	}
	return list
}

// violation breaks one rule of an instruction that is right in S.
type violation[S any] struct {
	name    string
	want    string
	breakIt func(*S)
}

// eachPair shows that a rule that is checked earlier decides: it breaks each rule alone and with each one behind it.
func eachPair[S any](t *testing.T, rules []violation[S], right func() S, run func(*testing.T, S) string) {
	t.Run("nothing broken", func(t *testing.T) {
		if got := run(t, right()); got != "" {
			t.Errorf("error %s", got)
		}
	})
	for i, first := range rules {
		t.Run(first.name, func(t *testing.T) {
			s := right()
			first.breakIt(&s)
			if got := run(t, s); got != first.want {
				t.Errorf("error %s, want %s", got, first.want)
			}
		})
		for _, second := range rules[i+1:] {
			t.Run(first.name+", "+second.name, func(t *testing.T) {
				s := right()
				second.breakIt(&s)
				first.breakIt(&s)
				if got := run(t, s); got != first.want {
					t.Errorf("error %s, want %s", got, first.want)
				}
			})
		}
	}
}

func custom(code string) string { return `{"InstructionError":[0,{"Custom":` + code + `}]}` }

func TestInitializeChecks(t *testing.T) {
	type scene struct {
		interval                            uint64
		signs                               bool
		originOwner, targetOwner, linkOwner Pubkey
		origin, target                      Device
		link                                Link
		account                             Pubkey
		exists                              bool
	}
	serviceability := MustPubkey(devnetServiceability)
	right := func() scene {
		return scene{
			interval: 1, signs: true, originOwner: serviceability, targetOwner: serviceability, linkOwner: serviceability,
			origin: Device{Status: 1, Publisher: agent}, target: Device{Status: 1}, link: Link{Status: 1, SideA: origin, SideZ: target},
			account: samplesAddress(MustPubkey(devnetTelemetry), origin, target, link, 5),
		}
	}
	rules := []violation[scene]{
		{"interval", custom("1012"), func(s *scene) { s.interval = 0 }},
		{"signer", `{"InstructionError":[0,"MissingRequiredSignature"]}`, func(s *scene) { s.signs = false }},
		{"owner of origin", `{"InstructionError":[0,"IncorrectProgramId"]}`, func(s *scene) { s.originOwner = Pubkey{} }},
		{"owner of target", `{"InstructionError":[0,"IncorrectProgramId"]}`, func(s *scene) { s.targetOwner = Pubkey{} }},
		{"owner of link", `{"InstructionError":[0,"IncorrectProgramId"]}`, func(s *scene) { s.linkOwner = Pubkey{} }},
		{"status of origin", custom("1002"), func(s *scene) { s.origin.Status = 0 }},
		{"agent", custom("1001"), func(s *scene) { s.origin.Publisher = someoneElse }},
		{"status of target", custom("1002"), func(s *scene) { s.target.Status = 3 }},
		{"status of link", custom("1003"), func(s *scene) { s.link.Status = 5 }},
		{"ends of link", custom("1004"), func(s *scene) { s.link.SideZ = someoneElse }},
		{"address", custom("1009"), func(s *scene) { s.account = Pubkey{1: 77} }},
		{"exists", custom("1010"), func(s *scene) { s.exists = true }},
	}
	eachPair(t, rules, right, func(t *testing.T, s scene) string {
		l := New(Options{})
		defer l.Close()
		l.Fund(agent, sol)
		l.Fund(someoneElse, sol)
		l.PutAccount(origin, Account{Owner: s.originOwner, Data: s.origin.Encode()})
		l.PutAccount(target, Account{Owner: s.targetOwner, Data: s.target.Encode()})
		l.PutAccount(link, Account{Owner: s.linkOwner, Data: s.link.Encode()})
		if s.exists {
			l.PutAccount(s.account, Account{Owner: l.options.Telemetry, Data: []byte{1}})
		}
		return runNow(t, l, s.signs, initializeData(5, s.interval), refs(s.signs, s.account, origin, target, link, systemProgram)...)
	})
}

func TestWriteChecks(t *testing.T) {
	type scene struct {
		values  int
		signs   bool
		missing bool
		owner   Pubkey
		short   bool
		kind    byte
		agent   Pubkey
		present int
	}
	right := func() scene {
		return scene{values: 1, signs: true, owner: MustPubkey(devnetTelemetry), kind: samplesType, agent: agent}
	}
	rules := []violation[scene]{
		{"no samples", custom("1017"), func(s *scene) { s.values = 0 }},
		{"signer", `{"InstructionError":[0,"MissingRequiredSignature"]}`, func(s *scene) { s.signs = false }},
		{"no account", custom("1011"), func(s *scene) { s.missing = true }},
		{"owner", custom("1008"), func(s *scene) { s.owner = MustPubkey(devnetServiceability) }},
		{"header", `{"InstructionError":[0,"InvalidAccountData"]}`, func(s *scene) { s.short = true }},
		{"type", custom("1007"), func(s *scene) { s.kind = 1 }},
		{"agent", custom("1001"), func(s *scene) { s.agent = someoneElse }},
		{"full", custom("1006"), func(s *scene) { s.present = MaxSamples }},
		{"too many", custom("1013"), func(s *scene) { s.values = 2561 }},
	}
	eachPair(t, rules, right, func(t *testing.T, s scene) string {
		l := New(Options{})
		defer l.Close()
		l.Fund(agent, sol)
		l.Fund(someoneElse, sol)
		data := Samples{Agent: s.agent, Values: make([]uint32, s.present)}.Encode()
		data[0] = s.kind
		if s.short {
			data = data[:348]
		}
		account := Pubkey{1: 50}
		if !s.missing {
			l.PutAccount(account, Account{Owner: s.owner, Data: data})
		}
		return runNow(t, l, s.signs, writeData(1, make([]uint32, s.values)...), refs(s.signs, account, systemProgram)...)
	})
}

func TestInitializeStatuses(t *testing.T) {
	allowed := func(device bool) (list []uint8) {
		for status := range uint8(20) {
			l := newLedger(t, Options{})
			if device {
				l.PutDevice(origin, Device{Status: status, Publisher: agent})
			} else {
				l.PutLink(link, Link{Status: status, SideA: target, SideZ: origin}) // sides the other way round
			}
			account := l.SamplesAddress(origin, target, link, 1)
			if runNow(t, l, true, initializeData(1, 1), refs(true, account, origin, target, link, systemProgram)...) == "" {
				list = append(list, status)
			}
		}
		return list
	}
	if diff := cmp.Diff([]uint8{1, 5, 6, 7}, allowed(true)); diff != "" {
		t.Errorf("statuses of devices (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]uint8{1, 6, 7, 8}, allowed(false)); diff != "" {
		t.Errorf("statuses of links (-want +got):\n%s", diff)
	}
}

func TestWrites(t *testing.T) {
	l := newLedger(t, Options{})
	account := l.SamplesAddress(origin, target, link, 7)
	l.PutAccount(account, Account{Lamports: 1000}) // somebody sent it money before it was there
	step := func(data []byte, accounts []accountRef, want string) {
		t.Helper()
		if got := runNow(t, l, true, data, accounts...); got != want {
			t.Errorf("error %s, want %s", got, want)
		}
	}
	expect := func(change func(*Samples)) {
		t.Helper()
		want := Samples{
			Epoch: 7, Agent: agent, Origin: origin, Target: target, OriginLocation: location, TargetLocation: location, Link: link,
			IntervalMicros: 10_000_000, AgentVersion: padded[[16]byte]("0.1.0"), AgentCommit: padded[[8]byte]("abcd1234"), Values: []uint32{},
		}
		change(&want)
		got, err := l.Samples(account)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("account (-want +got):\n%s", diff)
		}
		if got, want := l.Account(account).Lamports, rent(349+4*len(want.Values)); got != want {
			t.Errorf("account holds %d lamports, want %d", got, want)
		}
	}
	write := refs(true, account, systemProgram)

	step(initializeData(7, 10_000_000), refs(true, account, origin, target, link, systemProgram), "")
	expect(func(*Samples) {})
	step(writeData(0, 1), write, "")
	step(writeData(500, 2, 3), write, "") // the first that finds no start
	step(writeData(900, 4), write, "")
	expect(func(s *Samples) { s.Values, s.StartMicros = []uint32{1, 2, 3, 4}, 500 })

	newVersion := padded[[16]byte]("0.2.0")
	step(slices.Concat(writeData(1, 5)[:17], newVersion[:], make([]byte, 8), []byte("surplus")), write, "")
	step(writeData(1, 6)[:17], write, "") // without version and commit, as old agents sent
	expect(func(s *Samples) {
		s.Values, s.StartMicros, s.AgentVersion = []uint32{1, 2, 3, 4, 5, 6}, 500, newVersion
	})

	step([]byte{}, write, `{"InstructionError":[0,"InvalidInstructionData"]}`)
	step([]byte{2}, write, `{"InstructionError":[0,"InvalidInstructionData"]}`)
	step(writeData(1, 1, 2)[:15], write, `{"InstructionError":[0,"InvalidInstructionData"]}`)
	step(writeData(1, 1), write[:2], `{"InstructionError":[0,"NotEnoughAccountKeys"]}`)
	step(initializeData(7, 1), write, `{"InstructionError":[0,"NotEnoughAccountKeys"]}`)
	readonly := slices.Clone(write)
	readonly[0].writable = false
	step(writeData(1, 1), readonly, `{"InstructionError":[0,"ReadonlyDataModified"]}`)
	noPayer := slices.Clone(write)
	noPayer[1].writable = false
	step(writeData(1, 1), noPayer, `{"InstructionError":[0,"PrivilegeEscalation"]}`)
	noSystem := slices.Clone(write)
	noSystem[2].key = someoneElse
	step(writeData(1, 1), noSystem, `{"InstructionError":[0,"IncorrectProgramId"]}`)
	expect(func(s *Samples) {
		s.Values, s.StartMicros, s.AgentVersion = []uint32{1, 2, 3, 4, 5, 6}, 500, newVersion
	})
}

func TestFullAccount(t *testing.T) {
	l := newLedger(t, Options{})
	account := l.PutSamples(Samples{Agent: agent, Origin: origin, Target: target, Link: link, Epoch: 3, Values: make([]uint32, MaxSamples-5)})
	write := refs(true, account, systemProgram)
	for _, step := range []struct {
		n    int
		want string
	}{{6, custom("1006")}, {3, ""}, {3, custom("1006")}, {2, ""}, {1, custom("1006")}} {
		if got := runNow(t, l, true, writeData(1, make([]uint32, step.n)...), write...); got != step.want {
			t.Errorf("%d samples: error %s, want %s", step.n, got, step.want)
		}
	}
	if s, err := l.Samples(account); err != nil || len(s.Values) != MaxSamples {
		t.Errorf("%d samples, %v, want %d", len(s.Values), err, MaxSamples)
	}
	if err := l.Append(account, 1, 2); err == nil {
		t.Error("a second writer wrote into a full account")
	}
}

func TestMoney(t *testing.T) {
	account := samplesAddress(MustPubkey(devnetTelemetry), origin, target, link, 7)
	initialize := refs(true, account, origin, target, link, systemProgram)
	for _, tt := range []struct {
		name     string
		lamports uint64
		want     string
	}{
		{"no payer", 0, `"AccountNotFound"`},
		{"not even the fee", 4999, `"InsufficientFundsForFee"`},
		{"no rent", 5000 + 3_319_919, custom("1")},
		{"all of it", 5000 + 3_319_920, ""},
		{"too little left", 5000 + 3_319_920 + 890_879, `{"InsufficientFundsForRent":{"account_index":0}}`},
		{"enough left", 5000 + 3_319_920 + 890_880, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLedger(t, Options{})
			l.bank.accounts[agent] = []version{{0, Account{Lamports: tt.lamports}}}
			if got := runNow(t, l, true, initializeData(7, 1), initialize...); got != tt.want {
				t.Errorf("error %s, want %s", got, tt.want)
			}
			if got := l.Account(account).Data; (len(got) > 0) != (tt.want == "") {
				t.Errorf("account has %d bytes", len(got))
			}
		})
	}
}

func TestSecondWriter(t *testing.T) {
	l := newLedger(t, Options{})
	account := l.PutSamples(Samples{Agent: agent, Origin: origin, Target: target, Link: link, Epoch: 3})
	if err := l.Append(account, 77, 1, 2); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(account, 88, 3); err != nil {
		t.Fatal(err)
	}
	want := Samples{Agent: agent, Origin: origin, Target: target, Link: link, Epoch: 3, StartMicros: 77, Values: []uint32{1, 2, 3}}
	if !bytes.Equal(l.Account(account).Data, want.Encode()) {
		t.Errorf("account (-want +got):\n%s", cmp.Diff(want, l.AllSamples()[account]))
	}
	l.Account(account).Data[0] = 99 // it is the caller's
	if _, err := l.Samples(account); err != nil {
		t.Error(err)
	}
	if err := l.Append(Pubkey{5}, 1, 1); err == nil {
		t.Error("a second writer wrote into an account that is not there")
	}
}
