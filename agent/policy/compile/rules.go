package compile

import (
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Rules are what a node enforces, in a form that is saved and written into the kernel as it is.
type Rules struct {
	// Pods are those that were judged, by NAMESPACE/NAME: the chain of each Direction; "" is open.
	Pods map[string][2]string `json:"pods"`
	// Namespaces are those with policies, of the whole cluster, and the Directions in which one of them isolates. A pod that is not
	// in Pods is closed there, and, as EveryNamespace says, in each that is not in Except.
	Namespaces map[string][2]bool  `json:"namespaces"`
	Except     []string            `json:"except,omitempty"` // in order
	Chains     map[string]Chain    `json:"chains"`
	Sets       map[string][]Member `json:"sets"`            // members of groups, by ID
	Guess      bool                `json:"guess,omitempty"` // nothing was ever known here: the first word of a source ends it
	// Lacks are the first ports by name that nobody has, of policies that select a pod here.
	Lacks []Lack `json:"-"`
}

// mostLacks bounds Rules.Lacks.
const mostLacks = 16

// Lack is a port by name that none of the pods here has which the policy selects (Ingress), or none that is a peer of the rule (Egress):
// that port of the rule matches nothing.
type Lack struct {
	Policy    string // as Key names it
	Direction Direction
	Port      string   // NAME (PROTOCOL)
	Groups    []string // of peers that would have it
}

// EveryNamespace stands among namespaces for each one of which not all is known, those to come included. No namespace can have such a name.
const EveryNamespace = "*"

// Chain is what a pod may do in one direction; what matches no Accept is dropped.
type Chain struct {
	Policies []string `json:"policies"` // that isolate: NAMESPACE/NAME
	Accepts  []Accept `json:"accepts,omitempty"`
}

// Groups are the IDs of the groups that the chain needs.
func (c Chain) Groups() (out []string) {
	for _, a := range c.Accepts {
		out = append(append(out, a.Groups...), a.Named...)
	}
	return out
}

// Closed is the chain of a pod that was not judged yet. It accepts nothing, and no policy is named.
const Closed = "closed"

// Placed are Rules with the addresses of this node's pods.
type Placed struct {
	Rules
	At map[netip.Addr]Place // pods that are not here are open
}

// Place is the pod at an address.
type Place struct {
	Pod    string    // NAMESPACE/NAME
	Chains [2]string // by Direction; "" is open
}

// SetExcept says of which namespaces, in order, all is known: EveryNamespace does not concern them.
func (r *Rules) SetExcept(known []string) {
	r.Except = nil
	for _, name := range known {
		if every := r.Namespaces[EveryNamespace]; either(r.Namespaces[name], every) != r.Namespaces[name] {
			r.Except = append(r.Except, name)
		}
	}
}

// Place finds the chains of pods, NAMESPACE/NAME by address.
func (r Rules) Place(pods map[netip.Addr]string) Placed {
	out := Placed{r, map[netip.Addr]Place{}}
	for a, pod := range pods {
		chains, judged := r.Pods[pod]
		namespace, _, _ := strings.Cut(pod, "/")
		in := r.Namespaces[namespace]
		if _, apart := slices.BinarySearch(r.Except, namespace); !apart {
			in = either(in, r.Namespaces[EveryNamespace])
		}
		for d := range chains {
			if in[d] && !judged {
				chains[d] = Closed
			}
		}
		if chains != [2]string{} {
			out.At[a] = Place{pod, chains}
		}
	}
	return out
}

// Accept is what one rule of a policy lets pass: from or to one of its peers, at one of its ports.
type Accept struct {
	Policy string         `json:"policy"` // as Key names it
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
	Port     uint16 // destination; of ICMP and ICMPv6 type and code
}

// neighbourly says what becomes of ICMPv6 that policies do not judge: what pods on one bridge need of each other, as the kernel's rules have it
// (agent/host/nft). Whether such a packet is well-formed a Packet does not tell.
func (p Packet) neighbourly() (pass, known bool) {
	if p.Protocol != unix.IPPROTO_ICMPV6 {
		return false, false
	}
	switch kind, code := p.Port>>8, p.Port&0xff; kind {
	case 130, 131, 132, 143: // multicast listeners
		return true, p.Dst.IsMulticast()
	case 133, 134: // routers
		return false, true
	case 135, 136: // neighbours
		return true, code == 0
	}
	return false, false
}

// Verdict says whether a packet passes on this node, and which policies accepted it, or else which ones isolate the pod in the
// direction in which it was dropped: none, if no policy has to do with it. A pod always reaches itself. What the node itself sends is not judged: it never passes FORWARD.
func (r Placed) Verdict(p Packet) (pass bool, by []string, dropped Direction) {
	if p.Src == p.Dst {
		return true, nil, 0
	}
	if pass, known := p.neighbourly(); known {
		return pass, nil, Egress
	}
	for _, d := range []Direction{Egress, Ingress} {
		own, peer := p.Src, p.Dst
		if d == Ingress {
			own, peer = p.Dst, p.Src
		}
		name := r.At[own].Chains[d]
		if name == "" {
			continue
		}
		chain := r.Chains[name] // Closed has none
		at := slices.IndexFunc(chain.Accepts, func(a Accept) bool { return r.matches(a, peer, p) })
		if at < 0 {
			return false, chain.Policies, d
		}
		by = append(by, chain.Accepts[at].Policy)
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
