package p2p

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	manet "github.com/multiformats/go-multiaddr/net"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	realuplinks "edgemesh/internal/uplink"
	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/members"
)

// uplinkTTL is how long a reading of the host's interfaces is used.
const uplinkTTL = 3 * time.Second

// uplinks knows the host's addresses: all of them, to tell whether an address
// seen by a peer is really owned, and those of real uplinks, which may be
// offered to peers. Bridges of containers, tunnels and dummies are no uplinks:
// a peer that dials them ends on the wrong host, or in the tunnel itself.
type uplinks struct {
	mu      sync.Mutex
	read    time.Time
	owned   map[netip.Addr]bool
	offered []netip.Addr
	links   []uplink
}

// uplink is an interface that leads to other hosts.
type uplink struct {
	index    int
	prefixes []netip.Prefix // its addresses, with the length of their networks
}

// lan returns the uplinks that lead to a local network: those with private
// addresses, and no public IPv4 one. Addresses of the cluster's ranges are left out.
func (u *uplinks) lan(r *members.View) []uplink {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.refresh()
	var out []uplink
	for _, l := range u.links {
		private := uplink{index: l.index}
		public := false
		for _, p := range l.prefixes {
			public = public || p.Addr().Is4() && manet.IsPublicAddr(endpoint.Endpoint{Addr: netip.AddrPortFrom(p.Addr(), 1)}.Multiaddr())
			if !r.InCluster(p.Addr()) {
				private.prefixes = append(private.prefixes, p)
			}
		}
		if !public && len(private.prefixes) > 0 {
			out = append(out, private)
		}
	}
	return out
}

// owns says whether ip is an address of this host.
func (u *uplinks) owns(ip netip.Addr) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.refresh()
	return u.owned[ip.Unmap()]
}

// offer returns the addresses of uplinks, outside of the cluster's ranges.
func (u *uplinks) offer(r *members.View) []netip.Addr {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.refresh()
	var out []netip.Addr
	for _, ip := range u.offered {
		if !r.InCluster(ip) {
			out = append(out, ip)
		}
	}
	return out
}

// forget has the interfaces read anew.
func (u *uplinks) forget() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.read = time.Time{}
}

func (u *uplinks) refresh() {
	if time.Since(u.read) < uplinkTTL {
		return
	}
	u.read = time.Now()
	owned := make(map[netip.Addr]bool)
	var offered []netip.Addr
	var ups []uplink
	links, err := netlink.LinkList()
	if err != nil {
		return // keep what is known
	}
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return
	}
	usable := realuplinks.Indexes(links)
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		ip = ip.Unmap()
		owned[ip] = true
		if usable[a.LinkIndex] && ip.IsGlobalUnicast() && a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DEPRECATED) == 0 {
			offered = append(offered, ip)
			ones, _ := a.Mask.Size()
			i := slices.IndexFunc(ups, func(l uplink) bool { return l.index == a.LinkIndex })
			if i < 0 {
				i = len(ups)
				ups = append(ups, uplink{index: a.LinkIndex})
			}
			ups[i].prefixes = append(ups[i].prefixes, netip.PrefixFrom(ip, ones))
		}
	}
	u.owned, u.offered, u.links = owned, offered, ups
}
