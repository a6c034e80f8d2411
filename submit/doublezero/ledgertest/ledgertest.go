// SPDX-License-Identifier: Apache-2.0

// Package ledgertest is a ledger for tests and the demo: Solana JSON-RPC over HTTP with the rules of the telemetry program, and with
// faults on demand. It is written from the description of the real one alone and shares no code with what it tests.
//
// What it is true to: slots that pass with time, some of them without a block; epochs; blocks that are processed, then confirmed, then
// finalized; blockhashes that are good for 150 blocks; signatures that are checked and count once; fees and rent; the telemetry
// program's checks in their order and its accounts byte for byte; the shapes of answers and errors. It has any number of nodes, some of
// them behind, and addresses, each of which may hide several nodes.
//
// It has no clock of its own and nothing that ticks: each call lets happen what was due by then. So it works alike in real time and
// inside of testing/synctest, there with connections in memory:
//
//	synctest.Test(t, func(t *testing.T) {
//		l := ledgertest.New(ledgertest.Options{})
//		defer l.Close()
//		l.PutDevice(ams, ledgertest.Device{Status: ledgertest.DeviceActivated, Code: "ams-dz001", Publisher: agent})
//		l.PutDevice(lon, ledgertest.Device{Status: ledgertest.DeviceActivated, Code: "lon-dz001"})
//		l.PutLink(link, ledgertest.Link{Status: ledgertest.LinkActivated, SideA: ams, SideZ: lon})
//		l.Fund(agent, 10e9)
//		l.Listen(ledgertest.Address{Name: "192.0.2.1:443", TLS: true})
//		l.Listen(ledgertest.Address{Name: "192.0.2.2:443", TLS: true, Nodes: []ledgertest.Node{{Name: "a"}, {Name: "b", Lag: 40}}})
//		l.SetHost("ledger.test", netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"))
//
//		// The client gets l.Lookup, l.Dial and l.CA().
//		heal := l.Inject(ledgertest.Fault{Kind: ledgertest.Blackhole, Address: "192.0.2.1:443"})
//		time.Sleep(time.Hour)
//		heal()
//		l.Rollover()
//		samples, err := l.Samples(l.SamplesAddress(ams, lon, link, 194))
//	})
//
// In files: chain.go knows time, slots and forks; bank.go accounts and transactions; telemetry.go the program, serviceability.go the
// accounts that it looks at; rpc.go the methods; fault.go what goes wrong; net.go and http.go how one gets there; observe.go is for tests.
package ledgertest

import (
	"crypto/sha256"
	"net/netip"
	"sync"
	"time"
)

// Options describe a ledger. Zero values mean the defaults, which are those of the real one where it has them.
type Options struct {
	SlotTime      time.Duration // 400 ms
	Confirm       uint64        // slots until a block is confirmed; 2
	Finality      uint64        // slots until it is finalized; 32
	SlotsPerEpoch uint64        // 432,000
	Warmup        bool          // epochs of 32, 64, ... slots come first
	Epoch         uint64        // in which the ledger is when it is made; 194
	SlotIndex     uint64        // within that epoch
	SkipFirst     uint64        // slots without a block at the start of each epoch; 4
	SkipEvery     uint64        // of so many slots one has no block; 20, 1 for none
	ClockOffset   time.Duration // of the ledger's clock from the host's

	Telemetry, Serviceability Pubkey // program ids; those of devnet
}

func (o *Options) setDefaults() {
	or := func(v *uint64, def uint64) {
		if *v == 0 {
			*v = def
		}
	}
	if o.SlotTime == 0 {
		o.SlotTime = 400 * time.Millisecond
	}
	or(&o.Confirm, 2)
	or(&o.Finality, 32)
	or(&o.SlotsPerEpoch, 432_000)
	or(&o.Epoch, 194)
	or(&o.SkipFirst, 4)
	or(&o.SkipEvery, 20)
	if o.SkipEvery == 1 {
		o.SkipEvery = 0
	}
	if o.Telemetry == (Pubkey{}) {
		o.Telemetry = MustPubkey(devnetTelemetry)
	}
	if o.Serviceability == (Pubkey{}) {
		o.Serviceability = MustPubkey(devnetServiceability)
	}
}

// Ledger is safe for concurrent use.
type Ledger struct {
	options Options
	network network

	mu       sync.Mutex
	chain    chain
	bank     bank
	queue    []pending // ascending by slot
	faults   []*injected
	requests []Request
	sent     []Send
	hooks    []func(Event)
	hosts    map[string][]netip.Addr
}

// New makes a ledger that nobody can reach yet.
func New(o Options) *Ledger {
	o.setDefaults()
	l := &Ledger{
		options: o,
		chain: chain{
			slotTime: o.SlotTime, confirm: o.Confirm, finality: o.Finality, slotsPerEpoch: o.SlotsPerEpoch, warmup: o.Warmup,
			skipFirst: o.SkipFirst, skipEvery: o.SkipEvery, genesis: sha256.Sum256([]byte("ledgertest")), hashes: make(map[[32]byte]uint64),
		},
		bank:  bank{accounts: make(map[Pubkey][]version), landed: make(map[string]*landed)},
		hosts: make(map[string][]netip.Addr),
	}
	l.chain.segments = []segment{{slot: l.chain.firstSlot(o.Epoch) + o.SlotIndex, at: time.Now(), offset: o.ClockOffset}}
	l.network.start()
	return l
}

// Close ends all listeners and connections and waits for what serves them.
func (l *Ledger) Close() { l.network.close() }
