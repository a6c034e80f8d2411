// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// eventually waits for what the kernel does in its own time.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("still not so: %s", what)
		}
	}
}

// Case 59.
func TestRingSizeIsWhatTheKernelTakes(t *testing.T) {
	for _, c := range []struct{ n, page, want int }{
		{1, 4096, 4096},
		{4095, 4096, 4096},
		{4096, 4096, 4096},
		{4097, 4096, 8192},
		{12288, 4096, 16384},
		{4096, 16384, 16384},
		{16385, 16384, 32768},
		{4096, 65536, 65536},
		{4 << 20, 65536, 4 << 20},
	} {
		if got := ringSize(c.n, c.page); got != uint32(c.want) {
			t.Errorf("%d bytes in pages of %d: got %d, want %d", c.n, c.page, got, c.want)
		}
	}
	for _, n := range []int{1, 4095, 4097, 12288} {
		testLoad(t, Config{Slots: 1, Paths: 1, RingBytes: n})
	}
}

func TestBadConfigIsRefused(t *testing.T) {
	for _, c := range []Config{
		{Paths: 1, RingBytes: 1},
		{Slots: 1, RingBytes: 1},
		{Slots: 1, Paths: 1},
		{Slots: -1, Paths: 1, RingBytes: 1},
		{Slots: math.MaxInt32 + 1, Paths: 1, RingBytes: 1},
	} {
		if d, err := Load(c); err == nil {
			t.Errorf("%+v is accepted", c)
			d.Close()
		}
	}
}

func TestObjectHashIsShortAndSteady(t *testing.T) {
	if h := ObjectHash(); len(h) != 12 || h != ObjectHash() {
		t.Errorf("%q", h)
	}
}

func TestBadPathIsRefused(t *testing.T) {
	d := testLoad(t, Config{Slots: 16, Paths: 2, RingBytes: 1})
	good := Key{Local: local4, Remote: remote4}
	for _, c := range []struct {
		key  Key
		path Path
		ok   bool
	}{
		{good, Path{SlotMask: 15}, true},
		{good, Path{SlotBase: 8, SlotMask: 7, Profile: 2}, true},
		{Key{Local: local4}, Path{}, false},
		{Key{Remote: remote4}, Path{}, false},
		{good, Path{SlotMask: 6}, false},
		{good, Path{SlotMask: 31}, false},
		{good, Path{SlotBase: 9, SlotMask: 7}, false},
		{good, Path{SlotBase: math.MaxUint32, SlotMask: 1}, false},
		{good, Path{SlotMask: math.MaxUint32}, false},
		{good, Path{Profile: 3}, false},
	} {
		if err := d.SetPath(c.key, c.path); (err == nil) != c.ok {
			t.Errorf("%v, %+v: %v", c.key, c.path, err)
		}
	}
	if err := d.DeletePath(Key{}); err == nil {
		t.Error("no address is accepted for deletion")
	}
}

// portBits are the local and the remote ports that the programs look at.
func portBits(t *testing.T, d *Datapath) (ports [2][]uint16) {
	t.Helper()
	var words [2][portWords]uint64
	if err := d.objects.Globals.Lookup(uint32(0), &words); err != nil {
		t.Fatal(err)
	}
	for side := range ports {
		for p := range 65536 {
			if words[side][p/64]>>(p%64)&1 != 0 {
				ports[side] = append(ports[side], uint16(p))
			}
		}
	}
	return ports
}

