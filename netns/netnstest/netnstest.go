// SPDX-License-Identifier: Apache-2.0

// Package netnstest builds network labs for tests: namespaces, veth pairs between them, and a relay in the middle of a link
// that does to each packet what the test wants.
//
// Its promise: a lab touches nothing but what it made, and all of that is gone when its test ends, passed or failed.
package netnstest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/xtwamp/xtwamp/netns"
)

// namedDir is where ip-netns(8) keeps named namespaces.
const namedDir = "/var/run/netns"

// readyTimeout bounds each wait for a new link. The kernel may hold back news about carriers for a second.
const readyTimeout = 10 * time.Second

// RequireRoot skips the test without root. Where XTWAMP_REQUIRE_ROOT=1 it fails the test instead, so that a run which is
// meant to be complete cannot skip quietly.
func RequireRoot(t testing.TB) {
	t.Helper()
	requireRoot(t, os.Geteuid())
}

func requireRoot(t testing.TB, euid int) {
	t.Helper()
	switch {
	case euid == 0:
	case os.Getenv("XTWAMP_REQUIRE_ROOT") == "1":
		t.Fatal("needs root, and XTWAMP_REQUIRE_ROOT=1 forbids skipping")
	default:
		t.Skip("needs root")
	}
}

// Lab owns the namespaces of one test and what is in them. Its methods fail the test instead of returning errors; call
// them from the test's goroutine.
type Lab struct {
	t      testing.TB
	prefix string
	relays int // made so far
}

// labs numbers the labs of this process.
var labs atomic.Uint32

// New starts an empty lab. It calls [RequireRoot].
func New(t testing.TB) *Lab {
	t.Helper()
	RequireRoot(t)
	return &Lab{t: t, prefix: fmt.Sprintf("xtwt%d-%d-", os.Getpid(), labs.Add(1))}
}

// NS is a namespace of a lab.
type NS struct {
	Name string // for `ip netns exec`
	Path string
	t    testing.TB
}

// Namespace creates a namespace with lo up and without IPv6 duplicate address detection, which would keep addresses unusable for
// a second. suffix tells the namespaces of a lab apart.
func (l *Lab) Namespace(suffix string) *NS {
	l.t.Helper()
	name := l.prefix + suffix
	ns := &NS{Name: name, Path: filepath.Join(namedDir, name), t: l.t}
	ip(l.t, "netns", "add", name)
	l.t.Cleanup(func() { ip(l.t, "netns", "delete", name) })

	ip(l.t, "-n", name, "link", "set", "dev", "lo", "up")
	ns.sysctl("net/ipv6/conf/all/accept_dad", "0")
	ns.sysctl("net/ipv6/conf/default/accept_dad", "0")
	return ns
}

// sysctl writes a setting below /proc/sys, which shows net/ of the calling thread's namespace. A kernel without IPv6 lacks
// its settings and does not need them.
func (n *NS) sysctl(key, value string) {
	n.t.Helper()
	err := n.Do(func() error { return os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0) })
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.t.Fatalf("%s: %v", n.Name, err)
	}
}

// Do calls fn inside the namespace, as [netns.Namespace.Do] does. t.Fatal may be called in fn.
func (n *NS) Do(fn func() error) error {
	ns, err := netns.Open(n.Path) // not kept open: that would keep the namespace alive after the test deletes it
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }() // nothing was written to it
	return ns.Do(fn)
}

// Exec runs a command in the namespace and returns what it printed, standard error included. If it fails, so does the
// test, with the output.
func (n *NS) Exec(t testing.TB, args ...string) string {
	t.Helper()
	out, err := n.command(args).CombinedOutput()
	if err != nil {
		t.Fatalf("%s in %s: %v\n%s", strings.Join(args, " "), n.Name, err, out)
	}
	return string(out)
}

