package mesh

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// world makes memberships that follow each other.
type world struct {
	r     *rand.Rand
	state State
}

// step changes some nodes, their order, or a setting. "self" stays.
func (w *world) step() State {
	s := w.state
	s.Nodes = slices.Clone(s.Nodes)
	for range w.r.IntN(4) {
		i := w.r.IntN(len(s.Nodes) + 1)
		switch k := w.r.IntN(6); {
		case k < 2 || i == len(s.Nodes):
			s.Nodes = slices.Insert(s.Nodes, i, w.node(fmt.Sprint("n", w.r.IntN(30))))
		case k == 2 && s.Nodes[i].Name != "self":
			s.Nodes = slices.Delete(s.Nodes, i, i+1)
		case k == 3:
			s.Nodes[i] = w.node(s.Nodes[i].Name)
		case k == 4:
			s.Nodes[i].Site = fmt.Sprint("site", w.r.IntN(3))
		case k == 5 && s.Nodes[i].Name == "self":
			s.Nodes[i].NodeIPs, s.Nodes[i].Unreported = []netip.Addr{w.addr(), w.addr()}, w.r.IntN(2) == 0
		}
	}
	switch w.r.IntN(12) {
	case 0:
		w.r.Shuffle(len(s.Nodes), func(i, j int) { s.Nodes[i], s.Nodes[j] = s.Nodes[j], s.Nodes[i] })
	case 1:
		slices.SortFunc(s.Nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	case 2:
		s.Banned = []string{fmt.Sprint("n", w.r.IntN(30)), fmt.Sprint("id", w.r.IntN(1000))}
	case 3:
		s.Banned = nil
	case 4:
		s.HostAccess = []HostAccess{HostAll, HostNodes}[w.r.IntN(2)]
	case 5:
		s.Relays = []Relay{{PeerID: PeerID(fmt.Sprint("R", w.r.IntN(3)))}}
	}
	seen := map[string]bool{}
	s.Nodes = slices.DeleteFunc(s.Nodes, func(n Node) bool {
		dup := seen[n.Name]
		seen[n.Name] = true
		return dup
	})
	w.state = s
	return s
}

func (w *world) addr() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(w.r.IntN(40)), 9}) }

func (w *world) node(name string) Node {
	n := Node{Name: name, PeerID: PeerID(fmt.Sprint("id", w.r.IntN(1000))), PodCIDRs: []netip.Prefix{netip.PrefixFrom(w.addr(), 24+w.r.IntN(3)).Masked()}}
	if w.r.IntN(3) == 0 {
		n.PodCIDRs = append(n.PodCIDRs, cidrs("fd00::/64")...)
	}
	return n
}

// Every field of a node counts: a change in one that is not compared would never be in force.
func TestEqualComparesAll(t *testing.T) {
	zero := Node{}
	for i := range reflect.TypeFor[Node]().NumField() {
		other := Node{}
		switch f := reflect.ValueOf(&other).Elem().Field(i); f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
		case reflect.Map:
			f.Set(reflect.ValueOf(map[string]string{"a": "b"}))
		default:
			t.Fatalf("a field of kind %v: give it a value here", f.Kind())
		}
		if zero.equal(&other) || other.equal(&zero) {
			t.Errorf("%s is not compared", reflect.TypeFor[Node]().Field(i).Name)
		}
	}
}

// A Node that loses its addresses keeps them in the plan, which says that they are not reported now; then it has them again.
func TestUnreportedIsInForce(t *testing.T) {
	reported := []netip.Addr{netip.MustParseAddr("10.0.1.1")}
	s := State{PodCIDRs: cidrs("10.0.0.0/8"), Nodes: []Node{{Name: "self", PeerID: "me", PodCIDRs: cidrs("10.0.1.0/24")}, {Name: "other", PeerID: "o", PodCIDRs: cidrs("10.0.2.0/24")}}}
	p := Plan{}
	for _, now := range [][]netip.Addr{reported, nil, nil, reported} {
		next := s
		next.Nodes = slices.Clone(s.Nodes)
		next.Nodes[0].Report(now)
		Share(s.Nodes, next.Nodes)
		q, err := p.Next(next, "self")
		if err != nil {
			t.Fatal(err)
		}
		if q.Self.Unreported != (now == nil) || !slices.Equal(q.Self.NodeIPs, reported) || p.Equal(q) != (p.Self.Unreported == q.Self.Unreported && p.Self.Name != "") {
			t.Errorf("%v reported: %+v", now, q.Self)
		}
		s, p = next, q
	}
}

