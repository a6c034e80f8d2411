// SPDX-License-Identifier: Apache-2.0

package target

import (
	"fmt"
	"net/netip"
)

// Flow is what tells the replies to a target with a source port of its own from those to others.
type Flow struct {
	address   string
	port      uint16
	iface     string
	source    netip.Addr
	localPort uint16
}

// Flow returns t's, and false if t has no source port of its own: then it gets one that nobody else has.
func (t *Target) Flow() (Flow, bool) {
	return Flow{t.Address, t.Port, t.Interface, t.Source, t.SourcePort}, t.SourcePort != 0
}

// Source is a list of targets, under the name of where it comes from.
type Source struct {
	Name    string
	Targets []Target
}

// Merge makes one list of several. A target that cannot be measured beside one in front of it, in the order of sources, is left out:
// conflicts says which ones, and why.
func Merge(sources []Source) (targets []Target, conflicts []string) {
	names := make(map[string]string) // and the source
	flows := make(map[Flow]string)
	for _, s := range sources {
		for _, t := range s.Targets {
			flow, fixed := t.Flow()
			other, same := flows[flow]
			switch from, taken := names[t.Name]; {
			case taken:
				conflicts = append(conflicts, fmt.Sprintf("%s of %s: the name is that of a target of %s", t.Name, s.Name, from))
				continue
			case fixed && same:
				conflicts = append(conflicts, fmt.Sprintf("%s of %s: %s has the same address, port, source and source port", t.Name, s.Name, other))
				continue
			}
			names[t.Name] = s.Name
			if fixed {
				flows[flow] = t.Name
			}
			targets = append(targets, t)
		}
	}
	return targets, conflicts
}
