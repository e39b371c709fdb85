package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/findings"
	"edgemesh/agent/host"
	"edgemesh/agent/netcheck"
	"edgemesh/internal/cni/overlap"
	"edgemesh/internal/cni/podlink"
	"edgemesh/internal/config"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/source"
	"edgemesh/internal/resolve"
)

// rangeCheck keeps ranges and own blocks out of force that the host itself needs: the tunnel would take what the host sends
// there, and nobody could reach the host to fix it. What was in force before is not looked at again.
type rangeCheck struct {
	cfg    config.Config
	names  *resolve.Names
	source source.Source
	force  *inForce
	log    *slog.Logger

	given mesh.State // the last one, whole; membership.mu guards it once there is a membership
}

// need is an address that the host must reach outside of the pod network.
type need struct {
	what string
	addr netip.Addr
}

// admit returns s without the ranges that the host needs, without their nodes, and with this node's former blocks in place of new
// ones that it needs. was is the plan in force. The error means that nothing is left to bring into force; at a
// first start, with no range in force, that any is refused.
func (c *rangeCheck) admit(s mesh.State, was plan) (mesh.State, error) {
	c.given = s
	if c.cfg.CNIMode == config.CNIKeep {
		return s, nil // main's routes come before ours
	}
	fresh := slices.DeleteFunc(slices.Clone(s.PodCIDRs), func(r netip.Prefix) bool { return mesh.Inside(was.Host.ClusterCIDRs, r) })
	self, _ := s.Node(c.cfg.NodeName)
	blocks := slices.DeleteFunc(slices.Clone(self.PodCIDRs), func(b netip.Prefix) bool {
		return len(was.Self.PodCIDRs) == 0 || mesh.Inside(was.Self.PodCIDRs, b) || mesh.Inside(fresh, b)
	})
	if len(fresh)+len(blocks) == 0 {
		c.note("")
		return s, nil
	}
	refused, why, err := c.conflicts(slices.Concat(fresh, blocks), s.Relays, self, was)
	if len(refused) > 0 && len(was.Host.ClusterCIDRs) == 0 {
		return s, fmt.Errorf("%w: %s", ErrLANInside, strings.Join(why, "; "))
	}
	if err == nil && len(refused) > 0 {
		s, err = without(s, self, was, refused)
	}
	if err != nil && len(why) > 0 {
		err = fmt.Errorf("%w: %s", err, strings.Join(why, "; "))
	}
	c.note(strings.Join(why, "; "))
	return s, err
}

// note keeps why ranges are refused, "" for none, and logs what is new.
func (c *rangeCheck) note(why string) {
	switch before := c.force.setRefused(why); {
	case why == before:
	case why == "":
		c.log.Info("no range of the membership is refused any longer")
	default:
		c.log.Error("a range is not brought into force on this node, which needs addresses inside it; the former ones stay", "found", why, "remedy", refusedRemedy)
	}
}

const refusedRemedy = "give the cluster a range (podCIDRs) without these addresses, or this host's network others; the agent checks again every 30 s"

// checkRefused is what is not in force because this host needs it.
func checkRefused(why string) []findings.Finding {
	if why == "" {
		return nil
	}
	return []findings.Finding{findings.Brokenf("addresses", refusedRemedy, "not in force on this node: %s", why).About("podCIDRs")}
}

// without is s without refused ranges and their nodes, as was has it where this node's own blocks are refused.
func without(s mesh.State, self mesh.Node, was plan, refused []netip.Prefix) (mesh.State, error) {
	in := func(b netip.Prefix) bool { return slices.ContainsFunc(refused, b.Overlaps) }
	s.PodCIDRs = slices.DeleteFunc(slices.Clone(s.PodCIDRs), func(r netip.Prefix) bool { return slices.Contains(refused, r) })
	ranges := func(b netip.Prefix) bool { return mesh.Inside(s.PodCIDRs, b) }
	own := slices.DeleteFunc(slices.Clone(self.PodCIDRs), in)
	for _, b := range was.Self.PodCIDRs {
		taken := slices.ContainsFunc(s.Nodes, func(n mesh.Node) bool { return n.Name != self.Name && slices.ContainsFunc(n.PodCIDRs, b.Overlaps) })
		if len(own) < len(self.PodCIDRs) && ranges(b) && !taken && !slices.ContainsFunc(own, b.Overlaps) {
			own = append(own, b)
		}
	}
	if len(s.PodCIDRs) == 0 || len(own) == 0 {
		return s, ErrLANInside
	}
	nodes := make([]mesh.Node, 0, len(s.Nodes))
	for _, n := range s.Nodes {
		if n.Name == self.Name {
			n.PodCIDRs = own
		} else if !slices.ContainsFunc(n.PodCIDRs, ranges) {
			continue
		} else if slices.ContainsFunc(n.PodCIDRs, func(b netip.Prefix) bool { return !ranges(b) }) {
			n.PodCIDRs = slices.DeleteFunc(slices.Clone(n.PodCIDRs), func(b netip.Prefix) bool { return !ranges(b) })
		}
		nodes = append(nodes, n)
	}
	s.Nodes = nodes
	return s, nil
}

