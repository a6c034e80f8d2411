// SPDX-License-Identifier: Apache-2.0

package ledgertest

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// inMiddle lets a ledger start where the next slots all have blocks.
var inMiddle = Options{SlotIndex: 1000, SkipEvery: 1}

// seen is what a client sees of a transaction and its account.
type seen struct {
	Slots                           int // since it was sent
	Status                          string
	Confirmations                   int
	Processed, Confirmed, Finalized bool // whether the account is there
	Transaction                     bool // whether getTransaction finds it at finalized
}

// look asks for what there is to see.
func look(t *testing.T, l *Ledger, n int, signature string, account Pubkey) seen {
	t.Helper()
	s := seen{Slots: n, Transaction: string(ask(t, l, "getTransaction", fmt.Sprintf(`%q,{"encoding":"base64"}`, signature)).Result) != "null"}
	there := func(commitment string) bool {
		params := fmt.Sprintf(`%q,{"encoding":"base64","commitment":%q}`, account, commitment)
		return result[struct{ Value *struct{} }](t, l, "getAccountInfo", params).Value != nil
	}
	s.Processed, s.Confirmed, s.Finalized = there("processed"), there("confirmed"), there("finalized")
	v := result[struct {
		Value []*struct {
			ConfirmationStatus string
			Confirmations      *int
		}
	}](t, l, "getSignatureStatuses", fmt.Sprintf("[%q]", signature)).Value[0]
	if v != nil {
		s.Status = v.ConfirmationStatus
		if v.Confirmations != nil {
			s.Confirmations = *v.Confirmations
		}
	}
	return s
}

func TestCommitment(t *testing.T) {
	simulate(t, inMiddle, func(t *testing.T, l *Ledger) {
		raw, account := signedInitialize(t, l, 194)
		signature := sent(t, l, raw)
		var got []seen
		n := 0
		for _, next := range []int{0, 1, 2, 3, 32, 33, 400} {
			slots(next - n)
			n = next
			got = append(got, look(t, l, n, signature, account))
		}
		want := []seen{
			{Slots: 0},
			{Slots: 1, Status: "processed", Processed: true},
			{Slots: 2, Status: "processed", Confirmations: 1, Processed: true},
			{Slots: 3, Status: "confirmed", Confirmations: 2, Processed: true, Confirmed: true},
			{Slots: 32, Status: "confirmed", Confirmations: 31, Processed: true, Confirmed: true},
			{Slots: 33, Status: "finalized", Processed: true, Confirmed: true, Finalized: true, Transaction: true},
			{Slots: 400, Processed: true, Confirmed: true, Finalized: true, Transaction: true}, // no longer among the recent ones
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("seen (-want +got):\n%s", diff)
		}
		if got := status(t, l, signature); got != "finalized" {
			t.Errorf("status with a search in the history is %q", got)
		}
	})
}

// TestBlockhashExpiry sends transactions so that they arrive in the last block that may hold them, and in the one behind it.
func TestBlockhashExpiry(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("late=%v", late), func(t *testing.T) {
			simulate(t, Options{SlotIndex: 1000}, func(t *testing.T, l *Ledger) {
				latest := result[latestBlockhash](t, l, "getLatestBlockhash", `{"commitment":"processed"}`)
				raw, account := signedInitialize(t, l, 194)
				raw = resign(t, raw, MustPubkey(latest.Value.Blockhash))
				valid := func(commitment string) bool {
					params := fmt.Sprintf(`%q,{"commitment":%q}`, latest.Value.Blockhash, commitment)
					return result[struct{ Value bool }](t, l, "isBlockhashValid", params).Value
				}
				if !valid("processed") || valid("finalized") {
					t.Errorf("a new blockhash is good %v at processed, %v at finalized", valid("processed"), valid("finalized"))
				}
				height := func() uint64 { return result[uint64](t, l, "getBlockHeight", `{"commitment":"processed"}`) }
				stop := latest.Value.LastValidBlockHeight
				if !late {
					stop--
				}
				for height() < stop {
					slots(1)
				}
				for next := l.Slot() + 1; l.chain.skipped(next); next++ {
					slots(1)
				}
				signature := sent(t, l, raw)
				slots(3)
				if got := status(t, l, signature) != ""; got == late {
					t.Errorf("landed: %v", got)
				}
				if got := len(l.Account(account).Data) > 0; got == late {
					t.Errorf("account is there: %v", got)
				}
				if valid("processed") {
					t.Error("the blockhash is still good")
				}
				// The age is looked at first, so that preflight does not find out that a transaction landed once it is too old.
				slots(32)
				if got := preflightError(t, l, raw); got != `"BlockhashNotFound"` {
					t.Errorf("preflight error %s", got)
				}
			})
		})
	}
}

