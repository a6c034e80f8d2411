// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

const (
	histogramRows = 12 // at most
	histogramBar  = 50 // columns of the longest bar, at most
)

// spread counts RTTs in ns by their first four digits. The edges of a
// histogram have no more digits, so that each RTT is in its row; and memory is
// bounded, however many there are.
type spread map[int64]uint64

func (s spread) add(ns int64) {
	ns = max(ns, 10) // the lowest edge
	s[ns-ns%precision(ns)]++
}

// precision is the unit of the fourth digit of a number.
func precision(ns int64) int64 {
	unit := int64(1)
	for ns/unit >= 10_000 {
		unit *= 10
	}
	return unit
}

// edges are those of the rows for values from low to high: from the last edge
// not above low to the first above high. Rows are equally wide where that
// shows enough of the lower ones, and grow with the values elsewhere.
func edges(low, high int64) []int64 {
	if high < 5*low {
		for unit := precision(high); ; unit *= 10 {
			for _, m := range []int64{1, 2, 3, 5} {
				if step := m * unit; high/step-low/step < histogramRows {
					return linearEdges(low, high, step)
				}
			}
		}
	}
	for _, decade := range [][]int64{{10, 12, 15, 20, 25, 30, 40, 50, 60, 80}, {10, 15, 25, 40, 60}, {10, 20, 50}, {10, 30}} {
		if e := decadeEdges(low, high, decade); len(e) <= histogramRows+1 {
			return e
		}
	}
	return decadeEdges(low, high, []int64{10})
}

func linearEdges(low, high, step int64) []int64 {
	e := []int64{low - low%step}
	for e[len(e)-1] <= high {
		e = append(e, e[len(e)-1]+step)
	}
	return e
}

func decadeEdges(low, high int64, decade []int64) (e []int64) {
	for unit := int64(1); ; unit *= 10 {
		for _, m := range decade {
			edge := m * unit
			if edge <= low {
				e = e[:0]
			}
			if e = append(e, edge); edge > high {
				return e
			}
		}
	}
}

// histogram draws a spread on so many columns; "" if it is empty. Bars are of
// Unicode blocks, which have eighths, or of ASCII.
func (s spread) histogram(columns int, unicode bool) string {
	if len(s) == 0 {
		return ""
	}
	values := slices.Sorted(maps.Keys(s))
	e := edges(values[0], values[len(values)-1])
	rows := make([]uint64, len(e)-1)
	row := 0
	for _, v := range values {
		for v >= e[row+1] {
			row++
		}
		rows[row] += s[v]
	}
	most := slices.Max(rows)

	decimals := 0
	for unit := int64(1000); slices.ContainsFunc(e, func(edge int64) bool { return edge%unit != 0 }); unit /= 10 {
		decimals++
	}
	edgeWidth, countWidth := len(fmt.Sprintf("%.*f", decimals, us(e[len(e)-1]))), len(fmt.Sprint(most))
	bar := min(max(columns-1-2*edgeWidth-countWidth-len(" to  us    "), 1), histogramBar)

	var b strings.Builder
	for i, n := range rows {
		label := fmt.Sprintf("%*.*f to %*.*f us  %*d  ", edgeWidth, decimals, us(e[i]), edgeWidth, decimals, us(e[i+1]), countWidth, n)
		b.WriteString(strings.TrimRight(label+blocks(float64(n)*float64(bar)/float64(most), unicode), " "))
		b.WriteByte('\n')
	}
	return b.String()
}

// blocks is a bar of so many columns; what is not nothing can be seen.
func blocks(columns float64, unicode bool) string {
	if !unicode {
		return strings.Repeat("#", int(math.Ceil(columns)))
	}
	eighths := int(math.Ceil(8 * columns))
	bar := strings.Repeat("█", eighths/8)
	if part := eighths % 8; part > 0 {
		bar += string([]rune("▏▎▍▌▋▊▉")[part-1])
	}
	return bar
}
