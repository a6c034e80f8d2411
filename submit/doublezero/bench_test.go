// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/submit"
	"github.com/xtwamp/xtwamp/submit/doublezero/ledgertest"
)

// BenchmarkDrain drains the backlog of ten links into a ledger on the loopback device: one that finalizes as fast as it can, and one that
// takes 13 s as the real one, where nearly all is waiting. The CPU time has the store's, HTTP's and the ledger's in it.
func BenchmarkDrain(b *testing.B) {
	const links = 10
	for _, test := range []struct {
		name     string
		samples  int // of each link
		slot     time.Duration
		finality uint64
		poll     time.Duration
	}{
		{"no delay", 20 * MaxSamplesPerWrite, time.Millisecond, 1, 5 * time.Millisecond},
		{"13 s finality", 3 * MaxSamplesPerWrite, 400 * time.Millisecond, 32, time.Second},
	} {
		b.Run(test.name, func(b *testing.B) {
			for range b.N {
				l := ledgertest.New(ledgertest.Options{SlotTime: test.slot, Finality: test.finality, SlotIndex: 400_000})
				ln, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					b.Fatal(err)
				}
				l.Serve(ln, ledgertest.Address{Name: ln.Addr().String()})
				agent := ledgertest.Pubkey(newKeypair(seed).Public())
				l.Fund(agent, 1000e9)
				device := key("device", 0)
				l.PutDevice(ledgertest.Pubkey(device), ledgertest.Device{Status: ledgertest.DeviceActivated, Publisher: agent})
				now, path := time.Now(), filepath.Join(b.TempDir(), "samples.db")
				log, err := store.Open(store.Config{Path: path, Boot: "boot"})
				if err != nil {
					b.Fatal(err)
				}
				log.SetOffset(store.Offset{Nanoseconds: now.Add(-100 * time.Hour).UnixNano(), Synchronized: true})
				if err := log.Enable(Name, true, Takes); err != nil {
					b.Fatal(err)
				}
				every := 300 * time.Second / time.Duration(test.samples) // all within the epoch, which is 400 s old or more
				every = every.Truncate(time.Microsecond)
				for n := range links {
					target, link := key("target", n), key("link", n)
					l.PutDevice(ledgertest.Pubkey(target), ledgertest.Device{Status: ledgertest.DeviceActivated})
					l.PutLink(ledgertest.Pubkey(link), ledgertest.Link{
						Status: ledgertest.LinkActivated, SideA: ledgertest.Pubkey(device), SideZ: ledgertest.Pubkey(target),
					})
					p, err := log.Register(fmt.Sprintf("p%d", n), map[string]string{LabelLink: link.String(), LabelTarget: target.String()})
					if err != nil {
						b.Fatal(err)
					}
					var batch []store.Record
					for i := range test.samples {
						mono := 100*time.Hour - 20*time.Second - time.Duration(test.samples-i)*every
						batch = append(batch, store.Record{Path: p.ID, Sample: store.Sample{Mono: int64(mono), Outcome: store.OnTime, RTT: int64(i+1) * 1000}})
					}
					if err := log.Append(batch); err != nil {
						b.Fatal(err)
					}
				}
				program, _ := TelemetryProgram("devnet")
				sink := New(Config{
					Endpoints: &direct{RoundTripper: dialer(ln.Addr().String()), calls: make(map[string]int)}, Log: log, Keypair: newKeypair(seed),
					Program: program, Device: device, SampleInterval: every, FlushInterval: time.Second, FillGaps: true, MaxConcurrency: links,
					Logger: zap.NewNop(), Poll: test.poll,
				})
				s, err := submit.New(submit.Config{Log: log, Sink: sink, Interval: time.Second, Logger: zap.NewNop()})
				if err != nil {
					b.Fatal(err)
				}
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error, 1)
				began, cpu := time.Now(), cpuTime(b)
				go func() { done <- s.Run(ctx) }()
				for {
					totals, err := log.Totals(Name)
					if err != nil {
						b.Fatal(err)
					}
					if totals.Waiting == 0 {
						break
					}
					pass(10 * time.Millisecond)
				}
				took, used := time.Since(began), cpuTime(b)-cpu
				cancel()
				if err := <-done; err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(links*test.samples)/took.Seconds(), "samples/s")
				b.ReportMetric(float64(used.Nanoseconds())/float64(links*test.samples), "cpu-ns/sample")
				b.ReportMetric(100*used.Seconds()/took.Seconds(), "cpu-%")
				if err := log.Close(); err != nil {
					b.Fatal(err)
				}
				l.Close()
			}
		})
	}
}

// BenchmarkOwnCode is what this package does itself for a full write: laying it out, signing it, and reading the header. Against the same
// figure of BenchmarkDrain that is the share of our own code.
func BenchmarkOwnCode(b *testing.B) {
	program, _ := TelemetryProgram("devnet")
	a := newAgent(newKeypair(seed), program, "1.0.0", "abcd1234")
	var samples []store.Sample
	for i := range MaxSamplesPerWrite {
		samples = append(samples, onTime(float64(10*i), time.Millisecond))
	}
	header := ledgertest.Samples{IntervalMicros: 10e6, Values: make([]uint32, MaxSamplesPerWrite)}.Encode()
	for b.Loop() {
		batch, _ := plan(axis(0), samples)
		if _, _, err := a.writeTransaction(key("account", 0), 1, batch.values, hash{1}); err != nil {
			b.Fatal(err)
		}
		if _, err := DecodeHeader(header); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*MaxSamplesPerWrite), "cpu-ns/sample")
}

// cpuTime is what this process has used.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
