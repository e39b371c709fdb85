// Package relaytest runs a relay inside a test: edgemesh-relay's own service on a plain
// libp2p host, for every client. What edgemesh-relay refuses, and what it listens on, is
// tested in package relay.
package relaytest

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	"github.com/quic-go/quic-go"

	"edgemesh/internal/keytest"
	"edgemesh/tunnel/p2p/base/mux"
	"edgemesh/tunnel/p2p/base/stun"
	"edgemesh/tunnel/p2p/carrier/packet"
	"edgemesh/tunnel/p2p/relay/relayservice"
	"edgemesh/tunnel/p2p/who/identity"
)

// limits are far above what a test makes.
var limits = relayservice.Limits{
	MaxReservations:      10_000,
	MaxReservationsPerIP: 10_000,
	MaxCircuits:          10_000,
	MaxCircuitsPerPeer:   10_000,
	BufferSize:           64 << 10,
}

// Relay is a running relay. Close it.
type Relay struct {
	host.Host
	closeQUIC func() error // once: a second one would panic
	service   *relayservice.Service
	stun      *stun.Service

	controller atomic.Pointer[peer.ID]
	share      atomic.Int64
}

// Share has the relay call itself crowded from so many reservations on.
func (r *Relay) Share(n int) { r.share.Store(int64(n)) }

// Knows has the relay take p for a controller.
func (r *Relay) Knows(p peer.ID) { r.controller.Store(&p) }

// Start starts a relay with this key on these addresses. It does not know its bandwidth.
func Start(key crypto.PrivKey, listen ...string) (*Relay, error) {
	return start(key, limits, listen...)
}

func start(key crypto.PrivKey, limits relayservice.Limits, listen ...string) (*Relay, error) {
	resources, err := identity.ResourceManager(identity.Limits{})
	if err != nil {
		return nil, err
	}
	manager, err := identity.ConnManager()
	if err != nil {
		return nil, err
	}
	self, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return nil, err
	}
	packets := packet.New(packet.Config{Self: self, Log: slog.New(slog.DiscardHandler), Spawn: func(f func()) bool { go f(); return true }})
	var udp *quicreuse.ConnManager
	h, err := libp2p.New(
		libp2p.Identity(key),
		libp2p.ListenAddrStrings(listen...),
		libp2p.Muxer(mux.ID, identity.RelayMuxer()),
		libp2p.ResourceManager(resources),
		libp2p.ConnectionManager(manager),
		libp2p.ForceReachabilityPublic(),
		libp2p.DisableMetrics(),
		libp2p.QUICReuse(func(reset quic.StatelessResetKey, token quic.TokenGeneratorKey) (*quicreuse.ConnManager, error) {
			var err error
			udp, err = quicreuse.NewConnManager(reset, token, quicreuse.OverrideListenUDP(packets.Listen))
			return udp, err
		}),
	)
	if err != nil {
		return nil, err
	}
	r := &Relay{Host: h, closeQUIC: sync.OnceValue(udp.Close)}
	if r.service, err = relayservice.Start(relayservice.Config{
		Host:     h,
		Limits:   limits,
		Packets:  packets,
		IsMember: func(peer.ID) bool { return true },
		IsKnown:  func(peer.ID) bool { return true },
		Relays:   func() []peer.AddrInfo { return nil },
		Share:    func() int { return int(r.share.Load()) },
		Controllers: relayservice.Controllers{
			Is:     func(p peer.ID) bool { c := r.controller.Load(); return c != nil && *c == p },
			MayAsk: func(peer.ID) bool { return true },
		},
	}); err != nil {
		return nil, errors.Join(err, h.Close(), r.closeQUIC())
	}
	if r.stun, err = stun.Start(udp, h.Network().ListenAddresses(), slog.New(slog.DiscardHandler)); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Loopback starts a relay on loopback, over TCP and QUIC, that ends with the test.
func Loopback(t testing.TB) (*Relay, peer.AddrInfo) {
	t.Helper()
	return LoopbackFor(t, limits.MaxReservations)
}

// LoopbackFor is Loopback of a relay that so many members can have reservations at.
func LoopbackFor(t testing.TB, reservations int) (*Relay, peer.AddrInfo) {
	t.Helper()
	key, _ := keytest.New(t)
	few := limits
	few.MaxReservations = reservations
	r, err := start(key, few, "/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() }) // a test may have closed it before
	return r, r.Info()
}

// Info is how the relay is reached.
func (r *Relay) Info() peer.AddrInfo {
	return peer.AddrInfo{ID: r.ID(), Addrs: r.Network().ListenAddresses()}
}

// Close ends the relay with all that it serves.
func (r *Relay) Close() error {
	if r.stun != nil {
		r.stun.Close()
	}
	return errors.Join(r.service.Close(), r.Host.Close(), r.closeQUIC())
}
