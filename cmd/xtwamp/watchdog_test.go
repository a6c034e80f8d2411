// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// listenAsManager listens on a socket as a service manager does, and returns its
// name and what comes next.
func listenAsManager(t *testing.T) (name string, next func() string) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return name, func() string {
		t.Helper()
		if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		message := make([]byte, 1<<10)
		n, err := conn.Read(message)
		if err != nil {
			t.Fatalf("wait for a message: %v", err)
		}
		return string(message[:n])
	}
}

// idleConfig is the configuration of a daemon that has nothing to do.
func idleConfig(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "xtwamp.yml")
	text := "control: {socket: " + dir + "/control.sock}\nweb: {listen: []}\nreflector: {enabled: false}\nstore: {path: " + dir + "/samples.db}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestRunTellsTheServiceManager(t *testing.T) {
	socket, next := listenAsManager(t)
	cmd := program(t, "run", "--config", idleConfig(t))
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+socket, "WATCHDOG_USEC=100000")
	var log output
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("log of the daemon:\n%s", &log)
		}
	})
	got := []string{next(), next(), next(), next()}
	if diff := cmp.Diff([]string{"READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"}, got); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	last := next()
	for last == "WATCHDOG=1" {
		last = next()
	}
	if last != "STOPPING=1" {
		t.Errorf("after SIGTERM %q, want STOPPING=1", last)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestADeafServiceManagerIsNoReasonToStop(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "nobody"))
	core, logged := observer.New(zap.InfoLevel)
	m := newManager(zap.New(core))
	m.ready()
	m.stopping()
	if logged.Len() != 1 || logged.All()[0].Message != "the service manager cannot be told" {
		t.Errorf("logged %v, want one line", logged.All())
	}
}

func TestReloadingLastsAsLongAsTheReload(t *testing.T) {
	socket, next := listenAsManager(t)
	t.Setenv("NOTIFY_SOCKET", socket)
	m := newManager(zap.NewNop())
	bad := errors.New("bad file")
	err := m.reloading(func() error {
		if got := next(); !regexp.MustCompile(`^RELOADING=1\nMONOTONIC_USEC=[1-9][0-9]*$`).MatchString(got) {
			t.Errorf("before the reload %q", got)
		}
		return bad
	})
	if !errors.Is(err, bad) {
		t.Errorf("error %v, want that of the reload", err)
	}
	if got := next(); got != "READY=1" {
		t.Errorf("after the reload %q, want READY=1", got)
	}
}

func TestWatchdogStarvesWhileALoopIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logged := observer.New(zap.InfoLevel)
		start := time.Now()
		var fed []string
		m := &manager{log: zap.New(core), tell: func(state string) error {
			fed = append(fed, state+" at "+time.Since(start).String())
			return nil
		}}
		l := newLoops()
		beat := l.beat("recorder")
		beat(10*time.Second - slack)                               // stuck after 30 s
		time.AfterFunc(62*time.Second, func() { beat(time.Hour) }) // and well again
		l.beat("engine")(time.Hour)                                // never
		ctx, cancel := context.WithTimeout(t.Context(), 71*time.Second)
		defer cancel()
		m.feed(ctx, l, 10*time.Second)
		want := []string{"WATCHDOG=1 at 0s", "WATCHDOG=1 at 10s", "WATCHDOG=1 at 20s", "WATCHDOG=1 at 30s", "WATCHDOG=1 at 1m10s"}
		if diff := cmp.Diff(want, fed); diff != "" {
			t.Errorf("fed (-want +got):\n%s", diff)
		}
		if logged.Len() != 2 || logged.All()[1].Message != "no loop is stuck any more" || !strings.HasPrefix(logged.All()[0].Message, "loops are stuck") || logged.All()[0].ContextMap()["loops"] != "recorder" {
			t.Errorf("logged %v, want a line that names the recorder, and one of the end", logged.All())
		}
	})
}
