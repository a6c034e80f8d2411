// SPDX-License-Identifier: Apache-2.0

package ledgertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// outcome is what a client gets.
type outcome struct {
	Status     int // 0: no answer
	Type       string
	RetryAfter string
	Body       string
	Took       time.Duration
}

// try makes one call on a connection of its own.
func try(l *Ledger, method, params string) outcome {
	start := time.Now()
	client := &http.Client{Transport: &http.Transport{DialContext: l.Dial, DisableKeepAlives: true}}
	resp, body, err := post(client, "http://"+here, request(method, params))
	o := outcome{Took: time.Since(start)}
	if resp != nil {
		o.Status, o.Type, o.RetryAfter, o.Body = resp.StatusCode, resp.Header.Get("Content-Type"), resp.Header.Get("Retry-After"), body
	}
	if err != nil {
		o.Status = 0
	}
	return o
}

// works reports whether a call of a method gets its result.
func works(l *Ledger, method string) bool {
	return strings.Contains(try(l, method, "").Body, `"result"`)
}

func TestSpoiltAnswers(t *testing.T) {
	html := func(title string) string {
		return fmt.Sprintf("<html>\n<head><title>%s</title></head>\n<body><h1>%[1]s</h1></body>\n</html>\n", title)
	}
	const jsonType = "application/json; charset=utf-8"
	for _, tt := range []struct {
		fault Fault
		want  outcome
	}{
		{Fault{Kind: Unavailable}, outcome{Status: 503, Type: "text/plain; charset=utf-8", Body: "Service Unavailable\n"}},
		{Fault{Kind: UnavailableJSON}, outcome{
			Status: 503, Type: "application/json", Body: `{"jsonrpc":"2.0","error":{"code":503,"message":"Service unavailable"},"id":1}` + "\n",
		}},
		{Fault{Kind: RateLimited}, outcome{Status: 429, Type: "text/html", Body: html("429 Too Many Requests")}},
		{Fault{Kind: RateLimited, Wait: 6500 * time.Millisecond}, outcome{
			Status: 429, Type: "text/html", RetryAfter: "7", Body: html("429 Too Many Requests"),
		}},
		{Fault{Kind: Nonsense}, outcome{Status: 200, Type: "text/html", Body: html("Welcome")}},
		{Fault{Kind: Error, Code: -32005, Message: "Node is behind"}, outcome{
			Status: 200, Type: jsonType, Body: `{"jsonrpc":"2.0","error":{"code":-32005,"message":"Node is behind"},"id":1}` + "\n",
		}},
		{Fault{Kind: Error, Code: -32002, Message: "no", Data: map[string]any{"err": customError(1006)}}, outcome{Status: 200, Type: jsonType,
			Body: `{"jsonrpc":"2.0","error":{"code":-32002,"message":"no","data":{"err":{"InstructionError":[0,{"Custom":1006}]}}},"id":1}` + "\n"}},
		{Fault{Kind: Delay, Wait: 3 * time.Second}, outcome{
			Status: 200, Type: jsonType, Body: `{"jsonrpc":"2.0","result":"ok","id":1}` + "\n", Took: 3 * time.Second,
		}},
		{Fault{Kind: Delay, Wait: 6 * time.Second}, outcome{Took: 5 * time.Second}},
		{Fault{Kind: Truncate}, outcome{Type: "application/json", Body: `{"jsonrpc":"2.0","r`}},
		{Fault{Kind: Reset}, outcome{}},
		{Fault{Kind: Silence}, outcome{Took: 5 * time.Second}},
		{Fault{Kind: Refuse}, outcome{}},
		{Fault{Kind: Blackhole}, outcome{Took: 5 * time.Second}},
	} {
		t.Run(string(tt.fault.Kind), func(t *testing.T) {
			simulate(t, inMiddle, func(t *testing.T, l *Ledger) {
				heal := l.Inject(tt.fault)
				if diff := cmp.Diff(tt.want, try(l, "getHealth", "")); diff != "" {
					t.Errorf("outcome (-want +got):\n%s", diff)
				}
				heal()
				if !works(l, "getHealth") {
					t.Error("the fault was not removed")
				}
			})
		})
	}
}

