// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/probe/store"
)

// redrawEvery is the time between two looks at what the live line has to say.
const redrawEvery = 100 * time.Millisecond

// live shows how a ping goes in the last line of a terminal, which it rewrites
// in place. What is to stay is written above it.
type live struct {
	terminal io.Writer
	columns  func() int

	// What a ping came to so far; of the goroutine that takes the samples.
	outcomes map[store.Outcome]uint64
	last     int64 // RTT of the last reply
	reason   store.Reason
	rtts     spread

	mu    sync.Mutex
	shown string // the line as it stands, "" if it does not
}

// newLive is nil where a line cannot be rewritten.
func newLive(w io.Writer) *live {
	if term := os.Getenv("TERM"); !isTerminal(w) || term == "" || term == "dumb" {
		return nil
	}
	terminal := w.(*os.File)
	columns := func() int {
		size, err := unix.IoctlGetWinsize(int(terminal.Fd()), unix.TIOCGWINSZ)
		if err != nil || size.Col == 0 { // a serial line
			return 80
		}
		return int(size.Col)
	}
	return &live{terminal: terminal, columns: columns, outcomes: make(map[store.Outcome]uint64), rtts: make(spread)}
}

// take counts a sample, and says whether it is to have a line of its own: the
// first of those in a row that a fault of this host kept from being measured.
func (l *live) take(s store.Sample) (stays bool) {
	l.outcomes[s.Outcome]++
	if s.Outcome == store.OnTime || s.Outcome == store.Late {
		l.last = s.RTT
		l.rtts.add(s.RTT)
	}
	stays = s.Reason != store.NoReason && s.Reason != l.reason
	l.reason = s.Reason
	return stays
}

// text is what there is to say, most important first, in fewer than so many
// columns: the last one is left alone, since some terminals go on to the next
// line there. A part is whole or missing, since the first digits of a number
// are another number.
func (l *live) text(rtt *distribution, columns int) string {
	n := l.outcomes
	answered := n[store.OnTime] + n[store.Late]
	loss := 0.0
	if n[store.Lost] > 0 {
		loss = 100 * float64(n[store.Lost]) / float64(answered+n[store.Lost])
	}
	parts := []string{fmt.Sprintf("%d received", answered), fmt.Sprintf("%d lost (%.1f%%)", n[store.Lost], loss)}
	for _, o := range []store.Outcome{store.Late, store.NotSent, store.Unknown} {
		if n[o] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[o], strings.ReplaceAll(o.String(), "_", " ")))
		}
	}
	if answered > 0 {
		parts = append(parts, "rtt "+brief(l.last)+" us", "min "+brief(rtt.min), "p50 "+brief(rtt.percentile(50)),
			"p99 "+brief(rtt.percentile(99)), "max "+brief(rtt.max))
	}
	text := ""
	for i, part := range parts {
		if i > 0 {
			part = ", " + part
		}
		if len(text)+len(part) >= columns {
			break
		}
		text += part
	}
	return text
}

// brief is a time in microseconds, with a decimal if it is short.
func brief(ns int64) string {
	if ns < 1e6 {
		return fmt.Sprintf("%.1f", us(ns))
	}
	return fmt.Sprintf("%.0f", us(ns))
}

// draw shows the line if there is news. The cursor is left in the first
// column, where the echo of a key cannot push the line up.
func (l *live) draw(rtt *distribution) {
	text := l.text(rtt, l.columns())
	l.mu.Lock()
	defer l.mu.Unlock()
	if text != l.shown {
		l.shown = text
		fmt.Fprintf(l.terminal, "\r%s\x1b[K\r", text)
	}
}

// clear takes the line away until it is drawn again.
func (l *live) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wipe()
}

func (l *live) wipe() {
	if l.shown != "" {
		l.shown = ""
		fmt.Fprint(l.terminal, "\r\x1b[K")
	}
}

// above is w, which ends on the same terminal, in the place of the line.
func (l *live) above(w io.Writer) io.Writer { return aboveLine{l, w} }

type aboveLine struct {
	line *live
	w    io.Writer
}

func (a aboveLine) Write(p []byte) (int, error) {
	a.line.mu.Lock()
	defer a.line.mu.Unlock()
	a.line.wipe()
	return a.w.Write(p)
}

// blocksShow says whether the locale has Unicode's blocks, by the first of the
// variables that is set.
func blocksShow() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := os.Getenv(name); v != "" {
			v = strings.ToLower(v)
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return false
}
