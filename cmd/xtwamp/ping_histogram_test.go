// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// spreadOf counts RTTs in microseconds.
func spreadOf(rtts ...float64) spread {
	s := make(spread)
	for _, rtt := range rtts {
		s.add(int64(math.Round(rtt * 1e3)))
	}
	return s
}

func TestHistogram(t *testing.T) {
	around := []float64{41, 42, 42.5, 42.9, 43, 43.1, 43.9, 44, 44.4, 45, 46.2, 49.999, 50}
	for _, tt := range []struct {
		name    string
		rtts    []float64
		columns int
		unicode bool
		want    string
	}{
		{"no reply", nil, 80, true, ""},
		{"one reply", []float64{45.123}, 80, true, `
45.12 to 45.13 us  1  ██████████████████████████████████████████████████
`},
		{"equal replies", []float64{45.123, 45.123, 45.123}, 40, false, `
45.12 to 45.13 us  3  #################
`},
		{"close together", around, 80, true, `
41 to 42 us  1  ████████████████▊
42 to 43 us  3  ██████████████████████████████████████████████████
43 to 44 us  3  ██████████████████████████████████████████████████
44 to 45 us  2  █████████████████████████████████▍
45 to 46 us  1  ████████████████▊
46 to 47 us  1  ████████████████▊
47 to 48 us  0
48 to 49 us  0
49 to 50 us  1  ████████████████▊
50 to 51 us  1  ████████████████▊
`},
		{"narrow terminal", around, 20, true, `
41 to 42 us  1  █
42 to 43 us  3  ███
43 to 44 us  3  ███
44 to 45 us  2  ██
45 to 46 us  1  █
46 to 47 us  1  █
47 to 48 us  0
48 to 49 us  0
49 to 50 us  1  █
50 to 51 us  1  █
`},
		{"wide terminal, ASCII", around, 200, false, `
41 to 42 us  1  #################
42 to 43 us  3  ##################################################
43 to 44 us  3  ##################################################
44 to 45 us  2  ##################################
45 to 46 us  1  #################
46 to 47 us  1  #################
47 to 48 us  0
48 to 49 us  0
49 to 50 us  1  #################
50 to 51 us  1  #################
`},
		{"far away", []float64{20_000, 20_010, 20_020, 20_110}, 60, false, `
20000 to 20010 us  1  #####################################
20010 to 20020 us  1  #####################################
20020 to 20030 us  1  #####################################
20030 to 20040 us  0
20040 to 20050 us  0
20050 to 20060 us  0
20060 to 20070 us  0
20070 to 20080 us  0
20080 to 20090 us  0
20090 to 20100 us  0
20100 to 20110 us  0
20110 to 20120 us  1  #####################################
`},
		{"one is late", []float64{40, 42, 45, 51, 59, 61, 1_200}, 40, true, `
  40 to   60 us  5  ███████████████████
  60 to  100 us  1  ███▉
 100 to  150 us  0
 150 to  250 us  0
 250 to  400 us  0
 400 to  600 us  0
 600 to 1000 us  0
1000 to 1500 us  1  ███▉
`},
		{"5 us to 1 s", []float64{5, 9, 11, 40, 1_000_000}, 60, true, `
      3 to      10 us  2  █████████████████████████████████
     10 to      30 us  1  ████████████████▌
     30 to     100 us  1  ████████████████▌
    100 to     300 us  0
    300 to    1000 us  0
   1000 to    3000 us  0
   3000 to   10000 us  0
  10000 to   30000 us  0
  30000 to  100000 us  0
 100000 to  300000 us  0
 300000 to 1000000 us  0
1000000 to 3000000 us  1  ████████████████▌
`},
		{"only what cannot be", []float64{0}, 60, false, "\n0.010 to 0.011 us  1  " + strings.Repeat("#", 37) + "\n"},
		{"what cannot be", []float64{-1, 0, 0.001, 180e6}, 60, false, `
         0.01 to          0.10 us  3  #####################
         0.10 to          1.00 us  0
         1.00 to         10.00 us  0
        10.00 to        100.00 us  0
       100.00 to       1000.00 us  0
      1000.00 to      10000.00 us  0
     10000.00 to     100000.00 us  0
    100000.00 to    1000000.00 us  0
   1000000.00 to   10000000.00 us  0
  10000000.00 to  100000000.00 us  0
 100000000.00 to 1000000000.00 us  1  #######
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := spreadOf(tt.rtts...).histogram(tt.columns, tt.unicode)
			if diff := cmp.Diff(strings.TrimPrefix(tt.want, "\n"), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestHistogramCountsEachReplyOnceInItsRow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := rapid.Int64Range(10, 100e9).Draw(t, "base")
		values := rapid.SliceOfN(rapid.Int64Range(base, base+rapid.Int64Range(0, 2*base).Draw(t, "width")), 1, 100).Draw(t, "near")
		values = append(values, rapid.SliceOfN(rapid.Int64Range(10, 180e9), 0, 10).Draw(t, "anywhere")...)
		s := make(spread)
		for _, ns := range values {
			s.add(ns)
		}
		columns := rapid.IntRange(80, 200).Draw(t, "columns")
		text := s.histogram(columns, false)
		rows := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if len(rows) > histogramRows {
			t.Errorf("%d rows", len(rows))
		}
		for i, row := range rows {
			var from, to float64
			var n int
			if _, err := fmt.Sscanf(row, "%f to %f us %d", &from, &to, &n); err != nil {
				t.Fatalf("%v in %q", err, row)
			}
			low, high := int64(math.Round(from*1e3)), int64(math.Round(to*1e3))
			want := 0
			for _, ns := range values {
				if low <= ns && ns < high {
					want++
				}
			}
			if n != want || want == 0 && (i == 0 || i == len(rows)-1) || (n == 0) == strings.Contains(row, "#") || len(row) >= columns {
				t.Errorf("row %q of %d; want %d in it, a bar if there are any, and none empty at the ends, in:\n%s", row, len(rows), want, text)
			}
		}
	})
}