// TestAnswerLost spoils the answer to a transaction that is taken in, or not.
func TestAnswerLost(t *testing.T) {
	for _, kind := range []Kind{Silence, Reset, Unavailable, UnavailableJSON, RateLimited, Nonsense, Truncate} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, after=%v", kind, after), func(t *testing.T) {
				simulate(t, inMiddle, func(t *testing.T, l *Ledger) {
					raw, account := signedInitialize(t, l, 194)
					l.Inject(Fault{Kind: kind, Methods: []string{"sendTransaction"}, Calls: 1, After: after})
					if o := try(l, "sendTransaction", sendParams(raw)); o.Status == 200 && strings.Contains(o.Body, `"result"`) {
						t.Errorf("outcome %+v", o)
					}
					slots(3)
					if got, want := len(l.Account(account).Data) > 0, after || kind == Truncate; got != want {
						t.Errorf("landed: %v, want %v", got, want)
					}
					sent(t, l, raw) // the fault is over
				})
			})
		}
	}
}

func sendParams(raw []byte) string {
	b, err := json.Marshal(raw)
	if err != nil {
		panic(err)
	}
	return string(b) + `,{"encoding":"base64"}`
}

func TestWhenFaultsStrike(t *testing.T) {
	const other = "192.0.2.2:80"
	// got tells for a row of calls which of them succeeded.
	rows := []struct {
		name  string
		fault Fault
		want  string
	}{
		{"always", Fault{}, "....."},
		{"some calls", Fault{Skip: 1, Calls: 2}, "x..xx"},
		{"for a while", Fault{For: 3 * time.Second}, "...xx"},
		{"a method", Fault{Methods: []string{"getHealth"}}, "....."},
		{"another method", Fault{Methods: []string{"getSlot"}}, "xxxxx"},
		{"all methods but one", Fault{Methods: Except("getHealth")}, "xxxxx"},
		{"here", Fault{Address: here}, "....."},
		{"elsewhere", Fault{Address: other}, "xxxxx"},
		{"a node", Fault{Node: "a"}, ".x.x."},
		{"a node elsewhere", Fault{Node: "a", Address: other}, "xxxxx"},
	}
	for _, tt := range rows {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, inMiddle, func(t *testing.T, l *Ledger) {
				const two = "192.0.2.3:80"
				name := here
				if tt.fault.Node != "" {
					name = two
					l.Listen(Address{Name: two, Nodes: []Node{{Name: "a"}, {Name: "b"}}})
				}
				f := tt.fault
				f.Kind = Unavailable
				l.Inject(f)
				var got strings.Builder
				client := newClient(t, l)
				for range 5 {
					if resp, _, err := post(client, "http://"+name, request("getHealth", "")); err == nil && resp.StatusCode == 200 {
						got.WriteByte('x')
					} else {
						got.WriteByte('.')
					}
					pass(time.Second)
				}
				if got.String() != tt.want {
					t.Errorf("calls that succeeded: %s, want %s", got.String(), tt.want)
				}
				l.Heal()
				if !works(l, "getHealth") {
					t.Error("not healed")
				}
			})
		})
	}
}

