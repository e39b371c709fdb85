package observe

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/protocol"
	mss "github.com/multiformats/go-multistream"

	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wake"
	"edgemesh/internal/wording"
)

const (
	// openTime bounds the opening of a stream, which may have to connect first.
	openTime = 15 * time.Second
	// openTogether is how many are opened at the same time.
	openTogether = 16
	// silence is after how long without a report a stream counts as dead.
	silence = 4 * sendEvery
	// leastPause is between two reports of one member, whatever it sends; the stream holds the rest back.
	leastPause = 200 * time.Millisecond
	// tryAgain is the first pause after a stream has ended, longPause the longest one and that after broken rules.
	tryAgain  = 2 * time.Second
	longPause = 30 * time.Second
)

// Event is what the observer's side has heard of one member. The last one of a member holds.
type Event struct {
	Node   string  `json:"node"`
	PeerID string  `json:"peerID"`
	Site   string  `json:"site,omitempty"`
	Self   bool    `json:"self,omitempty"`   // it is this node
	All    bool    `json:"all,omitempty"`    // of this node: it is an observer
	Report *Report `json:"report,omitempty"` // nil: it has reported nothing yet, or Error says why it reports no more
	Error  string  `json:"error,omitempty"`
	Gone   bool    `json:"gone,omitempty"` // it has left the membership
}

// Observer fetches members' paths. All fields are required.
type Observer struct {
	Self    func() mesh.Node
	Members func() iter.Seq[*mesh.Node] // all others
	All     func() bool                 // this node is an observer
	Own     func() Report               // what this node would report to an observer
	Open    func(context.Context, mesh.PeerID) (Stream, error)
	Leave   func(mesh.PeerID) // the member is observed no longer
}

// following is a member that is observed.
type following struct {
	scope Scope
	stop  context.CancelFunc
	ended chan struct{}
}

// end stops observing and waits for it.
func (f following) end() {
	f.stop()
	<-f.ended
}

// Run observes until ctx ends or each returns an error, which it returns. each gets every member first, and then what is new, not
// concurrently. A node that the membership names as observer fetches the paths of all members, which connects it to them; any other node
// fetches those of the members whose paths it uses, for the pair of the two.
func (o Observer) Run(ctx context.Context, each func(Event) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	out := make(chan Event)
	following.Go(func() { o.follow(ctx, out) })
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-out:
			if err := each(e); err != nil {
				return err
			}
		}
	}
}

// round is who is observed now. One goroutine owns it.
type round struct {
	Observer
	ctx       context.Context //nolint:containedctx // of Run
	out       chan<- Event
	slots     chan struct{} // for streams that are being opened
	known     map[mesh.PeerID]*mesh.Node
	following map[mesh.PeerID]following

	before Report // what this node reported last, and when
	sent   time.Time
}

// follow keeps one goroutine for each observed member.
func (o Observer) follow(ctx context.Context, out chan<- Event) {
	r := &round{Observer: o, ctx: ctx, out: out, slots: make(chan struct{}, openTogether), known: map[mesh.PeerID]*mesh.Node{}, following: map[mesh.PeerID]following{}}
	for {
		own := r.Own()
		if !r.members(own) || !r.self(own) || !wake.Sleep(ctx, lookEvery) {
			break
		}
	}
	for _, f := range r.following {
		f.end() // ctx has ended
	}
}

// self reports this node's own paths. They come after the members that it names.
func (r *round) self(own Report) bool {
	if samePaths(r.before, own) && time.Since(r.sent) < sendEvery {
		return true
	}
	own.bound()
	r.before, r.sent = own, time.Now()
	e := about(r.Self())
	e.Self, e.All, e.Report = true, r.All(), &own
	return put(r.ctx, r.out, e)
}

// members begins and ends observing as the membership, this node's right to observe and its use of paths change.
func (r *round) members(own Report) bool {
	used := map[mesh.PeerID]bool{}
	for _, p := range own.Pairs {
		used[mesh.PeerID(p.Peer)] = true
	}
	scope := Own
	if r.All() {
		scope = All
	}
	members := 0
	for m := range r.Members() {
		members++
		k, ok := r.known[m.PeerID]
		news := !ok || k.Name != m.Name || k.Site != m.Site
		wanted := scope == All || used[m.PeerID]
		if f, ok := r.following[m.PeerID]; ok && (news || !wanted || f.scope != scope) {
			f.end()
			delete(r.following, m.PeerID)
			news = true // what it reported is no longer so
		}
		if r.known[m.PeerID] = m; news && !put(r.ctx, r.out, about(*m)) {
			return false
		}
		if _, ok := r.following[m.PeerID]; !ok && wanted {
			r.begin(*m, scope)
		}
	}
	return members == len(r.known) || r.gone()
}

