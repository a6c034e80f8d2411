// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/submit/doublezero/ledgertest"
)

// values are the whole numbers from first to last.
func values(first, last int) (v []uint32) {
	for i := first; i <= last; i++ {
		v = append(v, uint32(i))
	}
	return v
}

func TestSamplesArriveInOrder(t *testing.T) {
	simulate(t, 3, ledgertest.Options{SlotIndex: 100_000}, func(l *lab) {
		l.start()
		l.measure(60)
		l.settled(2 * time.Minute)
		epoch := l.ledger.Epoch()
		for link := range l.links {
			a := l.account(link, epoch)
			if diff := cmp.Diff(values(1, 60), a.Values); diff != "" {
				t.Errorf("link %d (-want +got):\n%s", link, diff)
			}
			if want := uint64(birth.Add(probeInterval).UnixMicro()); a.StartMicros != want {
				t.Errorf("starts at %d, want %d", a.StartMicros, want)
			}
		}
		l.identity(store.Totals{Offered: 180, Delivered: 180})
		l.check()
	})
}

// Case 15: the ledger says which epoch it is, and each sample goes into its own.
func TestABacklogIsSplitWhereTheEpochBegins(t *testing.T) {
	simulate(t, 1, ledgertest.Options{SlotIndex: 432_000 - 1000}, func(l *lab) { // 400 s before the end
		l.measure(80)
		l.start()
		// Two accounts are made and written, each of which takes the time of finality, and nothing waits for the next flush.
		pass(70 * time.Second)
		if n := len(l.account(0, 195).Values); n < 35 {
			t.Errorf("%d values in the new epoch after 70 s, want those of about 400 s", n)
		}
		l.settled(5 * time.Minute)
		before, after := l.account(0, 194).Values, l.account(0, 195).Values
		if diff := cmp.Diff(values(1, 80), append(before, after...)); diff != "" {
			t.Errorf("values (-want +got):\n%s", diff)
		}
		if len(before) < 35 || len(before) > 45 {
			t.Errorf("%d values in the epoch before, want those of about 400 s", len(before))
		}
		l.check()
	})
}

// What an account should hold is known from its first sample on until its epoch is over, also after a restart.
func TestCompleteness(t *testing.T) {
	simulate(t, 1, ledgertest.Options{SlotIndex: 432_000 - 1000}, func(l *lab) { // 400 s before the end
		l.start()
		l.measure(10)
		l.settled(2 * time.Minute)
		pass(time.Minute)
		l.add(store.Sample{Outcome: store.Lost})
		l.settled(2 * time.Minute)
		first := l.sink.Status().Accounts
		held, passed := uint32(len(l.account(0, 194).Values)), uint32((time.Since(birth)-probeInterval)/probeInterval)+1
		want := []AccountStatus{{Path: "link0", Epoch: 194, Samples: held, Expected: passed, Zeros: map[string]uint32{"gap": held - 11, "lost": 1}}}
		if diff := cmp.Diff(want, first); diff != "" || passed <= held {
			t.Errorf("of %d (-want +got):\n%s", passed, diff)
		}
		l.measure(40)
		l.settled(5 * time.Minute)
		rolled := l.sink.Status().Accounts
		if n := uint32(len(l.account(0, 194).Values)); len(rolled) != 2 || rolled[0].Samples != n || rolled[0].Expected != n || rolled[1].Samples >= rolled[1].Expected {
			t.Errorf("%+v; the account of the epoch that is over has %d", rolled, n)
		}
		l.stop()
		l.start()
		l.measure(1)
		l.settled(2 * time.Minute)
		if again := l.sink.Status().Accounts; len(again) != 2 || again[1].Epoch != 195 || cmp.Diff(rolled[0], again[0]) != "" {
			t.Errorf("after a restart: %+v", again)
		}
	})
}

// An outage of the process leaves a gap, and what comes after it stands at its time (case 14).
func TestAGapIsFilledWithZeros(t *testing.T) {
	simulate(t, 1, ledgertest.Options{SlotIndex: 100_000}, func(l *lab) {
		l.start()
		l.measure(6)
		pass(59 * probeInterval)
		l.measure(5)
		l.settled(3 * time.Minute)
		want := append(append(values(1, 6), make([]uint32, 59)...), values(66, 70)...)
		if diff := cmp.Diff(want, l.account(0, 194).Values); diff != "" {
			t.Errorf("values (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[string]uint64{"gap": 59}, l.sink.Status().Zeros); diff != "" {
			t.Errorf("zeros (-want +got):\n%s", diff)
		}
		l.check()
	})
}

// hunts are ways in which a ledger misleads its writer. None may lead to a duplicate or a hole.
var hunts = map[string]func(l *lab){
	"a node that lags behind the same address": func(l *lab) {
		l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Lag, Node: "b", Slots: 45})
	},
	"a node that is behind by more than a blockhash's life, and lost sends": func(l *lab) {
		l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Lag, Node: "b", Slots: 400})
		l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Invisible})
		l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.NotForwarded, Calls: 30})
	},
	"a node that stands still": func(l *lab) {
		l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Stuck, Node: "b", For: 8 * time.Minute})
	},
	"the answer to a send is lost": func(l *lab) {
		l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Reset, Methods: []string{"sendTransaction"}, After: true, For: 5 * time.Minute})
	},
	"landed but invisible": func(l *lab) {
		l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Invisible, For: 10 * time.Minute})
	},
	// Case 77: the signature is never seen, so only the account tells.
	"status null for ever": func(l *lab) { l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.StatusNull}) },
	"no history":           func(l *lab) { l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.NoHistory}) },
	// Case 75: a write that is not seen is not signed again before it can no longer land.
	"accepted but never forwarded": func(l *lab) {
		l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.NotForwarded, Calls: 40})
	},
	"lands late": func(l *lab) { l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.LandLate, Slots: 100, Calls: 5}) },
	// Case 77, second part.
	"the block is dropped": func(l *lab) {
		l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Forked, Slots: 5, Calls: 3})
	},
	"503 for a while": func(l *lab) {
		l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Unavailable, For: 3 * time.Minute})
	},
	"halted for a while": func(l *lab) { l.ledger.Halt(); time.AfterFunc(4*time.Minute, l.ledger.Resume) },
}

