// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/xtwamp/xtwamp/netns/netnstest"
)

// selfSigned writes a certificate for 127.0.0.1 and its key, and returns the certificate.
func selfSigned(t *testing.T, dir string) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// The web listener has TLS and asks who it is, as its file says; the control socket does neither.
func TestWebListenerWithTLSAndAuthentication(t *testing.T) {
	ns := netnstest.New(t).Namespace("a")
	dir, file := switchConfig(t, "")
	cert := selfSigned(t, dir)
	settings := filepath.Join(dir, "web.yml")
	// The password is "test".
	if err := os.WriteFile(settings, []byte(`
tls_server_config: {cert_file: cert.pem, key_file: key.pem}
basic_auth_users: {prometheus: $2b$12$hNf2lSsxfm0.i4a.1kVpSOVyBCfIB51VRjgBUyv6kdnyTlgWj81Ay}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	edit(t, file, "web: {listen: []}", `web: {listen: ["`+webAddress+`"], config_file: `+settings+`}`)
	d := startDaemon(t, ns, dir, file)
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	transport := &http.Transport{DialContext: placeOf(t, ns).Dial, TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	get := func(user, password string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+webAddress+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.SetBasicAuth(user, password)
		resp, err := client.Do(req)
		if err != nil {
			return 0
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	awaitState(t, "the listener", func() bool { return get("prometheus", "test") == http.StatusOK })
	if code := get("prometheus", "wrong"); code != http.StatusUnauthorized {
		t.Errorf("a wrong password: %d", code)
	}
	if resp, err := client.Get("http://" + webAddress + "/metrics"); err == nil {
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Error("metrics without TLS")
		}
	}
	if code, _ := getFrom(t, dir, "/metrics"); code != http.StatusOK {
		t.Errorf("the control socket: %d", code)
	}
	if code := d.end(syscall.SIGINT); code != 0 {
		t.Errorf("ended with %d\n%s", code, d.errs)
	}
}

// A bad file is told before anything starts.
func TestWebConfigFileThatIsBad(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "web.yml")
	if err := os.WriteFile(bad, []byte("tls_server_config: {cert_file: none.pem, key_file: none.pem}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{bad: "none.pem", filepath.Join(dir, "missing.yml"): "no such file"} {
		_, err := parseConfig("c.yml", []byte("web: {config_file: "+name+"}\n"), "host")
		if err == nil || !strings.HasPrefix(err.Error(), "c.yml:1: web.config_file: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want it to name %q", name, err, want)
		}
	}
}
