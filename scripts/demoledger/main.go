// SPDX-License-Identifier: Apache-2.0

// Demoledger runs a ledger for the demo on real addresses:
//
//	demoledger -listen 127.0.0.1:8899 -listen 127.0.0.1:8898 -control 127.0.0.1:8880 \
//	  -device ams=ams.json -device lon=lon.json -link ams:lon:172.16.1.0/31
//
// Each device gets a key pair with money, in a file that is made if it is not there. On standard output it says what it has, one thing a
// line ("device NAME PUBKEY", "link NAME PUBKEY", "program NAME PUBKEY", "genesis HASH"), and last "ready". At the control address,
//
//	POST /fault?kind=blackhole&address=127.0.0.1:8899&for=10s   injects a fault: also method (repeatable), skip, calls, after,
//	                                                            slots, code, message, wait
//	POST /heal, /halt, /resume, /rollover, /fork?slots=N, /clock?offset=DURATION
//	GET  /                                                      says as JSON what the ledger has seen
package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/xtwamp/xtwamp/submit/doublezero/ledgertest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "demoledger:", err)
		os.Exit(1)
	}
}

// balance is what each key gets.
const balance = 100_000_000_000

func run(ctx context.Context, args []string, stdout io.Writer) (err error) {
	var o ledgertest.Options
	var listen, devices, links []string
	var control string
	flags := flag.NewFlagSet("demoledger", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // Parse returns what is wrong
	list := func(to *[]string, name, usage string) {
		flags.Func(name, usage, func(s string) error { *to = append(*to, s); return nil })
	}
	list(&listen, "listen", "`address` to answer at (repeatable)")
	list(&devices, "device", "`NAME=FILE`: device and its key pair (repeatable)")
	list(&links, "link", "`A:Z:PREFIX`: link between two devices (repeatable)")
	flags.StringVar(&control, "control", "", "`address` for faults")
	flags.DurationVar(&o.SlotTime, "slot-time", 400*time.Millisecond, "length of a slot")
	flags.Uint64Var(&o.Finality, "finality", 32, "slots until a block is finalized")
	flags.Uint64Var(&o.SlotsPerEpoch, "slots-per-epoch", 432_000, "slots of an epoch")
	flags.Uint64Var(&o.Epoch, "epoch", 194, "epoch to start in")
	flags.Uint64Var(&o.SlotIndex, "slot-index", 1000, "slot of that epoch to start at")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if len(listen) == 0 || control == "" || flags.NArg() > 0 {
		return errors.New("usage: demoledger -listen ADDRESS -control ADDRESS [-device NAME=FILE] [-link A:Z:PREFIX]")
	}

	l := ledgertest.New(o)
	defer l.Close()
	for _, d := range devices {
		name, file, ok := strings.Cut(d, "=")
		if !ok {
			return fmt.Errorf("device %q: expected NAME=FILE", d)
		}
		key, err := keyPair(file)
		if err != nil {
			return fmt.Errorf("device %s: %w", name, err)
		}
		agent := ledgertest.PubkeyOf(key)
		l.Fund(agent, balance)
		l.PutDevice(pubkey(name), ledgertest.Device{Status: ledgertest.DeviceActivated, Code: name, Publisher: agent})
		fmt.Fprintln(stdout, "device", name, pubkey(name))
	}
	for _, k := range links {
		parts := strings.SplitN(k, ":", 3)
		if len(parts) != 3 {
			return fmt.Errorf("link %q: expected A:Z:PREFIX", k)
		}
		tunnel, err := netip.ParsePrefix(parts[2])
		if err != nil || !tunnel.Addr().Is4() {
			return fmt.Errorf("link %q: expected an IPv4 prefix", k)
		}
		code := parts[0] + ":" + parts[1]
		l.PutLink(pubkey(k), ledgertest.Link{
			Status: ledgertest.LinkActivated, Code: code, SideA: pubkey(parts[0]), SideZ: pubkey(parts[1]), Tunnel: tunnel,
		})
		fmt.Fprintln(stdout, "link", code, pubkey(k))
	}
	fmt.Fprintln(stdout, "program telemetry", l.Telemetry())
	fmt.Fprintln(stdout, "program serviceability", l.Serviceability())
	fmt.Fprintln(stdout, "genesis", l.Genesis())

	for _, a := range listen {
		ln, err := net.Listen("tcp", a)
		if err != nil {
			return err
		}
		l.Serve(ln, ledgertest.Address{Name: a})
	}
	ln, err := net.Listen("tcp", control)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: controls(l, listen), ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	fmt.Fprintln(stdout, "ready")
	if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// pubkey makes an address out of a name.
func pubkey(name string) ledgertest.Pubkey { return sha256.Sum256([]byte(name)) }

// keyPair reads a key pair, a JSON array of 64 numbers, or makes one.
func keyPair(file string) (ed25519.PrivateKey, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, err
		}
		numbers := strings.Fields(strings.Trim(fmt.Sprint([]byte(key)), "[]"))
		return key, os.WriteFile(file, []byte("["+strings.Join(numbers, ",")+"]\n"), 0o600)
	}
	if err != nil {
		return nil, err
	}
	var numbers [ed25519.PrivateKeySize]uint8
	if err := json.Unmarshal(b, &numbers); err != nil {
		return nil, fmt.Errorf("%s is no key pair", file) // err would quote it
	}
	key := ed25519.NewKeyFromSeed(numbers[:ed25519.SeedSize])
	if !slices.Equal(key, numbers[:]) {
		return nil, fmt.Errorf("%s is no key pair", file)
	}
	return key, nil
}

