package p2p

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/test/fair"
	"edgemesh/test/relaytest"
	"edgemesh/test/tier"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/members"
)

// circuitStream opens a stream for the datagram lane on a circuit.
func circuitStream(t *testing.T, from *Node, to peer.ID) *paths.Stream {
	t.Helper()
	var s *paths.Stream
	fair.Eventually(t, 10*time.Second, "a stream on a circuit", func() error {
		ctx, cancel := fair.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := call(from, to); err != nil {
			return err
		}
		for _, c := range from.h.Network().ConnsToPeer(to) {
			if x := from.peers.Conn(c); x != nil && endpoint.IsCircuit(c.RemoteMultiaddr()) {
				var err error
				s, err = x.OpenStream(ctx, identity.DatagramProtocol)
				return err
			}
		}
		return errors.New("no circuit")
	})
	t.Cleanup(s.Reset)
	return s
}

// The relay forwards what is sent beside a circuit, in both directions, until one end removes the other.
func TestForwarded(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	a, b, _ := circuitPair(t, relay)
	in := map[*Node]*collector{a: take(a), b: take(b)}
	fair.Eventually(t, 5*time.Second, "b's reservation", reserved(b, 1))
	ab := circuitStream(t, a, b.ID())
	ba := circuitStream(t, b, a.ID())
	fair.Eventually(t, 10*time.Second, "datagrams from a", hasDatagrams(in[a], ab, b.ID(), 8900))
	fair.Eventually(t, 10*time.Second, "datagrams from b", hasDatagrams(in[b], ba, a.ID(), 8900))
	if p := ab.Path(); p.Datagrams != paths.Forwarded || p.Kind != paths.KindRelayed || p.Relay != relay.ID.String() {
		t.Errorf("path %+v", p)
	}
	exchanged(t, in[a], b.ID(), in[b])
	exchanged(t, in[b], a.ID(), in[a])
	b.SetMembership(members.Membership{})
	fair.Eventually(t, 5*time.Second, "the sender knows", func() error {
		if n := in[a].size(b.ID()); n != 0 {
			return fmt.Errorf("datagrams of %d bytes", n)
		}
		return nil
	})
}

// Who looks at a path does not have it used: a channel is opened for the lane alone.
func TestChannelOnDemand(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	a, b, _ := circuitPair(t, relay)
	out := take(a)
	take(b)
	fair.Eventually(t, 5*time.Second, "b's reservation", reserved(b, 1))
	s := circuitStream(t, a, b.ID())
	for range 20 {
		if p := s.Path(); p.Datagrams != "in the circuit: no datagrams yet" {
			t.Fatalf("%+v", p)
		}
		time.Sleep(10 * time.Millisecond) // sleep: there are no datagrams meanwhile
	}
	fair.Eventually(t, 10*time.Second, "datagrams", hasDatagrams(out, s, b.ID(), 1000))
}

// A relay or a peer of a former version knows no channels: circuits carry what they did.
func TestNotForwarded(t *testing.T) {
	for name, old := range map[string]struct {
		relay, peer bool
		want        string
	}{
		"relay": {relay: true, want: "in the circuit: the relay's version forwards no packets"},
		"peer":  {peer: true, want: "in the circuit: the peer takes no sealed packets"},
	} {
		t.Run(name, func(t *testing.T) {
			r, relay := relaytest.Loopback(t)
			a, b, _ := circuitPair(t, relay)
			if a.ID() > b.ID() {
				a, b = b, a // a offers
			}
			out := take(a)
			take(b)
			if old.relay {
				r.RemoveStreamHandler(identity.ChannelProtocol)
			}
			if old.peer {
				b.h.RemoveStreamHandler(identity.FlightProtocol)
			}
			fair.Eventually(t, 5*time.Second, "b's reservation", reserved(b, 1))
			s := circuitStream(t, a, b.ID())
			fair.Eventually(t, 10*time.Second, "why", func() error {
				_, _ = s.Write([]byte{0})
				if n, p := out.size(b.ID()), s.Path(); p.Datagrams != old.want || n != 0 {
					return fmt.Errorf("%+v", p)
				}
				return nil
			})
			if _, err := s.Write([]byte("x")); err != nil {
				t.Errorf("stream: %v", err)
			}
		})
	}
}

// takers are two sites behind NATs that no punch passes, whose nodes take datagrams.
func takers(t *testing.T) (w *world, relay *process, restart func() *process, a, b *process) {
	w = newWorld(t)
	w.site(1, natSymmetric, 1)
	w.site(2, natSymmetric, 1)
	c := w.configure(w.host(1, 1), w.host(2, 1))
	take := func(cfg *roleConfig) { cfg.Take = true }
	c.roles = []func(*roleConfig){take, take}
	relay = c.startRelay()
	return w, relay, c.startRelay, c.startNode(0), c.startNode(1)
}

