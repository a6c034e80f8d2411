// SPDX-License-Identifier: Apache-2.0

package ledgertest

import (
	"net/http"
	"testing"
)

// BenchmarkRequest is what the ledger's answer to one small request costs, over connections in memory.
func BenchmarkRequest(b *testing.B) {
	for _, w := range wires() {
		b.Run(w.name, func(b *testing.B) {
			l := New(Options{})
			b.Cleanup(l.Close)
			a := w.a
			a.Name = there
			l.Listen(a)
			client, scheme := w.client(b, l, false)
			for b.Loop() {
				if resp, _, err := post(client, scheme+"://"+there, request("getEpochInfo", "")); err != nil || resp.StatusCode != http.StatusOK {
					b.Fatal(resp, err)
				}
			}
		})
	}
}
