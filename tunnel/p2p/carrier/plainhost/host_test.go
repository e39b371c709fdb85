package plainhost

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/config"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/net/conngater"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	ma "github.com/multiformats/go-multiaddr"
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
func start(t *testing.T, tlsOnly bool) (*Host, crypto.PrivKey) {
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
	h, err := New(Config{Key: key, UserAgent: "plain", Muxer: identity.Muxer(), TLSOnly: tlsOnly, Guard: unguarded{rm}, Gater: gater,
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

// TestMeetsLibp2p: hosts as libp2p makes them connect by every transport and security, ping, and read who this host is.
func TestMeetsLibp2p(t *testing.T) {
	h, _ := start(t, false)
	for name, security := range map[protocol.ID]libp2p.Option{
		libp2ptls.ID: libp2p.Security(libp2ptls.ID, libp2ptls.New), noise.ID: libp2p.Security(noise.ID, noise.New)} {
		for _, a := range h.Network().ListenAddresses() {
			other, err := libp2p.New(libp2p.NoListenAddrs, libp2p.DisableMetrics(), security, libp2p.Muxer(mux.ID, identity.Muxer()))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			if err := other.Connect(ctx, peer.AddrInfo{ID: h.ID(), Addrs: []ma.Multiaddr{a}}); err != nil {
				t.Errorf("%s, %s: %v", a, name, err)
			} else if r := <-ping.Ping(ctx, other, h.ID()); r.Error != nil {
				t.Errorf("%s, %s: ping: %v", a, name, r.Error)
			} else if agent, _ := other.Peerstore().Get(h.ID(), "AgentVersion"); agent != "plain" {
				t.Errorf("%s, %s: it says it is %v", a, name, agent)
			}
			cancel()
			if err := other.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestTLSOnly: a host without Noise refuses it.
func TestTLSOnly(t *testing.T) {
	h, _ := start(t, true)
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
	h, key := start(t, false)
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
	h, _ := start(t, false)
	other, _ := start(t, false)
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
