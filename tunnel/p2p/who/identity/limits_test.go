package identity

import (
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
)

// Strangers in the middle of a handshake are counted, members that have shown who
// they are and own dials are not, and one peer cannot take everything.
func TestResourceManagerBounds(t *testing.T) {
	lim := Limits{}.withDefaults()
	rm, err := ResourceManager(Limits{})
	if err != nil {
		t.Fatal(err)
	}
	defer rm.Close()
	from := ma.StringCast("/ip4/203.0.113.7/tcp/4001") // a site behind one NAT
	open := func(dir network.Direction) (network.ConnManagementScope, error) {
		return rm.OpenConnection(dir, true, from)
	}
	for i := range 2 * lim.Handshakes { // members come and go through the handshake
		c, err := open(network.DirInbound)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		if err := c.SetPeer(peer.ID(string(rune(i)) + "member")); err != nil {
			t.Fatalf("member %d: %v", i, err)
		}
	}
	var waiting []network.ConnManagementScope
	for i := range transient * lim.Handshakes {
		c, err := open(network.DirInbound)
		if err != nil {
			t.Fatalf("handshake %d: %v", i, err)
		}
		waiting = append(waiting, c)
	}
	if _, err := open(network.DirInbound); err == nil {
		t.Errorf("%d handshakes at the same time", transient*lim.Handshakes+1)
	}
	c, err := open(network.DirOutbound)
	if err != nil {
		t.Fatalf("own dial beside them: %v", err)
	}
	c.Done()
	waiting[0].Done()
	if _, err := open(network.DirInbound); err != nil {
		t.Errorf("after one of them ended: %v", err)
	}
	waiting[1].Done()

	for i := range lim.PeerConns + 1 {
		c, err := open(network.DirOutbound)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.SetPeer("greedy"); (err == nil) != (i < lim.PeerConns) {
			t.Errorf("connection %d of one peer: %v", i, err)
		}
	}
	for i := range lim.PeerStreams + 1 {
		s, err := rm.OpenStream("greedy", network.DirInbound)
		if (err == nil) != (i < lim.PeerStreams) {
			t.Errorf("stream %d of one peer: %v", i, err)
		}
		if err != nil {
			break
		}
		if err := s.SetProtocol("/x"); err != nil {
			t.Fatal(err)
		}
	}
}
