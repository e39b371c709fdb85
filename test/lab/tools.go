package lab

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"edgemesh/test/repo"
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

// tool returns the path of one of the binaries.
func (l *Lab) tool(name string) string { return filepath.Join(l.bin, name) }

// Build builds the binaries and podtool into bin/ of the repository, as `make
// tools` does.
func Build() error {
	root, err := repo.Root()
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
