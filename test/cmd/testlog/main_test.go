package main

import (
	"strings"
	"testing"
)

const events = `{"Action":"start","Package":"a/good"}
{"Action":"output","Package":"a/good","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"a/good","Test":"TestA","Output":"    a_test.go:7: hidden\n"}
{"Action":"pass","Package":"a/good","Test":"TestA"}
{"Action":"output","Package":"a/good","Test":"TestB","Output":"=== RUN   TestB\n"}
{"Action":"output","Package":"a/good","Test":"TestB","Output":"    a_test.go:9: NOT RUN: needs root\n"}
{"Action":"output","Package":"a/good","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"a/good","Test":"TestB"}
{"Action":"output","Package":"a/good","Output":"PASS\n"}
{"Action":"output","Package":"a/good","Output":"ok  \ta/good\t0.1s\n"}
{"Action":"pass","Package":"a/good"}
{"Action":"output","Package":"a/bad","Test":"TestC","Output":"    c_test.go:3: wrong\n"}
{"Action":"fail","Package":"a/bad","Test":"TestC"}
{"Action":"output","Package":"a/bad","Test":"TestD","Output":"panic: oh\n"}
{"Action":"output","Package":"a/bad","Output":"FAIL\ta/bad\t0.2s\n"}
{"Action":"fail","Package":"a/bad"}
{"ImportPath":"a/none","Action":"build-output","Output":"none.go:1: syntax error\n"}
not JSON
`

func TestRead(t *testing.T) {
	var out, skips, failed strings.Builder
	if err := newLog(&out, &skips, &failed, false).read(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	const want = `ok  	a/good	0.1s
    c_test.go:3: wrong
FAIL	a/bad	0.2s
panic: oh
none.go:1: syntax error
not JSON
`
	if out.String() != want {
		t.Errorf("shown:\n%s\nwant:\n%s", &out, want)
	}
	if want := "NOT RUN: needs root\ta/good\tTestB\n"; skips.String() != want {
		t.Errorf("skipped %q, want %q", &skips, want)
	}
	if want := "FAILED: a/bad TestC\n  c_test.go:3: wrong\n"; failed.String() != want {
		t.Errorf("failed %q, want %q", &failed, want)
	}
	out.Reset()
	if err := newLog(&out, &skips, &failed, true).read(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "hidden") {
		t.Errorf("-v shows\n%s", &out)
	}
}

func TestSummarize(t *testing.T) {
	got := summarize("slow\tx/e2e\tTestA\nneeds root\tx/lab\tTestB\nslow\tx/e2e\tTestC/d\n")
	const want = `NOT RUN: 3 tests were skipped
  slow
    e2e.TestA
    e2e.TestC/d
  needs root
    lab.TestB
`
	if got != want {
		t.Errorf("summary:\n%s\nwant:\n%s", got, want)
	}
	if got := summarize(""); !strings.Contains(got, "no test was skipped") {
		t.Errorf("of nothing: %q", got)
	}
}
