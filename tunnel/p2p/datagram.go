package p2p

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/quic-go/quic-go"
	"golang.org/x/sys/unix"

	"edgemesh/tunnel/p2p/conns"
	"edgemesh/tunnel/p2p/identity"
	"edgemesh/tunnel/p2p/sealed"
)

// A direct QUIC path also carries datagrams: sealed packets beside QUIC's own, on
// the same addresses, so that what let the one through a NAT lets the other
// through. For each direction the sender opens a stream that lives as long as its
// datagrams do:
//
//	sender    version (1) | nonce (16)
//	receiver  version (1) | index (4) | largest datagram it takes (2)
//	receiver  id (4) for every probe that arrived, where it cannot send datagrams itself
//
// Then the traffic secret is what the connection's TLS session exports for
// exportLabel and nonce, index, sender's and receiver's peer ID. A payload is the
// owner's, its first byte below ownKinds, or one of:
const (
	// kindProbe, id (4), padding: how large a datagram passes (datagram_mtu.go).
	kindProbe = 0x80
	// kindArrived, id (4): a probe did.
	kindArrived = 0x81
	ownKinds    = 0x80

	datagramVersion = 1
	offerLen        = 17
	answerLen       = 7
	exportLabel     = "EXPORTER-edgemesh-datagram"
	// maxDatagram is the longest sealed packet that is taken, bytes.
	maxDatagram = 9000
	// setupTimeout bounds offer and answer.
	setupTimeout = 5 * time.Second
	// firstPause is before datagrams are offered again, lastPause the longest: the peer may
	// be starting, which takes it a moment, or of a version that has none.
	firstPause, lastPause = 100 * time.Millisecond, time.Minute
)

var errBadSetup = errors.New("malformed datagram setup")

// DatagramSink takes the datagrams of one path from one peer. The calls come one
// after the other.
type DatagramSink interface {
	// Datagram takes one; b is valid during the call only, and may be changed.
	Datagram(b []byte)
	// Flush says that no more came with those before.
	Flush()
	// Close is the last call.
	Close()
}

// datagrams are a node's ends of all of them.
type datagrams struct {
	n      *Node
	sink   atomic.Pointer[func(peer.ID) DatagramSink]
	in     atomic.Pointer[map[uint32]*datagramIn] // by index; replaced, never changed
	trains *trainPool

	mu      sync.Mutex // guards replacing in, and sockets
	sockets map[*udpSocket]struct{}
}

func newDatagrams(n *Node) *datagrams {
	d := &datagrams{n: n, trains: newTrainPool(), sockets: map[*udpSocket]struct{}{}}
	d.in.Store(&map[uint32]*datagramIn{})
	return d
}

// SetDatagramHandler has f make the sink for each path of a member that begins to
// send datagrams. Without it no datagrams are agreed on.
func (n *Node) SetDatagramHandler(f func(peer.ID) DatagramSink) {
	n.datagrams.sink.Store(&f)
	n.h.SetStreamHandler(identity.PacketProtocol, n.datagrams.answer)
}

// listenUDP opens a marked socket that QUIC and sealed packets share.
func (d *datagrams) listenUDP(mark uint32) func(string, *net.UDPAddr) (net.PacketConn, error) {
	return func(nw string, a *net.UDPAddr) (net.PacketConn, error) {
		u, err := openUDP(mark, nw, a)
		if err != nil {
			return nil, err
		}
		return d.share(u)
	}
}

// openUDP opens a marked socket.
func openUDP(mark uint32, nw string, a *net.UDPAddr) (*net.UDPConn, error) {
	lc := net.ListenConfig{Control: socketControl(mark, false)}
	c, err := lc.ListenPacket(context.Background(), nw, a.String())
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UDPConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("listen on %s: a %T is no UDP socket", a, c)
	}
	return u, nil
}

// share makes u a socket that QUIC and sealed packets share. It closes u where that
// fails.
func (d *datagrams) share(u *net.UDPConn) (net.PacketConn, error) {
	var s *udpSocket
	s, err := newUDPSocket(u, &socketDatagrams{d: d}, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.sockets, s)
	})
	if err != nil {
		u.Close()
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sockets[s] = struct{}{}
	return s, nil
}

