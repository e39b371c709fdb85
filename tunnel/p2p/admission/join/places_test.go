package join

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/who/refusals"
)

// fakeConn is a connection that only has ends.
type fakeConn struct {
	network.Conn
	peer peer.ID
	addr ma.Multiaddr
}

func (c *fakeConn) RemotePeer() peer.ID           { return c.peer }
func (c *fakeConn) RemoteMultiaddr() ma.Multiaddr { return c.addr }
func (c *fakeConn) IsClosed() bool                { return false }
func (c *fakeConn) Close() error                  { return nil }

// knock has a stranger's connection arrive; nil if it has no place.
func knock(d *Door, p peer.ID, ip string, port int) *fakeConn {
	c := &fakeConn{peer: p, addr: ma.StringCast(fmt.Sprintf("/ip4/%s/tcp/%d", ip, port))}
	if !d.Knock(p, c.addr) || !d.Connected(c) {
		return nil
	}
	return c
}

// newDoor is a door without a host; counted is how many refusals it told.
func newDoor() (d *Door, counted func() uint64) {
	book := refusals.New(slog.New(slog.DiscardHandler), nil)
	return NewDoor("relay", nil, book.Refuse, slog.New(slog.DiscardHandler)), func() (n uint64) {
		for _, c := range book.Counts() {
			n += c
		}
		return n
	}
}

// A connection's end takes no other's place, and without a place there is no staying.
func TestPlaceIsTheConnections(t *testing.T) {
	d, _ := newDoor()
	a, b := knock(d, "p", "5.5.5.5", 1), knock(d, "p", "5.5.5.5", 1)
	d.Disconnected(a)
	stray := &fakeConn{peer: "p", addr: a.addr}
	if got := d.strays([]network.Conn{b, stray}); !d.Waits("p") || len(got) != 1 || got[0] != stray {
		t.Errorf("waits %v, strays %v; want true and the one that never knocked", d.Waits("p"), got)
	}
	d.admit(b, secretN(1))
	if got := d.strays([]network.Conn{b, stray}); !d.Admitted("p") || len(got) != 1 || got[0] != stray {
		t.Errorf("admitted %v, strays %v; want true and the one that proved nothing itself", d.Admitted("p"), got)
	}
}

// However many connections strangers have, another address gets a place and keeps it, and so do peers that were in before.
func TestPlacesAreShared(t *testing.T) {
	for _, hosts := range []int{1, 200, 2000} {
		t.Run(fmt.Sprint(hosts, " hosts"), func(t *testing.T) {
			d, counted := newDoor()
			flood := func(from, to int) {
				for i := from; i < to; i++ {
					knock(d, peer.ID(fmt.Sprint("stranger ", i)), fmt.Sprintf("127.9.%d.%d", i%hosts/250, 1+i%hosts%250), 10000+i%50000)
				}
			}
			flood(0, 5000)
			c := knock(d, "member", "5.5.5.6", 1)
			if c == nil {
				t.Fatal("a peer at another address has no place")
			}
			flood(5000, 5300) // while it proves the secret
			if d.strangers.Len() != maxStrangers || counted() != 5301-maxStrangers || !d.Waits("member") {
				t.Fatalf("%d of %d places are taken, %d are refused, the member waits: %v", d.strangers.Len(), maxStrangers, counted(), d.Waits("member"))
			}
			d.admit(c, secretN(1))
			flood(6000, 12000)
			for i := range maxAtHome {
				if knock(d, peer.ID(fmt.Sprint("neighbour ", i)), "5.5.5.6", 100+i) == nil {
					t.Fatalf("peer %d from a member's address has no place", i)
				}
			}
			for i := range maxPerPeer + 1 {
				if got := knock(d, "member", "127.9.0.1", 100+i); (got != nil) != (i < maxPerPeer) {
					t.Errorf("connection %d of a peer that was in before: %v", i, got)
				}
			}
			d.Disconnected(c)
			d.late(time.Now().Add(2 * patience))
			if len(d.visitors)+d.strangers.Len()+d.atHome.Len() != 0 {
				t.Errorf("left behind: %d visitors, %d strangers, %d at home", len(d.visitors), d.strangers.Len(), d.atHome.Len())
			}
		})
	}
}
