package main

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	ma "github.com/multiformats/go-multiaddr"

	agent "edgemesh/internal/config"
	"edgemesh/internal/keytest"
	"edgemesh/internal/membership/mesh"
)

// deadline bounds every wait but those for cutOff.
const deadline = 20 * time.Second

// cutOff is how long who is no longer a member may be served.
const cutOff = 2 * time.Second

const protoEcho = "/test/echo/1"

// node is a member's libp2p host, as a relay sees it.
type node struct {
	host.Host
	t testing.TB
}

func newNode(t testing.TB) node {
	t.Helper()
	key, _ := keytest.New(t)
	return newNodeWithKey(t, key)
}

func newNodeWithKey(t testing.TB, key crypto.PrivKey, more ...libp2p.Option) node {
	t.Helper()
	h, err := libp2p.New(append(more, libp2p.Identity(key), libp2p.NoListenAddrs, libp2p.EnableRelay(), libp2p.DisableMetrics())...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	h.SetStreamHandler(protoEcho, func(s network.Stream) {
		_, _ = io.Copy(s, s)
		s.Close()
	})
	return node{h, t}
}

func (n node) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	n.t.Cleanup(cancel)
	return ctx
}

// state is a membership of nodes.
func state(nodes ...node) mesh.State {
	s := mesh.State{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Encryption: mesh.EncryptionAuto}
	for i, n := range nodes {
		s.Nodes = append(s.Nodes, mesh.Node{
			Name:     "node-" + string(rune('a'+i)),
			PeerID:   mesh.PeerID(n.ID().String()),
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24)},
		})
	}
	return s
}

// testConfig listens on loopback ports the kernel chooses.
func testConfig() config {
	return config{
		listen: multiaddrs("/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"),
		limits: agent.RelayLimits{MaxReservations: 100, MaxReservationsPerIP: 100, MaxCircuits: 100, MaxCircuitsPerPeer: 100, BufferSize: 64 << 10},
	}
}

func newTestServer(t testing.TB, c config, s mesh.State) *server {
	t.Helper()
	key, self := keytest.New(t)
	v, err := newServer(c, key, self, s, byController{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

// info is how the relay is reached over one transport, "tcp" or "quic-v1".
func (v *server) info(transport string) peer.AddrInfo {
	out := peer.AddrInfo{ID: v.host.ID()}
	for _, a := range v.host.Network().ListenAddresses() {
		if strings.Contains(a.String(), "/"+transport) {
			out.Addrs = append(out.Addrs, a)
		}
	}
	return out
}

func (n node) reserve(v *server, transport string) error {
	n.t.Helper()
	if err := n.Connect(n.ctx(), v.info(transport)); err != nil {
		return err
	}
	_, err := client.Reserve(n.ctx(), n.Host, v.info(transport))
	return err
}

// dialThrough opens an echo stream to peer through the relay.
func (n node) dialThrough(v *server, to peer.ID) (network.Stream, error) {
	n.t.Helper()
	circuit := v.info("tcp").Addrs[0].Encapsulate(ma.StringCast("/p2p/" + v.host.ID().String() + "/p2p-circuit"))
	if err := n.Connect(n.ctx(), peer.AddrInfo{ID: to, Addrs: []ma.Multiaddr{circuit}}); err != nil {
		return nil, err
	}
	s, err := n.NewStream(network.WithAllowLimitedConn(n.ctx(), "test"), to, protoEcho)
	if err == nil {
		n.t.Cleanup(func() { s.Reset() })
	}
	return s, err
}

func mustDial(t testing.TB, v *server, from, to node) network.Stream {
	t.Helper()
	if err := to.reserve(v, "tcp"); err != nil {
		t.Fatal("reserve: ", err)
	}
	s, err := from.dialThrough(v, to.ID())
	if err != nil {
		t.Fatal("dial: ", err)
	}
	return s
}

// ends reads from a circuit on which nothing is sent; what it returns is true once the circuit has ended.
func ends(s network.Stream) *atomic.Bool {
	var ended atomic.Bool
	go func() {
		_, err := s.Read(make([]byte, 1))
		ended.Store(err != nil)
	}()
	return &ended
}
