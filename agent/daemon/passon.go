package daemon

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
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
	// passPatience is how long an exchange may make no progress, passMost bounds all of it: the next one continues. passRest is the
	// pause after one that failed.
	passPatience, passMost, passRest = 30 * time.Second, 2 * time.Minute, 3 * time.Second
	// passRate is how many statements a second one member gets, or sends for nothing, in the long run: the next exchange waits for that.
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
	done   bool  // the last one ended well, with digest
	mine   turns // of this node
	theirs turns // of the member
}

// turns is when one side may begin the next exchange: after a time, and none before the last one has ended.
type turns struct {
	after time.Time
	busy  bool
}

// answer lets members begin exchanges.
func (p *passOn) answer() {
	p.places, p.peers = make(chan struct{}, passTogether), map[peer.ID]exchanged{}
	p.node.SetStreamHandler(identity.SignedProtocol, func(id peer.ID, s *paths.Stream) {
		select {
		case p.places <- struct{}{}:
			defer func() { <-p.places }()
			if p.turn(id, true) {
				p.exchange(id, s, true)
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
	if !theirs && x.done && x.digest == digest || next.busy || now.Before(next.after) {
		return false
	}
	next.busy = true
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
		rand.Shuffle(len(connected), func(i, j int) { connected[i], connected[j] = connected[j], connected[i] }) // the places are few
		for _, id := range connected {
			select {
			case places <- struct{}{}:
			default: // at the next look
				continue
			}
			if !p.turn(id, false) {
				<-places
				continue
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
		if x.done = x.done && here[id]; !here[id] && !x.mine.busy && !x.theirs.busy && now.After(x.mine.after) && now.After(x.theirs.after) {
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
		p.note(id, false, p.book.Digest(), signed.Count{}, errors.As(err, new(mss.ErrNotSupported[protocol.ID]))) // an older release, or no key is pinned there
		return
	}
	p.exchange(id, s, false)
}

// stream is one that ends after passPatience without progress, and at end. Reader and writer may be two goroutines.
type stream struct {
	*paths.Stream
	end time.Time
}

func (s stream) until() time.Time {
	if t := time.Now().Add(passPatience); t.Before(s.end) {
		return t
	}
	return s.end
}

// Read implements io.Reader.
func (s stream) Read(b []byte) (int, error) {
	_ = s.SetReadDeadline(s.until())
	return s.Stream.Read(b)
}

// Write implements io.Writer. Of much, the deadline is that of each part.
func (s stream) Write(b []byte) (n int, err error) {
	for part := range slices.Chunk(b, 4096) {
		_ = s.SetWriteDeadline(s.until())
		m, err := s.Stream.Write(part)
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}

func (p *passOn) exchange(id peer.ID, s *paths.Stream, theirs bool) {
	defer s.Reset()
	before := p.book.Digest() // what comes meanwhile from others has not been passed on
	n, err := p.book.Exchange(stream{s, time.Now().Add(passMost)})
	forged := errors.Is(err, signed.ErrStatement)
	foreign := errors.Is(err, signed.ErrSigner) || errors.Is(err, signed.ErrScope)
	switch {
	case errors.Is(err, signed.ErrKept):
		if p.said.Due("disk") {
			p.log.Warn("signed statements are in force, but not kept", "err", err)
		}
	case forged:
		if p.said.Due(string(id)) {
			p.log.Warn("a member passes on statements that are forged: look at what runs there, or ban it", "peer", id, "err", err)
		}
	case foreign:
		if p.said.Due(string(id)) {
			p.log.Info("a member passes on statements of keys that do not count here, as while signers is changed; if it stays so, compare signers in both configurations", "peer", id, "err", err)
		}
	case err != nil:
		p.log.Debug("statements were not passed on", "peer", id, "err", err)
	}
	if n.Added > 0 {
		p.log.Info("signed statements from a member", "peer", id, "new", n.Added)
	}
	_ = s.CloseWrite()
	_ = s.SetReadDeadline(time.Now().Add(passRest))
	_, _ = io.CopyN(io.Discard, s, 1) // a reset may overtake what was written
	p.note(id, theirs, before, n, err == nil || forged || foreign)
}

// note remembers the outcome of an exchange. What was sent, and came for nothing, counts for the member's rate.
func (p *passOn) note(id peer.ID, theirs bool, digest uint64, n signed.Count, done bool) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	pause := passEvery + time.Duration(max(n.Sent, n.Useless))*time.Second/passRate
	x := p.peers[id]
	x.digest, x.done, x.mine.after, x.theirs.after = digest, done, now.Add(pause), now.Add(pause)
	if !done {
		x.mine.after = now.Add(max(pause, passRest))
	}
	if theirs {
		x.theirs.busy = false
	} else {
		x.mine.busy = false
	}
	p.peers[id] = x
}
