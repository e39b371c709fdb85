// Package pathtest has nodes in a scripted world: what decides about their paths is real (peers, paths, reach, punch), their
// connections are not. A world belongs into a bubble of testing/synctest: an hour of it takes a moment, and Close fails the
// test if a goroutine is left.
//
//	world.go  the world, its relays and its nodes
//	node.go   what a node's packages see of it: dials, addresses, relays
//	conn.go   connections and streams
package pathtest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	ma "github.com/multiformats/go-multiaddr"
	mss "github.com/multiformats/go-multistream"

	"edgemesh/internal/keytest"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/members"
)

// World is where the nodes are.
type World struct {
	Latency time.Duration // of a packet, in one direction; set before the first connection
	t       testing.TB
	wg      sync.WaitGroup

	mu      sync.Mutex // a leaf: guards what follows
	nodes   map[peer.ID]*Node
	relays  []*Relay
	blocked bool
	links   []*Link
}

// Relay is a relay where every node has a reservation.
type Relay struct {
	ID    peer.ID
	world *World
	addr  ma.Multiaddr
	state relayState // guarded by World.mu
}

type relayState int

// What a relay does.
const (
	Up   relayState = iota
	Down            // it is not connected
	Hung            // it answers no request for a circuit, and what it carries vanishes
)

// New returns an empty world.
func New(t testing.TB) *World {
	return &World{t: t, Latency: 5 * time.Millisecond, nodes: make(map[peer.ID]*Node)}
}

// Relay adds a relay; the first ones are nearer.
func (w *World) Relay() *Relay {
	_, id := keytest.New(w.t)
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &Relay{ID: id, world: w, addr: ma.StringCast(fmt.Sprintf("/ip4/192.0.2.%d/tcp/4001", len(w.relays)+1))}
	w.relays = append(w.relays, r)
	return r
}

// Nodes adds nodes that are members of one cluster.
func (w *World) Nodes(names ...string) (nodes []*Node) {
	m := w.membership()
	for _, name := range names {
		_, id := keytest.New(w.t)
		m.Members = append(m.Members, members.Member{Name: name, ID: id})
	}
	for i, member := range m.Members {
		nodes = append(nodes, newNode(w, member, m, netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)})))
	}
	return nodes
}

func (w *World) membership() (m members.Membership) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.relays {
		m.Relays = append(m.Relays, peer.AddrInfo{ID: r.ID, Addrs: []ma.Multiaddr{r.addr}})
	}
	return m
}

// Set changes what a relay does. Circuits through one that is down end, those through a hung one fall silent.
func (r *Relay) Set(s relayState) {
	r.world.mu.Lock()
	r.state = s
	r.world.mu.Unlock()
	r.world.each(func(l *Link) bool { return l.relay == r.ID }, func(l *Link) {
		if s == Down {
			_ = l.ends[0].Close()
		} else {
			l.silent.Store(s == Hung)
		}
	})
}

// Block lets no direct dial get through, or does so again. Connections stay.
func (w *World) Block(blocked bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.blocked = blocked
}

// Silence makes all packets of direct connections vanish, without anybody being notified.
func (w *World) Silence() {
	w.each(func(l *Link) bool { return l.relay == "" }, func(l *Link) { l.silent.Store(true) })
}

// each does something with all connections that match.
func (w *World) each(match func(*Link) bool, do func(*Link)) {
	w.mu.Lock()
	links := slices.Clone(w.links)
	w.mu.Unlock()
	for _, l := range links {
		if match(l) {
			do(l)
		}
	}
}

// Live is how many connections of a kind two nodes have.
func (w *World) Live(relayed bool) (n int) {
	w.each(func(l *Link) bool {
		return (l.relay != "") == relayed && !l.ends[0].IsClosed() && !l.ends[1].IsClosed()
	}, func(*Link) { n++ })
	return n
}

// Close ends all nodes, and waits for whatever runs.
func (w *World) Close() {
	w.mu.Lock()
	nodes := w.nodes
	w.mu.Unlock()
	for _, n := range nodes {
		n.close()
	}
	w.each(func(*Link) bool { return true }, func(l *Link) {
		l.silent.Store(false)
		l.mu.Lock()
		pipes := l.pipes
		l.mu.Unlock()
		for _, p := range pipes {
			_ = p.Close()
		}
	})
	for _, n := range nodes {
		n.wg.Wait()
	}
	w.wg.Wait()
}

// connect makes a connection between two nodes, both of which have it when connect returns.
func (w *World) connect(from, to *Node, local, remote ma.Multiaddr, relay peer.ID) *Conn {
	l := &Link{world: w, relay: relay}
	a := &Conn{link: l, node: from, local: local, remote: remote, opened: time.Now()}
	b := &Conn{link: l, node: to, local: remote, remote: local, opened: time.Now(), far: a}
	a.far, l.ends = b, [2]*Conn{a, b}
	w.mu.Lock()
	w.links = append(w.links, l)
	w.mu.Unlock()
	to.Table.Add(b)
	from.Table.Add(a)
	return a
}

// serve negotiates a stream and serves it at a node.
func (w *World) serve(n *Node, s *stream) {
	mux := mss.NewMultistreamMuxer[protocol.ID]()
	for _, p := range []protocol.ID{identity.PathProtocol, identity.PunchProtocol, Echo, Sink} {
		mux.AddHandler(p, nil)
	}
	proto, _, err := mux.Negotiate(s)
	c := n.Table.Conn(s.c)
	if err != nil || c == nil {
		_ = s.Reset()
		return
	}
	_ = s.SetProtocol(proto)
	switch proto {
	case identity.PathProtocol:
		c.Probes.Answer(s)
	case identity.PunchProtocol:
		n.Table.AnswerPunch(s)
	case Echo:
		answers := c.Wrap(s)
		_, _ = io.Copy(answers, answers)
		answers.Reset()
	case Sink:
		_, _ = io.Copy(io.Discard, c.Wrap(s))
		_ = s.Reset()
	}
}

// Echo is the protocol of streams on which nodes send back what they get, Sink that of streams on which they do not.
const (
	Echo = identity.StreamProtocol
	Sink = identity.DatagramProtocol
)

// at returns the node with an address.
func (w *World) at(e endpoint.Endpoint) *Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.nodes {
		if n.addr == e.Addr.Addr() {
			return n
		}
	}
	return nil
}

func (w *World) find(relay peer.ID) (*Relay, relayState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.IndexFunc(w.relays, func(r *Relay) bool { return r.ID == relay })
	if i < 0 {
		return nil, Down
	}
	return w.relays[i], w.relays[i].state
}

func testLog(t testing.TB, name string) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", name)
}

// sleep waits, unless ctx ends before.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stream opens a stream to another node and has it answered once.
func (n *Node) Stream(ctx context.Context, to *Node) (*Flow, error) {
	s, err := n.Table.OpenStream(ctx, to.ID, Echo)
	if err != nil {
		return nil, err //nolint:wrapcheck // it says all there is
	}
	f := &Flow{Stream: s}
	if err := f.Ping(); err != nil {
		s.Reset()
		return nil, err
	}
	return f, nil
}
