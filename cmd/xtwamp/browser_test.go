// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image/png"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	browserlog "github.com/chromedp/cdproto/log"
	browsernetwork "github.com/chromedp/cdproto/network"
	browserpage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/netns/netnstest"
	"github.com/xtwamp/xtwamp/probe"
	"github.com/xtwamp/xtwamp/probe/store"
)

// browser is a chromium in a namespace of its own, where there is nothing but what a test serves there.
type browser struct {
	ns  *netnstest.NS
	ctx context.Context
}

// stepLimit bounds each step of the browser.
const stepLimit = 2 * time.Minute

// bounded runs a step and cancels it when it takes too long.
func bounded(cancel context.CancelFunc, step func() error) error {
	defer time.AfterFunc(stepLimit, cancel).Stop()
	return step()
}

func startBrowser(t *testing.T) *browser {
	t.Helper()
	lab := netnstest.New(t)
	program, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("XTWAMP_REQUIRE_ROOT") == "1" {
			t.Fatal(err)
		}
		t.Skip("needs chromium")
	}
	b := &browser{ns: lab.Namespace("browser")}
	dir := t.TempDir()
	logged := new(output)
	ctx, forget := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.UserDataDir(filepath.Join(dir, "profile")),
		chromedp.Env("HOME="+dir, "TMPDIR="+dir), chromedp.CombinedOutput(logged),
		chromedp.ModifyCmdFunc(func(cmd *exec.Cmd) { // ip(8) becomes the browser
			inside := b.ns.Command(cmd.Args...)
			cmd.Path, cmd.Args = inside.Path, inside.Args
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		}))...)
	t.Cleanup(forget)
	ctx, cancel := chromedp.NewContext(ctx)
	t.Cleanup(func() {
		if err := bounded(cancel, func() error { return chromedp.Cancel(ctx) }); err != nil {
			t.Errorf("end the browser: %v", err)
		}
		// Its children still write to its profile.
		awaitState(t, "the end of all processes of the browser", func() bool { return ip(t, "netns", "pids", b.ns.Name) == "" })
		if t.Failed() {
			t.Logf("log of the browser:\n%s", logged)
		}
	})
	if err := bounded(cancel, func() error { return chromedp.Do(ctx) }); err != nil {
		t.Fatalf("start the browser: %v\n%s", err, logged)
	}
	b.ctx = ctx
	return b
}

// serve serves pages where the browser is, and returns their URL.
func (b *browser) serve(t *testing.T, h http.Handler) string {
	t.Helper()
	var l net.Listener
	if err := b.ns.Do(func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
	s.Start()
	t.Cleanup(s.Close)
	return s.URL + "/"
}

// frozen serves the page as it is now, once: a browser that asks again keeps what it has.
func frozen(h http.Handler) http.Handler {
	now := httptest.NewRecorder()
	h.ServeHTTP(now, httptest.NewRequest(http.MethodGet, "/", nil))
	var served atomic.Bool
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if served.Swap(true) {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		maps.Copy(w.Header(), now.Header())
		w.WriteHeader(now.Code)
		_, _ = now.Body.WriteTo(w) // the browser sees what is missing
	})
}

// tab shows the status page.
type tab struct {
	*testing.T
	ctx    context.Context
	cancel context.CancelFunc
	url    string
	loads  atomic.Int32

	mu     sync.Mutex
	faults []string // what the browser complained of, and what the page asked for beside itself
}

// open shows a page. At its end the test fails if anything was wrong with it in the meantime.
func (b *browser) open(t *testing.T, url string) *tab {
	t.Helper()
	p := &tab{T: t, url: url}
	p.ctx, p.cancel = chromedp.NewContext(b.ctx)
	t.Cleanup(func() {
		p.cancel()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, f := range p.faults {
			t.Error(f)
		}
	})
	if err := bounded(p.cancel, func() error { return chromedp.Listen(p.ctx, p.hear) }); err != nil {
		t.Fatalf("open a tab: %v", err)
	}
	do(p, "load the page", chromedp.Navigate(url))
	return p
}

// hear is told of all that happens to the page.
func (p *tab) hear(event any) {
	fault := func(format string, args ...any) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.faults = append(p.faults, fmt.Sprintf(format, args...))
	}
	switch e := event.(type) {
	case *browserpage.EventLoadEventFired:
		p.loads.Add(1)
	case *browsernetwork.EventRequestWillBeSent:
		if url := e.Request.URL; url != p.url && !strings.HasPrefix(url, "data:") {
			fault("the page asked for %s", url)
		}
	case *browserlog.EventEntryAdded:
		if e.Entry.Level == browserlog.EntryLevelError || e.Entry.Level == browserlog.EntryLevelWarning {
			fault("%s of the browser: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL)
		}
	case *runtime.EventConsoleAPICalled:
		fault("the page wrote to the console: %s", e.Type)
	case *runtime.EventExceptionThrown:
		fault("exception: %s", e.ExceptionDetails.Text)
	}
}

