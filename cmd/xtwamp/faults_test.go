// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/netns/netnstest"
	"github.com/xtwamp/xtwamp/submit/doublezero"
	"github.com/xtwamp/xtwamp/submit/doublezero/ledgertest"
)

const (
	// The links between the two switches: one is cut for long, one goes down and is made anew, one is always well.
	cutLink, looseLink, goodLink = "cut", "loose", "good"

	farWebAddress = "127.0.0.1:9863"

	oneWay = 10 * time.Millisecond // over the link that is cut later

	toldWithin     = 15 * time.Second // a fault, and its end
	endpointWithin = time.Minute      // the end of a fault of the ledger's endpoints
)

// faultLab is two switches that measure each other. The near one is the device, and its samples are on a small disk.
type faultLab struct {
	*device
	lab    *netnstest.Lab
	far    *netnstest.NS
	stalls *netnstest.Stalls
	cut    atomic.Bool // what is sent over the link vanishes
	disk   string
	dir    string // of the near switch
	file   string // its configuration
	near   *daemonProcess
	faults []*labFault // that have been, in order
}

func newFaultLab(t *testing.T) *faultLab {
	t.Helper()
	lab := netnstest.New(t)
	l := &faultLab{
		device: &device{T: t, links: lab.Namespace("links"), management: lab.Namespace("management")},
		lab:    lab, far: lab.Namespace("far"), stalls: netnstest.WatchStalls(t),
	}
	carry := func(r *netnstest.Relay, f netnstest.Frame) {
		if !l.cut.Load() {
			r.Send(f.Direction, f.Data, oneWay)
		}
	}
	lab.Relay(l.links, "eth1", []string{"172.16.0.0/31"}, l.far, "eth1", []string{"172.16.0.1/31"}, carry)
	l.joinLoose()
	lab.Veth(l.links, "eth3", []string{"172.16.0.4/31"}, l.far, "eth3", []string{"172.16.0.5/31"})
	l.serveLedger()
	for i, code := range []string{cutLink, looseLink, goodLink} {
		l.ledger.PutLink(named("link", i), ledgertest.Link{
			Status: ledgertest.LinkActivated, Code: code, SideA: named("device", 0), SideZ: named("target", 0),
			Tunnel: netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, 0, byte(2 * i)}), 31),
		})
	}
	l.serveNames()
	rules, err := filepath.Abs("../../scripts/prometheus")
	if err != nil {
		t.Fatal(err)
	}
	l.scrape(fmt.Sprintf(`
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%[1]s/rules.yml, %[1]s/alerts.yml, %[1]s/expected.yml]
scrape_configs:
- job_name: xtwamp
  static_configs:
  - {targets: ["%[2]s"], labels: {device: near}}
  - {targets: ["%[3]s"], labels: {device: far}}
`, rules, webAddress, farWebAddress))
	l.mountDisk()
	l.dir, l.file = l.config("near")
	edit(t, l.file, "store: {path: "+l.dir, "store: {path: "+l.disk)
	edit(t, l.file, "min_free_bytes: 1MiB", "min_free_bytes: 8MiB")
	edit(t, l.file, "probe: {interval: 100ms, timeout: 300ms, late_window: 300ms}", "probe: {interval: 500ms}")
	edit(t, l.file, "sample_interval: 100ms", "sample_interval: 500ms")
	l.near = startDaemon(t, l.links, l.dir, l.file)
	l.startFar()
	return l
}

func (l *faultLab) joinLoose() {
	l.Helper()
	l.lab.Veth(l.links, "eth2", []string{"172.16.0.2/31"}, l.far, "eth2", []string{"172.16.0.3/31"})
}

// mountDisk mounts a file system of 96 MiB for the store.
func (l *faultLab) mountDisk() {
	l.Helper()
	l.disk = l.TempDir()
	if err := unix.Mount("xtwamp-faults-test", l.disk, "tmpfs", 0, "size=96m"); err != nil {
		l.Fatalf("mount: %v", err)
	}
	l.Cleanup(func() {
		if err := unix.Unmount(l.disk, unix.MNT_DETACH); err != nil {
			l.Error(err)
		}
	})
}

