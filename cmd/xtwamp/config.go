// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/prometheus/exporter-toolkit/web"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/probe/target"
)

// config is the configuration file with every default filled in.
// testdata/reference.yml documents its keys.
type config struct {
	Device     string           `yaml:"device"`
	Log        logConfig        `yaml:"log"`
	Control    controlConfig    `yaml:"control"`
	Web        webConfig        `yaml:"web"`
	Namespaces namespacesConfig `yaml:"namespaces"`
	Store      storeConfig      `yaml:"store"`
	Probe      probeConfig      `yaml:"probe"`
	Reflector  reflectorConfig  `yaml:"reflector"`
	Targets    []targetConfig   `yaml:"targets"`
	Discovery  discoveryConfig  `yaml:"discovery"`
	DoubleZero doublezeroConfig `yaml:"doublezero"`
	Submit     submitConfig     `yaml:"submit"`
}

type logConfig struct {
	Level  string `yaml:"level"`
	Format string `yaml:"format"`
}

type controlConfig struct {
	Socket string `yaml:"socket"`
}

// namespacesConfig says where the three roles work: empty is where the process
// was started, else a name under /var/run/netns, a path, or vrf:NAME.
type namespacesConfig struct {
	Probe  string `yaml:"probe"`
	Ledger string `yaml:"ledger"`
	Web    string `yaml:"web"`
}

type webConfig struct {
	Listen            []string `yaml:"listen"`
	ConfigFile        string   `yaml:"config_file"`
	Lifecycle         bool     `yaml:"lifecycle"`
	Pprof             bool     `yaml:"pprof"`
	PerPathHistograms bool     `yaml:"per_path_histograms"`
}

type storeConfig struct {
	Path           string   `yaml:"path"`
	Retention      duration `yaml:"retention"`
	MaxBytes       byteSize `yaml:"max_bytes"`
	CommitInterval duration `yaml:"commit_interval"`
	MinFreeBytes   byteSize `yaml:"min_free_bytes"`
}

type reflectorConfig struct {
	Enabled     bool     `yaml:"enabled"`
	Listen      []string `yaml:"listen"`
	Mode        string   `yaml:"mode"`
	Allow       []string `yaml:"allow"`
	Stateful    bool     `yaml:"stateful"`
	RateLimit   int      `yaml:"rate_limit"`
	ExtendShort bool     `yaml:"extend_short"`
}

// probeConfig are the keys that say how to probe: for all targets under
// probe, for one in its own entry. What is not set is nil.
type probeConfig struct {
	Interval   *duration `yaml:"interval,omitempty"`
	Timeout    *duration `yaml:"timeout,omitempty"`
	LateWindow *duration `yaml:"late_window,omitempty"`
	Profile    *string   `yaml:"profile,omitempty"`
	Port       *uint16   `yaml:"port,omitempty"`
	SourcePort *uint16   `yaml:"source_port,omitempty"`
	Size       *int      `yaml:"size,omitempty"`
	DSCP       *uint8    `yaml:"dscp,omitempty"`
	TTL        *uint8    `yaml:"ttl,omitempty"`
	DF         *bool     `yaml:"df,omitempty"`
	Timestamps *string   `yaml:"timestamps,omitempty"`
	Attach     *string   `yaml:"attach,omitempty"`
}

type targetConfig struct {
	Name        string            `yaml:"name"`
	Address     string            `yaml:"address"`
	Interface   string            `yaml:"interface,omitempty"`
	Source      string            `yaml:"source,omitempty"`
	Labels      map[string]string `yaml:"labels,omitempty"`
	ProbeConfig probeConfig       `yaml:",inline"`
}

type submitConfig struct {
	DoubleZero ledgerConfig `yaml:"doublezero"`
	File       fileConfig   `yaml:"file"`
}

type fileConfig struct {
	Enabled     bool     `yaml:"enabled"`
	Directory   string   `yaml:"directory"`
	RotateBytes byteSize `yaml:"rotate_bytes"`
	Keep        int      `yaml:"keep"`
}