func do[T any](p *tab, what string, action chromedp.Action[T]) (v T) {
	p.Helper()
	if err := bounded(p.cancel, func() (err error) {
		v, err = chromedp.Run(p.ctx, action)
		return err
	}); err != nil {
		p.Fatalf("%s: %v", what, err)
	}
	return v
}

// Widths in pixels.
const (
	phone   = 360
	tablet  = 800
	desktop = 1280
)

// view sets how wide the page is, and whether it is dark.
func (p *tab) view(width int64, dark bool) {
	p.Helper()
	var options []chromedp.EmulateViewportOption
	if width == phone {
		options = append(options, chromedp.EmulateMobile)
	}
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	do(p, "set the view", chromedp.Steps(
		chromedp.EmulateViewport(width, 800, options...),
		chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
			_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
				Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
			})
			return err
		}),
	))
}

// shot leaves a picture of the whole page for people to look at.
func (p *tab) shot(name string) {
	p.Helper()
	image := do(p, "take a screenshot", func(ctx context.Context, t *chromedp.Target) (browserpage.CaptureScreenshotResult, error) {
		return cdp.Call(ctx, t, browserpage.CaptureScreenshot, browserpage.CaptureScreenshotParams{
			CaptureBeyondViewport: new(true), OptimizeForSpeed: new(true),
		})
	}).Data
	height := do(p, "measure the page", chromedp.Evaluate[int](`document.documentElement.scrollHeight`))
	if c, err := png.DecodeConfig(bytes.NewReader(image)); err != nil || c.Height < height {
		p.Errorf("%s: %v, %d pixels high, the page %d", name, err, c.Height, height)
	}
	dir := filepath.Join("..", "..", "bin", "screenshots")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		p.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), image, 0o644); err != nil {
		p.Fatal(err)
	}
}

// content is what the page says.
type content struct {
	Ready    string
	Heading  string
	Text     string
	Problems []string
	Cells    map[string]string // by heading of the table, row and column
}

const readContent = `(() => {
	const text = e => e.textContent.replace(/\s+/g, " ").trim();
	const cells = {};
	for (const td of document.querySelectorAll("td")) {
		const table = td.closest("table").getAttribute("aria-labelledby"), row = text(td.closest("tr").querySelector("th"));
		cells[table + "/" + row + "/" + td.dataset.name] = text(td);
	}
	return {
		Ready: document.readyState, Heading: text(document.querySelector("h1")), Text: text(document.querySelector("main")),
		Problems: [...document.querySelectorAll("ul.bad > li")].map(text), Cells: cells,
	};
})()`

func (p *tab) content() (c content) {
	p.Helper()
	awaitState(p.T, "a page that is loaded", func() bool {
		c = do(p, "read the page", chromedp.Evaluate[content](readContent))
		return c.Ready == "complete"
	})
	return c
}

