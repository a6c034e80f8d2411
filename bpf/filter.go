// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A clsact filter stays when its process is killed, and other processes of ours
// may have theirs beside it. Its name therefore says whose it is:
//
//	xtwamp-<inode of the pid namespace>-<pid>-<start time>-<ingress|egress|reflect>
//
// Start time is field 22 of /proc/<pid>/stat and tells a process from a later
// one with the same pid.
const filterPrefix = "xtwamp"

// role is what a program does on a device.
type role string

const (
	roleIngress role = "ingress"
	roleEgress  role = "egress"
	roleReflect role = "reflect" // at ingress
)

func filterName(r role) (string, error) {
	space, err := pidNamespace()
	if err != nil {
		return "", fmt.Errorf("name filter: %w", err)
	}
	self, err := readProcess(os.Getpid())
	if err != nil {
		return "", fmt.Errorf("name filter: %w", err)
	}
	return fmt.Sprintf("%s-%d-%d-%d-%s", filterPrefix, space, os.Getpid(), self.start, r), nil
}

// FilterOwnerDead says whether a clsact filter was left behind by a process of
// ours that is gone. It is false for names that are not ours, for processes of
// another pid namespace, and where it cannot be told.
func FilterOwnerDead(name string) bool {
	f := strings.Split(name, "-")
	if len(f) != 5 || f[0] != filterPrefix {
		return false
	}
	switch role(f[4]) {
	case roleIngress, roleEgress, roleReflect:
	default:
		return false
	}
	space, err1 := strconv.ParseUint(f[1], 10, 64)
	pid, err2 := strconv.ParseInt(f[2], 10, 32)
	start, err3 := strconv.ParseUint(f[3], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || pid < 1 {
		return false
	}
	if own, err := pidNamespace(); err != nil || own != space {
		return false
	}
	p, err := readProcess(int(pid))
	if errors.Is(err, fs.ErrNotExist) {
		// A /proc mounted with hidepid hides processes that are alive.
		return errors.Is(unix.Kill(int(pid), 0), unix.ESRCH)
	}
	return err == nil && (p.start != start || p.zombie)
}

// pidNamespace returns the inode of this process's pid namespace. It fails if
// /proc shows another one, since the pids in there mean other processes.
func pidNamespace() (uint64, error) {
	self, err := os.Readlink("/proc/self")
	if err != nil {
		return 0, err
	}
	if self != strconv.Itoa(os.Getpid()) {
		return 0, errors.New("/proc belongs to another pid namespace")
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return 0, fmt.Errorf("stat /proc/self/ns/pid: %w", err)
	}
	return st.Ino, nil
}

type process struct {
	start  uint64 // clock ticks after boot
	zombie bool   // dead, but its parent has not noticed yet
}

func readProcess(pid int) (process, error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	b, err := os.ReadFile(path)
	if errors.Is(err, unix.ESRCH) { // it ended between open and read
		err = fs.ErrNotExist
	}
	if err != nil {
		return process{}, err
	}
	// Field 2, the command, is in parentheses and may contain anything.
	_, after, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	f := strings.Fields(after) // from field 3 on
	if len(f) < 20 {
		return process{}, fmt.Errorf("%s: unexpected content", path)
	}
	start, err := strconv.ParseUint(f[19], 10, 64)
	if err != nil {
		return process{}, fmt.Errorf("%s: start time: %w", path, err)
	}
	return process{start: start, zombie: f[0] == "Z" || f[0] == "X"}, nil
}
