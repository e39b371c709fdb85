// Package uplinks knows the addresses of this host: all of them, to decide whether an
// address seen by a peer is really owned, and those of real uplinks, which may be offered
// to peers. Bridges of containers, tunnels and dummies are not uplinks: a peer that dials
// them ends on the wrong host, or in the tunnel itself.
//
//	uplinks.go   what is owned, offered and worth dialing
//	watch.go     news of changes
package uplinks

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	ma "github.com/multiformats/go-multiaddr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/internal/nat64"
	"edgemesh/internal/uplink"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/who/members"
)

// A reading of the host's interfaces is used for shortTTL, and for longTTL while Watch hears of changes.
const (
	shortTTL = 3 * time.Second
	longTTL  = 30 * time.Second
)

// Addrs are the addresses of this host.
type Addrs struct {
	view      func() *members.View
	listen    func() []ma.Multiaddr
	list      func() (Reading, error)
	subscribe func() (news <-chan netlink.AddrUpdate, stop func(), err error)
	route     func(to, from netip.Addr, mark uint32) (src netip.Addr, link int, err error)

	mu    sync.Mutex // held while the interfaces are read; no other lock is taken under it
	heard bool       // the kernel announces changes
	read  time.Time
	last  Reading
}

// Reading is what the kernel says of the host's interfaces.
type Reading struct {
	Owned   map[netip.Addr]bool
	Offered []netip.Addr // those of uplinks
	Links   []Link       // uplinks only
}

// Link is an interface that leads to other hosts.
type Link struct {
	Index    int
	Prefixes []netip.Prefix // its addresses, with the length of their networks
}

// New returns the addresses of this host, for a node that listens on some of them. Those
// in the cluster's ranges are left out of what is offered.
func New(view func() *members.View, listen func() []ma.Multiaddr) *Addrs {
	return &Addrs{view: view, listen: listen, list: list, subscribe: subscribe, route: route}
}

// LAN returns the uplinks that lead to a local network: those with private addresses, and
// no public IPv4 one.
func (a *Addrs) LAN() []Link {
	v := a.view()
	var out []Link
	for _, l := range a.now().Links {
		ps := slices.DeleteFunc(slices.Clone(l.Prefixes), func(p netip.Prefix) bool { return v.InCluster(p.Addr()) })
		public := slices.ContainsFunc(l.Prefixes, func(p netip.Prefix) bool { return p.Addr().Is4() && endpoint.IsPublic(p.Addr()) })
		if !public && len(ps) > 0 {
			out = append(out, Link{Index: l.Index, Prefixes: ps})
		}
	}
	return out
}

// Links returns all uplinks.
func (a *Addrs) Links() []Link { return slices.Clone(a.now().Links) }

// Owns reports whether ip is an address of this host.
func (a *Addrs) Owns(ip netip.Addr) bool { return a.now().Owned[nat64.Inside(ip)] }

// Offered returns the addresses of uplinks, in the kernel's order.
func (a *Addrs) Offered() []netip.Addr {
	v := a.view()
	return slices.DeleteFunc(slices.Clone(a.now().Offered), v.InCluster)
}

// Local are the endpoints of this node that peers may try.
func (a *Addrs) Local() []endpoint.Endpoint { return endpoint.Offered(a.listen(), a.Offered()) }

// Dialable reports whether an endpoint offered by a peer may be dialed: not the cluster's
// own ranges, no cloud's metadata service, and not this node itself, whose private
// address the peer may share.
func (a *Addrs) Dialable(e endpoint.Endpoint) bool {
	ip := nat64.Inside(e.Addr.Addr())
	switch {
	case a.view().InCluster(ip), !ip.IsGlobalUnicast() && !ip.IsLoopback(), endpoint.IsMetadata(ip):
		return false
	case slices.Contains(a.Local(), e), !ip.IsLoopback() && a.Owns(ip):
		return false
	case ip.IsLoopback(): // only where this node itself is bound to loopback
		return slices.ContainsFunc(a.Local(), func(l endpoint.Endpoint) bool { return l.Addr.Addr().IsLoopback() })
	}
	return true
}

// Near reports whether ip is in a network that an uplink leads to, or on this host itself.
func (a *Addrs) Near(ip netip.Addr) bool {
	return ip.IsLoopback() || slices.ContainsFunc(a.now().Links, func(l Link) bool {
		return slices.ContainsFunc(l.Prefixes, func(p netip.Prefix) bool { return p.Contains(ip) })
	})
}

// ReachesIPv6 reports whether e is an address of the IPv6 internet, and this node has one,
// too.
func (a *Addrs) ReachesIPv6(e endpoint.Endpoint) bool {
	global := func(ip netip.Addr) bool { return ip.Is6() && ip.IsGlobalUnicast() && !ip.IsPrivate() }
	return global(e.Addr.Addr()) && a.Dialable(e) && slices.ContainsFunc(a.Offered(), global)
}

