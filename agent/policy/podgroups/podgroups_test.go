package podgroups

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	policy "edgemesh/agent/policy/compile"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/mesh"
)

func read[T api.Object](t testing.TB, out T, text string, args ...any) T {
	t.Helper()
	if err := json.Unmarshal(fmt.Appendf(nil, text, args...), out); err != nil {
		t.Fatal(err)
	}
	return out
}

// anyPod is a pod as the API has it, with what no policy needs.
func anyPod(t testing.TB, namespace, name, node, ip, app, created string) *Pod {
	if created == "" {
		created = "2026-11-01T00:00:00Z"
	}
	return read(t, new(Pod), `{"metadata":{"namespace":%q,"name":%q,"uid":"uid-%[1]s-%[2]s","creationTimestamp":%[6]q,"labels":{"app":%[5]q,"tier":"x"},"annotations":{"a":"b"}},
		"spec":{"nodeName":%[3]q,"containers":[{"image":"i","env":[{"name":"x","value":"y"}],"ports":[{"name":"http","containerPort":8080}]}]},
		"status":{"phase":"Running","podIPs":[{"ip":%[4]q}]}}`, namespace, name, node, ip, app, created)
}

func from(t testing.TB, namespace, name, app string) *Policy {
	return read(t, new(Policy), `{"metadata":{"namespace":%q,"name":%q,"uid":"p"},"spec":{"podSelector":{},"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":%q}}}]}]}}`, namespace, name, app)
}

func onNode(node string) func(netip.Addr) string { return func(netip.Addr) string { return node } }

// A static pod is in no group unless the PodNetwork says so: its labels and namespace are its node's word.
func TestMirrorPods(t *testing.T) {
	block := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	state := func(allow mesh.MirrorPods) mesh.State {
		return mesh.State{Policies: mesh.Policies{MirrorPods: allow}, Nodes: []mesh.Node{{Name: "a", PodCIDRs: block}}}
	}
	p := NewPeers(nil)
	p.SetState(state(""))
	p.setPolicy("shop/p", from(t, "shop", "p", "web"))
	p.setNamespace("shop", read(t, new(Namespace), `{"metadata":{"name":"shop"}}`))
	mirror := anyPod(t, "shop", "static", "a", "10.244.1.5", "web", "2026-11-01T00:00:00Z")
	mirror.Mirror = read(t, new(Pod), `{"metadata":{"namespace":"shop","name":"static","annotations":{"kubernetes.io/config.mirror":"0"}}}`).Mirror
	p.setPod("shop/static", mirror)
	for _, allow := range []mesh.MirrorPods{mesh.MirrorDeny, mesh.MirrorAllow, mesh.MirrorDeny, ""} {
		p.SetState(state(allow))
		if got, want := len(p.Members(p.Groups()[0])), map[mesh.MirrorPods]int{mesh.MirrorAllow: 1}[allow]; got != want {
			t.Errorf("mirrorPods %q: %d members, want %d", allow, got, want)
		}
	}
}

