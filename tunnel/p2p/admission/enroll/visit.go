package enroll

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/who/identity"
)

// errEnded means that the controller, or the relay between, ended a visit.
var errEnded = errors.New("the connection to the controller has ended")

// Stream is a stream between a controller and a member that visits it.
type Stream struct{ network.Stream }

// Reset ends it.
func (s Stream) Reset() { _ = s.Stream.Reset() }

// Visit connects to one of the controllers over one of the relays, and stays until ctx ends or the connection does. The
// controller may open streams for the observe protocol, which serve answers; nobody else may. It uses a libp2p host of its own,
// as Do does: the controller is not a member, so the agent's host would refuse it. The error wraps ErrNobody if none is reached.
func Visit(ctx context.Context, key crypto.PrivKey, via Via, serve func(controller peer.ID, s Stream)) error {
	h, err := via.host(key)
	if err != nil {
		return err
	}
	defer h.Close()
	h.SetStreamHandler(identity.ObserveProtocol, func(s network.Stream) {
		c := s.Conn().RemotePeer()
		if !slices.Contains(via.Controllers, c) {
			_ = s.Reset() // a relay's
			return
		}
		serve(c, Stream{s})
	})
	var visited peer.ID
	if err := via.each(func(relay peer.AddrInfo, controller peer.ID) error {
		soon, cancel := context.WithTimeout(network.WithAllowLimitedConn(ctx, "observe"), tryTime)
		defer cancel()
		visited = controller
		return circuit(soon, h, relay, controller, via.Greet)
	}); err != nil {
		return err
	}
	for wake.Sleep(ctx, time.Second) {
		if len(h.Network().ConnsToPeer(visited)) == 0 {
			return errEnded
		}
	}
	return nil
}

// Here reports whether a member is visiting this controller.
func (c *Controller) Here(member peer.ID) bool { return len(c.host.Network().ConnsToPeer(member)) > 0 }

// Open opens a stream for the observe protocol to a member that is visiting. From then on it may stay.
func (c *Controller) Open(ctx context.Context, member peer.ID) (Stream, error) {
	c.known.Store(member, true)
	ctx = network.WithAllowLimitedConn(network.WithNoDial(ctx, "members visit"), "observe")
	s, err := c.host.NewStream(ctx, member, identity.ObserveProtocol)
	return Stream{s}, err
}

// Disconnect ends a member's visit.
func (c *Controller) Disconnect(member peer.ID) {
	c.known.Delete(member)
	_ = c.host.Network().ClosePeer(member)
}
