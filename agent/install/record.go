package install

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"edgemesh/internal/durable"
)

// RecordFile, in the state directory, says what an installation wrote.
const RecordFile = "install.json"

// record is what an installation wrote, so that uninstalling removes that and nothing
// else. It is on disk before the first file is.
type record struct {
	Form  Form              `json:"form"`
	Files map[string]string `json:"files"` // SHA-256 by path on the host
	Dirs  []string          `json:"dirs"`  // created for them, outermost first
	// NodeIP is what kubelet was configured to report (package nodeip reads it); nil: nothing.
	NodeIP []netip.Addr `json:"nodeIP,omitempty"`
	// EdgeCore is what was changed in edgecore's configuration; nil: nothing.
	EdgeCore *edgeCoreEdit `json:"edgeCore,omitempty"`
}

func (i *installer) recordPath() string { return i.path(filepath.Join(i.o.StateDir, RecordFile)) }

// load reads the record. The error is ErrNotInstalled if there is none.
func (i *installer) load() error {
	data, err := os.ReadFile(i.recordPath())
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s does not exist", ErrNotInstalled, i.recordPath())
	}
	if err != nil {
		return fmt.Errorf("record of the installation: %w", err)
	}
	if err := json.Unmarshal(data, &i.rec); err != nil {
		return fmt.Errorf("record of the installation: %s: %w", i.recordPath(), err)
	}
	if i.rec.Files == nil {
		i.rec.Files = map[string]string{}
	}
	return nil
}

func (i *installer) save() error {
	data, err := json.MarshalIndent(i.rec, "", "  ")
	if err == nil {
		err = durable.WriteFile(i.recordPath(), append(data, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("record of the installation: %w", err)
	}
	return nil
}

// state of a file on the host.
type fileState int

const (
	absent  fileState = iota
	ours              // as an installation wrote it
	changed           // recorded, but changed since
	foreign           // not recorded
)

func (i *installer) state(path string) (fileState, error) {
	data, err := os.ReadFile(i.path(path))
	if errors.Is(err, fs.ErrNotExist) {
		return absent, nil
	}
	if err != nil {
		return absent, err
	}
	sum, recorded := i.rec.Files[path]
	switch {
	case !recorded:
		return foreign, nil
	case sum == digest(data):
		return ours, nil
	}
	return changed, nil
}

// remember records a file before it is written, and the directories created for it.
func (i *installer) remember(path string, data []byte) error {
	var missing []string
	for dir := filepath.Dir(path); dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		if _, err := os.Stat(i.path(dir)); err == nil {
			break
		}
		missing = append(missing, dir)
	}
	slices.Reverse(missing)
	for _, dir := range missing {
		if !slices.Contains(i.rec.Dirs, dir) {
			i.rec.Dirs = append(i.rec.Dirs, dir)
		}
	}
	i.rec.Files[path] = digest(data)
	return i.save()
}

// take removes the recorded files that are unchanged, then the directories created for
// them that are empty. It continues after errors.
func (i *installer) take(all bool) error {
	var errs []error
	for _, path := range slices.Sorted(maps.Keys(i.rec.Files)) {
		st, err := i.state(path)
		switch {
		case err != nil:
			errs = append(errs, err)
		case st == absent:
		case st == changed && !all:
			i.say("kept     %s (changed since it was written)", path)
		default:
			if err := os.Remove(i.path(path)); err != nil {
				errs = append(errs, err)
				continue
			}
			i.say("removed  %s", path)
		}
	}
	for _, dir := range slices.Backward(i.rec.Dirs) {
		if os.Remove(i.path(dir)) == nil { // fails unless it is empty
			i.say("removed  %s", dir)
		}
	}
	return errors.Join(errs...)
}

func digest(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }
