// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/netns/netnstest"
	"github.com/xtwamp/xtwamp/probe"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
)

// screen is what a terminal shows of what is written to it. It knows no other
// control sequence than the one that ping needs, and its lines have no end.
type screen struct {
	mu       sync.Mutex
	rows     [][]rune
	row, col int
	escape   string
	escapes  int
	unknown  []string

	erased, drawn bool // it was just erased to its end; and the cursor then went back: a live line
	torn          []rune
}

func (s *screen) put(c rune) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.rows) <= s.row {
		s.rows = append(s.rows, nil)
	}
	line := &s.rows[s.row]
	switch {
	case c == '\x1b' || s.escape != "":
		s.escape += string(c)
		if len(s.escape) < len("\x1b[K") {
			return
		}
		if s.escape != "\x1b[K" {
			s.unknown = append(s.unknown, s.escape)
		}
		*line = (*line)[:min(s.col, len(*line))]
		s.escape = ""
		s.escapes++
		s.erased = true
		return
	case c == '\r':
		s.col = 0
		s.drawn = s.erased
	case c == '\n':
		s.row++
	default:
		if s.drawn && c != '^' { // of the echo of Ctrl-C
			s.torn = append(s.torn, c)
		}
		s.drawn = false
		for len(*line) <= s.col {
			*line = append(*line, ' ')
		}
		(*line)[s.col] = c
		s.col++
	}
	s.erased = false
}

// look returns the rows down to the cursor's, and its column.
func (s *screen) look() (rows []string, column int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rows[:min(s.row+1, len(s.rows))] {
		rows = append(rows, string(r))
	}
	if s.row == len(s.rows) {
		rows = append(rows, "")
	}
	return rows, s.col
}

// last returns the cursor's row, "" unless the cursor is at its beginning.
func (s *screen) last() string {
	rows, column := s.look()
	if len(rows) == 0 || column != 0 {
		return ""
	}
	return rows[len(rows)-1]
}

// terminal is a pseudo terminal of a test.
type terminal struct {
	screen
	t             *testing.T
	master, slave *os.File
	read          chan struct{} // closed when nobody has it open any more
}

func newTerminal(t *testing.T, columns int) *terminal {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	tm := &terminal{t: t, master: os.NewFile(uintptr(fd), "/dev/ptmx"), read: make(chan struct{})}
	t.Cleanup(func() { tm.master.Close() })
	number, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	if tm.slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tm.slave.Close() })
	tm.resize(columns)
	return tm
}

func (tm *terminal) resize(columns int) {
	tm.t.Helper()
	if err := unix.IoctlSetWinsize(int(tm.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: uint16(columns)}); err != nil {
		tm.t.Fatal(err)
	}
}

// start runs the program on the terminal, as far as cmd says nothing else.
func (tm *terminal) start(ns *netnstest.NS, cmd *exec.Cmd) {
	t := tm.t
	t.Helper()
	cmd.Stdin, cmd.Stderr = tm.slave, tm.slave
	if cmd.Stdout == nil {
		cmd.Stdout = tm.slave
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := ns.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	tm.slave.Close() // so that reading ends with the process
	go func() {
		defer close(tm.read)
		for r := bufio.NewReader(tm.master); ; {
			c, _, err := r.ReadRune()
			if err != nil {
				return
			}
			tm.put(c)
		}
	}()
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
		<-tm.read
		if rows, column := tm.look(); t.Failed() {
			t.Logf("cursor in column %d of the last row of:\n%s", column, strings.Join(rows, "\n"))
		}
	})
}

// ended waits for the end of the program, and checks its exit code.
func (tm *terminal) ended(cmd *exec.Cmd, code int) (rows []string) {
	tm.t.Helper()
	cmd.Wait()
	<-tm.read
	if got := cmd.ProcessState.ExitCode(); got != code {
		tm.t.Errorf("exit %d, want %d", got, code)
	}
	rows, column := tm.look()
	if column != 0 || rows[len(rows)-1] != "" {
		tm.t.Errorf("the cursor is not at the beginning of an empty line")
	}
	if len(tm.unknown) > 0 {
		tm.t.Errorf("unknown control sequences %q", tm.unknown)
	}
	if len(tm.torn) > 0 {
		tm.t.Errorf("over a live line, which was not wiped, went what begins with each of %q", string(tm.torn))
	}
	return rows[:len(rows)-1]
}