// checkView looks for what makes a page hard to read, and returns the classes of its text.
const checkView = `((width, dark) => {
	const faults = [], classes = new Set();
	const fault = (e, what) => faults.push(e.tagName + "." + e.className + " " + e.textContent.trim().slice(0, 40) + ": " + what);
	const luminance = colour => {
		const [r, g, b] = colour.match(/[\d.]+/g).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
		return 0.2126 * r + 0.7152 * g + 0.0722 * b;
	};
	const grounds = new Map();
	const ground = e => {
		if (!grounds.has(e)) {
			const colour = getComputedStyle(e).backgroundColor;
			grounds.set(e, colour === "rgba(0, 0, 0, 0)" ? ground(e.parentElement) : luminance(colour));
		}
		return grounds.get(e);
	};
	const text = (e, style) => {
		if (parseFloat(style.fontSize) < 12) fault(e, "text of " + style.fontSize);
		const [low, high] = [ground(e), luminance(style.color)].sort((a, b) => a - b);
		const contrast = (high + 0.05) / (low + 0.05);
		if (contrast < 4.5) fault(e, "contrast " + contrast.toFixed(2));
	};
	if (document.documentElement.scrollWidth > width)
		fault(document.documentElement, document.documentElement.scrollWidth + " px wide in " + width);
	if (ground(document.body) < 0.5 !== dark) fault(document.body, "ground of luminance " + ground(document.body));
	const range = document.createRange(), walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (walker.nextNode()) {
		const e = walker.currentNode.parentElement;
		if (!walker.currentNode.data.trim() || !e.checkVisibility()) continue;
		e.classList.forEach(c => classes.add(c));
		text(e, getComputedStyle(e));
		for (const part of walker.currentNode.data.matchAll(e.closest(".n") ? /\S.*\S/g : /(?<!\S)\w{1,12}(?!\S)/g)) {
			range.setStart(walker.currentNode, part.index);
			range.setEnd(walker.currentNode, part.index + part[0].length);
			if (range.getClientRects().length > 1) fault(e, part[0] + " is on several lines");
		}
	}
	for (const td of document.querySelectorAll("td")) {
		if (!td.checkVisibility()) continue;
		const head = td.closest("table").tHead.rows[0].cells[td.cellIndex], label = getComputedStyle(td, "::before");
		if (!td.dataset.name || !head.textContent.toLowerCase().includes(td.dataset.name.toLowerCase()))
			fault(td, "named " + td.dataset.name + " below " + head.textContent);
		if (head.getBoundingClientRect().right > 0) continue;
		if (label.content !== JSON.stringify(td.dataset.name)) fault(td, "labelled " + label.content);
		text(td, label);
	}
	return {Faults: faults.slice(0, 10), Classes: [...classes]};
})(%d, %t)`

// checkViews checks that the page can be read at each width, in light and dark, and that it has text of some classes.
func (p *tab) checkViews(classes ...string) {
	p.Helper()
	for _, v := range []struct {
		width int64
		dark  bool
	}{{phone, true}, {phone, false}, {tablet, false}, {desktop, true}, {desktop, false}} {
		p.view(v.width, v.dark)
		view := fmt.Sprintf("%d px, dark %t", v.width, v.dark)
		got := do(p, view, chromedp.Evaluate[struct{ Faults, Classes []string }](fmt.Sprintf(checkView, v.width, v.dark)))
		for _, f := range got.Faults {
			p.Errorf("%s: %s", view, f)
		}
		for _, c := range classes {
			if !slices.Contains(got.Classes, c) {
				p.Errorf("%s: no text of class %s among %q", view, c, got.Classes)
			}
		}
	}
}

// checkAccessible checks what a screen reader and a keyboard get of the page, which is as much at each width.
func (p *tab) checkAccessible(charts int) {
	p.Helper()
	if lang := do(p, "language", chromedp.Evaluate[string](`document.documentElement.lang`)); lang != "en" {
		p.Errorf("the language is %q", lang)
	}
	if n := do(p, "header cells", chromedp.Evaluate[int](`document.querySelectorAll("th:not([scope=row], [scope=col])").length`)); n != 0 {
		p.Errorf("%d header cells have no scope", n)
	}
	for _, width := range []int64{phone, desktop} {
		p.view(width, false)
		want := do(p, "count", chromedp.Evaluate[map[string]int](`Object.fromEntries(
			[["table", "table"], ["cell", "td"], ["rowheader", "tbody th"], ["columnheader", "thead th"]].map(
				([role, s]) => [role, [...document.querySelectorAll(s)].filter(e => e.checkVisibility()).length]))`))
		want["main"], want["heading 1"], want["image"] = 1, 1, charts
		if diff := cmp.Diff(want, p.roles(want)); diff != "" {
			p.Errorf("%d px: roles (-want +got):\n%s", width, diff)
		}
	}
}

// roles counts the nodes of the accessibility tree that have one of some roles. Whatever can have the focus, charts and tables need a name.
func (p *tab) roles(of map[string]int) map[string]int {
	p.Helper()
	tree := do(p, "accessibility", func(ctx context.Context, t *chromedp.Target) (accessibility.GetFullAXTreeResult, error) {
		return cdp.Call(ctx, t, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	})
	got := make(map[string]int)
	for role := range of {
		got[role] = 0
	}
	for _, n := range tree.Nodes {
		if n.Ignored {
			continue
		}
		role, name := valueOf[string](p, n.Role), valueOf[string](p, n.Name)
		named := role == "image" || role == "table"
		for _, property := range n.Properties {
			switch property.Name {
			case accessibility.PropertyNameLevel:
				role = fmt.Sprintf("%s %d", role, valueOf[int](p, property.Value))
			case accessibility.PropertyNameFocusable:
				named = named || valueOf[bool](p, property.Value)
			}
		}
		if named && name == "" {
			p.Errorf("a %s without a name", role)
		}
		if _, ok := of[role]; ok {
			got[role]++
		}
	}
	return got
}

func valueOf[T any](p *tab, v *accessibility.Value) (out T) {
	p.Helper()
	if v != nil {
		if err := json.Unmarshal(v.Value, &out); err != nil {
			p.Fatal(err)
		}
	}
	return out
}

// statusOf asks a daemon how it is.
func statusOf(t *testing.T, d *daemonProcess) (s daemonStatus) {
	t.Helper()
	code, text := d.get("/api/v1/status")
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatalf("status: %d %q: %v", code, text, err)
	}
	return s
}

