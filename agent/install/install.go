// Package install puts the agent on a host permanently, independent of the cluster: as a
// systemd unit or as a static pod, the two forms that start without the API. It overwrites
// no foreign files, records what it wrote, and removes exactly that.
package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/agent/cniconf"
	"edgemesh/internal/config"
	"edgemesh/internal/keyfile"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/placed"
	"edgemesh/internal/proxy"
	"edgemesh/internal/secretfile"
	"edgemesh/manifests"
	"edgemesh/tunnel/p2p/who/clones"
)

// Form is how the agent is started.
type Form string

// The forms.
const (
	Systemd   Form = "systemd"
	StaticPod Form = "static-pod"
	DaemonSet Form = "daemonset" // the cluster runs the agent: nothing but kubelet's --node-ip is installed
)

// Where things are on a host.
const (
	UnitName  = "edgemesh-agent.service"
	unitPath  = "/etc/systemd/system/" + UnitName
	wantsPath = "/etc/systemd/system/multi-user.target.wants/" + UnitName
	podName   = "edgemesh-agent.yaml"
	agentName = "edgemesh-agent"
)

// Options say what to install, and where.
type Options struct {
	Form     Form
	Root     string // the host's root directory, "/" for this host
	Prefix   string // binaries go to PREFIX/bin
	StateDir string // the agent's, for the record of the installation
	PodDir   string // kubelet's static pod directory; "" is the distribution's
	Image    string // of the static pod; "" is this release's

	// For a new configuration, if there is none yet.
	NodeName   string // "" means the host name
	Membership string // path of cluster.yaml
	Kubeconfig string // instead of it
	Server     string // instead of both; all empty: kubelet's kubeconfig, if it exists, or on an edge of KubeEdge MetaServer

	IfCloned bool // a machine whose hardware is not the key's gets a new identity
	// Forget removes the identity, and what was known by it, from a state directory.
	Forget func(stateDir string) error

	NodeIP NodeIP // what becomes of kubelet's --node-ip

	// For Uninstall:
	Purge       bool   // also files changed since, the key and the pods' addresses
	DataDir     string // of these addresses
	KeepNetwork bool   // another form of the agent takes over: no cleanup

	Binary string // the agent to install
	// Systemctl calls systemctl. It is nil if systemd is not running, or is another
	// host's.
	Systemctl func(ctx context.Context, args ...string) error
	// Version fetches an API's version; nil if this is another host.
	Version func(context.Context, client.Access) (string, error)
	// TUN says why the kernel has no TUN; nil if this is another host.
	TUN func() error
	// Cleanup removes what the agent set up in the kernel; nil if this is another host.
	Cleanup func(ctx context.Context) error
	// Files removes what the agent left in another host's directories, in place of Cleanup.
	Files func() error
	Out   io.Writer // what was done, and what is left to do
}

// installer is one installation or uninstallation.
type installer struct {
	placed.Files
	o    Options
	rec  record
	host distribution
}

func newInstaller(o Options) *installer {
	i := &installer{o: o}
	i.Files = placed.Files{Root: o.Root, Out: o.Out, Record: &i.rec.Record, Save: i.save}
	return i
}

