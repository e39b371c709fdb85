package daemon

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	mss "github.com/multiformats/go-multistream"

	"edgemesh/internal/membership/signed"
	"edgemesh/internal/seldom"
	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/identity"
)

const (
	// passEvery is how often connected members are looked for that may lack statements, or have newer ones.
	passEvery = time.Second
	// passPatience bounds one exchange, passRest the pause after one that failed.
	passPatience, passRest = 30 * time.Second, 3 * time.Second
	// passRate is how many statements a second one member gets in the long run: the next exchange waits for that.
	passRate = 200
	// passTogether is how many exchanges there are at a time, in each direction.
	passTogether = 8
)

// passOn passes signed statements on to members, and takes theirs.
type passOn struct {
	book *signed.Book
	node *p2p.Node
	log  *slog.Logger

	said   seldom.Log
	places chan struct{} // of exchanges that others begin

	mu    sync.Mutex // a leaf
	peers map[peer.ID]exchanged
}

// exchanged is what became of the exchanges with one member.
type exchanged struct {
	digest uint64
	done   bool      // the last one ended well, with digest
	mine   time.Time // when this node may begin the next one
	theirs time.Time // when the member may
}

// answer lets members begin exchanges.
func (p *passOn) answer() {
	p.places, p.peers = make(chan struct{}, passTogether), map[peer.ID]exchanged{}
	p.node.SetStreamHandler(identity.SignedProtocol, func(id peer.ID, s *paths.Stream) {
		select {
		case p.places <- struct{}{}:
			defer func() { <-p.places }()
			if p.turn(id, true) {
				p.exchange(id, s)
				return
			}
		default:
		}
		s.Reset()
	})
}

// turn reports whether an exchange with a member, which it or this node begins, may be now, and is of use.
func (p *passOn) turn(id peer.ID, theirs bool) bool {
	digest, now := p.book.Digest(), time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.peers[id]
	next := &x.mine
	if theirs {
		next = &x.theirs
	}
	if !theirs && x.done && x.digest == digest || now.Before(*next) {
		return false
	}
	*next = now.Add(passEvery)
	p.peers[id] = x
	return true
}

// run looks for connected members that may lack statements, until ctx ends.
func (p *passOn) run(ctx context.Context) {
	var begun sync.WaitGroup
	defer begun.Wait()
	places := make(chan struct{}, passTogether)
	for wake.Sleep(ctx, passEvery) {
		connected := p.node.Connected()
		p.forget(connected)
		for _, id := range connected {
			if !p.turn(id, false) {
				continue
			}
			select {
			case places <- struct{}{}:
			case <-ctx.Done():
				return
			}
			begun.Go(func() {
				defer func() { <-places }()
				p.begin(ctx, id)
			})
		}
	}
}

// forget drops what is known of members that are no longer connected, once their rate allows it.
func (p *passOn) forget(connected []peer.ID) {
	here := make(map[peer.ID]bool, len(connected))
	for _, id := range connected {
		here[id] = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for id, x := range p.peers {
		if x.done = x.done && here[id]; !here[id] && now.After(x.mine) && now.After(x.theirs) {
			delete(p.peers, id)
		} else {
			p.peers[id] = x
		}
	}
}

// begin exchanges statements with a connected member.
func (p *passOn) begin(ctx context.Context, id peer.ID) {
	ctx, cancel := context.WithTimeout(ctx, passPatience)
	defer cancel()
	s, err := p.node.OpenStream(ctx, id, identity.SignedProtocol)
	if err != nil {
		p.log.Debug("statements cannot be passed on", "peer", id, "err", err)
		p.note(id, p.book.Digest(), 0, errors.As(err, new(mss.ErrNotSupported[protocol.ID]))) // an older release, or no key is pinned there
		return
	}
	p.exchange(id, s)
}

func (p *passOn) exchange(id peer.ID, s *paths.Stream) {
	defer s.Reset()
	_ = s.SetReadDeadline(time.Now().Add(passPatience))
	_ = s.SetWriteDeadline(time.Now().Add(passPatience))
	before := p.book.Digest() // what comes meanwhile from others has not been passed on
	added, sent, err := p.book.Exchange(s)
	foreign := errors.Is(err, signed.ErrStatement) || errors.Is(err, signed.ErrSigner) || errors.Is(err, signed.ErrScope)
	switch {
	case foreign:
		if p.said.Due(string(id)) {
			p.log.Warn("a member passes on statements that do not count here: it forges them, or the signers in its configuration are others; compare these, or ban it", "peer", id, "err", err)
		}
	case err != nil:
		p.log.Debug("statements were not passed on", "peer", id, "err", err)
	case added > 0:
		p.log.Info("signed statements from a member", "peer", id, "new", added)
	}
	_ = s.CloseWrite()
	_ = s.SetReadDeadline(time.Now().Add(passRest))
	_, _ = io.CopyN(io.Discard, s, 1) // a reset may overtake what was written
	p.note(id, before, sent, err == nil || foreign)
}

// note remembers the outcome of an exchange. What was sent counts for the member's rate.
func (p *passOn) note(id peer.ID, digest uint64, sent int, done bool) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	pause := passEvery + time.Duration(sent)*time.Second/passRate
	x := exchanged{digest: digest, done: done, mine: now.Add(pause), theirs: now.Add(pause)}
	if !done {
		x.mine = now.Add(max(pause, passRest))
	}
	p.peers[id] = x
}
