package relayservice

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	relayv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/keytest"
	"edgemesh/tunnel/p2p/who/identity"
)

// asked is a stream on which a peer asks for a reservation, and the connection below it.
type asked struct {
	network.Stream
	io.Reader
	by peer.ID
	at ma.Multiaddr
}

func (a *asked) Conn() network.Conn               { return &connOf{by: a.by, at: a.at} }
func (a *asked) Read(b []byte) (int, error)       { return a.Reader.Read(b) }
func (a *asked) Write(b []byte) (int, error)      { return len(b), nil }
func (a *asked) Scope() network.StreamScope       { return &network.NullScope{} }
func (a *asked) SetReadDeadline(time.Time) error  { return nil }
func (a *asked) SetWriteDeadline(time.Time) error { return nil }
func (a *asked) Close() error                     { return nil }
func (a *asked) Reset() error                     { return nil }

type connOf struct {
	network.Conn
	by peer.ID
	at ma.Multiaddr
}

func (c *connOf) RemotePeer() peer.ID           { return c.by }
func (c *connOf) RemoteMultiaddr() ma.Multiaddr { return c.at }

// everyone is a host to which all are connected.
type everyone struct{ host.Host }

func (h everyone) Network() network.Network { return allThere{h.Host.Network()} }

type allThere struct{ network.Network }

func (allThere) Connectedness(peer.ID) network.Connectedness { return network.Connected }

// BenchmarkReserve is a renewal where 10,000 hold a reservation, by one circuit relay and by shards.
func BenchmarkReserve(b *testing.B) {
	const many = 10_000
	l := Limits{MaxReservations: 2 * many, MaxReservationsPerIP: many}
	h := everyone{newHost(b, identity.RelayMuxer(), identity.Limits{})}
	opts := []relayv2.Option{relayv2.WithResources(l.resources())}
	one := &shard{Host: h}
	var err error
	if one.relay, err = relayv2.New(one, opts...); err != nil {
		b.Fatal(err)
	}
	defer one.relay.Close()
	s, err := newShards(h, h, l, func(peer.ID) bool { return true }, func(peer.ID) bool { return true }, &counter{}, opts...)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	ids := make([]peer.ID, many)
	for i := range ids {
		_, ids[i] = keytest.New(b)
	}
	for name, serve := range map[string]network.StreamHandler{"one": one.handle, "shards": s.serve} {
		ask := func(i int) {
			at := ma.StringCast(fmt.Sprintf("/ip4/5.5.%d.1/tcp/7", i%250))
			serve(&asked{by: ids[i], at: at, Reader: bytes.NewReader([]byte{2, 8, 0})})
		}
		for i := range ids {
			ask(i)
		}
		b.Run(name, func(b *testing.B) {
			for i := range b.N {
				ask(i % many)
			}
		})
	}
}
