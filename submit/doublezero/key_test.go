// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestPubkeyTextForm(t *testing.T) {
	for _, v := range []struct{ text, problem string }{
		{"11111111111111111111111111111111", ""},
		{"4uQeVj5tqViQh7yWWGStvkEG1Zmhx6uasJtWCJziofM", ""},
		{"JEKNVnkbo3jma5nREBBJCDoXFVeKkD56V3xKrvRmWxFG", ""}, // all bits set
		{"", `public key "": zero length string`},
		{"1111111111111111111111111111111", `public key "1111111111111111111111111111111": 31 bytes in base58, expected 32`},
		{"JEKNVnkbo3jma5nREBBJCDoXFVeKkD56V3xKrvRmWxFH", `public key "JEKNVnkbo3jma5nREBBJCDoXFVeKkD56V3xKrvRmWxFH": 33 bytes in base58, expected 32`},
		{"0uQeVj5tqViQh7yWWGStvkEG1Zmhx6uasJtWCJziofM", `public key "0uQeVj5tqViQh7yWWGStvkEG1Zmhx6uasJtWCJziofM": invalid base58 digit ('0')`},
		{strings.Repeat("1", 100000), "public key of 100000 characters: expected at most 45 in base58"},
	} {
		k, err := ParsePubkey(v.text)
		if err != nil {
			if err.Error() != v.problem {
				t.Errorf("%.50q: error %q, want %q", v.text, err, v.problem)
			}
			if k != (Pubkey{}) {
				t.Errorf("%.50q: key %s beside an error", v.text, k)
			}
			continue
		}
		if v.problem != "" || k.String() != v.text {
			t.Errorf("%q: read as %s, want error %q", v.text, k, v.problem)
		}
	}
}

func TestTextFormsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type all struct {
			Key  Pubkey
			Sig  Signature
			Hash hash
		}
		var want, got all
		// Leading zero bytes are a digit each.
		fill := func(b []byte, name string) {
			copy(b[rapid.IntRange(0, len(b)).Draw(t, name+" zeros"):], rapid.SliceOfN(rapid.Byte(), len(b), len(b)).Draw(t, name))
		}
		fill(want.Key[:], "key")
		fill(want.Sig[:], "signature")
		fill(want.Hash[:], "hash")
		text := fmt.Sprintf(`{"Key":%q,"Sig":%q,"Hash":%q}`, want.Key, want.Sig, want.Hash)
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%+v was read back as %+v", want, got)
		}
	})
}

// numbers is a key pair as its file has it, with some of its numbers changed.
func numbers(change func(n []int) []int) string {
	private := ed25519.NewKeyFromSeed(slices.Clone(seedSlice()))
	var n []int
	for _, b := range private {
		n = append(n, int(b))
	}
	if change != nil {
		n = change(n)
	}
	return strings.ReplaceAll(fmt.Sprint(n), " ", ",")
}

func seedSlice() []byte {
	s := seedFrom(200)
	return s[:]
}

func writeFile(t *testing.T, content string, mode fs.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "id.json")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadKeypair(t *testing.T) {
	want := ed25519.NewKeyFromSeed(seedSlice())
	for _, v := range []struct {
		name, content string
		mode          fs.FileMode
	}{
		{"as solana-keygen writes it", numbers(nil), 0o600},
		{"read-only", numbers(nil), 0o400},
		{"spread over lines", strings.ReplaceAll(numbers(nil), ",", " ,\r\n    ") + "\n", 0o600},
	} {
		t.Run(v.name, func(t *testing.T) {
			k, err := ReadKeypair(writeFile(t, v.content, v.mode))
			if err != nil {
				t.Fatal(err)
			}
			if k.Public() != Pubkey(want.Public().(ed25519.PublicKey)) {
				t.Errorf("public key %s", k.Public())
			}
			if !ed25519.Verify(want.Public().(ed25519.PublicKey), []byte("x"), k.sign([]byte("x"))) {
				t.Error("signs with another key")
			}
		})
	}
}

