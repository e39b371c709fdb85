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
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	mss "github.com/multiformats/go-multistream"
	"github.com/quic-go/quic-go"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/carrier/flight"
	"edgemesh/tunnel/p2p/carrier/sealed"
	"edgemesh/tunnel/p2p/who/identity"
)

const (
	flightVersion  = 2
	flightLabel    = "EXPORTER-edgemesh-flight"
	nonceLen       = 16                   // each end's
	flightHelloLen = 1 + nonceLen + 4 + 8 // an offer, an answer
	// silentTime is how long nothing may be acknowledged until a path is left, seconds, narrowTime until it is asked whether its large
	// packets vanish.
	silentTime, narrowTime = 2.0, 0.5
	ethernet               = 14
	// firstPause is the pause before a path is offered again, lastPause the longest: the peer may be starting, which takes it a
	// moment.
	firstPause, lastPause = 100 * time.Millisecond, time.Minute
	// renewEvery is how long the keys of a path are used. One that was replaced lives on for drainTime: packets for it are on their way.
	renewEvery = 24 * time.Hour
	drainTime  = 2 * time.Second
)

// Flight is sealed packets beside one connection, in both directions. Nil has none.
type Flight struct {
	link
	conn  network.Conn
	in    *intake
	on    *sockets
	among *flights
}

// Carry has f make what the sealed paths to a peer carry. Before the call none are agreed on.
func (s *Service) Carry(f func(peer.ID) Lanes) { s.lanes.Store(&f) }

func (f *Flight) peer() peer.ID { return f.conn.RemotePeer() }

// Confirm makes the search confirm the size in use, whether or not the path is used.
func (f *Flight) Confirm() {
	if x := f.active(); x != nil {
		x.confirm.Wake()
	}
}

// Run agrees with the peer on sealed packets, with new keys every day, until the connection ends. The end with the lesser ID
// offers. A peer that does not know them is asked once, beside a circuit once an hour.
func (f *Flight) Run() {
	if f == nil || f.cfg.Self > f.peer() {
		return
	}
	for pause := time.Duration(0); ; {
		if f.via != nil && !f.via.await(f.ctx) {
			return
		}
		began, ended, renew := time.Now(), make(chan error, 1), time.NewTimer(f.cfg.Renew)
		if !f.cfg.Spawn(func() { ended <- f.offer() }) {
			return
		}
		select {
		case <-renew.C: // the one before ends once this one works
			pause = 0
			continue
		case err := <-ended:
			renew.Stop()
			none := mss.ErrNotSupported[protocol.ID]{}
			if f.via == nil && errors.As(err, &none) || f.ctx.Err() != nil {
				return
			}
			f.cfg.Log.Debug("no sealed packets", "peer", f.path.Peer(), "err", err)
			pause = offerPause(pause, time.Since(began))
			if f.via != nil {
				pause = f.via.failed(err, pause)
			}
		}
		if !wake.Sleep(f.ctx, pause) {
			return
		}
	}
}

// offerPause is the pause before the next offer, after the last one took a time, with its path if there was one.
func offerPause(before, took time.Duration) time.Duration {
	if before == 0 || took > lastPause {
		return firstPause
	}
	return min(2*before, lastPause)
}

// offer agrees on a path, and serves it until it ends.
func (f *Flight) offer() error {
	if f.among.lanes.Load() == nil {
		return fmt.Errorf("%w: nothing takes packets here yet", errBadSetup)
	}
	to := f.peer()
	x, err := f.newPath() // which may wait for a relay
	if err != nil {
		return err
	}
	known, ok := f.among.begin(to)
	if !ok {
		x.end()
		return errOffering
	}
	st, err := f.agree(x, to, known)
	f.among.end(to)
	if err != nil {
		x.end()
		if st != nil {
			f.cfg.Spawn(func() { _ = st.Reset() })
		}
		if f.via != nil && errors.Is(err, network.ErrReset) {
			err = fmt.Errorf("%w (%w)", errNotYet, err)
		}
		return err
	}
	return x.serve(st)
}

