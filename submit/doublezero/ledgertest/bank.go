// SPDX-License-Identifier: Apache-2.0

package ledgertest

import (
	"fmt"
	"slices"
	"sort"
	"time"
)

// Account is the state of an account. One without lamports does not exist.
type Account struct {
	Lamports uint64
	Owner    Pubkey
	Data     []byte
}

const (
	fee            = 5000 // lamports per signature
	rentPerByte    = 6960
	rentOverhead   = 128  // bytes
	keptSlots      = 4096 // how far back old states of an account can be read
	statusKept     = 300  // slots in which a status is found without a search in the history
	codeLowBalance = 1    // the system program's error code for a transfer that its payer cannot afford
)

// rent returns what an account with so many bytes must hold.
func rent(bytes int) uint64 { return uint64(bytes+rentOverhead) * rentPerByte }

// version is the state of an account from a slot on.
type version struct {
	slot    uint64
	account Account
}

// bank holds the accounts and the transactions that are in blocks.
type bank struct {
	accounts map[Pubkey][]version // ascending by slot
	landed   map[string]*landed   // by signature
	order    []*landed
}

// landed is a transaction in a block. It may have failed: it is in the block all the same, and its fee is paid.
type landed struct {
	tx        *transaction
	slot      uint64
	err       *txError
	logs      []string
	pre, post []uint64 // lamports by key
}

// at returns an account as it was in a slot; the caller must not change its data.
func (b *bank) at(key Pubkey, slot uint64) Account {
	for _, v := range slices.Backward(b.accounts[key]) {
		if v.slot <= slot {
			return v.account
		}
	}
	return Account{}
}

// put sets the state of an account from a slot on.
func (b *bank) put(key Pubkey, slot uint64, a Account) {
	vs := b.accounts[key]
	for len(vs) > 1 && vs[1].slot+keptSlots < slot {
		vs = vs[1:]
	}
	if n := len(vs); n > 0 && vs[n-1].slot == slot {
		vs[n-1].account = a
	} else {
		vs = append(vs, version{slot, a})
	}
	b.accounts[key] = vs
}

// drop takes back all that happened from a slot on.
func (b *bank) drop(from uint64) {
	for key, vs := range b.accounts {
		b.accounts[key] = slices.DeleteFunc(vs, func(v version) bool { return v.slot >= from })
	}
	b.order = slices.DeleteFunc(b.order, func(t *landed) bool {
		if t.slot < from {
			return false
		}
		delete(b.landed, t.tx.id())
		return true
	})
}

// execution runs one transaction against the state of a slot without changing it.
type execution struct {
	bank                    *bank
	slot                    uint64
	program, serviceability Pubkey
	tx                      *transaction
	changed                 map[Pubkey]Account
	logs                    []string
	units                   int
}

// load returns the account as the transaction has left it so far. Its data belongs to the bank.
func (x *execution) load(key Pubkey) Account {
	if a, ok := x.changed[key]; ok {
		return a
	}
	return x.bank.at(key, x.slot)
}

// run executes the transaction. charged says whether its fee is due; otherwise it cannot be in a block.
func (x *execution) run() (err *txError, charged bool) {
	payer := x.load(x.tx.payer())
	due := fee * uint64(len(x.tx.signatures))
	switch {
	case payer.Lamports == 0:
		return errPayerNotFound(), false
	case payer.Lamports < due:
		return errPayerCannotPay(), false
	}
	for _, in := range x.tx.instructions {
		if in.program != x.program {
			return errProgramNotFound(), false
		}
	}
	payer.Lamports -= due
	x.changed = map[Pubkey]Account{x.tx.payer(): payer}

	for i, in := range x.tx.instructions {
		x.units += 2000
		x.logs = append(x.logs, fmt.Sprintf("Program %s invoke [1]", in.program))
		if err = x.telemetry(in); err != nil {
			x.logs = append(x.logs, fmt.Sprintf("Program %s failed: %s", in.program, err.text))
			err.instruction = i
			break
		}
		x.logs = append(x.logs, fmt.Sprintf("Program %s success", in.program))
	}
	if left := x.load(x.tx.payer()).Lamports; err == nil && left > 0 && left < rent(0) {
		err = errPayerRent()
	}
	if err != nil { // nothing but the fee remains
		x.changed = map[Pubkey]Account{x.tx.payer(): payer}
	}
	return err, true
}

