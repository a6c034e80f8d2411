// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/netns/netnstest"
)

func parsePlace(t testing.TB, s string) netns.Place {
	t.Helper()
	p, err := netns.ParsePlace(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// ip runs ip(8) here: what it mounts elsewhere is not seen here.
func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestParsePlace(t *testing.T) {
	for _, tc := range []struct {
		in, want, device string
		ok               bool
	}{
		{in: "", want: "default", ok: true},
		{in: "ns-MGMT", want: "ns-MGMT", ok: true},
		{in: "/proc/1/ns/net", want: "/proc/1/ns/net", ok: true},
		{in: "./vrf:x", want: "./vrf:x", ok: true},
		{in: "vrf:mgmt", want: "vrf:mgmt", device: "mgmt", ok: true},
		{in: "vrf:fifteen-letters", want: "vrf:fifteen-letters", device: "fifteen-letters", ok: true},
		{in: "vrf:"}, {in: "vrf:sixteen--letters"}, {in: "vrf:a/b"}, {in: "vrf:a b"}, {in: "vrf:vrf:a"}, {in: "."}, {in: ".."},
	} {
		p, err := netns.ParsePlace(tc.in)
		if (err == nil) != tc.ok {
			t.Errorf("ParsePlace(%q): %v, want success: %v", tc.in, err, tc.ok)
			continue
		}
		if tc.ok && (p.String() != tc.want || p.Device() != tc.device) {
			t.Errorf("ParsePlace(%q) = %s, device %q, want %s, %q", tc.in, p, p.Device(), tc.want, tc.device)
		}
	}
}

// greeter answers each TCP connection to an address in the namespace with a greeting.
func greeter(t *testing.T, ns *netnstest.NS, address, greeting string) {
	t.Helper()
	var listener net.Listener
	if err := ns.Do(func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			_, _ = io.WriteString(conn, greeting) // who dialed sees what is missing
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait()
	})
}

func greeting(ctx context.Context, p netns.Place, address string) (string, error) {
	conn, err := p.Dial(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	got, err := io.ReadAll(conn)
	return string(got), err
}

// nameServer answers at port 53 of an address in the namespace, over UDP and TCP, from lines of a zone file. It fails on the name
// broken., never answers on silent. (of which the channel tells) and has no other names.
func nameServer(t *testing.T, ns *netnstest.NS, address, zone string) (asked *atomic.Int32, silent <-chan struct{}) {
	t.Helper()
	var records []dns.RR
	parser := dns.NewZoneParser(strings.NewReader(zone), ".", "")
	parser.SetDefaultTTL(1)
	for {
		record, ok := parser.Next()
		if !ok {
			if err := parser.Err(); err != nil {
				t.Fatal(err)
			}
			break
		}
		records = append(records, record)
	}
	asked = new(atomic.Int32)
	quiet := make(chan struct{}, 100)
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, request *dns.Msg) {
		asked.Add(1)
		question := request.Question[0]
		reply := new(dns.Msg).SetReply(request)
		exists := false
		for name, i := question.Name, 0; i < len(records); i++ {
			header := records[i].Header()
			if header.Name != name {
				continue
			}
			exists = true
			if alias, ok := records[i].(*dns.CNAME); ok {
				name = alias.Target // whose records are in later lines
			} else if header.Rrtype != question.Qtype {
				continue
			}
			reply.Answer = append(reply.Answer, records[i])
		}
		switch {
		case question.Name == "silent.":
			quiet <- struct{}{}
			return
		case question.Name == "broken.":
			reply.Rcode = dns.RcodeServerFailure
		case !exists:
			reply.Rcode = dns.RcodeNameError
		}
		if _, udp := w.LocalAddr().(*net.UDPAddr); udp {
			reply.Truncate(dns.MinMsgSize)
		}
		_ = w.WriteMsg(reply) // who asked sees what is missing
	})
	udp, tcp := &dns.Server{Handler: handler}, &dns.Server{Handler: handler}
	if err := ns.Do(func() (err error) {
		if udp.PacketConn, err = net.ListenPacket("udp", net.JoinHostPort(address, "53")); err != nil {
			return err
		}
		tcp.Listener, err = net.Listen("tcp", net.JoinHostPort(address, "53"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, server := range []*dns.Server{udp, tcp} {
		var running sync.WaitGroup
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		running.Go(func() {
			if err := server.ActivateAndServe(); err != nil {
				t.Errorf("name server: %v", err)
			}
		})
		receive(t, "the name server", started)
		t.Cleanup(func() {
			if err := server.Shutdown(); err != nil {
				t.Error(err)
			}
			running.Wait()
		})
	}
	return asked, quiet
}

// etc writes a file for a namespace, as ip-netns(8) has it.
func etc(t *testing.T, ns *netnstest.NS, name, content string) {
	t.Helper()
	folder := filepath.Join("/etc/netns", ns.Name)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
		_ = os.Remove("/etc/netns") // if nothing else is in it
	})
	if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

const (
	// placeVariable is how the test gives a place to itself when it starts itself in a namespace.
	placeVariable = "XTWAMP_TEST_PLACE"
	port          = ":4242"
)

func zone(address string) string {
	var many strings.Builder
	for i := range 100 { // far more than UDP carries
		fmt.Fprintf(&many, "many.net.example. A 192.0.2.%d\n", i)
	}
	return many.String() + `
ledger.net.example. A ` + address + `
alias.net.example. CNAME ledger2.net.example.
ledger2.net.example. A ` + address + `
elsewhere. A ` + address + `
first-dead. A 127.0.0.100
first-dead. A ` + address + `
v6-dead. AAAA 2001:db8::9
v6-dead. A ` + address + `
v6-here. A ` + address + `
v6-here. AAAA ::1
only-text. TXT "x"
`
}

// Case 70.
func TestNamesAreLookedUpAndDialedInThePlace(t *testing.T) {
	if place := os.Getenv(placeVariable); place != "" {
		lookUpAndDial(t, parsePlace(t, place))
		return
	}
	lab := netnstest.New(t)
	management, other := lab.Namespace("m"), lab.Namespace("other")
	// What escapes gets a wrong answer.
	nameServer(t, management, "127.0.0.1", zone("127.0.0.2"))
	wrong, _ := nameServer(t, other, "127.0.0.1", zone("127.0.0.3"))
	greeter(t, management, "127.0.0.2"+port, "management")
	greeter(t, other, "127.0.0.2"+port, "other")
	greeter(t, other, "127.0.0.3"+port, "other")
	etc(t, management, "resolv.conf", `
nameserver 127.0.0.99
nameserver 127.0.0.1
search org.example net.example
options ndots:2 timeout:1 attempts:1
`)
	etc(t, management, "hosts", "127.0.0.2 localhost\n127.0.0.2 IN-HOSTS.example in-hosts # comment\n::1 in-hosts\n")
	etc(t, other, "resolv.conf", "nameserver 127.0.0.1\nsearch net.example\n")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("started here", func(t *testing.T) { lookUpAndDial(t, parsePlace(t, management.Name)) })
	for name, ns := range map[string]*netnstest.NS{"started in the place": management, "started in another namespace": other} {
		t.Run(name, func(t *testing.T) {
			ns.Exec(t, "env", placeVariable+"="+management.Name, program, "-test.run=^"+strings.Split(t.Name(), "/")[0]+"$")
		})
	}
	if n := wrong.Load(); n != 0 {
		t.Errorf("%d lookups escaped from the place", n)
	}
}

func lookUpAndDial(t *testing.T, p netns.Place) {
	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprintf("192.0.2.%d", i))
	}
	for _, tc := range []struct {
		host     string
		network  string // default: ip
		want     []string
		notFound bool // else, without want, another error
	}{
		{host: "ledger", want: []string{"127.0.0.2"}},
		{host: "ledger.net.example", want: []string{"127.0.0.2"}},
		{host: "ledger.net.example.", want: []string{"127.0.0.2"}},
		{host: "alias", want: []string{"127.0.0.2"}},
		{host: "elsewhere", want: []string{"127.0.0.2"}},
		{host: "many", network: "ip4", want: many},
		{host: "in-hosts", want: []string{"::1", "127.0.0.2"}},
		{host: "In-Hosts.Example", want: []string{"127.0.0.2"}},
		{host: "in-hosts", network: "ip4", want: []string{"127.0.0.2"}},
		{host: "localhost", want: []string{"127.0.0.2"}},
		{host: "v6-dead", want: []string{"127.0.0.2", "2001:db8::9"}},
		{host: "v6-here", want: []string{"::1", "127.0.0.2"}},
		{host: "v6-here", network: "ip6", want: []string{"::1"}},
		{host: "192.0.2.7", want: []string{"192.0.2.7"}},
		{host: "::ffff:192.0.2.7", want: []string{"192.0.2.7"}},
		{host: "192.0.2.7", network: "ip6", notFound: true},
		{host: "not-there", notFound: true},
		{host: "not-there.", notFound: true},
		{host: "only-text", notFound: true},
		{host: "ledger", network: "ip6", notFound: true},
		{host: strings.Repeat("long.", 60), notFound: true},
		{host: "", notFound: true},
		{host: "broken."},
	} {
		network := tc.network
		if network == "" {
			network = "ip"
		}
		addrs, err := p.LookupNetIP(t.Context(), network, tc.host)
		var got []string
		for _, a := range addrs {
			got = append(got, a.String())
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s of %s, %v (-want +got):\n%s", network, tc.host, err, diff)
		}
		if e, ok := errors.AsType[*net.DNSError](err); tc.want == nil && (!ok || e.IsNotFound != tc.notFound) {
			t.Errorf("%s of %s: %v, want a DNSError, of a name that is not found: %v", network, tc.host, err, tc.notFound)
		}
	}
	for _, host := range []string{"127.0.0.2", "ledger", "alias", "elsewhere", "in-hosts", "first-dead", "v6-dead", "v6-here"} {
		if got, err := greeting(t.Context(), p, host+port); got != "management" {
			t.Errorf("dial %s: greeted by %q, %v, want management", host, got, err)
		}
	}
	if conn, err := p.Dial(t.Context(), "tcp", "not-there"+port); err == nil || conn != nil {
		t.Errorf("dial of no host: %v, %v, want an error", conn, err)
	}
	for _, tc := range []struct{ address, want string }{
		{"localhost:0", "127.0.0.2"}, {"ledger:0", "127.0.0.2"}, {"in-hosts:0", "127.0.0.2"}, {"[::1]:0", "::1"}, {":0", "::"},
	} {
		listener, err := p.Listen(t.Context(), "tcp", tc.address)
		if err != nil {
			t.Error(err)
			continue
		}
		if got := netip.MustParseAddrPort(listener.Addr().String()).Addr().String(); got != tc.want {
			t.Errorf("listens at %s for %s, want %s", got, tc.address, tc.want)
		}
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
	}
}

// With neither file of its own, a namespace has those of all.
func TestLookupWithoutFilesOfThePlace(t *testing.T) {
	lab := netnstest.New(t)
	ns := lab.Namespace("a")
	for _, place := range []string{ns.Name, ns.Path} {
		got, err := parsePlace(t, place).LookupNetIP(t.Context(), "ip4", "localhost")
		if want := []netip.Addr{netip.MustParseAddr("127.0.0.1")}; err != nil || !cmp.Equal(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })) {
			t.Errorf("%s: localhost is %v, %v, want %v", place, got, err, want)
		}
	}
}

