// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// clock is the time the engine runs on. Every interval, deadline and RTT is
// CLOCK_MONOTONIC; the wall clock only dates samples and fills the wire's
// time fields.
type clock interface {
	// mono is CLOCK_MONOTONIC in nanoseconds.
	mono() int64
	// offset is CLOCK_REALTIME - CLOCK_MONOTONIC, measured now.
	offset() offset
	// state is what is known of the wall clock now.
	state() ClockState
	// watch calls changed at each step of the wall clock and once a minute,
	// until ctx ends.
	watch(ctx context.Context, changed func()) error
}

// offset is CLOCK_REALTIME - CLOCK_MONOTONIC. NTP slews both clocks alike, so
// it moves only when the wall clock is stepped.
type offset struct {
	ns int64
	// uncertainty is how far off ns may be, from the time that measuring took.
	uncertainty int64
}

// moved reports whether the wall clock was stepped between two measurements.
func (o offset) moved(later offset) bool {
	d := later.ns - o.ns
	return max(d, -d) > o.uncertainty+later.uncertainty
}

// systemClock reads the kernel's clocks.
type systemClock struct {
	// CLOCK_MONOTONIC was base at began. The runtime reads that clock without
	// a system call, if not with its true value.
	began time.Time
	base  int64
}

// newSystemClock finds out where the runtime's clock stands. All readings of
// mono are off alike by what is left, some 100 ns: far less than a packet takes
// from being dated to the next stamp.
func newSystemClock() systemClock {
	c := systemClock{began: time.Now()}
	narrowest := time.Duration(math.MaxInt64)
	for range 32 {
		before := time.Since(c.began)
		now := clockNS(unix.CLOCK_MONOTONIC)
		width := time.Since(c.began) - before
		if width < narrowest {
			narrowest = width
			c.base = now - int64(before+width/2)
		}
	}
	return c
}

func (c systemClock) mono() int64 { return c.base + int64(time.Since(c.began)) }

// offset brackets a wall clock reading by two monotonic ones and keeps the
// narrowest of five brackets, since any of them may be interrupted.
func (systemClock) offset() offset {
	var best offset
	for i := range 5 {
		before := clockNS(unix.CLOCK_MONOTONIC)
		wall := clockNS(unix.CLOCK_REALTIME)
		after := clockNS(unix.CLOCK_MONOTONIC)
		width := (after - before + 1) / 2
		if i == 0 || width < best.uncertainty {
			best = offset{ns: wall - before - width, uncertainty: width}
		}
	}
	return best
}

func clockNS(id int32) int64 {
	var ts unix.Timespec
	// Both clocks exist on every kernel; the call has no other error.
	_ = unix.ClockGettime(id, &ts)
	return ts.Nano()
}

// ClockState is what the kernel knows about the wall clock.
type ClockState struct {
	// Offset is CLOCK_REALTIME - CLOCK_MONOTONIC in nanoseconds.
	Offset int64
	// Synchronized is false while the kernel says STA_UNSYNC.
	Synchronized bool
	// Error is the kernel's estimated error of the wall clock.
	Error time.Duration
}

// ReadClock is what the kernel knows about the wall clock now.
func ReadClock() ClockState { return systemClock{}.state() }

func (c systemClock) state() ClockState {
	s := ClockState{Offset: c.offset().ns}
	var tx unix.Timex
	if _, err := unix.Adjtimex(&tx); err == nil {
		s.Synchronized = tx.Status&unix.STA_UNSYNC == 0
		s.Error = time.Duration(tx.Esterror) * time.Microsecond
	}
	return s
}

// watch learns of steps from the kernel, which cancels timers on
// CLOCK_REALTIME then (TFD_TIMER_CANCEL_ON_SET, Linux 3.0).
func (systemClock) watch(ctx context.Context, changed func()) error {
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("create a timer for clock steps: %w", err)
	}
	timer := os.NewFile(uintptr(fd), "timerfd")
	defer timer.Close()
	stop := context.AfterFunc(ctx, func() { timer.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()

	const period = 60
	buf := make([]byte, binary.Size(uint64(0)))
	for ctx.Err() == nil {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil {
			return fmt.Errorf("read the wall clock: %w", err)
		}
		at := unix.ItimerSpec{Value: unix.Timespec{Sec: now.Sec + period}}
		flags := unix.TFD_TIMER_ABSTIME | unix.TFD_TIMER_CANCEL_ON_SET
		err := unix.TimerfdSettime(fd, flags, &at, nil)
		if err == nil {
			_, err = timer.Read(buf)
		}
		switch { // a step between the two cancels the arming
		case err == nil, errors.Is(err, unix.ECANCELED):
			changed()
		case ctx.Err() != nil:
			return nil
		default:
			return fmt.Errorf("wait for clock steps: %w", err)
		}
	}
	return nil
}

// stamp is one time stamp of a packet.
type stamp struct {
	ns   int64
	wall bool // CLOCK_REALTIME rather than CLOCK_MONOTONIC
}

// exchange is what is known about the clocks around one probe and its reply.
type exchange struct {
	sent, received int64 // CLOCK_MONOTONIC just before sending, and when the reply was handled
	before, after  offset
}

// monotonic converts s, which was taken within the exchange, to
// CLOCK_MONOTONIC. When the wall clock was stepped in between, a wall stamp is
// taken with the one offset that puts it inside the exchange; it is not known
// (false) if both do or neither does.
func (x exchange) monotonic(s stamp) (int64, bool) {
	if !s.wall {
		return s.ns, true
	}
	inside := func(o offset) bool {
		m := s.ns - o.ns
		return m >= x.sent-o.uncertainty && m <= x.received+o.uncertainty
	}
	if !x.before.moved(x.after) {
		return s.ns - x.before.ns, inside(x.before) || inside(x.after)
	}
	switch old, now := inside(x.before), inside(x.after); {
	case old && !now:
		return s.ns - x.before.ns, true
	case now && !old:
		return s.ns - x.after.ns, true
	default:
		return 0, false
	}
}

// roundTrip is received - sent of two stamps taken within the exchange, in
// nanoseconds, or false when a clock step makes it unknowable.
func (x exchange) roundTrip(tx, rx stamp) (int64, bool) {
	if tx.wall && rx.wall && !x.before.moved(x.after) {
		return rx.ns - tx.ns, rx.ns >= tx.ns
	}
	t1, ok1 := x.monotonic(tx)
	t4, ok4 := x.monotonic(rx)
	return t4 - t1, ok1 && ok4 && t4 >= t1
}
