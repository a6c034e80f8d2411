// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	// callLimit is how long one call may take, the reading of its answer included.
	callLimit = 10 * time.Second

	// maxAnswer is the largest answer that is read, in bytes. The largest that we ask for are whole accounts of samples, 190 kB each.
	maxAnswer = 8 << 20

	// maxErrorAnswer is how much is read of an answer with an error status.
	maxErrorAnswer = 64 << 10

	// Nodes take at most so many in one call.
	maxKeysPerCall       = 100
	maxSignaturesPerCall = 256
)

// errNonsense is what an answer is that cannot be the node's.
var errNonsense = errors.New("nonsense answer")

// commitment says how sure the ledger must be of what it answers.
type commitment string

const finalized commitment = "finalized" // cannot be undone any more; 32 slots later

// client calls a ledger's JSON-RPC. It neither retries nor logs. It may be used by several goroutines.
//
// Its errors begin with the name of the method; kindOf says what they mean. A minSlot that is not 0 demands that the answer is of
// that slot or a later one, since two calls can reach two nodes: a node that is not there yet gives kindBehind, also if it does not
// know that it was asked for it.
type client struct {
	rt     http.RoundTripper // puts the address in
	lastID atomic.Uint64
}

func newClient(rt http.RoundTripper) *client { return &client{rt: rt} }

// epochInfo is where the ledger is.
type epochInfo struct {
	AbsoluteSlot uint64 `json:"absoluteSlot"`
	BlockHeight  uint64 `json:"blockHeight"` // slots so far that have a block
	Epoch        uint64 `json:"epoch"`
	SlotIndex    uint64 `json:"slotIndex"` // in the epoch
	SlotsInEpoch uint64 `json:"slotsInEpoch"`
}

func (c *client) getEpochInfo(ctx context.Context, level commitment, minSlot uint64) (epochInfo, error) {
	const method = "getEpochInfo"
	var info epochInfo
	if err := c.call(ctx, method, &info, options{Commitment: level, MinContextSlot: minSlot}); err != nil {
		return epochInfo{}, err
	}
	if info.SlotIndex >= info.SlotsInEpoch || info.SlotIndex > info.AbsoluteSlot || info.BlockHeight > info.AbsoluteSlot {
		return epochInfo{}, fmt.Errorf("%s: %w: %+v", method, errNonsense, info)
	}
	return info, reached(method, info.AbsoluteSlot, minSlot)
}

// epochSchedule says which slots an epoch has. It never changes. A ledger may have begun with shorter epochs, each twice as long as
// the one before.
type epochSchedule struct {
	SlotsPerEpoch    uint64 `json:"slotsPerEpoch"`
	FirstNormalEpoch uint64 `json:"firstNormalEpoch"` // the first of the full length
	FirstNormalSlot  uint64 `json:"firstNormalSlot"`
}

// shortestEpoch is how many slots the first epoch has if epochs grow.
const shortestEpoch = 32

// firstSlot returns the first slot of an epoch, which may have no block.
func (s epochSchedule) firstSlot(epoch uint64) uint64 {
	if epoch < s.FirstNormalEpoch {
		return shortestEpoch * (1<<epoch - 1)
	}
	return s.FirstNormalSlot + (epoch-s.FirstNormalEpoch)*s.SlotsPerEpoch
}

func (c *client) getEpochSchedule(ctx context.Context) (epochSchedule, error) {
	const method = "getEpochSchedule"
	var s epochSchedule
	if err := c.call(ctx, method, &s); err != nil {
		return epochSchedule{}, err
	}
	if n := s.FirstNormalEpoch; s.SlotsPerEpoch == 0 || n > 32 || s.FirstNormalSlot != shortestEpoch*(1<<n-1) {
		return epochSchedule{}, fmt.Errorf("%s: %w: %+v", method, errNonsense, s)
	}
	return s, nil
}

// getBlockTime returns when the block of a slot was made, in whole seconds. For a slot without one the error is kindSkipped, or
// kindNoBlock, which only of a slot that the node has finalized means the same; kindPruned says that another node may know.
func (c *client) getBlockTime(ctx context.Context, slot uint64) (time.Time, error) {
	const method = "getBlockTime"
	var seconds *int64
	if err := c.call(ctx, method, &seconds, slot); err != nil {
		return time.Time{}, err
	}
	if seconds == nil {
		return time.Time{}, fmt.Errorf("%s: %w", method, &rpcError{
			Kind: kindNoBlock, Status: http.StatusOK, Code: codeBlockNotAvailable, Custom: -1, Message: "no time",
		})
	}
	return time.Unix(*seconds, 0).UTC(), nil
}

