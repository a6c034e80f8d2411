// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap/zapcore"
)

// recentKept is how many lines of the log are remembered.
const recentKept = 50

// recentChange is a line of the log: each is about a change of state.
type recentChange struct {
	Time    time.Time `json:"time"`
	Level   string    `json:"level"`
	Logger  string    `json:"logger,omitempty"`
	Message string    `json:"message"`
	Fields  string    `json:"fields,omitempty"`
}

// recent remembers the last lines of the log, from info upwards (zapcore.Core).
type recent struct {
	fields []zapcore.Field
	*recentLines
}

type recentLines struct {
	mu    sync.Mutex
	lines []recentChange // the newest last
}

func newRecent() *recent { return &recent{recentLines: new(recentLines)} }

// newest lists what is remembered, the newest first.
func (r *recentLines) newest() []recentChange {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := slices.Clone(r.lines)
	slices.Reverse(lines)
	return lines
}

// Enabled implements zapcore.Core.
func (r *recent) Enabled(l zapcore.Level) bool { return l >= zapcore.InfoLevel }

// With implements zapcore.Core.
func (r *recent) With(fields []zapcore.Field) zapcore.Core {
	return &recent{slices.Concat(r.fields, fields), r.recentLines}
}

// Check implements zapcore.Core.
func (r *recent) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if r.Enabled(e.Level) {
		return to.AddCore(e, r)
	}
	return to
}

// Write implements zapcore.Core.
func (r *recent) Write(e zapcore.Entry, fields []zapcore.Field) error {
	m := zapcore.NewMapObjectEncoder()
	for _, f := range slices.Concat(r.fields, fields) {
		if f.Key != "stack" {
			f.AddTo(m)
		}
	}
	var text []string
	for _, key := range slices.Sorted(maps.Keys(m.Fields)) {
		if value := m.Fields[key]; value != "" {
			text = append(text, fmt.Sprintf("%s=%v", key, value))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.lines) == recentKept {
		r.lines = slices.Delete(r.lines, 0, 1)
	}
	r.lines = append(r.lines, recentChange{e.Time, e.Level.String(), e.LoggerName, e.Message, strings.Join(text, ", ")})
	return nil
}

// Sync implements zapcore.Core.
func (r *recent) Sync() error { return nil }
