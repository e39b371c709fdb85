// Package refusals knows who was refused what: it counts by reason, has a line in the log for each peer and minute, and
// remembers the latest ones for doctor.
package refusals

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/seldom"
)

// Reasons, as a metric's label has them.
const (
	Stranger    = "stranger"          // the peer is not a member
	Banned      = "banned"            // it is banned, or refused for a time
	Inside      = "inside the tunnel" // the connection comes from the cluster's own addresses
	Handshakes  = "handshakes"        // all places for handshakes are taken
	Address     = "address"           // this address has taken its share of them
	Key         = "key"               // at a member's address another key answers
	Connections = "connections"       // the process has no room for another connection
	PeerConns   = "peer connections"  // this peer has as many as one may have
	PeerStreams = "peer streams"      // likewise
	Memory      = "memory"            // it has us hold too much that nobody reads

	// At a relay that lets nodes ask a controller before they are members:
	Lobby = "too many strangers" // others have their turn to ask
	// At a relay that asks for the join secret:
	NoSecret    = "no join secret"                   // the peer has proved nothing in time
	WrongSecret = "wrong join secret"                // it proved another one
	BrokenProof = "broken proof of the join secret"  // what it sent is none
	Waiting     = "too many without the join secret" // others have their turn to prove it
)

// meaning is what an operator reads.
var meaning = map[string]string{
	Stranger:    "connection refused: its peer is not a member; if it is a node of this cluster, its key is not the one in the membership",
	Banned:      "connection refused: its peer is banned, or refused for a time",
	Inside:      "connection refused: it comes from an address of the pod network, so it would be a tunnel inside the tunnel",
	Handshakes:  "connections refused before their handshake: all places are taken by those who do not say who they are; members have places of their own",
	Address:     "connections refused before their handshake: this address opens many and does not say who it is; members have places of their own",
	Key:         "not connected: another key than the member's answers at its address; if the node was installed again, register its peer ID",
	Connections: "connection refused: this process has no room for more connections or open files",
	PeerConns:   "connection refused: this peer has as many as one may have",
	PeerStreams: "stream refused: this peer has as many as one may have",
	Memory:      "stream reset: this peer has more waiting to be read than one may have",
	Lobby:       "connection refused: too many strangers ask for a controller, and this address has its share; nodes try again by themselves; block strangers in the firewall",
	NoSecret:    "peer refused: it has not proved the join secret in time; if it is a node, set joinSecretFile there",
	WrongSecret: "peer refused: it has proved another join secret; if it is a node, compare the files that joinSecretFile names here and there",
	BrokenProof: "peer refused: it has not proved the join secret; if it is a node, compare its version, and the files that joinSecretFile names here and there",
	Waiting:     "connection refused: too many wait to prove the join secret, and this address or peer has its share; nodes try again by themselves; block strangers in the firewall",
}

const (
	// Kept is how long a refusal is remembered for doctor.
	Kept = 10 * time.Minute
	// most bounds the refusals that are remembered for each reason.
	most = 64
	// maxLines bounds the lines of one minute in the log for each reason: peer IDs cost a stranger nothing, and many of
	// one reason do not hide another.
	maxLines = 20
)

// Refusal is what one peer, or one address before its handshake, was refused.
type Refusal struct {
	Reason string
	Peer   peer.ID // "" before the handshake
	From   string  // the latest address
	At     time.Time
	Count  uint64 // since it is remembered
}

// id is what counts as the same.
type id struct {
	reason string
	peer   peer.ID
}

// Book counts, tells and remembers.
type Book struct {
	log      *slog.Logger
	name     func(peer.ID) string // the member's; nil: names are not known
	now      func() time.Time
	reported seldom.Log

	mu     sync.Mutex // guards what follows; only reported's lock is taken below it
	counts map[string]uint64
	recent map[id]*Refusal
	minute time.Time      // when the lines of one minute began
	lines  map[string]int // of that minute, by reason
	silent map[string]int // refusals without a line, since the reason's last one
}

// New returns an empty book. name may be nil.
func New(log *slog.Logger, name func(peer.ID) string) *Book {
	return &Book{
		log: log, name: name, now: time.Now, counts: make(map[string]uint64), recent: make(map[id]*Refusal),
		lines: make(map[string]int), silent: make(map[string]int),
	}
}

// Refuse notes a refusal; p is "" before the handshake, from may be.
func (b *Book) Refuse(reason string, p peer.ID, from string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.counts[reason]++
	r := b.note(id{reason, p}, now)
	r.From, r.At = from, now
	r.Count++
	if now.Sub(b.minute) >= time.Minute {
		b.minute = now
		clear(b.lines)
	}
	if b.lines[reason] >= maxLines || !b.reported.Due(reason+" "+string(p)) {
		b.silent[reason]++
		return
	}
	b.lines[reason]++
	args := []any{"reason", reason}
	if p != "" {
		args = append(args, "peer", p)
		if b.name != nil {
			args = append(args, "node", b.name(p))
		}
	}
	if n := b.silent[reason]; n > 0 {
		args = append(args, "refusedSinceLastLine", n)
	}
	delete(b.silent, reason)
	b.log.Warn(cmp.Or(meaning[reason], "refused: "+reason), append(args, "from", from)...)
}

// note returns what is remembered of it, expecting mu held.
func (b *Book) note(i id, now time.Time) *Refusal {
	if r := b.recent[i]; r != nil && now.Sub(r.At) < Kept {
		return r
	}
	same, oldest := 0, i
	for k, r := range b.recent {
		if k.reason != i.reason {
			continue
		}
		if same++; oldest == i || r.At.Before(b.recent[oldest].At) {
			oldest = k
		}
	}
	if same >= most {
		delete(b.recent, oldest)
	}
	r := &Refusal{Reason: i.reason, Peer: i.peer}
	b.recent[i] = r
	return r
}

// Counts is how often each reason was one.
func (b *Book) Counts() map[string]uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.counts)
}

// Recent are the refusals of the last ten minutes, the latest first.
func (b *Book) Recent() (out []Refusal) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.recent {
		if b.now().Sub(r.At) < Kept {
			out = append(out, *r)
		}
	}
	slices.SortFunc(out, func(x, y Refusal) int { return y.At.Compare(x.At) })
	return out
}
