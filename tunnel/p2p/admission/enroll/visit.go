package enroll

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"

	"edgemesh/internal/causes"
	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/who/identity"
)

// errEnded means that the controller, or the relay between, has ended a visit.
var errEnded = errors.New("the connection to the controller has ended")

// Stream is a stream between a controller and a member that visits it.
type Stream struct{ network.Stream }

// Reset ends it.
func (s Stream) Reset() { _ = s.Stream.Reset() }

// Visit connects to one of the controllers over one of the relays, and stays until ctx ends or the connection does. The
// controller may open streams for the observe protocol, which serve answers; nobody else may. It uses a libp2p host of its own,
// as Ask does: the controller is not a member, so the agent's would not let it in. The error wraps ErrNobody if none is reached.
func Visit(ctx context.Context, key crypto.PrivKey, way Way, serve func(controller peer.ID, s Stream)) error {
	h, err := newHost(key, way.Proxy, edges)
	if err != nil {
		return err
	}
	defer h.Close()
	h.RemoveStreamHandler(proto.ProtoIDv2Stop) // as in Ask
	h.SetStreamHandler(identity.ObserveProtocol, func(s network.Stream) {
		c := s.Conn().RemotePeer()
		if !slices.Contains(way.Controllers, c) {
			_ = s.Reset() // a relay's
			return
		}
		serve(c, Stream{s})
	})
	var errs []error
	for _, relay := range way.Relays {
		for _, c := range way.Controllers {
			err := visit(ctx, h.Network(), c, func(ctx context.Context) error { return circuit(ctx, h, relay, c, way.Greet) })
			if err == nil || errors.Is(err, errEnded) {
				return err
			}
			errs = append(errs, fmt.Errorf("controller %s by relay %s: %w", c, relay.ID, err))
		}
	}
	return fmt.Errorf("%w: %w", ErrNobody, causes.Join(errs...))
}

// visit connects, and waits for the end.
func visit(ctx context.Context, n network.Network, controller peer.ID, connect func(context.Context) error) error {
	soon, cancel := context.WithTimeout(network.WithAllowLimitedConn(ctx, "observe"), askTime)
	defer cancel()
	if err := connect(soon); err != nil {
		return err
	}
	for wake.Sleep(ctx, time.Second) {
		if len(n.ConnsToPeer(controller)) == 0 {
			return errEnded
		}
	}
	return nil
}

// Here reports whether a member visits this controller.
func (c *Controller) Here(member peer.ID) bool { return len(c.host.Network().ConnsToPeer(member)) > 0 }

// Ask opens a stream for the observe protocol to a member that visits.
func (c *Controller) Ask(ctx context.Context, member peer.ID) (Stream, error) {
	ctx = network.WithAllowLimitedConn(network.WithNoDial(ctx, "members visit"), "observe")
	s, err := c.host.NewStream(ctx, member, identity.ObserveProtocol)
	return Stream{s}, err
}

// SendAway ends a member's visit.
func (c *Controller) SendAway(member peer.ID) { _ = c.host.Network().ClosePeer(member) }
