package rtnetlink

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
	"edgemesh/cni/podlink"
)

// diffApart compares what keeps pods' ports apart where this host forwards between them: ports are isolated, so that a frame reaches the
// host alone, which answers for every pod's address: by a switch of IPv4's (package sysctl), by an entry for each address of IPv6's.
func diffApart(bridge netlink.Link, links []netlink.Link, s plan.State) ([]plan.Change, error) {
	if !s.Routed && !podlink.Routed(plan.BridgeName) {
		return nil, nil
	}
	apart, err := isolated()
	if err != nil {
		return nil, err
	}
	var out, moved []plan.Change
	want := map[netip.Addr]bool{}
	for _, l := range links {
		a := l.Attrs()
		if !IsPod(l) {
			continue
		}
		if is := apart[a.Index]; is != s.Routed && (a.MasterIndex == bridge.Attrs().Index || a.MasterIndex == 0 && s.Routed) { // diffPorts plugs it in
			out = append(out, plan.Change{What: fmt.Sprintf("set %s isolated: %t", a.Name, s.Routed), Do: func() error {
				return ignore(netlink.LinkSetIsolated(l, s.Routed), unix.ENODEV)
			}})
			if ips := podlink.Addresses(l); s.Routed && a.Flags&net.FlagUp != 0 {
				moved = append(moved, plan.Change{What: fmt.Sprintf("announce this host's MAC for %s", ips), Do: func() error { return announce(bridge, ips) }})
			}
		}
		for _, ip := range podlink.Addresses(l) {
			if ip.Is6() && s.Routed && s.Each[1].Wanted {
				want[ip] = true
			}
		}
	}
	have := map[netip.Addr]bool{}
	all, err := dump("addresses for which "+plan.BridgeName+" answers", func() ([]netlink.Neigh, error) {
		return netlink.NeighProxyList(bridge.Attrs().Index, unix.AF_INET6)
	})
	if err != nil {
		return nil, err
	}
	for _, n := range all {
		have[addrOf(n.IP)] = true
	}
	gone, missing := plan.Diff(have, want)
	for _, ip := range missing {
		out = append(out, plan.Change{What: fmt.Sprintf("answer for %s on %s", ip, plan.BridgeName), Do: func() error { return podlink.Answer(bridge, ip) }})
	}
	for _, ip := range gone {
		out = append(out, plan.Change{What: fmt.Sprintf("no longer answer for %s on %s", ip, plan.BridgeName), Do: func() error { return podlink.NoAnswer(bridge, ip) }})
	}
	return append(out, moved...), nil
}

// isolated says of all bridges' ports, by index, which are isolated: IFLA_BRPORT_ISOLATED in linux/if_link.h.
func isolated() (map[int]bool, error) {
	out := map[int]bool{}
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_BRIDGE))
	all, err := dump("ports", func() ([][]byte, error) { return req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK) })
	if err != nil {
		return nil, err
	}
	for _, m := range all {
		attrs, err := nl.ParseRouteAttrAsMap(m[unix.SizeofIfInfomsg:])
		if err != nil {
			return nil, fmt.Errorf("attributes of a port: %w", err)
		}
		port, err := nl.ParseRouteAttrAsMap(attrs[unix.IFLA_PROTINFO|unix.NLA_F_NESTED].Value)
		if err != nil {
			return nil, fmt.Errorf("attributes of a port: %w", err)
		}
		v := port[nl.IFLA_BRPORT_ISOLATED].Value
		out[int(nl.DeserializeIfInfomsg(m).Index)] = len(v) == 1 && v[0] == 1
	}
	return out, nil
}
