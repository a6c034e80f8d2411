// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/xtwamp/xtwamp/probe/target"
	"github.com/xtwamp/xtwamp/submit/doublezero"
	"github.com/xtwamp/xtwamp/submit/endpoint"
)

// doublezeroConfig says where this device is in the DoubleZero network.
type doublezeroConfig struct {
	Network               string   `yaml:"network"`
	RPCURLs               []rpcURL `yaml:"rpc_urls"`
	ServiceabilityProgram string   `yaml:"serviceability_program"`
	TelemetryProgram      string   `yaml:"telemetry_program"`
	Device                string   `yaml:"device"`
	KeypairFile           string   `yaml:"keypair_file"`
}

// ledgerConfig says how samples get into the ledger.
type ledgerConfig struct {
	Enabled        bool     `yaml:"enabled"`
	Interval       duration `yaml:"interval"`
	SampleInterval duration `yaml:"sample_interval"`
	FillGaps       bool     `yaml:"fill_gaps"`
	Backfill       bool     `yaml:"backfill"`
	MaxConcurrency int      `yaml:"max_concurrency"`
}

func defaultLedger() ledgerConfig {
	return ledgerConfig{
		Interval: duration(time.Minute), SampleInterval: duration(10 * time.Second), FillGaps: true, MaxConcurrency: 10,
	}
}

// rpcURL is one way to the ledger: a URL, or a URL and addresses beside those that its name gives.
type rpcURL struct {
	URL       string   `yaml:"url"`
	Addresses []string `yaml:"addresses,omitempty"`
}

func (u *rpcURL) UnmarshalYAML(n ast.Node) error {
	if text, ok := scalar(n); ok {
		*u = rpcURL{URL: text}
		return nil
	}
	type plain rpcURL // without this method
	if err := yaml.NodeToValue(n, (*plain)(u), yaml.Strict()); err != nil {
		return fault(n, "expected a URL, or url and addresses")
	}
	return nil
}

// MarshalYAML leaves out what may be secret: path, query and user.
func (u rpcURL) MarshalYAML() (any, error) {
	masked := u.URL
	if p, err := url.Parse(u.URL); err != nil {
		masked = "..."
	} else if p.User != nil || strings.Trim(p.Path, "/") != "" || p.RawQuery != "" {
		masked = p.Scheme + "://" + p.Host + "/..."
	}
	if len(u.Addresses) == 0 {
		return masked, nil
	}
	return yaml.MapSlice{{Key: "url", Value: masked}, {Key: "addresses", Value: u.Addresses}}, nil
}

// endpoint is u as the pool wants it. Its errors quote nothing of the URL.
func (u rpcURL) endpoint() (endpoint.URL, error) {
	e := endpoint.URL{URL: u.URL}
	p, err := url.Parse(u.URL)
	if err != nil || p.Scheme != "http" && p.Scheme != "https" || p.Hostname() == "" {
		return e, fmt.Errorf("expected a URL like https://ledger.example.net/path")
	}
	for _, text := range u.Addresses {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return e, fmt.Errorf("%q: expected an IP address", text)
		}
		e.Addresses = append(e.Addresses, a)
	}
	return e, nil
}

// program is the id of the telemetry program.
func (c doublezeroConfig) program() (doublezero.Pubkey, error) {
	if c.TelemetryProgram != "" {
		return doublezero.ParsePubkey(c.TelemetryProgram)
	}
	p, _ := doublezero.TelemetryProgram(c.Network)
	return p, nil
}

// serviceability is the id of the program that keeps devices and links.
func (c doublezeroConfig) serviceability() (doublezero.Pubkey, error) {
	if c.ServiceabilityProgram != "" {
		return doublezero.ParsePubkey(c.ServiceabilityProgram)
	}
	p, _ := doublezero.ServiceabilityProgram(c.Network)
	return p, nil
}

// usesLedger reports whether anything is to be asked of the ledger, or written to it.
func (c *config) usesLedger() bool {
	return c.Discovery.DoubleZero.Enabled || c.Submit.DoubleZero.Enabled
}