// Command prepares a command that will run in the namespace under `ip netns exec`. If it was started and not waited for when the
// test ends, it is killed with all its children. A goroutine that waits for it must have ended by then.
func (n *NS) Command(args ...string) *exec.Cmd {
	cmd := n.command(args)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a group of its own, so that kill reaches the children
	n.t.Cleanup(func() {
		if cmd.Process == nil || cmd.ProcessState != nil {
			return
		}
		if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil {
			n.t.Errorf("kill %s: %v", strings.Join(args, " "), err)
		}
		_ = cmd.Wait() // "killed" is no news
	})
	return cmd
}

func (n *NS) command(args []string) *exec.Cmd {
	return exec.Command("ip", append([]string{"netns", "exec", n.Name}, args...)...)
}

// Start starts a command in the namespace; see [NS.Command] for its end.
func (n *NS) Start(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	cmd := n.Command(args...)
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s in %s: %v", strings.Join(args, " "), n.Name, err)
	}
	return cmd
}

// LinkOption changes a link from what it is by default.
type LinkOption func(*linkConfig)

type linkConfig struct{ mtu int }

// MTU sets the MTU of all interfaces of a link in bytes. The default is 1500.
func MTU(bytes int) LinkOption { return func(c *linkConfig) { c.mtu = bytes } }

// Veth joins two namespaces by a veth pair and returns when packets can pass: interfaces up, carriers on, addresses (such as
// "192.0.2.1/31", "2001:db8::1/64") usable.
func (l *Lab) Veth(a *NS, aIf string, aCIDRs []string, b *NS, bIf string, bCIDRs []string, options ...LinkOption) {
	l.t.Helper()
	l.pair(a, aIf, b, bIf, options)
	l.address(a, aIf, aCIDRs)
	l.address(b, bIf, bCIDRs)
}

// pair makes a veth pair, up and with carrier, without addresses.
func (l *Lab) pair(a *NS, aIf string, b *NS, bIf string, options []LinkOption) {
	l.t.Helper()
	config := linkConfig{mtu: 1500}
	for _, option := range options {
		option(&config)
	}
	mtu := fmt.Sprint(config.mtu)
	// Both ends are born in their namespace: the one that the test runs in never sees them.
	ip(l.t, "link", "add", "name", aIf, "mtu", mtu, "netns", a.Name, "type", "veth", "peer", "name", bIf, "mtu", mtu, "netns", b.Name)
	ip(l.t, "-n", a.Name, "link", "set", "dev", aIf, "up")
	ip(l.t, "-n", b.Name, "link", "set", "dev", bIf, "up")
	l.awaitCarrier(a, aIf)
	l.awaitCarrier(b, bIf)
}

// address adds addresses and waits until they and the link-local one are usable: even without duplicate address detection the
// kernel says so only after a turn of its own work queue.
func (l *Lab) address(n *NS, name string, cidrs []string) {
	l.t.Helper()
	for _, cidr := range cidrs {
		ip(l.t, "-n", n.Name, "address", "add", cidr, "dev", name)
	}
	l.await(fmt.Sprintf("addresses of %s in %s", name, n.Name), func() bool {
		return ip(l.t, "-n", n.Name, "-6", "address", "show", "dev", name, "tentative") == ""
	})
}

func (l *Lab) awaitCarrier(n *NS, name string) {
	l.t.Helper()
	l.await(fmt.Sprintf("carrier of %s in %s", name, n.Name), func() bool {
		var link netns.Link
		if err := n.Do(func() (err error) {
			link, err = netns.LinkByName(name)
			return err
		}); err != nil {
			l.t.Fatalf("%s: %v", n.Name, err)
		}
		return link.Carrier
	})
}

// await checks until ready says yes.
func (l *Lab) await(what string, ready func() bool) {
	l.t.Helper()
	deadline := time.After(readyTimeout)
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for !ready() {
		select {
		case <-deadline:
			l.t.Fatalf("%s: not ready after %s", what, readyTimeout)
		case <-again.C:
		}
	}
}

// ip runs ip(8), the same tool that operators use, and returns what it printed.
func ip(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
