package p2p

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/test/fair"
	"edgemesh/test/relaytest"
	"edgemesh/tunnel/p2p/who/clones"
	"edgemesh/tunnel/p2p/who/members"
)

// copied has a relay, a peer and a key, and makes places of that key.
type copied struct {
	t   *testing.T
	key crypto.PrivKey
	m   members.Membership
	b   *Node // the peer
}

func newCopied(t *testing.T) *copied {
	t.Helper()
	_, relay := relaytest.Loopback(t)
	key, kb := newKey(t), newKey(t)
	m := members.Membership{Members: []members.Member{{Name: "a", ID: idOf(t, key)}, {Name: "b", ID: idOf(t, kb)}}, Relays: []peer.AddrInfo{relay},
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
	return &copied{t, key, m, loopbackNode(t, kb, m)}
}

// place starts one, which talks with the peer.
func (c *copied) place(original bool) *Node {
	c.t.Helper()
	n, err := New(Config{Key: c.key, Listen: addrs(c.t, "/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"), Machine: clones.Machine{Matches: original}, HostName: fmt.Sprintf("original-%v", original),
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
	for _, tc := range []struct {
		name          string
		first, second bool // the hardware matches
		firstKeeps    bool
	}{{"neither matches", false, false, true}, {"the second one's hardware matches", false, true, false}} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCopied(t)
			one := c.place(tc.first)
			if err := c.single(one); err != nil {
				t.Fatal(err)
			}
			time.Sleep(1200 * time.Millisecond) // known first, by more than counts as the same
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
			time.Sleep(1200 * time.Millisecond) // it looks, and stays where it is
			if !stands.StandsBy() || keeps.StandsBy() {
				t.Error("it took over beside the other one")
			}
			if stands.Members() != 1 {
				t.Errorf("%d members are wanted while it stands by, want 1", stands.Members())
			}
			if os.Getenv("EDGEMESH_E2E") != "full" {
				return // the rest takes its time
			}
			_ = keeps.Close()
			fair.Eventually(t, 30*time.Second, "the other one takes over", func() error {
				if stands.StandsBy() {
					return errors.New("it stands by")
				}
				return nil
			})
		})
	}
}

// TestRestartIsNoClone: a node that starts again, with its former connections half-open at the peer and the relay, is one machine.
func TestRestartIsNoClone(t *testing.T) {
	times := 3
	if os.Getenv("EDGEMESH_E2E") == "full" {
		times = 30
	}
	c := newCopied(t)
	for i := range times {
		n := c.place(i%2 == 0)
		time.Sleep(100 * time.Millisecond)
		if err := c.single(n); err != nil {
			t.Fatalf("start %d: %v", i+1, err)
		}
		_ = n.Close()
	}
}
