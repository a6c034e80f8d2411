// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/xtwamp/xtwamp/bpf"
	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/probe"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
	"github.com/xtwamp/xtwamp/submit/doublezero"
)

func (d *doctor) examineKernel(_ context.Context, s *findings) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		s.warn("release", "see whether a security module forbids uname(2)", "not known: %v", err)
		return
	}
	examineRelease(unix.ByteSliceToString(name.Release[:]), s)
}

// examineRelease says what a kernel has by its version. Distributions take back
// features to older ones; what really works is tried out by others.
func examineRelease(release string, s *findings) {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		s.ok("release", "%s", release)
		return
	}
	before := func(x, y int) bool { return major < x || major == x && minor < y }
	switch {
	case before(5, 10):
		s.warn("release", "use Linux 5.10 or later for time stamps and answers by the kernel",
			"%s: sockets take the time stamps, as the kernel half needs 5.10 (its ring buffer 5.8)", release)
	case before(5, 11):
		s.ok("release", "%s: clsact (tcx needs 6.6), socket stamps on tunnels (5.14), memory of BPF under RLIMIT_MEMLOCK (5.11)", release)
	case before(5, 14):
		s.ok("release", "%s: clsact (tcx needs 6.6), socket stamps on tunnels (5.14)", release)
	case before(6, 6):
		s.ok("release", "%s: clsact (tcx needs 6.6)", release)
	default:
		s.ok("release", "%s: tcx, clsact", release)
	}
}

// examineBPF loads what run would load.
func (d *doctor) examineBPF(_ context.Context, s *findings) {
	load := func(subject, without string, load func() (interface{ Close() error }, error)) {
		loaded, err := load()
		if err == nil {
			err = loaded.Close()
		}
		if err != nil {
			s.warn(subject, obstacleRemedy(bpf.ObstacleOf(err)), "%v: %s", err, without)
			return
		}
		s.ok(subject, "the kernel takes the programs")
	}
	load("time stamps", "sockets take the time stamps", func() (interface{ Close() error }, error) {
		return bpf.Load(bpf.Config{Slots: 16, Paths: 16, RingBytes: 4096})
	})
	load("reflector", "the reflector answers on its socket", func() (interface{ Close() error }, error) {
		return bpf.LoadReflector(bpf.ReflectorConfig{Rate: 1, Listeners: 1, Peers: 1, Prefixes: 1, Sources: 1, Devices: 1})
	})
}

// obstacleRemedy says what to do about what keeps the kernel half out.
func obstacleRemedy(o bpf.Obstacle) string {
	switch o {
	case bpf.MissingRight:
		return giveRights("CAP_BPF CAP_NET_ADMIN CAP_PERFMON")
	case bpf.MemlockLimit:
		return "LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited"
	case bpf.Lockdown:
		return "the kernel is booted with lockdown=confidentiality, or so for Secure Boot: integrity is enough for that"
	case bpf.Forbidden:
		return "allow bpf(2): SystemCallFilter=bpf in the unit, the container's seccomp profile, or the rules of SELinux or AppArmor; " +
			"capabilities of a user namespace do not count"
	case bpf.OldKernel:
		return "use Linux 5.10 or later"
	case bpf.MissingConfig:
		return "use a kernel with CONFIG_BPF_SYSCALL, CONFIG_NET_CLS_ACT, CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS (/boot/config-*, /proc/config.gz)"
	}
	return "report it with this text and the kernel's release"
}

func giveRights(names string) string {
	return "run it as root, or give it " + names + " (AmbientCapabilities= in the unit)"
}

func (d *doctor) hasNamespaces() bool { return d.cfg.Namespaces != (namespacesConfig{}) }

// examineRights looks at the rights of this process and, since those may be
// others, of the running daemon.
func (d *doctor) examineRights(_ context.Context, s *findings) {
	d.examineRightsOf(s, "", cap.GetProc())
	if d.daemon == 0 {
		return
	}
	if daemon, err := cap.GetPID(d.daemon); err == nil { // else it has just ended
		d.examineRightsOf(s, "daemon's ", daemon)
	}
}

func (d *doctor) examineRightsOf(s *findings, whose string, process *cap.Set) {
	var names []string
	held, missing := splitRights(process, d.hasNamespaces())
	for _, c := range held {
		names = append(names, capability(c))
	}
	if len(names) > 0 {
		s.ok(whose+"capabilities", "%s", strings.Join(names, ", "))
	}
	for _, r := range missing {
		if r.capability == cap.NET_BIND_SERVICE && !d.lowPort() {
			continue
		}
		s.warn(whose+capability(r.capability), giveRights(capability(r.capability)), "missing: %s", r.without)
	}
}

