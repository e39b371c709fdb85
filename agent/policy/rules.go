package policy

import (
	"net/netip"
	"slices"
)

// Rules are what a node enforces, in a form that is saved and written into the kernel as it is.
type Rules struct {
	Pods   []Place             `json:"pods"`   // in order of their addresses; pods that are not here are open
	Chains map[string][]Accept `json:"chains"` // what matches none of a chain is dropped
	Sets   map[string][]Member `json:"sets"`   // members of groups, by ID
}

// Place is the chains of one pod's address, by Direction; "" is open.
type Place struct {
	Addr   netip.Addr `json:"addr"`
	Chains [2]string  `json:"chains"`
}

// Accept is what one rule of a policy lets pass: from or to one of its peers, at one of its ports.
type Accept struct {
	Policy string         `json:"policy"` // NAMESPACE/NAME
	Any    bool           `json:"any,omitempty"`
	Groups []string       `json:"groups,omitempty"` // IDs
	Blocks []netip.Prefix `json:"blocks,omitempty"` // no two overlap
	Ports  []Ports        `json:"ports,omitempty"`  // none: every packet, unless None
	None   bool           `json:"none,omitempty"`   // only Named
	Named  []string       `json:"named,omitempty"`  // groups whose members have ports of their own
}

// Ports is a range of one protocol's.
type Ports struct {
	Protocol byte   `json:"protocol"`
	First    uint16 `json:"first"`
	Last     uint16 `json:"last"`
}

// Packet is the first of a flow, after translation of a Service's address. Answers pass with it.
type Packet struct {
	Src, Dst netip.Addr
	Protocol byte
	Port     uint16 // destination
}

// Verdict says whether a packet passes on this node, and which policies accepted it, or else in which direction it was dropped. A pod
// always reaches itself. What the node itself sends is not judged: it never passes FORWARD.
func (r Rules) Verdict(p Packet) (pass bool, by []string, dropped Direction) {
	if p.Src == p.Dst {
		return true, nil, 0
	}
	for _, d := range []Direction{Egress, Ingress} {
		own, peer := p.Src, p.Dst
		if d == Ingress {
			own, peer = p.Dst, p.Src
		}
		i, found := slices.BinarySearchFunc(r.Pods, own, func(at Place, a netip.Addr) int { return at.Addr.Compare(a) })
		if !found || r.Pods[i].Chains[d] == "" {
			continue
		}
		chain := r.Chains[r.Pods[i].Chains[d]]
		at := slices.IndexFunc(chain, func(a Accept) bool { return r.matches(a, peer, p) })
		if at < 0 {
			return false, nil, d
		}
		by = append(by, chain[at].Policy)
	}
	slices.Sort(by)
	return true, by, 0
}

func (r Rules) matches(a Accept, peer netip.Addr, p Packet) bool {
	has := func(m Member) func(id string) bool {
		return func(id string) bool {
			_, found := slices.BinarySearchFunc(r.Sets[id], m, Member.compare)
			return found
		}
	}
	if slices.ContainsFunc(a.Named, has(Member{peer, p.Protocol, p.Port})) {
		return true
	}
	port := len(a.Ports) == 0 && !a.None || slices.ContainsFunc(a.Ports, func(x Ports) bool {
		return x.Protocol == p.Protocol && x.First <= p.Port && p.Port <= x.Last
	})
	return port && (a.Any || slices.ContainsFunc(a.Groups, has(Member{Addr: peer})) ||
		slices.ContainsFunc(a.Blocks, func(b netip.Prefix) bool { return b.Contains(peer) }))
}
