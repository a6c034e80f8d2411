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
					checkLines(t, l.logs, begin, fault.cause, fault.ends)
				})
			})
		}
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
					checkLines(t, f.logs, begin, fault.cause, fault.ends)
				})
			})
		}
	}
}

func (f *finder) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// news are messages that are about no fault.
var news = []string{"an epoch begins", "links of the device"}

// checkLines checks the lines of an outage that began then.
func checkLines(t *testing.T, logs *observer.ObservedLogs, begin time.Time, cause, ends string) {
	t.Helper()
	var lines []observer.LoggedEntry
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
	end := slices.IndexFunc(lines, func(l observer.LoggedEntry) bool { return l.Message == ends && l.Time.Sub(begin) >= outage })
	if end < 0 {
		t.Fatalf("no line %q after the outage: %v", ends, lines)
	}
	last := lines[end].ContextMap()
	n, _ := last["failed_attempts"].(int64)
	if lasted, _ := last["after"].(time.Duration); n < 10 || lasted < outage-20*time.Minute || lasted > outage+20*time.Minute {
		t.Errorf("the end is %v; want how often and for how long", last)
	}
}