// expectRows checks that each row is of one of the kinds, and that the kinds
// come in this order, each at least once.
func expectRows(t *testing.T, rows []string, kinds ...string) {
	t.Helper()
	k := -1
	for _, row := range rows {
		fits := func(kind string) bool { return regexp.MustCompile("^(?:" + kind + ")$").MatchString(row) }
		switch {
		case k+1 < len(kinds) && fits(kinds[k+1]):
			k++
		case k >= 0 && fits(kinds[k]):
		default:
			t.Fatalf("row %q after those of %q", row, kinds[:k+1])
		}
	}
	if k+1 < len(kinds) {
		t.Errorf("no row of %q", kinds[k+1])
	}
}

const (
	headRow   = `xtwamp stamp to \S+ from \S+ by \S+: 44 bytes, time stamps \w+`
	logRow    = `\d\d:\d\d:\d\d\.\d{3}\t(DEBUG|INFO|WARN)\t[^\r]*`
	blockRow  = ` *[\d.]+ to +[\d.]+ us  +\d+(  [█▏▎▍▌▋▊▉]+)?`
	hashRow   = ` *[\d.]+ to +[\d.]+ us  +\d+(  #+)?`
	rttRow    = `rtt min/p50/p90/p99/max .* us, mean .*`
	dwellRow  = `dwell min/p50/p99/max .* us`
	stampsRow = `time stamps tx .*`
)

func TestPingOnATerminal(t *testing.T) {
	near, far := twoHosts(t)
	reflectingIn(t, far)
	tm := newTerminal(t, 200)
	cmd := program(t, "ping", "-v", "-c", "0", "-i", "20ms", "--timeout", "100ms", "-I", "eth1", "10.1.0.2")
	cmd.Env = append(cmd.Env, "TERM=xterm", "LC_ALL=C.UTF-8")
	tm.start(near, cmd)

	whole := regexp.MustCompile(`^(\d+) received, \d+ lost \(\d+\.\d%\).*, rtt \d+(\.\d)? us, min \S+, p50 \S+, p99 \S+, max [\d.]+$`)
	replies := func() (n int) {
		if m := whole.FindStringSubmatch(tm.last()); m != nil {
			fmt.Sscan(m[1], &n)
		}
		return n
	}
	more := func(what string) {
		t.Helper()
		n := replies()
		awaitState(t, what, func() bool { return replies() > n+5 })
	}
	more("replies in the live line")
	tm.resize(40)
	awaitState(t, "a line of 40 columns", func() bool {
		line := tm.last()
		return strings.Contains(line, " received, ") && len(line) < 40
	})
	tm.resize(250)
	more("a line of 250 columns")

	rows, _ := tm.look()
	near.Exec(t, "ip", "link", "set", "dev", "eth1", "down")
	awaitState(t, "probes that are not sent", func() bool {
		return regexp.MustCompile(`, [2-9]\d* not sent`).MatchString(tm.last())
	})
	near.Exec(t, "ip", "link", "set", "dev", "eth1", "up")
	more("replies again")
	awaitState(t, "a line in the log below the first live line", func() bool {
		now, _ := tm.look()
		return slices.ContainsFunc(now[len(rows)-1:], regexp.MustCompile("^"+logRow+"$").MatchString)
	})

	if _, err := tm.master.Write([]byte{3}); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	rows = tm.ended(cmd, 1)
	expectRows(t, rows, logRow, headRow, logRow+`|seq=\d+ (not_sent|unknown) \(\w+\)`, `--- 10.1.0.2:862 stamp ---`,
		`\d+ sent, \d+ received, .*not sent.*`, rttRow, dwellRow, stampsRow, blockRow)
	text := strings.Join(rows, "\n")
	if n := strings.Count(text, "not_sent ("); n == 0 || n > 5 {
		t.Errorf("%d lines about probes that were not sent; want one for each reason in a row", n)
	}
	received, drawn := 0, 0
	for _, row := range rows {
		var sent, n int
		var from, to float64
		if _, err := fmt.Sscanf(row, "%d sent, %d received", &sent, &n); err == nil {
			received = n
		} else if _, err := fmt.Sscanf(row, "%f to %f us %d", &from, &to, &n); err == nil {
			drawn += n
		}
	}
	if received == 0 || received != drawn {
		t.Errorf("%d received, %d in the histogram", received, drawn)
	}
}

