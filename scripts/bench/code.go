// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// bpfPackage has the benchmarks of the BPF programs.
const bpfPackage = "github.com/xtwamp/xtwamp/bpf"

// programLimits are the greatest costs in ns that benchmarks of bpfPackage may report, by name. The first that matches
// counts; what none matches has no limit.
var programLimits = []struct {
	name  *regexp.Regexp
	what  string
	limit float64
}{
	{regexp.MustCompile(`/(arp|tcp6?)$`), "not UDP", 2},
	{regexp.MustCompile(`/other_(remote_)?port6?$`), "other UDP", 15},
	{regexp.MustCompile(`^Packet/egress/probe6?$`), "stamp", 60},
	{regexp.MustCompile(`^Packet/ingress/(reply6?|echo)$`), "match and record", 120},
	{regexp.MustCompile(`^Reflect/(tc|xdp)/(request|echo)`), "reflect", 250},
}

// programs runs the benchmarks of the BPF programs and holds them to their limits.
func programs(ctx context.Context, w io.Writer) ([]check, error) {
	heading(w, "programs: cost of a packet beyond that of an empty program, by BPF_PROG_TEST_RUN")
	out, err := goBench(ctx, bpfPackage)
	if err != nil {
		return nil, err
	}
	checks := programChecks(string(out))
	for _, l := range programLimits {
		if !slices.ContainsFunc(checks, func(c check) bool { return strings.HasSuffix(c.what, "("+l.what+")") }) {
			return nil, fmt.Errorf("no figure of %q in the output of the benchmarks: %s", l.what, out)
		}
	}
	return checks, nil
}

var nsPerPacket = regexp.MustCompile(`(?m)^Benchmark(\S+?)(?:-\d+)?\s.*\s([0-9.]+) ns/packet`)

// programChecks finds the figures in the output of go test -bench.
func programChecks(out string) (checks []check) {
	for _, m := range nsPerPacket.FindAllStringSubmatch(out, -1) {
		got, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			continue // nothing that go test prints
		}
		for _, l := range programLimits {
			if l.name.MatchString(m[1]) {
				checks = append(checks, check{what: fmt.Sprintf("%s (%s)", strings.ReplaceAll(m[1], "_", " "), l.what), got: got, limit: l.limit, unit: " ns"})
				break
			}
		}
	}
	return checks
}

// code runs the benchmarks of all packages whose cost is that of Go code.
func code(ctx context.Context, w io.Writer) ([]check, error) {
	heading(w, "code: the benchmarks of the packages")
	list, err := command(ctx, "", []string{"go", "list", "./..."}).Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	packages := slices.DeleteFunc(strings.Fields(string(list)), func(p string) bool { return p == bpfPackage })
	out, err := goBench(ctx, packages...)
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "Benchmark") {
			fmt.Fprint(w, line)
		}
	}
	return nil, err
}

func goBench(ctx context.Context, packages ...string) ([]byte, error) {
	cmd := command(ctx, "", append([]string{"go", "test", "-run", "^$", "-bench", ".", "-benchmem", "-p", "1"}, packages...))
	cmd.Env = append(os.Environ(), "XTWAMP_REQUIRE_ROOT=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("go test -bench: %w\n%s", err, out)
	}
	return out, nil
}
