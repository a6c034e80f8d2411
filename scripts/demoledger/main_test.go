// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// freeAddress returns an address at which nobody listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// start runs the program until the end of the test and returns what it says by the first two words of each line.
func start(t *testing.T, args ...string) map[string]string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(ctx, args, w)
		w.CloseWithError(io.EOF)
		done <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	said := make(map[string]string)
	for lines := bufio.NewScanner(r); lines.Scan(); {
		if lines.Text() == "ready" {
			return said
		}
		i := strings.LastIndexByte(lines.Text(), ' ')
		said[lines.Text()[:i]] = lines.Text()[i+1:]
	}
	t.Fatal("it ended before it was ready")
	return nil
}

func call(t *testing.T, client *http.Client, url, body string) (int, string) {
	t.Helper()
	resp, err := client.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestDemoLedger(t *testing.T) {
	one, two, control, keys := freeAddress(t), freeAddress(t), freeAddress(t), filepath.Join(t.TempDir(), "ams.json")
	args := []string{
		"-listen", one, "-listen", two, "-control", control, "-slot-time", "1ms", "-device", "ams=" + keys, "-device", "lon=" + keys,
		"-link", "ams:lon:172.16.1.0/31",
	}
	client := &http.Client{Timeout: 10 * time.Second}
	t.Cleanup(client.CloseIdleConnections)
	said := start(t, args...)

	info, err := os.Stat(keys)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key pair: %v, %v", info, err)
	}
	account := func(name string) []byte {
		_, body := call(t, client, "http://"+one,
			`{"jsonrpc":"2.0","id":1,"method":"getAccountInfo","params":["`+said[name]+`",{"encoding":"base64"}]}`)
		var r struct {
			Result struct{ Value struct{ Data [2]string } }
		}
		err := json.Unmarshal([]byte(body), &r)
		b, err2 := base64.StdEncoding.DecodeString(r.Result.Value.Data[0])
		if err := errors.Join(err, err2); err != nil {
			t.Fatalf("%s: %v in %s", name, err, body)
		}
		return b
	}
	if a, z := account("device ams"), account("device lon"); !bytes.Contains(a, []byte("ams")) || !bytes.Contains(z, []byte("lon")) {
		t.Errorf("devices %x, %x", a, z)
	}
	if b := account("link ams:lon"); !bytes.Contains(b, []byte{172, 16, 1, 0, 31, 1}) {
		t.Errorf("link %x", b)
	}

	const health = `{"jsonrpc":"2.0","id":1,"method":"getHealth"}`
	for _, tt := range []struct {
		path string
		want int
		a, b int // status of a call at each address then
	}{
		{"fault?kind=503&address=" + one + "&method=getHealth&for=1h", 204, 503, 200},
		{"heal", 204, 200, 200},
		{"fault?kind=bad-weather", 400, 200, 200},
		{"fault?kind=503&address=1.2.3.4:5", 400, 200, 200},
		{"fault?kind=503&calls=many", 400, 200, 200},
		{"fault?kind=429&skip=1&calls=1&wait=3s", 204, 200, 429},
		{"fork?slots=2", 204, 200, 200},
		{"fork", 400, 200, 200},
		{"clock?offset=1h", 204, 200, 200},
		{"halt", 204, 200, 200},
		{"rollover", 204, 200, 200},
		{"resume", 204, 200, 200},
	} {
		status, body := call(t, client, "http://"+control+"/"+tt.path, "")
		if status != tt.want {
			t.Errorf("%s: HTTP %d %s, want %d", tt.path, status, body, tt.want)
		}
		a, _ := call(t, client, "http://"+one, health)
		b, _ := call(t, client, "http://"+two, health)
		if a != tt.a || b != tt.b {
			t.Errorf("%s: then HTTP %d and %d, want %d and %d", tt.path, a, b, tt.a, tt.b)
		}
	}

	var got state
	for deadline := time.Now().Add(10 * time.Second); got.Epoch != 195; { // the first slots of it have no block
		if time.Now().After(deadline) {
			t.Fatal("the ledger did not roll over")
		}
		resp, err := client.Get("http://" + control)
		if err != nil {
			t.Fatal(err)
		}
		err = json.NewDecoder(resp.Body).Decode(&got)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			t.Fatal(err)
		}
	}
	want := state{Slot: got.Slot, Epoch: 195, Samples: map[string]int{}, Requests: map[string]map[string]int{
		one: {"getHealth": 12, "getAccountInfo": 3}, two: {"getHealth": 12},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
}

func TestArguments(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.json")
	if err := os.WriteFile(bad, []byte("[1,2,3]"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{}, {"-listen", "127.0.0.1:0"}, {"-no-such-flag"},
		{"-listen", "127.0.0.1:0", "-control", "127.0.0.1:0", "-device", "ams"},
		{"-listen", "127.0.0.1:0", "-control", "127.0.0.1:0", "-device", "ams=" + bad},
		{"-listen", "127.0.0.1:0", "-control", "127.0.0.1:0", "-link", "a:b"},
		{"-listen", "127.0.0.1:0", "-control", "127.0.0.1:0", "-link", "a:b:::/64"},
		{"-listen", "127.0.0.1:0", "-control", "nowhere"},
	} {
		if err := run(t.Context(), args, io.Discard); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}
