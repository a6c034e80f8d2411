// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// errNoKVM marks a machine that the host's KVM cannot run, as happens where the host is a guest itself.
var errNoKVM = errors.New("KVM gave up")

// boot runs a machine to its end and hands what its tests print to the report. What they print is in dir/tests.log too, and
// the kernel's own words in dir/console.log. Without a KVM that works, the machine is emulated.
func boot(ctx context.Context, image, initrd, dir string, rep *report) error {
	if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err == nil {
		_ = f.Close()
		err := bootWith(ctx, "kvm", image, initrd, dir, rep)
		if !errors.Is(err, errNoKVM) || rep.begun() {
			return err
		}
		fmt.Fprintf(os.Stderr, "kernels: %s: %v; emulating the machine\n", image, errNoKVM)
	}
	return bootWith(ctx, "tcg,thread=multi", image, initrd, dir, rep)
}

func bootWith(ctx context.Context, accelerator, image, initrd, dir string, rep *report) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	args := []string{
		"-accel", accelerator, "-cpu", "max", "-smp", "2", "-m", "1024", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", image, "-initrd", initrd,
		// A panic ends the machine at once.
		"-append", "console=ttyS0 loglevel=4 panic=-1 net.ifnames=0",
		"-serial", "file:" + filepath.Join(dir, "console.log"), "-serial", "stdio",
	}
	// Two cards on one wire.
	for i := range 2 {
		args = append(args, "-netdev", fmt.Sprintf("hubport,id=n%d,hubid=0", i),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=n%d,mac=52:54:00:00:00:%02d,romfile=", i, i))
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", args...)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	complaints, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(dir, "tests.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	if err := cmd.Start(); err != nil {
		return err
	}
	var complaining sync.WaitGroup
	complaining.Go(func() {
		if passOn(complaints, os.Stderr) {
			cancel(errNoKVM) // QEMU has stopped the machine, and would wait for ever
		}
	})
	readErr := rep.read(io.TeeReader(out, log))
	complaining.Wait()
	if err := cmd.Wait(); err != nil {
		return errors.Join(fmt.Errorf("qemu: %w", err), context.Cause(ctx))
	}
	return readErr
}

// passOn copies what QEMU complains of, up to where it says that KVM has given up: true then.
func passOn(from io.Reader, to io.Writer) (gaveUp bool) {
	for lines := bufio.NewScanner(from); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "KVM internal error") {
			return true
		}
		fmt.Fprintln(to, lines.Text())
	}
	return false
}