// startFar runs the other switch, which has its links from its configuration.
func (l *faultLab) startFar() {
	l.Helper()
	dir := l.TempDir()
	file := filepath.Join(dir, "xtwamp.yml")
	text := fmt.Sprintf(`
device: far
control: {socket: %[1]s/control.sock}
web: {listen: ["%[2]s"]}
namespaces: {web: %[3]s}
store: {path: %[1]s/samples.db, min_free_bytes: 1MiB}
probe: {interval: 500ms}
targets:
- {name: %[4]s, address: 172.16.0.0, interface: eth1}
- {name: %[5]s, address: 172.16.0.2, interface: eth2}
- {name: %[6]s, address: 172.16.0.4, interface: eth3}
`, dir, farWebAddress, l.management.Name, cutLink, looseLink, goodLink)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		l.Fatal(err)
	}
	startDaemon(l.T, l.far, dir, file)
}

// fillDisk takes what is left of the disk to the last byte.
func (l *faultLab) fillDisk() {
	l.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(l.disk, &st); err != nil {
		l.Fatal(err)
	}
	filler, err := os.Create(l.filler())
	if err != nil {
		l.Fatal(err)
	}
	defer filler.Close()
	if err := unix.Fallocate(int(filler.Fd()), 0, 0, int64(st.Bavail)*st.Bsize); err != nil {
		l.Fatal(err)
	}
}

func (l *faultLab) freeDisk() {
	l.Helper()
	if err := os.Remove(l.filler()); err != nil {
		l.Fatal(err)
	}
}

func (l *faultLab) filler() string { return filepath.Join(l.disk, "filler") }

// refuse closes the ledger's listeners, and whatever connection is used.
func (l *faultLab) refuse() {
	for _, at := range l.ledgerAt {
		at.Close()
	}
	l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Reset})
}

// labFault is what goes wrong in the lab, and what tells it.
type labFault struct {
	name       string
	link       string // that does not answer meanwhile
	begin, end func()
	texts      []string      // on the page, and in status
	metrics    []string      // expressions that have a value
	endWithin  time.Duration // 0: toldWithin

	seen, gone moments
}

// moments are times since a fault or its end; 0: never.
type moments struct{ page, metrics time.Duration }

// starts has a fault begin, and waits until all that should tell it does.
func (l *faultLab) starts(f *labFault) {
	l.Helper()
	l.faults = append(l.faults, f)
	if l.onPage(f) != toldNowhere || l.inMetrics(f) != toldNowhere {
		l.Errorf("%s: told before it begins", f.name)
	}
	since := monotonic()
	f.begin()
	f.seen = l.watch(f, "told", since, toldWithin, toldEverywhere)
}

// ends has a fault end, and waits until nothing tells it.
func (l *faultLab) ends(f *labFault) {
	l.Helper()
	f.end()
	f.gone = l.watch(f, "told no more", monotonic(), max(f.endWithin, toldWithin), toldNowhere)
}

// watch waits until page and metrics tell a fault as wanted. For how long the machine stood still meanwhile nobody is to blame.
func (l *faultLab) watch(f *labFault, how string, since int64, limit time.Duration, want telling) (m moments) {
	l.Helper()
	l.await(2*limit, func() bool {
		if m.page == 0 && l.onPage(f) == want {
			m.page = time.Duration(monotonic() - since)
		}
		if m.metrics == 0 && l.inMetrics(f) == want {
			m.metrics = time.Duration(monotonic() - since)
		}
		return m.page > 0 && m.metrics > 0
	})
	for where, after := range map[string]time.Duration{"on the page": m.page, "in the metrics": m.metrics} {
		if still := l.stalls.Within(since, monotonic()); after == 0 || after-still > limit {
			l.Errorf("%s: %s %s after %v (0: never; the machine stood still for %v), want within %v", f.name, how, where, after, still, limit)
		}
	}
	return m
}

func monotonic() int64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // every Linux has it
	return now.Nano()
}

