// SPDX-License-Identifier: Apache-2.0

package store

import (
	"maps"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const (
	// calm is how long nothing of a trouble comes until it is over. It is longer than asideWindow: files set aside as often as is allowed
	// are one trouble.
	calm = asideWindow + 30*time.Minute
	// tellAgain is the time between two lines that say that a trouble goes on.
	tellAgain = 4 * time.Hour
	// longCalm is the calm of a trouble that is over too often.
	longCalm = 2 * tellAgain

	// maxNamed is how many names a line has; the rest are others.
	maxNamed = 16
	others   = "others"
)

// kind is a kind of trouble.
type kind struct {
	level        zapcore.Level
	begins, ends string // what its lines say
	reason       string // keeps two apart that say the same
}

var (
	troubleAside = kind{level: zap.ErrorLevel,
		begins: "store file is corrupt: set aside, a new one is begun", ends: "corrupt store files were set aside"}
	troubleStays = kind{level: zap.ErrorLevel,
		begins: "corrupt store file could not be set aside", ends: "corrupt store files could not be set aside"}
	troubleElsewhere = kind{level: zap.ErrorLevel,
		begins: "store file is corrupt and not where it was", ends: "store files were corrupt and not where they had been"}
	troubleClose = kind{level: zap.WarnLevel,
		begins: "corrupt store file could not be closed", ends: "corrupt store files could not be closed"}
	troubleCommit = kind{level: zap.WarnLevel,
		begins: "store file could not be closed after a failed commit", ends: "store files could not be closed after failed commits"}
	troubleDamage = kind{level: zap.ErrorLevel,
		begins: "damaged samples given up", ends: "damaged samples were given up"}
	troubleDrops = kind{level: zap.WarnLevel,
		begins: "dropping samples that sinks have not taken", ends: "dropped samples that sinks had not taken"}
)

// because is the kind that has a reason.
func (k kind) because(reason string) kind {
	k.reason = reason
	return k
}

// trouble is something that goes wrong again and again. It has a line at once when it begins, one every few hours while it goes on, and
// one when nothing of it has come for a while, with how often and for how long it came. What comes and goes must not fill the log: a
// trouble that begins not long after its last line has to be calm for longer until it is over.
type trouble struct {
	times             uint64 // since it began; 0: it is over
	since, last, told time.Time
	calm              time.Duration
	samples           map[string]uint64 // that it has cost, by sink or path
}

// trouble takes note of a trouble and of the samples that it has cost, and has the line about it unless there was one lately. The caller
// holds l.write.
func (l *Log) trouble(k kind, samples map[string]uint64, fields ...zap.Field) {
	now := l.cfg.Now()
	t := l.cfg.History.troubles[k]
	if t == nil {
		t = &trouble{}
		l.cfg.History.troubles[k] = t
	}
	if t.times == 0 {
		begun := trouble{since: now, told: t.told, calm: calm, samples: map[string]uint64{}}
		if now.Sub(t.told) < longCalm {
			begun.calm = longCalm
		}
		*t = begun
	}
	t.times++
	t.last = now
	for name, n := range samples {
		if _, named := t.samples[name]; !named && len(t.samples) >= maxNamed {
			name = others
		}
		t.samples[name] += n
	}
	if t.times > 1 && now.Sub(t.told) < tellAgain {
		return
	}
	if t.times > 1 {
		fields = append(fields, zap.Uint64("times", t.times), zap.Duration("for", now.Sub(t.since)))
	}
	l.tell(k.level, k.begins, k, t, fields)
}

// endTroubles has the lines about troubles that are over, or about all. The caller holds l.write.
func (l *Log) endTroubles(all bool) {
	now := l.cfg.Now()
	for k, t := range l.cfg.History.troubles {
		if t.times > 0 && (all || now.Sub(t.last) >= t.calm) {
			l.tell(zap.WarnLevel, k.ends, k, t, []zap.Field{
				zap.Uint64("times", t.times), zap.Duration("after", t.last.Sub(t.since)), zap.Time("until", t.last),
			})
			t.times = 0
		}
	}
}

func (l *Log) tell(level zapcore.Level, text string, k kind, t *trouble, fields []zap.Field) {
	t.told = l.cfg.Now()
	fields = append(fields, zap.String("file", l.cfg.Path))
	if k.reason != "" {
		fields = append(fields, zap.String("reason", k.reason))
	}
	if len(t.samples) > 0 {
		fields = append(fields, zap.Any("samples", maps.Clone(t.samples)))
	}
	l.log.Log(level, text, fields...)
}
