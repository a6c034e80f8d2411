// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"pgregory.net/rapid"
)

func TestSamplesComeBackAsTheyWentIn(t *testing.T) {
	f := newFixture(t)
	ids := f.register("a", "b", "c")
	next := map[PathID]int{}
	for round := range 40 {
		var batch []Record
		for n, id := range ids {
			for range (round * (n + 1)) % 23 {
				batch = append(batch, Record{Path: id, Sample: sampleNumber(next[id])})
				next[id]++
			}
		}
		if err := f.Append(batch); err != nil {
			t.Fatal(err)
		}
		switch round {
		case 10, 30:
			if err := f.fold(); err != nil {
				t.Fatal(err)
			}
		case 20:
			f.reopen()
		}
		for _, id := range ids {
			diff(t, fmt.Sprintf("path %d after round %d", id, round), wantNumbers(0, 0, next[id]), f.read(id))
		}
	}
	got, err := f.Read(ids[2], 300, 5)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "five from 300 on", wantNumbers(0, 300, 305), got)
	if got, err := f.Read(ids[0], uint64(next[ids[0]]), 5); err != nil || len(got) != 0 {
		t.Errorf("read beyond the end: %v, %v", got, err)
	}
	if st := f.status(); st.Bytes == 0 || st.WrittenBytes == 0 || len(st.SetAside) != 0 {
		t.Errorf("status %+v", st)
	}
}

func TestAnAppendThatFailsStoresNothingAndUsesNoNumber(t *testing.T) {
	f := newFixture(t)
	id := f.register("a")[0]
	f.add(id, 0, 3)
	bad := sampleNumber(4)
	bad.Outcome = 5
	for name, test := range map[string]struct {
		batch []Record
		want  error
	}{
		"unknown path": {[]Record{{Path: id, Sample: sampleNumber(3)}, {Path: id + 1}}, ErrUnknownPath},
		"no path":      {[]Record{{Path: id, Sample: sampleNumber(3)}, {Path: 0}}, ErrUnknownPath},
		"bad outcome":  {[]Record{{Path: id, Sample: sampleNumber(3)}, {Path: id, Sample: bad}}, nil},
	} {
		if err := f.Append(test.batch); err == nil || test.want != nil && !errors.Is(err, test.want) {
			t.Errorf("%s: error %v, want %v", name, err, test.want)
		}
	}
	f.add(id, 3, 1)
	diff(t, "samples", wantNumbers(0, 0, 4), f.read(id))
}

// A commit may fail although all of it reached the file. The batch is given again, or another one: it gets the same numbers, once.
func TestACommitThatFailedButReachedTheFile(t *testing.T) {
	f := newFixture(t)
	id := f.register("a")[0]
	f.enable("s", false)
	f.add(id, 0, 3)
	failed := f.file
	tx, err := failed.begin(true)
	if err != nil {
		t.Fatal(err)
	}
	lost := []Record{{id, sampleNumber(7)}, {id, sampleNumber(8)}}
	key := key64(f.tailNext)
	if err := tx.Bucket(bucketTail).Put(key, seal(bucketTail, key, encodeTail(f.boot, lost, []uint64{3, 4})[0])); err != nil {
		t.Fatal(err)
	}
	change := changeOf(f.sinks["s"])
	change.totals.offered += 2
	if err := f.putSinks(tx, []*sinkChange{change}); err != nil {
		t.Fatal(err)
	}
	if err := tx.bolt.Commit(); err != nil {
		t.Fatal(err)
	}
	f.openAfresh(failed)

	f.add(id, 3, 1)
	for range 2 {
		diff(t, "samples", wantNumbers(0, 0, 4), f.read(id))
		diff(t, "totals", Totals{Offered: 4, Waiting: 4, Dropped: map[string]uint64{}}, f.totals("s"))
		f.reopen()
		f.enable("s", false)
	}
	diff(t, "files set aside", 0, len(f.status().SetAside))
}

// Another file lies where the one was that a commit failed on: nothing in it is ours.
func TestAnotherFileInItsPlace(t *testing.T) {
	f, other := newFixture(t), newFixture(t)
	id := f.register("a")[0]
	f.add(id, 0, 10)
	other.register("x", "y")
	other.close()
	f.openAfresh(f.file)
	if err := os.Rename(other.cfg.Path, f.cfg.Path); err != nil {
		t.Fatal(err)
	}
	f.add(id, 10, 1)
	diff(t, "files set aside", 1, len(f.status().SetAside))
	diff(t, "samples", 1, len(f.read(id)))
	paths, err := f.Paths()
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "paths", []Path{{ID: id, Name: "a"}}, paths)
	f.reopen()
	diff(t, "samples after reopening", 1, len(f.read(id)))
}

