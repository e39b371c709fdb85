package plainhost

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/config"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/net/conngater"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/quic-go/quic-go"
	"go.uber.org/goleak"

	"edgemesh/internal/keytest"
	"edgemesh/tunnel/p2p/base/mux"
	"edgemesh/tunnel/p2p/who/identity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// unguarded is a guard that admits everybody.
type unguarded struct{ network.ResourceManager }

func (unguarded) Upgrader(up transport.Upgrader) transport.Upgrader { return up }

// start makes a host that listens by TCP and QUIC on loopback.
func start(t *testing.T) (*Host, crypto.PrivKey) {
	t.Helper()
	key, _ := keytest.New(t)
	rm, err := identity.ResourceManager(identity.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	gater, err := conngater.NewBasicConnectionGater(nil)
	if err != nil {
		t.Fatal(err)
	}
	h, err := New(Config{Key: key, UserAgent: "plain", Muxer: identity.Muxer(), Guard: unguarded{rm}, Gater: gater,
		Transports: func(_ *Host, up transport.Upgrader) ([]transport.Transport, error) {
			tr, err := tcp.NewTCPTransport(up, rm, nil)
			return []transport.Transport{tr}, err
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 { // the second time does nothing
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	for _, a := range []string{"/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"} {
		if err := h.Network().Listen(ma.StringCast(a)); err != nil {
			t.Fatal(err)
		}
	}
	return h, key
}

// TestMeetsLibp2p: hosts as libp2p makes them connect by every transport, ping, and read who this host is.
func TestMeetsLibp2p(t *testing.T) {
	h, _ := start(t)
	for _, a := range h.Network().ListenAddresses() {
		other, err := libp2p.New(libp2p.NoListenAddrs, libp2p.DisableMetrics(), libp2p.Muxer(mux.ID, identity.Muxer()))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if err := other.Connect(ctx, peer.AddrInfo{ID: h.ID(), Addrs: []ma.Multiaddr{a}}); err != nil {
			t.Errorf("%s: %v", a, err)
		} else if r := <-ping.Ping(ctx, other, h.ID()); r.Error != nil {
			t.Errorf("%s: ping: %v", a, r.Error)
		} else if agent, _ := other.Peerstore().Get(h.ID(), "AgentVersion"); agent != "plain" {
			t.Errorf("%s: it says it is %v", a, agent)
		}
		cancel()
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestQUICIsPostQuantum: QUIC's key exchange is X25519MLKEM768, as that over TCP (package identity).
func TestQUICIsPostQuantum(t *testing.T) {
	h, _ := start(t)
	key, _ := keytest.New(t)
	self, err := libp2ptls.NewIdentity(key)
	if err != nil {
		t.Fatal(err)
	}
	conf, _ := self.ConfigForPeer(h.ID())
	for _, a := range h.Network().ListenAddresses() {
		port, err := a.ValueForProtocol(ma.P_UDP)
		if err != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		c, err := quic.DialAddr(ctx, "127.0.0.1:"+port, conf, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.CloseWithError(0, "") }()
		if got := c.ConnectionState().TLS.CurveID; got != tls.X25519MLKEM768 {
			t.Errorf("key exchange %v", got)
		}
		return
	}
	t.Error("it does not listen by QUIC")
}

// TestTLSOnly: who is left with Noise, because another host on the path strips TLS from the offer, is refused.
func TestTLSOnly(t *testing.T) {
	h, _ := start(t)
	other, err := libp2p.New(libp2p.NoListenAddrs, libp2p.DisableMetrics(), libp2p.Security(noise.ID, noise.New),
		libp2p.Transport(tcp.NewTCPTransport))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := other.Connect(ctx, peer.AddrInfo{ID: h.ID(), Addrs: h.Network().ListenAddresses()}); err == nil {
		t.Error("connected")
	}
}

// TestKeysAreLibp2ps: both sides of an upgrade derive the same keys, so that a host ends connections of its life before.
func TestKeysAreLibp2ps(t *testing.T) {
	h, key := start(t)
	var got Transport
	if _, err := h.QUIC.Bind(ma.StringCast("/ip4/0.0.0.0/udp/0/quic-v1"), listen, func(t Transport) quicreuse.QUICTransport {
		got = t
		return t
	}); err != nil {
		t.Fatal(err)
	}
	reset, err := config.PrivKeyToStatelessResetKey(key)
	if err != nil || *got.StatelessResetKey != reset {
		t.Errorf("key of resets is %x, want %x, %v", *got.StatelessResetKey, reset, err)
	}
	token, err := config.PrivKeyToTokenGeneratorKey(key)
	if err != nil || *got.TokenGeneratorKey != token {
		t.Errorf("key of tokens is %x, want %x, %v", *got.TokenGeneratorKey, token, err)
	}
}

func listen(network string, a *net.UDPAddr) (net.PacketConn, error) { return net.ListenUDP(network, a) }

// narrow is a socket on a link that swallows packets for more than 1280 bytes of IPv6.
type narrow struct{ net.PacketConn }

const ipv6Payload = 1280 - 40 - 8

func (n narrow) WriteTo(b []byte, to net.Addr) (int, error) {
	if len(b) > ipv6Payload {
		return len(b), nil
	}
	return n.PacketConn.WriteTo(b, to)
}

func (n narrow) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		k, from, err := n.PacketConn.ReadFrom(b)
		if k <= ipv6Payload {
			return k, from, err
		}
	}
}

// TestNarrowLink: QUIC connects and carries data over a link that swallows larger packets than every link of IPv6 takes.
func TestNarrowLink(t *testing.T) {
	const proto, size = "/echo/1", 300_000
	h, _ := start(t)
	other, _ := start(t)
	a, err := h.QUIC.Bind(ma.StringCast("/ip4/0.0.0.0/udp/0/quic-v1"), func(network string, a *net.UDPAddr) (net.PacketConn, error) {
		c, err := net.ListenUDP(network, a)
		return narrow{c}, err
	}, nil)
	if err == nil {
		err = h.Network().Listen(a)
	}
	if err != nil {
		t.Fatal(err)
	}
	h.SetStreamHandler(proto, func(s network.Stream) {
		_, _ = io.Copy(s, s)
		_ = s.Close()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	port, err := a.ValueForProtocol(ma.P_UDP)
	if err != nil {
		t.Fatal(err)
	}
	to := ma.StringCast("/ip4/127.0.0.1/udp/" + port + "/quic-v1")
	if err := other.Connect(ctx, peer.AddrInfo{ID: h.ID(), Addrs: []ma.Multiaddr{to}}); err != nil {
		t.Fatal(err)
	}
	s, err := other.NewStream(ctx, h.ID(), proto)
	if err != nil {
		t.Fatal(err)
	}
	sent := make([]byte, size)
	for i := range sent {
		sent[i] = byte(i * i >> 7)
	}
	go func() {
		_, _ = s.Write(sent)
		_ = s.CloseWrite()
	}()
	deadline, _ := ctx.Deadline()
	_ = s.SetReadDeadline(deadline)
	if got, err := io.ReadAll(s); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes came back of %d, %v", len(got), size, err)
	}
}
