package p2p

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/who/clones"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/members"
)

const (
	// A node that stands by looks for the other one every standbyEvery, each time for standbyLook, and takes over after standbyGone
	// looks in a row without it.
	standbyEvery = 5 * time.Minute
	standbyLook  = 10 * time.Second
	standbyGone  = 2
	maxSeenBy    = 4
	// lastWords is how long peers have to take why this node disconnects.
	lastWords = 500 * time.Millisecond
	// copyHolds is how long after it was seen last a second machine counts: two looks of its, and some.
	copyHolds = 2*standbyEvery + 2*time.Minute
)

// part is how much of the membership is in force.
type part int

const (
	whole   part = iota
	none         // this node stands by
	seekers      // it looks whether it still must: relays, and who has seen the other one
)

// copies is what this node knows of machines that share a key, its own or a peer's.
type copies struct {
	place   *clones.Place
	witness *clones.Witness
	now     func() ladder.Time
	every   time.Duration // standbyEvery
	yielded func() error  // keeps second
	wake    wake.One      // of standBy
	changed wake.One      // of the node's owner

	using sync.Mutex // the membership is being put in force; locked before mu
	part  part       // in force; guarded by using

	mu       sync.Mutex           // a leaf: guards what follows
	since    ladder.Time          // relays and peers know this node; 0: they do not, or it stands by
	proof    clones.Proof         // the last one, if any
	at       ladder.Time          // of proof
	proofs   int                  // so far
	standing bool                 // this node stands by
	second   bool                 // it did before, and its hardware did not decide
	seenBy   []peer.ID            // who saw both since this node stands by, the last one last
	pairs    map[peer.ID]seenPair // peers that are two machines
}

type seenPair struct {
	clones.Pair
	at    ladder.Time
	heard bool // the peer said so
}

// makeCopies makes what answers and watches, before the host exists.
func (n *Node) makeCopies(cfg Config) {
	x := &copies{now: cfg.now, every: cfg.standbyEvery, wake: wake.NewOne(), changed: wake.NewOne(), yielded: cfg.Machine.Yielded, second: cfg.Machine.Second, pairs: map[peer.ID]seenPair{}}
	if x.every == 0 {
		x.every = standbyEvery
	}
	x.place = &clones.Place{Key: cfg.Key, Instance: clones.NewInstance(), Host: cfg.HostName, Matches: cfg.Machine.Matches, Known: x.known, Proved: n.proved, Log: n.log}
	x.witness = &clones.Witness{Judged: func(p peer.ID) bool { return n.gater.View().IsMember(p) }, Found: func(p clones.Pair, again bool) {
		x.note(p, false)
		p.Report(n.log, n.gater.View().Name(p.Peer), again)
	}, Spawn: n.tasks.spawn, Log: n.log}
	n.copies, n.want = x, n.gater.View()
}

// isKnown notes that a relay or a peer is connected.
func (x *copies) isKnown() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.since == 0 && !x.standing {
		x.since = x.now()
	}
}

// known is for how long relays and peers have known this node, and whether it stood by before.
func (x *copies) known() (known time.Duration, second bool) {
	x.isKnown()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.standing {
		return 0, x.second
	}
	return max(x.now()-x.since, 1), x.second
}

