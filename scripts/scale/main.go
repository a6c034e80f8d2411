// SPDX-License-Identifier: Apache-2.0

// Scale runs xtwamp as its users do, with 10,000 paths, as on a small device, and with Prometheus as a reader, against a
// kernel reflector in another network namespace, and prints what that takes beside its limits. It judges no build: the numbers are those of
// this machine, with all else that runs on it.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	signal.Ignore(syscall.SIGPIPE) // whoever reads the output may leave; the lab is removed all the same
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

// workload is one configuration of xtwamp and what it may take.
type workload struct {
	name     string
	paths    int
	interval time.Duration
	measured time.Duration // whole minutes, so that each has its share of upkeep
	scraped  time.Duration // how often, as Prometheus does; 0: not while it is measured
	limits   limits
}

// limits are upper bounds; 0 is none.
type limits struct {
	cpuPercent     float64 // of one core
	bytesPerSample float64
	rssAnonMiB     float64
	goroutines     float64
	writtenPerDay  float64 // MB
	scrape         float64 // ms
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("scale", flag.ContinueOnError)
	binary := flags.String("xtwamp", "bin/xtwamp", "program to measure")
	only := flags.String("only", "", "measure only the workload whose name contains this")
	measured := flags.Duration("for", 0, "measure for this long instead of what the workload needs")
	profile := flags.String("profile", "", "write a CPU profile of the measured time to this file (it costs some itself)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	program, err := filepath.Abs(*binary)
	if err != nil {
		return err
	}
	for _, w := range []workload{
		{
			name: "10000 paths, 1 s", paths: 10_000, interval: time.Second, measured: time.Minute,
			limits: limits{cpuPercent: 15, bytesPerSample: 30},
		},
		{
			name: "20 paths, 10 s", paths: 20, interval: 10 * time.Second, measured: 2 * time.Minute,
			limits: limits{cpuPercent: 0.2, rssAnonMiB: 16, goroutines: 30, writtenPerDay: 300},
		},
		{
			name: "1000 paths, 10 s, scraped each 15 s", paths: 1000, interval: 10 * time.Second, measured: 3 * time.Minute,
			scraped: 15 * time.Second, limits: limits{rssAnonMiB: 120, scrape: 500},
		},
		{
			name: "2000 paths, 10 s, scraped each 15 s", paths: 2000, interval: 10 * time.Second, measured: 2 * time.Minute,
			scraped: 15 * time.Second, limits: limits{scrape: 500},
		},
	} {
		if !strings.Contains(w.name, *only) {
			continue
		}
		if *measured != 0 {
			w.measured = *measured
		}
		fmt.Printf("%s, measured for %s\n", w.name, w.measured)
		if err := w.measure(ctx, program, *profile); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	return nil
}

// measure builds the lab, runs the workload in it and prints what it took.
func (w workload) measure(ctx context.Context, program, profile string) (err error) {
	dir, err := os.MkdirTemp("", "xtwamp-scale-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l, err := newLab(dir, w.paths)
	defer func() { err = errors.Join(err, l.remove()) }()
	if err != nil {
		return err
	}

	reflector, err := l.start(l.far, program, "reflect", "--allow", nearPrefix, "--interface", "eth1")
	if err != nil {
		return err
	}
	defer reflector.kill()
	if err := await(ctx, "the kernel to answer", func() (bool, error) {
		n, err := reflector.said("the kernel answers")
		return n > 0, err
	}); err != nil {
		return err
	}
	config := filepath.Join(dir, "xtwamp.yml")
	if err := os.WriteFile(config, w.config(dir), 0o600); err != nil {
		return err
	}
	daemon, err := l.start(l.near, program, "run", "--config", config)
	if err != nil {
		return err
	}
	defer daemon.kill()
	socket := filepath.Join(dir, "xtwamp.sock")
	// No scrape: the memory that one takes would be given back while the time is measured.
	err = await(ctx, "all paths to be open", func() (bool, error) {
		n, err := daemon.said("path is open")
		return n == w.paths, err
	})
	if err != nil {
		return err
	}
	// What starting took is over some commits later.
	if err := sleep(ctx, 30*time.Second); err != nil {
		return err
	}
	if profile != "" {
		go func() {
			seconds := strconv.Itoa(int(w.measured.Seconds()))
			if err := save(ctx, socket, "/debug/pprof/profile?seconds="+seconds, profile); err != nil {
				fmt.Fprintln(os.Stderr, "scale: no profile:", err)
			}
		}()
	}
	var course []usage
	var scrapes []float64 // ms
	for second := range int(w.measured/time.Second) + 1 {
		if every := int(w.scraped / time.Second); every > 0 && second%every == 0 {
			took, err := scrapeAsPrometheus(ctx, socket)
			if err != nil {
				return err
			}
			scrapes = append(scrapes, float64(took.Microseconds())/1e3)
		}
		u, err := daemon.usage()
		if err != nil {
			return err
		}
		course = append(course, u)
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
	}
	before, after := course[0], course[len(course)-1]
	m, err := scrape(ctx, socket)
	if err != nil {
		return err
	}
	scraped, err := daemon.usage()
	if err != nil {
		return err
	}
	if err := daemon.stop(); err != nil {
		return err
	}
	stored, err := l.stored(ctx, program, filepath.Join(dir, "samples.db"))
	if err != nil {
		return err
	}

	took := after.at.Sub(before.at).Seconds()
	row("CPU, user and system", share(before, after, after.cpu-before.cpu), "% of a core", w.limits.cpuPercent)
	row("  of it in the kernel", share(before, after, after.system-before.system), "% of a core", 0)
	row("  all others meanwhile", share(before, after, after.others-before.others), "% of a core", 0)
	from, to := calmest(course)
	row("  in the 10 s with least others", share(from, to, to.cpu-from.cpu), "% of a core", 0)
	row("  all others then", share(from, to, to.others-from.others), "% of a core", 0)
	if len(scrapes) > 0 {
		slices.Sort(scrapes)
		row(fmt.Sprintf("slowest of %d scrapes", len(scrapes)), scrapes[len(scrapes)-1], "ms", w.limits.scrape)
		row("  median", scrapes[len(scrapes)/2], "ms", 0)
	}
	most := slices.MaxFunc(course, func(a, b usage) int { return cmp.Compare(a.rssAnon, b.rssAnon) })
	slices.SortFunc(course, func(a, b usage) int { return cmp.Compare(a.call, b.call) })
	row("  a system call meanwhile, median", float64(course[len(course)/2].call.Nanoseconds()), "ns", 0)
	row("RssAnon, the most", most.rssAnon/(1<<20), "MiB", w.limits.rssAnonMiB)
	row("  after one more scrape", scraped.rssAnon/(1<<20), "MiB", w.limits.rssAnonMiB)
	row("goroutines", m.sum("go_goroutines"), "", w.limits.goroutines)
	row("written, without folding", (after.written-before.written)/took*86400/1e6, "MB a day", w.limits.writtenPerDay)
	row("store file", float64(stored.bytes)/float64(stored.samples), "bytes a sample", w.limits.bytesPerSample)
	row("ring found full", m.sum(`xtwamp_datapath_packets_total{verdict="ring_full"}`), "times", 0)
	row("probes", float64(stored.samples), "", 0)
	row("  of them late", float64(stored.outcomes["late"]), "", 0)
	row("  lost", float64(stored.outcomes["lost"]), "", 0)
	row("  unknown", float64(stored.outcomes["unknown"]), "", 0)
	row("  not sent", float64(stored.outcomes["not_sent"]), "", 0)
	row("  skipped, at the last scrape", m.sum("xtwamp_probes_skipped_total"), "", 0)
	row("  without both kernel stamps", float64(stored.answered-stored.kernel), "", 0)
	// Each probe that left has one outcome; each sample has one record, in a row without a hole.
	sent, outcomes := m.sum("xtwamp_probes_sent_total"), m.sum("xtwamp_probes_received_total")+
		m.sum("xtwamp_probes_lost_total")+m.sum("xtwamp_probes_unknown_total")
	inFlight := float64(w.paths) * math.Ceil(float64(expiry)/float64(w.interval))
	verdict("each probe sent has an outcome or is in flight", outcomes <= sent && sent-outcomes <= inFlight)
	verdict("each sample is stored, numbered without a gap", stored.gaps == 0 && stored.samples > 0)
	verdict("none was dropped for want of memory", m.sum(`xtwamp_samples_dropped_total{reason="memory_full",sink="store"}`) == 0)
	return nil
}

// share is a time in percent of the time between two looks.
func share(from, to usage, d time.Duration) float64 {
	return 100 * d.Seconds() / to.at.Sub(from.at).Seconds()
}

// calmest is the begin and the end of the 10 s in which others did least: what they do to caches costs us CPU time.
func calmest(course []usage) (from, to usage) {
	const window = 10
	from, to = course[0], course[len(course)-1]
	for i := window; i < len(course); i++ {
		if share(course[i-window], course[i], course[i].others-course[i-window].others) < share(from, to, to.others-from.others) {
			from, to = course[i-window], course[i]
		}
	}
	return from, to
}

// row prints a number and, where it has one, its limit.
func row(what string, value float64, unit string, limit float64) {
	line := fmt.Sprintf("  %-32s %10s %-15s", what, strconv.FormatFloat(value, 'f', digits(value), 64), unit)
	if limit != 0 {
		line += fmt.Sprintf(" limit %-6v %s", limit, passed(value <= limit))
	}
	fmt.Println(strings.TrimRight(line, " "))
}

func digits(v float64) int {
	switch {
	case v == math.Trunc(v):
		return 0
	case v < 10:
		return 2
	default:
		return 1
	}
}

func verdict(what string, ok bool) { fmt.Printf("  %-76s %s\n", what, passed(ok)) }

func passed(ok bool) string {
	if ok {
		return "PASS"
	}
	return "MISS"
}

const (
	// nearPrefix holds the addresses that probes come from: several, since a reflector answers 1000 requests per second
	// of each.
	nearPrefix = "10.202.0.0/24"
	sources    = 20
	farPrefix  = "10.201.0.0/16"
	// expiry is how long after it was sent the outcome of a probe is final.
	expiry = 4 * time.Second
)

func source(i int) string { return fmt.Sprintf("10.202.0.%d", 1+i%sources) }
func remote(i int) string { return fmt.Sprintf("10.201.%d.%d", i/250, 1+i%250) }

func (w workload) config(dir string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "device: scale\ncontrol: {socket: %[1]s/xtwamp.sock}\nweb: {listen: [\"127.0.0.1:9862\"], pprof: true}\n"+
		"store: {path: %[1]s/samples.db, min_free_bytes: 1MiB}\nprobe: {interval: %[2]s}\ntargets:\n", dir, w.interval)
	for i := range w.paths {
		fmt.Fprintf(&b, "  - {name: path-%05d, address: %s, source: %s, interface: eth1}\n", i, remote(i), source(i))
	}
	return b.Bytes()
}

// lab is two namespaces joined by a veth pair. All far addresses are behind one neighbour.
type lab struct {
	dir, near, far string
	made           []string
}

func newLab(dir string, paths int) (*lab, error) {
	name := fmt.Sprintf("xtwscale-%d", os.Getpid())
	l := &lab{dir: dir, near: name + "-near", far: name + "-far"}
	for _, ns := range []string{l.near, l.far} {
		if err := ip("", "netns", "add", ns); err != nil {
			return l, err
		}
		l.made = append(l.made, ns)
	}
	if err := ip("", "link", "add", "eth1", "netns", l.near, "type", "veth", "peer", "name", "eth1", "netns", l.far); err != nil {
		return l, err
	}
	var near, far strings.Builder
	near.WriteString("link set lo up\naddr add 10.200.0.1/30 dev eth1\nlink set eth1 up\nroute add " + farPrefix + " via 10.200.0.2\n")
	far.WriteString("link set lo up\naddr add 10.200.0.2/30 dev eth1\nlink set eth1 up\nroute add " + nearPrefix + " via 10.200.0.1\n")
	for i := range sources {
		fmt.Fprintf(&near, "addr add %s/32 dev lo\n", source(i))
	}
	for i := range paths {
		fmt.Fprintf(&far, "addr add %s/32 dev lo\n", remote(i))
	}
	return l, errors.Join(ip(near.String(), "-n", l.near, "-batch", "-"), ip(far.String(), "-n", l.far, "-batch", "-"))
}

func (l *lab) remove() error {
	var errs []error
	for _, ns := range l.made {
		errs = append(errs, ip("", "netns", "delete", ns))
	}
	return errors.Join(errs...)
}

func ip(stdin string, args ...string) error {
	cmd := exec.Command("ip", args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// process is a running xtwamp.
type process struct {
	cmd *exec.Cmd
	log string
}

// start runs a command in a namespace. ip becomes it: the process is the command's own.
func (l *lab) start(ns string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command("ip", append([]string{"netns", "exec", ns}, args...)...), log: filepath.Join(l.dir, ns+".log")}
	out, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p.cmd.Stdout, p.cmd.Stderr = out, out
	return p, p.cmd.Start()
}

// said is how many times a text is in the log.
func (p *process) said(text string) (int, error) {
	out, err := os.ReadFile(p.log)
	return bytes.Count(out, []byte(text)), err
}

// stop ends the process and reports how it ended, with the end of its log if that was not well.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := p.cmd.Wait(); err != nil {
		out, _ := os.ReadFile(p.log)
		return fmt.Errorf("%w\n%s", err, out[max(0, len(out)-4096):])
	}
	return nil
}

// kill ends a process that was not stopped.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait() // "killed" is no news
	}
}

