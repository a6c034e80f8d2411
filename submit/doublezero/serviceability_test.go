// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// accountFile is an account's data and what is in it, as others read it.
type accountFile struct {
	name   string
	data   []byte
	fields []accountField
}

// accountField is a name, a type, which files that were not made with the programs' own library do not have, and a value.
type accountField [3]string

func (f accountField) name() string  { return f[0] }
func (f accountField) value() string { return f[2] }

// accountFiles reads those in testdata.
func accountFiles(tb testing.TB) (files []accountFile) {
	tb.Helper()
	names, err := filepath.Glob("testdata/accounts/*.bin")
	if err != nil || len(names) != 12 {
		tb.Fatalf("%d accounts, error %v", len(names), err)
	}
	for _, path := range names {
		f := accountFile{name: strings.TrimSuffix(filepath.Base(path), ".bin")}
		if f.data, err = os.ReadFile(path); err != nil {
			tb.Fatal(err)
		}
		text, err := os.ReadFile(strings.TrimSuffix(path, ".bin") + ".json")
		if err != nil {
			tb.Fatal(err)
		}
		if err := json.Unmarshal(text, &f.fields); err != nil || len(f.fields) < 5 {
			tb.Fatalf("%s: %d fields, error %v", f.name, len(f.fields), err)
		}
		files = append(files, f)
	}
	return files
}

// leftOut says why a field of the files is none that we read.
func leftOut(f accountFile, name string) bool {
	both := slices.ContainsFunc(f.fields, func(f accountField) bool { return f.name() == "NewInterface0Size" && f.value() != "0" })
	switch {
	case f.name == "device_legacy" && strings.HasPrefix(name, "NewInterface"):
		return true // there is no such list in its data: the file says what its reader makes up in place of it
	case strings.HasPrefix(name, "NewInterface") && strings.HasSuffix(name, "Size"):
		return true // how far it was to the next one
	case both && strings.HasPrefix(name, "Interface") && strings.HasSuffix(name, "Version"):
		return true // of the older list, in whose place we have the newer one, which says the same
	}
	return false
}

func TestAccountFilesDecodeToTheirFields(t *testing.T) {
	for _, f := range accountFiles(t) {
		t.Run(f.name, func(t *testing.T) {
			var got map[string]string
			switch f.data[0] {
			case typeDevice:
				d, err := ParseDevice(f.data)
				if err != nil {
					t.Fatal(err)
				}
				got = deviceFields(d)
			case typeLink:
				l, err := ParseLink(f.data)
				if err != nil {
					t.Fatal(err)
				}
				got = linkFields(l)
			default:
				got = plainFields(t, f)
			}
			want, have := make(map[string]string), make(map[string]string)
			for _, field := range f.fields {
				name := strings.TrimPrefix(field.name(), "New")
				if value, ok := got[name]; ok && !leftOut(f, field.name()) {
					want[field.name()], have[field.name()] = field.value(), value
				} else if !leftOut(f, field.name()) {
					t.Errorf("nobody reads %s", field.name())
				}
			}
			if diff := cmp.Diff(want, have); diff != "" {
				t.Errorf("fields (-want +got):\n%s", diff)
			}
		})
	}
}

func linkFields(l LinkAccount) map[string]string {
	return texts(map[string]any{
		"AccountType": typeLink, "Owner": l.Owner, "Index": number(l.Index), "BumpSeed": l.Bump, "SideAPk": l.SideA, "SideZPk": l.SideZ,
		"LinkType": l.Type, "Bandwidth": l.Bandwidth, "Mtu": l.MTU, "DelayNs": l.DelayNS, "JitterNs": l.JitterNS, "TunnelId": l.TunnelID,
		"TunnelNet": l.TunnelNet, "Status": uint8(l.Status), "Code": l.Code, "ContributorPk": l.Contributor,
		"SideAIfaceName": l.SideAInterface, "SideZIfaceName": l.SideZInterface, "DelayOverrideNs": l.DelayOverrideNS,
		"LinkHealth": l.Health, "DesiredStatus": uint8(l.Desired), "LinkTopologiesLen": len(l.Topologies), "LinkFlags": l.Flags,
	})
}

