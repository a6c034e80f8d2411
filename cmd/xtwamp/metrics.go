// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/probe"
	"github.com/xtwamp/xtwamp/probe/store"
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("xtwamp_"+name, help, labels, nil)
}

// What is read when it is scraped.
var (
	descBuildInfo     = desc("build_info", "What is running; always 1.", "version", "commit", "goversion")
	descPathInfo      = desc("path_info", "What a path is; always 1.", "path", "target", "interface", "profile", "dscp")
	descSent          = desc("probes_sent_total", "Probes transmitted.", "path")
	descReceived      = desc("probes_received_total", "Probes answered within timeout and late window.", "path")
	descLost          = desc("probes_lost_total", "Probes not answered by the end of the late window.", "path")
	descLate          = desc("probes_late_total", "Probes answered after the timeout, within the late window.", "path")
	descUnknown       = desc("probes_unknown_total", "Probes whose outcome cannot be told.", "path")
	descDuplicates    = desc("probes_duplicates_total", "Replies beyond the first to one probe.", "path")
	descReordered     = desc("probes_reordered_total", "Replies that came after the reply to a later probe (RFC 4737).", "path")
	descNotSent       = desc("probes_not_sent_total", "Probes that could not be transmitted.", "path", "reason")
	descSkipped       = desc("probes_skipped_total", "Moments of the schedule left out because the process did not run.", "path")
	descLastReply     = desc("last_reply_timestamp_seconds", "When the last reply came in.", "path")
	descTimestamps    = desc("timestamps_total", "Time stamps of probes (tx) and replies (rx) by where they were taken.", "interface", "side", "source")
	descAttach        = desc("attach_info", "How far up the attach ladder an interface got; always 1.", "interface", "hook", "mode", "refused")
	descDatapath      = desc("datapath_packets_total", "Packets by verdict of the kernel half.", "verdict")
	descReflector     = desc("reflector_packets_total", "Packets that reached the reflector, in mode socket also those that the kernel passed on.", "interface", "mode", "result")
	descPanics        = desc("panics_total", "Panics that were caught.", "component")
	descRecorded      = desc("store_samples_recorded_total", "Samples committed to the store.")
	descStoreBytes    = desc("store_bytes", "Size of the store file.")
	descStoreWritten  = desc("store_written_bytes_total", "Bytes written to the store file.")
	descStoreOldest   = desc("store_oldest_sample_timestamp_seconds", "When the oldest sample of the store was sent.")
	descStoreDiskFull = desc("store_disk_full", "1 if less than store.min_free_bytes is free, so that the store file cannot grow.")
	descStoreDegraded = desc("store_degraded", "1 for the reason why samples stay in memory now, else 0.", "reason")
	descOffered       = desc("samples_offered_total", "Samples committed since the sink was enabled.", "sink")
	descDelivered     = desc("samples_delivered_total", "Samples that the sink took.", "sink")
	descWaiting       = desc("samples_waiting", "Samples that the sink has still to take.", "sink")
	descDropped       = desc("samples_dropped_total", "Samples that the sink will never get.", "sink", "reason")
	descOldestWaiting = desc("oldest_waiting_sample_timestamp_seconds", "When the oldest sample that waits was sent.", "sink")
	descAttempts      = desc("submit_attempts_total", "Batches handed to the sink.", "sink", "result")
	descLastSuccess   = desc("submit_last_success_timestamp_seconds", "When the sink last took a sample.", "sink")
	descReloadOK      = desc("config_last_reload_successful", "1 unless the last reload of the configuration failed.")
	descReloadTime    = desc("config_last_reload_success_timestamp_seconds", "When the configuration was last read without a fault.")
	descLoopOverdue   = desc("loop_overdue", "1 if a loop has missed its deadline.", "loop")
	descClockSync     = desc("clock_synchronized", "1 if the kernel says that the wall clock is synchronized.")
	descClockError    = desc("clock_error_seconds", "Estimated error of the wall clock.")
	descClockSteps    = desc("clock_steps_total", "Steps of the wall clock that were seen.")
	descUnmatched     = desc("unmatched_packets_total", "Packets on probe sockets that answer no probe in flight.")
	descTime          = desc("time_seconds", "Time of the clock that all times here are of.")
	descCollectErrors = desc("collection_errors_total", "Sources of metrics that could not be read.")
	degradedReasons   = []string{"no_space", "corrupt", "failed", "not_open"}
	memoryFull        = "memory_full"
	storeSink         = "store"
)

// newRegistry makes a registry of its own for d.
func (d *daemon) newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		&collector{daemon: d}, d.histograms)
	return r
}

// collector reads everything but histograms when it is scraped.
type collector struct {
	daemon *daemon
	errors atomic.Uint64
}

// Describe says nothing: what there is depends on what has happened
// (prometheus.Collector).
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		send(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) { send(d, prometheus.GaugeValue, v, labels...) }

	gauge(descBuildInfo, 1, version, commit, runtime.Version())
	moment(gauge, descTime, time.Now())
	c.collectProbe(counter, gauge)
	c.collectDiscovery(gauge)
	c.collectStore(counter, gauge)
	c.collectLedger(counter, gauge)
	d := c.daemon
	if r := d.reflector.Load(); r != nil {
		counts, err := r.Counts()
		if err != nil {
			c.failed("the reflector's kernel counters", err)
		}
		for _, n := range counts {
			counter(descReflector, n.Count, n.Interface, n.Mode.String(), n.Result)
		}
		for _, a := range r.Attachments() {
			gauge(descAttach, 1, a.Interface, hookName(a.Step), "reflector", a.Refusals())
		}
	}
	panics := d.supervisor.panicked()
	if log := d.store.Load(); log != nil && log.Panics() > 0 {
		panics["store"] += log.Panics()
	}
	for component, n := range panics {
		counter(descPanics, n, component)
	}
	successful, at := d.reloads.status()
	gauge(descReloadOK, truth(successful))
	gauge(descReloadTime, float64(at.UnixNano())/1e9)
	for _, l := range d.loops.status() {
		gauge(descLoopOverdue, truth(l.State != loopRuns), l.Name)
	}
	counter(descCollectErrors, c.errors.Load())
}

