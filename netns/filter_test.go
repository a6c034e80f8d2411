// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/netns/netnstest"
)

// unspec loads the program `return TC_ACT_UNSPEC` and returns its descriptor.
func unspec(t *testing.T) int { return minusOne(t, unix.BPF_PROG_TYPE_SCHED_CLS) }

// minusOne loads the program `return -1` of a kind and returns its descriptor.
func minusOne(t *testing.T, kind uint32) int {
	t.Helper()
	code := []struct {
		op, registers uint8
		offset        int16
		immediate     int32
	}{
		{op: unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_K, immediate: -1}, // r0 = -1
		{op: unix.BPF_JMP | unix.BPF_EXIT},
	}
	license := []byte("GPL\x00")
	attr := struct { // the start of union bpf_attr
		kind, length    uint32
		code, license   unsafe.Pointer
		logLevel, logSz uint32
		log             uint64
		version, flags  uint32
	}{kind: kind, length: uint32(len(code)), code: unsafe.Pointer(&code[0]), license: unsafe.Pointer(&license[0])}
	load := func() (fd uintptr, errno unix.Errno) {
		fd, _, errno = unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
		return fd, errno
	}
	fd, errno := load()
	for errno == unix.EAGAIN { // the verifier gives up when a signal arrives, such as those by which the runtime preempts
		fd, errno = load()
	}
	runtime.KeepAlive(code)
	runtime.KeepAlive(license)
	if errno != 0 {
		t.Fatalf("load program: %v", errno)
	}
	t.Cleanup(func() {
		if err := unix.Close(int(fd)); err != nil {
			t.Error(err)
		}
	})
	return int(fd)
}

// wire is an interface to hang filters on.
type wire struct {
	t     *testing.T
	ns    *netnstest.NS
	index int
	prog  int
}

func newWire(t *testing.T) *wire {
	t.Helper()
	lab := netnstest.New(t)
	a, b := lab.Namespace("a"), lab.Namespace("b")
	lab.Veth(a, "wire0", nil, b, "far0", nil)
	w := &wire{t: t, ns: a, prog: unspec(t)}
	w.do(func() error {
		link, err := netns.LinkByName("wire0")
		w.index = link.Index
		return err
	})
	return w
}

func (w *wire) do(fn func() error) {
	w.t.Helper()
	if err := w.ns.Do(fn); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wire) add(d netns.Direction, name string) *netns.Filter {
	w.t.Helper()
	var filter *netns.Filter
	w.do(func() (err error) {
		filter, err = netns.AddFilter(w.index, d, w.prog, name)
		return err
	})
	return filter
}

// filterLine is how tc(8) prints a filter, as against the line of the classifier above it.
var filterLine = regexp.MustCompile(`^filter (?:ingress |egress )?protocol (\S+) pref (\d+) (\S+) chain 0 handle (0x\w+) (.*)$`)

// filters lists a hook as tc(8) sees it: "priority name".
func (w *wire) filters(d netns.Direction) []string {
	w.t.Helper()
	var found []string
	for line := range strings.Lines(w.ns.Exec(w.t, "tc", "filter", "show", "dev", "wire0", d.String())) {
		m := filterLine.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		name, _, _ := strings.Cut(m[5], " ")
		if m[1] != "all" || m[3] == "bpf" && !strings.Contains(m[5], "direct-action") {
			w.t.Errorf("filter is not direct action for all protocols: %s", line)
		}
		found = append(found, m[2]+" "+name)
	}
	slices.Sort(found)
	return found
}

func (w *wire) want(d netns.Direction, names ...string) {
	w.t.Helper()
	want := []string{}
	for _, name := range names {
		if !strings.Contains(name, " ") {
			name = fmt.Sprint(netns.Priority, " ", name)
		}
		want = append(want, name)
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, append([]string{}, w.filters(d)...)); diff != "" {
		w.t.Errorf("%s filters (-want +got):\n%s", d, diff)
	}
}

func (w *wire) qdisc() string {
	w.t.Helper()
	return w.ns.Exec(w.t, "tc", "qdisc", "show", "dev", "wire0")
}

func TestFiltersOfOneHookLiveSideBySide(t *testing.T) {
	w := newWire(t)
	first := w.add(netns.Ingress, "same")
	second := w.add(netns.Ingress, "same") // same program too: only the handle tells them apart
	other := w.add(netns.Ingress, "other")
	out := w.add(netns.Egress, "same")
	w.want(netns.Ingress, "same", "same", "other")
	w.want(netns.Egress, "same")

	w.do(first.Close)
	w.want(netns.Ingress, "same", "other")
	w.do(first.Close)
	w.want(netns.Ingress, "same", "other")
	w.do(out.Close)
	w.want(netns.Ingress, "same", "other")
	w.want(netns.Egress)
	w.do(other.Close)
	w.want(netns.Ingress, "same")
	w.do(second.Close)
	w.want(netns.Ingress)
	if !strings.Contains(w.qdisc(), "clsact") {
		t.Errorf("the clsact qdisc went with the filters: %s", w.qdisc())
	}
}

