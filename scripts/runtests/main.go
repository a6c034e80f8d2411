// SPDX-License-Identifier: Apache-2.0

// Command runtests runs every test of the module once, under the race detector, and fails also if a test was skipped.
//
// A skipped test proves nothing, and go test calls it a success; the tests that matter most here are the ones that skip
// most easily (no root, no BPF). So each skip has to be allowed by name, in allowedSkips. Packages whose tests make
// network namespaces run one at a time after all others, with nothing beside them that disturbs their timing.
//
// Usage, in the module's root directory:
//
//	go run ./scripts/runtests [-root]
//
// The last line of its output is "N passed, N failed, N skipped", which counts tests and subtests.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// netnstest is the package whose import marks a package of tests as one that needs root.
const netnstest = "github.com/xtwamp/xtwamp/netns/netnstest"

// allowedSkips names the tests that may skip, as "<import path> <test name>", with the reason. It is meant for tests of
// something that the machine lacks by design, never for a missing right or tool.
var allowedSkips = map[string]string{
	"github.com/xtwamp/xtwamp/probe/twamp TestVectorsAreThoseOfTheSharedFile": "compares with a file beside the repository, which a plain clone does not have",

	"github.com/xtwamp/xtwamp/probe TestVLAN":            kernels,
	"github.com/xtwamp/xtwamp/probe TestBond":            kernels,
	"github.com/xtwamp/xtwamp/probe TestVLANOnBond":      kernels,
	"github.com/xtwamp/xtwamp/probe TestBondAnswersOnce": kernels,
	"github.com/xtwamp/xtwamp/probe TestVRF":             kernels,
	"github.com/xtwamp/xtwamp/probe TestRolesInVRFs":     kernels,
	"github.com/xtwamp/xtwamp/probe TestTunnels/gre":     kernels,
	"github.com/xtwamp/xtwamp/probe TestTunnels/ipip":    kernels,
	"github.com/xtwamp/xtwamp/probe TestXDPOnHardware":   kernels,
}

// kernels is why a test of devices may skip here.
const kernels = "the kernel may lack such devices; make kernels runs it on ones that have them, where it may not skip"