// simulated is the page of a daemon in front of simulated links, of which it knows an hour.
func simulated(t *testing.T, links int) http.Handler {
	t.Helper()
	cfg := defaultConfig("switch")
	cfg.Control.Socket, cfg.Web.Listen, cfg.Reflector.Enabled, cfg.Probe.Interval = "", nil, false, new(duration(time.Second))
	cfg.Store.Path = filepath.Join(t.TempDir(), "samples.db")
	for i := range links {
		cfg.Targets = append(cfg.Targets, targetConfig{Name: fmt.Sprintf("link%d", i), Address: fmt.Sprintf("198.51.%d.%d", i/250, i%250+1)})
	}
	d, err := newDaemon(&cfg, zap.NewNop(), seams{noSync: true, engine: func(c probe.Config) (*probe.Engine, error) {
		return probe.Simulate(c, answered)
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("daemon: %v", err)
		}
	}()
	awaitState(t, "replies on all links, and a store", func() bool {
		s := d.status()
		return s.State == stateHealthy && !slices.ContainsFunc(s.Paths, func(p pathStatus) bool { return p.RTT == 0 })
	})
	for i := range links {
		for m := range historyMinutes { // since the simulated boot
			past := store.Sample{Mono: int64(m) * int64(time.Minute), RTT: int64(450+10*(i+m)%100) * 1000}
			if i%10 == 0 && m == 30 {
				past.Outcome = store.Lost
			}
			d.histograms.observe(i, &past)
		}
	}
	return frozen(d.handler(false))
}

// TestPageInABrowser shows the status page of real and simulated daemons to a real browser.
func TestPageInABrowser(t *testing.T) {
	b := startBrowser(t)
	t.Run("a link is cut", func(t *testing.T) {
		t.Parallel()
		checkCutLink(t, b)
	})
	for _, links := range []int{0, 1, 500} {
		t.Run(fmt.Sprintf("%d links", links), func(t *testing.T) {
			t.Parallel()
			p := b.open(t, b.serve(t, simulated(t, links)))
			c := p.content()
			if c.Heading != "switch healthy" || strings.Contains(c.Text, "No targets yet") != (links == 0) {
				t.Errorf("%s: %s", c.Heading, c.Text)
			}
			for i := range links {
				if rtt := c.Cells[fmt.Sprintf("links/link%d/RTT now", i)]; rtt == "" || rtt == "-" {
					t.Errorf("link%d: RTT %q", i, rtt)
				}
			}
			p.checkViews("healthy", "dim")
			if links <= 1 { // that of many takes long, and is no other
				p.checkAccessible(links)
			}
			p.view(desktop, false)
			p.shot(fmt.Sprintf("%d-links", links))
		})
	}
	t.Run("all kinds of trouble", func(t *testing.T) {
		t.Parallel()
		s := troubled()
		p := b.open(t, b.serve(t, frozen(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if err := pageTemplate.Execute(w, &s); err != nil {
				t.Error(err)
			}
		}))))
		p.checkViews("bad", "degraded", "dim")
		p.checkAccessible(len(s.Paths))
		for _, width := range []int64{phone, desktop} {
			p.view(width, width == phone)
			p.shot(fmt.Sprintf("trouble-%d", width))
		}
	})
}

