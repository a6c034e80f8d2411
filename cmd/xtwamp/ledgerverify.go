// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/submit/doublezero"
)

func newLedgerCommand(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ledger",
		Short: "Look at the ledger",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newVerifyCommand(e))
	return cmd
}

func newVerifyCommand(e env) *cobra.Command {
	var v verification
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare ledger accounts with the store",
		Long: `Compare the ledger accounts of all links with the stored samples, for each
epoch from which there are any: what is missing, there twice, at the
wrong index, or none of our samples, and why zeros are zeros. It only reads, and
needs no key. Samples behind the end of the present epoch's account wait.

The samples come from the running daemon, or with --store from the file of a
stopped one. Exit code 0: all equal; 1: something differs; 2: it could not be
compared.`,
		Example: `  xtwamp ledger verify --config /etc/xtwamp/xtwamp.yml
  xtwamp ledger verify --path ams-lon --json
  xtwamp ledger verify --store /var/lib/xtwamp/samples.db`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			reports, err := v.run(cmd.Context(), e)
			if err != nil {
				return usage(err)
			}
			if err := v.print(e.stdout, reports); err != nil {
				return usage(err)
			}
			if slices.ContainsFunc(reports, func(r doublezero.Report) bool { return !r.Equal() }) {
				return &exitError{code: 1}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&v.config, "config", "/etc/xtwamp/xtwamp.yml", "configuration file: device, program and endpoints")
	v.addFlags(cmd)
	f.StringVar(&v.store, "store", "", "read this store file instead of asking a daemon")
	f.StringVar(&v.path, "path", "", "only this path")
	f.BoolVar(&v.json, "json", false, "print JSON")
	cmd.MarkFlagsMutuallyExclusive("store", "socket")
	cmd.MarkFlagsMutuallyExclusive("store", "url")
	return cmd
}

// verification is one run of ledger verify.
type verification struct {
	connection
	config, store, path string
	json                bool
	network             network // tests; zero: the system's
}

func (v verification) run(ctx context.Context, e env) ([]doublezero.Report, error) {
	hostname, _ := e.hostname()
	cfg, err := loadConfig(v.config, hostname)
	if err != nil {
		return nil, err
	}
	z := cfg.DoubleZero
	program, err := z.program()
	switch {
	case err != nil:
		return nil, err
	case len(z.RPCURLs) == 0 || z.Device == "" || program == doublezero.Pubkey{}:
		return nil, errors.New("doublezero.rpc_urls, doublezero.device and doublezero.network are needed in the configuration")
	}
	device, err := doublezero.ParsePubkey(z.Device)
	if err != nil {
		return nil, err
	}
	m, err := v.measured(ctx)
	if err != nil {
		return nil, err
	}
	defer m.close()
	links, err := v.links(m.paths)
	if err != nil {
		return nil, err
	}

	n := v.network
	if n.dial == nil {
		if n, err = networkIn(cfg.Namespaces.Ledger); err != nil {
			return nil, err
		}
	}
	pool, err := newPool(z, n, nil, nil, zap.NewNop())
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- pool.Run(ctx) }()
	reports, err := doublezero.Verify(ctx, doublezero.VerifyConfig{Endpoints: pool, Program: program, Device: device, Samples: m.samples}, links)
	stop()
	return reports, errors.Join(err, <-ended)
}

// links are those of the paths that are links of the network.
func (v verification) links(paths []store.Path) (links []doublezero.Link, err error) {
	for _, p := range paths {
		if !doublezero.Takes(p) || v.path != "" && p.Name != v.path {
			continue
		}
		l, err := doublezero.LinkOf(p)
		if err != nil {
			return nil, err
		}
		links = append(links, l)
	}
	if len(links) == 0 {
		return nil, errors.New("none of the stored paths is a link")
	}
	return links, nil
}

// measured is where samples are.
type measured struct {
	paths   []store.Path
	samples func(ctx context.Context, path string) iter.Seq2[store.Sample, error]
	close   func()
}

