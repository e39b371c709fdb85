package clones

import (
	"testing"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
)

// relayHost is a witness' host: what is connected to it.
type relayHost struct {
	host.Host
	seen *relayNet
}

type relayNet struct {
	network.Network
	conns []network.Conn
}

func (h relayHost) Network() network.Network           { return h.seen }
func (n *relayNet) ConnsToPeer(peer.ID) []network.Conn { return n.conns }

type placeConn struct {
	network.Conn
	closed bool
}

func (*placeConn) RemotePeer() peer.ID { return "node" }
func (c *placeConn) IsClosed() bool    { return c.closed }

// TestStandsBy: circuits avoid a machine that lost only as long as one that did not is connected: it may have taken over since.
func TestStandsBy(t *testing.T) {
	a, b, third := &placeConn{}, &placeConn{}, &placeConn{}
	h := &relayNet{conns: []network.Conn{a, b}}
	w := &Witness{Host: relayHost{seen: h}, Found: func(Pair, bool) {}, at: map[network.Conn]string{a: "a", b: "b", third: "c"}, busy: map[string]bool{}, lost: map[string]bool{}}
	check := func(when string, want ...network.Conn) {
		t.Helper()
		for _, c := range h.conns {
			stands := false
			for _, x := range want {
				stands = stands || x == c
			}
			if got := w.StandsBy(c); got != stands {
				t.Errorf("%s: %s stands by: %v", when, w.at[c], got)
			}
		}
	}
	pair := func(keeps, stands string) Pair {
		return Pair{Peer: "node", Keeps: At{Instance: keeps}, StandsBy: At{Instance: stands}}
	}
	check("before")
	w.note(pair("a", "b"))
	check("b lost", b)
	h.conns = append(h.conns, third)
	w.note(pair("a", "c"))
	check("two lost", b, third)
	h.conns = []network.Conn{b}
	check("the one that keeps the traffic is gone")
	h.conns = []network.Conn{a, b}
	a.closed = true
	check("it is closed")
	a.closed = false
	w.note(pair("b", "a"))
	check("the other one keeps it", a)
}