func TestNodes(t *testing.T) {
	const two = "192.0.2.3:80"
	for _, pinned := range []bool{false, true} {
		t.Run(fmt.Sprintf("pinned=%v", pinned), func(t *testing.T) {
			simulate(t, inMiddle, func(t *testing.T, l *Ledger) {
				l.Listen(Address{Name: two, Nodes: []Node{{Name: "a"}, {Name: "b", Lag: 200}}, Pinned: pinned})
				var got []uint64
				for range 2 {
					client := newClient(t, l)
					for range 2 {
						_, body, err := post(client, "http://"+two, request("getSlot", `{"commitment":"processed"}`))
						if err != nil {
							t.Fatal(err)
						}
						var r struct{ Result uint64 }
						if err := json.Unmarshal([]byte(body), &r); err != nil {
							t.Fatal(err)
						}
						got = append(got, l.Slot()-r.Result)
					}
				}
				want := []uint64{0, 200, 0, 200}
				if pinned {
					want = []uint64{0, 0, 200, 200}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("slots behind (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestNodeFaults(t *testing.T) {
	simulate(t, inMiddle, func(t *testing.T, l *Ledger) {
		slot := func() uint64 { return result[uint64](t, l, "getSlot", `{"commitment":"processed"}`) }
		with := func(f Fault, run func()) {
			t.Helper()
			defer l.Inject(f)()
			run()
		}
		first := l.Slot()
		raw, account := signedInitialize(t, l, 194)
		signature := sent(t, l, raw)
		slots(500)

		with(Fault{Kind: Lag, Slots: 130}, func() {
			if got := l.Slot() - slot(); got != 130 {
				t.Errorf("%d slots behind, want 130", got)
			}
			r := ask(t, l, "getHealth", "")
			if r.Error == nil || r.Error.Code != -32005 || string(r.Error.Data) != `{"numSlotsBehind":130}` {
				t.Errorf("health of a node that is behind: %+v", r.Error)
			}
			if r := send(t, l, raw, false); r.Error == nil || r.Error.Code != -32005 {
				t.Errorf("preflight of a node that is behind: %+v", r.Error)
			}
		})
		with(Fault{Kind: Stuck}, func() {
			before := slot()
			slots(50)
			if got := slot(); got != before {
				t.Errorf("the node went on by %d slots", got-before)
			}
			raw := signedWrite(t, l, account, 1, 2)
			sent(t, l, raw) // it still forwards
			slots(2)
			if s, err := l.Samples(account); err != nil || len(s.Values) != 1 {
				t.Errorf("samples %v, %v", s.Values, err)
			}
			if got := result[struct {
				Value struct{ Space int }
			}](t, l, "getAccountInfo", fmt.Sprintf(`%q,{"commitment":"processed","encoding":"base64"}`, account)).Value.Space; got != 349 {
				t.Errorf("the node sees an account of %d bytes", got)
			}
		})
		for _, lie := range []int64{1000, -1000} {
			with(Fault{Kind: LyingSlot, Slots: lie}, func() {
				info := result[struct{ AbsoluteSlot, BlockHeight int64 }](t, l, "getEpochInfo", `{"commitment":"processed"}`)
				want := int64(l.Slot()) + lie
				if info.AbsoluteSlot != want || info.BlockHeight != int64(l.chain.height(l.Slot()))+lie || slot() != uint64(want) {
					t.Errorf("the node claims slot %d and %d, height %d, want slot %d", info.AbsoluteSlot, slot(), info.BlockHeight, want)
				}
				if got := result[latestBlockhash](t, l, "getLatestBlockhash", `{"commitment":"processed"}`).Context.Slot; got != l.Slot() {
					t.Errorf("context slot %d, want %d", got, l.Slot())
				}
			})
		}
		with(Fault{Kind: WrongGenesis}, func() {
			if got := result[string](t, l, "getGenesisHash", ""); got == l.Genesis() {
				t.Error("the genesis is right")
			}
		})
		with(Fault{Kind: NoHistory}, func() {
			for method, params := range map[string]string{
				"getTransaction": fmt.Sprintf(`%q,{"encoding":"base64"}`, signature), "getBlocks": fmt.Sprint(first),
				"getSignatureStatuses": fmt.Sprintf(`[%q],{"searchTransactionHistory":true}`, signature),
			} {
				if got := code(t, l, method, params); got != -32011 {
					t.Errorf("%s without history: %d", method, got)
				}
			}
			if got := code(t, l, "getSignatureStatuses", fmt.Sprintf(`[%q]`, signature)); got != 0 {
				t.Errorf("getSignatureStatuses among the recent ones: %d", got)
			}
		})
		with(Fault{Kind: Pruned, Slots: 100}, func() {
			at := l.Slot()
			if got := code(t, l, "getBlockTime", fmt.Sprint(at-101)); got != -32001 {
				t.Errorf("block that is gone: %d", got)
			}
			if got := code(t, l, "getBlockTime", fmt.Sprint(at-100)); got != 0 {
				t.Errorf("block that is there: %d", got)
			}
			if got := result[[]uint64](t, l, "getBlocks", fmt.Sprint(first)); got[0] != at-100 {
				t.Errorf("first block is %d, want %d", got[0], at-100)
			}
			if got := string(ask(t, l, "getTransaction", fmt.Sprintf(`%q,{"encoding":"base64"}`, signature)).Result); got != "null" {
				t.Errorf("transaction %s", got)
			}
		})
		skipped := l.chain.firstSlot(194)
		for _, code := range []int{0, -32004, -32009} {
			with(Fault{Kind: SkippedAs, Code: code}, func() {
				r := ask(t, l, "getBlockTime", fmt.Sprint(skipped))
				if code == 0 && string(r.Result) != "null" || code != 0 && (r.Error == nil || r.Error.Code != code) {
					t.Errorf("time of a skipped slot: %+v, want code %d", r, code)
				}
			})
		}
	})
}

func TestTransactionFaults(t *testing.T) {
	// history is what a client sees in the slots after it sent: the status, and whether getTransaction finds it at confirmed.
	history := func(t *testing.T, l *Ledger, signature string, at ...int) (list []string) {
		n := 0
		for _, next := range at {
			slots(next - n)
			n = next
			s := status(t, l, signature)
			if string(ask(t, l, "getTransaction", fmt.Sprintf(`%q,{"encoding":"base64","commitment":"confirmed"}`, signature)).Result) != "null" {
				s += "+"
			}
			list = append(list, s)
		}
		return list
	}
	for _, tt := range []struct {
		fault  Fault
		want   []string // after 1, 2, 3, 40, 60 slots
		landed bool
	}{
		{Fault{Kind: LyingSlot}, []string{"processed", "processed", "confirmed+", "finalized+", "finalized+"}, true}, // as without a fault
		{Fault{Kind: StatusNull}, []string{"", "", "+", "+", "+"}, true},
		{Fault{Kind: Invisible}, []string{"", "", "", "", ""}, true},
		{Fault{Kind: NotForwarded}, []string{"", "", "", "", ""}, false},
		{Fault{Kind: LandLate, Slots: 39}, []string{"", "", "", "processed", "confirmed+"}, true},
		{Fault{Kind: LandLate, Slots: 160}, []string{"", "", "", "", ""}, false},
		{Fault{Kind: Forked}, []string{"processed", "", "", "", ""}, false},
		{Fault{Kind: Forked, Slots: 10}, []string{"processed", "processed", "confirmed+", "", ""}, false},
	} {
		t.Run(fmt.Sprintf("%s %d", tt.fault.Kind, tt.fault.Slots), func(t *testing.T) {
			simulate(t, inMiddle, func(t *testing.T, l *Ledger) {
				raw, account := signedInitialize(t, l, 194)
				l.Inject(tt.fault)
				signature := sent(t, l, raw)
				if diff := cmp.Diff(tt.want, history(t, l, signature, 1, 2, 3, 40, 60)); diff != "" {
					t.Errorf("seen (-want +got):\n%s", diff)
				}
				slots(200)
				if got := len(l.Account(account).Data) > 0; got != tt.landed {
					t.Errorf("landed: %v, want %v", got, tt.landed)
				}
				if got := l.Account(agent).Lamports != 10*sol; got != tt.landed {
					t.Errorf("paid: %v, want %v", got, tt.landed)
				}
			})
		})
	}
}

// TestDroppedFork drops a fork on which two transactions depend on each other, and sends the first again.
func TestDroppedFork(t *testing.T) {
	simulate(t, inMiddle, func(t *testing.T, l *Ledger) {
		account := openAccount(t, l, 194)
		a, b := signedWrite(t, l, account, 1, 1), signedWrite(t, l, account, 2, 2)
		sent(t, l, a)
		slots(1)
		sent(t, l, b)
		slots(1)
		values := func() []uint32 {
			s, err := l.Samples(account)
			if err != nil {
				t.Fatal(err)
			}
			return s.Values
		}
		if diff := cmp.Diff([]uint32{1, 2}, values()); diff != "" {
			t.Fatalf("samples (-want +got):\n%s", diff)
		}
		before := l.Slot()
		height := l.chain.height(before)
		l.DropFork(2)
		if got := l.Slot(); got != before-2 || l.chain.height(got) != height-2 {
			t.Errorf("slot %d, height %d after the drop, want %d, %d", got, l.chain.height(got), before-2, height-2)
		}
		if got := values(); len(got) != 0 {
			t.Errorf("samples %v after the drop", got)
		}
		sent(t, l, a)
		slots(2)
		if diff := cmp.Diff([]uint32{1}, values()); diff != "" {
			t.Errorf("samples (-want +got):\n%s", diff)
		}
		slots(40)
		l.DropFork(1000) // what is finalized stays
		if diff := cmp.Diff([]uint32{1}, values()); diff != "" {
			t.Errorf("samples (-want +got):\n%s", diff)
		}
	})
}

// TestSameSlot has writes of the same slot land in the order in which they were sent.
func TestSameSlot(t *testing.T) {
	simulate(t, inMiddle, func(t *testing.T, l *Ledger) {
		account := openAccount(t, l, 194)
		for i := range uint32(5) {
			sent(t, l, signedWrite(t, l, account, uint64(i), i))
		}
		slots(1)
		s, err := l.Samples(account)
		if diff := cmp.Diff([]uint32{0, 1, 2, 3, 4}, s.Values); err != nil || diff != "" {
			t.Errorf("%v, samples (-want +got):\n%s", err, diff)
		}
	})
}

// TestOvertaking has a later write land before an earlier one.
func TestOvertaking(t *testing.T) {
	simulate(t, inMiddle, func(t *testing.T, l *Ledger) {
		account := openAccount(t, l, 194)
		l.Inject(Fault{Kind: LandLate, Slots: 20, Calls: 1})
		for i := range uint32(3) {
			sent(t, l, signedWrite(t, l, account, uint64(i), i))
			slots(1)
		}
		slots(30)
		s, err := l.Samples(account)
		if diff := cmp.Diff([]uint32{1, 2, 0}, s.Values); err != nil || diff != "" {
			t.Errorf("%v, samples (-want +got):\n%s", err, diff)
		}
		if got := len(l.AllSamples()); got != 1 {
			t.Errorf("%d samples accounts, want 1", got)
		}
	})
}

func TestHaltAndRollover(t *testing.T) {
	simulate(t, Options{SlotIndex: 1000}, func(t *testing.T, l *Ledger) {
		l.Halt()
		before := l.Slot()
		raw, account := signedInitialize(t, l, 194)
		signature := sent(t, l, raw)
		pass(2 * time.Hour)
		if l.Slot() != before || status(t, l, signature) != "" {
			t.Errorf("the ledger went on to slot %d from %d", l.Slot(), before)
		}
		l.Resume()
		slots(3)
		if got := status(t, l, signature); got == "" {
			t.Error("the transaction did not land, although its blockhash is as fresh as it was")
		}
		if l.Slot() < before+2 || l.Slot() > before+4 {
			t.Errorf("slot %d after the halt, %d before", l.Slot(), before)
		}

		l.Rollover()
		slots(4)
		if got, want := l.Slot(), l.chain.firstSlot(195)+4; got != want {
			t.Errorf("slot %d after the rollover, want %d", got, want)
		}
		if got, want := l.EpochStart(195), time.Now(); !got.Equal(want) || l.Epoch() != 195 {
			t.Errorf("epoch 195 starts at %v, want %v; it is epoch %d", got, want, l.Epoch())
		}
		if len(l.Account(account).Data) == 0 {
			t.Error("the account is gone")
		}

		l.SetClockOffset(-time.Hour)
		slots(33)
		slot := result[uint64](t, l, "getSlot", "")
		at := result[int64](t, l, "getBlockTime", fmt.Sprint(slot))
		if got := time.Now().Unix() - at; got < 3600+12 || got > 3600+15 {
			t.Errorf("the finalized block is %d s old", got)
		}
	})
}

func TestHooks(t *testing.T) {
	simulate(t, inMiddle, func(t *testing.T, l *Ledger) {
		var got []string
		l.Hook(func(e Event) { got = append(got, fmt.Sprintf("%s %s %d %s", e.Moment, e.Method, e.Code, e.Fault)) })
		client := newClient(t, l)
		call := func(method string) {
			// What went wrong is what the hook tells.
			_, _, _ = post(client, "http://"+here, request(method, ""))
		}
		call("getHealth")
		call("getBalance")
		heal := l.Inject(Fault{Kind: Reset, After: true})
		call("getHealth")
		heal()
		l.Inject(Fault{Kind: Unavailable, Calls: 1})
		call("getHealth")
		want := []string{
			"received getHealth 0 ", "done getHealth 0 ", "answered getHealth 0 ",
			"received getBalance 0 ", "done getBalance -32602 ", "answered getBalance -32602 ",
			"received getHealth 0 reset", "done getHealth 0 reset",
			"received getHealth 0 503",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

func TestUnknownFault(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a fault that does not exist was injected")
		}
	}()
	New(Options{}).Inject(Fault{Kind: "bad weather"})
}

// TestBatchIsHitAsAWhole has one call of a batch hit.
func TestBatchIsHitAsAWhole(t *testing.T) {
	simulate(t, inMiddle, func(t *testing.T, l *Ledger) {
		l.Inject(Fault{Kind: Unavailable, Methods: []string{"getSlot"}})
		client := newClient(t, l)
		body := "[" + request("getHealth", "") + "," + request("getSlot", "") + "]"
		resp, _, err := post(client, "http://"+here, body)
		if err != nil || resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("answer %v, %v", resp, err)
		}
		l.Heal()
		l.Inject(Fault{Kind: Error, Code: 7, Message: "no", Methods: []string{"getSlot"}})
		_, got, err := post(client, "http://"+here, body)
		want := `[{"jsonrpc":"2.0","result":"ok","id":1},{"jsonrpc":"2.0","error":{"code":7,"message":"no"},"id":1}]` + "\n"
		if err != nil || got != want {
			t.Errorf("answer %s, %v, want %s", got, err, want)
		}
	})
}