func (v verification) measured(ctx context.Context) (measured, error) {
	if v.store == "" {
		paths, err := v.pathsFromDaemon(ctx)
		return measured{paths, v.fromDaemon, func() {}}, err
	}
	log, err := openStoreFile(v.store)
	if err != nil {
		return measured{}, err
	}
	m := measured{close: func() { _ = log.Close() }}
	if m.paths, err = log.Paths(); err != nil {
		m.close()
		return measured{}, err
	}
	m.samples = func(ctx context.Context, path string) iter.Seq2[store.Sample, error] {
		return func(yield func(store.Sample, error) bool) {
			stopped := errors.New("enough")
			err := sampleQuery{path: path}.each(ctx, log, func(_ string, s store.Sample) error {
				if !yield(s, nil) {
					return stopped
				}
				return nil
			})
			if err != nil && !errors.Is(err, stopped) {
				yield(store.Sample{}, err)
			}
		}
	}
	return m, nil
}

// pathsFromDaemon asks a running daemon which paths its store has.
func (v verification) pathsFromDaemon(ctx context.Context) (paths []store.Path, err error) {
	body, err := v.get(ctx, "/api/v1/paths")
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var stored []storedPath
	if err := json.NewDecoder(body).Decode(&stored); err != nil {
		return nil, fmt.Errorf("read paths: %w", err)
	}
	for _, p := range stored {
		paths = append(paths, store.Path{Name: p.Path, Labels: p.Labels})
	}
	return paths, nil
}

// fromDaemon asks a running daemon.
func (v verification) fromDaemon(ctx context.Context, path string) iter.Seq2[store.Sample, error] {
	return func(yield func(store.Sample, error) bool) {
		body, err := v.get(ctx, "/api/v1/samples?"+sampleQuery{path: path}.values().Encode())
		if err != nil {
			yield(store.Sample{}, err)
			return
		}
		defer body.Close()
		scan := bufio.NewScanner(body)
		for scan.Scan() {
			if s, err := parseSample(scan.Bytes()); !yield(s, err) || err != nil {
				return
			}
		}
		if err := scan.Err(); err != nil {
			yield(store.Sample{}, err)
		}
	}
}

// parseSample reads what verifying needs of a sample in JSON.
func parseSample(line []byte) (store.Sample, error) {
	var j struct {
		Seq     uint64
		Time    time.Time
		Outcome string
		RTT     int64 `json:"rtt_ns"`
	}
	if err := json.Unmarshal(line, &j); err != nil {
		return store.Sample{}, fmt.Errorf("read sample: %w", err)
	}
	s := store.Sample{Seq: j.Seq, Time: j.Time, RTT: j.RTT}
	for o := store.OnTime; o <= store.Unknown; o++ {
		if o.String() == j.Outcome {
			s.Outcome = o
			return s, nil
		}
	}
	return store.Sample{}, fmt.Errorf("read sample: outcome %q", j.Outcome)
}

func (v verification) print(w io.Writer, reports []doublezero.Report) error {
	if v.json {
		return printJSON(w, reports)
	}
	table := tabwriter.NewWriter(w, 8, 0, 2, ' ', 0)
	fmt.Fprintln(table, "PATH\tEPOCH\tWRITTEN\tCHECKED\tMISSING\tDUPLICATE\tSHIFTED\tWRONG\tWAITING\tZEROS\tACCOUNT")
	for _, r := range reports {
		var zeros []string
		for _, cause := range slices.Sorted(maps.Keys(r.Zeros)) {
			zeros = append(zeros, fmt.Sprintf("%s %d", cause, r.Zeros[cause]))
		}
		account := r.Account.String()
		if !r.Exists {
			account += " (not there)"
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", r.Path, r.Epoch, r.Written, r.Checked, r.Missing,
			r.Twice, r.Shifted, r.Wrong, r.Waiting, dash(strings.Join(zeros, ", ")), account)
	}
	return table.Flush()
}