// socketOf finds the socket of a QUIC connection, and the local address where the
// connection knows it.
func (d *datagrams) socketOf(q *quic.Conn) (*udpSocket, netip.Addr, error) {
	local, ok := q.LocalAddr().(*net.UDPAddr)
	if !ok {
		return nil, netip.Addr{}, fmt.Errorf("%s is no UDP address", q.LocalAddr())
	}
	want := local.AddrPort()
	ip := want.Addr().Unmap()
	remote, ok := q.RemoteAddr().(*net.UDPAddr)
	if !ok {
		return nil, netip.Addr{}, fmt.Errorf("%s is no UDP address", q.RemoteAddr())
	}
	v4 := remote.AddrPort().Addr().Unmap().Is4()
	d.mu.Lock()
	defer d.mu.Unlock()
	for s := range d.sockets {
		a, ok := s.LocalAddr().(*net.UDPAddr)
		if !ok {
			continue
		}
		at := a.AddrPort()
		bound := at.Addr().Unmap()
		if at.Port() == want.Port() && (bound == ip || bound.IsUnspecified() && (bound.Is4() == v4 || bound.Is6() && v4 && !d.twin(s, at.Port()))) {
			if bound == ip {
				ip = netip.Addr{} // the kernel fills it in
			}
			return s, ip, nil
		}
	}
	return nil, netip.Addr{}, fmt.Errorf("no socket of ours is bound to %s", want)
}

// twin reports whether another socket than s has the port, as one for IPv4 beside
// one for IPv6 has. The caller holds d.mu.
func (d *datagrams) twin(s *udpSocket, port uint16) bool {
	for o := range d.sockets {
		if a, ok := o.LocalAddr().(*net.UDPAddr); ok && o != s && a.Port == int(port) {
			return true
		}
	}
	return false
}

// secret is the traffic secret of one direction.
func (p *path) datagramSecret(q *quic.Conn, nonce []byte, index uint32, from, to peer.ID) (suite uint16, secret []byte, err error) {
	state := q.ConnectionState().TLS
	ctx := binary.BigEndian.AppendUint32(append([]byte(nil), nonce...), index)
	ctx = append(append(ctx, byte(len(from))), from...)
	ctx = append(append(ctx, byte(len(to))), to...)
	secret, err = state.ExportKeyingMaterial(exportLabel, ctx, sealed.SecretLen)
	if err != nil {
		return 0, nil, fmt.Errorf("export keys: %w", err)
	}
	return state.CipherSuite, secret, nil
}

// quicConn is the QUIC connection of a direct path over QUIC, else nil.
func (p *path) quicConn() *quic.Conn {
	var q *quic.Conn
	if !p.udp || p.relayed() || !p.conn.As(&q) {
		return nil
	}
	return q
}

// sendDatagrams agrees with the peer on datagrams towards it, and again when they
// ended while the path lives, until the path ends or the peer has none.
func (p *path) sendDatagrams() {
	q := p.quicConn()
	if q == nil {
		return
	}
	for pause := time.Duration(0); ; {
		began := time.Now()
		if p.n.datagrams.sink.Load() != nil { // else still starting
			err := p.offerDatagrams(q)
			if p.ctx.Err() == nil {
				p.n.log.Debug("no datagrams", "peer", p.r.name(), "err", err)
			}
		}
		pause = offerPause(pause, time.Since(began))
		if !sleep(p.ctx, pause) {
			return
		}
	}
}

// offerPause is the pause before the next offer, after the last one lasted for a time, with
// its session if there was one.
func offerPause(before, lasted time.Duration) time.Duration {
	if before == 0 || lasted > lastPause {
		return firstPause
	}
	return min(2*before, lastPause)
}

