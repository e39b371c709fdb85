package gate

import (
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/tunnel/p2p/admission/pool"
)

// one is a listener and an upgrader with one connection to accept.
type one struct {
	transport.GatedMaListener
	transport.Upgrader
	gate *Gate
	conn net.Conn
}

func (o one) GateMaListener(manet.Listener) transport.GatedMaListener { return o }

func (o one) Accept() (manet.Conn, network.ConnManagementScope, error) {
	c := addressed{o.conn}
	scope, err := o.gate.OpenConnection(network.DirInbound, true, c.RemoteMultiaddr())
	return c, scope, err
}

// addressed is a connection with an address.
type addressed struct{ net.Conn }

func (addressed) LocalMultiaddr() ma.Multiaddr  { return nil }
func (addressed) RemoteMultiaddr() ma.Multiaddr { return ma.StringCast("/ip4/5.5.5.5/tcp/7") }
func (addressed) RemoteAddr() net.Addr          { return &net.TCPAddr{IP: net.IPv4(5, 5, 5, 5), Port: 7} }

func TestLateHandshakes(t *testing.T) {
	for _, c := range []struct {
		name  string
		taken int // of 64 places
		then  func(network.ConnManagementScope)
		stays time.Duration // 0: as long as one looks
	}{
		{"silent", 1, nil, calm - (calm-pressed)/64},
		{"silent among strangers", 32, nil, (calm + pressed) / 2},
		{"silent in a flood", 64, nil, pressed},
		{"says whose it is", 64, func(s network.ConnManagementScope) { _ = s.SetPeer(peer.ID("member")) }, 0},
		{"ended", 64, func(s network.ConnManagementScope) { s.Done() }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				g := newGate(64)
				g.table.homes.Add(pool.Prefix(netip.MustParseAddr("5.5.5.5")))
				for i := range c.taken - 1 { // and this one
					g.table.handshakes.Add(&conn{}, pool.Prefix(netip.AddrFrom4([4]byte{5, 6, 0, byte(i)})))
				}
				conn, scope, err := g.Upgrader(one{gate: g, conn: near}).GateMaListener(nil).Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				if c.then != nil {
					c.then(scope)
				}
				start := time.Now()
				_ = far.SetReadDeadline(start.Add(time.Minute))
				_, err = far.Read(make([]byte, 1))
				stayed := time.Since(start)
				if c.stays == 0 {
					c.stays = time.Minute
				}
				if err == nil || stayed != c.stays {
					t.Errorf("closed after %v: %v; want %v", stayed, err, c.stays)
				}
			})
		})
	}
}
