// Package cniconf gives a node's pod network to the container runtime: the subnet file
// that the plugin reads, the plugin's binary, and the conflist that makes the runtime use
// it. The conflist comes last, because the runtime then reports the node ready.
package cniconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"edgemesh/internal/cni/conf"
	"edgemesh/internal/config"
	"edgemesh/internal/config/strict"
	"edgemesh/internal/durable"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wording"
)

const (
	// PluginName is the plugin's binary and its type in a conflist.
	PluginName = "edgemesh-cni"
	// ConflistName is the file in the runtime's configuration directory. Runtimes use the
	// first one by name.
	ConflistName = "10-edgemesh.conflist"
	// CNIVersion of the conflist: containerd 1.6 refuses results of 1.1.0. It also ignores
	// the list's cniVersions, which is part of 1.1.0. A runtime that takes newestCNIVersion
	// from there knows it, and calls GC and STATUS.
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
	Plugin     string // the plugin to install; "" = in the running binary's directory
	CNI        config.CNI
	// Status returns the result of the plugin's STATUS. nil: the conflist waits for nothing.
	Status func(*conf.NetConf) error
	Log    *slog.Logger
}

// Installer writes and removes these files. Every call compares them with the disk. Do not
// call its methods concurrently.
type Installer struct {
	c        Config
	usual    string // where plugins are that the operator installs
	reported bool   // that another release's plugin stays
	runs     bool   // the plugin
	untried  bool   // it was said that it could not be tried
	answers  map[string]answer
	mounted  map[string]string // roots of the directories that this process was given as mounts, at the start
	unfit    atomic.Pointer[[]string]

	records  *conf.Directory // where the agent reads pods' addresses, as it was marked last
	unmarked string          // why it could not be

	before    []string // plugins of others before ours in the conflist that was there
	displaced atomic.Pointer[Displaced]
}

// New returns an Installer; it changes nothing.
func New(c Config) *Installer {
	i := &Installer{c: c, usual: config.DefaultCNIBinDir, answers: map[string]answer{}}
	i.mounted, _ = readMounts(i.dirs()...) // else a replaced one is not noticed
	return i
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

// Write writes subnet.json, the plugin and the conflist, in this order. It does not touch
// files that are already right. The error may be ErrNoPlugin, ErrWaits or ErrFormer; then
// the conflist was not installed.
func (i *Installer) Write(s mesh.Subnet) error {
	if err := i.WriteSubnet(s); err != nil {
		return err
	}
	if err := i.installPlugin(); err != nil {
		return i.former(fmt.Errorf("install CNI plugin: %w", err))
	}
	if err := i.tried(); err != nil {
		return i.former(err)
	}
	if err := i.installConflist(); err != nil {
		return i.former(fmt.Errorf("install CNI configuration: %w", err))
	}
	return nil
}

// tried runs the plugin once before the runtime is told of it, and says where that cannot be tried.
func (i *Installer) tried() error {
	if i.runs {
		return nil
	}
	err := i.Runs()
	i.runs = err == nil
	if errors.Is(err, ErrUntried) { // it is tried again with the next write
		if !i.untried {
			i.untried = true
			i.c.Log.Info("the CNI plugin was not tried", "err", err)
		}
		return nil
	}
	return err
}

// former adds ErrFormer to an error of the system that kept a file from being written, such
// as a full disk, if the existing files still suffice to create pods.
func (i *Installer) former(err error) error {
	var system syscall.Errno
	if errors.Is(err, ErrWaits) || errors.Is(err, ErrFormer) || !errors.As(err, &system) || !i.works() {
		return err
	}
	return fmt.Errorf("%w: %w", ErrFormer, err)
}

// WriteSubnet writes RUNTIMEDIR/subnet.json alone.
func (i *Installer) WriteSubnet(s mesh.Subnet) error {
	file := conf.Subnet{PodCIDRs: wording.Texts(s.PodCIDRs), ClusterCIDRs: wording.Texts(s.ClusterCIDRs), MTU: s.MTU}
	for _, a := range s.Reserved {
		file.Reserved = append(file.Reserved, a.String())
	}
	if i.c.DataDir != "" {
		d, err := conf.MakeDirectory(i.c.DataDir)
		if err == nil {
			i.records = d
		} else if i.unmarked != err.Error() {
			i.unmarked = err.Error()
			i.c.Log.Warn("the directory of pods' addresses cannot be marked, so that the plugin would know that it means the same", "err", err)
		}
		file.Directory = i.records // as long as it was read once
	}
	b, err := json.Marshal(file)
	if err != nil {
		return fmt.Errorf("encode subnet: %w", err)
	}
	if err := i.put("runtimeDir", i.c.RuntimeDir, conf.SubnetFile, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("write subnet: %w", err)
	}
	return nil
}

// put writes dir/name if its content or mode differs. For a directory that cannot be
// written to, the error is a *config.KeyError.
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
	have, err := strict.ReadFile(path, int64(len(data)))
	return err == nil && bytes.Equal(have, data)
}

