package cniconf

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"

	"edgemesh/cni/conf"
)

// conflist is a CNI network configuration list (CNI specification, section 1).
type conflist struct {
	CNIVersion  string   `json:"cniVersion"`
	CNIVersions []string `json:"cniVersions,omitempty"` // runtimes that know the field take the newest they know
	Name        string   `json:"name"`
	Plugins     []any    `json:"plugins"`
}

// plugin is our entry; what has its default is left out.
type plugin struct {
	Type         string          `json:"type"`
	RuntimeDir   string          `json:"runtimeDir,omitempty"`
	DataDir      string          `json:"dataDir,omitempty"`
	Capabilities map[string]bool `json:"capabilities,omitempty"`
}

// portmap maps hostPorts. snat lets a host's own connection to its port, and a
// pod's to its own, find back.
type portmap struct {
	Type         string          `json:"type"`
	Capabilities map[string]bool `json:"capabilities"`
	SNAT         bool            `json:"snat"`
}

const portmapName = "portmap"

func (i *Installer) installConflist() error {
	if i.c.ConfDir == "" {
		return nil
	}
	b, err := json.MarshalIndent(i.conflist(), "", "  ")
	if err != nil {
		return err
	}
	return i.put(i.c.ConfDir, ConflistName, append(b, '\n'), 0o644)
}

func (i *Installer) conflist() conflist {
	p := plugin{Type: PluginName, Capabilities: map[string]bool{"ips": true}}
	if i.c.RuntimeDir != conf.DefaultRuntimeDir {
		p.RuntimeDir = i.c.RuntimeDir
	}
	if i.c.DataDir != conf.DefaultDataDir {
		p.DataDir = i.c.DataDir
	}
	l := conflist{CNIVersion: CNIVersion, Name: NetworkName, Plugins: []any{p}}
	if i.hasPortmap() {
		l.Plugins = append(l.Plugins, portmap{Type: portmapName, Capabilities: map[string]bool{"portMappings": true}, SNAT: true})
		if !i.portmapKnows(newestCNIVersion) {
			return l
		}
	}
	l.CNIVersions = []string{CNIVersion, newestCNIVersion}
	return l
}

// portmapTimeout bounds a call of portmap that does nothing.
const portmapTimeout = 5 * time.Second

// asked is portmap's answer, valid as long as the file stays the same.
type asked struct {
	modified time.Time
	size     int64
	versions []string
}

// portmapKnows asks portmap, once per file, whether it supports a version of the
// specification: all plugins of a list are called with the same one.
func (i *Installer) portmapKnows(wanted string) bool {
	path := filepath.Join(i.c.BinDir, portmapName)
	info, err := os.Stat(path)
	if err != nil {
		return false
	}
	if i.portmap == nil || i.portmap.size != info.Size() || !i.portmap.modified.Equal(info.ModTime()) {
		i.portmap = &asked{modified: info.ModTime(), size: info.Size()}
		ctx, cancel := context.WithTimeout(context.Background(), portmapTimeout)
		defer cancel()
		if v, err := invoke.GetVersionInfo(ctx, path, nil); err == nil {
			i.portmap.versions = v.SupportedVersions()
		} else {
			i.c.Log.Warn("portmap does not say which versions it supports", "path", path, "err", err)
		}
	}
	return slices.Contains(i.portmap.versions, wanted)
}

// hasPortmap looks where the runtime looks: where the operator installs the
// plugins himself, in the usual place.
func (i *Installer) hasPortmap() bool {
	dir := i.c.BinDir
	if dir == "" {
		return false
	}
	info, err := os.Stat(filepath.Join(dir, portmapName))
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