// await waits until something is so, and reports whether it was within a time.
func (l *faultLab) await(limit time.Duration, so func() bool) bool {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); !so(); <-tick.C {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// get asks the near switch's web listener.
func (l *faultLab) get(path string) (text string, ok bool) {
	resp, err := l.scraper.Get("http://" + webAddress + path)
	if err != nil {
		return "", false
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err == nil && resp.StatusCode == http.StatusOK
}

// telling is whether a fault is told.
type telling int

const (
	toldInPart telling = iota // or nobody answers
	toldNowhere
	toldEverywhere
)

func tellingOf(told []bool) telling {
	switch {
	case !slices.Contains(told, true):
		return toldNowhere
	case !slices.Contains(told, false):
		return toldEverywhere
	default:
		return toldInPart
	}
}

var pageMarkup = []*regexp.Regexp{
	regexp.MustCompile(`(?s)<h2 id="recent">.*`), // lines of the log stay
	regexp.MustCompile(`(?s)<style>.*</style>`),
	regexp.MustCompile(`<[^>]*>`),
}

// readPage is what there is to read on the page.
func readPage(text string) string {
	for _, markup := range pageMarkup {
		text = markup.ReplaceAllString(text, " ")
	}
	return strings.Join(strings.Fields(html.UnescapeString(text)), " ")
}

// onPage looks for a fault's texts on the page and in status.
func (l *faultLab) onPage(f *labFault) telling {
	l.Helper()
	page, ok := l.get("/")
	document, answered := l.get("/api/v1/status")
	if !ok || !answered {
		return toldInPart
	}
	page = readPage(page)
	var s daemonStatus
	if err := json.Unmarshal([]byte(document), &s); err != nil {
		l.Fatal(err)
	}
	lines := s.Problems
	var told []bool
	for _, p := range s.Paths {
		lines = append(lines, p.State+": "+p.Path)
		if p.Path == f.link {
			told = append(told, p.State != pathAnswers, !strings.Contains(page, f.link+" "+pathAnswers))
		}
	}
	for _, e := range s.Endpoints {
		lines = append(lines, e.Endpoint+" "+e.Reason)
	}
	for _, where := range []string{page, strings.Join(lines, "\n")} {
		for _, text := range f.texts {
			told = append(told, strings.Contains(where, text))
		}
	}
	return tellingOf(told)
}

// inMetrics asks Prometheus, which has to have scraped the near switch.
func (l *faultLab) inMetrics(f *labFault) telling {
	l.Helper()
	var told []bool
	for _, expression := range f.metrics {
		n, ok := l.query("count(" + expression + `) or on () (up{device="near"} == 1) - 1`)
		if !ok {
			return toldInPart
		}
		told = append(told, n != "0")
	}
	return tellingOf(told)
}

// value is a number that Prometheus has for an expression, NaN if it has none.
func (l *faultLab) value(expression string) float64 {
	l.Helper()
	text, ok := l.query(expression)
	if !ok {
		text = "NaN"
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		l.Fatal(err)
	}
	return v
}

// fires waits until an alert fires that has labels.
func (l *faultLab) fires(name, labels string) {
	l.Helper()
	const longest = 4 * time.Minute // what it waits for, and a machine that stands still
	if !l.await(longest, func() bool { return l.firing(name, labels) }) {
		l.Errorf("%s with %s does not fire", name, labels)
	}
}

func (l *faultLab) firing(name, labels string) bool {
	l.Helper()
	return len(l.ask(fmt.Sprintf(`ALERTS{alertname="%s",alertstate="firing",%s}`, name, labels))) > 0
}

// table is how long it took to tell each fault and its end.
func (l *faultLab) table() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "fault\tseen on page\tin metrics\tgone from page\tfrom metrics")
	for _, f := range l.faults {
		fmt.Fprint(w, f.name)
		for _, after := range []time.Duration{f.seen.page, f.seen.metrics, f.gone.page, f.gone.metrics} {
			fmt.Fprintf(w, "\t%.1f s", after.Seconds())
		}
		fmt.Fprintln(w)
	}
	w.Flush()
	return b.String()
}

