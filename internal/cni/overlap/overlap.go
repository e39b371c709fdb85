// Package overlap finds addresses and routes of a node that collide with the pod
// network's ranges: docker0 or a LAN with the same prefix, a bridge left behind by
// another network plugin. Each would receive packets that belong to the other.
package overlap

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/internal/cni/podlink"
)

// ErrOverlap means that a range of the pod network is in use on the node.
var ErrOverlap = errors.New("pod addresses are in use by another network of this node")

// Ours are the interfaces that carry addresses and routes of the pod range by
// design: the bridge, the TUN and the VXLAN device.
func Ours(bridge string) []string {
	return []string{bridge, "edgemesh-tun", "edgemesh-vx", "edgemesh0", "edgemesh.vx"}
}

// Conflict is one collision.
type Conflict struct {
	Range  netip.Prefix // of the pod network
	Other  netip.Prefix // address or route
	Device string       // interface; empty for routes without one
	Route  bool         // Other is a route, not an address
	// Around means that Other contains the whole Range, as a LAN of 10.0.0.0/8 does: hosts
	// there with an address of the range are unreachable from the node. Pods work, and the
	// range may have been reserved for them.
	Around bool
}

// String explains the conflict to an operator.
func (c Conflict) String() string {
	what := fmt.Sprintf("interface %s has address %s", c.Device, c.Other)
	if c.Route {
		what = fmt.Sprintf("route %s", c.Other)
		if c.Device != "" {
			what += " on interface " + c.Device
		}
	}
	if c.Around {
		return fmt.Sprintf("%s contains the pod range %s: hosts there with an address of that range are unreachable from this node", what, c.Range)
	}
	hint := ""
	switch {
	case strings.HasPrefix(c.Device, "docker"), strings.HasPrefix(c.Device, "br-"):
		hint = " (a Docker network: see default-address-pools in daemon.json)"
	case slices.Contains([]string{"cni0", "flannel.1", "kube-bridge", "weave"}, c.Device),
		strings.HasPrefix(c.Device, "cali"), strings.HasPrefix(c.Device, "cilium"):
		hint = " (left by another network plugin: remove it, or reboot the node)"
	}
	return fmt.Sprintf("%s, inside the pod range %s%s", what, c.Range, hint)
}

// Err joins the conflicts that affect pods into one error that wraps ErrOverlap, or nil.
// Networks around a whole range do not affect pods.
func Err(conflicts []Conflict) error {
	var lines []string
	for _, c := range conflicts {
		if !c.Around {
			lines = append(lines, c.String())
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrOverlap, strings.Join(lines, "; "))
}

// Find checks addresses and routes in the calling thread's network namespace. ranges are
// the node's blocks and the cluster's ranges; it ignores devices named in ours, and the
// pods' own interfaces below them.
//
// A route that contains a whole range, other than the default route, is reported with
// Around set.
func Find(ranges []netip.Prefix, ours []string) ([]Conflict, error) {
	addrs, err := podlink.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	routes, err := mainRoutes()
	if err != nil {
		return nil, err
	}
	// The interfaces last: those of an address or route are among them, or gone. A bridge of ours may be made meanwhile.
	links, err := podlink.Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	names := map[int]string{0: ""} // routes to nowhere have none
	for _, l := range links {
		if !slices.Contains(ours, l.Attrs().Name) {
			names[l.Attrs().Index] = l.Attrs().Name
		}
	}
	var out []Conflict
	for _, a := range addrs {
		p, ok := prefixOf(a.IPNet)
		name, foreign := names[a.LinkIndex]
		if !ok || !foreign {
			continue
		}
		if i := slices.IndexFunc(ranges, func(r netip.Prefix) bool { return r.Contains(p.Addr()) }); i >= 0 {
			out = append(out, Conflict{Range: ranges[i], Other: p, Device: name})
		}
	}
	for _, route := range routes {
		p, ok := prefixOf(route.Dst)
		name, foreign := names[route.LinkIndex]
		if !ok || !foreign {
			continue
		}
		if c, ok := routeConflict(ranges, p.Masked()); ok {
			c.Device = name
			out = append(out, c)
		}
	}
	return withoutEchoes(out), nil
}

// routeConflict classifies a route to p. One inside a range is worse than one around
// another; for one around several ranges the widest is named.
func routeConflict(ranges []netip.Prefix, p netip.Prefix) (Conflict, bool) {
	out := Conflict{Other: p, Route: true}
	for _, r := range ranges {
		switch {
		case !r.Overlaps(p):
		case p.Bits() >= r.Bits():
			return Conflict{Range: r, Other: p, Route: true}, true
		case !out.Around || r.Bits() < out.Range.Bits():
			out.Range, out.Around = r, true
		}
	}
	return out, out.Around
}

// mainRoutes lists foreign routes in the main table.
func mainRoutes() ([]netlink.Route, error) {
	var out []netlink.Route
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := podlink.Dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		out = append(out, routes...)
	}
	return out, nil
}

// withoutEchoes drops the connected route of an address that is listed itself.
func withoutEchoes(in []Conflict) []Conflict {
	return slices.DeleteFunc(slices.Clone(in), func(c Conflict) bool {
		return c.Route && slices.ContainsFunc(in, func(a Conflict) bool {
			return !a.Route && a.Device == c.Device && c.Other.Contains(a.Other.Addr())
		})
	})
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if !ok || bits == 0 || ones == 0 {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(a.Unmap(), ones), true
}
