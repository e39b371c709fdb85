package compile

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
)

// naive judges a packet by the policies as written, without anything that Compile makes.
type naive struct {
	namespaces map[string]map[string]string
	pods       []Pod
	policies   []NetworkPolicy
}

func selects(s *metav1.LabelSelector, l map[string]string) bool {
	for k, v := range s.MatchLabels {
		if l[k] != v {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		v, has := l[e.Key]
		if in := slices.Contains(e.Values, v) && has; e.Operator == metav1.LabelSelectorOpIn && !in || e.Operator == metav1.LabelSelectorOpNotIn && in ||
			e.Operator == metav1.LabelSelectorOpExists && !has || e.Operator == metav1.LabelSelectorOpDoesNotExist && has {
			return false
		}
	}
	return true
}

func (n naive) owner(a netip.Addr) *Pod {
	for i, p := range n.pods {
		if slices.Contains(p.Addrs, a) && !p.HostNetwork && !p.Ended {
			return &n.pods[i]
		}
	}
	return nil
}

func (n naive) passes(p Packet) bool {
	if p.Src == p.Dst {
		return true
	}
	src, dst := n.owner(p.Src), n.owner(p.Dst)
	return n.allows(src, "Egress", p.Dst, dst, dst, p) && n.allows(dst, "Ingress", p.Src, src, dst, p)
}

// allows judges one direction: own is the pod, peer the other end; at is where the port is.
func (n naive) allows(own *Pod, direction string, peerAddr netip.Addr, peer, at *Pod, packet Packet) bool {
	if own == nil {
		return true
	}
	isolated := false
	for _, p := range n.policies {
		types := p.Spec.PolicyTypes
		if len(types) == 0 {
			types = []string{"Ingress"}
			if len(p.Spec.Egress) > 0 {
				types = []string{"Ingress", "Egress"}
			}
		}
		if p.Metadata.Namespace != own.Namespace || !slices.Contains(types, direction) || !selects(&p.Spec.PodSelector, own.Labels) {
			continue
		}
		isolated = true
		rules := p.Spec.Egress
		if direction == "Ingress" {
			rules = nil
			for _, r := range p.Spec.Ingress {
				rules = append(rules, EgressRule{r.From, r.Ports})
			}
		}
		for _, r := range rules {
			if n.peer(r.To, p.Metadata.Namespace, peerAddr, peer, false) && n.port(r, at, packet, func() bool {
				return direction == "Ingress" || n.peer(r.To, p.Metadata.Namespace, peerAddr, peer, true)
			}) {
				return true
			}
		}
	}
	return !isolated
}

// peer reports whether one of peers is this; as a pod only, where onlyPods.
func (n naive) peer(peers []Peer, namespace string, a netip.Addr, pod *Pod, onlyPods bool) bool {
	if len(peers) == 0 {
		return !onlyPods || pod != nil && n.namespaces[pod.Namespace] != nil
	}
	return slices.ContainsFunc(peers, func(p Peer) bool {
		if p.IPBlock != nil {
			return !onlyPods && netip.MustParsePrefix(p.IPBlock.CIDR).Contains(a) &&
				!slices.ContainsFunc(p.IPBlock.Except, func(e string) bool { return netip.MustParsePrefix(e).Contains(a) })
		}
		if pod == nil {
			return false
		}
		in := pod.Namespace == namespace
		if p.NamespaceSelector != nil {
			labels, exists := n.namespaces[pod.Namespace]
			in = exists && selects(p.NamespaceSelector, labels)
		}
		return in && (p.PodSelector == nil || selects(p.PodSelector, pod.Labels))
	})
}

// port reports whether the packet's is one of the rule's. A name is a port of a container of the pod at the destination; byPod says
// whether that pod may be meant by it.
func (n naive) port(r EgressRule, at *Pod, p Packet, byPod func() bool) bool {
	return len(r.Ports) == 0 || slices.ContainsFunc(r.Ports, func(x Port) bool {
		if protocols[x.Protocol] != p.Protocol {
			return false
		}
		switch {
		case x.Port == nil:
			return true
		case x.Port.Type == intstr.String:
			return at != nil && byPod() && slices.Contains(at.Ports, ContainerPort{NamedPort{x.Port.StrVal, p.Protocol}, p.Port})
		case x.EndPort != nil:
			return int32(p.Port) >= x.Port.IntVal && int32(p.Port) <= *x.EndPort
		}
		return int32(p.Port) == x.Port.IntVal
	})
}

func drawSelector(t *rapid.T) *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	if rapid.Bool().Draw(t, "matchLabels") {
		s.MatchLabels = map[string]string{"a": rapid.SampledFrom([]string{"1", "2"}).Draw(t, "label")}
	}
	if rapid.Bool().Draw(t, "expressions") {
		e := metav1.LabelSelectorRequirement{Key: "b", Operator: rapid.SampledFrom([]metav1.LabelSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist"}).Draw(t, "operator")}
		if e.Operator == "In" || e.Operator == "NotIn" {
			e.Values = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"1", "2", "3"}), 1, 3, rapid.ID).Draw(t, "values")
		}
		s.MatchExpressions = append(s.MatchExpressions, e)
	}
	return s
}

