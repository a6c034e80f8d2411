// SPDX-License-Identifier: Apache-2.0

package ledgertest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gagliardetto/solana-go"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The cast of most tests: what agent measures from origin to target over link.
var (
	agentKey = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, 32))
	agent    = PubkeyOf(agentKey)
	origin   = Pubkey{1: 10}
	target   = Pubkey{1: 11}
	link     = Pubkey{1: 12}
	location = Pubkey{1: 13}
)

const sol = 1_000_000_000

// newLedger returns a ledger with the cast and one address in memory.
func newLedger(t *testing.T, o Options) *Ledger {
	t.Helper()
	l := New(o)
	t.Cleanup(l.Close)
	l.PutDevice(origin, Device{Status: DeviceActivated, Code: "ams-dz001", Publisher: agent, Location: location})
	l.PutDevice(target, Device{Status: DeviceActivated, Code: "lon-dz001", Location: location})
	l.PutLink(link, Link{Status: LinkActivated, Code: "ams-dz001:lon-dz001", SideA: origin, SideZ: target})
	l.Fund(agent, 10*sol)
	l.Listen(Address{Name: here})
	return l
}

const here = "192.0.2.1:80"

// simulate runs a test in simulated time.
func simulate(t *testing.T, o Options, f func(t *testing.T, l *Ledger)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newLedger(t, o)) })
}

// pass lets time go by.
func pass(d time.Duration) { <-time.After(d) }

// slots lets so many slots of the default length go by.
func slots(n int) { pass(time.Duration(n) * 400 * time.Millisecond) }

// newClient returns a client that ends with the test.
func newClient(t *testing.T, l *Ledger) *http.Client {
	t.Helper()
	tr := &http.Transport{DialContext: l.Dial}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// reply is a JSON-RPC answer.
type reply struct {
	Result json.RawMessage
	Error  *struct {
		Code    int
		Message string
		Data    json.RawMessage
	}
}

// post sends a body to the address and returns the HTTP answer with its body.
func post(client *http.Client, url, body string) (*http.Response, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return nil, "", err
	}
	b, err := io.ReadAll(resp.Body)
	return resp, string(b), errors.Join(err, resp.Body.Close())
}

// request returns the body of a call; params is JSON without its brackets.
func request(method, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":[%s]}`, method, params)
}

// ask makes one call in a bubble of time at the usual address, with a connection of its own.
func ask(t *testing.T, l *Ledger, method, params string) reply {
	t.Helper()
	tr := &http.Transport{DialContext: l.Dial, DisableKeepAlives: true}
	resp, body, err := post(&http.Client{Transport: tr}, "http://"+here, request(method, params))
	if err != nil {
		t.Fatalf("%s: %v", method, err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: HTTP %d: %s", method, resp.StatusCode, body)
	}
	var r reply
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		t.Fatalf("%s: %v in %s", method, err, body)
	}
	return r
}

// result makes a call that succeeds and decodes its result.
func result[T any](t *testing.T, l *Ledger, method, params string) T {
	t.Helper()
	r := ask(t, l, method, params)
	if r.Error != nil {
		t.Fatalf("%s: %d %s %s", method, r.Error.Code, r.Error.Message, r.Error.Data)
	}
	var v T
	if err := json.Unmarshal(r.Result, &v); err != nil {
		t.Fatalf("%s: %v in %s", method, err, r.Result)
	}
	return v
}

// code makes a call and returns its error code, 0 for success.
func code(t *testing.T, l *Ledger, method, params string) int {
	t.Helper()
	if r := ask(t, l, method, params); r.Error != nil {
		return r.Error.Code
	}
	return 0
}

type latestBlockhash struct {
	Context struct{ Slot uint64 }
	Value   struct {
		Blockhash            string
		LastValidBlockHeight uint64
	}
}

func hash(t *testing.T, l *Ledger) Pubkey {
	t.Helper()
	return MustPubkey(result[latestBlockhash](t, l, "getLatestBlockhash", "").Value.Blockhash)
}

