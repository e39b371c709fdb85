package enroll

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/proxy"
	"edgemesh/internal/resolve"
	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/admission/transcript"
	"edgemesh/tunnel/p2p/who/identity"
)

const (
	// patience bounds one exchange, on either side; tryTime everything that the edge tries: a relay keeps a peer that is not
	// a member no longer.
	patience = 15 * time.Second
	tryTime  = 20 * time.Second
)

// ErrNobody means that no controller was reached.
var ErrNobody = errors.New("no controller could be reached")

// Via is how controllers are reached.
type Via struct {
	Relays      []peer.AddrInfo
	Controllers []peer.ID
	Greet       Greet          // nil: no relay requires anything
	Proxy       *proxy.Egress  // egress through an HTTP proxy; nil: there is none
	Names       *resolve.Names // nil: package net's
}

// Greet does what a relay requires on a new connection before it serves this host: it proves a join secret.
type Greet func(ctx context.Context, toRelay network.Conn) error

// connect connects h to a relay, which admits it.
func connect(ctx context.Context, h host.Host, relay peer.AddrInfo, greet Greet) error {
	was := h.Network().Connectedness(relay.ID) == network.Connected
	h.Peerstore().AddAddrs(relay.ID, relay.Addrs, peerstore.TempAddrTTL)
	// Not with the host's Connect, which waits for identify: the relay keeps that stream waiting until it is greeted.
	c, err := h.Network().DialPeer(ctx, relay.ID)
	if err != nil {
		return fmt.Errorf("connect to the relay: %w", err)
	}
	if was || greet == nil {
		return nil
	}
	if err := greet(ctx, c); err != nil {
		_ = h.Network().ClosePeer(relay.ID) // so that the next try proves again
		return err
	}
	return nil
}

// each calls try with every controller over every relay until it succeeds, or ctx ends. The error wraps ErrNobody.
func (v Via) each(try func(relay peer.AddrInfo, controller peer.ID) error) error {
	var errs []error
	for _, relay := range v.Relays {
		for _, controller := range v.Controllers {
			err := try(relay, controller)
			if err == nil {
				return nil
			}
			errs = append(errs, fmt.Errorf("controller %s by relay %s: %w", controller, relay.ID, err))
		}
	}
	return fmt.Errorf("%w: %d relays, %d controllers: %w", ErrNobody, len(v.Relays), len(v.Controllers), wording.Join(errs...))
}

// host makes the libp2p host of an edge. Circuits to this node end at its agent's host, which has the same key.
func (v Via) host(key crypto.PrivKey) (host.Host, error) {
	// It dials all that it is connected to, relays and controllers.
	g, err := newGate(func(peer.ID) bool { return true }, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	h, err := newHost(key, v.Proxy, v.Names, g)
	if err != nil {
		return nil, err
	}
	h.RemoveStreamHandler(proto.ProtoIDv2Stop)
	return h, nil
}

// Do has one of the controllers write r for the node that cert names, over one of the relays. It uses a libp2p host of its
// own for that time: a node has none before it is a member. The error wraps ErrNobody.
func Do(ctx context.Context, key crypto.PrivKey, cert *tls.Certificate, via Via, r Request) (a Answer, err error) {
	request, err := json.Marshal(r)
	if err != nil {
		return a, fmt.Errorf("encode %s %s: %w", r.Method, r.Path, err)
	}
	h, err := via.host(key)
	if err != nil {
		return a, err
	}
	defer h.Close()
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	err = via.each(func(relay peer.AddrInfo, controller peer.ID) (err error) {
		a, err = over(ctx, h, relay, controller, via.Greet, request, cert)
		return err
	})
	return a, err
}

// over sends the request to controller over relay.
func over(ctx context.Context, h host.Host, relay peer.AddrInfo, controller peer.ID, greet Greet, request []byte, cert *tls.Certificate) (Answer, error) {
	ctx = network.WithAllowLimitedConn(ctx, "enroll")
	if err := circuit(ctx, h, relay, controller, greet); err != nil {
		return Answer{}, err
	}
	s, err := h.NewStream(ctx, controller, identity.EnrollProtocol)
	if err != nil {
		return Answer{}, err
	}
	defer func() { _ = s.Reset() }()
	if err := s.SetDeadline(time.Now().Add(patience)); err != nil {
		return Answer{}, err
	}
	stop := context.AfterFunc(ctx, func() { _ = s.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	return exchange(s, request, cert)
}

// circuit connects h to controller over relay.
func circuit(ctx context.Context, h host.Host, relay peer.AddrInfo, controller peer.ID, greet Greet) error {
	if err := connect(ctx, h, relay, greet); err != nil {
		return err
	}
	return h.Connect(ctx, peer.AddrInfo{ID: controller, Addrs: []ma.Multiaddr{ma.StringCast("/p2p/" + relay.ID.String() + "/p2p-circuit")}})
}

// exchange is the edge's side of the protocol.
func exchange(s network.Stream, request []byte, cert *tls.Certificate) (a Answer, err error) {
	t, err := transcript.ForProver(s.Conn(), identity.EnrollProtocol)
	if err != nil {
		return a, err
	}
	if err := t.ReadChallenge(s); err != nil {
		return a, err
	}
	m, err := sign(t, request, cert)
	if err != nil {
		return a, err
	}
	out, err := m.marshal()
	if err != nil {
		return a, err
	}
	if _, err := s.Write(out); err != nil {
		return a, fmt.Errorf("write request: %w", err)
	}
	answer, err := readField(s, MaxAnswer)
	if err != nil {
		return a, fmt.Errorf("read answer: %w", err)
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return a, fmt.Errorf("%w: answer: %w", errMessage, err)
	}
	return a, nil
}
