// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/xtwamp/xtwamp/netns/netnstest"
)

// makePackages makes both packages, and returns the files.
func makePackages(t testing.TB) (deb, rpm string) {
	t.Helper()
	if out, err := exec.Command("make", "-C", "../..", "package").CombinedOutput(); err != nil {
		t.Fatalf("make package: %v\n%s", err, out)
	}
	one := func(pattern string) string {
		t.Helper()
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) != 1 {
			t.Fatalf("%s: %v, %v; want one file", pattern, files, err)
		}
		return files[0]
	}
	return one("../../build/xtwamp_*.deb"), one("../../build/xtwamp-*.rpm")
}

// manual is the manual pages of all commands.
var manual = []string{
	"xtwamp", "xtwamp-config", "xtwamp-config-check", "xtwamp-doctor", "xtwamp-ledger", "xtwamp-ledger-verify", "xtwamp-ping", "xtwamp-reflect",
	"xtwamp-run", "xtwamp-samples", "xtwamp-status", "xtwamp-version",
}

func TestPackages(t *testing.T) {
	netnstest.RequireRoot(t)
	deb, rpm := makePackages(t)

	t.Run("rpm has what belongs there", func(t *testing.T) {
		want := []string{
			"-rw-r----- root root config /etc/xtwamp/xtwamp.yml",
			"-rwxr-xr-x root root /usr/bin/xtwamp",
			"-rw-r--r-- root root /usr/lib/systemd/system/xtwamp.service",
			"-rw-r--r-- root root /usr/lib/sysusers.d/xtwamp.conf",
			"-rw-r--r-- root root /usr/share/bash-completion/completions/xtwamp",
			"-rw-r--r-- root root /usr/share/doc/xtwamp/CHANGELOG.md",
			"-rw-r--r-- root root /usr/share/doc/xtwamp/README.md",
			"-rw-r--r-- root root /usr/share/fish/vendor_completions.d/xtwamp.fish",
			"-rw-r--r-- root root /usr/share/licenses/xtwamp/LICENSE",
			"-rw-r--r-- root root /usr/share/xtwamp/single-namespace.conf",
			"-rw-r--r-- root root /usr/share/zsh/site-functions/_xtwamp",
		}
		for _, page := range manual {
			want = append(want, "-rw-r--r-- root root /usr/share/man/man1/"+page+".1.gz")
		}
		query := func(args ...string) string {
			t.Helper()
			out, err := exec.Command("rpm", append([]string{"--query", "--package", rpm}, args...)...).Output()
			if err != nil {
				t.Fatalf("rpm %v: %v", args, err)
			}
			return string(out)
		}
		files := query("--queryformat", "[%{FILEMODES:perms} %{FILEUSERNAME} %{FILEGROUPNAME} %{FILEFLAGS:fflags} %{FILENAMES}\n]")
		var got []string
		for line := range strings.Lines(files) {
			line = strings.Join(strings.Fields(line), " ")
			line = strings.Replace(line, " cn ", " config ", 1) // kept if changed: (noreplace)
			line = strings.Replace(line, " l ", " ", 1)
			if !strings.HasPrefix(line, "d") {
				got = append(got, line)
			}
		}
		byName := func(a, b string) int {
			return strings.Compare(a[strings.LastIndex(a, " "):], b[strings.LastIndex(b, " "):])
		}
		slices.SortFunc(want, byName)
		slices.SortFunc(got, byName)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("files (-want +got):\n%s", diff)
		}
		scripts := query("--scripts")
		for _, name := range []string{"post", "preun", "postun"} {
			_, text, _ := strings.Cut(read(t, filepath.Join("rpm", name)), "set -e")
			if !strings.Contains(scripts, text) {
				t.Errorf("the script %s is missing in:\n%s", name, scripts)
			}
		}
		if !strings.Contains(query("--info"), "License     : Apache-2.0") {
			t.Error("no licence")
		}
	})

	t.Run("deb is installed and upgraded and removed", func(t *testing.T) { installUpgradeRemove(t, deb) })
}

