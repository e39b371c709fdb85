// Package compile decides, purely, what NetworkPolicies (networking.k8s.io/v1) mean for the pods of one node: which packets pass.
// ../DESIGN.md has the whole: who compiles, what a node reads, what stands in the kernel.
//
//	policy.go   the objects as written, and as checked: Parse
//	group.go    pods as peers: who is in a group, at which addresses and named ports
//	compile.go  policies, groups and local pods become Rules
//	rules.go    Rules, and what they say of a packet
//	prefix.go   ipBlock with except as prefixes
package compile

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// NetworkPolicy is networking.k8s.io/v1's object. k8s.io/api would bring the types of all groups.
type NetworkPolicy struct {
	Metadata Metadata `json:"metadata"`
	Spec     Spec     `json:"spec"`
}

// Metadata is what is read of an object's.
type Metadata struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Labels    map[string]string `json:"labels"`
}

// Spec is that of a NetworkPolicy.
type Spec struct {
	PodSelector metav1.LabelSelector `json:"podSelector"`
	PolicyTypes []string             `json:"policyTypes"`
	Ingress     []IngressRule        `json:"ingress"`
	Egress      []EgressRule         `json:"egress"`
}

// IngressRule allows packets to the selected pods.
type IngressRule struct {
	From  []Peer `json:"from"`
	Ports []Port `json:"ports"`
}

// EgressRule allows packets from the selected pods.
type EgressRule struct {
	To    []Peer `json:"to"`
	Ports []Port `json:"ports"`
}

// Peer is pods, or addresses.
type Peer struct {
	PodSelector       *metav1.LabelSelector `json:"podSelector"`
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector"`
	IPBlock           *IPBlock              `json:"ipBlock"`
}

// IPBlock is a range of addresses without some.
type IPBlock struct {
	CIDR   string   `json:"cidr"`
	Except []string `json:"except"`
}

// Port is ports of one protocol, by number, range or name.
type Port struct {
	Protocol string              `json:"protocol"`
	Port     *intstr.IntOrString `json:"port"`
	EndPort  *int32              `json:"endPort"`
}

// Bounds of one policy. The API server has none but an object's size, 1.5 MB.
const (
	maxRules        = 512
	maxPeers        = 1024 // of a rule; of ports, too
	maxExcept       = 256  // of an ipBlock
	maxRequirements = 64   // of a selector
	maxGroups       = 64   // of peers that are pods, of named ports, too: each has the addresses of all that it selects
	maxValues       = 256  // of a requirement
)

// Direction is that of a packet, seen from the pod to which a policy applies.
type Direction int

// Both directions.
const (
	Ingress Direction = iota
	Egress
)

// Policy is a NetworkPolicy that was checked.
type Policy struct {
	Namespace, Name string
	pods            labels.Selector
	isolates        [2]bool // by Direction
	rules           [2][]rule
}

// Key names the policy: NAMESPACE/NAME.
func (p Policy) Key() string { return p.Namespace + "/" + p.Name }

// Isolates are the directions in which the policy closes what it selects.
func (p Policy) Isolates() [2]bool { return p.isolates }

// rule allows what matches one of its peers and one of its ports.
type rule struct {
	any    bool           // every peer
	groups []Group        // peers that are pods
	blocks []netip.Prefix // peers that are addresses; no two overlap
	all    bool           // every protocol and port
	ports  []Ports
	named  []NamedPort
}

