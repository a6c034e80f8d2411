// SPDX-License-Identifier: Apache-2.0

package ledgertest

import (
	"errors"
	"maps"
	"slices"
	"time"
)

// Request is one call that reached the ledger. A batch is as many as it has calls.
type Request struct {
	Time    time.Time
	Address string
	Node    string
	Method  string
	Proto   string // HTTP/1.1 or HTTP/2.0
	URI     string // path and query as they came
	Fault   Kind   // that spoilt the whole answer
	Code    int    // of the JSON-RPC error, 0 if there was none; also when a fault then spoilt the answer
}

// Send is one sendTransaction whose transaction could be read.
type Send struct {
	Time      time.Time
	Signature string
	Preflight bool
	Raw       []byte
}

// Transaction is one that is in a block.
type Transaction struct {
	Signature string
	Slot      uint64
	Time      time.Time // when its slot began, by the host's clock
	Payer     Pubkey
	Keys      []Pubkey
	Code      int // error code of the program; -1 for another failure, 0 for success
	Raw       []byte
}

// Moment is when a hook is called.
type Moment string

// The moments of a call. Those of one call come in this order; a fault may keep the later ones from coming.
const (
	Received Moment = "received" // nothing has been done yet
	Done     Moment = "done"     // it is carried out, and nothing has been answered yet
	Answered Moment = "answered" // its answer is on its way
)

// Event is what a hook is told.
type Event struct {
	Moment Moment
	Request
}

// Hook lets f be called at the moments of each call, one after another for one call and concurrently for several. The call waits for
// it. f may use the ledger.
func (l *Ledger) Hook(f func(Event)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hooks = append(l.hooks, f)
}

func (l *Ledger) tell(m Moment, requests []Request) {
	l.mu.Lock()
	hooks := slices.Clone(l.hooks)
	l.mu.Unlock()
	for _, r := range requests {
		for _, f := range hooks {
			f(Event{m, r})
		}
	}
}

// Requests returns all calls so far.
func (l *Ledger) Requests() []Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.requests)
}

// Count counts the calls of a method at an address; "" stands for any.
func (l *Ledger) Count(method, address string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, r := range l.requests {
		if (method == "" || r.Method == method) && (address == "" || r.Address == address) {
			n++
		}
	}
	return n
}

// Sends returns all transactions that were sent, each as often as it was.
func (l *Ledger) Sends() []Send {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.sent)
}

// Transactions returns what is in blocks now, in order.
func (l *Ledger) Transactions() []Transaction {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance(time.Now())
	var list []Transaction
	for _, t := range l.bank.order {
		host, _ := l.chain.began(t.slot)
		x := Transaction{Signature: t.tx.id(), Slot: t.slot, Time: host, Payer: t.tx.payer(), Keys: t.tx.keys, Raw: t.tx.raw}
		if t.err != nil {
			x.Code = t.err.code
		}
		list = append(list, x)
	}
	return list
}

// Slot returns the newest slot with a block.
func (l *Ledger) Slot() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.advance(time.Now())
}

// Epoch returns the epoch of the newest slot with a block.
func (l *Ledger) Epoch() uint64 {
	epoch, _ := l.chain.epochOf(l.Slot())
	return epoch
}

// EpochStart returns the block time of the first block of an epoch that has begun, by the ledger's clock, not yet cut to whole seconds.
func (l *Ledger) EpochStart(epoch uint64) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, at := l.chain.began(l.chain.next(l.chain.firstSlot(epoch)))
	return at
}

// Genesis returns what identifies the cluster, in base58.
func (l *Ledger) Genesis() string { return Pubkey(l.chain.genesis).String() }

// Account returns an account as the newest block left it.
func (l *Ledger) Account(key Pubkey) Account {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.bank.at(key, l.advance(time.Now()))
	a.Data = slices.Clone(a.Data)
	return a
}

// Samples returns the content of a samples account as the newest block left it.
func (l *Ledger) Samples(key Pubkey) (Samples, error) { return DecodeSamples(l.Account(key).Data) }

// AllSamples returns all samples accounts.
func (l *Ledger) AllSamples() map[Pubkey]Samples {
	l.mu.Lock()
	keys := slices.Collect(maps.Keys(l.bank.accounts))
	l.mu.Unlock()
	all := make(map[Pubkey]Samples)
	for _, key := range keys {
		if s, err := l.Samples(key); err == nil {
			all[key] = s
		}
	}
	return all
}

// PutAccount makes a what the account always was, at every commitment. Without lamports it gets the rent of its size.
func (l *Ledger) PutAccount(key Pubkey, a Account) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance(time.Now())
	if a.Lamports == 0 {
		a.Lamports = rent(len(a.Data))
	}
	a.Data = slices.Clone(a.Data)
	l.bank.accounts[key] = []version{{0, a}}
}

// Delete closes an account in the newest block, as its program does. Nodes go on to know it until that block is finalized.
func (l *Ledger) Delete(key Pubkey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bank.put(key, l.advance(time.Now()), Account{})
}

// PutDevice puts a device in.
func (l *Ledger) PutDevice(key Pubkey, d Device) {
	l.PutAccount(key, Account{Owner: l.options.Serviceability, Data: d.Encode()})
}

// PutLink puts a link in.
func (l *Ledger) PutLink(key Pubkey, k Link) {
	l.PutAccount(key, Account{Owner: l.options.Serviceability, Data: k.Encode()})
}

// PutSamples puts a samples account in, for example one that is almost full or that another key owns, and returns its address.
func (l *Ledger) PutSamples(s Samples) Pubkey {
	key := l.SamplesAddress(s.Origin, s.Target, s.Link, s.Epoch)
	l.PutAccount(key, Account{Owner: l.options.Telemetry, Data: s.Encode()})
	return key
}

// SamplesAddress returns the address of the account for what origin measured to target over link in an epoch.
func (l *Ledger) SamplesAddress(origin, target, link Pubkey, epoch uint64) Pubkey {
	return samplesAddress(l.options.Telemetry, origin, target, link, epoch)
}

// Fund sets the balance of a key, in lamports, as if it had always had it.
func (l *Ledger) Fund(key Pubkey, lamports uint64) { l.PutAccount(key, Account{Lamports: lamports}) }

// AllowBlockhash lets transactions with this blockhash be accepted as if it were the newest finalized block's.
func (l *Ledger) AllowBlockhash(hash [32]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.advance(now)
	_, running := l.chain.current(now)
	l.chain.hashes[hash] = l.chain.prev(back(running, l.chain.finality))
}

// Append writes samples into an account in the newest block, as another process would that has the account's key.
func (l *Ledger) Append(account Pubkey, startMicros uint64, values ...uint32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	slot := l.advance(time.Now())
	s, err := DecodeSamples(l.bank.at(account, slot).Data)
	if err != nil {
		return err
	}
	if len(s.Values)+len(values) > MaxSamples {
		return errors.New("samples account is full")
	}
	if s.StartMicros == 0 {
		s.StartMicros = startMicros
	}
	s.Values = append(s.Values, values...)
	data := s.Encode()
	l.bank.put(account, slot, Account{Lamports: rent(len(data)), Owner: l.options.Telemetry, Data: data})
	return nil
}

// Telemetry returns the id of the telemetry program.
func (l *Ledger) Telemetry() Pubkey { return l.options.Telemetry }

// Serviceability returns the id of the serviceability program.
func (l *Ledger) Serviceability() Pubkey { return l.options.Serviceability }
