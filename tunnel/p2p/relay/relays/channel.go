package relays

import (
	"context"
	"errors"
	"slices"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/carrier/packet"
	"edgemesh/tunnel/p2p/relay/forward"
)

var (
	errNoClient = errors.New("no relay of the membership")
	errNoUDP    = errors.New("the relay is not connected over UDP")
)

// Channel opens a channel to a peer at a relay, over QUIC. Where only TCP is connected it does not wait: with dial, QUIC is
// dialed as for punching, and stays as long as a channel needs it.
func (s *Set) Channel(ctx context.Context, relay, to peer.ID, dial bool) (*packet.Channel, error) {
	c := s.client(relay)
	if c == nil {
		return nil, errNoClient
	}
	all := c.conns()
	udp := slices.DeleteFunc(slices.Clone(all), func(conn network.Conn) bool { return !overUDP(conn) })
	if len(udp) > 0 {
		slices.SortStableFunc(udp, func(a, b network.Conn) int { return b.Stat().Opened.Compare(a.Stat().Opened) }) // another may be of an address that is lost
		return forward.Open(ctx, udp[0], to, s.Spawn)
	}
	if dial && len(all) > 0 && c.demand.connection() && c.demand.ask(s.Now(), c.missing(all) != 0) {
		c.wake.Wake()
	}
	return nil, errNoUDP
}
