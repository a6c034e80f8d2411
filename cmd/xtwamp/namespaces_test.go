// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/xtwamp/xtwamp/netns/netnstest"
)

// Started in each of three namespaces, it measures, answers and listens where its roles are.
func TestStartedAnywhere(t *testing.T) {
	near, far := twoHosts(t)
	reflectingIn(t, far)
	lab := netnstest.New(t)
	management, third := lab.Namespace("management"), lab.Namespace("third")
	for _, start := range []*netnstest.NS{near, management, third} {
		t.Run(start.Name[strings.LastIndex(start.Name, "-")+1:], func(t *testing.T) {
			dir, file := switchConfig(t, "namespaces: {probe: "+near.Name+", web: "+management.Name+"}\n")
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			listening := strings.Replace(string(text), "web: {listen: []}", `web: {listen: ["127.0.0.1:9862"]}`, 1)
			if err := os.WriteFile(file, []byte(listening), 0o600); err != nil {
				t.Fatal(err)
			}
			d := startDaemon(t, start, dir, file)
			awaitState(t, "replies with the kernel's stamps, and a reflector", func() bool {
				_, scrape := getFrom(t, dir, "/metrics")
				code, _ := getFrom(t, dir, "/-/ready")
				return code == http.StatusOK && metric(scrape, "xtwamp_timestamps_total", `source="tc_ingress"`) > 20
			})
			if !strings.Contains(near.Exec(t, "ss", "-Hlun"), ":862") {
				t.Error("the reflector is not where the interfaces are")
			}
			if !strings.Contains(management.Exec(t, "ss", "-Hltn"), "127.0.0.1:9862") {
				t.Error("the web listener is not in its namespace")
			}
			if err := d.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			if err := d.Wait(); err != nil {
				t.Errorf("%v\n%s", err, d.errs)
			}
		})
	}
}

// The web listener is in the namespace of its role and nowhere else, also after that was made anew.
func TestWebInItsNamespace(t *testing.T) {
	near, far := twoHosts(t)
	reflectingIn(t, far)
	management := netnstest.New(t).Namespace("management")
	dir, file := switchConfig(t, "namespaces: {web: "+management.Name+"}\n")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	listening := strings.Replace(string(text), "web: {listen: []}", `web: {listen: ["127.0.0.1:9862"]}`, 1)
	if err := os.WriteFile(file, []byte(listening), 0o600); err != nil {
		t.Fatal(err)
	}
	d := startDaemon(t, near, dir, file)
	// ss(8) sees the sockets of the namespace that it is run in.
	listens := func(in *netnstest.NS) bool {
		return strings.Contains(in.Exec(t, "ss", "-Hltn"), "127.0.0.1:9862")
	}
	awaitState(t, "the listener in its namespace", func() bool { return listens(management) })
	if listens(near) {
		t.Error("it listens where the process was started, too")
	}
	for _, change := range []string{"delete", "add"} {
		if out, err := exec.Command("ip", "netns", change, management.Name).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	management.Exec(t, "ip", "link", "set", "lo", "up")
	awaitState(t, "the listener in the new namespace", func() bool { return listens(management) })
	if err := d.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := d.Wait(); err != nil {
		t.Errorf("%v\n%s", err, d.errs)
	}
}
