package p2p

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/carrier/dialer"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/path/peers"
	"edgemesh/tunnel/p2p/relay/relays"
)

func TestRelayRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.site(1, natSymmetric, 1)
	w.site(2, natSymmetric, 1)
	relay, restart, nodes := w.cluster(w.host(1, 1), w.host(2, 1))
	nodes[0].call(nodes[1])
	relay.stop(syscall.SIGKILL)
	for _, n := range nodes {
		fair.Eventually(t, 5*time.Second, "loss is noticed", func() error {
			if st := n.ask(request{Cmd: "status"}).Status; st.Relays[0].Connected || st.Relays[0].Reserved || st.Relays[0].Error == "" {
				return fmt.Errorf("%+v", st.Relays[0])
			}
			return nil
		})
	}
	time.Sleep(3 * time.Second) // sleep: the relay is down that long; pauses have grown by then
	restart()
	start := time.Now()
	for _, n := range nodes {
		n.reserved(5 * time.Second)
	}
	t.Logf("reserved again after %v", time.Since(start))
	nodes[0].reaches(nodes[1], 5*time.Second)
}

func TestDeadDirectPathIsLeft(t *testing.T) {
	t.Parallel()
	w, a, b := twoSites(t, natKeep, natKeep)
	a.call(b)
	a.onPath(b, 10*time.Second, paths.KindPunched, "tcp")
	b.onPath(a, 10*time.Second, paths.KindPunched, "tcp")
	a.call(b)
	// The two sites no longer see each other; the relay sees both.
	w.in("n1", "iptables -I FORWARD -s 5.5.2.1 -j DROP", "iptables -I FORWARD -d 5.5.2.1 -j DROP")
	start := time.Now()
	fair.Eventually(t, 6*time.Second, "traffic flows again", func() error {
		if r := a.ask(request{Cmd: "call", Peer: b.id.String()}); r.Err != "" || r.Path.Kind != paths.KindRelayed {
			return fmt.Errorf("%s %+v", r.Err, r.Path)
		}
		return nil
	})
	t.Logf("relayed after %v", time.Since(start))
	b.onPath(a, 6*time.Second, paths.KindRelayed, "relay/tcp")
	w.in("n1", "iptables -D FORWARD -s 5.5.2.1 -j DROP", "iptables -D FORWARD -d 5.5.2.1 -j DROP")
	fair.Eventually(t, 30*time.Second, "direct again", func() error {
		if r := a.ask(request{Cmd: "call", Peer: b.id.String()}); r.Err != "" || r.Path.Kind != paths.KindPunched {
			return fmt.Errorf("%s %+v", r.Err, r.Path)
		}
		return nil
	})
}

// Packets that get lost in the middle of a TCP punch leave routers with half a
// connection. Once packets pass again, TCP gets through all the same.
func TestHalfMadePunch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.site(1, natKeep, 1)
	w.site(2, natKeep, 1)
	// Behind connection tracking: the routers remember what they drop.
	w.in("n1", "iptables -I FORWARD -s 5.5.2.1 -j DROP")
	w.in("n2", "iptables -I FORWARD -s 5.5.1.1 -j DROP")
	_, _, nodes := w.cluster(w.host(1, 1), w.host(2, 1))
	a, b := nodes[0], nodes[1]
	if r := a.call(b); r.Path.Kind != paths.KindRelayed {
		t.Fatalf("first path %+v", r.Path)
	}
	fair.Eventually(t, 10*time.Second, "the first attempt has failed", func() error {
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
		d += fair.Eventually(t, 2*dialer.PendingTimeout, "TCP through both NATs", func() error {
			p.ask(request{Cmd: "call", Peer: to.id.String()}) // traffic keeps the peer in demand
			ps := p.ask(request{Cmd: "status", Peer: to.id.String()}).Peer
			if ps.Path.Kind != paths.KindPunched || ps.Path.Transport != "tcp" {
				return fmt.Errorf("%+v: %s", ps.All, ps.Reason)
			}
			return nil
		})
	}
	t.Logf("TCP %v after packets pass", d)
}

// A slow path under full load answers late and is not taken for a dead one,
// neither the direct path nor the relay's connection.
func TestSlowPathUnderLoad(t *testing.T) {
	t.Parallel()
	for _, nat := range []string{natNone, natSymmetric} {
		t.Run(nat, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.site(1, nat, 1)
			w.site(2, nat, 1)
			// From the beginning: the kernel's BBR, which has seen 1 Gbit/s, believes in it for ten round trips of .6 s.
			router := map[string]string{natNone: w.host(1, 1), natSymmetric: "n1"}[nat]
			w.in(router, "tc qdisc add dev wan0 root tbf rate 1mbit burst 16kb latency 500ms")
			_, _, nodes := w.cluster(w.host(1, 1), w.host(2, 1))
			a, b := nodes[0], nodes[1]
			a.call(b)
			kind := paths.KindRelayed
			if nat == natNone {
				kind = paths.KindDirect
				a.onPath(b, 10*time.Second, kind, "tcp")
			}
			r := a.ask(request{Cmd: "blast", Peer: b.id.String(), Proto: string(sinkProto), Time: 8 * time.Second})
			if r.Err != "" || r.Path.Kind != kind {
				t.Errorf("8 s of full load ended after %v with %q on %+v", r.Took, r.Err, r.Path)
			}
			st := a.ask(request{Cmd: "status", Peer: b.id.String()})
			if st.Peer.Path.Kind != kind || !st.Status.Relays[0].Reserved {
				t.Errorf("afterwards %+v, %+v", st.Peer, st.Status.Relays[0])
			}
			for _, e := range st.Events {
				if strings.HasPrefix(e, peers.PathLost.String()) {
					t.Errorf("event %q", e)
				}
			}
		})
	}
}

