// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"
)

// percentile returns the smallest of values that at least p percent of them do not exceed (nearest rank); NaN of none.
func percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// median returns the middle value, or the mean of the two in the middle; NaN of none.
func median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// spread writes the least and the greatest of the rounds.
func spread(values []float64) string {
	if len(values) == 0 {
		return "-"
	}
	return fmt.Sprintf("%s .. %s", figure(slices.Min(values)), figure(slices.Max(values)))
}

// figure writes a number with three digits that matter.
func figure(v float64) string {
	switch {
	case math.Abs(v) >= 100:
		return fmt.Sprintf("%.0f", v)
	case math.Abs(v) >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// check is one promise: a figure and the limit that it has to keep.
type check struct {
	what    string
	got     float64
	limit   float64
	atLeast bool   // else at most
	unit    string // with the space before it
	missing string // why there is no figure: such a check is neither kept nor missed
}

func (c check) missed() bool {
	switch {
	case c.missing != "":
		return false
	case c.atLeast:
		return !(c.got >= c.limit) // so that NaN is missed
	}
	return !(c.got <= c.limit)
}

func (c check) String() string {
	result, relation := "PASS", "at most"
	if c.missed() {
		result = "MISS"
	}
	if c.atLeast {
		relation = "at least"
	}
	limit := fmt.Sprintf("(%s %v%s)", relation, c.limit, c.unit)
	if c.missing != "" {
		return fmt.Sprintf("----  %s %s: not available: %s", c.what, limit, c.missing)
	}
	return fmt.Sprintf("%s  %s: %s%s %s", result, c.what, figure(c.got), c.unit, limit)
}
