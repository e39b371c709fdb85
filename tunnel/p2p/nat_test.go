package p2p

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"

	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/path/paths"
)

// cluster is a relay and one node in each of some namespaces.
type cluster struct {
	w     *world
	relay crypto.PrivKey
	addrs []string // of the relay
	names []string
	ports []int   // of the nodes, instead of the usual ones
	guess []bool  // which nodes guess ports
	sees  *string // what the relay says of where it sees members
	roles []func(*roleConfig)
	keys  []crypto.PrivKey
}

func (w *world) configure(names ...string) *cluster {
	w.t.Helper()
	c := &cluster{w: w, relay: newKey(w.t), names: names,
		addrs: []string{"/ip4/" + w.relayIP() + "/tcp/4470", "/ip4/" + w.relayIP() + "/udp/4470/quic-v1"}}
	for range names {
		c.keys = append(c.keys, newKey(w.t))
	}
	return c
}

func (c *cluster) startRelay() *process {
	c.w.t.Helper()
	p := c.w.start("relay", "relay", c.relay, roleConfig{Listen: c.addrs, WAN: c.w.private(), Sees: c.sees})
	p.ask(request{Cmd: "ready"}) // answered once it listens
	return p
}

// startNode starts the i-th node and waits for its reservation. Nodes behind one
// NAT have ports of their own.
func (c *cluster) startNode(i int) *process {
	c.w.t.Helper()
	port := agentPort
	if i > 0 && c.names[i][:2] == c.names[0][:2] {
		port += i
	}
	if len(c.ports) > i {
		port = c.ports[i]
	}
	cfg := roleConfig{WAN: c.w.private(), Members: map[string]string{}, Relays: map[string][]string{idOf(c.w.t, c.relay).String(): c.addrs},
		Listen: []string{fmt.Sprintf("/ip4/0.0.0.0/tcp/%d", port), fmt.Sprintf("/ip4/0.0.0.0/udp/%d/quic-v1", port),
			fmt.Sprintf("/ip6/::/tcp/%d", port), fmt.Sprintf("/ip6/::/udp/%d/quic-v1", port)}}
	cfg.Guess = len(c.guess) > i && c.guess[i]
	for k, n := range c.names {
		cfg.Members[n] = idOf(c.w.t, c.keys[k]).String()
	}
	if len(c.roles) > i {
		c.roles[i](&cfg)
	}
	p := c.w.start("node", c.names[i], c.keys[i], cfg)
	p.reserved(5 * time.Second)
	return p
}

// cluster starts a relay and a node in each namespace.
func (w *world) cluster(names ...string) (relay *process, restart func() *process, nodes []*process) {
	w.t.Helper()
	c := w.configure(names...)
	relay = c.startRelay()
	for i := range names {
		nodes = append(nodes, c.startNode(i))
	}
	return relay, c.startRelay, nodes
}

// twoSites starts a relay, and a node at each of two sites.
func twoSites(t *testing.T, natA, natB string) (w *world, a, b *process) {
	t.Helper()
	w = newWorld(t)
	w.site(1, natA, 1)
	w.site(2, natB, 1)
	_, _, nodes := w.cluster(w.host(1, 1), w.host(2, 1))
	return w, nodes[0], nodes[1]
}

func TestPathsThroughNATs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want paths.Kind
	}{
		{natNone, natNone, paths.KindDirect},
		{natKeep, natKeep, paths.KindPunched},
		{natNone, natKeep, paths.KindDirect},
		{natNone, natSymmetric, paths.KindDirect},
		{natOpen, natSymmetric, paths.KindPunched},
		{natSymmetric, natOpen, paths.KindPunched},
		{natNone, natReject, paths.KindDirect},
		{natReject, natOpen, paths.KindPunched},
		{natReject, natKeep, paths.KindPunched},
		{natSequential, natKeep, paths.KindPunched},
		{natKeep, natSequential, paths.KindPunched},
		{natSymmetric, natSymmetric, paths.KindRelayed},
	} {
		t.Run(c.a+" "+c.b, func(t *testing.T) {
			t.Parallel()
			_, a, b := twoSites(t, c.a, c.b)
			clock := fair.Start()
			first := a.call(b)
			clock.Stop()
			if took := clock.Elapsed(); took > time.Second {
				t.Errorf("first answer after %v, of which %v count: want at most 1 s", first.Took, took)
			}
			if c.want == paths.KindRelayed {
				fair.Eventually(t, 15*time.Second, "reason", func() error {
					ps := a.ask(request{Cmd: "status", Peer: b.id.String()}).Peer
					if !strings.Contains(ps.Reason, "both NATs give each destination another port; last punch ") {
						return fmt.Errorf("reason %q", ps.Reason)
					}
					return nil
				})
				if p := a.call(b).Path; p.Kind != paths.KindRelayed || p.Transport != "relay/tcp" {
					t.Errorf("path %+v, want relayed over TCP", p)
				}
				return
			}
			da := a.onPath(b, 10*time.Second, c.want, "")
			db := b.onPath(a, 10*time.Second, c.want, "")
			if c.a == natSequential || c.b == natSequential { // only QUIC's next port is guessed
				t.Logf("first answer %v over %s, %s after %v and %v", first.Took, first.Path.Transport, c.want, da, db)
				return
			}
			dt := a.onPath(b, 10*time.Second, c.want, "tcp")
			t.Logf("first answer %v over %s, %s after %v and %v, tcp %v more", first.Took, first.Path.Transport, c.want, da, db, dt)
			if p := a.call(b).Path; p.Kind != c.want || p.Transport != "tcp" {
				t.Errorf("path %+v, want %s tcp", p, c.want)
			}
		})
	}
}

