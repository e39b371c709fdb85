package uplink

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestIndexes(t *testing.T) {
	up := net.FlagUp
	link := func(kind string, index, master int, flags net.Flags) netlink.Link {
		return &netlink.GenericLink{LinkType: kind, LinkAttrs: netlink.LinkAttrs{Index: index, MasterIndex: master, Flags: flags}}
	}
	got := Indexes([]netlink.Link{
		link("device", 1, 0, up|net.FlagLoopback),
		link("device", 2, 0, up),
		link("device", 3, 0, 0),  // down
		link("bridge", 4, 0, up), // docker0 without containers
		link("bridge", 5, 0, up), // edgemesh-br with a pod
		link("veth", 6, 5, up),
		link("bridge", 7, 0, up), // a host's br0 with eth1
		link("device", 8, 7, up),
		link("tuntap", 9, 0, up), // edgemesh-tun
		link("dummy", 10, 0, up), // kube-ipvs0
		link("vxlan", 11, 0, up),
		link("veth", 12, 0, up), // a node that is a container itself
		link("vlan", 13, 0, up),
		link("wireguard", 14, 0, up),
	})
	for i := range 15 {
		want := i == 2 || i == 7 || i == 8 || i == 12 || i == 13 || i == 14
		if got[i] != want && i != 6 { // a bridge's port has no address of its own
			t.Errorf("link %d: %v, want %v", i, got[i], want)
		}
	}
}