// agree has x be one of the paths that the peer agrees to.
func (f *Flight) agree(x *flightPath, to peer.ID, known *flightPeer) (network.Stream, error) {
	ctx, cancel := context.WithTimeout(f.ctx, setupTimeout)
	defer cancel()
	st, err := conns.Open(ctx, f.conn, identity.FlightProtocol)
	if err != nil {
		return nil, err
	}
	_ = st.SetDeadline(time.Now().Add(setupTimeout))
	offer := flightHello{index: x.index}
	rand.Read(offer.nonce[:])
	if known != nil {
		offer.id = known.id
	}
	var answer flightHello
	if _, err = st.Write(offer.bytes()); err == nil {
		err = answer.read(st)
	}
	switch {
	case err != nil:
		err = fmt.Errorf("agree on sealed packets: %w", err)
	case answer.id == 0:
		err = fmt.Errorf("%w: the answer names nothing", errBadSetup)
	case answer.id == offer.id && known.isOver():
		err = errReplaced
	default:
		err = x.begin(f.among.agreed(to, answer.id, known), slices.Concat(offer.nonce[:], answer.nonce[:]), answer.index)
	}
	return st, err
}

// Answer serves a path that the peer offers on a stream, until it ends. It owns the stream.
func (f *Flight) Answer(st network.Stream) {
	defer f.end(st)()
	if f.via != nil && (f.via.spare.Load() || f.via.rest() > 0) {
		return
	}
	err := f.answer(st)
	if f.via != nil {
		f.via.note(err)
	}
	if f.ctx.Err() == nil {
		f.cfg.Log.Debug("sealed packets ended", "peer", f.path.Peer(), "err", err)
	}
}

// end makes st end no later than the connection. The function it returns ends it now, without waiting for the network.
func (f *Flight) end(st network.Stream) func() {
	stop := context.AfterFunc(f.ctx, func() { _ = st.SetDeadline(time.Unix(1, 0)) })
	return func() {
		stop()
		f.cfg.Spawn(func() { _ = st.Reset() })
	}
}

func (f *Flight) answer(st network.Stream) error {
	from := f.peer()
	switch {
	case f.among.lanes.Load() == nil:
		return fmt.Errorf("%w: nothing takes packets here yet", errBadSetup)
	case f.cfg.Self < from:
		return fmt.Errorf("%w: this end offers", errBadSetup)
	case !f.in.mayOffer(from):
		f.refuse(RefusedOffer, f.path)
		return errOffers
	}
	var offer flightHello
	_ = st.SetDeadline(time.Now().Add(setupTimeout))
	if err := offer.read(st); err != nil {
		return fmt.Errorf("read the offer: %w", err)
	}
	x, err := f.newPath()
	if err != nil {
		return err
	}
	p := f.among.answer(from, offer.id)
	answer := flightHello{index: x.index, id: p.id}
	rand.Read(answer.nonce[:])
	if err := x.begin(p, slices.Concat(offer.nonce[:], answer.nonce[:]), offer.index); err != nil {
		x.end()
		return err
	}
	if _, err := st.Write(answer.bytes()); err != nil {
		x.end()
		return fmt.Errorf("answer: %w", err)
	}
	return x.serve(st)
}

// flightHello is an offer or an answer: the keys of both directions need both nonces, so neither end can have old ones used again.
type flightHello struct {
	nonce [nonceLen]byte
	index uint32 // of the receiver of who says it
	id    uint64 // of its flightPeer; 0: none
}

func (h *flightHello) bytes() []byte {
	b := append([]byte{flightVersion}, h.nonce[:]...)
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(b, h.index), h.id)
}