// resign puts another blockhash into a transaction of the agent.
func resign(t *testing.T, raw []byte, blockhash Pubkey) []byte {
	t.Helper()
	tx, err := decodeTransaction(raw)
	if err != nil {
		t.Fatal(err)
	}
	message := bytes.Replace(tx.message, tx.blockhash[:], blockhash[:], 1)
	return slices.Concat([]byte{1}, ed25519.Sign(agentKey, message), message)
}

// preflightError sends a transaction with preflight and returns the error that it yields, "" for none.
func preflightError(t *testing.T, l *Ledger, raw []byte) string {
	t.Helper()
	r := send(t, l, raw, false)
	if r.Error == nil {
		return ""
	}
	var data struct{ Err json.RawMessage }
	if err := json.Unmarshal(r.Error.Data, &data); err != nil || r.Error.Code != -32002 {
		t.Fatalf("%d %s %s", r.Error.Code, r.Error.Message, r.Error.Data)
	}
	return string(data.Err)
}

func TestSameBytesCountOnce(t *testing.T) {
	simulate(t, inMiddle, func(t *testing.T, l *Ledger) {
		account := openAccount(t, l, 194)
		raw := signedWrite(t, l, account, 1, 100, 200)
		for range 3 {
			sent(t, l, raw)
		}
		slots(2)
		if got := preflightError(t, l, raw); got != "" { // the state that it looks at is older
			t.Errorf("preflight error %s", got)
		}
		slots(40)
		sent(t, l, raw)
		slots(2)
		if s, err := l.Samples(account); err != nil || len(s.Values) != 2 {
			t.Errorf("%d samples, %v, want 2", len(s.Values), err)
		}
		if got := len(l.Transactions()); got != 2 {
			t.Errorf("%d transactions in blocks, want 2", got)
		}
		if got := len(l.Sends()); got != 6 {
			t.Errorf("%d sends, want 6", got)
		}
		if got := preflightError(t, l, raw); got != `"AlreadyProcessed"` {
			t.Errorf("preflight error %s", got)
		}
		// Other bytes with the same samples are another transaction.
		sent(t, l, signedWrite(t, l, account, 1, 100, 200))
		slots(2)
		if s, err := l.Samples(account); err != nil || len(s.Values) != 4 {
			t.Errorf("%d samples, %v, want 4", len(s.Values), err)
		}
	})
}

func TestSignatures(t *testing.T) {
	simulate(t, inMiddle, func(t *testing.T, l *Ledger) {
		raw, account := signedInitialize(t, l, 194)
		raw[10] ^= 1
		if r := send(t, l, raw, false); r.Error == nil || r.Error.Code != -32003 {
			t.Errorf("answer with preflight: %+v", r)
		}
		signature := sent(t, l, raw) // nodes do not look
		slots(3)
		if status(t, l, signature) != "" || len(l.Account(account).Data) > 0 {
			t.Error("a transaction with a wrong signature landed")
		}
	})
}

