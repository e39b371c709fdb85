package uplink

import (
	"net"
	"slices"
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

// TestBetween: what leads to other networks, whatever was made after the agent.
func TestBetween(t *testing.T) {
	link := func(name, kind string, index, master, parent int) netlink.Link {
		return &netlink.GenericLink{LinkType: kind, LinkAttrs: netlink.LinkAttrs{Name: name, Index: index, MasterIndex: master, ParentIndex: parent, NetNsID: -1}}
	}
	tun := func(name string, index int, mode netlink.TuntapMode) netlink.Link {
		return &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name, Index: index}, Mode: mode}
	}
	lo := link("lo", "device", 1, 0, 0)
	lo.Attrs().Flags = net.FlagLoopback
	all := []netlink.Link{
		lo,
		link("host.7", "vlan", 2, 0, 8), // over a host's bridge, which comes later
		link("eth0", "device", 3, 8, 0), link("wlan0", "device", 4, 0, 0), link("bond0", "bond", 5, 0, 0), link("wg0", "wireguard", 6, 0, 0), tun("vpn0", 7, netlink.TUNTAP_MODE_TUN),
		link("host", "bridge", 8, 0, 0),
		link("docker0", "bridge", 10, 0, 0), link("vethd", "veth", 11, 10, 0), link("docker0.2", "vlan", 12, 0, 10), link("calia", "veth", 13, 0, 0),
		tun("vnet0", 14, netlink.TUNTAP_MODE_TAP), link("flannel.1", "vxlan", 15, 0, 3), link("kube-ipvs0", "dummy", 16, 0, 0),
		link("old0", "bridge", 17, 0, 0), link("lone0", "veth", 18, 0, 0), link("olddummy", "dummy", 19, 0, 0), tun("tap0", 20, netlink.TUNTAP_MODE_TAP),
	}
	got := Between(all, []int{17, 18, 19, 20})
	want := []string{"bond0", "eth0", "host", "host.7", "lone0", "tap0", "vpn0", "wg0", "wlan0"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}
