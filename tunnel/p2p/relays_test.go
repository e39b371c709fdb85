package p2p

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"

	"edgemesh/internal/wake"
	"edgemesh/test/fair"
	"edgemesh/test/relaytest"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/path/reach"
	"edgemesh/tunnel/p2p/relay/relays"
	"edgemesh/tunnel/p2p/relay/relays/choice"
	"edgemesh/tunnel/p2p/who/members"
)

// Relays can be exchanged at run time, and several are used at the same time.
func TestRelaysChange(t *testing.T) {
	_, one := relaytest.Loopback(t)
	_, two := relaytest.Loopback(t)
	a, b, m := reservedPair(t, one)
	m.Relays = []peer.AddrInfo{two, one}
	a.SetMembership(m)
	b.SetMembership(m)
	fair.Eventually(t, 5*time.Second, "both relays", func() error { return errors.Join(reserved(a, 2)(), reserved(b, 2)()) })
	m.Relays = []peer.AddrInfo{two}
	a.SetMembership(m)
	b.SetMembership(m)
	fair.Eventually(t, 2*time.Second, "dropped relay is disconnected", func() error {
		if c := a.h.Network().ConnsToPeer(one.ID); len(c) > 0 {
			return fmt.Errorf("%v", c)
		}
		return nil
	})
	if _, err := call(a, b.ID()); err != nil { // maybe punched already
		t.Error(err)
	}
	fair.Eventually(t, 5*time.Second, "a path by the relay that is left", relayedBy(a, b.ID(), two.ID))
}

// relayedBy reports whether n has relayed paths to a peer, all of them by one relay, beside direct ones.
func relayedBy(n *Node, to, relay peer.ID) func() error {
	return func() error {
		st, _ := n.PeerStatus(to)
		relayed := slices.DeleteFunc(slices.Clone(st.All), func(p paths.Path) bool { return p.Kind != paths.KindRelayed })
		if len(relayed) == 0 || slices.ContainsFunc(relayed, func(p paths.Path) bool { return p.Relay != relay.String() }) {
			return fmt.Errorf("paths %+v, want relayed by %s", st.All, relay)
		}
		return nil
	}
}

// Where relays are many, a node leaves a crowded one alone, except for its home.
func TestCrowdedRelayIsLeftAlone(t *testing.T) {
	var infos []peer.AddrInfo
	var ids []peer.ID
	all := make(map[peer.ID]*relaytest.Relay)
	for range choice.ManyRelays {
		r, info := relaytest.Loopback(t)
		infos, ids, all[r.ID()] = append(infos, info), append(ids, r.ID()), r
	}
	key := newKey(t)
	homes := choice.Homes(idOf(t, key), ids)
	guest, err := libp2p.New(libp2p.NoListenAddrs)
	if err != nil {
		t.Fatal(err)
	}
	defer guest.Close()
	crowded := homes[:len(homes)-1] // all but one
	for _, id := range crowded {
		if err := guest.Connect(t.Context(), all[id].Info()); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Reserve(t.Context(), guest, all[id].Info()); err != nil {
			t.Fatal(err)
		}
		all[id].Share(1)
	}
	n := loopbackNode(t, key, members.Membership{Members: []members.Member{{Name: "a", ID: idOf(t, key)}}, Relays: infos})
	want := []peer.ID{homes[0], homes[len(homes)-1]}
	fair.Eventually(t, 30*time.Second, "reservations at home and at the one that is not crowded", func() error {
		var held []peer.ID
		for _, r := range n.Status().Relays {
			if r.Reserved {
				held = append(held, r.ID)
			}
		}
		slices.Sort(held)
		slices.Sort(want)
		if !slices.Equal(held, want) {
			return fmt.Errorf("%v, want %v", held, want)
		}
		return nil
	})
	for _, r := range all { // then that one is crowded, too: who is there stays
		r.Share(1)
	}
	n.relays.SuspectAll()
	if err := reserved(n, 2)(); err != nil {
		t.Error(err)
	}
}

// strangers are n members that nobody has met.
func strangers(n int) (out []members.Member) {
	for i := range n {
		var raw [32]byte
		binary.BigEndian.PutUint32(raw[:], uint32(i+1))
		pub, err := crypto.UnmarshalEd25519PublicKey(raw[:])
		if err != nil {
			panic(err)
		}
		id, err := peer.IDFromPublicKey(pub)
		if err != nil {
			panic(err)
		}
		out = append(out, members.Member{Name: fmt.Sprint("n", i), ID: id})
	}
	return out
}

