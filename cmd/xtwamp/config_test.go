// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
)

const referenceFile = "testdata/reference.yml"

func TestReferenceIsTheDefault(t *testing.T) {
	got, err := loadConfig(referenceFile, "host")
	if err != nil {
		t.Fatal(err)
	}
	want := defaultConfig("ams-dz001")
	want.Reflector.Allow, want.Discovery.Files = []string{}, []string{}
	want.DoubleZero.RPCURLs = []rpcURL{}
	want.Targets = []targetConfig{{
		Name: "ams-lon", Address: "172.16.0.1", Interface: "eth1", Source: "172.16.0.0",
		Labels: map[string]string{"circuit": "42"},
	}}
	if diff := cmp.Diff(want, *got); diff != "" {
		t.Errorf("reference.yml (-defaults +got):\n%s", diff)
	}
}

func TestReferenceNamesEveryKey(t *testing.T) {
	text, err := os.ReadFile(referenceFile)
	if err != nil {
		t.Fatal(err)
	}
	c := defaultConfig("host")
	c.Targets = []targetConfig{{Name: "a", Address: "b", Interface: "c", Source: "d", Labels: map[string]string{"labels": "e"}}}
	all, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^[ -]*([a-z_]+):`).FindAllSubmatch(all, -1) {
		if !regexp.MustCompile(`(?m)^[ -]*` + string(m[1]) + `:`).Match(text) {
			t.Errorf("reference.yml does not have the key %q", m[1])
		}
	}
}

func TestPrintedConfigReadsBack(t *testing.T) {
	c, err := loadConfig(referenceFile, "host")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := printConfig(&out, c); err != nil {
		t.Fatal(err)
	}
	again, err := parseConfig("printed", out.Bytes(), "other")
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if diff := cmp.Diff(c, again); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	for _, want := range []string{"retention: 72h\n", "max_bytes: 256MiB\n", "interval: 10s\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the printed configuration lacks %q:\n%s", want, out.String())
		}
	}
}

func TestTargetKeysOverrideProbe(t *testing.T) {
	c, err := parseConfig("c.yml", []byte(`
probe: {interval: 5s, dscp: 46, timestamps: socket}
targets:
- {name: a, address: 192.0.2.1}
- {name: b, address: 192.0.2.2, interval: 1s, dscp: 0, df: true, source_port: 51000}
`), "host")
	if err != nil {
		t.Fatal(err)
	}
	targets, err := c.targets(c.Targets)
	if err != nil {
		t.Fatal(err)
	}
	a, b := targets[0], targets[1]
	if a.Interval.String() != "5s" || a.DSCP != 46 || a.Timestamps != "socket" || a.Port != 862 {
		t.Errorf("a = %+v", a)
	}
	if b.Interval.String() != "1s" || b.DSCP != 0 || !b.DontFragment || b.SourcePort != 51000 || b.Timestamps != "socket" {
		t.Errorf("b = %+v", b)
	}
}

const (
	aLink    = "{doublezero.link: 6X6S1cVvHZbYVirtiNqcQz7kDoLCtuMLt8HpGzSc6yDH, doublezero.target: Cpt3doj17dCF6bEhvc7VeAuZbXLD88a1EboTyE8uj6ZL}"
	ledgerOn = `doublezero:
  {network: devnet, rpc_urls: ["https://a"], device: 4Wr7PQr5kyqCNJo3RKa8675K7ZtQ6fBUeorcexgp49Zp, keypair_file: k}
submit:
  doublezero:
    enabled: true
    interval: 60s
`
)

// A URL's path, query and user may be secret.
func TestThePrintedConfigurationMasksSecrets(t *testing.T) {
	c, err := parseConfig("c.yml", []byte(`
doublezero:
  rpc_urls:
  - https://user:s3cr3t@a.example.net/s3cr3t?key=s3cr3t
  - {url: "https://b.example.net/s3cr3t", addresses: [192.0.2.1]}
  - http://c.example.net:8899
`), "host")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := printConfig(&out, c); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "s3cr3t") || strings.Contains(out.String(), "user") {
		t.Errorf("a secret is printed:\n%s", out.String())
	}
	for _, want := range []string{"https://a.example.net/...", "https://b.example.net/...", "192.0.2.1", "http://c.example.net:8899"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the printed configuration lacks %q:\n%s", want, out.String())
		}
	}
}

func TestConfigErrors(t *testing.T) {
	const target = "targets:\n- {name: a, address: 192.0.2.1"
	tests := []struct {
		name, text string
		want       []string // one line each
	}{
		{"unknown key", "device: a\nprob: {}\n", []string{`c.yml:2: unknown key "prob"`}},
		{"unknown key below", "probe:\n  intervall: 5s\n", []string{`c.yml:2: probe: unknown key "intervall"`}},
		{"unknown key of a target", target + ", adress: x}\n", []string{`c.yml:2: targets[0]: unknown key "adress"`}},
		{"a pattern that is none", "discovery: {files: [\"/etc/[a\"]}\n", []string{`c.yml:1: discovery.files[0]: "/etc/[a": expected a file name, which may have *, ? and [a-z] in it`}},
		{"discovery too often", "discovery:\n  doublezero: {refresh: 10ms}\n", []string{"c.yml:2: discovery.doublezero.refresh: 10ms: expected 1s to 24h"}},
		{"discovery without what it needs", "discovery:\n  doublezero: {enabled: true, profile: owamp}\n", []string{
			`c.yml:2: discovery.doublezero.profile: "owamp": expected stamp, twamp-light or doublezero`,
			"c.yml: doublezero.rpc_urls: empty: expected the URLs of the ledger, as discovery.doublezero is enabled",
			"c.yml: doublezero.network: empty: expected a network, or doublezero.serviceability_program, as discovery.doublezero is enabled",
			"c.yml: doublezero.device: empty: expected the public key of this device, as discovery.doublezero is enabled",
		}},
		{"not a duration", "probe:\n  interval: 10\n", []string{`c.yml:2: probe.interval: 10: expected a duration such as 10s, 1m30s or 72h`}},
		{"a list for a duration", "probe:\n  interval: [1]\n", []string{`c.yml:2: probe.interval: [1]: expected a duration such as 10s, 1m30s or 72h`}},
		{"not a size", "store: {max_bytes: big}\n", []string{`c.yml:1: store.max_bytes: big: expected a size such as 64KiB, 256MiB or 1GiB`}},
		{"not a number", "probe: {dscp: high}\n", []string{`c.yml:1: probe.dscp: high: expected a number from 0 to 255`}},
		{"a number too large", "probe: {port: 70000}\n", []string{`c.yml:1: probe.port: 70000: expected a number from 0 to 65535`}},
		{"not a truth", "reflector:\n  enabled: maybe\n", []string{`c.yml:2: reflector.enabled: maybe: expected true or false`}},
		{"a string for a list", "web:\n  listen: \":9862\"\n", []string{`c.yml:2: web.listen: :9862: expected a list`}},
		{"a list for keys", "probe: [1]\n", []string{`c.yml:1: probe: [: expected keys and values`}},
		{"twice the same key", "device: a\ndevice: b\n", []string{`c.yml:2: mapping key "device" already defined at [1:1]`}},
		{"not YAML", "device: 'a\n", []string{`c.yml:1: could not find end character of single-quoted text`}},
		{"two documents", "device: a\n---\ndevice: b\n", []string{`c.yml: expected one YAML document`}},
		{"no name, no address", "targets:\n- {interval: 1s}\n", []string{
			`c.yml:2: targets[0].name: "": expected 1 to 128 letters, digits or . _ : - beginning with a letter or digit`,
			`c.yml:2: targets[0].address: missing: expected an IP address or a host name`,
		}},
		{"the same name", target + "}\n- name: b\n  address: 192.0.2.2\n- name: a\n  address: 192.0.2.3\n", []string{
			`c.yml:5: targets[2].name: "a": targets[0] has this name already`,
		}},
		{"a fault of all targets, once", "probe:\n  dscp: 64\n" + target + "}\n- {name: b, address: 192.0.2.2}\n", []string{
			`c.yml:2: probe.dscp: 64: expected 0 to 63`,
		}},
		{"the same flow", "probe: {source_port: 5000}\n" + target + "}\n- {name: b, address: 192.0.2.2}\n- {name: c, address: 192.0.2.1}\n", []string{
			`c.yml:5: targets[2].source_port: 5000: targets[0] has the same address, port, source and source port`,
		}},
		{"a source that is none", target + ", source: eth0}\n", []string{`c.yml:2: targets[0].source: "eth0": expected an IP address`}},
		{"profile", target + ", profile: owamp}\n", []string{`c.yml:2: targets[0].profile: "owamp": expected stamp, twamp-light or doublezero`}},
		{"listen address", "web:\n  listen:\n  - localhost\n", []string{`c.yml:3: web.listen[0]: "localhost": expected address:port, or :port for every address`}},
		{"allow", "reflector:\n  allow: [all]\n", []string{`c.yml:2: reflector.allow: "all": expected an IP address, a CIDR, or any`}},
		{"unknown reflector mode", "reflector: {mode: generic}\n", []string{
			`c.yml:1: reflector.mode: "generic": expected one of auto, tcx, clsact, xdp, socket`}},
		{"sessions in xdp", "reflector: {mode: xdp, stateful: true}\n", []string{
			`c.yml:1: reflector.mode: "xdp": the kernel keeps no sessions; stateful needs auto or socket`}},
		{"sessions in the kernel", "reflector: {mode: tcx, stateful: true}\n", []string{
			`c.yml:1: reflector.mode: "tcx": the kernel keeps no sessions; stateful needs auto or socket`}},
		{"log level", "log: {level: loud}\n", []string{`c.yml:1: log.level: "loud": expected one of debug, info, warn, error`}},
		{"retention", "store:\n  retention: 1s\n", []string{`c.yml:2: store.retention: 1s: expected at least 1m`}},
		{"commit interval", "store:\n  commit_interval: 1h\n", []string{`c.yml:2: store.commit_interval: 1h0m0s: expected 100ms to 10m`}},
		{"file sink", "submit:\n  file: {enabled: true, directory: \"\", keep: 0}\n", []string{
			`c.yml:2: submit.file.directory: empty: expected a directory`,
			`c.yml:2: submit.file.keep: 0: expected at least 1`,
		}},
		{"a ledger without what it needs", "submit:\n  doublezero: {enabled: true, max_concurrency: 0}\n", []string{
			`c.yml: doublezero.rpc_urls: empty: expected the URLs of the ledger, as submit.doublezero is enabled`,
			`c.yml: doublezero.network: empty: expected a network, or doublezero.telemetry_program, as submit.doublezero is enabled`,
			`c.yml: doublezero.device: empty: expected the public key of this device, as submit.doublezero is enabled`,
			`c.yml: doublezero.keypair_file: empty: expected the file of the key pair that signs and pays, as submit.doublezero is enabled`,
			`c.yml:2: submit.doublezero.max_concurrency: 0: expected 1 to 100`,
		}},
		{"bad keys of the network", "doublezero:\n  network: moonnet\n  device: xyz\n  rpc_urls: [\"ftp://a/s3cr3t\", {url: \"https://a\", addresses: [b]}]\n", []string{
			`c.yml:2: doublezero.network: "moonnet": expected one of devnet, mainnet-beta, testnet`,
			`c.yml:4: doublezero.rpc_urls[0]: expected a URL like https://ledger.example.net/path`,
			`c.yml:4: doublezero.rpc_urls[1]: "b": expected an IP address`,
			`c.yml:3: doublezero.device: public key "xyz": 3 bytes in base58, expected 32`,
		}},
		{"a URL that is none of both", "doublezero:\n  rpc_urls: [[1]]\n", []string{
			`c.yml:2: doublezero.rpc_urls[0]: expected a URL, or url and addresses`,
		}},
		{"half a link", target + ", labels: {doublezero.link: 6X6S1cVvHZbYVirtiNqcQz7kDoLCtuMLt8HpGzSc6yDH}}\n", []string{
			`c.yml:2: targets[0].labels: doublezero.target: missing`,
		}},
		{"a probe interval that does not fit", ledgerOn + "targets:\n- {name: a, address: 192.0.2.1, interval: 3s, labels: " + aLink + "}\n", []string{
			`c.yml:8: targets[0].labels: probe interval 3s: expected submit.doublezero.sample_interval, 10s, to be a whole multiple of it`,
		}},
		{"merged probes without filling", ledgerOn + "    fill_gaps: false\ntargets:\n- {name: a, address: 192.0.2.1, interval: 5s, labels: " + aLink + "}\n", []string{
			`c.yml:9: targets[0].labels: probe interval 5s: expected submit.doublezero.sample_interval, 10s, to be the same, as fill_gaps is off`,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parseConfig("c.yml", []byte(tt.text), "host")
			got := ""
			if err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(strings.Join(tt.want, "\n"), got); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEmptyPartsKeepTheirDefaults(t *testing.T) {
	want := defaultConfig("host")
	for _, text := range []string{"", "# nothing\n", "---\n", "store:\n", "store:\nprobe:\nlog:\n", "web: {}\n", "probe:\n  interval:\n", "targets:\n"} {
		got, err := parseConfig("c.yml", []byte(text), "host")
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if diff := cmp.Diff(want, *got); diff != "" {
			t.Errorf("%q (-defaults +got):\n%s", text, diff)
		}
	}
	if _, err := parseConfig("c.yml", nil, ""); err == nil {
		t.Error("a host without a name got no error")
	}
}

// In a VRF targets that name no interface are those of the VRF.
func TestProbingInAVRF(t *testing.T) {
	c, err := parseConfig("c.yml", []byte("namespaces: {probe: \"vrf:red\"}\ntargets:\n- {name: a, address: 192.0.2.1}\n- {name: b, address: 192.0.2.1, interface: eth1}\n"), "host")
	if err != nil {
		t.Fatal(err)
	}
	targets, err := c.targets(c.Targets)
	if err != nil || targets[0].Interface != "red" || targets[1].Interface != "eth1" {
		t.Errorf("%v, %+v", err, targets)
	}
}
