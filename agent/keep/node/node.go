// Package node is what a node shows of other network plugins, and what it means for
// cniMode: node.go looks, check.go judges.
package node

import (
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/cni/detect"
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

// look gathers the traces of plugins on the node; it skips what it cannot read.
func look(confDir string) detect.Node {
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
