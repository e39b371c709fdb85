package house

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestFaultsApply: each fault of `make faults` can be put into the code as it is; one that can't would count as missed.
func TestFaultsApply(t *testing.T) {
	if err := exec.Command("git", "-C", "../..", "rev-parse").Run(); err != nil {
		t.Skip("NOT TESTED: this is no clone: ", err)
	}
	patches, err := filepath.Glob("../faults/*.patch")
	if err != nil || len(patches) < 40 {
		t.Fatalf("%d patches, %v", len(patches), err)
	}
	for _, p := range patches {
		c := exec.Command("git", "apply", "--check", filepath.Join("test/faults", filepath.Base(p)))
		c.Dir = "../.."
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", filepath.Base(p), err, out)
		}
	}
}