// What one object changes is what compiling everything again gives.
func TestPeers(t *testing.T) {
	p := NewPeers(onNode("a"))
	p.setPolicy("shop/p", from(t, "shop", "p", "web"))
	id := p.Groups()[0]
	members := func(want ...string) {
		t.Helper()
		var got []string
		for _, m := range p.Members(id) {
			got = append(got, m.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("members %v, want %v", got, want)
		}
	}
	const old, young = "2026-11-01T00:00:00Z", "2026-11-02T00:00:00Z"
	p.setPod("shop/one", anyPod(t, "shop", "one", "a", "10.244.1.5", "web", old))
	members() // its namespace is unknown
	p.setNamespace("shop", read(t, new(Namespace), `{"metadata":{"name":"shop"}}`))
	members("10.244.1.5")
	clear(p.Changed)
	p.setPod("shop/one", anyPod(t, "shop", "one", "a", "10.244.1.5", "web", old))
	p.setPod("shop/db", anyPod(t, "shop", "db", "a", "10.244.1.6", "db", old))
	if len(p.Changed) > 0 {
		t.Errorf("changed: %v", p.Changed)
	}
	// The address is given again, and the former pod is still there: the younger one has it.
	p.setPod("shop/two", anyPod(t, "shop", "two", "a", "10.244.1.5", "db", young))
	members()
	p.setPod("shop/two", nil)
	members("10.244.1.5")
	p.Owner = onNode("b")
	p.Reconsider()
	members()
	if f := p.Forged()["shop/one"]; f.Owner != "b" || f.Node != "a" {
		t.Errorf("forged: %+v", f)
	}
	p.Owner = onNode("a")
	p.Reconsider()
	members("10.244.1.5")
	p.setPolicy("shop/p", from(t, "shop", "p", "db"))
	if p.Needed(id) || !p.Known(id) {
		t.Error("a group that no policy needs is needed, or gone")
	}
	p.Drop(id)
	if members(); p.Known(id) {
		t.Error("a dropped group is known")
	}
	p.setNamespace("shop", nil)
	for _, id := range p.Groups() {
		if len(p.Members(id)) > 0 {
			t.Error("pods of a namespace that is gone are members")
		}
	}
}

// Chunks are read back as they were made.
func TestChunksAreReadBack(t *testing.T) {
	var all []policy.Member
	for i := range 3000 {
		a := netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)})
		all = append(all, policy.Member{Addr: a}, policy.Member{Addr: a, Protocol: 17, Port: uint16(i + 1)})
	}
	all = append(all, policy.Member{Addr: netip.MustParseAddr("fd00::5")})
	all = policy.Sorted(all)
	chunks := Chunks("0123456789abcdef", "", all, 0)
	bytes := 0
	for _, c := range chunks {
		b, err := json.Marshal(c)
		if bytes += len(b); err != nil || len(c.Spec.Members) > api.MaxChunk {
			t.Errorf("chunk %d has %d members, %v", c.Spec.Chunk, len(c.Spec.Members), err)
		}
	}
	got, err := Members(chunks)
	if err != nil || !slices.Equal(got, all) {
		t.Errorf("%d members of %d, %v", len(got), len(all), err)
	}
	chunks[0].Spec.Members = append(chunks[0].Spec.Members, "10.244.1.300")
	if got, err := Members(chunks); err == nil || len(got) != len(all) {
		t.Errorf("a member that is none: %d, %v", len(got), err)
	}
	t.Logf("%d members, %d chunks, %d bytes", len(all), len(chunks), bytes)
}

// Members that meet in one chunk, by whoever chooses their addresses or names ports, make no more chunks than others.
func TestChunksAreBounded(t *testing.T) {
	one := netip.MustParseAddr("10.244.1.5")
	var ports, chosen, many []policy.Member
	for i := range 1001 {
		ports = append(ports, policy.Member{Addr: one, Protocol: 6, Port: uint16(i + 1)})
	}
	for a := netip.MustParseAddr("fd00::1"); len(chosen) < 3000; a = a.Next() {
		if m := (policy.Member{Addr: a}); place(m.String(), 4) == 0 {
			chosen = append(chosen, m)
		}
	}
	for i := range 50_000 {
		many = append(many, policy.Member{Addr: netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)})})
	}
	for name, all := range map[string][]policy.Member{"ports of one pod": ports, "chosen addresses": chosen, "many": many} {
		before := 0
		for range 2 {
			chunks := Chunks("0123456789abcdef", "", all, before)
			if got, err := Members(chunks); err != nil || len(got) != len(all) || len(chunks)*sparse > len(all) {
				t.Errorf("%s: %d of %d members in %d chunks, %v", name, len(got), len(all), len(chunks), err)
			}
			for _, c := range chunks {
				if len(c.Spec.Members) > api.MaxChunk {
					t.Errorf("%s: chunk %d has %d members", name, c.Spec.Chunk, len(c.Spec.Members))
				}
			}
			before = len(chunks)
		}
	}
}

// A policy that cannot be decoded closes its namespace, and is named.
func TestUndecodablePolicy(t *testing.T) {
	p := read(t, new(Policy), `{"metadata":{"namespace":"shop","name":"p"},"spec":{"podSelector":{"matchLabels":{"a":1}}}}`)
	if got, err := p.Parse(); err == nil || got.Isolates() != [2]bool{true, true} {
		t.Errorf("isolates %v, %v", got.Isolates(), err)
	}
}

