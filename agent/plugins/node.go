// Package plugins is what a node shows of other network plugins, and what it means for
// cniMode.
package plugins

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/cniconf"
	"edgemesh/agent/findings"
	"edgemesh/internal/cni/detect"
	"edgemesh/internal/cni/overlap"
	"edgemesh/internal/config/strict"
)

// flannelEnv is where Flannel's daemon describes the node to its plugin.
const flannelEnv = "/run/flannel/subnet.env"

// Plugins are the network plugins that have left traces on this node; annotations are
// those of its Node.
func Plugins(confDir string, annotations map[string]string) []detect.Found {
	n := look(confDir)
	n.Annotations = annotations
	return detect.Find(n)
}

// Rival is another pod network that the runtime's configuration in confDir names, and beside which ours would get half of
// the pods at most. A bridge or loopback that comes after ours is podman's, or what a runtime brings along.
func Rival(confDir string) (detect.Found, bool) {
	conf := files(confDir)
	// With ours among them, active is who comes before it.
	conf[cniconf.ConflistName] = []byte(`{"cniVersion": "1.0.0", "name": "edgemesh", "plugins": [{"type": "` + cniconf.PluginName + `"}]}`)
	for _, f := range detect.Find(detect.Node{Conf: conf}) {
		if f.Name != detect.Ours && (f.Active || f.Name != detect.Bridge && f.Name != detect.Unknown) {
			return f, true
		}
	}
	return detect.Found{}, false
}

// Broken is the file of confDir that the runtime cannot read and that comes before every good one, and why; "" for none. containerd
// gives no pod a network then (go-cni, loadFromConfDir); CRI-O takes the next one (ocicni, loadNetworks).
func Broken(confDir string) (file string, err error) {
	all, err := libcni.ConfFiles(confDir, []string{".conf", ".conflist", ".json"})
	if err != nil || len(all) == 0 {
		return "", nil //nolint:nilerr // a missing directory is another check's
	}
	slices.Sort(all)
	if err := load(all[0]); err != nil {
		return all[0], err
	}
	return "", nil
}

// load reads a file as runtimes do.
func load(file string) error {
	text, err := strict.ReadFile(file, cniconf.MaxFile)
	if err != nil {
		return err
	}
	if filepath.Ext(file) == ".conflist" {
		l, err := libcni.ConfListFromBytes(text)
		if err == nil && len(l.Plugins) == 0 {
			err = errors.New("it has no plugins")
		}
		return err
	}
	//lint:ignore SA1019 runtimes still read such files
	c, err := libcni.ConfFromBytes(text)
	if err != nil {
		return err
	}
	if c.Network.Type == "" {
		return errors.New("it names no plugin (type)")
	}
	//lint:ignore SA1019 as above
	_, err = libcni.ConfListFromConf(c)
	return err
}

// files are those of a directory by name; it skips what it cannot read.
func files(dir string) map[string][]byte {
	out := map[string][]byte{}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if b, err := strict.ReadFile(filepath.Join(dir, e.Name()), cniconf.MaxFile); err == nil {
			out[e.Name()] = b
		}
	}
	return out
}

// look gathers the traces of plugins on the node; it skips what it cannot read.
func look(confDir string) detect.Node {
	n := detect.Node{Conf: files(confDir)}
	links, _ := netlink.LinkList()
	for _, l := range links {
		n.Links = append(n.Links, l.Attrs().Name)
	}
	n.FlannelEnv, _ = os.ReadFile(flannelEnv)
	holes, _ := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_MAIN, Type: unix.RTN_BLACKHOLE},
		netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
	for _, r := range holes {
		if r.Dst == nil {
			continue
		}
		if a, ok := netip.AddrFromSlice(r.Dst.IP); ok {
			bits, _ := r.Dst.Mask.Size()
			n.Blackholes = append(n.Blackholes, netip.PrefixFrom(a.Unmap(), bits))
		}
	}
	return n
}

// Check judges other plugins: they block ours or, in keep mode, the node's pods rely on
// them, with the blocks that the membership has for this node.
func Check(found []detect.Found, keep bool, blocks []netip.Prefix) findings.Finding {
	const check = "cniMode"
	others := slices.DeleteFunc(slices.Clone(found), func(f detect.Found) bool { return f.Name == detect.Ours || !keep && loses(f) })
	if len(others) == 0 {
		if keep {
			return findings.Warningf(check, "install the network plugin that the pods are to have, or set cniMode: own",
				"cniMode is keep, but no other network plugin is found")
		}
		return findings.Okayf(check, "own: no other network plugin is found")
	}
	var names []string
	for _, f := range others {
		names = append(names, fmt.Sprintf("%s (%s)", f.Name, strings.Join(f.Evidence, ", ")))
	}
	text := strings.Join(names, "; ")
	first := others[0]
	switch {
	case !keep && first.Active:
		return findings.Brokenf(check, "remove its configuration, or set cniMode: keep to leave the pods with it",
			"the runtime uses another network plugin, whose configuration comes before ours: %s", text)
	case !keep:
		return findings.Warningf(check, "remove its files, and reboot to remove its interfaces", "another network plugin has left traces: %s", text)
	}
	if strange := foreign(first.PodCIDRs, blocks); len(strange) > 0 {
		return findings.Brokenf(check, "give this node the same podCIDRs in the membership and in the plugin's configuration",
			"%s gives pods addresses of %v, but in the membership this node owns %v", first.Name, strange, blocks)
	}
	if !slices.Contains([]string{detect.Bridge, detect.Flannel, detect.Kindnet, detect.Calico}, first.Name) {
		return findings.Warningf(check, "test whether pods reach those of other nodes; if not, set cniMode: own",
			"keep: the pods stay with %s, which may bypass the host's routes that cniMode: keep needs", text)
	}
	return findings.Okayf(check, "keep: the pods stay with %s", text)
}

// loses reports whether f is nothing but files of reference plugins that come after ours, as packages bring them (87-podman,
// 200-loopback): no runtime takes them.
func loses(f detect.Found) bool {
	return !f.Active && (f.Name == detect.Bridge || f.Name == detect.Unknown) && !slices.ContainsFunc(f.Evidence, func(e string) bool {
		name, conf := strings.CutPrefix(e, "configuration ")
		return !conf || name < cniconf.ConflistName
	})
}

// foreign lists the prefixes that are not within any of blocks.
func foreign(prefixes, blocks []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(prefixes), func(p netip.Prefix) bool {
		return slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return b.Bits() <= p.Bits() && b.Overlaps(p) })
	})
}

// Beside leaves out routes, and addresses inside blocks: they are the kept plugin's.
func Beside(conflicts []overlap.Conflict, blocks []netip.Prefix) []overlap.Conflict {
	return slices.DeleteFunc(conflicts, func(c overlap.Conflict) bool {
		return c.Route || slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return b.Contains(c.Other.Addr()) })
	})
}