// maxSources bounds the dials of one address beside the one that leaves from where the kernel chooses.
const maxSources = 3

// Sources are the addresses of this host that could serve to reach an address, beside the one that the kernel chooses for a
// socket with a mark: one of each other network of the same kind, where the kernel would send packets from it out by the
// interface that has it. An address that is a network of its own is one only on an interface without others: beside them it is a
// Service's, or a standby router's.
func (a *Addrs) Sources(to netip.Addr, mark uint32) (out []netip.Addr) {
	if to.IsPrivate() || to.IsLinkLocalUnicast() || to.IsLoopback() {
		return nil // on such networks an address is lost with its interface
	}
	type source struct {
		netip.Prefix
		link int
	}
	var all []source // one of each network
	for _, l := range a.now().Links {
		ps := slices.DeleteFunc(slices.Clone(l.Prefixes), func(p netip.Prefix) bool {
			return p.Addr().Is4() != to.Is4() || to.Is6() && p.Addr().IsPrivate() || a.view().InCluster(p.Addr())
		})
		if slices.ContainsFunc(ps, func(p netip.Prefix) bool { return !p.IsSingleIP() }) {
			ps = slices.DeleteFunc(ps, netip.Prefix.IsSingleIP)
		}
		for _, p := range ps {
			if p.Addr().Is6() {
				p = netip.PrefixFrom(p.Addr(), min(p.Bits(), 64))
			}
			if !slices.ContainsFunc(all, func(s source) bool { return s.Overlaps(p) }) {
				all = append(all, source{p, l.Index})
			}
		}
	}
	if len(all) < 2 {
		return nil
	}
	chosen, _, err := a.route(to, netip.Addr{}, mark)
	if err != nil {
		return nil
	}
	for _, s := range all {
		if s.Contains(chosen) || len(out) == maxSources {
			continue
		}
		if _, link, err := a.route(to, s.Addr(), mark); err == nil && link == s.link {
			out = append(out, s.Addr())
		}
	}
	return out
}

// Source is the own address from which the kernel sends what a socket with a mark and without an address sends; false: no route leads there.
func (a *Addrs) Source(to netip.Addr, mark uint32) (netip.Addr, bool) {
	src, _, err := a.route(to, netip.Addr{}, mark)
	return src, err == nil && src.IsValid()
}

// route is where the kernel would send a packet: from which address, if none is given, and out by which interface.
func route(to, from netip.Addr, mark uint32) (src netip.Addr, link int, err error) {
	o := &netlink.RouteGetOptions{Mark: mark}
	if from.IsValid() {
		o.SrcAddr = from.AsSlice()
	}
	routes, err := netlink.RouteGetWithOptions(to.AsSlice(), o)
	if err == nil && len(routes) == 0 {
		err = unix.ENETUNREACH
	}
	if err != nil {
		return src, 0, err
	}
	src, _ = netip.AddrFromSlice(routes[0].Src)
	return src.Unmap(), routes[0].LinkIndex, nil
}

// forget makes the next look read the interfaces again. heard: changes are announced from now on.
func (a *Addrs) forget(heard bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heard, a.read = heard, time.Time{}
}

// now is a reading that is not too old. The caller does not change it.
func (a *Addrs) now() Reading {
	a.mu.Lock()
	defer a.mu.Unlock()
	ttl := shortTTL
	if a.heard {
		ttl = longTTL
	}
	if time.Since(a.read) >= ttl {
		a.read = time.Now()
		if r, err := a.list(); err == nil { // else keep what is known
			a.last = r
		}
	}
	return a.last
}

// list reads the host's interfaces.
func list() (Reading, error) {
	r := Reading{Owned: make(map[netip.Addr]bool)}
	links, err := netlink.LinkList()
	if err != nil {
		return r, err
	}
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return r, err
	}
	usable := uplink.Indexes(links)
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		ip = ip.Unmap()
		r.Owned[ip] = true
		if !usable[a.LinkIndex] || !ip.IsGlobalUnicast() || a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DEPRECATED) != 0 {
			continue
		}
		r.Offered = append(r.Offered, ip)
		i := slices.IndexFunc(r.Links, func(l Link) bool { return l.Index == a.LinkIndex })
		if i < 0 {
			i = len(r.Links)
			r.Links = append(r.Links, Link{Index: a.LinkIndex})
		}
		ones, _ := a.Mask.Size()
		r.Links[i].Prefixes = append(r.Links[i].Prefixes, netip.PrefixFrom(ip, ones))
	}
	return r, nil
}