// With many paths folding takes several transactions; it may be killed between two of them.
func TestFoldingCutShort(t *testing.T) {
	f := newFixture(t)
	ids := f.register("a", "b")
	f.enable("s", false)
	for i := range 4 {
		f.add(ids[0], i*50, 50)
		f.add(ids[1], i*50, 50)
	}
	f.write.Lock()
	err := f.foldPaths(f.paths[1:2], f.tailNext, false)
	f.write.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, id := range ids {
			diff(t, "samples", wantNumbers(0, 0, 200), f.read(id))
		}
		diff(t, "totals", Totals{Offered: 400, Waiting: 400, Dropped: map[string]uint64{}}, f.totals("s"))
		f.reopen()
		f.enable("s", false)
	}
	diff(t, "log", 0, f.logs.Len())
}

// Whoever waits for the lock of a file that is set aside meanwhile must not get that file.
func TestTheLockOfAFileThatWasMoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	owner, created, err := openLocked(path, false, time.Second)
	if err != nil || !created {
		t.Fatal(created, err)
	}
	second, err := os.OpenFile(path, os.O_RDWR, 0) // a waiter opens it like this, and then waits
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if !samePlace(path, second) {
		t.Error("a file is not where it is")
	}
	got := make(chan *os.File, 1)
	go func() {
		f, _, err := openLocked(path, false, time.Minute)
		if err != nil {
			t.Error(err)
		}
		got <- f
	}()
	for openFiles(t, path) < 3 { // until the waiter has it open
		runtime.Gosched()
	}
	if _, err := moveAside(path, newClock().Now()); err != nil {
		t.Fatal(err)
	}
	if samePlace(path, second) {
		t.Error("a file that was moved is where it was")
	}
	owner.Close()
	f := <-got
	defer f.Close()
	if !samePlace(path, f) {
		t.Error("the waiter has locked the file that was set aside")
	}
}

// openFiles returns how many descriptors of this process are of the file.
func openFiles(t *testing.T, path string) (n int) {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if link, err := os.Readlink(fd); err == nil && link == path {
			n++
		}
	}
	return n
}

func TestChangedIsClosedByAnAppend(t *testing.T) {
	f := newFixture(t)
	id := f.register("a")[0]
	changed := f.Changed()
	select {
	case <-changed:
		t.Fatal("closed before anything was appended")
	default:
	}
	f.add(id, 0, 1)
	select {
	case <-changed:
	default:
		t.Fatal("not closed by an append")
	}
	if f.Changed() == changed {
		t.Error("the next one is the same channel")
	}
}

func TestPathsAndLabelsPersist(t *testing.T) {
	f := newFixture(t)
	f.register("b", "a")
	labels := map[string]string{"doublezero.link": "x", "circuit": ""}
	p, err := f.Register("a", labels)
	if err != nil {
		t.Fatal(err)
	}
	f.reopen()
	again, err := f.Register("a", labels)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "path registered again", p, again)
	paths, err := f.Paths()
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "paths", []Path{{ID: 1, Name: "b"}, {ID: 2, Name: "a", Labels: labels}}, paths)
	written := f.status().WrittenBytes
	if _, err := f.Register("a", labels); err != nil || f.status().WrittenBytes != written {
		t.Errorf("registering a known path wrote to the file, or failed: %v", err)
	}
}