// usage is what a process has used by now.
type usage struct {
	at          time.Time
	cpu, system time.Duration // user and system; system alone
	others      time.Duration // of everybody else on the machine
	rssAnon     float64       // bytes
	written     float64       // bytes handed to write calls
	call        time.Duration // that a system call took: the yardstick for cpu, which follows the state of the machine
}

func (p *process) usage() (u usage, err error) {
	u.at = time.Now()
	proc := fmt.Sprintf("/proc/%d/", p.cmd.Process.Pid)
	stat, err := os.ReadFile(proc + "stat")
	if err != nil {
		return u, err
	}
	// The second field, the name, may hold spaces. utime and stime are the 14th and the 15th, in 10 ms.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	if err != nil {
		return u, err
	}
	system, err := strconv.Atoi(fields[12])
	if err != nil {
		return u, err
	}
	u.system = time.Duration(system) * 10 * time.Millisecond
	u.cpu = u.system + time.Duration(user)*10*time.Millisecond
	all, err := busy()
	if err != nil {
		return u, err
	}
	u.others = all - u.cpu
	kib, err := field(proc+"status", "RssAnon:")
	if err != nil {
		return u, err
	}
	u.rssAnon = kib * 1024
	// Not write_bytes: that counts all of a large folio where one page of it was written (Linux 6.16 on ext4).
	u.call = systemCall()
	u.written, err = field(proc+"io", "wchar:")
	return u, err
}

