package p2p

import (
	"context"
	"fmt"
	"math/rand/v2"

	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/members"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
)

// dialAndInject dials p at e from the listening port and hands the connection to
// the swarm.
func (n *Node) dialAndInject(ctx context.Context, e endpoint.Endpoint, p peer.ID) error {
	return n.dialAddr(ctx, e.Multiaddr(), p)
}

// dialAddr dials p at a, which may be a circuit, beside whatever connections
// there are already. The connection is usable once connected is called.
func (n *Node) dialAddr(ctx context.Context, a ma.Multiaddr, p peer.ID) error {
	if !n.gater.InterceptAddrDial(p, a) {
		return fmt.Errorf("dial %s: %w", a, members.ErrNotMember)
	}
	t := n.sw.TransportForDialing(a)
	if t == nil {
		return fmt.Errorf("dial %s: no transport", a)
	}
	c, err := t.Dial(ctx, a, p)
	if err != nil {
		return err
	}
	return n.inj.inject(c)
}

// simultaneous makes TCP dials with ctx halves of a simultaneous connect: the
// client side is the one that speaks first.
func simultaneous(ctx context.Context, client bool) context.Context {
	return network.WithSimultaneousConnect(ctx, client, "punch")
}

// listensOn says whether a listening socket is bound to e's port.
func (n *Node) listensOn(e endpoint.Endpoint) bool {
	for _, a := range n.ListenAddrs() {
		if l, ok := endpoint.Parse(a); ok && l.UDP == e.UDP && l.Addr.Port() == e.Addr.Port() {
			return true
		}
	}
	return false
}

func randomToken() uint64 { return rand.Uint64() }
