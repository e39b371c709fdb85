package enroll

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/causes"
	"edgemesh/tunnel/p2p/admission/transcript"
	"edgemesh/tunnel/p2p/base/proxy"
	"edgemesh/tunnel/p2p/who/identity"
)

const (
	// patience bounds one exchange, on either side; askTime all that the edge tries, which is how long a relay keeps a
	// stranger.
	patience = 15 * time.Second
	askTime  = 20 * time.Second
)

// ErrNobody means that no controller could be asked.
var ErrNobody = errors.New("no controller could be asked")

// Way is how controllers are reached.
type Way struct {
	Relays      []peer.AddrInfo
	Controllers []peer.ID
	// Greet proves to a relay at the other end of a connection what it may ask for, a join secret; nil: nothing.
	Greet Greet
	// Proxy is the way out through an HTTP proxy; nil: none.
	Proxy *proxy.Way
}

// Greet does what a relay asks for on a new connection, before it serves this host.
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

// Ask has one of the controllers write r for the node that cert names, over one of the relays. It uses a libp2p host of its
// own for that time: a node has none before it is a member. The error wraps ErrNobody.
func Ask(ctx context.Context, key crypto.PrivKey, cert *tls.Certificate, way Way, r Request) (Answer, error) {
	request, err := json.Marshal(r)
	if err != nil {
		return Answer{}, fmt.Errorf("encode %s %s: %w", r.Method, r.Path, err)
	}
	h, err := newHost(key, way.Proxy, edges)
	if err != nil {
		return Answer{}, err
	}
	defer h.Close()
	// Circuits to this node end at its agent's host, which has the same key.
	h.RemoveStreamHandler(proto.ProtoIDv2Stop)
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	var errs []error
	for _, relay := range way.Relays {
		for _, controller := range way.Controllers {
			a, err := over(ctx, h, relay, controller, way.Greet, request, cert)
			if err == nil {
				return a, nil
			}
			errs = append(errs, fmt.Errorf("controller %s by relay %s: %w", controller, relay.ID, err))
		}
	}
	return Answer{}, fmt.Errorf("%w: %d relays, %d controllers: %w", ErrNobody, len(way.Relays), len(way.Controllers), causes.Join(errs...))
}

// over asks controller over relay.
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
