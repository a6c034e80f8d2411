// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/xtwamp/xtwamp/probe/target"
)

// LocalAddress is an address of an interface of the host.
type LocalAddress struct {
	Interface string
	Prefix    netip.Prefix // not masked: the address, and how much of it is the subnet's
}

// linkFact is what the ledger says of a link, seen from one of its ends.
type linkFact struct {
	Link         Pubkey       `json:"link"`
	Name         string       `json:"name"` // of its target; stays while the link has its code
	Code         string       `json:"code"`
	Status       LinkStatus   `json:"status"`
	Net          netip.Prefix `json:"tunnel_net"` // zero: none that can be
	SideZ        bool         `json:"side_z"`     // the end that this device is
	Target       Pubkey       `json:"target"`     // the device at the other end
	TargetCode   string       `json:"target_code"`
	TargetExists bool         `json:"target_exists"`
}

// maxCode is how much of a code is kept, in bytes. Two device codes and what is between them have 65.
const maxCode = 128

func newFact(key Pubkey, l LinkAccount, device Pubkey) linkFact {
	f := linkFact{Link: key, Code: printable(l.Code, maxCode), Status: l.Status, Target: l.SideZ}
	if l.SideA != device {
		f.SideZ, f.Target = true, l.SideA
	}
	if l.TunnelNet.IsValid() && !l.TunnelNet.Addr().IsUnspecified() {
		f.Net = l.TunnelNet
	}
	return f
}

// NoInterface stands where a target's interface would, if no address of the host belongs to its link. No kernel lets an interface have
// such a name, so whatever routes the host has, nothing is sent, and each probe counts as not sent for want of an interface.
const NoInterface = "(no /31)"

// target makes a target of a link. It returns none, and why, if it is not to be measured; and one that nothing is sent for, and why, if
// the host has no address for it: what is not measured there is to be counted, and begins when the interface comes.
func (d *Discovery) target(l linkFact, addresses []LocalAddress) (*target.Target, error) {
	switch {
	case !l.Status.Probed():
		return nil, fmt.Errorf("status is %s", l.Status)
	case l.Target == d.cfg.Device:
		return nil, errors.New("both ends are this device")
	case !l.TargetExists:
		return nil, errors.New("the device at the other end does not exist")
	case !l.Net.IsValid() || !l.Net.Addr().Is4():
		return nil, errors.New("no tunnel net")
	}
	t := d.common
	t.Name = l.Name
	t.Labels = maps.Clone(t.Labels)
	if t.Labels == nil {
		t.Labels = make(map[string]string)
	}
	t.Labels[LabelLink], t.Labels[LabelTarget] = l.Link.String(), l.Target.String()
	t.Source = l.expected()
	t.Interface = NoInterface
	why := fmt.Errorf("no interface has a /31 address in %s", l.Net)
	if a, ok := l.local(addresses); ok {
		t.Interface, t.Source, why = a.Interface, a.Prefix.Addr(), nil
	}
	t.Address = other(t.Source).String()
	if err := t.Validate(); err != nil {
		return nil, err
	}
	return &t, why
}

// local returns the host's address for the link: one that lies in the link's net and is of a /31. If there are several it is the one that
// the device's end should have, else the first.
func (l linkFact) local(addresses []LocalAddress) (found LocalAddress, ok bool) {
	for _, a := range addresses {
		if a.Prefix.Bits() != 31 || !l.Net.Contains(a.Prefix.Addr()) {
			continue
		}
		if a.Prefix.Addr() == l.expected() {
			return a, true
		}
		if !ok {
			found, ok = a, true
		}
	}
	return found, ok
}

// expected is the address that the program gives the device's end: side A has the first of the net, side Z the second.
func (l linkFact) expected() netip.Addr {
	first := l.Net.Masked().Addr()
	if l.SideZ {
		return other(first)
	}
	return first
}

// other returns the other address of a /31.
func other(a netip.Addr) netip.Addr {
	b := a.As4()
	b[3] ^= 1
	return netip.AddrFrom4(b)
}

// nameLinks names links and sorts them by name. A link that had a name before keeps it while its code stays the same, whichever others
// come and go: samples are stored by name.
func nameLinks(links []linkFact, before []linkFact) {
	old := make(map[Pubkey]linkFact)
	for _, l := range before {
		old[l.Link] = l
	}
	slices.SortFunc(links, func(a, b linkFact) int { return compareKeys(a.Link, b.Link) })
	taken := make(map[string]bool)
	for i, l := range links {
		links[i].Name = ""
		if o := old[l.Link]; o.Name != "" && o.Code == l.Code && !taken[o.Name] {
			links[i].Name = o.Name
			taken[o.Name] = true
		}
	}
	for i, l := range links {
		if links[i].Name != "" {
			continue
		}
		base := nameOf(l)
		name := base
		for n := 1; taken[name]; n++ {
			name = base[:min(len(base), 100)] + "-" + l.Link.String()[:8]
			if n > 1 {
				name += "-" + strconv.Itoa(n)
			}
		}
		links[i].Name = name
		taken[name] = true
	}
	slices.SortFunc(links, func(a, b linkFact) int { return cmp.Compare(a.Name, b.Name) })
}

// nameOf makes the code of a link fit for a target's name.
func nameOf(l linkFact) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', strings.ContainsRune("._:-", r):
			return r
		}
		return '-'
	}, l.Code)
	return cmp.Or(strings.TrimLeft(name, "._:-"), l.Link.String())
}
