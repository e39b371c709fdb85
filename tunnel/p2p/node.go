// Package p2p connects the nodes of a cluster by libp2p: whoever is a member may
// connect, nobody else; a peer is reached through a relay immediately, and over the
// best direct path as soon as one is found.
//
// Its packages import downwards only. This one joins them to a node:
//
//	node.go        the node: how it begins and ends, and what its owner can request of it
//	host.go        the libp2p host, and what else is made of the configuration
//	status.go      what an operator is shown
//	contact.go     the waits of a first contact, as both ends see them
//	lanes.go       streams of peers that come before the owner serves them
//	copies.go      another machine with a key, this node's or a peer's
//	tasks.go       goroutines and the clock
//	counting.go    queries of what the NAT does, counted
//	errors.go      errors of the rooms that the owner of a node may see
//	base/          endpoint, conns, ladder (which path to use), mux, proxy, stun, timeline
//	who/           members (who may connect), identity (keys, TLS), lookup (the DHT), refusals
//	carrier/       dialer and socket, packet and sealed (datagrams), plainhost (libp2p's host)
//	nat/           what the NAT does, router ports, punching and guessing ports, own and foreign addresses
//	relay/         relays that this node uses; relayservice, being one
//	admission/     unauthenticated peers until they are admitted
//	path/          peers, each with its machine and paths; reach, a first path; book, mdns; pathtest, a scripted world
//
// DESIGN.md draws the wings; a package imports its own wing and those below.
package p2p

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/quic-go/quic-go"

	"edgemesh/internal/proxy"
	"edgemesh/internal/resolve"
	"edgemesh/internal/upkeep"
	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/admission/gate"
	"edgemesh/tunnel/p2p/admission/join"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/base/stun"
	"edgemesh/tunnel/p2p/base/timeline"
	"edgemesh/tunnel/p2p/carrier/dialer"
	"edgemesh/tunnel/p2p/carrier/packet"
	"edgemesh/tunnel/p2p/carrier/plainhost"
	"edgemesh/tunnel/p2p/carrier/socket"
	"edgemesh/tunnel/p2p/nat/portmap"
	"edgemesh/tunnel/p2p/nat/punch"
	"edgemesh/tunnel/p2p/nat/sense"
	"edgemesh/tunnel/p2p/nat/targets"
	"edgemesh/tunnel/p2p/nat/uplinks"
	"edgemesh/tunnel/p2p/path/book"
	"edgemesh/tunnel/p2p/path/mdns"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/path/peers"
	"edgemesh/tunnel/p2p/path/reach"
	"edgemesh/tunnel/p2p/relay/relays"
	"edgemesh/tunnel/p2p/relay/relayservice"
	"edgemesh/tunnel/p2p/who/clones"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/lookup"
	"edgemesh/tunnel/p2p/who/members"
	"edgemesh/tunnel/p2p/who/refusals"
)

