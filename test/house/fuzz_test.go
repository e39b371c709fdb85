package house

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"edgemesh/test/repo"
)

// TestCorpora holds every fuzz target to a committed corpus: what once led somewhere is tried with every run of the tests.
func TestCorpora(t *testing.T) {
	target := regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)
	found := 0
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !regexp.MustCompile(`_test\.go$`).MatchString(path) {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range target.FindAllSubmatch(text, -1) {
			found++
			dir := filepath.Join(filepath.Dir(path), "testdata", "fuzz", string(m[1]))
			if files, err := os.ReadDir(dir); err != nil || len(files) == 0 {
				t.Errorf("%s: %s has no corpus: run it, and commit a few of its inputs, small ones, in testdata/fuzz/%s", path, m[1], m[1])
			}
		}
		return err
	})
	if err != nil || found < 20 {
		t.Errorf("%d fuzz targets were found, %v", found, err)
	}
}
