package policy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// ClusterNetworkPolicy is policy.networking.k8s.io/v1alpha2's object.
type ClusterNetworkPolicy struct {
	Metadata Metadata    `json:"metadata"`
	Spec     ClusterSpec `json:"spec"`
}

// ClusterSpec is that of a ClusterNetworkPolicy.
type ClusterSpec struct {
	Tier     string        `json:"tier"`
	Priority int32         `json:"priority"`
	Subject  ClusterPeer   `json:"subject"` // namespaces or pods
	Ingress  []ClusterRule `json:"ingress"`
	Egress   []ClusterRule `json:"egress"`
}

// ClusterRule decides about packets from or to the selected pods.
type ClusterRule struct {
	Name      string            `json:"name"`
	Action    string            `json:"action"`
	From      []ClusterPeer     `json:"from"`
	To        []ClusterPeer     `json:"to"`
	Protocols []ClusterProtocol `json:"protocols"`
}

// ClusterPeer is pods or, of egress rules, addresses.
type ClusterPeer struct {
	Namespaces  *metav1.LabelSelector `json:"namespaces"`
	Pods        *NamespacedPods       `json:"pods"`
	Networks    []string              `json:"networks"`
	Nodes       *metav1.LabelSelector `json:"nodes"`       // of the experimental channel: refused
	DomainNames []string              `json:"domainNames"` // likewise
}

