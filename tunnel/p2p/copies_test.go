package p2p

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/test/fair"
	"edgemesh/test/relaytest"
	"edgemesh/test/tier"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/who/clones"
	"edgemesh/tunnel/p2p/who/members"
)

// copied has a relay, a peer and a key, and makes places of that key.
type copied struct {
	t   *testing.T
	key crypto.PrivKey
	m   members.Membership
	b   *Node // the peer

	yielded atomic.Int32 // places that remember that they stood by
}

func newCopied(t *testing.T) *copied {
	t.Helper()
	_, relay := relaytest.Loopback(t)
	key, kb := newKey(t), newKey(t)
	m := members.Membership{Members: []members.Member{{Name: "a", ID: idOf(t, key)}, {Name: "b", ID: idOf(t, kb)}}, Relays: []peer.AddrInfo{relay},
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
	return &copied{t: t, key: key, m: m, b: loopbackNode(t, kb, m)}
}

// place starts one, which talks with the peer.
func (c *copied) place(original bool) *Node {
	c.t.Helper()
	n, err := New(Config{Key: c.key, Listen: addrs(c.t, "/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"), Machine: clones.Machine{Matches: original, Yielded: func() error { c.yielded.Add(1); return nil }}, HostName: fmt.Sprintf("original-%v", original),
		tuned: tuned{standbyEvery: 500 * time.Millisecond}, Membership: c.m, Log: testLog(c.t, fmt.Sprintf("original-%v", original))})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = n.Close() })
	echo(n)
	fair.Eventually(c.t, 10*time.Second, "a stream to the peer", func() error {
		if _, err := call(n, c.b.ID()); err != nil && !n.StandsBy() {
			return err
		}
		return nil
	})
	return n
}

// single reports whether nobody takes n for a clone.
func (c *copied) single(n *Node) error {
	if p, ok := n.Clone(); ok {
		return fmt.Errorf("a clone: %+v", p)
	}
	if p := c.b.Pairs(); len(p) > 0 {
		return fmt.Errorf("pairs at the peer: %+v", p)
	}
	return nil
}

// TestTwoPlacesOfOneKey: within seconds both places and the peer know, exactly one stands by, the one whose hardware does not match
// or that came later, and it takes over once the other one is gone.
func TestTwoPlacesOfOneKey(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name          string
		first, second bool // the hardware matches
		firstKeeps    bool
	}{{"neither matches", false, false, true}, {"the second one's hardware matches", false, true, false}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := newCopied(t)
			one := c.place(tc.first)
			if err := c.single(one); err != nil {
				t.Fatal(err)
			}
			time.Sleep(1200 * time.Millisecond) // sleep: known first, by more than counts as the same
			two := c.place(tc.second)
			keeps, stands := one, two
			if !tc.firstKeeps {
				keeps, stands = two, one
			}
			fair.Eventually(t, 8*time.Second, "all three know", func() error {
				_, ok1 := one.Clone()
				_, ok2 := two.Clone()
				pairs := c.b.Pairs()
				if !ok1 || !ok2 || len(pairs) != 1 || keeps.StandsBy() || !stands.StandsBy() {
					return fmt.Errorf("clones %v %v, stand by %v %v, pairs %+v", ok1, ok2, keeps.StandsBy(), stands.StandsBy(), pairs)
				}
				if pairs[0].Keeps.Host != keeps.copies.place.Host || pairs[0].StandsBy.Addr == "" || pairs[0].Keeps.Addr == "" {
					return fmt.Errorf("the peer knows %+v", pairs[0])
				}
				if len(stands.Connected())+len(stands.Status().Relays) > 0 {
					return errors.New("the one that stands by is connected")
				}
				return nil
			})
			fair.Eventually(t, 5*time.Second, "the peer reaches the one that keeps the traffic", func() error {
				_, err := call(c.b, keeps.ID())
				return err
			})
			time.Sleep(1200 * time.Millisecond) // sleep: it looks, and stays where it is
			if !stands.StandsBy() || keeps.StandsBy() {
				t.Error("it took over beside the other one")
			}
			if stands.Members() != 1 {
				t.Errorf("%d members are wanted while it stands by, want 1", stands.Members())
			}
			want := int32(0) // the hardware decides at each start
			if tc.first == tc.second {
				want = 1
			}
			if got := c.yielded.Load(); got != want {
				t.Errorf("%d remember that they stood by, want %d", got, want)
			}
			if !tier.IsLong() {
				return // the rest takes its time
			}
			_ = keeps.Close()
			fair.Eventually(t, 30*time.Second, "the other one takes over", fair.True(func() bool { return !stands.StandsBy() }))
			fair.Eventually(t, 30*time.Second, "the peer reaches it", func() error {
				_, err := call(c.b, stands.ID())
				return err
			})
		})
	}
}