func deviceFields(d DeviceAccount) map[string]string {
	all := map[string]any{
		"AccountType": typeDevice, "Owner": d.Owner, "Index": number(d.Index), "BumpSeed": d.Bump, "LocationPk": d.Location,
		"ExchangePk": d.Exchange, "DeviceType": d.Type, "PublicIp": d.PublicIP, "Status": uint8(d.Status), "Code": d.Code,
		"DzPrefixesLen": len(d.Prefixes), "MetricsPublisherPk": d.Publisher, "ContributorPk": d.Contributor, "MgmtVrf": d.VRF,
		"InterfacesLen": len(d.Interfaces), "ReferenceCount": d.References, "UsersCount": d.Users, "MaxUsers": d.MaxUsers,
		"DeviceHealth": d.Health, "DesiredStatus": d.Desired, "UnicastUsersCount": d.UnicastUsers,
		"MulticastSubscribersCount": d.MulticastSubscribers, "MaxUnicastUsers": d.MaxUnicastUsers,
		"MaxMulticastSubscribers": d.MaxMulticastSubscribers, "ReservedSeats": d.ReservedSeats,
		"MulticastPublishersCount": d.MulticastPublishers, "MaxMulticastPublishers": d.MaxMulticastPublishers,
	}
	for n, p := range d.Prefixes {
		all[fmt.Sprint("DzPrefixes", n)] = p
	}
	for n, i := range d.Interfaces {
		for name, v := range map[string]any{
			"Version": i.Version, "Status": i.Status, "Name": i.Name, "InterfaceType": i.Type, "InterfaceCYOA": i.CYOA, "InterfaceDIA": i.DIA,
			"LoopbackType": i.Loopback, "Bandwidth": i.Bandwidth, "Cir": i.CIR, "Mtu": i.MTU, "RoutingMode": i.Routing, "VlanId": i.VLAN,
			"IpNet": i.Net, "NodeSegmentIdx": i.NodeSegment, "UserTunnelEndpoint": i.UserTunnelEndpoint,
			"FlexAlgoNodeSegmentsLen": len(i.Segments),
		} {
			all[fmt.Sprint("Interface", n, name)] = v
		}
		for m, s := range i.Segments {
			name := fmt.Sprint("Interface", n, "FlexAlgoNodeSegments", m)
			all[name+"Topology"], all[name+"NodeSegmentIdx"] = s.Topology, s.Index
		}
	}
	return texts(all)
}

// plainFields reads the account of a kind that the product has no use for by the types that its file names: it shows that the account's
// primitives are understood.
func plainFields(t *testing.T, file accountFile) map[string]string {
	f := &fields{rest: file.data}
	all := make(map[string]any)
	for _, field := range file.fields {
		var v any
		switch field[1] {
		case "u8":
			v = f.uint8()
		case "u16":
			v = f.uint16()
		case "u32":
			v = f.uint32()
		case "u64":
			v = f.uint64()
		case "u128":
			v = number([16]byte(f.take(16)))
		case "f64":
			v = math.Float64frombits(f.uint64())
		case "pubkey":
			v = f.key()
		case "string":
			v = f.text()
		case "networkv4":
			v = f.network()
		default:
			t.Fatalf("type %s", field[1])
		}
		all[field.name()] = v
	}
	if f.ended || len(f.rest) > 0 {
		t.Errorf("ended early: %v; %d bytes left", f.ended, len(f.rest))
	}
	return texts(all)
}

func texts(values map[string]any) map[string]string {
	text := make(map[string]string)
	for name, v := range values {
		text[name] = fmt.Sprint(v)
	}
	return text
}

