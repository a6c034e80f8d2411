// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Thousands of paths are registered in a few transactions, those that are known as they are included.
func TestRegisterAll(t *testing.T) {
	commits := 0
	f := newFixture(t, func(c *Config) {
		c.Fault = func(op string) {
			if op == "register" {
				commits++
			}
		}
	})
	f.enable("file", false)
	known := f.register("p0007", "other")
	f.add(known[0], 0, 3)
	commits = 0

	var wanted []Path
	for i := range 10_000 {
		wanted = append(wanted, Path{Name: fmt.Sprintf("p%04d", i)})
	}
	wanted[8].Labels = map[string]string{"circuit": "42"}
	wanted = append(wanted, Path{Name: "p0003"}, Path{Name: "p9999"}) // again: one of long ago, one of the same transaction
	got, err := f.RegisterAll(wanted)
	if err != nil {
		t.Fatal(err)
	}
	if most := len(wanted)/registerAtOnce + 1; commits > most {
		t.Errorf("%d transactions, want at most %d", commits, most)
	}
	ids := make(map[PathID]string)
	for i, p := range got {
		if p.Name != wanted[i].Name || ids[p.ID] != "" && i < 10_000 {
			t.Fatalf("path %d: %+v, whose ID %q has already", i, p, ids[p.ID])
		}
		ids[p.ID] = p.Name
	}
	if got[7].ID != known[0] || got[8].Labels["circuit"] != "42" || len(ids) != 10_000 {
		t.Errorf("p0007 is %+v, p0008 is %+v, %d IDs", got[7], got[8], len(ids))
	}

	// What the file holds is the same, and each path is one of the sink's.
	f.add(got[9999].ID, 0, 2)
	f.reopen()
	f.enable("file", false)
	again, err := f.RegisterAll(wanted)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, again); diff != "" {
		t.Errorf("after opening again (-want +got)\n%s", diff)
	}
	if totals := f.totals("file"); totals.Offered != 5 || totals.Waiting != 5 {
		t.Errorf("totals %+v, want 5 offered and waiting", totals)
	}

	if _, err := f.RegisterAll([]Path{{Name: "a"}, {}}); err == nil {
		t.Error("a path without a name is let in")
	}
}
