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
	"os"
	"path/filepath"
	"strings"

	"edgemesh/agent/cniconf"
	"edgemesh/agent/config"
	"edgemesh/cni/ipam"
	"edgemesh/internal/durable"
	"edgemesh/manifests"
)

// Form is how the agent is started.
type Form string

// The forms.
const (
	Systemd   Form = "systemd"
	StaticPod Form = "static-pod"
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
//
// Fields: one per flag of install and uninstall, and what a test puts in place of this
// host.
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
	Kubeconfig string // instead of it; both empty: kubelet's, if it exists

	// For Uninstall:
	Purge       bool   // also files changed since, the key and the pods' addresses
	DataDir     string // of these addresses
	KeepNetwork bool   // another form of the agent takes over: no cleanup

	Binary string // the agent to install
	// Systemctl calls systemctl. It is nil if systemd is not running, or is another
	// host's.
	Systemctl func(ctx context.Context, args ...string) error
	// Cleanup removes what the agent set up in the kernel; nil if this is another host.
	Cleanup func(ctx context.Context) error
	Out     io.Writer // what was done, and what is left to do
}

// installer is one installation or uninstallation.
//
// Methods: the steps of an installation, a few lines each; pod.go and record.go have theirs.
type installer struct {
	o    Options
	rec  record
	todo []string // for the operator
}

// path is a path of the host as this process sees it.
func (i *installer) path(p string) string { return filepath.Join(i.o.Root, p) }

func (i *installer) say(format string, args ...any) { fmt.Fprintf(i.o.Out, format+"\n", args...) }