// conflicts are those of the prefixes that hold an address of this host, a network that it routes to, or what it needs, and why. At a
// first start, bridges to containers and routes do not count: a finding names them.
func (c *rangeCheck) conflicts(prefixes []netip.Prefix, relays []mesh.Relay, self mesh.Node, was plan) (refused []netip.Prefix, why []string, err error) {
	found, err := overlap.Find(prefixes, overlap.Ours(host.BridgeName))
	if err != nil {
		return nil, nil, err
	}
	refuse := func(p netip.Prefix, text string) {
		if why = append(why, text); !slices.Contains(refused, p) {
			refused = append(refused, p)
		}
	}
	links, err := podlink.Dump(netlink.LinkList)
	if err != nil {
		return nil, nil, fmt.Errorf("list interfaces: %w", err)
	}
	for _, f := range found {
		if first := len(was.Host.ClusterCIDRs) == 0; first && inLAN(f, links) || !first && !f.Around && !f.Other.IsSingleIP() {
			refuse(f.Range, f.String())
		}
	}
	needs, err := c.needs(relays, self, was)
	if err != nil {
		return nil, nil, err
	}
	for _, n := range needs {
		if i := slices.IndexFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(n.addr) }); i >= 0 {
			refuse(prefixes[i], fmt.Sprintf("%s %s is inside the pod range %s", n.what, n.addr, prefixes[i]))
		}
	}
	return refused, why, nil
}

// needs are the addresses that this host has to reach. Those inside of what is in force are reached through the mesh.
func (c *rangeCheck) needs(relays []mesh.Relay, self mesh.Node, was plan) ([]need, error) {
	out, err := gateways()
	if err != nil {
		return nil, err
	}
	add := func(what, host string) {
		if a, err := netip.ParseAddr(host); err == nil {
			out = append(out, need{what, a.Unmap()})
		}
	}
	addURL := func(what, text string) {
		if u, err := url.Parse(text); err == nil {
			add(what, u.Hostname())
		}
	}
	for _, s := range c.names.Servers() {
		if h, _, err := net.SplitHostPort(s); err == nil {
			add("name server", h)
		}
	}
	for name, addrs := range c.names.Known() { // relays, the API server and the proxy, where they are given by name
		for _, a := range addrs {
			out = append(out, need{name, a})
		}
	}
	if api := c.source.Contact(); api != nil {
		addURL("API server", api.Server)
	}
	if via, err := proxyOf(c.cfg, nil); err == nil { // an error is the check's of the network
		if u, err := via.For("relay.invalid:443"); err == nil && u != nil {
			addURL("HTTP proxy", u.String())
		}
	}
	for _, r := range relays { // those that come with the ranges, too
		for _, a := range r.Addrs {
			if h, err := netcheck.HostOf(a); err == nil {
				add("relay", h)
			}
		}
	}
	for _, a := range self.NodeIPs { // install makes a mesh address the node's, and one of an earlier installation may be left
		if !self.Owns(a) && len(was.Host.ClusterCIDRs) > 0 {
			out = append(out, need{"kubelet's node IP", a})
		}
	}
	return slices.DeleteFunc(out, func(n need) bool {
		return mesh.Inside(was.Host.ClusterCIDRs, netip.PrefixFrom(n.addr, n.addr.BitLen()))
	}), nil
}

// gateways are those of default routes in any table.
func gateways() (out []need, err error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := podlink.Dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, errors.Join(errors.New("list routes"), err)
		}
		for _, r := range routes {
			if ones := 0; r.Dst != nil {
				if ones, _ = r.Dst.Mask.Size(); ones > 0 {
					continue
				}
			}
			hops := []net.IP{r.Gw}
			for _, h := range r.MultiPath {
				hops = append(hops, h.Gw)
			}
			for _, h := range hops {
				if a, ok := netip.AddrFromSlice(h); ok {
					out = append(out, need{"default gateway", a.Unmap()})
				}
			}
		}
	}
	return out, nil
}
