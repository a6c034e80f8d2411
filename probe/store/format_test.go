// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write testdata of the present format version; never for a released one")

// expected is what a file of testdata holds, as samples.json beside it says.
type expected struct {
	Paths  []Path                       `json:"paths"`
	Lines  map[string][]json.RawMessage `json:"samples"` // by path, as AppendJSON
	Totals map[string]Totals            `json:"totals"`
	Values map[string]string            `json:"values"` // of sink "ledger"
	Next   map[string]uint64            `json:"next"`   // numbers
}

func content(t *testing.T, l *Log) expected {
	t.Helper()
	e := expected{Lines: map[string][]json.RawMessage{}, Totals: map[string]Totals{}, Values: map[string]string{}, Next: map[string]uint64{}}
	var err error
	if e.Paths, err = l.Paths(); err != nil {
		t.Fatal(err)
	}
	for _, p := range e.Paths {
		samples, err := l.Read(p.ID, 0, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range samples {
			e.Lines[p.Name] = append(e.Lines[p.Name], s.AppendJSON(nil, "", p.Name))
		}
		e.Next[p.Name] = l.paths[p.ID].next
	}
	for _, sink := range []string{"file", "ledger"} {
		if e.Totals[sink], err = l.Totals(sink); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"journal", "empty"} {
		v, err := l.Get("ledger", key)
		if err != nil {
			t.Fatal(err)
		}
		e.Values[key] = string(v)
	}
	return e
}

func enableAll(t *testing.T, l *Log) {
	t.Helper()
	if err := l.Enable("file", false, all); err != nil {
		t.Fatal(err)
	}
	if err := l.Enable("ledger", false, func(p Path) bool { return p.Labels["doublezero.link"] != "" }); err != nil {
		t.Fatal(err)
	}
}

func TestEveryReleasedFormatOpens(t *testing.T) {
	if *update {
		writeTestdata(t, filepath.Join("testdata", "v1"))
	}
	dirs, err := filepath.Glob(filepath.Join("testdata", "v*"))
	if err != nil || len(dirs) < formatVersion {
		t.Fatalf("testdata: %v, %v", dirs, err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var want expected
			text, err := os.ReadFile(filepath.Join(dir, "samples.json"))
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(text, &want); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(filepath.Join(dir, "samples.db"))
			if err != nil {
				t.Fatal(err)
			}
			f := newClosedFixture(t)
			if err := os.WriteFile(f.cfg.Path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			ro, err := OpenReadOnly(f.cfg.Path, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			for id, p := range want.Paths {
				got, err := ro.Read(PathID(id+1), 0, 1<<30)
				if err != nil || len(got) != len(want.Lines[p.Name]) {
					t.Errorf("read-only: path %s has %d samples, %v", p.Name, len(got), err)
				}
			}
			if err := ro.Close(); err != nil {
				t.Fatal(err)
			}
			f.open()
			enableAll(t, f.Log)
			compact := content(t, f.Log)
			got, err := json.MarshalIndent(compact, "", "\t")
			if err != nil {
				t.Fatal(err)
			}
			diff(t, "content", string(text), string(got)+"\n")
			f.add(1, 0, 1)
			if st := f.status(); len(st.SetAside) > 0 || f.logs.Len() > 0 {
				t.Errorf("status %+v, log %v", st, f.logs.All())
			}
		})
	}
}

// writeTestdata makes a file with something in each bucket: chunks of two boots, a tail, sinks at different places, drops, fixed times.
func writeTestdata(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, func(c *Config) { c.NoSync = false })
	lon, err := f.Register("ams-lon", map[string]string{"circuit": "42", "doublezero.link": "L1"})
	if err != nil {
		t.Fatal(err)
	}
	par := f.register("ams-par")[0]
	enableAll(t, f.Log)
	f.SetOffset(synced(bootTime))
	f.add(lon.ID, 0, 150)
	f.add(par, 0, 40)
	f.deliver("file", lon.ID, 30)
	f.SetOffset(synced(bootTime.Add(time.Second)))
	f.deliver("file", lon.ID, 30)
	if err := f.fold(); err != nil {
		t.Fatal(err)
	}
	f.write.Lock()
	_, err = f.drop(reasonMaxBytes, 1, func(p *path, _ chunkHead) bool { return p.ID == lon.ID })
	f.write.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	f.cfg.Boot = "boot-2"
	f.reopen()
	enableAll(t, f.Log)
	f.SetOffset(unsync(bootTime.Add(time.Hour)))
	f.add(lon.ID, 150, 20)
	if err := f.Commit("ledger", Update{Positions: map[PathID]uint64{lon.ID: 160}, Delivered: 160 - f.sinks["ledger"].at(lon.ID).next - 3,
		Dropped: map[string]uint64{"undated": 3}, Put: map[string][]byte{"journal": {0, 1, 255}, "empty": {}}}); err != nil {
		t.Fatal(err)
	}
	f.add(lon.ID, 170, 5)
	f.add(par, 40, 5)
	text, err := json.MarshalIndent(content(t, f.Log), "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	path := f.cfg.Path
	f.close()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := readMeta(mustOpen(t, path))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "samples.db"), data[:m.pages*pageSize], 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "samples.json"), append(text, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

func mustOpen(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
