// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// roundTrip is a transport that calls a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// serve is a transport that asks a handler, without any network.
func serve(h http.HandlerFunc) http.RoundTripper {
	return roundTrip(func(req *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		h(w, req)
		return w.Result(), nil
	})
}

// call is one request as a node gets it.
type call struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// node answers calls with results, as JSON.
func node(tb testing.TB, result func(c call) string) http.RoundTripper {
	return serve(func(w http.ResponseWriter, req *http.Request) {
		var c call
		if err := json.NewDecoder(req.Body).Decode(&c); err != nil {
			tb.Error(err)
		}
		fmt.Fprintf(w, `{"jsonrpc":"2.0","result":%s,"id":%s}`, result(c), c.ID)
	})
}

// method is one of the client's, called with arguments of a test's choice.
type method struct {
	name string
	call func(ctx context.Context, c *client) (any, error)

	params string // what the node gets
	result string // what it answers
	want   any
}

var someSignature = Signature{7}

// signedBySome is the start of a transaction with someSignature.
var signedBySome = append([]byte{1}, someSignature[:]...)

var methods = []method{
	{
		name:   "getEpochInfo",
		call:   func(ctx context.Context, c *client) (any, error) { return c.getEpochInfo(ctx, finalized, 41) },
		params: `[{"commitment":"finalized","minContextSlot":41}]`,
		result: `{"absoluteSlot":84000042,"blockHeight":83000000,"epoch":194,"slotIndex":192042,"slotsInEpoch":432000,"transactionCount":null}`,
		want:   epochInfo{AbsoluteSlot: 84000042, BlockHeight: 83000000, Epoch: 194, SlotIndex: 192042, SlotsInEpoch: 432000},
	},
	{
		name:   "getEpochSchedule",
		call:   func(ctx context.Context, c *client) (any, error) { return c.getEpochSchedule(ctx) },
		result: `{"firstNormalEpoch":14,"firstNormalSlot":524256,"leaderScheduleSlotOffset":432000,"slotsPerEpoch":432000,"warmup":true}`,
		want:   epochSchedule{SlotsPerEpoch: 432000, FirstNormalEpoch: 14, FirstNormalSlot: 524256},
	},
	{
		name:   "getBlockTime",
		call:   func(ctx context.Context, c *client) (any, error) { return c.getBlockTime(ctx, 18446744073709551615) },
		params: `[18446744073709551615]`,
		result: `1785500000`,
		want:   time.Unix(1785500000, 0).UTC(),
	},
	{
		name:   "getLatestBlockhash",
		call:   func(ctx context.Context, c *client) (any, error) { return c.getLatestBlockhash(ctx, "confirmed", 41) },
		params: `[{"commitment":"confirmed","minContextSlot":41}]`,
		result: `{"context":{"apiVersion":"2.0.1","slot":42},"value":{"blockhash":"4uQeVj5tqViQh7yWWGStvkEG1Zmhx6uasJtWCJziofM","lastValidBlockHeight":18446744073709551615}}`,
		want:   latestBlockhash{Hash: someBlock, LastValid: 18446744073709551615, Slot: 42},
	},
	{
		name: "sendTransaction",
		call: func(ctx context.Context, c *client) (any, error) {
			return nil, c.sendTransaction(ctx, signedBySome, sendOptions{Commitment: finalized, MinSlot: 41})
		},
		params: `["AQcAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",` +
			`{"minContextSlot":41,"encoding":"base64","preflightCommitment":"finalized"}]`,
		result: `"` + someSignature.String() + `"`,
	},
	{
		name: "sendTransaction without preflight",
		call: func(ctx context.Context, c *client) (any, error) {
			return nil, c.sendTransaction(ctx, signedBySome, sendOptions{SkipPreflight: true})
		},
		params: `["AQcAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",` +
			`{"encoding":"base64","skipPreflight":true}]`,
		result: `"` + someSignature.String() + `"`,
	},
	{
		name: "getSignatureStatuses", // case 79: those of long ago, too
		call: func(ctx context.Context, c *client) (any, error) {
			return c.getSignatureStatuses(ctx, []Signature{someSignature, {}, {}}, true)
		},
		params: `[["` + someSignature.String() + `","` + Signature{}.String() + `","` + Signature{}.String() + `"],{"searchTransactionHistory":true}]`,
		result: `{"context":{"slot":42},"value":[{"slot":40,"confirmations":null,"err":null,"status":{"Ok":null},"confirmationStatus":"finalized"},` +
			`null,{"slot":41,"confirmations":0,"err":{"InstructionError":[0,{"Custom":1001}]},"confirmationStatus":"processed"}]}`,
		want: []*signatureStatus{
			{Slot: 40, Level: finalized},
			nil,
			{Slot: 41, Level: "processed", Err: &rpcError{Kind: kindProgram, Reason: "Custom", Custom: 1001}}, // case 11
		},
	},
	{
		name:   "getTransaction",
		call:   func(ctx context.Context, c *client) (any, error) { return c.getTransaction(ctx, someSignature) },
		params: `["` + someSignature.String() + `",{"commitment":"finalized","encoding":"base64"}]`,
		result: `{"slot":40,"meta":{"err":{"InstructionError":[0,{"Custom":1001}]},"logMessages":["Program log: no"]},"transaction":["","base64"]}`,
		want:   &transactionInfo{Slot: 40, Err: &rpcError{Kind: kindProgram, Reason: "Custom", Custom: 1001, Logs: []string{"Program log: no"}}},
	},
	{
		name:   "getTransaction of an unknown one",
		call:   func(ctx context.Context, c *client) (any, error) { return c.getTransaction(ctx, someSignature) },
		params: `["` + someSignature.String() + `",{"commitment":"finalized","encoding":"base64"}]`,
		result: `null`,
		want:   (*transactionInfo)(nil),
	},
	{
		name: "getMultipleAccounts",
		call: func(ctx context.Context, c *client) (any, error) {
			accounts, slot, err := c.getMultipleAccounts(ctx, []Pubkey{amsterdam, london}, headerSlice, finalized, 41)
			return []any{accounts, slot}, err
		},
		params: `[["` + amsterdam.String() + `","` + london.String() + `"],` +
			`{"commitment":"finalized","minContextSlot":41,"encoding":"base64","dataSlice":{"offset":0,"length":350}}]`,
		result: `{"context":{"slot":42},"value":[null,{"data":["AwE=","base64"],"executable":false,"lamports":3319920,` +
			`"owner":"` + devnetProgram.String() + `","rentEpoch":18446744073709551615,"space":349}]}`,
		want: []any{[]*accountInfo{nil, {Owner: devnetProgram, Lamports: 3319920, Data: []byte{3, 1}}}, uint64(42)},
	},
	{
		name: "getProgramAccounts",
		call: func(ctx context.Context, c *client) (any, error) {
			filters := []filter{{memcmp{0, "7"}}, {memcmp{50, amsterdam.String()}}}
			accounts, slot, err := c.getProgramAccounts(ctx, devnetProgram, filters, accountStart, finalized, 41)
			return []any{accounts, slot}, err
		},
		params: `["` + devnetProgram.String() + `",{"commitment":"finalized","minContextSlot":41,"encoding":"base64",` +
			`"dataSlice":{"offset":0,"length":512},"filters":[{"memcmp":{"offset":0,"bytes":"7"}},` +
			`{"memcmp":{"offset":50,"bytes":"` + amsterdam.String() + `"}}],"withContext":true}]`,
		result: `{"context":{"slot":42},"value":[{"pubkey":"` + london.String() + `","account":{"data":["AwE=","base64"],"executable":false,` +
			`"lamports":3319920,"owner":"` + devnetProgram.String() + `","rentEpoch":18446744073709551615,"space":349}}]}`,
		want: []any{[]programAccount{
			{Address: london, Account: accountInfo{Owner: devnetProgram, Lamports: 3319920, Data: []byte{3, 1}}},
		}, uint64(42)},
	},
	{
		name: "getAccountInfo",
		call: func(ctx context.Context, c *client) (any, error) {
			a, slot, err := c.getAccountInfo(ctx, amsterdam, nil, "confirmed", 41)
			return []any{a, slot}, err
		},
		params: `["` + amsterdam.String() + `",{"commitment":"confirmed","minContextSlot":41,"encoding":"base64"}]`,
		result: `{"context":{"slot":41},"value":{"data":["","base64"],"lamports":1,"owner":"11111111111111111111111111111111"}}`,
		want:   []any{&accountInfo{Lamports: 1, Data: []byte{}}, uint64(41)},
	},
	{
		name: "getAccountInfo of none",
		call: func(ctx context.Context, c *client) (any, error) {
			a, slot, err := c.getAccountInfo(ctx, amsterdam, nil, finalized, 0)
			return []any{a, slot}, err
		},
		params: `["` + amsterdam.String() + `",{"commitment":"finalized","encoding":"base64"}]`,
		result: `{"context":{"slot":41},"value":null}`,
		want:   []any{(*accountInfo)(nil), uint64(41)},
	},
	{
		name:   "getBalance",
		call:   func(ctx context.Context, c *client) (any, error) { return c.getBalance(ctx, amsterdam, finalized) },
		params: `["` + amsterdam.String() + `",{"commitment":"finalized"}]`,
		result: `{"context":{"slot":42},"value":18446744073709551615}`,
		want:   uint64(18446744073709551615),
	},
	{
		name:   "getGenesisHash",
		call:   func(ctx context.Context, c *client) (any, error) { return c.getGenesisHash(ctx) },
		result: `"4uQeVj5tqViQh7yWWGStvkEG1Zmhx6uasJtWCJziofM"`,
		want:   someBlock,
	},
}