func TestReadKeypairRefuses(t *testing.T) {
	for _, v := range []struct {
		name, content string
		mode          fs.FileMode
		want          string
	}{
		{"group may read", numbers(nil), 0o640, "mode 0640 lets others than its owner at it: expected 0600"},
		{"others may read", numbers(nil), 0o604, "mode 0604 lets others than its owner at it: expected 0600"},
		{"others may write", numbers(nil), 0o602, "mode 0602 lets others than its owner at it: expected 0600"},
		{"the whole world", numbers(nil), 0o777, "mode 0777 lets others than its owner at it: expected 0600"},
		{"empty", "", 0o600, "expected a JSON array of numbers"},
		{"null", "null", 0o600, "0 numbers: expected 64, the seed and the public key"},
		{"base58", `"5MaiiCavjCmn9Hs1o3eznqDEhRwxo7pXiAYez7keQUviUkauRiTMD8DrESdrNjN8zd9mTmVhRvBJeg5vhyvgrAhG"`, 0o600, "expected a JSON array of numbers"},
		{"base64", `"yMnKy8zNzs/Q0dLT1NXW19jZ2tvc3d7f4OHi4+Tl5ufo6err7O3u7w=="`, 0o600, "expected a JSON array of numbers"},
		{"two arrays", numbers(nil) + numbers(nil), 0o600, "expected a JSON array of numbers"},
		{"fraction", strings.Replace(numbers(nil), "200", "200.5", 1), 0o600, "expected a JSON array of numbers"},
		{"seed alone", numbers(func(n []int) []int { return n[:32] }), 0o600, "32 numbers: expected 64, the seed and the public key"},
		{"one more", numbers(func(n []int) []int { return append(n, 213) }), 0o600, "65 numbers: expected 64, the seed and the public key"},
		{"above a byte", numbers(func(n []int) []int { n[8] += 256; return n }), 0o600, "number 9 of 64 is not a byte"},
		{"below a byte", numbers(func(n []int) []int { n[63] = -213; return n }), 0o600, "number 64 of 64 is not a byte"},
		{"another public key", numbers(func(n []int) []int { n[63] ^= 1; return n }), 0o600,
			"the public key in its second half does not belong to the seed in its first"},
		{"halves exchanged", numbers(func(n []int) []int { return append(n[32:], n[:32]...) }), 0o600,
			"the public key in its second half does not belong to the seed in its first"},
		{"huge", "[" + strings.Repeat(" ", maxKeypairFile) + numbers(nil)[1:], 0o600, "larger than 4096 bytes"},
	} {
		t.Run(v.name, func(t *testing.T) {
			path := writeFile(t, v.content, v.mode)
			k, err := ReadKeypair(path)
			if k != nil || err == nil {
				t.Fatalf("read %v, error %v", k, err)
			}
			if want := "keypair file " + path + ": " + v.want; err.Error() != want {
				t.Errorf("error %q, want %q", err, want)
			}
		})
	}
}

func TestReadKeypairOfWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		dir:                          "keypair file " + dir + ": not a regular file",
		pipe:                         "keypair file " + pipe + ": not a regular file", // and not waiting for a writer
		filepath.Join(dir, "absent"): "keypair file: open " + filepath.Join(dir, "absent") + ": no such file or directory",
	} {
		if k, err := ReadKeypair(path); k != nil || err == nil || err.Error() != want {
			t.Errorf("read %v, error %q, want %q", k, err, want)
		}
	}
}

// The seed of these tests is the bytes 200 to 231, in a row.
func TestKeypairNeverShowsItsSecret(t *testing.T) {
	k := newKeypair(seedFrom(200))
	type config struct {
		Keypair *Keypair
		inside  Keypair
	}
	c := config{k, *k}
	encoded, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	all := []string{string(encoded), k.String()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d", "%x", "%q"} {
		all = append(all, fmt.Sprintf(verb, k), fmt.Sprintf(verb, *k), fmt.Sprintf(verb, c), fmt.Sprintf(verb, &c))
	}
	for _, s := range all {
		for _, secret := range []string{"200 201", "200, 201", "c8c9", "c8 c9", "0xc8, 0xc9", "\xc8\xc9", `\xc8\xc9`, "yMnK"} {
			if strings.Contains(s, secret) {
				t.Errorf("%q shows the secret", s)
			}
		}
	}
	if diff := cmp.Diff(k.Public().String(), fmt.Sprint(k)); diff != "" {
		t.Errorf("printed (-want +got):\n%s", diff)
	}
}

// keypairErrors are all errors about what is in a file. Numbers in them are how many there are and which of them, not what they are.
var keypairErrors = regexp.MustCompile(`^(expected a JSON array of numbers|\d+ numbers: expected 64, the seed and the public key|` +
	`number [1-6]?\d of 64 is not a byte|the public key in its second half does not belong to the seed in its first)$`)

func FuzzParseKeypair(f *testing.F) {
	f.Add([]byte(numbers(nil)))
	f.Add([]byte(numbers(func(n []int) []int { n[40]++; return n })))
	f.Add([]byte("[1, null, 1e2, -1, 300]"))
	f.Add([]byte(`"AAAA"`))
	f.Fuzz(func(t *testing.T, data []byte) {
		k, err := parseKeypair(data)
		if err != nil {
			if k != nil || !keypairErrors.MatchString(err.Error()) {
				t.Errorf("key pair %v, error %q", k, err)
			}
			return
		}
		if !ed25519.Verify(k.public[:], data, k.sign(data)) {
			t.Error("the halves do not belong together")
		}
	})
}

func FuzzParsePubkey(f *testing.F) {
	f.Add(amsterdam.String())
	f.Add("11111111111111111111111111111111")
	f.Fuzz(func(t *testing.T, text string) {
		k, err := ParsePubkey(text)
		if err == nil && k.String() != text {
			t.Errorf("%q was read as %s", text, k)
		}
	})
}