// defaultConfig is what holds where the file says nothing.
func defaultConfig(hostname string) config {
	return config{
		Device:  hostname,
		Log:     logConfig{Level: "info", Format: "auto"},
		Control: controlConfig{Socket: defaultSocket},
		Web:     webConfig{Listen: []string{":9862"}, PerPathHistograms: true},
		Store: storeConfig{
			Path:           "/var/lib/xtwamp/samples.db",
			Retention:      duration(72 * time.Hour),
			MaxBytes:       256 << 20,
			CommitInterval: duration(10 * time.Second),
			MinFreeBytes:   64 << 20,
		},
		Probe:     fromTarget(target.Defaults()),
		Reflector: reflectorConfig{Enabled: true, Listen: []string{":862"}, Mode: "auto", RateLimit: 1000, ExtendShort: true},
		Discovery: discoveryConfig{DoubleZero: linksDiscovery{Refresh: duration(time.Minute), Profile: target.ProfileDoubleZero}},
		Submit:    submitConfig{DoubleZero: defaultLedger(), File: fileConfig{Directory: "/var/lib/xtwamp/out", RotateBytes: 64 << 20, Keep: 20}},
	}
}

const defaultSocket = "/run/xtwamp/xtwamp.sock"

// duration is a time.Duration that reads as Go writes it.
type duration time.Duration

func (d *duration) UnmarshalYAML(n ast.Node) error {
	text, ok := scalar(n)
	v, err := time.ParseDuration(text)
	if !ok || err != nil {
		return fault(n, "%s: expected a duration such as 10s, 1m30s or 72h", n)
	}
	*d = duration(v)
	return nil
}

func (d duration) MarshalYAML() (any, error) {
	s := time.Duration(d).String()
	// 72h0m0s reads worse than 72h, and means the same.
	s = regexp.MustCompile(`([hm])0s$`).ReplaceAllString(s, "$1")
	return regexp.MustCompile(`h0m$`).ReplaceAllString(s, "h"), nil
}

// byteSize is a number of bytes, written with KiB, MiB or GiB.
type byteSize int64

func (b *byteSize) UnmarshalYAML(n ast.Node) error {
	text, ok := scalar(n)
	v, err := humanize.ParseBytes(text)
	if !ok || err != nil || v > 1<<62 {
		return fault(n, "%s: expected a size such as 64KiB, 256MiB or 1GiB", n)
	}
	*b = byteSize(v)
	return nil
}

func (b byteSize) MarshalYAML() (any, error) {
	for _, unit := range []struct {
		name string
		size byteSize
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if b != 0 && b%unit.size == 0 {
			return fmt.Sprintf("%d%s", b/unit.size, unit.name), nil
		}
	}
	return int64(b), nil
}

func scalar(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.IntegerNode, *ast.FloatNode:
		return n.GetToken().Value, true
	default:
		return "", false
	}
}

func fault(n ast.Node, format string, args ...any) error {
	return &yaml.SyntaxError{Message: fmt.Sprintf(format, args...), Token: n.GetToken()}
}

// configError is one fault of a configuration file.
type configError struct {
	file string
	line int // 0: not known
	key  string
	what string
}

func (e *configError) Error() string {
	var b strings.Builder
	b.WriteString(e.file)
	if e.line > 0 {
		fmt.Fprintf(&b, ":%d", e.line)
	}
	if e.key != "" {
		b.WriteString(": " + e.key)
	}
	b.WriteString(": " + e.what)
	return b.String()
}

// loadConfig reads and checks a configuration file. The error joins a
// *configError for each fault.
func loadConfig(file, hostname string) (*config, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return parseConfig(file, text, hostname)
}

func parseConfig(file string, text []byte, hostname string) (*config, error) {
	c := defaultConfig(hostname)
	decoder := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict())
	switch err := decoder.Decode(&c); {
	case errors.Is(err, io.EOF): // nothing but comments
		c = defaultConfig(hostname)
	case err != nil:
		return nil, decodeError(file, text, err)
	}
	all := target.Defaults()
	c.Probe.apply(&all)
	c.Probe = fromTarget(all) // a key without a value keeps its default
	if err := decoder.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, &configError{file: file, what: "expected one YAML document"}
	}
	if err := placed(file, text, c.check()); err != nil {
		return nil, err
	}
	return &c, nil
}

