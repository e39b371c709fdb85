package compile

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// written reads a policy as an operator writes it.
func written(t *testing.T, spec string) NetworkPolicy {
	t.Helper()
	n := NetworkPolicy{Metadata: Metadata{Namespace: "shop", Name: "p"}}
	if err := yaml.UnmarshalStrict([]byte(spec), &n.Spec); err != nil {
		t.Fatalf("%v\n%s", err, spec)
	}
	return n
}

func parsed(t *testing.T, spec string) Policy {
	t.Helper()
	p, err := Parse(written(t, spec))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func pod(namespace, name, label string, addrs ...string) Pod {
	p := Pod{Namespace: namespace, Name: name, Labels: map[string]string{"app": label}}
	for _, a := range addrs {
		p.Addrs = append(p.Addrs, addr(a))
	}
	return p
}

// town is a cluster of few pods: web and db in shop, mon in ops.
func town() (namespaces map[string]map[string]string, pods []Pod) {
	web := pod("shop", "web-0", "web", "10.1.1.2", "fd00:1::2")
	web.Ports = []ContainerPort{{NamedPort{"http", 6}, 8080}, {NamedPort{"dns", 17}, 53}}
	db := pod("shop", "db-0", "db", "10.1.2.2", "fd00:2::2")
	db.Ports = []ContainerPort{{NamedPort{"sql", 6}, 5432}}
	mon := pod("ops", "mon-0", "mon", "10.1.3.2", "fd00:3::2")
	mon.Ports = []ContainerPort{{NamedPort{"sql", 6}, 9999}}
	host := pod("shop", "host-0", "db", "192.168.1.9")
	host.HostNetwork = true
	gone := pod("shop", "job-0", "db", "10.1.9.9")
	gone.Ended = true
	return map[string]map[string]string{"shop": {"tier": "front"}, "ops": {"tier": "back"}}, []Pod{web, db, mon, host, gone}
}

// placed finds rules for pods at their addresses.
func placed(r Rules, pods []Pod) Placed {
	at := map[netip.Addr]string{}
	for _, p := range pods {
		for _, a := range p.Addrs {
			if p.counts() {
				at[a] = p.Namespace + "/" + p.Name
			}
		}
	}
	return r.Place(at)
}

func compiled(t *testing.T, specs ...string) Placed {
	t.Helper()
	namespaces, pods := town()
	var all []Policy
	for _, s := range specs {
		all = append(all, parsed(t, s))
	}
	return placed(Compile(all, pods, func(g Group) []Member { return g.Members(namespaces, pods) }), pods)
}

const web = "{podSelector: {matchLabels: {app: web}}"

func TestVerdicts(t *testing.T) {
	for name, c := range map[string]struct {
		specs      []string
		pass, drop []string // SRC DST PROTOCOL PORT
	}{
		"no policy is open": {nil, []string{"10.1.3.2 10.1.1.2 6 80", "8.8.8.8 10.1.1.2 1 0"}, nil},
		"an empty policy closes ingress, of the pods it selects": {[]string{web + "}"},
			[]string{"10.1.1.2 8.8.8.8 6 80", "10.1.3.2 10.1.2.2 6 80", "10.1.1.2 10.1.1.2 6 80"},
			[]string{"10.1.2.2 10.1.1.2 6 80", "fd00:2::2 fd00:1::2 17 53", "8.8.8.8 10.1.1.2 1 0"}},
		"egress alone leaves ingress open": {[]string{web + ", policyTypes: [Egress]}"},
			[]string{"10.1.2.2 10.1.1.2 6 80"}, []string{"10.1.1.2 10.1.2.2 6 80", "fd00:1::2 fd00:2::2 58 0"}},
		"egress rules imply both types": {[]string{web + ", egress: [{}]}"},
			[]string{"10.1.1.2 9.9.9.9 6 80"}, []string{"10.1.2.2 10.1.1.2 6 80"}},
		"all sources, one port": {[]string{web + ", ingress: [{ports: [{port: 80}]}]}"},
			[]string{"10.1.2.2 10.1.1.2 6 80", "8.8.8.8 10.1.1.2 6 80"}, []string{"8.8.8.8 10.1.1.2 17 80", "8.8.8.8 10.1.1.2 6 81", "8.8.8.8 10.1.1.2 1 0"}},
		"a range, a protocol, SCTP": {[]string{web + ", ingress: [{ports: [{port: 80, endPort: 90}, {protocol: UDP}, {protocol: SCTP, port: 7}]}]}"},
			[]string{"8.8.8.8 10.1.1.2 6 80", "8.8.8.8 10.1.1.2 6 90", "8.8.8.8 10.1.1.2 17 1", "8.8.8.8 10.1.1.2 132 7"},
			[]string{"8.8.8.8 10.1.1.2 6 79", "8.8.8.8 10.1.1.2 6 91", "8.8.8.8 10.1.1.2 132 8"}},
		"pods of the own namespace only": {[]string{web + ", ingress: [{from: [{podSelector: {}}]}]}"},
			[]string{"10.1.2.2 10.1.1.2 6 80", "fd00:2::2 fd00:1::2 1 0"}, []string{"10.1.3.2 10.1.1.2 6 80", "192.168.1.9 10.1.1.2 6 80", "10.1.9.9 10.1.1.2 6 80"}},
		"namespaces by label": {[]string{web + ", ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: tier, operator: In, values: [back]}]}}]}]}"},
			[]string{"10.1.3.2 10.1.1.2 6 80"}, []string{"10.1.2.2 10.1.1.2 6 80"}},
		"both selectors": {[]string{web + ", ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}]}]}"},
			[]string{"10.1.2.2 10.1.1.2 6 80"}, []string{"10.1.3.2 10.1.1.2 6 80"}},
		"a block, with holes, and overlapping ones": {[]string{web + ", ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.2.0/24, 10.1.3.2/32]}}, {ipBlock: {cidr: 10.1.4.0/24}}, {ipBlock: {cidr: 10.1.4.0/25}}]}]}"},
			[]string{"10.2.0.1 10.1.1.2 6 80", "10.1.4.9 10.1.1.2 6 80", "10.1.3.3 10.1.1.2 6 80"}, []string{"10.1.2.2 10.1.1.2 6 80", "10.1.3.2 10.1.1.2 6 80", "11.0.0.1 10.1.1.2 6 80"}},
		"a name is the selected pod's port": {[]string{web + ", ingress: [{ports: [{port: http}, {port: dns, protocol: UDP}]}]}"},
			[]string{"8.8.8.8 10.1.1.2 6 8080", "8.8.8.8 10.1.1.2 17 53"}, []string{"8.8.8.8 10.1.1.2 6 53", "8.8.8.8 10.1.1.2 17 8080"}},
		"a name that no container has opens nothing": {[]string{web + ", ingress: [{ports: [{port: other}]}], egress: [{ports: [{port: other}]}]}"},
			nil, []string{"10.1.2.2 10.1.1.2 6 8080", "10.1.1.2 10.1.2.2 6 8080"}},
		"out, a name is the peer's port": {[]string{web + ", policyTypes: [Egress], egress: [{to: [{namespaceSelector: {}}], ports: [{port: sql}]}]}"},
			[]string{"10.1.1.2 10.1.2.2 6 5432", "10.1.1.2 10.1.3.2 6 9999"}, []string{"10.1.1.2 10.1.2.2 6 9999", "10.1.1.2 10.1.3.2 6 5432", "10.1.1.2 8.8.8.8 6 5432"}},
		"a name beside a number": {[]string{web + ", policyTypes: [Egress], egress: [{to: [{podSelector: {}}], ports: [{port: sql}, {port: 80}]}]}"},
			[]string{"10.1.1.2 10.1.2.2 6 5432", "10.1.1.2 10.1.2.2 6 80"}, []string{"10.1.1.2 10.1.3.2 6 80", "10.1.1.2 10.1.3.2 6 9999"}},
		"policies add up": {[]string{web + ", ingress: [{ports: [{port: 80}]}]}", "{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: db}}}]}]}"},
			[]string{"8.8.8.8 10.1.1.2 6 80", "10.1.2.2 10.1.1.2 6 81", "10.1.2.2 10.1.2.2 6 1"}, []string{"8.8.8.8 10.1.1.2 6 81", "8.8.8.8 10.1.2.2 6 80"}},
		"host-network pods are no pods": {[]string{"{podSelector: {}}"}, []string{"8.8.8.8 192.168.1.9 6 80"}, []string{"8.8.8.8 10.1.2.2 6 80"}},
	} {
		t.Run(name, func(t *testing.T) {
			rules := compiled(t, c.specs...)
			for want, all := range map[bool][]string{true: c.pass, false: c.drop} {
				for _, text := range all {
					var src, dst string
					var p Packet
					if _, err := fmt.Sscan(text, &src, &dst, &p.Protocol, &p.Port); err != nil {
						t.Fatal(err)
					}
					p.Src, p.Dst = addr(src), addr(dst)
					if pass, by, _ := rules.Verdict(p); pass != want {
						t.Errorf("%s: passes is %t, by %v", text, pass, by)
					}
				}
			}
		})
	}
}

// What drops and what accepts has a name; both directions count.
func TestVerdictNames(t *testing.T) {
	rules := compiled(t, web+", policyTypes: [Egress], egress: [{to: [{podSelector: {}}]}]}", "{podSelector: {matchLabels: {app: db}}, ingress: [{ports: [{port: 80}]}]}")
	p := Packet{addr("10.1.1.2"), addr("10.1.2.2"), 6, 80}
	if pass, by, _ := rules.Verdict(p); !pass || !slices.Equal(by, []string{"shop/p", "shop/p"}) {
		t.Errorf("%t by %q", pass, by)
	}
	p.Port = 81
	if pass, by, d := rules.Verdict(p); pass || d != Ingress || !slices.Equal(by, []string{"shop/p"}) {
		t.Errorf("%t in direction %d, by %q", pass, d, by)
	}
	p.Dst = addr("9.9.9.9")
	if pass, _, d := rules.Verdict(p); pass || d != Egress {
		t.Errorf("%t in direction %d", pass, d)
	}
}

// TestNeighboursOfClosedPods: what pods on one bridge need of each other passes whatever policies say, as in the kernel, and nothing else.
func TestNeighboursOfClosedPods(t *testing.T) {
	a, b, group := netip.MustParseAddr("fd00::2"), netip.MustParseAddr("fd00::3"), netip.MustParseAddr("ff02::16")
	closed := Placed{At: map[netip.Addr]Place{a: {Pod: "shop/a", Chains: [2]string{Closed, Closed}}, b: {Pod: "shop/b", Chains: [2]string{Closed, Closed}}}}
	for kind := range uint16(256) {
		want := kind == 135 || kind == 136
		if pass, _, _ := closed.Verdict(Packet{Src: a, Dst: b, Protocol: 58, Port: kind << 8}); pass != want {
			t.Errorf("ICMPv6 %d to a pod passes: %v", kind, pass)
		}
		if pass, _, _ := closed.Verdict(Packet{Src: a, Dst: b, Protocol: 58, Port: kind<<8 | 1}); pass {
			t.Errorf("ICMPv6 %d with a code passes", kind)
		}
		want = want || 130 <= kind && kind <= 132 || kind == 143
		if pass, _, _ := closed.Verdict(Packet{Src: a, Dst: group, Protocol: 58, Port: kind << 8}); pass != want {
			t.Errorf("ICMPv6 %d to a group passes: %v", kind, pass)
		}
	}
}

// TestClosedUntilJudged: a pod that no source has named yet is closed in a namespace with policies, in the directions in which they
// isolate; a judged one that none selects is open.
func TestClosedUntilJudged(t *testing.T) {
	_, pods := town()
	rules := Compile([]Policy{parsed(t, web+"}")}, pods, func(Group) []Member { return nil })
	at := rules.Place(map[netip.Addr]string{addr("10.1.1.2"): "shop/web-0", addr("10.1.2.2"): "shop/db-0", addr("10.1.1.9"): "shop/new", addr("10.1.3.9"): "ops/new"})
	for to, want := range map[string]bool{"10.1.1.2": false, "10.1.2.2": true, "10.1.1.9": false, "10.1.3.9": true} {
		if pass, _, _ := at.Verdict(Packet{addr("8.8.8.8"), addr(to), 6, 80}); pass != want {
			t.Errorf("to %s: %t", to, pass)
		}
		if pass, _, _ := at.Verdict(Packet{addr(to), addr("8.8.8.8"), 6, 80}); !pass {
			t.Errorf("from %s: dropped, though no policy isolates egress", to)
		}
	}
}

// Pods with the same policies share a chain, and policies with the same peers a set; only what local pods need is there.
func TestShared(t *testing.T) {
	from := ", ingress: [{from: [{namespaceSelector: {}}]}]}"
	namespaces, pods := town()
	all := []Policy{parsed(t, web+from), parsed(t, "{podSelector: {matchLabels: {app: db}}"+from), parsed(t, "{podSelector: {matchLabels: {app: none}}, ingress: [{from: [{podSelector: {}}]}]}")}
	all[1].Name = "q"
	again := pods[0]
	again.Name, again.Addrs = "web-1", []netip.Addr{addr("10.1.1.3")}
	rules := Compile(all, []Pod{pods[0], again}, func(g Group) []Member { return g.Members(namespaces, pods) })
	if len(rules.Chains) != 1 || len(rules.Sets) != 1 || len(rules.Pods) != 2 {
		t.Errorf("%+v", rules)
	}
	if n := len(Groups(all)); n != 2 {
		t.Errorf("%d groups", n)
	}
}

func TestRefused(t *testing.T) {
	many := func(n int, s string) string { return strings.TrimSuffix(strings.Repeat(s+", ", n), ", ") }
	for field, spec := range map[string]string{
		"spec.podSelector":                          "{podSelector: {matchExpressions: [{key: a, operator: Like}]}}",
		"spec.podSelector: 65 requirements":         "{podSelector: {matchExpressions: [" + many(65, "{key: a, operator: Exists}") + "]}}",
		"spec.podSelector: 257 values of a":         "{podSelector: {matchExpressions: [{key: a, operator: In, values: [" + many(257, "b") + "]}]}}",
		"spec.policyTypes[0]":                       web + ", policyTypes: [Inward]}",
		"spec: 513 rules":                           web + ", ingress: [" + many(513, "{}") + "]}",
		"spec.ingress[0]: 1025 peers":               web + ", ingress: [{ports: [" + many(1025, "{port: 1}") + "]}]}",
		"spec.ingress[0].from[0]: needs":            web + ", ingress: [{from: [{}]}]}",
		"spec.ingress[0].from[0]: ipBlock stands":   web + ", ingress: [{from: [{podSelector: {}, ipBlock: {cidr: 10.0.0.0/8}}]}]}",
		"spec.egress[0].to[1].ipBlock.cidr":         web + ", egress: [{to: [{podSelector: {}}, {ipBlock: {cidr: 10.0.0.0}}]}]}",
		"spec.ingress[0].from[0].ipBlock.except[0]": web + ", ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/9]}}]}]}",
		"spec.ingress[0].ports[0].protocol":         web + ", ingress: [{ports: [{protocol: ICMP}]}]}",
		"spec.ingress[0].ports[0].endPort":          web + ", ingress: [{ports: [{port: http, endPort: 9}]}]}",
		"spec.ingress[0].ports[1]: ports 9 to 8":    web + ", ingress: [{ports: [{port: 1}, {port: 9, endPort: 8}]}]}",
		"spec.ingress[0].ports[0]: ports 0 to 0":    web + ", ingress: [{ports: [{port: 0}]}]}",
		"spec.ingress[0].ports[0].port":             web + ", ingress: [{ports: [{port: ''}]}]}",
	} {
		p, err := Parse(written(t, spec))
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "shop/p: "+field) {
			t.Errorf("%s: %v", field, err)
		}
		// What was selected is closed, and nothing is open that a valid policy would close.
		_, pods := town()
		rules := placed(Compile([]Policy{p}, pods, func(Group) []Member { return nil }), pods)
		if pass, _, _ := rules.Verdict(Packet{addr("8.8.8.8"), addr("10.1.1.2"), 6, 1}); pass {
			t.Errorf("%s: open", field)
		}
	}
	if _, err := Parse(NetworkPolicy{Spec: Spec{PodSelector: metav1.LabelSelector{}}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("without a name: %v", err)
	}
}

// A policy of more groups of pods than the bound lets nothing pass, and says so.
func TestGroupsOfAPolicy(t *testing.T) {
	var n NetworkPolicy
	n.Metadata, n.Spec.Ingress = Metadata{Namespace: "shop", Name: "many"}, []IngressRule{{}}
	for i := range 80 {
		s := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: fmt.Sprint("x", i), Operator: metav1.LabelSelectorOpDoesNotExist}}}
		n.Spec.Ingress[0].From = append(n.Spec.Ingress[0].From, Peer{NamespaceSelector: &metav1.LabelSelector{}, PodSelector: s})
		if p, err := Parse(n); (err != nil) != (i >= maxGroups) || err != nil && len(Groups([]Policy{p})) > 0 {
			t.Fatalf("%d groups: %v", i+1, err)
		}
	}
}

