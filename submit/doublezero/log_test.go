// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/submit/doublezero/ledgertest"
)

const outage = 22 * time.Hour

// patterns say whether something fails so long after the outage began. Who asks once a minute would not notice what fails for one half of
// each minute.
var patterns = map[string]func(time.Duration) bool{
	"all the time": func(after time.Duration) bool { return after >= 0 && after < outage },
	"by turns": func(after time.Duration) bool {
		return after >= 0 && after < outage && after%(50*time.Second) < 25*time.Second
	},
}

// Whatever fails for 22 hours, all the time or by turns, has few lines: one with the cause at once, and in the end one with how often
// and for how long.
func TestLogOver22Hours(t *testing.T) {
	for _, fault := range []struct {
		name        string
		set         func(l *lab, fails bool)
		cause, ends string
	}{
		{"ledger", func(l *lab, fails bool) {
			l.way.set(nil)
			if fails {
				l.way.set(func(string) (int, string) { return http.StatusServiceUnavailable, `"result":null` })
			}
		}, "503", "delivering again"},
		{"program", func(l *lab, fails bool) {
			l.way.set(nil)
			if fails {
				l.way.set(func(method string) (int, string) {
					if method == "sendTransaction" || method == "simulateTransaction" {
						return http.StatusOK, `"error":{"code":-32002,"message":"cause"}`
					}
					return 0, ""
				})
			}
		}, "cause", "delivering again"},
		{"clock", func(l *lab, fails bool) {
			l.ledger.SetClockOffset(0)
			if fails {
				l.ledger.SetClockOffset(time.Minute)
			}
		}, "behind the ledger", "the clock agrees with the ledger again"},
		{"balance, looked at each 10 minutes", func(l *lab, fails bool) {
			lamports := uint64(100e9)
			if fails {
				lamports = 6e8
			}
			l.ledger.Fund(ledgertest.Pubkey(l.keypair.Public()), lamports)
		}, "lasts", "the payer's balance was filled up"},
	} {
		for name, fails := range patterns {
			if name == "by turns" && strings.HasPrefix(fault.name, "balance") {
				continue
			}
			t.Run(fault.name+"/"+name, func(t *testing.T) {
				simulate(t, 1, ledgertest.Options{SlotIndex: 100_000}, func(l *lab) {
					l.start()
					begin := time.Now().Add(time.Hour)
					failing := false
					for i := 0; time.Since(begin) < outage+5*time.Hour; i++ {
						if now := fails(time.Since(begin)); now != failing {
							failing = now
							fault.set(l, failing)
						}
						if i%12 == 0 {
							l.add(store.Sample{Outcome: store.OnTime, RTT: l.nth()})
						}
						pass(5 * time.Second)
					}
					checkLines(l, l.logs, begin, fault.cause, fault.ends)
				})
			})
		}
	}
}

const manyLinks = 12

// sample adds a sample of each link, and lets ten minutes pass.
func (l *lab) sample() {
	l.Helper()
	l.add(store.Sample{Outcome: store.OnTime, RTT: l.nth()})
	pass(10 * time.Minute)
}

// As many accounts as there may be that cannot be written have the lines of one, until their epoch is over.
func TestUnwritableLogOver22Hours(t *testing.T) {
	for reason, put := range unwritable {
		t.Run(reason, func(t *testing.T) {
			const slotTime = 400 * time.Millisecond
			simulate(t, manyLinks, ledgertest.Options{SlotTime: slotTime, SlotIndex: 432_000 - uint64(outage/slotTime)}, func(l *lab) {
				for link := range l.links {
					put(l, link)
				}
				l.config.FlushInterval = 5 * time.Minute
				l.start()
				for time.Since(birth) < outage {
					l.sample()
				}
				pass(time.Hour) // without any sample of the next epoch
				lines := checkLines(l, l.logs, birth, reason, "no account is left that cannot be written")
				checkAccounts(l, lines[1], manyLinks)
			})
		})
	}
}

