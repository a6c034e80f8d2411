// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/submit"
)

// savedTopology is the state file: a list and what shows that it is whole.
type savedTopology struct {
	SHA256   string          `json:"sha256"` // of what follows
	Topology json.RawMessage `json:"topology"`
}

// remember begins with the list that was saved, unless one is known. A file that cannot be used costs nothing but itself, and is told once.
func (d *Discovery) remember() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cfg.State == "" || d.recalled {
		return
	}
	d.recalled = true
	t, err := readTopology(d.cfg.State)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		d.logger.Warn("saved links cannot be read, nothing is measured before the ledger tells them", zap.String("file", d.cfg.State), zap.Error(err))
	case t.Program != d.cfg.Program || t.Device != d.cfg.Device:
		d.logger.Warn("saved links are those of another device", zap.String("file", d.cfg.State), zap.Stringer("device", t.Device))
	default:
		nameLinks(t.Links, t.Links)
		d.topology, d.fromFile, d.told = t, true, t
		fields, _ := d.teller.Tell(t.state(), false)
		d.logger.Info("begin with saved links", append(fields, zap.Int("links", len(t.Links)))...)
	}
}

func readTopology(path string) (*topology, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe that nobody writes to must not block the start
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxAnswer))
	if err != nil {
		return nil, err
	}
	var saved savedTopology
	if err := json.Unmarshal(text, &saved); err != nil {
		return nil, fmt.Errorf("damaged: %w", err)
	}
	if sum := sha256.Sum256(saved.Topology); hex.EncodeToString(sum[:]) != saved.SHA256 {
		return nil, errors.New("damaged: wrong checksum")
	}
	t := new(topology)
	return t, json.Unmarshal(saved.Topology, t)
}

// save keeps a list that differs from what was saved; if it cannot, until it can.
func (d *Discovery) save(t *topology) {
	if d.cfg.State == "" {
		return
	}
	if !d.unsaved {
		d.saving.Over(d.logger)
		return
	}
	inner := asJSON(t)
	sum := sha256.Sum256(inner)
	if err := submit.ReplaceFile(d.cfg.State, asJSON(savedTopology{SHA256: hex.EncodeToString(sum[:]), Topology: inner})); err != nil {
		d.saving.GoesOn(d.logger, err)
		return
	}
	d.unsaved = false
	d.saving.Over(d.logger)
}
