package manifests

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestOneVersion: chart, manifests, changelog, and every page and command that names an image or a package, say one version.
func TestOneVersion(t *testing.T) {
	text := func(name string) string {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	find := func(name, pattern string) string {
		t.Helper()
		m := regexp.MustCompile(pattern).FindStringSubmatch(text(name))
		if m == nil {
			t.Fatalf("%s has nothing like %s", name, pattern)
		}
		return m[1]
	}
	want := find("manifests/edgemesh/Chart.yaml", `(?m)^version: (\S+)$`)
	for name, pattern := range map[string]string{
		"manifests/edgemesh/Chart.yaml": `(?m)^appVersion: "(\S+)"$`,
		"CHANGELOG.md":                  `(?m)^## \[([0-9.]+)\]`, // the first is the newest
		"manifests/edgemesh.yaml":       `app.kubernetes.io/version: "(\S+)"`,
	} {
		if got := find(name, pattern); got != want {
			t.Errorf("%s says %s, the chart %s", name, got, want)
		}
	}
	// build/release/bump.sh changes the same.
	image := regexp.MustCompile(`(?:edgemesh-(?:agent|relay):|edgemesh-(?:chart|manifests)-|edgemesh_|\bTAG=|\bversion=|VERSION=v|tag -s v)([0-9]+\.[0-9]+\.[0-9]+)\b`)
	found := 0
	for _, dir := range []string{"README.md", "CONTRIBUTING.md", "Makefile", "agent", "docs", "manifests", "build"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !slices.Contains([]string{"", ".md", ".go", ".yaml", ".sh"}, filepath.Ext(path)) ||
				strings.HasSuffix(path, "_test.go") || strings.Contains(path, "measurements") {
				return err
			}
			data, err := os.ReadFile(path)
			for _, m := range image.FindAllStringSubmatch(string(data), -1) {
				if found++; m[1] != want {
					t.Errorf("%s says %s, the chart's version is %s; make bump changes all of them", path, m[0], want)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 30 {
		t.Errorf("only %d are found", found)
	}
}
