// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// report is what the tests of one machine said.
type report struct {
	w       io.Writer
	kernel  string // as configured
	release string // as the machine says
	done    bool
	broken  []string // what went wrong beside tests

	pkg     string // being tested
	test    string // that is printing, without its subtests
	open    []string
	output  map[string][]string // by test that is no subtest, until the next package; "" is before the first
	passed  int
	failed  []string
	skipped int
	refused []string // skips that are not allowed
	results map[string]string
	order   []string // of results
}

func newReport(w io.Writer, kernel string) *report {
	return &report{w: w, kernel: kernel, release: kernel, output: make(map[string][]string), results: make(map[string]string)}
}

var (
	runLine    = regexp.MustCompile(`^=== (?:RUN|CONT|NAME)\s+(\S+)$`)
	endLine    = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (\S+) \(([0-9.]+)s\)$`)
	resultLine = regexp.MustCompile(`: result: (.+?) = (.+)$`)
)

// read takes in what a machine prints, up to its end.
func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		line = strings.TrimRight(line, "\r\n")
		if said, ok := strings.CutPrefix(line, marker); ok {
			r.machine(said)
			continue
		}
		if m := runLine.FindStringSubmatch(line); m != nil {
			r.test, _, _ = strings.Cut(m[1], "/")
			if strings.HasPrefix(line, "=== RUN") {
				r.open = append(r.open, m[1])
			}
			continue
		}
		if m := endLine.FindStringSubmatch(line); m != nil {
			r.end(m[1], m[2], m[3])
			continue
		}
		if m := resultLine.FindStringSubmatch(line); m != nil {
			r.result(m[1], m[2])
		}
		r.output[r.test] = append(r.output[r.test], line)
	}
}

// begun reports whether the machine has got as far as its tests.
func (r *report) begun() bool { return r.pkg != "" || r.passed+len(r.failed)+r.skipped > 0 }

// machine takes what the machine itself says.
func (r *report) machine(said string) {
	word, rest, _ := strings.Cut(said, " ")
	switch word {
	case "kernel":
		r.release = rest
		if !strings.HasPrefix(rest, r.kernel+".") {
			r.broken = append(r.broken, "booted Linux "+rest)
		}
	case "begin":
		r.pkg, r.test, r.open = rest, "", nil
		clear(r.output)
	case "end":
		for _, name := range r.open {
			r.fail(name, "did not end")
		}
		if pkg, how, _ := strings.Cut(rest, " "); how != "ok" {
			r.broken = append(r.broken, pkg+": "+how)
			r.print(r.test) // of a panic, say
		}
		r.pkg = ""
	case "done":
		r.done = true
	default:
		r.broken = append(r.broken, said)
	}
}

func (r *report) end(how, test, seconds string) {
	name := r.pkg + " " + test
	r.open = slices.DeleteFunc(r.open, func(o string) bool { return o == test })
	switch how {
	case "PASS":
		r.passed++
	case "FAIL":
		r.fail(test, "failed after "+seconds+" s")
	case "SKIP":
		r.skipped++
		if _, ok := allowedSkips[name]; !ok {
			r.refused = append(r.refused, name)
			r.print(test)
		}
	}
}

func (r *report) fail(test, how string) {
	r.failed = append(r.failed, r.pkg+" "+test)
	fmt.Fprintf(r.w, "--- Linux %s: %s %s: %s\n", r.kernel, r.pkg, test, how)
	r.print(test)
}

// print prints what a test and its subtests have said, once.
func (r *report) print(test string) {
	test, _, _ = strings.Cut(test, "/")
	for _, line := range r.output[test] {
		fmt.Fprintf(r.w, "%s| %s\n", r.kernel, line)
	}
	delete(r.output, test)
}

func (r *report) result(feature, result string) {
	if _, known := r.results[feature]; !known {
		r.order = append(r.order, feature)
	}
	r.results[feature] = result
}

// finish is nil if the machine is one on which all went well.
func (r *report) finish() error {
	var errs []error
	for _, name := range r.broken {
		errs = append(errs, errors.New(name))
	}
	if len(r.failed) > 0 {
		errs = append(errs, fmt.Errorf("%d tests failed:\n\t%s", len(r.failed), strings.Join(r.failed, "\n\t")))
	}
	if len(r.refused) > 0 {
		errs = append(errs, fmt.Errorf("skipped, and not among the allowed skips:\n\t%s", strings.Join(r.refused, "\n\t")))
	}
	if !r.done {
		errs = append(errs, errors.New("the machine ended before its tests did"))
	}
	if r.passed == 0 {
		errs = append(errs, errors.New("no test passed"))
	}
	return errors.Join(errs...)
}
