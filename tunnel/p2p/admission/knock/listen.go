package knock

import (
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	manet "github.com/multiformats/go-multiaddr/net"
)

// A handshake over TCP may last calm while there are places, and pressed when all are taken: a handshake takes three round
// trips, and the first lost segment comes again after a second.
const (
	calm    = 10 * time.Second
	pressed = 4 * time.Second
)

// Patience is how long to wait for a stranger: calm while nobody else is here, and the shorter the more places are taken,
// down to pressed.
func (g *Guard) Patience(calm, pressed time.Duration) time.Duration {
	return calm - time.Duration(g.pool.pressure()*float64(calm-pressed))
}

// Upgrader returns up with a limit to how long a connection that its listeners accept may stay without saying whose it is.
func (g *Guard) Upgrader(up transport.Upgrader) transport.Upgrader { return upgrader{up, g} }

type upgrader struct {
	transport.Upgrader
	guard *Guard
}

func (u upgrader) GateMaListener(l manet.Listener) transport.GatedMaListener {
	return listener{u.Upgrader.GateMaListener(l), u.guard}
}

type listener struct {
	transport.GatedMaListener
	guard *Guard
}

// Accept implements transport.GatedMaListener.
func (l listener) Accept() (manet.Conn, network.ConnManagementScope, error) {
	c, scope, err := l.GatedMaListener.Accept()
	if err != nil {
		return nil, nil, err
	}
	late := time.AfterFunc(l.guard.Patience(calm, pressed), func() { c.Close() })
	return c, timed{scope, late}, nil
}

// timed is the scope of a connection that is closed unless its peer is known in time.
type timed struct {
	network.ConnManagementScope
	late *time.Timer
}

// SetPeer implements network.ConnManagementScope: the handshake is over.
func (t timed) SetPeer(p peer.ID) error {
	t.late.Stop()
	return t.ConnManagementScope.SetPeer(p)
}

// Done implements network.ConnManagementScope.
func (t timed) Done() {
	t.late.Stop()
	t.ConnManagementScope.Done()
}
