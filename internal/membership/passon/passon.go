// Package passon has members, and relays that pin a key, exchange what they have of signed statements.
package passon

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
)

const (
	// passEvery is how often connected members are looked for that may lack statements, or have newer ones.
	passEvery = time.Second
	// passPatience is how long an exchange may make no progress, passMost bounds all of it: the next one continues. passRest is the
	// pause after one that failed.
	passPatience, passMost, passRest = 30 * time.Second, 2 * time.Minute, 3 * time.Second
	// passRate is how many statements a second one member gets, or sends for nothing, in the long run: the next exchange waits for that.
	passRate = 200
	// passTogether is how many exchanges there are at a time, in each direction; the longest gives way to another member after passFair.
	passTogether, passFair = 8, 5 * time.Second
)

// Stream is to or from a member.
type Stream interface {
	io.ReadWriter
	CloseWrite() error
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
	Reset() error
}

// Config is what an Exchanger needs.
type Config struct {
	Book      func() *signed.Book // nil: there is none yet
	Connected func() []peer.ID    // those to exchange with
	Open      func(context.Context, peer.ID) (Stream, error)
	Heard     func(peer.ID) // is called when a member has passed on what is new; may be nil
	Log       *slog.Logger
}

// Exchanger passes signed statements on to members, and takes theirs.
type Exchanger struct {
	Config

	said seldom.Log

	mu    sync.Mutex // a leaf
	peers map[peer.ID]exchanged
	now   map[bool][]running // by who begins, the longest first; true: others
}

// running is one exchange.
type running struct {
	with  peer.ID
	since time.Time
	end   context.CancelFunc
}

// exchanged is what became of the exchanges with one member.
type exchanged struct {
	digest uint64
	done   bool      // the last one ended well, with digest
	lacks  bool      // it answers none, as long as it is connected
	behind time.Time // since when it may lack what is here; zero: it has all, or is not connected
	lacked int       // what it had not sent in the last whole one
	some   []string  // whom that is about
	mine   turns     // of this node
	theirs turns     // of the member
}

// turns is when one side may begin the next exchange: after a time, and none before the last one has ended.
type turns struct {
	after time.Time
	busy  bool
}

// New returns an Exchanger.
func New(c Config) *Exchanger {
	return &Exchanger{Config: c, peers: map[peer.ID]exchanged{}, now: map[bool][]running{}}
}

// Answer is an exchange that a member begins.
func (p *Exchanger) Answer(id peer.ID, s Stream) {
	if book := p.Book(); book != nil {
		if ctx, end := p.turn(context.Background(), 0, id, true); end != nil {
			defer end()
			p.exchange(ctx, book, id, s, true)
			return
		}
	}
	_ = s.Reset()
}

// turn is that of an exchange with a member, which it or this node begins: its context ends where another one takes its place. end is nil
// if there may be none now, or it is of no use with a book of that digest.
func (p *Exchanger) turn(ctx context.Context, digest uint64, id peer.ID, theirs bool) (of context.Context, end context.CancelFunc) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.peers[id]
	next := &x.mine
	if theirs {
		next = &x.theirs
	} else {
		same := x.done && x.digest == digest
		if same && x.lacked == 0 {
			x.behind = time.Time{}
		} else if x.behind.IsZero() {
			x.behind = now
		}
		p.peers[id] = x
		if x.lacks || same {
			return nil, nil
		}
	}
	if next.busy || now.Before(next.after) {
		return nil, nil
	}
	all := p.now[theirs]
	if len(all) == passTogether {
		if now.Sub(all[0].since) < passFair {
			return nil, nil
		}
		all[0].end()
		all = all[1:]
	}
	of, end = context.WithCancel(ctx)
	p.now[theirs] = append(all, running{id, now, end})
	next.busy = true
	p.peers[id] = x
	return of, end
}

// over takes one out that has ended. The caller holds mu.
func (p *Exchanger) over(id peer.ID, theirs bool) {
	p.now[theirs] = slices.DeleteFunc(p.now[theirs], func(x running) bool { return x.with == id })
}

// Run looks for connected members that may lack statements, until ctx ends.
func (p *Exchanger) Run(ctx context.Context) {
	var begun sync.WaitGroup
	defer begun.Wait()
	for wake.Sleep(ctx, passEvery) {
		connected, book := p.Connected(), p.Book()
		p.forget(connected)
		if book == nil {
			continue
		}
		digest := book.Digest()
		rand.Shuffle(len(connected), func(i, j int) { connected[i], connected[j] = connected[j], connected[i] }) // the places are few
		for _, id := range connected {
			if one, end := p.turn(ctx, digest, id, false); end != nil {
				begun.Go(func() {
					defer end()
					p.begin(one, book, id)
				})
			}
		}
	}
}

