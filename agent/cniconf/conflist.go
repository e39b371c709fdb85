package cniconf

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"edgemesh/cni/conf"
)

// conflist is a CNI network configuration list (CNI specification, section 1).
type conflist struct {
	CNIVersion  string   `json:"cniVersion"`
	CNIVersions []string `json:"cniVersions,omitempty"` // runtimes that know this field use the newest version they know
	Name        string   `json:"name"`
	Plugins     []any    `json:"plugins"`
}

// plugin is our entry; it leaves out defaults.
type plugin struct {
	Type          string          `json:"type"`
	RuntimeDir    string          `json:"runtimeDir,omitempty"`
	DataDir       string          `json:"dataDir,omitempty"`
	Exclude       []string        `json:"exclude,omitempty"`
	KeepFor       string          `json:"keepFor,omitempty"`
	KeepOnly      string          `json:"keepOnly,omitempty"`
	PromiscMode   bool            `json:"promiscMode,omitempty"`
	AllowSpoofing bool            `json:"allowSpoofing,omitempty"`
	Capabilities  map[string]bool `json:"capabilities,omitempty"`
}

// installConflist writes the conflist. The first one waits until pods can be created,
// because with the file in place the runtime reports the node ready. An existing one
// stays, or running pods could not be deleted.
func (i *Installer) installConflist() error {
	if i.c.ConfDir == "" {
		return nil
	}
	list, err := i.conflist()
	if err != nil && i.works() {
		return fmt.Errorf("%w: %w", ErrFormer, err)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrWaits, err)
	}
	b, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(i.c.ConfDir, ConflistName)); err != nil {
		if err := i.status(); err != nil {
			return fmt.Errorf("%w: %w", ErrWaits, err)
		}
	}
	return i.put("cniConfDir", i.c.ConfDir, ConflistName, append(b, '\n'), 0o644)
}

// works reports whether the conflist, and all plugins that it names, exist.
func (i *Installer) works() bool {
	b, err := os.ReadFile(filepath.Join(i.c.ConfDir, ConflistName))
	if err != nil {
		return false
	}
	var l struct {
		Plugins []map[string]any `json:"plugins"`
	}
	if json.Unmarshal(b, &l) != nil || len(l.Plugins) == 0 {
		return false
	}
	return !slices.ContainsFunc(l.Plugins, func(p map[string]any) bool { return !i.installed(typeOf(p)) })
}

// status returns what the plugin's STATUS would.
func (i *Installer) status() error {
	if i.c.Status == nil {
		return nil
	}
	c, err := i.NetConf()
	if err != nil {
		return err
	}
	return i.c.Status(c)
}

func (i *Installer) conflist() (conflist, error) {
	chain, err := i.chain()
	if err != nil {
		return conflist{}, err
	}
	l := conflist{CNIVersion: CNIVersion, Name: NetworkName, Plugins: []any{i.own()}}
	newest := true // all plugins of a list are called with the same version
	for _, p := range chain {
		l.Plugins = append(l.Plugins, p)
		newest = newest && slices.Contains(i.versions(typeOf(p)), newestCNIVersion)
	}
	if newest {
		l.CNIVersions = []string{CNIVersion, newestCNIVersion}
	}
	return l, nil
}

func (i *Installer) own() plugin {
	o := i.c.CNI
	p := plugin{
		Type: PluginName, Exclude: o.Exclude, KeepFor: o.KeepFor, KeepOnly: o.KeepOnly,
		PromiscMode: o.PromiscMode, AllowSpoofing: o.AllowSpoofing, Capabilities: map[string]bool{"ips": true},
	}
	if i.c.RuntimeDir != conf.DefaultRuntimeDir {
		p.RuntimeDir = i.c.RuntimeDir
	}
	if i.c.DataDir != conf.DefaultDataDir {
		p.DataDir = i.c.DataDir
	}
	return p
}