// carries has one end send to the other, and wants to see it arrive, forwarded.
func (p *process) carries(to *process) {
	p.t.Helper()
	before := to.ask(request{Cmd: "taken"}).Count
	r := p.ask(request{Cmd: "datagrams", Peer: to.id.String(), Count: 1 << 20, Time: 100 * time.Millisecond})
	if r.Err != "" || r.Path.Datagrams != paths.Forwarded || r.Path.Kind != paths.KindRelayed {
		p.t.Fatalf("%s: %+v", r.Err, r.Path)
	}
	fair.Eventually(p.t, 5*time.Second, "what was sent arrives", func() error {
		if n := to.ask(request{Cmd: "taken"}).Count - before; n < r.Count {
			return fmt.Errorf("%d of %d", n, r.Count)
		}
		return nil
	})
}

// Two symmetric NATs: the relay forwards in both directions, and again once it was restarted.
func TestForwardedThroughNATs(t *testing.T) {
	t.Parallel()
	_, relay, restart, a, b := takers(t)
	a.call(b)
	a.carries(b)
	b.carries(a)
	relay.stop(syscall.SIGKILL)
	restart()
	fair.Eventually(t, 20*time.Second, "the relay is back", func() error {
		if r := a.ask(request{Cmd: "call", Peer: b.id.String()}); r.Err != "" {
			return errors.New(r.Err)
		}
		return nil
	})
	a.carries(b)
	b.carries(a)
}

// A router begins to drop UDP while the relay forwards: the circuit carries datagrams until it passes again.
func TestForwardedUntilUDPIsBlocked(t *testing.T) {
	t.Parallel()
	w, _, _, a, b := takers(t)
	a.call(b)
	a.carries(b)
	send := func(d time.Duration) reply {
		return a.ask(request{Cmd: "datagrams", Peer: b.id.String(), Count: 100 << 10, Time: d})
	}
	w.in("n1", "iptables -I FORWARD -p udp -j DROP")
	clock := fair.Start()
	defer clock.Stop()
	begun := time.Now()
	if r := send(15 * time.Second); r.Err == "" || !strings.HasPrefix(r.Path.Datagrams, "in the circuit: ") {
		t.Fatalf("%s: %+v", r.Err, r.Path)
	} else if took := clock.Elapsed(); took > 5*time.Second {
		t.Errorf("the circuit has them after %v", took)
	} else {
		t.Logf("after %v, of which %v count, %s", time.Since(begun), took, r.Path.Datagrams)
	}
	if r := a.call(b); r.Path.Kind != paths.KindRelayed {
		t.Errorf("%+v", r.Path)
	}
	w.in("n1", "iptables -D FORWARD -p udp -j DROP")
	begun = time.Now()
	fair.Eventually(t, 90*time.Second, "forwarded again", func() error {
		if r := send(100 * time.Millisecond); r.Err != "" || r.Path.Datagrams != paths.Forwarded {
			return fmt.Errorf("%s: %+v", r.Err, r.Path)
		}
		return nil
	})
	t.Logf("forwarded again %v later", time.Since(begun))
	b.carries(a)
}

// cpu is the time that a process has used.
func (p *process) cpu() time.Duration {
	p.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+2:]))
	var user, system int
	_, _ = fmt.Sscan(fields[11], &user)
	_, _ = fmt.Sscan(fields[12], &system)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// What a gigabyte costs the relay: forwarded at most 0.7 of what it costs in a circuit.
func TestForwardCost(t *testing.T) {
	tier.Long(t)
	_, relay, _, a, b := takers(t)
	a.call(b)
	a.carries(b)
	var forwarded, circuit []float64
	for range 3 { // in turns
		before, had := relay.cpu(), b.ask(request{Cmd: "taken"}).Bytes
		r := a.ask(request{Cmd: "datagrams", Peer: b.id.String(), Count: 100 << 20, Time: 4 * time.Second})
		if r.Err != "" {
			t.Fatal(r.Err)
		}
		got := b.ask(request{Cmd: "taken"}).Bytes - had
		forwarded = append(forwarded, (relay.cpu()-before).Seconds()/float64(got)*1e9)
		before = relay.cpu()
		s := a.ask(request{Cmd: "blast", Peer: b.id.String(), Proto: string(sinkProto), Time: 4 * time.Second})
		circuit = append(circuit, (relay.cpu()-before).Seconds()/float64(s.Bytes)*1e9)
		t.Logf("%.2f Gbit/s forwarded of %d packets, %.2f in the circuit %s; CPU s/GB %.2f and %.2f", float64(got)*8/4e9, r.Count, float64(s.Bytes)*8/4e9,
			s.Path.Transport, forwarded[len(forwarded)-1], circuit[len(circuit)-1])
	}
	slices.Sort(forwarded)
	slices.Sort(circuit)
	if forwarded[1] > 0.7*circuit[1] {
		t.Errorf("CPU s/GB: %.2f forwarded, %.2f in the circuit", forwarded[1], circuit[1])
	}
}
