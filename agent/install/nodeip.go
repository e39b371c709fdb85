package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"edgemesh/internal/config"
	"edgemesh/internal/nodeip"
	"edgemesh/internal/wording"
)

// NodeIP says what becomes of kubelet's --node-ip.
type NodeIP string

// The values of NodeIP.
const (
	NodeIPKept NodeIP = ""    // as it is
	NodeIPMesh NodeIP = "on"  // the node's mesh addresses
	NodeIPOff  NodeIP = "off" // kubelet's own choice again, if it was ours
)

// dropIn is the name of our drop-in for the unit that runs kubelet; dropInWait is how long that unit waits for the
// address at boot.
const (
	dropIn     = "90-edgemesh-node-ip"
	dropInWait = "10s"
	unitDir    = "/etc/systemd/system"
)

// kubelet is the program on a host that reports the node's address.
type kubelet struct {
	unit   string
	config string // directory of its configuration's drop-ins; "" where an option of the command line sets the address
	file   string // its configuration, where it has no drop-ins: the operator's to edit
}

// kubelet recognises it by the distribution, and k3s's role by its unit.
func (i *installer) kubelet() kubelet {
	switch i.host.podDir {
	case k3s.podDir:
		k := kubelet{unit: "k3s-agent.service", config: "/etc/rancher/k3s/config.yaml.d"}
		if exists(i.Path(filepath.Join(unitDir, "k3s.service"))) {
			k.unit = "k3s.service"
		}
		return k
	case kubeadm.podDir:
		return kubelet{unit: "kubelet.service"}
	}
	return kubelet{unit: "edgecore.service", file: edgeCore}
}

// nodeIPPlan is what to write.
type nodeIPPlan struct {
	files    map[string]string // drop-ins
	edgeCore string            // nodeIP of edgecore's configuration; "" to leave it alone
	reported []netip.Addr      // what kubelet is to report; empty: the operator has to configure it
}

// planNodeIP finds out what to write, before anything is. Without a block of this node the error wraps
// nodeip.ErrNoBlock.
func (i *installer) planNodeIP(configuration string) (nodeIPPlan, error) {
	if i.o.NodeIP != NodeIPMesh {
		return nodeIPPlan{}, nil
	}
	addrs, err := i.meshAddresses(configuration)
	if err != nil {
		return nodeIPPlan{}, fmt.Errorf("--node-ip: %w", err)
	}
	k, value := i.kubelet(), join(addrs)
	out := nodeIPPlan{files: map[string]string{}, reported: addrs}
	exec := ""
	switch {
	case k.config != "":
		out.files[filepath.Join(k.config, dropIn+".yaml")] = fmt.Sprintf("# %s\nnode-ip: %q\n", madeBy, value)
	case k.file != "":
		if err := i.edgeCoreFits(addrs[0].String()); err == nil {
			out.edgeCore, out.reported = addrs[0].String(), addrs[:1]
		} else {
			out.reported = nil
			i.Todo = append(i.Todo, fmt.Sprintf("set modules.edged.nodeIP: %s in %s by hand (%v), then: systemctl restart %s", addrs[0], k.file, err, k.unit))
		}
	default:
		start, err := i.execStart(k.unit)
		if err != nil {
			return nodeIPPlan{}, fmt.Errorf("--node-ip: %w; set kubelet's --node-ip=%s by hand", err, value)
		}
		exec = "ExecStart=\nExecStart=" + start + " --node-ip=" + value + "\n"
	}
	out.files[filepath.Join(unitDir, k.unit+".d", dropIn+".conf")] = i.unitDropIn(exec)
	if exists(i.Path("/etc/kubernetes/manifests/kube-apiserver.yaml")) {
		i.Todo = append(i.Todo, "this is a control-plane node: make sure that nothing outside of the pod network uses its node IP")
	}
	return out, nil
}

// meshAddresses are this node's that the host can have. Without a block the error wraps nodeip.ErrNoBlock.
func (i *installer) meshAddresses(configuration string) ([]netip.Addr, error) {
	cfg, err := config.Parse(i.Path(config.DefaultPath), []byte(configuration), cmp.Or(i.o.NodeName, hostname()))
	if err != nil {
		return nil, err
	}
	addrs, err := nodeip.Load(i.Path(cfg.RuntimeDir), i.Path(cfg.StateDir), cfg.NodeName)
	if err != nil {
		return nil, fmt.Errorf("%w; a node joins with its ordinary address: run this again when an agent has run here", err)
	}
	if i.o.Root != "/" {
		return addrs, nil
	}
	if addrs, err = nodeip.Usable(addrs); err != nil {
		return nil, err
	}
	here, err := nodeip.Present(addrs)
	if err != nil {
		return nil, err
	}
	return addrs, kubeletCanHave(addrs, here)
}

// kubeletCanHave refuses addresses that the host does not have: kubelet would report none.
func kubeletCanHave(addrs, here []netip.Addr) error {
	if missing := slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return slices.Contains(here, a) }); len(missing) > 0 {
		return fmt.Errorf("this host does not have %s, so kubelet would be left without an address: start the agent here first; "+
			"with cniMode: keep only some plugins give the host this address (docs/node-addresses.md)", join(missing))
	}
	return nil
}

