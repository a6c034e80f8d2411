// SPDX-License-Identifier: Apache-2.0

package ledgertest

import (
	"slices"
	"time"
)

// Kind is a way in which a ledger, or the way to it, goes wrong.
type Kind string

// Faults of connections. One that is limited to a node, methods or a number of calls hits requests only, so only Silence and Reset can be.
const (
	// Blackhole lets packets vanish in both directions. Connections stay open and silent, also afterwards if something was lost on
	// them; new ones do not come about. (On a real listener the kernel still accepts them.)
	Blackhole Kind = "blackhole"
	// Refuse refuses new connections. (On a real listener the kernel accepts them; they are reset at once.)
	Refuse Kind = "refuse"
	// Silence accepts new connections and never says a word on them, also afterwards. On established ones it answers no request,
	// although HTTP/2 pings are answered.
	Silence Kind = "silence"
	// Reset breaks the connection when a request comes, with all requests on it.
	Reset Kind = "reset"
)

// Faults of answers.
const (
	Unavailable     Kind = "503"       // HTTP 503 with a line of text
	UnavailableJSON Kind = "503-json"  // HTTP 503 with a JSON-RPC error
	RateLimited     Kind = "429"       // HTTP 429 with an HTML body; Wait is what Retry-After says
	Truncate        Kind = "truncate"  // half an answer, then the stream ends
	Nonsense        Kind = "nonsense"  // HTTP 200 with an HTML body
	Delay           Kind = "delay"     // the answer comes Wait later
	Error           Kind = "rpc-error" // JSON-RPC error of Code, Message and Data, HTTP 200
)

// Faults of nodes.
const (
	Lag          Kind = "lag"           // the node is Slots behind
	Stuck        Kind = "stuck"         // the node stays at the slot at which the fault began
	LyingSlot    Kind = "lying-slot"    // getEpochInfo, getSlot and getBlockHeight say Slots more (or less) than is true; nothing else does
	WrongGenesis Kind = "wrong-genesis" // getGenesisHash answers for another cluster
	NoHistory    Kind = "no-history"    // -32011 wherever the history of transactions or blocks is asked for
	Pruned       Kind = "pruned"        // blocks that are more than Slots old are gone: -32001
	SkippedAs    Kind = "skipped-as"    // getBlockTime answers Code for a skipped slot, null if it is 0, in place of -32007
)

// Faults of transactions.
const (
	StatusNull   Kind = "status-null"   // getSignatureStatuses finds nothing
	Invisible    Kind = "invisible"     // getSignatureStatuses and getTransaction find nothing
	NotForwarded Kind = "not-forwarded" // sendTransaction answers with the signature, and the transaction goes nowhere
	LandLate     Kind = "land-late"     // a transaction that is sent lands Slots later, if its blockhash is still good then
	Forked       Kind = "forked"        // the block that a transaction lands in is dropped Slots slots later (at least 1), with what followed
)

// Fault is a fault and when it strikes. The zero values of its conditions mean always, everywhere, until it is removed.
type Fault struct {
	Kind    Kind
	Address string        // where
	Node    string        // where
	Methods []string      // of requests; by default those that Kind is about
	Skip    int           // calls that are spared first
	Calls   int           // calls that are hit
	For     time.Duration // until so long after it was injected

	// After lets the request be carried out before its answer is spoilt, by a fault of connections or answers. A batch is spoilt as a
	// whole if one of its calls is hit.
	After bool

	// What some kinds need to know.
	Slots   int64
	Code    int
	Message string
	Data    any // encoded as JSON
	Wait    time.Duration
}

// kinds is all of them, with the methods that they are about; nil stands for every method.
var kinds = map[Kind][]string{
	Blackhole: nil, Refuse: nil, Silence: nil, Reset: nil,
	Unavailable: nil, UnavailableJSON: nil, RateLimited: nil, Truncate: nil, Nonsense: nil, Delay: nil, Error: nil,
	Lag: nil, Stuck: nil,
	LyingSlot:    {"getEpochInfo", "getSlot", "getBlockHeight"},
	WrongGenesis: {"getGenesisHash"},
	NoHistory:    {"getSignatureStatuses", "getTransaction", "getBlocks"},
	Pruned:       {"getBlockTime", "getBlocks", "getTransaction"},
	SkippedAs:    {"getBlockTime"},
	StatusNull:   {"getSignatureStatuses"},
	Invisible:    {"getSignatureStatuses", "getTransaction"},
	NotForwarded: {"sendTransaction"},
	LandLate:     {"sendTransaction"},
	Forked:       {"sendTransaction"},
}

