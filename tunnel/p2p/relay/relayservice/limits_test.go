package relayservice

import (
	"fmt"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/who/identity"
)

// One member cannot take everything, and what it takes costs no other one,
// though all stand behind one address.
func TestResourcesPerPeer(t *testing.T) {
	l := Limits{MaxReservations: 10, MaxReservationsPerIP: 10, MaxCircuits: 100, MaxCircuitsPerPeer: 5, BufferSize: 4096}
	rm, err := identity.ResourceManager(l.Host())
	if err != nil {
		t.Fatal(err)
	}
	defer rm.Close()
	const greedy, modest peer.ID = "greedy", "modest"
	for i := range maxConnsPerPeer + 1 {
		c, err := rm.OpenConnection(network.DirInbound, false, ma.StringCast(fmt.Sprintf("/ip4/5.5.5.5/tcp/%d", i+1)))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Done()
		if err := c.SetPeer(greedy); (err == nil) != (i < maxConnsPerPeer) {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	most := 2*l.MaxCircuitsPerPeer + extraStreams // each circuit, and the channel beside it
	for i := range most + 1 {
		s, err := rm.OpenStream(greedy, network.DirInbound)
		if (err == nil) != (i < most) {
			t.Fatalf("stream %d: %v", i, err)
		}
		if err == nil {
			defer s.Done()
		}
	}
	c, err := rm.OpenConnection(network.DirInbound, false, ma.StringCast("/ip4/5.5.5.5/tcp/9999"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Done()
	if err := c.SetPeer(modest); err != nil {
		t.Errorf("another member: %v", err)
	}
	s, err := rm.OpenStream(modest, network.DirInbound)
	if err != nil {
		t.Fatalf("another member: %v", err)
	}
	s.Done()
}
