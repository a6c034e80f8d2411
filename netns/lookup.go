// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// lookupTimeout bounds what no context does: with several servers, search domains and attempts it would take minutes.
const lookupTimeout = 30 * time.Second

// LookupNetIP looks up the addresses of a host; network is ip, ip4 or ip6. Those that the place has a route to come first,
// and then IPv6 ones. It ends with ctx, and after 30 s.
//
// The start namespace does as package net does. Anywhere else every socket is made in the place, which net.Resolver cannot
// promise: it sorts addresses by connecting to them from any thread. There, as ip-netns(8) has it, /etc/netns/NAME/hosts and
// /etc/netns/NAME/resolv.conf are asked, and those of /etc where a file is missing or the namespace has no name. Of
// resolv.conf(5) nameserver, domain, search and the options ndots, timeout and attempts count, of nsswitch.conf(5) nothing.
// A VRF asks its servers through the VRF, so they cannot be on the loopback of the host.
//
// The error is a [*net.DNSError].
func (p Place) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	if p == (Place{}) {
		return net.DefaultResolver.LookupNetIP(ctx, network, host)
	}
	addrs, err := p.lookup(ctx, network, host)
	if err == nil && len(addrs) == 0 {
		err = noSuchHost(host)
	}
	if err != nil {
		if e, ok := errors.AsType[*net.DNSError](err); ok {
			return nil, e
		}
		timeout := errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
		return nil, &net.DNSError{UnwrapErr: err, Err: err.Error(), Name: host, IsTimeout: timeout, IsTemporary: true}
	}
	return addrs, nil
}

func (p Place) lookup(ctx context.Context, network, host string) ([]netip.Addr, error) {
	types := []uint16{dns.TypeAAAA, dns.TypeA}
	switch network {
	case "ip4":
		types = []uint16{dns.TypeA}
	case "ip6":
		types = []uint16{dns.TypeAAAA}
	}
	wanted := func(a netip.Addr) bool {
		return a.Is4() && slices.Contains(types, dns.TypeA) || a.Is6() && slices.Contains(types, dns.TypeAAAA)
	}

	if a, err := netip.ParseAddr(host); err == nil {
		if a = a.Unmap(); !wanted(a) {
			return nil, noSuchHost(host)
		}
		return []netip.Addr{a}, nil
	}
	static, err := p.hosts(host)
	if err != nil {
		return nil, err
	}
	if static = slices.DeleteFunc(static, func(a netip.Addr) bool { return !wanted(a) }); len(static) > 0 {
		return p.sort(static)
	}
	if _, ok := dns.IsDomainName(host); !ok || host == "" {
		return nil, noSuchHost(host)
	}
	config, err := p.resolvConf()
	if err != nil {
		return nil, err
	}
	var failed error
	for _, name := range config.NameList(host) {
		addrs, err := p.askAll(ctx, config, name, types)
		if len(addrs) > 0 {
			return p.sort(addrs)
		}
		failed = cmp.Or(failed, err)
	}
	return nil, failed
}

