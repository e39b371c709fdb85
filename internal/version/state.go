package version

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"edgemesh/internal/durable"
)

// StateFile, in a state directory, has the version of the program that used it last.
const StateFile = "version"

// ErrNewerState means that a state directory was used by a version that this one is too old for.
var ErrNewerState = errors.New("the state is a newer version's")

// CheckState refuses a state directory that was used by a version more than one minor version above this one: one step
// back is possible (docs/compatibility.md), further ones may read what they do not know. Builds without a version, and
// directories without the file, pass. The error wraps ErrNewerState.
func CheckState(dir string) error { return checkState(dir, number) }

func checkState(dir, own string) error {
	data, err := os.ReadFile(filepath.Join(dir, StateFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	left := strings.TrimSpace(string(data))
	a, b, ok := minor(left)
	c, d, known := minor(own)
	if !ok || !known || a < c || a == c && b <= d+1 {
		return nil
	}
	return fmt.Errorf("%w: %s was used by %s, and %s reads that of v%d.%d at most: install v%d.%d or later first, or, to give up"+
		" what is in it except the key, remove all files there but identity.key", ErrNewerState, dir, left, own, c, d+1, a, max(b-1, 0))
}

// MarkState notes that this version uses the directory.
func MarkState(dir string) error {
	have, err := os.ReadFile(filepath.Join(dir, StateFile))
	if err == nil && string(have) == number+"\n" {
		return nil // spares the disk
	}
	return durable.WriteFile(filepath.Join(dir, StateFile), []byte(number+"\n"), 0o644)
}

// Older reports whether a version is of an earlier minor release than this program.
func Older(v string) bool { return older(v, number) }

func older(v, than string) bool {
	a, b, ok := minor(v)
	c, d, known := minor(than)
	return ok && known && (a < c || a == c && b < d)
}

// minor reads major and minor of a version like v0.2.0, also with something behind it.
func minor(v string) (major, minor int, ok bool) {
	n, _ := fmt.Sscanf(v, "v%d.%d.", &major, &minor)
	return major, minor, n == 2
}
