// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	xtwamp = "bin/xtwamp"
	// startTimeout bounds the start of a child.
	startTimeout = 15 * time.Second
	// stopTimeout is how long a child that was told to stop may take before it is killed.
	stopTimeout = 5 * time.Second
)

// lab is two network namespaces, the near one that asks and the far one that answers, with links between them and
// processes in them. All are of this lab alone, and close removes them.
type lab struct {
	near, far  string
	self       string // path of this program
	dir        string // for what processes print
	namespaces []string
	processes  []*process
}

func newLab(ctx context.Context) (_ *lab, err error) {
	name := fmt.Sprintf("xtwamp-bench-%d-", os.Getpid())
	l := &lab{near: name + "near", far: name + "far"}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if _, err := os.Stat(xtwamp); err != nil {
		return nil, fmt.Errorf("%w: run make build first", err)
	}
	if l.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if l.dir, err = os.MkdirTemp("", "xtwamp-bench-"); err != nil {
		return nil, err
	}
	for _, ns := range []string{l.near, l.far} {
		if err := ip(ctx, "netns", "add", ns); err != nil {
			return nil, err
		}
		l.namespaces = append(l.namespaces, ns)
		if err := ip(ctx, "-n", ns, "link", "set", "lo", "up"); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// close stops what runs and removes everything. It works on after Ctrl-C.
func (l *lab) close() error {
	for _, p := range l.processes {
		p.cancel()
	}
	for _, p := range l.processes {
		<-p.done
	}
	var errs []error
	for _, ns := range l.namespaces {
		errs = append(errs, ip(context.Background(), "netns", "delete", ns))
	}
	return errors.Join(append(errs, os.RemoveAll(l.dir))...)
}

// link is a veth pair between the two namespaces, with the same name in both.
type link struct {
	number    int
	name      string
	near, far string // addresses
}

// allowed has the addresses of all links, and what the flood pretends to come from: RFC 2544's for benchmarks.
const allowed = "198.18.0.0/15"

// link makes the link of a number from 1 to 255.
func (l *lab) link(ctx context.Context, n int) (link, error) {
	k := link{number: n, name: fmt.Sprintf("eth%d", n), near: fmt.Sprintf("198.18.%d.0", n), far: fmt.Sprintf("198.18.%d.1", n)}
	return k, errors.Join(
		ip(ctx, "link", "add", k.name, "netns", l.near, "type", "veth", "peer", "name", k.name, "netns", l.far),
		ip(ctx, "-n", l.near, "address", "add", k.near+"/31", "dev", k.name),
		ip(ctx, "-n", l.far, "address", "add", k.far+"/31", "dev", k.name),
		ip(ctx, "-n", l.near, "link", "set", k.name, "up"),
		ip(ctx, "-n", l.far, "link", "set", k.name, "up"),
		// The first packet would wait for the neighbour's address.
		l.run(ctx, l.near, nil, "ping", "-q", "-c", "3", "-i", "0.2", k.far),
	)
}

func ip(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// command prepares a command that dies with this program. The end of ctx stops it like Ctrl-C, and kills it if it goes on.
func command(ctx context.Context, namespace string, args []string) *exec.Cmd {
	if namespace != "" {
		args = append([]string{"ip", "netns", "exec", namespace}, args...) // executes args in its place
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = stopTimeout
	return cmd
}

// run runs a command to its end. What it prints goes to stdout through a file, since a pipe would wake this program while
// the command measures. The error is an *exec.ExitError with the command's standard error if the command fails.
func (l *lab) run(ctx context.Context, namespace string, stdout *[]byte, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	file, err := os.Create(filepath.Join(l.dir, "stdout"))
	if err != nil {
		return err
	}
	defer file.Close()
	var complaint bytes.Buffer
	cmd := command(ctx, namespace, args)
	cmd.Stdout, cmd.Stderr = file, &complaint
	err = cmd.Run()
	if stdout != nil {
		var readErr error
		if *stdout, readErr = os.ReadFile(file.Name()); readErr != nil {
			return readErr
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, lastLine(complaint.Bytes()))
	}
	return nil
}

// process is a child that runs until it is stopped.
type process struct {
	args   []string
	pid    int
	log    string // file with its output, both kinds
	cancel context.CancelFunc
	done   chan struct{}
	err    error // of its end, once done is closed
}

func (l *lab) start(ctx context.Context, namespace string, args ...string) (*process, error) {
	p := &process{args: args, log: filepath.Join(l.dir, fmt.Sprintf("%d.log", len(l.processes))), done: make(chan struct{})}
	file, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer file.Close() // the child has its own
	ctx, p.cancel = context.WithCancel(ctx)
	cmd := command(ctx, namespace, args)
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Start(); err != nil {
		p.cancel()
		return nil, err
	}
	p.pid = cmd.Process.Pid
	l.processes = append(l.processes, p)
	go func() {
		defer close(p.done)
		p.err = cmd.Wait()
	}()
	return p, nil
}

// stop stops it, if it runs, and returns when it has ended.
func (p *process) stop() {
	p.cancel()
	<-p.done
}

// output is what the process has printed so far.
func (p *process) output() ([]byte, error) { return os.ReadFile(p.log) }

// logLine is what is of interest in a line of xtwamp's log.
type logLine struct {
	Message   string `json:"msg"`
	Interface string `json:"interface"`
	Hook      string `json:"hook"`
	Refused   string `json:"refused"`
}

// await waits for a line of the process's log that found accepts. If the process ends before that, the error has its last
// words.
func (p *process) await(ctx context.Context, found func(logLine) bool) (logLine, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("not ready in time"))
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for ended := false; ; {
		text, err := p.output()
		if err != nil {
			return logLine{}, err
		}
		for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
			var line logLine
			if json.Unmarshal(lines.Bytes(), &line) == nil && found(line) {
				return line, nil
			}
		}
		if ended {
			return logLine{}, fmt.Errorf("%s ended: %s", strings.Join(p.args[:2], " "), lastLine(text))
		}
		select {
		case <-ctx.Done():
			return logLine{}, fmt.Errorf("%s: %w: %s", strings.Join(p.args, " "), context.Cause(ctx), lastLine(text))
		case <-p.done:
			ended = true // its last words may have come after the look
		case <-again.C:
		}
	}
}

func lastLine(text []byte) []byte {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return lines[len(lines)-1]
}

// reflect starts a reflector behind a link, in a mode of xtwamp reflect, and waits until it answers in that mode.
func (l *lab) reflect(ctx context.Context, namespace, address string, k link, mode string) (*process, error) {
	p, err := l.start(ctx, namespace, xtwamp, "reflect", "--listen", address+":862",
		"--interface", k.name, "--mode", mode, "--allow", allowed)
	if err != nil {
		return nil, err
	}
	line, err := p.await(ctx, func(line logLine) bool {
		if mode == "socket" {
			return line.Message == "reflecting"
		}
		return line.Interface == k.name && (line.Hook != "" || line.Refused != "")
	})
	if err == nil && mode != "socket" && line.Hook != mode {
		err = fmt.Errorf("the reflector is %s, refused were %s", line.Hook, line.Refused)
	}
	return p, err
}