func TestCalls(t *testing.T) {
	for _, m := range methods {
		t.Run(m.name, func(t *testing.T) {
			c := newClient(node(t, func(c call) string {
				name, _, _ := strings.Cut(m.name, " ")
				if diff := cmp.Diff(name+" "+m.params, c.Method+" "+string(c.Params)); diff != "" {
					t.Errorf("request (-want +got):\n%s", diff)
				}
				return m.result
			}))
			for range 2 { // the second one has another id
				got, err := m.call(t.Context(), c)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(m.want, got); diff != "" {
					t.Errorf("result (-want +got):\n%s", diff)
				}
			}
		})
	}
}

// What is not an answer to the question must not pass for one: an account that seems not to exist, or an epoch 0, would cost samples.
func TestNonsenseAnswers(t *testing.T) {
	info := func(absolute, height, index, slots uint64) string {
		return fmt.Sprintf(`{"absoluteSlot":%d,"blockHeight":%d,"epoch":1,"slotIndex":%d,"slotsInEpoch":%d}`, absolute, height, index, slots)
	}
	value := func(v string) string { return `{"context":{"slot":42},"value":` + v + `}` }
	account := func(fields string) string { return value(`[null,{` + fields + `}]`) }
	for name, results := range map[string][]string{
		"getEpochInfo": {
			`null`, `{}`, `[]`, `"42"`, info(42, 42, 32, 32), info(42, 43, 1, 32), info(42, 42, 43, 64), info(0, 0, 0, 0),
			`{"absoluteSlot":4.2e1,"slotsInEpoch":32}`, `{"absoluteSlot":-1,"slotsInEpoch":32}`,
		},
		"getEpochSchedule": {
			`null`, `{}`, `{"slotsPerEpoch":0}`,
			`{"slotsPerEpoch":432000,"firstNormalEpoch":64,"firstNormalSlot":18446744073709551584}`,
			`{"slotsPerEpoch":432000,"firstNormalEpoch":14,"firstNormalSlot":524255}`,
		},
		"getBlockTime":       {`"1785500000"`, `1785500000.5`, `{}`},
		"getLatestBlockhash": {`null`, `{}`, value(`null`), value(`{}`), value(`{"blockhash":"4uQeVj5tqViQh7yWWGStvkEG1Zmhx6uasJtWCJziofM"}`), value(`{"lastValidBlockHeight":9}`), value(`{"blockhash":"0"}`)},
		"sendTransaction":    {`null`, `""`, `"` + Signature{8}.String() + `"`, `{}`},
		"getSignatureStatuses": {
			`null`, value(`null`), value(`[]`), value(`[null,null]`), value(`[null,null,null,null]`), value(`[1,2,3]`),
			`{"value":[null,null,null]}`, `{"context":{"slot":42}}`,
		},
		"getTransaction": {`[]`, `7`},
		"getMultipleAccounts": {
			`null`, value(`null`), value(`[null]`), value(`[null,null,null]`), `{"value":[null,null]}`,
			account(``), account(`"data":["AwE=","base64"]`), account(`"owner":"` + devnetProgram.String() + `"`),
			account(`"owner":"` + devnetProgram.String() + `","data":["AwE=","base58"]`),
			account(`"owner":"` + devnetProgram.String() + `","data":["Aw","base64"]`),
			account(`"owner":"` + devnetProgram.String() + `","data":{"parsed":{}}`),
			account(`"owner":"x","data":["AwE=","base64"]`),
		},
		"getProgramAccounts": {
			`null`, `[]`, value(`null`), value(`[null]`), value(`[{}]`), value(`[{"pubkey":"` + london.String() + `"}]`),
			value(`[{"account":{"owner":"` + devnetProgram.String() + `","data":["AwE=","base64"]}}]`),
			value(`[{"pubkey":"` + london.String() + `","account":null}]`),
			value(`[{"pubkey":"x","account":{"owner":"` + devnetProgram.String() + `","data":["AwE=","base64"]}}]`),
		},
		"getAccountInfo": {`null`, `{}`, `{"context":{"slot":42}}`, value(`{}`), value(`[]`)},
		"getBalance":     {`null`, `{}`, value(`null`), value(`-1`), value(`1.5`), value(`18446744073709551616`)},
		"getGenesisHash": {`null`, `""`, `"11111111111111111111111111111111"`},
	} {
		for _, m := range methods {
			if m.name != name {
				continue
			}
			for _, result := range results {
				t.Run(m.name+" "+result, func(t *testing.T) {
					got, err := m.call(t.Context(), newClient(node(t, func(call) string { return result })))
					switch {
					case err == nil:
						t.Errorf("taken for %+v", got)
					case !strings.HasPrefix(err.Error(), m.name+": "):
						t.Errorf("error %q does not begin with the method", err)
					case errors.Is(err, errNonsense), kindOf(err) == kindBehind: // without a slot, it may be either
					default:
						t.Errorf("error %q is not that it is nonsense", err)
					}
				})
			}
		}
	}
}

