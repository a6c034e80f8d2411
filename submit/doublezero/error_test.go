// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
)

// preflight is the answer to a transaction that would fail of err.
func preflight(err string) string {
	return `{"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"Transaction simulation failed","data":{"accounts":null,"err":` + err +
		`,"logs":["Program X invoke [1]","Program X failed"],"unitsConsumed":0}}}`
}

// Cases 82 and 84, and what each answer of a ledger's node or of a gateway before it means.
func TestErrorAnswers(t *testing.T) {
	const page = "<html><body>try again, key SECRET</body></html>"
	envelope := func(code int, message string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","error":{"code":%d,"message":"%s"},"id":1}`, code, message)
	}
	for _, v := range []struct {
		name    string
		status  int
		body    string
		kind    kind
		refused bool // sendTransaction went no further
		text    string
	}{
		{"503 plain", 503, "service unavailable", kindTransient, false, "http status 503"},
		{"503 with an envelope", 503, envelope(503, "service unavailable"), kindTransient, false, "http status 503"},
		{"503 around a refusal", 503, preflight(`"BlockhashNotFound"`), kindTransient, false, "http status 503"},
		{"429 with a page", 429, page, kindTransient, false, "http status 429"},
		{"502 with a page", 502, page, kindTransient, false, "http status 502"},
		{"500 with nothing", 500, "", kindTransient, false, "http status 500"},
		{"504 cut", 504, `{"jsonrpc":"2.0","err`, kindTransient, false, "http status 504"},
		{"408", 408, "", kindTransient, false, "http status 408"},
		{"401 with a page", 401, page, kindPermanent, false, "http status 401"},
		{"403 with an envelope", 403, envelope(-32052, "API key SECRET is not allowed"), kindPermanent, false, "http status 403"},
		{"404", 404, "not found", kindPermanent, false, "http status 404"},
		{"413 around a refusal", 413, preflight(`"BlockhashNotFound"`), kindPermanent, false, "http status 413"},
		{"redirect", 307, page, kindPermanent, false, "http status 307"},
		{"no content", 204, "", kindPermanent, false, "http status 204"},
		{"status without an error", 503, `{"jsonrpc":"2.0","result":1,"id":1}`, kindTransient, false, "http status 503"},

		{"code 429", 200, envelope(429, "slow down, SECRET"), kindTransient, false, "rpc error 429"},
		{"code 503", 200, envelope(503, "x"), kindTransient, false, "rpc error 503"},
		{"code 401", 200, envelope(401, "key SECRET"), kindPermanent, false, "rpc error 401"},
		{"code -32429", 200, envelope(-32429, "rate limited, key SECRET"), kindTransient, false, "rpc error -32429"},
		{"message alone", 200, `{"jsonrpc":"2.0","error":{"message":"service unavailable"},"id":1}`, kindTransient, false, "rpc error without a code"},
		{"no id", 200, `{"jsonrpc":"2.0","error":{"code":-32005,"message":"m"},"id":null}`, kindTransient, true, "rpc error -32005: m"},
		{"unhealthy", 200, envelope(-32005, "Node is behind by 42 slots"), kindTransient, true, "rpc error -32005: Node is behind by 42 slots"},
		{"internal", 200, envelope(-32603, "Internal error"), kindTransient, false, "rpc error -32603: Internal error"},
		{"no status yet", 200, envelope(-32014, "m"), kindTransient, false, "rpc error -32014: m"},
		{"behind", 200, envelope(-32016, "Minimum context slot has not been reached"), kindBehind, true,
			"rpc error -32016: Minimum context slot has not been reached"},
		{"no history", 200, envelope(-32011, "m"), kindNoHistory, false, "rpc error -32011: m"},
		{"pruned", 200, envelope(-32001, "m"), kindPruned, false, "rpc error -32001: m"},
		{"no block", 200, envelope(-32004, "m"), kindNoBlock, false, "rpc error -32004: m"},
		{"skipped", 200, envelope(-32007, "m"), kindSkipped, false, "rpc error -32007: m"},
		{"skipped in the archive", 200, envelope(-32009, "m"), kindSkipped, false, "rpc error -32009: m"},

		{"bad signature", 200, envelope(-32003, "m"), kindPermanent, true, "rpc error -32003: m"},
		{"bad parameters", 200, envelope(-32602, "m"), kindPermanent, true, "rpc error -32602: m"},
		{"no such method", 200, envelope(-32601, "m"), kindPermanent, false, "rpc error -32601: m"},
		{"bad JSON", 200, envelope(-32700, "m"), kindPermanent, false, "rpc error -32700"},
		{"preflight without details", 200, envelope(-32002, `it\nfailed\u001b[2J`), kindPermanent, true, "rpc error -32002: it failed [2J"},
		{"account full", 200, preflight(`{"InstructionError":[0,{"Custom":1006}]}`), kindProgram, true, "rpc error -32002: program error 1006 (account full)"},
		{"landed before", 200, preflight(`"AlreadyProcessed"`), kindProcessed, false, "rpc error -32002: AlreadyProcessed"},
		{"no blockhash", 200, preflight(`"BlockhashNotFound"`), kindBlockhash, true, "rpc error -32002: BlockhashNotFound"},
	} {
		t.Run(v.name, func(t *testing.T) {
			_, err := parseAnswer(v.status, http.Header{}, []byte(v.body), 1)
			if err == nil {
				t.Fatal("no error")
			}
			err = fmt.Errorf("sendTransaction: %w", err)
			if got := kindOf(err); got != v.kind {
				t.Errorf("kind %q, want %q", got, v.kind)
			}
			if got := refused(err); got != v.refused {
				t.Errorf("refused: %t, want %t", got, v.refused)
			}
			if diff := cmp.Diff("sendTransaction: "+v.text, err.Error()); diff != "" {
				t.Errorf("text (-want +got):\n%s", diff)
			}
			if e, ok := errors.AsType[*rpcError](err); !ok || strings.Contains(fmt.Sprintf("%+v", e), "SECRET") {
				t.Errorf("error %+v quotes a gateway", e)
			}
		})
	}
}