// What a terminal gets when the count is reached, and which commands, terminals
// and pipes get lines alone.
func TestPingOnALoopbackTerminal(t *testing.T) {
	ns := netnstest.New(t).Namespace("one")
	reflectingIn(t, ns)
	const (
		refused = `better time stamps were refused: .*`
		head    = `--- 127.0.0.1:862 stamp ---`
		sent    = `5 sent, 5 received, 0 lost \(0\.0%\).*`
		reply   = `seq=\d from 127.0.0.1: rtt=.*`
	)
	for _, tt := range []struct {
		name  string
		args  []string
		env   string
		piped bool
		live  bool
		want  []string
	}{
		{"live", nil, "TERM=xterm", false, true, []string{headRow, refused, head, sent, rttRow, dwellRow, stampsRow, hashRow}},
		{"quiet", []string{"-q"}, "TERM=xterm", false, false, []string{headRow, refused, head, sent, rttRow, dwellRow, stampsRow}},
		{"json", []string{"--json"}, "TERM=xterm", false, false, []string{`\{"type":"sample",.*`, `\{"type":"summary",.*`}},
		{"dumb", nil, "TERM=dumb", false, false, []string{headRow, refused, reply, head, sent, rttRow, dwellRow, stampsRow}},
		{"piped", nil, "TERM=xterm", true, false, []string{headRow, refused, reply, head, sent, rttRow, dwellRow, stampsRow}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tm := newTerminal(t, 80)
			cmd := program(t, append([]string{"ping", "-c", "5", "-i", "20ms", "--timeout", "30s", "127.0.0.1"}, tt.args...)...)
			cmd.Env = append(cmd.Env, "LC_ALL=C", withoutBPF+"=1", tt.env)
			var pipe output
			if tt.piped {
				cmd.Stdout = &pipe
			}
			tm.start(ns, cmd)
			var rows []string
			if tt.piped {
				cmd.Wait()
				<-tm.read
				rows = strings.Split(strings.TrimSuffix(pipe.String(), "\n"), "\n")
			} else {
				rows = tm.ended(cmd, 0)
			}
			expectRows(t, rows, tt.want...)
			if (tm.escapes > 0) != tt.live {
				t.Errorf("%d control sequences; a live line is wanted: %v", tm.escapes, tt.live)
			}
		})
	}
}

// liveOn is a live line with what it is written on.
func liveOn(columns int) (l *live, out *output) {
	out = new(output)
	l = &live{terminal: out, columns: func() int { return columns }, outcomes: make(map[store.Outcome]uint64), rtts: make(spread)}
	return l, out
}

