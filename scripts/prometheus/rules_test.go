// SPDX-License-Identifier: Apache-2.0

// Package prometheus has what Prometheus and Alertmanager need to watch xtwamp, and the tests of it.
package prometheus

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
)

// program is where the metrics come from.
const program = "../../cmd/xtwamp"

// command runs a tool to its end.
func command(t testing.TB, stdin, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

func read(t testing.TB, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// parse reads a YAML file.
func parse[T any](t testing.TB, file string) (v T) {
	t.Helper()
	if err := yaml.Unmarshal(read(t, file), &v); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return v
}

type rule struct {
	Record, Alert, Expr, For string            `yaml:",omitempty"`
	Labels, Annotations      map[string]string `yaml:",omitempty"`
}

// rules are those of a file.
func rules(t testing.TB, file string) (all []rule) {
	t.Helper()
	for _, g := range parse[struct{ Groups []struct{ Rules []rule } }](t, file).Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// cases are tests in promtool's format.
type cases struct {
	RuleFiles          []string   `yaml:"rule_files"`
	EvaluationInterval string     `yaml:"evaluation_interval"`
	GroupEvalOrder     []string   `yaml:"group_eval_order"`
	Tests              []testCase `yaml:"tests"`
}

type testCase struct {
	Name     string   `yaml:"name"`
	Interval string   `yaml:"interval"`
	Series   []series `yaml:"input_series"`
	Expr     []struct {
		Expr    string `yaml:"expr"`
		Time    string `yaml:"eval_time"`
		Samples []struct {
			Labels string `yaml:"labels"`
			Value  int    `yaml:"value"`
		} `yaml:"exp_samples,omitempty"`
	} `yaml:"promql_expr_test"`
}

type series struct {
	Series string `yaml:"series"`
	Values string `yaml:"values"`
}

// alert is the one that the case is about.
func (c *testCase) alert() string {
	name, _, _ := strings.Cut(c.Name, ":")
	return name
}

// firing is the labels with which alerts fire.
func (c *testCase) firing() (labels []string) {
	for _, s := range c.Expr[0].Samples {
		labels = append(labels, s.Labels)
	}
	return labels
}

// fires is the labels with which the case's alert fires, "" if it does not.
func (c *testCase) fires() string {
	for _, labels := range c.firing() {
		if strings.Contains(labels, fmt.Sprintf(`alertname="%s"`, c.alert())) {
			return labels
		}
	}
	return ""
}

const allFiring = `ALERTS{alertstate="firing"}`

func testCases(t testing.TB) cases {
	t.Helper()
	c := parse[cases](t, "alerts_test.yml")
	for _, c := range c.Tests {
		if len(c.Expr) != 1 || c.Expr[0].Expr != allFiring {
			t.Fatalf("%s: it does not look once at %s", c.Name, allFiring)
		}
	}
	return c
}

func TestExamplesAreValid(t *testing.T) {
	command(t, "", "promtool", "check", "config", "prometheus.yml")
	command(t, "", "amtool", "check-config", "alertmanager.yml")
}

func TestRules(t *testing.T) {
	command(t, "", "promtool", "test", "rules", "rules_test.yml", "alerts_test.yml")
}

func TestEveryAlertHasCases(t *testing.T) {
	fires, quiet := make(map[string]string), make(map[string]bool)
	for _, c := range testCases(t).Tests {
		if labels := c.fires(); labels != "" {
			fires[c.alert()] = labels
		} else {
			quiet[c.alert()] = true
		}
	}
	label := regexp.MustCompile(`\$labels\.(\w+)`)
	for _, r := range rules(t, "alerts.yml") {
		if fires[r.Alert] == "" || !quiet[r.Alert] {
			t.Errorf("%s: a case in which it fires: %t; one in which it does not: %t", r.Alert, fires[r.Alert] != "", quiet[r.Alert])
		}
		delete(quiet, r.Alert)
		if s := r.Labels["severity"]; s != "critical" && s != "warning" {
			t.Errorf("%s: severity %q", r.Alert, s)
		}
		for _, text := range []string{"summary", "description"} {
			if r.Annotations[text] == "" {
				t.Errorf("%s has no %s", r.Alert, text)
			}
			for _, used := range label.FindAllStringSubmatch(r.Annotations[text], -1) {
				if !strings.Contains(fires[r.Alert], used[1]+`="`) {
					t.Errorf("%s: its %s has the label %s, and it fires as %s", r.Alert, text, used[1], fires[r.Alert])
				}
			}
		}
	}
	for name := range quiet {
		t.Errorf("cases of %s, which is no alert", name)
	}
}

// check has promtool run cases that were made of those of the file.
func (c cases) check(t *testing.T, made []testCase) {
	t.Helper()
	c.RuleFiles, c.Tests = slices.Clone(c.RuleFiles), made
	for i, file := range c.RuleFiles {
		path, err := filepath.Abs(file)
		if err != nil {
			t.Fatal(err)
		}
		c.RuleFiles[i] = path
	}
	text, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "made_test.yml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, "", "promtool", "test", "rules", file)
}

// hasDevice reports whether the case is one in which its alert fires, and about a device.
func (c *testCase) hasDevice() bool { return strings.Contains(c.fires(), `device="`) }

// another makes what one device has that of another.
var another = strings.NewReplacer("dz001", "dz002", "192.0.2.1:", "192.0.2.2:")

// twice has the series of the first device a second time, as those of another.
func twice(all []series) (both []series) {
	for _, s := range all {
		both = append(both, s)
		if name := another.Replace(s.Series); name != s.Series {
			both = append(both, series{name, s.Values})
		}
	}
	return both
}

// Whatever fires is over as soon as its series vanish, with the device or with the path alone, while another device has the like.
func TestNothingFiresForWhatWasRemoved(t *testing.T) {
	all := testCases(t)
	var made []testCase
	vanish := func(c testCase, what string) {
		var end int
		if _, err := fmt.Sscanf(c.Expr[0].Time, "%dm", &end); err != nil {
			t.Fatalf("%s: %s: %v", c.Name, c.Expr[0].Time, err)
		}
		c.Series, c.Expr = twice(c.Series), slices.Clone(c.Expr)
		for i, s := range c.Series {
			if strings.Contains(s.Series, "dz001") && strings.Contains(s.Series, what) {
				c.Series[i].Values += " stale"
			}
		}
		c.Expr[0].Expr = `ALERTS{alertstate="firing",device=~".*dz001"}`
		c.Expr[0].Time, c.Expr[0].Samples = fmt.Sprintf("%dm", end+1), nil
		made = append(made, c)
	}
	for _, c := range all.Tests {
		if !c.hasDevice() {
			continue
		}
		vanish(c, "{")
		if strings.Contains(c.firing()[0], `path="`) {
			vanish(c, `path="`)
		}
	}
	all.check(t, made)
}

// What one device has says nothing of another: two with the same faults have the same alerts, each its own.
func TestDevicesAreToldApart(t *testing.T) {
	all := testCases(t)
	var made []testCase
	for _, c := range all.Tests {
		if !c.hasDevice() {
			continue
		}
		c.Series, c.Expr = twice(c.Series), slices.Clone(c.Expr)
		for _, s := range c.Expr[0].Samples {
			s.Labels = another.Replace(s.Labels)
			c.Expr[0].Samples = append(c.Expr[0].Samples, s)
		}
		made = append(made, c)
	}
	all.check(t, made)
}

// family is one of the program's metrics.
type family struct {
	kind, help string
	labels     []string
}

// families are those of the golden files.
func families(t testing.TB) map[string]family {
	t.Helper()
	all := make(map[string]family)
	line := regexp.MustCompile(`^(\w+) (\w+) \{(.*?)\} (.*)\n$`)
	for _, name := range []string{"metrics.golden", "ledger-metrics.golden"} {
		for l := range strings.Lines(string(read(t, filepath.Join(program, "testdata", name)))) {
			m := line.FindStringSubmatch(l)
			if m == nil {
				t.Fatalf("%s: %q", name, l)
			}
			all[m[1]] = family{kind: m[2], help: m[4], labels: strings.Split(m[3], ",")}
		}
	}
	// It is there only while something waits, and so in no golden file.
	const waiting = "oldest_waiting_sample_timestamp_seconds"
	if bytes.Contains(read(t, filepath.Join(program, "metrics.go")), []byte(`desc("`+waiting+`", `)) {
		all["xtwamp_"+waiting] = family{kind: "gauge", help: "When it was sent.", labels: []string{"sink"}}
	}
	return all
}

func TestMetricsAreValid(t *testing.T) {
	var b strings.Builder
	for name, f := range families(t) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %[1]s %[3]s\n", name, f.help, f.kind)
		if f.kind == "histogram" {
			fmt.Fprintf(&b, "%s_bucket{le=\"+Inf\"} 1\n%[1]s_sum 1\n%[1]s_count 1\n", name)
		} else {
			fmt.Fprintf(&b, "%s 1\n", name)
		}
	}
	command(t, b.String(), "promtool", "check", "metrics")
}

var (
	metricName = regexp.MustCompile(`\bxtwamp_\w+`)
	recorded   = regexp.MustCompile(`\bxtwamp:[\w:]+`)
	selector   = regexp.MustCompile(`\b(xtwamp_\w+)\{(.*?)\}`)
	matcher    = regexp.MustCompile(`(\w+)(=|!=|=~|!~)"(.*?)"`)
	suffix     = regexp.MustCompile(`_(bucket|sum|count)$`)
	grouping   = regexp.MustCompile(`\b(?:on|by|without|group_left|group_right) \((.*?)\)`)
)

// targetLabels are given by the scrape configuration.
var targetLabels = []string{"device", "instance", "job", "reflector"}

// bucket is the label of a histogram's buckets.
const bucket = "le"

// expressions are all that is asked of Prometheus, by where that stands.
func expressions(t testing.TB) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for _, file := range []string{"rules.yml", "alerts.yml"} {
		for _, r := range rules(t, file) {
			all[r.Record+r.Alert] = r.Expr
		}
	}
	for _, p := range dashboard(t).Panels {
		for _, target := range p.Targets {
			all[p.Title+" "+target.RefID] = target.Expr
		}
	}
	return all
}

// Metrics, labels and their values are called as in the program, so that one that is renamed there is noticed here.
func TestNamesAreThoseOfTheProgram(t *testing.T) {
	known := families(t)
	labels := append(slices.Clone(targetLabels), bucket)
	for _, f := range known {
		labels = append(labels, f.labels...)
	}
	literals := literals(t)
	for where, expr := range expressions(t) {
		for _, name := range metricName.FindAllString(expr, -1) {
			if _, ok := known[name]; !ok && known[suffix.ReplaceAllString(name, "")].kind != "histogram" {
				t.Errorf("%s: there is no metric %s", where, name)
			}
		}
		for _, group := range grouping.FindAllStringSubmatch(expr, -1) {
			for _, label := range strings.FieldsFunc(group[1], func(r rune) bool { return r == ',' || r == ' ' }) {
				if !slices.Contains(labels, label) {
					t.Errorf("%s: no metric has a label %s", where, label)
				}
			}
		}
		for _, s := range selector.FindAllStringSubmatch(expr, -1) {
			for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
				if slices.Contains(targetLabels, m[1]) {
					continue
				}
				if !slices.Contains(known[suffix.ReplaceAllString(s[1], "")].labels, m[1]) {
					t.Errorf("%s: %s has no label %s", where, s[1], m[1])
				}
				for _, value := range strings.Split(m[3], "|") {
					if !strings.HasPrefix(value, "$") && !strings.Contains(literals, `"`+value+`"`) {
						t.Errorf("%s: %s is never %q", where, m[1], value)
					}
				}
			}
		}
	}
}