func TestCloseRemovesExactlyItsOwnHandle(t *testing.T) {
	w := newWire(t)
	kept := w.add(netns.Ingress, "ours")
	ours := w.add(netns.Ingress, "ours")
	// Somebody removes ours; the next process gets its handle.
	w.ns.Exec(t, "tc", "filter", "delete", "dev", "wire0", "ingress", "protocol", "all", "prio", fmt.Sprint(netns.Priority), "handle", "2", "bpf")
	w.want(netns.Ingress, "ours")
	next := w.add(netns.Ingress, "next")
	if out := w.ns.Exec(t, "tc", "filter", "show", "dev", "wire0", "ingress"); !regexp.MustCompile(`handle 0x2 next`).MatchString(out) {
		t.Fatalf("handle 2 was not used again, the test shows nothing:\n%s", out)
	}
	w.do(ours.Close)
	w.want(netns.Ingress, "ours", "next")
	w.do(next.Close)
	w.do(kept.Close)
	w.want(netns.Ingress)
}

func TestSecondCloseSparesTheNextFilter(t *testing.T) {
	w := newWire(t)
	first := w.add(netns.Ingress, "same")
	w.do(first.Close)
	w.add(netns.Ingress, "same") // with the same handle and program: nothing in the kernel tells it from the first
	w.do(first.Close)
	w.want(netns.Ingress, "same")
}

func TestForeignFiltersStay(t *testing.T) {
	w := newWire(t)
	w.ns.Exec(t, "tc", "qdisc", "add", "dev", "lo", "ingress") // no matter of ours
	w.ns.Exec(t, "tc", "qdisc", "add", "dev", "wire0", "clsact")
	for _, d := range []string{"ingress", "egress"} {
		w.ns.Exec(t, "tc", "filter", "add", "dev", "wire0", d, "protocol", "all", "prio", "1", "bpf", "da", "bytecode", "1,6 0 0 4294967295")
	}
	foreign := w.filters(netns.Ingress)
	if len(foreign) != 1 {
		t.Fatalf("foreign filter is not there: %q", foreign)
	}
	in, out := w.add(netns.Ingress, "ours"), w.add(netns.Egress, "ours")
	w.want(netns.Ingress, append(foreign, "ours")...)
	w.want(netns.Egress, append(foreign, "ours")...)
	w.do(in.Close)
	w.do(out.Close)
	w.want(netns.Ingress, foreign...)
	w.want(netns.Egress, foreign...)
}

func TestSweepRemovesOnlyWhatIsCalledDead(t *testing.T) {
	w := newWire(t)
	w.add(netns.Ingress, "dead-1")
	alive := w.add(netns.Ingress, "alive")
	gone := w.add(netns.Ingress, "dead-2")
	w.add(netns.Egress, "dead-1")
	w.add(netns.Egress, "foreign")
	for _, chain := range []string{"0", "5"} {
		w.ns.Exec(t, "tc", "filter", "add", "dev", "wire0", "egress", "chain", chain, "protocol", "all", "prio", "1", "bpf", "da", "bytecode", "1,6 0 0 4294967295")
	}
	nameless := slices.DeleteFunc(w.filters(netns.Egress), func(s string) bool { return !strings.HasPrefix(s, "1 ") })

	var listed []string
	w.do(func() (err error) {
		listed, err = netns.FilterNames(w.index)
		return err
	})
	slices.Sort(listed)
	if diff := cmp.Diff([]string{"", "alive", "dead-1", "dead-1", "dead-2", "foreign"}, listed); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}

	var asked, removed []string
	w.do(func() (err error) {
		removed, err = netns.SweepFilters(w.index, func(name string) bool {
			asked = append(asked, name)
			return strings.HasPrefix(name, "dead-")
		})
		return err
	})
	slices.Sort(removed)
	if diff := cmp.Diff([]string{"dead-1", "dead-1", "dead-2"}, removed); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
	slices.Sort(asked)
	if diff := cmp.Diff([]string{"", "alive", "dead-1", "dead-1", "dead-2", "foreign"}, asked); diff != "" {
		t.Errorf("asked about, with nothing of chain 5 (-want +got):\n%s", diff)
	}
	w.want(netns.Ingress, "alive")
	w.want(netns.Egress, append(nameless, "foreign")...)
	w.do(gone.Close) // what a sweep took is no error
	w.do(alive.Close)
	if !strings.Contains(w.qdisc(), "clsact") {
		t.Errorf("the clsact qdisc went with the filters: %s", w.qdisc())
	}
}

