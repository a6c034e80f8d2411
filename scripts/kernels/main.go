// SPDX-License-Identifier: Apache-2.0

// Command kernels runs the tests that need root on the oldest kernels that the kernel half is for: Debian's, in virtual
// machines that qemu emulates and that have nothing but static test binaries and a few tools. What the tests say about
// each kernel ("result: FEATURE = RESULT") becomes build/kernels.md, and with -readme the table of the README.
//
// Usage, in the module's root directory, as root:
//
//	go run ./scripts/kernels [-kernel 5.10] [-run REGEXP]
//	go run ./scripts/kernels -readme
//
// A test that fails, that is skipped without being among allowedSkips, or that did not end, is a failure. Where the
// packages of a kernel cannot be had it says "skipped: ..." and why.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// releases are the Debian releases whose kernels are booted.
var releases = []release{{"bullseye", "5.10", withoutXDPContext}, {"bookworm", "6.1", ""}}

type release struct {
	name   string
	kernel string // the version of its kernel
	skip   string // tests of bpf that it cannot run, as of go test
}

const (
	buildDir   = "build/kernels"
	resultFile = "build/kernels.md"
	// deadline is for one machine from its start to its end.
	deadline = 9 * time.Minute
)

func main() {
	if os.Getpid() == 1 {
		guest()
		return
	}
	readme := flag.Bool("readme", false, "write the results of the last run into README.md instead")
	only := flag.String("kernel", "", "boot only this kernel, and leave the table alone")
	pattern := flag.String("run", "", "run only the tests that match, and leave the table alone")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	err := func() error {
		if *readme {
			return writeReadme("README.md", resultFile)
		}
		return run(ctx, *only, *pattern)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only, pattern string) error {
	image, err := common(ctx)
	if err != nil {
		return err
	}
	reports := make([]*report, len(releases))
	errs := make([]error, len(releases))
	var machines sync.WaitGroup
	for i, r := range releases {
		if only == "" || only == r.kernel {
			machines.Go(func() { reports[i], errs[i] = test(ctx, r, image, pattern) })
		}
	}
	machines.Wait()

	whole := only == "" && pattern == ""
	for i, err := range errs {
		if _, missing := errors.AsType[*unavailableError](err); missing {
			fmt.Printf("skipped: Linux %s: %v\n", releases[i].kernel, err)
			errs[i], whole = nil, false
		} else if err != nil {
			errs[i] = fmt.Errorf("on Linux %s: %w", releases[i].kernel, err)
		}
	}
	if err := errors.Join(errs...); err != nil || !whole {
		return err
	}
	if err := os.WriteFile(resultFile, []byte(table(reports)), 0o644); err != nil {
		return err
	}
	return checkReadme("README.md", resultFile)
}

// test boots one kernel and runs the tests there.
func test(ctx context.Context, r release, image []file, pattern string) (*report, error) {
	dir := filepath.Join(buildDir, r.kernel)
	kernel, err := fetch(ctx, r, dir)
	if err != nil {
		return nil, err
	}
	initrd := filepath.Join(dir, "initramfs.cpio")
	modules, err := kernel.moduleFiles()
	if err != nil {
		return nil, err
	}
	p, err := planFor(r, pattern)
	if err != nil {
		return nil, err
	}
	if err := writeArchive(initrd, slices.Concat(modules, image, []file{p})); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, deadline, fmt.Errorf("did not end within %v", deadline))
	defer cancel()
	start := time.Now()
	rep := newReport(os.Stdout, r.kernel)
	bootErr := boot(ctx, kernel.image, initrd, dir, rep)
	err = errors.Join(bootErr, rep.finish())
	fmt.Printf("Linux %s: %d passed, %d failed, %d skipped, %.0f s\n", rep.release, rep.passed, len(rep.failed), rep.skipped, time.Since(start).Seconds())
	if bootErr != nil {
		err = fmt.Errorf("%w\nthe end of its console:\n%s", err, tail(filepath.Join(dir, "console.log"), 15))
	}
	return rep, err
}

// tail is the last lines of a file.
func tail(name string, lines int) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
