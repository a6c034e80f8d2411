// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// boot runs a machine to its end and hands what its tests print to the report. What they print is in
// dir/tests.log too, and the kernel's own words in dir/console.log.
func boot(ctx context.Context, image, initrd, dir string, rep *report) error {
	accelerator := "tcg,thread=multi"
	if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err == nil {
		_ = f.Close()
		accelerator = "kvm"
	}
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
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
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
	readErr := rep.read(io.TeeReader(out, log))
	if err := cmd.Wait(); err != nil {
		return errors.Join(fmt.Errorf("qemu: %w", err), context.Cause(ctx))
	}
	return readErr
}
