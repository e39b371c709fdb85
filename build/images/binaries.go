package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// binDir is where our programs are in an image; the agent looks for the plugin in its
// own directory.
const binDir = "usr/local/bin"

// buildBinaries builds the three programs for a, static and independent of this
// machine.
func buildBinaries(ctx context.Context, o options, a arch) (*tree, error) {
	dir, err := os.MkdirTemp("", "edgemesh-images-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	t := newTree()
	for _, part := range []string{"agent", "cni", "relay"} {
		name := "edgemesh-" + part
		c := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false",
			"-ldflags", "-s -w -X main.version="+o.version, "-o", filepath.Join(dir, name), "./"+part)
		c.Dir = o.repo
		c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+a.goarch, "GOARM="+a.goarm, "GOFLAGS=")
		if out, err := c.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s for %s: %w\n%s", name, a, err, strings.TrimSpace(string(out)))
		}
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		t.file(binDir+"/"+name, data, 0o755)
	}
	return t, nil
}
