// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// unavailableError means that a package cannot be downloaded.
type unavailableError struct{ err error }

func (e *unavailableError) Error() string { return e.err.Error() }
func (e *unavailableError) Unwrap() error { return e.err }

// kernel is an unpacked kernel package.
type kernel struct {
	image   string // vmlinuz
	modules string // the folder of modules of its version
}

// fetch has apt download and verify a release's kernel, and unpacks it below dir. What is there already stays.
func fetch(ctx context.Context, r release, dir string) (*kernel, error) {
	tree := filepath.Join(dir, "tree")
	if k, err := find(tree); err == nil {
		return k, nil
	}
	deb, err := download(ctx, r, dir)
	if err != nil {
		return nil, err
	}
	// Unpacked whole or not at all.
	partial := tree + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return nil, err
	}
	if _, err := output(ctx, dir, "dpkg-deb", "-x", filepath.Base(deb), filepath.Base(partial)); err != nil {
		return nil, err
	}
	if err := os.Rename(partial, tree); err != nil {
		return nil, err
	}
	return find(tree)
}

func find(tree string) (*kernel, error) {
	images, _ := filepath.Glob(filepath.Join(tree, "boot/vmlinuz-*")) // the pattern is right
	if len(images) != 1 {
		return nil, fmt.Errorf("%d kernels in %s, want one", len(images), tree)
	}
	_, version, _ := strings.Cut(filepath.Base(images[0]), "-")
	for _, lib := range []string{"lib/modules", "usr/lib/modules"} {
		modules := filepath.Join(tree, lib, version)
		if _, err := os.Stat(modules); err == nil {
			return &kernel{images[0], modules}, nil
		}
	}
	return nil, fmt.Errorf("no modules of %s in %s", version, tree)
}

// download fetches the package that a release's linux-image-cloud-amd64 stands for. apt works in a root of its own, so
// that the machine's lists and packages are left alone, with the machine's mirror, proxy and keys.
func download(ctx context.Context, r release, dir string) (string, error) {
	root, err := filepath.Abs(filepath.Join(dir, "apt"))
	if err != nil {
		return "", err
	}
	for _, d := range []string{"lists/partial", "archives/partial"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return "", err
		}
	}
	archive, security, err := mirrors(ctx)
	if err != nil {
		return "", err
	}
	const key = "[arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
	sources := fmt.Sprintf("deb %s %s %s main\ndeb %s %s %s-security main\n", key, archive, r.name, key, security, r.name)
	list, status := filepath.Join(root, "sources.list"), filepath.Join(root, "status")
	if err := errors.Join(os.WriteFile(list, []byte(sources), 0o644), os.WriteFile(status, nil, 0o644)); err != nil {
		return "", err
	}
	apt := func(command string, args ...string) (string, error) {
		return output(ctx, dir, command, append([]string{"-q", "-q",
			"-o", "Dir::Etc::SourceList=" + list, "-o", "Dir::Etc::SourceParts=/dev/null",
			"-o", "Dir::State::Lists=" + filepath.Join(root, "lists"), "-o", "Dir::State::Status=" + status,
			"-o", "Dir::Cache=" + root, "-o", "APT::Architecture=amd64", "-o", "APT::Architectures::=amd64",
			"-o", "APT::Update::Error-Mode=any", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3",
		}, args...)...)
	}
	if _, err := apt("apt-get", "update"); err != nil {
		return "", &unavailableError{err}
	}
	const wanted = "linux-image-cloud-amd64"
	depends, err := apt("apt-cache", "depends", "--important", wanted)
	if err != nil {
		return "", err
	}
	_, name, ok := strings.Cut(depends, "Depends: ")
	if name = strings.TrimSpace(name); !ok || strings.ContainsAny(name, " \n") {
		return "", fmt.Errorf("%s of %s depends on more or less than one package: %q", wanted, r.name, depends)
	}
	if _, err := apt("apt-get", "download", name); err != nil {
		return "", &unavailableError{err}
	}
	debs, _ := filepath.Glob(filepath.Join(dir, name+"_*.deb"))
	if len(debs) != 1 {
		return "", fmt.Errorf("apt-get download %s: %d files, want one", name, len(debs))
	}
	return debs[0], nil
}

// mirrors are where this machine gets Debian and its security updates from.
func mirrors(ctx context.Context) (archive, security string, err error) {
	archive, security = "http://deb.debian.org/debian/", "http://deb.debian.org/debian-security/"
	uris, err := output(ctx, ".", "apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages")
	if err != nil {
		return "", "", err
	}
	for uri := range strings.FieldsSeq(uris) {
		switch {
		case strings.HasSuffix(uri, "/debian/"):
			archive = uri
		case strings.HasSuffix(uri, "/debian-security/"):
			security = uri
		}
	}
	return archive, security, nil
}

// output runs a command in a folder and returns what it printed. What went wrong is in the error.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(exit.Stderr)))
	} else if err != nil {
		return "", err
	}
	return string(out), nil
}