// parseTargets reads a file of targets: a list as the one below targets in the configuration. The error joins a *configError for each
// fault.
func (c *config) parseTargets(file string, text []byte) ([]target.Target, error) {
	var list []targetConfig
	decoder := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict())
	switch err := decoder.Decode(&list); {
	case errors.Is(err, io.EOF): // perhaps it is being written
		return nil, &configError{file: file, what: "empty: expected a list of targets; [] is one without any"}
	case err != nil:
		return nil, decodeError(file, text, err)
	}
	if err := decoder.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, &configError{file: file, what: "expected one YAML document"}
	}
	var errs []*configError
	bad := func(key, format string, args ...any) {
		errs = append(errs, &configError{key: key, what: fmt.Sprintf(format, args...)})
	}
	c.checkTargets("", list, bad)
	c.checkLinks("", list, bad)
	if err := placed(file, text, errs); err != nil {
		return nil, err
	}
	return c.targets(list)
}

// placed joins faults, with where in the file they are; nil if there are none.
func placed(file string, text []byte, errs []*configError) error {
	if len(errs) == 0 {
		return nil
	}
	at := locate(text)
	all := make([]error, len(errs))
	for i, e := range errs {
		e.file, e.line = file, at.line(e.key)
		all[i] = e
	}
	return errors.Join(all...)
}

// decodeError turns what the YAML library says into a *configError.
func decodeError(file string, text []byte, err error) error {
	e := &configError{file: file, what: err.Error()}
	var y yaml.Error
	if !errors.As(err, &y) {
		return e
	}
	token := y.GetToken()
	e.line, e.what = token.Position.Line, y.GetMessage()
	e.key = locate(text).key(token.Position.Line, token.Position.Column)
	var wrongType *yaml.TypeError
	var overflow *yaml.OverflowError
	var wrongNode *yaml.UnexpectedNodeTypeError
	switch {
	case errors.As(err, &wrongNode) && wrongNode.Expected == ast.SequenceType:
		e.what = fmt.Sprintf("%s: expected a list", token.Value)
	case errors.As(err, &wrongNode) && wrongNode.Expected == ast.MappingType:
		e.what = fmt.Sprintf("%s: expected keys and values", token.Value)
	case errors.As(err, &wrongType):
		e.what = fmt.Sprintf("%s: expected %s", token.Value, kindName(wrongType.DstType))
	case errors.As(err, &overflow):
		e.what = fmt.Sprintf("%s: expected %s", token.Value, kindName(overflow.DstType))
	case strings.HasPrefix(e.what, "unknown field"):
		e.what = fmt.Sprintf("unknown key %q", token.Value)
		e.key = strings.TrimSuffix(strings.TrimSuffix(e.key, token.Value), ".")
	}
	return e
}

func kindName(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Uint8:
		return "a number from 0 to 255"
	case reflect.Uint16:
		return "a number from 0 to 65535"
	case reflect.Int:
		return "a whole number"
	case reflect.Slice:
		return "a list"
	default:
		return "keys and values"
	}
}

// places knows where each key of a file stands.
type places struct {
	lines map[string]int
	keys  map[[2]int]string
}

func locate(text []byte) places {
	p := places{lines: make(map[string]int), keys: make(map[[2]int]string)}
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return p
	}
	for _, doc := range file.Docs {
		if doc.Body != nil {
			ast.Walk(p, doc.Body)
		}
	}
	return p
}

// Visit notes a node's place (ast.Visitor).
func (p places) Visit(n ast.Node) ast.Visitor {
	path := strings.TrimPrefix(strings.TrimPrefix(n.GetPath(), "$"), ".")
	if token := n.GetToken(); token != nil && path != "" {
		if _, seen := p.lines[path]; !seen {
			p.lines[path] = token.Position.Line
		}
		p.keys[[2]int{token.Position.Line, token.Position.Column}] = path
	}
	return p
}

func (p places) key(line, column int) string { return p.keys[[2]int{line, column}] }

// line is where key stands, or the nearest key above it that does.
func (p places) line(key string) int {
	for key != "" {
		if line, ok := p.lines[key]; ok {
			return line
		}
		cut := strings.LastIndexAny(key, ".[")
		if cut < 0 {
			return 0
		}
		key = key[:cut]
	}
	return 0
}

