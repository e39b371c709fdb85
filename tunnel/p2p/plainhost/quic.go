package plainhost

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"io"
	"net"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	"github.com/quic-go/quic-go"
	"golang.org/x/time/rate"
)

// unverifiedRate is how many connections a second may come from addresses that have not shown that they are theirs, as
// in package quicreuse.
const unverifiedRate = 1000

// QUIC manages the UDP sockets of a host. Connections are accounted for by the resource manager from their first packet on.
type QUIC struct {
	*quicreuse.ConnManager
	// On is the transport that the manager itself would make on a socket, for those who lend it one.
	On   func(net.PacketConn) *quic.Transport
	lent []io.Closer
}

func newQUIC(c Config) (*QUIC, error) {
	var reset quic.StatelessResetKey
	var token quic.TokenGeneratorKey
	err := errors.Join(derive(c.Key, "libp2p quic stateless reset key", reset[:]), derive(c.Key, "libp2p quic token generator key", token[:]))
	if err != nil {
		return nil, err
	}
	accept := func(ctx context.Context, info *quic.ClientInfo) (context.Context, error) {
		addr, err := quicreuse.ToQuicMultiaddr(info.RemoteAddr, quic.Version1)
		if err != nil {
			addr = nil // the resource manager decides without
		}
		scope, err := c.Resources.OpenConnection(network.DirInbound, false, addr)
		if err != nil {
			return ctx, err
		}
		ctx = network.WithConnManagementScope(ctx, scope)
		context.AfterFunc(ctx, scope.Done)
		return ctx, nil
	}
	cm, err := quicreuse.NewConnManager(reset, token, append(c.QUIC,
		quicreuse.ConnContext(accept), quicreuse.VerifySourceAddress(c.Resources.VerifySourceAddress))...)
	if err != nil {
		return nil, err
	}
	few := rate.NewLimiter(unverifiedRate, unverifiedRate)
	return &QUIC{ConnManager: cm, On: func(s net.PacketConn) *quic.Transport {
		return &quic.Transport{Conn: s, TokenGeneratorKey: &token, StatelessResetKey: &reset, ConnContext: accept,
			VerifySourceAddress: func(a net.Addr) bool { return !few.Allow() || c.Resources.VerifySourceAddress(a) }}
	}}, nil
}

// derive fills out with a secret of the host's key, as libp2p does: a host that was restarted ends the connections of its
// life before.
func derive(key crypto.PrivKey, name string, out []byte) error {
	raw, err := key.Raw()
	if err != nil {
		return err
	}
	secret, err := hkdf.Key(sha256.New, raw, nil, name, len(out))
	copy(out, secret)
	return err
}

// Lend lets the manager use t on socket s, of network udp4 or udp6. Both are closed with the host.
func (q *QUIC) Lend(network string, t quicreuse.QUICTransport, s net.PacketConn) error {
	q.lent = append(q.lent, t, s)
	_, err := q.LendTransport(network, t, s)
	return err
}

// close closes all sockets; the manager leaves open what it was lent.
func (q *QUIC) close() error {
	err := q.Close()
	for _, c := range q.lent {
		err = errors.Join(err, c.Close())
	}
	return err
}
