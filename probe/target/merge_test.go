// SPDX-License-Identifier: Apache-2.0

package target

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func named(name string, edit ...func(*Target)) Target {
	t := valid()
	t.Name = name
	for _, e := range edit {
		e(&t)
	}
	return t
}

func names(targets []Target) (names []string) {
	for _, t := range targets {
		names = append(names, t.Name)
	}
	return names
}

func TestMerge(t *testing.T) {
	port := func(p uint16) func(*Target) { return func(t *Target) { t.SourcePort = p } }
	targets, conflicts := Merge([]Source{
		{"one", []Target{named("a"), named("b", port(5000))}},
		{"two", []Target{named("c"), named("a", func(t *Target) { t.Address = "192.0.2.9" })}},
		{"three", []Target{named("d", port(5000)), named("e", port(5001)), named("f")}},
	})
	if diff := cmp.Diff([]string{"a", "b", "c", "e", "f"}, names(targets)); diff != "" {
		t.Error(diff)
	}
	if targets[0].Address != "192.0.2.1" {
		t.Error("the second target of a name has taken the place of the first")
	}
	if len(conflicts) != 2 || !strings.HasPrefix(conflicts[0], "a of two: ") || !strings.Contains(conflicts[0], "one") ||
		!strings.HasPrefix(conflicts[1], "d of three: ") || !strings.Contains(conflicts[1], "b has the same") {
		t.Errorf("conflicts: %q", conflicts)
	}
}