func drawLabels(t *rapid.T) map[string]string {
	return rapid.MapOfN(rapid.SampledFrom([]string{"a", "b"}), rapid.SampledFrom([]string{"1", "2", "3"}), 0, 2).Draw(t, "labels")
}

var (
	names  = []string{"http", "dns"}
	blocks = map[string][]string{"10.0.0.0/8": {"10.1.0.0/16", "10.1.0.4/30", "10.1.0.3/32"}, "10.1.0.0/29": {"10.1.0.2/31"}, "0.0.0.0/0": {"10.0.0.0/9"},
		"fd00::/16": {"fd00::4/126"}, "::/0": {"fd00::/64"}}
)

func drawPorts(t *rapid.T) (out []Port) {
	for range rapid.IntRange(0, 2).Draw(t, "ports") {
		p := Port{Protocol: rapid.SampledFrom([]string{"TCP", "UDP", "SCTP"}).Draw(t, "protocol")}
		n := intstr.FromInt32(rapid.Int32Range(1, 4).Draw(t, "port"))
		switch rapid.IntRange(0, 4).Draw(t, "form") {
		case 0:
			p.Port = &n
		case 1:
			last := n.IntVal + rapid.Int32Range(0, 2).Draw(t, "more")
			p.Port, p.EndPort = &n, &last
		case 2, 3:
			name := intstr.FromString(rapid.SampledFrom(names).Draw(t, "name"))
			p.Port = &name
		}
		out = append(out, p)
	}
	return out
}

func drawPeers(t *rapid.T) (out []Peer) {
	for range rapid.IntRange(0, 2).Draw(t, "peers") {
		var p Peer
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			p.PodSelector = drawSelector(t)
		case 1:
			p.NamespaceSelector = drawSelector(t)
		case 2:
			p.PodSelector, p.NamespaceSelector = drawSelector(t), drawSelector(t)
		default:
			cidr := rapid.SampledFrom([]string{"10.0.0.0/8", "10.1.0.0/29", "0.0.0.0/0", "fd00::/16", "::/0"}).Draw(t, "cidr")
			p.IPBlock = &IPBlock{CIDR: cidr, Except: rapid.SliceOfN(rapid.SampledFrom(blocks[cidr]), 0, 3).Draw(t, "except")}
		}
		out = append(out, p)
	}
	return out
}

