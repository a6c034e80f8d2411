// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/probe"
)

// postReload asks the daemon to reload over its control socket.
func postReload(t *testing.T, dir string) (int, string) {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, "control.sock"))
	}}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Post("http://xtwamp/-/reload", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b := new(strings.Builder)
	if err := resp.Write(b); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, b.String()
}

func TestReload(t *testing.T) {
	near, far := twoHosts(t)
	far.Exec(t, "ip", "addr", "add", "10.1.0.3/24", "dev", "eth1")
	reflectingIn(t, far)
	dir, file := switchConfig(t, "")
	d := startDaemon(t, near, dir, file)
	answers := func(source, to string) bool {
		code, _, _ := invoke(t, "ping", "--netns", far.Name, "-S", source, "-c", "1", "--timeout", "200ms", to)
		return code == 0
	}
	scrape := func() string { _, text := getFrom(t, dir, "/metrics"); return text }
	received := func(path string) float64 { return metric(scrape(), "xtwamp_probes_received_total", `path="`+path+`"`) }
	awaitState(t, "replies of both", func() bool { return received("four") > 20 && received("six") > 20 })

	original, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	six := "- {name: six, address: \"2001:db8::2\"}\n"
	other := strings.Replace(string(original), six, "- {name: other, address: 10.1.0.3, dscp: 46}\n", 1)
	if other == string(original) {
		t.Fatal("there is no target to replace")
	}

	// A file with a fault changes nothing and says what is wrong and where.
	write(strings.Replace(other, "dscp: 46", "dscp: 64", 1))
	code, text := postReload(t, dir)
	if code != http.StatusUnprocessableEntity || !strings.Contains(text, "xtwamp.yml:9: targets[1].dscp: 64") {
		t.Errorf("reload of a bad file: %d %s", code, text)
	}
	before := scrape()
	if metric(before, "xtwamp_config_last_reload_successful") != 0 || !strings.Contains(before, `path="six"`) || strings.Contains(before, `path="other"`) {
		t.Error("a bad file has changed something, or nobody knows of it")
	}

	awaitState(t, "answers to a target", func() bool { return answers("2001:db8::2", "2001:db8::1") })
	if answers("10.1.0.3", "10.1.0.1") {
		t.Error("the reflector answers one that is no target")
	}
	write(other)
	if err := d.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	awaitState(t, "replies of the new path", func() bool { return received("other") > 20 })
	awaitState(t, "answers to the new target", func() bool { return answers("10.1.0.3", "10.1.0.1") })
	awaitState(t, "no answers to the one before", func() bool { return !answers("2001:db8::2", "2001:db8::1") })
	after := scrape()
	if strings.Contains(after, `path="six"`) { // case 92
		t.Error("series of the removed path are still there")
	}
	if metric(after, "xtwamp_config_last_reload_successful") != 1 ||
		metric(after, "xtwamp_config_last_reload_success_timestamp_seconds") <= metric(before, "xtwamp_config_last_reload_success_timestamp_seconds") {
		t.Error("the reload is not in the metrics")
	}
	const four = `path="four"`
	for _, name := range []string{"xtwamp_probes_sent_total", "xtwamp_probes_received_total", "xtwamp_round_trip_time_seconds_count"} {
		if b, a := metric(before, name, four), metric(after, name, four); a <= b {
			t.Errorf("%s of the unchanged path went from %v to %v", name, b, a)
		}
	}
	for _, name := range []string{"xtwamp_probes_lost_total", "xtwamp_probes_unknown_total", "xtwamp_probes_duplicates_total"} {
		if a := metric(after, name, four); a != 0 {
			t.Errorf("%s of the unchanged path is %v", name, a)
		}
	}

	write(strings.Replace(other, "device: near", "device: far", 1))
	if code, text := postReload(t, dir); code != http.StatusOK || !strings.Contains(text, "need a restart: device") {
		t.Errorf("reload of a new device name: %d %s", code, text)
	}
	awaitState(t, "samples of the removed path in the store", func() bool {
		_, text := getFrom(t, dir, "/api/v1/samples?path=six&limit=1")
		return strings.Contains(text, `"path":"six"`)
	})
}

func TestReloadOnTheWebListener(t *testing.T) {
	cfg := defaultConfig("host")
	cfg.Store.Path = filepath.Join(t.TempDir(), "samples.db")
	for _, allowed := range []bool{false, true} {
		d, err := newDaemon(&cfg, zap.NewNop(), seams{engine: func(c probe.Config) (*probe.Engine, error) {
			return probe.Simulate(c, func(int, uint64) (time.Duration, bool) { return 0, false })
		}})
		if err != nil {
			t.Fatal(err)
		}
		d.read = func() (*config, error) { return &cfg, nil }
		w := httptest.NewRecorder()
		d.handler(allowed).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/-/reload", nil))
		if want := map[bool]int{true: http.StatusOK, false: http.StatusForbidden}[allowed]; w.Code != want {
			t.Errorf("allowed %t: %d %s", allowed, w.Code, w.Body)
		}
	}
}
