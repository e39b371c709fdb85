package gate

import (
	"errors"

	"github.com/libp2p/go-libp2p/core/network"

	"edgemesh/tunnel/p2p/admission/join"
	"edgemesh/tunnel/p2p/who/refusals"
)

// ServeJoin is the relay's side of the join protocol, on one stream.
func (g *Gate) ServeJoin(s network.Stream) {
	nc := s.Conn()
	at, ok := nc.Scope().(*scope)
	if !ok {
		_ = s.Reset()
		return
	}
	secret, err := join.Verify(s, g.table.verify(at.conn))
	reason := ""
	switch {
	case err != nil:
		reason = refusals.BrokenProof
	case secret == (join.Secret{}):
		reason = refusals.WrongSecret
	default:
		reason = g.table.verified(at.conn, nc, secret)
	}
	if reason != "" {
		secret = join.Secret{}
		g.table.refuse(at.conn)
		g.cfg.Refused(reason, nc.RemotePeer(), nc.RemoteMultiaddr().String())
	}
	if err != nil || reason == refusals.Connections || join.Answer(s, secret) != nil {
		_ = s.Reset()
	}
}

// ServeShown is the relay's side of showing a statement, on one stream. A connection has one try before its peer is listed.
func (g *Gate) ServeShown(s network.Stream) {
	nc := s.Conn()
	at, ok := nc.Scope().(*scope)
	if !ok || !g.cfg.IsMember(nc.RemotePeer()) && !g.table.asks(at.conn) {
		_ = s.Reset()
		return
	}
	statement, err := join.ReadShown(s, g.cfg.Policy.most)
	silent := err != nil && !errors.Is(err, join.ErrShown)
	if err == nil {
		err = g.cfg.Policy.shown(nc.RemotePeer(), statement)
	}
	if err == nil {
		g.table.list(nc.RemotePeer())
	} else {
		g.table.refuse(at.conn)
		g.cfg.Refused(refusals.Statement, nc.RemotePeer(), nc.RemoteMultiaddr().String())
	}
	if silent || join.AnswerShown(s, err) != nil {
		_ = s.Reset()
	}
}

// SetSecrets replaces the secrets. Connections that proved one which is gone are closed: their peers may come back with
// another.
func (g *Gate) SetSecrets(secrets []join.Secret) {
	for _, c := range g.table.setSecrets(secrets) {
		g.closing.close(c.conn)
	}
}
