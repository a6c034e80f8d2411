// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReport(t *testing.T) {
	const (
		run  = `{"Action":"run","Package":"p","Test":"TestA"}` + "\n"
		said = `{"Action":"output","Package":"p","Test":"TestA","Output":"said\n"}` + "\n"
		ok   = `{"Action":"pass","Package":"p","Elapsed":1.25}` + "\n"
		bad  = `{"Action":"fail","Package":"p","Elapsed":1.25}` + "\n"
	)
	allowed := map[string]string{"p TestB": "by design"}

	for _, tt := range []struct {
		name   string
		events string
		want   string // printed
		err    string
	}{
		{
			name:   "a test that passes is silent",
			events: run + said + `{"Action":"pass","Package":"p","Test":"TestA"}` + "\n" + ok,
			want:   "ok  \tp\t1.2s\n1 passed, 0 failed, 0 skipped\n",
		},
		{
			name:   "a test that fails shows its output",
			events: run + said + `{"Action":"fail","Package":"p","Test":"TestA"}` + "\n" + bad,
			want:   "said\n0 passed, 1 failed, 0 skipped\n",
			err:    "tests failed",
		},
		{
			name: "a skipped test is a failure and shows why it skipped",
			events: run + said + `{"Action":"skip","Package":"p","Test":"TestA"}` + "\n" +
				`{"Action":"pass","Package":"p","Test":"TestC"}` + "\n" + ok,
			want: "said\nok  \tp\t1.2s\nskipped, and not among the allowed skips of scripts/runtests:\n\tp TestA\n1 passed, 0 failed, 1 skipped\n",
			err:  "tests were skipped",
		},
		{
			name: "a skip of a subtest is one too",
			events: `{"Action":"skip","Package":"p","Test":"TestB/x"}` + "\n" +
				`{"Action":"pass","Package":"p","Test":"TestB"}` + "\n" + ok,
			want: "ok  \tp\t1.2s\nskipped, and not among the allowed skips of scripts/runtests:\n\tp TestB/x\n1 passed, 0 failed, 1 skipped\n",
			err:  "tests were skipped",
		},
		{
			name: "an allowed skip is counted",
			events: `{"Action":"skip","Package":"p","Test":"TestB"}` + "\n" +
				`{"Action":"pass","Package":"p","Test":"TestC"}` + "\n" + ok,
			want: "ok  \tp\t1.2s\n1 passed, 0 failed, 1 skipped\n",
		},
		{
			name:   "skips alone are no success",
			events: `{"Action":"skip","Package":"p","Test":"TestB"}` + "\n" + ok,
			want:   "ok  \tp\t1.2s\n0 passed, 0 failed, 1 skipped\n",
			err:    "no test ran",
		},
		{
			name:   "a test cut off by a panic failed",
			events: run + said + `{"Action":"output","Package":"p","Output":"panic\n"}` + "\n" + bad,
			want:   "said\n--- FAIL: TestA: did not end\npanic\n0 passed, 1 failed, 0 skipped\n",
			err:    "tests failed",
		},
		{
			name:   "a test cut off by an exit that looks like success failed",
			events: run + ok,
			want:   "--- FAIL: TestA: did not end\nok  \tp\t1.2s\n0 passed, 1 failed, 0 skipped\n",
			err:    "tests failed",
		},
		{
			name: "a package that does not build is one failure",
			events: `{"ImportPath":"p [p.test]","Action":"build-output","Output":"p.go:1: syntax error\n"}` + "\n" +
				`{"ImportPath":"p [p.test]","Action":"build-fail"}` + "\n" +
				`{"Action":"output","Package":"p","Output":"FAIL\tp [build failed]\n"}` + "\n" +
				`{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}` + "\n",
			want: "p.go:1: syntax error\nFAIL\tp [build failed]\n0 passed, 1 failed, 0 skipped\n",
			err:  "tests failed",
		},
		{
			name: "a package that fails after its tests is one failure",
			events: run + `{"Action":"pass","Package":"p","Test":"TestA"}` + "\n" +
				`{"Action":"output","Package":"p","Output":"goleak: found\n"}` + "\n" + bad,
			want: "goleak: found\n1 passed, 1 failed, 0 skipped\n",
			err:  "tests failed",
		},
		{
			name:   "a package without tests does not count, and go's own words are shown",
			events: "go: downloading\n" + `{"Action":"skip","Package":"p","Elapsed":0}` + "\n",
			want:   "go: downloading\n0 passed, 0 failed, 0 skipped\n",
			err:    "no test ran",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			r := newReport(&out, allowed)
			if err := r.read(strings.NewReader(tt.events)); err != nil {
				t.Fatal(err)
			}
			msg := ""
			if err := r.finish(); err != nil {
				msg = err.Error()
			}
			if diff := cmp.Diff(tt.err, msg); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.want, out.String()); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSplit(t *testing.T) {
	plain, root := split([]goPackage{
		{ImportPath: "a", TestImports: []string{"testing"}},
		{ImportPath: "b", TestImports: []string{"testing", netnstest}},
		{ImportPath: "c", XTestImports: []string{netnstest}},
		{ImportPath: netnstest},
	})
	if diff := cmp.Diff([]string{"a"}, plain); diff != "" {
		t.Errorf("plain (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"b", "c", netnstest}, root); diff != "" {
		t.Errorf("root (-want +got):\n%s", diff)
	}
}
