package cniconf

import (
	"encoding/json"
	"os"
	"path/filepath"

	"edgemesh/cni/conf"
)

// conflist is a CNI network configuration list (CNI specification, section 1).
type conflist struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Plugins    []any  `json:"plugins"`
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
	}
	return l
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