// systemCall is how long the shortest of some system calls takes, each with its neighbours.
func systemCall() time.Duration {
	const rounds, calls = 20, 100
	shortest := time.Duration(math.MaxInt64)
	for range rounds {
		begin := time.Now()
		for range calls {
			syscall.Getppid()
		}
		shortest = min(shortest, time.Since(begin)/calls)
	}
	return shortest
}

// busy is what all CPUs have worked since boot.
func busy() (sum time.Duration, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	for i, f := range strings.Fields(line)[1:] {
		ticks, err := strconv.Atoi(f)
		if err != nil {
			return 0, err
		}
		switch i {
		case 3, 4: // idle, iowait
		case 8, 9: // of guests, which user and nice have already
		default:
			sum += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	return sum, nil
}

// field is the number behind a name in a file of /proc.
func field(file, name string) (float64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			return strconv.ParseFloat(f[1], 64)
		}
	}
	return 0, fmt.Errorf("%s: no %s", file, name)
}

// metrics are the values of one scrape by name and labels.
type metrics map[string]float64

func get(ctx context.Context, socket, path string) (io.ReadCloser, error) {
	return getAs(ctx, socket, path, "")
}

// getAs asks for a kind of content.
func getAs(ctx context.Context, socket, path, accept string) (io.ReadCloser, error) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://xtwamp"+path, nil)
	if err != nil {
		return nil, err
	}
	if accept != "" {
		request.Header.Set("Accept", accept)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, fmt.Errorf("%s: %s", path, response.Status)
	}
	return response.Body, nil
}