func TestLookupEndsWithItsContext(t *testing.T) {
	lab := netnstest.New(t)
	ns := lab.Namespace("a")
	asked, silent := nameServer(t, ns, "127.0.0.1", "")
	etc(t, ns, "resolv.conf", "nameserver 127.0.0.1\noptions timeout:30\n")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := parsePlace(t, ns.Name)
	ended := make(chan error, 1)
	go func() {
		_, err := p.LookupNetIP(ctx, "ip4", "silent.")
		ended <- err
	}()
	receive(t, "the question", silent)
	cancel()
	if err := receive(t, "the end of the lookup", ended); !errors.Is(err, context.Canceled) || asked.Load() != 1 {
		t.Errorf("lookup: %v after %d questions, want %v after 1", err, asked.Load(), context.Canceled)
	}
}

// An address that leaves SYNs unanswered costs its share of the time, not all.
func TestDialTriesTheNextAddress(t *testing.T) {
	lab := netnstest.New(t)
	a, b := lab.Namespace("a"), lab.Namespace("b")
	lab.Veth(a, "eth1", []string{"192.0.2.3/24"}, b, "eth1", []string{"192.0.2.1/24"})
	// Nobody has that MAC address.
	a.Exec(t, "ip", "neighbour", "add", "192.0.2.9", "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", "eth1")
	etc(t, a, "hosts", "192.0.2.9 far\n192.0.2.1 far\n")
	greeter(t, b, "192.0.2.1"+port, "far")
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	if got, err := greeting(ctx, parsePlace(t, a.Name), "far"+port); got != "far" {
		t.Errorf("greeted by %q, %v, want far", got, err)
	}
}