func TestNoDuplicateAndNoHole(t *testing.T) {
	for name, begin := range hunts {
		t.Run(name, func(t *testing.T) {
			simulate(t, 2, ledgertest.Options{SlotIndex: 431_000}, func(l *lab) {
				l.start()
				l.measure(13)
				begin(l)
				l.measure(60)
				l.settled(15 * time.Minute)
				l.check()
				l.identity(store.Totals{Offered: 146, Delivered: 146})
			})
		})
	}
}

// All of them at any time, in any combination, with restarts in between.
func TestNoDuplicateAndNoHoleInAnyCombination(t *testing.T) {
	faults := []ledgertest.Fault{
		{Kind: ledgertest.Lag, Node: "b", Slots: 45},
		{Kind: ledgertest.Lag, Node: "b", Slots: 400},
		{Kind: ledgertest.Stuck, Node: "b"},
		{Kind: ledgertest.Reset, Methods: []string{"sendTransaction"}, After: true},
		{Kind: ledgertest.Reset},
		{Kind: ledgertest.Silence},
		{Kind: ledgertest.Truncate},
		{Kind: ledgertest.Nonsense},
		{Kind: ledgertest.Invisible},
		{Kind: ledgertest.StatusNull},
		{Kind: ledgertest.NoHistory},
		{Kind: ledgertest.NotForwarded},
		{Kind: ledgertest.LandLate, Slots: 60},
		{Kind: ledgertest.Forked, Slots: 8, Calls: 2},
		{Kind: ledgertest.Unavailable},
		{Kind: ledgertest.UnavailableJSON},
		{Kind: ledgertest.RateLimited, Wait: 20 * time.Second},
		{Kind: ledgertest.Pruned, Slots: 10},
		{Kind: ledgertest.SkippedAs},
		{Kind: ledgertest.SkippedAs, Code: -32004},
		{Kind: ledgertest.LyingSlot, Node: "b", Slots: 5000, Calls: 3},
		{Kind: ledgertest.LyingSlot, Node: "b", Slots: -5000},
	}
	rounds := 15
	if testing.Short() {
		rounds = 5
	}
	for seed := range rounds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(uint64(seed), 0))
			simulate(t, 2, ledgertest.Options{SlotIndex: 432_000 - uint64(random.IntN(6000))}, func(l *lab) {
				l.start()
				for range 12 {
					for range random.IntN(4) {
						f := faults[random.IntN(len(faults))]
						f.For = time.Duration(random.IntN(400)) * time.Second
						f.Skip = random.IntN(8)
						l.ledger.Inject(f)
					}
					switch random.IntN(8) {
					case 0:
						l.stop()
						l.start()
					case 1:
						l.ledger.Halt()
						time.AfterFunc(time.Duration(random.IntN(200))*time.Second, l.ledger.Resume)
					case 2:
						pass(time.Duration(random.IntN(20)) * time.Minute)
					}
					l.measure(random.IntN(40))
				}
				pass(4 * time.Minute)
				l.ledger.Heal()
				l.settled(20 * time.Minute)
				l.check()
				totals, err := l.store.Totals(Name)
				if err != nil {
					t.Fatal(err)
				}
				if totals.Delivered != totals.Offered {
					t.Errorf("not all delivered: %+v", totals)
				}
			})
		})
	}
}