// latestBlockhash makes a transaction valid for some time.
type latestBlockhash struct {
	Hash      hash   `json:"blockhash"`
	LastValid uint64 `json:"lastValidBlockHeight"` // a block above that height cannot contain it any more
	Slot      uint64 `json:"-"`                    // that the answer is of
}

// getLatestBlockhash returns a blockhash to be used with the same commitment: see sendOptions.
func (c *client) getLatestBlockhash(ctx context.Context, level commitment, minSlot uint64) (latestBlockhash, error) {
	const method = "getLatestBlockhash"
	b, slot, err := valueOf[latestBlockhash](ctx, c, method, minSlot, options{Commitment: level, MinContextSlot: minSlot})
	if err != nil {
		return latestBlockhash{}, err
	}
	if b.Hash == (hash{}) || b.LastValid == 0 {
		return latestBlockhash{}, fmt.Errorf("%s: %w: %+v", method, errNonsense, b)
	}
	b.Slot = slot
	return b, nil
}

// sendOptions say what the node does before it passes a transaction on.
type sendOptions struct {
	// SkipPreflight leaves out trying it, which refuses what cannot land, but also what has landed or what the node is behind of.
	SkipPreflight bool
	// Commitment of the preflight must be that of the blockhash, or the node may not know it yet; MinSlot its slot.
	Commitment commitment
	MinSlot    uint64
}

const methodSend = "sendTransaction"

// sendTransaction hands a signed transaction to the ledger, which does not mean that it will land. Nor does an error mean that it will
// not, unless refused says so. The request has no GetBody: a transport that tries another node within a call must not do so with it,
// because the second node's answer would hide that nobody knows what the first one did.
func (c *client) sendTransaction(ctx context.Context, signed []byte, o sendOptions) error {
	var sig Signature
	err := c.call(ctx, methodSend, &sig, base64.StdEncoding.EncodeToString(signed), options{
		Encoding: "base64", SkipPreflight: o.SkipPreflight, PreflightCommitment: o.Commitment, MinContextSlot: o.MinSlot,
	})
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(signed, append([]byte{1}, sig[:]...)) { // one signature, ours
		return fmt.Errorf("%s: %w: took it for transaction %s", methodSend, errNonsense, sig)
	}
	return nil
}

// signatureStatus is what a node knows of a transaction.
type signatureStatus struct {
	Slot  uint64     // of the block that it is in
	Level commitment // "processed" is one more; "" if the node does not say
	Err   *rpcError  // nil if it did what it should
}

