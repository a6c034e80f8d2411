// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
)

// table is what the tests said, a row for each feature.
func table(reports []*report) string {
	var b strings.Builder
	var features []string
	b.WriteString("| |")
	for _, r := range reports {
		fmt.Fprintf(&b, " %s |", r.release)
		for _, f := range r.order {
			if !slices.Contains(features, f) {
				features = append(features, f)
			}
		}
	}
	b.WriteString("\n|" + strings.Repeat(" --- |", len(reports)+1) + "\n")
	for _, f := range features {
		fmt.Fprintf(&b, "| %s |", f)
		for _, r := range reports {
			result := r.results[f]
			if result == "" {
				result = "not tested"
			}
			fmt.Fprintf(&b, " %s |", result)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// The README has the table between these lines.
const (
	tableBegin = "<!-- kernels: made by scripts/kernels -readme -->\n"
	tableEnd   = "<!-- kernels end -->\n"
)

// cut finds the table in a README.
func cut(readme []byte) (before, table, after []byte, err error) {
	head, rest, ok1 := bytes.Cut(readme, []byte(tableBegin))
	table, tail, ok2 := bytes.Cut(rest, []byte(tableEnd))
	if !ok1 || !ok2 {
		return nil, nil, nil, fmt.Errorf("no lines %q and %q", strings.TrimSpace(tableBegin), strings.TrimSpace(tableEnd))
	}
	return head, table, tail, nil
}

func readBoth(readmeFile, resultFile string) (readme, results []byte, err error) {
	if readme, err = os.ReadFile(readmeFile); err != nil {
		return nil, nil, err
	}
	results, err = os.ReadFile(resultFile)
	return readme, results, err
}

func writeReadme(readmeFile, resultFile string) error {
	readme, results, err := readBoth(readmeFile, resultFile)
	if err != nil {
		return err
	}
	before, _, after, err := cut(readme)
	if err != nil {
		return fmt.Errorf("%s: %w", readmeFile, err)
	}
	return os.WriteFile(readmeFile, slices.Concat(before, []byte(tableBegin), results, []byte(tableEnd), after), 0o644)
}

// checkReadme fails if the README does not have the results, but for the first line: Debian's kernels are updated.
func checkReadme(readmeFile, resultFile string) error {
	readme, results, err := readBoth(readmeFile, resultFile)
	if err != nil {
		return err
	}
	_, table, _, err := cut(readme)
	if err != nil {
		return fmt.Errorf("%s: %w", readmeFile, err)
	}
	_, has, _ := bytes.Cut(table, []byte("\n"))
	_, want, _ := bytes.Cut(results, []byte("\n"))
	if !bytes.Equal(has, want) {
		return fmt.Errorf("the table of %s is not that of %s: run go run ./scripts/kernels -readme", readmeFile, resultFile)
	}
	return nil
}
