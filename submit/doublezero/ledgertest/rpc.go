// SPDX-License-Identifier: Apache-2.0

package ledgertest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gagliardetto/solana-go/base58"
)

const (
	maxKeys       = 100 // of getMultipleAccounts
	maxSignatures = 256 // of getSignatureStatuses
	maxBase58     = 128 // bytes of an account that may be encoded in base58
	healthy       = 128 // slots that a healthy node may be behind, exclusive
)

// rpcError is the error member of an answer.
type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
}

func invalidParams(format string, args ...any) *rpcError {
	return &rpcError{Code: -32602, Message: "Invalid params: " + fmt.Sprintf(format, args...)}
}

// call is one request to one node, with the ledger locked.
type call struct {
	*Ledger
	now     time.Time
	running uint64 // slot that runs on the ledger
	reached uint64 // slot that the node has reached
	faults  map[Kind]*injected
	params  []json.RawMessage
}

// rpcMethods is what nodes answer.
var rpcMethods = map[string]func(*call) (any, *rpcError){
	"getAccountInfo":                    (*call).getAccountInfo,
	"getBalance":                        (*call).getBalance,
	"getBlockHeight":                    (*call).getBlockHeight,
	"getBlockTime":                      (*call).getBlockTime,
	"getBlocks":                         (*call).getBlocks,
	"getEpochInfo":                      (*call).getEpochInfo,
	"getEpochSchedule":                  (*call).getEpochSchedule,
	"getGenesisHash":                    (*call).getGenesisHash,
	"getHealth":                         (*call).getHealth,
	"getLatestBlockhash":                (*call).getLatestBlockhash,
	"getMinimumBalanceForRentExemption": (*call).getMinimumBalanceForRentExemption,
	"getMultipleAccounts":               (*call).getMultipleAccounts,
	"getProgramAccounts":                (*call).getProgramAccounts,
	"getSignatureStatuses":              (*call).getSignatureStatuses,
	"getSlot":                           (*call).getSlot,
	"getTransaction":                    (*call).getTransaction,
	"getVersion":                        (*call).getVersion,
	"isBlockhashValid":                  (*call).isBlockhashValid,
	"sendTransaction":                   (*call).sendTransaction,
}

// call answers one request, as the node would that is lag slots behind. l.mu must be held.
func (l *Ledger) call(now time.Time, lag uint64, faults map[Kind]*injected, method string, params []json.RawMessage) (any, *rpcError) {
	l.advance(now)
	_, running := l.chain.current(now)
	c := &call{Ledger: l, now: now, running: running, faults: faults, params: params}
	if f := faults[Lag]; f != nil {
		lag += uint64(max(f.Slots, 0))
	}
	c.reached = back(running, lag)
	if f := faults[Stuck]; f != nil {
		c.reached = min(c.reached, back(f.slot, lag))
	}
	if f := faults[Error]; f != nil {
		return nil, &rpcError{Code: f.Code, Message: f.Message, Data: f.Data}
	}
	run, ok := rpcMethods[method]
	if !ok {
		return nil, &rpcError{Code: -32601, Message: "Method not found"}
	}
	return run(c)
}

// back returns slot - n, or 0.
func back(slot, n uint64) uint64 { return slot - min(slot, n) }

// The levels of commitment.
const (
	processed = "processed"
	confirmed = "confirmed"
	finalized = "finalized"
)

// config is the object that most methods take as their last parameter. Members that mean nothing here are ignored, as nodes do; so is
// maxRetries, because a transaction that is forwarded arrives.
type config struct {
	Commitment               string   `json:"commitment"`
	MinContextSlot           *uint64  `json:"minContextSlot"`
	Encoding                 string   `json:"encoding"`
	SkipPreflight            bool     `json:"skipPreflight"`
	PreflightCommitment      string   `json:"preflightCommitment"`
	SearchTransactionHistory bool     `json:"searchTransactionHistory"`
	WithContext              bool     `json:"withContext"`
	DataSlice                *slice   `json:"dataSlice"`
	Filters                  []filter `json:"filters"`
}

type slice struct {
	Offset uint64 `json:"offset"`
	Length uint64 `json:"length"`
}

type filter struct {
	DataSize *uint64 `json:"dataSize"`
	Memcmp   *struct {
		Offset   uint64 `json:"offset"`
		Bytes    string `json:"bytes"`
		Encoding string `json:"encoding"`
	} `json:"memcmp"`
}

// param decodes the i-th parameter, which must be there.
func (c *call) param(i int, to any) *rpcError {
	if i >= len(c.params) {
		return invalidParams("invalid length %d, expected more elements", len(c.params))
	}
	if err := json.Unmarshal(c.params[i], to); err != nil {
		return invalidParams("%v.", err)
	}
	return nil
}

