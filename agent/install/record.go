package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"edgemesh/internal/durable"
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
