package policy

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func clusterWritten(t *testing.T, spec string) ClusterNetworkPolicy {
	t.Helper()
	n := ClusterNetworkPolicy{Metadata: Metadata{Name: "c"}}
	if err := yaml.UnmarshalStrict([]byte(spec), &n.Spec); err != nil {
		t.Fatal(err)
	}
	return n
}

const (
	all       = "subject: {namespaces: {}}"
	fromOps   = "from: [{namespaces: {matchLabels: {team: ops}}}]"
	webClosed = "{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}"
)

// TestTiers: the Admin tier comes first, in the order of priorities and rules; what it passes NetworkPolicies judge where one selects the
// pod, and the Baseline tier elsewhere; what none decides is open.
func TestTiers(t *testing.T) {
	namespaces, pods := town()
	namespaces["ops"]["team"] = "ops"
	ops, web, db := "10.1.3.2", "10.1.1.2", "10.1.2.2"
	for name, c := range map[string]struct {
		cluster  []string
		policies []string
		to       string
		want     bool
		by       string
	}{
		"denied":                          {cluster: []string{"{tier: Admin, priority: 5, " + all + ", ingress: [{action: Deny, " + fromOps + "}]}"}, to: web, by: "ClusterNetworkPolicy/c0"},
		"accepted over a NetworkPolicy":   {cluster: []string{"{tier: Admin, priority: 5, " + all + ", ingress: [{action: Accept, " + fromOps + "}]}"}, policies: []string{webClosed}, to: web, want: true, by: "ClusterNetworkPolicy/c0"},
		"passed to a NetworkPolicy":       {cluster: []string{"{tier: Admin, priority: 5, " + all + ", ingress: [{action: Pass, " + fromOps + "}, {action: Accept, " + fromOps + "}]}"}, policies: []string{webClosed}, to: web, by: "shop/p"},
		"passed to the Baseline":          {cluster: []string{"{tier: Admin, priority: 5, " + all + ", ingress: [{action: Pass, " + fromOps + "}]}", "{tier: Baseline, priority: 0, " + all + ", ingress: [{action: Deny, " + fromOps + "}]}"}, policies: []string{webClosed}, to: db, by: "ClusterNetworkPolicy/c1"},
		"a NetworkPolicy over Baseline":   {cluster: []string{"{tier: Baseline, priority: 0, " + all + ", ingress: [{action: Accept, " + fromOps + "}]}"}, policies: []string{webClosed}, to: web, by: "shop/p"},
		"the lower priority first":        {cluster: []string{"{tier: Admin, priority: 9, " + all + ", ingress: [{action: Deny, " + fromOps + "}]}", "{tier: Admin, priority: 8, " + all + ", ingress: [{action: Accept, " + fromOps + "}]}"}, to: web, want: true, by: "ClusterNetworkPolicy/c1"},
		"the first rule first":            {cluster: []string{"{tier: Admin, priority: 9, " + all + ", ingress: [{action: Accept, " + fromOps + ", protocols: [{tcp: {destinationPort: {number: 80}}}]}, {action: Deny, " + fromOps + "}]}"}, to: web, want: true, by: "ClusterNetworkPolicy/c0"},
		"no rule of the direction":        {cluster: []string{"{tier: Admin, priority: 9, " + all + ", egress: [{action: Deny, to: [{networks: [8.8.8.8/32]}]}]}"}, to: web, want: true},
		"what nothing decides":            {cluster: []string{"{tier: Baseline, priority: 9, " + all + ", ingress: [{action: Deny, from: [{namespaces: {matchLabels: {team: none}}}]}]}"}, to: web, want: true},
		"another subject":                 {cluster: []string{"{tier: Admin, priority: 9, subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}}, ingress: [{action: Deny, " + fromOps + "}]}"}, to: web, want: true},
		"a port by name, of any protocol": {cluster: []string{"{tier: Admin, priority: 9, " + all + ", ingress: [{action: Deny, " + fromOps + ", protocols: [{destinationNamedPort: http}]}]}"}, to: web, by: "ClusterNetworkPolicy/c0"},
	} {
		t.Run(name, func(t *testing.T) {
			var every []Policy
			for i, s := range c.cluster {
				n := clusterWritten(t, s)
				n.Metadata.Name = "c" + string(rune('0'+i))
				p, err := ParseCluster(n)
				if err != nil {
					t.Fatal(err)
				}
				every = append(every, p)
			}
			for _, s := range c.policies {
				every = append(every, parsed(t, s))
			}
			rules := placed(Compile(every, namespaces, pods, func(g Group) []Member { return g.Members(namespaces, pods) }), pods)
			port := uint16(80)
			for _, x := range pods[0].Ports {
				if x.Name == "http" && strings.Contains(name, "by name") {
					port = x.Number
				}
			}
			pass, by, _ := rules.Verdict(Packet{addr(ops), addr(c.to), 6, port})
			if pass != c.want || strings.Join(by, ",") != c.by {
				t.Errorf("passes %t, by %v; %+v", pass, by, rules)
			}
		})
	}
}