// Case 81: two calls can reach two nodes, and not every node knows what minContextSlot is.
func TestANodeThatIsBehind(t *testing.T) {
	for _, m := range methods {
		if !strings.Contains(m.params, `"minContextSlot":41`) || strings.HasPrefix(m.name, "sendTransaction") {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			behind := strings.NewReplacer(`"slot":42`, `"slot":40`, `"slot":41`, `"slot":40`, `"absoluteSlot":84000042`, `"absoluteSlot":40`,
				`"blockHeight":83000000`, `"blockHeight":40`, `"slotIndex":192042`, `"slotIndex":8`).Replace(m.result)
			_, err := m.call(t.Context(), newClient(node(t, func(call) string { return behind })))
			if kindOf(err) != kindBehind {
				t.Fatalf("kind %q, error %v", kindOf(err), err)
			}
			if want := m.name + ": rpc error -32016: answer is of slot 40, asked for 41 or later"; err.Error() != want {
				t.Errorf("error %q, want %q", err, want)
			}
		})
	}
}

func TestBlockTimeOfASlotWithoutABlock(t *testing.T) {
	_, err := newClient(node(t, func(call) string { return "null" })).getBlockTime(t.Context(), 7)
	if kindOf(err) != kindNoBlock || err.Error() != "getBlockTime: rpc error -32004: no time" {
		t.Errorf("kind %q, error %v", kindOf(err), err)
	}
}

