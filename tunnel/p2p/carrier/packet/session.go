package packet

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/carrier/sealed"
)

const (
	// firstPause is the pause before datagrams are offered again, lastPause the longest: the peer may be starting,
	// which takes it a moment, or have a version without datagrams.
	firstPause, lastPause = 100 * time.Millisecond, time.Minute
	// renewEvery is how long the keys of a session are used, renewAgain the pause after a failed renewal. A session that
	// was replaced lives on for drainTime: packets for it are on their way.
	renewEvery = 24 * time.Hour
	renewAgain = 10 * time.Minute
	drainTime  = 2 * time.Second
)

// Session is the datagrams beside one QUIC connection, or beside a circuit. All methods may be called on nil, which has none.
type Session struct {
	sending
	conn network.Conn
	in   *intake
	on   *sockets
}

// Run agrees with the peer on datagrams towards it, and again when they ended while the connection lives, until that
// ends.
func (ss *Session) Run() {
	if ss == nil {
		return
	}
	for pause := time.Duration(0); ; {
		if ss.via != nil && !ss.via.await(ss.ctx) {
			return
		}
		began := time.Now()
		var err error
		if ss.in.sink.Load() != nil { // else still starting
			if err = ss.send(); ss.ctx.Err() == nil {
				ss.cfg.Log.Debug("no datagrams", "peer", ss.path.Peer(), "err", err)
			}
		}
		pause = offerPause(pause, time.Since(began))
		if ss.via != nil {
			pause = ss.via.failed(err, pause)
		}
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
	ss.now.Store(now.sender)
	defer ss.now.Store(nil)
	unused := make(chan struct{})
	if ss.via != nil {
		ss.cfg.Spawn(func() { ss.via.watch(ctx, unused) })
	}
	renew := time.NewTimer(ss.cfg.Renew)
	defer renew.Stop()
	for {
		select {
		case err := <-now.ended:
			return err
		case <-unused:
			return errUnused
		case <-renew.C:
		}
		next, err := ss.renew(ctx, now)
		if err != nil {
			ss.cfg.Log.Debug("datagrams keep their keys", "peer", ss.path.Peer(), "again", renewAgain, "err", err)
			renew.Reset(renewAgain)
			continue
		}
		now = next
		renew.Reset(ss.cfg.Renew)
	}
}

// renew begins a session in the place of another one. The two overlap: no packet is lost.
func (ss *Session) renew(ctx context.Context, before *outbound) (*outbound, error) {
	next, err := ss.begin(ctx)
	if err != nil {
		return nil, err
	}
	ss.next.Store(next.sender)
	defer ss.next.Store(nil)
	select {
	case <-next.works:
	case err = <-next.ended:
		return nil, err
	case err = <-before.ended:
		next.end()
		before.ended <- err
		return nil, err
	}
	ss.now.Store(next.sender)
	if err := before.flush(); err != nil {
		ss.cfg.Log.Debug("last datagrams under old keys", "peer", ss.path.Peer(), "err", err)
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
	r, release, err := ss.route(ctx, cancel)
	if err != nil {
		cancel()
		return nil, err
	}
	context.AfterFunc(ctx, release)
	st, largest, err := ss.offer(ctx, r, o)
	if err == nil && !ss.cfg.Spawn(func() {
		o.ended <- o.run(ctx, st, largest, o.works)
		cancel()
		_ = st.Reset()
	}) {
		err = errEnded
	}
	if err != nil {
		if ss.via != nil && errors.Is(err, network.ErrReset) {
			err = fmt.Errorf("%w (%w)", errNotYet, err)
		}
		cancel()
		if st != nil {
			ss.cfg.Spawn(func() { _ = st.Reset() })
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
func (ss *Session) offer(ctx context.Context, r route, o *outbound) (st network.Stream, largest int, err error) {
	octx, cancel := context.WithTimeout(ctx, setupTimeout)
	st, err = conns.Open(octx, ss.conn, ss.protocol())
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
	suite, secret, err := ss.secret(exportLabel, offer[1:], index, ss.cfg.Self, ss.conn.RemotePeer())
	if err != nil {
		return st, 0, err
	}
	sealer, err := sealed.NewSealer(suite, secret, index)
	if err != nil {
		return st, 0, err
	}
	o.sender = newSender(&ss.link, r, sealer)
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
		ss.cfg.Log.Debug("the peer's datagrams ended", "peer", ss.path.Peer(), "err", err)
	}
}

// receive agrees on the receiving direction, and serves it.
func (ss *Session) receive(st network.Stream) error {
	if st.Protocol() != ss.protocol() {
		return fmt.Errorf("%w: %s on this path", errBadSetup, st.Protocol())
	}
	newSink := ss.in.sink.Load()
	if newSink == nil {
		return fmt.Errorf("%w: nothing takes datagrams here yet", errBadSetup)
	}
	from := ss.conn.RemotePeer()
	if !ss.in.mayOffer(from) {
		ss.refuse(RefusedOffer, ss.path)
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
	r := newReceiver(&ss.sending, from)
	_, release, err := ss.route(ss.ctx, r.end) // with its channel the relay has this node's leave
	if err != nil {
		return err
	}
	defer release()
	for added := false; !added; added = ss.in.add(r) {
		r.index = mrand.Uint32N(sealed.MaxIndex + 1)
		suite, secret, err := ss.secret(exportLabel, offer[1:], r.index, from, ss.cfg.Self)
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
	defer ss.in.remove(r)
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
		ss.cfg.Spawn(func() { _ = st.Reset() })
	}
}

// secret is the traffic secret of one direction, and the cipher suite it is for.
func (ss *Session) secret(label string, nonce []byte, index uint32, from, to peer.ID) (suite uint16, secret []byte, err error) {
	var state tls.ConnectionState
	if ss.quic != nil {
		state = ss.quic.ConnectionState().TLS
	} else {
		state = *ss.via.tls
	}
	ctx := binary.BigEndian.AppendUint32(append([]byte(nil), nonce...), index)
	ctx = append(append(ctx, byte(len(from))), from...)
	ctx = append(append(ctx, byte(len(to))), to...)
	secret, err = state.ExportKeyingMaterial(label, ctx, sealed.SecretLen)
	if err != nil {
		return 0, nil, fmt.Errorf("export keys: %w", err)
	}
	return state.CipherSuite, secret, nil
}

// Size is the longest datagram that can be sent now, bytes; 0: none. The caller is about to send some.
func (ss *Session) Size() int {
	if ss != nil && ss.via != nil {
		ss.via.want()
	}
	return ss.size()
}

func (ss *Session) size() int {
	if ss == nil {
		return 0
	}
	if o := ss.now.Load(); o != nil {
		return max(int(o.size.Load())-o.overhead(), 0)
	}
	return 0
}

// Put sends b, no later than with the next Flush. Its first byte is below 128. The error is ErrNoDatagrams, after which
// everything else can still be used, or the socket's.
func (ss *Session) Put(b []byte) error {
	if ss == nil {
		return ErrNoDatagrams
	}
	o := ss.now.Load()
	if o == nil {
		return ErrNoDatagrams
	}
	err := o.put(b)
	if ss.now.Load() != o && err == nil { // it was replaced meanwhile
		err = o.flush()
	}
	return err
}

// Flush sends what was put. An error says that some of it is lost.
func (ss *Session) Flush() error {
	if ss == nil {
		return nil
	}
	if o := ss.now.Load(); o != nil {
		return o.flush()
	}
	return nil
}

// Confirm makes the search confirm the size in use, whether or not the path is used.
func (ss *Session) Confirm() {
	if ss == nil {
		return
	}
	if o := ss.now.Load(); o != nil {
		o.confirm.Wake()
	}
}
