// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// processWrites returns how many bytes this process has handed to write calls.
func processWrites(t testing.TB) (n int64) {
	t.Helper()
	f, err := os.Open("/proc/self/io")
	if err != nil {
		t.Skipf("the kernel does not count: %v", err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "wchar:") {
			_, err := fmt.Sscanf(lines.Text(), "wchar: %d", &n)
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return n
}

// 20 paths at 10 s, an append every 10 s, maintenance every minute, a sink that commits every 60 s: at most 300 MB a day on flash.
func TestWriteVolumeOfADay(t *testing.T) {
	const paths, day, limit = 20, 24 * time.Hour, 300_000_000
	f := newFixture(t, func(c *Config) { c.Retention = 72 * time.Hour })
	var ids []PathID
	for i := range paths {
		ids = append(ids, f.register(fmt.Sprintf("device-%02d:Ethernet%d/1", i, i))...)
	}
	f.enable("file", false)
	before, counted := processWrites(t), f.status().WrittenBytes
	for tick := range int(day / interval) {
		var batch []Record
		for n, id := range ids {
			s := sampleNumber(tick + n*1000)
			s.Mono = int64(tick)*int64(interval) + int64(n)*int64(interval)/paths + s.Mono%90_000
			batch = append(batch, Record{id, s})
		}
		f.clock.advance(interval)
		f.SetOffset(Offset{Nanoseconds: bootTime.UnixNano() + int64(tick%50)*1000, Synchronized: true})
		if err := f.Append(batch); err != nil {
			t.Fatal(err)
		}
		if tick%6 != 5 {
			continue
		}
		if err := f.Maintain(); err != nil {
			t.Fatal(err)
		}
		u := Update{Positions: map[PathID]uint64{}, Put: map[string][]byte{"offset": fmt.Append(nil, tick)}}
		for _, id := range ids {
			samples, err := f.Next("file", id, 1000)
			if err != nil {
				t.Fatal(err)
			}
			u.Positions[id] = samples[len(samples)-1].Seq + 1
			u.Delivered += uint64(len(samples))
		}
		if err := f.Commit("file", u); err != nil {
			t.Fatal(err)
		}
	}
	written, status := processWrites(t)-before, f.status()
	counted = status.WrittenBytes - counted
	t.Logf("%d MB written in a day (counted: %d MB); the file has %.1f MB", written/1e6, counted/1e6, float64(status.Bytes)/1e6)
	if written > limit {
		t.Errorf("%d bytes written in a day, limit %d", written, limit)
	}
	if counted < written*99/100 || counted > written*101/100 {
		t.Errorf("status counts %d bytes written, the kernel %d", counted, written)
	}
	if n := f.totals("file"); n.Delivered != paths*uint64(day/interval) {
		t.Errorf("totals %+v", n)
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, paths := range []int{20, 10_000} {
		for _, sync := range []bool{false, true} {
			b.Run(fmt.Sprintf("paths=%d/sync=%v", paths, sync), func(b *testing.B) {
				f, batch := benchmarkLog(b, paths, sync)
				before := f.status().WrittenBytes
				b.ReportAllocs()
				b.ResetTimer()
				for i := range b.N {
					for n := range batch {
						batch[n].Sample.Mono = int64(i)*int64(interval) + int64(n)*1000
					}
					if err := f.Append(batch); err != nil {
						b.Fatal(err)
					}
					if i%60 == 59 {
						b.StopTimer()
						if err := f.fold(); err != nil {
							b.Fatal(err)
						}
						before += f.status().WrittenBytes - before
						b.StartTimer()
					}
				}
				b.StopTimer()
				if n := b.N % 60; n > 0 {
					b.ReportMetric(float64(f.status().WrittenBytes-before)/float64(n), "written-B/op")
				}
			})
		}
	}
}

// BenchmarkFold folds 60 samples of each path, as Maintain does every ten minutes.
func BenchmarkFold(b *testing.B) {
	for _, paths := range []int{20, 10_000} {
		b.Run(fmt.Sprintf("paths=%d", paths), func(b *testing.B) {
			f, batch := benchmarkLog(b, paths, false)
			var written int64
			for i := range b.N {
				b.StopTimer()
				for k := range 60 {
					for n := range batch {
						batch[n].Sample.Mono = int64(i*60+k)*int64(interval) + int64(n)*1000
					}
					if err := f.Append(batch); err != nil {
						b.Fatal(err)
					}
				}
				before := f.status().WrittenBytes
				b.StartTimer()
				if err := f.fold(); err != nil {
					b.Fatal(err)
				}
				written += f.status().WrittenBytes - before
			}
			b.ReportMetric(float64(written)/float64(b.N), "written-B/op")
		})
	}
}

func benchmarkLog(b *testing.B, paths int, sync bool) (*fixture, []Record) {
	f := newFixture(b, func(c *Config) { c.NoSync = !sync; c.MaxBytes = 4 << 30 })
	f.file.bolt.NoSync = true // not for registering
	var batch []Record
	for i := range paths {
		id := f.register(fmt.Sprintf("path-%d", i))[0]
		batch = append(batch, Record{id, sampleNumber(i)})
	}
	f.file.bolt.NoSync = !sync
	f.enable("s", false)
	b.ResetTimer()
	return f, batch
}

func BenchmarkRead(b *testing.B) {
	for _, where := range []string{"chunks", "tail"} {
		b.Run(where, func(b *testing.B) {
			f := newFixture(b)
			id := f.register("a")[0]
			f.add(id, 0, 10_000)
			if where == "chunks" {
				if err := f.fold(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				got, err := f.Read(id, uint64(i%90)*100, 256)
				if err != nil || len(got) != 256 {
					b.Fatal(len(got), err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/256, "ns/sample")
		})
	}
}
