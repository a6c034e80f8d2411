// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func ownName(t *testing.T) (name string, space uint64, start uint64) {
	t.Helper()
	name, err := filterName(roleIngress)
	if err != nil {
		t.Fatal(err)
	}
	space, err = pidNamespace()
	if err != nil {
		t.Fatal(err)
	}
	p, err := readProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return name, space, p.start
}

func TestFilterNameTellsItsOwner(t *testing.T) {
	got, space, start := ownName(t)
	if want := fmt.Sprintf("xtwamp-%d-%d-%d-ingress", space, os.Getpid(), start); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	got, err := filterName(roleEgress)
	if err != nil || !strings.HasSuffix(got, "-egress") {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestFilterOwnerIsDeadOnlyIfThatIsCertain(t *testing.T) {
	own, space, start := ownName(t)
	pid := os.Getpid()

	// The parent of a zombie has not waited for it yet.
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := readProcess(child.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	childName := fmt.Sprintf("xtwamp-%d-%d-%d-egress", space, child.Process.Pid, p.start)
	if FilterOwnerDead(childName) {
		t.Error("a living child is called dead")
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child is a zombie", func() bool { return FilterOwnerDead(childName) })
	_ = child.Wait() // says that it was killed

	for _, c := range []struct {
		name string
		want bool
	}{
		{own, false},
		{childName, true},
		{strings.TrimSuffix(childName, "egress") + "reflect", true},
		{fmt.Sprintf("xtwamp-%d-%d-%d-ingress", space, pid, start-1), true}, // our pid, used before
		{fmt.Sprintf("xtwamp-%d-%d-%d-ingress", space+1, child.Process.Pid, p.start), false},
		{fmt.Sprintf("other-%d-%d-%d-ingress", space, child.Process.Pid, p.start), false},
		{fmt.Sprintf("xtwamp-%d-%d-%d-sideways", space, child.Process.Pid, p.start), false},
		{fmt.Sprintf("xtwamp-%d-%d-%d", space, child.Process.Pid, p.start), false},
		{fmt.Sprintf("xtwamp-%d-%d-x-ingress", space, child.Process.Pid), false},
		{fmt.Sprintf("xtwamp-%d-0-%d-ingress", space, p.start), false},
		{fmt.Sprintf("xtwamp-%d--1-%d-ingress", space, p.start), false},
		{"xtwamp", false},
		{"", false},
	} {
		if got := FilterOwnerDead(c.name); got != c.want {
			t.Errorf("%q: got %v, want %v", c.name, got, c.want)
		}
	}
}