var comment = regexp.MustCompile(`(?m)(^|\s)//.*$`)

// literals is the source of the program without its comments.
func literals(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	for _, dir := range []string{"bpf", "cmd", "probe", "submit"} {
		err := filepath.WalkDir(filepath.Join("../..", dir), func(path string, _ fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				b.Write(comment.ReplaceAll(read(t, path), nil))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// A rule is recorded only if something needs it.
func TestRecordedIsUsed(t *testing.T) {
	used, made := make(map[string]bool), make(map[string]bool)
	for _, expr := range expressions(t) {
		for _, name := range recorded.FindAllString(expr, -1) {
			used[name] = true
		}
	}
	for _, file := range []string{"rules.yml", "expected.yml"} {
		for _, r := range rules(t, file) {
			made[r.Record] = true
		}
	}
	if diff := cmp.Diff(made, used); diff != "" {
		t.Errorf("recorded (-made +used):\n%s", diff)
	}
}

// The examples agree on the devices that there are.
func TestScrapedAreExpected(t *testing.T) {
	type group struct{ Labels map[string]string }
	config := parse[struct {
		ScrapeConfigs []struct {
			StaticConfigs []group `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}](t, "prometheus.yml")
	var scraped, expected []string
	for _, g := range append(config.ScrapeConfigs[0].StaticConfigs, parse[[]group](t, "fleet.yml")...) {
		scraped = append(scraped, g.Labels["device"])
	}
	for _, r := range rules(t, "expected.yml") {
		expected = append(expected, r.Labels["device"])
	}
	if diff := cmp.Diff(expected, scraped); diff != "" {
		t.Errorf("devices (-expected +scraped):\n%s", diff)
	}
}