// reduce is what of v is in force.
func (x *copies) reduce(v *members.View) *members.View {
	if x.part == whole {
		return v
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return v.Reduced(x.part == seekers, x.seenBy)
}

// note keeps that a peer is two machines.
func (x *copies) note(p clones.Pair, heard bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	was := x.pairs[p.Peer]
	p.Keeps, p.StandsBy = p.Keeps.OrBefore(was.Keeps), p.StandsBy.OrBefore(was.StandsBy)
	x.pairs[p.Peer] = seenPair{p, x.now(), heard && (was.heard || was.at == 0)}
}

// hear takes what a peer says of its own key.
func (x *copies) hear(c network.Conn, p *clones.Pair) {
	if p == nil {
		x.mu.Lock()
		defer x.mu.Unlock()
		if p := c.RemotePeer(); x.pairs[p].heard { // not one that was seen here
			delete(x.pairs, p)
		}
		return
	}
	pair := *p
	pair.Peer = c.RemotePeer()
	for _, a := range []*clones.At{&pair.Keeps, &pair.StandsBy} {
		if a.Addr == "" { // the one that says so
			a.Addr = c.RemoteMultiaddr().String()
		}
	}
	x.note(pair, true)
}

// notice is what peers are sent of another machine with this node's key.
func (x *copies) notice() *clones.Pair {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.fresh(x.at) {
		return nil
	}
	p := x.proof
	keeps, stands := clones.At{Instance: p.Mine.Instance, Host: p.Mine.Host}, p.At
	if x.standing {
		keeps, stands = stands, keeps
	}
	return &clones.Pair{Keeps: keeps, StandsBy: stands, Why: p.Mine.Why(p.Theirs)}
}

// fresh reports whether what was seen at that time counts. The caller holds mu.
func (x *copies) fresh(at ladder.Time) bool { return at != 0 && x.now()-at < copyHolds }

// proved takes the proof that another machine has this node's key.
func (n *Node) proved(p clones.Proof) {
	x, keeps := n.copies, p.Mine.Keeps(p.Theirs)
	x.mu.Lock()
	again := x.at != 0 && x.proof.Theirs.Instance == p.Theirs.Instance
	p.At = p.At.OrBefore(x.proof.At)
	x.proof, x.at, x.proofs = p, x.now(), x.proofs+1
	yields := false
	if !keeps {
		x.standing, x.since = true, 0
		x.seenBy = append(slices.DeleteFunc(x.seenBy, func(w peer.ID) bool { return w == p.Witness }), p.Witness)
		x.seenBy = x.seenBy[max(0, len(x.seenBy)-maxSeenBy):]
		yields = !x.second && p.Mine.Matches == p.Theirs.Matches
		x.second = x.second || yields
	}
	x.mu.Unlock()
	if yields && x.yielded != nil {
		if err := x.yielded(); err != nil {
			n.log.Warn("after the next start this machine may not stand by for the other one with its key", "err", err)
		}
	}
	if !again {
		n.log.Warn("another machine has this node's key, and answers", "at", p.At, "seen by", n.gater.View().Name(p.Witness), "this machine keeps the traffic", keeps)
	}
	n.relays.Reports.Again()
	x.wake.Wake()
}

// standBy cuts this node off while another machine keeps its traffic.
func (n *Node) standBy(ctx context.Context) {
	x := n.copies
	for {
		select {
		case <-ctx.Done():
			return
		case <-x.wake:
		}
		if !n.StandsBy() {
			continue
		}
		if !wake.Sleep(ctx, lastWords) {
			return
		}
		n.setPart(none)
		for gone := 0; gone < standbyGone; {
			if !wake.Sleep(ctx, x.every) {
				return
			}
			proved, reached := n.seek(ctx)
			switch {
			case proved && x.keeps():
				gone = standbyGone
			case proved && x.bothStand(), !proved && reached:
				gone++
			case proved:
				gone = 0
			}
		}
		x.mu.Lock()
		x.standing, x.at, x.seenBy = false, 0, nil
		x.mu.Unlock()
		n.log.Info("the other machine with this node's key is gone: this one carries the node's traffic")
		n.setPart(whole)
	}
}

// keeps reports whether the last proof leaves the traffic to this node, of one that does not stand by.
func (x *copies) keeps() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.proof
	return p.Mine.Keeps(p.Theirs) && (p.Theirs.Known > 0 || p.Mine.Matches != p.Theirs.Matches)
}

// bothStand reports whether the last proof is that of another machine that stands by, perhaps for a third one, and would for this one.
func (x *copies) bothStand() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.proof.Theirs.Known == 0 && x.proof.Mine.Keeps(x.proof.Theirs)
}

func (n *Node) setPart(p part) {
	n.copies.using.Lock()
	n.copies.part = p
	n.enforce()
	n.copies.using.Unlock()
	n.copies.changed.Wake()
}

// seek shows this node to relays and to who saw both for a moment. proved: the other machine is still there; reached: one
// that would know is.
func (n *Node) seek(ctx context.Context) (proved, reached bool) {
	x := n.copies
	count := func() (int, []peer.ID) {
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.proofs, slices.Clone(x.seenBy)
	}
	before, witnesses := count()
	n.setPart(seekers)
	defer n.setPart(none)
	ctx, cancel := context.WithTimeout(ctx, min(standbyLook, x.every))
	defer cancel()
	v := n.gater.View()
	for _, w := range witnesses {
		if v.IsMember(w) {
			n.tasks.spawn(func() {
				if s, err := n.OpenStream(ctx, w, identity.PathProtocol); err == nil {
					s.Reset()
				}
			})
		}
	}
	for wake.Sleep(ctx, 100*time.Millisecond) {
		reached = reached || wouldKnow(n.h.Network().Peers(), witnesses, v)
		if after, _ := count(); after > before {
			return true, reached
		}
	}
	return false, reached
}

// wouldKnow reports whether one of who saw both is connected; if the membership has none of them left, anybody else.
func wouldKnow(connected, witnesses []peer.ID, v *members.View) bool {
	saw := func(p peer.ID) bool { return slices.Contains(witnesses, p) }
	if !slices.ContainsFunc(witnesses, v.Known) {
		saw = v.Known
	}
	return slices.ContainsFunc(connected, saw)
}

// StandsBy reports whether another machine has this node's key and keeps its traffic: then nobody is reached from here.
func (n *Node) StandsBy() bool {
	n.copies.mu.Lock()
	defer n.copies.mu.Unlock()
	return n.copies.standing
}

// StandbyChanged is woken when StandsBy may say something else.
func (n *Node) StandbyChanged() <-chan struct{} { return n.copies.changed }

// Clone is the other machine with this node's key, as it was proved last; ok is false if there is none, or it was not seen lately.
func (n *Node) Clone() (p clones.Proof, ok bool) {
	x := n.copies
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.proof, x.standing || x.fresh(x.at)
}

// Pairs are the peers that are two machines.
func (n *Node) Pairs() (out []clones.Pair) {
	x := n.copies
	x.mu.Lock()
	defer x.mu.Unlock()
	maps.DeleteFunc(x.pairs, func(_ peer.ID, p seenPair) bool { return !x.fresh(p.at) })
	for _, p := range slices.Sorted(maps.Keys(x.pairs)) {
		out = append(out, x.pairs[p].Pair)
	}
	return out
}
