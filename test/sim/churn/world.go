package churn

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/relay/relays/choice"
)

// Config is the size of a world.
type Config struct {
	Nodes, Relays, Regions int
	// Crowded is how many times the mean part of the nodes the first region has; 0: as many as the others.
	Crowded float64
	// Constant is how many pairs talk all the time, Pairs how many do now and then.
	Constant, Pairs int
	Seed            uint64
}

// World is a cluster.
type World struct {
	clock
	Config
	Counts
	rnd      *rand.Rand
	nodes    []*node
	relays   []*relay
	ids      map[peer.ID]int // of relays
	pairs    []*pair
	distance [][]time.Duration // between regions, round trip
	cut      [][]bool          // no packet gets from region to region
	dark     []bool            // nothing works in a region
	paths    ladder.PathID     // made so far
}

// node is one agent's host.
type node struct {
	id     peer.ID
	region int
	line   time.Duration // its access line's part of each round trip
	nat    ladder.NAT
	shut   bool // its NAT, or a firewall, lets no peer in
	off    bool
	life   int       // counts starts and ends of its agent
	conns  int       // counts what no connection survives: those, and moves
	homes  []peer.ID // every relay, in choice's order
	lines  []line
	sides  []*side
}

// relay takes handshakes one after the other.
type relay struct {
	id     peer.ID
	region int
	off    bool
	life   int
	free   time.Duration // when it is done with those that wait
	held   int           // reservations
}

// handshake is the relay's processor time for one member, both connections: docs/measurements/scale.md.
const handshake = 7 * time.Millisecond

// New makes a world in which all nodes start within two minutes.
func New(c Config) *World {
	w := &World{Config: c, rnd: rand.New(rand.NewPCG(c.Seed, 0)), ids: map[peer.ID]int{}, dark: make([]bool, c.Regions)}
	w.Counts = newCounts()
	for a := range c.Regions {
		w.distance = append(w.distance, make([]time.Duration, c.Regions))
		w.cut = append(w.cut, make([]bool, c.Regions))
		for b := range a {
			w.distance[a][b] = 60*time.Millisecond + time.Duration(w.rnd.Int64N(int64(140*time.Millisecond)))
			w.distance[b][a] = w.distance[a][b]
		}
		w.distance[a][a] = 5 * time.Millisecond
	}
	for i := range c.Relays {
		r := &relay{id: w.peerID(), region: i % c.Regions}
		w.relays = append(w.relays, r)
		w.ids[r.id] = i
	}
	for range c.Nodes {
		w.nodes = append(w.nodes, w.newNode())
	}
	for i := range c.Pairs + c.Constant {
		a, b := w.nodes[i%c.Nodes], w.nodes[w.rnd.IntN(c.Nodes)]
		if a != b {
			w.newPair(a, b, i >= c.Pairs)
		}
	}
	for _, n := range w.nodes {
		n.homes = choice.Homes(n.id, slices.Collect(maps.Keys(w.ids)))
		w.after(w.upTo(2*time.Minute), func() { w.start(n) })
	}
	return w
}

func (w *World) newNode() *node {
	kinds := []ladder.NAT{ladder.NATNone, ladder.NATStable, ladder.NATStable, ladder.NATStable, ladder.NATStable, ladder.NATStable,
		ladder.NATUnknown, ladder.NATSequential, ladder.NATRandom, ladder.NATRandom}
	n := &node{id: w.peerID(), nat: kinds[w.rnd.IntN(len(kinds))], shut: w.rnd.IntN(20) == 0, off: true,
		line: time.Duration((2 + w.rnd.ExpFloat64()*15) * float64(time.Millisecond)), lines: make([]line, len(w.relays))}
	part := max(w.Crowded, 1) / float64(w.Regions)
	if w.rnd.Float64() >= part {
		n.region = 1 + w.rnd.IntN(w.Regions-1)
	}
	return n
}

func (w *World) peerID() peer.ID {
	id := []byte{0x00, 0x24, 0x08, 0x01, 0x12, 0x20} // identity, 36 bytes; Ed25519, 32 bytes
	for range 4 {
		id = binary.LittleEndian.AppendUint64(id, w.rnd.Uint64())
	}
	return peer.ID(id)
}

// upTo is a time at random.
func (w *World) upTo(d time.Duration) time.Duration { return time.Duration(w.rnd.Int64N(int64(d) + 1)) }

// open reports whether packets get from region to region.
func (w *World) open(a, b int) bool { return !w.cut[a][b] && !w.dark[a] && !w.dark[b] }

// reaches reports whether a node has a relay's answers.
func (w *World) reaches(n *node, r int) bool {
	return !n.off && !w.relays[r].off && w.open(n.region, w.relays[r].region)
}

// toRelay and between are round trips, each a little longer than the shortest.
func (w *World) toRelay(n *node, r int) time.Duration {
	return w.noisy(n.line + w.distance[n.region][w.relays[r].region])
}

func (w *World) between(p *pair) time.Duration {
	d := w.distance[p.a.node.region][p.b.node.region]
	return w.noisy(p.a.node.line + p.b.node.line + time.Duration(float64(d)*p.longer))
}

func (w *World) noisy(d time.Duration) time.Duration {
	return d + time.Duration(w.rnd.Float64()*float64(d)/10)
}

// start and stop are those of a node's agent.
func (w *World) start(n *node) {
	n.off = false
	n.life++
	n.conns++
	n.lines = make([]line, len(w.relays))
	for _, s := range n.sides {
		w.forget(s)
	}
	w.surveyAll(n)
}

func (w *World) stop(n *node) {
	for r := range n.lines {
		w.release(n, r)
	}
	n.off = true
	n.life++
	n.conns++
}