// With a store that is lost, another writer, and wrong clocks on top, what is lost is counted, and still nothing is there twice.
func TestNoDuplicateWhateverHappens(t *testing.T) {
	const foreign = 1 << 30
	rounds := 8
	if testing.Short() {
		rounds = 2
	}
	for seed := range rounds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(uint64(seed), 1))
			simulate(t, 2, ledgertest.Options{SlotIndex: 432_000 - uint64(random.IntN(6000))}, func(l *lab) {
				l.start()
				for round := range 12 {
					l.measure(10 + random.IntN(30))
					switch random.IntN(6) {
					case 0:
						l.stop()
						if err := l.store.Close(); err != nil {
							t.Fatal(err)
						}
						l.storePath += ".new"
						l.openStore()
						l.start()
					case 1:
						_ = l.ledger.Append(l.address(0, l.ledger.Epoch()), 0, foreign, foreign) // if it is there
					case 2:
						l.ledger.SetClockOffset(time.Duration(random.IntN(3)-1) * time.Hour)
					case 3:
						l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Reset, Methods: []string{"sendTransaction"}, After: true, For: 2 * time.Minute})
					case 4:
						l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.NotForwarded, For: 2 * time.Minute})
					case 5:
						l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Lag, Node: "b", Slots: 100, For: 3 * time.Minute})
					}
					if round == 6 {
						l.ledger.SetClockOffset(0)
					}
				}
				l.ledger.Heal()
				l.ledger.SetClockOffset(0)
				l.measure(6 * 90) // an hour for what was held back, and what was left alone
				l.settled(30 * time.Minute)
				l.identityHolds()
				for link := range l.links {
					seen, there := make(map[uint32]bool), 0
					for _, a := range l.ledger.AllSamples() {
						for _, v := range a.Values {
							if a.Link != ledgertest.Pubkey(l.links[link]) || v == 0 || v == foreign {
								continue
							}
							there++
							if seen[v] {
								t.Errorf("link %d: probe %d is there twice", link, v)
							}
							seen[v] = true
						}
					}
					if there < 300 {
						t.Errorf("link %d: only %d probes in the ledger", link, there)
					}
				}
			})
		})
	}
}

// Two links that are both dead have equal zeros to write: nothing of one may pass for the other's.
func TestEqualZerosOfTwoLinks(t *testing.T) {
	simulate(t, 2, ledgertest.Options{SlotIndex: 100_000}, func(l *lab) {
		l.start()
		for range 40 {
			pass(probeInterval)
			l.add(store.Sample{Outcome: store.Lost})
		}
		l.settled(3 * time.Minute)
		for link := range l.links {
			if diff := cmp.Diff(make([]uint32, 40), l.account(link, 194).Values); diff != "" {
				t.Errorf("link %d (-want +got):\n%s", link, diff)
			}
		}
		seen := make(map[string]bool)
		for _, sent := range l.ledger.Transactions() {
			if seen[string(sent.Raw)] {
				t.Error("the same bytes landed twice")
			}
			seen[string(sent.Raw)] = true
		}
		if diff := cmp.Diff(map[string]uint64{"lost": 80}, l.sink.Status().Zeros); diff != "" {
			t.Errorf("zeros (-want +got):\n%s", diff)
		}
	})
}

// A store that was lost knows nothing of the account that it wrote: the account is adopted when it is sure that nothing is under way.
func TestALostStoreGoesOnWithItsAccount(t *testing.T) {
	simulate(t, 1, ledgertest.Options{SlotIndex: 100_000}, func(l *lab) {
		l.start()
		l.measure(30)
		l.settled(2 * time.Minute)
		l.stop()
		if err := l.store.Close(); err != nil {
			t.Fatal(err)
		}
		l.storePath += ".new"
		l.openStore()
		l.start()
		l.measure(10)
		if n := len(l.account(0, 194).Values); n != 30 {
			t.Errorf("%d values when a write of before could still land, want the 30 that were there", n)
		}
		l.measure(30)
		l.settled(2 * time.Minute)
		there := 0
		for index, v := range l.account(0, 194).Values {
			if v != 0 && v != uint32(index+1) {
				t.Errorf("index %d holds probe %d", index, v)
			}
			if v != 0 {
				there++
			}
		}
		if there != 30+40 {
			t.Errorf("%d probes in the account, want 70", there)
		}
		l.identity(store.Totals{Offered: 40, Delivered: 40})
	})
}

// Another process with our key writes into our account: we leave it alone, and nothing of ours is in it twice.
func TestASecondWriterIsLeftAlone(t *testing.T) {
	simulate(t, 2, ledgertest.Options{SlotIndex: 100_000}, func(l *lab) {
		l.start()
		l.measure(20)
		l.settled(2 * time.Minute)
		before := len(l.account(0, 194).Values)
		write := func() {
			if err := l.ledger.Append(l.address(0, 194), 0, 1<<30, 1<<30, 1<<30); err != nil {
				t.Fatal(err)
			}
		}
		write()
		for range 10 {
			l.measure(6)
			write()
		}
		pass(time.Minute)
		got := l.account(0, 194).Values
		if want := before + 33; len(got) != want {
			t.Errorf("%d values in the account, want %d: %d of ours and 33 of the other's", len(got), want, before)
		}
		if n := l.logs.FilterMessageSnippet("somebody else").Len(); n != 1 {
			t.Errorf("%d lines about another writer, want 1", n)
		}
		if s := l.sink.Status().Accounts; !s[0].Other || s[1].Other {
			t.Errorf("status: %+v", s)
		}
		// The other one is gone: after a while the account goes on, with each later probe at its time.
		l.measure(2 * 60)
		l.settled(30 * time.Minute)
		if l.sink.Status().Accounts[0].Other {
			t.Error("the account is still left alone half an hour after the last foreign write")
		}
		got = l.account(0, 194).Values
		own := make(map[uint32]int)
		for index, v := range got {
			if v == 0 || v == 1<<30 {
				continue
			}
			if own[v]++; own[v] > 1 {
				t.Errorf("probe %d is there twice", v)
			}
			if index >= before && uint32(index) != v-1 {
				t.Errorf("probe %d is at index %d", v, index)
			}
		}
		if got[len(got)-1] == 0 {
			t.Error("nothing of ours since")
		}
		// The other link never noticed.
		if n := len(l.account(1, 194).Values); n < 200 {
			t.Errorf("the other link has %d samples", n)
		}
	})
}

