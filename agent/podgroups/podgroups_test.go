package podgroups

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"edgemesh/agent/policy"
	"edgemesh/internal/membership/kube/api"
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

// What one object changes is what compiling everything again gives.
func TestPeers(t *testing.T) {
	p := NewPeers(onNode("a"))
	p.SetPolicy("shop/p", from(t, "shop", "p", "web"))
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
	p.SetPod("shop/one", anyPod(t, "shop", "one", "a", "10.244.1.5", "web", old))
	members() // its namespace is unknown
	p.SetNamespace("shop", read(t, new(Namespace), `{"metadata":{"name":"shop"}}`))
	members("10.244.1.5")
	clear(p.Changed)
	p.SetPod("shop/one", anyPod(t, "shop", "one", "a", "10.244.1.5", "web", old))
	p.SetPod("shop/db", anyPod(t, "shop", "db", "a", "10.244.1.6", "db", old))
	if len(p.Changed) > 0 {
		t.Errorf("changed: %v", p.Changed)
	}
	// The address is given again, and the former pod is still there: the younger one has it.
	p.SetPod("shop/two", anyPod(t, "shop", "two", "a", "10.244.1.5", "db", young))
	members()
	p.SetPod("shop/two", nil)
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
	p.SetPolicy("shop/p", from(t, "shop", "p", "db"))
	if p.Needed(id) || !p.Known(id) {
		t.Error("a group that no policy needs is needed, or gone")
	}
	p.Drop(id)
	if members(); p.Known(id) {
		t.Error("a dropped group is known")
	}
	p.SetNamespace("shop", nil)
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
	chunks := Chunks("0123456789abcdef", all, 0)
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
			p.SetNamespace(name, &Namespace{Meta: api.Meta{Name: name}})
		}
		for i := range 1000 {
			namespace, name := fmt.Sprint("ns-", i%100), fmt.Sprint("p-", i/100)
			p.SetPolicy(namespace+"/"+name, from(b, namespace, name, fmt.Sprint("app-", i/100)))
		}
		for _, pod := range pods {
			p.SetPod(Key(pod), pod)
		}
		began, one := time.Now(), *pods[0]
		one.As.Labels = map[string]string{"app": "app-5"}
		p.SetPod(Key(&one), &one)
		b.ReportMetric(float64(time.Since(began).Microseconds()), "µs/pod")
		b.ReportMetric(float64(len(p.Groups())), "groups")
		b.ReportMetric(float64(heap()-before)/1e6, "MB")
		runtime.KeepAlive(p)
	}
}