func TestFailureInBlock(t *testing.T) {
	simulate(t, inMiddle, func(t *testing.T, l *Ledger) {
		account := openAccount(t, l, 194)
		s, err := l.Samples(account)
		if err != nil {
			t.Fatal(err)
		}
		s.Agent = someoneElse
		l.PutSamples(s)
		raw := signedWrite(t, l, account, 1, 5)

		r := send(t, l, raw, false)
		const want = "Transaction simulation failed: Error processing Instruction 0: custom program error: 0x3e9"
		if r.Error == nil || r.Error.Message != want {
			t.Fatalf("answer %+v, want %q", r.Error, want)
		}
		var data struct {
			Err  json.RawMessage
			Logs []string
		}
		if err := json.Unmarshal(r.Error.Data, &data); err != nil {
			t.Fatal(err)
		}
		logs := []string{"Program " + devnetTelemetry + " invoke [1]", "Program " + devnetTelemetry + " failed: custom program error: 0x3e9"}
		if diff := cmp.Diff(logs, data.Logs); diff != "" || string(data.Err) != custom("1001") {
			t.Errorf("preflight error %s, logs (-want +got):\n%s", data.Err, diff)
		}

		before := l.Account(agent).Lamports
		signature := sent(t, l, raw)
		slots(40)
		if got := before - l.Account(agent).Lamports; got != 5000 {
			t.Errorf("a failed transaction cost %d lamports, want its fee", got)
		}
		v := result[struct {
			Value []struct {
				Err    json.RawMessage
				Status struct{ Err json.RawMessage }
			}
		}](t, l, "getSignatureStatuses", fmt.Sprintf("[%q]", signature))
		tx := result[struct {
			BlockTime, Slot int64
			Transaction     []string
			Meta            struct {
				Err         json.RawMessage
				Fee         int
				LogMessages []string
				PreBalances []uint64
			}
		}](t, l, "getTransaction", fmt.Sprintf(`%q,{"encoding":"base64"}`, signature))
		for _, got := range []json.RawMessage{v.Value[0].Err, v.Value[0].Status.Err, tx.Meta.Err} {
			if string(got) != custom("1001") {
				t.Errorf("error %s, want %s", got, custom("1001"))
			}
		}
		if diff := cmp.Diff(logs, tx.Meta.LogMessages); diff != "" {
			t.Errorf("logs (-want +got):\n%s", diff)
		}
		if tx.Transaction[0] != base64.StdEncoding.EncodeToString(raw) || tx.Meta.Fee != 5000 || tx.Meta.PreBalances[0] != before {
			t.Errorf("transaction %+v", tx)
		}
		landed := l.Transactions()[1]
		if landed.Code != 1001 || int64(landed.Slot) != tx.Slot || landed.Time.Unix() != tx.BlockTime {
			t.Errorf("transaction %+v, want code 1001, slot %d, time %d", landed, tx.Slot, tx.BlockTime)
		}
	})
}

// TestFailureUndoesAll has a transaction fail after its instruction has done all that it does.
func TestFailureUndoesAll(t *testing.T) {
	simulate(t, inMiddle, func(t *testing.T, l *Ledger) {
		l.Fund(agent, 5000+3_319_920+10)
		raw, account := signedInitialize(t, l, 194)
		sent(t, l, raw)
		slots(2)
		if got := l.Transactions(); len(got) != 1 || got[0].Code != -1 {
			t.Errorf("transactions %+v", got)
		}
		if got := l.Account(account); got.Lamports != 0 {
			t.Errorf("the account is there: %+v", got)
		}
		if got := l.Account(agent).Lamports; got != 3_319_930 {
			t.Errorf("the agent has %d lamports, want 3319930", got)
		}
	})
}

// TestNothingIsCharged sends what cannot be in a block.
func TestNothingIsCharged(t *testing.T) {
	simulate(t, inMiddle, func(t *testing.T, l *Ledger) {
		other, _ := signedInitialize(t, l, 194)
		other = resign(t, bytes.Replace(other, l.options.Telemetry[:], someoneElse[:], 1), hash(t, l))
		if got := preflightError(t, l, other); got != `"ProgramAccountNotFound"` {
			t.Errorf("preflight error %s", got)
		}
		sent(t, l, other)
		slots(2)
		if got := l.Account(agent).Lamports; got != 10*sol {
			t.Errorf("the agent has %d lamports", got)
		}
		l.Fund(agent, 4999)
		raw, _ := signedInitialize(t, l, 194)
		sent(t, l, raw)
		slots(2)
		if got := l.Transactions(); len(got) != 0 {
			t.Errorf("transactions %+v", got)
		}
	})
}

// TestPreflightCommitment is about a blockhash that is newer than the state that preflight looks at.
func TestPreflightCommitment(t *testing.T) {
	simulate(t, inMiddle, func(t *testing.T, l *Ledger) {
		raw, _ := signedInitialize(t, l, 194)
		raw = resign(t, raw, MustPubkey(result[latestBlockhash](t, l, "getLatestBlockhash", `{"commitment":"confirmed"}`).Value.Blockhash))
		if got := preflightError(t, l, raw); got != `"BlockhashNotFound"` {
			t.Errorf("preflight error %s", got)
		}
		encoded := base64.StdEncoding.EncodeToString(raw)
		if got := code(t, l, "sendTransaction", fmt.Sprintf(`%q,{"encoding":"base64","preflightCommitment":"confirmed"}`, encoded)); got != 0 {
			t.Errorf("error %d with preflight at confirmed", got)
		}
		slots(5)
		if got := len(l.Transactions()); got != 1 {
			t.Errorf("%d transactions in blocks, want 1", got)
		}
	})
}