// NamespacedPods are pods of some namespaces.
type NamespacedPods struct {
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`
	PodSelector       metav1.LabelSelector `json:"podSelector"`
}

// ClusterProtocol is ports of one protocol, or a port by name.
type ClusterProtocol struct {
	TCP   *ClusterPort `json:"tcp"`
	UDP   *ClusterPort `json:"udp"`
	SCTP  *ClusterPort `json:"sctp"`
	Named string       `json:"destinationNamedPort"`
}

// ClusterPort is ports of a protocol.
type ClusterPort struct {
	Destination *struct {
		Number int32 `json:"number"`
		Range  *struct {
			Start int32 `json:"start"`
			End   int32 `json:"end"`
		} `json:"range"`
	} `json:"destinationPort"`
}

const (
	// ClusterKind stands among namespaces for "there are ClusterNetworkPolicies", and EveryNamespace for each namespace of which not all is
	// known, those to come included. No namespace can have such a name.
	ClusterKind    = "clusternetworkpolicies.policy.networking.k8s.io"
	EveryNamespace = "*"

	maxClusterGroups = 256 // of one policy
)

// tier is when a policy is judged: in this order.
type tier int

const (
	tierNetwork tier = iota // a NetworkPolicy: between the others
	tierAdmin
	tierBaseline
)

// Action is what a rule does with what it matches.
type Action string

// Actions. A NetworkPolicy's rules accept.
const (
	ActionAccept Action = ""
	ActionDeny   Action = "deny"
	ActionPass   Action = "pass" // the tier has no more to say
)

// ReadCluster decodes what can be decoded of an object's JSON. The error names what cannot be, which is so then that ParseCluster denies: a
// rule denies all, a subject is all pods, and without a tier and a priority no rule accepts.
func ReadCluster(data []byte) (n ClusterNetworkPolicy, err error) {
	if err = json.Unmarshal(data, &n); err == nil {
		return n, nil
	}
	n.Spec = ClusterSpec{Priority: -1, Ingress: []ClusterRule{{}}, Egress: []ClusterRule{{}}}
	var wire struct {
		Spec struct{ Tier, Priority, Subject, Ingress, Egress json.RawMessage }
	}
	if json.Unmarshal(data, &wire) != nil {
		return n, err
	}
	var subject ClusterPeer
	_ = json.Unmarshal(wire.Spec.Tier, &n.Spec.Tier)
	if priority := int32(0); json.Unmarshal(wire.Spec.Priority, &priority) == nil {
		n.Spec.Priority = priority
	}
	if json.Unmarshal(wire.Spec.Subject, &subject) == nil {
		n.Spec.Subject = subject
	}
	n.Spec.Ingress, n.Spec.Egress = readRules(wire.Spec.Ingress), readRules(wire.Spec.Egress)
	return n, err
}

// readRules decodes rules one by one; one without content denies all.
func readRules(data []byte) []ClusterRule {
	var all []json.RawMessage
	if len(data) > 0 && json.Unmarshal(data, &all) != nil {
		return []ClusterRule{{}}
	}
	out := make([]ClusterRule, len(all))
	for i, text := range all {
		var r ClusterRule
		if json.Unmarshal(text, &r) == nil {
			out[i] = r
		}
	}
	return out
}

// ParseCluster checks a ClusterNetworkPolicy. The error is as Parse's. What cannot be read never widens what passes: an Accept rule matches
// nothing then, and any other denies all, as the API says. Where the subject cannot be read, what is readable of it selects the pods. Where it,
// the tier or the priority cannot be, no rule accepts or passes.
func ParseCluster(n ClusterNetworkPolicy) (Policy, error) {
	c := checker{of: clusterKey + n.Metadata.Name}
	before := c.found
	out := Policy{Name: n.Metadata.Name, priority: n.Spec.Priority, tier: tierAdmin}
	switch n.Spec.Tier {
	case "Admin":
	case "Baseline":
		out.tier = tierBaseline
	default:
		c.addf("spec.tier", "%q is neither Admin nor Baseline", n.Spec.Tier)
	}
	if p := n.Spec.Priority; p < 0 || p > 1000 {
		c.addf("spec.priority", "%d is not between 0 and 1000", p)
	}
	out.subject = c.subject("spec.subject", n.Spec.Subject)
	readable := c.found == before
	for d, rules := range [][]ClusterRule{n.Spec.Ingress, n.Spec.Egress} {
		field := [2]string{"spec.ingress", "spec.egress"}[d]
		out.isolates[d] = len(rules) > 0
		if len(rules) > maxRules {
			c.addf(field, "%d rules, at most %d", len(rules), maxRules)
			out.rules[d] = []rule{denyAll()}
			continue
		}
		for i, r := range rules {
			if x, matches := c.clusterRule(fmt.Sprintf("%s[%d]", field, i), Direction(d), r); matches {
				out.rules[d] = append(out.rules[d], x)
			}
		}
	}
	if n := len(Groups([]Policy{out})); n > maxClusterGroups {
		c.addf("spec", "%d different groups of pods are peers, at most %d", n, maxClusterGroups)
		for d, is := range out.isolates {
			if is {
				out.rules[d] = []rule{denyAll()}
			}
		}
	}
	for d := range out.rules {
		var left []rule
		for _, r := range out.rules[d] {
			if readable {
				left = append(left, r)
			} else if r.action != ActionAccept {
				r.action = ActionDeny
				left = append(left, r)
			}
		}
		out.rules[d] = left
	}
	return out, errors.Join(c.errs...)
}

func denyAll() rule { return rule{action: ActionDeny, any: true, all: true} }

// subject is the pods that a policy selects; of what is not readable, all.
func (c *checker) subject(field string, s ClusterPeer) *Group {
	out := everyPod()
	if s.Networks != nil || s.Nodes != nil || s.DomainNames != nil || (s.Namespaces == nil) == (s.Pods == nil) {
		c.addf(field, "needs one of namespaces and pods")
		return &out
	}
	read := func(field string, s *metav1.LabelSelector) labels.Selector {
		before := c.found
		if x := c.selector(field, s); c.found == before {
			return x
		}
		return labels.Everything()
	}
	if s.Namespaces != nil {
		out.namespaces = read(field+".namespaces", s.Namespaces)
	} else {
		out.namespaces = read(field+".pods.namespaceSelector", &s.Pods.NamespaceSelector)
		out.pods = read(field+".pods.podSelector", &s.Pods.PodSelector)
	}
	return &out
}

// clusterRule checks one; matches is false for one that can match nothing.
func (c *checker) clusterRule(field string, d Direction, r ClusterRule) (out rule, matches bool) {
	before := c.found
	out.all = len(r.Protocols) == 0
	switch r.Action {
	case "Accept":
	case "Deny":
		out.action = ActionDeny
	case "Pass":
		out.action = ActionPass
	default:
		c.addf(field+".action", "%.80q is not one of Accept, Deny and Pass", r.Action)
		out.action = ActionDeny
	}
	peers, other, side := r.From, r.To, "from"
	if d == Egress {
		peers, other, side = r.To, r.From, "to"
	}
	if n := max(len(peers), len(r.Protocols)); n > maxPeers || len(peers) == 0 || len(other) > 0 {
		c.addf(field, "needs 1 to %d peers as %s, and no more protocols", maxPeers, side)
	} else {
		for i, p := range r.Protocols {
			c.protocol(&out, fmt.Sprintf("%s.protocols[%d]", field, i), p)
		}
		for i, p := range peers {
			c.clusterPeer(&out, d, fmt.Sprintf("%s.%s[%d]", field, side, i), p)
		}
		out.blocks = disjoint(out.blocks)
	}
	if c.found == before {
		return out, true
	}
	return denyAll(), out.action != ActionAccept
}

func (c *checker) clusterPeer(out *rule, d Direction, field string, p ClusterPeer) {
	set := 0
	for _, is := range []bool{p.Namespaces != nil, p.Pods != nil, p.Networks != nil, p.Nodes != nil, p.DomainNames != nil} {
		if is {
			set++
		}
	}
	g := everyPod()
	switch {
	case set != 1:
		c.addf(field, "needs one of namespaces, pods and networks, or is of a release that is not known here")
	case p.Nodes != nil, p.DomainNames != nil:
		c.addf(field, "nodes and domainNames are not supported")
	case p.Networks != nil && d == Ingress:
		c.addf(field, "networks are peers of egress rules")
	case p.Networks != nil && len(out.named) > 0:
		c.addf(field, "networks have no ports with names")
	case p.Networks != nil:
		if len(p.Networks) == 0 || len(p.Networks) > maxPeers {
			c.addf(field+".networks", "needs 1 to %d", maxPeers)
			return
		}
		for i, cidr := range p.Networks {
			out.blocks = append(out.blocks, c.block(fmt.Sprintf("%s.networks[%d]", field, i), IPBlock{CIDR: cidr})...)
		}
		return
	case p.Namespaces != nil:
		g.namespaces = c.selector(field+".namespaces", p.Namespaces)
	default:
		g.namespaces = c.selector(field+".pods.namespaceSelector", &p.Pods.NamespaceSelector)
		g.pods = c.selector(field+".pods.podSelector", &p.Pods.PodSelector)
	}
	out.groups = append(out.groups, g)
}

func (c *checker) protocol(out *rule, field string, p ClusterProtocol) {
	set := 0
	for name, x := range map[string]*ClusterPort{"TCP": p.TCP, "UDP": p.UDP, "SCTP": p.SCTP} {
		if x == nil {
			continue
		}
		set++
		port := Port{Protocol: name}
		if to := x.Destination; to != nil {
			n := intstr.FromInt32(to.Number)
			if port.Port = &n; to.Range != nil {
				if to.Number != 0 {
					c.addf(field, "needs number or range")
				}
				n.IntVal, port.EndPort = to.Range.Start, &to.Range.End
			}
		}
		c.port(out, field, port)
	}
	if p.Named != "" {
		set++
		n := intstr.FromString(p.Named)
		c.port(out, field, Port{Port: &n})
		if last := len(out.named) - 1; last >= 0 {
			out.named[last].Protocol = 0 // any
		}
	}
	if set != 1 {
		c.addf(field, "needs one of tcp, udp, sctp and destinationNamedPort")
	}
}

// Isolated are the namespaces with NetworkPolicies, and ClusterKind where there are ClusterNetworkPolicies, with the directions in which
// they judge packets.
func Isolated(all []Policy) map[string][2]bool {
	out := map[string][2]bool{}
	for _, p := range all {
		name := p.Namespace
		if p.Cluster() {
			name = ClusterKind
		}
		if p.isolates != [2]bool{} {
			out[name] = either(out[name], p.isolates)
		}
	}
	return out
}

func either(a, b [2]bool) [2]bool { return [2]bool{a[0] || b[0], a[1] || b[1]} }

// order puts policies as they are judged: by priority, then by name, on which names of chains must not depend otherwise.
func order(a, b Policy) int {
	return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.Key(), b.Key()))
}