// The kernel lists, beside the filters, the classifier that holds them, which has no name.
func TestSweepDoesNotTakeTheClassifierForAFilter(t *testing.T) {
	w := newWire(t)
	w.add(netns.Ingress, "ours")
	w.do(func() error {
		removed, err := netns.SweepFilters(w.index, func(name string) bool { return name == "" })
		if len(removed) != 0 {
			t.Errorf("removed %q", removed)
		}
		return err
	})
	w.want(netns.Ingress, "ours")
}

func TestSweepOfNothing(t *testing.T) {
	w := newWire(t)
	for _, index := range []int{w.index, 1 << 30} { // no qdisc; no interface
		w.do(func() error {
			removed, err := netns.SweepFilters(index, func(string) bool { return true })
			if len(removed) != 0 {
				t.Errorf("interface %d: removed %q", index, removed)
			}
			return err
		})
	}
}

func TestCloseAfterTheInterfaceOrQdiscIsGone(t *testing.T) {
	w := newWire(t)
	in, out := w.add(netns.Ingress, "a"), w.add(netns.Egress, "a")
	alive := func(f *netns.Filter) (alive bool) {
		w.do(func() error {
			alive = f.Alive()
			return nil
		})
		return alive
	}
	if !alive(in) || !alive(out) || in.Alive() {
		t.Error("not alive where it was added, or alive elsewhere")
	}
	w.do(out.Close)
	if !alive(in) || alive(out) {
		t.Error("closing one did not end it alone")
	}
	out = w.add(netns.Egress, "a")
	w.ns.Exec(t, "tc", "qdisc", "delete", "dev", "wire0", "clsact")
	if alive(in) || alive(out) {
		t.Error("alive without its qdisc")
	}
	w.do(in.Close)
	w.do(out.Close)

	in, out = w.add(netns.Ingress, "b"), w.add(netns.Egress, "b")
	w.ns.Exec(t, "ip", "link", "delete", "wire0")
	w.do(in.Close)
	w.do(out.Close)
}

func TestCloseInAnotherNamespaceIsRefused(t *testing.T) {
	w := newWire(t)
	filter := w.add(netns.Ingress, "ours")
	if err := filter.Close(); err == nil {
		t.Error("Close outside the namespace: no error")
	}
	w.want(netns.Ingress, "ours")
	w.do(filter.Close)
	w.want(netns.Ingress)
}

func TestAddFilterErrors(t *testing.T) {
	w := newWire(t)
	for _, tc := range []struct {
		name  string
		index int
		prog  int
		setup []string
		want  error
	}{
		{"no interface", 1 << 30, w.prog, nil, unix.ENODEV},
		{"no program", w.index, -1, nil, unix.EBADF},
		{"priority taken by another kind of filter", w.index, w.prog,
			[]string{"tc", "filter", "add", "dev", "wire0", "egress", "protocol", "ip", "prio", fmt.Sprint(netns.Priority), "bpf", "bytecode", "1,6 0 0 0"}, unix.EINVAL},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.setup != nil {
				w.ns.Exec(t, tc.setup...)
			}
			var filter *netns.Filter
			err := w.ns.Do(func() (err error) {
				filter, err = netns.AddFilter(tc.index, netns.Egress, tc.prog, "ours")
				return err
			})
			if !errors.Is(err, tc.want) || filter != nil {
				t.Errorf("AddFilter: %v, %v, want %v", filter, err, tc.want)
			}
		})
	}
}

// On an ingress qdisc the kernel takes an egress filter and runs it on ingress.
func TestIngressQdiscIsNotMistakenForClsact(t *testing.T) {
	w := newWire(t)
	w.ns.Exec(t, "tc", "qdisc", "add", "dev", "wire0", "ingress")
	err := w.ns.Do(func() error {
		_, err := netns.AddFilter(w.index, netns.Egress, w.prog, "ours")
		return err
	})
	if !errors.Is(err, unix.EBUSY) {
		t.Errorf("AddFilter: %v, want %v", err, unix.EBUSY)
	}
	w.want(netns.Ingress)
	if !strings.Contains(w.qdisc(), "qdisc ingress") {
		t.Errorf("the foreign qdisc is gone: %s", w.qdisc())
	}
}
