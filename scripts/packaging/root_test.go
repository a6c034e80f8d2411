// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/netns/netnstest"
)

// inRoot makes the test binary enter the root that it names, and become its
// arguments there.
const inRoot = "XTWAMP_PACKAGING_ROOT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(inRoot); dir != "" {
		fmt.Fprintln(os.Stderr, enter(dir, os.Args[1:]))
		os.Exit(125)
	}
	os.Exit(m.Run())
}

// root is a root file system of its own, with this machine's as it is now below
// it: what runs in it may install, remove and overwrite, and changes nothing
// outside.
type root struct {
	t   testing.TB
	dir string
}

func newRoot(t testing.TB) *root {
	t.Helper()
	netnstest.RequireRoot(t)
	r := &root{t, t.TempDir()}
	for _, dir := range []string{"upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(r.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// path is where a file of the root is for those outside, while nothing runs in
// it. Only what was changed is there.
func (r *root) path(name string) string { return filepath.Join(r.dir, "upper", name) }

// write puts a file into the root while nothing runs in it.
func (r *root) write(name, text string) {
	r.t.Helper()
	if err := os.MkdirAll(filepath.Dir(r.path(name)), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(r.path(name), []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// command prepares a command that runs in the root.
func (r *root) command(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", inRoot + "=" + r.dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWPID}
	return cmd
}

// run runs a command in the root and returns its output.
func (r *root) run(args ...string) string {
	r.t.Helper()
	out, err := r.command(args...).CombinedOutput()
	if err != nil {
		r.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// enter makes dir's root that of this process, which is in namespaces of its
// own, and executes args. It returns only if that fails.
func enter(dir string, args []string) error {
	runtime.LockOSThread() // until the end: its namespaces are those of what is executed
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	merged := filepath.Join(dir, "merged")
	in := func(name string) string { return filepath.Join(merged, name) }
	const nothing = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	layers := fmt.Sprintf("lowerdir=/,upperdir=%s/upper,workdir=%s/work", dir, dir)
	type mount struct {
		source, target, kind string
		flags                uintptr
		data                 string
	}
	mounts := []mount{
		{"", "/", "", unix.MS_REC | unix.MS_SLAVE, ""}, // what is mounted outside later comes in, and nothing goes out
		{"overlay", merged, "overlay", 0, layers},
		{"tmpfs", in("run"), "tmpfs", 0, "mode=755"},
		{"tmpfs", in("tmp"), "tmpfs", 0, "mode=1777"},
		{"proc", in("proc"), "proc", nothing, ""},
		{in("proc/sys"), in("proc/sys"), "", unix.MS_BIND, ""},
		{"", in("proc/sys"), "", unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY, ""},
		{"sysfs", in("sys"), "sysfs", nothing | unix.MS_RDONLY, ""},
		{"cgroup2", in("sys/fs/cgroup"), "cgroup2", nothing, ""},
		{"tmpfs", in("dev"), "tmpfs", 0, "mode=755"},
		{"devpts", in("dev/pts"), "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "newinstance,ptmxmode=0666"},
		{"tmpfs", in("dev/shm"), "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
	}
	if _, err := os.Stat("/run/netns"); err == nil { // else there are no named namespaces yet
		mounts = append(mounts, mount{"/run/netns", in("run/netns"), "", unix.MS_BIND | unix.MS_REC, ""})
	}
	for _, device := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		mounts = append(mounts, mount{"/dev/" + device, in("dev/" + device), "", unix.MS_BIND, ""})
	}
	for _, m := range mounts {
		var err error
		if m.source == filepath.Join("/dev", filepath.Base(m.target)) {
			err = os.WriteFile(m.target, nil, 0o600)
		} else {
			err = os.MkdirAll(m.target, 0o755)
		}
		if err != nil {
			return err
		}
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	if err := os.Symlink("pts/ptmx", in("dev/ptmx")); err != nil {
		return err
	}
	if err := unix.PivotRoot(merged, in("mnt")); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := errors.Join(os.Chdir("/"), unix.Unmount("/mnt", unix.MNT_DETACH), unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")); err != nil {
		return err
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	if err := os.Unsetenv(inRoot); err != nil {
		return err
	}
	return syscall.Exec(path, args, os.Environ())
}

// unitPath is where a booted root has all of its units.
const unitPath = "/etc/xtwamp-test-units"

// machine is a root in which systemd is the first process.
type machine struct {
	*root
	init   *exec.Cmd
	cgroup string // of all its processes
}

// boot starts systemd in the root, inside ns, and lets it start units. Nothing
// that they depend on exists but what is in unitPath.
func (r *root) boot(ns *netnstest.NS, units ...string) *machine {
	r.t.Helper()
	// What systemd's own units would do is not for a test.
	for _, target := range []string{"sysinit", "basic", "shutdown", "multi-user", "network-pre"} {
		r.write(filepath.Join(unitPath, target+".target"), "[Unit]\nDefaultDependencies=no\n")
	}
	r.write(filepath.Join(unitPath, "test.target"), "[Unit]\nDefaultDependencies=no\nWants="+strings.Join(units, " ")+"\n")

	m := &machine{root: r, cgroup: filepath.Join(cgroup2(r.t), fmt.Sprintf("xtwamp-test-%d-%d", os.Getpid(), time.Now().UnixNano()))}
	if err := os.Mkdir(m.cgroup, 0o755); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := removeCgroup(m.cgroup); err != nil {
			r.t.Errorf("remove the control group: %v", err)
		}
	})
	group, err := os.Open(m.cgroup)
	if err != nil {
		r.t.Fatal(err)
	}
	defer group.Close()
	m.init = r.command("/lib/systemd/systemd", "--system", "--unit=test.target", "--log-target=null", "--show-status=no")
	// No units but the test's, and no hardware.
	m.init.Env = append(m.init.Env, "container=xtwamp", "SYSTEMD_UNIT_PATH="+unitPath, "SYSTEMD_GENERATOR_PATH=/none")
	m.init.SysProcAttr.UseCgroupFD, m.init.SysProcAttr.CgroupFD = true, int(group.Fd())
	m.init.Stderr = os.Stderr
	if err := ns.Do(m.init.Start); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(m.off)
	return m
}

// off ends all that runs in the machine, at once. It may be called again.
func (m *machine) off() {
	m.init.Process.Kill() // and with it all of its namespace
	m.init.Wait()
}

// cgroup2 is where the hierarchy of control groups v2 is mounted.
func cgroup2(t testing.TB) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); f[2] == "cgroup2" {
			return f[1]
		}
	}
	t.Fatal("control groups v2 are not mounted")
	return ""
}

// removeCgroup removes a control group with those in it, whose processes are gone.
func removeCgroup(dir string) error {
	var groups []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			groups = append(groups, path)
		}
		return err
	})
	for _, group := range slices.Backward(groups) {
		err = errors.Join(err, unix.Rmdir(group))
	}
	return err
}

// file is the path, from outside, of a file that the machine has.
func (m *machine) file(name string) string {
	return filepath.Join("/proc", strconv.Itoa(m.init.Process.Pid), "root", name)
}

// systemctl asks the machine's systemd.
func (m *machine) systemctl(args ...string) (string, error) {
	// It has to be one of the machine's processes to be heard.
	enter := []string{"--target", strconv.Itoa(m.init.Process.Pid), "--mount", "--pid", "systemctl"}
	out, err := exec.Command("nsenter", append(enter, args...)...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// property is one property of a unit.
func (m *machine) property(unit, name string) string {
	value, err := m.systemctl("show", "--value", "--property="+name, unit)
	if err != nil {
		return err.Error() + ": " + value
	}
	return value
}

// mainPID is the pid, as seen from outside, of the only process of a service.
func (m *machine) mainPID(service string) string {
	m.t.Helper()
	pids, err := os.ReadFile(filepath.Join(m.cgroup, "system.slice", service, "cgroup.procs"))
	if err != nil || strings.Count(string(pids), "\n") != 1 {
		m.t.Fatalf("processes of %s: %q, %v; want one", service, pids, err)
	}
	return strings.TrimSpace(string(pids))
}
