// Package p2p connects the nodes of a cluster by libp2p: whoever is a member may
// connect, nobody else; a peer is reached through a relay at once, and over the
// best direct path as soon as one is found.
//
// The parts, in the order a connection meets them:
//
//	node.go, host.go   the libp2p host and its lifecycle
//	membership.go      who may connect; gater.go holds it on both sides
//	addrs.go           which addresses are offered, and which never are
//	tcp.go, mss.go, quic.go, circuit.go      transports with the underlay's socket options
//	buffer.go, sockets.go            what lies between TCP and the kernel
//	relays/            the relays, and what is exchanged about them
//	circuits.go        circuits to a peer, and the best relay for both ends
//	peers.go           one remote node: its paths and the best of them
//	connect.go, dial.go, inject.go   a first path to it
//	path.go, stream.go one connection, and the streams on it
//	datagrams.go, packet/  packets beside the streams of a QUIC path
//	probe.go           a path's probes, round-trip time and kind
//	ladder/, drive.go, clock.go      the machine that decides, and its hands
//	punch.go, half.go, offer.go, opener.go   direct connections beside a relayed one
//	nat.go, nat/, stun/              what this node's NAT does
//	portguess/         ports of a peer that nobody can foresee
//	shun.go            members that are refused for a while
//	book.go            addresses of members, remembered over restarts
//	dht.go             addresses of members that no relay of ours can reach
//	portmap/           ports of the routers in front of this node
//	lan.go             members on the same LAN, found by multicast DNS
//	status.go          what an operator is shown
//
// DESIGN.md says why it is done this way.
package p2p

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/book"
	"edgemesh/tunnel/p2p/dialer"
	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/identity"
	"edgemesh/tunnel/p2p/ladder"
	"edgemesh/tunnel/p2p/mdns"
	"edgemesh/tunnel/p2p/members"
	"edgemesh/tunnel/p2p/nat"
	"edgemesh/tunnel/p2p/packet"
	"edgemesh/tunnel/p2p/portmap"
	"edgemesh/tunnel/p2p/punch"
	"edgemesh/tunnel/p2p/relays"
	"edgemesh/tunnel/p2p/relayservice"
	"edgemesh/tunnel/p2p/socket"
	"edgemesh/tunnel/p2p/stun"
	"edgemesh/tunnel/p2p/uplinks"
)

// Config is what a Node needs. Key and Listen are required.
type Config struct {
	Key crypto.PrivKey
	// Listen has TCP and QUIC addresses, /ip4/…/tcp/P and /ip4/…/udp/P/quic-v1
	// or /ip6/…. New fails when any of them is taken.
	Listen     []ma.Multiaddr
	Membership members.Membership
	// SocketMark is set as SO_MARK on every underlay socket (CAP_NET_ADMIN);
	// 0 sets none.
	SocketMark uint32
	// AddressFile remembers over restarts where members were; "" remembers nothing.
	AddressFile string
	// MDNS has members of the same LAN found without any relay.
	MDNS bool
	// PortMapping has routers asked to let others in.
	PortMapping bool
	// PortGuessing has ports of peers guessed where nothing else can give a direct path
	// (package portguess). It takes both sides.
	PortGuessing bool
	// Relay makes this node a relay for the others, within limits; nil does not.
	Relay *relayservice.Limits
	Log   *slog.Logger // nil discards

	now func() ladder.Time // nil: the host's clock, see clock.go
}

// Node is this node's end of all connections.
type Node struct {
	h         host.Host
	sw        *swarm.Swarm
	gater     *members.Gater
	addrs     *uplinks.Addrs
	dialer    *dialer.Dialer
	relays    *relays.Set
	peers     *peerSet
	datagrams *packet.Service
	dht       finder
	service   *relayservice.Service       // nil: this node is no relay
	seen      *stun.Service               // nil likewise
	lan       atomic.Pointer[mdns.Finder] // nil: off
	mapper    *portmap.Mapper             // nil: off
	book      *book.Book
	events    *dispatcher
	log       *slog.Logger
	now       func() ladder.Time
	nat       *nat.Sense
	puncher   *punch.Puncher

	ctx    context.Context //nolint:containedctx // the lifetime of the node's goroutines
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex // guards closed against wg.Add
	closed bool
}

