package version

import (
	"strings"
	"testing"
)

func TestPrint(t *testing.T) {
	number, commit, date = "v1.2.3", "c0ffee", "2026-11-21T16:00:00Z"
	var out strings.Builder
	if err := Print(&out, Knows{"CNI", []string{"1.0.0", "1.1.0"}}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	if lines[0] != "edgemesh 1.2.3 (commit c0ffee)" {
		t.Errorf("the first line is %q", lines[0])
	}
	for _, want := range []string{"\ncommit: c0ffee\n", "\ndate: 2026-11-21T16:00:00Z\n", "\ngo: go1.", "\nCNI: 1.0.0 1.1.0\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