// A peer that was killed and started again is reached again immediately.
func TestPeerRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.site(1, natKeep, 1)
	w.site(2, natKeep, 1)
	c := w.configure(w.host(1, 1), w.host(2, 1))
	c.startRelay()
	a, b := c.startNode(0), c.startNode(1)
	a.call(b)
	a.onPath(b, 10*time.Second, paths.KindPunched, "tcp")
	b.stop(syscall.SIGKILL)
	b = c.startNode(1)
	d := a.reaches(b, 5*time.Second)
	t.Logf("reached again %v after the reservation, punched after %v", d, a.onPath(b, 10*time.Second, paths.KindPunched, "tcp"))
}

// A relay or a peer that is killed while a stream is open, however quiet, is a loss: in the log, and in what is counted.
func TestCrashIsALoss(t *testing.T) {
	t.Parallel()
	for _, nat := range []string{natSymmetric, natNone} {
		t.Run(nat, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.site(1, nat, 1)
			w.site(2, nat, 1)
			relay, _, nodes := w.cluster(w.host(1, 1), w.host(2, 1))
			a, b := nodes[0], nodes[1]
			victim, left := relay, nodes
			if nat == natNone {
				a.call(b)
				a.onPath(b, 10*time.Second, paths.KindDirect, "tcp")
				victim, left = b, nodes[:1]
			}
			if r := a.ask(request{Cmd: "hold", Peer: b.id.String()}); r.Err != "" {
				t.Fatal(r.Err)
			}
			time.Sleep(5 * time.Second) // sleep: the stream is quiet
			victim.stop(syscall.SIGKILL)
			for _, n := range left {
				fair.Eventually(t, 6*time.Second, n.name+" logs the loss", func() error {
					if log := n.log.String(); !strings.Contains(log, "lost=true") || nat == natSymmetric && !strings.Contains(log, "before=relayed lost=true") {
						return fmt.Errorf("events %q", n.ask(request{Cmd: "status"}).Events)
					}
					return nil
				})
				if !slices.ContainsFunc(n.ask(request{Cmd: "status"}).Events, func(e string) bool { return strings.HasPrefix(e, peers.PathLost.String()) }) {
					t.Errorf("%s: no event of a loss", n.name)
				}
			}
		})
	}
}

// A site that gets another address is found at the new one.
func TestAddressChange(t *testing.T) {
	t.Parallel()
	w, a, b := twoSites(t, natKeep, natKeep)
	a.call(b)
	a.onPath(b, 10*time.Second, paths.KindPunched, "tcp")
	w.in("n2", "ip addr del 5.5.2.1/16 dev wan0", "ip addr add 5.5.2.77/16 dev wan0", "conntrack -F")
	start := time.Now()
	a.reaches(b, 10*time.Second)
	t.Logf("reached again after %v", time.Since(start))
	fair.Eventually(t, 30*time.Second, "punched at the new address", func() error {
		a.ask(request{Cmd: "call", Peer: b.id.String()}) // traffic keeps the peer in demand
		ps := a.ask(request{Cmd: "status", Peer: b.id.String()}).Peer
		if ps.Path.Kind != paths.KindPunched || !strings.Contains(ps.Path.Addr, "5.5.2.77/tcp") {
			return fmt.Errorf("%+v", ps)
		}
		return nil
	})
	t.Logf("punched again after %v", time.Since(start))
}

// TestAddressChangeOfAnIdleSite: nothing is sent when the site gets another address.
// The node finds out by itself: the kernel's next keep-alive is not answered, or is reset.
func TestAddressChangeOfAnIdleSite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.site(1, natKeep, 1)
	_, _, nodes := w.cluster(w.host(1, 1))
	a := nodes[0]
	fair.Eventually(t, 10*time.Second, "what its NAT does is known", fair.True(func() bool { return strings.Contains(a.log.String(), "nat=\"stable") }))
	w.in("n1", "ip addr del 5.5.1.1/16 dev wan0", "ip addr add 5.5.1.77/16 dev wan0", "conntrack -F")
	d := fair.Eventually(t, relays.MostSilence+9*time.Second, "its relay sees it at the new address", func() error {
		if strings.Count(a.log.String(), "reserved at relay") < 2 {
			return errors.New("not yet")
		}
		return nil
	})
	t.Logf("reserved again after %v", d)
}

// A site whose router was off comes back while its relay still believes in the
// connections it had: a circuit asked for in the meantime keeps nobody waiting.
func TestBackAfterRouterWasOff(t *testing.T) {
	t.Parallel()
	w, a, b := twoSites(t, natSymmetric, natSymmetric)
	a.call(b)
	w.in("n2", "ip link set wan0 down")
	if r := a.ask(request{Cmd: "call", Peer: b.id.String()}); r.Err == "" {
		t.Error("answered without a router")
	}
	w.in("n2", "ip link set wan0 up")
	d := a.reaches(b, 10*time.Second)
	t.Logf("reached again after %v", d)
}