func (h *flightHello) read(r io.Reader) error {
	var b [flightHelloLen]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return err
	}
	copy(h.nonce[:], b[1:])
	h.index, h.id = binary.BigEndian.Uint32(b[1+nonceLen:]), binary.BigEndian.Uint64(b[1+nonceLen+4:])
	if b[0] != flightVersion || h.index > sealed.MaxIndex {
		return fmt.Errorf("%w: version %d, index %d", errBadSetup, b[0], h.index)
	}
	return nil
}

// secret is the traffic secret of one direction, and the cipher suite it is for.
func (f *Flight) secret(nonces []byte, index uint32, from, to peer.ID) (suite uint16, secret []byte, err error) {
	var state tls.ConnectionState
	if f.quic != nil {
		state = f.quic.ConnectionState().TLS
	} else {
		state = *f.via.tls
	}
	ctx := binary.BigEndian.AppendUint32(slices.Clone(nonces), index)
	ctx = append(append(ctx, byte(len(from))), from...)
	ctx = append(append(ctx, byte(len(to))), to...)
	secret, err = state.ExportKeyingMaterial(flightLabel, ctx, sealed.SecretLen)
	if err != nil {
		return 0, nil, fmt.Errorf("export keys: %w", err)
	}
	return state.CipherSuite, secret, nil
}

// flightPath is one agreement: keys in both directions, and a flight.Path. Its peer's mu guards it once that is set.
type flightPath struct {
	*Flight
	index    uint32 // in what arrives
	route    route
	release  func()   // gives the route back
	base     []byte   // control message with the source address, or empty
	over     wake.One // it is to end
	woken    wake.One
	timer    *time.Timer  // of serve
	answers  chan uint32  // to probes of the size
	size     atomic.Int32 // largest packet that passes, with a channel's header, bytes
	narrow   atomic.Bool  // whether that size still does is asked: packets are of basePacket
	confirm  wake.One     // that size may be too large
	tooLarge wake.One     // the interface refused a packet of the size in use

	of      *flightPeer
	added   bool // packets are let in
	closed  bool // none are taken any longer
	touched bool // has taken a packet since the last flush
	bytes   int  // of packets since then that are not the package's own
	path    *flight.Path
	sealer  *sealed.Sealer
	opener  *sealed.Opener
	at      address
	to      *net.UDPAddr // at.now
	room    int          // of a packet's payload, bytes
	next    float64      // when the timer has serve look, by of.now()
	newest  uint64       // counter + 1 of the newest packet
	reply   []reply      // to challenges
	asked   int          // challenges that no answer has come to yet
	small   int          // answers to small ones beside them
	flightTrain
}

// route is how packets leave.
type route struct {
	quic *quic.Conn // on whose addresses: the peer's, or a relay's that forwards them
	sock *socket
	src  netip.Addr // none: the kernel fills it in
	head []byte     // of the channel at the relay; empty: none forwards them
}

// reply is what a challenge said, and where it came from.
type reply struct {
	to   netip.AddrPort
	data uint64
}

// newPath makes a path without keys, which has an index. The relay lets packets to it in, where there is one.
func (f *Flight) newPath() (x *flightPath, err error) {
	x = &flightPath{Flight: f, over: wake.NewOne(), woken: wake.NewOne(), timer: time.NewTimer(time.Hour), answers: make(chan uint32, 16),
		confirm: wake.NewOne(), tooLarge: wake.NewOne()}
	x.size.Store(basePacket)
	ctx, cancel := context.WithTimeout(f.ctx, setupTimeout)
	defer cancel()
	if x.route, x.release, err = f.route(ctx, x.over.Wake); err != nil {
		return nil, err
	}
	x.base = sourceControl(nil, x.route.src)
	x.oob = x.base
	for x.index = mrand.Uint32N(sealed.MaxIndex + 1); f.in.taken(x.index); {
		x.index = mrand.Uint32N(sealed.MaxIndex + 1)
	}
	return x, nil
}