func (c *call) key(i int) (Pubkey, *rpcError) {
	var s string
	if err := c.param(i, &s); err != nil {
		return Pubkey{}, err
	}
	return parseKey(s)
}

func parseKey(s string) (Pubkey, *rpcError) {
	k, err := ParsePubkey(s)
	if err != nil {
		return Pubkey{}, &rpcError{Code: -32602, Message: "Invalid param: Invalid"}
	}
	return k, nil
}

// config decodes the i-th parameter, which need not be there, and returns with it the slot that its commitment stands for on this
// node, which minContextSlot may find too old.
func (c *call) config(i int) (cfg config, slot uint64, e *rpcError) {
	if i < len(c.params) {
		if e := c.param(i, &cfg); e != nil {
			return cfg, 0, e
		}
	}
	slot, e = c.slotAt(cfg.Commitment, cfg.MinContextSlot)
	return cfg, slot, e
}

func (c *call) slotAt(commitment string, minContextSlot *uint64) (uint64, *rpcError) {
	slot := c.reached
	switch commitment {
	case processed:
	case confirmed:
		slot = back(slot, c.chain.confirm)
	case finalized, "":
		slot = back(slot, c.chain.finality)
	default:
		return 0, invalidParams("unknown variant `%s`, expected one of `processed`, `confirmed`, `finalized`.", commitment)
	}
	slot = c.chain.prev(slot)
	if minContextSlot != nil && slot < *minContextSlot {
		return 0, &rpcError{Code: -32016, Message: "Minimum context slot has not been reached", Data: map[string]any{"contextSlot": slot}}
	}
	return slot, nil
}

// level returns the highest commitment that a slot has on this node.
func (c *call) level(slot uint64) string {
	switch {
	case slot <= c.chain.prev(back(c.reached, c.chain.finality)):
		return finalized
	case slot <= c.chain.prev(back(c.reached, c.chain.confirm)):
		return confirmed
	}
	return processed
}

// withContext is the shape of answers that say what slot they are about.
func withContext(slot uint64, value any) (any, *rpcError) {
	return map[string]any{"context": map[string]any{"apiVersion": apiVersion, "slot": slot}, "value": value}, nil
}

const apiVersion = "2.2.16"

// lie returns what the node claims in place of a slot or height.
func (c *call) lie(n uint64) uint64 {
	f := c.faults[LyingSlot]
	if f == nil {
		return n
	}
	if f.Slots < 0 {
		return back(n, uint64(-f.Slots))
	}
	return n + uint64(f.Slots)
}

func (c *call) getEpochInfo() (any, *rpcError) {
	_, slot, err := c.config(0)
	if err != nil {
		return nil, err
	}
	absolute := c.lie(slot)
	epoch, index := c.chain.epochOf(absolute)
	return map[string]any{
		"absoluteSlot": absolute, "blockHeight": c.lie(c.chain.height(slot)), "epoch": epoch, "slotIndex": index,
		"slotsInEpoch": c.chain.slotsIn(epoch), "transactionCount": len(c.bank.order),
	}, nil
}

func (c *call) getEpochSchedule() (any, *rpcError) {
	epoch, slot := c.chain.firstNormal()
	return map[string]any{
		"slotsPerEpoch": c.chain.slotsPerEpoch, "leaderScheduleSlotOffset": c.chain.slotsPerEpoch, "warmup": c.chain.warmup,
		"firstNormalEpoch": epoch, "firstNormalSlot": slot,
	}, nil
}

func (c *call) getSlot() (any, *rpcError) {
	_, slot, err := c.config(0)
	return c.lie(slot), err
}

func (c *call) getBlockHeight() (any, *rpcError) {
	_, slot, err := c.config(0)
	return c.lie(c.chain.height(slot)), err
}

// oldest returns the first slot whose block this node still has.
func (c *call) oldest() uint64 {
	if f := c.faults[Pruned]; f != nil {
		return c.chain.next(back(c.reached, uint64(max(f.Slots, 0))))
	}
	return 0
}

