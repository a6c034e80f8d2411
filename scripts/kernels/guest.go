// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// resultPort is the serial port on which a machine prints what its tests print. The other one is the kernel's.
const resultPort = "/dev/ttyS1"

// What a machine says itself starts with this.
const marker = "### "

// guest is the machine's first process: it makes the machine fit for the tests, runs them and turns it off.
func guest() {
	if err := guestRun(); err != nil {
		fmt.Println(marker+"error:", err)
	}
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Println("power off:", err)
	}
	select {} // the kernel panics when its first process ends
}

func guestRun() error {
	for _, m := range []struct{ kind, at string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"},
		{"bpf", "/sys/fs/bpf"}, {"securityfs", "/sys/kernel/security"},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.EPERM) {
			return err
		}
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	port, err := os.OpenFile(resultPort, os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	if err := unix.Dup2(int(port.Fd()), 1); err != nil {
		return err
	}
	if err := unix.Dup2(int(port.Fd()), 2); err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll("/var", 0o755), os.Symlink("/run", "/var/run"), os.Chmod("/tmp", 0o1777)); err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll("/etc", 0o755), os.WriteFile("/etc/hosts", []byte("127.0.0.1 localhost\n"), 0o644)); err != nil {
		return err
	}
	// No tunnel devices of the kernel's own in new namespaces. Only root may use BPF, as on Debian.
	for key, value := range map[string]string{"net/core/fb_tunnels_only_for_init_net": "2", "kernel/unprivileged_bpf_disabled": "2"} {
		if err := os.WriteFile("/proc/sys/"+key, []byte(value), 0); err != nil {
			return err
		}
	}
	if err := loadModules(); err != nil {
		return err
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err
	}
	nics, err := nics()
	if err != nil {
		return err
	}
	fmt.Printf("%skernel %s\n", marker, unix.ByteSliceToString(name.Release[:]))

	b, err := os.ReadFile("/" + planFile)
	if err != nil {
		return err
	}
	var p plan
	if err := json.Unmarshal(b, &p); err != nil {
		return err
	}
	for _, t := range p.Tests {
		cmd := exec.Command("/"+filepath.Join(testDir, t.Package), "-test.v", "-test.run="+t.Run, "-test.skip="+t.Skip, "-test.timeout=5m")
		cmd.Dir = "/tmp"
		cmd.Env = []string{
			"PATH=/bin", "HOME=/tmp", "TMPDIR=/tmp", "XTWAMP_REQUIRE_ROOT=1", "XTWAMP_DEVICES=1", "XTWAMP_NICS=" + strings.Join(nics, " "),
			// A signal while a program is run for a test takes its result away before 5.13, and Go's scheduler sends some.
			"GODEBUG=asyncpreemptoff=1",
		}
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
		fmt.Printf("%sbegin %s\n", marker, t.Package)
		result := "ok"
		if err := cmd.Run(); err != nil {
			result = err.Error()
		}
		fmt.Printf("%send %s %s\n", marker, t.Package, result)
	}
	fmt.Println(marker + "done")
	return nil
}

func loadModules() error {
	files, err := os.ReadDir("/" + moduleDir) // sorted
	if err != nil {
		return err
	}
	for _, f := range files {
		module, err := os.Open(filepath.Join("/", moduleDir, f.Name()))
		if err != nil {
			return err
		}
		parameters := ""
		if strings.HasSuffix(f.Name(), "-bonding") {
			parameters = "max_bonds=0"
		}
		err = errors.Join(unix.FinitModule(int(module.Fd()), parameters, 0), module.Close())
		if err != nil {
			return fmt.Errorf("load module %s: %w", f.Name(), err)
		}
	}
	return nil
}

// nics are the machine's network cards, in the order in which qemu was told of them: each two are joined.
func nics() ([]string, error) {
	cards, err := filepath.Glob("/sys/class/net/*/device")
	if err != nil {
		return nil, err
	}
	byAddress := make(map[string]string)
	var addresses []string
	for _, c := range cards {
		dir := filepath.Dir(c)
		address, err := os.ReadFile(filepath.Join(dir, "address"))
		if err != nil {
			return nil, err
		}
		byAddress[string(address)] = filepath.Base(dir)
		addresses = append(addresses, string(address))
	}
	slices.Sort(addresses)
	var names []string
	for i, a := range addresses {
		// Not eth0, which tests like to call their own.
		name := fmt.Sprintf("card%d", i)
		if out, err := exec.Command("/bin/ip", "link", "set", "dev", byAddress[a], "name", name).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("rename %s: %w: %s", byAddress[a], err, out)
		}
		names = append(names, name)
	}
	return names, nil
}
