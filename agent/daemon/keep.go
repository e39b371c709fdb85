package daemon

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/control"
	"edgemesh/agent/mesh"
	"edgemesh/cni/detect"
)

// flannelEnv is where Flannel's daemon tells its plugin about the node.
const flannelEnv = "/run/flannel/subnet.env"

// checkOtherCNI tells which other network plugin has left traces here.
func (d *daemon) checkOtherCNI(plan mesh.Plan) control.Finding {
	n := lookAtNode(d.cfg.CNIConfDir)
	n.Annotations = d.source.Annotations()
	return otherCNIFinding(detect.Find(n), plan.Host.Keep, plan.Self.PodCIDRs)
}

// lookAtNode gathers what the node shows of its plugins; what cannot be read is
// left out.
func lookAtNode(confDir string) detect.Node {
	n := detect.Node{Conf: map[string][]byte{}}
	if confDir != "" {
		entries, _ := os.ReadDir(confDir)
		for _, e := range entries {
			if b, err := os.ReadFile(filepath.Join(confDir, e.Name())); err == nil {
				n.Conf[e.Name()] = b
			}
		}
	}
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

// otherCNIFinding judges other plugins: in the way of ours, or, in keep mode, what
// the node's pods rely on, with the blocks the membership has for them.
func otherCNIFinding(found []detect.Found, keep bool, blocks []netip.Prefix) control.Finding {
	const check = "cniMode"
	others := slices.DeleteFunc(slices.Clone(found), func(f detect.Found) bool { return f.Name == detect.Ours })
	if len(others) == 0 {
		if keep {
			return warning(check, "install the plugin whose pods this node has, or set cniMode: own",
				"cniMode is keep, and no other network plugin is found")
		}
		return ok(check, "own: no other network plugin is found")
	}
	var names []string
	for _, f := range others {
		names = append(names, fmt.Sprintf("%s (%s)", f.Name, strings.Join(f.Evidence, ", ")))
	}
	text := strings.Join(names, "; ")
	first := others[0]
	switch {
	case !keep && first.Active:
		return broken(check, "remove its configuration, or set cniMode: keep to leave the pods with it",
			"the runtime uses another network plugin, its configuration comes before ours: %s", text)
	case !keep:
		return warning(check, "remove what is left of it, and its interfaces by a reboot", "traces of another network plugin: %s", text)
	}
	if strange := foreign(first.PodCIDRs, blocks); len(strange) > 0 {
		return broken(check, "make the membership's podCIDRs of this node those of the plugin, or the plugin's those of the membership",
			"%s gives pods addresses of %v, the membership says that this node owns %v", first.Name, strange, blocks)
	}
	if !slices.Contains([]string{detect.Bridge, detect.Flannel, detect.Kindnet, detect.Calico}, first.Name) {
		return warning(check, "test it, and set cniMode: own if pods do not reach others",
			"keep: the pods stay with %s; it may not rely on the host's routes, as cniMode: keep does", text)
	}
	return ok(check, "keep: the pods stay with %s", text)
}

// foreign lists the prefixes that are not within any of blocks.
func foreign(prefixes, blocks []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(prefixes), func(p netip.Prefix) bool {
		return slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return b.Bits() <= p.Bits() && b.Overlaps(p) })
	})
}