func TestLiveText(t *testing.T) {
	reply := func(rtt int64) store.Sample { return store.Sample{RTT: rtt} }
	lost := store.Sample{Outcome: store.Lost}
	fast := []store.Sample{reply(40_000), reply(61_000), lost, reply(45_123)}
	slow := []store.Sample{reply(20_123_456), reply(20_400_000), reply(1_000_000_000)}
	odd := []store.Sample{reply(999_949), {Outcome: store.Late, RTT: 1_200_000_000}, {Outcome: store.NotSent, Reason: store.NoRoute},
		{Outcome: store.Unknown, Reason: store.ClockStep}}
	for _, tt := range []struct {
		samples []store.Sample
		columns int
		want    string
	}{
		{nil, 80, "0 received, 0 lost (0.0%)"},
		{[]store.Sample{lost}, 80, "0 received, 1 lost (100.0%)"},
		{fast, 200, "3 received, 1 lost (25.0%), rtt 45.1 us, min 40.0, p50 45.2, p99 61.0, max 61.0"},
		{fast, 80, "3 received, 1 lost (25.0%), rtt 45.1 us, min 40.0, p50 45.2, p99 61.0, max 61.0"},
		{fast, 79, "3 received, 1 lost (25.0%), rtt 45.1 us, min 40.0, p50 45.2, p99 61.0"},
		{fast, 20, "3 received"},
		{fast, 11, "3 received"},
		{fast, 10, ""},
		{fast, 1, ""},
		{slow, 200, "3 received, 0 lost (0.0%), rtt 1000000 us, min 20123, p50 20414, p99 1000000, max 1000000"},
		{slow, 80, "3 received, 0 lost (0.0%), rtt 1000000 us, min 20123, p50 20414, p99 1000000"},
		{slow, 20, "3 received"},
		{odd, 200, "2 received, 0 lost (0.0%), 1 late, 1 not sent, 1 unknown, rtt 1200000 us, min 999.9, p50 1000, p99 1200000, max 1200000"},
		{odd, 70, "2 received, 0 lost (0.0%), 1 late, 1 not sent, 1 unknown"}, // but min would fit
	} {
		t.Run(fmt.Sprintf("%d samples on %d columns", len(tt.samples), tt.columns), func(t *testing.T) {
			l, _ := liveOn(tt.columns)
			rtt := newDistribution()
			for _, s := range tt.samples {
				l.take(s)
				if s.Outcome == store.OnTime || s.Outcome == store.Late {
					rtt.add(s.RTT)
				}
			}
			if diff := cmp.Diff(tt.want, l.text(&rtt, l.columns())); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A pinger with a live line prints what it does off a terminal, without the
// replies and what is lost, and then a histogram.
func TestLiveKeepsWhatMustStay(t *testing.T) {
	p := newPinger(new(output), target.Defaults(), false, false)
	l, out := liveOn(80)
	p.live, p.out = l, l.above(out)
	log := l.above(out)
	p.begin(openedOnce())
	l.draw(&p.sum.rtt)
	p.take(measuredOnce(), 0)
	l.draw(&p.sum.rtt)
	l.draw(&p.sum.rtt) // no news
	fmt.Fprintln(log, "a line of the log")
	fmt.Fprintln(log, "another")
	l.draw(&p.sum.rtt)
	var exit *exitError
	if err := p.end(countedOnce()); !errors.As(err, &exit) || exit.code != 1 {
		t.Errorf("%v, want exit code 1", err)
	}
	l.draw(&p.sum.rtt)
	l.clear()
	l.clear()

	const wiped = "\r\x1b[K"
	line := "\r3 received, 1 lost (25.0%), 1 late, 2 not sent, 1 unknown, rtt 1200000 us" + "\x1b[K\r"
	plain, err := os.ReadFile("testdata/ping.golden")
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(plain), "seq=")
	_, summary, _ := strings.Cut(rest, "---")
	want := head + "\r0 received, 0 lost (0.0%)\x1b[K\r" +
		wiped + "seq=4 not_sent (no_route)\nseq=6 unknown (clock_step)\n" + line +
		wiped + "a line of the log\nanother\n" + line +
		wiped + "---" + summary + spreadOf(45.123, 40, 1_200_000).histogram(80, blocksShow()) +
		line + wiped
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLiveIsDrawnTenTimesASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPinger(new(output), target.Defaults(), false, false)
		var out *output
		p.live, out = liveOn(80)
		ring, finished := probe.NewRing(16), make(chan error, 1)
		go func() {
			for range 1050 {
				<-time.After(time.Millisecond)
				ring.Put(0, store.Sample{RTT: 45_000})
			}
			finished <- nil
		}()
		if err := p.follow(ring, func() int64 { return 0 }, finished); err != nil {
			t.Error(err)
		}
		if n := strings.Count(out.String(), "\x1b[K\r"); n != 11 {
			t.Errorf("drawn %d times, want once at first and 10 times in a second", n)
		}
		if n := p.live.outcomes[store.OnTime]; n != 1050 {
			t.Errorf("%d replies taken, want 1050", n)
		}
	})
}

func TestBlocksShow(t *testing.T) {
	for _, tt := range []struct {
		all, ctype, lang string
		want             bool
	}{
		{"", "", "", false},
		{"", "", "en_US.UTF-8", true},
		{"", "", "de_DE.utf8", true},
		{"", "", "C", false},
		{"", "C", "en_US.UTF-8", false},
		{"", "C.UTF-8", "C", true},
		{"POSIX", "C.UTF-8", "C.UTF-8", false},
		{"C.UTF-8", "C", "C", true},
		{"", "", "de_DE.ISO-8859-1", false},
	} {
		t.Run(fmt.Sprintf("LC_ALL=%s LC_CTYPE=%s LANG=%s", tt.all, tt.ctype, tt.lang), func(t *testing.T) {
			t.Setenv("LC_ALL", tt.all)
			t.Setenv("LC_CTYPE", tt.ctype)
			t.Setenv("LANG", tt.lang)
			if got := blocksShow(); got != tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}
