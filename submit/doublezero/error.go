// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// kind says what an error means for what was asked.
type kind string

const (
	// kindTransient says nothing about the request: it did not get through, the node could not answer now, or what it answered made no
	// sense. A transaction may have been passed on all the same.
	kindTransient kind = "transient"
	// kindPermanent means that the same request would get the same answer.
	kindPermanent kind = "permanent"
	// kindProgram means that the program refused the instruction: rpcError.Custom says why.
	kindProgram kind = "program_error"
	// kindProcessed means that this very transaction has landed before.
	kindProcessed kind = "already_processed"
	// kindBlockhash means that the node does not know the blockhash: not yet, or no longer. Of a transaction that was sent before it
	// says nothing.
	kindBlockhash kind = "blockhash_not_found"
	// kindUnfunded means that the agent, who pays for all, has no account or too little in it.
	kindUnfunded kind = "unfunded"
	// kindBehind means that the node has not got to the slot that the call depends on.
	kindBehind kind = "behind"
	// kindSkipped means that the slot has no block.
	kindSkipped kind = "skipped"
	// kindNoBlock means that the node has no block for the slot, because there is none or because it has not got there yet.
	kindNoBlock kind = "no_block"
	// kindPruned means that the node no longer has the block. Another may.
	kindPruned kind = "pruned"
	// kindNoHistory means that the node keeps no history of transactions, and says nothing of any of them.
	kindNoHistory kind = "no_history"
)

// Error codes of a ledger's node.
const (
	codeBlockCleanedUp     = -32001
	codePreflightFailed    = -32002
	codeBadSignature       = -32003
	codeBlockNotAvailable  = -32004
	codeNodeUnhealthy      = -32005
	codeSlotSkipped        = -32007
	codeSlotSkippedArchive = -32009
	codeKeyExcluded        = -32010
	codeNoHistory          = -32011
	codeSignatureLength    = -32013
	codeBadVersion         = -32015
	codeMinContextSlot     = -32016
	codeInvalidRequest     = -32600
	codeMethodNotFound     = -32601
	codeInvalidParams      = -32602
	codeInternal           = -32603
	codeParse              = -32700
)

// kindOfCode is what a code means; one that is not here says nothing about the request. With codePreflightFailed comes what is wrong
// with the transaction.
var kindOfCode = map[int]kind{
	codeBlockCleanedUp:     kindPruned,
	codePreflightFailed:    kindPermanent,
	codeBadSignature:       kindPermanent,
	codeBlockNotAvailable:  kindNoBlock,
	codeSlotSkipped:        kindSkipped,
	codeSlotSkippedArchive: kindSkipped,
	codeKeyExcluded:        kindPermanent,
	codeNoHistory:          kindNoHistory,
	codeSignatureLength:    kindPermanent,
	codeBadVersion:         kindPermanent,
	codeMinContextSlot:     kindBehind,
	codeInvalidRequest:     kindPermanent,
	codeMethodNotFound:     kindPermanent,
	codeInvalidParams:      kindPermanent,
	codeParse:              kindPermanent,
}

// kindOfReason is what makes a transaction fail, by the ledger's name for it. Any other is permanent.
var kindOfReason = map[string]kind{
	"AccountInUse":                     kindTransient,
	"AccountNotFound":                  kindUnfunded, // the fee payer's account; one that an instruction misses is the program's error
	"AlreadyProcessed":                 kindProcessed,
	"BlockhashNotFound":                kindBlockhash,
	"ClusterMaintenance":               kindTransient,
	"InsufficientFunds":                kindUnfunded,
	"InsufficientFundsForFee":          kindUnfunded,
	"InsufficientFundsForRent":         kindUnfunded,
	"WouldExceedAccountDataBlockLimit": kindTransient,
	"WouldExceedMaxAccountCostLimit":   kindTransient,
	"WouldExceedMaxBlockCostLimit":     kindTransient,
}

