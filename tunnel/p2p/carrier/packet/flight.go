package packet

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
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	mss "github.com/multiformats/go-multistream"

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
	// silentTime is how long nothing may be acknowledged until a path is left.
	silentTime = 2.0
	ethernet   = 14
)

// Flight is sealed packets with repair beside the datagrams of one QUIC connection, in both directions. Nil has none.
type Flight struct {
	sending // nothing is sent with it: what a receiver needs of the other direction
	beside  *Session
	among   *flights
}

// Carry has f make what the sealed paths to a peer carry. Before the call none are agreed on.
func (s *Service) Carry(f func(peer.ID) Lanes) { s.lanes.Store(&f) }

// Flight returns sealed packets with repair beside the datagrams of a session; nil where a relay is between.
func (s *Service) Flight(beside *Session) *Flight {
	if beside == nil || beside.via != nil {
		return nil
	}
	return &Flight{sending: sending{link: link{node: s.node, path: beside.path, ctx: beside.ctx, quic: beside.quic}}, beside: beside, among: &s.flights}
}

func (f *Flight) peer() peer.ID { return f.beside.conn.RemotePeer() }

// Run agrees with the peer on sealed packets with repair, with new keys every day, until the connection ends. The end with the lesser ID
// offers. A peer that does not know them is asked once.
func (f *Flight) Run() {
	if f == nil || f.cfg.Self > f.peer() {
		return
	}
	for pause := time.Duration(0); ; {
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
			if errors.As(err, &none) || f.ctx.Err() != nil {
				return
			}
			f.cfg.Log.Debug("no sealed packets with repair", "peer", f.path.Peer(), "err", err)
		}
		pause = offerPause(pause, time.Since(began))
		if !wake.Sleep(f.ctx, pause) {
			return
		}
	}
}

// offer agrees on a path, and serves it until it ends.
func (f *Flight) offer() error {
	if f.among.lanes.Load() == nil {
		return fmt.Errorf("%w: nothing takes packets here yet", errBadSetup)
	}
	to := f.peer()
	known, ok := f.among.begin(to)
	if !ok {
		return errOffering
	}
	x, st, err := f.agree(to, known)
	f.among.end(to)
	if err != nil {
		if st != nil {
			f.cfg.Spawn(func() { _ = st.Reset() })
		}
		return err
	}
	return x.serve(st)
}

func (f *Flight) agree(to peer.ID, known *flightPeer) (*flightPath, network.Stream, error) {
	ctx, cancel := context.WithTimeout(f.ctx, setupTimeout)
	defer cancel()
	st, err := conns.Open(ctx, f.beside.conn, identity.FlightProtocol)
	if err != nil {
		return nil, nil, err
	}
	_ = st.SetDeadline(time.Now().Add(setupTimeout))
	x, err := f.newPath()
	if err != nil {
		return nil, st, err
	}
	offer := flightHello{index: x.r.index}
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
		err = fmt.Errorf("agree on sealed packets with repair: %w", err)
	case answer.id == 0:
		err = fmt.Errorf("%w: the answer names nothing", errBadSetup)
	case answer.id == offer.id && known.isOver():
		err = errReplaced
	default:
		err = x.begin(f.among.agreed(to, answer.id, known), slices.Concat(offer.nonce[:], answer.nonce[:]), answer.index)
	}
	if err != nil {
		x.end()
		return nil, st, err
	}
	return x, st, nil
}

// Answer serves a path that the peer offers on a stream, until it ends. It owns the stream.
func (f *Flight) Answer(st network.Stream) {
	defer f.beside.end(st)()
	if err := f.answer(st); err != nil && f.ctx.Err() == nil {
		f.cfg.Log.Debug("sealed packets with repair ended", "peer", f.path.Peer(), "err", err)
	}
}