// The name leads to the namespace that it leads to now.
func TestPlaceIsFoundAnew(t *testing.T) {
	lab := netnstest.New(t)
	ns := lab.Namespace("a")
	p := parsePlace(t, ns.Name)
	ip(t, "netns", "delete", ns.Name)
	if _, err := p.Open(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open: %v, want %v", err, fs.ErrNotExist)
	}
	if _, err := p.Dial(t.Context(), "tcp", "127.0.0.1"+port); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Dial: %v, want %v", err, fs.ErrNotExist)
	}
	ip(t, "netns", "add", ns.Name)
	ip(t, "-n", ns.Name, "link", "set", "dev", "lo", "up")
	greeter(t, ns, "127.0.0.1"+port, "anew")
	if got, err := greeting(t.Context(), p, "127.0.0.1"+port); got != "anew" {
		t.Errorf("greeted by %q, %v, want anew", got, err)
	}
}

// Where the kernel has no VRFs, any interface shows what being bound to one does. The start namespace is played by another.
func TestVRFBindsItsSockets(t *testing.T) {
	lab := netnstest.New(t)
	host, left, right := lab.Namespace("host"), lab.Namespace("left"), lab.Namespace("right")
	// Both neighbours have the same address, and the route leads to the left one.
	lab.Veth(host, "left", []string{"192.0.2.3/24"}, left, "eth1", []string{"192.0.2.1/24"})
	lab.Veth(host, "right", []string{"192.0.2.3/24"}, right, "eth1", []string{"192.0.2.1/24"})
	ns := open(t, host)
	for _, side := range []*netnstest.NS{left, right} {
		name := side.Name[strings.LastIndex(side.Name, "-")+1:]
		t.Run(name, func(t *testing.T) {
			greeter(t, side, "192.0.2.1"+port, name)
			p := parsePlace(t, "vrf:"+name)
			var listener net.Listener
			if err := ns.Do(func() error {
				got, err := greeting(t.Context(), p, "192.0.2.1"+port)
				if got != name {
					t.Errorf("greeted by %q, want %s", got, name)
				}
				if err != nil {
					return err
				}
				listener, err = p.Listen(t.Context(), "tcp", "192.0.2.3:0")
				return err
			}); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = listener.Close() }()
			if got := boundTo(t, listener.(*net.TCPListener)); got != name {
				t.Errorf("listener is bound to %q, want %s", got, name)
			}
			conn, err := parsePlace(t, side.Name).Dial(t.Context(), "tcp", listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.Close()
		})
	}
	if err := ns.Do(func() error {
		_, err := parsePlace(t, "vrf:none").Dial(t.Context(), "tcp", "192.0.2.1"+port)
		return err
	}); !errors.Is(err, netns.ErrNoLink) {
		t.Errorf("dial through a VRF that is not there: %v, want %v", err, netns.ErrNoLink)
	}
}