// forget drops what is known of members that are no longer connected, once their rate allows it.
func (p *Exchanger) forget(connected []peer.ID) {
	here := make(map[peer.ID]bool, len(connected))
	for _, id := range connected {
		here[id] = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for id, x := range p.peers {
		if !here[id] {
			x.done, x.lacks, x.behind, x.lacked = false, false, time.Time{}, 0
		}
		if !here[id] && !x.mine.busy && !x.theirs.busy && now.After(x.mine.after) && now.After(x.theirs.after) {
			delete(p.peers, id)
		} else {
			p.peers[id] = x
		}
	}
}

// Behind is since when a connected member may lack statements that are here; zero: it has all.
// lacks is how many it has been sent and does not take, some says whom they are about. known: it
// exchanges any.
func (p *Exchanger) Behind(id peer.ID) (since time.Time, lacks int, some []string, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.peers[id]
	if x.done {
		lacks, some = x.lacked, x.some
	}
	return x.behind, lacks, some, !x.lacks && (x.done || !x.behind.IsZero())
}

// begin exchanges statements with a connected member.
func (p *Exchanger) begin(ctx context.Context, book *signed.Book, id peer.ID) {
	opening, cancel := context.WithTimeout(ctx, passPatience)
	defer cancel()
	s, err := p.Open(opening, id)
	if err != nil {
		p.Log.Debug("statements cannot be passed on", "peer", id, "err", err)
		p.missed(id, errors.As(err, new(mss.ErrNotSupported[protocol.ID]))) // an older release, or no key is pinned there
		return
	}
	p.exchange(ctx, book, id, s, false)
}

// stream is one that ends after passPatience without progress, and at end. Reader and writer may be two goroutines.
type stream struct {
	Stream
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

func (p *Exchanger) exchange(ctx context.Context, book *signed.Book, id peer.ID, s Stream, theirs bool) {
	defer func() { _ = s.Reset() }()
	defer context.AfterFunc(ctx, func() { _ = s.Reset() })()
	before := book.Digest() // what comes meanwhile from others has not been passed on
	n, err := book.Exchange(stream{s, time.Now().Add(passMost)})
	forged := errors.Is(err, signed.ErrStatement)
	switch {
	case errors.Is(err, signed.ErrKept):
		if p.said.Due("disk") {
			p.Log.Warn("signed statements are in force, but not kept", "err", err)
		}
	case forged:
		if p.said.Due(string(id)) {
			p.Log.Warn("a member passes on statements that are forged: look at what runs there, or ban it", "peer", id, "err", err)
		}
	case errors.Is(err, signed.ErrSigner), errors.Is(err, signed.ErrScope):
		if p.said.Due(string(id)) {
			p.Log.Info("a member passes on statements of keys that do not count here, as while signers is changed; if it stays so, compare signers in both configurations", "peer", id, "err", err)
		}
	case err != nil:
		p.Log.Debug("statements were not passed on", "peer", id, "err", err)
	}
	if n.Added > 0 && p.Heard != nil {
		p.Heard(id)
	}
	if n.Added > 0 {
		p.Log.Info("signed statements from a member", "peer", id, "new", n.Added)
	}
	_ = s.CloseWrite()
	_ = s.SetReadDeadline(time.Now().Add(passRest))
	_, _ = io.CopyN(io.Discard, s, 1) // a reset may overtake what was written
	p.note(id, theirs, before, n, n.Whole || forged)
}

// missed remembers that none could be begun with a member, which may begin one itself.
func (p *Exchanger) missed(id peer.ID, lacks bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over(id, false)
	x := p.peers[id]
	x.lacks, x.mine = lacks, turns{after: time.Now().Add(passRest)}
	p.peers[id] = x
}

// note remembers the outcome of an exchange. What was sent, and came for nothing, counts for the
// member's rate. Whether it has taken what it lacked shows the next one.
func (p *Exchanger) note(id peer.ID, theirs bool, digest uint64, n signed.Count, done bool) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over(id, theirs)
	pause := passEvery + time.Duration(max(n.Sent, n.Useless))*time.Second/passRate
	x := p.peers[id]
	x.theirs.after = now.Add(pause)
	if !done {
		pause = max(pause, passRest)
	}
	if n.Whole {
		done = n.Lacked == 0 || n.Lacked == x.lacked && slices.Equal(n.Some, x.some)
		x.lacked, x.some = n.Lacked, n.Some
	}
	x.digest, x.done, x.mine.after = digest, done, now.Add(pause)
	if theirs {
		x.theirs.busy = false
	} else {
		x.mine.busy = false
	}
	p.peers[id] = x
}