// What a transaction fails of is the same in a preflight and on the chain: facts 3.8, cases 11 and 76.
func TestTransactionErrors(t *testing.T) {
	custom := func(code int64, text string) rpcError {
		return rpcError{Kind: kindProgram, Reason: "Custom", Custom: code, Message: text}
	}
	for raw, want := range map[string]rpcError{
		`{"InstructionError":[0,{"Custom":1001}]}`:       custom(1001, "program error 1001 (agent not authorized)"),
		`{"InstructionError":[0,{"Custom":1002}]}`:       custom(1002, "program error 1002 (status of a device does not allow it)"),
		`{"InstructionError":[0,{"Custom":1003}]}`:       custom(1003, "program error 1003 (status of the link does not allow it)"),
		`{"InstructionError":[0,{"Custom":1004}]}`:       custom(1004, "program error 1004 (link does not connect these devices)"),
		`{"InstructionError":[0,{"Custom":1006}]}`:       custom(1006, "program error 1006 (account full)"),
		`{"InstructionError":[0,{"Custom":1007}]}`:       custom(1007, "program error 1007 (account of another type)"),
		`{"InstructionError":[0,{"Custom":1008}]}`:       custom(1008, "program error 1008 (account of another program)"),
		`{"InstructionError":[0,{"Custom":1009}]}`:       custom(1009, "program error 1009 (account address does not match)"),
		`{"InstructionError":[0,{"Custom":1010}]}`:       custom(1010, "program error 1010 (account exists)"),
		`{"InstructionError":[0,{"Custom":1011}]}`:       custom(1011, "program error 1011 (account does not exist)"),
		`{"InstructionError":[0,{"Custom":1012}]}`:       custom(1012, "program error 1012 (no sampling interval)"),
		`{"InstructionError":[0,{"Custom":1013}]}`:       custom(1013, "program error 1013 (too many samples in one write)"),
		`{"InstructionError":[0,{"Custom":1017}]}`:       custom(1017, "program error 1017 (no samples in write)"),
		`{"InstructionError":[0,{"Custom":0}]}`:          custom(0, "program error 0"),
		`{"InstructionError":[0,{"Custom":4294967295}]}`: custom(4294967295, "program error 4294967295"),
		`{"InstructionError":[0,{"Custom":1}]}`: {
			Kind: kindUnfunded, Reason: "Custom", Custom: 1, Message: "program error 1 (the agent cannot pay the rent)",
		},

		`"AlreadyProcessed"`:                               {Kind: kindProcessed, Reason: "AlreadyProcessed", Custom: -1},
		`"BlockhashNotFound"`:                              {Kind: kindBlockhash, Reason: "BlockhashNotFound", Custom: -1},
		`"AccountNotFound"`:                                {Kind: kindUnfunded, Reason: "AccountNotFound", Custom: -1},
		`"InsufficientFundsForFee"`:                        {Kind: kindUnfunded, Reason: "InsufficientFundsForFee", Custom: -1},
		`{"InsufficientFundsForRent":{"account_index":0}}`: {Kind: kindUnfunded, Reason: "InsufficientFundsForRent", Custom: -1},
		`{"InstructionError":[0,"InsufficientFunds"]}`:     {Kind: kindUnfunded, Reason: "InsufficientFunds", Custom: -1},
		`"AccountInUse"`:                                   {Kind: kindTransient, Reason: "AccountInUse", Custom: -1},
		`"ClusterMaintenance"`:                             {Kind: kindTransient, Reason: "ClusterMaintenance", Custom: -1},
		`"WouldExceedMaxBlockCostLimit"`:                   {Kind: kindTransient, Reason: "WouldExceedMaxBlockCostLimit", Custom: -1},
		`"SignatureFailure"`:                               {Kind: kindPermanent, Reason: "SignatureFailure", Custom: -1},
		`"ProgramAccountNotFound"`:                         {Kind: kindPermanent, Reason: "ProgramAccountNotFound", Custom: -1},
		`{"DuplicateInstruction":3}`:                       {Kind: kindPermanent, Reason: "DuplicateInstruction", Custom: -1},
		`{"InstructionError":[0,"Invalid"]}`:               {Kind: kindPermanent, Reason: "Invalid", Custom: -1},
		`{"InstructionError":[0,{"Borsh":"x"}]}`:           {Kind: kindPermanent, Reason: "Borsh", Custom: -1},
		`{"InstructionError":[0,{"Custom":4294967296}]}`:   {Kind: kindPermanent, Reason: "Custom", Custom: -1},
		`{"InstructionError":[0,{"Custom":-1}]}`:           {Kind: kindPermanent, Reason: "Custom", Custom: -1},
		`{"InstructionError":0}`:                           {Kind: kindPermanent, Reason: "InstructionError", Custom: -1},
		`{}`:                                               {Kind: kindPermanent, Reason: "unknown", Custom: -1},
		`{"AccountInUse":1,"AlreadyProcessed":2}`:          {Kind: kindPermanent, Reason: "unknown", Custom: -1},
		`7`:            {Kind: kindPermanent, Reason: "unknown", Custom: -1},
		`"a\u0000\nb"`: {Kind: kindPermanent, Reason: "a  b", Custom: -1},
	} {
		t.Run(raw, func(t *testing.T) {
			text := want.Message
			if text == "" {
				text = want.Reason
			}
			want.Message = ""

			got := transactionError([]byte(raw), []byte(`["log"]`))
			if got.Error() != "transaction failed: "+text {
				t.Errorf("text %q, want %q", got, text)
			}
			want.Logs = []string{"log"}
			if diff := cmp.Diff(&want, got); diff != "" {
				t.Errorf("on the chain (-want +got):\n%s", diff)
			}

			_, err := parseAnswer(200, http.Header{}, []byte(preflight(raw)), 1)
			want.Logs = []string{"Program X invoke [1]", "Program X failed"}
			want.Status, want.Code, want.Message = 200, -32002, "Transaction simulation failed"
			if e, _ := errors.AsType[*rpcError](err); cmp.Diff(&want, e) != "" {
				t.Errorf("in a preflight (-want +got):\n%s", cmp.Diff(&want, e))
			}
		})
	}
	for _, raw := range []string{"", "null"} {
		if got := transactionError(json.RawMessage(raw), nil); got != nil {
			t.Errorf("%q: error %v", raw, got)
		}
	}
}

