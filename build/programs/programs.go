// Package programs builds the project's programs for a release: static, for any platform, the same bytes from the
// same commit on any machine.
package programs

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Names are the programs, by their directories in the module.
var Names = map[string]string{"agent": "edgemesh-agent", "cni": "edgemesh-cni", "relay": "edgemesh-relay"}

// Stamp is what a build says of itself.
type Stamp struct {
	Version string // v0.2.0
	Commit  string // the full hash; "" is unknown
	Date    time.Time
}

// Tags leave out net/http's copy of HTTP/2, as the Makefile says.
const Tags = "nethttpomithttp2,http2legacy"

// compiler are flags of the compiler: without tables for debuggers, which the linker strips.
const compiler = "-gcflags=all=-dwarf=false"

// flags are the linker's.
func (s Stamp) flags() string {
	const at = " -X edgemesh/internal/version."
	flags := "-s -w" + at + "number=" + s.Version
	if s.Commit != "" {
		flags += at + "commit=" + s.Commit
	}
	if !s.Date.IsZero() && s.Date.Unix() != 0 {
		flags += at + "date=" + s.Date.UTC().Format(time.RFC3339)
	}
	return flags
}

// Platform is what to build for; without GOOS the system is Linux.
type Platform struct{ GOOS, GOARCH, GOARM string }

// Build builds the program in directory part of the module at repo to the file out.
func Build(ctx context.Context, repo, part string, p Platform, s Stamp, out string) error {
	c := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-tags", Tags, compiler, "-ldflags", s.flags(), "-o", out, "./"+part)
	c.Dir = repo
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+cmp.Or(p.GOOS, "linux"), "GOARCH="+p.GOARCH, "GOARM="+p.GOARM, "GOFLAGS=", "GOWORK=off")
	if p.GOARCH == "amd64" {
		c.Env = append(c.Env, "GOAMD64=v1")
	}
	if text, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s for %s: %w\n%s", filepath.Base(out), p.GOARCH, err, strings.TrimSpace(string(text)))
	}
	return nil
}