func capability(c cap.Value) string { return strings.ToUpper(c.String()) }

// lowPort says whether the reflector listens on a port that takes a right.
func (d *doctor) lowPort() bool {
	const unprivileged = 1024
	return d.cfg.Reflector.Enabled && slices.ContainsFunc(d.listens(), func(a netip.AddrPort) bool { return a.Port() < unprivileged })
}

// listens are the reflector's addresses.
func (d *doctor) listens() (out []netip.AddrPort) {
	for _, l := range d.cfg.Reflector.Listen {
		if a, err := parseListen(l); err == nil { // as the configuration has been checked
			out = append(out, a)
		}
	}
	return out
}

func (d *doctor) examineNamespaces(_ context.Context, s *findings) {
	c := d.cfg.Namespaces
	for _, role := range []struct {
		name, place string
		used        bool
		report      func(subject, remedy, format string, args ...any)
	}{
		{"probe", c.Probe, true, s.fail},
		{"ledger", c.Ledger, len(d.cfg.DoubleZero.RPCURLs) > 0, s.warn},
		{"web", c.Web, len(d.cfg.Web.Listen) > 0, s.warn},
	} {
		if !role.used {
			continue
		}
		place, links, err := linksIn(role.place)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			role.report(role.name, "make it (ip netns add), or correct namespaces."+role.name, "%s is not there: it is waited for", place)
		case errors.Is(err, unix.EPERM):
			role.report(role.name, giveRights("CAP_SYS_ADMIN"), "%s cannot be entered: %v", place, err)
		case errors.Is(err, netns.ErrNoLink):
			role.report(role.name, "make the VRF, or correct namespaces."+role.name, "%s is not there", place)
		case err != nil:
			role.report(role.name, "correct namespaces."+role.name, "%s: %v", place, err)
		default:
			s.ok(role.name, "%s: %s", place, linkNames(links))
		}
	}
}

// linksIn are the interfaces that a role sees.
func linksIn(name string) (place netns.Place, links []netns.Link, err error) {
	if place, err = netns.ParsePlace(name); err != nil {
		return place, nil, err
	}
	ns, err := place.Open()
	if err != nil {
		return place, nil, err
	}
	defer ns.Close()
	err = ns.Do(func() (err error) {
		if device := place.Device(); device != "" {
			if _, err := netns.LinkByName(device); err != nil {
				return err
			}
		}
		links, err = netns.Links()
		return err
	})
	return place, links, err
}

