// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	dashboardFile  = "../grafana/xtwamp.json"
	variableSource = "${datasource}"
)

type panels struct {
	Panels []struct {
		Type, Title string
		Datasource  datasource
		Panels      []json.RawMessage // of a row that is collapsed
		Targets     []struct {
			RefID, Expr string
			Datasource  datasource
		}
	}
	Templating struct {
		List []struct {
			Name, Definition string
			Datasource       datasource
		}
	}
}

type datasource struct{ UID string }

func dashboard(t testing.TB) (p panels) {
	t.Helper()
	if err := json.Unmarshal(read(t, dashboardFile), &p); err != nil {
		t.Fatalf("%s: %v", dashboardFile, err)
	}
	return p
}

// labelValues are what labels are in the sample data; others are "x".
var labelValues = map[string][]string{
	"path":     {"ams-lon", "ams-fra"},
	"sink":     {"doublezero", "file"},
	"endpoint": {"https://one.example.net:443/192.0.2.11", "https://two.example.net:443/192.0.2.12"},
	"source":   {"static", "file", "doublezero"},
}

// sampled are the devices of the sample data: two, so that a join which takes one for the other is an error.
var sampled = []string{
	`device="ams-dz001",instance="192.0.2.1:9862",job="xtwamp"`,
	`device="lon-dz001",instance="192.0.2.2:9862",job="xtwamp"`,
}

// combine makes the label sets of a family.
func combine(labels []string) []string {
	sets := sampled
	for _, label := range labels {
		if label == "" {
			continue
		}
		values := labelValues[label]
		if values == nil {
			values = []string{"x"}
		}
		var more []string
		for _, set := range sets {
			for _, value := range values {
				more = append(more, fmt.Sprintf("%s,%s=%q", set, label, value))
			}
		}
		sets = more
	}
	return sets
}

// writeSamples writes what devices with all families of the golden files would have exported until an end, and a day before, in
// OpenMetrics' format.
func writeSamples(t *testing.T, file string, end time.Time) {
	t.Helper()
	var b strings.Builder
	all := families(t)
	all["up"] = family{kind: "gauge"}
	const step, last = 15 * time.Second, 20 * time.Minute
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f := all[name]
		for _, set := range combine(f.labels) {
			for _, day := range []time.Duration{24 * time.Hour, 0} {
				for ago := last; ago >= 0; ago -= step {
					at := end.Add(-day - ago).Unix()
					n := int(at % 1e6) // of a counter
					switch {
					case f.kind == "histogram":
						for i, le := range []string{"0.0005", "0.001", "+Inf"} {
							fmt.Fprintf(&b, "%s_bucket{%s,le=%q} %d %d\n", name, set, le, n*(i+1), at)
						}
						fmt.Fprintf(&b, "%s_sum{%s} %f %d\n%[1]s_count{%[2]s} %[5]d %[4]d\n", name, set, float64(n)/1000, at, n*3)
					case f.kind == "counter":
						fmt.Fprintf(&b, "%s{%s} %d %d\n", name, set, n, at)
					case strings.Contains(name, "time"):
						fmt.Fprintf(&b, "%s{%s} %d %d\n", name, set, at, at)
					default:
						fmt.Fprintf(&b, "%s{%s} 1 %d\n", name, set, at)
					}
				}
			}
		}
	}
	b.WriteString("# EOF\n")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// query is the values that Prometheus has for an expression at a time.
func query(t *testing.T, address, expr string, at time.Time) (values []float64) {
	t.Helper()
	q := url.Values{"query": {expr}, "time": {strconv.FormatInt(at.Unix(), 10)}}
	resp, err := http.Get("http://" + address + "/api/v1/query?" + q.Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	if answer.Status != "success" {
		t.Errorf("%s: %s", expr, answer.Error)
	}
	for _, r := range answer.Data.Result {
		v, err := strconv.ParseFloat(fmt.Sprint(r.Value[1]), 64)
		if err != nil {
			t.Fatalf("%s: %v", expr, err)
		}
		values = append(values, v)
	}
	return values
}

// Each query of the dashboard has an answer where all metrics of the program are.
func TestNoPanelIsEmpty(t *testing.T) {
	dir := t.TempDir()
	samples, data := filepath.Join(dir, "samples"), filepath.Join(dir, "data")
	end := time.Now().Truncate(time.Minute)
	writeSamples(t, samples, end)
	command(t, "", "promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet", samples, data)
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, []byte("scrape_configs: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	prometheus := func(t *testing.T) (address string) {
		return serve(t, "prometheus", "--config.file="+config, "--storage.tsdb.path="+data)
	}
	t.Run("record", func(t *testing.T) {
		address := prometheus(t)
		for _, day := range []time.Duration{24 * time.Hour, 0} {
			at := func(ago time.Duration) string { return strconv.FormatInt(end.Add(-day-ago).Unix(), 10) }
			command(t, "", "promtool", "tsdb", "create-blocks-from", "rules", "--url=http://"+address, "--output-dir="+data,
				"--eval-interval=1m", "--start="+at(10*time.Minute), "--end="+at(0), "rules.yml", "expected.yml")
		}
	})
	address := prometheus(t) // which knows what was recorded

	d := dashboard(t)
	names := []string{"__rate_interval"}
	for _, v := range d.Templating.List {
		names = append(names, v.Name)
		metric, label, ok := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(v.Definition, "label_values("), ")"), ", ")
		if !ok {
			continue // the source of data
		}
		if v.Datasource.UID != variableSource {
			t.Errorf("%s is asked of %q", v.Name, v.Datasource.UID)
		}
		if len(query(t, address, "count by ("+label+") ("+strings.ReplaceAll(metric, "$device", ".*")+")", end)) == 0 {
			t.Errorf("nothing to choose from for %s: %s", v.Name, v.Definition)
		}
	}
	if want := []string{"__rate_interval", "datasource", "device", "path"}; !slices.Equal(names, want) {
		t.Errorf("variables %v, want %v", names, want)
	}
	variables := strings.NewReplacer("$device", "ams-dz001|lon-dz001", "$path", "ams-lon|lon-ams", "$__rate_interval", "5m")
	for _, p := range d.Panels {
		if len(p.Targets) == 0 && p.Type != "row" {
			t.Errorf("%s: no query", p.Title)
		}
		if len(p.Panels) > 0 {
			t.Errorf("%s: saved while it was collapsed, its panels are where no test looks", p.Title)
		}
		for _, target := range p.Targets {
			if p.Datasource.UID != variableSource || target.Datasource != p.Datasource {
				t.Errorf("%s: its data are from %q and %q", p.Title, p.Datasource.UID, target.Datasource.UID)
			}
			expr := variables.Replace(target.Expr)
			values := query(t, address, expr, end)
			if len(slices.DeleteFunc(values, math.IsNaN)) == 0 {
				t.Errorf("%s: nothing for %s", p.Title, expr)
			}
		}
	}
}