// TestClusterInvalid: what cannot be read names its field and widens nothing: an Accept rule matches nothing, another denies all; a subject is
// as far as it can be read.
func TestClusterInvalid(t *testing.T) {
	namespaces, pods := town()
	for field, c := range map[string]struct {
		spec string
		want bool // passes from 8.8.8.8 and from ops
	}{
		"spec.tier":           {"{tier: Other, priority: 1, " + all + ", ingress: [{action: Deny, from: [{namespaces: {}}]}]}", false},
		"spec.priority":       {"{tier: Admin, priority: 1001, " + all + ", ingress: [{action: Deny, from: [{namespaces: {}}]}]}", false},
		"spec.subject: needs": {"{tier: Admin, priority: 1, subject: {}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}", false},
		"spec.subject.pods.podSelector": {"{tier: Admin, priority: 1, subject: {pods: {namespaceSelector: {}, podSelector: {matchExpressions: [{key: a, operator: in}]}}}, " +
			"ingress: [{action: Pass, from: [{namespaces: {}}]}, {action: Accept, from: [{namespaces: {}}]}]}", false},
		"spec.tier: ":                           {"{tier: Other, priority: 1, " + all + ", ingress: [{action: Accept, from: [{namespaces: {}}]}, {action: Pass, from: [{namespaces: {}}]}]}", false},
		"spec.priority: ":                       {"{tier: Admin, priority: -1, " + all + ", ingress: [{action: Accept, from: [{namespaces: {}}]}, {action: Pass, from: [{namespaces: {}}]}]}", false},
		"spec.ingress[0].action":                {"{tier: Admin, priority: 1, " + all + ", ingress: [{action: Allow, from: [{namespaces: {}}]}]}", false},
		"spec.ingress[0]: needs 1 to":           {"{tier: Admin, priority: 1, " + all + ", ingress: [{action: Deny}]}", false},
		"spec.ingress[0].from[0]: needs one":    {"{tier: Admin, priority: 1, " + all + ", ingress: [{action: Pass, from: [{}]}]}", false},
		"spec.ingress[0].from[0]: networks":     {"{tier: Admin, priority: 1, " + all + ", ingress: [{action: Deny, from: [{networks: [10.0.0.0/8]}]}]}", false},
		"spec.ingress[0].from[0]: nodes":        {"{tier: Admin, priority: 1, " + all + ", ingress: [{action: Deny, from: [{nodes: {}}]}]}", false},
		"spec.ingress[0].protocols[0]: needs":   {"{tier: Admin, priority: 1, " + all + ", ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{}]}]}", false},
		"spec.ingress[0].protocols[0]: ports 0": {"{tier: Admin, priority: 1, " + all + ", ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {}}}]}]}", false},
		"spec.ingress[0].protocols[0]: ports 9": {"{tier: Admin, priority: 1, " + all + ", ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {range: {start: 9, end: 8}}}}]}]}", false},
		"spec.ingress[1].from[0].namespaces: ":  {"{tier: Admin, priority: 1, " + all + ", ingress: [{action: Deny, from: [{namespaces: {}}]}, {action: Accept, from: [{namespaces: {matchLabels: {'a b': c}}}]}]}", false},
		"spec: 300 different groups":            {"{tier: Admin, priority: 1, " + all + ", ingress: [{action: Deny, from: [" + many(300) + "]}]}", false},
	} {
		p, err := ParseCluster(clusterWritten(t, c.spec))
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "ClusterNetworkPolicy/c: "+field) {
			t.Errorf("%s: %v", field, err)
		}
		rules := placed(Compile([]Policy{p}, namespaces, pods, func(g Group) []Member { return g.Members(namespaces, pods) }), pods)
		if pass, _, _ := rules.Verdict(Packet{addr("10.1.3.2"), addr("10.1.1.2"), 6, 1}); pass != c.want {
			t.Errorf("%s: passes %t", field, pass)
		}
	}
}

func many(n int) string {
	var out []string
	for i := range n {
		out = append(out, "{namespaces: {matchLabels: {n: 'v"+strings.Repeat("x", i%60)+string(rune('a'+i/60))+"'}}}")
	}
	return strings.Join(out, ", ")
}