func TestClosedAndReadOnlyLogsSaySo(t *testing.T) {
	f := newFixture(t)
	id := f.register("a")[0]
	f.add(id, 0, 300)
	l := f.Log
	f.close()
	if err := l.Append([]Record{{Path: id}}); !errors.Is(err, ErrClosed) {
		t.Errorf("append to a closed log: %v", err)
	}
	if _, err := l.Read(id, 0, 1); !errors.Is(err, ErrClosed) {
		t.Errorf("read from a closed log: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}

	ro, err := OpenReadOnly(f.cfg.Path, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Close()
	second, err := OpenReadOnly(f.cfg.Path, time.Second)
	if err != nil {
		t.Fatalf("two readers: %v", err)
	}
	defer second.Close()
	got, err := ro.Read(id, 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "read-only samples", wantNumbers(0, 0, 300), got)
	if err := ro.Append([]Record{{Path: id}}); !errors.Is(err, ErrReadOnly) {
		t.Errorf("append to a read-only log: %v", err)
	}
	if _, err := OpenReadOnly(f.cfg.Path+"x", time.Second); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestANewerFormatIsRefusedAndLeftAlone(t *testing.T) {
	f := newFixture(t)
	f.close()
	db, err := bbolt.Open(f.cfg.Path, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	newer := seal(bucketMeta, keyFormat, binary.AppendUvarint(nil, formatVersion+1))
	if err := db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyFormat, newer) }); err != nil {
		t.Fatal(err)
	}
	db.Close()
	before, err := os.ReadFile(f.cfg.Path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(f.cfg); !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), "has format 2, this program knows up to 1") {
		t.Errorf("open: %v", err)
	}
	if _, err := OpenReadOnly(f.cfg.Path, time.Second); !errors.Is(err, ErrVersion) {
		t.Errorf("open for reading: %v", err)
	}
	after, err := os.ReadFile(f.cfg.Path)
	if err != nil || string(after) != string(before) {
		t.Errorf("the file changed, or %v", err)
	}
	diff(t, "files", 1, len(filesBeside(t, f.cfg.Path)))
}

func filesBeside(t testing.TB, path string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

const holderEnv = "XTWAMP_STORE_TEST_HOLDER"

// holder is another process that has the store open until its standard input ends.
func holder(path string) int {
	l, err := Open(Config{Path: path})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("open")
	_, _ = bufio.NewReader(os.Stdin).ReadString(0)
	if l.Close() != nil {
		return 1
	}
	return 0
}

func TestOnlyOneProcessHasTheFile(t *testing.T) {
	f := newFixture(t)
	f.close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holderEnv+"="+f.cfg.Path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "open\n" {
		t.Fatalf("child: %q, %v", line, err)
	}
	f.cfg.LockTimeout = 100 * time.Millisecond
	if _, err := Open(f.cfg); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), f.cfg.Path) {
		t.Errorf("open beside another process: %v", err)
	}
	if _, err := OpenReadOnly(f.cfg.Path, 100*time.Millisecond); !errors.Is(err, ErrLocked) {
		t.Errorf("open for reading beside another process: %v", err)
	}
	diff(t, "files", 1, len(filesBeside(t, f.cfg.Path)))

	// Whoever waits long enough gets it.
	opened := make(chan error, 1)
	f.cfg.LockTimeout = time.Minute
	go func() {
		l, err := Open(f.cfg)
		if err == nil {
			err = l.Close()
		}
		opened <- err
	}()
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("child: %v", err)
	}
	if err := <-opened; err != nil {
		t.Errorf("open after the other process: %v", err)
	}
}

