// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/xtwamp/xtwamp/probe/store"
)

// asProgram makes the test binary behave as the program: tests run it as a
// process that can be killed or stripped of rights.
const asProgram = "XTWAMP_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(withoutBPF) != "" {
		fmt.Fprintln(os.Stderr, execWithoutBPF())
		os.Exit(1)
	}
	if os.Getenv(asProgram) == "1" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		context.AfterFunc(ctx, stop)
		os.Exit(execute(ctx, systemEnv(), os.Args[1:]))
	}
	if keep := os.Getenv(asRightless); keep != "" {
		os.Exit(rightless(keep == "namespaces"))
	}
	// The goroutine behind this lives on, and so must not begin in simulated time.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	signal.Stop(signals)
	goleak.VerifyTestMain(m)
}

// output is a writer that may be read while it is written to.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// invoke runs one command line in this process.
func invoke(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs output
	e := env{stdout: &out, stderr: &errs, hostname: func() (string, error) { return "host", nil }}
	code = execute(t.Context(), e, args)
	return code, out.String(), errs.String()
}

// program prepares to run the program as a process of its own.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	for _, command := range [][]string{{}, {"run"}, {"ping"}, {"reflect"}, {"samples"}, {"status"}, {"doctor"}, {"config", "check"}, {"version"}} {
		code, out, errs := invoke(t, append(command, "--help")...)
		if code != 0 || errs != "" {
			t.Errorf("%v --help: exit %d, stderr %q", command, code, errs)
		}
		if !strings.Contains(out, "Examples:\n  xtwamp ") {
			t.Errorf("%v --help has no example:\n%s", command, out)
		}
	}
}

func TestUsageErrors(t *testing.T) {
	taken := filepath.Join(t.TempDir(), "config.yml")
	if err := os.WriteFile(taken, []byte("probe: {dscp: 99}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	links := filepath.Join(t.TempDir(), "links.yml")
	text := ledgerOn + "targets:\n- {name: a, address: 192.0.2.1, labels: " + aLink + "}\n"
	if err := os.WriteFile(links, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "samples.db")
	if log, err := store.Open(store.Config{Path: empty}); err != nil {
		t.Fatal(err)
	} else if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	plain := filepath.Join(t.TempDir(), "plain.yml")
	if err := os.WriteFile(plain, []byte("device: a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		args []string
		want string // the one line on stderr begins with it
	}{
		{[]string{"run", "--config", links}, "xtwamp: doublezero.keypair_file: "},
		{[]string{"ledger", "verify", "--config", plain}, "xtwamp: doublezero.rpc_urls, doublezero.device and doublezero.network are needed in the configuration"},
		{[]string{"ledger", "verify", "--config", links, "--store", empty}, "xtwamp: none of the stored paths is a link"},
		{[]string{"ledger", "verify", "--config", links, "--store", "/no/such/store"}, "xtwamp: open store: open /no/such/store: no such file or directory"},
		{[]string{"pong"}, `xtwamp: unknown command "pong" for "xtwamp"`},
		{[]string{"ping"}, "xtwamp: accepts 1 arg(s), received 0 (see xtwamp ping --help)"},
		{[]string{"ping", "--count", "many", "h"}, `xtwamp: invalid argument "many" for "-c, --count" flag`},
		{[]string{"ping", "--colour", "h"}, "xtwamp: unknown flag: --colour (see xtwamp ping --help)"},
		{[]string{"ping", "-4", "-6", "h"}, "xtwamp: if any flags in the group [ipv4 ipv6] are set none of the others can be"},
		{[]string{"ping", "--dscp", "64", "192.0.2.1"}, "xtwamp: dscp: 64: expected 0 to 63"},
		{[]string{"ping", "--profile", "owamp", "192.0.2.1"}, `xtwamp: profile: "owamp": expected stamp, twamp-light or doublezero`},
		{[]string{"ping", "-S", "eth0", "192.0.2.1"}, `xtwamp: source "eth0": expected an IP address`},
		{[]string{"ping", "--netns", "no-such", "192.0.2.1"}, "xtwamp: open network namespace"},
		{[]string{"ping", "--attach", "generic", "192.0.2.1"}, `xtwamp: attach: "generic": expected auto, tcx, clsact or xdp`},
		{[]string{"reflect"}, "xtwamp: nobody is allowed: name them with --allow"},
		{[]string{"reflect", "--allow", "everybody"}, `xtwamp: allow "everybody": expected an IP address, a CIDR, or any`},
		{[]string{"reflect", "--allow", "any", "--listen", "862"}, `xtwamp: listen "862": expected address:port`},
		{[]string{"reflect", "--allow", "any", "--mode", "generic"}, `xtwamp: mode "generic": expected one of auto, tcx, clsact, xdp, socket`},
		{[]string{"reflect", "--allow", "any", "--mode", "clsact", "--stateful"}, `xtwamp: mode "clsact": the kernel keeps no sessions`},
		{[]string{"run", "--config", "/no/such/file"}, "xtwamp: read configuration: open /no/such/file: no such file or directory"},
		{[]string{"run", "--config", taken}, "xtwamp: " + taken + ":1: probe.dscp: 99: expected 0 to 63"},
		{[]string{"config", "check", taken}, "xtwamp: " + taken + ":1: probe.dscp: 99: expected 0 to 63"},
		{[]string{"samples", "--socket", "/no/such/socket"}, "xtwamp: no daemon answers"},
		{[]string{"samples", "--store", "/no/such/store"}, "xtwamp: open store: open /no/such/store: no such file or directory"},
		{[]string{"samples", "--since", "yesterday"}, `xtwamp: since "yesterday": expected a time such as 2026-01-15T12:00:00Z`},
	}
	for _, tt := range tests {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			code, out, errs := invoke(t, tt.args...)
			if code != 2 || out != "" {
				t.Errorf("exit %d, stdout %q; want 2 and nothing", code, out)
			}
			if !strings.HasPrefix(errs, tt.want) || strings.Count(errs, "\n") != 1 {
				t.Errorf("stderr = %q, want one line that begins with %q", errs, tt.want)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	code, out, _ := invoke(t, "version", "--json")
	var v map[string]string
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != 0 {
		t.Fatalf("exit %d, %v:\n%s", code, err, out)
	}
	for _, key := range []string{"version", "commit", "date", "go", "bpf_object"} {
		if v[key] == "" {
			t.Errorf("no %s in %s", key, out)
		}
	}
}

func TestConfigCheck(t *testing.T) {
	code, out, errs := invoke(t, "config", "check", referenceFile)
	if code != 0 || errs != "" || out != referenceFile+" is good: 1 targets\n" {
		t.Errorf("exit %d, stdout %q, stderr %q", code, out, errs)
	}
	code, out, _ = invoke(t, "config", "check", "--print", referenceFile)
	if code != 0 || !strings.Contains(out, "device: ams-dz001\n") {
		t.Errorf("--print: exit %d:\n%s", code, out)
	}
}