// Install writes binaries, unit or static pod, and a configuration if there is none, and
// starts the agent if it can; otherwise it prints what to run. Called again it upgrades.
// The error may be ErrBadOption, ErrOtherForm, ErrUnfit, ErrUnfitHost or client.ErrTooOld; then nothing was written.
func Install(ctx context.Context, o Options) error {
	i := newInstaller(o)
	if err := i.check(); err != nil {
		return err
	}
	switch err := i.load(); {
	case errors.Is(err, ErrNotInstalled):
		i.rec = record{Form: o.Form, Record: placed.Record{Files: map[string]string{}}}
	case err != nil:
		return err
	case i.rec.Form == DaemonSet:
		i.rec.Form = o.Form
	case i.rec.Form != o.Form:
		return fmt.Errorf("%w (%s): uninstall that first", ErrOtherForm, i.rec.Form)
	}
	i.host = i.distribution()
	text, err := i.configuration()
	if err != nil {
		return err
	}
	if err := i.checkMetaServer(text); err != nil {
		return err
	}
	if err := errors.Join(i.refuseOld(ctx, text), i.fits(text)); err != nil {
		return err
	}
	nodeIP, err := i.planNodeIP(text)
	if err != nil {
		return err
	}
	var pod string
	if o.Form == StaticPod {
		if pod, err = i.pod(text); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(i.Path(o.StateDir), 0o700); err != nil {
		return err
	}
	if o.Form != DaemonSet {
		err = errors.Join(i.configure(text), i.exclude(ctx))
	}
	if err != nil {
		return err
	}
	if err := i.ifCloned(); err != nil { // last: what failed before leaves the key
		return err
	}
	switch o.Form {
	case Systemd:
		err = i.installUnit(ctx, text)
	case StaticPod:
		err = i.installPod(pod)
	}
	err = errors.Join(err, i.setNodeIP(ctx, nodeIP))
	i.Done()
	return err
}

// ifCloned makes a copied machine one of its own, if that is wanted.
func (i *installer) ifCloned() error {
	if !i.o.IfCloned {
		return nil
	}
	dir := i.Path(i.o.StateDir)
	key, err := keyfile.Load(filepath.Join(dir, keyfile.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	id, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return err
	}
	matches, known := clones.Compare(dir, i.o.Root, id)
	byHand := fmt.Sprintf("on a copy, stop the agent and remove %s, %s and membership.json from %s", keyfile.Name, clones.HardwareFile, i.o.StateDir)
	switch {
	case !known:
		i.Say("whether this machine is a copy cannot be seen: %s has no fingerprint of the hardware for this key, which the agent writes when it starts, or this host shows nothing of its hardware; the key stays; %s", i.o.StateDir, byHand)
		return nil
	case matches:
		i.Say("this is the machine that the fingerprint in %s is of: the key stays; if an agent before 0.3 ran on the original, the fingerprint may be the copy's: %s", i.o.StateDir, byHand)
		return nil
	}
	i.Say("this machine is a copy: its hardware is not that on which the key in %s was made; it gets a new one, and the former one stays as %s.old", i.o.StateDir, keyfile.Name)
	if i.o.Form != Systemd {
		i.Todo = append(i.Todo, "restart the agent's pod, which may still run with the former key")
	}
	i.Todo = append(i.Todo, fmt.Sprintf("register the new peer ID, which `edgemesh-agent id --state-dir %s` prints, and set nodeName in %s if it names the original", i.o.StateDir, config.DefaultPath))
	return i.o.Forget(dir)
}

func (i *installer) check() error {
	for name, p := range map[string]string{"--root": i.o.Root, "--prefix": i.o.Prefix, "--membership": i.o.Membership,
		"--kubeconfig": i.o.Kubeconfig, "--pod-dir": i.o.PodDir} {
		if p != "" && !filepath.IsAbs(p) {
			return fmt.Errorf("%w: %s: %q is not an absolute path", ErrBadOption, name, p)
		}
	}
	if info, err := os.Stat(i.o.Root); err != nil || !info.IsDir() {
		return fmt.Errorf("%w: --root: %s is not a directory", ErrBadOption, i.o.Root)
	}
	switch i.o.Form {
	case Systemd, StaticPod:
	case DaemonSet:
		if i.o.NodeIP == NodeIPKept {
			return fmt.Errorf("%w: --form %s installs kubelet's --node-ip and nothing else: add --node-ip", ErrBadOption, DaemonSet)
		}
	default:
		return fmt.Errorf("%w: --form: %q is neither %s, %s nor %s", ErrBadOption, i.o.Form, Systemd, StaticPod, DaemonSet)
	}
	if i.o.Membership != "" && i.o.Kubeconfig+i.o.Server != "" || i.o.Kubeconfig != "" && i.o.Server != "" {
		return fmt.Errorf("%w: --membership, --kubeconfig and --server exclude each other", ErrBadOption)
	}
	switch i.o.NodeIP {
	case NodeIPKept, NodeIPMesh, NodeIPOff:
	default:
		return fmt.Errorf("%w: --node-ip=%s: neither %s nor %s", ErrBadOption, i.o.NodeIP, NodeIPMesh, NodeIPOff)
	}
	if u, err := url.Parse(i.o.Server); i.o.Server != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("%w: --server: %q is not a URL like http://127.0.0.1:10550", ErrBadOption, i.o.Server)
	}
	if strings.ContainsAny(i.o.Image+i.o.NodeName, " \n\t\"'") {
		return fmt.Errorf("%w: --image and --node-name have no spaces or quotes", ErrBadOption)
	}
	return nil
}

// configuration is the content of agent.yaml: the existing one, or the one to write.
func (i *installer) configuration() (string, error) {
	have, err := os.ReadFile(i.Path(config.DefaultPath))
	if err == nil {
		i.compare(have)
		return string(have), cmp.Or(i.sameMembership(have), i.secrets(have))
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	if i.o.Form == DaemonSet { // the agent's own is the cluster's; its directories are the chart's
		return fmt.Sprintf("nodeName: %q\nmembership: {kubernetes: {}}\n", cmp.Or(i.o.NodeName, hostname())), nil
	}
	host := i.host
	membership, kubeconfig, server := i.o.Membership, i.o.Kubeconfig, i.o.Server
	if membership+kubeconfig+server == "" {
		if server = host.server; server == "" && exists(i.Path(host.kubeconfig)) {
			kubeconfig = host.kubeconfig
		}
	}
	var b strings.Builder
	b.WriteString("# Made by `edgemesh-agent install`; an upgrade keeps it.\n")
	name := i.o.NodeName
	if found := hostname(); name == "" && i.o.Form == Systemd && found != "localhost" && mesh.CheckNodeName(found) == nil {
		name = found // the host may have none at a boot without DHCP; a pod has $NODE_NAME
	}
	if name != "" {
		fmt.Fprintf(&b, "nodeName: %q\n", name)
	}
	b.WriteString(i.directories())
	missing := kubeconfig
	if server != "" {
		fmt.Fprintf(&b, "membership: {kubernetes: {server: %q}}\n", server)
		return b.String(), nil
	}
	if kubeconfig != "" {
		fmt.Fprintf(&b, "membership: {kubernetes: {kubeconfig: %s}}\n", kubeconfig)
	} else {
		missing = cmp.Or(membership, "/etc/edgemesh/cluster.yaml")
		fmt.Fprintf(&b, "membership: {file: %s}\n", missing)
	}
	if !exists(i.Path(missing)) {
		i.Todo = append(i.Todo, fmt.Sprintf("create %s, or name another membership in %s", missing, config.DefaultPath))
	}
	return b.String(), nil
}

// secrets refuses a password that others may read, before anything is replaced. The error wraps ErrBadOption.
func (i *installer) secrets(have []byte) error {
	cfg, err := i.parse(have)
	if err != nil || cfg.ProxyUser == "" {
		return nil // compare and the agent say what is wrong
	}
	if _, err := proxy.Credentials(i.Path(cfg.ProxyUser)); errors.Is(err, secretfile.ErrPermissions) {
		return fmt.Errorf("%w: %w", ErrBadOption, err)
	}
	return nil
}

// parse reads an agent.yaml of this host. Where the node's name matters not, it need not be known.
func (i *installer) parse(text []byte) (config.Config, error) {
	return config.Parse(i.Path(config.DefaultPath), text, cmp.Or(i.o.NodeName, "node"))
}

// sameMembership refuses options for a new agent.yaml that the existing one, which is kept, contradicts. The error wraps
// ErrBadOption.
func (i *installer) sameMembership(have []byte) error {
	if i.o.Membership+i.o.Kubeconfig+i.o.Server == "" {
		return nil
	}
	cfg, err := i.parse(have)
	if err != nil {
		return fmt.Errorf("%w: %w: fix that file, which is kept, and name the membership there", ErrBadOption, err)
	}
	var k config.Kubernetes
	if cfg.Membership.Kubernetes != nil {
		k = *cfg.Membership.Kubernetes
	}
	for _, x := range []struct{ flag, want, key, is string }{
		{"--membership", i.o.Membership, "membership.file", cfg.Membership.File},
		{"--kubeconfig", i.o.Kubeconfig, "membership.kubernetes.kubeconfig", k.Kubeconfig},
		{"--server", i.o.Server, "membership.kubernetes.server", k.Server},
	} {
		if x.want != "" && x.want != x.is {
			return fmt.Errorf("%w: %s %s, but %s, which is kept, has %s: %q: change membership there, and leave the option out",
				ErrBadOption, x.flag, x.want, config.DefaultPath, x.key, x.is)
		}
	}
	return nil
}

// configure writes agent.yaml if there is none.
func (i *installer) configure(text string) error {
	st, err := i.State(config.DefaultPath)
	if err != nil {
		return err
	}
	if st != placed.Absent {
		i.Say("kept     %s", config.DefaultPath)
		return nil
	}
	return i.Put(config.DefaultPath, []byte(text), 0o644)
}

// writes are the directories that an agent with this configuration writes to, none if it cannot be read.
func (i *installer) writes(configuration string) []string {
	cfg, err := i.parse([]byte(configuration))
	if err != nil {
		i.Todo = append(i.Todo, fmt.Sprintf("fix the configuration, then run this command again: the unit lets the agent write to the directories that it names (%v)", err))
		return nil
	}
	return cfg.Writes()
}

func (i *installer) installUnit(ctx context.Context, configuration string) error {
	for _, name := range []string{agentName, cniconf.PluginName} {
		from := filepath.Join(filepath.Dir(i.o.Binary), name)
		if name == agentName {
			from = i.o.Binary
		}
		data, err := os.ReadFile(from)
		if err != nil {
			return fmt.Errorf("%w; put the plugin %s into the directory of the agent's binary", err, cniconf.PluginName)
		}
		if err := i.Replace(filepath.Join(i.o.Prefix, "bin", name), data, 0o755); err != nil {
			return err
		}
	}
	if err := i.Put(unitPath, []byte(manifests.AgentUnit(i.o.Prefix, i.writes(configuration)...)), 0o644); err != nil {
		return err
	}
	if err := i.systemctl(ctx, []string{"daemon-reload"}, []string{"enable", UnitName}, []string{"restart", UnitName}); err != nil {
		return err
	}
	if i.o.Systemctl != nil {
		i.Say("started  %s", UnitName)
		return nil
	}
	i.Todo = append(i.Todo, fmt.Sprintf("without systemd, let your init run: %s run --wait --config %s",
		filepath.Join(i.o.Prefix, "bin", agentName), config.DefaultPath))
	return nil
}

// systemctl runs commands, or notes them for the operator where systemd does not run.
func (i *installer) systemctl(ctx context.Context, commands ...[]string) error {
	for _, c := range commands {
		if i.o.Systemctl == nil {
			i.Todo = append(i.Todo, "systemctl "+strings.Join(c, " "))
		} else if err := i.o.Systemctl(ctx, c...); err != nil {
			return err
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

var (
	// ErrNotInstalled means that there is no record of an installation.
	ErrNotInstalled = errors.New("not installed by `edgemesh-agent install`")
	// ErrOtherForm means that the agent is installed in another form.
	ErrOtherForm = errors.New("installed in another form")
	// ErrUnfit means that the agent cannot run in this form with its configuration.
	ErrUnfit = errors.New("not possible in this form")
	// ErrUnfitHost means that the agent cannot run on this host, or not with what is on it.
	ErrUnfitHost = errors.New("not possible on this host")
	// ErrBadOption means that an option has an invalid value.
	ErrBadOption = errors.New("bad option")
)