// sign makes a transaction with one instruction, whose first account is the samples account and second the agent.
func sign(t testing.TB, blockhash [32]byte, key ed25519.PrivateKey, program Pubkey, data []byte, accounts ...*solana.AccountMeta) []byte {
	t.Helper()
	in := solana.NewInstruction(solana.PublicKey(program), accounts, data)
	payer := solana.TransactionPayer(solana.PublicKey(PubkeyOf(key)))
	tx, err := solana.NewTransaction([]solana.Instruction{in}, solana.Hash(blockhash), payer)
	if err != nil {
		t.Fatal(err)
	}
	message, err := tx.Message.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	for range tx.Message.Header.NumRequiredSignatures {
		tx.Signatures = append(tx.Signatures, solana.Signature(ed25519.Sign(key, message)))
	}
	raw, err := tx.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func meta(k Pubkey, writable, signer bool) *solana.AccountMeta {
	return solana.NewAccountMeta(solana.PublicKey(k), writable, signer)
}

func initializeData(epoch, interval uint64) []byte {
	b := binary.LittleEndian.AppendUint64([]byte{0}, epoch)
	b = binary.LittleEndian.AppendUint64(b, interval)
	return append(b, "0.1.0\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00abcd1234"...)
}

func initializeAccounts(account Pubkey) []*solana.AccountMeta {
	return []*solana.AccountMeta{
		meta(account, true, false), meta(agent, true, true), meta(origin, false, false), meta(target, false, false), meta(link, false, false),
		meta(systemProgram, false, false),
	}
}

func writeData(start uint64, values ...uint32) []byte {
	b := binary.LittleEndian.AppendUint64([]byte{1}, start)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(values)))
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return append(b, make([]byte, 24)...)
}

func writeAccounts(account Pubkey) []*solana.AccountMeta {
	return []*solana.AccountMeta{meta(account, true, false), meta(agent, false, true), meta(systemProgram, false, false)}
}

// signedWrite makes a right write transaction.
func signedWrite(t *testing.T, l *Ledger, account Pubkey, start uint64, values ...uint32) []byte {
	t.Helper()
	return sign(t, hash(t, l), agentKey, l.options.Telemetry, writeData(start, values...), writeAccounts(account)...)
}

// signedInitialize makes a right initialize transaction and returns the account with it.
func signedInitialize(t *testing.T, l *Ledger, epoch uint64) (raw []byte, account Pubkey) {
	t.Helper()
	account = l.SamplesAddress(origin, target, link, epoch)
	return sign(t, hash(t, l), agentKey, l.options.Telemetry, initializeData(epoch, 10_000_000), initializeAccounts(account)...), account
}

// send sends a transaction, by default with preflight, and returns the answer.
func send(t *testing.T, l *Ledger, raw []byte, skipPreflight bool) reply {
	t.Helper()
	encoded := base64.StdEncoding.EncodeToString(raw)
	return ask(t, l, "sendTransaction", fmt.Sprintf(`%q,{"encoding":"base64","skipPreflight":%v}`, encoded, skipPreflight))
}

// sent is send for a transaction that is taken in; it returns the signature.
func sent(t *testing.T, l *Ledger, raw []byte) string {
	t.Helper()
	r := send(t, l, raw, true)
	if r.Error != nil {
		t.Fatalf("sendTransaction: %+v", *r.Error)
	}
	var signature string
	if err := json.Unmarshal(r.Result, &signature); err != nil {
		t.Fatal(err)
	}
	return signature
}

// openAccount initializes the account of an epoch and waits until it is finalized.
func openAccount(t *testing.T, l *Ledger, epoch uint64) Pubkey {
	t.Helper()
	raw, account := signedInitialize(t, l, epoch)
	sent(t, l, raw)
	slots(40)
	if _, err := l.Samples(account); err != nil {
		t.Fatal(err)
	}
	return account
}

// status is the status of a transaction, "" for none.
func status(t *testing.T, l *Ledger, signature string) string {
	t.Helper()
	r := result[struct {
		Value []*struct{ ConfirmationStatus string }
	}](t, l, "getSignatureStatuses", fmt.Sprintf(`[%q],{"searchTransactionHistory":true}`, signature))
	if r.Value[0] == nil {
		return ""
	}
	return r.Value[0].ConfirmationStatus
}
