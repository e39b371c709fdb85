package p2p

import (
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	realuplinks "edgemesh/internal/uplink"
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
func (u *uplinks) lan(r *roster) []uplink {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.refresh()
	var out []uplink
	for _, l := range u.links {
		private := uplink{index: l.index}
		public := false
		for _, p := range l.prefixes {
			public = public || p.Addr().Is4() && manet.IsPublicAddr(endpoint{addr: netip.AddrPortFrom(p.Addr(), 1)}.multiaddr())
			if !r.inCluster(p.Addr()) {
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
func (u *uplinks) offer(r *roster) []netip.Addr {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.refresh()
	var out []netip.Addr
	for _, ip := range u.offered {
		if !r.inCluster(ip) {
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

// endpoint is the part of a multiaddr that NAT translates.
type endpoint struct {
	udp  bool // QUIC, else TCP
	addr netip.AddrPort
}

func (e endpoint) valid() bool { return e.addr.IsValid() && e.addr.Port() != 0 }

func (e endpoint) multiaddr() ma.Multiaddr {
	fam := "/ip4/"
	if e.addr.Addr().Is6() {
		fam = "/ip6/"
	}
	s := fam + e.addr.Addr().WithZone("").String()
	port := strconv.Itoa(int(e.addr.Port()))
	if e.udp {
		return ma.StringCast(s + "/udp/" + port + "/quic-v1")
	}
	return ma.StringCast(s + "/tcp/" + port)
}

func (e endpoint) String() string {
	if e.udp {
		return "udp " + e.addr.String()
	}
	return "tcp " + e.addr.String()
}

// parseEndpoint accepts /ip{4,6}/X/tcp/P and /ip{4,6}/X/udp/P/quic-v1, the
// addresses this package dials and listens on. A trailing /p2p/… is ignored; any
// other address (circuits, DNS names, WebTransport) has no endpoint.
func parseEndpoint(a ma.Multiaddr) (endpoint, bool) {
	if n := len(a); n > 0 && a[n-1].Protocol().Code == ma.P_P2P {
		a = a[:n-1]
	}
	if len(a) < 2 {
		return endpoint{}, false
	}
	ip, err := manet.ToIP(a)
	if err != nil {
		return endpoint{}, false
	}
	addr, ok := netip.AddrFromSlice(ip)
	if !ok || (a[0].Protocol().Code != ma.P_IP4 && a[0].Protocol().Code != ma.P_IP6) {
		return endpoint{}, false
	}
	port, err := strconv.ParseUint(a[1].Value(), 10, 16)
	if err != nil {
		return endpoint{}, false
	}
	e := endpoint{addr: netip.AddrPortFrom(addr.Unmap(), uint16(port))}
	switch {
	case a[1].Protocol().Code == ma.P_TCP && len(a) == 2:
		return e, true
	case a[1].Protocol().Code == ma.P_UDP && len(a) == 3 && a[2].Protocol().Code == ma.P_QUIC_V1:
		e.udp = true
		return e, true
	}
	return endpoint{}, false
}

// listenEndpoints expands listening addresses to the ones offered to peers: the
// unspecified address stands for every uplink of its family.
func listenEndpoints(listen []ma.Multiaddr, uplinks []netip.Addr) []endpoint {
	var out []endpoint
	for _, a := range listen {
		e, ok := parseEndpoint(a)
		if !ok {
			continue
		}
		if !e.addr.Addr().IsUnspecified() {
			out = append(out, e)
			continue
		}
		for _, ip := range uplinks {
			if ip.Is4() == e.addr.Addr().Is4() {
				out = append(out, endpoint{udp: e.udp, addr: netip.AddrPortFrom(ip, e.addr.Port())})
			}
		}
	}
	return out
}

// isCircuit says whether a leads through a relay.
func isCircuit(a ma.Multiaddr) bool {
	_, err := a.ValueForProtocol(ma.P_CIRCUIT)
	return err == nil
}
