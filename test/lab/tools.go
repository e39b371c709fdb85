package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// checkTools reports the programs the lab cannot do without.
func checkTools() error {
	need := []struct{ prog, pkg string }{
		{"ip", "iproute2"}, {"tc", "iproute2"}, {"iptables", "iptables"}, {"nft", "nftables"}, {"ping", "iputils-ping"},
		{"sysctl", "procps"}, {"tcpdump", "tcpdump"},
	}
	var errs []error
	for _, n := range need {
		if _, err := exec.LookPath(n.prog); err != nil {
			errs = append(errs, fmt.Errorf("%w: %s (apt install %s)", ErrMissingTool, n.prog, n.pkg))
		}
	}
	return errors.Join(errs...)
}

// RepoRoot returns the folder of go.mod, at or above the working folder.
func RepoRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find repository: %w", err)
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("find repository: no go.mod at or above %s", dir)
		}
	}
}

// tool returns the path of one of the binaries.
func (l *Lab) tool(name string) string { return filepath.Join(l.bin, name) }

// Build builds the binaries and podtool into bin/ of the repository, as `make
// tools` does.
func Build() error {
	root, err := RepoRoot()
	if err != nil {
		return err
	}
	cmd := exec.Command("make", "-s", "tools")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make tools: %w\n%s", err, out)
	}
	return nil
}