// Somebody who writes to the accounts of many links has the lines of one, in whatever order.
func TestOtherWriterLogOver22Hours(t *testing.T) {
	const ends = "nobody else writes to an account any more"
	for name, writes := range map[string]func(link int, after time.Duration) bool{
		"all the time":    func(int, time.Duration) bool { return true },
		"by turns":        func(_ int, after time.Duration) bool { return after%(50*time.Minute) < 25*time.Minute },
		"link after link": func(link int, after time.Duration) bool { return int(after/(20*time.Minute))%manyLinks == link },
		"each other hour": func(_ int, after time.Duration) bool { return after%(2*time.Hour) < time.Hour },
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, manyLinks, ledgertest.Options{SlotIndex: 100_000}, func(l *lab) {
				l.start()
				begin := time.Now().Add(10 * time.Minute)
				for i := 0; time.Since(begin) < outage+2*time.Hour; i++ {
					if i%5 == 0 {
						l.add(store.Sample{Outcome: store.OnTime, RTT: l.nth()})
					}
					for link := range l.links {
						if after := time.Since(begin); after >= 0 && after < outage && writes(link, after) {
							l.must(l.ledger.Append(l.address(link, 194), 0, 1<<30))
						}
					}
					pass(2 * time.Minute)
				}
				if name == "each other hour" { // it ends more than once
					fewLines(l, l.logs, begin, "expected")
					return
				}
				lines := checkLines(l, l.logs, begin, "expected", ends)
				if name == "all the time" {
					checkAccounts(l, lines[1], manyLinks)
				}
			})
		})
	}
}

// An account whose path has gone is no longer one that somebody else writes to.
func TestTheLogForgetsAPathThatIsGone(t *testing.T) {
	simulate(t, 2, ledgertest.Options{SlotIndex: 100_000}, func(l *lab) {
		l.must(l.store.Close())
		l.retention = 4 * time.Hour
		l.openStore()
		l.start()
		l.measure(6 * 60)
		l.settled(2 * time.Minute)
		for hour := range 10 {
			l.add(store.Sample{Outcome: store.OnTime, RTT: l.nth()})
			for range 60 {
				l.must(l.ledger.Append(l.address(0, 194), 0, 1<<30))
				l.must(l.store.Maintain()) // which deletes what is too old
				pass(time.Minute)
			}
			if l.paths = l.paths[len(l.paths)-1:]; hour == 3 && l.logs.FilterMessageSnippet("nobody else").Len() > 0 {
				t.Error("it is told to be over while samples wait")
			}
		}
		ends := l.logs.FilterMessageSnippet("nobody else").All()
		if len(ends) != 1 || ends[0].ContextMap()["path"] != "link0" {
			t.Errorf("lines of the end: %v", ends)
		}
	})
}

// A store that was lost knows none of the accounts, which has the lines of one.
func TestLogOfALostStore(t *testing.T) {
	simulate(t, manyLinks, ledgertest.Options{SlotIndex: 100_000}, func(l *lab) {
		l.start()
		l.measure(12)
		l.settled(2 * time.Minute)
		l.stop()
		l.must(l.store.Close())
		l.storePath += ".new"
		l.openStore()
		l.logs.TakeAll()
		l.start()
		l.measure(60)
		l.settled(2 * time.Minute)
		lines := l.logs.Filter(func(e observer.LoggedEntry) bool { return !slices.Contains(news, e.Message) }).All()
		if len(lines) != 2 || lines[0].Level != zap.WarnLevel || lines[1].Message != "no account is left that the store knows nothing of" {
			t.Errorf("log: %v", lines)
		}
	})
}

// faultyLog is a store that the sink cannot write to.
type faultyLog struct {
	log
	fails atomic.Bool
}

func (f *faultyLog) Commit(sink string, u store.Update) error {
	if f.fails.Load() {
		return errors.New("cause")
	}
	return f.log.Commit(sink, u)
}

// Nobody may know when the epoch began, or it cannot be kept.
func TestEpochLogOver22Hours(t *testing.T) {
	for name, test := range map[string]struct {
		slotIndex uint64
		before    func(l *lab) // the outage
		fails     func(l *lab) // beside the nodes that have deleted the start
		cause     string
		lines     int // about a start that was worked out
	}{
		"not known": {100_000, func(*lab) {}, func(*lab) {}, "every node has deleted block", 0},
		"not kept": {432_000 - 3000, func(l *lab) {
			l.start()
			l.measure(30)
			l.settled(10 * time.Minute)
			l.stop()
			l.measure(6 * 60) // the epoch ends after 20 minutes of this hour
		}, func(l *lab) { l.config.Log.(*faultyLog).fails.Store(true) }, "cause", 1},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, ledgertest.Options{SlotIndex: test.slotIndex}, func(l *lab) {
				l.config.FlushInterval = 5 * time.Minute
				test.before(l)
				l.config.Log = &faultyLog{log: l.store}
				test.fails(l)
				l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Pruned, Slots: 2000})
				begin := time.Now()
				l.start()
				for time.Since(begin) < outage {
					l.sample()
				}
				l.config.Log.(*faultyLog).fails.Store(false)
				if test.lines == 0 {
					l.ledger.Heal()
				}
				for time.Since(begin) < outage+5*time.Hour {
					l.sample()
				}
				checkLines(l, l.logs, begin, test.cause, "delivering again")
				if n := l.logs.FilterMessageSnippet("no node knows").Len(); n != test.lines {
					t.Errorf("%d lines about a start that was worked out, want %d", n, test.lines)
				}
			})
		})
	}
}