// Of a pod that names more ports than policies know, the first ones count.
func TestNamedPortsOfAPod(t *testing.T) {
	ports := ""
	for i := range 1001 {
		ports += fmt.Sprintf(`,{"name":"http","containerPort":%d}`, i+1)
	}
	p := read(t, new(Pod), `{"metadata":{"namespace":"a","name":"b"},"spec":{"containers":[{"ports":[%s]}]}}`, ports[1:])
	if len(p.As.Ports) != maxNamedPorts || !p.Cut {
		t.Errorf("%d ports, cut: %v", len(p.As.Ports), p.Cut)
	}
}

// What the policies of one namespace need of groups and members is bounded; what exceeds has no members, is named, and counts once there
// is room.
func TestBoundsOfANamespace(t *testing.T) {
	p := NewPeers(onNode("a"))
	p.bounds = bounds{groups: 6, members: 100, spaceGroups: 4, spaceMembers: 12}
	for _, name := range []string{"shop", "other"} {
		p.setNamespace(name, read(t, new(Namespace), `{"metadata":{"name":%q}}`, name))
	}
	for i := range 5 {
		p.setPod(fmt.Sprint("shop/w", i), anyPod(t, "shop", fmt.Sprint("w", i), "a", fmt.Sprint("10.244.1.", i+1), "web", ""))
	}
	without := func(i int) *Policy {
		return read(t, new(Policy), `{"metadata":{"namespace":"shop","name":"p%d","uid":"p"},"spec":{"podSelector":{},"ingress":[{"from":[{"podSelector":{"matchExpressions":[{"key":"x%[1]d","operator":"DoesNotExist"}]}}]}]}}`, i)
	}
	for i := range 3 {
		p.setPolicy(fmt.Sprint("shop/p", i), without(i))
	}
	// 15 members in three groups: the third has none.
	over := p.Over()
	if len(over) != 1 || len(p.Groups()) != 2 || over["shop/p2"] == "" {
		t.Errorf("%d groups; over: %v", len(p.Groups()), over)
	}
	p.setPolicy("other/p", from(t, "other", "p", "web"))
	if len(p.Over()) != 1 || len(p.Groups()) != 3 {
		t.Errorf("another namespace is closed: %d groups, %v", len(p.Groups()), p.Over())
	}
	p.setPolicy("shop/p0", nil)
	if len(p.Over()) > 0 || len(p.Groups()) != 3 {
		t.Errorf("with room again: %d groups, %v", len(p.Groups()), p.Over())
	}
	// A pod more is too many again: 12 of two groups are at the bound, 14 above.
	p.setPod("shop/w6", anyPod(t, "shop", "w6", "a", "10.244.1.9", "web", ""))
	p.setPod("shop/w7", anyPod(t, "shop", "w7", "a", "10.244.1.10", "web", ""))
	if len(p.Over()) != 1 {
		t.Errorf("grown: over %v", p.Over())
	}
	for i := 3; i < 9; i++ {
		p.setPolicy(fmt.Sprint("shop/q", i), from(t, "shop", fmt.Sprint("q", i), fmt.Sprint("none-", i)))
	}
	if len(p.Groups()) > 5 {
		t.Errorf("%d groups of at most four of a namespace and one of another", len(p.Groups()))
	}
}

// What 10,000 pods and 1,000 policies take of memory and time.
func BenchmarkPeers(b *testing.B) {
	var pods []*Pod
	for i := range 10_000 {
		pods = append(pods, anyPod(b, fmt.Sprint("ns-", i%100), fmt.Sprint("pod-", i), "a", netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}).String(), fmt.Sprint("app-", i/100%10), ""))
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for b.Loop() {
		p := NewPeers(onNode("a"))
		for i := range 100 {
			name := fmt.Sprint("ns-", i)
			p.setNamespace(name, &Namespace{Meta: api.Meta{Name: name}})
		}
		for i := range 1000 {
			namespace, name := fmt.Sprint("ns-", i%100), fmt.Sprint("p-", i/100)
			p.setPolicy(namespace+"/"+name, from(b, namespace, name, fmt.Sprint("app-", i/100)))
		}
		for _, pod := range pods {
			p.setPod(Key(pod), pod)
		}
		began, one := time.Now(), *pods[0]
		one.As.Labels = map[string]string{"app": "app-5"}
		p.setPod(Key(&one), &one)
		b.ReportMetric(float64(time.Since(began).Microseconds()), "µs/pod")
		b.ReportMetric(float64(len(p.Groups())), "groups")
		b.ReportMetric(float64(heap()-before)/1e6, "MB")
		runtime.KeepAlive(p)
	}
}
