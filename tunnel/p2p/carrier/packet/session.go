package packet

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/quic-go/quic-go"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/carrier/sealed"
	"edgemesh/tunnel/p2p/who/identity"
)

const (
	datagramVersion = 1
	offerLen        = 17
	answerLen       = 7
	exportLabel     = "EXPORTER-edgemesh-datagram"

	// A payload's first byte is the owner's below ownKinds.
	ownKinds    = 0x80
	kindProbe   = 0x80
	kindArrived = 0x81
	kindAsk     = 0x82
	kindAnswer  = 0x83

	// maxPacket is the longest sealed packet that is taken, bytes.
	maxPacket = 9000
	// setupTimeout bounds offer and answer.
	setupTimeout = 5 * time.Second
	// firstPause is the pause before datagrams are offered again, lastPause the longest: the peer may be starting,
	// which takes it a moment, or have a version without datagrams.
	firstPause, lastPause = 100 * time.Millisecond, time.Minute
	// renewEvery is how long the keys of a session are used, renewAgain the pause after a failed renewal. A session that
	// was replaced lives on for drainTime: packets for it are on their way.
	renewEvery = 24 * time.Hour
	renewAgain = 10 * time.Minute
	drainTime  = 2 * time.Second
)

// Path is the connection that datagrams go beside, as its owner sees it. Sent, Received and Heard are called for every
// batch of packets, with a lock of this package held: they must not block, nor call back.
type Path interface {
	// Peer is the peer's name in logs, Addr where it is.
	Peer() string
	Addr() string
	// Sent counts bytes of datagrams that were sent, Received those that arrived.
	Sent(bytes int)
	Received(bytes int)
	// Heard records that something arrived that is not for the owner.
	Heard()
	// Carried is how many bytes were ever sent on the path, by streams too.
	Carried() uint64
	// Narrowed says that large packets vanish while small ones arrive: an MTU black hole.
	Narrowed()
	// Broken says that the path is useless, and why.
	Broken(why string)
}

// Session is the datagrams beside one QUIC connection. All methods may be called on nil, which has none.
type Session struct {
	s    *Service
	path Path
	ctx  context.Context //nolint:containedctx // ends with the connection
	conn network.Conn
	quic *quic.Conn

	sending  atomic.Pointer[sender] // nil: none can be sent
	renewing atomic.Pointer[sender] // is to replace it; nil: none
	meter    meter
	sent     atomic.Uint64 // bytes, with headers
}

// Session returns the datagrams beside c, which ctx ends with; nil if c is not a direct QUIC connection.
func (s *Service) Session(ctx context.Context, c network.Conn, p Path) *Session {
	var q *quic.Conn
	if !endpoint.OverUDP(c.RemoteMultiaddr()) || !c.As(&q) {
		return nil
	}
	return &Session{s: s, path: p, ctx: ctx, conn: c, quic: q}
}

// Run agrees with the peer on datagrams towards it, and again when they ended while the connection lives, until that
// ends.
func (ss *Session) Run() {
	if ss == nil {
		return
	}
	for pause := time.Duration(0); ; {
		began := time.Now()
		if ss.s.sink.Load() != nil { // else still starting
			if err := ss.send(); ss.ctx.Err() == nil {
				ss.s.cfg.Log.Debug("no datagrams", "peer", ss.path.Peer(), "err", err)
			}
		}
		pause = offerPause(pause, time.Since(began))
		if !wake.Sleep(ss.ctx, pause) {
			return
		}
	}
}

// send has datagrams sent until that fails, with new keys every day.
func (ss *Session) send() error {
	ctx, cancel := context.WithCancel(ss.ctx)
	defer cancel()
	now, err := ss.begin(ctx)
	if err != nil {
		return err
	}
	ss.sending.Store(now.sender)
	defer ss.sending.Store(nil)
	defer ss.s.join(ss)()
	renew := time.NewTimer(ss.s.cfg.Renew)
	defer renew.Stop()
	for {
		select {
		case err := <-now.ended:
			return err
		case <-renew.C:
		}
		next, err := ss.renew(ctx, now)
		if err != nil {
			ss.s.cfg.Log.Debug("datagrams keep their keys", "peer", ss.path.Peer(), "again", renewAgain, "err", err)
			renew.Reset(renewAgain)
			continue
		}
		now = next
		renew.Reset(ss.s.cfg.Renew)
	}
}