// Config is what a Node needs. Key and Listen are required.
type Config struct {
	Key crypto.PrivKey
	// Listen has TCP and QUIC addresses, /ip4/…/tcp/P and /ip4/…/udp/P/quic-v1
	// or /ip6/…. New fails when any of them is taken.
	Listen []ma.Multiaddr
	// Announced are addresses that lead to this node although no interface has them, as behind a 1:1 NAT.
	Announced  []ma.Multiaddr
	Membership members.Membership
	// Machine is what is known of this machine, and HostName is its name: what is said where another one has the same key.
	Machine  clones.Machine
	HostName string
	// SocketMark is set as SO_MARK on every underlay socket (CAP_NET_ADMIN);
	// 0 sets none.
	SocketMark uint32
	// AddressFile remembers across restarts where members were; "" remembers nothing.
	AddressFile string
	// RoutersFile remembers likewise how long the routers of this node's sites remember silent connections.
	RoutersFile string
	// MDNS finds members on the same LAN without any relay.
	MDNS bool
	// PortMapping requests ports from routers.
	PortMapping bool
	// PortGuessing enables port guessing where nothing else can give a direct path
	// (package portguess). It takes both sides.
	PortGuessing bool
	// Sealed has sealed packets with repair carry what goes to peers that do so, too, where there is a QUIC connection (SetLanes).
	Sealed bool
	// SealedMemory is what these hold of all peers together, bytes; 0: 64 MiB.
	SealedMemory int
	// Metered reports whether each byte on the uplink is paid for: then direct paths are opened only for large transfers,
	// and no ports guessed; nil: it is not.
	Metered func() bool
	// Upkeep counts what is sent without a pod's packet asking for it; nil: nobody asks.
	Upkeep *upkeep.Budget
	// JoinSecrets are proved to relays that do not know the membership; none: no relay requires one.
	JoinSecrets []join.Secret
	// Proxy is the way to relays through an HTTP proxy; nil: none.
	Proxy *proxy.Egress
	// Names finds relays and proxies that are given by name; nil: names of the node's own, which keep nothing.
	Names *resolve.Names
	// Relay makes this node a relay for the others, within limits; nil: it is not one.
	Relay        *relayservice.Limits
	RelayMetrics *relayservice.Metrics // counts what it does then; nil: nobody reads them
	Log          *slog.Logger          // nil discards

	// Probed receives the round trip of each answered probe, Queued now and then how long a packet has waited here for its
	// path, Punched of each attempt that has ended; nil: nobody reads them. They must not block.
	Probed  func(paths.Kind, time.Duration)
	Queued  func(paths.Kind, time.Duration)
	Punched func(mine, theirs ladder.NAT, ok bool)

	tuned
}

