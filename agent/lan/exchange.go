package lan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"edgemesh/agent/lan/decide"
	"edgemesh/internal/membership/mesh"
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

// confirm is what the initiator sends at the end, if the exchange still counts: the
// peer's own may have overtaken it.
const confirm = 1

// begin carries out an exchange that this node begins. The caller holds mu.
func (s *Service) begin(x *decide.Exchange) {
	s.wg.Go(func() {
		err := s.exchange(x)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.machine.Ended(time.Now(), x, err)
		if err != nil {
			s.cfg.Log.Debug("offer of LAN addresses", "peer", decide.Name(s.machine, x.Peer), "err", err)
		}
		s.wake.Wake()
	})
}

// exchange sends our offer and brings the peer's into force, if the exchange counts. After
// decide.ErrUnconfirmed the peer may not have our offer in force.
func (s *Service) exchange(x *decide.Exchange) error {
	ctx, cancel := context.WithTimeout(s.ctx, exchangeTime)
	defer cancel()
	st, err := s.cfg.Open(ctx, x.Peer)
	if err != nil {
		return err
	}
	defer st.Reset()
	stop := context.AfterFunc(ctx, st.Reset)
	defer stop()
	if err := decide.WriteOffer(st, x.Us); err != nil {
		return err
	}
	them, err := decide.ReadOffer(st)
	if err != nil {
		return err
	}
	s.mu.Lock()
	counts := s.take(x, them, true)
	s.mu.Unlock()
	if !counts { // not a member any longer, or the peer's exchange counts
		return nil
	}
	if _, err := st.Write([]byte{confirm}); err != nil {
		return fmt.Errorf("%w: %w", decide.ErrUnconfirmed, err)
	}
	_ = st.CloseWrite()
	switch _, err := st.Read(make([]byte, 1)); { // the peer ends its side when it has taken ours
	case errors.Is(err, io.EOF):
		return nil
	case err == nil:
		return fmt.Errorf("%w: the peer keeps sending", decide.ErrUnconfirmed)
	default:
		return fmt.Errorf("%w: %w", decide.ErrUnconfirmed, err)
	}
}

// Answer carries out an exchange of offers that a member began. It owns the stream.
func (s *Service) Answer(id mesh.PeerID, st Stream) error {
	defer st.Reset()
	deadline := time.Now().Add(exchangeTime)
	_ = st.SetReadDeadline(deadline)
	_ = st.SetWriteDeadline(deadline)
	them, err := decide.ReadOffer(st)
	if err != nil {
		return err
	}
	s.mu.Lock()
	x, err := s.machine.Answer(id)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	err = decide.WriteOffer(st, x.Us)
	if err == nil {
		_, err = io.ReadFull(st, make([]byte, 1))
	}
	s.mu.Lock()
	s.machine.Ended(time.Now(), x, err)
	counts := err == nil && !s.closed && s.take(x, them, false)
	s.mu.Unlock()
	s.wake.Wake()
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", decide.ErrUnconfirmed, err)
	case !counts:
		return decide.ErrBusy
	}
	return st.CloseWrite()
}

// take brings two offers into force, if the exchange counts. The caller holds mu. Run
// applies the new paths to the kernel before anything is probed.
func (s *Service) take(x *decide.Exchange, them decide.Offer, initiator bool) bool {
	if !s.machine.Take(time.Now(), x, them) {
		return false
	}
	s.logChanges()
	s.cfg.Log.Debug("offers exchanged", "peer", decide.Name(s.machine, x.Peer), "theirs", fmt.Sprint(them.Addrs),
		"candidates", s.machine.Candidates(x.Peer), "initiator", initiator)
	s.wake.Wake()
	return true
}
