// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/xtwamp/xtwamp/netns/netnstest"
)

const webAddress = "127.0.0.1:9862"

// configWithRoles is switchConfig with a web listener, and roles in namespaces.
func configWithRoles(t *testing.T, namespaces string) (dir, file string) {
	t.Helper()
	dir, file = switchConfig(t, "namespaces: "+namespaces+"\n")
	edit(t, file, "web: {listen: []}", `web: {listen: ["`+webAddress+`"]}`)
	return dir, file
}

// listensIn asks ss(8), which sees the sockets of the namespace that it is run in.
func listensIn(t *testing.T, ns *netnstest.NS) bool {
	t.Helper()
	return strings.Contains(ns.Exec(t, "ss", "-Hltn"), webAddress)
}

// awaitMeasuring waits for replies with the kernel's stamps, more than before, and for a reflector.
func awaitMeasuring(t *testing.T, dir string) {
	t.Helper()
	stamped := func() float64 {
		_, scrape := getFrom(t, dir, "/metrics")
		return metric(scrape, "xtwamp_timestamps_total", `source="tc_ingress"`)
	}
	before := stamped()
	awaitState(t, "replies with the kernel's stamps, and a reflector", func() bool {
		code, _ := getFrom(t, dir, "/-/ready")
		return code == http.StatusOK && stamped() > before+20
	})
}

func ip(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// The web listener is in the namespace of its role and nowhere else, also after that was made anew.
func TestWebInItsNamespace(t *testing.T) {
	near, far := twoHosts(t)
	reflectingIn(t, far)
	management := netnstest.New(t).Namespace("management")
	dir, file := configWithRoles(t, "{web: "+management.Name+"}")
	d := startDaemon(t, near, dir, file)
	awaitState(t, "the listener in its namespace", func() bool { return listensIn(t, management) })
	if listensIn(t, near) {
		t.Error("it listens where the process was started, too")
	}
	ip(t, "netns", "delete", management.Name)
	ip(t, "netns", "add", management.Name)
	ip(t, "-n", management.Name, "link", "set", "lo", "up")
	awaitState(t, "the listener in the new namespace", func() bool { return listensIn(t, management) })
	if code := d.end(syscall.SIGINT); code != 0 {
		t.Errorf("ended with %d\n%s", code, d.errs)
	}
}

// When the namespace of the interfaces is deleted, engine and reflector let go of it, and both go on in the next one.
func TestInterfacesInANamespaceMadeAnew(t *testing.T) {
	near, far := twoHosts(t)
	reflectingIn(t, far)
	third := netnstest.New(t).Namespace("third")
	dir, file := configWithRoles(t, "{probe: "+near.Name+", web: "+third.Name+"}")
	d := startDaemon(t, third, dir, file)
	awaitMeasuring(t, dir)
	ip(t, "netns", "delete", near.Name)
	awaitState(t, "the end of the namespace, and of the link into it", func() bool {
		return !strings.Contains(ip(t, "-n", far.Name, "-o", "link", "show"), "eth1")
	})
	ip(t, "netns", "add", near.Name)
	ip(t, "link", "add", "eth1", "netns", near.Name, "type", "veth", "peer", "name", "eth1", "netns", far.Name)
	for name, addresses := range map[string][]string{near.Name: {"10.1.0.1/24", "2001:db8::1/64"}, far.Name: {"10.1.0.2/24", "2001:db8::2/64"}} {
		for _, a := range addresses {
			ip(t, "-n", name, "address", "add", a, "dev", "eth1")
		}
		ip(t, "-n", name, "link", "set", "eth1", "up")
	}
	awaitMeasuring(t, dir)
	if code := d.end(syscall.SIGINT); code != 0 {
		t.Errorf("ended with %d\n%s", code, d.errs)
	}
}
