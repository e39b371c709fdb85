// Package repo finds the source tree that a test or a tool of it works on.
package repo

import (
	"fmt"
	"os"
	"path/filepath"
)

// Root returns the directory of go.work, at or above the working directory. The paths that the
// compiler notes do not help: with -trimpath they are relative to nothing.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the source tree: %w", err)
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.work")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("find the source tree: no go.work at or above %s", dir)
		}
	}
}
