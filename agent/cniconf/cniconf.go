// Package cniconf hands a node's pod network over to the container runtime: the
// subnet file the plugin reads, the plugin's binary, and the conflist that makes
// the runtime use it. The conflist comes last: with it the runtime calls the
// node ready.
package cniconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"

	"edgemesh/agent/config"
	"edgemesh/agent/mesh"
	"edgemesh/cni/conf"
	"edgemesh/internal/durable"
)

const (
	// PluginName is the plugin's binary and its type in a conflist.
	PluginName = "edgemesh-cni"
	// ConflistName is the file in the runtime's configuration directory. Runtimes
	// take the first by name.
	ConflistName = "10-edgemesh.conflist"
	// CNIVersion of the conflist: containerd 1.6 refuses results of 1.1.0. It also
	// ignores the list's cniVersions, which is part of 1.1.0: a runtime that takes
	// newestCNIVersion from there has shown that it knows it, and calls GC and STATUS.
	CNIVersion       = "1.0.0"
	newestCNIVersion = "1.1.0"
	// NetworkName names the network in the conflist.
	NetworkName = "edgemesh"
)

// Config says where things go.
type Config struct {
	RuntimeDir string // gets subnet.json
	ConfDir    string // gets the conflist; "" = do not install one
	BinDir     string // gets the plugin; "" = do not install it
	DataDir    string // the plugin's address records; "" = conf.DefaultDataDir
	Plugin     string // the plugin to install; "" = beside the running binary
	CNI        config.CNI
	// Status says what the plugin's STATUS would. nil: the conflist waits for nothing.
	Status func(*conf.NetConf) error
	Log    *slog.Logger
}

// Installer writes and removes these files. Every call compares with what is on
// disk. The methods must not be called concurrently.
//
// Methods: one folder, one owner. Two are its use, Write and Withdraw; the others are their
// steps, a few lines each.
type Installer struct {
	c       Config
	usual   string // where plugins are that somebody else installs
	answers map[string]answer
}

// New prepares an Installer; it changes nothing.
func New(c Config) *Installer {
	return &Installer{c: c, usual: config.DefaultCNIBinDir, answers: map[string]answer{}}
}

// NetConf is the configuration as the plugin reads it from the conflist.
func (i *Installer) NetConf() (*conf.NetConf, error) {
	b, err := json.Marshal(i.own())
	if err != nil {
		return nil, fmt.Errorf("encode the network configuration: %w", err)
	}
	c, err := conf.ParseNetConf(b)
	if err != nil {
		return nil, err
	}
	c.Name = NetworkName
	return c, c.Validate("")
}

// Write puts everything in place, in the order subnet.json, plugin, conflist.
// Files that are right already are not touched. The error can be ErrNoPlugin,
// ErrWaits or ErrFormer; the conflist is not installed then.
func (i *Installer) Write(s mesh.Subnet) error {
	if err := i.WriteSubnet(s); err != nil {
		return err
	}
	if err := i.installPlugin(); err != nil {
		return i.former(fmt.Errorf("install CNI plugin: %w", err))
	}
	if err := i.installConflist(); err != nil {
		return i.former(fmt.Errorf("install CNI configuration: %w", err))
	}
	return nil
}

// former adds ErrFormer to what kept a file from being written, such as a full disk,
// where pods can still be made with the files that are there.
func (i *Installer) former(err error) error {
	var system syscall.Errno
	if errors.Is(err, ErrWaits) || errors.Is(err, ErrFormer) || !errors.As(err, &system) || !i.works() {
		return err
	}
	return fmt.Errorf("%w: %w", ErrFormer, err)
}

// WriteSubnet writes RUNTIMEDIR/subnet.json alone.
func (i *Installer) WriteSubnet(s mesh.Subnet) error {
	b, err := json.Marshal(conf.Subnet{PodCIDRs: texts(s.PodCIDRs), ClusterCIDRs: texts(s.ClusterCIDRs), MTU: s.MTU})
	if err != nil {
		return fmt.Errorf("encode subnet: %w", err)
	}
	if err := i.put("runtimeDir", i.c.RuntimeDir, conf.SubnetFile, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("write subnet: %w", err)
	}
	return nil
}