// Where members are many the relay sees UDP only when punching asks, and that is soon enough for the first attempt.
func TestPathsThroughNATsOfMany(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ a, b string }{{natKeep, natKeep}, {natSequential, natKeep}, {natSymmetric, natOpen}} {
		t.Run(c.a+" "+c.b, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.site(1, c.a, 1)
			w.site(2, c.b, 1)
			l := w.configure(w.host(1, 1), w.host(2, 1))
			many := func(r *roleConfig) { r.Many = 100 }
			l.roles = []func(*roleConfig){many, many}
			l.startRelay()
			a, b := l.startNode(0), l.startNode(1)
			first := a.call(b)
			da := a.onPath(b, 10*time.Second, paths.KindPunched, "")
			db := b.onPath(a, 10*time.Second, paths.KindPunched, "")
			t.Logf("first answer %v over %s, punched after %v and %v", first.Took, first.Path.Transport, da, db)
		})
	}
}

// A company's WAN has private addresses: those of wanCIDRs count as public.
func TestPrivateWAN(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want paths.Kind
	}{{natKeep, natKeep, paths.KindPunched}, {natNone, natSymmetric, paths.KindDirect}, {natNone, natNone, paths.KindDirect}} {
		t.Run(c.a+" "+c.b, func(t *testing.T) {
			t.Parallel()
			w := newWorldAt(t, "10.55")
			w.site(1, c.a, 1)
			w.site(2, c.b, 1)
			_, _, nodes := w.cluster(w.host(1, 1), w.host(2, 1))
			nodes[0].call(nodes[1])
			nodes[0].onPath(nodes[1], 10*time.Second, c.want, "")
			nodes[1].onPath(nodes[0], 10*time.Second, c.want, "")
		})
	}
}

func TestSameLANBehindOneNAT(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.site(1, natKeep, 2)
	_, _, nodes := w.cluster(w.host(1, 1), w.host(1, 2))
	nodes[0].call(nodes[1])
	nodes[0].onPath(nodes[1], 10*time.Second, paths.KindDirect, "tcp")
	nodes[1].onPath(nodes[0], 10*time.Second, paths.KindDirect, "tcp")
}

// TestIPv6Underlay: relay and nodes that have nothing but IPv6.
func TestIPv6Underlay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.in("relay", "ip addr flush dev wan0", "ip addr add 2001:db8:5::5/64 dev wan0 nodad")
	for x := 1; x <= 2; x++ {
		w.site(x, natNone, 1)
		w.in(w.host(x, 1), "ip addr flush dev wan0", fmt.Sprintf("ip addr add 2001:db8:5::1%d/64 dev wan0 nodad", x))
	}
	c := w.configure(w.host(1, 1), w.host(2, 1))
	c.addrs = []string{"/ip6/2001:db8:5::5/tcp/4470", "/ip6/2001:db8:5::5/udp/4470/quic-v1"}
	c.startRelay()
	a, b := c.startNode(0), c.startNode(1)
	a.call(b)
	a.onPath(b, 10*time.Second, paths.KindDirect, "tcp")
	b.onPath(a, 10*time.Second, paths.KindDirect, "tcp")
}

// TestIPv6First: where both have both, IPv6 is used.
func TestIPv6First(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for x := 1; x <= 2; x++ {
		w.site(x, natNone, 1)
		w.in(w.host(x, 1), fmt.Sprintf("ip addr add 2001:db8:5::1%d/64 dev wan0 nodad", x))
	}
	_, _, nodes := w.cluster(w.host(1, 1), w.host(2, 1))
	a, b := nodes[0], nodes[1]
	a.call(b)
	a.onPath(b, 10*time.Second, paths.KindDirect, "tcp")
	if st := a.ask(request{Cmd: "status", Peer: b.id.String()}).Peer; !strings.HasPrefix(st.Path.Addr, "/ip6/2001:db8:5::") {
		t.Errorf("path %+v, want IPv6", st.All)
	}
}