// putAccount puts an account of a link into the ledger, in which the last of n zeros was written an interval ago.
func (l *lab) putAccount(link, n int, edit func(*ledgertest.Samples)) {
	s := ledgertest.Samples{
		Epoch: l.ledger.Epoch(), Agent: ledgertest.Pubkey(l.keypair.Public()),
		Origin: ledgertest.Pubkey(l.device), Target: ledgertest.Pubkey(l.targets[link]), Link: ledgertest.Pubkey(l.links[link]),
		IntervalMicros: uint64(probeInterval.Microseconds()), StartMicros: uint64(time.Now().Add(time.Duration(-n) * probeInterval).UnixMicro()),
		Values: make([]uint32, n),
	}
	if edit != nil {
		edit(&s)
	}
	l.ledger.PutSamples(s)
}

// Case 4: what still fits is written, the rest is counted.
func TestAnAccountThatFillsUp(t *testing.T) {
	simulate(t, 1, ledgertest.Options{SlotIndex: 432_000 - 1500}, func(l *lab) {
		l.putAccount(0, MaxSamples-30, nil)
		l.start()
		l.measure(120) // the epoch ends after 600 s
		l.settled(5 * time.Minute)
		if n := len(l.account(0, 194).Values); n != MaxSamples {
			t.Errorf("%d samples in the account, want %d", n, MaxSamples)
		}
		totals, err := l.store.Totals(Name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]uint64{"account_full": 120 - totals.Delivered}, totals.Dropped); diff != "" {
			t.Errorf("dropped (-want +got):\n%s", diff)
		}
		next := l.account(0, 195).Values
		if len(next) < 55 || len(next) > 62 {
			t.Errorf("%d samples in the account of the next epoch, want those of the last 600 s", len(next))
		}
		l.check()
	})
}

// refusal of a write by the program, as a node answers it that tried it out.
func programRefusal(code int) string {
	return fmt.Sprintf(`"error":{"code":-32002,"message":"Transaction simulation failed","data":{"err":{"InstructionError":[0,{"Custom":%d}]},"logs":[]}}`, code)
}

// Case 10: a program that says for ever that the account is full is asked once.
func TestAProgramThatSaysFullIsAskedOnce(t *testing.T) {
	simulate(t, 1, ledgertest.Options{SlotIndex: 432_000 - 1500}, func(l *lab) {
		l.start()
		l.measure(12)
		l.settled(2 * time.Minute)
		before := l.way.count("sendTransaction")
		l.way.set(func(method string) (int, string) {
			if method == "sendTransaction" {
				return 200, programRefusal(1006)
			}
			return 0, ""
		})
		l.measure(30)
		l.settled(2 * time.Minute)
		if n := l.way.count("sendTransaction") - before; n != 1 {
			t.Errorf("%d attempts, want 1", n)
		}
		l.identity(store.Totals{Offered: 42, Delivered: 12, Dropped: map[string]uint64{"account_full": 30}})
		l.way.set(nil)
		l.measure(40)
		l.settled(5 * time.Minute)
		if n := len(l.account(0, 195).Values); n < 15 {
			t.Errorf("%d samples in the next epoch", n)
		}
		l.check()
	})
}

