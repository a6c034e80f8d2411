// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDecodeDamagedAccounts(t *testing.T) {
	v1, v0 := unhex(t, accountVectors[1].data), unhex(t, accountVectors[2].data)
	changed := func(data []byte, offset int, b ...byte) []byte {
		data = slices.Clone(data)
		copy(data[offset:], b)
		return data
	}
	full := binary.LittleEndian.AppendUint32(nil, MaxSamples+1)
	for _, v := range []struct {
		name   string
		data   []byte
		header string // error of the header, also of the whole
		whole  string
		kind   bool // it is of another kind
	}{
		{"nothing", nil, "account without data: not a device's samples account", "", true},
		{"internet samples", changed(v1, 0, 4), "account type 4: not a device's samples account", "", true},
		{"a device", changed(v1, 0, 5), "account type 5: not a device's samples account", "", true},
		{"type alone", v1[:1], "account data cut: 1 of the header's 349 bytes", "", false},
		{"header cut", v1[:348], "account data cut: 348 of the header's 349 bytes", "", false},
		{"V0 header cut", v0[:349], "account data cut: 349 of the header's 350 bytes", "", false},
		{"more than fit", changed(v1, 217, full...), "account of 35001 samples: expected at most 35000", "", false},
		{"V0, more than fit", changed(v0, 218, full...), "account of 35001 samples: expected at most 35000", "", false},
		{"samples cut", v1[:349], "", "account data cut: 0 of 3 samples", false},
		{"last sample cut", v1[:360], "", "account data cut: 2 of 3 samples", false},
		{"V0 samples cut", v0[:357], "", "account data cut: 1 of 2 samples", false},
		{"something behind", append(slices.Clone(v1), 1, 2, 3, 4, 5), "", "", false},
	} {
		t.Run(v.name, func(t *testing.T) {
			check := func(what string, err error, want string) {
				t.Helper()
				if got := fmt.Sprint(err); got != want && (err != nil || want != "") {
					t.Errorf("%s: error %q, want %q", what, got, want)
				}
				if errors.Is(err, ErrNotSamples) != v.kind {
					t.Errorf("%s: error %q is ErrNotSamples: %t", what, err, !v.kind)
				}
			}
			h, err := DecodeHeader(v.data)
			check("header", err, v.header)
			if err != nil {
				if diff := cmp.Diff(Header{}, h); diff != "" {
					t.Errorf("header beside an error (-want +got):\n%s", diff)
				}
			}
			if v.whole == "" {
				v.whole = v.header
			}
			_, _, err = DecodeSamples(v.data)
			check("whole", err, v.whole)
		})
	}
}

func TestDecodeAFullAccount(t *testing.T) {
	data := append([]byte{typeSamplesV1}, make([]byte, headerSizeV1-1)...)
	binary.LittleEndian.PutUint32(data[217:], MaxSamples)
	for i := range uint32(MaxSamples) {
		data = binary.LittleEndian.AppendUint32(data, i)
	}
	h, samples, err := DecodeSamples(data)
	if err != nil {
		t.Fatal(err)
	}
	if h.NextIndex != MaxSamples || len(samples) != MaxSamples || samples[MaxSamples-1] != MaxSamples-1 {
		t.Errorf("%d of %d samples, the last one is %d", len(samples), h.NextIndex, samples[len(samples)-1])
	}
}

// encode is the opposite of DecodeSamples, with zeros where that does not look.
func encode(h Header, samples []uint32) []byte {
	b := []byte{typeSamplesV1}
	if h.Version == 0 {
		b = []byte{typeSamplesV0, 0}
	}
	b = binary.LittleEndian.AppendUint64(b, h.Epoch)
	for _, k := range []Pubkey{h.Agent, h.Origin, h.Target, h.OriginLocation, h.TargetLocation, h.Link} {
		b = append(b, k[:]...)
	}
	b = binary.LittleEndian.AppendUint64(b, h.IntervalMicros)
	b = binary.LittleEndian.AppendUint64(b, h.StartMicros)
	b = binary.LittleEndian.AppendUint32(b, h.NextIndex)
	b = append(b, h.AgentVersion[:]...)
	b = append(b, h.AgentCommit[:]...)
	b = append(b, make([]byte, 104)...)
	for _, s := range samples {
		b = binary.LittleEndian.AppendUint32(b, s)
	}
	return b
}

func addAccounts(f *testing.F) {
	for _, v := range accountVectors {
		f.Add(unhex(f, v.data))
	}
	f.Add([]byte{typeSamplesV1})
}

func FuzzDecodeHeader(f *testing.F) {
	addAccounts(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := DecodeHeader(data)
		if err != nil {
			if diff := cmp.Diff(Header{}, h); diff != "" {
				t.Errorf("header beside error %v (-want +got):\n%s", err, diff)
			}
			return
		}
		got, err := DecodeHeader(encode(h, nil))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(h, got); diff != "" {
			t.Errorf("written and read again (-want +got):\n%s", diff)
		}
	})
}

func FuzzDecodeSamples(f *testing.F) {
	addAccounts(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		h, samples, err := DecodeSamples(data)
		if err != nil {
			if samples != nil {
				t.Errorf("samples %v beside error %v", samples, err)
			}
			return
		}
		again := encode(h, samples)
		if len(again) > len(data) || len(samples) != int(h.NextIndex) {
			t.Errorf("%d samples, header says %d, out of %d bytes", len(samples), h.NextIndex, len(data))
		}
		h2, got, err := DecodeSamples(again)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(h, h2); diff != "" {
			t.Errorf("header written and read again (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(samples, got); diff != "" {
			t.Errorf("samples written and read again (-want +got):\n%s", diff)
		}
	})
}