// number reads a little-endian one.
func number(b [16]byte) *big.Int {
	slices.Reverse(b[:])
	return new(big.Int).SetBytes(b[:])
}

// decodedNames are the fields' names in the files that were not made with the programs' own library.
var decodedNames = map[string]string{
	"account_type": "AccountType", "owner": "Owner", "bump": "BumpSeed", "code": "Code", "contributor": "ContributorPk", "status": "Status",
	"desired": "DesiredStatus", "location": "LocationPk", "exchange": "ExchangePk", "device_type": "DeviceType", "public_ip": "PublicIp",
	"metrics_publisher": "MetricsPublisherPk", "mgmt_vrf": "MgmtVrf", "reference_count": "ReferenceCount", "users": "UsersCount",
	"max_users": "MaxUsers", "unicast_users": "UnicastUsersCount", "mcast_subs": "MulticastSubscribersCount",
	"max_unicast": "MaxUnicastUsers", "max_mcast_subs": "MaxMulticastSubscribers", "reserved_seats": "ReservedSeats",
	"mcast_pubs": "MulticastPublishersCount", "max_mcast_pubs": "MaxMulticastPublishers", "side_a": "SideAPk", "side_z": "SideZPk",
	"link_type": "LinkType", "bandwidth": "Bandwidth", "mtu": "Mtu", "delay_ns": "DelayNs", "jitter_ns": "JitterNs",
	"tunnel_id": "TunnelId", "tunnel_net": "TunnelNet", "side_a_iface": "SideAIfaceName", "side_z_iface": "SideZIfaceName",
	"delay_override_ns": "DelayOverrideNs", "flags": "LinkFlags",
}

// TestAccountFilesAreTheSharedOnes compares testdata with the vectors that others keep for us.
func TestAccountFilesAreTheSharedOnes(t *testing.T) {
	dir := filepath.Join(sharedVectors(t), "accounts")
	var here []string
	for _, f := range accountFiles(t) {
		here = append(here, f.name)
		data, err := os.ReadFile(filepath.Join(dir, f.name+".bin"))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(data, f.data) {
			t.Errorf("%s: data differs", f.name)
		}
		ours := make(map[string]string)
		for _, field := range f.fields {
			ours[field.name()] = field.value()
		}
		shared, compared := make(map[string]string), make(map[string]string)
		if text, err := os.ReadFile(filepath.Join(dir, f.name+".json")); err == nil {
			var file struct {
				Fields []struct{ Name, Value string }
			}
			if err := json.Unmarshal(text, &file); err != nil {
				t.Fatal(err)
			}
			for _, field := range file.Fields {
				shared[field.Name] = field.Value
			}
			compared = ours
		} else {
			text, err := os.ReadFile(filepath.Join(dir, f.name+".decoded.json"))
			if err != nil {
				t.Fatal(err)
			}
			var file map[string]any
			decoder := json.NewDecoder(bytes.NewReader(text))
			decoder.UseNumber()
			if err := decoder.Decode(&file); err != nil {
				t.Fatal(err)
			}
			for name, v := range file {
				if ourName := decodedNames[name]; ourName != "" {
					shared[ourName], compared[ourName] = fmt.Sprint(v), ours[ourName]
				}
			}
		}
		if diff := cmp.Diff(shared, compared); diff != "" || len(shared) < 7 {
			t.Errorf("%s: shared (-) and ours (+):\n%s", f.name, diff)
		}
	}
	there, err := filepath.Glob(filepath.Join(dir, "*.bin"))
	if err != nil {
		t.Fatal(err)
	}
	for i, path := range there {
		there[i] = strings.TrimSuffix(filepath.Base(path), ".bin")
	}
	here = append(here, "device_latency_samples") // TestVectorsOfTheSharedFile has it
	slices.Sort(here)
	if diff := cmp.Diff(there, here); diff != "" {
		t.Errorf("accounts shared (-) and here (+):\n%s", diff)
	}
}