// Node is this node's end of all connections.
type Node struct {
	tasks   *tasks
	upkeep  *upkeep.Budget
	log     *slog.Logger
	gater   *members.Gater
	refused *refusals.Book
	gate    *gate.Gate
	join    *join.Prover
	packets *packet.Service
	dialer  *dialer.Dialer
	addrs   *uplinks.Addrs
	public  []ma.Multiaddr // as announced
	targets *targets.Guard
	relays  *relays.Set
	sense   *sense.Sense
	h       *plainhost.Host
	dht     reach.Finder
	service *relayservice.Service // nil: this node is not a relay
	seen    *stun.Service         // nil likewise
	mapper  *portmap.Mapper       // nil: off
	lan     *mdns.Finder          // nil: off
	book    *book.Book            // nil: off
	puncher *punch.Puncher
	peers   *peers.Table
	mark    uint32
	sealed  bool
	copies  *copies
	early   map[protocol.ID]*early
	want    *members.View // guarded by copies.using, as is what is in force of it
	// timeline notes the steps of first contacts.
	timeline *timeline.Book
	sources  sync.Map // network.Conn → netip.Addr: where packets of QUIC leave from that no address is bound to
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
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.now == nil {
		cfg.now = sinceBoot
	}
	if cfg.Metered == nil {
		cfg.Metered = func() bool { return false }
	}
	n := &Node{tasks: newTasks(), mark: cfg.SocketMark, sealed: cfg.Sealed, upkeep: cfg.Upkeep, log: cfg.Log, public: cfg.Announced, join: join.NewProver(cfg.JoinSecrets, cfg.Log),
		timeline: timeline.New(), early: map[protocol.ID]*early{identity.StreamProtocol: newEarly(), identity.DatagramProtocol: newEarly()}}
	if cfg.Names == nil {
		cfg.Names = resolve.New(resolve.Config{})
		n.tasks.spawn(func() { <-n.tasks.ctx.Done(); cfg.Names.Close() })
	}
	n.makeLower(self, cfg)
	n.makeCopies(cfg)
	if err = n.listen(cfg); err == nil {
		n.makeUpper(self, cfg)
		err = n.start(cfg.Names)
	}
	if err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// makeLower makes the rooms that the host needs. Their callbacks run only once the upper
// ones exist.
func (n *Node) makeLower(self peer.ID, cfg Config) {
	spawn := n.tasks.spawn
	n.refused = refusals.New(n.log, func(p peer.ID) string { return n.gater.View().Name(p) })
	n.gater = members.NewGater(members.NewView(self, cfg.Membership), members.Rules{
		Refused:  n.refused.Refuse,
		Dialable: func(e endpoint.Endpoint) bool { return !cfg.circuits && n.addrs.Dialable(e) },
		Owns:     func(p peer.ID, a netip.Addr) bool { return n.targets.Owns(p, a) },
		Met:      func(p peer.ID, a netip.Addr) { n.targets.Met(p, a) },
	})
	n.packets = packet.New(packet.Config{Self: self, Control: socket.Control(cfg.SocketMark, false), Renew: cfg.renew, Sealed: cfg.Sealed, Memory: cfg.SealedMemory,
		Spawn: spawn, Ending: n.tasks.ctx.Done(), Wire: cfg.Upkeep.Wire(), Log: n.log})
	n.dialer = dialer.New(dialer.Config{Key: cfg.Key, Gater: n.gater, Mark: cfg.SocketMark, ListenUDP: n.packets.Listen,
		Proxy: cfg.Proxy, Names: cfg.Names, Timeline: n.timeline, Refused: n.refused.Refuse, SendFrom: n.packets.SendFrom, Metered: cfg.Metered,
		Sources: func(p peer.ID, to netip.Addr) []netip.Addr {
			if !n.gater.View().IsRelay(p) && !n.targets.Owns(p, to) {
				return nil // of what may be another host's, little is tried
			}
			return n.addrs.Sources(to, cfg.SocketMark)
		}})
	n.addrs = uplinks.New(n.gater.View, n.dialer.ListenAddrs)
	n.targets = targets.New(targets.Config{Near: n.addrs.Near, Public: endpoint.IsPublic, Now: cfg.now, Log: n.log,
		Name:    func(p peer.ID) string { return n.gater.View().Name(p) },
		Witness: func(ctx context.Context, p peer.ID) [][]endpoint.Endpoint { return n.relays.Witness.Ask(ctx, p) }})
	if cfg.PortMapping {
		n.mapper = portmap.New(portmap.Config{
			Ports: n.dialer.Ports, Public: endpoint.IsPublic, Log: n.log,
			Gateways: func() []portmap.Gateway { return portmap.Gateways(n.addrs.LAN()) },
			Changed:  n.mappingChanged,
		})
	}
	n.relays = relays.New(relays.Config{
		Self: self, Members: n.gater, Dialer: n.dialer, Names: cfg.Names, Heard: n.dialer.Sockets().Heard, KeepAlive: n.dialer.Sockets().KeepAlive,
		Spawn: spawn, Now: cfg.now, Log: n.log,
		Targets: n.targets, RoutersFile: cfg.RoutersFile,
		SeenElsewhere: func(first bool) {
			n.sense.Again()
			if !first {
				n.peers.NetChanged()
			}
		},
		NewAddress: n.mapper.Again, Refusal: n.join.Refusal, Carried: wake.NewOne(),
		Clone: func() *clones.Pair { return n.copies.notice() }, Cloned: func(c network.Conn, p *clones.Pair) { n.copies.hear(c, p) },
	})
	n.sense = sense.New(sense.Config{
		Servers: func() []netip.AddrPort {
			return through(n.tasks.ctx, cfg.Names, stunServers(n.relays.Addrs(), n.gater.View()))
		},
		Listen: func(network string) (net.PacketConn, error) {
			c, err := n.packets.Open(network, &net.UDPAddr{})
			return counting{c, n.upkeep}, err
		},
		Owns:       n.addrs.Owns,
		Ports:      cfg.PortGuessing,
		Changed:    func() { n.peers.NATChanged() },
		InUse:      func() bool { return n.peers.InUse() },
		Moved:      func() { n.relays.SuspectAll(); n.peers.NetChanged() },
		Unanswered: n.relays.SuspectAll,
		Log:        n.log,
	})
}

// listen makes the host, bound to every address of cfg.Listen, and starts the services of a
// relay if it is one.
func (n *Node) listen(cfg Config) error {
	var err error
	if n.gate, err = newGate(cfg, n.gater, n.refused); err != nil {
		return err
	}
	h, err := newHost(n.dialer, n.gater, n.gate, cfg.keys, n.copies.place.Instance, n.announce)
	if err != nil {
		return err
	}
	n.h, n.copies.witness.Host = h, h
	if err := n.dialer.Listen(h.Swarm, cfg.Listen); err != nil {
		return err
	}
	if cfg.Relay == nil {
		n.dht, err = n.joinDHT(h)
		return err
	}
	if err := n.startRelay(h, cfg); err != nil {
		return err
	}
	n.dht = n.service
	n.seen, err = stun.Start(n.dialer.QUIC(), n.ListenAddrs(), n.log)
	return err
}

// joinDHT joins the relays' DHT.
func (n *Node) joinDHT(h host.Host) (reach.Finder, error) {
	d, err := lookup.Join(h, func(p peer.ID) bool { return n.gater.View().IsRelay(p) },
		func(a ma.Multiaddr) bool { return n.gater.View().Outside(a) })
	if err != nil {
		return nil, err // no typed nil
	}
	return d, nil
}

// makeUpper makes the rooms that need the host and its ports.
func (n *Node) makeUpper(self peer.ID, cfg Config) {
	ctx, spawn := n.tasks.ctx, n.tasks.spawn
	tcp, udp := n.dialer.Ports()
	if cfg.MDNS {
		n.lan = newLAN(cfg, self, n.gater, n.addrs, tcp, udp, n.log)
	}
	var err error
	if n.book, err = book.Open(cfg.AddressFile); err != nil {
		n.log.Warn("address book ignored: members are searched through relays and the DHT only", "err", err)
	}
	n.puncher = punch.New(punch.Config{Dialer: n.dialer, Addrs: n.addrs, Sense: n.sense, Seen: n.relays.Seen.Endpoints, Mapped: n.mapper.Endpoints,
		AwaitSeen: n.relays.Seen.AwaitUDP, Targets: n.targets, Ended: cfg.Punched, ViaNAT64: cfg.Names.ViaNAT64,
		Open: n.packets.Open, Share: n.packets.Share, Guess: func() bool { return cfg.PortGuessing && !cfg.Metered() }, Ctx: ctx, Spawn: spawn, Now: cfg.now, Log: n.log})
	n.peers = peers.New(peers.Config{
		Self: self, Members: n.gater, Punch: n.puncher, Relays: n.relays, Carried: n.relays.Carried, Book: n.book,
		Paths: paths.Config{Ctx: ctx, Spawn: spawn, Owns: n.owns, Packets: n.packets, Sealed: cfg.Sealed, TCP: n.dialer.Sockets(),
			Channel: func(ctx context.Context, relay, to peer.ID) (*packet.Channel, error) {
				return n.relays.Channel(ctx, relay, to, !cfg.Metered())
			},
			Conns: n.h.Network().ConnsToPeer, Probed: cfg.Probed, Queued: cfg.Queued, Timeline: n.timeline, SuspectRelay: n.relays.Suspect, Log: n.log},
		Reach: &reach.Config{Self: self, Dialer: n.dialer, Addrs: n.addrs, Relays: n.relays, Candidates: n.relays.Reports.Candidates,
			DHT: n.dht, LAN: n.lan, Targets: n.targets, Ctx: ctx, Spawn: spawn, Log: n.log},
		Metered: cfg.Metered,
		Serves:  func(p peer.ID) bool { return n.service != nil && n.service.Reserved(p) },
		Ctx:     ctx, Spawn: spawn, Now: cfg.now, Log: n.log,
	})
}

// start begins to serve: from here on connections become paths.
func (n *Node) start(names *resolve.Names) error {
	ctx, spawn := n.tasks.ctx, n.tasks.spawn
	if err := n.relays.Start(ctx, n.h, n.peers.Circuits()); err != nil {
		return err
	}
	if err := n.copies.witness.Start(ctx); err != nil {
		return err
	}
	n.peers.Run()
	spawn(func() { n.standBy(ctx) })
	if n.upkeep != nil {
		spawn(func() { n.upkeep.Run(ctx.Done()) })
	}
	spawn(func() { n.addrs.Watch(ctx, n.log, n.addressesChanged, n.addressGone) })
	spawn(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-names.NAT64Changed(): // more peers may be reached
				n.peers.NetChanged()
			}
		}
	})
	spawn(func() { n.sense.Run(ctx) })
	spawn(func() { n.sense.Watch(ctx) })
	if n.book != nil {
		spawn(func() {
			n.book.Run(ctx, func(err error) {
				n.log.Error("address book not written: addresses of members will be missing after a restart", "err", err)
			})
		})
	}
	if n.lan != nil {
		spawn(func() { n.lan.Run(ctx) })
	}
	if n.mapper != nil {
		spawn(func() { n.mapper.Run(ctx) })
	}
	n.onPath(identity.PathProtocol, func(c *paths.Conn, s network.Stream) { c.Probes.Answer(s) })
	n.onPath(identity.ContactProtocol, n.answerContact)
	n.holdLanes()
	if n.sealed { // a peer must not take a node that starts for one without
		n.onPath(identity.FlightProtocol, func(c *paths.Conn, s network.Stream) {
			if !c.AnswerFlight(s) {
				n.tasks.spawn(func() { _ = s.Reset() })
			}
		})
	}
	n.h.SetStreamHandler(identity.InstanceProtocol, n.copies.place.Answer)
	n.h.SetStreamHandler(identity.PunchProtocol, n.peers.AnswerPunch)
	n.h.SetStreamHandler(identity.RelaysProtocol, n.relays.Reports.Receive)
	n.h.Network().Notify(&network.NotifyBundle{
		ConnectedF:    func(_ network.Network, c network.Conn) { n.connected(c) },
		DisconnectedF: func(_ network.Network, c network.Conn) { n.disconnected(c) },
	})
	n.relays.Use(n.gater.View().Relays())
	return nil
}