func TestWhatIsNoAnswerIsTransient(t *testing.T) {
	for _, err := range []error{
		context.DeadlineExceeded, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.ECONNREFUSED, fmt.Errorf("x: %w", errNonsense),
	} {
		if kindOf(err) != kindTransient || refused(err) {
			t.Errorf("%v: kind %q, refused %t", err, kindOf(err), refused(err))
		}
	}
	if kindOf(nil) != "" || refused(nil) {
		t.Errorf("no error: kind %q, refused %t", kindOf(nil), refused(nil))
	}
}

// Case 84.
func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for value, want := range map[string]time.Duration{
			"7":                          7 * time.Second,
			"0":                          0,
			"":                           0,
			"-7":                         0,
			"soon":                       0,
			"7.5":                        0,
			"3600":                       time.Hour,
			"2000000000":                 time.Hour,
			"99999999999999999999999999": 0,
			time.Now().Add(90 * time.Second).UTC().Format(http.TimeFormat):    90 * time.Second,
			time.Now().Add(-90 * time.Second).UTC().Format(http.TimeFormat):   0,
			time.Now().Add(1000 * time.Hour).UTC().Format(http.TimeFormat):    time.Hour,
			time.Now().Add(1000000 * time.Hour).UTC().Format(http.TimeFormat): time.Hour,
		} {
			for _, status := range []int{429, 503, 200} {
				_, err := parseAnswer(status, http.Header{"Retry-After": {value}}, []byte(`{"error":{"code":-32429,"message":"<html>"},"id":1}`), 1)
				e, ok := errors.AsType[*rpcError](err)
				if !ok || e.Pause != want || e.Kind != kindTransient {
					t.Errorf("%d, retry after %q: error %+v, want %s", status, value, err, want)
				}
				if text := ", retry after " + want.String(); ok && want > 0 && !strings.HasSuffix(e.Error(), text) {
					t.Errorf("%d, retry after %q: text %q", status, value, e)
				}
			}
		}
	})
}