func (c *call) getBlockTime() (any, *rpcError) {
	var slot uint64
	if err := c.param(0, &slot); err != nil {
		return nil, err
	}
	switch oldest := c.oldest(); {
	case slot > c.chain.prev(c.reached), c.level(slot) != finalized && c.chain.skipped(slot):
		return nil, &rpcError{Code: -32004, Message: fmt.Sprintf("Block not available for slot %d", slot)}
	case slot < oldest:
		const text = "Block %d cleaned up, does not exist on node. First available block: %d"
		return nil, &rpcError{Code: -32001, Message: fmt.Sprintf(text, slot, oldest)}
	case c.chain.skipped(slot):
		code := -32007
		if f := c.faults[SkippedAs]; f != nil {
			code = f.Code
		}
		switch code {
		case 0:
			return nil, nil
		case -32004:
			return nil, &rpcError{Code: code, Message: fmt.Sprintf("Block not available for slot %d", slot)}
		case -32009:
			return nil, &rpcError{Code: code, Message: fmt.Sprintf("Slot %d was skipped, or missing in long-term storage", slot)}
		}
		return nil, &rpcError{Code: code, Message: fmt.Sprintf("Slot %d was skipped, or missing due to ledger jump to recent snapshot", slot)}
	}
	_, at := c.chain.began(slot)
	return at.Unix(), nil
}

func (c *call) getBlocks() (any, *rpcError) {
	if c.faults[NoHistory] != nil {
		return nil, errNoHistory()
	}
	var start uint64
	if err := c.param(0, &start); err != nil {
		return nil, err
	}
	end, at := uint64(math.MaxUint64), 1
	if len(c.params) > 1 && json.Unmarshal(c.params[1], &end) == nil {
		at = 2
	}
	cfg, slot, err := c.config(at)
	switch {
	case err != nil:
		return nil, err
	case cfg.Commitment == processed:
		return nil, errBelowConfirmed()
	}
	end = min(end, slot)
	if end > start && end-start > 500_000 {
		return nil, invalidParams("Slot range too large; max 500000")
	}
	blocks := []uint64{}
	for s := max(start, c.oldest()); s <= end; s++ {
		if !c.chain.skipped(s) {
			blocks = append(blocks, s)
		}
	}
	return blocks, nil
}

func errNoHistory() *rpcError {
	return &rpcError{Code: -32011, Message: "Transaction history is not available from this node"}
}

func errBelowConfirmed() *rpcError {
	return &rpcError{Code: -32602, Message: "Method does not support commitment below `confirmed`"}
}

func (c *call) getGenesisHash() (any, *rpcError) {
	hash := c.chain.genesis
	if c.faults[WrongGenesis] != nil {
		hash[0] ^= 0xff
	}
	return Pubkey(hash).String(), nil
}

func (c *call) getVersion() (any, *rpcError) {
	return map[string]any{"solana-core": apiVersion, "feature-set": 3073396398}, nil
}

// unhealthy is the error of a node that has fallen behind.
func (c *call) unhealthy() *rpcError {
	behind := c.running - c.reached
	if behind < healthy {
		return nil
	}
	return &rpcError{Code: -32005, Message: fmt.Sprintf("Node is behind by %d slots", behind), Data: map[string]any{"numSlotsBehind": behind}}
}

func (c *call) getHealth() (any, *rpcError) {
	if err := c.unhealthy(); err != nil {
		return nil, err
	}
	return "ok", nil
}

func (c *call) getMinimumBalanceForRentExemption() (any, *rpcError) {
	var n int
	err := c.param(0, &n)
	return rent(n), err
}

func (c *call) getLatestBlockhash() (any, *rpcError) {
	_, slot, err := c.config(0)
	if err != nil {
		return nil, err
	}
	hash := c.chain.blockhash(slot)
	return withContext(slot, map[string]any{"blockhash": Pubkey(hash).String(), "lastValidBlockHeight": c.chain.lastValid(slot)})
}

func (c *call) isBlockhashValid() (any, *rpcError) {
	hash, err := c.key(0)
	if err != nil {
		return nil, err
	}
	_, slot, err := c.config(1)
	if err != nil {
		return nil, err
	}
	return withContext(slot, c.chain.fresh(hash, slot))
}

func (c *call) getBalance() (any, *rpcError) {
	key, err := c.key(0)
	if err != nil {
		return nil, err
	}
	_, slot, err := c.config(1)
	if err != nil {
		return nil, err
	}
	return withContext(slot, c.bank.at(key, slot).Lamports)
}

func (c *call) getAccountInfo() (any, *rpcError) {
	key, err := c.key(0)
	if err != nil {
		return nil, err
	}
	cfg, slot, err := c.config(1)
	if err != nil {
		return nil, err
	}
	value, err := encodeAccount(c.bank.at(key, slot), cfg)
	if err != nil {
		return nil, err
	}
	return withContext(slot, value)
}