// texts never is nil: the file has lists, not null.
func texts(prefixes []netip.Prefix) []string {
	out := make([]string, 0, len(prefixes))
	for _, p := range prefixes {
		out = append(out, p.String())
	}
	return out
}

// put writes dir/name if its content or mode differs. A directory that cannot be
// written to is a *config.KeyError.
func (i *Installer) put(key, dir, name string, data []byte, mode os.FileMode) error {
	path := filepath.Join(dir, name)
	if same(path, data, mode) {
		return nil
	}
	if err := config.MakeDir(key, dir, 0o755); err != nil {
		return err
	}
	if err := durable.WriteFile(path, data, mode); err != nil {
		return err
	}
	i.c.Log.Info("file written", "path", path)
	return nil
}

func same(path string, data []byte, mode os.FileMode) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != mode {
		return false
	}
	have, err := os.ReadFile(path)
	return err == nil && bytes.Equal(have, data)
}

// Check says whether there is a plugin to install. The error can be ErrNoPlugin.
func (i *Installer) Check() error {
	if i.c.BinDir == "" {
		return nil
	}
	_, err := i.plugin()
	return err
}

// MakeDirs makes the directories that a node needs before its first pod. One whose
// files are there is left alone: perhaps nothing has to be written. The error is a
// *config.KeyError.
func (i *Installer) MakeDirs() error {
	conflist := filepath.Join(i.c.ConfDir, ConflistName)
	for _, d := range []struct {
		key, dir, done string
		mode           os.FileMode
		needed         bool
	}{
		{"cniBinDir", i.c.BinDir, filepath.Join(i.c.BinDir, PluginName), 0o755, i.c.BinDir != ""},
		{"cniConfDir", i.c.ConfDir, conflist, 0o755, i.c.ConfDir != ""},
		{"cniDataDir", i.c.DataDir, conflist, 0o700, i.c.ConfDir != "" && i.c.DataDir != ""},
	} {
		if _, err := os.Stat(d.done); !d.needed || err == nil {
			continue
		}
		if err := config.MakeDir(d.key, d.dir, d.mode); err != nil {
			return err
		}
	}
	return nil
}

// plugin reads the plugin that is to be installed.
func (i *Installer) plugin() ([]byte, error) {
	source := i.c.Plugin
	if source == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find the agent's own binary: %w", err)
		}
		source = filepath.Join(filepath.Dir(self), PluginName)
	}
	data, err := os.ReadFile(source)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", source, ErrNoPlugin)
	}
	return data, err
}

func (i *Installer) installPlugin() error {
	if i.c.BinDir == "" {
		return nil
	}
	data, err := i.plugin()
	if err != nil {
		return err
	}
	// A rename, not a write: a running old plugin is "text file busy" otherwise.
	return i.put("cniBinDir", i.c.BinDir, PluginName, data, 0o755)
}

// Uninstall removes the conflist, the plugin and subnet.json, in this order.
// What is not there is no error. The address records stay: a node that comes
// back gives its pods the addresses they had.
func (i *Installer) Uninstall() error {
	return remove(
		file{i.c.ConfDir, ConflistName},
		file{i.c.BinDir, PluginName},
		file{i.c.RuntimeDir, conf.SubnetFile},
	)
}

// Withdraw is Uninstall without the plugin: no new pod comes to it, and the last
// ones can still be deleted.
func (i *Installer) Withdraw() error {
	return remove(file{i.c.ConfDir, ConflistName}, file{i.c.RuntimeDir, conf.SubnetFile})
}

type file struct{ dir, name string }

func remove(files ...file) error {
	var errs []error
	for _, f := range files {
		if f.dir == "" {
			continue
		}
		err := os.Remove(filepath.Join(f.dir, f.name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = durable.SyncDir(f.dir)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("uninstall: %w", err))
		}
	}
	return errors.Join(errs...)
}
