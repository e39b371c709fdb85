package cniconf

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
)

// portmapName is the reference plugin for hostPorts.
const portmapName = "portmap"

// capabilities are what a reference plugin needs from the runtime to do anything; they are
// the default for an entry that sets none.
func capabilities(plugin string) map[string]any {
	switch plugin {
	case portmapName:
		return map[string]any{"portMappings": true}
	case "bandwidth":
		return map[string]any{"bandwidth": true}
	}
	return nil
}

// chain lists the plugins called after ours. The error names one that cannot be called.
func (i *Installer) chain() ([]map[string]any, error) {
	if i.c.CNI.Chained == nil {
		if !i.installed(portmapName) || !i.fits(portmapName) {
			return nil, nil
		}
		// snat makes replies return when a host connects to its own hostPort, or a pod to its own.
		return []map[string]any{{"type": portmapName, "capabilities": capabilities(portmapName), "snat": true}}, nil
	}
	var out []map[string]any
	for n, p := range i.c.CNI.Chained {
		name := typeOf(p)
		if !i.installed(name) && i.c.BinDir != "" {
			return nil, fmt.Errorf("cni.chained[%d]: %s is not in %s: install it there (containernetworking's plugins), or remove the entry", n, name, i.c.BinDir)
		}
		if !i.fits(name) {
			return nil, fmt.Errorf("cni.chained[%d]: %s in %s does not know version %s of the CNI specification: install a newer one, or remove the entry", n, name, i.binDir(), CNIVersion)
		}
		p = maps.Clone(p)
		if c := capabilities(name); c != nil && p["capabilities"] == nil {
			p["capabilities"] = c
		}
		out = append(out, p)
	}
	return out, nil
}

// typeOf is a plugin's name, which the configuration's check guarantees.
func typeOf(p map[string]any) string {
	name, _ := p["type"].(string)
	return name
}

// binDir is where the runtime looks for plugins: the usual directory, if the operator
// installs them.
func (i *Installer) binDir() string {
	return cmp.Or(i.c.BinDir, i.usual)
}

func (i *Installer) installed(plugin string) bool {
	info, err := os.Stat(filepath.Join(i.binDir(), plugin))
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// answerTimeout bounds the call that queries a plugin's versions.
const answerTimeout = 5 * time.Second

// answer is a plugin's answer, valid as long as its file does not change.
type answer struct {
	modified time.Time
	size     int64
	versions []string // none: it gave no answer
}

// fits reports whether a plugin can be in our list: one that does not say which versions
// it knows gets the benefit of the doubt.
func (i *Installer) fits(plugin string) bool {
	v := i.versions(plugin)
	return len(v) == 0 || slices.Contains(v, CNIVersion)
}

// versions queries a plugin, once per file, for the versions it supports.
func (i *Installer) versions(plugin string) []string {
	path := filepath.Join(i.binDir(), plugin)
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	a, ok := i.answers[plugin]
	if ok && a.size == info.Size() && a.modified.Equal(info.ModTime()) {
		return a.versions
	}
	a = answer{modified: info.ModTime(), size: info.Size()}
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	if v, err := invoke.GetVersionInfo(ctx, path, nil); err == nil {
		a.versions = v.SupportedVersions()
	} else {
		i.c.Log.Warn("plugin does not say which versions of the CNI specification it supports: using 1.0.0", "path", path, "err", err)
	}
	i.answers[plugin] = a
	return a.versions
}