// What the program refuses for another reason is kept, and not tried again in the same flush (case 11).
func TestARefusedWriteIsKept(t *testing.T) {
	for name, answer := range map[string]func(method string) (int, string){
		"before it is sent on": func(method string) (int, string) {
			if method == "sendTransaction" {
				return 200, programRefusal(1001)
			}
			return 0, ""
		},
		"in a finalized block": func(method string) (int, string) {
			if method == "getSignatureStatuses" {
				return 200, `"result":{"context":{"slot":1},"value":[{"slot":5,"confirmations":null,"confirmationStatus":"finalized","err":{"InstructionError":[0,{"Custom":1001}]}}]}`
			}
			if method == "sendTransaction" {
				return 503, `"error":{"code":503,"message":"Service unavailable"}`
			}
			return 0, ""
		},
		"the payer has no account": func(method string) (int, string) {
			if method == "sendTransaction" {
				return 200, `"error":{"code":-32002,"message":"Transaction simulation failed","data":{"err":"AccountNotFound","logs":[]}}`
			}
			return 0, ""
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 1, ledgertest.Options{SlotIndex: 100_000}, func(l *lab) {
				l.start()
				l.measure(12)
				l.settled(2 * time.Minute)
				l.way.set(answer)
				before, hashes := l.stats.Stats().Failed, l.way.count("getLatestBlockhash")
				l.measure(1)
				first := time.Now()
				l.measure(29)
				pass(time.Minute)
				l.identity(store.Totals{Offered: 42, Delivered: 12, Waiting: 30, OldestWaiting: first})
				if n := l.stats.Stats().Failed - before; n < 5 || n > 7 {
					t.Errorf("%d failed attempts in 6 minutes, want one for each", n)
				}
				if n := l.way.count("getLatestBlockhash") - hashes; n > 7 {
					t.Errorf("%d transactions in 6 minutes, want one for each", n)
				}
				l.way.set(nil)
				pass(2 * time.Minute)
				l.settled(2 * time.Minute)
				l.check()
				l.identity(store.Totals{Offered: 42, Delivered: 42})
				if n := l.logs.Len(); n > 5 {
					t.Errorf("%d lines in the log", n)
				}
			})
		})
	}
}

// An answer to a resend says nothing: the first attempt may have landed (ledger.md 3.4, case 76).
func TestAnErrorOfAResendProvesNothing(t *testing.T) {
	for name, refusal := range map[string]string{
		"BlockhashNotFound": `"error":{"code":-32002,"message":"Transaction simulation failed: Blockhash not found","data":{"err":"BlockhashNotFound","logs":[]}}`,
		"AlreadyProcessed":  `"error":{"code":-32002,"message":"Transaction simulation failed: This transaction has already been processed","data":{"err":"AlreadyProcessed","logs":[]}}`,
		"program error":     programRefusal(1001),
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 1, ledgertest.Options{SlotIndex: 100_000}, func(l *lab) {
				l.start()
				l.measure(12)
				l.settled(2 * time.Minute)
				// The first attempt of each write lands, its answer is lost; all later ones are refused.
				l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Reset, Methods: []string{"sendTransaction"}, After: true})
				l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.StatusNull})
				var last int
				l.way.set(func(method string) (int, string) {
					hashes := l.way.count("getLatestBlockhash")
					if method == "sendTransaction" {
						if hashes == last {
							return 200, refusal
						}
						last = hashes
					}
					return 0, ""
				})
				l.measure(30)
				l.settled(5 * time.Minute)
				l.check()
				l.identity(store.Totals{Offered: 42, Delivered: 42})
			})
		})
	}
}

// unwritable puts accounts that can never be ours, by the reason.
var unwritable = map[string]func(l *lab, link int){
	"other_agent":    func(l *lab, link int) { l.putAccount(link, 10, func(s *ledgertest.Samples) { s.Agent[0]++ }) },
	"other_interval": func(l *lab, link int) { l.putAccount(link, 10, func(s *ledgertest.Samples) { s.IntervalMicros = 7e6 }) },
	"account_type": func(l *lab, link int) { // of the first layout, which the program reads no more
		l.putAccount(link, 10, nil)
		a := l.ledger.Account(l.address(link, 194))
		a.Data[0] = 1
		l.ledger.PutAccount(l.address(link, 194), a)
	},
}

// An account that can never be ours costs its epoch and nothing else, and its samples are kept until that is over.
func TestAccountsThatCannotBeWritten(t *testing.T) {
	for reason, put := range unwritable {
		t.Run(reason, func(t *testing.T) {
			simulate(t, 1, ledgertest.Options{SlotIndex: 432_000 - 1500}, func(l *lab) {
				put(l, 0)
				before := l.ledger.Account(l.address(0, 194)).Data
				l.start()
				l.measure(45)
				l.identity(store.Totals{Offered: 45, Waiting: 45, OldestWaiting: birth.Add(probeInterval)})
				l.measure(45)
				l.settled(5 * time.Minute)
				totals, err := l.store.Totals(Name)
				if err != nil {
					t.Fatal(err)
				}
				if n := totals.Dropped[reason]; n < 55 || n > 62 || n+totals.Delivered != 90 {
					t.Errorf("totals: %+v", totals)
				}
				if diff := cmp.Diff(before, l.ledger.Account(l.address(0, 194)).Data); diff != "" {
					t.Errorf("the account (-before +after):\n%s", diff)
				}
				l.check()
			})
		})
	}
	simulate(t, 1, ledgertest.Options{SlotIndex: 100_000}, func(l *lab) {
		l.putAccount(0, 10, func(s *ledgertest.Samples) { s.IntervalMicros = 20e6 }) // two probes an interval
		l.start()
		l.measure(60)
		l.settled(5 * time.Minute)
		if n := len(l.account(0, 194).Values); n < 30 || n > 36 {
			t.Errorf("%d samples in an account of twice the interval, want about 35", n)
		}
	})
}

