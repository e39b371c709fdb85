// Package workflow checks the workflows of GitHub Actions, and all shell scripts.
package workflow

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"edgemesh/test/tier"
)

// TestWorkflows: actionlint finds nothing, and finds what is wrong.
func TestWorkflows(t *testing.T) {
	tier.All(t)
	out, err := exec.Command("../../build/tool.sh", "actionlint").Output()
	if err != nil {
		t.Skip("NOT TESTED: actionlint does not build here: ", err)
	}
	actionlint := strings.TrimSpace(string(out))
	all, err := filepath.Glob("../../.github/workflows/*.yml")
	if err != nil || len(all) == 0 {
		t.Fatalf("no workflows: %v", err)
	}
	if out, err := exec.Command(actionlint, append([]string{"-no-color"}, all...)...).CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
	broken := exec.Command(actionlint, "-no-color", "-")
	broken.Stdin = strings.NewReader("on: push\njobs:\n  x:\n    runs-on: ubuntu-24.04\n    steps:\n      - run: echo ${{ nothing.there }}\n")
	if out, err := broken.CombinedOutput(); err == nil || !strings.Contains(string(out), "undefined variable") {
		t.Errorf("a broken workflow passes: %v: %s", err, out)
	}
}

// TestActionsArePinned: a tag of an action's repository may move to other code, a digest does not.
func TestActionsArePinned(t *testing.T) {
	all, err := filepath.Glob("../../.github/workflows/*.yml")
	if err != nil || len(all) == 0 {
		t.Fatalf("no workflows: %v", err)
	}
	pinned := regexp.MustCompile(`^[\w-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
	for _, file := range all {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		used := 0
		for line := range strings.Lines(string(text)) {
			if _, action, ok := strings.Cut(strings.TrimSpace(line), "uses: "); ok {
				if used++; !pinned.MatchString(action) {
					t.Errorf("%s: %s: write the commit's 40 digits and, behind it, # vX.Y.Z", file, action)
				}
			}
		}
		if used == 0 || !strings.Contains(string(text), "make fuzz") {
			t.Errorf("%s: %d actions, or no job that fuzzes", file, used)
		}
	}
}

// TestScripts: shellcheck has nothing to say of any script.
func TestScripts(t *testing.T) {
	shellcheck, err := exec.LookPath("shellcheck")
	if err != nil {
		t.Skip("NOT TESTED: no shellcheck")
	}
	scripts := []string{".ci/run"}
	err = filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case d != nil && d.IsDir() && (d.Name() == "dist" || d.Name() == ".git" || d.Name() == "bin"):
			return fs.SkipDir
		case err == nil && filepath.Ext(path) == ".sh":
			scripts = append(scripts, strings.TrimPrefix(path, "../../"))
		case errors.Is(err, fs.ErrNotExist): // made and removed by another test meanwhile
			return nil
		}
		return err
	})
	if err != nil || len(scripts) < 20 {
		t.Fatalf("%d scripts, %v", len(scripts), err)
	}
	c := exec.Command(shellcheck, append([]string{"-x", "-P", "SCRIPTDIR"}, scripts...)...)
	c.Dir = "../.." // from where some read others
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}
