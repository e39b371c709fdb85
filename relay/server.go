package main

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/passon"
	"edgemesh/internal/membership/signed"
	"edgemesh/internal/version"
	"edgemesh/internal/watchdog"
	"edgemesh/tunnel/p2p/admission/gate"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/base/stun"
	"edgemesh/tunnel/p2p/carrier/packet"
	"edgemesh/tunnel/p2p/carrier/plainhost"
	"edgemesh/tunnel/p2p/relay/relays/choice"
	"edgemesh/tunnel/p2p/relay/relayservice"
	"edgemesh/tunnel/p2p/who/admit"
	"edgemesh/tunnel/p2p/who/clones"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/members"
	"edgemesh/tunnel/p2p/who/refusals"
)

// server is the relay's libp2p host with its services: circuit relay v2 and the
// DHT. It follows the membership it is given.
type server struct {
	host    *plainhost.Host
	service *relayservice.Service
	clones  *clones.Witness
	seen    *stun.Service   // answers members' STUN requests
	packets *packet.Service // has the UDP sockets
	gater   *members.Gater
	access  access
	gate    *gate.Gate
	metrics *metrics
	refused *refusals.Book
	log     *slog.Logger

	stop     context.CancelFunc // ends what spawn runs
	spawned  sync.WaitGroup
	announce []ma.Multiaddr
	listen   atomic.Pointer[[]ma.Multiaddr] // as bound, ports known
}

// newServer starts a relay for the members of s and for those that others admits; self is key's peer ID. The error wraps
// errListen when an address of c.listen cannot be listened on.
func newServer(c config, key crypto.PrivKey, self peer.ID, s mesh.State, others access, logger *slog.Logger) (*server, error) {
	view, err := viewOf(self, s)
	if err != nil {
		return nil, err
	}
	v := &server{log: logger, announce: c.announce, access: others}
	v.metrics = newMetrics(relayservice.Limits(c.limits), v.connected, v.proved)
	v.metrics.members.Store(int64(view.Len()))
	v.refused = refusals.New(logger, func(p peer.ID) string { return v.gater.View().Name(p) })
	v.gater = members.NewGater(view, members.Rules{Refused: v.refuse})
	others.apply(s)
	v.packets = packet.New(packet.Config{Self: self, Spawn: v.spawn, Log: logger})
	if v.host, err = v.newHost(key, c); err != nil {
		return nil, err
	}
	if err := v.start(c); err != nil {
		return nil, errors.Join(err, v.close())
	}
	return v, nil
}

// viewOf is the membership s as relay self sees it: without those that s does not admit.
func viewOf(self peer.ID, s mesh.State) (*members.View, error) {
	banned := s.BannedPeers()
	s = s.Admitted()
	m, err := admit.Membership(s.Nodes, s.Relays, s.PodCIDRs, admit.Decode)
	if err != nil {
		return nil, err
	}
	m.Banned, _ = admit.PeerIDs(banned)
	controllers, _ := admit.PeerIDs(s.Controllers)
	m.Controllers = slices.DeleteFunc(controllers, func(p peer.ID) bool { return slices.Contains(m.Banned, p) })
	return members.NewView(self, m), nil
}

func (v *server) newHost(key crypto.PrivKey, c config) (*plainhost.Host, error) {
	limits := relayservice.Limits(c.limits).Host()
	rm, err := identity.ResourceManager(limits)
	if err != nil {
		return nil, err
	}
	v.gate = gate.New(rm, gate.Config{Handshakes: limits.Pending(), Proved: limits.Authenticated(), IsMember: v.listed, Policy: v.access.policy(v.gater.View, v.come), Refused: v.refuse})
	cm, err := identity.ConnManager()
	if err != nil {
		return nil, err
	}
	ports := newSharedPorts(c.listen, v.gate.Patience)
	return plainhost.New(plainhost.Config{
		Key: key, UserAgent: "edgemesh-relay/" + version.Number(), Keys: c.keys, Muxer: identity.RelayMuxer().Quiet(kernelKeeps),
		QUIC:  []quicreuse.Option{quicreuse.OverrideListenUDP(v.packets.Listen)},
		Gater: gater{v.gater, v.gate}, Guard: v.gate, Conns: cm,
		Addrs: func() []ma.Multiaddr {
			addrs, _ := v.addresses()
			return addrs
		},
		Transports: func(_ *plainhost.Host, up transport.Upgrader) ([]transport.Transport, error) {
			tcp, err1 := newTCPTransport(v.gate.Upgrader(up), ports, v.gate)
			ws, err2 := newWebSocket(v.gate.Upgrader(up), ports, v.gate)
			return []transport.Transport{tcp, ws}, errors.Join(err1, err2)
		},
	})
}

// addresses are the ones to give out, and whether any of them is public as far
// as we know: announced ones are trusted. Members learn the same ones through
// identify.
func (v *server) addresses() ([]ma.Multiaddr, bool) {
	if len(v.announce) > 0 {
		return v.announce, true
	}
	listen := v.listen.Load()
	ifaces, err := interfaceAddrs()
	if err != nil || listen == nil {
		return nil, false
	}
	return offered(*listen, ifaces, v.gater.View())
}