// onPath sets what is called for every stream for proto on a path of a member.
func (n *Node) onPath(proto protocol.ID, f func(*paths.Conn, network.Stream)) {
	n.h.SetStreamHandler(proto, func(s network.Stream) {
		c := n.peers.Conn(s.Conn())
		if c == nil { // a relay, or a member that has just been removed
			_ = s.Reset()
			return
		}
		f(c, s)
	})
}

func (n *Node) connected(c network.Conn) {
	p, v := c.RemotePeer(), n.gater.View()
	if src, ok := n.source(c); ok {
		n.sources.Store(c, src)
	}
	if v.IsMember(p) {
		n.peers.Add(c)
		n.relays.Reports.Send(c)
	}
	if v.IsRelay(p) {
		if !v.IsMember(p) { // a member knows the membership
			n.tasks.spawn(func() { n.join.Prove(n.tasks.ctx, c) })
		}
		n.relays.Wake(p)
	}
	n.copies.isKnown()
	n.follow(c, v)
	n.dialer.Taken(c, n.peers.Conn(c) != nil || v.IsRelay(p))
}

// follow counts what a connection costs while it carries nothing of pods.
func (n *Node) follow(c network.Conn, v *members.View) {
	if n.upkeep == nil || endpoint.IsCircuit(c.RemoteMultiaddr()) {
		return
	}
	p, x := c.RemotePeer(), n.peers.Conn(c)
	switch {
	case x != nil:
		n.dialer.Follow(c, n.upkeep, upkeep.Peer, x.Moved)
	case v.IsRelay(p):
		n.dialer.Follow(c, n.upkeep, upkeep.Relay, func() uint64 { return n.peers.Circuits().Traffic()[p].Bytes })
	}
}