// renew begins a session in the place of another one. The two overlap: no packet is lost.
func (ss *Session) renew(ctx context.Context, before *outbound) (*outbound, error) {
	next, err := ss.begin(ctx)
	if err != nil {
		return nil, err
	}
	ss.renewing.Store(next.sender)
	defer ss.renewing.Store(nil)
	select {
	case <-next.works:
	case err = <-next.ended:
		return nil, err
	case err = <-before.ended:
		next.end()
		before.ended <- err
		return nil, err
	}
	ss.sending.Store(next.sender)
	if err := before.flush(); err != nil {
		ss.s.cfg.Log.Debug("last datagrams under old keys", "peer", ss.path.Peer(), "err", err)
	}
	time.AfterFunc(drainTime, before.end)
	return next, nil
}

// outbound is a sending direction in use.
type outbound struct {
	*sender
	works chan struct{} // closed when the size is found
	ended chan error
	end   context.CancelFunc
}

// begin agrees on a sending direction, and serves it until it ends.
func (ss *Session) begin(ctx context.Context) (*outbound, error) {
	ctx, cancel := context.WithCancel(ctx)
	o := &outbound{works: make(chan struct{}), ended: make(chan error, 1), end: cancel}
	st, largest, err := ss.offer(ctx, o)
	if err == nil && !ss.s.cfg.Spawn(func() {
		o.ended <- o.run(ctx, st, largest, o.works)
		cancel()
		_ = st.Reset()
	}) {
		err = errEnded
	}
	if err != nil {
		cancel()
		if st != nil {
			ss.s.cfg.Spawn(func() { _ = st.Reset() })
		}
		return nil, err
	}
	return o, nil
}

// offerPause is the pause before the next offer, after the last one took a time, with its session if there was one.
func offerPause(before, took time.Duration) time.Duration {
	if before == 0 || took > lastPause {
		return firstPause
	}
	return min(2*before, lastPause)
}

// offer agrees on a sending direction on a stream of its own, and returns the longest packet that the peer takes. The
// stream, if there is one, is the caller's, and unusable once ctx has ended.
func (ss *Session) offer(ctx context.Context, o *outbound) (st network.Stream, largest int, err error) {
	sock, src, err := ss.s.socketOf(ss.quic)
	if err != nil {
		return nil, 0, err
	}
	octx, cancel := context.WithTimeout(ctx, setupTimeout)
	st, err = conns.Open(octx, ss.conn, identity.PacketProtocol)
	cancel()
	if err != nil {
		return nil, 0, err
	}
	context.AfterFunc(ctx, func() { _ = st.SetDeadline(time.Unix(1, 0)) })
	offer := [offerLen]byte{datagramVersion}
	if _, err := rand.Read(offer[1:]); err != nil {
		return st, 0, fmt.Errorf("make a nonce: %w", err)
	}
	var answer [answerLen]byte
	_ = st.SetDeadline(time.Now().Add(setupTimeout))
	if _, err = st.Write(offer[:]); err == nil {
		_, err = io.ReadFull(st, answer[:])
	}
	if err != nil {
		return st, 0, fmt.Errorf("agree on datagrams: %w", err)
	}
	_ = st.SetDeadline(time.Time{})
	index, largest, err := parseAnswer(answer)
	if err != nil {
		return st, 0, err
	}
	suite, secret, err := ss.secret(offer[1:], index, ss.s.cfg.Self, ss.conn.RemotePeer())
	if err != nil {
		return st, 0, err
	}
	sealer, err := sealed.NewSealer(suite, secret, index)
	if err != nil {
		return st, 0, err
	}
	o.sender = newSender(ss, sock, src, sealer)
	return st, largest, nil
}

// parseAnswer reads what the receiver of an offer says.
func parseAnswer(b [answerLen]byte) (index uint32, largest int, err error) {
	index, largest = binary.BigEndian.Uint32(b[1:]), int(binary.BigEndian.Uint16(b[5:]))
	if b[0] != datagramVersion || index > sealed.MaxIndex || largest < basePacket {
		return 0, 0, fmt.Errorf("%w: version %d, index %d, size %d", errBadSetup, b[0], index, largest)
	}
	return index, largest, nil
}