// TestNextIsNewPlan: a plan made from the one before says the same as one made from nothing, and what it says of the change
// leads from the one to the other.
func TestNextIsNewPlan(t *testing.T) {
	for seed := range uint64(12) {
		w := &world{r: rand.New(rand.NewPCG(seed, 0)), state: State{PodCIDRs: cidrs("10.0.0.0/8"), Encryption: EncryptionAuto, Nodes: []Node{{Name: "self", PeerID: "me", PodCIDRs: cidrs("10.9.9.0/24")}}}}
		var all []Plan
		p := Plan{}
		for range 80 {
			s := w.step()
			want, err := NewPlan(s, "self")
			next, other := p.Next(s, "self")
			if (err == nil) != (other == nil) {
				t.Fatalf("seed %d: %v, from nothing %v", seed, other, err)
			}
			if err != nil { // banned; the plan in force stays
				continue
			}
			if !next.Equal(want) || !want.Equal(next) || next.lengths != want.lengths {
				t.Fatalf("seed %d:\ngot  %+v\nwant %+v", seed, next, want)
			}
			all = append(all, next)
			copied := slices.Clone(next.Nodes)
			Share(p.Nodes, copied)
			if !Diff(next.Nodes, copied).Empty() || !Diff(copied, next.Nodes).Empty() {
				t.Fatal("nodes that share memory are others")
			}
			for _, q := range []Plan{p, all[w.r.IntN(len(all))], want, {}} {
				leads(t, q, next)
			}
			if changed := !next.Since(p).Empty(); changed && next.Equal(p) {
				t.Fatal("plans with other members are equal")
			}
			p = next
		}
	}
}

// leads fails unless to.Since(from) leads from one to the other, and has nothing that stays as it is.
func leads(t *testing.T, from, to Plan) {
	t.Helper()
	c := to.Since(from)
	got := map[string]Node{}
	for _, n := range from.Nodes {
		got[n.Name] = n
	}
	was := maps.Clone(got)
	for _, n := range c.Gone {
		if x, ok := got[n.Name]; !ok || !x.equal(&n) {
			t.Fatalf("%s goes, and was not there as %+v", n.Name, n)
		}
		delete(got, n.Name)
	}
	for _, n := range c.Come {
		if _, ok := got[n.Name]; ok {
			t.Fatalf("%s comes, and is there", n.Name)
		}
		if x, ok := was[n.Name]; ok && x.equal(&n) {
			t.Fatalf("%s goes and comes as it was", n.Name)
		}
		got[n.Name] = n
	}
	want := map[string]Node{}
	for _, n := range to.Nodes {
		want[n.Name] = n
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v leads to\n%v, want\n%v", c, got, want)
	}
}

// TestDiffOfMany: a change among many that are the same memory is found, wherever it is.
func TestDiffOfMany(t *testing.T) {
	var all []Node
	for i := range 300 {
		all = append(all, Node{Name: fmt.Sprintf("n%03d", i), PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i / 256), byte(i), 0}), 24)}})
	}
	for i := range all {
		changed := slices.Clone(all)
		changed[i].Site = "there"
		fewer := slices.Delete(slices.Clone(all), i, i+1)
		if c := Diff(all, changed); len(c.Gone) != 1 || len(c.Come) != 1 || c.Come[0].Site != "there" || c.Gone[0].Name != all[i].Name {
			t.Fatalf("node %d changed: %+v", i, c)
		}
		if c := Diff(all, fewer); len(c.Gone) != 1 || len(c.Come) != 0 || c.Gone[0].Name != all[i].Name {
			t.Fatalf("node %d is gone: %+v", i, c)
		}
		if c := Diff(fewer, all); len(c.Gone) != 0 || len(c.Come) != 1 || c.Come[0].Name != all[i].Name {
			t.Fatalf("node %d has come: %+v", i, c)
		}
	}
}
