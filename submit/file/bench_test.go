// SPDX-License-Identifier: Apache-2.0

package file

import "testing"

// BenchmarkDelivery delivers one new sample of each of 1,000 paths, as after one commit of the store.
func BenchmarkDelivery(b *testing.B) {
	bench := newBench(b, 1000)
	for b.Loop() {
		b.StopTimer()
		bench.append(1)
		b.StartTimer()
		bench.mustDeliver()
	}
	b.ReportMetric(float64(1000*b.N)/b.Elapsed().Seconds(), "samples/s")
}
