package p2p

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
)

// cluster starts the relay and one node in each of the namespaces.
func (w *world) cluster(names ...string) (relay *process, restart func() *process, nodes []*process) {
	w.t.Helper()
	relayKey := newKey(w.t)
	relayAddrs := []string{"/ip4/" + relayIP + "/tcp/4470", "/ip4/" + relayIP + "/udp/4470/quic-v1"}
	restart = func() *process {
		return w.start("relay", "relay", relayKey, roleConfig{Listen: relayAddrs})
	}
	relay = restart()
	keys := make([]crypto.PrivKey, len(names))
	cfg := roleConfig{Members: map[string]string{}, Relays: map[string][]string{relay.id.String(): relayAddrs},
		Listen: []string{fmt.Sprintf("/ip4/0.0.0.0/tcp/%d", agentPort), fmt.Sprintf("/ip4/0.0.0.0/udp/%d/quic-v1", agentPort)}}
	for i, n := range names {
		keys[i] = newKey(w.t)
		cfg.Members[n] = idOf(w.t, keys[i]).String()
	}
	for i, n := range names {
		c := cfg
		if i > 0 && strings.HasPrefix(n, names[0][:2]) { // same NAT: ports of their own
			c.Listen = []string{fmt.Sprintf("/ip4/0.0.0.0/tcp/%d", agentPort+i), fmt.Sprintf("/ip4/0.0.0.0/udp/%d/quic-v1", agentPort+i)}
		}
		nodes = append(nodes, w.start("node", n, keys[i], c))
	}
	for _, n := range nodes {
		n.reserved(5 * time.Second)
	}
	return relay, restart, nodes
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
					if !strings.Contains(ps.Reason, "no direct tcp and quic connection (here: NAT that changes ports; there: NAT that changes ports)") {
						return fmt.Errorf("reason %q", ps.Reason)
					}
					return nil
				})
				a.onPath(b, time.Second, KindRelayed, "relay/tcp")
				if p := a.call(b).Path; p.Kind != KindRelayed {
					t.Errorf("path %+v, want relayed", p)
				}
				return
			}
			da := a.onPath(b, 10*time.Second, c.want, "")
			db := b.onPath(a, 10*time.Second, c.want, "")
			dt := a.onPath(b, 10*time.Second, c.want, "tcp")
			t.Logf("first answer %v over %s, %s after %v and %v, tcp %v more", first.Took, first.Path.Transport, c.want, da, db, dt)
			if p := a.call(b).Path; p.Kind != c.want || p.Transport != "tcp" {
				t.Errorf("path %+v, want %s tcp", p, c.want)
			}
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