// cutFault is a link on which everything vanishes, though both ends are up.
func (l *faultLab) cutFault() *labFault {
	const labels = `{device="near",path="` + cutLink + `"}`
	return &labFault{
		name: "link cut far away", link: cutLink, texts: []string{"silent: " + cutLink},
		metrics: []string{
			"xtwamp_time_seconds - on (job, instance) group_right () xtwamp_last_reply_timestamp_seconds" + labels + " > 3",
			"increase(xtwamp_probes_lost_total" + labels + "[3s]) > 0",
		},
		begin: func() { l.cut.Store(true) }, end: func() { l.cut.Store(false) },
	}
}

// linkFaults are those of the loose link: its far end goes down, and its near one is deleted and made anew.
func (l *faultLab) linkFaults() (all []*labFault) {
	set := func(state string) func() {
		return func() { l.far.Exec(l.T, "ip", "link", "set", "dev", "eth2", state) }
	}
	for _, f := range []struct {
		name, reason string
		begin, end   func()
	}{
		{"far end down", "no_carrier", set("down"), set("up")},
		{"interface deleted", "no_interface", func() { l.links.Exec(l.T, "ip", "link", "delete", "dev", "eth2") }, l.joinLoose},
	} {
		all = append(all, &labFault{
			name: f.name, link: looseLink, begin: f.begin, end: f.end,
			texts: []string{fmt.Sprintf("nothing is sent to %s: %s", looseLink, f.reason)},
			metrics: []string{
				fmt.Sprintf(`increase(xtwamp_probes_not_sent_total{device="near",path="%s",reason="%s"}[3s]) > 0`, looseLink, f.reason),
			},
		})
	}
	return all
}

// ledgerFaults are that both endpoints refuse, and that both are silent.
func (l *faultLab) ledgerFaults() (all []*labFault) {
	blackhole := func() { l.ledger.Inject(ledgertest.Fault{Kind: ledgertest.Blackhole}) }
	open := func() {
		l.ledger.Heal()
		l.openLedger()
	}
	for _, f := range []*labFault{
		{name: "ledger refuses", texts: []string{"connection refused"}, begin: l.refuse, end: open},
		{name: "ledger silent", texts: []string{"no answer in time"}, begin: blackhole, end: l.ledger.Heal},
	} {
		reason := f.texts[0]
		f.texts = []string{"no endpoint of the ledger is good"}
		for _, address := range []string{"127.0.0.1", "127.0.0.2"} {
			endpoint := "http://" + ledgerName + ":8899/" + address
			f.texts = append(f.texts, endpoint+" "+reason)
			f.metrics = append(f.metrics, fmt.Sprintf(`xtwamp_ledger_endpoint_up{device="near",endpoint="%s"} == 0`, endpoint))
		}
		f.endWithin = endpointWithin
		all = append(all, f)
	}
	return all
}

// Whatever goes wrong is on the page and in the metrics within 15 s, and gone from both within 15 s of its end; of the ledger's endpoints
// within a minute. A real Prometheus with the alerts as they are shipped says what happened to the link that was cut, and nothing is lost.
// No query of the dashboard is without an answer there.
func TestFaultsAreTold(t *testing.T) {
	l := newFaultLab(t)
	if !l.await(time.Minute, func() bool { return l.value("count(xtwamp_probes_received_total > 20)") == 6 && l.written() > 10 }) {
		t.Fatal("the switches do not measure each other, or nothing is in the ledger")
	}
	l.checkRTT("before the cut", "1m")

	cut := l.cutFault()
	l.starts(cut) // for as long as it takes until somebody is told
	full := &labFault{
		name: "disk full", texts: []string{"the store's disk is full"}, metrics: []string{`xtwamp_store_disk_full{device="near"} == 1`},
		begin: l.fillDisk, end: l.freeDisk,
	}
	for _, f := range append(l.linkFaults(), full) {
		l.starts(f)
		if f == full {
			l.fires("XtwampDiskFull", `device="near"`)
		}
		l.ends(f)
	}
	for _, device := range []string{"near", "far"} {
		l.fires("XtwampRepliesGone", fmt.Sprintf(`device="%s",path="%s"`, device, cutLink))
	}
	l.checkCut()
	l.ends(cut)
	if !l.await(time.Minute, func() bool { return !l.firing("XtwampRepliesGone", `path!=""`) }) {
		t.Error("XtwampRepliesGone is not resolved")
	}
	for _, f := range l.ledgerFaults() {
		l.starts(f)
		l.ends(f)
	}
	l.checkRTT("after all", "20s")
	l.checkAlerts()
	l.checkSamples()
	l.checkDashboard()
	t.Logf("\n%s", l.table())
}