func TestDiscoveryLogOver22Hours(t *testing.T) {
	for _, fault := range []struct {
		name        string
		set         func(f *finder, fails bool)
		cause, ends string
	}{
		{"ledger", func(f *finder, fails bool) {
			f.ledger.Heal()
			if fails {
				f.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Unavailable})
			}
		}, "503", "the ledger tells the links again"},
		{"addresses", func(f *finder, fails bool) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.hostErr = nil
			if fails {
				f.hostErr = errors.New("cause")
			}
		}, "cause", "addresses of the host are listed again"},
		{"state", func(f *finder, fails bool) {
			dir := filepath.Dir(f.config.State)
			if fails {
				f.must(os.Rename(dir, dir+".away"))
				f.putDevice(f.device, fmt.Sprint("ams-", time.Now().Unix())) // so that there is something to save
			} else {
				f.must(os.Rename(dir+".away", dir))
			}
		}, "no such file", "the list of links is saved again"},
	} {
		for name, fails := range patterns {
			t.Run(fault.name+"/"+name, func(t *testing.T) {
				find(t, func(f *finder) {
					f.putLink(key("link", 1), "ams:lon", f.device, key("lon", 0), "172.16.0.0/31", LinkActivated)
					f.host("eth1", "172.16.0.0/31")
					f.run()
					begin := time.Now().Add(time.Hour - 5*time.Second)
					failing := false
					for time.Since(begin) < outage+5*time.Hour {
						if now := fails(time.Since(begin)); now != failing {
							failing = now
							fault.set(f, failing)
						}
						pass(5 * time.Second)
					}
					f.stop()
					checkLines(f, f.logs, begin, fault.cause, fault.ends)
				})
			})
		}
	}
}

func (f *finder) must(err error) { must(f, err) }
func (l *lab) must(err error)    { must(l, err) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// news are messages that are about no fault.
var news = []string{"an epoch begins", "links of the device"}

// fewLines checks that the lines since an outage began are few, and that the first has its cause.
func fewLines(t testing.TB, logs *observer.ObservedLogs, begin time.Time, cause string) (lines []observer.LoggedEntry) {
	t.Helper()
	for _, l := range logs.All() {
		if !l.Time.Before(begin) && !slices.Contains(news, l.Message) {
			lines = append(lines, l)
		}
	}
	if len(lines) < 2 || len(lines) > 9 {
		t.Fatalf("%d lines, want 2 to 9: %v", len(lines), lines[:min(len(lines), 20)])
	}
	first := lines[0]
	if first.Level < zap.WarnLevel || first.Time.Sub(begin) > 15*time.Minute || !strings.Contains(fmt.Sprint(first.ContextMap()), cause) {
		t.Errorf("the first line is %v %v, %v after the outage began; want a warning with the cause soon", first.Message, first.ContextMap(), first.Time.Sub(begin))
	}
	return lines
}

// checkAccounts checks how many accounts a line is about.
func checkAccounts(t testing.TB, line observer.LoggedEntry, want int64) {
	t.Helper()
	if got := line.ContextMap()["accounts"]; got != want {
		t.Errorf("line %q %v: %v accounts, want %d", line.Message, line.ContextMap(), got, want)
	}
}

// checkLines checks the lines of an outage that began then.
func checkLines(t testing.TB, logs *observer.ObservedLogs, begin time.Time, cause, ends string) []observer.LoggedEntry {
	t.Helper()
	lines := fewLines(t, logs, begin, cause)
	end := slices.IndexFunc(lines, func(l observer.LoggedEntry) bool { return l.Message == ends && l.Time.Sub(begin) >= outage })
	if end < 0 {
		t.Fatalf("no line %q after the outage: %v", ends, lines)
	}
	last := lines[end].ContextMap()
	n, _ := last["failed_attempts"].(int64)
	if lasted, _ := last["after"].(time.Duration); n < 10 || lasted < outage-20*time.Minute || lasted > outage+20*time.Minute {
		t.Errorf("the end is %v; want how often and for how long", last)
	}
	return lines
}