// What an account was taken for does not outlive the next look at it, also when its epoch is over.
func TestAnAccountThatIsOursAfterAll(t *testing.T) {
	simulate(t, 1, ledgertest.Options{SlotIndex: 432_000 - 1500}, func(l *lab) {
		unwritable["other_agent"](l, 0)
		l.start()
		l.measure(54) // the epoch ends after 60
		a := l.account(0, 194)
		a.Agent = ledgertest.Pubkey(l.keypair.Public())
		l.ledger.PutSamples(a)
		l.measure(36)
		l.settled(5 * time.Minute)
		l.identity(store.Totals{Offered: 90, Delivered: 90})
		l.check()
		if l.logs.FilterMessage("no account is left that cannot be written").Len() != 1 {
			t.Error("its end is not told")
		}
	})
}

// A clock that runs ahead fills nothing with zeros; one that is behind holds everything back.
func TestWrongClocks(t *testing.T) {
	for name, test := range map[string]struct {
		ledger time.Duration // its clock from ours
		waits  bool
	}{"an hour ahead": {-time.Hour, true}, "an hour behind": {time.Hour, true}, "right": {0, false}, "two seconds behind": {2 * time.Second, false}} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 1, ledgertest.Options{SlotIndex: 200_000, ClockOffset: test.ledger}, func(l *lab) {
				l.start()
				l.measure(60)
				pass(2 * flushInterval)
				totals, err := l.store.Totals(Name)
				if err != nil {
					t.Fatal(err)
				}
				if waits := totals.Waiting == 60; waits != test.waits {
					t.Errorf("all wait: %v, want %v: %+v", waits, test.waits, totals)
				}
				if held := l.sink.Status().Hold != ""; held != (test.ledger > clockSlack) {
					t.Errorf("held back: %v", l.sink.Status().Hold)
				}
				// The ledger's clock becomes ours.
				l.ledger.SetClockOffset(0)
				l.measure(30)
				pass(61 * time.Minute)
				l.settled(2 * time.Minute)
				l.check()
				l.identity(store.Totals{Offered: 90, Delivered: 90})
				if test.ledger > clockSlack && l.logs.FilterMessageSnippet("holding all").Len() != 1 {
					t.Error("nothing in the log")
				}
			})
		})
	}
}

// Case 7: a retry begins behind what has landed. 500 samples take three writes; one gets no sensible answer.
func TestARetryBeginsBehindWhatLanded(t *testing.T) {
	simulate(t, 1, ledgertest.Options{SlotIndex: 100_000}, func(l *lab) {
		l.measure(500)
		var sends int
		l.way.set(func(method string) (int, string) {
			if method != "sendTransaction" {
				return 0, ""
			}
			if sends++; sends == 2 {
				return 503, `"error":{"code":503,"message":"Service unavailable"}`
			}
			return 0, ""
		})
		l.start()
		l.settled(5 * time.Minute)
		if diff := cmp.Diff(values(1, 500), l.account(0, 194).Values); diff != "" {
			t.Errorf("values (-want +got):\n%s", diff)
		}
		var sizes []int
		for _, sent := range l.ledger.Transactions() {
			sizes = append(sizes, len(sent.Raw))
		}
		// Initialize, then 239, 239 and 22 samples.
		if diff := cmp.Diff([]int{376, 1230, 1230, 273 + 4*22}, sizes); diff != "" {
			t.Errorf("bytes of transactions (-want +got):\n%s", diff)
		}
	})
}

// Case 79: a process that starts long after a write was sent finds out what became of it.
func TestAWriteOfLongAgoIsFound(t *testing.T) {
	for name, fault := range map[string]ledgertest.Fault{
		"it landed":     {Kind: ledgertest.Reset, Methods: []string{"sendTransaction"}, After: true},
		"it never left": {Kind: ledgertest.Reset, Methods: []string{"sendTransaction"}},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 1, ledgertest.Options{SlotIndex: 100_000}, func(l *lab) {
				l.start()
				l.measure(12)
				l.settled(2 * time.Minute)
				l.ledger.Inject(fault)
				l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Unavailable, Methods: []string{"getSignatureStatuses", "getMultipleAccounts"}, Skip: 2})
				l.measure(6)
				pass(30 * time.Second)
				l.stop()
				var e entry
				if pending, err := load(l.store, journalKey(l.paths[0]), &e); err != nil || !pending {
					t.Fatalf("no write in the journal: %v", err)
				}
				pass(10 * time.Minute)
				l.ledger.Heal()
				l.start()
				l.settled(5 * time.Minute)
				l.check()
				l.identity(store.Totals{Offered: 18, Delivered: 18})
			})
		})
	}
}

