package host

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"edgemesh/agent/mesh"
	"edgemesh/internal/uplink"
)

// Uplinks lists the private addresses of links that lead to other hosts, in the
// order of their numbers. Addresses inside the cluster's ranges are none.
func (h *Host) Uplinks() ([]mesh.Uplink, error) {
	links, err := dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("host: list interfaces: %w", err)
	}
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("host: list addresses: %w", err)
	}
	usable := uplink.Indexes(links)
	byIndex := map[int]*netlink.LinkAttrs{}
	for _, l := range links {
		if a := l.Attrs(); usable[a.Index] && a.RawFlags&unix.IFF_LOWER_UP != 0 {
			byIndex[a.Index] = a
		}
	}
	ranges := h.ranges()
	var out []mesh.Uplink
	for _, a := range addrs {
		p := prefixOf(a.IPNet)
		link := byIndex[a.LinkIndex]
		if link == nil || !mesh.PrivateUnderlay(p.Addr()) || a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 ||
			p.Addr().Is6() && a.Flags&unix.IFA_F_TEMPORARY != 0 ||
			slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(p.Addr()) }) {
			continue
		}
		u := mesh.Uplink{Link: link.Name, Index: link.Index, Addr: p.Addr(), Bits: p.Bits(), MTU: link.MTU}
		if len(link.HardwareAddr) == len(u.MAC) {
			u.MAC = [6]byte(link.HardwareAddr)
		}
		out = append(out, u)
	}
	slices.SortFunc(out, func(a, b mesh.Uplink) int {
		if a.Index != b.Index {
			return a.Index - b.Index
		}
		return a.Addr.Compare(b.Addr)
	})
	return out, nil
}

// ranges are the cluster's, as of the last Set.
func (h *Host) ranges() []netip.Prefix {
	h.lan.mu.Lock()
	defer h.lan.mu.Unlock()
	return append(slices.Clone(h.lan.fs.each[0].ranges), h.lan.fs.each[1].ranges...)
}

// WatchUplinks calls changed, from one goroutine at a time, when a link or an
// address of the host changes, until ctx ends.
func (h *Host) WatchUplinks(ctx context.Context, changed func()) error {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return fmt.Errorf("host: watch uplinks: %w", err)
	}
	stop := context.AfterFunc(ctx, s.Close)
	defer stop()
	listen(ctx, s, func(m syscall.NetlinkMessage) bool {
		if index, ok := dropsRoutes(m); ok {
			h.doubtPaths(index)
		}
		return true
	}, changed)
	return nil
}

// dropsRoutes reports whether the kernel drops an interface's routes along with what a
// message tells: it is set down, or its last address may have gone. The kernel announces
// none of them for IPv4.
func dropsRoutes(m syscall.NetlinkMessage) (index int, ok bool) {
	switch {
	case m.Header.Type == unix.RTM_DELADDR && len(m.Data) >= unix.SizeofIfAddrmsg:
		return int(nl.DeserializeIfAddrmsg(m.Data).Index), true
	case m.Header.Type == unix.RTM_NEWLINK && len(m.Data) >= unix.SizeofIfInfomsg:
		info := nl.DeserializeIfInfomsg(m.Data)
		return int(info.Index), info.Flags&unix.IFF_UP == 0
	}
	return 0, false
}

// doubtPaths notes that routes over an interface may be gone. It may be as before
// already: nothing else would tell then.
func (h *Host) doubtPaths(index int) {
	h.lan.mu.Lock()
	defer h.lan.mu.Unlock()
	if h.lan.known == nil {
		return
	}
	for _, routes := range h.lan.known.routes {
		for r := range routes {
			if r.link == index {
				h.lan.known = nil
				return
			}
		}
	}
}

// PathsInDoubt reports whether the kernel may hold less than SetPaths has set: the
// next call compares.
func (h *Host) PathsInDoubt() bool {
	h.lan.mu.Lock()
	defer h.lan.mu.Unlock()
	return h.lan.set && h.lan.known == nil
}
