// Package uplink distinguishes links that lead to other hosts from those that lead to
// containers, into tunnels or nowhere.
package uplink

import (
	"net"

	"github.com/vishvananda/netlink"
)

// Indexes returns the indexes of links that are up and lead to other hosts. A bridge
// leads to containers (docker0) unless one of its ports is neither a veth nor a TAP
// (a host's br0 with eth0 in it).
func Indexes(links []netlink.Link) map[int]bool {
	realPort := make(map[int]bool)
	for _, l := range links {
		switch l.Type() {
		case "veth", "tuntap", "tun", "tap":
		default:
			if m := l.Attrs().MasterIndex; m != 0 {
				realPort[m] = true
			}
		}
	}
	out := make(map[int]bool)
	for _, l := range links {
		a := l.Attrs()
		if a.Flags&net.FlagUp == 0 || a.Flags&net.FlagLoopback != 0 {
			continue
		}
		switch l.Type() {
		case "bridge":
			out[a.Index] = realPort[a.Index]
		case "tuntap", "tun", "dummy", "vxlan", "geneve", "ipip", "sit", "gre", "gretap", "ip6tnl", "ifb":
		default:
			out[a.Index] = true
		}
	}
	return out
}
