package mesh

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

const (
	// minRangeBits is the shortest prefix accepted as a cluster range: 10.0.0.0/8 and
	// fd00::/8 are the largest private ranges in use.
	minRangeBits = 8
	// minHostBits leaves space in a block for the network address, the gateway, one
	// pod and, for IPv4, the broadcast address.
	minHostBits = 2
)

// Validate checks s, except for the encoding of peer IDs and multiaddrs, which the sources
// check. The error is an *Invalid whose fields are those of cluster.yaml.
func (s State) Validate() error {
	var bad Invalid
	s.checkRanges(&bad)
	s.checkWAN(&bad)
	switch s.Encryption {
	case EncryptionAuto, EncryptionAlways:
	default:
		bad.Addf("encryption", "%q is neither %q nor %q", s.Encryption, EncryptionAuto, EncryptionAlways)
	}
	switch s.NetworkPolicy {
	case "", PolicyAuto, PolicyOff:
	default:
		bad.Addf("networkPolicy", "%q is neither %q nor %q", s.NetworkPolicy, PolicyAuto, PolicyOff)
	}
	switch s.MirrorPods {
	case "", MirrorDeny, MirrorAllow:
	default:
		bad.Addf("mirrorPods", "%q is neither %q nor %q", s.MirrorPods, MirrorDeny, MirrorAllow)
	}
	s.Carrier.Check(&bad)
	s.checkAccess(&bad)
	if err := CheckAdmitLabel(s.AdmitLabel); err != nil {
		bad.Addf("admitLabel", "%v", err)
	}
	s.checkRelays(&bad)
	s.checkNodes(&bad)
	s.checkOverlaps(&bad)
	return bad.Err()
}

func (s State) checkRanges(bad *Invalid) {
	if len(s.PodCIDRs) == 0 {
		bad.Addf("podCIDRs", "empty; list the cluster's pod ranges, for example [10.244.0.0/16]")
	}
	for i, p := range s.PodCIDRs {
		field := fmt.Sprintf("podCIDRs[%d]", i)
		if !checkPrefix(bad, field, p) {
			continue
		}
		if p.Bits() < minRangeBits {
			bad.Addf(field, "%s is too large: it must be at least /%d, or the node's other traffic would go into the tunnel", p, minRangeBits)
			continue
		}
		if special, ok := reserved(p); ok {
			bad.Addf(field, "%s overlaps %s, which cannot be routed to pods", p, special)
		}
		if p.Addr().BitLen()-p.Bits() < minHostBits {
			bad.Addf(field, "%s is too small to hold a gateway and a pod", p)
		}
		for j, q := range s.PodCIDRs[:i] {
			if p.Overlaps(q) {
				bad.Addf(field, "%s overlaps podCIDRs[%d] (%s)", p, j, q)
			}
		}
	}
}

func (s State) checkWAN(bad *Invalid) {
	s.LAN.check(bad)
	for i, p := range s.WANCIDRs {
		field := fmt.Sprintf("wanCIDRs[%d]", i)
		if !checkPrefix(bad, field, p) {
			continue
		}
		if !private(p) {
			bad.Addf(field, "%s is not inside a private range (%s); public addresses need no entry", p, list(privateRanges()))
		}
		for j, q := range s.PodCIDRs {
			if q.IsValid() && p.Overlaps(q) {
				bad.Addf(field, "%s overlaps podCIDRs[%d] (%s): the tunnel would run inside itself", p, j, q)
			}
		}
	}
}

// checkRelays accepts members among the relays, because a node can be one.
func (s State) checkRelays(bad *Invalid) {
	seen := make(map[PeerID]bool, len(s.Relays))
	for i, r := range s.Relays {
		field := fmt.Sprintf("relays[%d]", i)
		switch {
		case r.PeerID == "":
			bad.Addf(field, "no peer ID")
		case seen[r.PeerID]:
			bad.Addf(field, "peer ID %s is listed twice", r.PeerID)
		}
		if len(r.Addrs) == 0 {
			bad.Addf(field, "no address")
		}
		seen[r.PeerID] = true
	}
}

func (s State) checkNodes(bad *Invalid) {
	names := make(map[string]int, len(s.Nodes))
	peers := make(map[PeerID]int, len(s.Nodes))
	for i, n := range s.Nodes {
		field := fmt.Sprintf("nodes[%d]", i)
		if err := CheckNodeName(n.Name); err != nil {
			bad.Addf(field+".name", "%v", err)
		} else if j, dup := names[n.Name]; dup {
			bad.Addf(field+".name", "%q is also the name of nodes[%d]", n.Name, j)
		} else {
			names[n.Name] = i
		}
		if n.PeerID == "" {
			bad.Addf(field+".peerID", "empty; set it to what `edgemesh-agent id` prints on node %q", n.Name)
		} else if j, dup := peers[n.PeerID]; dup {
			bad.Addf(field+".peerID", "%s of node %q is also the peer ID of node %q (nodes[%d]); every node needs its own key",
				n.PeerID, n.Name, s.Nodes[j].Name, j)
		} else {
			peers[n.PeerID] = i
		}
		if len(n.PodCIDRs) == 0 {
			bad.Addf(field+".podCIDRs", "empty; node %q needs at least one block", n.Name)
		}
		for _, key := range slices.Sorted(maps.Keys(n.Labels)) {
			if err := CheckAdmitLabel(key + "=" + n.Labels[key]); err != nil {
				bad.Addf(field+".labels", "%v", err)
			}
		}
		for j, b := range n.PodCIDRs {
			s.checkBlock(bad, fmt.Sprintf("%s.podCIDRs[%d]", field, j), b)
		}
	}
}

