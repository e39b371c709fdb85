package lab

import (
	"fmt"
	"strings"
)

// Draw returns a small picture of the lab.
func (l *Lab) Draw() string {
	var b strings.Builder
	var relays []string
	for _, r := range l.Relays {
		relays = append(relays, fmt.Sprintf("%s %s", r.Name, r.Addr))
	}
	fmt.Fprintf(&b, "  the internet 5.5.0.0/16 ── %s\n", strings.Join(relays, ", "))
	tree := func(last bool) (branch, below string) {
		if last {
			return "  └─", "     "
		}
		return "  ├─", "  │  "
	}
	left := len(l.Sites) + len(l.Clouds)
	for _, n := range l.Clouds {
		left--
		branch, _ := tree(left == 0)
		fmt.Fprintf(&b, "%s %-9s %-14s pods %s\n", branch, n.Name, n.Addr, strings.Join(n.PodCIDRs, " "))
	}
	for _, s := range l.Sites {
		left--
		branch, below := tree(left == 0)
		fmt.Fprintf(&b, "%s router %s, NAT %s, LAN 192.168.1.0/24\n", branch, s.WAN, s.NAT)
		for i, n := range s.Nodes {
			twig, _ := tree(i == len(s.Nodes)-1)
			fmt.Fprintf(&b, "%s%s %-9s %-14s pods %s\n", below, twig, n.Name, n.Addr, strings.Join(n.PodCIDRs, " "))
		}
	}
	return b.String()
}