func (f *Flight) answer(st network.Stream) error {
	from := f.peer()
	switch {
	case f.among.lanes.Load() == nil:
		return fmt.Errorf("%w: nothing takes packets here yet", errBadSetup)
	case f.cfg.Self < from:
		return fmt.Errorf("%w: this end offers", errBadSetup)
	case !f.beside.in.mayOffer(from):
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
	answer := flightHello{index: x.r.index, id: p.id}
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

// flightPath is one agreement: keys in both directions, and a flight.Path. Its peer's mu guards it once that is set.
type flightPath struct {
	*Flight
	r     *receiver
	route route
	base  []byte // control message with the source address, or empty
	woken wake.One
	timer *time.Timer // of serve

	of     *flightPeer
	added  bool // packets are let in
	path   *flight.Path
	sealer *sealed.Sealer
	opener *sealed.Opener
	at     address
	to     *net.UDPAddr // at.now
	room   int          // of a packet's payload, bytes
	next   float64      // when the timer has serve look, by of.now()
	newest uint64       // counter + 1 of the newest packet
	reply  []reply      // to challenges
	flightTrain
}

// reply is what a challenge said, and where it came from.
type reply struct {
	to   netip.AddrPort
	data uint64
}

// newPath makes a path without keys, whose receiver has an index.
func (f *Flight) newPath() (x *flightPath, err error) {
	x = &flightPath{Flight: f, woken: wake.NewOne(), timer: time.NewTimer(time.Hour)}
	x.r = newReceiver(&f.sending, f.peer())
	x.r.flight = x
	x.route.quic = f.quic
	if x.route.sock, x.route.src, err = f.beside.on.socketOf(f.quic); err != nil {
		return nil, err
	}
	x.base = sourceControl(nil, x.route.src)
	x.oob = x.base
	for x.r.index = mrand.Uint32N(sealed.MaxIndex + 1); f.beside.in.taken(x.r.index); {
		x.r.index = mrand.Uint32N(sealed.MaxIndex + 1)
	}
	return x, nil
}

// begin makes it a path of p, and lets packets to it in. The nonces are those of who offered and who answered, index is the other end's.
func (x *flightPath) begin(p *flightPeer, nonces []byte, index uint32) error {
	x.of = p
	suite, out, err := x.beside.secret(flightLabel, nonces, index, x.cfg.Self, x.peer())
	if err != nil {
		return err
	}
	if x.sealer, err = sealed.NewSealer(suite, out, index); err != nil {
		return err
	}
	_, in, err := x.beside.secret(flightLabel, nonces, x.r.index, x.peer(), x.cfg.Self)
	if err != nil {
		return err
	}
	if x.opener, err = sealed.NewOpener(suite, in); err != nil {
		return err
	}
	to, ok := x.quic.RemoteAddr().(*net.UDPAddr)
	if !ok {
		return fmt.Errorf("%s is not a UDP address", x.quic.RemoteAddr())
	}
	x.to, x.at = to, newAddress(unmapped(to), mrand.Uint64(), time.Now())
	ip := 20
	if x.at.now.Addr().Is6() {
		ip = 40
	}
	if !p.join(x, sealed.Overhead+8+ip+ethernet) {
		return errReplaced
	}
	if x.added = x.beside.in.add(x.r); !x.added {
		return errReplaced // another one has had the index since; the next offer has another
	}
	return nil
}

// end takes the path away.
func (x *flightPath) end() {
	if x.of == nil {
		return
	}
	if x.added {
		x.beside.in.remove(x.r)
	}
	if x.of.leave(x) {
		x.among.forget(x.peer(), x.of)
	}
}

// serve sends what may leave, until the other end ends the stream, the connection ends, or nothing is acknowledged any longer.
func (x *flightPath) serve(st network.Stream) error {
	defer x.beside.end(st)()
	defer x.end()
	defer x.late()
	_ = st.SetDeadline(time.Time{})
	ended := make(chan error, 1)
	x.cfg.Spawn(func() {
		_, err := st.Read(make([]byte, 1))
		ended <- fmt.Errorf("the peer ended the stream: %w", err)
	})
	defer x.timer.Stop()
	for {
		if err := x.send(); err != nil {
			return err
		}
		select {
		case err := <-ended:
			return err
		case <-x.ctx.Done():
			return errEnded
		case <-x.r.over:
			return errReplaced
		case <-x.woken:
		case <-x.timer.C:
		}
	}
}

func unmapped(a *net.UDPAddr) netip.AddrPort {
	ap := a.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}