// Install writes binaries, unit or static pod, and a configuration if there is none, and
// starts the agent if it can; otherwise it prints what to run. Called again it upgrades.
// The error may be ErrBadOption, ErrOtherForm or ErrUnfit; then nothing was written.
func Install(ctx context.Context, o Options) error {
	i := &installer{o: o}
	if err := i.check(); err != nil {
		return err
	}
	switch err := i.load(); {
	case errors.Is(err, ErrNotInstalled):
		i.rec = record{Form: o.Form, Files: map[string]string{}}
	case err != nil:
		return err
	case i.rec.Form != o.Form:
		return fmt.Errorf("%w (%s): uninstall that first", ErrOtherForm, i.rec.Form)
	}
	text, err := i.configuration()
	if err != nil {
		return err
	}
	var pod string
	if o.Form == StaticPod {
		if pod, err = i.pod(text); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(i.path(o.StateDir), 0o700); err != nil {
		return err
	}
	if err := i.configure(text); err != nil {
		return err
	}
	if o.Form == StaticPod {
		return i.installPod(pod)
	}
	return i.installUnit(ctx)
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
	if i.o.Form != Systemd && i.o.Form != StaticPod {
		return fmt.Errorf("%w: --form: %q is neither %s nor %s", ErrBadOption, i.o.Form, Systemd, StaticPod)
	}
	if i.o.Membership != "" && i.o.Kubeconfig != "" {
		return fmt.Errorf("%w: --membership and --kubeconfig exclude each other", ErrBadOption)
	}
	if strings.ContainsAny(i.o.Image+i.o.NodeName, " \n\t\"'") {
		return fmt.Errorf("%w: --image and --node-name have no spaces or quotes", ErrBadOption)
	}
	return nil
}

// configuration is the content of agent.yaml: the existing one, or the one to write.
func (i *installer) configuration() (string, error) {
	have, err := os.ReadFile(i.path(config.DefaultPath))
	if err == nil {
		return string(have), nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	host := i.distribution()
	membership, kubeconfig := i.o.Membership, i.o.Kubeconfig
	if membership == "" && kubeconfig == "" && exists(i.path(host.kubeconfig)) {
		kubeconfig = host.kubeconfig
	}
	var b strings.Builder
	b.WriteString("# Made by `edgemesh-agent install`; an upgrade keeps it.\n")
	if i.o.NodeName != "" {
		fmt.Fprintf(&b, "nodeName: %s\n", i.o.NodeName)
	}
	if host.cniConf != "" {
		fmt.Fprintf(&b, "cniConfDir: %s\ncniBinDir: %s\n", host.cniConf, i.present(host.cniBin...))
	}
	missing := kubeconfig
	if kubeconfig != "" {
		fmt.Fprintf(&b, "membership: {kubernetes: {kubeconfig: %s}}\n", kubeconfig)
	} else {
		missing = cmp.Or(membership, "/etc/edgemesh/cluster.yaml")
		fmt.Fprintf(&b, "membership: {file: %s}\n", missing)
	}
	if !exists(i.path(missing)) {
		i.todo = append(i.todo, fmt.Sprintf("create %s, or name another membership in %s", missing, config.DefaultPath))
	}
	return b.String(), nil
}

// configure writes agent.yaml if there is none.
func (i *installer) configure(text string) error {
	st, err := i.state(config.DefaultPath)
	if err != nil {
		return err
	}
	if st != absent {
		i.say("kept     %s", config.DefaultPath)
		return nil
	}
	return i.put(config.DefaultPath, []byte(text), 0o644)
}

// put writes a file of ours. It keeps a file that was changed, or that is not ours.
func (i *installer) put(path string, data []byte, mode os.FileMode) error {
	st, err := i.state(path)
	if err != nil {
		return err
	}
	if st == changed || st == foreign {
		have, err := os.ReadFile(i.path(path))
		if err != nil {
			return err
		}
		if digest(have) != digest(data) {
			i.say("kept     %s (differs from what this command writes: compare, or remove it and install again)", path)
			return nil
		}
	}
	if st == ours && i.rec.Files[path] == digest(data) {
		i.say("as is    %s", path)
		return nil
	}
	return i.write(path, data, mode)
}

// write replaces a file, whatever is there.
func (i *installer) write(path string, data []byte, mode os.FileMode) error {
	if err := i.remember(path, data); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(i.path(path)), 0o755); err != nil {
		return err
	}
	// By renaming, because a running program's file cannot be written to.
	if err := durable.WriteFile(i.path(path), data, mode); err != nil {
		return err
	}
	i.say("written  %s", path)
	return nil
}

func (i *installer) installUnit(ctx context.Context) error {
	for _, name := range []string{agentName, cniconf.PluginName} {
		from := filepath.Join(filepath.Dir(i.o.Binary), name)
		if name == agentName {
			from = i.o.Binary
		}
		data, err := os.ReadFile(from)
		if err != nil {
			return fmt.Errorf("%w; put the plugin %s into the directory of the agent's binary", err, cniconf.PluginName)
		}
		path := filepath.Join(i.o.Prefix, "bin", name)
		have, err := os.ReadFile(i.path(path))
		if err == nil && digest(have) == digest(data) && i.rec.Files[path] != "" {
			i.say("as is    %s", path)
			continue
		}
		if err := i.write(path, data, 0o755); err != nil {
			return err
		}
	}
	if err := i.put(unitPath, []byte(manifests.AgentUnit(i.o.Prefix)), 0o644); err != nil {
		return err
	}
	commands := [][]string{{"daemon-reload"}, {"enable", UnitName}, {"restart", UnitName}}
	if i.o.Systemctl == nil {
		for _, c := range commands {
			i.todo = append(i.todo, "systemctl "+strings.Join(c, " "))
		}
		i.todo = append(i.todo, fmt.Sprintf("without systemd, let your init run: %s run --wait --config %s",
			filepath.Join(i.o.Prefix, "bin", agentName), config.DefaultPath))
		return i.done()
	}
	for _, c := range commands {
		if err := i.o.Systemctl(ctx, c...); err != nil {
			return err
		}
	}
	i.say("started  %s", UnitName)
	return i.done()
}

// done prints what is left to do.
func (i *installer) done() error {
	if len(i.todo) > 0 {
		i.say("\nleft to do:")
		for _, t := range i.todo {
			i.say("  %s", t)
		}
	}
	return nil
}

// Uninstall stops the agent and removes what it set up and what Install wrote. The node is
// as it was before, except for the key and the pods' addresses, which Purge removes too.
// It continues after errors. The error may be ErrNotInstalled.
func Uninstall(ctx context.Context, o Options) error {
	i := &installer{o: o}
	if o.Purge && o.KeepNetwork {
		return fmt.Errorf("%w: --purge and --keep-network exclude each other", ErrBadOption)
	}
	if err := i.load(); err != nil {
		return err
	}
	var errs []error
	if i.rec.Form == Systemd {
		errs = append(errs, i.stopUnit(ctx))
	} else {
		errs = append(errs, i.stopPod())
	}
	if o.KeepNetwork {
		i.say("kept     interfaces, routes, rules and the CNI configuration")
	} else if o.Cleanup == nil {
		i.todo = append(i.todo, "interfaces, routes and rules of a running agent are still there: stop it, then run "+
			"`edgemesh-agent cleanup` on the host, or reboot it")
	} else if err := o.Cleanup(ctx); err != nil {
		// The binary must stay for another attempt.
		return errors.Join(append(errs, err)...)
	}
	errs = append(errs, i.take(o.Purge))
	if o.Purge {
		errs = append(errs, ipam.Purge(i.path(o.DataDir)))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if i.rec.Form == Systemd && o.Systemctl != nil {
		if err := o.Systemctl(ctx, "daemon-reload"); err != nil {
			return err
		}
	}
	if err := os.Remove(i.recordPath()); err != nil {
		return err
	}
	if os.Remove(i.path(o.StateDir)) == nil {
		i.say("removed  %s", o.StateDir)
	} else {
		i.say("kept     %s (the node's key, so it can come back as the same node)", o.StateDir)
	}
	return i.done()
}

func (i *installer) stopUnit(ctx context.Context) error {
	if i.o.Systemctl == nil {
		// The link of `systemctl enable`; a unit cannot be disabled once its file is gone.
		err := os.Remove(i.path(wantsPath))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		i.todo = append(i.todo, "systemctl stop "+UnitName, "systemctl daemon-reload")
		return err
	}
	if err := i.o.Systemctl(ctx, "disable", "--now", UnitName); err != nil {
		return err
	}
	i.say("stopped  %s", UnitName)
	return nil
}

// stopPod removes the static pod's file, so that kubelet stops it.
func (i *installer) stopPod() error {
	for path := range i.rec.Files {
		if filepath.Base(path) != podName {
			continue
		}
		if err := os.Remove(i.path(path)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		i.say("removed  %s", path)
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
	ErrUnfit = errors.New("not possible as a static pod")
	// ErrBadOption means that an option has an invalid value.
	ErrBadOption = errors.New("bad option")
)