// Answer serves the receiving direction on a stream that the peer opened, until it ends. It owns the stream.
func (ss *Session) Answer(st network.Stream) {
	defer ss.end(st)()
	if err := ss.receive(st); err != nil && ss.ctx.Err() == nil {
		ss.s.cfg.Log.Debug("the peer's datagrams ended", "peer", ss.path.Peer(), "err", err)
	}
}

// receive agrees on the receiving direction, and serves it.
func (ss *Session) receive(st network.Stream) error {
	newSink := ss.s.sink.Load()
	if newSink == nil {
		return fmt.Errorf("%w: nothing takes datagrams here yet", errBadSetup)
	}
	from := ss.conn.RemotePeer()
	if !ss.s.mayOffer(from) {
		ss.s.refuse(RefusedOffer, ss.path)
		return errOffers
	}
	var offer [offerLen]byte
	_ = st.SetDeadline(time.Now().Add(setupTimeout))
	if _, err := io.ReadFull(st, offer[:]); err != nil {
		return fmt.Errorf("read the offer: %w", err)
	}
	if offer[0] != datagramVersion {
		return fmt.Errorf("%w: version %d", errBadSetup, offer[0])
	}
	r := newReceiver(ss, from)
	for added := false; !added; added = ss.s.add(r) {
		r.index = mrand.Uint32N(sealed.MaxIndex + 1)
		suite, secret, err := ss.secret(offer[1:], r.index, from, ss.s.cfg.Self)
		if err != nil {
			return err
		}
		if r.opener, err = sealed.NewOpener(suite, secret); err != nil {
			return err
		}
		if r.sink == nil {
			r.sink = (*newSink)(from)
		}
	}
	defer ss.s.remove(r)
	answer := binary.BigEndian.AppendUint32([]byte{datagramVersion}, r.index)
	answer = binary.BigEndian.AppendUint16(answer, maxPacket)
	if _, err := st.Write(answer); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	_ = st.SetDeadline(time.Time{})
	return r.serve(st)
}

// end makes st end no later than the path. The function it returns ends it now, without waiting for the network.
func (ss *Session) end(st network.Stream) func() {
	stop := context.AfterFunc(ss.ctx, func() { _ = st.SetDeadline(time.Unix(1, 0)) })
	return func() {
		stop()
		ss.s.cfg.Spawn(func() { _ = st.Reset() })
	}
}

// secret is the traffic secret of one direction, and the cipher suite it is for.
func (ss *Session) secret(nonce []byte, index uint32, from, to peer.ID) (suite uint16, secret []byte, err error) {
	state := ss.quic.ConnectionState().TLS
	ctx := binary.BigEndian.AppendUint32(append([]byte(nil), nonce...), index)
	ctx = append(append(ctx, byte(len(from))), from...)
	ctx = append(append(ctx, byte(len(to))), to...)
	secret, err = state.ExportKeyingMaterial(exportLabel, ctx, sealed.SecretLen)
	if err != nil {
		return 0, nil, fmt.Errorf("export keys: %w", err)
	}
	return state.CipherSuite, secret, nil
}

// Size is the longest datagram that can be sent now, bytes; 0: none.
func (ss *Session) Size() int {
	if ss == nil {
		return 0
	}
	if o := ss.sending.Load(); o != nil {
		return max(int(o.size.Load())-sealed.Overhead, 0)
	}
	return 0
}

// Put sends b, no later than with the next Flush. Its first byte is below 128. The error is ErrNoDatagrams, after which
// everything else can still be used, or the socket's.
func (ss *Session) Put(b []byte) error {
	if ss == nil {
		return ErrNoDatagrams
	}
	o := ss.sending.Load()
	if o == nil {
		return ErrNoDatagrams
	}
	err := o.put(b)
	if ss.sending.Load() != o && err == nil { // it was replaced meanwhile
		err = o.flush()
	}
	return err
}

// Flush sends what was put. An error says that some of it is lost.
func (ss *Session) Flush() error {
	if ss == nil {
		return nil
	}
	if o := ss.sending.Load(); o != nil {
		return o.flush()
	}
	return nil
}

// Confirm makes the search confirm the size in use, whether or not the path is used.
func (ss *Session) Confirm() {
	if ss == nil {
		return
	}
	if o := ss.sending.Load(); o != nil {
		o.confirm.Wake()
	}
}