// Where members are many a node reserves over TCP. QUIC is there while punching needs to know where the relay sees the UDP
// socket, or a circuit runs over it; its end costs neither the reservation nor what runs over TCP.
func TestOneConnectionWhereMembersAreMany(t *testing.T) {
	r, one := relaytest.Loopback(t)
	tcpAloneFirst(t, r, one, 1)
}

// Several addresses for TCP make no difference: QUIC is what is missing. They are dialed at the same time, but none that would be
// dialed only after another one is connected.
func TestTwoConnectionsOverTCPWhereMembersAreMany(t *testing.T) {
	r, err := relaytest.Start(newKey(t), "/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	tcpAloneFirst(t, r, r.Info(), 2)
}

func tcpAloneFirst(t *testing.T, r *relaytest.Relay, one peer.AddrInfo, mostTCP int) {
	t.Helper()
	key := newKey(t)
	m := members.Membership{Members: append(strangers(100), members.Member{Name: "a", ID: idOf(t, key)}), Relays: []peer.AddrInfo{one}}
	n := loopbackNode(t, key, m)
	over := func() (tcp, udp int) {
		for _, c := range n.h.Network().ConnsToPeer(one.ID) {
			if endpoint.OverUDP(c.RemoteMultiaddr()) {
				udp++
			} else {
				tcp++
			}
		}
		return tcp, udp
	}
	fair.Eventually(t, 10*time.Second, "a reservation", reserved(n, 1))
	are := func(wantUDP int) func() error {
		return func() error {
			if tcp, udp := over(); tcp == 0 || tcp > mostTCP || udp != wantUDP {
				return fmt.Errorf("%d connections over TCP and %d over QUIC", tcp, udp)
			}
			return reserved(n, 1)()
		}
	}
	clock, _ := clocks.Load(n)
	closed := func() error {
		clock.(*hoppingClock).ahead.Add(int64(18 * time.Minute))
		n.relays.SuspectAll() // as after a sleep
		return are(0)()
	}
	// On a machine that is busy TCP may have been so slow that QUIC was dialed as well.
	fair.Eventually(t, 10*time.Second, "TCP alone", closed)
	for range 2 {
		fair.Eventually(t, 10*time.Second, "where the relay sees both sockets", func() error {
			n.relays.Seen.AwaitUDP(t.Context())
			return are(1)()
		})
		fair.Eventually(t, 10*time.Second, "QUIC is closed", closed)
		if tags := r.ConnManager().GetTagInfo(n.ID()); tags == nil || tags.Tags["relay-reservation"] == 0 {
			t.Errorf("the relay knows of no reservation: %+v", tags)
		}
	}
}

// A relay that is unreachable does not keep peers from the other one.
func TestOneOfTwoRelaysIsUnreachable(t *testing.T) {
	t.Parallel()
	_, one := relaytest.Loopback(t)
	away := peer.AddrInfo{ID: idOf(t, newKey(t)), Addrs: addrs(t, "/ip4/127.0.0.1/tcp/9", "/ip4/127.0.0.1/udp/9/quic-v1")}
	a, b, _ := reservedPair(t, away, one)
	if _, err := call(a, b.ID()); err != nil {
		t.Error(err)
	}
	fair.Eventually(t, 10*time.Second, "why the other is not", func() error {
		if r := a.Status().Relays[0]; r.Connected || !strings.Contains(r.Error, "tcp 127.0.0.1:9") || !strings.Contains(r.Error, "udp 127.0.0.1:9") {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	if r := a.Status().Relays[0]; strings.Contains(r.Error, "\n") {
		t.Errorf("reason %q, want one line", r.Error)
	}
}

// The causes are there from the first moment on.
func TestCheckRelaysSaysWhy(t *testing.T) {
	t.Parallel()
	silent, err := net.ListenPacket("udp4", "127.0.0.1:0") // takes QUIC's packets and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	port := silent.LocalAddr().(*net.UDPAddr).Port
	away := peer.AddrInfo{ID: idOf(t, newKey(t)), Addrs: addrs(t, "/ip4/127.0.0.1/tcp/9", fmt.Sprintf("/ip4/127.0.0.1/udp/%d/quic-v1", port))}
	_, one := relaytest.Loopback(t)
	n := loopbackNode(t, newKey(t), members.Membership{Relays: []peer.AddrInfo{away, one}})
	for _, r := range n.Status().Relays {
		if r.Error == "" && !r.Reserved {
			t.Errorf("no cause: %+v", r)
		}
	}
	fair.Eventually(t, 2*time.Second, "TCP's cause, while QUIC is still waited for", func() error {
		if r := n.Status().Relays[0]; !strings.Contains(r.Error, "refused") || strings.Contains(r.Error, "udp") {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*relays.DialTimeout)
	defer cancel()
	got := n.CheckRelays(ctx)
	if !got[1].Reserved || got[1].Error != "" {
		t.Errorf("the relay that is there: %+v", got[1])
	}
	if r := got[0]; r.Connected || !strings.Contains(r.Error, "tcp 127.0.0.1:9") || !strings.Contains(r.Error, fmt.Sprintf("udp 127.0.0.1:%d", port)) {
		t.Errorf("the relay that does not run: %+v, want the causes of both transports", r)
	}
	cancel()
	if r := n.CheckRelays(ctx)[0]; r.Error == "" {
		t.Errorf("no cause without time: %+v", r)
	}
}

// sought is a peer that is looked for without its table.
type sought struct {
	n  *Node
	id peer.ID
}

func (s sought) ID() peer.ID     { return s.id }
func (s sought) Name() string    { return s.id.String() }
func (s sought) Connected() bool { return len(s.n.h.Network().ConnsToPeer(s.id)) > 0 }
func (s sought) Await(ctx context.Context, done func() bool) error {
	for !done() {
		if !wake.Sleep(ctx, time.Millisecond) {
			return ctx.Err()
		}
	}
	return nil
}

// nowhere is where a peer was last that was never seen.
type nowhere struct{}

func (nowhere) Known() []endpoint.Endpoint            { return nil }
func (nowhere) Worth(endpoint.Endpoint) bool          { return false }
func (nowhere) NoteStranger(endpoint.Endpoint, error) {}

// A peer without a reservation at any relay is found by the DHT.
func TestFoundByDHT(t *testing.T) {
	t.Parallel()
	_, relay := relaytest.Loopback(t)
	a, b, _ := reservedPair(t, relay)
	fair.Eventually(t, 10*time.Second, "relay is in a's routing table", func() error {
		ai, err := a.dht.FindPeer(t.Context(), b.ID())
		if err != nil || len(ai.Addrs) == 0 {
			return fmt.Errorf("%v %w", ai, err)
		}
		return nil
	})
	none := relays.New(relays.Config{Self: a.ID(), Spawn: a.tasks.spawn, Log: a.log, Refusal: a.join.Refusal})
	search := (&reach.Config{Self: a.ID(), Dialer: a.dialer, Addrs: a.addrs, Relays: none, Candidates: none.Reports.Candidates, DHT: a.dht,
		Ctx: a.tasks.ctx, Spawn: a.tasks.spawn, Log: a.log}).With(sought{a, b.ID()}, nowhere{})
	fair.Eventually(t, 5*time.Second, "reached", func() error { return search.Connect(t.Context()) })
	if _, err := call(a, b.ID()); err != nil {
		t.Error(err)
	}
}

// Peers learn of each other's relays, also of those that come later.
func TestRelaysAreReported(t *testing.T) {
	_, one := relaytest.Loopback(t)
	_, two := relaytest.Loopback(t)
	a, b, m := reservedPair(t, one)
	if _, err := call(a, b.ID()); err != nil {
		t.Fatal(err)
	}
	knows := func(n, other *Node, relays ...peer.AddrInfo) func() error {
		return func() error {
			for _, c := range n.relays.Reports.Candidates(other.ID()) {
				for _, r := range relays {
					if c.Relay == r.ID && (!c.Theirs || c.Cost == 0) {
						return errors.New(r.ID.String() + " is not known as the peer's")
					}
				}
			}
			return nil
		}
	}
	fair.Eventually(t, 5*time.Second, "a knows", knows(a, b, one))
	fair.Eventually(t, 5*time.Second, "b knows", knows(b, a, one))
	m.Relays = append(m.Relays, two)
	a.SetMembership(m)
	fair.Eventually(t, 5*time.Second, "a is there", reserved(a, 2))
	time.Sleep(100 * time.Millisecond) // sleep: a's report is there before b has heard of the relay
	b.SetMembership(m)
	fair.Eventually(t, 5*time.Second, "a knows more", knows(a, b, one, two))
	fair.Eventually(t, 5*time.Second, "b knows more", knows(b, a, one, two))
}
