package knock

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

// one is a listener and an upgrader with one connection to accept.
type one struct {
	transport.GatedMaListener
	transport.Upgrader
	conn net.Conn
}

func (o one) GateMaListener(manet.Listener) transport.GatedMaListener { return o }

func (o one) Accept() (manet.Conn, network.ConnManagementScope, error) {
	return addressed{o.conn}, &network.NullScope{}, nil
}

// addressed is a connection without addresses: nobody asks for them.
type addressed struct{ net.Conn }

func (addressed) LocalMultiaddr() ma.Multiaddr  { return nil }
func (addressed) RemoteMultiaddr() ma.Multiaddr { return nil }

func TestLateHandshakes(t *testing.T) {
	for _, c := range []struct {
		name  string
		taken int // of 64 places
		then  func(network.ConnManagementScope)
		stays time.Duration // 0: as long as one looks
	}{
		{"silent", 0, nil, calm},
		{"silent among strangers", 32, nil, (calm + pressed) / 2},
		{"silent in a flood", 64, nil, pressed},
		{"says whose it is", 64, func(s network.ConnManagementScope) { _ = s.SetPeer(peer.ID("member")) }, 0},
		{"ended", 64, func(s network.ConnManagementScope) { s.Done() }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				g := New(&network.NullResourceManager{}, Config{Places: 64})
				g.pool.taken = c.taken
				conn, scope, err := g.Upgrader(one{conn: near}).GateMaListener(nil).Accept()
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