func (c *call) getMultipleAccounts() (any, *rpcError) {
	var keys []string
	if err := c.param(0, &keys); err != nil {
		return nil, err
	}
	if len(keys) > maxKeys {
		return nil, &rpcError{Code: -32602, Message: fmt.Sprintf("Too many inputs provided; max %d", maxKeys)}
	}
	cfg, slot, err := c.config(1)
	if err != nil {
		return nil, err
	}
	values := make([]any, len(keys))
	for i, s := range keys {
		key, err := parseKey(s)
		if err != nil {
			return nil, err
		}
		if values[i], err = encodeAccount(c.bank.at(key, slot), cfg); err != nil {
			return nil, err
		}
	}
	return withContext(slot, values)
}

func (c *call) getProgramAccounts() (any, *rpcError) {
	program, err := c.key(0)
	if err != nil {
		return nil, err
	}
	cfg, slot, err := c.config(1)
	if err != nil {
		return nil, err
	}
	if len(cfg.Filters) > 4 {
		return nil, &rpcError{Code: -32602, Message: "Too many filters provided; max 4"}
	}
	type found struct {
		Pubkey  string `json:"pubkey"`
		Account any    `json:"account"`
	}
	values := []found{}
	for key := range c.bank.accounts {
		a := c.bank.at(key, slot)
		if a.Lamports == 0 || a.Owner != program {
			continue
		}
		if match, err := matches(a.Data, cfg.Filters); err != nil {
			return nil, err
		} else if !match {
			continue
		}
		value, err := encodeAccount(a, cfg)
		if err != nil {
			return nil, err
		}
		values = append(values, found{key.String(), value})
	}
	slices.SortFunc(values, func(a, b found) int { return bytes.Compare([]byte(a.Pubkey), []byte(b.Pubkey)) })
	if cfg.WithContext {
		return withContext(slot, values)
	}
	return values, nil
}

func matches(data []byte, filters []filter) (bool, *rpcError) {
	for _, f := range filters {
		if f.DataSize != nil && uint64(len(data)) != *f.DataSize {
			return false, nil
		}
		if f.Memcmp == nil {
			continue
		}
		want, err := decodeBytes(f.Memcmp.Bytes, f.Memcmp.Encoding)
		if err != nil || len(want) > maxBase58 {
			return false, &rpcError{Code: -32602, Message: "Invalid param: Invalid memcmp filter"}
		}
		if f.Memcmp.Offset > uint64(len(data)) || !bytes.HasPrefix(data[f.Memcmp.Offset:], want) {
			return false, nil
		}
	}
	return true, nil
}

func decodeBytes(s, encoding string) ([]byte, error) {
	switch encoding {
	case "base64":
		return base64.StdEncoding.DecodeString(s)
	case "base58", "":
		return base58.Decode(s)
	}
	return nil, fmt.Errorf("unsupported encoding %q", encoding)
}

// encodeAccount returns the JSON value of an account, nil if it does not exist.
func encodeAccount(a Account, cfg config) (any, *rpcError) {
	if a.Lamports == 0 {
		return nil, nil
	}
	data := a.Data
	if s := cfg.DataSlice; s != nil {
		data = data[min(s.Offset, uint64(len(data))):]
		data = data[:min(s.Length, uint64(len(data)))]
	}
	var encoded any
	switch cfg.Encoding {
	case "base64":
		encoded = []string{base64.StdEncoding.EncodeToString(data), "base64"}
	case "base58", "":
		if len(data) > maxBase58 {
			return nil, &rpcError{Code: -32600, Message: "Encoded binary (base 58) data should be less than 128 bytes, please use Base64 encoding."}
		}
		encoded = base58.Encode(data)
		if cfg.Encoding != "" {
			encoded = []any{encoded, "base58"}
		}
	default:
		return nil, invalidParams("unsupported encoding %q", cfg.Encoding)
	}
	return map[string]any{
		"data": encoded, "executable": false, "lamports": a.Lamports, "owner": a.Owner.String(),
		"rentEpoch": uint64(math.MaxUint64), "space": len(a.Data),
	}, nil
}

func (c *call) getSignatureStatuses() (any, *rpcError) {
	var signatures []string
	if err := c.param(0, &signatures); err != nil {
		return nil, err
	}
	if len(signatures) > maxSignatures {
		return nil, &rpcError{Code: -32602, Message: fmt.Sprintf("Too many inputs provided; max %d", maxSignatures)}
	}
	var cfg config
	if len(c.params) > 1 {
		if err := c.param(1, &cfg); err != nil {
			return nil, err
		}
	}
	if cfg.SearchTransactionHistory && c.faults[NoHistory] != nil {
		return nil, errNoHistory()
	}
	slot := c.chain.prev(c.reached)
	values := make([]any, len(signatures))
	for i, s := range signatures {
		t := c.bank.landed[s]
		if t == nil || t.slot > slot || c.faults[StatusNull] != nil || c.faults[Invisible] != nil ||
			!cfg.SearchTransactionHistory && t.slot+statusKept < slot {
			continue
		}
		status := map[string]any{
			"slot": t.slot, "confirmations": nil, "err": t.err, "status": okOrErr(t.err), "confirmationStatus": c.level(t.slot),
		}
		if status["confirmationStatus"] != finalized {
			status["confirmations"] = c.chain.height(slot) - c.chain.height(t.slot)
		}
		values[i] = status
	}
	return withContext(slot, values)
}