func TestErrors(t *testing.T) {
	simulate(t, inMiddle, func(t *testing.T, l *Ledger) {
		slot := l.Slot()
		keys := strings.TrimSuffix(strings.Repeat(fmt.Sprintf("%q,", agent), 101), ",")
		account := l.PutSamples(Samples{Agent: agent})
		for _, tt := range []struct {
			method, params string
			want           int
		}{
			{"getSomething", "", -32601},
			{"getSlot", `{"commitment":"certain"}`, -32602},
			{"getSlot", fmt.Sprintf(`{"minContextSlot":%d}`, slot-32), 0},
			{"getSlot", fmt.Sprintf(`{"minContextSlot":%d}`, slot-31), -32016},
			{"getSlot", fmt.Sprintf(`{"commitment":"processed","minContextSlot":%d}`, slot), 0},
			{"getBalance", `"abc"`, -32602},
			{"getBalance", ``, -32602},
			{"getBalance", fmt.Sprintf(`%q,{"minContextSlot":%d}`, agent, slot), -32016},
			{"getAccountInfo", fmt.Sprintf(`%q`, account), -32600}, // more than base58 is good for
			{"getAccountInfo", fmt.Sprintf(`%q,{"dataSlice":{"offset":9,"length":32}}`, account), 0},
			{"getAccountInfo", fmt.Sprintf(`%q,{"encoding":"jsonParsed"}`, account), -32602},
			{"getMultipleAccounts", fmt.Sprintf(`[%s]`, keys), -32602},
			{"getSignatureStatuses", fmt.Sprintf(`[%s]`, keys), 0},
			{"getSignatureStatuses", fmt.Sprintf(`[%s,%s,%s]`, keys, keys, keys), -32602},
			{"getTransaction", `"abc",{"commitment":"processed"}`, -32602},
			{"getBlocks", fmt.Sprintf(`%d,{"commitment":"processed"}`, slot), -32602},
			{"getBlocks", `1`, -32602},
			{"sendTransaction", `"AAAA",{"encoding":"base64"}`, -32602},
			{"sendTransaction", `"*",{"encoding":"base64"}`, -32602},
			{"sendTransaction", fmt.Sprintf(`%q,{"encoding":"base64"}`, base64.StdEncoding.EncodeToString(make([]byte, 1233))), -32602},
		} {
			if got := code(t, l, tt.method, tt.params); got != tt.want {
				t.Errorf("%s(%s): error %d, want %d", tt.method, tt.params, got, tt.want)
			}
		}
		l.bank.accounts[agent] = nil
		raw, _ := signedInitialize(t, l, 1)
		if got := preflightError(t, l, raw); got != `"AccountNotFound"` {
			t.Errorf("preflight error %s", got)
		}
		encoded := base64.StdEncoding.EncodeToString(raw)
		// Without preflight, what counts is the newest slot.
		for minContextSlot, want := range map[uint64]int{slot: 0, slot + 1: -32016} {
			params := fmt.Sprintf(`%q,{"encoding":"base64","skipPreflight":true,"minContextSlot":%d}`, encoded, minContextSlot)
			if got := code(t, l, "sendTransaction", params); got != want {
				t.Errorf("sendTransaction with minContextSlot %d at slot %d: error %d, want %d", minContextSlot, slot, got, want)
			}
		}
	})
}

