// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"path/filepath"
	"testing"
)

func TestLinesComeBackAfterAll(t *testing.T) {
	own, err := newLines()
	if err != nil {
		t.Fatal(err)
	}
	met := make(map[byte]bool)
	line := byte(0)
	for range cacheLines {
		line = own.next(line)
		met[line] = true
	}
	if line != 0 || len(met) != cacheLines {
		t.Errorf("after %d steps at line %d, having met %d of them; want at 0 and all", cacheLines, line, len(met))
	}
}

func TestLooksAreShared(t *testing.T) {
	file := filepath.Join(t.TempDir(), "looks")
	bench, err := openLooks(file)
	if err != nil {
		t.Fatal(err)
	}
	if share := bench.load().emptiedShare(); !math.IsNaN(share) {
		t.Errorf("share of no look is %v", share)
	}
	before := bench.load()
	for range 2 {
		one, err := openLooks(file)
		if err != nil {
			t.Fatal(err)
		}
		one.all.Add(2)
		one.emptied.Add(1)
	}
	got := bench.load().since(before).plus(seen{all: 4})
	if want := (seen{all: 8, emptied: 2}); got != want {
		t.Errorf("looks %v, want %v", got, want)
	}
	if share := got.emptiedShare(); share != 0.25 {
		t.Errorf("share %v, want 0.25", share)
	}
}
