package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"edgemesh/internal/durable"
)

// packageNames are the Debian packages whose files may go into an image; base decides
// which do.
var packageNames = []string{
	"ca-certificates", "iptables", "libc6", "libip4tc2", "libip6tc2", "libmnl0", "libnetfilter-conntrack3", "libnfnetlink0",
	"libnftnl11", "libxtables12",
}

// locked is one line of packages.lock: ARCH NAME VERSION SHA256.
type locked struct{ arch, name, version, sha256 string }

// pool holds the Debian packages of the lock, from the cache if they are there.
type pool struct {
	mirror  string
	cache   string // packages by digest, and apt's state
	entries []locked
	log     *slog.Logger
}

const lockHeader = `# Debian packages whose files the agent's image has: ARCH NAME VERSION SHA256.
# Written by ` + "`make images-lock`" + `; commit it, so that a build is repeatable.
`

func openPool(ctx context.Context, o options, log *slog.Logger) (*pool, error) {
	cache, err := filepath.Abs(o.cache)
	if err != nil {
		return nil, err
	}
	p := &pool{mirror: o.mirror, cache: cache, log: log}
	if p.mirror == "" {
		// Cached packages need no mirror, so this may not matter.
		if p.mirror, err = aptMirror("/etc/apt"); err != nil {
			log.Warn("no mirror: only cached packages are available", "reason", err)
		}
	}
	if err := os.MkdirAll(filepath.Join(cache, "packages"), 0o755); err != nil {
		return nil, err
	}
	if o.update {
		for _, a := range knownArches { // the mirror's current packages
			entries, err := p.newest(ctx, a.debian, packageNames)
			if err != nil {
				return nil, err
			}
			p.entries = append(p.entries, entries...)
		}
		return p, nil
	}
	data, err := os.ReadFile(o.lock)
	if err != nil {
		return nil, err
	}
	if p.entries, err = parseLock(data); err != nil {
		return nil, fmt.Errorf("%s: %w", o.lock, err)
	}
	return p, nil
}

func parseLock(data []byte) ([]locked, error) {
	var out []locked
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		f := strings.Fields(lines.Text())
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		if len(f) != 4 || len(f[3]) != 2*sha256.Size {
			return nil, fmt.Errorf("line %d is not ARCH NAME VERSION SHA256", n)
		}
		out = append(out, locked{f[0], f[1], f[2], f[3]})
	}
	return out, lines.Err()
}

// newest downloads the mirror's current versions.
func (p *pool) newest(ctx context.Context, debianArch string, names []string) ([]locked, error) {
	get := apt{dir: filepath.Join(p.cache, "apt-"+debianArch), mirror: p.mirror, arch: debianArch}
	warning, err := get.setUp(ctx)
	if err != nil {
		return nil, err
	}
	if warning != nil {
		p.log.Warn("some lists of the mirror could not be read: packages may be outdated", "err", warning)
	}
	versions, err := get.versions(ctx, names)
	if err != nil {
		return nil, err
	}
	files, err := get.download(ctx, versions)
	if err != nil {
		return nil, err
	}
	var out []locked
	for name, data := range files {
		e := locked{debianArch, name, versions[name], fmt.Sprintf("%x", sha256.Sum256(data))}
		if err := durable.WriteFile(p.path(e), data, 0o644); err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

func (p *pool) path(e locked) string { return filepath.Join(p.cache, "packages", e.sha256+".deb") }

// has reports whether the cache has all of e.
func (p *pool) has(e locked) bool {
	data, err := os.ReadFile(p.path(e))
	return err == nil && fmt.Sprintf("%x", sha256.Sum256(data)) == e.sha256
}

func (p *pool) writeLock(path string) error {
	slices.SortFunc(p.entries, func(a, b locked) int {
		return cmp.Or(cmp.Compare(a.arch, b.arch), cmp.Compare(a.name, b.name))
	})
	var b strings.Builder
	b.WriteString(lockHeader)
	for _, e := range p.entries {
		fmt.Fprintf(&b, "%s %s %s %s\n", e.arch, e.name, e.version, e.sha256)
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// packages returns the path of every package for an architecture, exactly as the lock
// has them. A version that Debian has replaced since the lock was written can no longer be
// downloaded; the error, which wraps errDiffers, then says how to accept the newer one.
func (p *pool) packages(ctx context.Context, debianArch string) ([]string, error) {
	var have []locked
	missing := map[string]locked{}
	for _, e := range p.entries {
		switch {
		case e.arch != debianArch:
		case p.has(e):
			have = append(have, e)
		default:
			missing[e.name] = e
		}
	}
	if len(missing) > 0 {
		now, err := p.newest(ctx, debianArch, slices.Sorted(maps.Keys(missing)))
		if err != nil {
			return nil, err
		}
		if err := differ(missing, now); err != nil {
			return nil, err
		}
		have = append(have, now...)
	}
	if len(have) == 0 {
		return nil, fmt.Errorf("packages.lock has nothing for %s", debianArch)
	}
	var out []string
	for _, e := range have {
		out = append(out, p.path(e))
	}
	return out, nil
}

// errDiffers means that the mirror does not have what packages.lock says.
var errDiffers = errors.New("the mirror's packages are not those of packages.lock: review what changed, run `make images-lock` and commit it")

// differ compares what was downloaded with the lock's entries of the same names. The error
// wraps errDiffers and names every package.
func differ(want map[string]locked, got []locked) error {
	var errs []error
	for _, e := range got {
		switch w := want[e.name]; {
		case e == w:
		case e.version == w.version: // Debian never does that
			errs = append(errs, fmt.Errorf("%s %s %s: digest %s, locked %s", e.arch, e.name, e.version, e.sha256, w.sha256))
		default:
			errs = append(errs, fmt.Errorf("%s %s: version %s, locked %s", e.arch, e.name, e.version, w.version))
		}
	}
	if len(got) < len(want) {
		errs = append(errs, fmt.Errorf("%d of %d packages", len(got), len(want)))
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w:\n%w", errDiffers, errors.Join(errs...))
}
