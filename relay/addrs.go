package main

import (
	"net/netip"
	"slices"

	"edgemesh/tunnel/p2p/who/members"

	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ifaceAddr is an address of this host.
type ifaceAddr struct {
	ip      netip.Addr
	virtual bool // of a bridge, tunnel or the like: mostly containers
}

var virtualTypes = []string{"bridge", "tuntap", "tun", "tap", "dummy", "vxlan", "geneve", "ipip", "sit", "gre", "ip6tnl", "ifb"}

// passing are the flags of IPv6 addresses that will not stay, or are not ready.
const passing = unix.IFA_F_TEMPORARY | unix.IFA_F_DEPRECATED | unix.IFA_F_TENTATIVE

// interfaceAddrs reads the host's global addresses.
func interfaceAddrs() ([]ifaceAddr, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	var out []ifaceAddr
	for _, l := range links {
		addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			continue // the link is gone
		}
		virtual := slices.Contains(virtualTypes, l.Type())
		for _, a := range addrs {
			ip, ok := netip.AddrFromSlice(a.IP)
			ip = ip.Unmap()
			if ok && (ip.Is4() || a.Flags&passing == 0) {
				out = append(out, ifaceAddr{ip, virtual})
			}
		}
	}
	return out, nil
}

// offered returns the addresses to give out for listen, the best kind there is,
// and whether they are public. A wildcard stands for public addresses of any
// interface; without one, private addresses of real uplinks, then of any
// interface, then loopback. An address that is listened on by name is always
// given out.
func offered(listen []ma.Multiaddr, ifaces []ifaceAddr, now *members.View) (out []ma.Multiaddr, public bool) {
	var tiers [4][]ma.Multiaddr
	for _, l := range listen {
		ip, err := manet.ToIP(l)
		if err != nil {
			continue
		}
		if !ip.IsUnspecified() {
			if now.Outside(l) {
				out = append(out, l)
				public = public || manet.IsPublicAddr(l)
			}
			continue
		}
		for _, i := range ifaces {
			if i.ip.Is4() != (l[0].Protocol().Code == ma.P_IP4) || i.ip.IsLinkLocalUnicast() {
				continue
			}
			host, err := manet.FromIP(i.ip.AsSlice())
			if err != nil || !now.Outside(host) {
				continue
			}
			a := host.Encapsulate(l[1:])
			tier := 1
			switch {
			case i.ip.IsLoopback():
				tier = 3
			case manet.IsPublicAddr(a):
				tier = 0
			case i.virtual:
				tier = 2
			}
			tiers[tier] = append(tiers[tier], a)
		}
	}
	for i, t := range tiers {
		if len(t) > 0 && (len(out) == 0 || i == 0) {
			out = append(out, t...)
			public = public || i == 0
			break
		}
	}
	return ma.Unique(out), public
}
