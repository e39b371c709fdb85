package gate

import (
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"edgemesh/tunnel/p2p/admission/join"
	"edgemesh/tunnel/p2p/who/refusals"
)

// ServeJoin is the relay's side of the join protocol, on one stream.
func (g *Gate) ServeJoin(s network.Stream) {
	nc := s.Conn()
	g.mu.Lock()
	if c := scope(nc); c != nil {
		c.to(asking)
	}
	secrets := slices.Clone(g.pre.secrets)
	g.mu.Unlock()
	secret, err := join.Verify(s, secrets)
	switch {
	case err != nil:
		_ = s.Reset()
		g.refuse(nc, refusals.BrokenProof)
		return
	case secret == (join.Secret{}):
		g.refuse(nc, refusals.WrongSecret)
	default:
		g.proved(nc, secret)
	}
	if join.Answer(s, secret) != nil {
		_ = s.Reset()
	}
}

// proved admits a connection that has proved s.
func (g *Gate) proved(nc network.Conn, s join.Secret) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := scope(nc)
	if c == nil || nc.IsClosed() || g.cfg.Policy.judge(c.peer) != MayWait || !c.mayProve() && c.secret == (join.Secret{}) {
		return
	}
	c.secret = s
	g.admit(c)
	g.pre.remembered.Add(c.peer)
	if c.direct {
		g.homes.Add(c.site)
	}
}

// refuse counts a failed proof, and leaves the connection lastWords unless it is admitted.
func (g *Gate) refuse(nc network.Conn, reason string) {
	g.mu.Lock()
	if c := scope(nc); c != nil && (c.to(refused) || c.state == refused) {
		c.deadline = time.Now().Add(lastWords)
	}
	g.mu.Unlock()
	g.cfg.Refused(reason, nc.RemotePeer(), nc.RemoteMultiaddr().String())
}

// SetSecrets replaces the secrets. Connections that proved one which is gone are closed: their peers may come back with
// another.
func (g *Gate) SetSecrets(secrets []join.Secret) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pre.secrets = secrets
	for _, of := range g.peers {
		for _, c := range slices.Clone(of.conns) {
			if c.secret != (join.Secret{}) && !slices.Contains(secrets, c.secret) {
				g.leave(c)
				g.closing.close(c.conn)
			}
		}
	}
}
