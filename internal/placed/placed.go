// Package placed writes the files of an installation on a host and removes exactly those. It overwrites no foreign files.
package placed

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"

	"edgemesh/internal/durable"
	"edgemesh/internal/screen"
)

// RecordFile, in a state directory, says what an installation wrote.
const RecordFile = "install.json"

// Record is what an installation wrote, so that uninstalling removes that and nothing else. It is on disk before the first
// file is.
type Record struct {
	Files map[string]string `json:"files"` // SHA-256 by path on the host
	Dirs  []string          `json:"dirs"`  // created for them, outermost first
}

// Load reads a record, which has a Record in it. The error wraps fs.ErrNotExist if there is none.
func Load(path string, record any) error {
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, record)
	}
	if err != nil {
		return fmt.Errorf("record of the installation: %s: %w", path, err)
	}
	return nil
}

// Save writes a record.
func Save(path string, record any) error {
	data, err := json.MarshalIndent(record, "", "  ")
	if err == nil {
		err = durable.WriteFile(path, append(data, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("record of the installation: %w", err)
	}
	return nil
}

// Files are those of one installation.
type Files struct {
	Root   string // the host's root directory
	Out    io.Writer
	Dry    bool // nothing is written, what would be is said
	Record *Record
	Save   func() error // writes the record
	Todo   []string     // for the operator
}

// Path is a path of the host as this process sees it; links on it lead within the host's root, also absolute ones.
func (f *Files) Path(p string) string {
	if dir, err := securejoin.SecureJoin(f.Root, filepath.Dir(p)); err == nil {
		return filepath.Join(dir, filepath.Base(p))
	}
	return filepath.Join(f.Root, p)
}

// Say tells the operator.
func (f *Files) Say(format string, args ...any) { fmt.Fprintf(f.Out, format+"\n", args...) }

// Done prints what is left to do.
func (f *Files) Done() {
	if len(f.Todo) > 0 {
		f.Say("\nleft to do:")
		for _, t := range f.Todo {
			screen.Of(f.Out).Line(f.Out, screen.Plain, "  ", t)
		}
	}
}

// State of a file on the host.
type State int

// The states.
const (
	Absent  State = iota
	Ours          // as an installation wrote it
	Changed       // recorded, but changed since
	Foreign       // not recorded
)

// State of a file on the host.
func (f *Files) State(path string) (State, error) {
	data, err := os.ReadFile(f.Path(path))
	if errors.Is(err, fs.ErrNotExist) {
		return Absent, nil
	}
	if err != nil {
		return Absent, err
	}
	sum, recorded := f.Record.Files[path]
	switch {
	case !recorded:
		return Foreign, nil
	case sum == Digest(data):
		return Ours, nil
	}
	return Changed, nil
}

// Put writes a file of ours. It keeps a file that was changed, or that is not ours.
func (f *Files) Put(path string, data []byte, mode os.FileMode) error {
	st, err := f.State(path)
	if err != nil {
		return err
	}
	if st == Changed || st == Foreign {
		have, err := os.ReadFile(f.Path(path))
		if err != nil {
			return err
		}
		if Digest(have) != Digest(data) {
			f.Say("kept     %s (differs from what this command writes: compare, or remove it and install again)", path)
			return nil
		}
	}
	if st == Ours && f.Record.Files[path] == Digest(data) {
		f.Say("as is    %s", path)
		return nil
	}
	return f.Write(path, data, mode)
}

// Write replaces a file, whatever is there.
func (f *Files) Write(path string, data []byte, mode os.FileMode) error {
	if f.Dry {
		f.Say("to write %s", path)
		return nil
	}
	before := f.Record.Files[path]
	if err := f.remember(path, data); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(f.Path(path)), 0o755); err != nil {
		return err
	}
	// By renaming, because a running program's file cannot be written to.
	if err := durable.WriteFile(f.Path(path), data, mode); err != nil {
		if f.Record.Files[path] = before; before == "" {
			delete(f.Record.Files, path)
		}
		return errors.Join(err, f.Save()) // else it would pass for one that an operator has changed
	}
	f.Say("written  %s", path)
	return nil
}

// Replace writes a file of ours, whatever is there, unless it is that.
func (f *Files) Replace(path string, data []byte, mode os.FileMode) error {
	have, err := os.ReadFile(f.Path(path))
	if err == nil && Digest(have) == Digest(data) && f.Record.Files[path] != "" {
		f.Say("as is    %s", path)
		return nil
	}
	return f.Write(path, data, mode)
}

// remember records a file before it is written, and the directories created for it.
func (f *Files) remember(path string, data []byte) error {
	var missing []string
	for dir := filepath.Dir(path); dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		if _, err := os.Stat(f.Path(dir)); err == nil {
			break
		}
		missing = append(missing, dir)
	}
	slices.Reverse(missing)
	for _, dir := range missing {
		if !slices.Contains(f.Record.Dirs, dir) {
			f.Record.Dirs = append(f.Record.Dirs, dir)
		}
	}
	f.Record.Files[path] = Digest(data)
	return f.Save()
}

// Take removes the recorded files that are unchanged, then the directories created for
// them that are empty. It continues after errors.
func (f *Files) Take(all bool) error {
	var errs []error
	for _, path := range slices.Sorted(maps.Keys(f.Record.Files)) {
		st, err := f.State(path)
		switch {
		case err != nil:
			errs = append(errs, err)
		case st == Absent:
		case st == Changed && !all:
			f.Say("kept     %s (changed since it was written)", path)
		default:
			if err := os.Remove(f.Path(path)); err != nil {
				errs = append(errs, err)
				continue
			}
			f.Say("removed  %s", path)
		}
	}
	for _, dir := range slices.Backward(f.Record.Dirs) {
		if os.Remove(f.Path(dir)) == nil { // fails unless it is empty
			f.Say("removed  %s", dir)
		}
	}
	return errors.Join(errs...)
}

// Digest is a file's in the record.
func Digest(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }

// Systemctl calls systemctl of this host; nil if systemd is not running.
func Systemctl() func(ctx context.Context, args ...string) error {
	// The test of sd_booted(3).
	if fi, err := os.Lstat("/run/systemd/system"); err != nil || !fi.IsDir() {
		return nil
	}
	return func(ctx context.Context, args ...string) error {
		out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
		}
		return nil
	}
}