// checkRTT compares the medians of what was measured lately with what the links are made for.
func (l *faultLab) checkRTT(when, window string) {
	l.Helper()
	median := func(path string) float64 {
		const buckets = `histogram_quantile(0.5, rate(xtwamp_round_trip_time_seconds_bucket{device="near",path="%s"}[%s]))`
		return l.value(fmt.Sprintf(buckets, path, window))
	}
	if v, limit := median(cutLink), 2*oneWay.Seconds(); !(v >= limit) {
		l.Errorf("%s: RTT of %s is %v, want %v or more", when, cutLink, v, limit)
	}
	if v, limit := median(goodLink), oneWay.Seconds(); !(v < limit) {
		l.Errorf("%s: RTT of %s is %v, want less than %v", when, goodLink, v, limit)
	}
}

// checkCut asks Prometheus for loss and RTT during the cut.
func (l *faultLab) checkCut() {
	l.Helper()
	for _, device := range []string{"near", "far"} {
		for path, isCut := range map[string]bool{cutLink: true, goodLink: false} {
			labels := fmt.Sprintf(`{device="%s",path="%s"}[1m]`, device, path)
			loss := l.value("increase(xtwamp_probes_lost_total" + labels + ") / (increase(xtwamp_probes_lost_total" + labels +
				") + increase(xtwamp_probes_received_total" + labels + "))")
			replies := l.value("increase(xtwamp_round_trip_time_seconds_count" + labels + ")")
			if ok := loss == 1 && replies == 0; isCut && !ok {
				l.Errorf("%s: %s: loss %v, %v round trips in a minute of the cut, want 1 and 0", device, path, loss, replies)
			}
			if ok := loss < 0.05 && replies > 0; !isCut && !ok {
				l.Errorf("%s: %s: loss %v, %v round trips in a minute, want none and some", device, path, loss, replies)
			}
		}
	}
}

// checkAlerts compares what has fired with what has happened. The loose link may have lost too much of what was under way, and the lab may
// last until the devices that are expected and not in it are missed.
func (l *faultLab) checkAlerts() {
	l.Helper()
	var fired []string
	for _, a := range l.ask(`max_over_time(ALERTS{alertstate="firing",alertname!="XtwampNotScraped",path!="` + looseLink + `"}[1h])`) {
		fired = append(fired, strings.TrimSpace(a.Metric["alertname"]+" "+a.Metric["device"]+" "+a.Metric["path"]))
	}
	slices.Sort(fired)
	want := []string{
		"XtwampDiskFull near", "XtwampLinkLoss far cut", "XtwampLinkLoss near cut", "XtwampRepliesGone far cut", "XtwampRepliesGone near cut",
	}
	if diff := cmp.Diff(want, fired); diff != "" {
		l.Errorf("alerts (-want +fired):\n%s", diff)
	}
}