func TestErrorsAreShort(t *testing.T) {
	long := strings.Repeat("é", 1000)
	lines := strings.Repeat(`"`+long+`",`, 100)
	body := `{"error":{"code":-32002,"message":"` + long + `","data":{"err":"` + long + `","logs":[` + lines + `""]}},"id":1}`
	_, err := parseAnswer(200, http.Header{}, []byte(body), 1)
	e, ok := errors.AsType[*rpcError](err)
	if !ok {
		t.Fatal(err)
	}
	if len(e.Message) != 256 || len(e.Reason) != 64 || len(e.Logs) != 32 || len(e.Logs[31]) != 256 {
		t.Errorf("message of %d bytes, reason of %d, %d lines", len(e.Message), len(e.Reason), len(e.Logs))
	}
}

func FuzzParseAnswer(f *testing.F) {
	f.Add(200, []byte(`{"jsonrpc":"2.0","result":{"context":{"slot":7},"value":[null]},"id":1}`))
	f.Add(200, []byte(preflight(`{"InstructionError":[0,{"Custom":1006}]}`)))
	f.Add(200, []byte(preflight(`"BlockhashNotFound"`)))
	f.Add(503, []byte(`{"jsonrpc":"2.0","error":{"code":503,"message":"service unavailable"},"id":1}`))
	f.Add(429, []byte("<html></html>"))
	f.Add(200, []byte(`{"jsonrpc":"2.0","id":1}`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		raw, err := parseAnswer(status, http.Header{}, body, 1)
		if (raw == nil) == (err == nil) {
			t.Fatalf("result %q, error %v", raw, err)
		}
		if err == nil {
			if status != 200 || !json.Valid(raw) {
				t.Errorf("status %d, result %q", status, raw)
			}
			return
		}
		e, ok := errors.AsType[*rpcError](err)
		if !ok {
			if !errors.Is(err, errNonsense) || status != 200 {
				t.Errorf("status %d, error %v", status, err)
			}
			return
		}
		text := append(e.Logs, e.Error())
		for _, s := range text {
			if len(s) > 512 || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("text %q", s)
			}
		}
		if e.Kind == "" || (e.Custom >= 0) != (e.Kind == kindProgram || e.Kind == kindUnfunded && e.Reason == "Custom") {
			t.Errorf("error %+v", e)
		}
	})
}
