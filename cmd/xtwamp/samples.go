// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/xtwamp/xtwamp/probe/store"
)

// sampleQuery selects stored samples.
type sampleQuery struct {
	path         string // "": all
	after        uint64 // numbers above this one, if set
	hasAfter     bool
	since, until time.Time // zero: no bound
	limit        uint64    // 0: no limit
}

// sampleLog is what reading samples needs of the store.
type sampleLog interface {
	Paths() ([]store.Path, error)
	Read(path store.PathID, from uint64, max int) ([]store.Sample, error)
}

// errNoPath says that the store has no such path.
var errNoPath = errors.New("no such path")

// each calls visit for the selected samples, path by path in sending order.
func (q sampleQuery) each(ctx context.Context, log sampleLog, visit func(path string, s store.Sample) error) error {
	const batch = 512
	paths, err := log.Paths()
	if err != nil {
		return err
	}
	found, given := q.path == "", uint64(0)
	for _, p := range paths {
		if q.path != "" && p.Name != q.path {
			continue
		}
		found = true
		from := uint64(0)
		if q.hasAfter {
			from = q.after + 1
		}
		for {
			if err := ctx.Err(); err != nil {
				return err
			}
			samples, err := log.Read(p.ID, from, batch)
			if err != nil {
				return err
			}
			if len(samples) == 0 {
				break
			}
			for _, s := range samples {
				if !q.within(s) {
					continue
				}
				if q.limit != 0 && given == q.limit {
					return nil
				}
				given++
				if err := visit(p.Name, s); err != nil {
					return err
				}
			}
			from = samples[len(samples)-1].Seq + 1
		}
	}
	if !found {
		return fmt.Errorf("%w: %q", errNoPath, q.path)
	}
	return nil
}

func (q sampleQuery) within(s store.Sample) bool {
	return (q.since.IsZero() || !s.Time.Before(q.since)) && (q.until.IsZero() || s.Time.Before(q.until))
}

func (q sampleQuery) values() url.Values {
	v := url.Values{}
	if q.path != "" {
		v.Set("path", q.path)
	}
	if q.hasAfter {
		v.Set("after", strconv.FormatUint(q.after, 10))
	}
	if !q.since.IsZero() {
		v.Set("since", q.since.Format(time.RFC3339Nano))
	}
	if !q.until.IsZero() {
		v.Set("until", q.until.Format(time.RFC3339Nano))
	}
	if q.limit != 0 {
		v.Set("limit", strconv.FormatUint(q.limit, 10))
	}
	return v
}

// parseSampleQuery reads a query from where get finds its parts.
func parseSampleQuery(get func(key string) string) (q sampleQuery, err error) {
	q.path = get("path")
	if s := get("after"); s != "" {
		if q.after, err = strconv.ParseUint(s, 10, 64); err != nil {
			return q, fmt.Errorf("after %q: expected the number of a sample", s)
		}
		q.hasAfter = true
	}
	if s := get("limit"); s != "" {
		if q.limit, err = strconv.ParseUint(s, 10, 64); err != nil {
			return q, fmt.Errorf("limit %q: expected a number", s)
		}
	}
	if q.since, err = parseMoment("since", get("since")); err != nil {
		return q, err
	}
	q.until, err = parseMoment("until", get("until"))
	return q, err
}

// parseMoment reads a time, or a duration before now.
func parseMoment(key, s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil {
		return time.Now().Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s %q: expected a time such as 2026-01-15T12:00:00Z, or how long ago, such as 10m", key, s)
	}
	return t, nil
}

// serveSamples answers with the selected samples as NDJSON.
func serveSamples(w http.ResponseWriter, r *http.Request, log sampleLog, device string) {
	q, err := parseSampleQuery(r.URL.Query().Get)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	var line []byte
	begun, count := false, 0
	control := http.NewResponseController(w)
	err = q.each(r.Context(), log, func(path string, s store.Sample) error {
		begun = true
		if count++; count%1024 == 0 {
			if err := control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
				return err
			}
		}
		line = append(s.AppendJSON(line[:0], device, path), '\n')
		_, err := w.Write(line)
		return err
	})
	switch {
	case err == nil:
	case begun:
		panic(http.ErrAbortHandler) // what was sent is not all: let the client see
	case errors.Is(err, errNoPath):
		http.Error(w, err.Error(), http.StatusNotFound)
	default:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// storedPath is a path of which the store has samples.
type storedPath struct {
	Path   string            `json:"path"`
	Labels map[string]string `json:"labels,omitempty"`
}

// servePaths answers with the stored paths as one JSON document.
func servePaths(w http.ResponseWriter, log sampleLog) {
	paths, err := log.Paths()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	stored := make([]storedPath, len(paths))
	for i, p := range paths {
		stored[i] = storedPath{p.Name, p.Labels}
	}
	serveJSON(w, stored)
}

// serveJSON answers with one JSON document.
func serveJSON(w http.ResponseWriter, document any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(document) // the client is gone
}

type samplesOptions struct {
	connection
	file                      string
	path, after, since, until string
	limit                     string
	asJSON                    bool
}

// connection says where a running daemon is reached.
type connection struct {
	socket, url string
}

func (c *connection) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.socket, "socket", defaultSocket, "control socket of the daemon")
	cmd.Flags().StringVar(&c.url, "url", "", "web listener of the daemon, such as http://192.0.2.1:9862, instead of the socket")
	cmd.MarkFlagsMutuallyExclusive("socket", "url")
}

