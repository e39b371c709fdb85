// Package uplink distinguishes links that lead to other hosts from those that lead to
// containers, into tunnels or nowhere.
package uplink

import (
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// Continuity has the addresses of links that translate this host's IPv4 for its uplinks with IPv6 alone: a CLAT, or the B4 of
// DS-Lite (RFC 7335).
var Continuity = netip.MustParsePrefix("192.0.0.0/29") //nolint:gochecknoglobals // a constant

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

// Between returns the names of links that lead to other networks, up or not, in order: hardware and what stands on it, and
// VPNs of any kind. Bridges lead to containers and virtual machines, unless a port leads to another network, and so do veth
// pairs and TAP devices, unless they are among lone (by index).
func Between(links []netlink.Link, lone []int) []string {
	leads := map[int]bool{}
	for changed := true; changed; { // a bridge, and what stands on another link, may come before that
		changed = false
		for _, l := range links {
			a := l.Attrs()
			if leads[a.Index] || !Outer(l, leads, slices.Contains(lone, a.Index)) {
				continue
			}
			leads[a.Index], changed = true, true
			if a.MasterIndex != 0 {
				leads[a.MasterIndex] = true
			}
		}
	}
	var out []string
	for _, l := range links {
		if leads[l.Attrs().Index] {
			out = append(out, l.Attrs().Name)
		}
	}
	slices.Sort(out)
	return out
}

// Outer reports whether one link leads to another network; leads has those known to.
func Outer(l netlink.Link, leads map[int]bool, lone bool) bool {
	a := l.Attrs()
	switch l.Type() {
	case "dummy", "ifb", "nlmon", "can", "vcan":
		return false
	case "bridge", "netkit", "vxlan", "geneve", "openvswitch", "vrf":
		return false
	case "veth":
		return lone
	case "vlan", "macvlan", "macvtap", "ipvlan", "ipvtap":
		return a.ParentIndex == 0 || a.NetNsID >= 0 || leads[a.ParentIndex] // of another namespace: a container's own uplink
	case "tuntap":
		t, is := l.(*netlink.Tuntap)
		return lone || !is || t.Mode != netlink.TUNTAP_MODE_TAP
	}
	return a.Flags&net.FlagLoopback == 0
}
