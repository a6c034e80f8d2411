// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"bytes"
	"encoding/hex"
	"testing"
)

func TestTransactionsThatAreRefused(t *testing.T) {
	a := transactionVectors[0].agent()
	for n, want := range map[int]string{
		0:                      "write of 0 samples: expected 1 to 239",
		MaxSamplesPerWrite + 1: "write of 240 samples: expected 1 to 239",
	} {
		signed, sig, err := a.writeTransaction(amsLon, 1, make([]uint32, n), someBlock)
		if err == nil || err.Error() != want || signed != nil || sig != (Signature{}) {
			t.Errorf("%d samples: %d bytes, error %v, want %q", n, len(signed), err, want)
		}
	}
	const want = "initialize with a sampling interval of 0"
	signed, sig, err := a.initializeTransaction(transactionVectors[0].key, 0, someBlock)
	if err == nil || err.Error() != want || signed != nil || sig != (Signature{}) {
		t.Errorf("no interval: %d bytes, error %v, want %q", len(signed), err, want)
	}
}

func TestOneSampleMoreWouldNotFit(t *testing.T) {
	a := transactionVectors[0].agent()
	data := writeData(1, make([]uint32, MaxSamplesPerWrite+1), a.release)
	const want = "transaction of 1234 bytes: expected at most 1232"
	if signed, _, err := a.sign(instruction{account: amsLon, readOnly: []Pubkey{systemProgram}, data: data}, someBlock); err == nil || err.Error() != want {
		t.Errorf("%d bytes, error %v, want %q", len(signed), err, want)
	}
}

// No two batches may be the same bytes, or the second would pass for the first; a batch that is signed again must be.
func TestTransactionsDiffer(t *testing.T) {
	a := transactionVectors[0].agent()
	sign := func(start uint64, samples []uint32, blockhash hash) []byte {
		signed, _, err := a.writeTransaction(amsLon, start, samples, blockhash)
		if err != nil {
			t.Fatal(err)
		}
		return signed
	}
	zeros := []uint32{0, 0}
	first := sign(1, zeros, hash{1})
	if !bytes.Equal(first, sign(1, zeros, hash{1})) {
		t.Error("the same again has other bytes")
	}
	for what, other := range map[string][]byte{
		"start": sign(2, zeros, hash{1}), "blockhash": sign(1, zeros, hash{2}), "samples": sign(1, []uint32{0}, hash{1}),
	} {
		if bytes.Equal(first, other) {
			t.Errorf("another %s makes no difference", what)
		}
	}
}

func TestCompactLength(t *testing.T) {
	for n, want := range map[int]string{
		0: "00", 1: "01", 0x7f: "7f", 0x80: "8001", 0xff: "ff01", 0x3fff: "ff7f", 0x4000: "808001", 0xffff: "ffff03",
	} {
		if got := hex.EncodeToString(appendCompact(nil, n)); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