func installUpgradeRemove(t *testing.T, deb string) {
	r := newRoot(t)
	r.write("/old.deb", read(t, deb))
	exists := func(name string) bool {
		_, err := os.Lstat(r.path(name))
		return err == nil
	}
	// What the overlay has for a file that is gone is not regular.
	installed := func(name string) bool {
		info, err := os.Stat(r.path(name))
		return err == nil && info.Mode().IsRegular()
	}
	const (
		config  = "/etc/xtwamp/xtwamp.yml"
		program = "/usr/bin/xtwamp"
		unit    = "/usr/lib/systemd/system/xtwamp.service"
		enabled = "/etc/systemd/system/multi-user.target.wants/xtwamp.service"
		samples = "/var/lib/xtwamp/samples.db"
	)
	r.run("dpkg", "--no-triggers", "--install", "/old.deb")
	for _, name := range []string{config, program, unit} {
		if !installed(name) {
			t.Errorf("%s is not installed", name)
		}
	}
	if !exists(enabled) {
		t.Error("the unit is not enabled")
	}
	if got := strings.TrimSpace(r.run("stat", "--format=%U %G %a", config)); got != "root xtwamp 640" {
		t.Errorf("configuration is %q, want root xtwamp 640", got)
	}
	if got := r.run("xtwamp", "config", "check", config); got != config+" is good: 0 targets\n" {
		t.Errorf("config check = %q", got)
	}
	for _, page := range manual {
		r.run("man", "--warnings", "--where", page)
	}
	r.run("bash", "-n", "/usr/share/bash-completion/completions/xtwamp")

	// As it is, it starts.
	r.write(unitPath+"/xtwamp.service", read(t, r.path(unit)))
	m := r.boot(netnstest.New(t).Namespace("host"), "xtwamp.service")
	awaitState(t, "the daemon to be ready", func() bool { code, _ := get(m, "/-/ready"); return code == http.StatusOK })
	if got := m.property("xtwamp.service", "ActiveState"); got != "active" {
		t.Errorf("ActiveState = %s, want active", got)
	}
	m.off()
	if !installed(samples) {
		t.Fatal("no store")
	}

	// An upgrade keeps what was changed.
	const changed = "# mine\n"
	r.run("sh", "-c", fmt.Sprintf("printf %q >> %s", changed, config))
	r.run("sh", "-ec", "dpkg-deb --raw-extract /old.deb /new; sed -i 's/^Version: .*/Version: 99/' /new/DEBIAN/control; dpkg-deb --build /new /new.deb")
	r.run("rm", enabled) // turned off
	r.run("dpkg", "--no-triggers", "--install", "/new.deb")
	if got := r.run("dpkg-query", "--show", "--showformat=${Version} ${db:Status-Status}", "xtwamp"); got != "99 installed" {
		t.Errorf("after the upgrade: %q", got)
	}
	if !strings.HasSuffix(r.run("cat", config), changed) {
		t.Error("the upgrade has lost a change of the configuration")
	}
	if got := strings.TrimSpace(r.run("stat", "--format=%U %G %a", config)); got != "root xtwamp 640" {
		t.Errorf("after the upgrade the configuration is %q, want root xtwamp 640", got)
	}
	if exists(enabled) {
		t.Error("the upgrade has enabled a unit that was turned off")
	}

	r.run("dpkg", "--no-triggers", "--remove", "xtwamp")
	if installed(program) || installed(unit) {
		t.Error("after removal the program or its unit is there")
	}
	if !installed(config) || !installed(samples) {
		t.Error("removal has taken the configuration or the samples")
	}
	out := r.run("dpkg", "--no-triggers", "--purge", "xtwamp")
	if installed(config) || exists(enabled) {
		t.Error("purging has left the configuration or the enablement")
	}
	if !installed(samples) || !strings.Contains(out, "samples in /var/lib/xtwamp are left") {
		t.Errorf("purging has taken the samples, or does not say that it has not: %s", out)
	}
}
