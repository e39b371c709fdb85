// Package refusals records refused connections and streams: it counts them by reason, logs one line for each peer and
// minute, and remembers the latest for doctor.
package refusals

import (
	"cmp"
	"context"
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
	Handshakes  = "handshakes"        // all slots for handshakes are taken
	Address     = "address"           // this address has taken its share of them
	Key         = "key"               // at a member's address another key answers
	Connections = "connections"       // the process is at its limit of connections or open files
	PeerConns   = "peer connections"  // this peer has as many as one may have
	PeerStreams = "peer streams"      // likewise
	Memory      = "memory"            // too much data for it waits to be read

	// At a relay that lets nodes reach a controller before they are members:
	TooMany = "too many strangers" // all slots are taken
	// At a relay that requires the join secret:
	NoSecret    = "no join secret"                  // the peer has proved nothing in time
	WrongSecret = "wrong join secret"               // it proved another one
	BrokenProof = "broken proof of the join secret" // its message is malformed
	// At a relay that pins a key:
	NoStatement = "no statement"                     // the peer has shown none in time
	Statement   = "statement not taken"              // it is not signed, banned, older than one that is known, or another peer's
	Unproved    = "too many without the join secret" // all slots are taken
)

// meaning is what an operator reads.
var meaning = map[string]string{
	Stranger:    "connection refused: its peer is not a member; if it is a node of this cluster, its key is not the one in the membership",
	Banned:      "connection refused: its peer is banned, or refused for a time",
	Inside:      "connection refused: it comes from an address of the pod network, so it would be a tunnel inside the tunnel",
	Handshakes:  "connections refused before their handshake: all slots are taken by connections that never complete one; members have slots of their own",
	Address:     "connections refused before their handshake: this address opens many and completes none; members have slots of their own",
	Key:         "not connected: another key than the member's answers at its address; if the node was installed again, register its peer ID",
	Connections: "connection refused: this process is at its limit of connections or open files",
	PeerConns:   "connection refused: this peer has as many as one may have",
	PeerStreams: "stream refused: this peer has as many as one may have",
	Memory:      "stream reset: more data for this peer waits to be read than one peer may have",
	TooMany:     "connection refused: too many peers that are not members want a controller, and this address has its share; nodes retry automatically; block unknown addresses in the firewall",
	NoSecret:    "peer refused: it has not proved the join secret in time; if it is a node, set joinSecretFile there",
	WrongSecret: "peer refused: it has proved another join secret; if it is a node, compare the files that joinSecretFile names here and there",
	BrokenProof: "peer refused: it has not proved the join secret; if it is a node, compare its version, and the files that joinSecretFile names here and there",
	NoStatement: "peer refused: it has shown no signed statement in time; if it is a node, it needs this release or a later one, and a controller that signs",
	Statement:   "peer refused: its signed statement does not make it a member; if it is a node, its own log says why, and signers here must list the key in the PodNetwork's status.signer",
	Unproved:    "connection refused: too many peers have not proved the join secret yet, and this address or peer has its share; nodes retry automatically; block unknown addresses in the firewall",
}

const (
	// Kept is how long a refusal is remembered for doctor.
	Kept = 10 * time.Minute
	// most bounds the refusals that are remembered for each reason.
	most = 64
	// newcomer is for how long a peer may be unknown without a warning, unless ever new ones come: a node connects as soon as
	// it has the membership, and others know it some seconds later, on KubeEdge 6.
	newcomer = 20 * time.Second
	// maxLines bounds the log lines of one minute for each reason: peer IDs cost an attacker nothing, and many of
	// one reason do not hide another.
	maxLines = 20
)

// Refusal is the refusals of one peer, or of addresses before their handshake, for one reason.
type Refusal struct {
	Reason string
	Peer   peer.ID // "" before the handshake
	From   string  // the latest address
	At     time.Time
	Count  uint64 // since it is remembered

	since time.Time // it is remembered
}

// id is a Refusal's key.
type id struct {
	reason string
	peer   peer.ID
}

// Book counts, logs and remembers refusals.
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

// Refuse records a refusal; p is "" before the handshake, from may be.
func (b *Book) Refuse(reason string, p peer.ID, from string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.counts[reason]++
	r, crowd := b.note(id{reason, p}, now)
	r.From, r.At = from, now
	r.Count++
	if now.Sub(b.minute) >= time.Minute {
		b.minute = now
		clear(b.lines)
	}
	level, line := slog.LevelWarn, reason+" "+string(p)
	if reason == Stranger && now.Sub(r.since) < newcomer && !crowd {
		level, line = slog.LevelInfo, "newcomer "+line
	}
	if b.lines[reason] >= maxLines || !b.reported.Due(line) {
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
	b.log.Log(context.Background(), level, cmp.Or(meaning[reason], "refused: "+reason), append(args, "from", from)...)
}

// note returns the remembered refusal with that key, or begins one, and whether it took the place of another. The caller
// holds mu.
func (b *Book) note(i id, now time.Time) (r *Refusal, crowd bool) {
	if r := b.recent[i]; r != nil && now.Sub(r.At) < Kept {
		return r, false
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
	r = &Refusal{Reason: i.reason, Peer: i.peer, since: now}
	b.recent[i] = r
	return r, same >= most
}

// Counts are the refusals so far, by reason.
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