// Codes of the programs that an instruction runs: the system program's, when rent cannot be paid, and the telemetry program's. The
// program checks in this order: on write 1017, 1011, 1008, 1007, 1001, 1006, 1013; to initialize 1012, 1002 (origin), 1001,
// 1002 (target), 1003, 1004, 1009, 1010.
const (
	customUnfunded      = 1
	customNotAuthorized = 1001
	customDeviceStatus  = 1002
	customLinkStatus    = 1003
	customLinkEnds      = 1004
	customFull          = 1006
	customWrongType     = 1007
	customWrongOwner    = 1008
	customWrongAddress  = 1009
	customExists        = 1010
	customMissing       = 1011
	customNoInterval    = 1012
	customTooLarge      = 1013
	customNoSamples     = 1017
)

var customText = map[int64]string{
	customUnfunded:      "the agent cannot pay the rent",
	customNotAuthorized: "agent not authorized",
	customDeviceStatus:  "status of a device does not allow it",
	customLinkStatus:    "status of the link does not allow it",
	customLinkEnds:      "link does not connect these devices",
	customFull:          "account full",
	customWrongType:     "account of another type",
	customWrongOwner:    "account of another program",
	customWrongAddress:  "account address does not match",
	customExists:        "account exists",
	customMissing:       "account does not exist",
	customNoInterval:    "no sampling interval",
	customTooLarge:      "too many samples in one write",
	customNoSamples:     "no samples in write",
}

// rpcError is an answer that is no result, or what a transaction failed of. What is in it is fit for a log, whoever wrote it.
type rpcError struct {
	Kind   kind
	Status int // of HTTP; 0 if this is what a transaction failed of
	Code   int // of JSON-RPC; 0 if none was named

	Reason string // the ledger's name for what is wrong with the transaction, like BlockhashNotFound; "" if this is not about one
	Custom int64  // code of the program that refused the instruction, else -1
	Logs   []string

	// Message is in the node's own words. Gateways before a node are not quoted: they like to repeat what they were asked, and with it
	// the token that was in the address.
	Message string

	Pause time.Duration // how long to leave the endpoint alone; 0 if it did not say
}

func (e *rpcError) Error() string {
	var b strings.Builder
	switch {
	case e.Status != 0 && e.Status != http.StatusOK:
		fmt.Fprintf(&b, "http status %d", e.Status)
	case e.Code != 0:
		fmt.Fprintf(&b, "rpc error %d", e.Code)
	case e.Status != 0:
		b.WriteString("rpc error without a code")
	default:
		b.WriteString("transaction failed")
	}
	switch {
	case e.Custom >= 0:
		fmt.Fprintf(&b, ": program error %d", e.Custom)
		if text := customText[e.Custom]; text != "" {
			fmt.Fprintf(&b, " (%s)", text)
		}
	case e.Reason != "":
		b.WriteString(": " + e.Reason)
	case e.Message != "":
		b.WriteString(": " + e.Message)
	}
	if e.Pause > 0 {
		fmt.Fprintf(&b, ", retry after %s", e.Pause)
	}
	return b.String()
}

// RetryAfter is how long the one who answered wants to be left alone, 0 if it did not say.
func (e *rpcError) RetryAfter() time.Duration { return e.Pause }

// customOf returns the code of the program that refused the instruction, -1 if the error is of another kind.
func customOf(err error) int64 {
	if e, ok := errors.AsType[*rpcError](err); ok {
		return e.Custom
	}
	return -1
}

// kindOf returns what err means, "" if it is nil. What is no rpcError (no connection, no answer in time, nonsense) is transient.
func kindOf(err error) kind {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*rpcError](err); ok {
		return e.Kind
	}
	return kindTransient
}

// refused reports whether err proves that a sendTransaction went no further than the node that answered it. It proves nothing about an
// earlier attempt with the same bytes. Not even an error status of HTTP does: what is before the node may have asked it.
func refused(err error) bool {
	e, ok := errors.AsType[*rpcError](err)
	if !ok || e.Status != http.StatusOK || e.Kind == kindProcessed {
		return false
	}
	switch e.Code {
	case codePreflightFailed, codeBadSignature, codeNodeUnhealthy, codeMinContextSlot, codeInvalidParams:
		return true
	}
	return false
}