// required is how much of an account with that code there must be.
func required(kind byte, code string) int {
	if kind == typeLink {
		return 155 + len(code)
	}
	return 124 + len(code)
}

func TestAnAccountMayEndAnywhereBehindItsCode(t *testing.T) {
	for _, f := range accountFiles(t) {
		var parse func([]byte) (any, string, error)
		switch f.data[0] {
		case typeDevice:
			parse = func(b []byte) (any, string, error) { d, err := ParseDevice(b); return d, d.Code, err }
		case typeLink:
			parse = func(b []byte) (any, string, error) { l, err := ParseLink(b); return l, l.Code, err }
		default:
			if _, err := ParseDevice(f.data); err == nil {
				t.Errorf("%s is taken for a device", f.name)
			}
			if _, err := ParseLink(f.data); err == nil {
				t.Errorf("%s is taken for a link", f.name)
			}
			continue
		}
		whole, code, err := parse(f.data)
		if err != nil {
			t.Fatal(err)
		}
		for n := range f.data {
			_, got, err := parse(f.data[:n])
			if enough := n >= required(f.data[0], code); enough != (err == nil) || enough && got != code {
				t.Errorf("%s, %d bytes: code %q, error %v", f.name, n, got, err)
			}
		}
		longer, _, err := parse(append(slices.Clone(f.data), bytes.Repeat([]byte{0xff}, 1000)...))
		if err != nil {
			t.Errorf("%s with more behind it: %v", f.name, err)
		}
		// What an old account lacks would be read from what was put behind it.
		if current := f.name == "device" || f.name == "device_future_version"; current {
			if diff := cmp.Diff(whole, longer, compareAddresses); diff != "" {
				t.Errorf("%s with more behind it (-without +with):\n%s", f.name, diff)
			}
		}
	}
}

var compareAddresses = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func TestHostileAccounts(t *testing.T) {
	link := minimalLink("ams-lon")
	le := binary.LittleEndian
	huge := func(data []byte, at int) []byte {
		data = slices.Clone(data)
		le.PutUint32(data[at:], math.MaxUint32)
		return data
	}
	for name, data := range map[string][]byte{
		"nothing":               nil,
		"only a type":           {typeLink},
		"another type":          append([]byte{7}, link[1:]...),
		"a code without an end": huge(link, 151),
		"zeros":                 make([]byte, 155),
	} {
		if _, err := ParseLink(data); err == nil {
			t.Errorf("%s is taken for a link", name)
		}
	}

	// Counts that nothing comes behind of make nothing of their size.
	l, err := ParseLink(huge(append(link, make([]byte, 32+4+4+8+1+1+4)...), len(link)+32+4+4+8+1+1))
	if err != nil || l.Topologies != nil {
		t.Errorf("%d topologies, error %v", len(l.Topologies), err)
	}
	device := make([]byte, 124)
	device[0] = typeDevice
	tail := func(parts ...[]byte) []byte { return slices.Concat(append([][]byte{device}, parts...)...) }
	many := []byte{0xff, 0xff, 0xff, 0xff}
	for name, data := range map[string][]byte{
		"prefixes":         tail(many, make([]byte, 12)),
		"management VRF":   tail(make([]byte, 4+64), many, make([]byte, 12)),
		"interfaces":       tail(make([]byte, 4+64+4), many, make([]byte, 30)),
		"newer interfaces": tail(make([]byte, 4+64+4+4+4+4+2+14), many, make([]byte, 50)),
		"segments":         tail(make([]byte, 4+64+4), []byte{1, 0, 0, 0, 3}, make([]byte, 37), many, make([]byte, 40)),
	} {
		d, err := ParseDevice(data)
		if err != nil || len(d.Prefixes) > 2 || len(d.Interfaces) > 1 || d.VRF != "" {
			t.Errorf("%s: %+v, error %v", name, d, err)
		}
		if n := testing.AllocsPerRun(10, func() { _, _ = ParseDevice(data) }); n > 60 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}

	// What a later version has more in an item of the newer list is skipped.
	older := func(name byte) []byte {
		return slices.Concat([]byte{0, 3, 1, 0, 0, 0, name, 2, 0}, make([]byte, 2+5+2+1))
	}
	newer := func(name byte, more ...byte) []byte {
		body := slices.Concat([]byte{5, 3, 1, 0, 0, 0, name}, make([]byte, 33), more)
		return append(le.AppendUint16(nil, uint16(2+len(body))), body...)
	}
	two := []byte{2, 0, 0, 0}
	d, err := ParseDevice(tail(make([]byte, 4+64+4), two, older('x'), older('y'), make([]byte, 4+4+2+14), two,
		newer('x', 1, 2, 3, 4, 5, 6, 7), newer('y')))
	if err != nil || len(d.Interfaces) != 2 || d.Interfaces[1].Version != 5 || d.Interfaces[1].Name != "y" {
		t.Errorf("device with interfaces of version 5: %+v, error %v", d, err)
	}

	// Nobody knows how long an item of the older list is that has another version: what is in front of it counts.
	d, err = ParseDevice(tail(make([]byte, 4+64+4), two, older('x'), []byte{9}, bytes.Repeat([]byte{1}, 100)))
	if err != nil || len(d.Interfaces) != 1 || d.Interfaces[0].Name != "x" || d.References != 0 {
		t.Errorf("device with an interface of version 9: %+v, error %v", d, err)
	}
}

