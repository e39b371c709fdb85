package plainhost

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/quic-go/quic-go"
	"golang.org/x/time/rate"

	"edgemesh/tunnel/p2p/base/endpoint"
)

// unverifiedRate is how many connections a second may come from addresses that have not shown that they are theirs, as
// in package quicreuse.
const unverifiedRate = 1000

// packetSize is that of QUIC's packets, bytes of UDP payload: the least (RFC 9000, section 14), which pass every link of
// IPv6. Larger ones would be found by probing, and vanish for seconds when a link on the way begins to swallow them: QUIC
// repeats what is in them, and does not become smaller.
const packetSize = 1200

// QUIC manages the UDP sockets of a host. Connections are accounted for by the resource manager from their first packet on.
type QUIC struct {
	*quicreuse.ConnManager
	on   func(net.PacketConn) *quic.Transport // what the manager itself would make on a socket
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
		scope, err := c.Guard.OpenConnection(network.DirInbound, false, addr)
		if err != nil {
			return ctx, err
		}
		ctx = network.WithConnManagementScope(ctx, scope)
		context.AfterFunc(ctx, scope.Done)
		return ctx, nil
	}
	cm, err := quicreuse.NewConnManager(reset, token, append(c.QUIC,
		quicreuse.ConnContext(accept), quicreuse.VerifySourceAddress(c.Guard.VerifySourceAddress))...)
	if err != nil {
		return nil, err
	}
	small(cm.ClientConfig())
	few := rate.NewLimiter(unverifiedRate, unverifiedRate)
	return &QUIC{ConnManager: cm, on: func(s net.PacketConn) *quic.Transport {
		return &quic.Transport{Conn: s, TokenGeneratorKey: &token, StatelessResetKey: &reset, ConnContext: accept,
			VerifySourceAddress: func(a net.Addr) bool { return !few.Allow() || c.Guard.VerifySourceAddress(a) }}
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

// Transport is QUIC on one socket.
type Transport struct{ *quic.Transport }

var _ quicreuse.QUICTransport = Transport{}

// Listen implements quicreuse.QUICTransport.
func (t Transport) Listen(tlsConf *tls.Config, c *quic.Config) (quicreuse.QUICListener, error) {
	c = c.Clone()
	small(c)
	return t.Transport.Listen(tlsConf, c)
}

// small gives c the smallest packets.
func small(c *quic.Config) { c.InitialPacketSize, c.DisablePathMTUDiscovery = packetSize, true }

// Bind opens a socket on a, which says where to listen, and returns a with its port. A socket on all addresses, which
// listen opens, is lent to the manager, as what wrap makes of it (nil: as it is), and found when a listener wants it. On
// one address the manager takes none: its own has libp2p's settings, among them larger packets.
func (q *QUIC) Bind(a ma.Multiaddr, listen func(string, *net.UDPAddr) (net.PacketConn, error),
	wrap func(Transport) quicreuse.QUICTransport) (ma.Multiaddr, error) {
	e, _ := endpoint.Parse(a)
	if !e.UDP || !e.Addr.Addr().IsUnspecified() {
		return a, nil
	}
	family := "udp4"
	if e.Addr.Addr().Is6() {
		family = "udp6"
	}
	s, err := listen(family, net.UDPAddrFromAddrPort(e.Addr))
	if err != nil {
		return nil, err
	}
	plain := Transport{q.on(s)}
	var t quicreuse.QUICTransport = plain
	if wrap != nil {
		t = wrap(plain)
	}
	q.lent = append(q.lent, t, s) // the manager closes neither
	if _, err := q.LendTransport(family, t, s); err != nil {
		return nil, err
	}
	bound, ok := s.LocalAddr().(*net.UDPAddr)
	if !ok {
		return nil, fmt.Errorf("bound to a %T", s.LocalAddr())
	}
	e.Addr = bound.AddrPort()
	return e.Multiaddr(), nil
}

// close closes all sockets; the manager leaves open what it was lent.
func (q *QUIC) close() error {
	err := q.Close()
	for _, c := range q.lent {
		err = errors.Join(err, c.Close())
	}
	return err
}
