package rtnetlink

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
	"edgemesh/agent/host/sysctl"
	"edgemesh/internal/cni/conf"
	"edgemesh/internal/cni/podlink"
)

// bridgeAlias distinguishes our bridge from a foreign one of the same name, even after its
// MAC was changed.
const bridgeAlias = "edgemesh"

// DiffBridge compares the bridge: kind, MAC, MTU, sysctls, gateway addresses, up or down.
func DiffBridge(s plan.State) ([]plan.Change, error) {
	if s.Keep {
		return diffNoBridge()
	}
	link, err := findLink(plan.BridgeName, "bridge")
	if err != nil {
		return nil, err
	}
	mac := conf.BridgeMAC(plan.BridgeName)
	if link == nil {
		return create("bridge "+plan.BridgeName, s, DiffBridge, func() error {
			attrs := netlink.NewLinkAttrs()
			attrs.Name, attrs.MTU, attrs.HardwareAddr = plan.BridgeName, s.MTU, mac
			return ignore(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}), unix.EEXIST)
		}), nil
	}
	out := diffMAC(link, mac)
	if link.Attrs().Alias != bridgeAlias {
		out = append(out, plan.Change{What: "mark " + plan.BridgeName + " as ours", Do: func() error { return netlink.LinkSetAlias(link, bridgeAlias) }})
	}
	more, err := diffLink(link, s, false)
	if err != nil {
		return nil, err
	}
	var filter []plan.Change
	if !s.Routed {
		if filter, err = diffFilter(link); err != nil {
			return nil, err
		}
	}
	orphans, err := diffPorts(link, s)
	if err != nil {
		return nil, err
	}
	apart, err := readApart(link, s)
	if err != nil {
		return nil, err
	}
	before, after := apart.diff(s)
	return slices.Concat(out, before, more, filter, diffPromisc(link, s.Promisc), orphans, after), nil
}

// filterFlags are the bridge's own switches by which br_netfilter shows its frames to iptables and nftables, whatever
// net.bridge.bridge-nf-call-* say of the others. Without them what one pod of this node sends another passes no rule: not that
// which translates a Service's answer back, nor one that drops.
var filterFlags = []uint16{nl.IFLA_BR_NF_CALL_IPTABLES, nl.IFLA_BR_NF_CALL_IP6TABLES} //nolint:gochecknoglobals // a constant

// diffFilter compares them. A kernel built without br_netfilter has none.
func diffFilter(bridge netlink.Link) ([]plan.Change, error) {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(bridge.Attrs().Index)
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	req.AddData(msg)
	answer, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil || len(answer) != 1 {
		return nil, ignore(err, unix.ENODEV)
	}
	have := answer[0][unix.SizeofIfInfomsg:]
	for _, nested := range []uint16{unix.IFLA_LINKINFO, nl.IFLA_INFO_DATA} {
		attrs, err := nl.ParseRouteAttrAsMap(have)
		if err != nil {
			return nil, fmt.Errorf("attributes of %s: %w", plan.BridgeName, err)
		}
		have = attrs[nested].Value
	}
	flags, err := nl.ParseRouteAttrAsMap(have)
	if err != nil {
		return nil, fmt.Errorf("attributes of %s: %w", plan.BridgeName, err)
	}
	if !slices.ContainsFunc(filterFlags, func(f uint16) bool { v := flags[f].Value; return len(v) == 1 && v[0] == 0 }) {
		return nil, nil
	}
	return []plan.Change{{What: "have br_netfilter filter " + plan.BridgeName, Do: func() error {
		req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
		req.AddData(msg)
		info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
		info.AddRtAttr(nl.IFLA_INFO_KIND, []byte("bridge"))
		data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
		for _, f := range filterFlags {
			data.AddRtAttr(int(f), nl.Uint8Attr(1))
		}
		req.AddData(info)
		_, err := req.Execute(unix.NETLINK_ROUTE, 0)
		return ignore(err, unix.ENODEV)
	}}}, nil
}

// diffPromisc compares the bridge's own setting. A program that listens on the bridge
// (tcpdump) does not count.
func diffPromisc(bridge netlink.Link, want bool) []plan.Change {
	if want == (bridge.Attrs().RawFlags&unix.IFF_PROMISC != 0) {
		return nil
	}
	return []plan.Change{{What: fmt.Sprintf("set promiscuous mode of %s to %t", plan.BridgeName, want), Do: func() error {
		set := netlink.SetPromiscOff
		if want {
			set = netlink.SetPromiscOn
		}
		if err := set(bridge); err != nil {
			return err
		}
		return setHairpins(bridge, !want)
	}}}
}

// setHairpins sets hairpin mode on pods' ports: a promiscuous bridge already returns a pod's
// own packets to it, and a hairpin would return them twice.
func setHairpins(bridge netlink.Link, on bool) error {
	links, err := Links()
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.Attrs().MasterIndex != bridge.Attrs().Index || !IsPod(l) {
			continue
		}
		if err := ignore(netlink.LinkSetHairpin(l, on), unix.ENODEV); err != nil {
			return fmt.Errorf("port %s: %w", l.Attrs().Name, err)
		}
	}
	return nil
}

// IsPod reports whether a link is the host's end of a pod's interface.
func IsPod(l netlink.Link) bool {
	return l.Type() == "veth" && strings.HasPrefix(l.Attrs().Alias, conf.PodAlias)
}

// ports are the ports of our bridge; none where there is no bridge.
func ports() (out []netlink.Link, _ error) {
	bridge, err := netlink.LinkByName(plan.BridgeName)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	links, err := Links()
	for _, l := range links {
		if l.Attrs().MasterIndex == bridge.Attrs().Index {
			out = append(out, l)
		}
	}
	return out, err
}

