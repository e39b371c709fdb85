package join

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/who/refusals"
)

const (
	// sweepEvery is how often connections are closed whose time is over.
	sweepEvery = 250 * time.Millisecond
	// enough is more than a member needs for the proof: a round trip or two.
	enough = time.Second
	// lastWords is what a refused connection has left to read the verdict.
	lastWords = time.Second
)

// Door is the relay's side: it tells peers whether their proof holds, and ends the connections of those who have none after
// patience. Until then a peer can use nothing but this protocol (Guard).
type Door struct {
	*guests
	self    peer.ID
	refused func(reason string, p peer.ID, from string) // counts and logs
	log     *slog.Logger
}

// NewDoor returns the door of relay self. refused is told of each refusal; the reasons are those of package refusals.
func NewDoor(self peer.ID, secrets []Secret, refused func(reason string, p peer.ID, from string), log *slog.Logger) *Door {
	return &Door{guests: newGuests(secrets), self: self, refused: refused, log: log}
}

// Knock gives an incoming connection of a peer that is not known otherwise a place, if there is one. The handshake has shown
// who the peer is.
func (d *Door) Knock(p peer.ID, remote ma.Multiaddr) bool {
	victim, why := d.place(p, remote, time.Now())
	if victim != nil {
		d.refused(refusals.Waiting, victim.peer, victim.addr)
		if victim.conn != nil {
			go victim.conn.Close() // else Connected will not know it
		}
	}
	if why != "" {
		d.refused(why, p, remote.String())
	}
	return why == ""
}

// Disconnected takes note that c ended. A peer that had a second for the proof and left has none: nodes without a secret do
// not wait for patience.
func (d *Door) Disconnected(c network.Conn) {
	if d.left(c, time.Now()) {
		d.refused(refusals.NoSecret, c.RemotePeer(), c.RemoteMultiaddr().String())
	}
}

// refuse tells of a failure, and leaves the connection lastWords.
func (d *Door) refuse(c network.Conn, reason string, err error) {
	d.shorten(c, time.Now())
	d.refused(reason, c.RemotePeer(), c.RemoteMultiaddr().String())
	d.log.Debug("join: refused", "peer", c.RemotePeer(), "reason", reason, "err", err)
}

// Run closes connections that do not prove the secret in time, until ctx ends. conns are all that the swarm has; listed says
// whose need no proof.
func (d *Door) Run(ctx context.Context, conns func() []network.Conn, listed func(peer.ID) bool) {
	for wake.Sleep(ctx, sweepEvery) {
		now := time.Now()
		lost := slices.DeleteFunc(conns(), func(c network.Conn) bool { return listed(c.RemotePeer()) })
		for _, c := range d.strays(lost) {
			d.end(c)
		}
		for _, c := range d.late(now) {
			if c.conn == nil {
				continue
			}
			if c.told {
				go c.conn.Close()
			} else {
				d.end(c.conn)
			}
		}
	}
}

// end closes c, which has not proved anything.
func (d *Door) end(c network.Conn) {
	d.refused(refusals.NoSecret, c.RemotePeer(), c.RemoteMultiaddr().String())
	go c.Close() // its last words may take some 100 ms
}