// Known reports whether there is such a fault.
func (k Kind) Known() bool { _, ok := kinds[k]; return ok }

// injected is a fault in force.
type injected struct {
	Fault
	since time.Time
	slot  uint64 // at which it began
	seen  int    // matching calls
}

// Inject lets f strike from now on, until remove is called if not ended otherwise.
func (l *Ledger) Inject(f Fault) (remove func()) {
	if !f.Kind.Known() {
		panic("ledgertest: no such fault: " + string(f.Kind))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.Methods == nil {
		f.Methods = kinds[f.Kind]
	}
	now := time.Now()
	_, slot := l.chain.current(now)
	in := &injected{Fault: f, since: now, slot: slot}
	l.faults = append(l.faults, in)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.faults = slices.DeleteFunc(l.faults, func(i *injected) bool { return i == in })
	}
}

// Heal ends all faults.
func (l *Ledger) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = nil
}

func (f *injected) over(now time.Time) bool {
	return f.For > 0 && now.Sub(f.since) >= f.For || f.Calls > 0 && f.seen >= f.Skip+f.Calls
}

// connectionFault reports whether a fault of a connection is in force at an address. It takes l.mu.
func (l *Ledger) connectionFault(k Kind, address string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	return slices.ContainsFunc(l.faults, func(f *injected) bool {
		requestsOnly := f.Node != "" || f.Methods != nil || f.Skip > 0 || f.Calls > 0
		return f.Kind == k && (f.Address == "" || f.Address == address) && !requestsOnly && !f.over(now)
	})
}

// strike returns the faults that hit a call, and counts it for them.
func (l *Ledger) strike(now time.Time, address, node, method string) (hits map[Kind]*injected) {
	l.faults = slices.DeleteFunc(l.faults, func(f *injected) bool { return f.over(now) })
	for _, f := range l.faults {
		if f.Address != "" && f.Address != address || f.Node != "" && f.Node != node ||
			f.Methods != nil && !slices.Contains(f.Methods, method) || hits[f.Kind] != nil {
			continue
		}
		if f.seen++; f.seen <= f.Skip {
			continue
		}
		if hits == nil {
			hits = make(map[Kind]*injected)
		}
		hits[f.Kind] = f
	}
	return hits
}

// Except returns the methods that the ledger knows without those named, for a fault that spares these.
func Except(methods ...string) []string {
	var rest []string
	for name := range rpcMethods {
		if !slices.Contains(methods, name) {
			rest = append(rest, name)
		}
	}
	slices.Sort(rest)
	return rest
}

// Halt stops the ledger: no slot comes after this one, on any node.
func (l *Ledger) Halt() { l.change(l.chain.halt) }

// Resume ends a halt. The next slot begins now.
func (l *Ledger) Resume() { l.change(l.chain.resume) }

// Rollover makes now the first slot of the next epoch. A ledger that is halted stays so.
func (l *Ledger) Rollover() {
	l.change(func(now time.Time) {
		_, slot := l.chain.current(now)
		epoch, _ := l.chain.epochOf(slot)
		l.chain.jump(now, l.chain.firstSlot(epoch+1))
	})
}

// DropFork drops the newest slots, at most as many as are not finalized yet, with all that happened in them. A transaction that was in
// them is forgotten; sent again it may land again.
func (l *Ledger) DropFork(slots uint64) {
	l.change(func(now time.Time) {
		_, slot := l.chain.current(now)
		l.dropBlocks(back(slot+1, slots), slot+1)
	})
}

// SetClockOffset lets the ledger's clock be ahead of the host's by offset, from the slot on that runs now.
func (l *Ledger) SetClockOffset(offset time.Duration) {
	l.change(func(now time.Time) { l.chain.setOffset(now, offset) })
}

// change brings the ledger up to now and then changes it.
func (l *Ledger) change(f func(now time.Time)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.advance(now)
	f(now)
}