// Check checks that there is a plugin to install. The error may be ErrNoPlugin.
func (i *Installer) Check() error {
	if i.c.BinDir == "" {
		return nil
	}
	_, err := i.plugin()
	return err
}

// MakeDirs creates the directories that a node needs before its first pod. It skips one
// whose files exist, because perhaps nothing needs to be written. The error is a
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
		err := config.MakeDir(d.key, d.dir, d.mode)
		if d.key == "cniBinDir" && errors.Is(err, unix.EROFS) {
			err = i.missing(err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// plugin reads the plugin to install.
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
	// put renames: writing to a running old plugin fails with "text file busy".
	err = i.put("cniBinDir", i.c.BinDir, PluginName, data, 0o755)
	if !errors.Is(err, unix.EROFS) {
		return err
	}
	if !i.installed(PluginName) {
		return i.missing(err)
	}
	if !i.reported {
		i.reported = true
		i.c.Log.Warn("another release's CNI plugin stays: its directory is read-only for the agent; restart this pod when it is the only agent here, and its init container replaces it",
			"path", filepath.Join(i.c.BinDir, PluginName))
	}
	return nil
}

// missing says what to do where the agent may not install the plugin that is missing.
func (i *Installer) missing(err error) error {
	return &config.KeyError{Key: "cniBinDir", Err: fmt.Errorf("%s has no %s, and the agent may not install it there: delete this agent's pod, whose init container does, or run `edgemesh-agent plugin` on the host: %w",
		i.c.BinDir, PluginName, err)}
}

// InstallPlugin installs the plugin alone, for an agent that may not write to its directory. The error may be ErrNoPlugin
// or a *config.KeyError.
func (i *Installer) InstallPlugin() error {
	if i.c.BinDir == "" {
		return nil
	}
	if err := config.MakeDir("cniBinDir", i.c.BinDir, 0o755); err != nil {
		return err
	}
	return i.installPlugin()
}

// RemovePlugin removes the plugin alone.
func (i *Installer) RemovePlugin() error { return remove(file{i.c.BinDir, PluginName}) }

// Stale reports whether the installed plugin is not the one to install. It may be called at any time.
func (i *Installer) Stale() bool {
	data, err := i.plugin()
	return i.c.BinDir != "" && err == nil && !same(filepath.Join(i.c.BinDir, PluginName), data, 0o755)
}

// Uninstall removes the conflist, the plugin and subnet.json, in this order, if they
// exist. The address records stay: a node that comes back gives its pods the addresses
// they had.
func (i *Installer) Uninstall() error {
	return remove(
		file{i.c.ConfDir, ConflistName},
		file{i.c.BinDir, PluginName},
		file{i.c.RuntimeDir, conf.SubnetFile},
	)
}

// Withdraw is Uninstall without the plugin: no new pods are created with it, and existing
// ones can still be deleted.
func (i *Installer) Withdraw() error {
	return remove(file{i.c.ConfDir, ConflistName}, file{i.c.RuntimeDir, conf.SubnetFile})
}

// WithdrawSubnet removes RUNTIMEDIR/subnet.json alone: the plugin has no addresses then.
func (i *Installer) WithdrawSubnet() error { return remove(file{i.c.RuntimeDir, conf.SubnetFile}) }

type file struct{ dir, name string }

func remove(files ...file) error {
	var errs []error
	for _, f := range files {
		if f.dir == "" {
			continue
		}
		path := filepath.Join(f.dir, f.name)
		err := os.Remove(path)
		if errors.Is(err, unix.EROFS) { // said of files that do not exist, too
			if _, there := os.Lstat(path); there != nil {
				err = there
			}
		}
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

var (
	// ErrNoPlugin means that the plugin is not in the directory of the agent's binary.
	ErrNoPlugin = errors.New("the CNI plugin is missing; install it next to the agent, or set cniBinDir to \"\" and install it yourself")
	// ErrWaits means that the conflist is not installed yet, because no pod could be
	// created with it. Everything else is done.
	ErrWaits = errors.New("the CNI configuration waits")
	// ErrFormer means that the existing plugin and conflist stay: the configured ones could
	// not be written, or no pod could be created with them.
	ErrFormer = errors.New("the former CNI configuration stays in force")
)
