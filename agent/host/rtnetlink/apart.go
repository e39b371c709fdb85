package rtnetlink

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
	"edgemesh/internal/cni/podlink"
)

// apart keeps pods' ports apart where this host forwards between them: ports are isolated, so that a frame reaches the host alone, which
// answers for every pod's address: by a switch of IPv4's (package sysctl), by an entry for each address of IPv6's.
type apart struct {
	bridge   netlink.Link
	want     bool
	answers  map[netip.Addr]bool // IPv6 addresses
	isolated map[int]bool        // by index
	pods     []netlink.Link      // on the bridge, or to be plugged in
}

// readApart reads what there is; nil: nothing, and nothing is wanted. It lists answers first: the plugin adds one after it has named the pod.
func readApart(bridge netlink.Link, s plan.State) (*apart, error) {
	if !s.Routed && !podlink.Routed(plan.BridgeName) {
		return nil, nil
	}
	a := &apart{bridge: bridge, want: s.Routed, answers: map[netip.Addr]bool{}}
	all, err := dump("addresses for which "+plan.BridgeName+" answers", func() ([]netlink.Neigh, error) {
		return netlink.NeighProxyList(bridge.Attrs().Index, unix.AF_INET6)
	})
	if err != nil {
		return nil, err
	}
	for _, n := range all {
		a.answers[addrOf(n.IP)] = true
	}
	if a.isolated, err = isolatedPorts(); err != nil {
		return nil, err
	}
	links, err := Links()
	for _, l := range links {
		if m := l.Attrs().MasterIndex; IsPod(l) && (m == bridge.Attrs().Index || m == 0 && s.Routed) { // diffPorts plugs it in
			a.pods = append(a.pods, l)
		}
	}
	return a, err
}

// diff compares. before and after belong before and after the switch of IPv4's.
func (a *apart) diff(s plan.State) (before, after []plan.Change) {
	if a == nil {
		return nil, nil
	}
	var ports, announcements []plan.Change
	want := map[netip.Addr]bool{}
	for _, l := range a.pods {
		var ips []netip.Addr
		for _, ip := range podlink.Addresses(l) {
			if s.Of(ip).Wanted {
				ips = append(ips, ip)
				if a.want && ip.Is6() {
					want[ip] = true
				}
			}
		}
		if a.isolated[l.Attrs().Index] == a.want {
			continue
		}
		ports = append(ports, isolate(l, a.want))
		announcements = append(announcements, plan.Change{What: fmt.Sprintf("announce this host's MAC for %s", ips), Do: func() error {
			announce(a.bridge, ips)
			return nil
		}})
	}
	gone, missing := plan.Diff(a.answers, want)
	for _, ip := range missing {
		after = append(after, plan.Change{What: fmt.Sprintf("answer for %s on %s", ip, plan.BridgeName), Do: func() error { return podlink.Answer(a.bridge, ip) }})
	}
	for _, ip := range gone {
		after = append(after, plan.Change{What: fmt.Sprintf("no longer answer for %s on %s", ip, plan.BridgeName), Do: func() error { return podlink.NoAnswer(a.bridge, ip) }})
	}
	if a.want { // announced before, so that a crash between costs nothing, and after, since a pod may have answered meanwhile
		after = append(append(append(after, announcements...), ports...), announcements...)
		return nil, after
	}
	again := plan.Change{What: "let the bridge forward between pods", Do: func() error { // a plugin that saw the switch a moment ago may have isolated one more
		now, err := isolatedPorts()
		for _, l := range a.pods {
			if err == nil && now[l.Attrs().Index] {
				err = isolate(l, false).Do()
			}
		}
		return err
	}}
	return ports, append(after, again)
}

func isolate(l netlink.Link, is bool) plan.Change {
	return plan.Change{What: fmt.Sprintf("set %s isolated: %t", l.Attrs().Name, is), Do: func() error { return ignore(netlink.LinkSetIsolated(l, is), unix.ENODEV) }}
}

// isolatedPorts says of all bridges' ports, by index, which are isolated: IFLA_BRPORT_ISOLATED in linux/if_link.h.
func isolatedPorts() (map[int]bool, error) {
	values, err := portValues(nl.IFLA_BRPORT_ISOLATED)
	out := map[int]bool{}
	for index, v := range values {
		out[index] = v == 1
	}
	return out, err
}

// portValues returns an attribute of one byte of all bridges' ports, by index.
func portValues(attribute uint16) (map[int]byte, error) {
	out := map[int]byte{}
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
		if v := port[attribute].Value; len(v) == 1 {
			out[int(nl.DeserializeIfInfomsg(m).Index)] = v[0]
		}
	}
	return out, nil
}
