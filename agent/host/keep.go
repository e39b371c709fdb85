package host

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RulePrefKeep is the priority of the rules of keep mode: what the other
// plugin's routes in main lead to stays with it.
const RulePrefKeep = 5205

// ErrPodsLeft means that the bridge cannot be given up: pods hang on it.
var ErrPodsLeft = errors.New("pods of our own plugin still run on " + BridgeName +
	"; drain the node before cniMode: keep, or set cniMode: own")

// keepFamily turns f into one whose pods another plugin has: the node's address
// among them is that plugin's choice, and may not exist (yet).
func (f *family) keepFamily() error {
	f.keep, f.gateway = true, netip.Addr{}
	links, err := dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	ours := map[int]bool{}
	for _, l := range links {
		ours[l.Attrs().Index] = l.Attrs().Name == TUNName || l.Attrs().Name == BridgeName || l.Attrs().Name == VXLANName
	}
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, f.id()) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, b := range f.blocks {
		var in []netip.Addr
		for _, a := range addrs {
			if p := prefixOf(a.IPNet); !ours[a.LinkIndex] && b.Contains(p.Addr()) {
				in = append(in, p.Addr())
			}
		}
		if len(in) > 0 {
			f.gateway = slices.MinFunc(in, netip.Addr.Compare)
			return nil
		}
	}
	return nil
}

// keepRules let main decide where it knows better than our table: for own blocks
// by every route that is as narrow as the cluster's range, which is how their
// pods are reached; elsewhere in the ranges by narrower ones, which are the other
// plugin's to its other nodes. A default route never counts.
func (f family) keepRules() []netlink.Rule {
	if !f.keep {
		return nil
	}
	rule := func(to netip.Prefix, atLeast int) netlink.Rule {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Table, r.Protocol = f.id(), RulePrefKeep, unix.RT_TABLE_MAIN, RouteProtocol
		r.Dst, r.SuppressPrefixlen = ipNet(to), atLeast-1
		return *r
	}
	var out []netlink.Rule
	for _, b := range f.blocks {
		atLeast := b.Bits()
		for _, r := range f.ranges {
			if r.Overlaps(b) {
				atLeast = min(atLeast, r.Bits())
			}
		}
		out = append(out, rule(b, atLeast))
	}
	for _, r := range f.ranges {
		out = append(out, rule(r, r.Bits()+1))
	}
	return out
}

// keepSourceRules drop sources of the cluster's ranges that come from elsewhere
// than answers to them would go: the other plugin's interfaces are not known, its
// routes are.
func (f family) keepSourceRules() []string {
	out := []string{"-i " + TUNName + " -j RETURN"}
	for _, p := range f.ranges {
		out = append(out, fmt.Sprintf("-s %s -m rpfilter -j RETURN", p))
	}
	for _, p := range f.ranges {
		out = append(out, fmt.Sprintf("-s %s ! -i lo -j DROP", p))
	}
	return out
}

// keepForwardRules guard the tunnel alone; what the node forwards besides is the
// other plugin's.
func (f family) keepForwardRules() []string {
	const known = " -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j RETURN"
	var out []string
	for _, b := range f.blocks {
		out = append(out, fmt.Sprintf("-d %s -i %s -j RETURN", b, TUNName), fmt.Sprintf("-s %s -o %s -j RETURN", b, TUNName))
	}
	return append(out,
		"-i "+TUNName+known,
		"-i "+TUNName+" -j DROP",
		"-o "+TUNName+known,
		"-o "+TUNName+" -j DROP",
	)
}

// keepInsideRules let pods keep their address on their way into the tunnel, also
// where the other plugin would masquerade them: ACCEPT ends the nat table.
func (f family) keepInsideRules() []string {
	var out []string
	for _, b := range f.blocks {
		out = append(out, fmt.Sprintf("-s %s -o %s -j ACCEPT", b, TUNName))
	}
	out = append(out, "! -o "+TUNName+" -j RETURN")
	if f.gateway.IsValid() {
		out = append(out, "-j SNAT --to-source "+f.gateway.String())
	}
	return out
}

// diffNoBridge gives up the bridge of a time before keep mode.
func diffNoBridge() ([]change, error) {
	link, err := findLink(BridgeName, "bridge")
	if link == nil || err != nil {
		return nil, err
	}
	links, err := dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
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
	return []change{{"delete bridge " + BridgeName, func() error { return deleteLink(BridgeName, "bridge") }}}, nil
}
