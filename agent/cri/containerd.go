package cri

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

const containerdConf = "/etc/containerd/config.toml"

// The CRI plugin's names in containerd's configuration.
const (
	criPlugin1 = "cri"                          // version 1 of the format
	criPlugin2 = "io.containerd.grpc.v1.cri"    // version 2
	criPlugin3 = "io.containerd.cri.v1.runtime" // version 3 (containerd 2), which divides the plugin
)

// containerdFile is what one file of containerd's configuration says.
type containerdFile struct {
	Version  int      `toml:"version"`
	Imports  []string `toml:"imports"`
	Disabled []string `toml:"disabled_plugins"`
	Plugins  struct {
		V1 *criPlugin `toml:"cri"`
		V2 *criPlugin `toml:"io.containerd.grpc.v1.cri"`
		V3 *criPlugin `toml:"io.containerd.cri.v1.runtime"`
	} `toml:"plugins"`
}

// criPlugin is the part of the CRI plugin's section that is about CNI.
type criPlugin struct {
	CNI struct {
		ConfDir string   `toml:"conf_dir"`
		BinDir  string   `toml:"bin_dir"`
		BinDirs []string `toml:"bin_dirs"` // containerd 2.1, in place of bin_dir
	} `toml:"cni"`
}

// section is the CRI plugin's section of a file, nil if it has none; main is the main file's version.
// containerd 2 renames the sections of files that state no version, or an older one.
func (f containerdFile) section(main int) *criPlugin {
	p := f.Plugins
	switch {
	case main < 3:
		return cmp.Or(p.V2, p.V1)
	case f.Version < 3:
		return cmp.Or(p.V3, p.V2, p.V1)
	}
	return p.V3
}

// containerd reads a configuration of containerd with all files that it imports, in containerd's order.
func (h host) containerd(name, file string) (CNI, error) {
	out := CNI{host: h, Runtime: name, File: file}
	seen := map[string]bool{}
	version := 0
	for pending := []string{file}; len(pending) > 0; {
		at := pending[0]
		pending = pending[1:]
		if seen[at] {
			continue
		}
		seen[at] = true
		f, err := h.containerdFile(at)
		if err != nil {
			return CNI{}, err
		}
		if at == file {
			version = f.Version
		}
		if i := slices.IndexFunc(f.Disabled, disablesCRI); i >= 0 {
			return CNI{}, unusable(at, "disabled_plugins names %q, so %w: remove it and restart containerd (docker's packages put it there)",
				f.Disabled[i], errDisabled)
		}
		if err := out.merge(at, f, version); err != nil {
			return CNI{}, err
		}
		more, err := h.imports(at, f.Imports)
		if err != nil {
			return CNI{}, err
		}
		pending = append(pending, more...)
	}
	if out.ConfDir == "" {
		out.ConfDir = defaultConfDir
	}
	if len(out.BinDirs) == 0 {
		out.BinDirs = []string{defaultBinDir}
	}
	return out, nil
}

// merge takes over what the next file says. containerd 2 merges sections key by key, containerd 1
// replaces the whole section of a plugin; version is that of the main file.
func (c *CNI) merge(path string, f containerdFile, version int) error {
	p := f.section(version)
	if p == nil {
		return nil
	}
	dirs := p.CNI.BinDirs
	if len(dirs) == 0 && p.CNI.BinDir != "" {
		dirs = []string{p.CNI.BinDir}
	}
	lost := c.ConfDir != "" && c.ConfDir != defaultConfDir && p.CNI.ConfDir == "" ||
		len(c.BinDirs) > 0 && !slices.Equal(c.BinDirs, []string{defaultBinDir}) && len(dirs) == 0
	if version < 3 && lost {
		return unusable(path, "it has a section of the CRI plugin without the keys cni.conf_dir and cni.bin_dir that %s sets: containerd 1 takes its "+
			"defaults then, containerd 2 those of %s; put them into %s, too", c.File, c.File, path)
	}
	if p.CNI.ConfDir+strings.Join(dirs, "") == "" {
		return nil
	}
	c.File = path
	if p.CNI.ConfDir != "" {
		c.ConfDir = filepath.Clean(p.CNI.ConfDir)
	}
	if version < 3 {
		c.BinDirs = nil
	}
	for _, d := range dirs {
		if d = filepath.Clean(d); !slices.Contains(c.BinDirs, d) {
			c.BinDirs = append(c.BinDirs, d)
		}
	}
	return nil
}

func disablesCRI(plugin string) bool {
	return plugin == criPlugin1 || plugin == criPlugin2 || plugin == criPlugin3
}

func (h host) containerdFile(path string) (containerdFile, error) {
	var f containerdFile
	return f, h.decode(path, &f)
}

// decode reads a TOML file of the host.
func (h host) decode(path string, into any) error {
	text, err := os.ReadFile(h.path(path))
	if errors.Is(err, fs.ErrNotExist) {
		return unusable(path, "it is imported but does not exist: create it, or remove it from imports")
	}
	if err != nil {
		return unusable(path, "%w: run this as root", err)
	}
	err = toml.Unmarshal(text, into)
	if at := (*toml.DecodeError)(nil); errors.As(err, &at) {
		row, column := at.Position()
		return unusable(path, "line %d, column %d: %w: fix it, or the runtime does not start again", row, column, err)
	}
	if err != nil {
		return unusable(path, "%w: fix it, or the runtime does not start again", err)
	}
	return nil
}

// imports are the files that a file imports: relative to it, * is a pattern.
func (h host) imports(parent string, names []string) ([]string, error) {
	var out []string
	for _, n := range names {
		if !filepath.IsAbs(n) {
			n = filepath.Join(filepath.Dir(parent), n)
		}
		if !strings.Contains(n, "*") {
			out = append(out, filepath.Clean(n))
			continue
		}
		found, err := filepath.Glob(h.path(n))
		if err != nil {
			return nil, unusable(parent, "imports: %q: %w", n, err)
		}
		for _, p := range found {
			rel, err := filepath.Rel(h.root, p)
			if err != nil {
				return nil, fmt.Errorf("imports of %s: %w", parent, err)
			}
			out = append(out, "/"+rel)
		}
	}
	return out, nil
}