// gone stops observing those that are members no longer.
func (r *round) gone() bool {
	now := map[mesh.PeerID]bool{}
	for m := range r.Members() {
		now[m.PeerID] = true
	}
	for id, m := range r.known {
		if now[id] {
			continue
		}
		if f, ok := r.following[id]; ok {
			f.end()
			delete(r.following, id)
		}
		delete(r.known, id)
		gone := about(*m)
		gone.Gone = true
		if !put(r.ctx, r.out, gone) {
			return false
		}
	}
	return true
}

// begin observes a member until its end is called or ctx ends.
func (r *round) begin(m mesh.Node, s Scope) {
	ctx, stop := context.WithCancel(r.ctx)
	f := following{scope: s, stop: stop, ended: make(chan struct{})}
	r.following[m.PeerID] = f
	go func() {
		defer close(f.ended)
		r.keep(ctx, m, s, r.slots, r.out)
		r.Leave(m.PeerID)
	}()
}

func about(m mesh.Node) Event { return Event{Node: m.Name, PeerID: string(m.PeerID), Site: m.Site} }

// put passes an event on; false: the end.
func put(ctx context.Context, out chan<- Event, e Event) bool {
	select {
	case <-ctx.Done():
		return false
	case out <- e:
		return true
	}
}

// keep observes one member, with a new stream whenever one ends.
func (o Observer) keep(ctx context.Context, m mesh.Node, s Scope, slots chan struct{}, out chan<- Event) {
	for pause := tryAgain; ; {
		heard, err := o.observe(ctx, m, s, slots, out)
		if ctx.Err() != nil {
			return
		}
		e := about(m)
		e.Error = wording.Foreign(err.Error(), maxText)
		if !put(ctx, out, e) {
			return
		}
		switch {
		case errors.Is(err, ErrTooLong), errors.Is(err, ErrRubbish), errors.Is(err, errRefused):
			pause = longPause
		case heard:
			pause = tryAgain
		}
		if !wake.Sleep(ctx, pause) {
			return
		}
		pause = min(2*pause, longPause)
	}
}

// errRefused means that the member does not answer this node.
var errRefused = errors.New("it refuses to answer")

// observe passes on what a member reports on one stream, until that ends.
func (o Observer) observe(ctx context.Context, m mesh.Node, s Scope, slots chan struct{}, out chan<- Event) (heard bool, err error) {
	st, err := o.openStream(ctx, m.PeerID, slots)
	if err != nil {
		return false, err
	}
	defer st.Reset()
	stop := context.AfterFunc(ctx, st.Reset)
	defer stop()
	_ = st.SetWriteDeadline(time.Now().Add(patience))
	if _, err := st.Write([]byte{byte(s)}); err != nil {
		return false, fmt.Errorf("send the request: %w", err)
	}
	for before := Findings(nil); ; {
		_ = st.SetReadDeadline(time.Now().Add(silence))
		r, err := Read(st, before)
		if err != nil {
			return heard, fmt.Errorf("read what it reports: %w", err)
		}
		if r.Refused != "" {
			return heard, fmt.Errorf("%w: %s", errRefused, r.Refused)
		}
		if s == Own {
			r = r.only(string(o.Self().PeerID))
		}
		heard, before = true, r.Findings
		e := about(m)
		e.Report = &r
		if !put(ctx, out, e) || !wake.Sleep(ctx, leastPause) {
			return heard, ctx.Err()
		}
	}
}

// openStream opens a stream, when it is its turn.
func (o Observer) openStream(ctx context.Context, id mesh.PeerID, slots chan struct{}) (Stream, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case slots <- struct{}{}:
	}
	defer func() { <-slots }()
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	st, err := o.Open(ctx, id)
	if none := (mss.ErrNotSupported[protocol.ID]{}); errors.As(err, &none) {
		return nil, errors.New("its agent is of an older release, which cannot be observed")
	}
	return st, err
}
