package p2p

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"

	"edgemesh/tunnel/p2p/ladder"
)

// cluster is a relay and one node in each of some namespaces.
type cluster struct {
	w     *world
	relay crypto.PrivKey
	addrs []string // of the relay
	names []string
	ports []int  // of the nodes, instead of the usual ones
	guess []bool // which nodes guess ports
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
	p := c.w.start("relay", "relay", c.relay, roleConfig{Listen: c.addrs, WAN: c.w.private()})
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

func TestPathsThroughNATs(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want Kind
	}{
		{natNone, natNone, KindDirect},
		{natKeep, natKeep, KindPunched},
		{natNone, natKeep, KindPunched},
		{natNone, natSymmetric, KindPunched},
		{natOpen, natSymmetric, KindPunched},
		{natSymmetric, natOpen, KindPunched},
		{natNone, natReject, KindPunched},
		{natReject, natOpen, KindPunched},
		{natReject, natKeep, KindPunched},
		{natSequential, natKeep, KindPunched},
		{natKeep, natSequential, KindPunched},
		{natSymmetric, natSymmetric, KindRelayed},
	} {
		t.Run(c.a+" "+c.b, func(t *testing.T) {
			w := newWorld(t)
			w.site(1, c.a, 1)
			w.site(2, c.b, 1)
			_, _, nodes := w.cluster(w.host(1, 1), w.host(2, 1))
			a, b := nodes[0], nodes[1]
			first := a.call(b)
			if first.Took > time.Second {
				t.Errorf("first answer after %v, want at most 1 s", first.Took)
			}
			if c.want == KindRelayed {
				eventually(t, 15*time.Second, "reason", func() error {
					ps := a.ask(request{Cmd: "status", Peer: b.id.String()}).Peer
					if !strings.Contains(ps.Reason, "both NATs map per destination; last punch ") {
						return fmt.Errorf("reason %q", ps.Reason)
					}
					return nil
				})
				if p := a.call(b).Path; p.Kind != KindRelayed || p.Transport != "relay/tcp" {
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

// A company's WAN has private addresses: those of wanCIDRs count as public.
func TestPrivateWAN(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want Kind
	}{{natKeep, natKeep, KindPunched}, {natNone, natSymmetric, KindPunched}, {natNone, natNone, KindDirect}} {
		t.Run(c.a+" "+c.b, func(t *testing.T) {
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
	w := newWorld(t)
	w.site(1, natKeep, 2)
	_, _, nodes := w.cluster(w.host(1, 1), w.host(1, 2))
	nodes[0].call(nodes[1])
	nodes[0].onPath(nodes[1], 10*time.Second, KindDirect, "tcp")
	nodes[1].onPath(nodes[0], 10*time.Second, KindDirect, "tcp")
}

// TestIPv6Underlay: relay and nodes that have nothing but IPv6.
func TestIPv6Underlay(t *testing.T) {
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
	a.onPath(b, 10*time.Second, KindDirect, "tcp")
	b.onPath(a, 10*time.Second, KindDirect, "tcp")
}

// TestIPv6First: where both have both, IPv6 is used.
func TestIPv6First(t *testing.T) {
	w := newWorld(t)
	for x := 1; x <= 2; x++ {
		w.site(x, natNone, 1)
		w.in(w.host(x, 1), fmt.Sprintf("ip addr add 2001:db8:5::1%d/64 dev wan0 nodad", x))
	}
	_, _, nodes := w.cluster(w.host(1, 1), w.host(2, 1))
	a, b := nodes[0], nodes[1]
	a.call(b)
	a.onPath(b, 10*time.Second, KindDirect, "tcp")
	if st := a.ask(request{Cmd: "status", Peer: b.id.String()}).Peer; !strings.HasPrefix(st.Path.Addr, "/ip6/2001:db8:5::") {
		t.Errorf("path %+v, want IPv6", st.All)
	}
}

func TestRelayRestart(t *testing.T) {
	w := newWorld(t)
	w.site(1, natSymmetric, 1)
	w.site(2, natSymmetric, 1)
	relay, restart, nodes := w.cluster(w.host(1, 1), w.host(2, 1))
	nodes[0].call(nodes[1])
	relay.stop(syscall.SIGKILL)
	for _, n := range nodes {
		eventually(t, 5*time.Second, "loss is noticed", func() error {
			if st := n.ask(request{Cmd: "status"}).Status; st.Relays[0].Connected || st.Relays[0].Reserved || st.Relays[0].Error == "" {
				return fmt.Errorf("%+v", st.Relays[0])
			}
			return nil
		})
	}
	time.Sleep(3 * time.Second) // the relay is down that long; pauses have grown by then
	restart()
	start := time.Now()
	for _, n := range nodes {
		n.reserved(5 * time.Second)
	}
	t.Logf("reserved again after %v", time.Since(start))
	eventually(t, 5*time.Second, "relayed again", func() error {
		if r := nodes[0].ask(request{Cmd: "call", Peer: nodes[1].id.String()}); r.Err != "" {
			return fmt.Errorf("%s", r.Err)
		}
		return nil
	})
}

func TestDeadDirectPathIsLeft(t *testing.T) {
	w := newWorld(t)
	w.site(1, natKeep, 1)
	w.site(2, natKeep, 1)
	_, _, nodes := w.cluster(w.host(1, 1), w.host(2, 1))
	a, b := nodes[0], nodes[1]
	a.call(b)
	a.onPath(b, 10*time.Second, KindPunched, "tcp")
	b.onPath(a, 10*time.Second, KindPunched, "tcp")
	a.call(b)
	// The two sites do not see each other any more; the relay sees both.
	w.in("n1", "iptables -I FORWARD -s 5.5.2.1 -j DROP", "iptables -I FORWARD -d 5.5.2.1 -j DROP")
	start := time.Now()
	eventually(t, 6*time.Second, "traffic flows again", func() error {
		if r := a.ask(request{Cmd: "call", Peer: b.id.String()}); r.Err != "" || r.Path.Kind != KindRelayed {
			return fmt.Errorf("%s %+v", r.Err, r.Path)
		}
		return nil
	})
	t.Logf("relayed after %v", time.Since(start))
	b.onPath(a, 6*time.Second, KindRelayed, "relay/tcp")
	w.in("n1", "iptables -D FORWARD -s 5.5.2.1 -j DROP", "iptables -D FORWARD -d 5.5.2.1 -j DROP")
	eventually(t, 30*time.Second, "direct again", func() error {
		if r := a.ask(request{Cmd: "call", Peer: b.id.String()}); r.Err != "" || r.Path.Kind != KindPunched {
			return fmt.Errorf("%s %+v", r.Err, r.Path)
		}
		return nil
	})
}

// Packets that get lost in the middle of a TCP punch leave routers with half a
// connection. Once packets pass again, TCP gets through all the same.
func TestHalfMadePunch(t *testing.T) {
	w := newWorld(t)
	w.site(1, natKeep, 1)
	w.site(2, natKeep, 1)
	// Behind connection tracking: the routers remember what they drop.
	w.in("n1", "iptables -I FORWARD -s 5.5.2.1 -j DROP")
	w.in("n2", "iptables -I FORWARD -s 5.5.1.1 -j DROP")
	_, _, nodes := w.cluster(w.host(1, 1), w.host(2, 1))
	a, b := nodes[0], nodes[1]
	if r := a.call(b); r.Path.Kind != KindRelayed {
		t.Fatalf("first path %+v", r.Path)
	}
	eventually(t, 10*time.Second, "the first attempt has failed", func() error {
		for _, p := range []*process{a, b} {
			to := map[*process]*process{a: b, b: a}[p]
			if ps := p.ask(request{Cmd: "status", Peer: to.id.String()}).Peer; strings.Contains(ps.Reason, "timed out") {
				return nil
			}
		}
		return errors.New("no reason yet")
	})
	w.in("n1", "iptables -D FORWARD -s 5.5.2.1 -j DROP")
	w.in("n2", "iptables -D FORWARD -s 5.5.1.1 -j DROP")
	var d time.Duration
	for _, p := range []*process{a, b} {
		to := map[*process]*process{a: b, b: a}[p]
		d += eventually(t, 2*halfTime, "TCP through both NATs", func() error {
			p.ask(request{Cmd: "call", Peer: to.id.String()}) // traffic keeps the peer in demand
			ps := p.ask(request{Cmd: "status", Peer: to.id.String()}).Peer
			if ps.Path.Kind != KindPunched || ps.Path.Transport != "tcp" {
				return fmt.Errorf("%+v: %s", ps.All, ps.Reason)
			}
			return nil
		})
	}
	t.Logf("TCP %v after packets pass", d)
}

// A ping over an idle path that died unseen finds that out, and goes another way,
// long before the next probe of an idle path is due.
func TestPingLeavesDeadIdlePath(t *testing.T) {
	w := newWorld(t)
	w.site(1, natKeep, 1)
	w.site(2, natKeep, 1)
	_, _, nodes := w.cluster(w.host(1, 1), w.host(2, 1))
	a, b := nodes[0], nodes[1]
	a.call(b)
	a.onPath(b, 10*time.Second, KindPunched, "tcp")
	time.Sleep(ladder.BusyFor + ladder.ProbeBusy) // idle from here on
	w.in("n1", "iptables -I FORWARD -s 5.5.2.1 -j DROP", "iptables -I FORWARD -d 5.5.2.1 -j DROP")
	d := eventually(t, 4*time.Second, "a ping is answered through the relay", func() error {
		if r := a.ask(request{Cmd: "ping", Peer: b.id.String(), Time: openTimeout}); r.Err != "" || r.Path.Kind != KindRelayed {
			return fmt.Errorf("%s %+v", r.Err, r.Path)
		}
		return nil
	})
	t.Logf("answered after %v", d)
}

// A slow path under full load answers late and is not taken for a dead one,
// neither the direct path nor the relay's connection.
func TestSlowPathUnderLoad(t *testing.T) {
	for _, nat := range []string{natNone, natSymmetric} {
		t.Run(nat, func(t *testing.T) {
			w := newWorld(t)
			w.site(1, nat, 1)
			w.site(2, nat, 1)
			_, _, nodes := w.cluster(w.host(1, 1), w.host(2, 1))
			a, b := nodes[0], nodes[1]
			a.call(b)
			kind := KindRelayed
			if nat == natNone {
				kind = KindDirect
				a.onPath(b, 10*time.Second, kind, "tcp")
			}
			router := map[string]string{natNone: w.host(1, 1), natSymmetric: "n1"}[nat]
			w.in(router, "tc qdisc add dev wan0 root tbf rate 1mbit burst 16kb latency 500ms")
			r := a.ask(request{Cmd: "blast", Peer: b.id.String(), Proto: string(sinkProto), Time: 8 * time.Second})
			if r.Err != "" || r.Path.Kind != kind {
				t.Errorf("8 s of full load ended after %v with %q on %+v", r.Took, r.Err, r.Path)
			}
			st := a.ask(request{Cmd: "status", Peer: b.id.String()})
			if st.Peer.Path.Kind != kind || !st.Status.Relays[0].Reserved {
				t.Errorf("afterwards %+v, %+v", st.Peer, st.Status.Relays[0])
			}
			for _, e := range st.Events {
				if strings.HasPrefix(e, PathLost.String()) {
					t.Errorf("event %q", e)
				}
			}
		})
	}
}

// A peer that was killed and started again is reached again at once.
func TestPeerRestart(t *testing.T) {
	w := newWorld(t)
	w.site(1, natKeep, 1)
	w.site(2, natKeep, 1)
	c := w.configure(w.host(1, 1), w.host(2, 1))
	c.startRelay()
	a, b := c.startNode(0), c.startNode(1)
	a.call(b)
	a.onPath(b, 10*time.Second, KindPunched, "tcp")
	b.stop(syscall.SIGKILL)
	b = c.startNode(1)
	d := eventually(t, 5*time.Second, "reached again", func() error {
		if r := a.ask(request{Cmd: "call", Peer: b.id.String()}); r.Err != "" {
			return fmt.Errorf("%s", r.Err)
		}
		return nil
	})
	t.Logf("reached again %v after the reservation, punched after %v", d, a.onPath(b, 10*time.Second, KindPunched, "tcp"))
}

// A site that gets another address is found at the new one.
func TestAddressChange(t *testing.T) {
	w := newWorld(t)
	w.site(1, natKeep, 1)
	w.site(2, natKeep, 1)
	_, _, nodes := w.cluster(w.host(1, 1), w.host(2, 1))
	a, b := nodes[0], nodes[1]
	a.call(b)
	a.onPath(b, 10*time.Second, KindPunched, "tcp")
	w.in("n2", "ip addr del 5.5.2.1/16 dev wan0", "ip addr add 5.5.2.77/16 dev wan0", "conntrack -F")
	start := time.Now()
	eventually(t, 10*time.Second, "reached again", func() error {
		if r := a.ask(request{Cmd: "call", Peer: b.id.String()}); r.Err != "" {
			return fmt.Errorf("%s", r.Err)
		}
		return nil
	})
	t.Logf("reached again after %v", time.Since(start))
	eventually(t, 30*time.Second, "punched at the new address", func() error {
		a.ask(request{Cmd: "call", Peer: b.id.String()}) // traffic keeps the peer in demand
		ps := a.ask(request{Cmd: "status", Peer: b.id.String()}).Peer
		if ps.Path.Kind != KindPunched || !strings.Contains(ps.Path.Addr, "5.5.2.77/tcp") {
			return fmt.Errorf("%+v", ps)
		}
		return nil
	})
	t.Logf("punched again after %v", time.Since(start))
}

// TestAddressChangeOfAnIdleSite: nothing is sent when the site gets another address.
// The node finds out by itself, long before its relay misses it.
func TestAddressChangeOfAnIdleSite(t *testing.T) {
	w := newWorld(t)
	w.site(1, natKeep, 1)
	_, _, nodes := w.cluster(w.host(1, 1))
	a := nodes[0]
	eventually(t, 10*time.Second, "what its NAT does is known", func() error {
		if !strings.Contains(a.log.String(), "msg=NAT kind=stable") {
			return errors.New("not yet")
		}
		return nil
	})
	time.Sleep(outerLook + time.Second) // asked for the first time, and idle
	w.in("n1", "ip addr del 5.5.1.1/16 dev wan0", "ip addr add 5.5.1.77/16 dev wan0", "conntrack -F")
	d := eventually(t, outerLook+9*time.Second, "its relay sees it at the new address", func() error {
		if strings.Count(a.log.String(), "reserved at relay") < 2 {
			return errors.New("not yet")
		}
		return nil
	})
	if !strings.Contains(a.log.String(), `msg="the site's address changed" was=5.5.1.1 now=5.5.1.77`) {
		t.Error("it was found in another way")
	}
	t.Logf("reserved again after %v", d)
}

// A site whose router was away comes back while its relay still believes in the
// connections it had: a circuit asked for in the meantime keeps nobody waiting.
func TestBackAfterRouterWasAway(t *testing.T) {
	w := newWorld(t)
	w.site(1, natSymmetric, 1)
	w.site(2, natSymmetric, 1)
	_, _, nodes := w.cluster(w.host(1, 1), w.host(2, 1))
	a, b := nodes[0], nodes[1]
	a.call(b)
	w.in("n2", "ip link set wan0 down")
	if r := a.ask(request{Cmd: "call", Peer: b.id.String()}); r.Err == "" {
		t.Error("answered without a router")
	}
	w.in("n2", "ip link set wan0 up")
	d := eventually(t, 10*time.Second, "reached again", func() error {
		if r := a.ask(request{Cmd: "call", Peer: b.id.String()}); r.Err != "" {
			return errors.New(r.Err)
		}
		return nil
	})
	t.Logf("reached again after %v", d)
}