// store replaces an account after its rent was made up out of the payer's balance by a transfer of the system program.
func (x *execution) store(ref accountRef, a Account, payer, system accountRef) *txError {
	if !ref.writable {
		return instructionError("ReadonlyDataModified")
	}
	if need := rent(len(a.Data)); a.Lamports < need {
		transfer := need - a.Lamports
		from := x.load(payer.key)
		switch {
		case system.key != systemProgram:
			return instructionError("IncorrectProgramId")
		case !payer.writable:
			return instructionError("PrivilegeEscalation")
		case from.Lamports < transfer:
			x.logs = append(x.logs,
				fmt.Sprintf("Program %s invoke [2]", systemProgram),
				fmt.Sprintf("Transfer: insufficient lamports %d, need %d", from.Lamports, transfer),
				fmt.Sprintf("Program %s failed: custom program error: 0x1", systemProgram))
			return customError(codeLowBalance)
		}
		from.Lamports -= transfer
		a.Lamports = need
		x.changed[payer.key] = from
	}
	x.changed[ref.key] = a
	return nil
}

// pending is something that happens when its slot comes.
type pending struct {
	slot     uint64
	tx       *transaction // to be put into a block; nil:
	dropFrom uint64       // the blocks from this slot on are dropped
	dropAt   uint64       // slots after its own in which the transaction's fork is dropped; 0 = never
}

// schedule queues p behind all that is due by the same slot.
func (l *Ledger) schedule(p pending) {
	i := sort.Search(len(l.queue), func(i int) bool { return l.queue[i].slot > p.slot })
	l.queue = slices.Insert(l.queue, i, p)
}

// advance lets everything happen that is due, and returns the newest slot with a block.
func (l *Ledger) advance(now time.Time) uint64 {
	_, running := l.chain.current(now)
	for len(l.queue) > 0 && l.queue[0].slot <= running {
		p := l.queue[0]
		l.queue = l.queue[1:]
		switch slot := l.chain.next(p.slot); {
		case p.tx == nil:
			l.dropBlocks(p.dropFrom, p.slot+1)
		case slot > p.slot: // this one has no block
			p.slot = slot
			l.schedule(p)
		case l.land(p.tx, slot) && p.dropAt > 0:
			l.schedule(pending{slot: slot + p.dropAt, dropFrom: slot})
		}
	}
	tip := l.chain.prev(running)
	l.chain.forget(tip)
	return tip
}

// dropBlocks drops the fork from <= slot < to, but never what is finalized at that time.
func (l *Ledger) dropBlocks(from, to uint64) {
	from = max(from, back(to, l.chain.finality))
	l.bank.drop(from)
	l.chain.dig(hole{from, to})
}

// check is what is looked at before a transaction runs: its age, and whether it was in a block before.
func (l *Ledger) check(tx *transaction, slot uint64) *txError {
	if !l.chain.fresh(tx.blockhash, slot) {
		return errBlockhashNotFound()
	}
	if t := l.bank.landed[tx.id()]; t != nil && t.slot <= slot {
		return errAlreadyProcessed()
	}
	return nil
}

func (l *Ledger) execution(tx *transaction, slot uint64) *execution {
	return &execution{bank: &l.bank, slot: slot, program: l.options.Telemetry, serviceability: l.options.Serviceability, tx: tx}
}

// land puts a transaction into the block of slot, unless it cannot be in any.
func (l *Ledger) land(tx *transaction, slot uint64) bool {
	if !tx.signed() || l.check(tx, slot) != nil {
		return false
	}
	x := l.execution(tx, slot)
	err, charged := x.run()
	if !charged {
		return false
	}
	t := &landed{tx: tx, slot: slot, err: err, logs: x.logs}
	for _, k := range tx.keys {
		t.pre = append(t.pre, l.bank.at(k, slot).Lamports)
		t.post = append(t.post, x.load(k).Lamports)
	}
	for key, a := range x.changed {
		l.bank.put(key, slot, a)
	}
	l.bank.landed[tx.id()] = t
	l.bank.order = append(l.bank.order, t)
	return true
}