func TestDecodeTransaction(t *testing.T) {
	l := newLedger(t, Options{})
	account := l.SamplesAddress(origin, target, link, 1)
	for _, tt := range []struct {
		name   string
		change func([]byte) []byte
	}{
		{"", func(b []byte) []byte { return b }},
		{"cut", func(b []byte) []byte { return b[:len(b)-1] }},
		{"more", func(b []byte) []byte { return append(b, 0) }},
		{"long form of a length", func(b []byte) []byte { return slices.Concat([]byte{0x81, 0}, b[1:]) }},
		{"no signature", func(b []byte) []byte { return slices.Concat([]byte{0}, b[65:]) }},
		{"two signatures", func(b []byte) []byte { return slices.Concat([]byte{2}, b[1:65], b[1:]) }},
		{"versioned", func(b []byte) []byte { return slices.Concat(b[:65], []byte{0x80}, b[65:], []byte{0}) }},
		{"program is the payer", func(b []byte) []byte { return bytes.Replace(b, []byte{1, 3, 3, 1, 0, 2}, []byte{1, 0, 3, 1, 0, 2}, 1) }},
		{"account out of range", func(b []byte) []byte { return bytes.Replace(b, []byte{1, 3, 3, 1, 0, 2}, []byte{1, 3, 3, 1, 0, 4}, 1) }},
		{"account twice", func(b []byte) []byte { return bytes.Replace(b, account[:], agent[:], 1) }},
	} {
		raw := sign(t, [32]byte{1}, agentKey, l.options.Telemetry, writeData(1, 2), writeAccounts(account)...)
		_, err := decodeTransaction(tt.change(raw))
		if (err == nil) != (tt.name == "") {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	for n, ok := range map[int]bool{239: true, 240: false} {
		raw := sign(t, [32]byte{1}, agentKey, l.options.Telemetry, writeData(1, make([]uint32, n)...), writeAccounts(account)...)
		if _, err := decodeTransaction(raw); (err == nil) != ok {
			t.Errorf("%d samples, %d bytes: %v", n, len(raw), err)
		}
	}
}

// TestOtherPayer has somebody else pay for a write: the agent, a signer that may only be read, cannot pay the rent then.
func TestOtherPayer(t *testing.T) {
	l := newLedger(t, Options{})
	account := l.PutSamples(Samples{Agent: agent})
	payer := ed25519.NewKeyFromSeed(make([]byte, 32))
	l.Fund(PubkeyOf(payer), sol)
	tx, err := decodeTransaction(sign(t, [32]byte{1}, payer, l.options.Telemetry, writeData(1, 2), writeAccounts(account)...))
	if err != nil {
		t.Fatal(err)
	}
	want := []accountRef{{account, false, true}, {agent, true, false}, {systemProgram, false, false}}
	if diff := cmp.Diff(want, tx.instructions[0].accounts, cmp.AllowUnexported(accountRef{})); diff != "" {
		t.Errorf("accounts (-want +got):\n%s", diff)
	}
	failure, _ := l.execution(tx, l.Slot()).run()
	if failure == nil || failure.value != "PrivilegeEscalation" {
		t.Errorf("error %+v", failure)
	}
}

func TestAccounts(t *testing.T) {
	type account struct {
		Data            []string
		Executable      bool
		Lamports, Space uint64
		Owner           Pubkey
		RentEpoch       uint64
	}
	simulate(t, inMiddle, func(t *testing.T, l *Ledger) {
		key := l.PutSamples(Samples{Agent: agent, Origin: origin, Values: []uint32{1, 2}})
		data := l.Account(key).Data
		want := &account{
			Data: []string{base64.StdEncoding.EncodeToString(data), "base64"}, Lamports: rent(len(data)), Space: 357,
			Owner: MustPubkey(devnetTelemetry), RentEpoch: 18446744073709551615,
		}
		one := result[struct {
			Context struct{ Slot uint64 }
			Value   *account
		}](t, l, "getAccountInfo", fmt.Sprintf(`%q,{"encoding":"base64"}`, key))
		if diff := cmp.Diff(want, one.Value); diff != "" || one.Context.Slot != l.Slot()-32 {
			t.Errorf("context slot %d, account (-want +got):\n%s", one.Context.Slot, diff)
		}

		header := *want
		header.Data = []string{base64.StdEncoding.EncodeToString(data[9:41]), "base64"}
		many := result[struct{ Value []*account }](t, l, "getMultipleAccounts",
			fmt.Sprintf(`[%q,%q],{"encoding":"base64","dataSlice":{"offset":9,"length":32}}`, someoneElse, key))
		if diff := cmp.Diff([]*account{nil, &header}, many.Value); diff != "" {
			t.Errorf("accounts (-want +got):\n%s", diff)
		}
		behind := result[struct{ Value *account }](t, l, "getAccountInfo",
			fmt.Sprintf(`%q,{"encoding":"base64","dataSlice":{"offset":400,"length":32}}`, key))
		if behind.Value.Data[0] != "" {
			t.Errorf("data behind the end: %v", behind.Value.Data)
		}
		if got := result[struct{ Value uint64 }](t, l, "getBalance", fmt.Sprintf(`%q`, agent)).Value; got != 10*sol {
			t.Errorf("balance %d", got)
		}

		other := Pubkey{1: 30}
		l.PutLink(other, Link{SideA: target, SideZ: origin})
		for _, tt := range []struct {
			name, filters string
			want          []Pubkey
		}{
			{"devices", `{"memcmp":{"offset":0,"bytes":"6"}}`, []Pubkey{origin, target}},
			{"links", `{"memcmp":{"offset":0,"bytes":"7"}}`, []Pubkey{link, other}},
			{"links from origin", fmt.Sprintf(`{"memcmp":{"offset":0,"bytes":"7"}},{"memcmp":{"offset":50,"bytes":%q}}`, origin), []Pubkey{link}},
			{"links to origin", fmt.Sprintf(`{"memcmp":{"offset":82,"bytes":%q}}`, origin), []Pubkey{other}},
			{"links, in base64", `{"memcmp":{"offset":0,"bytes":"Bg==","encoding":"base64"}}`, []Pubkey{link, other}},
			{"by size", `{"dataSize":5}`, nil},
			{"behind the end", `{"memcmp":{"offset":5000,"bytes":"7"}}`, nil},
		} {
			var got []Pubkey
			params := fmt.Sprintf(`%q,{"encoding":"base64","filters":[%s]}`, devnetServiceability, tt.filters)
			for _, a := range result[[]struct{ Pubkey Pubkey }](t, l, "getProgramAccounts", params) {
				got = append(got, a.Pubkey)
			}
			byText := func(a, b Pubkey) int { return strings.Compare(a.String(), b.String()) }
			slices.SortFunc(tt.want, byText)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.name, diff)
			}
		}
		params := fmt.Sprintf(`%q,{"encoding":"base64","withContext":true}`, devnetServiceability)
		if got := result[struct{ Value []account }](t, l, "getProgramAccounts", params); len(got.Value) != 4 {
			t.Errorf("%d accounts with context, want 4", len(got.Value))
		}
		for _, filter := range []string{"0", strings.Repeat("1", 129)} { // not base58, and too long
			params := fmt.Sprintf(`%q,{"filters":[{"memcmp":{"offset":0,"bytes":%q}}]}`, devnetServiceability, filter)
			if got := code(t, l, "getProgramAccounts", params); got != -32602 {
				t.Errorf("filter %q: error %d", filter, got)
			}
		}
	})
}

