package p2p

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/conns"
	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/ladder"
	"edgemesh/tunnel/p2p/packet"
)

// Kind says how a peer is reached. The values are the contract's words.
type Kind string

const (
	// KindDirect: each side sees the other at an address the other owns.
	KindDirect Kind = "direct"
	// KindPunched: a direct connection, and at least one address is translated.
	KindPunched Kind = "punched"
	// KindRelayed: through a relay.
	KindRelayed Kind = "relayed"
	// KindNone: there is no connection.
	KindNone Kind = "none"
)

// Path describes one way to a peer.
type Path struct {
	Kind      Kind
	Transport string        // "tcp", "quic", "relay/tcp", "relay/quic", "relay/ws"; "" for KindNone
	RTT       time.Duration // 0 as long as it is not known
	Addr      string        // the far end as seen from here, a multiaddr
	Relay     string        // peer ID of the relay, of KindRelayed
}

// path is one connection to a peer, direct or relayed.
type path struct {
	n      *Node
	r      *remote
	id     ladder.PathID
	conn   network.Conn
	relay  peer.ID // "" for a direct connection
	udp    bool    // QUIC, to the peer or to the relay
	opened time.Time
	ctx    context.Context //nolint:containedctx // ends with the connection
	cancel context.CancelFunc
	token  uint64        // names this connection towards the peer (probe.go)
	due    chan struct{} // holds one: a probe is to be sent

	tx, rx atomic.Uint64 // bytes moved by streams
	heard  atomic.Int64  // when something last came in: nanoseconds after opened
	quiet  atomic.Bool   // the machine wants to know when data moves again

	datagrams *packet.Session // nil: not a direct QUIC connection

	// The rest is guarded by r.set.mu.
	dead      bool // given up, or ended
	direct    bool // both ends own the addresses they are seen at
	rtt       time.Duration
	peerToken uint64
	sampled   uint64 // bytes, as last told to the machine
	streams   map[*Stream]struct{}
}

func newPath(n *Node, r *remote, c network.Conn, id ladder.PathID) *path {
	p := &path{n: n, r: r, id: id, conn: c, opened: time.Now(), token: rand.Uint64(),
		due: make(chan struct{}, 1), streams: make(map[*Stream]struct{})}
	p.ctx, p.cancel = context.WithCancel(n.ctx)
	a := c.RemoteMultiaddr()
	if endpoint.IsCircuit(a) {
		p.relay = endpoint.RelayOf(a)
	}
	_, err := a.ValueForProtocol(ma.P_QUIC_V1)
	p.udp = err == nil
	p.datagrams = n.datagrams.Session(p.ctx, c, datagramPath{p})
	return p
}

// link is what the machine has to know of p.
func (p *path) link() ladder.Link {
	l := ladder.Link{Relayed: p.relayed(), Relay: string(p.relay)}
	if p.udp {
		l.Transport = ladder.QUIC
	}
	if l.Relayed {
		l.Order = p.relayOrder()
	}
	return l
}

// hear notes that something came in.
func (p *path) hear() { p.heard.Store(int64(time.Since(p.opened))) }

// heardAt says when something last came in.
func (p *path) heardAt() time.Time { return p.opened.Add(time.Duration(p.heard.Load())) }

func (p *path) relayed() bool { return endpoint.IsCircuit(p.conn.RemoteMultiaddr()) }

// moved counts the bytes that streams have sent and received.
func (p *path) moved() uint64 { return p.tx.Load() + p.rx.Load() }

// sent and received note what streams move.
func (p *path) sent(n int) {
	p.tx.Add(uint64(n))
	p.stir()
}

func (p *path) received(n int) {
	p.rx.Add(uint64(n))
	p.hear()
	p.stir()
}

// stir wakes a path that was quiet.
func (p *path) stir() {
	if p.quiet.Load() && p.quiet.CompareAndSwap(true, false) {
		p.r.stir()
	}
}

// kind says how p leads to the peer; the caller holds r.set.mu.
func (p *path) kind() Kind {
	if p.relayed() {
		return KindRelayed
	}
	if p.direct {
		return KindDirect
	}
	return KindPunched
}

func (p *path) transport() string {
	t := "tcp"
	if p.udp {
		t = "quic"
	} else if endpoint.OverWebSocket(p.conn.RemoteMultiaddr()) {
		t = "ws"
	}
	if p.relayed() {
		return "relay/" + t
	}
	return t
}

// pathLocked describes p; the caller holds r.set.mu.
func (p *path) pathLocked() Path {
	relay := ""
	if p.relay != "" {
		relay = p.relay.String()
	}
	return Path{Kind: p.kind(), Transport: p.transport(), RTT: p.rtt, Addr: p.conn.RemoteMultiaddr().String(), Relay: relay}
}

func (p *path) describe() Path {
	p.r.set.mu.Lock()
	defer p.r.set.mu.Unlock()
	return p.pathLocked()
}

// open opens a stream for proto on exactly this connection. It takes one round
// trip, and no longer than the path is alive. An idle path may have died unseen:
// it is probed at once.
func (p *path) open(ctx context.Context, proto protocol.ID) (*Stream, error) {
	p.r.set.mu.Lock()
	p.r.tell(ladder.Ask{Path: p.id})
	p.r.set.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	s, err := conns.Open(ctx, p.conn, proto)
	if err != nil {
		return nil, err
	}
	return p.wrap(s), nil
}

// wrap makes s a stream of this path.
func (p *path) wrap(s network.Stream) *Stream {
	st := &Stream{s: s, path: p}
	p.r.set.mu.Lock()
	p.streams[st] = struct{}{}
	p.r.set.mu.Unlock()
	return st
}

func (p *path) release(s *Stream) {
	p.r.set.mu.Lock()
	delete(p.streams, s)
	p.r.set.mu.Unlock()
}

// carrierHeard says when the kernel last heard what is directly below a path:
// for TCP the peer on this very connection, for QUIC the peer on a TCP connection
// beside it, for a relayed path the relay.
func (p *path) carrierHeard() time.Time {
	if !p.relayed() && !p.udp {
		return p.n.dialer.Sockets().Heard(p.conn)
	}
	next := p.r.id
	if p.relayed() {
		next = p.relay
	}
	var last time.Time
	for _, c := range p.n.sw.ConnsToPeer(next) {
		if endpoint.IsCircuit(c.RemoteMultiaddr()) {
			continue
		}
		if at := p.n.dialer.Sockets().Heard(c); at.After(last) {
			last = at
		}
	}
	return last
}
