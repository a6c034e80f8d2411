// SPDX-License-Identifier: Apache-2.0

package twamp

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestProfileText(t *testing.T) {
	for name, want := range map[string]struct {
		profile Profile
		size    int
	}{
		"stamp": {STAMP, 44}, "twamp-light": {TWAMPLight, 44}, "doublezero": {DoubleZero, 48},
	} {
		var got Profile
		if err := json.Unmarshal([]byte(`"`+name+`"`), &got); err != nil || got != want.profile {
			t.Errorf("unmarshal %s: got %v, %v, want %v", name, got, err, want.profile)
		}
		if text, err := json.Marshal(want.profile); err != nil || string(text) != `"`+name+`"` {
			t.Errorf("marshal %v: got %s, %v", want.profile, text, err)
		}
		if got.String() != name {
			t.Errorf("string: got %q, want %q", got.String(), name)
		}
		if got.MinSize() != want.size {
			t.Errorf("smallest size of %s: got %d, want %d", name, got.MinSize(), want.size)
		}
	}
}

func TestUnknownProfileText(t *testing.T) {
	got := TWAMPLight
	err := got.UnmarshalText([]byte("twamp"))
	if err == nil || got != TWAMPLight {
		t.Fatalf("got %v, %v; want an error and the profile untouched", got, err)
	}
	want := `unknown profile "twamp": want stamp, twamp-light or doublezero`
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
	if text, err := Profile(3).MarshalText(); err == nil {
		t.Errorf("marshal Profile(3): got %q, want an error", text)
	}
	if got := Profile(3).String(); got != "Profile(3)" {
		t.Errorf("string: got %q", got)
	}
}

func TestKindText(t *testing.T) {
	var got []string
	for k := Short; k <= Reflected+1; k++ {
		got = append(got, k.String())
	}
	want := []string{"short", "echo", "answer", "padding", "tlvs", "reflected", "Kind(6)"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
}