func drawWorld(t *rapid.T) naive {
	n := naive{namespaces: map[string]map[string]string{"x": drawLabels(t), "y": drawLabels(t)}}
	for i := range rapid.IntRange(1, 6).Draw(t, "pods") {
		p := Pod{Namespace: rapid.SampledFrom([]string{"x", "y", "unknown"}).Draw(t, "namespace"), Name: fmt.Sprint("p", i), Labels: drawLabels(t),
			HostNetwork: rapid.IntRange(0, 5).Draw(t, "host") == 0, Ended: rapid.IntRange(0, 5).Draw(t, "ended") == 0,
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(i + 2)}), netip.MustParseAddr(fmt.Sprintf("fd00::%d", i+2))}}
		for _, name := range names {
			for range rapid.IntRange(0, 2).Draw(t, name) {
				p.Ports = append(p.Ports, ContainerPort{NamedPort{name, rapid.SampledFrom([]byte{6, 17, 132}).Draw(t, "protocol")}, rapid.Uint16Range(1, 5).Draw(t, "number")})
			}
		}
		n.pods = append(n.pods, p)
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "policies") {
		p := NetworkPolicy{Metadata: Metadata{Namespace: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "namespace"), Name: fmt.Sprint("np", i)}}
		p.Spec.PodSelector = *drawSelector(t)
		p.Spec.PolicyTypes = rapid.SampledFrom([][]string{nil, {"Ingress"}, {"Egress"}, {"Ingress", "Egress"}}).Draw(t, "types")
		for range rapid.IntRange(0, 2).Draw(t, "ingress") {
			p.Spec.Ingress = append(p.Spec.Ingress, IngressRule{drawPeers(t), drawPorts(t)})
		}
		for range rapid.IntRange(0, 2).Draw(t, "egress") {
			p.Spec.Egress = append(p.Spec.Egress, EgressRule{drawPeers(t), drawPorts(t)})
		}
		n.policies = append(n.policies, p)
	}
	return n
}

// ends are pods that there may be, addresses beside them and others.
var ends4, ends6 = func() (v4, v6 []netip.Addr) {
	for i := range 8 {
		v4 = append(v4, netip.AddrFrom4([4]byte{10, 1, 0, byte(i + 1)}))
		v6 = append(v6, netip.MustParseAddr(fmt.Sprintf("fd00::%d", i+1)))
	}
	return append(v4, netip.MustParseAddr("10.200.0.1"), netip.MustParseAddr("8.8.8.8")), append(v6, netip.MustParseAddr("2001:db8::1"))
}()

// TestAgainstNaiveJudge: for every packet between pods, nodes and the outside, Rules say what the policies as written say, also after a
// power cut: Rules are read from disk then.
func TestAgainstNaiveJudge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := drawWorld(t)
		var all []Policy
		for _, p := range n.policies {
			parsed, err := Parse(p)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, parsed)
		}
		rules := Compile(all, n.pods, func(g Group) []Member { return g.Members(n.namespaces, n.pods) })
		rules.Lacks = nil // for people, and not saved
		b, err := json.Marshal(rules)
		var saved Rules
		if err != nil || json.Unmarshal(b, &saved) != nil || !reflect.DeepEqual(saved, rules) {
			t.Fatalf("%v: %+v is saved as %s", err, rules, b)
		}
		at := placed(saved, n.pods)
		for _, ends := range [][]netip.Addr{ends4, ends6} {
			for _, src := range ends {
				for _, dst := range ends {
					for _, protocol := range []byte{6, 17, 132, 1} {
						for port := range uint16(6) {
							p := Packet{src, dst, protocol, port}
							if pass, by, _ := at.Verdict(p); pass != n.passes(p) {
								t.Fatalf("%+v passes: %t, by %v; rules %s", p, pass, by, b)
							}
						}
					}
				}
			}
		}
	})
}

// TestUnknownGroups: where not all members of some groups are known, nothing passes that does not pass when they are.
func TestUnknownGroups(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := drawWorld(t)
		var all []Policy
		for _, p := range n.policies {
			parsed, _ := Parse(p)
			all = append(all, parsed)
		}
		missing := map[string]bool{}
		rules := Compile(all, n.pods, func(g Group) (some []Member) {
			members := g.Members(n.namespaces, n.pods)
			if missing[g.ID()] = rapid.Bool().Draw(t, "missing"); !missing[g.ID()] {
				return members
			}
			for _, m := range members {
				if rapid.Bool().Draw(t, "known") {
					some = append(some, m)
				}
			}
			return some
		})
		rules.Without(missing)
		at := placed(rules, n.pods)
		for _, src := range ends4 {
			for _, dst := range ends4 {
				for port := range uint16(6) {
					p := Packet{src, dst, 6, port}
					if pass, by, _ := at.Verdict(p); pass && !n.passes(p) {
						t.Fatalf("%+v passes by %v", p, by)
					}
				}
			}
		}
	})
}