func main() {
	root := flag.Bool("root", false, "run only the packages whose tests need root")
	flag.Parse()

	if err := run(os.Stdout, *root); err != nil {
		fmt.Fprintln(os.Stderr, "runtests:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, rootOnly bool) error {
	list, err := goList()
	if err != nil {
		return err
	}
	plain, root := split(list)
	if rootOnly {
		plain = nil
	}

	r := newReport(w, allowedSkips)
	err = errors.Join(
		goTest(r, plain),
		goTest(r, root, "-p", "1"),
	)
	return errors.Join(err, r.finish())
}

// goPackage is what go list says about one package.
type goPackage struct {
	ImportPath                string
	TestImports, XTestImports []string
}

func goList() ([]goPackage, error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,TestImports,XTestImports", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}

	var list []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		list = append(list, p)
	}
}

// split returns the import paths of the packages whose tests need no root, and of those whose tests do.
func split(list []goPackage) (plain, root []string) {
	for _, p := range list {
		if p.ImportPath == netnstest || slices.Contains(p.TestImports, netnstest) || slices.Contains(p.XTestImports, netnstest) {
			root = append(root, p.ImportPath)
		} else {
			plain = append(plain, p.ImportPath)
		}
	}
	return plain, root
}

// goTest runs the tests of packages and reports them to r. Its error is nil also if tests failed: r knows of those.
func goTest(r *report, packages []string, flags ...string) error {
	if len(packages) == 0 {
		return nil
	}
	args := append([]string{"test", "-json", "-race", "-count=1", "-timeout=30m", "-vet=off"}, flags...) // make lint does the vetting
	cmd := exec.Command("go", append(args, packages...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "XTWAMP_REQUIRE_ROOT=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	failed := r.failed
	readErr := r.read(out)
	err = cmd.Wait()
	if _, exited := errors.AsType[*exec.ExitError](err); exited && r.failed > failed {
		err = nil
	}
	if err = errors.Join(readErr, err); err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	return nil
}

// event is one line of go test -json (go doc test2json, go doc buildjson).
type event struct {
	Action  string
	Package string
	Test    string // empty for an event of the whole package
	Output  string
	Elapsed float64 // seconds
}

// report counts the tests of one or more runs of go test and prints what a reader needs of them: a line for each
// package, and all output of what failed or was skipped without leave.
type report struct {
	w       io.Writer
	allowed map[string]string

	passed, failed, skipped int
	refused                 []string // the skips that are not allowed
	packages                map[string]*packageReport
}

type packageReport struct {
	output map[string][]string // by test, until it is done; "" is the package itself
	open   []string            // the tests that have begun and not ended
	failed bool                // whether one of them failed
}

func newReport(w io.Writer, allowed map[string]string) *report {
	return &report{w: w, allowed: allowed, packages: make(map[string]*packageReport)}
}

// read takes in the output of one go test -json.
func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				fmt.Fprint(r.w, line) // not from a test: go itself speaking
			} else {
				r.add(e)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func (r *report) add(e event) {
	if e.Action == "build-output" {
		fmt.Fprint(r.w, e.Output)
		return
	}
	if e.Package == "" {
		return
	}
	p := r.packages[e.Package]
	if p == nil {
		p = &packageReport{output: make(map[string][]string)}
		r.packages[e.Package] = p
	}

	switch e.Action {
	case "run":
		p.open = append(p.open, e.Test)
	case "output":
		p.output[e.Test] = append(p.output[e.Test], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(p, e)
		} else {
			r.endTest(p, e)
		}
	}
}

func (r *report) endTest(p *packageReport, e event) {
	p.open = slices.DeleteFunc(p.open, func(test string) bool { return test == e.Test })
	switch e.Action {
	case "pass":
		r.passed++
	case "fail":
		r.failed++
		p.failed = true
		r.print(p, e.Test)
	case "skip":
		r.skipped++
		name := e.Package + " " + e.Test
		if _, ok := r.allowed[name]; !ok {
			r.refused = append(r.refused, name)
			r.print(p, e.Test)
		}
	}
	delete(p.output, e.Test)
}

// endPackage counts what ended with the package without a result of its own: the tests that a panic, a timeout or an
// os.Exit cut off, and a package that did not build or failed after its last test.
func (r *report) endPackage(p *packageReport, e event) {
	for _, test := range p.open {
		r.failed++
		p.failed = true
		r.print(p, test)
		fmt.Fprintf(r.w, "--- FAIL: %s: did not end\n", test)
	}
	if e.Action == "fail" {
		if !p.failed {
			r.failed++
		}
		r.print(p, "")
	} else if e.Action == "pass" {
		fmt.Fprintf(r.w, "ok  \t%s\t%.1fs\n", e.Package, e.Elapsed)
	}
	delete(r.packages, e.Package)
}

func (r *report) print(p *packageReport, test string) {
	for _, s := range p.output[test] {
		fmt.Fprint(r.w, s)
	}
}

// finish prints the closing lines. It returns an error if the runs it was told of are no success.
func (r *report) finish() error {
	var errs []error
	if r.failed > 0 {
		errs = append(errs, errors.New("tests failed"))
	}
	if len(r.refused) > 0 {
		fmt.Fprintf(r.w, "skipped, and not among the allowed skips of scripts/runtests:\n\t%s\n", strings.Join(r.refused, "\n\t"))
		errs = append(errs, errors.New("tests were skipped"))
	}
	if r.passed+r.failed == 0 {
		errs = append(errs, errors.New("no test ran"))
	}
	fmt.Fprintf(r.w, "%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
	return errors.Join(errs...)
}
