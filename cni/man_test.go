package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The man page has all that help has, in sections; a mistyped command is offered what it may mean.
func TestMan(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	var out, errOut strings.Builder
	if code := operate([]string{"man", dir}, &out, &errOut); code != exitOK || out.Len()+errOut.Len() > 0 {
		t.Fatalf("code %d: %s%s", code, &out, &errOut)
	}
	b, err := os.ReadFile(filepath.Join(dir, "edgemesh-cni.1"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	for _, want := range []string{".TH EDGEMESH\\-CNI 1", ".SH USAGE\n.nf\n  edgemesh\\-cni ipam list [\\-\\-json]", ".SH OPTIONS OF IPAM\n.nf\n  \\-\\-data\\-dir DIR",
		"\\-\\-results DIR", ".SH EXAMPLES\n.nf\n  edgemesh\\-cni ipam list \\-\\-json\n", ".SH EXIT STATUS\n", ".SH SEE ALSO\nedgemesh\\-agent(1)\n"} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is missing in\n%s", want, page)
		}
	}
	for _, c := range []struct{ args, says string }{
		{"ipma", "did you mean ipam"}, {"ipam lsit", "did you mean list"}, {"man", "needs a directory"}, {"man /dev/null/x", "man: "},
	} {
		var errOut strings.Builder
		if code := operate(strings.Fields(c.args), &out, &errOut); code == exitOK || !strings.Contains(errOut.String(), c.says) {
			t.Errorf("%s: code %d: %s", c.args, code, &errOut)
		}
	}
}
