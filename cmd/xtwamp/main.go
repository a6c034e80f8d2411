// SPDX-License-Identifier: Apache-2.0

// Command xtwamp measures the round-trip time of links with TWAMP-Light and
// STAMP test packets that are time-stamped in the kernel.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/bpf"
)

// Set by the linker (see the Makefile).
var (
	version = "dev"
	commit  = "unknown"
	date    = "unknown"
)

// env is what the commands touch of the process around them.
type env struct {
	stdout, stderr io.Writer
	hostname       func() (string, error)
	// terminal reports whether stderr is one.
	terminal bool
	// dropRights is the function of that name; nil in a test, whose process has to keep its own.
	dropRights func(log *zap.Logger, keepSysAdmin bool) error
}

func systemEnv() env {
	return env{stdout: os.Stdout, stderr: os.Stderr, hostname: os.Hostname, terminal: isTerminal(os.Stderr), dropRights: dropRights}
}

func isTerminal(w io.Writer) bool {
	f, is := w.(*os.File)
	if !is {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// exitError ends the program with a code of its own. A nil err says nothing
// more: what happened has been printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usage marks an error as one in how the program was called: exit code 2.
func usage(err error) error { return &exitError{code: 2, err: err} }

// newRootCommand makes the command with all those below it.
func newRootCommand(e env) *cobra.Command {
	root := &cobra.Command{
		Use:   "xtwamp",
		Short: "Measure the round-trip time of links, stamped in the kernel",
		Long: `xtwamp measures the round-trip time of every link of a switch or router with
TWAMP-Light and STAMP test packets that eBPF time-stamps in the kernel. It
keeps each sample in a durable local store and hands the samples to where
they count.`,
		Example: `  xtwamp reflect --allow 192.0.2.0/24          # on the far side
  xtwamp ping 192.0.2.2                         # measure it, now
  xtwamp run --config /etc/xtwamp/xtwamp.yml    # measure all the time`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	root.AddCommand(newRunCommand(e), newPingCommand(e), newReflectCommand(e), newSamplesCommand(e), newStatusCommand(e),
		newDoctorCommand(e), newLedgerCommand(e), newConfigCommand(e), newVersionCommand(e))
	return root
}

// execute runs one command line and returns the process's exit code.
func execute(ctx context.Context, e env, args []string) int {
	root := newRootCommand(e)
	root.SetArgs(args)
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath())
	})
	// What fails before a command runs is a matter of how it was called.
	code := 2
	for _, c := range allCommands(root) {
		if check := c.Args; check != nil {
			c.Args = func(cmd *cobra.Command, args []string) error {
				if err := check(cmd, args); err != nil {
					return fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath())
				}
				return nil
			}
		}
		if run := c.RunE; run != nil {
			c.RunE = func(cmd *cobra.Command, args []string) error {
				code = 1
				return run(cmd, args)
			}
		}
	}
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	var exit *exitError
	if errors.As(err, &exit) {
		code, err = exit.code, exit.err
	}
	if err != nil {
		fmt.Fprintf(e.stderr, "xtwamp: %v\n", err)
	}
	return code
}

func allCommands(c *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		all = append(all, allCommands(sub)...)
	}
	return all
}

// newLogger logs to stderr, for people on a terminal and as JSON otherwise.
func newLogger(e env, c logConfig) (*zap.Logger, error) {
	level, err := zapcore.ParseLevel(c.Level)
	if err != nil {
		return nil, err
	}
	ec := zap.NewProductionEncoderConfig()
	ec.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	ec.EncodeDuration = zapcore.StringDurationEncoder
	encoder := zapcore.NewJSONEncoder(ec)
	if c.Format == "console" || c.Format == "auto" && e.terminal {
		ec.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		ec.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(ec)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(e.stderr)), level)), nil
}

func newVersionCommand(e env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print version, commit, date, Go version and the hash of the BPF object",
		Example: "  xtwamp version --json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version   string `json:"version"`
				Commit    string `json:"commit"`
				Date      string `json:"date"`
				Go        string `json:"go"`
				BPFObject string `json:"bpf_object"`
			}{version, commit, date, runtime.Version(), bpf.ObjectHash()}
			if asJSON {
				return printJSON(e.stdout, v)
			}
			_, err := fmt.Fprintf(e.stdout, "xtwamp %s (commit %s, %s)\n%s, BPF object %s\n", v.Version, v.Commit, v.Date, v.Go, v.BPFObject)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newConfigCommand(e env) *cobra.Command {
	var print bool
	check := &cobra.Command{
		Use:   "check FILE",
		Short: "Check a configuration file",
		Long:  "Check a configuration file. Exit code 0: it is good; 2: it is not, and each fault has a line.",
		Example: `  xtwamp config check /etc/xtwamp/xtwamp.yml
  xtwamp config check --print /etc/xtwamp/xtwamp.yml`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			hostname, _ := e.hostname()
			c, err := loadConfig(args[0], hostname)
			if err != nil {
				return usage(err)
			}
			if print {
				return printConfig(e.stdout, c)
			}
			_, err = fmt.Fprintf(e.stdout, "%s is good: %d targets\n", args[0], len(c.Targets))
			return err
		},
	}
	check.Flags().BoolVar(&print, "print", false, "print the configuration in effect, with every default")
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check the configuration",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(check)
	return cmd
}