func TestEpochInfo(t *testing.T) {
	simulate(t, Options{Epoch: 20, SlotIndex: 40, Warmup: true, ClockOffset: time.Hour}, func(t *testing.T, l *Ledger) {
		type epochInfo struct{ AbsoluteSlot, BlockHeight, Epoch, SlotIndex, SlotsInEpoch uint64 }
		first := l.chain.firstSlot(20)
		// 40 - 32 = 8 is the finalized one; the first four have no block.
		want := epochInfo{first + 8, l.chain.height(first-1) + 5, 20, 8, 432_000}
		if diff := cmp.Diff(want, result[epochInfo](t, l, "getEpochInfo", "")); diff != "" {
			t.Errorf("at finalized (-want +got):\n%s", diff)
		}
		if got := result[epochInfo](t, l, "getEpochInfo", `{"commitment":"confirmed"}`).SlotIndex; got != 38 {
			t.Errorf("index at confirmed is %d, want 38", got)
		}
		if got, want := string(ask(t, l, "getEpochSchedule", "").Result),
			`{"firstNormalEpoch":14,"firstNormalSlot":524256,"leaderScheduleSlotOffset":432000,"slotsPerEpoch":432000,"warmup":true}`; got != want {
			t.Errorf("schedule %s, want %s", got, want)
		}

		times := []struct {
			slot uint64
			code int
			want int64
		}{
			{first + 3, -32007, 0},
			{first + 4, 0, bubbleStart.Add(time.Hour - 36*400*time.Millisecond).Unix()},
			{first + 8, 0, bubbleStart.Add(time.Hour - 32*400*time.Millisecond).Unix()},
			{first - 100, 0, bubbleStart.Add(time.Hour - 140*400*time.Millisecond).Unix()},
			{first + 19, -32004, 0}, // skipped, but not known to be so before it is finalized
			{first + 38, 0, bubbleStart.Add(time.Hour - 800*time.Millisecond).Unix()},
			{first + 41, -32004, 0},
		}
		for _, tt := range times {
			r := ask(t, l, "getBlockTime", fmt.Sprint(tt.slot))
			switch {
			case r.Error != nil && r.Error.Code != tt.code, r.Error == nil && string(r.Result) != fmt.Sprint(tt.want):
				t.Errorf("time of slot %d: %+v %s, want %+v", tt.slot-first, r.Error, r.Result, tt)
			}
		}
		got := result[[]uint64](t, l, "getBlocks", fmt.Sprintf("%d,%d", first-3, first+6))
		if diff := cmp.Diff([]uint64{first - 3, first - 2, first + 4, first + 5, first + 6}, got); diff != "" {
			t.Errorf("blocks (-want +got):\n%s", diff)
		}
		if got := l.EpochStart(20); !got.Equal(bubbleStart.Add(time.Hour - 36*400*time.Millisecond)) {
			t.Errorf("epoch starts at %v", got)
		}
	})
}