// New starts a node. It returns an error that wraps ErrListen and names the
// address when one of cfg.Listen cannot be used.
func New(cfg Config) (*Node, error) {
	if cfg.Key == nil || len(cfg.Listen) == 0 {
		return nil, errors.New("p2p: key and listening addresses are required")
	}
	self, err := peer.IDFromPrivateKey(cfg.Key)
	if err != nil {
		return nil, fmt.Errorf("derive peer ID: %w", err)
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	n := &Node{events: newDispatcher(), log: log, now: cfg.now}
	if n.now == nil {
		n.now = sinceBoot
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.gater = members.NewGater(members.NewView(self, cfg.Membership), members.Rules{
		Dialable: func(e endpoint.Endpoint) bool { return n.addrs.Dialable(e) }})
	n.peers = newPeerSet(n)
	n.datagrams = packet.New(packet.Config{Self: self, Control: socket.Control(cfg.SocketMark, false), Spawn: n.spawn, Log: log})
	n.dialer = dialer.New(dialer.Config{Key: cfg.Key, Gater: n.gater, Mark: cfg.SocketMark, ListenUDP: n.datagrams.Listen})
	n.addrs = uplinks.New(n.gater.View, n.dialer.ListenAddrs)
	if cfg.PortMapping {
		n.mapper = n.newMapper()
	}
	n.relays = n.newRelays(self)
	n.nat = n.newNAT(cfg.PortGuessing)
	n.puncher = punch.New(punch.Config{Dialer: n.dialer, Addrs: n.addrs, Sense: n.nat, Seen: n.relays.Seen.Endpoints, Mapped: n.mapper.Endpoints,
		Open: n.datagrams.Open, Share: n.datagrams.Share, Guess: cfg.PortGuessing, Ctx: n.ctx, Spawn: n.spawn, Now: n.now, Log: log})
	if n.book, err = book.Open(cfg.AddressFile); err != nil {
		log.Warn("addresses of members are not remembered from before", "err", err)
	}
	if err := n.startHost(cfg); err != nil {
		n.cancel()
		return nil, err
	}
	if err := n.start(); err != nil {
		n.Close()
		return nil, err
	}
	n.relays.Use(n.gater.View().Relays())
	if cfg.MDNS {
		n.startLAN(cfg.SocketMark)
	}
	if n.mapper != nil {
		n.spawn(func() { n.mapper.Run(n.ctx) })
	}
	return n, nil
}

// newRelays joins the relays to the rest of the node.
func (n *Node) newRelays(self peer.ID) *relays.Set {
	return relays.New(relays.Config{
		Self: self, Members: n.gater, Peers: n.peers, Dialer: n.dialer, Heard: n.dialer.Sockets().Heard,
		Spawn: n.spawn, Now: n.now, Log: n.log,
		SeenElsewhere: func(first bool) {
			n.nat.Again()
			if !first {
				n.peers.netChanged()
			}
		},
		NewAddress: n.mapper.Again,
	})
}

// newMapper makes what asks routers for ports.
func (n *Node) newMapper() *portmap.Mapper {
	return portmap.New(portmap.Config{
		Ports: n.dialer.Ports, Public: endpoint.IsPublic, Log: n.log,
		Gateways: func() []portmap.Gateway { return portmap.Gateways(n.addrs.LAN()) },
		Changed:  func() { n.peers.natChanged(); n.peers.netChanged() }, // attempts that failed before may succeed now
	})
}

// start begins to serve: from here on connections become paths.
func (n *Node) start() error {
	if err := n.relays.Start(n.ctx, n.h); err != nil {
		return err
	}
	n.spawn(func() { n.peers.improveCircuits(n.ctx) })
	n.spawn(func() { n.events.run(n.ctx) })
	n.spawn(func() { n.addrs.Watch(n.ctx, n.log, n.movedTo) })
	n.spawn(func() { n.nat.Run(n.ctx) })
	n.spawn(func() { n.nat.Watch(n.ctx) })
	if n.book != nil {
		n.spawn(func() {
			n.book.Run(n.ctx, func(err error) { n.log.Error("addresses of members are not kept for a restart", "err", err) })
		})
	}
	n.h.SetStreamHandler(identity.PathProtocol, n.peers.answerProbes)
	n.h.SetStreamHandler(identity.PunchProtocol, n.peers.answerPunch)
	n.h.SetStreamHandler(identity.RelaysProtocol, n.relays.Reports.Receive)
	n.sw.Notify(&network.NotifyBundle{
		ConnectedF:    func(_ network.Network, c network.Conn) { n.connected(c) },
		DisconnectedF: func(_ network.Network, c network.Conn) { n.disconnected(c) },
	})
	return nil
}

func (n *Node) connected(c network.Conn) {
	p := c.RemotePeer()
	r := n.gater.View()
	if r.IsMember(p) {
		n.peers.add(c)
		n.relays.Reports.Send(c)
	}
	if r.IsRelay(p) {
		n.relays.Wake(p)
	}
}

func (n *Node) disconnected(c network.Conn) {
	n.peers.remove(c)
	n.relays.Wake(c.RemotePeer())
}

// movedTo has relays asked, and all peers' machines look, when this node's addresses have
// changed.
func (n *Node) movedTo(now []netip.Addr) {
	n.log.Info("addresses of this node changed", "now", now)
	n.nat.Again()
	n.relays.SuspectAll()
	n.peers.netChanged()
}

// ID is this node's peer ID.
func (n *Node) ID() peer.ID { return n.h.ID() }

// ListenAddrs returns the addresses the node is bound to.
func (n *Node) ListenAddrs() []ma.Multiaddr { return n.dialer.ListenAddrs() }

// SetStreamHandler has f called, each time in a goroutine of its own, for every
// stream a member opens for proto. f owns the stream. Members learn from
// identify which protocols are served.
func (n *Node) SetStreamHandler(proto protocol.ID, f func(peer.ID, *Stream)) {
	n.h.SetStreamHandler(proto, func(s network.Stream) {
		p := n.peers.pathOf(s.Conn())
		if p == nil { // a relay, or a member that has just been removed
			_ = s.Reset()
			return
		}
		f(s.Conn().RemotePeer(), p.wrap(s))
	})
}

// SetNotify has f called, one event after the other, for every change of path
// of a peer that has streams.
func (n *Node) SetNotify(f func(Event)) { n.events.set(f) }

// Close disconnects from everybody and waits for all goroutines.
func (n *Node) Close() error {
	n.mu.Lock()
	again := n.closed
	n.closed = true
	n.mu.Unlock()
	if again {
		n.wg.Wait()
		return nil
	}
	n.cancel()
	var err error
	if n.seen != nil {
		n.seen.Close()
	}
	if n.dht != nil {
		err = n.dht.Close()
	}
	err = errors.Join(err, n.h.Close())
	n.wg.Wait()
	return err
}

// spawn runs f in a goroutine that Close waits for. It returns false when the
// node is closed already.
func (n *Node) spawn(f func()) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return false
	}
	n.wg.Go(f)
	return true
}

// goClose closes c without waiting: the last words of a connection may take
// some 100 ms.
func (n *Node) goClose(c network.Conn) {
	n.spawn(func() { _ = c.Close() })
}
