package version

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOlder(t *testing.T) {
	for v, want := range map[string]bool{"v0.2.9": true, "v0.3.0": false, "v0.4.0": false, "v1.0.0": false, "dev": false, "": false} {
		if older(v, "v0.3.1") != want {
			t.Errorf("%q: older is %v", v, !want)
		}
	}
}

// TestCheckState: one minor version back is possible, further is refused, with what to do.
func TestCheckState(t *testing.T) {
	for _, c := range []struct {
		left, own string
		good      bool
	}{
		{"v0.2.0", "v0.2.0", true}, {"v0.1.0", "v0.2.0", true}, {"v0.3.7", "v0.2.0", true}, {"v0.4.0", "v0.2.0", false}, {"v1.0.0", "v0.2.0", false},
		{"v0.12.0", "v0.2.0", false}, {"v0.4.0-3-gabcdef0-dirty", "v0.2.9", false}, {"dev", "v0.2.0", true}, {"v0.9.0", "dev", true},
		{"v0.9.0", "v1.0.0", true}, {"", "v0.2.0", true}, {"abc1234", "v0.2.0", true},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, StateFile), []byte(c.left+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		err := checkState(dir, c.own)
		if c.good != (err == nil) || err != nil && (!errors.Is(err, ErrNewerState) || !strings.Contains(err.Error(), "or later first")) {
			t.Errorf("%s over the state of %s: %v", c.own, c.left, err)
		}
	}
	dir := t.TempDir()
	if err := CheckState(dir); err != nil {
		t.Errorf("a new directory: %v", err)
	}
	if err := MarkState(dir); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, StateFile)); err != nil || string(text) != Number()+"\n" {
		t.Errorf("noted: %q, %v", text, err)
	}
}
