// SPDX-License-Identifier: Apache-2.0

package doublezero

import "testing"

// The addresses, and how many hashes each takes, were made with solana-go v1.21.0.
func TestAddressWithEachBump(t *testing.T) {
	for _, v := range []struct {
		epoch uint64
		bump  uint8
		want  string
	}{
		{0, 255, "4LcQwGXQFLiS1kv9UjMSYuGL7E35myn9AsDGhtVXoNoW"},
		{6, 254, "EPaUawGhqPELSgBMgXbYPShFnQqzntKxjXwGo37UFt1k"},
		{1, 253, "GJ8dPo4MtSaq5YcKVAEghJ9n2DY5cHsYh1zkCvksPQnR"},
		{15, 252, "ES39E1UTKN9pRX8UmF8G3newsHTLJrkCTMqX5Mc7ozvn"},
		{7, 251, "Ewjmp7hMxRAFakxbnfF4Q7tLU2j3QLHE9W7JZmgodorw"},
		{21, 250, "F3pfQpFzHnhQNurKGZLBoLJEuDds5YpSHC3wX97EQsZT"},
		{126, 249, "4ypJtzqCEwyPf77uBJj2HcQaXuT9vNQbmZEhsRgMJFVt"},
		{3068, 242, "B8aciW9RU1zgTmnsZynnHCxhHvmGRSVwfa3rrfuAyZLp"},
	} {
		k := AccountKey{Origin: amsterdam, Target: london, Link: amsLon, Epoch: v.epoch}
		got, bump, err := k.Address(devnetProgram)
		if err != nil || got.String() != v.want || bump != v.bump {
			t.Errorf("epoch %d: address %s, bump %d, error %v; want %s, %d", v.epoch, got, bump, err, v.want, v.bump)
		}
	}
}