// checkCutLink has two switches that measure each other over two links, and cuts one.
func checkCutLink(t *testing.T, b *browser) {
	lab := netnstest.New(t)
	near, far := lab.Namespace("near"), lab.Namespace("far")
	for i, name := range []string{"eth1", "eth2"} {
		lab.Veth(near, name, []string{fmt.Sprintf("10.%d.0.1/24", i+1)}, far, name, []string{fmt.Sprintf("10.%d.0.2/24", i+1)})
	}
	dir, file := configWithRoles(t, "{web: "+b.ns.Name+"}")
	farDir, farFile := switchConfig(t, "")
	for _, f := range []string{file, farFile} {
		edit(t, f, `{name: six, address: "2001:db8::2"}`, `{name: two, address: 10.2.0.2, interface: eth2}`)
	}
	for old, with := range map[string]string{"device: near": "device: far", "10.1.0.2": "10.1.0.1", "10.2.0.2": "10.2.0.1"} {
		edit(t, farFile, old, with)
	}
	d := startDaemon(t, near, dir, file)
	startDaemon(t, far, farDir, farFile)
	awaitMeasuring(t, dir)
	awaitMeasuring(t, farDir)
	awaitState(t, "two measured links, and the web listener", func() bool {
		s := statusOf(t, d)
		return s.State == stateHealthy && s.Paths[0].RTT > 0 && s.Paths[1].RTT > 0 && listensIn(t, b.ns)
	})
	p := b.open(t, "http://"+webAddress+"/")
	before := p.content()
	checkContent(t, before, statusOf(t, d))
	for _, path := range []string{"four", "two"} {
		if rtt := before.Cells["links/"+path+"/RTT now"]; rtt == "" || rtt == "-" {
			t.Errorf("%s: RTT %q", path, rtt)
		}
	}

	far.Exec(t, "ip", "link", "set", "eth2", "down")
	awaitState(t, "a link without carrier, and an outcome of all that was sent", func() bool {
		s := statusOf(t, d)
		i := slices.IndexFunc(s.Paths, func(p pathStatus) bool { return p.Reason == "no_carrier" })
		return i >= 0 && s.Paths[i].Sent == s.Paths[i].Hour.Answered+s.Paths[i].Hour.Lost
	})
	n := p.loads.Load()
	awaitState(t, "a page that is loaded anew by itself", func() bool { return p.loads.Load() > n })
	after, s := p.content(), statusOf(t, d)
	checkContent(t, after, s)
	for _, path := range s.Paths {
		if path.Path != "two" {
			continue
		}
		want := map[string]string{
			"RTT now": shortRTT(path.RTT), "p50": shortRTT(path.Hour.P50), "p99": shortRTT(path.Hour.P99), "Loss": lossShare(path.Hour),
		}
		for column, text := range want {
			if got := after.Cells["links/two/"+column]; got != text {
				t.Errorf("%s of the cut link: %q, want %q", column, got, text)
			}
		}
	}
	if got := after.Cells["links/two/Time stamps"]; got != "no_carrier" {
		t.Errorf("time stamps of the cut link: %q", got)
	}
	p.view(desktop, false)
	p.shot("link-down")
	p.view(desktop, true)
	p.shot("dark")
	p.view(phone, false)
	p.shot("phone")
	if code := d.end(syscall.SIGINT); code != 0 {
		t.Errorf("ended with %d\n%s", code, d.errs)
	}
}

// checkContent compares what the page says with what the API said at about the same time: all that does not change from probe to probe.
func checkContent(t *testing.T, c content, s daemonStatus) {
	t.Helper()
	if want := s.Device + " " + s.State; c.Heading != want {
		t.Errorf("heading %q, want %q", c.Heading, want)
	}
	if diff := cmp.Diff(s.Problems, c.Problems); diff != "" {
		t.Errorf("problems (-status +page):\n%s", diff)
	}
	want, got := make(map[string]string), make(map[string]string)
	for _, p := range s.Paths {
		stamps := p.Timestamps
		if p.Reason != "" {
			stamps = p.Reason
		}
		want["links/"+p.Path+"/Time stamps"] = stamps
		want["links/"+p.Path+"/Over"] = p.Address + " by " + p.Interface
	}
	for _, i := range s.Interfaces {
		want["interfaces/"+i.Interface+"/Stamps by"] = i.Hook
	}
	for _, l := range s.Loops {
		want["loops/"+l.Name+"/State"] = string(l.State)
	}
	for cell, text := range c.Cells {
		if _, ok := want[cell]; ok || strings.HasPrefix(cell, "loops/") && strings.HasSuffix(cell, "/State") {
			got[cell] = text
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cells (-status +page):\n%s", diff)
	}
	reflector := "Reflector: on at " + strings.Join(s.Reflector.Listen, ", ") + "; in the kernel on "
	for i, hook := range s.Reflector.Interfaces {
		if i > 0 {
			reflector += ", "
		}
		reflector += hook.Interface + " (" + hook.Hook + ")"
	}
	for _, text := range []string{reflector + ".", "Store Open. ", " samples in memory, 0 dropped."} {
		if !strings.Contains(c.Text, text) {
			t.Errorf("no %q in the page:\n%s", text, c.Text)
		}
	}
}
