// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
)

// objectSpecs are the programs and maps as they are compiled in.
func objectSpecs(t *testing.T) map[string]*ebpf.CollectionSpec {
	t.Helper()
	xtwamp, err := loadXtwamp()
	if err != nil {
		t.Fatal(err)
	}
	reflect, err := loadReflect()
	if err != nil {
		t.Fatal(err)
	}
	return map[string]*ebpf.CollectionSpec{"xtwamp": xtwamp, "reflect": reflect}
}

// field is a struct member by its place, named alike in C and Go.
type field struct {
	Name         string
	Offset, Size int
}

func plain(name string) string {
	return strings.ToLower(strings.ReplaceAll(name, "_", ""))
}

func TestLayoutsOfObjectAndGoAgree(t *testing.T) {
	specs := objectSpecs(t)
	for name, in := range map[string]struct {
		object string
		value  any
	}{
		"sample":      {"xtwamp", xtwampSample{}},
		"path_key":    {"xtwamp", xtwampPathKey{}},
		"probe_path":  {"xtwamp", xtwampProbePath{}},
		"address":     {"reflect", reflectAddress{}},
		"listen_key":  {"reflect", reflectListenKey{}},
		"listener":    {"reflect", reflectListener{}},
		"prefix_key":  {"reflect", reflectPrefixKey{}},
		"bucket":      {"reflect", reflectBucket{}},
		"counter_key": {"reflect", reflectCounterKey{}},
	} {
		value := in.value
		t.Run(name, func(t *testing.T) {
			var c *btf.Struct
			if err := specs[in.object].Types.TypeByName(name, &c); err != nil {
				t.Fatal(err)
			}
			want := []field{{"sizeof", 0, int(c.Size)}}
			end := 0
			for _, m := range c.Members {
				size, err := btf.Sizeof(m.Type)
				if err != nil {
					t.Fatal(err)
				}
				if at := int(m.Offset.Bytes()); at != end {
					t.Errorf("hidden padding before %s", m.Name)
				}
				end = int(m.Offset.Bytes()) + size
				want = append(want, field{plain(m.Name), int(m.Offset.Bytes()), size})
			}
			if end != int(c.Size) {
				t.Error("hidden padding at the end")
			}

			g := reflect.TypeOf(value)
			got := []field{{"sizeof", 0, int(g.Size())}}
			for f := range g.Fields() {
				if f.Name != "_" { // structs.HostLayout
					got = append(got, field{plain(f.Name), int(f.Offset), int(f.Type.Size())})
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("C and Go (-want +got)\n%s", diff)
			}
		})
	}
}

// enumerators returns what an enum of the object names, without the prefix and
// without marks such as VERDICT__MAX.
func enumerators(t *testing.T, object, enum, prefix string) map[string]uint64 {
	t.Helper()
	var e *btf.Enum
	if err := objectSpecs(t)[object].Types.TypeByName(enum, &e); err != nil {
		t.Fatal(err)
	}
	values := make(map[string]uint64)
	for _, v := range e.Values {
		name, ok := strings.CutPrefix(v.Name, prefix)
		if !ok {
			t.Errorf("%s is not named %s*", v.Name, prefix)
		}
		if !strings.HasPrefix(name, "_") {
			values[strings.ToLower(name)] = v.Value
		}
	}
	return values
}

func TestEveryVerdictHasItsName(t *testing.T) {
	got := make(map[string]uint64)
	for v := range VerdictMax {
		got[v.String()] = uint64(v)
	}
	if diff := cmp.Diff(enumerators(t, "xtwamp", "verdict", "VERDICT_"), got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := VerdictMax.String(); got != "verdict 25" {
		t.Errorf("unknown verdict is called %q", got)
	}
}

func TestEveryReflectVerdictHasItsName(t *testing.T) {
	got := make(map[string]uint64)
	for v := range ReflectVerdictMax {
		got[v.String()] = uint64(v)
	}
	if diff := cmp.Diff(enumerators(t, "reflect", "reflect_verdict", "REFLECT_"), got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := ReflectVerdictMax.String(); got != "verdict 26" {
		t.Errorf("unknown verdict is called %q", got)
	}
}

func TestFlagsAndProfilesHaveTheirValues(t *testing.T) {
	want := map[string]uint64{"sent": 1, "answered": 2, "has_times": 4, "has_ttl": 8, "duplicate": 16, "xdp": 32}
	if diff := cmp.Diff(want, enumerators(t, "xtwamp", "sample_flag", "SAMPLE_")); diff != "" {
		t.Errorf("flags (-want +got)\n%s", diff)
	}
	want = map[string]uint64{"stamp": 0, "twamp_light": 1, "doublezero": 2}
	if diff := cmp.Diff(want, enumerators(t, "xtwamp", "profile", "PROFILE_")); diff != "" {
		t.Errorf("profiles (-want +got)\n%s", diff)
	}
}

// The loader writes the array of ports as the whole of its section.
func TestPortsAreAloneInTheirSection(t *testing.T) {
	spec, err := loadXtwamp()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := spec.Maps[".bss"].ValueSize, uint32(reflect.TypeFor[[2][portWords]uint64]().Size()); got != want {
		t.Errorf(".bss has %d bytes, want %d", got, want)
	}
}

// Nothing in the objects may ask for the types of a certain kernel.
func TestObjectsNeedNoKernelTypes(t *testing.T) {
	for _, spec := range objectSpecs(t) {
		for name, p := range spec.Programs {
			if p.License != "Dual BSD/GPL" {
				t.Errorf("%s is licensed %q", name, p.License)
			}
			for _, insn := range p.Instructions {
				if btf.CORERelocationMetadata(&insn) != nil || insn.IsKfuncCall() {
					t.Errorf("%s: %v", name, insn)
				}
			}
		}
	}
}
