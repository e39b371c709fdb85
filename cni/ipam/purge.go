package ipam

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Purge removes the store in folder dir: its records, and dir if nothing else is in
// it. What is not there is no error. Nobody may use the store any more.
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
			left = true // somebody else's
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
