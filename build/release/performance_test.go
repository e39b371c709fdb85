package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPerformance: figures of an earlier version are refused, with the file and the command.
func TestPerformance(t *testing.T) {
	o := options{repo: t.TempDir()}
	page := filepath.Join(o.repo, performancePage)
	if err := os.Mkdir(filepath.Dir(page), 0o755); err != nil {
		t.Fatal(err)
	}
	for measured, want := range map[string]string{
		"0.9.12":  "docs/performance.md shows figures of version 0.9.12 (commit c0ffee, 2026-11-20), which is older than 0.10.0: run `make bench`",
		"0.10.0":  "",
		"1.0.0":   "",
		"unknown": "which is older than 0.10.0",
		"":        "docs/performance.md does not say on which version",
	} {
		text := "# Performance\n\nMeasured on version " + measured + " at commit c0ffee, 2026-11-20.\n"
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		o.stamp.Version = "v0.10.0"
		err := o.performance()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", measured, err, want)
		}
	}
}

// TestPerformancePage: the page of this tree says on which version its figures were measured.
func TestPerformancePage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(repo, performancePage))
	if err != nil {
		t.Fatal(err)
	}
	if m := measuredOn.FindStringSubmatch(string(page)); m == nil || older(m[1], "0.0.1") {
		t.Errorf("%s: no version of its figures: run make bench-page (%q)", performancePage, m)
	}
}
