// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// site is one configured URL.
type site struct {
	url   *url.URL // with its secrets
	label string   // scheme://host:port, made unique
	host  string   // without port and brackets
	port  uint16
	auth  *url.Userinfo

	// What the loop knows about the look-up of host. A literal address is never looked up.
	literal  bool
	looking  bool
	looked   bool // at least once, with whatever result
	nextLook time.Time
	failures uint64
	teller   teller
}

// parseSites makes sites of URLs. Its errors quote nothing of them: where a URL is malformed, a secret may stand anywhere in it.
func parseSites(urls []URL) ([]*site, error) {
	sites := make([]*site, 0, len(urls))
	labels := make(map[string]int)
	for i, u := range urls {
		s, err := parseSite(u.URL)
		if err != nil {
			return nil, fmt.Errorf("URL number %d: %w", i+1, err)
		}
		if slices.ContainsFunc(urls[:i], func(other URL) bool { return other.URL == u.URL }) {
			return nil, fmt.Errorf("URL number %d: given twice", i+1)
		}
		labels[s.label]++
		if n := labels[s.label]; n > 1 {
			s.label += fmt.Sprintf("#%d", n)
		}
		for _, addr := range u.Addresses {
			if !usable(addr) {
				return nil, fmt.Errorf("URL number %d: address %v cannot be dialed", i+1, addr)
			}
		}
		sites = append(sites, s)
	}
	return sites, nil
}

func parseSite(raw string) (*site, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil: // and the error would quote it
		return nil, errors.New("malformed")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("must start with http:// or https://")
	case u.Hostname() == "":
		return nil, errors.New("names no host")
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return nil, errors.New("port out of range")
	}
	s := &site{host: strings.ToLower(u.Hostname()), port: uint16(number), auth: u.User}
	s.teller.told = stateGood
	s.label = u.Scheme + "://" + net.JoinHostPort(s.host, port)
	_, err = netip.ParseAddr(s.host)
	s.literal = err == nil
	s.looked = s.literal
	u.User, u.Fragment, u.RawFragment = nil, "", ""
	s.url = u
	return s, nil
}

// usable tells addresses of hosts from what a resolver may say instead of "none".
func usable(addr netip.Addr) bool {
	return addr.IsValid() && !addr.IsUnspecified() && !addr.IsMulticast()
}

const (
	minSecret = 4   // shorter parts of a path or query ("v1") are no secrets, and masking them would only spoil texts
	maxText   = 200 // bytes of a text from outside
)

// masker returns a function for texts that come from outside the package: it hides path, query and user info of all sites, which a
// server may have quoted in its answer, and bounds the length.
func masker(sites []*site) func(string) string {
	var secrets []string
	add := func(least int, parts ...string) {
		for _, part := range parts {
			if len(part) >= least {
				secrets = append(secrets, part, url.QueryEscape(part), url.PathEscape(part))
			}
		}
	}
	for _, s := range sites {
		add(2, s.url.Path, s.url.EscapedPath(), s.url.RawQuery)
		add(minSecret, strings.FieldsFunc(s.url.EscapedPath(), isSlash)...)
		add(minSecret, strings.FieldsFunc(s.url.Path, isSlash)...)
		for key, values := range s.url.Query() {
			add(minSecret, key)
			add(minSecret, values...)
		}
		if s.auth != nil {
			password, _ := s.auth.Password()
			add(1, s.auth.String(), s.auth.Username(), password)
			add(1, base64.StdEncoding.EncodeToString([]byte(s.auth.Username()+":"+password)))
		}
	}
	// The longest first: a replacer takes the first that fits.
	slices.SortFunc(secrets, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	var pairs []string
	for _, secret := range slices.Compact(secrets) {
		pairs = append(pairs, secret, "***")
	}
	replace := strings.NewReplacer(pairs...).Replace
	return func(text string) string {
		text = replace(text)
		if len(text) > maxText {
			text = strings.ToValidUTF8(text[:maxText], "") + "..."
		}
		return text
	}
}

func isSlash(r rune) bool { return r == '/' }