// bubbleStart is when the clock of a bubble starts.
var bubbleStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func TestOtherMethods(t *testing.T) {
	simulate(t, inMiddle, func(t *testing.T, l *Ledger) {
		if got := result[string](t, l, "getHealth", ""); got != "ok" {
			t.Errorf("health %q", got)
		}
		if got := result[string](t, l, "getGenesisHash", ""); got != l.Genesis() {
			t.Errorf("genesis %q, want %q", got, l.Genesis())
		}
		if got := result[map[string]any](t, l, "getVersion", ""); got["solana-core"] != apiVersion {
			t.Errorf("version %v", got)
		}
		if got := result[uint64](t, l, "getMinimumBalanceForRentExemption", "349"); got != 3_319_920 {
			t.Errorf("rent %d, want 3319920", got)
		}
		for _, name := range Except() {
			if got := code(t, l, name, `{}`); got == -32601 {
				t.Errorf("%s is not there", name)
			}
		}
	})
}

func TestHTTP(t *testing.T) {
	simulate(t, inMiddle, func(t *testing.T, l *Ledger) {
		client := newClient(t, l)
		for _, tt := range []struct{ body, want string }{
			{`[` + request("getHealth", "") + `,` + strings.Replace(request("getSomething", ""), `"id":1`, `"id":"b"`, 1) + `]`,
				`[{"jsonrpc":"2.0","result":"ok","id":1},{"jsonrpc":"2.0","error":{"code":-32601,"message":"Method not found"},"id":"b"}]` + "\n"},
			{request("getTransaction", `"abc",{"encoding":"base64"}`), `{"jsonrpc":"2.0","result":null,"id":1}` + "\n"},
			{`{`, `{"jsonrpc":"2.0","error":{"code":-32700,"message":"Parse error"},"id":null}` + "\n"},
			{`[]`, `{"jsonrpc":"2.0","error":{"code":-32700,"message":"Parse error"},"id":null}` + "\n"},
		} {
			if _, got, err := post(client, "http://"+here+"/v1/rpc?token=abc", tt.body); err != nil || got != tt.want {
				t.Errorf("%s: %v, got %s, want %s", tt.body, err, got, tt.want)
			}
		}
		resp, _, err := post(client, "http://"+here, strings.Repeat(" ", maxBody+1))
		if err != nil || resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("too long a request: %v %v", resp, err)
		}
		base := Request{Time: bubbleStart, Address: here, Node: here, Proto: "HTTP/1.1", URI: "/v1/rpc?token=abc"}
		want := []Request{base, base, base}
		want[0].Method, want[1].Method, want[1].Code, want[2].Method = "getHealth", "getSomething", -32601, "getTransaction"
		if diff := cmp.Diff(want, l.Requests()); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
		if got := l.Count("getHealth", here); got != 1 {
			t.Errorf("%d requests of getHealth", got)
		}
		resp, err = client.Get("http://" + here)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("GET: %s", resp.Status)
		}
	})
}
