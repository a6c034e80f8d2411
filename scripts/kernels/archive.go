// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// file is one of the initial file system of a machine.
type file struct {
	name    string // without a slash in front
	from    string // on this machine; empty: what content says
	content []byte
}

// The places in a machine that both sides know.
const (
	moduleDir = "modules"
	testDir   = "tests"
	planFile  = "plan.json"
)

// plan is what a machine has to do.
type plan struct{ Tests []testRun }

// modules are those that the tests' devices and programs need, beside what they depend on.
var modules = []string{
	"virtio_pci", "virtio_net",
	"veth", "dummy", "bridge", "tun", "8021q", "bonding", "vrf", "ipip", "ip_gre", "ip6_tunnel", "ip6_gre",
	"macvlan", "sch_ingress", "cls_bpf", "sch_netem",
}

// tools are commands that the tests call.
var tools = []string{"ip", "tc", "ethtool", "nsenter", "sleep"}

// common is what all machines have: init, tests, and tools with their libraries.
func common(ctx context.Context) ([]file, error) {
	bin, err := filepath.Abs(filepath.Join(buildDir, "bin"))
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return nil, err
	}
	build := func(to string, args ...string) (file, error) {
		to = filepath.Join(bin, to)
		cmd := exec.CommandContext(ctx, "go", append(args[:1:1], append([]string{"-trimpath", "-ldflags=-s -w", "-o", to}, args[1:]...)...)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64", "GOOS=linux")
		if out, err := cmd.CombinedOutput(); err != nil {
			return file{}, fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
		}
		return file{from: to}, nil
	}
	guest, err := build("init", "build", "./scripts/kernels")
	if err != nil {
		return nil, err
	}
	guest.name = "init"
	files := []file{guest}
	for _, t := range tests {
		f, err := build(path.Base(t.Package)+".test", "test", "-c", "./"+t.Package)
		if err != nil {
			return nil, err
		}
		f.name = path.Join(testDir, t.Package)
		files = append(files, f)
	}
	for _, tool := range tools {
		at, err := exec.LookPath(tool)
		if err != nil {
			return nil, err
		}
		files = append(files, file{name: "bin/" + tool, from: at})
		libraries, err := libraries(ctx, at)
		if err != nil {
			return nil, err
		}
		for _, lib := range libraries {
			if f := (file{name: lib[1:], from: lib}); !slices.ContainsFunc(files, func(g file) bool { return g.name == f.name }) {
				files = append(files, f)
			}
		}
	}
	return files, nil
}

// planFor is the plan of a release: its tests, or those of them that match the pattern.
func planFor(r release, pattern string) (file, error) {
	p := plan{Tests: slices.Clone(tests)}
	for i := range p.Tests {
		t := &p.Tests[i]
		if pattern != "" {
			t.Run = pattern
		}
		if t.Package == "bpf" && r.skip != "" {
			t.Skip += "|" + r.skip
		}
	}
	content, err := json.Marshal(p)
	return file{name: planFile, content: content}, err
}

// libraries are the files that a program is linked with when it starts.
func libraries(ctx context.Context, program string) (out []string, err error) {
	text, err := output(ctx, ".", "ldd", program)
	if err != nil {
		return nil, err
	}
	for field := range strings.FieldsSeq(text) {
		if strings.HasPrefix(field, "/") {
			out = append(out, strings.TrimSuffix(field, ":"))
		}
	}
	return out, nil
}

// moduleFiles are the modules, named so that their order is that in which to load them.
func (k *kernel) moduleFiles() ([]file, error) {
	builtin, err := os.ReadFile(filepath.Join(k.modules, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	at := make(map[string]string) // by name; empty if it is part of the kernel
	for line := range strings.Lines(string(builtin)) {
		at[moduleName(strings.TrimSpace(line))] = ""
	}
	err = filepath.WalkDir(k.modules, func(name string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(name, ".ko") {
			at[moduleName(name)] = name
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var files []file
	seen := make(map[string]bool)
	var add func(name string) error
	add = func(name string) error {
		from, known := at[name]
		switch {
		case !known:
			return fmt.Errorf("%s: no module %s", k.modules, name)
		case from == "" || seen[name]:
			return nil
		}
		seen[name] = true
		needs, err := dependencies(from)
		if err != nil {
			return err
		}
		for _, n := range needs {
			if err := add(n); err != nil {
				return err
			}
		}
		files = append(files, file{name: fmt.Sprintf("%s/%03d-%s", moduleDir, len(files), name), from: from})
		return nil
	}
	for _, name := range modules {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return files, nil
}

func moduleName(file string) string {
	return strings.ReplaceAll(strings.TrimSuffix(path.Base(file), ".ko"), "-", "_")
}

// dependencies are the modules that a module says it needs.
func dependencies(module string) ([]string, error) {
	f, err := elf.Open(module)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("%s: not a kernel module", module)
	}
	info, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", module, err)
	}
	for entry := range strings.SplitSeq(string(info), "\x00") {
		if names, ok := strings.CutPrefix(entry, "depends="); ok && names != "" {
			return strings.Split(strings.ReplaceAll(names, "-", "_"), ","), nil
		}
	}
	return nil, nil
}

// writeArchive writes an initramfs (cpio, format newc: Documentation/driver-api/early-userspace/buffer-format.rst).
func writeArchive(name string, files []file) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	w := &archive{w: bufio.NewWriterSize(f, 1<<20), dirs: make(map[string]bool)}
	defer func() { err = errors.Join(err, f.Close()) }()
	for _, file := range files {
		if err := w.add(file); err != nil {
			return fmt.Errorf("%s: %w", file.name, err)
		}
	}
	return errors.Join(w.entry("TRAILER!!!", 0, 0, strings.NewReader("")), w.w.Flush())
}

type archive struct {
	w    *bufio.Writer
	dirs map[string]bool
	last int // inode number
}

func (a *archive) add(f file) error {
	if err := a.mkdir(path.Dir(f.name)); err != nil {
		return err
	}
	if f.from == "" {
		return a.entry(f.name, unix.S_IFREG|0o755, int64(len(f.content)), strings.NewReader(string(f.content)))
	}
	in, err := os.Open(f.from)
	if err != nil {
		return err
	}
	defer in.Close()
	stat, err := in.Stat()
	if err != nil {
		return err
	}
	return a.entry(f.name, unix.S_IFREG|0o755, stat.Size(), in)
}

func (a *archive) mkdir(dir string) error {
	if dir == "." || a.dirs[dir] {
		return nil
	}
	if err := a.mkdir(path.Dir(dir)); err != nil {
		return err
	}
	a.dirs[dir] = true
	return a.entry(dir, unix.S_IFDIR|0o755, 0, strings.NewReader(""))
}

func (a *archive) entry(name string, mode uint32, size int64, content io.Reader) error {
	const headerBytes = 110
	a.last++
	fmt.Fprintf(a.w, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		a.last, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0, name)
	a.pad(headerBytes + int64(len(name)) + 1)
	n, err := io.Copy(a.w, content)
	if err == nil && n != size {
		err = fmt.Errorf("%d bytes, want %d", n, size)
	}
	a.pad(size)
	return err
}

// pad fills up to a multiple of four bytes. The writer keeps its errors until it is flushed.
func (a *archive) pad(written int64) {
	_, _ = a.w.Write(make([]byte, -written&3))
}