// controls serves the control address.
func controls(l *ledgertest.Ledger, addresses []string) http.Handler {
	mux := http.NewServeMux()
	post := func(name string, do func(url.Values) error) {
		mux.HandleFunc("POST /"+name, func(w http.ResponseWriter, r *http.Request) {
			if err := do(r.URL.Query()); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			w.WriteHeader(http.StatusNoContent)
		})
	}
	simple := func(name string, do func()) {
		post(name, func(url.Values) error { do(); return nil })
	}
	post("fault", func(q url.Values) error {
		f, err := parseFault(q, addresses)
		if err == nil {
			l.Inject(f)
		}
		return err
	})
	simple("heal", l.Heal)
	simple("halt", l.Halt)
	simple("resume", l.Resume)
	simple("rollover", l.Rollover)
	post("fork", func(q url.Values) error {
		n, err := strconv.ParseUint(q.Get("slots"), 10, 64)
		if err == nil {
			l.DropFork(n)
		}
		return err
	})
	post("clock", func(q url.Values) error {
		d, err := time.ParseDuration(q.Get("offset"))
		if err == nil {
			l.SetClockOffset(d)
		}
		return err
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(summary(l)) // the client may have left
	})
	return mux
}

// parseFault reads a fault out of a query.
func parseFault(q url.Values, addresses []string) (f ledgertest.Fault, err error) {
	f = ledgertest.Fault{
		Kind: ledgertest.Kind(q.Get("kind")), Address: q.Get("address"), Methods: q["method"], After: q.Get("after") == "true",
		Message: q.Get("message"),
	}
	if !f.Kind.Known() {
		return f, fmt.Errorf("no such kind of fault: %q", f.Kind)
	}
	if f.Address != "" && !slices.Contains(addresses, f.Address) {
		return f, fmt.Errorf("no such address: %q", f.Address)
	}
	number := func(name string, to *int) {
		if s := q.Get(name); s != "" && err == nil {
			*to, err = strconv.Atoi(s)
		}
	}
	duration := func(name string, to *time.Duration) {
		if s := q.Get(name); s != "" && err == nil {
			*to, err = time.ParseDuration(s)
		}
	}
	var slots int
	number("skip", &f.Skip)
	number("calls", &f.Calls)
	number("code", &f.Code)
	number("slots", &slots)
	duration("for", &f.For)
	duration("wait", &f.Wait)
	f.Slots = int64(slots)
	return f, err
}

// state is what the control address says about the ledger.
type state struct {
	Slot         uint64                    `json:"slot"`
	Epoch        uint64                    `json:"epoch"`
	Sends        int                       `json:"sends"`
	Transactions int                       `json:"transactions"`
	Requests     map[string]map[string]int `json:"requests"` // by address and method
	Samples      map[string]int            `json:"samples"`  // by account
}

func summary(l *ledgertest.Ledger) state {
	s := state{
		Slot: l.Slot(), Epoch: l.Epoch(), Sends: len(l.Sends()), Transactions: len(l.Transactions()),
		Requests: make(map[string]map[string]int), Samples: make(map[string]int),
	}
	for _, r := range l.Requests() {
		if s.Requests[r.Address] == nil {
			s.Requests[r.Address] = make(map[string]int)
		}
		s.Requests[r.Address][r.Method]++
	}
	for key, samples := range l.AllSamples() {
		s.Samples[key.String()] = len(samples.Values)
	}
	return s
}
