package gate

import (
	"net/netip"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/transport"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/tunnel/p2p/admission/pool"
)

// A handshake over TCP may last calm while slots are free, and pressed when all are taken: it takes three round trips, and
// the first lost segment comes again after a second.
const (
	calm    = 10 * time.Second
	pressed = 4 * time.Second
)

// Upgrader returns up with limits for the connections that its listeners accept: they are closed unless their peers are
// authenticated in time, and take turns.
func (g *Gate) Upgrader(up transport.Upgrader) transport.Upgrader { return upgrader{up, g} }

type upgrader struct {
	transport.Upgrader
	gate *Gate
}

// GateMaListener implements transport.Upgrader.
func (u upgrader) GateMaListener(l manet.Listener) transport.GatedMaListener {
	return inTime{u.Upgrader.GateMaListener(l), u.gate}
}

// UpgradeGatedMaListener implements transport.Upgrader.
func (u upgrader) UpgradeGatedMaListener(t transport.Transport, l transport.GatedMaListener) transport.Listener {
	return u.Upgrader.UpgradeGatedMaListener(t, inTurns{l, u.gate})
}

// inTime accepts connections whose handshake has a time limit.
type inTime struct {
	transport.GatedMaListener
	gate *Gate
}

// Accept implements transport.GatedMaListener.
func (l inTime) Accept() (manet.Conn, network.ConnManagementScope, error) {
	c, of, err := l.GatedMaListener.Accept()
	if err != nil {
		return nil, nil, err
	}
	if s, ok := of.(*scope); ok {
		s.late = time.AfterFunc(l.gate.Patience(calm, pressed), func() { c.Close() })
		s.over = append(s.over, func() { s.late.Stop() })
	}
	return c, of, nil
}

// inTurns accepts connections that wait for their turn.
type inTurns struct {
	transport.GatedMaListener
	gate *Gate
}

// Accept implements transport.GatedMaListener.
func (l inTurns) Accept() (manet.Conn, network.ConnManagementScope, error) {
	c, of, err := l.GatedMaListener.Accept()
	if err != nil {
		return nil, nil, err
	}
	s, ok := of.(*scope)
	if _, web := c.RemoteMultiaddr().ValueForProtocol(ma.P_WS); !ok || web == nil {
		return c, of, nil // a WebSocket's own handshake is over, and its members do not know of turns
	}
	w := &queued{Conn: c, gate: l.gate, late: s.late, turn: newTurn()}
	s.over = append(s.over, w.end)
	return w, of, nil
}

// queued is a connection whose first bytes are read when its turn has come: until then the other end hears nothing but
// multistream-select's header.
type queued struct {
	manet.Conn
	gate  *Gate
	late  *time.Timer // closes it when its peer is silent; nil: something else does
	turn  *turn
	begun bool // of the goroutine that reads
}

// Read implements net.Conn.
func (w *queued) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if n > 0 && !w.begun {
		w.begun = true
		if !w.wait() {
			return 0, errTurn
		}
	}
	return n, err
}

// wait waits for the turn. The time does not count as the peer's silence.
func (w *queued) wait() bool {
	if w.late != nil && !w.late.Stop() {
		return false
	}
	at, _ := netip.ParseAddrPort(w.RemoteAddr().String())
	prefix := pool.Prefix(at.Addr())
	if !w.gate.turns.await(w.turn, prefix, w.gate.table.known(prefix)) {
		return false
	}
	if w.late != nil {
		w.late.Reset(w.gate.Patience(calm, pressed))
	}
	return true
}

func (w *queued) end() { w.gate.turns.end(w.turn) }

// Close implements net.Conn.
func (w *queued) Close() error {
	w.end()
	return w.Conn.Close()
}
