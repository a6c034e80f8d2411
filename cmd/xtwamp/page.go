// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

//go:embed page.html
var pageText string

// pageTemplate is the status page. It has no script and nothing from elsewhere.
var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"links":  func(s *daemonStatus) []string { return s.answering() },
	"state":  stateText,
	"ago":    func(s *daemonStatus, t time.Time) string { return s.ago(t) },
	"span":   func(s *daemonStatus, t time.Time) string { return s.span(t) },
	"rtt":    shortRTT,
	"bytes":  func(n int64) string { return humanize.IBytes(uint64(n)) },
	"counts": counts,
	"chart":  chart,
	"share":  lossShare,
	"of":     percent,
	"sol":    func(lamports uint64) string { return fmt.Sprintf("%.4f", float64(lamports)/1e9) },
	"ms":     func(ns int64) string { return fmt.Sprintf("%.1f ms", float64(ns)/1e6) },
	"clock":  func(t time.Time) string { return t.Local().Format(time.TimeOnly) },
}).Parse(pageText))

// servePage answers with the status page.
func (d *daemon) servePage(w http.ResponseWriter, _ *http.Request) {
	s := d.status()
	var page bytes.Buffer
	if err := pageTemplate.Execute(&page, &s); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = page.WriteTo(w) // the client is gone
}

// shortRTT is a time in ns with three digits that count.
func shortRTT(ns int64) string {
	switch d := time.Duration(ns); {
	case ns == 0:
		return "-"
	case d < time.Millisecond:
		return fmt.Sprintf("%.3g µs", float64(ns)/1e3)
	case d < time.Second:
		return fmt.Sprintf("%.3g ms", float64(ns)/1e6)
	default:
		return fmt.Sprintf("%.3g s", d.Seconds())
	}
}

// lossShare is the loss of an hour.
func lossShare(h hourStatus) string { return percent(h.Lost, h.Answered+h.Lost) }

func percent(part, whole uint64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f %%", 100*float64(part)/float64(whole))
}

// The size of a chart. Each minute is four units wide.
const (
	minuteWidth = 4
	chartWidth  = minuteWidth * historyMinutes
	chartHeight = 36
)

// chart draws the last hour of a path: the median of each minute as a line, the way up to its maximum as a band, minutes with loss as red
// ground. The scale ends somewhat above the greatest median, so that one slow reply does not flatten the rest.
func chart(path string, h hourStatus) template.HTML {
	least, most := int64(0), int64(0)
	for _, v := range h.Median {
		if v > 0 && (least == 0 || v < least) {
			least = v
		}
		most = max(most, v)
	}
	bottom, top := float64(least)*0.9, float64(most)*1.2
	y := func(ns int64) float64 {
		if top <= bottom {
			return chartHeight
		}
		return chartHeight - chartHeight*min(1, max(0, (float64(ns)-bottom)/(top-bottom)))
	}
	var lost, band, line strings.Builder
	pen := "M"
	for i, median := range h.Median {
		x := i * minuteWidth
		if h.LostIn[i] > 0 {
			fmt.Fprintf(&lost, "M%d 0h%dv%dh-%dz", x, minuteWidth, chartHeight, minuteWidth)
		}
		if median == 0 {
			pen = "M"
			continue
		}
		low, high := y(median), y(h.Most[i])
		fmt.Fprintf(&band, "M%d %.1fh%dv%.1fh-%dz", x, high, minuteWidth, low-high, minuteWidth)
		fmt.Fprintf(&line, "%s%d %.1fh%d", pen, x, low, minuteWidth)
		pen = "L"
	}
	label := fmt.Sprintf("RTT of %s in the last hour: median %s, 99th percentile %s, loss %s", path, shortRTT(h.P50), shortRTT(h.P99), lossShare(h))
	return template.HTML(fmt.Sprintf(`<svg class="chart" role="img" viewBox="0 0 %d %d" preserveAspectRatio="none" aria-label="%s">`+
		`<path class="lost" d="%s"/><path class="band" d="%s"/><path class="line" d="%s"/></svg>`,
		chartWidth, chartHeight, template.HTMLEscapeString(label), &lost, &band, &line))
}
