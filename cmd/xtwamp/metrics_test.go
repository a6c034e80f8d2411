// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	dto "github.com/prometheus/client_model/go"
)

var update = flag.Bool("update", false, "rewrite golden files")

// families describes the metrics whose names begin alike without their values: name, type, labels, help.
func families(gathered []*dto.MetricFamily, prefix string) string {
	var b strings.Builder
	for _, f := range gathered {
		switch name := f.GetName(); {
		case !strings.HasPrefix(name, prefix):
			continue
		case name == "xtwamp_oldest_waiting_sample_timestamp_seconds":
			continue // there only while something waits
		}
		labels := make(map[string]bool)
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = true
			}
		}
		var names []string
		for l := range labels {
			names = append(names, l)
		}
		slices.Sort(names)
		fmt.Fprintf(&b, "%s %s {%s} %s\n", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(names, ","), f.GetHelp())
	}
	return b.String()
}

// checkGolden compares with a file of testdata, or writes it.
func checkGolden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("families (-want +got); after a meant change run go test -update:\n%s", diff)
	}
}

func TestMetrics(t *testing.T) {
	near, far := twoHosts(t)
	reflectingIn(t, far)
	// A path that is not sent, so that its families are there too, and a
	// reflector that has been asked.
	dir, file := switchConfig(t, "")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	edited := strings.Replace(string(text), "targets:\n", "targets:\n- {name: none, address: 192.0.2.1}\n- {name: self, address: 10.1.0.1}\n", 1)
	if err := os.WriteFile(file, []byte(edited), 0o600); err != nil {
		t.Fatal(err)
	}
	d, stop := runInside(t, near, file, seams{})
	// Something for each family that comes with its first value.
	_ = d.supervisor.guard("test", func() error { panic("so that panics are counted") })
	awaitState(t, "delivered samples and answered requests", func() bool {
		_, scrape := getFrom(t, dir, "/metrics")
		return metric(scrape, "xtwamp_samples_delivered_total") > 50 && metric(scrape, "xtwamp_reflector_packets_total", `result="answered"`) > 10
	})
	gathered, err := d.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	checkGolden(t, "metrics.golden", families(gathered, "xtwamp_"))
	problems, err := promlint.NewWithMetricFamilies(gathered).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("promlint: %s: %s", p.Metric, p.Text)
	}
	// Identity of the sink, from the outside.
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if n := len(d.supervisor.panicked()); n != 1 {
		t.Errorf("panics: %v", d.supervisor.panicked())
	}
}

func TestSeriesOfALostProbe(t *testing.T) {
	// Case 94: a lost probe is no round trip of 0.
	near, _ := twoHosts(t)
	dir, file := switchConfig(t, "")
	d, _ := runInside(t, near, file, seams{})
	awaitState(t, "lost probes", func() bool { return d.engine.Paths()[0].Lost > 5 })
	_, scrape := getFrom(t, dir, "/metrics")
	if n := metric(scrape, "xtwamp_round_trip_time_seconds_count"); n != 0 {
		t.Errorf("%v round trips of probes that were all lost", n)
	}
	if n := metric(scrape, "xtwamp_probes_lost_total", `path="four"`); n < 5 {
		t.Errorf("lost = %v, want at least 5", n)
	}
}