// Parse checks a policy. The error names each field that is wrong, and wraps ErrInvalid. The Policy allows nothing then, to the
// pods it selects, or to all of its namespace where that is not readable: it is never wider than what was meant.
func Parse(n NetworkPolicy) (Policy, error) {
	c := checker{of: n.Metadata.Namespace + "/" + n.Metadata.Name}
	out := Policy{Namespace: n.Metadata.Namespace, Name: n.Metadata.Name}
	if out.Namespace == "" || out.Name == "" {
		c.addf("metadata", "needs name and namespace")
	}
	out.pods = c.selector("spec.podSelector", &n.Spec.PodSelector)
	unreadable := len(c.errs) > 0
	types := n.Spec.PolicyTypes
	if len(types) == 0 {
		types = []string{"Ingress"}
		if len(n.Spec.Egress) > 0 {
			types = append(types, "Egress")
		}
	}
	for i, t := range types {
		switch t {
		case "Ingress":
			out.isolates[Ingress] = true
		case "Egress":
			out.isolates[Egress] = true
		default:
			c.addf(fmt.Sprintf("spec.policyTypes[%d]", i), "%q is neither Ingress nor Egress", t)
			unreadable = true
		}
	}
	if rules := max(len(n.Spec.Ingress), len(n.Spec.Egress)); rules > maxRules {
		c.addf("spec", "%d rules of one direction, at most %d", rules, maxRules)
	} else {
		for i, r := range n.Spec.Ingress {
			out.rules[Ingress] = append(out.rules[Ingress], c.rule(out.Namespace, fmt.Sprintf("spec.ingress[%d]", i), "from", r.From, r.Ports))
		}
		for i, r := range n.Spec.Egress {
			out.rules[Egress] = append(out.rules[Egress], c.rule(out.Namespace, fmt.Sprintf("spec.egress[%d]", i), "to", r.To, r.Ports))
		}
	}
	if n := len(Groups([]Policy{out})); n > maxGroups {
		c.addf("spec", "%d different groups of pods are peers, at most %d: use labels that several groups have, or several policies", n, maxGroups)
	}
	err := errors.Join(c.errs...)
	if err != nil {
		out.rules = [2][]rule{}
	}
	if unreadable {
		out.pods, out.isolates = labels.Everything(), [2]bool{true, true}
	}
	return out, err
}

// ErrInvalid means that a policy is not valid, or exceeds our bounds.
var ErrInvalid = errors.New("invalid policy")

// checker collects what is wrong with one policy.
type checker struct {
	of   string
	errs []error
}

const maxErrors = 8

func (c *checker) addf(field, text string, args ...any) {
	if len(c.errs) < maxErrors {
		c.errs = append(c.errs, fmt.Errorf("%w %s: %s: %s", ErrInvalid, c.of, field, fmt.Sprintf(text, args...)))
	}
}

// selector checks one; it selects nothing where it is wrong.
func (c *checker) selector(field string, s *metav1.LabelSelector) labels.Selector {
	n := len(s.MatchLabels) + len(s.MatchExpressions)
	for _, e := range s.MatchExpressions {
		if len(e.Values) > maxValues {
			c.addf(field, "%d values of %s, at most %d", len(e.Values), e.Key, maxValues)
			return labels.Nothing()
		}
	}
	if n > maxRequirements {
		c.addf(field, "%d requirements, at most %d", n, maxRequirements)
		return labels.Nothing()
	}
	out, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		c.addf(field, "%v", err)
		return labels.Nothing()
	}
	return out
}

func (c *checker) rule(namespace, field, side string, peers []Peer, ports []Port) rule {
	out := rule{any: len(peers) == 0, all: len(ports) == 0}
	if n := max(len(peers), len(ports)); n > maxPeers {
		c.addf(field, "%d peers or ports, at most %d", n, maxPeers)
		return out
	}
	for i, p := range peers {
		c.peer(&out, namespace, fmt.Sprintf("%s.%s[%d]", field, side, i), p)
	}
	out.blocks = disjoint(out.blocks)
	for i, p := range ports {
		c.port(&out, fmt.Sprintf("%s.ports[%d]", field, i), p)
	}
	return out
}