func (c *config) checkLedger(bad func(key, format string, args ...any)) {
	z, l := c.DoubleZero, c.Submit.DoubleZero
	if z.Network != "" && !slices.Contains(doublezero.Networks(), z.Network) {
		bad("doublezero.network", "%q: expected one of %s", z.Network, strings.Join(doublezero.Networks(), ", "))
	}
	for i, u := range z.RPCURLs {
		if _, err := u.endpoint(); err != nil {
			bad(fmt.Sprintf("doublezero.rpc_urls[%d]", i), "%v", err)
		}
	}
	if _, err := z.program(); err != nil {
		bad("doublezero.telemetry_program", "%v", err)
	}
	if _, err := z.serviceability(); err != nil {
		bad("doublezero.serviceability_program", "%v", err)
	}
	if z.Device != "" {
		if _, err := doublezero.ParsePubkey(z.Device); err != nil {
			bad("doublezero.device", "%v", err)
		}
	}
	missing := func(key, expected, user string, is bool) {
		if is {
			bad(key, "empty: expected %s, as %s is enabled", expected, user)
		}
	}
	discovers, submits := "discovery.doublezero", "submit.doublezero"
	if c.usesLedger() {
		user := submits
		if !l.Enabled {
			user = discovers
		}
		missing("doublezero.rpc_urls", "the URLs of the ledger", user, len(z.RPCURLs) == 0)
		if c.Discovery.DoubleZero.Enabled {
			missing("doublezero.network", "a network, or doublezero.serviceability_program", discovers, z.Network == "" && z.ServiceabilityProgram == "")
		}
		if l.Enabled {
			missing("doublezero.network", "a network, or doublezero.telemetry_program", submits, z.Network == "" && z.TelemetryProgram == "")
		}
		missing("doublezero.device", "the public key of this device", user, z.Device == "")
	}
	if !l.Enabled {
		return
	}
	missing("doublezero.keypair_file", "the file of the key pair that signs and pays", submits, z.KeypairFile == "")
	if i := time.Duration(l.Interval); i < time.Second || i > time.Hour {
		bad("submit.doublezero.interval", "%s: expected 1s to 1h", i)
	}
	if l.MaxConcurrency < 1 || l.MaxConcurrency > 100 {
		bad("submit.doublezero.max_concurrency", "%d: expected 1 to 100", l.MaxConcurrency)
	}
	if i := time.Duration(l.SampleInterval); i < 100*time.Millisecond || i > time.Hour || i%time.Microsecond != 0 {
		bad("submit.doublezero.sample_interval", "%s: expected 100ms to 1h in whole microseconds", i)
	}
}

// checkLinks checks those of a list of targets, which stands at a key, that are links of the network.
func (c *config) checkLinks(at string, list []targetConfig, bad func(key, format string, args ...any)) {
	for i, tc := range list {
		link, target := tc.Labels[doublezero.LabelLink], tc.Labels[doublezero.LabelTarget]
		if link == "" && target == "" {
			continue
		}
		key := fmt.Sprintf("%s[%d].labels", at, i)
		for name, value := range map[string]string{doublezero.LabelLink: link, doublezero.LabelTarget: target} {
			if value == "" {
				bad(key, "%s: missing", name)
			} else if _, err := doublezero.ParsePubkey(value); err != nil {
				bad(key, "%s: %v", name, err)
			}
		}
		if t, err := c.target(tc); err == nil {
			c.checkLinkInterval(key, t.Interval, bad)
		}
	}
}

// checkLinkInterval checks that accounts can hold what is measured at an interval.
func (c *config) checkLinkInterval(key string, interval time.Duration, bad func(key, format string, args ...any)) {
	l := c.Submit.DoubleZero
	if !l.Enabled || interval <= 0 {
		return
	}
	switch every := time.Duration(l.SampleInterval); {
	case every%interval != 0:
		bad(key, "probe interval %s: expected submit.doublezero.sample_interval, %s, to be a whole multiple of it", interval, every)
	case !l.FillGaps && every != interval:
		bad(key, "probe interval %s: expected submit.doublezero.sample_interval, %s, to be the same, as fill_gaps is off", interval, every)
	}
}

// ledgerLabels are the labels of a target, with what the ledger has to know of a link.
func ledgerLabels(t target.Target) map[string]string {
	if t.Labels[doublezero.LabelLink] == "" {
		return t.Labels
	}
	labels := maps.Clone(t.Labels)
	labels[doublezero.LabelInterval] = t.Interval.String()
	return labels
}