// TestWhoWouldKnow: that a look did not meet the other machine says something only where one that has seen both was reached.
func TestWhoWouldKnow(t *testing.T) {
	var ids []peer.ID
	for range 4 {
		ids = append(ids, idOf(t, newKey(t)))
	}
	saw, other, removed := ids[1], ids[2], ids[3]
	v := members.NewView(ids[0], members.Membership{Relays: []peer.AddrInfo{{ID: saw}, {ID: other}}})
	for _, tc := range []struct {
		name            string
		connected, seen []peer.ID
		want            bool
	}{
		{"it is reached", []peer.ID{other, saw}, []peer.ID{saw}, true},
		{"another relay only", []peer.ID{other}, []peer.ID{saw}, false},
		{"nobody", nil, []peer.ID{saw}, false},
		{"one of two", []peer.ID{saw}, []peer.ID{removed, saw}, true},
		{"it is no longer in the membership", []peer.ID{other}, []peer.ID{removed}, true},
		{"nor is anybody reached", nil, []peer.ID{removed}, false},
	} {
		if got := wouldKnow(tc.connected, tc.seen, v); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}

// TestTwoThatStandBy: one that meets another that stands by does not take over beside the third one, but may if that is gone.
func TestTwoThatStandBy(t *testing.T) {
	x := &copies{}
	for name, tc := range map[string]struct {
		mine, theirs clones.Statement
		keeps, both  bool
	}{
		"another that stands by":              {clones.Statement{}, clones.Statement{Second: true}, false, true},
		"that one would keep it":              {clones.Statement{Second: true}, clones.Statement{}, false, false},
		"it carries the traffic":              {clones.Statement{}, clones.Statement{Second: true, Known: time.Minute}, true, false},
		"its hardware is not that of the key": {clones.Statement{Matches: true}, clones.Statement{}, true, true},
	} {
		x.proof = clones.Proof{Mine: tc.mine, Theirs: tc.theirs}
		if x.keeps() != tc.keeps || x.bothStand() != tc.both {
			t.Errorf("%s: keeps %v, both stand by %v", name, x.keeps(), x.bothStand())
		}
	}
}

// TestSeenHere: a peer that does not know of its clone yet ends only what it said itself.
func TestSeenHere(t *testing.T) {
	conn := peerConn{id: idOf(t, newKey(t)), at: addrs(t, "/ip4/192.0.2.1/tcp/1")[0]}
	x := &copies{now: func() ladder.Time { return 1 }, pairs: map[peer.ID]seenPair{}}
	x.hear(conn, &clones.Pair{Why: "heard"})
	x.hear(conn, nil)
	if len(x.pairs) != 0 {
		t.Errorf("still there: %+v", x.pairs)
	}
	x.note(clones.Pair{Peer: conn.id, Why: "seen"}, false)
	x.hear(conn, nil)
	x.hear(conn, &clones.Pair{Why: "heard"})
	x.hear(conn, nil)
	if len(x.pairs) != 1 {
		t.Error("what was seen here is gone")
	}
}

type peerConn struct {
	network.Conn
	id peer.ID
	at ma.Multiaddr
}

func (c peerConn) RemotePeer() peer.ID           { return c.id }
func (c peerConn) RemoteMultiaddr() ma.Multiaddr { return c.at }

// TestRestartIsNoClone: a node that starts again, with its former connections half-open at the peer and the relay, is one machine.
func TestRestartIsNoClone(t *testing.T) {
	times := 3
	if tier.IsLong() {
		times = 30
	}
	c := newCopied(t)
	for i := range times {
		n := c.place(i%2 == 0)
		time.Sleep(100 * time.Millisecond) // sleep: no clone is found meanwhile
		if err := c.single(n); err != nil {
			t.Fatalf("start %d: %v", i+1, err)
		}
		_ = n.Close()
	}
}
