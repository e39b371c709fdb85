// Package workflow checks the workflows of GitHub Actions.
package workflow

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestWorkflows: actionlint finds nothing, and finds what is wrong.
func TestWorkflows(t *testing.T) {
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
