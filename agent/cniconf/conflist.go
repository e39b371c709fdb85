package cniconf

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"

	"edgemesh/internal/cni/conf"
	"edgemesh/internal/config/strict"
)

// MaxFile bounds a configuration of a plugin, in bytes. What is no regular file is not read either: a FIFO would hold whoever does.
const MaxFile = 1 << 20

// conflist is a CNI network configuration list (CNI specification, section 1).
type conflist struct {
	CNIVersion  string   `json:"cniVersion"`
	CNIVersions []string `json:"cniVersions,omitempty"` // runtimes that know this field use the newest version they know
	Name        string   `json:"name"`
	Plugins     []any    `json:"plugins"`
	// Chained are the types of cni.chained, where that is set: entries of others stay, those of a former configuration do not.
	Chained []string `json:"edgemeshChained,omitempty"`
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
	before := i.before
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
	err = i.put("cniConfDir", i.c.ConfDir, ConflistName, append(b, '\n'), 0o644)
	if err == nil && len(before) > 0 {
		i.c.Log.Warn("took what another program had put before ours out of the CNI configuration: it would make pods' network in our place",
			"file", filepath.Join(i.c.ConfDir, ConflistName), "plugins", before)
		i.displaced.Store(&Displaced{time.Now(), before})
	}
	return err
}

// Displaced is what was taken out of the conflist.
type Displaced struct {
	At      time.Time
	Plugins []string // their types
}

// Displaced is what was taken out last, nil if nothing was. It may be called at any time.
func (i *Installer) Displaced() *Displaced { return i.displaced.Load() }

// works reports whether the conflist, and all plugins that it names, exist.
func (i *Installer) works() bool {
	b, err := strict.ReadFile(filepath.Join(i.c.ConfDir, ConflistName), MaxFile)
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
	add := func(name string, entry any) {
		l.Plugins = append(l.Plugins, entry)
		newest = newest && slices.Contains(i.versions(name), newestCNIVersion)
	}
	if i.c.CNI.Chained != nil {
		for _, p := range chain {
			l.Chained = append(l.Chained, typeOf(p))
		}
	}
	var unfit []string
	theirs := i.foreign(chain)
	for n := range len(chain) + 1 {
		if n > 0 {
			add(typeOf(chain[n-1]), chain[n-1])
		}
		for _, f := range theirs {
			if f.behind != n && (n < len(chain) || f.behind < n) {
				continue
			}
			add(f.name, f.raw)
			if u := i.breaks(f.name); u != "" {
				unfit = append(unfit, u)
			}
		}
	}
	i.unfit.Store(&unfit)
	if newest {
		l.CNIVersions = []string{CNIVersion, newestCNIVersion}
	}
	return l, nil
}

// foreign is an entry that another program, such as a service mesh, has added behind ours.
type foreign struct {
	name   string
	raw    json.RawMessage
	behind int // how many chained entries of ours come before it
}

// foreign reads the entries of others from the conflist that is there, and notes those before ours, which are not kept.
func (i *Installer) foreign(chain []map[string]any) (out []foreign) {
	var l struct {
		Plugins []json.RawMessage `json:"plugins"`
		Chained []string          `json:"edgemeshChained"`
	}
	b, err := strict.ReadFile(filepath.Join(i.c.ConfDir, ConflistName), MaxFile)
	if err != nil || json.Unmarshal(b, &l) != nil {
		return nil
	}
	ours := append([]string{PluginName, portmapName}, l.Chained...)
	for _, p := range chain {
		ours = append(ours, typeOf(p))
	}
	behind := -1
	i.before = nil
	for _, raw := range l.Plugins {
		var p struct {
			Type string `json:"type"`
		}
		switch err := json.Unmarshal(raw, &p); {
		case err != nil, p.Type == "":
		case slices.Contains(ours, p.Type):
			behind++
		case behind >= 0:
			out = append(out, foreign{p.Type, raw, behind})
		default:
			i.before = append(i.before, p.Type)
		}
	}
	return out
}

// breaks says why no pod can be made with an entry of another program in the list, "" where nothing is known.
func (i *Installer) breaks(name string) string {
	switch {
	case i.c.BinDir != "" && !i.installed(name):
		return fmt.Sprintf("%s is not in %s", name, i.c.BinDir)
	case !i.fits(name):
		return fmt.Sprintf("%s in %s does not know version %s of the CNI specification", name, i.PluginDir(), CNIVersion)
	}
	return ""
}

// Unfit are the entries of other programs in the conflist that no pod can be made with. It may be called at any time.
func (i *Installer) Unfit() []string {
	if u := i.unfit.Load(); u != nil {
		return *u
	}
	return nil
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
			return nil, fmt.Errorf("cni.chained[%d]: %s in %s does not know version %s of the CNI specification: install a newer one, or remove the entry", n, name, i.PluginDir(), CNIVersion)
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

// PluginDir is where the runtime looks for plugins: the usual directory, if the operator
// installs them. It may be called at any time.
func (i *Installer) PluginDir() string {
	return cmp.Or(i.c.BinDir, i.usual)
}

func (i *Installer) installed(plugin string) bool {
	info, err := os.Stat(filepath.Join(i.PluginDir(), plugin))
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
	path := filepath.Join(i.PluginDir(), plugin)
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