// check says what is wrong with the values. File and line are left out.
func (c *config) check() (errs []*configError) {
	bad := func(key, format string, args ...any) {
		errs = append(errs, &configError{key: key, what: fmt.Sprintf(format, args...)})
	}
	oneOf := func(key, value string, allowed ...string) {
		if !slices.Contains(allowed, value) {
			bad(key, "%q: expected one of %s", value, strings.Join(allowed, ", "))
		}
	}
	if c.Device == "" {
		bad("device", "empty, and this host has no name: expected a name")
	}
	oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	oneOf("log.format", c.Log.Format, "auto", "console", "json")
	for i, l := range c.Web.Listen {
		if _, err := parseListen(l); err != nil {
			bad(fmt.Sprintf("web.listen[%d]", i), "%v", err)
		}
	}
	if err := web.Validate(c.Web.ConfigFile); err != nil {
		bad("web.config_file", "%v", err)
	}
	if _, err := netns.ParsePlace(c.Namespaces.Probe); err != nil {
		bad("namespaces.probe", "%v", err)
	}
	if _, err := netns.ParsePlace(c.Namespaces.Ledger); err != nil {
		bad("namespaces.ledger", "%v", err)
	}
	if _, err := netns.ParsePlace(c.Namespaces.Web); err != nil {
		bad("namespaces.web", "%v", err)
	}
	c.checkStore(bad)
	c.checkReflector(bad)
	if f := c.Submit.File; f.Enabled {
		if f.Directory == "" {
			bad("submit.file.directory", "empty: expected a directory")
		}
		if f.RotateBytes < 4096 {
			bad("submit.file.rotate_bytes", "%d: expected at least 4KiB", f.RotateBytes)
		}
		if f.Keep < 1 {
			bad("submit.file.keep", "%d: expected at least 1", f.Keep)
		}
	}
	if c.checkDefaults(bad) {
		c.checkTargets("targets", c.Targets, bad)
		c.checkLinks("targets", c.Targets, bad)
		c.checkDiscovery(bad)
	}
	c.checkLedger(bad)
	return errs
}

func (c *config) checkStore(bad func(key, format string, args ...any)) {
	if c.Store.Path == "" {
		bad("store.path", "empty: expected a file name")
	}
	if c.Store.Retention < duration(time.Minute) {
		bad("store.retention", "%s: expected at least 1m", time.Duration(c.Store.Retention))
	}
	if c.Store.MaxBytes < 1<<20 {
		bad("store.max_bytes", "%d: expected at least 1MiB", c.Store.MaxBytes)
	}
	if i := c.Store.CommitInterval; i < duration(100*time.Millisecond) || i > duration(10*time.Minute) {
		bad("store.commit_interval", "%s: expected 100ms to 10m", time.Duration(i))
	}
}

func (c *config) checkReflector(bad func(key, format string, args ...any)) {
	r := c.Reflector
	if _, err := parseReflectorMode(r.Mode, r.Stateful); err != nil {
		bad("reflector.mode", "%s", strings.TrimPrefix(err.Error(), "mode "))
	}
	for i, l := range r.Listen {
		if _, err := parseListen(l); err != nil {
			bad(fmt.Sprintf("reflector.listen[%d]", i), "%v", err)
		}
	}
	if r.Enabled && len(r.Listen) == 0 {
		bad("reflector.listen", "empty: expected an address, or enabled: false")
	}
	if _, _, err := parseAllow(r.Allow); err != nil {
		bad("reflector.allow", "%v", err)
	}
	if r.RateLimit < 1 {
		bad("reflector.rate_limit", "%d: expected at least 1 request/s", r.RateLimit)
	}
}

// checkProbe says what is wrong with t: with its probe keys only, unless all is t's own.
func checkProbe(prefix string, t target.Target, own bool, bad func(key, format string, args ...any)) {
	var joined interface{ Unwrap() []error }
	if !errors.As(t.Validate(), &joined) {
		return
	}
	for _, err := range joined.Unwrap() {
		var field *target.FieldError
		if errors.As(err, &field) && (own || slices.Contains(probeKeys, field.Key)) {
			bad(prefix+field.Key, "%v", field.Err)
		}
	}
}

// checkDefaults checks the probe keys for all targets, so that a fault of theirs is told once and there. It reports whether they are good.
func (c *config) checkDefaults(bad func(key, format string, args ...any)) bool {
	defaults := target.Defaults()
	defaults.Name, defaults.Address = "x", "192.0.2.1"
	c.Probe.apply(&defaults)
	checkProbe("probe.", defaults, false, bad)
	return defaults.Validate() == nil
}