func (c *checker) peer(out *rule, namespace, field string, p Peer) {
	switch {
	case p.IPBlock != nil && (p.PodSelector != nil || p.NamespaceSelector != nil):
		c.addf(field, "ipBlock stands alone, without podSelector and namespaceSelector")
	case p.IPBlock != nil:
		out.blocks = append(out.blocks, c.block(field+".ipBlock", *p.IPBlock)...)
	case p.PodSelector == nil && p.NamespaceSelector == nil:
		c.addf(field, "needs podSelector, namespaceSelector or ipBlock")
	default:
		g := Group{Namespace: namespace, pods: labels.Everything()}
		if p.PodSelector != nil {
			g.pods = c.selector(field+".podSelector", p.PodSelector)
		}
		if p.NamespaceSelector != nil {
			g.Namespace, g.namespaces = "", c.selector(field+".namespaceSelector", p.NamespaceSelector)
		}
		out.groups = append(out.groups, g)
	}
}

func (c *checker) block(field string, b IPBlock) []netip.Prefix {
	whole, err := parsePrefix(b.CIDR)
	if err != nil {
		c.addf(field+".cidr", "%q is not a prefix in CIDR notation, like 10.1.0.0/16", b.CIDR)
		return nil
	}
	if len(b.Except) > maxExcept {
		c.addf(field+".except", "%d prefixes, at most %d", len(b.Except), maxExcept)
		return nil
	}
	out := []netip.Prefix{whole.Masked()}
	for i, text := range b.Except {
		but, err := parsePrefix(text)
		if err != nil || but.Bits() <= whole.Bits() || !whole.Contains(but.Addr()) {
			c.addf(fmt.Sprintf("%s.except[%d]", field, i), "%q is not a prefix inside %s", text, b.CIDR)
			return nil
		}
		out = without(out, but.Masked())
	}
	return out
}

// protocols by their names in the API.
var protocols = map[string]byte{"TCP": unix.IPPROTO_TCP, "UDP": unix.IPPROTO_UDP, "SCTP": unix.IPPROTO_SCTP} //nolint:gochecknoglobals // a constant

func (c *checker) port(out *rule, field string, p Port) {
	protocol, known := protocols[cmp.Or(p.Protocol, "TCP")]
	switch {
	case !known:
		c.addf(field+".protocol", "%q is not one of TCP, UDP and SCTP", p.Protocol)
	case p.Port == nil && p.EndPort != nil, p.Port != nil && p.Port.Type == intstr.String && p.EndPort != nil:
		c.addf(field+".endPort", "needs port as a number")
	case p.Port == nil:
		out.ports = append(out.ports, Ports{protocol, 0, 65535})
	case p.Port.Type == intstr.String:
		if p.Port.StrVal == "" || len(p.Port.StrVal) > 63 {
			c.addf(field+".port", "%.80q is not the name of a port", p.Port.StrVal)
			return
		}
		out.named = append(out.named, NamedPort{p.Port.StrVal, protocol})
	default:
		first, last := p.Port.IntVal, p.Port.IntVal
		if p.EndPort != nil {
			last = *p.EndPort
		}
		if first < 1 || last < first || last > 65535 {
			c.addf(field, "ports %d to %d: the first is at least 1, the last at most 65535 and not below the first", first, last)
			return
		}
		out.ports = append(out.ports, Ports{protocol, uint16(first), uint16(last)})
	}
}

// Groups lists the groups that policies need, each once, by ID.
func Groups(all []Policy) []Group {
	seen := map[string]Group{}
	for _, p := range all {
		for d := range p.rules {
			if !p.isolates[d] {
				continue
			}
			for _, r := range p.rules[d] {
				for _, g := range r.members(Direction(d)) {
					seen[g.ID()] = g
				}
			}
		}
	}
	var out []Group
	for _, g := range seen {
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b Group) int { return cmp.Compare(a.ID(), b.ID()) })
	return out
}

// Protocol is the number of a protocol that the API names.
func Protocol(name string) (number byte, known bool) {
	number, known = protocols[name]
	return number, known
}

// ProtocolName is what people call an IP protocol, its number if they do not.
func ProtocolName(number byte) string {
	for name, n := range protocols {
		if n == number {
			return name
		}
	}
	switch number {
	case unix.IPPROTO_ICMP:
		return "ICMP"
	case unix.IPPROTO_ICMPV6:
		return "ICMPv6"
	}
	return strconv.Itoa(int(number))
}
