package main

import (
	"os"
	"strings"
	"testing"

	"edgemesh/test/lab"
)

// TestDemo runs the whole demo, which ends with the logs: in a healthy run no agent or relay warns. Its table has the two paths
// between the sites, and the status a direct one from the NATed node to the public one.
func TestDemo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: ", lab.ErrNotRoot)
	}
	if os.Getenv("EDGEMESH_NOBUILD") == "" {
		if err := lab.Build(); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	code := execute(t.Context(), &out, false)
	t.Log(out.String())
	if code != 0 {
		t.Fatalf("the demo ended with %d", code)
	}
	for _, want := range []string{"\n  relayed ", "\n  punched ", "\n  direct (1)\n    cloud-1 ", "no warning in any of them"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q", want)
		}
	}
}