// source is where a connection over QUIC that no address is bound to sends from: where the peer dialed it, or what is named, or
// what the kernel chooses now.
func (n *Node) source(c network.Conn) (src netip.Addr, ok bool) {
	var q *quic.Conn
	if ip, bound := endpoint.IP(c.LocalMultiaddr()); !bound || !ip.IsUnspecified() || endpoint.IsCircuit(c.RemoteMultiaddr()) || !c.As(&q) {
		return src, false
	}
	if at, is := q.LocalAddr().(*net.UDPAddr); is && !at.IP.IsUnspecified() {
		return at.AddrPort().Addr().Unmap(), true
	}
	to, ok := q.RemoteAddr().(*net.UDPAddr)
	if !ok {
		return src, false
	}
	if src = n.packets.Source(to); src.IsValid() {
		return src, true
	}
	return n.addrs.Source(to.AddrPort().Addr().Unmap(), n.mark)
}

func (n *Node) disconnected(c network.Conn) {
	n.sources.Delete(c)
	n.peers.Remove(c)
	n.relays.Ended(c)
}

// addressesChanged suspects all relays and has all peers look for better paths.
func (n *Node) addressesChanged(now []netip.Addr) {
	n.log.Info("addresses of this node changed", "now", now)
	n.sources.Range(func(k, was any) bool { // the kernel may choose another one now
		if src, ok := n.source(k.(network.Conn)); ok { //nolint:forcetypeassert // nothing else is stored
			n.sources.CompareAndSwap(k, was, src)
		}
		return true
	})
	n.sense.Again()
	n.mapper.Look()
	n.lan.Look()
	n.relays.SuspectAll()
	n.peers.NetChanged()
}