func linkNames(links []netns.Link) string {
	const atMost = 12
	var names []string
	for _, l := range links[:min(len(links), atMost)] {
		name := l.Name
		if !l.Up {
			name += " (down)"
		}
		names = append(names, name)
	}
	if more := len(links) - atMost; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// interfacesAtMost bounds to how many interfaces the kernel half is attached.
const interfacesAtMost = 256

func (d *doctor) examineInterfaces(_ context.Context, s *findings) {
	if d.nsErr != nil {
		return // the namespace is told of
	}
	var links []netns.Link
	foreign := make(map[int][]string)
	err := d.ns.Do(func() (err error) {
		links, err = d.links(s)
		for _, l := range links {
			foreign[l.Index] = foreignPrograms(l)
		}
		return err
	})
	if err != nil {
		s.warn("interfaces", "see whether a security module forbids netlink", "cannot be listed: %v", err)
		return
	}
	if more := len(links) - interfacesAtMost; more > 0 {
		s.ok("interfaces", "%d more are not looked at", more)
		links = links[:interfacesAtMost]
	}
	attachments, err := probe.TryLadder(d.ns, links)
	if attachments == nil { // why is told of
		attachments = make([]probe.Attachment, len(links))
		for i := range attachments {
			attachments[i].Step = probe.StepSocket
		}
	} else if err != nil {
		s.warn("interfaces", "report it with this text and the kernel's release", "not detached as it should be: %v", err)
	}
	for i, l := range links {
		examineInterface(s, l, attachments[i], foreign[l.Index])
	}
	if d.asksForXDP() {
		s.ok("xdp", "asked for, and not tried here: many drivers (ixgbe, igb, i40e, mlx5) reset the port with the first program and the last")
	}
}

func (d *doctor) asksForXDP() bool {
	return slices.ContainsFunc(d.targets, func(t target.Target) bool { return t.Attach == target.AttachXDP }) ||
		d.cfg.Reflector.Enabled && d.cfg.Reflector.Mode == "xdp"
}

// links are the interfaces that targets leave by, or without targets all that
// are up. It is called within the namespace.
func (d *doctor) links(s *findings) (used []netns.Link, err error) {
	all, err := netns.Links()
	if err != nil {
		return nil, err
	}
	if len(d.targets) == 0 {
		return slices.DeleteFunc(all, func(l netns.Link) bool { return !l.Up || l.Name == "lo" }), nil
	}
	routes, err := netns.OpenRoutes()
	if err != nil {
		return nil, err
	}
	defer routes.Close()
	by := make(map[int]bool)
	missing := map[string]bool{doublezero.NoInterface: true} // that one is told of already
	for _, t := range d.targets {
		i := slices.IndexFunc(all, func(l netns.Link) bool { return l.Name == t.Interface })
		switch {
		case i >= 0:
			by[all[i].Index] = true
		case t.Interface != "" && !missing[t.Interface]:
			missing[t.Interface] = true
			s.warn(t.Interface, "make it, or correct the interface of its targets", "not there: its targets are not sent")
		case t.Interface == "":
			// Names are looked up by those who probe.
			if a, err := netip.ParseAddr(t.Address); err == nil {
				if r, err := routes.To(a, t.Source, 0); err == nil {
					by[r.Link] = true
				}
			}
		}
	}
	return slices.DeleteFunc(all, func(l netns.Link) bool { return !by[l.Index] }), nil
}

// foreignPrograms names what others have attached to an interface.
func foreignPrograms(l netns.Link) (names []string) {
	if l.XDP {
		names = append(names, "an xdp program")
	}
	// Both need rights that may be missing; then less is told.
	tcx, _ := bpf.ForeignTCX(l.Index)
	for _, name := range tcx {
		names = append(names, "tcx "+name)
	}
	filters, _ := netns.FilterNames(l.Index)
	for _, name := range filters {
		if bpf.ForeignFilter(name) {
			names = append(names, "clsact "+name)
		}
	}
	return names
}

func examineInterface(s *findings, l netns.Link, a probe.Attachment, foreign []string) {
	kind := l.Kind
	switch {
	case kind == "" && l.Name == "lo":
		kind = "loopback"
	case kind == "":
		kind = "hardware"
	}
	what := fmt.Sprintf("%s, MTU %d, %s", kind, l.MTU, a.Step)
	if a.Step == probe.StepSocket {
		what += " time stamps"
	}
	if len(a.Refused) > 0 {
		what += " (refused: " + a.Refusals() + ")"
	}
	if len(foreign) > 0 {
		what += "; left alone: " + strings.Join(foreign, ", ")
	}
	switch {
	case !l.Up:
		s.warn(l.Name, "ip link set dev "+l.Name+" up", "down; %s", what)
	case !l.Carrier:
		s.warn(l.Name, "look at the cable, the optics and the far port", "no carrier; %s", what)
	case a.Step == probe.StepSocket && len(a.Refused) == 0:
		s.warn(l.Name, "see bpf", "%s", what)
	case a.Step == probe.StepSocket:
		s.warn(l.Name, refusalRemedy(l, a.Refused[len(a.Refused)-1].Err), "%s", what)
	default:
		s.ok(l.Name, "%s", what)
	}
}

// refusalRemedy says what to do about the last refusal of an interface.
func refusalRemedy(l netns.Link, err error) string {
	switch o := bpf.ObstacleOf(err); {
	case errors.Is(err, unix.EBUSY):
		return "its ingress qdisc is where clsact would be: tc qdisc del dev " + l.Name + " ingress, if nobody needs it"
	case o == bpf.OtherObstacle && errors.Is(err, bpf.ErrNotSupported):
		return "none: the kernel half cannot read what this kind of interface carries"
	default:
		return obstacleRemedy(o)
	}
}

func (d *doctor) examineReflector(_ context.Context, s *findings) {
	c := d.cfg.Reflector
	if !c.Enabled {
		s.ok("reflector", "off")
		return
	}
	if d.nsErr == nil {
		for _, l := range d.listens() {
			d.examinePort(s, l)
		}
	}
	switch targets := len(d.targets); {
	case len(c.Allow) > 0:
		s.ok("allow", "%d targets and %s get answers", targets, strings.Join(c.Allow, ", "))
	case targets > 0:
		s.ok("allow", "%d targets get answers", targets)
	default:
		s.warn("allow", "name targets, or others in reflector.allow", "nobody gets answers")
	}
	if c.Mode == "socket" || c.Stateful {
		s.ok("firewall", "answers come from a socket: the firewall's rules apply")
	} else {
		s.ok("firewall", "where the kernel answers it does so before netfilter: firewall and control-plane rules do not apply, targets and reflector.allow are the filter")
	}
}

// examinePort says whether the reflector can have an address, and who has it.
func (d *doctor) examinePort(s *findings, l netip.AddrPort) {
	subject := fmt.Sprintf("port %d", l.Port())
	if l.Addr().IsValid() {
		subject = l.String()
	}
	err := probe.ReflectorConfig{Listen: []netip.AddrPort{l}, Namespace: d.ns}.TryListen()
	var taken *probe.PortTakenError
	switch {
	case err == nil:
		s.ok(subject, "free")
	case errors.As(err, &taken) && taken.PID != 0 && taken.PID == d.daemon:
		s.ok(subject, "held by the running daemon (pid %d)", d.daemon)
	case errors.As(err, &taken):
		owner := "taken by " + taken.Owner
		if taken.Owner == "" {
			owner = "taken; by whom is not to be seen (ss -lunp, as root)"
		}
		s.warn(subject, "stop who has it, or choose another in reflector.listen", "%s: the reflector is off, and tried again each minute", owner)
	case errors.Is(err, unix.EACCES):
		s.warn(subject, giveRights("CAP_NET_BIND_SERVICE")+", or choose one above 1023", "not permitted: the reflector is off")
	default:
		s.warn(subject, "correct reflector.listen", "%v: the reflector is off", err)
	}
}

func (d *doctor) examineClock(_ context.Context, s *findings) {
	c, now := probe.ReadClock(), time.Now()
	switch {
	case now.Before(built()):
		s.warn("wall clock", "set it; RTTs are right all the same", "%s is before this program was built: samples are dated wrong",
			now.UTC().Format(time.RFC3339))
	case !c.Synchronized:
		s.warn("wall clock", "run chrony, ntpd or systemd-timesyncd; RTTs are right all the same",
			"not synchronised: one-way delays are left out, and samples are not deleted for their age")
	default:
		s.ok("wall clock", "synchronised, error %s", c.Error)
	}
}

func (d *doctor) examineStore(_ context.Context, s *findings) {
	c := d.cfg.Store
	d.examineDirectory(s, filepath.Dir(c.Path), int64(c.MinFreeBytes), s.fail)
	if d.cfg.Submit.File.Enabled {
		d.examineDirectory(s, d.cfg.Submit.File.Directory, 0, s.warn)
	}
	log, err := store.OpenReadOnly(c.Path, 200*time.Millisecond)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.ok(c.Path, "not there yet: run makes it")
	case errors.Is(err, store.ErrLocked) && d.daemon != 0:
		s.ok(c.Path, "held by the running daemon (pid %d)", d.daemon)
	case errors.Is(err, store.ErrLocked):
		s.fail(c.Path, "stop who has it open (fuser "+c.Path+"), or give this one a store.path of its own", "held by another process")
	case errors.Is(err, store.ErrCorrupt):
		s.warn(c.Path, "none is needed; xtwamp samples --store reads what was set aside", "%v: run sets it aside and begins a new one", err)
	case errors.Is(err, store.ErrVersion):
		s.fail(c.Path, "use the later version, or another store.path", "%v", err)
	case errors.Is(err, fs.ErrPermission):
		s.fail(c.Path, "chown it to the user that runs xtwamp", "%v", err)
	case err != nil:
		s.fail(c.Path, "look at the disk, or choose another store.path", "%v", err)
	default:
		defer log.Close()
		paths, err := log.Paths()
		if err != nil {
			s.warn(c.Path, "look at the disk", "%v", err)
			return
		}
		s.ok(c.Path, "good: %d paths", len(paths))
	}
}

// examineDirectory says whether a directory can be written to, or made, and
// whether there is room.
func (d *doctor) examineDirectory(s *findings, dir string, least int64, report func(subject, remedy, format string, args ...any)) {
	there := dir
	for {
		if _, err := os.Stat(there); !errors.Is(err, fs.ErrNotExist) || there == filepath.Dir(there) {
			break
		}
		there = filepath.Dir(there)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, there, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		report(dir, "chown it to the user that runs xtwamp, or choose another", "%s cannot be written to: %v", there, err)
		return
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(there, &fs); err != nil {
		report(dir, "look at the disk", "%v", err)
		return
	}
	free := int64(fs.Bavail) * fs.Bsize
	if free < least {
		s.warn(dir, "make room, or lower store.min_free_bytes", "%s free, less than store.min_free_bytes (%s): new samples replace old ones, or wait in memory",
			humanize.IBytes(uint64(free)), humanize.IBytes(uint64(least)))
		return
	}
	state := "writable"
	if there != dir {
		state = "not there yet, and can be made"
	}
	s.ok(dir, "%s, %s free", state, humanize.IBytes(uint64(free)))
}