func TestReadersDoNotDelayAppend(t *testing.T) {
	f := newFixture(t)
	id := f.register("a")[0]
	f.add(id, 0, 1000)
	if err := f.fold(); err != nil {
		t.Fatal(err)
	}
	reading, release := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() { // a reader that sits in its transaction for as long as the test wants
		done <- f.view("stuck", func(*transaction) error {
			close(reading)
			<-release
			return nil
		})
	}()
	<-reading
	for i := range 200 { // would hang here when the mapping has to grow
		f.add(id, 1000+i*500, 500)
		if i%50 == 0 {
			if err := f.fold(); err != nil {
				t.Fatal(err)
			}
		}
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	diff(t, "samples", wantNumbers(0, 0, 101_000), f.read(id))
}

func TestAppendReadersSinksAndMaintainTogether(t *testing.T) {
	const samples = 3000
	f := newFixture(t)
	ids := f.register("a", "b")
	for _, s := range []string{"x", "y"} {
		f.enable(s, false)
	}
	stop := make(chan struct{})
	errs := make(chan error, 5)
	for _, s := range []string{"x", "y"} {
		go func() { errs <- drain(f.Log, s, ids, samples) }()
	}
	go func() {
		for {
			select {
			case <-stop:
				errs <- nil
				return
			default:
			}
			if _, err := f.Read(ids[0], 0, 100); err != nil {
				errs <- err
				return
			}
			f.SetOffset(Offset{Nanoseconds: f.clock.Now().UnixNano()})
			if _, err := f.Status(); err != nil {
				errs <- err
				return
			}
			f.clock.advance(time.Minute)
			if err := f.Maintain(); err != nil {
				errs <- err
				return
			}
		}
	}()
	for i := range samples {
		if err := f.Append([]Record{{ids[0], sampleNumber(i)}, {ids[1], sampleNumber(i)}}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	close(stop)
	if err := <-errs; err != nil {
		t.Error(err)
	}
	for _, s := range []string{"x", "y"} {
		totals := f.totals(s)
		diff(t, "delivered to "+s, uint64(2*samples), totals.Delivered)
	}
}

// drain delivers to a sink until it has had n samples of each path, checking that they come in order.
func drain(l *Log, sink string, ids []PathID, n uint64) error {
	at := map[PathID]uint64{}
	for at[ids[0]] < n || at[ids[1]] < n {
		changed := l.Changed()
		idle := true
		for _, id := range ids {
			got, err := l.Next(sink, id, 70)
			if err != nil {
				return err
			}
			for _, s := range got {
				if s.Seq != at[id] || s.RTT != sampleNumber(int(s.Seq)).RTT {
					return fmt.Errorf("sink %s path %d: got sample %d, want %d", sink, id, s.Seq, at[id])
				}
				at[id]++
			}
			if len(got) > 0 {
				idle = false
				if err := l.Commit(sink, Update{Positions: map[PathID]uint64{id: at[id]}, Delivered: uint64(len(got))}); err != nil {
					return err
				}
			}
		}
		if idle {
			<-changed
		}
	}
	return nil
}

func TestJSON(t *testing.T) {
	at := time.Date(2026, 1, 15, 12, 0, 0, 123456789, time.UTC)
	for name, test := range map[string]struct {
		sample       Sample
		device, path string
		want         string
	}{
		"everything": {Sample{Seq: 12, Time: at, RTT: 500000, Dwell: 5000, HasDwell: true, Forward: 250000, Backward: 245000, OneWayError: 11000,
			HasOneWay: true, TX: TCEgress, RX: TCIngress, TTL: 253, RemoteTTL: 253}, "ams-dz001", "ams-lon",
			`{"device":"ams-dz001","path":"ams-lon","seq":12,"time":"2026-01-15T12:00:00.123456789Z","outcome":"on_time","rtt_ns":500000,"dwell_ns":5000,"forward_ns":250000,"backward_ns":245000,"one_way_error_ns":11000,"tx":"tc_egress","rx":"tc_ingress","ttl":253,"remote_ttl":253}`},
		"nothing known":          {Sample{Outcome: Lost}, "", "p", `{"path":"p","seq":0,"outcome":"lost"}`},
		"an rtt of 0 is known":   {Sample{Outcome: Late, RX: Socket}, "", "p", `{"path":"p","seq":0,"outcome":"late","rtt_ns":0,"rx":"socket"}`},
		"no rtt without reply":   {Sample{Outcome: NotSent, Reason: NoBuffer, RTT: 5}, "", "p", `{"path":"p","seq":0,"outcome":"not_sent","reason":"no_buffer"}`},
		"full seconds keep nine": {Sample{Outcome: Unknown, Reason: ClockStep, Time: at.Truncate(time.Second)}, "", "p", `{"path":"p","seq":0,"time":"2026-01-15T12:00:00.000000000Z","outcome":"unknown","reason":"clock_step"}`},
		"other time zones":       {Sample{Outcome: Lost, Time: at.In(time.FixedZone("x", 3600))}, "", "p", `{"path":"p","seq":0,"time":"2026-01-15T12:00:00.123456789Z","outcome":"lost"}`},
		"names are escaped":      {Sample{Outcome: Lost}, `a"b\c`, "\u00fc\n", `{"device":"a\"b\\c","path":"ü\n","seq":0,"outcome":"lost"}`},
		"largest number":         {Sample{Outcome: Lost, Seq: math.MaxUint64}, "", "p", `{"path":"p","seq":18446744073709551615,"outcome":"lost"}`},
	} {
		t.Run(name, func(t *testing.T) {
			diff(t, "json", test.want, string(test.sample.AppendJSON(nil, test.device, test.path)))
		})
	}
}

func TestNames(t *testing.T) {
	diff(t, "outcomes", "on_time late lost not_sent unknown invalid(5)", fmt.Sprint(OnTime, Late, Lost, NotSent, Unknown, Outcome(5)))
	diff(t, "reasons", " no_interface no_carrier no_route too_big no_buffer permission clock_step interface_gone",
		strings.Join([]string{NoReason.String(), NoInterface.String(), NoCarrier.String(), NoRoute.String(), TooBig.String(), NoBuffer.String(), Permission.String(), ClockStep.String(), InterfaceGone.String()}, " "))
	diff(t, "sources", " hardware tc_egress xdp tc_ingress socket user",
		strings.Join([]string{NoSource.String(), Hardware.String(), TCEgress.String(), XDP.String(), TCIngress.String(), Socket.String(), User.String()}, " "))
}

// drawSample draws any sample that can be stored.
func drawSample(t *rapid.T) Sample {
	s := Sample{
		Mono:     rapid.Int64().Draw(t, "mono"),
		Outcome:  Outcome(rapid.IntRange(0, int(Unknown)).Draw(t, "outcome")),
		Reason:   Reason(rapid.IntRange(0, int(InterfaceGone)).Draw(t, "reason")),
		TX:       Source(rapid.IntRange(0, int(User)).Draw(t, "tx")),
		RX:       Source(rapid.IntRange(0, int(User)).Draw(t, "rx")),
		TTL:      rapid.Uint8().Draw(t, "ttl"),
		HasDwell: rapid.Bool().Draw(t, "has dwell"), HasOneWay: rapid.Bool().Draw(t, "has one-way"),
	}
	s.RemoteTTL = s.TTL / 2
	if s.hasRTT() {
		s.RTT = rapid.Int64().Draw(t, "rtt")
	}
	if s.HasDwell {
		s.Dwell = rapid.Int64().Draw(t, "dwell")
	}
	if s.HasOneWay {
		s.Forward, s.Backward = rapid.Int64().Draw(t, "forward"), rapid.Int64().Draw(t, "backward")
		s.OneWayError = rapid.Int64().Draw(t, "error")
	}
	return s
}

func TestAnySampleSurvivesTheCodec(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var batch []Record
		var numbers []uint64
		var want []Sample
		var runs []*run
		for i := range rapid.IntRange(1, 60).Draw(t, "n") {
			s := drawSample(t)
			batch = append(batch, Record{Path: PathID(rapid.Uint32().Draw(t, "path")), Sample: s})
			numbers = append(numbers, rapid.Uint64().Draw(t, "number"))
			runs = appendSample(runs, uint64(i), 7, &s)
			s.Seq = uint64(i)
			want = append(want, s)
		}
		var got []Sample
		for _, r := range runs {
			key, value := r.chunk(9)
			if len(value) > maxValue {
				t.Fatalf("chunk value has %d bytes", len(value))
			}
			head, coded, err := openChunk(key, value)
			if err != nil || head != (chunkHead{9, r.first, uint64(r.n), 7, r.lastMono}) {
				t.Fatalf("head %+v, error %v", head, err)
			}
			if got, err = decode(got, head.first, head.n, coded, 0, math.MaxInt); err != nil {
				t.Fatal(err)
			}
		}
		if fmt.Sprint(want) != fmt.Sprint(got) {
			t.Fatalf("chunk: got %v, want %v", got, want)
		}
		i := 0
		for _, value := range encodeTail(3, batch, numbers) {
			if len(value)+4 > maxValue {
				t.Fatalf("tail value has %d bytes", len(value))
			}
			err := decodeTail(value, func(boot uint32, id PathID, s *Sample) error {
				want := batch[i].Sample
				want.Seq = numbers[i]
				if boot != 3 || id != batch[i].Path || *s != want {
					t.Fatalf("tail: got %d %d %v, want %d %v", boot, id, *s, batch[i].Path, want)
				}
				i++
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if i != len(batch) {
			t.Fatalf("tail: %d of %d", i, len(batch))
		}
	})
}

func FuzzDecoders(f *testing.F) {
	var runs []*run
	var batch []Record
	var numbers []uint64
	for i := range 40 {
		s := sampleNumber(i)
		runs = appendSample(runs, uint64(i), 1, &s)
		batch, numbers = append(batch, Record{1, s}), append(numbers, uint64(i))
	}
	f.Add(runs[0].data)
	f.Add(encodeTail(1, batch, numbers)[0])
	p := path{Path: Path{Name: "x", Labels: map[string]string{"a": "b"}}, lost: []span{{1, 2}}, fixed: []segment{{to: 5}}}
	f.Add(p.record())
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, err := decode(nil, 0, 256, data, 0, math.MaxInt); err != nil && !errors.Is(err, errDamaged) || len(got) > 256 {
			t.Errorf("decode: %v", err)
		}
		if err := decodeTail(data, func(uint32, PathID, *Sample) error { return nil }); err != nil && !errors.Is(err, errDamaged) {
			t.Errorf("tail: %v", err)
		}
		if _, err := parsePath(1, data); err != nil && !errors.Is(err, errDamaged) {
			t.Errorf("path: %v", err)
		}
	})
}