// addressGone gives up the connections bound to an address that this host has no longer: they would be found silent later.
func (n *Node) addressGone(a netip.Addr) {
	for _, c := range n.h.Network().Conns() {
		ip, ok := endpoint.IP(c.LocalMultiaddr())
		if src, known := n.sources.Load(c); known {
			ip, ok = src.(netip.Addr) //nolint:forcetypeassert // nothing else is stored
		}
		if !ok || ip != a || endpoint.IsCircuit(c.RemoteMultiaddr()) {
			continue
		}
		n.log.Debug("connection given up: its address is gone", "addr", a, "peer", c.RemotePeer())
		n.peers.Unbound(c, fmt.Sprintf("lost this node's address %s", a))
		n.tasks.spawn(func() { _ = c.Close() })
	}
	n.peers.AddressGone()
}

// owns reports whether an endpoint is this node's: an address known by observation alone is not.
func (n *Node) owns(e endpoint.Endpoint) bool {
	return n.addrs.Owns(e.Addr.Addr()) || slices.Contains(n.mapper.Endpoints(), e) || slices.ContainsFunc(n.public, func(a ma.Multiaddr) bool {
		at, ok := endpoint.Parse(a)
		return ok && at == e
	})
}

// mappingChanged repeats attempts that failed without the port of the router.
func (n *Node) mappingChanged() {
	n.peers.NATChanged()
	n.peers.NetChanged()
}

// ID is this node's peer ID.
func (n *Node) ID() peer.ID { return n.h.ID() }

// ListenAddrs returns the addresses the node is bound to.
func (n *Node) ListenAddrs() []ma.Multiaddr { return n.dialer.ListenAddrs() }

// SetMembership replaces the membership. Peers and relays that are no longer in it are refused from now on and
// disconnected, which takes about 10 ms; new relays are connected in the background.
func (n *Node) SetMembership(m members.Membership) { n.use(members.NewView(n.ID(), m)) }

// ChangeMembership makes c of the membership in force, likewise. Calls of the two must not overlap.
func (n *Node) ChangeMembership(c members.Change) { n.use(n.want.With(c)) }

func (n *Node) use(v *members.View) {
	n.copies.using.Lock()
	defer n.copies.using.Unlock()
	n.want = v
	n.enforce()
}

// enforce puts what is wanted in force, or what is left of it while this node stands by. The caller holds copies.using.
func (n *Node) enforce() {
	v := n.copies.reduce(n.want)
	n.gater.SetView(v)
	for _, c := range n.h.Network().Conns() {
		if !v.Known(c.RemotePeer()) || !v.Outside(c.RemoteMultiaddr()) {
			n.tasks.spawn(func() { _ = c.Close() }) // its last words may take some 100 ms
		}
	}
	n.peers.Retain(v.IsMember)
	n.book.Retain(v.IsMember)
	n.targets.Retain(v.Known)
	n.relays.Reports.Retain(v.IsMember)
	if n.lan != nil {
		n.lan.Retain()
	}
	n.relays.Use(v.Relays())
}