// offerDatagrams opens one session and serves it until it ends.
func (p *path) offerDatagrams(q *quic.Conn) error {
	sock, src, err := p.n.datagrams.socketOf(q)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(p.ctx, setupTimeout)
	s, err := conns.Open(ctx, p.conn, identity.PacketProtocol)
	cancel()
	if err != nil {
		return err
	}
	defer p.n.spawn(func() { _ = s.Reset() })
	defer context.AfterFunc(p.ctx, func() { _ = s.SetDeadline(time.Unix(1, 0)) })()

	offer := [offerLen]byte{datagramVersion}
	if _, err := rand.Read(offer[1:]); err != nil {
		return fmt.Errorf("make a nonce: %w", err)
	}
	var answer [answerLen]byte
	_ = s.SetDeadline(time.Now().Add(setupTimeout))
	if _, err = s.Write(offer[:]); err == nil {
		_, err = io.ReadFull(s, answer[:])
	}
	if err != nil {
		return fmt.Errorf("agree on datagrams: %w", err)
	}
	_ = s.SetDeadline(time.Time{})
	index, largest := binary.BigEndian.Uint32(answer[1:]), int(binary.BigEndian.Uint16(answer[5:]))
	if answer[0] != datagramVersion || index > sealed.MaxIndex || largest < baseDatagram {
		return fmt.Errorf("%w: version %d, index %d, size %d", errBadSetup, answer[0], index, largest)
	}
	suite, secret, err := p.datagramSecret(q, offer[1:], index, p.n.ID(), p.r.id)
	if err != nil {
		return err
	}
	sealer, err := sealed.NewSealer(suite, secret, index)
	if err != nil {
		return err
	}
	out := newDatagramOut(p, q, sock, src, sealer)
	return out.run(s, largest)
}

// answer serves one session of a peer that sends.
func (d *datagrams) answer(s network.Stream) {
	defer d.n.spawn(func() { _ = s.Reset() })
	p := d.n.peers.pathOf(s.Conn())
	if p == nil {
		return
	}
	err := d.receive(p, s)
	if err != nil && p.ctx.Err() == nil {
		d.n.log.Debug("datagrams of the peer ended", "peer", p.r.name(), "err", err)
	}
}

func (d *datagrams) receive(p *path, s network.Stream) error {
	q, sink := p.quicConn(), d.sink.Load()
	if q == nil || sink == nil {
		return fmt.Errorf("%w: not on a direct QUIC path", errBadSetup)
	}
	defer context.AfterFunc(p.ctx, func() { _ = s.SetDeadline(time.Unix(1, 0)) })()
	var offer [offerLen]byte
	_ = s.SetDeadline(time.Now().Add(setupTimeout))
	if _, err := io.ReadFull(s, offer[:]); err != nil {
		return fmt.Errorf("read the offer: %w", err)
	}
	if offer[0] != datagramVersion {
		return fmt.Errorf("%w: version %d", errBadSetup, offer[0])
	}
	in := &datagramIn{p: p, arrived: make(chan uint32, 16)}
	if err := d.add(in, func(index uint32) error {
		suite, secret, err := p.datagramSecret(q, offer[1:], index, p.r.id, d.n.ID())
		if err != nil {
			return err
		}
		if in.opener, err = sealed.NewOpener(suite, secret); err != nil {
			return err
		}
		in.sink = (*sink)(p.r.id)
		return nil
	}); err != nil {
		return err
	}
	defer d.remove(in)
	answer := binary.BigEndian.AppendUint32([]byte{datagramVersion}, in.index)
	answer = binary.BigEndian.AppendUint16(answer, maxDatagram)
	if _, err := s.Write(answer); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	_ = s.SetDeadline(time.Time{})
	return in.serve(s)
}

// add gives in an index, has it made ready for that, and lets datagrams to it in.
func (d *datagrams) add(in *datagramIn, ready func(uint32) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := *d.in.Load()
	for in.index = mrand.Uint32N(sealed.MaxIndex + 1); old[in.index] != nil; in.index = mrand.Uint32N(sealed.MaxIndex + 1) {
	}
	if err := ready(in.index); err != nil {
		return err
	}
	d.replace(in.index, in)
	return nil
}

// replace sets or, with nil, removes an entry. The caller holds mu.
func (d *datagrams) replace(index uint32, in *datagramIn) {
	old := *d.in.Load()
	m := make(map[uint32]*datagramIn, len(old)+1)
	for i, v := range old {
		if i != index {
			m[i] = v
		}
	}
	if in != nil {
		m[index] = in
	}
	d.in.Store(&m)
}

func (d *datagrams) remove(in *datagramIn) {
	d.mu.Lock()
	d.replace(in.index, nil)
	d.mu.Unlock()
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.sink.Close()
}

// noSpace reports whether a packet is larger than the interface takes.
func noSpace(err error) bool { return errors.Is(err, unix.EMSGSIZE) }