// get asks the daemon; the caller closes the body.
func (c *connection) get(ctx context.Context, path string) (io.ReadCloser, error) {
	client, base := http.DefaultClient, strings.TrimSuffix(c.url, "/")
	if c.url == "" {
		base = "http://xtwamp"
		client = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", c.socket)
		}}}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("no daemon answers: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return nil, fmt.Errorf("the daemon says %s: %s", resp.Status, strings.TrimSpace(string(text)))
	}
	return resp.Body, nil
}

func newSamplesCommand(e env) *cobra.Command {
	var o samplesOptions
	cmd := &cobra.Command{
		Use:   "samples",
		Short: "Print stored samples",
		Long: `Print stored samples: those of the running daemon, or with --store those in the
file of a stopped one.`,
		Example: `  xtwamp samples --since 10m
  xtwamp samples --path ams-lon --after 4711 --json
  xtwamp samples --store /var/lib/xtwamp/samples.db --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := samples(cmd.Context(), e, o); err != nil {
				return usage(err)
			}
			return nil
		},
	}
	o.addFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.file, "store", "", "read this store file instead of asking a daemon")
	f.StringVar(&o.path, "path", "", "only this path")
	f.StringVar(&o.after, "after", "", "only samples with a number above this")
	f.StringVar(&o.since, "since", "", "only samples sent at or after this time, or within this duration")
	f.StringVar(&o.until, "until", "", "only samples sent before this time")
	f.StringVar(&o.limit, "limit", "", "at most this many samples")
	f.BoolVar(&o.asJSON, "json", false, "print one JSON object per line")
	cmd.MarkFlagsMutuallyExclusive("store", "socket")
	cmd.MarkFlagsMutuallyExclusive("store", "url")
	return cmd
}

func samples(ctx context.Context, e env, o samplesOptions) error {
	parts := map[string]string{"path": o.path, "after": o.after, "since": o.since, "until": o.until, "limit": o.limit}
	q, err := parseSampleQuery(func(key string) string { return parts[key] })
	if err != nil {
		return err
	}
	if o.file != "" {
		log, err := openStoreFile(o.file)
		if err != nil {
			return err
		}
		defer log.Close()
		return printSamples(e.stdout, o.asJSON, func(print func([]byte) error) error {
			var line []byte
			return q.each(ctx, log, func(path string, s store.Sample) error {
				line = s.AppendJSON(line[:0], "", path)
				return print(line)
			})
		})
	}
	body, err := o.get(ctx, "/api/v1/samples?"+q.values().Encode())
	if err != nil {
		return err
	}
	defer body.Close()
	return printSamples(e.stdout, o.asJSON, func(print func([]byte) error) error {
		scan := bufio.NewScanner(body)
		for scan.Scan() {
			if err := print(scan.Bytes()); err != nil {
				return err
			}
		}
		return scan.Err()
	})
}

// openStoreFile opens the store of a stopped daemon.
func openStoreFile(file string) (*store.Log, error) {
	log, err := store.OpenReadOnly(file, time.Second)
	if errors.Is(err, store.ErrLocked) {
		return nil, fmt.Errorf("%w: a running daemon holds it; ask the daemon by leaving out --store", err)
	}
	return log, err
}

// printSamples prints what each gives, as JSON lines or as a table.
func printSamples(w io.Writer, asJSON bool, each func(print func(line []byte) error) error) error {
	out := bufio.NewWriter(w)
	if asJSON {
		err := each(func(line []byte) error {
			_, err := out.Write(append(line, '\n'))
			return err
		})
		return errors.Join(err, out.Flush())
	}
	// The table is aligned a screenful at a time: it may be long.
	const screenful = 50
	table := tabwriter.NewWriter(out, 8, 0, 2, ' ', 0)
	rows := 0
	err := each(func(line []byte) error {
		if rows++; rows%screenful == 0 {
			if err := errors.Join(table.Flush(), out.Flush()); err != nil {
				return err
			}
		}
		if rows == 1 {
			fmt.Fprintln(table, "TIME\tPATH\tSEQ\tOUTCOME\tRTT\tDWELL\tTX\tRX\tTTL")
		}
		return tableRow(table, line)
	})
	return errors.Join(err, table.Flush(), out.Flush())
}

// tableRow prints one sample, given as JSON, for people.
func tableRow(w io.Writer, line []byte) error {
	var s struct {
		Path, Outcome, Reason, TX, RX string
		Time                          time.Time
		Seq                           uint64
		RTT                           *int64 `json:"rtt_ns"`
		Dwell                         *int64 `json:"dwell_ns"`
		TTL                           uint8
	}
	if err := json.Unmarshal(line, &s); err != nil {
		return fmt.Errorf("read sample: %w", err)
	}
	moment := "-"
	if !s.Time.IsZero() {
		moment = s.Time.Local().Format("2006-01-02 15:04:05.000000")
	}
	ns := func(v *int64) string {
		if v == nil {
			return "-"
		}
		return microseconds(*v)
	}
	if s.Reason != "" {
		s.Outcome += " (" + s.Reason + ")"
	}
	_, err := fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", moment, s.Path, s.Seq, s.Outcome, ns(s.RTT), ns(s.Dwell),
		dash(s.TX), dash(s.RX), dash(strings.TrimPrefix(strconv.Itoa(int(s.TTL)), "0")))
	return err
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
