package control

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// FailureFile, in the runtime directory, says why the agent ended. Status and doctor
// show it while no agent runs.
const FailureFile = "agent.failed"

// KeepFailure records why the agent ended; nil removes the record.
func KeepFailure(runtimeDir string, failure error) error {
	path := filepath.Join(runtimeDir, FailureFile)
	if failure == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the record of the last failure: %w", err)
		}
		return nil
	}
	text := time.Now().UTC().Format(time.RFC3339) + " " + strings.Join(strings.Fields(failure.Error()), " ") + "\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("record the failure: %w", err)
	}
	return nil
}

// failure is what KeepFailure recorded, or "".
func failure(runtimeDir string) string {
	b, err := os.ReadFile(filepath.Join(runtimeDir, FailureFile))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
