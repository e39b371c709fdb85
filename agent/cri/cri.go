// Package cri reads from the configuration of a node's container runtime where it looks for
// CNI networks and plugins. Distributions and their options differ in that (Debian's
// containerd: /usr/lib/cni; k3s: directories of its own, but only with its own flannel), so
// nothing is assumed that the runtime's files say.
package cri

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The directories that containerd and CRI-O use unless their configuration names others.
const (
	defaultConfDir = "/etc/cni/net.d"
	defaultBinDir  = "/opt/cni/bin"
)

var (
	// ErrNone means that no runtime was found: it is not installed yet, or its files are
	// not visible here, as in the agent's pod.
	ErrNone = errors.New("no container runtime found")
	// ErrNotYet means that the runtime's configuration is written by a program that did not run yet.
	ErrNotYet = errors.New("the container runtime has no configuration yet")
	// ErrUnusable means that the runtime itself could not work with its configuration.
	ErrUnusable = errors.New("the container runtime's configuration cannot be used")
	// errDisabled means that it is not kubelet's runtime.
	errDisabled = errors.New("kubelet cannot use this containerd")
)

// CNI is where a runtime looks. Paths are the host's.
type CNI struct {
	Runtime string   // its name, for messages
	File    string   // the configuration that says so; "" if the runtime has none and uses its defaults
	ConfDir string   // of networks
	BinDirs []string // of plugins, never empty

	host host
}

// String names the runtime and its file.
func (c CNI) String() string {
	if c.File == "" {
		return c.Runtime
	}
	return fmt.Sprintf("%s (%s)", c.Runtime, c.File)
}

// BinDir is the one of BinDirs to install a plugin in. k3s named the directory of its release until
// 2025; a link leads to the one in use, also after an upgrade.
func (c CNI) BinDir() string {
	dir := c.BinDirs[0]
	if data, release, ok := strings.Cut(dir, "/k3s/data/"); ok && strings.HasSuffix(release, "/bin") {
		return data + "/k3s/data/current/bin"
	}
	return dir
}

// Difference is a directory of the agent's in which the runtime does not look.
type Difference struct {
	Key  string // of agent.yaml
	Have string // its value
	Want string // what it should be
	CNI  CNI
}

func (d Difference) String() string {
	return fmt.Sprintf("%s looks for CNI %s in %s, not in %s (%s), so no pod would get a network", d.CNI, d.what(), d.Want, d.Have, d.Key)
}

func (d Difference) what() string {
	if d.Key == keyConfDir {
		return "configurations"
	}
	return "plugins"
}

const (
	keyConfDir = "cniConfDir"
	keyBinDir  = "cniBinDir"
)

// Differences compares the runtime's directories with the agent's. "" is never different: nothing is installed there.
func (c CNI) Differences(confDir, binDir string) []Difference {
	var out []Difference
	if confDir != "" && !c.host.same(confDir, c.ConfDir) {
		out = append(out, Difference{keyConfDir, confDir, c.ConfDir, c})
	}
	if binDir != "" && !slices.ContainsFunc(c.BinDirs, func(d string) bool { return c.host.same(binDir, d) }) {
		out = append(out, Difference{keyBinDir, binDir, c.BinDir(), c})
	}
	return out
}

// same reports whether two paths are one directory.
func (h host) same(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	x, err := os.Stat(h.path(a))
	if err != nil {
		return false
	}
	y, err := os.Stat(h.path(b))
	return err == nil && os.SameFile(x, y)
}

// Find says where the runtime that kubelet uses on the host below root looks: the running one, else
// the installed one. The error may be ErrNone, ErrNotYet or ErrUnusable.
func Find(root string) (CNI, error) {
	h := host{root}
	found := h.running()
	if len(found) == 0 {
		var err error
		if found, err = h.installed(); err != nil {
			return CNI{}, err
		}
	}
	wanted := h.configuredFor("crio.sock")
	slices.SortStableFunc(found, func(a, b source) int { return rank(a, wanted) - rank(b, wanted) })
	first := ErrNone
	for _, s := range found {
		c, err := s.read(h)
		if !errors.Is(err, errDisabled) {
			return c, err
		}
		if errors.Is(first, ErrNone) { // docker's containerd may be beside the one of kubelet
			first = err
		}
	}
	return CNI{}, first
}

// host is the root directory of the host whose files are read.
type host struct{ root string }

func (h host) path(p string) string { return filepath.Join(h.root, p) }

func (h host) exists(p string) bool {
	_, err := os.Stat(h.path(p))
	return err == nil
}

// unusable is an error about a file, with what to do.
func unusable(file, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %w", ErrUnusable, file, fmt.Errorf(format, args...))
}