type (
	counterFunc func(d *prometheus.Desc, v uint64, labels ...string)
	gaugeFunc   func(d *prometheus.Desc, v float64, labels ...string)
)

func (c *collector) collectProbe(counter counterFunc, gauge gaugeFunc) {
	engine := c.daemon.engine
	stats := engine.Stats()
	wall := func(mono int64) float64 { return float64(mono+stats.Clock.Offset) / 1e9 }
	for _, p := range engine.Paths() {
		name := p.Target.Name
		iface, address := p.Target.Interface, p.Target.Address
		if p.Flow != nil {
			iface, address = p.Flow.Interface, p.Flow.Remote.String()
		}
		gauge(descPathInfo, 1, name, address, iface, p.Target.Profile, strconv.Itoa(int(p.Target.DSCP)))
		counter(descSent, p.Sent, name)
		counter(descReceived, p.Received, name)
		counter(descLost, p.Lost, name)
		counter(descLate, p.Late, name)
		counter(descUnknown, p.Unknown, name)
		counter(descDuplicates, p.Duplicates, name)
		counter(descReordered, p.Reordered, name)
		for reason, n := range p.NotSent {
			counter(descNotSent, n, name, reason.String())
		}
		counter(descSkipped, p.Skipped, name)
		if p.LastReply != 0 {
			gauge(descLastReply, wall(p.LastReply), name)
		}
	}
	for _, s := range stats.Stamps {
		side := "rx"
		if s.TX {
			side = "tx"
		}
		counter(descTimestamps, s.Count, s.Interface, side, s.Source.String())
	}
	for _, a := range stats.Attachments {
		mode := "bpf"
		if a.Step == probe.StepSocket {
			mode = "socket"
		}
		gauge(descAttach, 1, a.Interface, hookName(a.Step), mode, a.Refusals())
	}
	verdicts, err := engine.DatapathCounters()
	if err != nil {
		c.failed("kernel counters", err)
	}
	for verdict, n := range verdicts {
		counter(descDatapath, n, verdict)
	}
	counter(descUnmatched, stats.Unmatched)
	counter(descClockSteps, stats.ClockSteps)
	gauge(descClockSync, truth(stats.Clock.Synchronized))
	gauge(descClockError, stats.Clock.Error.Seconds())
}

// hookName is what is attached on a step; "none" on the socket.
func hookName(s probe.Step) string {
	if s == probe.StepSocket {
		return "none"
	}
	return s.String()
}

func (c *collector) collectStore(counter counterFunc, gauge gaugeFunc) {
	d := c.daemon
	why := "not_open"
	if r := d.recorder.Load(); r != nil {
		why = r.Degraded()
	}
	for _, reason := range degradedReasons {
		gauge(descStoreDegraded, truth(reason == why), reason)
	}
	counter(descDropped, d.ring.Dropped(), storeSink, memoryFull)
	log := d.store.Load()
	if log == nil {
		return
	}
	if s, err := log.Status(); err != nil {
		c.failed("store status", err)
	} else {
		counter(descRecorded, s.Recorded)
		gauge(descStoreBytes, float64(s.Bytes))
		counter(descStoreWritten, uint64(s.WrittenBytes))
		moment(gauge, descStoreOldest, s.Oldest)
		gauge(descStoreDiskFull, truth(s.DiskFull))
	}
	for _, sink := range d.sinks() {
		name := sink.name
		totals, err := log.Totals(name)
		if err != nil {
			c.failed("totals of sink "+name, err)
			continue
		}
		counter(descOffered, totals.Offered, name)
		counter(descDelivered, totals.Delivered, name)
		gauge(descWaiting, float64(totals.Waiting), name)
		dropped := make(map[string]uint64) // from 0 on: many are dropped at once
		for _, reason := range store.DropReasons() {
			dropped[reason] = 0
		}
		maps.Copy(dropped, totals.Dropped)
		for reason, n := range dropped {
			counter(descDropped, n, name, reason)
		}
		moment(gauge, descOldestWaiting, totals.OldestWaiting, name)
		stats := sink.submitter.Stats()
		counter(descAttempts, stats.OK, name, "ok")
		counter(descAttempts, stats.Refused, name, "refused")
		counter(descAttempts, stats.Failed, name, "failed")
		moment(gauge, descLastSuccess, stats.LastSuccess, name)
	}
}

// moment exports a time, and nothing while there is none.
func moment(gauge gaugeFunc, d *prometheus.Desc, t time.Time, labels ...string) {
	if !t.IsZero() {
		gauge(d, float64(t.UnixNano())/1e9, labels...)
	}
}

func (c *collector) failed(what string, err error) {
	c.errors.Add(1)
	c.daemon.log.Debug("cannot read metrics", zap.String("of", what), zap.Error(err))
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