// scrapeAsPrometheus scrapes as a server does that takes native histograms, and says how long that took.
func scrapeAsPrometheus(ctx context.Context, socket string) (time.Duration, error) {
	begin := time.Now()
	body, err := getAs(ctx, socket, "/metrics",
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,text/plain;version=0.0.4;q=0.3")
	if err != nil {
		return 0, err
	}
	defer body.Close()
	_, err = io.Copy(io.Discard, body)
	return time.Since(begin), err
}

func scrape(ctx context.Context, socket string) (metrics, error) {
	body, err := get(ctx, socket, "/metrics")
	if err != nil {
		return nil, err
	}
	defer body.Close()
	m := make(metrics)
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil && !strings.HasPrefix(name, "#") {
			m[name] = v
		}
	}
	return m, lines.Err()
}

func save(ctx context.Context, socket, path, file string) error {
	body, err := get(ctx, socket, path)
	if err != nil {
		return err
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// of are the values of a metric, whatever its labels.
func (m metrics) of(name string) (values []float64) {
	for k, v := range m {
		if k == name || strings.HasPrefix(k, name+"{") {
			values = append(values, v)
		}
	}
	return values
}

func (m metrics) sum(name string) (sum float64) {
	for _, v := range m.of(name) {
		sum += v
	}
	return sum
}

// stored is what a store holds after its daemon stopped.
type stored struct {
	bytes            int64
	samples, gaps    int
	outcomes         map[string]int
	answered, kernel int // kernel: of the answered ones, with both stamps by eBPF
}

// stored counts the samples of a store file, as xtwamp prints them.
func (l *lab) stored(ctx context.Context, program, file string) (s stored, err error) {
	info, err := os.Stat(file)
	if err != nil {
		return s, err
	}
	s.bytes, s.outcomes = info.Size(), make(map[string]int)
	cmd := exec.CommandContext(ctx, program, "samples", "--store", file, "--json")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return s, err
	}
	if err := cmd.Start(); err != nil {
		return s, err
	}
	path, next := "", 0
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		line := lines.Text()
		s.samples++
		s.outcomes[text(line, `"outcome":"`)]++
		if strings.Contains(line, `"rtt_ns":`) {
			s.answered++
			if strings.Contains(line, `"tx":"tc_egress","rx":"tc_ingress"`) {
				s.kernel++
			}
		}
		if p := text(line, `"path":"`); p != path {
			path, next = p, 0
		}
		_, number, _ := strings.Cut(line, `"seq":`)
		number, _, _ = strings.Cut(number, ",")
		if number != strconv.Itoa(next) {
			s.gaps++
		}
		next++
	}
	return s, errors.Join(lines.Err(), cmd.Wait())
}

// text is the string that follows a key in a line of JSON, up to its closing quote.
func text(line, key string) string {
	_, value, _ := strings.Cut(line, key)
	value, _, _ = strings.Cut(value, `"`)
	return value
}

// await looks each second until ready says yes, for at most three minutes.
func await(ctx context.Context, what string, ready func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for {
		ok, err := ready()
		if ok || err != nil {
			return err
		}
		if err := sleep(ctx, time.Second); err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