// Nodes that have deleted the blocks of an epoch's start leave its time to be worked out from blocks around it.
func TestAnEpochWhoseStartIsPruned(t *testing.T) {
	simulate(t, 1, ledgertest.Options{SlotIndex: 432_000 - 3000}, func(l *lab) {
		l.start()
		l.measure(30)
		l.settled(2 * time.Minute)
		l.stop()
		l.measure(6 * 60 * 3) // the epoch ends after 20 minutes of these three hours
		l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Pruned, Slots: 2000})
		l.start()
		l.settled(30 * time.Minute)
		l.identity(store.Totals{Offered: 1110, Delivered: 1110})
		// One sample may be in the account beside its own; the time of each is right.
		before, after := l.account(0, 194).Values, l.account(0, 195).Values
		all := slices.DeleteFunc(append(before, after...), func(v uint32) bool { return v == 0 })
		first := all[len(all)-1] - 1110 + 1
		if diff := cmp.Diff(values(1, 30), all[:30]); diff != "" {
			t.Errorf("values before the pause (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(values(int(first)+30, int(first)+1109), all[30:]); diff != "" {
			t.Errorf("values after it (-want +got):\n%s", diff)
		}
		if len(after) < 900 {
			t.Errorf("%d values in the new epoch", len(after))
		}
		if n := l.logs.FilterMessageSnippet("no node knows").Len(); n != 1 {
			t.Errorf("%d lines about it, want 1", n)
		}
	})
}

// Samples that have no time are of a boot whose clock was never set.
func TestUndatedSamplesAreDropped(t *testing.T) {
	simulate(t, 1, ledgertest.Options{SlotIndex: 100_000}, func(l *lab) {
		if err := l.store.Close(); err != nil {
			t.Fatal(err)
		}
		old, err := store.Open(store.Config{Path: l.storePath, Boot: "a boot without a clock", NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := old.Enable(Name, false, Takes); err != nil {
			t.Fatal(err)
		}
		var batch []store.Record
		for i := range 7 {
			batch = append(batch, store.Record{Path: l.paths[0].ID, Sample: store.Sample{Mono: int64(i+1) * int64(probeInterval), Outcome: store.OnTime, RTT: 1000}})
		}
		if err := old.Append(batch); err != nil {
			t.Fatal(err)
		}
		if err := old.Close(); err != nil {
			t.Fatal(err)
		}
		l.openStore()
		l.start()
		l.measure(60)
		l.settled(3 * time.Minute)
		l.check()
		l.identity(store.Totals{Offered: 67, Delivered: 60, Dropped: map[string]uint64{"undated": 7}})
	})
}

// A path that is given to another link goes on in that link's account, and what was under way for the one before is still followed.
func TestAPathThatBecomesAnotherLink(t *testing.T) {
	simulate(t, 2, ledgertest.Options{SlotIndex: 100_000}, func(l *lab) {
		l.start()
		l.measure(12)
		l.settled(2 * time.Minute)
		l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Reset, Methods: []string{"sendTransaction"}, After: true})
		l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Unavailable, Methods: []string{"getSignatureStatuses", "getMultipleAccounts"}, Skip: 4})
		l.measure(6)
		l.stop()
		l.links[0], l.links[1] = l.links[1], l.links[0]
		l.targets[0], l.targets[1] = l.targets[1], l.targets[0]
		if err := l.store.Close(); err != nil {
			t.Fatal(err)
		}
		l.openStore()
		l.ledger.Heal()
		l.start()
		l.measure(60)
		l.settled(10 * time.Minute)
		totals, err := l.store.Totals(Name)
		if err != nil {
			t.Fatal(err)
		}
		if totals.Waiting > 0 || totals.Offered != 156 || totals.Delivered+totals.Dropped["index_taken"] != 156 {
			t.Errorf("totals: %+v", totals)
		}
		for link := range l.links {
			seen := make(map[uint32]bool)
			for index, v := range l.account(link, 194).Values {
				if v != 0 && (seen[v] || uint32(index) != v-1) {
					t.Errorf("link %d: probe %d is at index %d, there before: %v", link, v, index, seen[v])
				}
				seen[v] = true
			}
		}
	})
}

// Somebody else's write to the account of the link that the path was before is no reason to leave that of the new one alone.
func TestAPathThatBecomesAnotherLinkAfterAnotherWriter(t *testing.T) {
	simulate(t, 2, ledgertest.Options{SlotIndex: 100_000}, func(l *lab) {
		l.start()
		l.measure(12)
		l.settled(2 * time.Minute)
		l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.NotForwarded})
		l.measure(6)
		l.stop()
		for link := range l.links {
			if err := l.ledger.Append(l.address(link, 194), 0, 1<<30); err != nil {
				t.Fatal(err)
			}
		}
		l.links[0], l.links[1] = l.links[1], l.links[0]
		l.targets[0], l.targets[1] = l.targets[1], l.targets[0]
		if err := l.store.Close(); err != nil {
			t.Fatal(err)
		}
		l.openStore()
		pass(10 * time.Minute) // what was sent expires
		l.ledger.Heal()
		l.start()
		l.measure(60)
		l.settled(10 * time.Minute)
		if said := l.logs.FilterMessageSnippet("somebody else").All(); len(said) > 0 {
			t.Errorf("an account is left alone: %v", said)
		}
	})
}

