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
	pairs    map[peer.ID]seenPair // peers that are two machines
}

type seenPair struct {
	clones.Pair
	at ladder.Time
}

// makeCopies makes what answers and watches, before the host exists.
func (n *Node) makeCopies(cfg Config) {
	x := &copies{now: cfg.now, every: cfg.standbyEvery, wake: wake.NewOne(), changed: wake.NewOne(), pairs: map[peer.ID]seenPair{}}
	if x.every == 0 {
		x.every = standbyEvery
	}
	x.place = &clones.Place{Key: cfg.Key, Instance: clones.NewInstance(), Host: cfg.HostName, Matches: cfg.Original, Known: x.known, Proved: n.proved, Log: n.log}
	x.witness = &clones.Witness{Judged: func(p peer.ID) bool { return n.gater.View().IsMember(p) }, Found: func(p clones.Pair, again bool) {
		x.note(p)
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

// known is for how long relays and peers have known this node.
func (x *copies) known() time.Duration {
	x.isKnown()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.standing {
		return 0
	}
	return max(x.now()-x.since, 1)
}

// reduce is what of v is in force.
func (x *copies) reduce(v *members.View) *members.View {
	if x.part == whole {
		return v
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return v.Reduced(x.part == seekers, x.proof.Witness)
}

// note keeps that a peer is two machines.
func (x *copies) note(p clones.Pair) {
	x.mu.Lock()
	defer x.mu.Unlock()
	was := x.pairs[p.Peer]
	p.Keeps, p.StandsBy = p.Keeps.OrBefore(was.Keeps), p.StandsBy.OrBefore(was.StandsBy)
	x.pairs[p.Peer] = seenPair{p, x.now()}
}

// hear takes what a peer says of its own key.
func (x *copies) hear(c network.Conn, p *clones.Pair) {
	if p == nil {
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.pairs, c.RemotePeer())
		return
	}
	pair := *p
	pair.Peer = c.RemotePeer()
	for _, a := range []*clones.At{&pair.Keeps, &pair.StandsBy} {
		if a.Addr == "" { // the one that says so
			a.Addr = c.RemoteMultiaddr().String()
		}
	}
	x.note(pair)
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
	if !keeps {
		x.standing, x.since = true, 0
	}
	x.mu.Unlock()
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
			case !proved && reached:
				gone++
			case proved:
				gone = 0
			}
		}
		x.mu.Lock()
		x.standing, x.at = false, 0
		x.mu.Unlock()
		n.log.Info("the other machine with this node's key is gone: this one carries the node's traffic")
		n.setPart(whole)
	}
}

// keeps reports whether the last proof leaves the traffic to this node.
func (x *copies) keeps() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.proof.Mine.Keeps(x.proof.Theirs)
}

func (n *Node) setPart(p part) {
	n.copies.using.Lock()
	n.copies.part = p
	n.enforce()
	n.copies.using.Unlock()
	n.copies.changed.Wake()
}

// seek shows this node to relays and to the last witness for a moment. proved: the other machine is still there; reached: one
// of them would know.
func (n *Node) seek(ctx context.Context) (proved, reached bool) {
	x := n.copies
	count := func() (int, peer.ID) {
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.proofs, x.proof.Witness
	}
	before, witness := count()
	n.setPart(seekers)
	defer n.setPart(none)
	ctx, cancel := context.WithTimeout(ctx, min(standbyLook, x.every))
	defer cancel()
	if n.gater.View().IsMember(witness) {
		n.tasks.spawn(func() {
			if s, err := n.OpenStream(ctx, witness, identity.PathProtocol); err == nil {
				s.Reset()
			}
		})
	}
	for wake.Sleep(ctx, 100*time.Millisecond) {
		reached = reached || len(n.h.Network().Peers()) > 0
		if after, _ := count(); after > before {
			return true, reached
		}
	}
	return false, reached
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