// SetJoinSecrets replaces the secrets that are proved to relays.
func (n *Node) SetJoinSecrets(secrets []join.Secret) { n.join.Set(secrets) }

// Show has relays that pin a key see what was signed about this node, from now on and where they are connected; "": nothing.
func (n *Node) Show(statement string) {
	if !n.join.Show(statement) || statement == "" {
		return
	}
	n.tasks.spawn(func() {
		for _, c := range n.h.Network().Conns() {
			if n.IsRelay(c.RemotePeer()) {
				n.join.Prove(n.tasks.ctx, c)
			}
		}
		n.relays.SuspectAll() // what was refused before is tried again
	})
}

// IsRelay reports whether p is a relay that is not a member.
func (n *Node) IsRelay(p peer.ID) bool { return n.gater.View().IsOperators(p) }

// AtRelays are the connected relays that are not members.
func (n *Node) AtRelays() []peer.ID {
	return slices.DeleteFunc(n.h.Network().Peers(), func(p peer.ID) bool { return !n.IsRelay(p) })
}

// OpenAtRelay opens a stream to a connected relay.
func (n *Node) OpenAtRelay(ctx context.Context, relay peer.ID, proto protocol.ID) (network.Stream, error) {
	return n.h.NewStream(network.WithNoDial(ctx, string(proto)), relay, proto)
}

// SetRelayHandler sets what is called for every stream that a member or a relay opens for proto, as SetStreamHandler does for members; the
// path is nil where it is a relay.
func (n *Node) SetRelayHandler(proto protocol.ID, f func(peer.ID, *paths.Conn, network.Stream)) {
	n.h.SetStreamHandler(proto, func(s network.Stream) {
		p, c := s.Conn().RemotePeer(), n.peers.Conn(s.Conn())
		if c == nil && !n.IsRelay(p) {
			_ = s.Reset()
			return
		}
		f(p, c, s)
	})
}

// Quarantine disconnects from a member and refuses it, in both directions, for d: it
// breaks rules that every correct member keeps. why is what an operator reads. It does not
// block.
func (n *Node) Quarantine(p peer.ID, d time.Duration, why string) {
	n.gater.Quarantine(p, d, why)
	n.peers.Refuse(p)
}

// OpenStream is peers.Table.OpenStream.
func (n *Node) OpenStream(ctx context.Context, to peer.ID, proto protocol.ID) (*paths.Stream, error) {
	return n.peers.OpenStream(ctx, to, proto)
}

// Disconnect is peers.Table.Disconnect.
func (n *Node) Disconnect(p peer.ID) { n.peers.Disconnect(p) }

// Suspect is peers.Table.Suspect.
func (n *Node) Suspect(p peer.ID) { n.peers.Suspect(p) }

// SetProved sets what returns the addresses of a member that probes on the LAN have proved. It is called without locks, and
// may block for a moment.
func (n *Node) SetProved(f func(peer.ID) []netip.Addr) { n.targets.SetProved(f) }

// SetNotify is peers.Table.SetNotify.
func (n *Node) SetNotify(f func(peers.Event)) { n.peers.SetNotify(f) }

// SetStreamHandler sets what is called for every stream that a member opens for proto,
// each time in a goroutine of its own. f owns the stream. Members learn from identify which
// protocols are served.
func (n *Node) SetStreamHandler(proto protocol.ID, f func(peer.ID, *paths.Stream)) {
	e := n.early[proto]
	serve := func(c *paths.Conn, s network.Stream) {
		if e != nil {
			n.timeline.Note(c.RemotePeer(), timeline.Received)
		}
		f(c.RemotePeer(), c.Wrap(s))
	}
	n.onPath(proto, serve)
	if e != nil {
		e.begin(serve)
	}
}

// SetLanes sets what makes the lanes that sealed paths with repair to a member carry. Before the call there are no such paths.
func (n *Node) SetLanes(f func(peer.ID) packet.Lanes) { n.packets.Carry(f) }