// checkTargets checks a list of targets that stands at a key.
func (c *config) checkTargets(at string, list []targetConfig, bad func(key, format string, args ...any)) {
	first := make(map[string]int)
	flows := make(map[target.Flow]int)
	for i, tc := range list {
		prefix := fmt.Sprintf("%s[%d].", at, i)
		t, err := c.target(tc)
		if err != nil {
			bad(prefix+"source", "%v", err)
			continue
		}
		checkProbe(prefix, t, true, bad)
		if j, ok := first[t.Name]; ok && t.Name != "" {
			bad(prefix+"name", "%q: %s[%d] has this name already", t.Name, at, j)
		} else {
			first[t.Name] = i
		}
		if flow, fixed := t.Flow(); fixed {
			if j, ok := flows[flow]; ok {
				bad(prefix+"source_port", "%d: %s[%d] has the same address, port, source and source port", t.SourcePort, at, j)
			}
			flows[flow] = i
		}
	}
}

// probeKeys are the keys of probeConfig.
var probeKeys = func() (keys []string) {
	for f := range reflect.TypeFor[probeConfig]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		keys = append(keys, name)
	}
	return keys
}()

// target is a target as configured, on top of the defaults for all.
func (c *config) target(tc targetConfig) (target.Target, error) {
	t := target.Defaults()
	c.Probe.apply(&t)
	tc.ProbeConfig.apply(&t)
	t.Name, t.Address, t.Interface, t.Labels = tc.Name, tc.Address, tc.Interface, tc.Labels
	if tc.Source != "" {
		a, err := netip.ParseAddr(tc.Source)
		if err != nil {
			return t, fmt.Errorf("%q: expected an IP address", tc.Source)
		}
		t.Source = a
	}
	if place, err := netns.ParsePlace(c.Namespaces.Probe); err == nil && t.Interface == "" {
		t.Interface = place.Device() // a VRF
	}
	return t, nil
}

// targets makes targets of a list that has been checked.
func (c *config) targets(list []targetConfig) ([]target.Target, error) {
	out := make([]target.Target, len(list))
	for i, tc := range list {
		var err error
		if out[i], err = c.target(tc); err != nil {
			return nil, err
		}
		out[i].Labels = ledgerLabels(out[i])
	}
	return out, nil
}

// apply sets in t what p says.
func (p probeConfig) apply(t *target.Target) {
	set(&t.Interval, (*time.Duration)(p.Interval))
	set(&t.Timeout, (*time.Duration)(p.Timeout))
	set(&t.LateWindow, (*time.Duration)(p.LateWindow))
	set(&t.Profile, p.Profile)
	set(&t.Port, p.Port)
	set(&t.SourcePort, p.SourcePort)
	set(&t.Size, p.Size)
	set(&t.DSCP, p.DSCP)
	set(&t.TTL, p.TTL)
	set(&t.DontFragment, p.DF)
	set((*string)(&t.Timestamps), p.Timestamps)
	set((*string)(&t.Attach), p.Attach)
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

func fromTarget(t target.Target) probeConfig {
	return probeConfig{
		Interval:   (*duration)(&t.Interval),
		Timeout:    (*duration)(&t.Timeout),
		LateWindow: (*duration)(&t.LateWindow),
		Profile:    &t.Profile,
		Port:       &t.Port,
		SourcePort: &t.SourcePort,
		Size:       &t.Size,
		DSCP:       &t.DSCP,
		TTL:        &t.TTL,
		DF:         &t.DontFragment,
		Timestamps: (*string)(&t.Timestamps),
		Attach:     (*string)(&t.Attach),
	}
}

// parseListen reads a listen address: ":862" is every address.
func parseListen(s string) (netip.AddrPort, error) {
	text := s
	if strings.HasPrefix(s, ":") {
		text = "[::]" + s
	}
	a, err := netip.ParseAddrPort(text)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q: expected address:port, or :port for every address", s)
	}
	if text != s {
		return netip.AddrPortFrom(netip.Addr{}, a.Port()), nil
	}
	return a, nil
}

// parseAllow reads addresses, CIDRs, or "any".
func parseAllow(list []string) (prefixes []netip.Prefix, everybody bool, err error) {
	for _, s := range list {
		if s == "any" {
			everybody = true
			continue
		}
		p, err := netip.ParsePrefix(s)
		if err != nil {
			a, addrErr := netip.ParseAddr(s)
			if addrErr != nil {
				return nil, false, fmt.Errorf("%q: expected an IP address, a CIDR, or any", s)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		prefixes = append(prefixes, p.Masked())
	}
	return prefixes, everybody, nil
}
