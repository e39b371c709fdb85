package relays

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/wake"
)

// oneConn is a host whose only connection ends when a test says so.
type oneConn struct {
	host.Host
	net netOf
}

func (h *oneConn) Network() network.Network { return &h.net }

type netOf struct {
	network.Network
	ended bool
}

func (n *netOf) ConnsToPeer(peer.ID) []network.Conn { return []network.Conn{tcpConn{ended: n.ended}} }

// tcpConn is a connection to a relay.
type tcpConn struct {
	network.Conn
	ended bool
}

func (c tcpConn) IsClosed() bool              { return c.ended }
func (tcpConn) RemoteMultiaddr() ma.Multiaddr { return ma.StringCast("/ip4/192.0.2.1/tcp/443") }

// A transport that is dialed beside the only connection is not waited for once that has ended.
func TestLostBesideADial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &oneConn{}
		c := &client{common: &common{host: h, ctx: t.Context(), changed: &wake.All{}}, ctx: t.Context()}
		r := &round{c: c, results: make(chan dialed)} // of a dial that hangs
		got := make(chan error, 1)
		go func() { got <- r.first(true) }()
		synctest.Wait()
		c.changed.Broadcast() // something else has changed
		synctest.Wait()
		select {
		case err := <-got:
			t.Fatal("the dial was not waited for:", err)
		default:
		}
		h.net.ended = true
		c.changed.Broadcast()
		if err := <-got; !errors.Is(err, errLost) {
			t.Error(err)
		}
	})
}