// begin makes it a path of p, and lets packets to it in. The nonces are those of who offered and who answered, index is the other end's.
func (x *flightPath) begin(p *flightPeer, nonces []byte, index uint32) error {
	x.of = p
	suite, out, err := x.secret(nonces, index, x.cfg.Self, x.peer())
	if err != nil {
		return err
	}
	if x.sealer, err = sealed.NewSealer(suite, out, index); err != nil {
		return err
	}
	_, in, err := x.secret(nonces, x.index, x.peer(), x.cfg.Self)
	if err != nil {
		return err
	}
	if x.opener, err = sealed.NewOpener(suite, in); err != nil {
		return err
	}
	to, ok := x.route.quic.RemoteAddr().(*net.UDPAddr)
	if !ok {
		return fmt.Errorf("%s is not a UDP address", x.route.quic.RemoteAddr())
	}
	x.to, x.at = to, newAddress(unmapped(to), mrand.Uint64(), time.Now())
	ip := 20
	if x.at.now.Addr().Is6() {
		ip = 40
	}
	if !p.join(x, x.overhead()+8+ip+ethernet) {
		return errReplaced
	}
	if x.added = x.in.add(x); !x.added {
		return errReplaced // another one has had the index since; the next offer has another
	}
	return nil
}

// end takes the path away.
func (x *flightPath) end() {
	x.release()
	if x.of == nil {
		return
	}
	if x.added {
		x.in.remove(x)
	}
	if x.of.leave(x) {
		x.among.forget(x.peer(), x.of)
	}
}

// serve sends what may leave, until the other end ends the stream, the connection ends, or the path is of no use any longer.
func (x *flightPath) serve(st network.Stream) error {
	defer x.Flight.end(st)()
	defer x.end()
	defer x.late()
	_ = st.SetDeadline(time.Time{})
	ended := make(chan error, 2)
	x.cfg.Spawn(func() {
		_, err := st.Read(make([]byte, 1))
		ended <- fmt.Errorf("%w: by the peer (%w)", errEnded, err)
	})
	ctx, cancel := context.WithCancel(x.ctx)
	defer cancel()
	var unused <-chan time.Time
	if x.via != nil {
		tick := time.NewTicker(unusedTime)
		defer tick.Stop()
		unused = tick.C
	}
	defer x.timer.Stop()
	for searches := false; ; {
		if err := x.send(); err != nil {
			return err
		}
		if x.spare() {
			return errUnused
		}
		if !searches && x.isUp() {
			searches = x.cfg.Spawn(func() {
				if err := x.search().run(ctx); ctx.Err() == nil {
					ended <- err
				}
			})
		}
		select {
		case err := <-ended:
			return err
		case <-x.ctx.Done():
			return errEnded
		case <-x.over:
			return errReplaced
		case <-unused:
			if !x.via.used.Swap(false) {
				return errUnused
			}
		case <-x.woken:
		case <-x.timer.C:
		}
	}
}

// search is what finds how large a packet passes.
func (x *flightPath) search() *search {
	at, ok := x.route.quic.RemoteAddr().(*net.UDPAddr)
	s := &search{sizes: packetSizes(ok && at.IP.To4() == nil, maxPacket), size: &x.size, narrow: &x.narrow, passes: x.passes, probe: x.probe,
		arrived: x.answers, tooLarge: x.tooLarge, confirm: x.confirm, path: x.link.path, log: x.cfg.Log, seen: seen{id: mrand.Uint32()}}
	if x.via != nil {
		s.slow = x.via.slow
	} else {
		s.quicNeeds = x.quicNeeds
	}
	return s
}

// quicNeeds is how large QUIC's own packets are, which a datagram that is too large makes it say.
func (x *flightPath) quicNeeds() (int, error) {
	var tooLarge *quic.DatagramTooLargeError
	if err := x.quic.SendDatagram(make([]byte, maxPacket)); !errors.As(err, &tooLarge) {
		return 0, errors.Join(errEnded, err)
	}
	return int(tooLarge.MaxDatagramPayloadSize) + quicExtra, nil
}

func unmapped(a *net.UDPAddr) netip.AddrPort {
	ap := a.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}