const madeBy = "Made by `edgemesh-agent install --node-ip`; `edgemesh-agent install --node-ip=off` takes it back."

// unitDropIn makes kubelet's unit wait for the address, where an agent may bring it before kubelet runs.
func (i *installer) unitDropIn(exec string) string {
	wait := ""
	if i.o.Form == Systemd {
		wait = fmt.Sprintf("[Unit]\nWants=%s\nAfter=%[1]s\n\n", UnitName)
		exec = fmt.Sprintf("ExecStartPre=-%s node-ip --wait %s\n", filepath.Join(i.o.Prefix, "bin", agentName), dropInWait) + exec
	}
	return "# " + madeBy + "\n" + wait + "[Service]\n" + exec
}

// setNodeIP writes the drop-ins, or removes them, and restarts kubelet once if they changed.
func (i *installer) setNodeIP(ctx context.Context, p nodeIPPlan) error {
	changed := false
	switch i.o.NodeIP {
	case NodeIPKept:
		return nil
	case NodeIPOff:
		var err error
		if changed, err = i.takeNodeIP(); err != nil {
			return err
		}
	case NodeIPMesh:
		if !slices.Equal(i.rec.NodeIP, p.reported) { // before the files, as everywhere
			i.rec.NodeIP = p.reported
			if err := i.save(); err != nil {
				return err
			}
		}
		for path, text := range p.files {
			before, _ := os.ReadFile(i.Path(path)) // a difference counts, whatever it is
			if string(before) == text {
				i.Say("as is    %s", path)
				continue
			}
			if err := i.Write(path, []byte(text), 0o644); err != nil {
				return err
			}
			changed = true
		}
		if p.edgeCore != "" {
			edited, err := i.editEdgeCore(p.edgeCore)
			if err != nil {
				return err
			}
			changed = changed || edited
		}
	}
	if !changed {
		return nil
	}
	return i.restartKubelet(ctx)
}

// nodeIPFiles are our drop-ins, as recorded.
func (i *installer) nodeIPFiles() map[string]string {
	out := maps.Clone(i.rec.Files)
	maps.DeleteFunc(out, func(path, _ string) bool {
		base := filepath.Base(path)
		return base != dropIn+".conf" && base != dropIn+".yaml"
	})
	return out
}

// takeNodeIP removes our drop-ins, and takes back what was edited. It reports whether there was anything.
func (i *installer) takeNodeIP() (bool, error) {
	byHand := i.rec.EdgeCore == nil && i.kubelet().file != ""
	reported := len(i.rec.NodeIP) > 0
	i.rec.NodeIP = nil
	found, err := i.restoreEdgeCore()
	if err != nil {
		return found, err
	}
	for path := range i.nodeIPFiles() {
		if err := os.Remove(i.Path(path)); err == nil {
			found = true
			i.Say("removed  %s", path)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return found, err
		}
		delete(i.rec.Files, path)
	}
	if !found && !reported {
		return false, nil
	}
	if k := i.kubelet(); found && byHand {
		i.Todo = append(i.Todo, fmt.Sprintf("set modules.edged.nodeIP in %s as it was, then: systemctl restart %s", k.file, k.unit))
	}
	return found, i.save()
}

// restartKubelet makes kubelet report its address again. Pods keep running.
func (i *installer) restartKubelet(ctx context.Context) error {
	unit := i.kubelet().unit
	if err := i.systemctl(ctx, []string{"daemon-reload"}, []string{"restart", unit}); err != nil {
		return err
	}
	if i.o.Systemctl != nil {
		i.Say("restarted %s", unit)
	}
	return nil
}

// unitDirs are where systemd looks for units, the first one first (systemd.unit(5)).
var unitDirs = []string{unitDir, "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}

// execStart is how a unit starts its program, its drop-ins counted, ours left out.
func (i *installer) execStart(unit string) (string, error) {
	files := map[string]string{} // drop-ins, by name
	main := ""
	for _, dir := range slices.Backward(unitDirs) { // the first one overrides
		if file := filepath.Join(dir, unit); exists(i.Path(file)) {
			main = file
		}
		all, err := filepath.Glob(i.Path(filepath.Join(dir, unit+".d", "*.conf")))
		if err != nil {
			return "", err
		}
		for _, file := range all {
			files[filepath.Base(file)] = file
		}
	}
	if main == "" {
		return "", fmt.Errorf("this host has no unit %s", unit)
	}
	delete(files, dropIn+".conf")
	order := []string{i.Path(main)}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		order = append(order, files[name])
	}
	start := ""
	for _, file := range order {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", " ")) {
			if value, ok := strings.CutPrefix(strings.TrimSpace(line), "ExecStart="); ok {
				start = strings.Join(strings.Fields(value), " ")
			}
		}
	}
	if start == "" {
		return "", fmt.Errorf("%s has no ExecStart", main)
	}
	return start, nil
}

// join is how kubelet and k3s take addresses.
func join(addrs []netip.Addr) string { return strings.Join(wording.Texts(addrs), ",") }

// hostname is the node's name where nothing says another one.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "node"
	}
	return strings.ToLower(name)
}