func okOrErr(err *txError) any {
	if err != nil {
		return map[string]any{"Err": err}
	}
	return map[string]any{"Ok": nil}
}

func (c *call) getTransaction() (any, *rpcError) {
	var signature string
	if err := c.param(0, &signature); err != nil {
		return nil, err
	}
	cfg, slot, err := c.config(1)
	switch {
	case err != nil:
		return nil, err
	case cfg.Commitment == processed:
		return nil, errBelowConfirmed()
	case c.faults[NoHistory] != nil:
		return nil, errNoHistory()
	}
	t := c.bank.landed[signature]
	if t == nil || t.slot > slot || c.faults[Invisible] != nil || t.slot < c.oldest() {
		return nil, nil
	}
	var encoded any
	switch cfg.Encoding {
	case "base64":
		encoded = []string{base64.StdEncoding.EncodeToString(t.tx.raw), "base64"}
	case "base58":
		encoded = []string{base58.Encode(t.tx.raw), "base58"}
	default:
		return nil, invalidParams("unsupported encoding %q", cfg.Encoding)
	}
	_, at := c.chain.began(t.slot)
	meta := map[string]any{
		"err": t.err, "status": okOrErr(t.err), "fee": fee * len(t.tx.signatures),
		"preBalances": t.pre, "postBalances": t.post, "logMessages": t.logs,
		"innerInstructions": []any{}, "preTokenBalances": []any{}, "postTokenBalances": []any{}, "rewards": []any{},
	}
	return map[string]any{"slot": t.slot, "blockTime": at.Unix(), "transaction": encoded, "meta": meta}, nil
}

func (c *call) sendTransaction() (any, *rpcError) {
	var encoded string
	if err := c.param(0, &encoded); err != nil {
		return nil, err
	}
	cfg := config{}
	if len(c.params) > 1 {
		if err := c.param(1, &cfg); err != nil {
			return nil, err
		}
	}
	raw, err := decodeBytes(encoded, cfg.Encoding)
	if err != nil {
		return nil, invalidParams("%v", err)
	}
	tx, err := decodeTransaction(raw)
	if err != nil {
		return nil, &rpcError{Code: -32602, Message: "failed to deserialize solana_transaction::versioned::VersionedTransaction: " + err.Error()}
	}
	c.sent = append(c.sent, Send{Time: c.now, Signature: tx.id(), Preflight: !cfg.SkipPreflight, Raw: raw})

	commitment := cfg.PreflightCommitment
	if cfg.SkipPreflight {
		commitment = processed
	}
	slot, e := c.slotAt(commitment, cfg.MinContextSlot)
	if e != nil {
		return nil, e
	}
	if !cfg.SkipPreflight {
		if e := c.preflight(tx, slot); e != nil {
			return nil, e
		}
	}
	if c.faults[NotForwarded] == nil {
		p := pending{slot: c.running + 1, tx: tx}
		if f := c.faults[LandLate]; f != nil {
			p.slot += uint64(max(f.Slots, 0))
		}
		if f := c.faults[Forked]; f != nil {
			p.dropAt = uint64(max(f.Slots, 1))
		}
		c.schedule(p)
	}
	return tx.id(), nil
}

// preflight runs a transaction against the state of a slot.
func (c *call) preflight(tx *transaction, slot uint64) *rpcError {
	if !tx.signed() {
		return &rpcError{Code: -32003, Message: "Transaction signature verification failure"}
	}
	if err := c.unhealthy(); err != nil {
		return err
	}
	x := c.execution(tx, slot)
	err := c.check(tx, slot)
	if err == nil {
		err, _ = x.run()
	}
	if err == nil {
		return nil
	}
	return &rpcError{Code: -32002, Message: "Transaction simulation failed: " + err.message(), Data: map[string]any{
		"accounts": nil, "err": err, "innerInstructions": nil, "logs": append([]string{}, x.logs...), "replacementBlockhash": nil,
		"returnData": nil, "unitsConsumed": x.units,
	}}
}