// A port is looked at as long as one path uses it.
func TestPortsFollowPaths(t *testing.T) {
	d := testLoad(t, Config{Slots: 16, Paths: 3, RingBytes: 1})
	key := func(local, remote uint16) Key {
		return Key{Local: netip.AddrPortFrom(local4.Addr(), local), Remote: netip.AddrPortFrom(remote4.Addr(), remote)}
	}
	type ports = []uint16
	must := func(err error, local, remote ports) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		want := [2]ports{local, remote}
		if diff := cmp.Diff(want, portBits(t, d)); diff != "" {
			t.Errorf("ports (-want +got)\n%s", diff)
		}
	}
	must(d.SetPath(key(65535, 1), Path{}), ports{65535}, ports{1})
	must(d.SetPath(key(65535, 2), Path{}), ports{65535}, ports{1, 2})
	must(d.SetPath(key(65535, 2), Path{ID: 1}), ports{65535}, ports{1, 2})
	must(d.SetPath(key(64, 1), Path{}), ports{64, 65535}, ports{1, 2})
	if err := d.SetPath(key(7, 7), Path{}); err == nil {
		t.Error("a fourth path has found room")
	}
	must(nil, ports{64, 65535}, ports{1, 2})
	must(d.DeletePath(key(65535, 1)), ports{64, 65535}, ports{1, 2})
	must(d.DeletePath(key(65535, 1)), ports{64, 65535}, ports{1, 2})
	must(d.DeletePath(key(65535, 2)), ports{64}, ports{1})
	must(d.SetPath(key(0, 0), Path{}), ports{0, 64}, ports{0, 1})
	must(d.DeletePath(key(64, 1)), ports{0}, ports{0})

	mapped := Key{Local: netip.MustParseAddrPort("[::ffff:8.0.0.1]:0"), Remote: netip.MustParseAddrPort("[::ffff:8.0.0.2]:0")}
	must(d.DeletePath(mapped), nil, nil)
}