func TestFirstSlots(t *testing.T) {
	warm := epochSchedule{SlotsPerEpoch: 432000, FirstNormalEpoch: 14, FirstNormalSlot: 524256}
	for _, v := range []struct {
		schedule    epochSchedule
		epoch, want uint64
	}{
		{warm, 0, 0},
		{warm, 1, 32},
		{warm, 2, 96},
		{warm, 13, 262112},
		{warm, 14, 524256},
		{warm, 15, 956256},
		{warm, 194, 524256 + 180*432000},
		{epochSchedule{SlotsPerEpoch: 432000}, 0, 0},
		{epochSchedule{SlotsPerEpoch: 432000}, 194, 194 * 432000},
	} {
		if got := v.schedule.firstSlot(v.epoch); got != v.want {
			t.Errorf("%+v: epoch %d starts at slot %d, want %d", v.schedule, v.epoch, got, v.want)
		}
	}
}

// More keys than a node takes at once are asked for in turns.
func TestManyKeys(t *testing.T) {
	turn := 0
	answer := func(c call, one string) string {
		turn++
		n := strings.Count(string(c.Params), `"1111`)
		return fmt.Sprintf(`{"context":{"slot":%d},"value":[%s]}`, []int{0, 48, 47, 49}[turn], strings.TrimSuffix(strings.Repeat(one+",", n), ","))
	}
	c := newClient(node(t, func(c call) string {
		if c.Method == "getMultipleAccounts" {
			return answer(c, `{"data":["`+string("ABC"[turn])+`w==","base64"],"owner":"`+devnetProgram.String()+`"}`)
		}
		return answer(c, fmt.Sprintf(`{"slot":%d}`, turn))
	}))
	accounts, slot, err := c.getMultipleAccounts(t.Context(), make([]Pubkey, 201), nil, finalized, 0)
	if err != nil {
		t.Fatal(err)
	}
	if turn != 3 || len(accounts) != 201 || slot != 47 {
		t.Fatalf("%d calls, %d accounts of slot %d; want 3, 201, 47", turn, len(accounts), slot)
	}
	for i, want := range map[int]byte{0: 0x03, 99: 0x03, 100: 0x07, 199: 0x07, 200: 0x0b} {
		if !bytes.Equal(accounts[i].Data, []byte{want}) {
			t.Errorf("account %d: %x, want %x", i, accounts[i].Data, want)
		}
	}
	turn = 0
	statuses, err := c.getSignatureStatuses(t.Context(), make([]Signature, 257), true)
	if err != nil {
		t.Fatal(err)
	}
	if turn != 2 || len(statuses) != 257 || statuses[255].Slot != 0 || statuses[256].Slot != 1 {
		t.Errorf("%d calls, %d statuses", turn, len(statuses))
	}
}

