package lab

import (
	"context"
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

// toolOf returns the path of a binary in dir, or the lab's where dir has none.
func (l *Lab) toolOf(dir, name string) string {
	if own := filepath.Join(dir, name); dir != "" && fileExists(own) {
		return own
	}
	return l.tool(name)
}

// ErrNoCommit means that the clone does not reach back to a commit.
var ErrNoCommit = errors.New("the commit is not in this clone (git fetch --unshallow)")

// BuildCommit builds agent, relay and plugin of a commit of this repository into dir, for Programs. The first time it
// compiles all of them: a minute or two.
func BuildCommit(ctx context.Context, commit, dir string) error {
	root, err := repo.Root()
	if err != nil {
		return err
	}
	git := exec.CommandContext(ctx, "git", "cat-file", "-e", commit+"^{commit}")
	git.Dir = root
	if git.Run() != nil {
		return fmt.Errorf("%s: %w", commit, ErrNoCommit)
	}
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", `
mkdir -p "$2/src"
git archive "$1" | tar -x -C "$2/src"
cd "$2/src"
for p in agent relay cni; do CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$2/edgemesh-$p" "./$p"; done
rm -rf "$2/src"`, "bash", commit, dir)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", commit, err, out)
	}
	return nil
}

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
