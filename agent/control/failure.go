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

// FailureFile, in the runtime directory, says why the agent ended: status and doctor
// show it while no agent runs.
const FailureFile = "agent.failed"

// KeepFailure writes why the agent ended, nil to forget it.
func KeepFailure(runtimeDir string, failure error) error {
	path := filepath.Join(runtimeDir, FailureFile)
	if failure == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forget the last failure: %w", err)
		}
		return nil
	}
	text := time.Now().UTC().Format(time.RFC3339) + " " + strings.Join(strings.Fields(failure.Error()), " ") + "\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("keep the failure: %w", err)
	}
	return nil
}

// failure is what KeepFailure wrote, "" when there is nothing.
func failure(runtimeDir string) string {
	b, err := os.ReadFile(filepath.Join(runtimeDir, FailureFile))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