// Broken proxies mix answers up.
func TestAnswerToAnotherRequest(t *testing.T) {
	for _, body := range []string{
		`{"jsonrpc":"2.0","result":"` + someSignature.String() + `","id":2}`,
		`{"jsonrpc":"2.0","result":"` + someSignature.String() + `","id":"1"}`,
		`{"jsonrpc":"2.0","result":"` + someSignature.String() + `","id":null}`,
		`{"jsonrpc":"2.0","result":"` + someSignature.String() + `"}`,
		`{"jsonrpc":"2.0","error":{"code":-32002,"message":"m"},"id":2}`,
		`{"jsonrpc":"2.0","id":1}`,
		`{"jsonrpc":"2.0","error":"down","id":1}`,
		`[]`, `null`, ``, `<html>`, `{"jsonrpc":"2.0","result":"` + someSignature.String(),
	} {
		c := newClient(serve(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) }))
		err := c.sendTransaction(t.Context(), signedBySome, sendOptions{})
		if !errors.Is(err, errNonsense) || kindOf(err) != kindTransient || refused(err) {
			t.Errorf("%s: error %v", body, err)
		}
	}
}

// A transport may try another node within a call, but not with a transaction: an answer of the second would hide that nobody knows what
// became of the first.
func TestOnlySendingIsNotRepeatable(t *testing.T) {
	for _, m := range methods {
		rt := node(t, func(call) string { return m.result })
		_, err := m.call(t.Context(), newClient(roundTrip(func(req *http.Request) (*http.Response, error) {
			if sends := strings.HasPrefix(m.name, "sendTransaction"); (req.GetBody == nil) != sends {
				t.Errorf("%s: can be repeated: %t", m.name, sends)
			}
			if _, ok := req.Context().Deadline(); !ok || req.Method != http.MethodPost || req.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%s: request %+v", m.name, req)
			}
			return rt.RoundTrip(req)
		})))
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}