func (v *server) start(c config) error {
	v.gate.Follow(v.host.Network())
	v.access.serve(v.host.SetStreamHandler, v.gate)
	if err := bind(v.host, c.listen, v.packets.Listen); err != nil {
		return err
	}
	bound := v.host.Network().ListenAddresses()
	slices.SortFunc(bound, ma.Multiaddr.Compare)
	v.listen.Store(&bound)
	var err error
	if v.seen, err = stun.Start(v.host.QUIC.ConnManager, bound, v.log); err != nil {
		return err
	}
	var ctx context.Context
	ctx, v.stop = context.WithCancel(context.Background())
	v.clones = &clones.Witness{Host: v.host, Judged: v.isMember, Log: v.log, Spawn: v.spawn, Found: func(p clones.Pair, again bool) {
		p.Report(v.log, v.gater.View().Name(p.Peer), again)
	}}
	if err = v.clones.Start(ctx); err != nil {
		return err
	}
	v.service, err = relayservice.Start(relayservice.Config{
		Host: v.host, Limits: relayservice.Limits(c.limits),
		IsMember: v.isMember, Name: func(p peer.ID) string { return v.gater.View().Name(p) },
		IsFree: func(p peer.ID) bool { return !v.listed(p) },
		Controllers: relayservice.Controllers{
			Is:     func(p peer.ID) bool { return v.gater.View().IsController(p) },
			MayAsk: v.gate.TakeCircuit,
			Data:   gate.CircuitData,
		},
		IsKnown: v.known,
		Share: func() int {
			view := v.gater.View()
			return choice.Share(view.Len(), len(view.Relays()))
		},
		Relays:  func() []peer.AddrInfo { return v.gater.View().Relays() },
		Refused: v.refuse, StandsBy: v.clones.StandsBy,
		Metrics: v.metrics.Metrics, Packets: v.packets,
	})
	return err
}

// spawn runs f until close.
func (v *server) spawn(f func()) bool { v.spawned.Go(f); return true }

// refuse counts a refusal, and reports it.
func (v *server) refuse(reason string, p peer.ID, from string) {
	v.metrics.Refuse(reason)
	v.refused.Refuse(reason, p, from)
}

// isMember reports whether p is served as a member: the membership lists it, or it has proved the join secret.
func (v *server) isMember(p peer.ID) bool { return v.gater.View().IsMember(p) || v.gate.Admits(p) }

// known reports whether p may be connected: it is a member, another relay or a controller.
func (v *server) known(p peer.ID) bool { return v.listed(p) || v.gate.Admits(p) }

// listed reports whether the membership has p.
func (v *server) listed(p peer.ID) bool { return v.gater.View().Known(p) }

// setMembership puts s in force. Peers that are no longer known are cut off,
// with their reservations and circuits, before it returns.
func (v *server) setMembership(s mesh.State) error {
	now, err := viewOf(v.host.ID(), s)
	if err != nil {
		return err
	}
	old := v.gater.SetView(now)
	v.access.apply(s)
	v.metrics.members.Store(int64(now.Len()))
	for _, p := range v.host.Network().Peers() {
		v.disconnect(p, old)
	}
	for _, c := range v.host.Network().Conns() {
		if !now.MayComeFrom(c.RemotePeer(), c.RemoteMultiaddr()) {
			_ = c.CloseWithError(conns.Inside)
		}
	}
	return nil
}

// come adds a member to the view in force; setMembership does not run meanwhile.
func (v *server) come(m members.Member) {
	now := v.gater.View().Plus(m)
	v.gater.SetView(now)
	v.metrics.members.Store(int64(now.Len()))
}

// passOn exchanges signed statements with members until end is called; heard gets the name of who has passed on new ones.
func (v *server) passOn(book *signed.Book, heard func(from string), log *slog.Logger) (end func()) {
	x := passon.New(passon.Config{
		Book: func() *signed.Book { return book }, Heard: func(p peer.ID) { heard(v.gater.View().Name(p)) }, Log: log,
		Connected: func() []peer.ID {
			return slices.DeleteFunc(v.host.Network().Peers(), func(p peer.ID) bool { return !v.isMember(p) })
		},
		Open: func(ctx context.Context, p peer.ID) (passon.Stream, error) {
			return v.host.NewStream(network.WithNoDial(ctx, "statements"), p, identity.SignedProtocol)
		},
	})
	v.host.SetStreamHandler(identity.SignedProtocol, func(s network.Stream) {
		if p := s.Conn().RemotePeer(); v.isMember(p) {
			x.Answer(p, s)
			return
		}
		_ = s.Reset()
	})
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { x.Run(ctx) })
	return func() { cancel(); done.Wait() }
}

// disconnect closes the connections of p that may not stay. old knows its name.
func (v *server) disconnect(p peer.ID, old *members.View) {
	all := v.host.Network().ConnsToPeer(p)
	gone := slices.DeleteFunc(slices.Clone(all), v.gate.Stays)
	if len(gone) == 0 {
		return
	}
	v.log.Info("peer disconnected: it is no longer a member", "node", old.Name(p), "peer", p)
	end := func() error { return v.host.Network().ClosePeer(p) } // all at the same time
	if len(gone) < len(all) {
		end = func() (err error) {
			for _, c := range gone {
				err = errors.Join(err, c.Close())
			}
			return err
		}
	}
	if err := end(); err != nil {
		v.log.Debug("close connections", "peer", p, "err", err)
	}
}

func (v *server) connected() int {
	if v.host == nil {
		return 0
	}
	return len(v.host.Network().Peers())
}

func (v *server) proved() int {
	if v.gate == nil {
		return 0
	}
	return v.gate.Proved()
}

// watch takes the locks that every connection takes: it does not return where one is never given back.
func (v *server) watch(func(watchdog.Work)) {
	v.connected()
	v.proved()
}

// run keeps the gate until ctx ends.
func (v *server) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { v.gate.Run(ctx) })
	v.access.follow(ctx, v.gate)
}

// close ends everything in order; circuits are cut.
func (v *server) close() error {
	var errs []error
	if v.seen != nil {
		v.seen.Close()
	}
	if v.service != nil {
		errs = append(errs, v.service.Close())
	}
	errs = append(errs, v.host.Close())
	if v.stop != nil {
		v.stop()
	}
	v.spawned.Wait()
	return errors.Join(errs...)
}