// answer makes the programs record n answers (all but the first: duplicates).
func answer(t *testing.T, d *Datapath, n int) {
	t.Helper()
	s := baseScene(true, false, false, profileStamp)
	if err := d.SetPath(s.key, *s.path); err != nil {
		t.Fatal(err)
	}
	if err := d.objects.Slots.Put(uint32(slotIndex), &s.slot); err != nil {
		t.Fatal(err)
	}
	for range n { // one by one: repeated runs begin anew after a signal
		if _, err := d.objects.XtwampIngress.Run(&ebpf.RunOptions{Data: s.packet.bytes()}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRunDeliversInBatchesUntilStopped(t *testing.T) {
	d := testLoad(t, Config{Slots: testSlots, Paths: 1, RingBytes: 1 << 20})
	const n = 3*batchMax + 1
	answer(t, d, n) // before anybody reads

	ctx, stop := context.WithCancel(t.Context())
	var got, most int
	var flags []xtwampSampleFlag
	err := d.Run(ctx, func(events []Event) {
		if got == 0 {
			if err := d.Run(ctx, func([]Event) {}); err == nil {
				t.Error("a second reader is let in")
			}
		}
		for _, e := range events {
			flags = append(flags, e.Flags&FlagDuplicate)
		}
		got += len(events)
		most = max(most, len(events))
		if got == n {
			answer(t, d, 2)
			stop() // what has been recorded is still delivered
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if got != n+2 || most != batchMax {
		t.Errorf("%d events, %d at a time; want %d, %d", got, most, n+2, batchMax)
	}
	if flags[0] != 0 || flags[1] != FlagDuplicate || flags[n] != 0 || flags[n+1] != FlagDuplicate {
		t.Error("events are out of order")
	}

	// The ring is nobody's now, and keeps what comes for the next.
	answer(t, d, 5)
	ctx, stop = context.WithCancel(t.Context())
	stop()
	got = 0
	if err := d.Run(ctx, func(events []Event) { got += len(events) }); err != nil || got != 5 {
		t.Errorf("%d events, %v; want 5", got, err)
	}
}

func TestRunWakesUp(t *testing.T) {
	d := testLoad(t, testConfig)
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error)
	events := make(chan Event, 4)
	go func() {
		ran <- d.Run(ctx, func(e []Event) {
			for _, e := range e {
				events <- e
			}
		})
	}()
	for range 3 {
		answer(t, d, 1)
		e := <-events
		t1, t2, t3 := e.WireTimes()
		if t1 != wireT1 || t2 != wireT2 || t3 != wireT3 || e.WireErrorEstimate() != 0x8587 {
			t.Errorf("%x, %x, %x, %x", t1, t2, t3, e.WireErrorEstimate())
		}
	}
	stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	requireRoot(t)
	d, err := Load(testConfig)
	if err != nil {
		t.Fatal(err)
	}
	ns := newNamespace(t)
	inNamespace(t, ns, func() {
		for _, header := range []int{ethernetHeader, 0} {
			if _, err := d.Attach(Device{Index: 1, Name: "lo", LinkHeader: header}, tcHook(t), filters{}); err != nil {
				t.Error(err)
			}
		}
	})
	var programs []ebpf.ProgramID
	for _, p := range []*ebpf.Program{d.objects.XtwampEgress, d.objects.XtwampIngress, d.ip.XtwampEgress, d.ip.XtwampIngress} {
		programs = append(programs, programID(t, p))
	}
	var maps []ebpf.MapID
	for _, m := range []*ebpf.Map{d.objects.Paths, d.objects.Slots, d.objects.Events, d.objects.Counters, d.objects.Globals} {
		info, err := m.Info()
		if err != nil {
			t.Fatal(err)
		}
		id, ok := info.ID()
		if !ok {
			t.Fatal("map without id")
		}
		maps = append(maps, id)
	}

	for range 2 {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if tcHook(t) == TCX {
		if diff := cmp.Diff([2][]ebpf.ProgramID{}, attached(t, ns, 1)); diff != "" {
			t.Errorf("attached (-want +got)\n%s", diff)
		}
	}
	eventually(t, "programs and maps are gone", func() bool {
		for _, id := range programs {
			if p, err := ebpf.NewProgramFromID(id); err == nil {
				p.Close()
				return false
			}
		}
		for _, id := range maps {
			if m, err := ebpf.NewMapFromID(id); err == nil {
				m.Close()
				return false
			}
		}
		return true
	})
	if err := d.Run(t.Context(), func([]Event) {}); err == nil {
		t.Error("a closed ring is read")
	}
	if _, err := d.Attach(Device{Index: 1, Name: "lo", LinkHeader: ethernetHeader}, tcHook(t), filters{}); err == nil {
		t.Error("closed programs are attached")
	}
	if err := d.SetPath(Key{Local: local4, Remote: remote4}, Path{}); err == nil {
		t.Error("a path is set in a closed map")
	}
}

var namespaces atomic.Int32

// newNamespace makes a network namespace with loopback up.
func newNamespace(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("xtwbpf-%d-%d", os.Getpid(), namespaces.Add(1))
	run(t, "ip", "netns", "add", name)
	t.Cleanup(func() { run(t, "ip", "netns", "del", name) })
	run(t, "ip", "-n", name, "link", "set", "lo", "up")
	return name
}

func run(t testing.TB, args ...string) {
	t.Helper()
	if err := command(args...); err != nil {
		t.Fatal(err)
	}
}

func command(args ...string) error {
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s", args, err, out)
	}
	return nil
}

// inNamespace calls fn on a thread of its own, which ends with it. fn may not
// call t.Fatal.
func inNamespace(t testing.TB, name string, fn func()) {
	t.Helper()
	f, err := os.Open(filepath.Join("/var/run/netns", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	done := make(chan error, 1)
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlock
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		fn()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// pair is two namespaces with a link between them; we measure from the first.
type pair struct {
	near, far string // namespaces
	device    Device // in near
	key       Key
	socket    *net.UDPConn // in near
	reflector *net.UDPConn // in far; answers nothing by itself
}

func newPair(t testing.TB) *pair {
	t.Helper()
	requireRoot(t)
	p := &pair{near: newNamespace(t), far: newNamespace(t)}
	run(t, "ip", "-n", p.near, "link", "add", "near0", "type", "veth", "peer", "name", "far0", "netns", p.far)
	run(t, "ip", "-n", p.near, "addr", "add", "192.0.2.1/30", "dev", "near0")
	run(t, "ip", "-n", p.far, "addr", "add", "192.0.2.2/30", "dev", "far0")
	run(t, "ip", "-n", p.near, "link", "set", "near0", "up")
	run(t, "ip", "-n", p.far, "link", "set", "far0", "up")
	far := &net.UDPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 862}
	var err error
	inNamespace(t, p.far, func() { p.reflector, err = net.ListenUDP("udp4", far) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.reflector.Close() })
	inNamespace(t, p.near, func() {
		var i *net.Interface
		if i, err = net.InterfaceByName("near0"); err != nil {
			return
		}
		p.device = Device{Index: i.Index, Name: i.Name, LinkHeader: ethernetHeader}
		p.socket, err = net.DialUDP("udp4", nil, far)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.socket.Close() })
	for _, c := range []*net.UDPConn{p.socket, p.reflector} {
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	p.key = Key{Local: p.socket.LocalAddr().(*net.UDPAddr).AddrPort(), Remote: far.AddrPort()}
	return p
}

func (p *pair) attach(t testing.TB, d *Datapath, h Hook, fa FilterAdder) (a *Attachment, err error) {
	t.Helper()
	inNamespace(t, p.near, func() { a, err = d.Attach(p.device, h, fa) })
	return a, err
}

// exchange sends a probe and the reply to it.
func (p *pair) exchange(t testing.TB) {
	t.Helper()
	if _, err := p.socket.Write(probePayload(profileStamp)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 2048)
	n, from, err := p.reflector.ReadFromUDPAddrPort(b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(probePayload(profileStamp), b[:n]); diff != "" {
		t.Errorf("the probe was changed (-want +got)\n%s", diff)
	}
	if _, err := p.reflector.WriteToUDPAddrPort(replyPayload(profileStamp), from); err != nil {
		t.Fatal(err)
	}
}

// attached returns the programs of tcx on a device, by direction, in the order
// in which they run.
func attached(t testing.TB, ns string, index int) (programs [2][]ebpf.ProgramID) {
	t.Helper()
	inNamespace(t, ns, func() {
		for i, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			r, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: at})
			if err != nil {
				t.Error(err)
				return
			}
			for _, p := range r.Programs {
				programs[i] = append(programs[i], p.ID)
			}
		}
	})
	return programs
}

func programID(t testing.TB, p *ebpf.Program) ebpf.ProgramID {
	t.Helper()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, ok := info.ID()
	if !ok {
		t.Fatal("program without id")
	}
	return id
}

// tcFilters adds filters with tc, and says what it was asked to.
type tcFilters struct {
	bpffs  string
	names  []string
	closed []string
	fail   error // of the second filter
}

func newTCFilters(t testing.TB) *tcFilters {
	t.Helper()
	requireRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return &tcFilters{bpffs: dir}
}

type closeFunc func() error

func (f closeFunc) Close() error { return f() }

func (f *tcFilters) AddFilter(ifindex int, egress bool, progFD int, name string) (io.Closer, error) {
	if len(f.names) == 1 && f.fail != nil {
		return nil, f.fail
	}
	i, err := net.InterfaceByIndex(ifindex)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Dup(progFD)
	if err != nil {
		return nil, err
	}
	prog, err := ebpf.NewProgramFromFD(fd)
	if err != nil {
		return nil, err
	}
	defer prog.Close()
	pin := filepath.Join(f.bpffs, "program")
	if err := prog.Pin(pin); err != nil {
		return nil, err
	}
	defer prog.Unpin()
	direction := "ingress"
	if egress {
		direction = "egress"
	}
	if len(f.names) == 0 {
		if err := command("tc", "qdisc", "add", "dev", i.Name, "clsact"); err != nil {
			return nil, err
		}
	}
	if err := command("tc", "filter", "add", "dev", i.Name, direction, "prio", "7", "bpf", "da", "object-pinned", pin); err != nil {
		return nil, err
	}
	f.names = append(f.names, name)
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	return closeFunc(func() error {
		defer ns.Close()
		f.closed = append(f.closed, direction)
		return command("nsenter", fmt.Sprintf("--net=/proc/%d/fd/%d", os.Getpid(), ns.Fd()),
			"tc", "filter", "del", "dev", i.Name, direction, "prio", "7")
	}), nil
}

func TestProbeAndReplyOverALink(t *testing.T) {
	for _, h := range []Hook{TCX, Clsact} {
		t.Run(h.String(), func(t *testing.T) {
			if h == TCX {
				requireTCX(t)
			}
			p := newPair(t)
			d := testLoad(t, testConfig)
			filters := newTCFilters(t)
			if err := d.SetPath(p.key, Path{ID: testPathID, SlotBase: testBase, SlotMask: testMask, SSID: testSSID, Interface: uint32(p.device.Index)}); err != nil {
				t.Fatal(err)
			}
			a, err := p.attach(t, d, h, filters)
			if err != nil {
				t.Fatal(err)
			}
			if !a.Alive() {
				t.Error("not alive once attached")
			}

			p.exchange(t)
			ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
			var events []Event
			if err := d.Run(ctx, func(e []Event) { events = append(events, e...); stop() }); err != nil {
				t.Fatal(err)
			}
			if len(events) != 1 {
				t.Fatalf("%d events", len(events))
			}
			slot, err := d.Slot(slotIndex)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(slot, events[0]); diff != "" {
				t.Errorf("slot and event differ (-slot +event)\n%s", diff)
			}
			if rtt := time.Duration(slot.T4 - slot.T1); rtt <= 0 || rtt > time.Minute {
				t.Errorf("round trip of %v", rtt)
			}
			want := sentSlot()
			want.T1, want.T4 = slot.T1, slot.T4
			want.T2, want.T3 = wire64(wireT2), wire64(wireT3)
			want.ErrorEstimate, want.ReplySeq, want.Ifindex = wire16(0x8587), 3, uint32(p.device.Index)
			want.Ssid, want.Length, want.Ttl, want.RemoteTtl = testSSID, 44, 64, 253
			want.Flags |= FlagAnswered | FlagHasTimes | FlagHasTTL
			if diff := cmp.Diff(want, slot); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			counters, err := d.Counters()
			if err != nil {
				t.Fatal(err)
			}
			if counters[VerdictProbeSent] != 1 || counters[VerdictAnswered] != 1 {
				t.Errorf("%v", counters)
			}

			for range 2 {
				if err := a.Close(); err != nil {
					t.Error(err)
				}
			}
			if a.Alive() {
				t.Error("alive when closed")
			}
			if counters, err = d.Counters(); err != nil { // a link that comes up has more to say
				t.Fatal(err)
			}
			// Now the stack has the reply, as the socket never saw the first.
			p.exchange(t)
			b := make([]byte, 2048)
			if n, err := p.socket.Read(b); err != nil || !slices.Equal(b[:n], replyPayload(profileStamp)) {
				t.Errorf("%x, %v", b[:n], err)
			}
			if err := p.socket.SetReadDeadline(time.Now()); err != nil {
				t.Fatal(err)
			}
			if n, err := p.socket.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the socket got the first reply too: %x, %v", b[:n], err)
			}
			if got, err := d.Counters(); err != nil || got != counters {
				t.Errorf("still counting: %v, %v", got, err)
			}
			if h == Clsact {
				if diff := cmp.Diff([]string{"egress", "ingress"}, filters.closed); diff != "" {
					t.Errorf("filters removed (-want +got)\n%s", diff)
				}
				if len(filters.names) != 2 || !strings.HasSuffix(filters.names[0], "-ingress") || !strings.HasSuffix(filters.names[1], "-egress") ||
					FilterOwnerDead(filters.names[0]) {
					t.Errorf("filters are called %q", filters.names)
				}
			}
		})
	}
}

func TestHalfAnAttachmentIsUndone(t *testing.T) {
	t.Run("tcx", func(t *testing.T) {
		requireTCX(t)
		p := newPair(t)
		d := testLoad(t, testConfig)
		var own link.Link
		var err error
		inNamespace(t, p.near, func() {
			own, err = link.AttachTCX(link.TCXOptions{Interface: p.device.Index, Program: d.objects.XtwampEgress, Attach: ebpf.AttachTCXEgress})
		})
		if err != nil {
			t.Fatal(err)
		}
		defer own.Close()
		if _, err := p.attach(t, d, TCX, nil); !errors.Is(err, unix.EEXIST) {
			t.Errorf("got %v, want %v", err, unix.EEXIST)
		}
		want := [2][]ebpf.ProgramID{1: {programID(t, d.objects.XtwampEgress)}}
		if diff := cmp.Diff(want, attached(t, p.near, p.device.Index)); diff != "" {
			t.Errorf("attached (-want +got)\n%s", diff)
		}
	})
	t.Run("clsact", func(t *testing.T) {
		p := newPair(t)
		d := testLoad(t, testConfig)
		filters := newTCFilters(t)
		filters.fail = fmt.Errorf("add filter: %w", unix.EPERM)
		_, err := p.attach(t, d, Clsact, filters)
		if !errors.Is(err, unix.EPERM) || !errors.Is(err, ErrPermission) {
			t.Errorf("got %v", err)
		}
		if diff := cmp.Diff([]string{"ingress"}, filters.closed); diff != "" {
			t.Errorf("filters removed (-want +got)\n%s", diff)
		}
	})
}

func TestAttachSaysWhatIsMissing(t *testing.T) {
	p := newPair(t)
	d := testLoad(t, testConfig)
	if _, err := p.attach(t, d, Clsact, refusing{unix.ENOENT}); !errors.Is(err, ErrNotSupported) ||
		!errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), "CONFIG_NET_CLS_BPF") {
		t.Errorf("no clsact: %v", err)
	}
	if _, err := p.attach(t, d, Hook(9), nil); !errors.Is(err, ErrNotSupported) {
		t.Errorf("no such hook: %v", err)
	}
	p.device.LinkHeader = 4
	if _, err := p.attach(t, d, tcHook(t), filters{}); !errors.Is(err, ErrNotSupported) {
		t.Errorf("no such link header: %v", err)
	}
	p.device = Device{Index: 1 << 20, Name: "gone", LinkHeader: ethernetHeader}
	if _, err := p.attach(t, d, tcHook(t), filters{}); !errors.Is(err, unix.ENODEV) || errors.Is(err, ErrNotSupported) {
		t.Errorf("no such device: %v", err)
	}
}

type refusing struct{ err error }

func (r refusing) AddFilter(int, bool, int, string) (io.Closer, error) { return nil, r.err }

func TestAttachmentDiesWithItsDevice(t *testing.T) {
	p := newPair(t)
	d := testLoad(t, testConfig)
	a, err := p.attach(t, d, tcHook(t), filters{})
	if err != nil {
		t.Fatal(err)
	}
	run(t, "ip", "-n", p.near, "link", "del", "near0")
	if a.Alive() {
		t.Error("alive without its device")
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

// Many processes share a device, each with programs of its own.
func TestTwoDatapathsShareADevice(t *testing.T) {
	p := newPair(t)
	a, b := testLoad(t, testConfig), testLoad(t, testConfig)
	for _, d := range []*Datapath{a, b} {
		if _, err := p.attach(t, d, tcHook(t), filters{}); err != nil {
			t.Fatal(err)
		}
	}
	// In front of whoever is there, so that nobody takes a reply from us.
	want := [2][]ebpf.ProgramID{
		{programID(t, b.objects.XtwampIngress), programID(t, a.objects.XtwampIngress)},
		{programID(t, b.objects.XtwampEgress), programID(t, a.objects.XtwampEgress)},
	}
	if tcHook(t) == TCX {
		if diff := cmp.Diff(want, attached(t, p.near, p.device.Index)); diff != "" {
			t.Errorf("attached (-want +got)\n%s", diff)
		}
	}
	if err := a.SetPath(p.key, Path{ID: testPathID, SlotMask: 7, SSID: testSSID}); err != nil {
		t.Fatal(err)
	}
	p.exchange(t)
	eventually(t, "the first has its answer", func() bool {
		c, err := a.Counters()
		return err == nil && c[VerdictAnswered] == 1
	})
	c, err := b.Counters()
	if err != nil {
		t.Fatal(err)
	}
	if c[VerdictProbeSent] != 0 || c[VerdictAnswered] != 0 {
		t.Errorf("the other took part: %v", c)
	}
}