func noSuchHost(host string) *net.DNSError {
	return &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// sort puts addresses with a route first, then those of IPv6, and else keeps their order.
func (p Place) sort(addrs []netip.Addr) ([]netip.Addr, error) {
	unreachable := make(map[netip.Addr]int)
	err := p.do(func() error {
		oif := 0
		if p.device != "" {
			link, err := LinkByName(p.device)
			if err != nil {
				return err
			}
			oif = link.Index
		}
		for _, a := range addrs {
			if _, err := RouteTo(a, netip.Addr{}, oif); err != nil {
				unreachable[a] = 1
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int {
		return cmp.Or(unreachable[a]-unreachable[b], b.BitLen()-a.BitLen())
	})
	return addrs, nil
}

// etc opens a file of the namespace's own, or the one of all.
func (p Place) etc(file string) (*os.File, error) {
	if p.isNamed() {
		f, err := os.Open(filepath.Join("/etc/netns", p.namespace, file))
		if !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
	}
	return os.Open(filepath.Join("/etc", file))
}

// hosts finds a host in the hosts(5) file.
func (p Place) hosts(host string) ([]netip.Addr, error) {
	file, err := p.etc("hosts")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up in hosts: %w", err)
	}
	defer func() { _ = file.Close() }() // only read
	host = strings.TrimSuffix(host, ".")
	var addrs []netip.Addr
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(line)
		if !slices.ContainsFunc(fields, func(s string) bool { return strings.EqualFold(strings.TrimSuffix(s, "."), host) }) {
			continue
		}
		if a, err := netip.ParseAddr(fields[0]); err == nil {
			addrs = append(addrs, a.Unmap())
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("look up in hosts: %w", err)
	}
	return addrs, nil
}

// resolvConf reads the resolv.conf(5) file. Without servers in it, or without it, one on this host is meant.
func (p Place) resolvConf() (*dns.ClientConfig, error) {
	file, err := p.etc("resolv.conf")
	if errors.Is(err, fs.ErrNotExist) {
		return &dns.ClientConfig{Servers: []string{"127.0.0.1", "::1"}, Port: "53", Ndots: 1, Timeout: 5, Attempts: 2}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find name servers: %w", err)
	}
	defer func() { _ = file.Close() }() // only read
	config, err := dns.ClientConfigFromReader(file)
	if err != nil {
		return nil, fmt.Errorf("find name servers: %w", err)
	}
	if len(config.Servers) == 0 {
		config.Servers = []string{"127.0.0.1", "::1"}
	}
	return config, nil
}

// askAll asks for all types of address at once. What one type meets is of interest only if no other has addresses.
func (p Place) askAll(ctx context.Context, config *dns.ClientConfig, name string, types []uint16) ([]netip.Addr, error) {
	answers := make([][]netip.Addr, len(types))
	errs := make([]error, len(types))
	var all sync.WaitGroup
	for i, kind := range types {
		all.Go(func() { answers[i], errs[i] = p.ask(ctx, config, name, kind) })
	}
	all.Wait()
	return slices.Concat(answers...), cmp.Or(errs...)
}

// ask asks one server after the other until one knows. That the name has no such address is known too, and no error.
func (p Place) ask(ctx context.Context, config *dns.ClientConfig, name string, kind uint16) ([]netip.Addr, error) {
	var failed error
	for range config.Attempts {
		for _, server := range config.Servers {
			reply, err := p.exchange(ctx, config, server, name, kind)
			if ctx.Err() != nil {
				return nil, cmp.Or(failed, err, ctx.Err())
			}
			if err == nil && reply.Rcode == dns.RcodeNameError {
				return nil, nil
			}
			if err == nil && reply.Rcode == dns.RcodeSuccess {
				return addresses(reply), nil
			}
			if err == nil {
				err = errors.New(dns.RcodeToString[reply.Rcode])
			}
			failed = fmt.Errorf("ask %s: %w", server, err)
		}
	}
	return nil, failed
}

// addresses takes those of all names in a reply: where the one asked for is an alias, the reply of a recursive server holds
// its whole chain and no more.
func addresses(reply *dns.Msg) []netip.Addr {
	var addrs []netip.Addr
	for _, record := range reply.Answer {
		var a netip.Addr
		switch record := record.(type) {
		case *dns.A:
			a, _ = netip.AddrFromSlice(record.A)
		case *dns.AAAA:
			a, _ = netip.AddrFromSlice(record.AAAA)
		}
		if a.IsValid() {
			addrs = append(addrs, a.Unmap())
		}
	}
	return addrs
}

// exchange asks one server, by TCP if the answer is too long for UDP.
func (p Place) exchange(ctx context.Context, config *dns.ClientConfig, server, name string, kind uint16) (*dns.Msg, error) {
	question := new(dns.Msg).SetQuestion(name, kind)
	reply, err := p.exchangeOver(ctx, "udp", config, server, question)
	if reply != nil && reply.Truncated {
		return p.exchangeOver(ctx, "tcp", config, server, question)
	}
	return reply, err
}

func (p Place) exchangeOver(ctx context.Context, network string, config *dns.ClientConfig, server string, question *dns.Msg) (*dns.Msg, error) {
	timeout := time.Duration(config.Timeout) * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := p.dialLiteral(ctx, network, net.JoinHostPort(server, config.Port))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	// The library knows the deadline of ctx, but not its end before.
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	reply, _, err := (&dns.Client{Timeout: timeout}).ExchangeWithConnContext(ctx, question, &dns.Conn{Conn: conn})
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return reply, err
}
