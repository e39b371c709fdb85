package lan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"edgemesh/agent/mesh"
)

// exchangeTime bounds one exchange of offers.
const exchangeTime = 5 * time.Second

// Stream is a stream to or from a member, authenticated and encrypted.
type Stream interface {
	io.ReadWriter
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
	CloseWrite() error
	Reset()
}

// mayOffer begins an exchange of offers when it is time. The caller holds mu.
func (s *Service) mayOffer(p *peer, now time.Time) {
	if s.noNative != "" && s.noVXLAN != "" && p.sess == nil || s.closed || !p.wantsOffer(now) {
		return
	}
	if !s.cfg.Connected(p.id) {
		p.nextOffer = now.Add(offerSoon)
		if p.sess != nil && !p.hopeful(now) {
			s.endSession(p) // it begins anew with the next connection
		}
		return
	}
	ticket := p.offered(now)
	us := s.ownOffer(0)
	us.Round = p.roundFor(us)
	round := us.Round
	s.wg.Go(func() {
		err := s.exchange(p.id, us, func(them Offer) bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.peers[p.id] != p || p.ticket != ticket { // no member any more, or the peer's exchange counts
				return false
			}
			s.begin(p, us, them, round, true)
			return true
		})
		s.mu.Lock()
		defer s.mu.Unlock()
		p.offering = false
		if err != nil {
			s.log.Debug("offer of LAN addresses", "peer", s.members[p.id].Name, "err", err)
			if p.ticket == ticket {
				p.stale = p.stale || errors.Is(err, errUnconfirmed)
				p.offerFailed(time.Now(), err)
			}
		}
		s.poke()
	})
}

// confirm is what the opener sends at the end, if the exchange still counts: an
// offer of its own may have been overtaken by the peer's.
const confirm = 1

// exchange sends our offer and gives the peer's to take, which says whether it
// counts. With errUnconfirmed the peer may not have taken ours.
func (s *Service) exchange(id mesh.PeerID, us Offer, take func(Offer) bool) error {
	ctx, cancel := context.WithTimeout(s.ctx, exchangeTime)
	defer cancel()
	st, err := s.cfg.Open(ctx, id)
	if err != nil {
		return err
	}
	defer st.Reset()
	stop := context.AfterFunc(ctx, st.Reset)
	defer stop()
	if err := writeOffer(st, us); err != nil {
		return err
	}
	them, err := readOffer(st)
	if err != nil {
		return err
	}
	if !take(them) {
		return nil
	}
	if _, err := st.Write([]byte{confirm}); err != nil {
		return fmt.Errorf("%w: %w", errUnconfirmed, err)
	}
	_ = st.CloseWrite()
	switch _, err := st.Read(make([]byte, 1)); { // the peer ends its side when it has taken ours
	case errors.Is(err, io.EOF):
		return nil
	case err == nil:
		return fmt.Errorf("%w: the peer goes on", errUnconfirmed)
	default:
		return fmt.Errorf("%w: %w", errUnconfirmed, err)
	}
}

// Answer takes an exchange of offers that a member began. It owns the stream.
func (s *Service) Answer(id mesh.PeerID, st Stream) error {
	defer st.Reset()
	deadline := time.Now().Add(exchangeTime)
	_ = st.SetReadDeadline(deadline)
	_ = st.SetWriteDeadline(deadline)
	them, err := readOffer(st)
	if err != nil {
		return err
	}
	p, ticket, us, err := s.answerTo(id)
	if err != nil {
		return err
	}
	err = writeOffer(st, us)
	if err == nil {
		_, err = io.ReadFull(st, make([]byte, 1))
	}
	s.mu.Lock()
	p.answering--
	counts := s.peers[id] == p && p.ticket == ticket && !s.closed
	if err == nil && counts {
		s.begin(p, us, them, them.Round, false)
	}
	s.mu.Unlock()
	s.poke()
	if err != nil {
		return fmt.Errorf("%w: %w", errUnconfirmed, err)
	}
	if !counts {
		return ErrBusy
	}
	return st.CloseWrite()
}

// answerTo makes our offer in answer to a member's.
func (s *Service) answerTo(id mesh.PeerID) (p *peer, ticket int, us Offer, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p = s.peer(id); p == nil {
		return nil, 0, Offer{}, ErrNoMember
	}
	ticket, ok := p.answers()
	if !ok {
		return nil, 0, Offer{}, ErrBusy
	}
	return p, ticket, s.ownOffer(0), nil
}

// ownOffer describes this node. The caller holds mu.
func (s *Service) ownOffer(round int) Offer {
	lan := s.plan.Host.LAN
	o := Offer{
		Version: offerVersion, Secret: newSecret(), Round: round, ProbePort: s.ProbePort(),
		VXLANPort: lan.VXLANPort, VXLANIPv6: lan.IPv6Underlay, NoNative: s.noNative, NoVXLAN: s.noVXLAN,
	}
	for _, u := range s.uplinks {
		if len(o.Addrs) < maxAddrs && s.plan.Underlay(u.Addr) {
			o.Addrs = append(o.Addrs, Address{u.Addr, u.Bits, u.MTU, u.MAC})
		}
	}
	return o
}

// begin puts two offers into force. The caller holds mu.
func (s *Service) begin(p *peer, us, them Offer, round int, opener bool) {
	first, second, a, b := us, them, s.cfg.Self, p.id
	if !opener {
		first, second, a, b = them, us, p.id, s.cfg.Self
	}
	sess := newSession(first, second, a, b, opener)
	if p.old != nil {
		delete(s.sessions, p.old.id)
	}
	now := time.Now()
	all := candidates(us, them, s.uplinks, p.low, round, p.pods[0], p.pods[1])
	p.install(sess, us, them, round, all, now)
	s.sessions[sess.id] = p
	if !slices.Equal(us.Addrs, s.ownOffer(0).Addrs) { // they changed meanwhile
		p.stale = true
	}
	s.log.Debug("offers exchanged", "peer", s.members[p.id].Name, "theirs", fmt.Sprint(them.Addrs), "candidates", fmt.Sprint(all), "opener", opener)
	s.settle(p, now)
	s.poke() // before it probes, Run tells the kernel
}
