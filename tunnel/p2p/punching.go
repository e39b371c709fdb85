package p2p

import (
	"context"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/ladder"
	"edgemesh/tunnel/p2p/punch"
)

// punched is a peer as its punching sees it.
type punched struct{ *remote }

var _ punch.Peer = punched{}

func (r punched) ID() peer.ID    { return r.id }
func (r punched) Name() string   { return r.name() }
func (r punched) Admitted() bool { return r.set.n.gater.View().IsMember(r.id) }

func (r punched) Missing() []ladder.Transport {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	return r.m.Missing()
}

func (r punched) Await(ctx context.Context, done func() bool) error {
	return r.changed.Until(ctx, done)
}

func (r punched) Offered(eps []endpoint.Endpoint, theirs ladder.NAT) {
	n := r.set.n
	mine := n.puncher.NAT()
	r.set.mu.Lock()
	r.tell(ladder.NATs{Mine: mine, Theirs: theirs})
	r.set.mu.Unlock()
	n.book.Note(r.id, eps, r.Admitted)
}

// answerPunch serves an attempt of the coordinator.
func (ps *peerSet) answerPunch(s network.Stream) {
	defer s.Reset()
	if p := ps.pathOf(s.Conn()); p != nil {
		p.r.punch.Answer(ps.n.ctx, s)
	}
}
