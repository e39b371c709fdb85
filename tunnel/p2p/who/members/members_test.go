package members

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/base/endpoint"
)

// ends are the addresses of a connection that nobody has made.
type ends struct{ local, remote ma.Multiaddr }

func (e ends) LocalMultiaddr() ma.Multiaddr  { return e.local }
func (e ends) RemoteMultiaddr() ma.Multiaddr { return e.remote }

var (
	inside  = ma.StringCast("/ip4/10.244.1.1/tcp/4001")
	outside = ma.StringCast("/ip4/5.5.1.1/tcp/4001")
	other   = ma.StringCast("/ip4/5.5.2.2/tcp/4001")
)

func membership() Membership {
	return Membership{Members: []Member{{"me", "self"}, {"b", "member"}}, Relays: []peer.AddrInfo{{ID: "relay"}, {ID: "self"}, {ID: "relay"}},
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
}

func TestBannedIsNoStranger(t *testing.T) {
	m := membership()
	m.Banned = []peer.ID{"thief"}
	var refused []string
	g := NewGater(NewView("self", m), Rules{Refused: func(reason string, p peer.ID, _ string) { refused = append(refused, reason+" "+string(p)) }})
	for _, p := range []peer.ID{"thief", "stranger"} {
		if g.InterceptSecured(network.DirInbound, p, ends{outside, other}) {
			t.Errorf("%s is let in", p)
		}
	}
	if want := []string{"banned thief", "stranger stranger"}; !slices.Equal(refused, want) {
		t.Errorf("refused %q, want %q", refused, want)
	}
}

func TestView(t *testing.T) {
	m := membership()
	v := NewView("self", m)
	m.Members[1].ID = "another"
	if !v.IsMember("member") || v.IsMember("self") || v.IsMember("relay") || v.Len() != 1 {
		t.Error("the view has to have the other member only, and a copy")
	}
	if !v.IsRelay("relay") || v.IsRelay("self") || len(v.Relays()) != 1 {
		t.Error("the view has to have the other relay once")
	}
	if v.Name("member") != "b" || v.Outside(inside) || !v.Outside(outside) || v.InCluster(netip.MustParseAddr("::ffff:10.244.0.9")) == false {
		t.Error("name or ranges of the cluster are wrong")
	}
}

// Whoever is refused is refused at each step, and the reason is counted.
func TestGater(t *testing.T) {
	var refused []string
	g := NewGater(NewView("self", membership()), Rules{
		Dialable: func(e endpoint.Endpoint) bool { return e.Addr.Addr() != netip.MustParseAddr("5.5.2.2") },
		Refused:  func(reason string, _ peer.ID, _ string) { refused = append(refused, reason) }})
	for _, c := range []struct {
		p    peer.ID
		a    ma.Multiaddr
		dial bool
	}{{"member", outside, true}, {"member", inside, false}, {"member", other, false}, {"relay", other, true}, {"stranger", outside, false}} {
		if got := g.InterceptPeerDial(c.p) && g.InterceptAddrDial(c.p, c.a); got != c.dial {
			t.Errorf("%s is dialed at %s: %v, want %v", c.p, c.a, got, c.dial)
		}
	}
	if g.InterceptAccept(ends{inside, outside}) || g.InterceptAccept(ends{outside, inside}) || !g.InterceptAccept(ends{outside, other}) {
		t.Error("a connection inside the tunnel is accepted, or another one is not")
	}
	if g.InterceptSecured(network.DirInbound, "stranger", ends{outside, other}) || !g.InterceptSecured(network.DirInbound, "relay", ends{outside, other}) {
		t.Error("a stranger is admitted, or a relay is not")
	}
	if len(refused) != 3 || refused[2] != "stranger" {
		t.Errorf("refused for %q, want twice inside the tunnel and one stranger", refused)
	}
}

// A controller may come from an address of the cluster, since its pod may run on the relay's node; nobody else may, and a controller
// that is also a member may not.
func TestControllersComeFromInside(t *testing.T) {
	m := membership()
	m.Controllers = []peer.ID{"controller", "member", "relay"}
	var refused []string
	g := NewGater(NewView("self", m), Rules{
		Met:     func(p peer.ID, a netip.Addr) { t.Errorf("%s was met at %s, which others would learn", p, a) },
		Refused: func(reason string, p peer.ID, _ string) { refused = append(refused, string(p)+": "+reason) }})
	if !g.InterceptAccept(ends{outside, inside}) || g.InterceptAccept(ends{inside, outside}) {
		t.Error("a controller is refused before it shows its key, or a connection to an address of the cluster is accepted")
	}
	for p, may := range map[peer.ID]bool{"controller": true, "member": false, "relay": false, "stranger": false} {
		if g.MayCome(p, ends{outside, inside}) != may {
			t.Errorf("%s may come from inside: %v, want %v", p, !may, may)
		}
		if !g.MayCome(p, ends{outside, other}) {
			t.Errorf("%s may not come from outside", p)
		}
	}
	if g.InterceptAddrDial("controller", inside) {
		t.Error("a controller is dialed at an address of the cluster")
	}
	refused = nil
	if g.InterceptSecured(network.DirInbound, "stranger", ends{outside, inside}) || !slices.Equal(refused, []string{"stranger: stranger"}) {
		t.Errorf("a stranger from inside is admitted, or refused as %q", refused)
	}
	if !g.InterceptSecured(network.DirInbound, "controller", ends{outside, inside}) {
		t.Error("a controller from inside is refused")
	}
}

func TestQuarantineEnds(t *testing.T) {
	g := NewGater(NewView("self", membership()), Rules{})
	g.Quarantine("member", time.Hour, "it sends garbage")
	if g.InterceptPeerDial("member") || !errors.Is(g.Refusal("member"), ErrQuarantined) {
		t.Error("a quarantined member is admitted")
	}
	g.Quarantine("member", time.Nanosecond, "")
	time.Sleep(time.Millisecond) // sleep: the quarantine ends
	if !g.InterceptPeerDial("member") || g.Refusal("member") != nil {
		t.Error("a member is refused after its quarantine")
	}
}

// TestWith: a view that follows others is the one that is made of the whole, and those before it stay as they were.
func TestWith(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	now := map[peer.ID]string{}
	v := NewView("self", Membership{Members: []Member{{"me", "self"}}})
	type old struct {
		v *View
		m map[peer.ID]string
	}
	var all []old
	for range 300 {
		c := Change{Membership: Membership{Relays: []peer.AddrInfo{{ID: "relay"}}}}
		for range r.IntN(20) {
			p := peer.ID(fmt.Sprint("p", r.IntN(200)))
			c.Gone = append(c.Gone, p)
			delete(now, p)
			if r.IntN(3) > 0 {
				now[p] = fmt.Sprint("name", r.IntN(5))
				c.Members = append(slices.DeleteFunc(c.Members, func(m Member) bool { return m.ID == p }), Member{now[p], p})
			} else {
				c.Members = slices.DeleteFunc(c.Members, func(m Member) bool { return m.ID == p })
			}
		}
		c.Members = append(c.Members, Member{"me", "self"})
		v = v.With(c)
		all = append(all, old{v, maps.Clone(now)})
	}
	for _, x := range all {
		if x.v.Len() != len(x.m) || x.v.IsMember("self") || !x.v.IsRelay("relay") {
			t.Fatalf("%d members, want %d", x.v.Len(), len(x.m))
		}
		for i := range 200 {
			p := peer.ID(fmt.Sprint("p", i))
			if name, ok := x.m[p]; ok != x.v.IsMember(p) || ok && x.v.Name(p) != name {
				t.Fatalf("%s is a member: %v, want %v", p, x.v.IsMember(p), ok)
			}
		}
	}
}