// Members are read back as they are written; anything else is refused.
func FuzzParseMember(f *testing.F) {
	for _, text := range []string{"10.244.1.5", "fd00::5/udp/53", "10.244.1.5/tcp/8080", "10.244.1.5/tcp/", "::ffff:10.0.0.1", "fe80::1%x"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := ParseMember(text)
		if again, failed := ParseMember(m.String()); err == nil && (failed != nil || again != m || m.Addr.Zone() != "") {
			t.Errorf("%q: %v, then %v, %v", text, m, again, failed)
		}
	})
}

// TestLacks: ports by name that nobody has are listed with policy and protocol: in ingress where no pod here has them that the policy selects, in
// egress where no peer has them, and there is one; the first of many.
func TestLacks(t *testing.T) {
	namespaces, pods := town()
	many := "podSelector: {}\ningress: [{ports: ["
	for i := range 1000 {
		many += fmt.Sprintf("{port: p%d}, ", i)
	}
	many += "]}]"
	for spec, want := range map[string]string{
		"podSelector: {}\ningress: [{ports: [{port: http}]}]":                                                                       "",
		"podSelector: {}\ningress: [{ports: [{port: http, protocol: UDP}, {port: sql}]}, {ports: [{port: http, protocol: UDP}]}]":   "shop/p 0 http (UDP)",
		"podSelector: {matchLabels: {app: web}}\ningress: [{ports: [{port: sql}]}]":                                                 "shop/p 0 sql (TCP)",
		"podSelector: {matchLabels: {app: web}}\negress: [{to: [{podSelector: {}}], ports: [{port: sql}]}]":                         "",
		"podSelector: {matchLabels: {app: web}}\negress: [{to: [{podSelector: {}}], ports: [{port: sqll}]}]":                        "shop/p 1 sqll (TCP)",
		"podSelector: {matchLabels: {app: web}}\negress: [{ports: [{port: sqll}, {port: sql}]}]":                                    "shop/p 1 sqll (TCP)",
		"podSelector: {matchLabels: {app: web}}\negress: [{to: [{podSelector: {matchLabels: {app: none}}}], ports: [{port: sql}]}]": "",
		"podSelector: {matchLabels: {app: web}}\negress: [{to: [{ipBlock: {cidr: 10.1.0.0/16}}], ports: [{port: sql}]}]":            "shop/p 1 sql (TCP)",
		"podSelector: {matchLabels: {app: none}}\ningress: [{ports: [{port: sqll}]}]":                                               "",
		many: "16",
	} {
		p := parsed(t, spec)
		r := Compile([]Policy{p}, pods, func(g Group) []Member { return g.Members(namespaces, pods) })
		said := func() string {
			var got []string
			for _, l := range r.Lacks {
				got = append(got, fmt.Sprint(l.Policy, " ", int(l.Direction), " ", l.Port))
			}
			if len(got) == mostLacks {
				return fmt.Sprint(len(got))
			}
			return strings.Join(got, ";")
		}
		if got := said(); got != want {
			t.Errorf("%s\n%s, want %s", spec, got, want)
		}
		unknown := map[string]bool{}
		for _, g := range Groups([]Policy{p}) {
			unknown[g.ID()] = true
		}
		if r.Without(unknown); strings.Contains(said(), " 1 ") && strings.Contains(spec, "podSelector: {}}]") {
			t.Errorf("%s\nsaid though it is not known: %s", spec, said())
		}
	}
}
