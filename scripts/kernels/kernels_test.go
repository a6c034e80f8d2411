// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// aMachine is what a machine prints on which all goes well.
const aMachine = `### kernel 5.10.0-46-cloud-amd64
### begin bpf
=== RUN   TestA
=== RUN   TestA/tcx
    a_test.go:1: tcx came later
    a_test.go:2: result: Ethernet = clsact
--- PASS: TestA (1.00s)
    --- SKIP: TestA/tcx (0.50s)
PASS
### end bpf ok
### done
`

func TestWhatAMachineSaysDecides(t *testing.T) {
	allowedSkips["bpf TestA/tcx"] = "for this test"
	defer delete(allowedSkips, "bpf TestA/tcx")
	for _, c := range []struct{ name, from, to, want string }{
		{"all well", "", "", ""},
		{"failed", "--- PASS: TestA", "--- FAIL: TestA", "tests failed:\n\tbpf TestA"},
		{"skipped", "--- PASS: TestA", "--- SKIP: TestA", "not among the allowed skips:\n\tbpf TestA"},
		{"did not end", "--- PASS: TestA (1.00s)\n", "panic: oh\n", "bpf TestA"},
		{"failed outside of tests", "bpf ok", "bpf exit status 1", "bpf: exit status 1"},
		{"cut off", "### done\n", "", "ended before its tests did"},
		{"another kernel", "kernel 5.10", "kernel 5.1", "booted Linux 5.1.0"},
		{"cannot begin", "### begin bpf", "### error: no module veth", "no module veth"},
		{"nothing", aMachine, "### done\n", "no test passed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newReport(io.Discard, "5.10")
			if err := r.read(strings.NewReader(strings.Replace(aMachine, c.from, c.to, 1))); err != nil {
				t.Fatal(err)
			}
			err := r.finish()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if diff := cmp.Diff(map[string]string{"Ethernet": "clsact"}, r.results); diff != "" && c.name != "nothing" {
				t.Errorf("results (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadmeHasTheResults(t *testing.T) {
	dir := t.TempDir()
	readme, results := filepath.Join(dir, "README.md"), filepath.Join(dir, "kernels.md")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old := &report{release: "5.10.0-1", order: []string{"GRE"}, results: map[string]string{"GRE": "socket"}}
	newer := &report{release: "6.1.0-1", order: []string{"GRE", "XDP"}, results: map[string]string{"GRE": "clsact", "XDP": "xdp"}}
	want := "| | 5.10.0-1 | 6.1.0-1 |\n| --- | --- | --- |\n| GRE | socket | clsact |\n| XDP | not tested | xdp |\n"
	if diff := cmp.Diff(want, table([]*report{old, newer})); diff != "" {
		t.Fatalf("table (-want +got):\n%s", diff)
	}
	write(results, want)
	write(readme, "before\n"+tableBegin+tableEnd+"after\n")
	if err := checkReadme(readme, results); err == nil {
		t.Error("a README without the table is as it should be")
	}
	if err := writeReadme(readme, results); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(readme)
	if diff := cmp.Diff("before\n"+tableBegin+want+tableEnd+"after\n", string(got)); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	write(results, strings.ReplaceAll(want, "5.10.0-1", "5.10.0-2")) // an update of the kernel is no change
	if err := checkReadme(readme, results); err != nil {
		t.Error(err)
	}
	write(results, strings.ReplaceAll(want, "socket", "clsact"))
	if err := checkReadme(readme, results); err == nil {
		t.Error("another result is not noticed")
	}
	write(readme, "no table")
	if err := writeReadme(readme, results); err == nil {
		t.Error("a README without a place for the table is written")
	}
}

func TestArchiveIsWhatTheKernelReads(t *testing.T) {
	name := filepath.Join(t.TempDir(), "archive")
	if err := writeArchive(name, []file{{name: "a/b", content: []byte("12345")}}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	header := func(inode, mode, size, nameSize string) string {
		zero := strings.Repeat("0", 8)
		return "070701" + inode + mode + zero + zero + "00000001" + zero + size + zero + zero + zero + zero + nameSize + zero
	}
	want := header("00000001", "000041ed", "00000000", "00000002") + "a\x00" +
		header("00000002", "000081ed", "00000005", "00000004") + "a/b\x00\x00\x00" + "12345\x00\x00\x00" +
		header("00000003", "00000000", "00000000", "0000000b") + "TRAILER!!!\x00\x00\x00\x00"
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPassOnStopsWhereKVMGivesUp(t *testing.T) {
	const said = "qemu: warning: one\nKVM internal error. Suberror: 1\nextra data[0]: 0x1\n"
	var got strings.Builder
	if !passOn(strings.NewReader(said), &got) || got.String() != "qemu: warning: one\n" {
		t.Errorf("%q was passed on of %q", &got, said)
	}
	got.Reset()
	if harmless := said[:strings.Index(said, "KVM")]; passOn(strings.NewReader(harmless), &got) || got.String() != harmless {
		t.Errorf("%q was passed on of %q", &got, harmless)
	}
}