func (s *signatureStatus) UnmarshalJSON(data []byte) error {
	var raw struct {
		Slot  uint64          `json:"slot"`
		Level commitment      `json:"confirmationStatus"`
		Err   json.RawMessage `json:"err"`
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	*s = signatureStatus{Slot: raw.Slot, Level: raw.Level, Err: transactionError(raw.Err, nil)}
	return nil
}

// getSignatureStatuses returns a status for each of sigs, nil for those that the node does not know, which proves nothing. Without
// search it knows those of the last minutes.
func (c *client) getSignatureStatuses(ctx context.Context, sigs []Signature, search bool) ([]*signatureStatus, error) {
	const method = "getSignatureStatuses"
	var all []*signatureStatus
	for some := range slices.Chunk(sigs, maxSignaturesPerCall) {
		s, _, err := valueOf[[]*signatureStatus](ctx, c, method, 0, some, options{SearchHistory: search})
		if err != nil {
			return nil, err
		}
		if len(s) != len(some) {
			return nil, fmt.Errorf("%s: %w: %d of %d", method, errNonsense, len(s), len(some))
		}
		all = append(all, s...)
	}
	return all, nil
}

// transactionInfo is what became of a finalized transaction.
type transactionInfo struct {
	Slot uint64
	Err  *rpcError // with what the programs logged; nil if it did what it should
}

// getTransaction returns nil if the node does not know the transaction, which proves nothing.
func (c *client) getTransaction(ctx context.Context, sig Signature) (*transactionInfo, error) {
	var raw *struct {
		Slot uint64 `json:"slot"`
		Meta struct {
			Err  json.RawMessage `json:"err"`
			Logs json.RawMessage `json:"logMessages"`
		} `json:"meta"`
	}
	if err := c.call(ctx, "getTransaction", &raw, sig, options{Commitment: finalized, Encoding: "base64"}); err != nil || raw == nil {
		return nil, err
	}
	return &transactionInfo{Slot: raw.Slot, Err: transactionError(raw.Meta.Err, raw.Meta.Logs)}, nil
}

// accountInfo is an account. One without data, which has only money, does not exist for the telemetry program.
type accountInfo struct {
	Owner    Pubkey // the program that it belongs to
	Lamports uint64
	Data     []byte // or the slice of it that was asked for
}

func (a *accountInfo) UnmarshalJSON(data []byte) error {
	var raw struct {
		Owner    *Pubkey  `json:"owner"`
		Lamports uint64   `json:"lamports"`
		Data     []string `json:"data"` // and its encoding
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	if raw.Owner == nil || len(raw.Data) != 2 || raw.Data[1] != "base64" {
		return errors.New("account without owner or without data in base64")
	}
	b, err := base64.StdEncoding.DecodeString(raw.Data[0])
	*a = accountInfo{Owner: *raw.Owner, Lamports: raw.Lamports, Data: b}
	return err
}

// dataSlice is the part of each account's data that is wanted; nil is all of it.
type dataSlice struct {
	Offset int `json:"offset"`
	Length int `json:"length"`
}

// headerSlice is enough for the header of a samples account.
var headerSlice = &dataSlice{Length: maxHeaderSize}

// getMultipleAccounts returns an account for each of keys, nil for those that do not exist, as they were at slot or later.
func (c *client) getMultipleAccounts(ctx context.Context, keys []Pubkey, part *dataSlice, level commitment, minSlot uint64) (accounts []*accountInfo, slot uint64, err error) {
	const method = "getMultipleAccounts"
	o := options{Commitment: level, MinContextSlot: minSlot, Encoding: "base64", DataSlice: part}
	for some := range slices.Chunk(keys, maxKeysPerCall) {
		a, at, err := valueOf[[]*accountInfo](ctx, c, method, minSlot, some, o)
		if err != nil {
			return nil, 0, err
		}
		if len(a) != len(some) {
			return nil, 0, fmt.Errorf("%s: %w: %d of %d", method, errNonsense, len(a), len(some))
		}
		if slot == 0 || at < slot {
			slot = at
		}
		accounts = append(accounts, a...)
	}
	return accounts, slot, nil
}

// getAccountInfo returns the account, nil if it does not exist, as it was at slot.
func (c *client) getAccountInfo(ctx context.Context, key Pubkey, part *dataSlice, level commitment, minSlot uint64) (a *accountInfo, slot uint64, err error) {
	return valueOf[*accountInfo](ctx, c, "getAccountInfo", minSlot, key,
		options{Commitment: level, MinContextSlot: minSlot, Encoding: "base64", DataSlice: part})
}

// filter is a condition on an account's data.
type filter struct {
	Memcmp memcmp `json:"memcmp"`
}

// memcmp demands that the data has these bytes, at most 128, in base58, at an offset.
type memcmp struct {
	Offset int    `json:"offset"`
	Bytes  string `json:"bytes"`
}

// programAccount is one of the accounts of a program.
type programAccount struct {
	Address Pubkey
	Account accountInfo
}

func (a *programAccount) UnmarshalJSON(data []byte) error {
	var raw struct {
		Address *Pubkey      `json:"pubkey"`
		Account *accountInfo `json:"account"`
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	if raw.Address == nil || raw.Account == nil {
		return errors.New("account of a program without address or without content")
	}
	*a = programAccount{Address: *raw.Address, Account: *raw.Account}
	return nil
}

// getProgramAccounts returns the accounts of a program that meet all filters, at most four, as they were at slot. Whether they are all
// and meet them nobody can tell from the answer.
func (c *client) getProgramAccounts(ctx context.Context, program Pubkey, filters []filter, part *dataSlice, level commitment, minSlot uint64) (accounts []programAccount, slot uint64, err error) {
	const method = "getProgramAccounts"
	accounts, slot, err = valueOf[[]programAccount](ctx, c, method, minSlot, program,
		options{Commitment: level, MinContextSlot: minSlot, Encoding: "base64", DataSlice: part, Filters: filters, WithContext: true})
	if err == nil && accounts == nil {
		return nil, 0, fmt.Errorf("%s: %w: null", method, errNonsense)
	}
	return accounts, slot, err
}

// getBalance returns what an account has, in lamports: 0 if it does not exist.
func (c *client) getBalance(ctx context.Context, key Pubkey, level commitment) (uint64, error) {
	const method = "getBalance"
	lamports, _, err := valueOf[*uint64](ctx, c, method, 0, key, options{Commitment: level})
	if err != nil {
		return 0, err
	}
	if lamports == nil {
		return 0, fmt.Errorf("%s: %w: null", method, errNonsense)
	}
	return *lamports, nil
}

// getGenesisHash returns what tells the ledger from all others.
func (c *client) getGenesisHash(ctx context.Context) (hash, error) {
	const method = "getGenesisHash"
	var h hash
	if err := c.call(ctx, method, &h); err != nil {
		return hash{}, err
	}
	if h == (hash{}) {
		return hash{}, fmt.Errorf("%s: %w: none", method, errNonsense)
	}
	return h, nil
}

// options are the last parameter of most methods.
type options struct {
	Commitment          commitment `json:"commitment,omitempty"`
	MinContextSlot      uint64     `json:"minContextSlot,omitempty"`
	Encoding            string     `json:"encoding,omitempty"`
	DataSlice           *dataSlice `json:"dataSlice,omitempty"`
	Filters             []filter   `json:"filters,omitempty"`
	WithContext         bool       `json:"withContext,omitempty"`
	SkipPreflight       bool       `json:"skipPreflight,omitempty"`
	PreflightCommitment commitment `json:"preflightCommitment,omitempty"`
	SearchHistory       bool       `json:"searchTransactionHistory,omitempty"`
}

// valueOf calls a method whose result is a value and the slot that it is of.
func valueOf[T any](ctx context.Context, c *client, method string, minSlot uint64, params ...any) (value T, slot uint64, err error) {
	var r struct {
		Context struct {
			Slot uint64 `json:"slot"`
		} `json:"context"`
		Value json.RawMessage `json:"value"`
	}
	if err := c.call(ctx, method, &r, params...); err != nil {
		return value, 0, err
	}
	if err := reached(method, r.Context.Slot, minSlot); err != nil {
		return value, 0, err
	}
	if r.Context.Slot == 0 {
		return value, 0, fmt.Errorf("%s: %w: no slot", method, errNonsense)
	}
	// That there is no such account or status is what null says. No value at all is no JSON.
	if err := json.Unmarshal(r.Value, &value); err != nil {
		return value, 0, fmt.Errorf("%s: %w: %w", method, errNonsense, err)
	}
	return value, r.Context.Slot, nil
}

// reached tells whether an answer that is of slot is new enough.
func reached(method string, slot, minSlot uint64) error {
	if slot >= minSlot {
		return nil
	}
	return fmt.Errorf("%s: %w", method, &rpcError{
		Kind: kindBehind, Status: http.StatusOK, Code: codeMinContextSlot, Custom: -1,
		Message: fmt.Sprintf("answer is of slot %d, asked for %d or later", slot, minSlot),
	})
}

// call calls a method.
func (c *client) call(ctx context.Context, method string, result any, params ...any) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	raw, err := c.post(ctx, method, params)
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	if err := json.Unmarshal(raw, result); err != nil {
		return fmt.Errorf("%s: %w: %w", method, errNonsense, err)
	}
	return nil
}

// post returns the result, as JSON, of one call.
func (c *client) post(ctx context.Context, method string, params []any) (json.RawMessage, error) {
	id := c.lastID.Add(1)
	body, err := json.Marshal(struct {
		Version string `json:"jsonrpc"`
		ID      uint64 `json:"id"`
		Method  string `json:"method"`
		Params  []any  `json:"params,omitempty"`
	}{"2.0", id, method, params})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://ledger.invalid/", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if method == methodSend {
		req.GetBody = nil // so that no transport sends it a second time
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := c.rt.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	limit := maxAnswer
	if res.StatusCode != http.StatusOK {
		limit = maxErrorAnswer
	}
	answer, err := io.ReadAll(io.LimitReader(res.Body, int64(limit)+1))
	if res.StatusCode == http.StatusOK {
		if err != nil {
			return nil, err
		}
		if len(answer) > limit {
			return nil, fmt.Errorf("%w: more than %d bytes", errNonsense, limit)
		}
	}
	return parseAnswer(res.StatusCode, res.Header, answer, id)
}

// parseAnswer returns the result in the answer to the request with that id. An answer to another one, as broken proxies give, must not
// be taken for it: what an account holds, or that a transaction was refused, decides what is written next. Only an error may be without.
func parseAnswer(status int, header http.Header, body []byte, id uint64) (json.RawMessage, error) {
	var a struct {
		ID     json.RawMessage `json:"id"`
		Result json.RawMessage `json:"result"`
		Error  *errorObject    `json:"error"`
	}
	err := json.Unmarshal(body, &a)
	ours, nobodys := string(a.ID) == strconv.FormatUint(id, 10), a.ID == nil || string(a.ID) == "null"
	switch {
	case err != nil && status != http.StatusOK: // a gateway's page
		return nil, answerError(status, header, nil)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errNonsense, err)
	case status != http.StatusOK || a.Error != nil && (ours || nobodys):
		return nil, answerError(status, header, a.Error)
	case !ours:
		return nil, fmt.Errorf("%w: it is to another request", errNonsense)
	case a.Result == nil:
		return nil, fmt.Errorf("%w: neither result nor error", errNonsense)
	}
	return a.Result, nil
}
