package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/config"
	"edgemesh/internal/keytest"
	"edgemesh/internal/membership/mesh"
	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p/who/members"
)

// parts is what p2p and the tunnel have after some news.
type parts struct {
	view   *members.View
	routes map[netip.Prefix]tunnel.Route
}

// take is distribute, with a table of routes that is as simple as what tunnel.Change promises.
func (x *parts) take(n news) {
	x.view = x.view.With(n.members)
	if n.all {
		x.routes = map[netip.Prefix]tunnel.Route{}
	} else {
		maps.DeleteFunc(x.routes, func(_ netip.Prefix, r tunnel.Route) bool { return !r.Self && slices.Contains(n.routes.Gone, r.Peer) })
	}
	for _, r := range n.routes.Come {
		x.routes[r.Prefix] = r
	}
}

// TestNewsAddUp: what p2p and the tunnel get step by step is what they would get now. Blocks, keys and names go
// from node to node, and this node changes, too.
func TestNewsAddUp(t *testing.T) {
	const nodes, names = 12, 16
	ids := make([]peer.ID, 20)
	for i := range ids {
		_, ids[i] = keytest.New(t)
	}
	r := rand.New(rand.NewPCG(1, 0))
	self := ids[0]
	member := func(name string, id peer.ID, block int) mesh.Node {
		return mesh.Node{Name: name, PeerID: mesh.PeerID(id.String()),
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(block), 0}), 24)}}
	}
	s := mesh.State{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Encryption: mesh.EncryptionAlways,
		Access: mesh.Access{HostAccess: mesh.HostAll}, Nodes: []mesh.Node{member("self", self, 0)}}
	cfg := config.Config{NodeName: "self"}
	var was plan
	x := parts{view: members.NewView(self, members.Membership{}), routes: map[netip.Prefix]tunnel.Route{}}
	own, swapped := 0, 0
	for step := range 400 {
		s.Nodes = slices.Clone(s.Nodes)
		for range 1 + r.IntN(3) {
			i, k := r.IntN(len(s.Nodes)), r.IntN(len(s.Nodes))
			a, b := &s.Nodes[i], &s.Nodes[k]
			switch r.IntN(6) {
			case 0: // blocks
				a.PodCIDRs, b.PodCIDRs = b.PodCIDRs, a.PodCIDRs
			case 1: // keys
				if a.Name != "self" && b.Name != "self" {
					a.PeerID, b.PeerID = b.PeerID, a.PeerID
					swapped++
				}
			case 2: // names
				if a.Name != "self" && b.Name != "self" {
					a.Name, b.Name = b.Name, a.Name
				}
			case 3: // something that routes do not depend on
				a.Site = fmt.Sprint("site", r.IntN(3))
			case 4:
				if a.Name != "self" {
					s.Nodes = slices.Delete(s.Nodes, i, i+1)
				}
			default:
				n := member(fmt.Sprint("n", r.IntN(names)), ids[1+r.IntN(len(ids)-1)], 1+r.IntN(40))
				taken := slices.ContainsFunc(s.Nodes, func(o mesh.Node) bool {
					return o.Name == n.Name || o.PeerID == n.PeerID || o.PodCIDRs[0] == n.PodCIDRs[0]
				})
				if !taken && len(s.Nodes) < nodes {
					s.Nodes = append(s.Nodes, n)
				}
			}
		}
		slices.SortFunc(s.Nodes, func(a, b mesh.Node) int { return cmp.Compare(a.Name, b.Name) })
		p, err := was.next(s, cfg, self)
		if err != nil {
			t.Fatal(err)
		}
		news, err := p.since(was)
		if err != nil {
			t.Fatal(err)
		}
		all, err := p.since(plan{})
		if err != nil {
			t.Fatal(err)
		}
		if news.all && step > 0 {
			own++
		}
		x.take(news)
		want := parts{view: members.NewView(self, members.Membership{})}
		want.take(all)
		if !maps.Equal(x.routes, want.routes) {
			t.Fatalf("step %d: routes %v\nwant %v", step, x.routes, want.routes)
		}
		if x.view.Len() != len(p.Nodes)-1 || want.view.Len() != x.view.Len() {
			t.Fatalf("step %d: %d members, want %d", step, x.view.Len(), len(p.Nodes)-1)
		}
		for _, id := range ids {
			if x.view.IsMember(id) != want.view.IsMember(id) || x.view.Name(id) != want.view.Name(id) {
				t.Fatalf("step %d: %s is %v %s, want %v %s", step, id, x.view.IsMember(id), x.view.Name(id), want.view.IsMember(id), want.view.Name(id))
			}
		}
		was = p
	}
	if own == 0 || swapped == 0 {
		t.Errorf("own blocks changed %d times, and keys %d times", own, swapped)
	}
}

func TestCheckMembership(t *testing.T) {
	for source, want := range map[string]string{"cluster.yaml": "fix it in cluster.yaml; it is reloaded automatically",
		"the Kubernetes API": "fix it in the Kubernetes API, or the connection to it; it is reloaded automatically"} {
		if f := checkMembership(plan{}, errors.New("bad"), source); f.Text != "the last good membership is in force, and traffic continues with it: bad" || f.Remedy != want {
			t.Errorf("%s: %+v", source, f)
		}
	}
	if got := checkMembership(plan{Plan: mesh.Plan{Nodes: make([]mesh.Node, 1)}}, nil, "cluster.yaml").Text; !strings.HasPrefix(got, "cluster.yaml: 1 member, ") {
		t.Errorf("%q", got)
	}
}