// minimalLink is the shortest account of a link with that code.
func minimalLink(code string) []byte {
	b := make([]byte, 151)
	b[0], b[150] = typeLink, byte(LinkActivated)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(code)))
	return append(b, code...)
}

func TestStatuses(t *testing.T) {
	var got []string
	for s := range LinkStatus(10) {
		got = append(got, fmt.Sprint(s, " ", s.Probed()))
	}
	want := []string{
		"pending false", "activated true", "status 2 false", "deleting false", "rejected false", "requested false",
		"hard-drained true", "soft-drained true", "provisioning true", "status 9 false",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
	got = nil
	for s := range DeviceStatus(9) {
		got = append(got, s.String())
	}
	want = []string{
		"pending", "activated", "status 2", "deleting", "rejected", "drained", "device-provisioning", "link-provisioning", "status 8",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
}

func FuzzParseDevice(f *testing.F) {
	for _, a := range accountFiles(f) {
		f.Add(a.data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := ParseDevice(data)
		if err != nil {
			if diff := cmp.Diff(DeviceAccount{}, d, compareAddresses); diff != "" {
				t.Errorf("with an error (-want +got):\n%s", diff)
			}
			return
		}
		if n := len(d.Interfaces); n*18 > len(data) || len(d.Prefixes)*5 > len(data) {
			t.Errorf("%d interfaces, %d prefixes from %d bytes", n, len(d.Prefixes), len(data))
		}
		if n := required(typeDevice, d.Code); len(data) < n || string(data[n-len(d.Code):n]) != d.Code {
			t.Errorf("code %q is not in the data", d.Code)
		}
	})
}

func FuzzParseLink(f *testing.F) {
	for _, a := range accountFiles(f) {
		f.Add(a.data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := ParseLink(data)
		if err != nil {
			if diff := cmp.Diff(LinkAccount{}, l, compareAddresses); diff != "" {
				t.Errorf("with an error (-want +got):\n%s", diff)
			}
			return
		}
		if n := len(l.Topologies); n*32 > len(data) {
			t.Errorf("%d topologies from %d bytes", n, len(data))
		}
		if n := required(typeLink, l.Code); len(data) < n || string(data[n-len(l.Code):n]) != l.Code ||
			!bytes.Equal(data[offsetSideA:offsetSideA+32], l.SideA[:]) || !bytes.Equal(data[offsetSideZ:offsetSideZ+32], l.SideZ[:]) {
			t.Errorf("not what is in the data: %+v", l)
		}
	})
}
