// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
)

// reloads is what became of reading the configuration again.
type reloads struct {
	mu      sync.Mutex // one at a time
	failed  bool       // the last
	success time.Time  // of the last that did not, the start at first
}

func (r *reloads) status() (successful bool, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.failed, r.success
}

// reload reads the configuration again and measures its targets from now on. A
// file with a fault changes nothing. Other keys than those of targets take
// effect when the program is started again; changed are those that wait for it.
func (d *daemon) reload() (changed []string, err error) {
	d.reloads.mu.Lock()
	defer d.reloads.mu.Unlock()
	defer func() {
		d.reloads.failed = err != nil
		if err != nil {
			d.log.Error("the configuration was not reloaded; the old one stays", zap.Error(err))
			return
		}
		d.reloads.success = time.Now()
	}()
	if d.read == nil {
		return nil, fmt.Errorf("there is no file to read")
	}
	cfg, err := d.read()
	if err != nil {
		return nil, err
	}
	static, err := cfg.targets(cfg.Targets)
	if err != nil {
		return nil, err
	}
	before := d.latest.Swap(cfg)
	err = d.measure(func(l *targetLists) {
		l.static = static
		if d.files != nil {
			l.files = d.files.Read(true)
		}
	})
	if err != nil {
		d.latest.Store(before)
		return nil, err
	}
	if d.discovery != nil {
		if err := d.discovery.SetTarget(cfg.linkTarget()); err != nil {
			return nil, err
		}
	}
	changed = differences(d.cfg, cfg)
	d.log.Info("the configuration was reloaded", zap.Int("targets", len(d.engine.Paths())), zap.Strings("keys_that_need_a_restart", changed))
	return changed, nil
}

// differences names the top-level keys, but for those of targets, in which two
// configurations differ.
func differences(a, b *config) (keys []string) {
	old, fresh := reflect.ValueOf(*a), reflect.ValueOf(*b)
	for i := range old.NumField() {
		switch key := old.Type().Field(i).Tag.Get("yaml"); {
		case key == "targets", key == "probe":
		case !reflect.DeepEqual(old.Field(i).Interface(), fresh.Field(i).Interface()):
			keys = append(keys, key)
		}
	}
	return keys
}

// reloadOnSignal reloads whenever SIGHUP comes, until ctx ends.
func (d *daemon) reloadOnSignal(ctx context.Context) error {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hangups:
			_ = d.manager.reloading(func() error { // which has said what was wrong
				_, err := d.reload()
				return err
			})
		}
	}
}

// serveReload answers POST /-/reload.
func (d *daemon) serveReload(w http.ResponseWriter, _ *http.Request) {
	changed, err := d.reload()
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
	case len(changed) > 0:
		fmt.Fprintf(w, "reloaded; changes below these keys need a restart: %s\n", strings.Join(changed, ", "))
	default:
		fmt.Fprintln(w, "reloaded")
	}
}
