// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const deadline = time.Minute // of each wait

// await waits until something is so.
func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(deadline); !so(); {
		if time.Now().After(end) {
			t.Fatalf("no %s within %s", what, deadline)
		}
		<-tick.C
	}
}

var listening = regexp.MustCompile(`msg="Listening on".* address=(\S+)`)

// serve runs a server until the test ends, and returns its address once it is ready.
func serve(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, append(args, "--web.listen-address=127.0.0.1:0")...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	address, ended := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			fmt.Fprintln(&said, lines.Text())
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				address <- m[1]
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-ended
		_ = cmd.Wait() // killed
		if t.Failed() {
			t.Logf("%s:\n%s", name, &said)
		}
	})
	var a string
	select {
	case a = <-address:
	case <-ended:
		t.Fatalf("%s does not run", name)
	case <-time.After(deadline):
		t.Fatalf("%s does not listen", name)
	}
	await(t, name+" that is ready", func() bool {
		resp, err := http.Get("http://" + a + "/-/ready")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return a
}

// edited copies an example with what is given as pairs of old and new replaced. All of the old has to be there.
func edited(t *testing.T, dir, file string, pairs ...string) string {
	t.Helper()
	text := string(read(t, file))
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("%s has no %q", file, pairs[i])
		}
	}
	name := filepath.Join(dir, file)
	if err := os.WriteFile(name, []byte(strings.NewReplacer(pairs...).Replace(text)), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// device is what a device exports, with two faults that can be switched on.
type device struct {
	disk, reload atomic.Bool
}

func (d *device) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	value := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	fmt.Fprintf(w, "xtwamp_time_seconds %d\n", time.Now().Unix())
	fmt.Fprintf(w, "xtwamp_store_degraded{reason=\"no_space\"} %d\n", value(d.disk.Load()))
	fmt.Fprintf(w, "xtwamp_config_last_reload_successful %d\n", value(!d.reload.Load()))
}

// page is a notification of one alert.
type page struct {
	at     time.Time
	status string
}

// pager is the receiver of a webhook.
type pager struct {
	mu    sync.Mutex
	pages map[string][]page // by alert
	bad   []string
}

func (p *pager) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var got struct {
		Alerts []struct {
			Status              string
			Labels, Annotations map[string]string
		}
	}
	if err == nil {
		err = json.Unmarshal(body, &got)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.bad = append(p.bad, err.Error())
	}
	for _, a := range got.Alerts {
		name, device := a.Labels["alertname"], a.Labels["device"]
		if device == "" || !strings.HasPrefix(a.Annotations["summary"], device+": ") || a.Annotations["description"] == "" {
			p.bad = append(p.bad, string(body))
		}
		p.pages[name] = append(p.pages[name], page{time.Now(), a.Status})
	}
}

// of is the pages of an alert so far.
func (p *pager) of(alert string) []page {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.pages[alert])
}

// awaitMore waits for more pages of an alert.
func (p *pager) awaitMore(t *testing.T, alert string, more int) []page {
	t.Helper()
	want := len(p.of(alert)) + more
	await(t, fmt.Sprintf("%d pages of %s", want, alert), func() bool { return len(p.of(alert)) >= want })
	return p.of(alert)
}

// An alert is told again and again until its fault is gone, but for the time of a silence. A minute is a second here, and 10
// minutes are 3 seconds.
func TestPagesAreRepeated(t *testing.T) {
	const disk, other = "XtwampStoreDegraded", "XtwampConfigReloadFailed"
	p := &pager{pages: make(map[string][]page)}
	hook := httptest.NewServer(p)
	defer hook.Close()
	faulty := new(device)
	var addresses []string
	for _, d := range []*device{faulty, new(device), new(device)} {
		s := httptest.NewServer(d)
		defer s.Close()
		addresses = append(addresses, s.Listener.Addr().String())
	}

	dir := t.TempDir()
	alertmanager := serve(t, "prometheus-alertmanager", "--storage.path="+filepath.Join(dir, "alertmanager"), "--cluster.listen-address=",
		"--config.file="+edited(t, dir, "alertmanager.yml", "http://127.0.0.1:8080", hook.URL,
			"group_wait: 15s", "group_wait: 100ms", "group_interval: 1m", "group_interval: 1s", "repeat_interval: 10m", "repeat_interval: 3s"))
	for _, file := range []string{"rules.yml", "expected.yml"} {
		edited(t, dir, file)
	}
	edited(t, dir, "alerts.yml", "for: 1m", "for: 1s", "for: 2m", "for: 2s")
	edited(t, dir, "fleet.yml", "192.0.2.2:9862", addresses[1], "192.0.2.3:9862", addresses[2])
	serve(t, "prometheus", "--storage.tsdb.path="+filepath.Join(dir, "prometheus"), "--config.file="+edited(t, dir, "prometheus.yml",
		"192.0.2.1:9862", addresses[0], "127.0.0.1:9093", alertmanager,
		"scrape_interval: 15s", "scrape_interval: 500ms", "evaluation_interval: 15s", "evaluation_interval: 500ms"))
	amtool := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "amtool", append(args, "--alertmanager.url=http://"+alertmanager)...).CombinedOutput()
		if err != nil {
			t.Fatalf("amtool %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}

	faulty.disk.Store(true)
	faulty.reload.Store(true)
	for _, alert := range []string{disk, other} {
		pages := p.awaitMore(t, alert, 3-len(p.of(alert)))
		for i, page := range pages {
			if page.status != "firing" {
				t.Errorf("page %d of %s is %s", i, alert, page.status)
			}
			if i > 0 && page.at.Sub(pages[i-1].at) < 2900*time.Millisecond {
				t.Errorf("page %d of %s came after %s, want 3s", i, alert, page.at.Sub(pages[i-1].at))
			}
		}
	}

	// quiet checks that the disk is told no more while the other alert is. A page may be under way when it begins.
	quiet := func(when string) {
		t.Helper()
		p.awaitMore(t, other, 1)
		before := len(p.of(disk))
		p.awaitMore(t, other, 2)
		if n := len(p.of(disk)); n > before {
			t.Errorf("%d pages %s", n-before, when)
		}
	}
	silence := amtool("silence", "add", "alertname="+disk, "--author=test", "--comment=planned work", "--duration=1h")
	quiet("in a silence")
	amtool("silence", "expire", silence)
	if pages := p.awaitMore(t, disk, 2); pages[len(pages)-1].status != "firing" {
		t.Errorf("after the silence: %v", pages)
	}

	faulty.disk.Store(false)
	await(t, "word that the fault is gone", func() bool { pages := p.of(disk); return pages[len(pages)-1].status == "resolved" })
	quiet("after the fault was gone")

	p.mu.Lock()
	defer p.mu.Unlock()
	for alert := range p.pages {
		if alert != disk && alert != other {
			t.Errorf("pages of %s", alert)
		}
	}
	for _, body := range p.bad {
		t.Errorf("bad page: %s", body)
	}
}
