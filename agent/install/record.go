package install

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"

	"edgemesh/internal/placed"
)

// record is what an installation wrote.
type record struct {
	Form Form `json:"form"`
	placed.Record
	// NodeIP is what kubelet was configured to report (package nodeip reads it); nil: nothing.
	NodeIP []netip.Addr `json:"nodeIP,omitempty"`
	// EdgeCore is what was changed in edgecore's configuration; nil: nothing.
	EdgeCore *edgeCoreEdit `json:"edgeCore,omitempty"`
}

func (i *installer) recordPath() string {
	return i.Path(filepath.Join(i.o.StateDir, placed.RecordFile))
}

// load reads the record. The error is ErrNotInstalled if there is none.
func (i *installer) load() error {
	err := placed.Load(i.recordPath(), &i.rec)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s does not exist", ErrNotInstalled, i.recordPath())
	}
	if i.rec.Files == nil {
		i.rec.Files = map[string]string{}
	}
	return err
}

func (i *installer) save() error { return placed.Save(i.recordPath(), i.rec) }