// TestClusterCloses: a new pod is closed in the directions of ClusterNetworkPolicies, unless its namespace's labels are known and none selects
// it; a rule that lacks a group denies all, unless it accepts.
func TestClusterCloses(t *testing.T) {
	namespaces, pods := town()
	of := func(spec string) Policy {
		p, err := ParseCluster(clusterWritten(t, spec))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	rule := ", ingress: [{action: Deny, from: [{namespaces: {matchLabels: {no: 'one'}}}]}]}"
	some := of("{tier: Admin, priority: 1, subject: {namespaces: {matchLabels: {tier: front}}}" + rule)
	namespaces["shop"]["tier"], namespaces["ops"]["tier"] = "front", "back"
	rules := Compile([]Policy{some, parsed(t, webClosed)}, namespaces, nil, nil)
	for namespace, want := range map[string][2]string{"shop": {Closed, ""}, "ops": {}, "to-come": {Closed, ""}} {
		if place := rules.Place(map[netip.Addr]string{addr("10.9.9.9"): namespace + "/pod"}); place.At[addr("10.9.9.9")].Chains != want {
			t.Errorf("a new pod of namespace %s: %v; %+v", namespace, place.At, rules)
		}
	}
	strange := pods[0]
	strange.Namespace = "strange"
	rules = Compile([]Policy{some}, namespaces, []Pod{strange}, nil)
	if place := rules.Place(map[netip.Addr]string{addr("10.9.9.9"): "strange/" + strange.Name}); place.At[addr("10.9.9.9")].Chains != [2]string{Closed, ""} {
		t.Errorf("a pod of an unknown namespace: %+v", rules)
	}
	for action, want := range map[string]bool{"Deny": false, "Pass": false, "Accept": true} {
		p := of(strings.Replace("{tier: Admin, priority: 1, "+all+rule, "Deny", action, 1))
		rules := Compile([]Policy{p}, namespaces, pods, func(Group) []Member { return nil })
		rules.Without(map[string]bool{Groups([]Policy{p})[0].ID(): true})
		if pass, by, _ := placed(rules, pods).Verdict(Packet{addr("10.1.3.2"), addr("10.1.1.2"), 6, 1}); pass != want {
			t.Errorf("%s without its group passes: %t, %v", action, pass, by)
		}
	}
}

// TestClusterUndecodable: of an object with fields of other types what can be decoded selects, and denies; nothing of it accepts what a tier or
// priority that cannot be decoded might not.
func TestClusterUndecodable(t *testing.T) {
	namespaces, pods := town()
	const accept = `{"action":"Accept","from":[{"namespaces":{}}]}`
	for text, want := range map[string][2]bool{ // passes to web, to db
		`{"spec":{"tier":"Admin","priority":1,"subject":{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"web"}}}},"ingress":[{"action":7}]}}`:                                  {false, true},
		`{"spec":{"tier":"Admin","priority":1,"subject":{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"web"}}}},"ingress":{}}}`:                                              {false, true},
		`{"spec":{"tier":"Admin","priority":1,"subject":{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"web"}}}},"ingress":[` + accept + `,{"action":"Deny","from":"all"}]}}`: {true, true},
		`{"spec":{"tier":"Admin","priority":"1","subject":{"namespaces":{}},"ingress":[` + accept + `,{"action":"Deny","from":[{"namespaces":{}}]}]}}`:                                             {},
		`{"spec":{"tier":["Baseline"],"priority":1,"subject":{"namespaces":{}},"ingress":[` + accept + `,{"action":"Pass","from":[{"namespaces":{}}]}]}}`:                                          {},
		`{"spec":{"tier":"Admin","priority":1,"subject":"all","ingress":[` + accept + `,{"action":"Deny","from":[{"namespaces":{}}]}]}}`:                                                           {},
		`{"spec":[]}`: {},
	} {
		n, err := ReadCluster([]byte(text))
		p, wrong := ParseCluster(n)
		if err == nil || wrong == nil && !strings.Contains(text, `"from":"all"`) {
			t.Errorf("%s: %v, %v", text, err, wrong)
		}
		rules := placed(Compile([]Policy{p}, namespaces, pods, func(g Group) []Member { return g.Members(namespaces, pods) }), pods)
		for i, to := range []string{"10.1.1.2", "10.1.2.2"} {
			if pass, _, _ := rules.Verdict(Packet{addr("10.1.3.2"), addr(to), 6, 1}); pass != want[i] {
				t.Errorf("%s: to %s passes %t", text, to, pass)
			}
		}
	}
}

// TestMappedNetwork: IPv4 addresses written inside IPv6 are those of packets.
func TestMappedNetwork(t *testing.T) {
	namespaces, pods := town()
	p, err := ParseCluster(clusterWritten(t, "{tier: Admin, priority: 1, "+all+", egress: [{action: Deny, to: [{networks: ['::ffff:8.8.0.0/112']}]}]}"))
	if err != nil {
		t.Fatal(err)
	}
	rules := placed(Compile([]Policy{p}, namespaces, pods, nil), pods)
	if pass, _, _ := rules.Verdict(Packet{addr("10.1.1.2"), addr("8.8.8.8"), 6, 1}); pass {
		t.Error("denied, and passes")
	}
}
