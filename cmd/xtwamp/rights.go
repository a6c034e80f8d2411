// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// right is a capability that stays for life, since interfaces, namespaces and
// sockets come and go while the process runs.
type right struct {
	capability cap.Value
	without    string // what is lost without it
}

// rights are those that the running kernel wants. A namespace is entered anew
// for each socket and each attachment.
func rights(namespaces bool) []right {
	keep := []right{
		{cap.NET_ADMIN, "the kernel takes no time stamps and does not reflect: sockets do"},
		{cap.NET_BIND_SERVICE, "the reflector cannot have a port below 1024, such as 862"},
	}
	// Linux 5.8 has taken the two out of CAP_SYS_ADMIN. Since 5.7 a socket may be bound to an interface by anybody.
	if cap.MaxBits() > cap.BPF {
		keep = append(keep,
			right{cap.BPF, "the kernel takes no time stamps and does not reflect: sockets do"},
			right{cap.PERFMON, "time stamps in the kernel take longer, as its programs are guarded against speculation"})
	} else {
		keep = append(keep, right{cap.NET_RAW, "targets that name an interface cannot be probed"})
	}
	if namespaces {
		keep = append(keep, right{cap.SYS_ADMIN, "no other network namespace can be entered"})
	}
	return keep
}

// dropRights gives up, for all threads and all programs that they might start,
// every capability that is not needed for life. Those that were missing from the
// start are no error: each has a line in the log that says what is lost. With
// keepSysAdmin namespaces can still be entered.
//
// What starts later must not need more. Lost with the others is the sight of
// other users' processes, and so the name of the one that has taken a port.
func dropRights(log *zap.Logger, keepSysAdmin bool) error {
	// Before Linux 5.11 BPF maps count against this limit, and to raise it takes one of the rights that go. Who may not
	// raise it is told when a map does not fit.
	_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})

	kept, missing := splitRights(cap.GetProc(), keepSysAdmin)
	for _, r := range missing {
		log.Warn("a capability is missing", zap.Stringer("capability", r.capability), zap.String("without", r.without))
	}
	return limitTo(kept)
}

// splitRights tells the rights that a process holds from those that it lacks.
func splitRights(process *cap.Set, namespaces bool) (held []cap.Value, missing []right) {
	holds := func(c cap.Value) bool {
		has, err := process.GetFlag(cap.Permitted, c)
		return err == nil && has
	}
	// A container runtime that does not know CAP_BPF gives CAP_SYS_ADMIN in its stead.
	instead := cap.MaxBits() > cap.BPF && holds(cap.SYS_ADMIN) && !holds(cap.BPF)
	for _, r := range rights(namespaces || instead) {
		switch {
		case holds(r.capability):
			held = append(held, r.capability)
		case instead && (r.capability == cap.BPF || r.capability == cap.PERFMON):
		default:
			missing = append(missing, r)
		}
	}
	return held, missing
}

// limitTo leaves all threads the kept capabilities, as permitted and effective,
// and no way to gain others. The bounding set takes CAP_SETPCAP to shrink; where
// that is missing, no_new_privs does the same.
func limitTo(kept []cap.Value) error {
	if may, err := cap.GetProc().GetFlag(cap.Effective, cap.SETPCAP); err == nil && may {
		for c := range cap.MaxBits() {
			if in, err := cap.GetBound(c); err != nil || !in || slices.Contains(kept, c) {
				continue
			}
			if err := cap.DropBound(c); err != nil {
				return fmt.Errorf("drop %v from the bounding set: %w", c, err)
			}
		}
	}
	if err := cap.ResetAmbient(); err != nil {
		return fmt.Errorf("clear the ambient set: %w", err)
	}
	set := cap.NewSet()
	if err := errors.Join(set.SetFlag(cap.Permitted, true, kept...), set.SetFlag(cap.Effective, true, kept...)); err != nil {
		return fmt.Errorf("choose capabilities: %w", err)
	}
	if err := set.SetProc(); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	if _, err := cap.Prctlw(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return nil
}
