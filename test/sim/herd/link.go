package herd

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	pbv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/util"
	"github.com/libp2p/go-libp2p/p2p/protocol/identify"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	mss "github.com/multiformats/go-multistream"
	"github.com/quic-go/quic-go"

	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/base/mux"
	"edgemesh/tunnel/p2p/carrier/socket"
	"edgemesh/tunnel/p2p/relay/relays"
	"edgemesh/tunnel/p2p/who/identity"
)

const (
	maxMessage = 4096
	// As in package dialer.
	quicKeepAlive   = 15 * time.Second
	quicIdleTimeout = 30 * time.Second
	pings           = 3
)

// stream is one of either transport.
type stream interface {
	io.ReadWriteCloser
	SetDeadline(t time.Time) error
	reset()
}

// link is a connection to the relay.
type link struct {
	open   func(ctx context.Context) (stream, error)
	accept func() (stream, error)
	close  func()
	ended  chan struct{} // closed when accept has failed
}

// muxed is a stream over TCP.
type muxed struct{ network.MuxedStream }

func (s muxed) reset() { _ = s.Reset() }

// header is what a relay sends unasked, before the handshake has its turn.
const header = "\x13/multistream/1.0.0\n"

// begun has c end its handshake when that has not begun in time, or lasts.
type begun struct {
	net.Conn
	read int // bytes
	late *time.Timer
}

func (b *begun) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	if before := b.read <= len(header); before && n > 0 {
		if b.read += n; b.read > len(header) && b.late.Stop() {
			b.late.Reset(relays.DialTimeout)
		}
	}
	return n, err
}

func (m *Member) dialTCP(ctx context.Context, r Relay) (*link, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: m.at.site.AsSlice()}, KeepAlive: -1, Timeout: relays.DialTimeout}
	raw, err := d.DialContext(ctx, "tcp", r.At.String())
	if err != nil {
		return nil, err
	}
	patience := relays.DialTimeout
	if m.herd.TCPFirst {
		patience = conns.TurnLatest
	}
	c := &begun{Conn: raw, late: time.AfterFunc(patience, func() { raw.Close() })}
	defer func() { c.late.Stop() }()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	if err := mss.SelectProtoOrFail(libp2ptls.ID, c); err != nil {
		c.Close()
		return nil, fmt.Errorf("choose TLS: %w", err)
	}
	s, err := m.tls.SecureOutbound(ctx, c, r.ID)
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("TLS: %w", err)
	}
	// As agents do: the kernel keeps the connection alive, so a relay that stands still loses nobody.
	socket.KeepAlive(raw, time.Minute)
	y, err := identity.Muxer().Quiet(func(peer.ID, net.Addr) time.Duration { return mux.KernelKeepAlive }).NewConn(s, false, &network.NullScope{})
	if err != nil {
		s.Close()
		return nil, err
	}
	wrap := func(s network.MuxedStream, err error) (stream, error) {
		if err != nil {
			return nil, err
		}
		return muxed{s}, nil
	}
	return &link{
		open:   func(ctx context.Context) (stream, error) { return wrap(y.OpenStream(ctx)) },
		accept: func() (stream, error) { return wrap(y.AcceptStream()) },
		close:  func() { _ = y.Close() }, ended: make(chan struct{}),
	}, nil
}

// quicStream is a stream over QUIC.
type quicStream struct{ *quic.Stream }

func (s quicStream) reset() { s.CancelRead(0); s.CancelWrite(0) }

func (s quicStream) Close() error {
	s.CancelRead(0)
	return s.Stream.Close()
}

func (m *Member) dialQUIC(ctx context.Context, r Relay) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, relays.DialTimeout)
	defer cancel()
	t, err := m.herd.socket(m.at)
	if err != nil {
		return nil, err
	}
	tls, _ := m.quicID.ConfigForPeer(r.ID)
	c, err := t.Dial(ctx, net.UDPAddrFromAddrPort(r.At), tls, &quic.Config{MaxIncomingStreams: 256, MaxIncomingUniStreams: 5,
		KeepAlivePeriod: quicKeepAlive, MaxIdleTimeout: quicIdleTimeout, EnableDatagrams: true, EnableStreamResetPartialDelivery: true,
		Versions: []quic.Version{quic.Version1}})
	if err != nil {
		return nil, fmt.Errorf("QUIC: %w", err)
	}
	wrap := func(s *quic.Stream, err error) (stream, error) {
		if err != nil {
			return nil, err
		}
		return quicStream{s}, nil
	}
	return &link{
		open:   func(ctx context.Context) (stream, error) { return wrap(c.OpenStreamSync(ctx)) },
		accept: func() (stream, error) { return wrap(c.AcceptStream(context.Background())) },
		close:  func() { _ = c.CloseWithError(0, "") }, ended: make(chan struct{}),
	}, nil
}

// talk opens a stream for a protocol.
func (l *link) talk(ctx context.Context, name string) (stream, error) {
	s, err := l.open(ctx)
	if err != nil {
		return nil, err
	}
	if until, ok := ctx.Deadline(); ok {
		_ = s.SetDeadline(until)
	}
	if err := mss.SelectProtoOrFail(name, s); err != nil {
		s.reset()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// ping measures the relay as agents do on a new connection.
func (l *link) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, relays.DialTimeout)
	defer cancel()
	s, err := l.talk(ctx, string(ping.ID))
	if err != nil {
		return err
	}
	defer s.reset()
	buf := make([]byte, ping.PingSize)
	for range pings {
		if _, err := s.Write(buf); err != nil {
			return err
		}
		if _, err := io.ReadFull(s, buf); err != nil {
			return err
		}
	}
	return nil
}

// identify requests the identity of the relay, as a libp2p host does on each new connection.
func (l *link) identify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, relays.DialTimeout)
	defer cancel()
	s, err := l.talk(ctx, identify.ID)
	if err != nil {
		return err
	}
	defer s.Close()
	_, err = io.Copy(io.Discard, s)
	return err
}

// reserve makes or renews the reservation. The error has the relay's reason.
func (l *link) reserve(ctx context.Context) error {
	s, err := l.talk(ctx, proto.ProtoIDv2Hop)
	if err != nil {
		return err
	}
	defer s.Close()
	var msg pbv2.HopMessage
	msg.Type = pbv2.HopMessage_RESERVE.Enum()
	if err := util.NewDelimitedWriter(s).WriteMsg(&msg); err != nil {
		return err
	}
	return ok(s, &msg)
}

// ok reads the answer to a request.
func ok(s stream, msg *pbv2.HopMessage) error {
	rd := util.NewDelimitedReader(s, maxMessage)
	defer rd.Close()
	msg.Reset()
	if err := rd.ReadMsg(msg); err != nil {
		s.reset()
		return err
	}
	if msg.GetStatus() != pbv2.Status_OK {
		return fmt.Errorf("the relay says %v", msg.GetStatus())
	}
	return nil
}