// An account that the program does not make now is asked for again, and nothing is lost meanwhile.
func TestAnAccountThatIsNotMade(t *testing.T) {
	device := func(status uint8, publisher ledgertest.Pubkey) ledgertest.Device {
		return ledgertest.Device{Status: status, Publisher: publisher}
	}
	for name, test := range map[string]struct {
		code        int
		spoil, mend func(l *lab, agent ledgertest.Pubkey)
	}{
		"agent not authorized": {1001,
			func(l *lab, _ ledgertest.Pubkey) {
				l.ledger.PutDevice(ledgertest.Pubkey(l.device), device(ledgertest.DeviceActivated, ledgertest.Pubkey{1}))
			},
			func(l *lab, agent ledgertest.Pubkey) {
				l.ledger.PutDevice(ledgertest.Pubkey(l.device), device(ledgertest.DeviceActivated, agent))
			}},
		"device status": {1002,
			func(l *lab, agent ledgertest.Pubkey) {
				l.ledger.PutDevice(ledgertest.Pubkey(l.device), device(3, agent))
			},
			func(l *lab, agent ledgertest.Pubkey) {
				l.ledger.PutDevice(ledgertest.Pubkey(l.device), device(ledgertest.DeviceActivated, agent))
			}},
		"link status": {1003,
			func(l *lab, _ ledgertest.Pubkey) {
				l.ledger.PutLink(ledgertest.Pubkey(l.links[0]), ledgertest.Link{Status: 3, SideA: ledgertest.Pubkey(l.device), SideZ: ledgertest.Pubkey(l.targets[0])})
			},
			func(l *lab, _ ledgertest.Pubkey) {
				l.ledger.PutLink(ledgertest.Pubkey(l.links[0]), ledgertest.Link{Status: ledgertest.LinkActivated, SideA: ledgertest.Pubkey(l.device), SideZ: ledgertest.Pubkey(l.targets[0])})
			}},
		"link ends": {1004,
			func(l *lab, _ ledgertest.Pubkey) {
				l.ledger.PutLink(ledgertest.Pubkey(l.links[0]), ledgertest.Link{Status: ledgertest.LinkActivated, SideA: ledgertest.Pubkey{9}, SideZ: ledgertest.Pubkey(l.targets[0])})
			},
			func(l *lab, _ ledgertest.Pubkey) {
				l.ledger.PutLink(ledgertest.Pubkey(l.links[0]), ledgertest.Link{Status: ledgertest.LinkActivated, SideA: ledgertest.Pubkey(l.device), SideZ: ledgertest.Pubkey(l.targets[0])})
			}},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 1, ledgertest.Options{SlotIndex: 100_000}, func(l *lab) {
				agent := ledgertest.Pubkey(l.keypair.Public())
				test.spoil(l, agent)
				pass(time.Minute)
				l.start()
				l.measure(60)
				l.identity(store.Totals{Offered: 60, Waiting: 60, OldestWaiting: birth.Add(7 * probeInterval)})
				logs := l.logs.FilterMessageSnippet("delivery fails").All()
				if len(logs) != 1 || !strings.Contains(fmt.Sprint(logs[0].ContextMap()), fmt.Sprint("program error ", test.code)) {
					t.Errorf("log of the failure: %v", logs)
				}
				test.mend(l, agent)
				pass(3 * time.Minute)
				l.settled(3 * time.Minute)
				l.identity(store.Totals{Offered: 60, Delivered: 60})
				l.check()
			})
		})
	}
}

// What was measured on a link that is gone before its account was made has no place. It is dropped once that is sure.
func TestALinkThatIsGone(t *testing.T) {
	simulate(t, 2, ledgertest.Options{SlotIndex: 100_000}, func(l *lab) {
		var sure atomic.Bool
		l.config.Gone = func(link Pubkey) bool { return sure.Load() && link == l.links[0] }
		l.ledger.Delete(ledgertest.Pubkey(l.links[0]))
		pass(time.Minute)
		l.start()
		l.measure(60)
		pass(5 * time.Minute)
		l.identity(store.Totals{Offered: 120, Delivered: 60, Waiting: 60, OldestWaiting: birth.Add(7 * probeInterval)})
		sure.Store(true)
		pass(5 * time.Minute)
		l.identity(store.Totals{Offered: 120, Delivered: 60, Dropped: map[string]uint64{"link_gone": 60}})
	})
}

// The payer's balance is watched, so that it is filled up in time.
func TestALowBalanceIsToldInTime(t *testing.T) {
	simulate(t, 2, ledgertest.Options{SlotIndex: 100_000}, func(l *lab) {
		low := func() int { return l.logs.FilterMessageSnippet("will soon be used up").Len() }
		l.ledger.Fund(ledgertest.Pubkey(l.keypair.Public()), 1e9) // two days
		l.start()
		l.measure(6 * 30)
		if n := low(); n != 1 {
			t.Errorf("%d lines about a balance that lasts two days, want 1", n)
		}
		if s := l.sink.Status(); !s.Funded || s.Balance < 0.9e9 || s.Balance >= 1e9 {
			t.Errorf("status: %+v", s)
		}
		l.ledger.Fund(ledgertest.Pubkey(l.keypair.Public()), 100e9)
		l.measure(6 * 11)
		if low() != 1 || l.logs.FilterMessageSnippet("was filled up").Len() != 1 {
			t.Error("nothing said about a balance that was filled up")
		}
	})
}