// Case 76: what follows a connection that broke after the node had accepted.
func TestLandedAlthoughTheConnectionBroke(t *testing.T) {
	tries := 0
	c := newClient(serve(func(w http.ResponseWriter, _ *http.Request) {
		tries++
		if tries == 1 {
			io.WriteString(w, `{"jsonrpc":`)
			return
		}
		io.WriteString(w, strings.Replace(preflight(`"AlreadyProcessed"`), `"id":1`, fmt.Sprintf(`"id":%d`, tries), 1))
	}))
	for _, want := range []kind{kindTransient, kindProcessed} {
		err := c.sendTransaction(t.Context(), signedBySome, sendOptions{})
		if kindOf(err) != want || refused(err) {
			t.Errorf("try %d: kind %q, refused %t, error %v; want %q", tries, kindOf(err), refused(err), err, want)
		}
	}
}

// endless is a body that never ends, and counts what was read of it.
type endless struct{ read int }

func (e *endless) Read(b []byte) (int, error) {
	e.read += len(b)
	clear(b)
	return len(b), nil
}

func (*endless) Close() error { return nil }

func TestBodiesAreBounded(t *testing.T) {
	for status, limit := range map[int]int{200: maxAnswer, 503: maxErrorAnswer} {
		want := map[int]string{200: "nonsense answer: more than 8388608 bytes", 503: "http status 503"}[status]
		body := new(endless)
		_, err := newClient(roundTrip(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Body: body}, nil
		})).getGenesisHash(t.Context())
		if err == nil || err.Error() != "getGenesisHash: "+want || kindOf(err) != kindTransient {
			t.Errorf("status %d: error %v, want %s", status, err, want)
		}
		if body.read > limit+1 {
			t.Errorf("status %d: %d bytes read, want at most %d", status, body.read, limit+1)
		}
	}
}

// closed is a body that notes that it was closed.
type closed struct {
	io.Reader
	done bool
}

func (c *closed) Close() error {
	c.done = true
	return nil
}

func TestBodiesAreClosed(t *testing.T) {
	for _, status := range []int{200, 429} {
		body := &closed{Reader: strings.NewReader("<html>")}
		_, err := newClient(roundTrip(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Body: body}, nil
		})).getGenesisHash(t.Context())
		if err == nil || !body.done {
			t.Errorf("status %d: closed %t, error %v", status, body.done, err)
		}
	}
}

// A node that takes the connection, and perhaps begins to answer, and then is silent.
func TestEveryCallEnds(t *testing.T) {
	for name, answer := range map[string]string{
		"silence":           "",
		"half a head":       "HTTP/1.1 200 OK\r\nContent-",
		"half a body":       "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
		"half an error":     "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 100\r\n\r\n<html>",
		"informed for ever": "HTTP/1.1 103 Early Hints\r\n\r\n",
	} {
		for _, m := range methods {
			t.Run(name+" "+m.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					rt, stop := silent(answer)
					defer stop()
					begin := time.Now()
					_, err := m.call(t.Context(), newClient(rt))
					if kindOf(err) != kindTransient || refused(err) {
						t.Errorf("error %v", err)
					}
					if got := time.Since(begin); got != callLimit {
						t.Errorf("took %s, want %s", got, callLimit)
					}

					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					begin = time.Now()
					if _, err := m.call(ctx, newClient(rt)); kindOf(err) != kindTransient {
						t.Errorf("error %v", err)
					}
					if got := time.Since(begin); got != time.Second {
						t.Errorf("took %s with a deadline of 1s", got)
					}
				})
			})
		}
	}
}

// silent is Go's transport, connected to somebody who reads requests and says nothing but answer.
func silent(answer string) (rt http.RoundTripper, stop func()) {
	var group sync.WaitGroup
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		group.Go(func() {
			defer theirs.Close()
			r := bufio.NewReader(theirs)
			if req, err := http.ReadRequest(r); err == nil {
				io.Copy(io.Discard, req.Body)
			}
			io.WriteString(theirs, answer)
			io.Copy(io.Discard, r) // until they hang up
		})
		return ours, nil
	}}
	return transport, func() {
		transport.CloseIdleConnections()
		group.Wait()
	}
}