// PodAddrs are the addresses of pods on our bridge, by the names that the plugin gave its ports.
func PodAddrs() (out []netip.Addr, _ error) {
	all, err := ports()
	for _, l := range all {
		if IsPod(l) {
			out = append(out, podlink.Addresses(l)...)
		}
	}
	return out, err
}

// States of a bridge's port: BR_STATE_* in linux/if_bridge.h.
const (
	portDisabled   = 0
	portForwarding = 3
)

// ShutOthers names the ports of our bridge that are neither ours nor pods', by an alias that says whose they are. While shut is true they
// carry nothing: who sends there nobody can say. The kernel opens a port whose carrier comes, so it is called again after each change.
func ShutOthers(shut bool) (names []string, _ error) {
	all, err := ports()
	all = slices.DeleteFunc(all, func(l netlink.Link) bool {
		return IsPod(l) && len(podlink.Addresses(l)) > 0 || strings.HasPrefix(l.Attrs().Name, plan.LinkPrefix)
	})
	if err != nil || len(all) == 0 {
		return nil, err
	}
	states, err := portValues(nl.IFLA_BRPORT_STATE)
	for _, l := range all {
		a := l.Attrs()
		names = append(names, a.Name)
		want := byte(portForwarding)
		if shut {
			want = portDisabled
		}
		if state, is := states[a.Index]; !is || state == want || !shut && state != portDisabled || a.RawFlags&unix.IFF_LOWER_UP == 0 {
			continue
		}
		req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
		msg := nl.NewIfInfomsg(unix.AF_BRIDGE)
		msg.Index = int32(a.Index)
		req.AddData(msg)
		port := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
		port.AddRtAttr(nl.IFLA_BRPORT_STATE, []byte{want})
		req.AddData(port)
		if _, err2 := req.Execute(unix.NETLINK_ROUTE, 0); ignore(ignore(err2, unix.ENODEV), unix.ENETDOWN) != nil {
			err = errors.Join(err, fmt.Errorf("set the state of port %s of %s: %w", a.Name, plan.BridgeName, err2))
		}
	}
	slices.Sort(names)
	return names, err
}

// diffPorts plugs in pods' interfaces whose bridge was deleted, sets up those that another program has set down, and gives them their MTU
// back, which DHCP clients set: one that ADD has not started yet is its own. Everything else about them is as the plugin configured it.
func diffPorts(bridge netlink.Link, s plan.State) ([]plan.Change, error) {
	links, err := Links()
	if err != nil {
		return nil, err
	}
	var out []plan.Change
	for _, l := range links {
		a := l.Attrs()
		if a.Name == plan.PortName && l.Type() == "tuntap" && a.Flags&net.FlagUp != 0 && a.MasterIndex == 0 { // the agent opens another one
			out = append(out, plan.Change{What: "delete " + a.Name + ", which is not plugged in", Do: func() error { return ignore(netlink.LinkDel(l), unix.ENODEV) }})
		}
		if !IsPod(l) {
			continue
		}
		started, err := podlink.Started(l)
		if err != nil {
			return nil, err
		}
		if started && a.Flags&net.FlagUp == 0 {
			out = append(out, plan.Change{What: "set " + a.Name + " up", Do: func() error { return ignore(netlink.LinkSetUp(l), unix.ENODEV) }})
		}
		if started && a.MTU < s.MTU {
			out = append(out, plan.Change{What: fmt.Sprintf("set MTU of %s to %d", a.Name, s.MTU), Do: func() error {
				if err := netlink.LinkSetMTU(l, s.MTU); err != nil || a.MTU >= minIPv6MTU {
					return ignore(err, unix.ENODEV)
				}
				return plan.Apply(func() ([]plan.Change, error) { return sysctl.DiffPod(a.Name) }) // the kernel has recreated its IPv6
			}})
		}
		if a.MasterIndex != 0 {
			continue
		}
		out = append(out, plan.Change{What: "plug " + a.Name + " into " + plan.BridgeName, Do: func() error {
			err := netlink.LinkSetMaster(l, bridge)
			if err == nil {
				err = netlink.LinkSetHairpin(l, !s.Promisc)
			}
			return ignore(err, unix.ENODEV) // the pod was deleted meanwhile
		}})
	}
	return out, nil
}

// diffNoBridge removes the bridge left from before keep mode.
func diffNoBridge() ([]plan.Change, error) {
	link, err := findLink(plan.BridgeName, "bridge")
	if link == nil || err != nil {
		return nil, err
	}
	links, err := Links()
	if err != nil {
		return nil, err
	}
	var pods []string
	for _, l := range links {
		if l.Attrs().MasterIndex == link.Attrs().Index {
			pods = append(pods, l.Attrs().Name)
		}
	}
	if len(pods) > 0 {
		return nil, fmt.Errorf("%w (%s)", ErrPodsLeft, strings.Join(pods, ", "))
	}
	return []plan.Change{{What: "delete bridge " + plan.BridgeName, Do: func() error { return deleteLink(link) }}}, nil
}

// findBridge is findLink for our bridge: a foreign bridge is ErrNameTaken, too.
func findBridge() (netlink.Link, error) {
	link, err := findLink(plan.BridgeName, "bridge")
	if link == nil || err != nil {
		return nil, err
	}
	a := link.Attrs()
	if a.Alias != bridgeAlias && !bytes.Equal(a.HardwareAddr, conf.BridgeMAC(plan.BridgeName)) {
		return nil, fmt.Errorf("%s is a bridge with MAC %s, which is not ours: %w", plan.BridgeName, a.HardwareAddr, ErrNameTaken)
	}
	return link, nil
}

// DeleteBridge removes the bridge if it is ours.
func DeleteBridge() error { return deleteOurs(findBridge()) }
