package ipam

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Purge removes the store in dir: its records, and dir itself if nothing else is in it. It
// succeeds if there is no store. Nothing may use the store afterwards.
func Purge(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove the address store: %w", err)
	}
	var errs []error
	left := false
	for _, e := range entries {
		if _, err := Decode(e.Name(), nil); err != nil && !strings.HasPrefix(e.Name(), tmpPrefix) {
			left = true // not ours
			continue
		}
		errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove the address store: %w", err)
	}
	if left {
		return nil
	}
	return os.Remove(dir)
}
