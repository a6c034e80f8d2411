// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/xtwamp/xtwamp/submit"
)

// manager is the service manager that has started the process, and that wants to
// hear how it is (sd_notify(3)). Without one nothing is said to anybody.
type manager struct {
	log  *zap.Logger
	tell func(state string) error
	deaf sync.Once
}

func newManager(log *zap.Logger) *manager {
	return &manager{log: log, tell: func(state string) error {
		_, err := systemd.SdNotify(false, state)
		return err
	}}
}

// say tells a state. It blocks as long as the manager takes nothing, so the core
// leaves it to others.
func (m *manager) say(state string) {
	if err := m.tell(state); err != nil {
		m.deaf.Do(func() { m.log.Warn("the service manager cannot be told", zap.String("state", state), zap.Error(err)) })
	}
}

func (m *manager) ready()    { m.say(systemd.SdNotifyReady) }
func (m *manager) stopping() { m.say(systemd.SdNotifyStopping) }

// reloading lets the manager know of a reload for as long as it takes.
func (m *manager) reloading(reload func() error) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return errors.Join(fmt.Errorf("read the clock: %w", err), reload())
	}
	m.say(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", systemd.SdNotifyReloading, now.Nano()/1000))
	defer m.ready()
	return reload()
}

// watchdog feeds the manager's watchdog until ctx ends, twice in each of its
// periods, but not while a loop is stuck: the manager then ends the process with
// the stacks of all goroutines in the log, and starts it again.
func (m *manager) watchdog(ctx context.Context, l *loops) error {
	period, err := systemd.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("read the period of the watchdog: %w", err)
	}
	if period > 0 {
		m.feed(ctx, l, period/2)
	}
	return nil
}

func (m *manager) feed(ctx context.Context, l *loops, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	stuck := submit.Outage{
		Begins: "loops are stuck: the service manager is to start this process again", Ends: "no loop is stuck any more", Level: zap.ErrorLevel,
	}
	for {
		var names []string
		for _, s := range l.stuck() {
			names = append(names, s.Name)
		}
		if len(names) == 0 {
			m.say(systemd.SdNotifyWatchdog)
			stuck.Over(m.log)
		} else {
			stuck.GoesOn(m.log, errors.New("three deadlines were missed"), zap.String("loops", strings.Join(names, ", ")))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
