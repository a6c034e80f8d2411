// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// childRole names what a copy of the test binary is to do, with the rights and
// in the surroundings that it was started with. It prints "ok" or an error.
const childRole = "XTWAMP_BPF_TEST_CHILD"

func runChild(role string) int {
	err := fmt.Errorf("unknown role %q", role)
	switch role {
	case "attach":
		err = childAttach()
	case "limited":
		limit := &unix.Rlimit{Cur: 64 << 10, Max: 64 << 10} // as older distributions have it
		if err = unix.Setrlimit(unix.RLIMIT_MEMLOCK, limit); err == nil {
			err = childAttach()
		}
	case "hide":
		err = childHide()
	}
	if err != nil {
		fmt.Println(err)
		if refusal, ok := errors.AsType[*ebpf.VerifierError](err); ok {
			fmt.Printf("%+v\n", refusal)
		}
		return 1
	}
	fmt.Println("ok")
	return 0
}

// childAttach loads and attaches both kinds of all programs to loopback, and
// those for XDP to a device that has it.
func childAttach() error {
	d, err := Load(testConfig)
	if err != nil {
		return err
	}
	tc, err := bestTC()
	if err != nil {
		return err
	}
	for _, header := range []int{ethernetHeader, 0} {
		a, err := d.Attach(Device{Index: 1, Name: "lo", LinkHeader: header}, tc, ownFilters{})
		if err != nil {
			return err
		}
		if !a.Alive() {
			return fmt.Errorf("not attached")
		}
	}
	if err := command("ip", "link", "add", "index", "7", "d0", "type", "veth", "peer", "name", "d1"); err != nil {
		return err
	}
	veth := Device{Index: 7, Name: "d0", LinkHeader: ethernetHeader}
	a, err := d.Attach(veth, XDP, nil)
	if err != nil {
		return err
	}
	if !a.Alive() {
		return fmt.Errorf("not attached")
	}
	if err := a.Close(); err != nil {
		return err
	}
	r, err := LoadReflector(testReflectorConfig)
	if err != nil {
		return errors.Join(err, d.Close())
	}
	if _, err := r.Attach(veth, XDP, nil); err != nil {
		return err
	}
	if err := r.SetClock(1, 1, time.Minute); err != nil { // by a mapping of the process
		return err
	}
	for _, header := range []int{ethernetHeader, 0} {
		a, err := r.Attach(Device{Index: 1, Name: "lo", LinkHeader: header}, tc, ownFilters{})
		if err != nil {
			return err
		}
		if err := a.Close(); err != nil {
			return err
		}
	}
	return errors.Join(r.Close(), d.Close())
}

// childHide lets a child without the kernel's BTF attach, with its own rights.
func childHide() error {
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("none", "/sys/kernel/btf", "tmpfs", 0, ""); err != nil {
		return err
	}
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err == nil {
		return fmt.Errorf("BTF is still there")
	}
	needed, err := capabilities()
	if err != nil {
		return err
	}
	out, err := child("attach", needed...).Output()
	if err != nil {
		return fmt.Errorf("%s %w", out, err)
	}
	return nil
}

// capabilities are those that the kernel wants.
func capabilities() ([]uintptr, error) {
	enough, err := kernelHas(6, 8)
	if enough || err != nil {
		return []uintptr{unix.CAP_BPF, unix.CAP_NET_ADMIN}, err
	}
	return []uintptr{unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_PERFMON}, nil
}

func needed(t testing.TB) []uintptr {
	t.Helper()
	out, err := capabilities()
	if err != nil {
		t.Fatal(err)
	}
	// Inherited. A child of nobody's could not raise it.
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	return out
}

// child prepares a child that is nobody, with some capabilities, in a network
// namespace of its own.
func child(role string, capabilities ...uintptr) *exec.Cmd {
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), childRole+"="+role)
	c.SysProcAttr = &syscall.SysProcAttr{
		Unshareflags: unix.CLONE_NEWNET,
		Credential:   &syscall.Credential{Uid: 65534, Gid: 65534},
		AmbientCaps:  capabilities,
	}
	return c
}

// Case 62.
func TestFewCapabilitiesDo(t *testing.T) {
	requireRoot(t)
	names := map[uintptr]string{unix.CAP_BPF: "CAP_BPF", unix.CAP_NET_ADMIN: "CAP_NET_ADMIN", unix.CAP_PERFMON: "CAP_PERFMON"}
	var given []string
	for _, c := range needed(t) {
		given = append(given, names[c])
	}
	if out, err := child("attach", needed(t)...).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	t.Logf("result: capabilities for BPF = %s", strings.Join(given, ", "))
}

// Case 61: kernels before 5.11 charge maps to the limit of locked memory.
func TestLimitOfLockedMemory(t *testing.T) {
	requireRoot(t)
	free, err := kernelHas(5, 11)
	if err != nil {
		t.Fatal(err)
	}
	out, err := child("limited", needed(t)...).CombinedOutput()
	if free {
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
		t.Log("result: limit of locked memory = not used")
		return
	}
	if err == nil || !strings.Contains(string(out), "RLIMIT_MEMLOCK of 65536 bytes is too low") {
		t.Errorf("%v: %q", err, out)
	}
	t.Log("result: limit of locked memory = has to be raised")
}

// Case 61.
func TestMissingCapabilityIsNamed(t *testing.T) {
	requireRoot(t)
	for _, c := range []struct {
		name         string
		capabilities []uintptr
		want         string
	}{
		{"none", nil, "CAP_BPF and CAP_NET_ADMIN are missing"},
		{"network", []uintptr{unix.CAP_NET_ADMIN}, "CAP_BPF is missing"},
		{"bpf", []uintptr{unix.CAP_BPF}, "CAP_NET_ADMIN is missing"},
		{"all but perfmon", []uintptr{unix.CAP_BPF, unix.CAP_NET_ADMIN}, "CAP_PERFMON is missing"},
	} {
		if slices.Equal(needed(t), c.capabilities) {
			continue // it is not missing here
		}
		t.Run(c.name, func(t *testing.T) {
			out, err := child("attach", c.capabilities...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), c.want) || strings.Contains(string(out), "MEMLOCK") {
				t.Errorf("%v: %q, want %q", err, out, c.want)
			}
		})
	}
}

func TestKernelTypesAreNotNeeded(t *testing.T) {
	requireRoot(t)
	if _, err := os.Stat("/sys/kernel/btf"); err != nil {
		t.Log("this kernel has none anyway")
		if out, err := child("attach", needed(t)...).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	needed(t)
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), childRole+"=hide")
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// ip netns exec mounts another /sys, without bpffs.
// Case 56.
func TestWorksUnderIPNetnsExec(t *testing.T) {
	requireRoot(t)
	ns := newNamespace(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("ip", "netns", "exec", ns, self)
	c.Env = append(os.Environ(), childRole+"=attach")
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