// errorObject is the error of a JSON-RPC answer. All parts may be missing.
type errorObject struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
}

// answerError is an answer with an HTTP status other than 200, or with an error object, or both.
func answerError(status int, header http.Header, o *errorObject) *rpcError {
	e := &rpcError{Kind: kindTransient, Status: status, Custom: -1, Pause: retryAfter(header)}
	if o != nil {
		e.Code = o.Code
	}
	switch {
	case passing(status):
	case status != http.StatusOK:
		e.Kind = kindPermanent
	default:
		e.setObject(o)
	}
	return e
}

// setObject takes the error object of an answer with HTTP status 200.
func (e *rpcError) setObject(o *errorObject) {
	switch k, ok := kindOfCode[o.Code]; {
	case ok:
		e.Kind = k
	case o.Code >= 300 && o.Code < 500 && !passing(o.Code): // a gateway that puts its HTTP status here
		e.Kind = kindPermanent
	}
	if nodesOwn(o.Code) {
		e.Message = printable(o.Message, 256)
	}
	if o.Code != codePreflightFailed {
		return
	}
	var data struct {
		Err  json.RawMessage `json:"err"`
		Logs json.RawMessage `json:"logs"`
	}
	if json.Unmarshal(o.Data, &data) == nil {
		e.setTransaction(data.Err, data.Logs)
	}
}

// transactionError is what became of a transaction, or nil if it is well. raw is the ledger's account of the error.
func transactionError(raw, logs json.RawMessage) *rpcError {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	e := &rpcError{Kind: kindPermanent, Custom: -1}
	e.setTransaction(raw, logs)
	return e
}

// setTransaction takes what is wrong with a transaction: a name, or an object with a name and details. That of an instruction has in
// its details the instruction's number and again a name or an object, or the code of its program as {"Custom": code}.
func (e *rpcError) setTransaction(raw, logs json.RawMessage) {
	name, details := variant(raw)
	if name == "InstructionError" {
		var pair []json.RawMessage
		if json.Unmarshal(details, &pair) == nil && len(pair) == 2 {
			name, details = variant(pair[1])
		}
	}
	e.Reason = printable(name, 64)
	var code uint32
	if name == "Custom" && json.Unmarshal(details, &code) == nil {
		e.Kind, e.Custom = kindProgram, int64(code)
		if code == customUnfunded {
			e.Kind = kindUnfunded
		}
	} else if k, ok := kindOfReason[name]; ok {
		e.Kind = k
	}

	var lines []string
	if len(logs) > 0 && json.Unmarshal(logs, &lines) == nil {
		for _, line := range lines[:min(len(lines), 32)] {
			e.Logs = append(e.Logs, printable(line, 256))
		}
	}
}

// variant splits the JSON of a value that is one of several named ones, with details or without.
func variant(raw json.RawMessage) (name string, details json.RawMessage) {
	if json.Unmarshal(raw, &name) == nil {
		return name, nil
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(raw, &object) == nil && len(object) == 1 {
		for name, details := range object {
			return name, details
		}
	}
	return "unknown", nil
}

// passing reports whether an HTTP status says only that it did not work this time.
func passing(status int) bool {
	return status >= 500 || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout
}

// nodesOwn reports whether a code is one that a node answers with, and no gateway.
func nodesOwn(code int) bool {
	return code >= -32099 && code <= -32000 || code >= codeInternal && code <= codeInvalidRequest
}

// maxRetryAfter is the longest that an endpoint can ask for.
const maxRetryAfter = time.Hour

// retryAfter reads the header of that name: seconds or a date. It returns 0 if there is none that makes sense.
func retryAfter(header http.Header) time.Duration {
	value := header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(time.Until(at), 0), maxRetryAfter)
	}
	return 0
}

// printable makes a string of others fit for a log: at most limit bytes, on one line.
func printable(s string, limit int) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s[:min(len(s), limit)], ""))
}