// boundTo returns the name of the interface that a socket is bound to.
func boundTo(t *testing.T, socket syscall.Conn) (device string) {
	t.Helper()
	conn, err := socket.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if e := conn.Control(func(fd uintptr) { device, err = unix.GetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE) }); e != nil || err != nil {
		t.Fatal(e, err)
	}
	return device
}

func TestPlaceLeavesNothingBehind(t *testing.T) {
	lab := netnstest.New(t)
	ns := lab.Namespace("a")
	nameServer(t, ns, "127.0.0.1", zone("127.0.0.1"))
	etc(t, ns, "resolv.conf", "nameserver 127.0.0.1\n")
	greeter(t, ns, "127.0.0.1"+port, "here")
	p := parsePlace(t, ns.Name)
	const atOnce = 8
	round := func() {
		var all sync.WaitGroup
		for range atOnce {
			all.Go(func() {
				if got, err := greeting(t.Context(), p, "elsewhere"+port); got != "here" {
					t.Errorf("greeted by %q, %v, want here", got, err)
				}
				if _, err := p.Dial(t.Context(), "tcp", "elsewhere:1"); err == nil {
					t.Error("port 1 answers")
				}
				if _, err := p.LookupNetIP(t.Context(), "ip", "not-there"); err == nil {
					t.Error("found what is not there")
				}
			})
		}
		all.Wait()
	}
	count := func(what string) int {
		entries, err := os.ReadDir("/proc/self/" + what)
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	round()
	files, threads := count("fd"), count("task")
	const rounds = 10
	for range rounds {
		round()
	}
	await(t, "files to be closed", func() bool { return count("fd") <= files })
	// The runtime keeps idle threads, but not one for each socket.
	if got := count("task"); got > threads+rounds*atOnce/2 {
		t.Errorf("%d threads after %d rounds, want about %d", got, rounds, threads)
	}
	requireAllHome(t)
}