// checkSamples stops the near switch, and looks for each sample in its store and in the ledger.
func (l *faultLab) checkSamples() {
	l.Helper()
	const settling = 60 // samples of three links that are too new for the ledger
	scrape := ""
	if !l.await(time.Minute, func() bool {
		text, ok := l.get("/metrics")
		scrape = text
		return ok && metric(text, "xtwamp_samples_waiting") < settling
	}) {
		l.Errorf("%v samples wait", metric(scrape, "xtwamp_samples_waiting"))
	}
	if n := metric(scrape, "xtwamp_samples_dropped_total"); n != 0 || !strings.Contains(scrape, "xtwamp_samples_dropped_total{") {
		l.Errorf("%v samples were dropped", n)
	}
	if code := l.near.end(syscall.SIGTERM); code != 0 {
		l.Errorf("ended with %d", code)
	}
	file := filepath.Join(l.disk, "samples.db")
	code, out, errs := invoke(l.T, "samples", "--store", file, "--json")
	if code != 0 {
		l.Fatalf("samples: exit %d, %s", code, errs)
	}
	stored := exactlyOnce(l.T, "store", readNDJSON(l.T, out))
	for _, path := range []string{cutLink, goodLink} { // the loose one has begun anew, and counts from there
		label := `path="` + path + `"`
		tried := metric(scrape, "xtwamp_probes_sent_total", label) + metric(scrape, "xtwamp_probes_not_sent_total", label)
		if tried == 0 || float64(stored[path]) < tried {
			l.Errorf("%s: %d samples of %v probes", path, stored[path], tried)
		}
	}

	code, out, errs = invoke(l.T, "ledger", "verify", "--config", l.file, "--store", file, "--json")
	var reports []doublezero.Report
	if err := json.Unmarshal([]byte(out), &reports); err != nil {
		l.Fatalf("ledger verify: exit %d, %s, %v", code, errs, err)
	}
	if len(reports) != 3 || code != 0 {
		l.Errorf("%d accounts, want 3 that are equal: exit %d, %s", len(reports), code, out)
	}
	for _, r := range reports {
		if r.Waiting > settling/3 || r.Checked+settling/3 < stored[r.Path] {
			l.Errorf("%d of the %d samples of %s are in the ledger, %d wait", r.Checked, stored[r.Path], r.Path, r.Waiting)
		}
	}
}

// dashboard is what one asks Prometheus.
type dashboard struct {
	Panels []struct {
		Title   string
		Targets []struct{ Expr, LegendFormat string }
	}
	Templating struct {
		List []struct{ Name, Definition string }
	}
}

// checkDashboard asks all that the dashboard asks, with everything chosen that there is to choose from. It comes last: only a switch that
// was stopped is a device that is down.
func (l *faultLab) checkDashboard() {
	l.Helper()
	text, err := os.ReadFile("../../scripts/grafana/xtwamp.json")
	if err != nil {
		l.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		l.Fatal(err)
	}
	replace := []string{
		"$__rate_interval", "4s", // of scrapes each second
		" or vector(0)", "", // which is an answer without any series
		"offset 1d", "offset 30s", // the lab has no day before, and the rest of the query is the same
	}
	choices := make(map[string][]string)
	for _, v := range d.Templating.List {
		metric, label, ok := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(v.Definition, "label_values("), ")"), ", ")
		if !ok {
			continue // the source of data
		}
		metric = strings.NewReplacer(replace...).Replace(metric)
		var values []string
		for _, s := range l.ask(fmt.Sprintf("group by (%s) (last_over_time(%s[1h]))", label, metric)) {
			values = append(values, s.Metric[label])
		}
		slices.Sort(values)
		choices[v.Name] = values
		replace = append(replace, "$"+v.Name, "("+strings.Join(values, "|")+")")
	}
	if diff := cmp.Diff(map[string][]string{"device": {"far", "near"}, "path": {cutLink, goodLink, looseLink}}, choices); diff != "" {
		l.Errorf("to choose from (-want +got):\n%s", diff)
	}

	type question struct{ title, expression, legend string }
	var open []question
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			open = append(open, question{p.Title, strings.NewReplacer(replace...).Replace(target.Expr), target.LegendFormat})
		}
	}
	l.await(time.Minute, func() bool {
		open = slices.DeleteFunc(open, func(q question) bool { return l.answers(q.expression, q.legend) })
		return len(open) == 0
	})
	for _, q := range open {
		l.Errorf("%s: nothing for %s with the labels of %q", q.title, q.expression, q.legend)
	}
}

var legendLabel = regexp.MustCompile(`{{(\w+)}}`)

// answers reports whether an expression has had a value, if only during a fault, of a series that has all labels of a legend.
func (l *faultLab) answers(expression, legend string) bool {
	l.Helper()
	labels := legendLabel.FindAllStringSubmatch(legend, -1)
	return slices.ContainsFunc(l.ask("max_over_time(("+expression+")[1h:1s])"), func(s promSeries) bool {
		lacks := func(label []string) bool { return s.Metric[label[1]] == "" }
		return s.Value[1] != "NaN" && !slices.ContainsFunc(labels, lacks)
	})
}