func (s State) checkBlock(bad *Invalid, field string, b netip.Prefix) {
	if !checkPrefix(bad, field, b) {
		return
	}
	if b.Addr().BitLen()-b.Bits() < minHostBits {
		bad.Addf(field, "%s is too small: a block holds a gateway and at least one pod, so /%d or larger",
			b, b.Addr().BitLen()-minHostBits)
	}
	if len(s.PodCIDRs) == 0 {
		return // reported once, as podCIDRs
	}
	sameFamily := false
	for _, r := range s.PodCIDRs {
		if !r.IsValid() || r.Addr().BitLen() != b.Addr().BitLen() {
			continue
		}
		sameFamily = true
		if r.Bits() <= b.Bits() && r.Contains(b.Addr()) {
			return
		}
	}
	if sameFamily {
		bad.Addf(field, "%s is outside the cluster's podCIDRs %s", b, list(s.PodCIDRs))
		return
	}
	bad.Addf(field, "%s is an %s block, but podCIDRs has no %s range", b, family(b), family(b))
}

// block is one node's block and its place in the document.
type block struct {
	prefix     netip.Prefix
	node, cidr int
}

func (b block) field() string { return fmt.Sprintf("nodes[%d].podCIDRs[%d]", b.node, b.cidr) }

// checkOverlaps compares all blocks in one pass: sorted by address, larger ones first, a
// block can only overlap the one that has not ended yet.
func (s State) checkOverlaps(bad *Invalid) {
	var all []block
	for i, n := range s.Nodes {
		for j, p := range n.PodCIDRs {
			if p.IsValid() {
				all = append(all, block{p.Masked(), i, j})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b block) int { return ComparePrefix(a.prefix, b.prefix) })
	var open block
	for i, b := range all {
		if i == 0 || !open.prefix.Overlaps(b.prefix) {
			open = b
			continue
		}
		first, second := open, b
		if second.node < first.node || second.node == first.node && second.cidr < first.cidr {
			first, second = second, first
		}
		bad.Addf(second.field(), "%s of node %q overlaps %s of node %q (%s)", second.prefix,
			s.Nodes[second.node].Name, first.prefix, s.Nodes[first.node].Name, first.field())
	}
}

// checkPrefix reports whether p is well-formed enough for further checks.
func checkPrefix(bad *Invalid, field string, p netip.Prefix) bool {
	switch {
	case !p.IsValid():
		bad.Addf(field, "not a prefix in CIDR notation")
		return false
	case p.Addr().Is4In6():
		bad.Addf(field, "%s is an IPv4-mapped prefix; write it as IPv4", p)
		return false
	case p != p.Masked():
		bad.Addf(field, "%s has bits set beyond its length; did you mean %s?", p, p.Masked())
		return false
	}
	return true
}

func family(p netip.Prefix) string {
	if p.Addr().Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// privateRanges are RFC 1918, RFC 6598 (carrier NAT) and RFC 4193.
func privateRanges() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"),
		netip.MustParsePrefix("172.16.0.0/12"),
		netip.MustParsePrefix("192.168.0.0/16"),
		netip.MustParsePrefix("100.64.0.0/10"),
		netip.MustParsePrefix("fc00::/7"),
	}
}

func private(p netip.Prefix) bool {
	return Inside(privateRanges(), p)
}

// reserved returns the reserved range that p overlaps: "this host", loopback, link-local,
// multicast or reserved (RFC 6890). No pod can have an address of these.
func reserved(p netip.Prefix) (netip.Prefix, bool) {
	for _, s := range []string{
		"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3",
		"::/8", "fe80::/10", "ff00::/8",
	} {
		if r := netip.MustParsePrefix(s); r.Overlaps(p) {
			return r, true
		}
	}
	return netip.Prefix{}, false
}

const maxNodeName = 253 // bytes, RFC 1123 section 2.1 as Kubernetes reads it

// CheckNodeName accepts what Kubernetes accepts as a node name: a DNS-1123
// subdomain, labels of lower-case letters, digits and '-' joined by dots.
func CheckNodeName(name string) error {
	if name == "" {
		return errors.New("empty")
	}
	if len(name) > maxNodeName {
		return fmt.Errorf("%d bytes long, at most %d are allowed", len(name), maxNodeName)
	}
	alnum := func(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }
	for i := range len(name) {
		c := name[i]
		inside := i > 0 && i < len(name)-1
		switch {
		case alnum(c):
		case c == '-' && inside && name[i-1] != '.' && name[i+1] != '.':
		case c == '.' && inside && name[i-1] != '.' && name[i-1] != '-':
		default:
			return fmt.Errorf("%q is not a node name: lower-case letters, digits, '-' and '.', "+
				"each label beginning and ending with a letter or digit (DNS-1123 subdomain)", name)
		}
	}
	return nil
}

// list is "10.0.0.0/8, fd00::/8".
func list(all []netip.Prefix) string {
	texts := make([]string, len(all))
	for i, p := range all {
		texts[i] = p.String()
	}
	return strings.Join(texts, ", ")
}
