package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/internal/membership/admit"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/version"
	"edgemesh/tunnel/p2p/admission/join"
	"edgemesh/tunnel/p2p/admission/knock"
	"edgemesh/tunnel/p2p/admission/lobby"
	"edgemesh/tunnel/p2p/base/stun"
	"edgemesh/tunnel/p2p/carrier/plainhost"
	"edgemesh/tunnel/p2p/relay/relays/choice"
	"edgemesh/tunnel/p2p/relay/relayservice"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/members"
	"edgemesh/tunnel/p2p/who/refusals"
)

// server is the relay's libp2p host with its services: circuit relay v2 and the
// DHT. It follows the membership it is given.
type server struct {
	host    *plainhost.Host
	service *relayservice.Service
	seen    *stun.Service // tells members where they are seen
	gater   *members.Gater
	door    *join.Door   // nil: only those of the membership are served
	lobby   *lobby.Lobby // where strangers may ask a controller; nil: with a join secret
	metrics *metrics
	refused *refusals.Book
	log     *slog.Logger

	announce []ma.Multiaddr
	listen   atomic.Pointer[[]ma.Multiaddr] // as bound, ports known
}

// newServer starts a relay for s and, if there are secrets, for those who prove one; self is key's peer ID. The error wraps errListen when an address of
// c.listen cannot be had.
func newServer(c config, key crypto.PrivKey, self peer.ID, s mesh.State, secrets []join.Secret, logger *slog.Logger) (*server, error) {
	view, err := viewOf(self, s)
	if err != nil {
		return nil, err
	}
	v := &server{log: logger, announce: c.announce}
	v.metrics = newMetrics(relayservice.Limits(c.limits), v.connected, v.joinedPeers)
	v.metrics.members.Store(int64(view.Len()))
	v.refused = refusals.New(logger, func(p peer.ID) string { return v.gater.View().Name(p) })
	v.gater = members.NewGater(view, members.Rules{Refused: v.refuse})
	if len(secrets) > 0 {
		v.door = join.NewDoor(self, secrets, v.refuse, logger)
		v.door.Ban(v.banned(s))
	} else {
		v.lobby = lobby.New(v.refuse)
	}
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

// banned are the peers that s refuses, and does not admit, as far as it says who they are: the names of nodes that it does not list say
// nothing here.
func (v *server) banned(s mesh.State) map[peer.ID]bool {
	out := make(map[peer.ID]bool)
	listed := make(map[string]bool)
	for _, n := range s.Nodes {
		listed[n.Name] = true
		if id, err := peer.Decode(string(n.PeerID)); err == nil && !s.Admits(n) {
			out[id] = true
		}
	}
	ids, names := admit.PeerIDs(s.Banned)
	for _, id := range ids {
		out[id] = true
	}
	for _, name := range names {
		if !listed[name] {
			v.log.Warn("banned: this relay knows no node of that name, so it serves whoever proves the join secret there; ban its peer ID", "name", name)
		}
	}
	return out
}

func (v *server) newHost(key crypto.PrivKey, c config) (*plainhost.Host, error) {
	limits := relayservice.Limits(c.limits).Host()
	rm, err := identity.ResourceManager(limits)
	if err != nil {
		return nil, err
	}
	guard := knock.New(rm, knock.Config{Places: limits.Places(), IsMember: v.known, Refused: v.refuse})
	rm = guard
	if v.door != nil {
		rm = v.door.Guard(rm, v.known)
	} else {
		rm = lobby.Guard(rm, v.known)
	}
	cm, err := identity.ConnManager()
	if err != nil {
		return nil, err
	}
	ports := newSharedPorts(c.listen, guard.Patience)
	return plainhost.New(plainhost.Config{
		Key: key, UserAgent: "edgemesh-relay/" + version.Number(), Muxer: identity.RelayMuxer(),
		Gater: tuned{v.gater, v.door, v.lobby}, Resources: rm, Conns: cm,
		Addrs: func() []ma.Multiaddr {
			addrs, _ := v.addresses()
			return addrs
		},
		Transports: func(_ *plainhost.Host, up transport.Upgrader) ([]transport.Transport, error) {
			tcp, err1 := newTCPTransport(guard.Upgrader(up), ports, rm)
			ws, err2 := newWebSocket(guard.Upgrader(up), ports, rm)
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
	// The membership may change between the gater's look at a connection and its
	// registration, which the swarm reports afterwards.
	v.host.Network().Notify(&network.NotifyBundle{
		ConnectedF: func(_ network.Network, conn network.Conn) {
			waits := v.door != nil && v.door.Connected(conn) || v.lobby != nil && v.lobby.Connected(conn)
			if !waits && !v.listed(conn.RemotePeer()) {
				go conn.Close()
			}
		},
		DisconnectedF: func(_ network.Network, conn network.Conn) {
			if v.door != nil {
				v.door.Disconnected(conn)
			} else {
				v.lobby.Disconnected(conn)
			}
		},
	})
	if v.door != nil {
		v.host.SetStreamHandler(identity.JoinProtocol, v.door.Serve)
	}
	if err := v.bind(c.listen); err != nil {
		return err
	}
	bound := v.host.Network().ListenAddresses()
	slices.SortFunc(bound, ma.Multiaddr.Compare)
	v.listen.Store(&bound)
	var err error
	if v.seen, err = stun.Start(v.host.QUIC.ConnManager, bound, v.log); err != nil {
		return err
	}
	v.service, err = relayservice.Start(relayservice.Config{
		Host: v.host, Limits: relayservice.Limits(c.limits),
		IsMember: v.isMember,
		Controllers: relayservice.Controllers{
			Is:     func(p peer.ID) bool { return v.gater.View().IsController(p) },
			MayAsk: func(p peer.ID) bool { return v.lobby != nil && v.lobby.Circuit(p) },
			Data:   lobby.CircuitData,
		},
		IsKnown: v.known,
		Share: func() int {
			view := v.gater.View()
			return choice.Share(view.Len(), len(view.Relays()))
		},
		Relays:  func() []peer.AddrInfo { return v.gater.View().Relays() },
		Refused: v.refuse,
		Metrics: v.metrics,
	})
	return err
}

// bind listens on every address, WebSocket's first: where TCP shares its port, WebSocket's transport binds it.
func (v *server) bind(listen []ma.Multiaddr) error {
	open := func(network string, a *net.UDPAddr) (net.PacketConn, error) { return net.ListenUDP(network, a) }
	order := make([]int, len(listen))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return len(listen[j]) - len(listen[i]) }) // …/ws is longer
	var bound []ma.Multiaddr
	for _, i := range order {
		// libp2p's error does not wrap the kernel's: ask that one first.
		a := listen[i]
		var err error
		if !sharesWith(a, bound) {
			err = bindable(a)
		}
		if err == nil {
			var at ma.Multiaddr
			if at, err = v.host.QUIC.Bind(a, open, nil); err == nil {
				err = v.host.Network().Listen(at)
			}
		}
		if err != nil {
			return fmt.Errorf("listen[%d]: %w on %s: %w", i, errListen, a, err)
		}
		bound = append(bound, a)
	}
	return nil
}

// refuse counts a refusal, and tells of it.
func (v *server) refuse(reason string, p peer.ID, from string) {
	v.metrics.Refuse(reason)
	v.refused.Refuse(reason, p, from)
}

// isMember says whether p is served as a member: the membership lists it, or it has proved the join secret.
func (v *server) isMember(p peer.ID) bool { return v.gater.View().IsMember(p) || v.joined(p) }

// known says whether p may be connected: it is a member or another relay.
func (v *server) known(p peer.ID) bool { return v.gater.View().Known(p) || v.joined(p) }

// listed says whether the membership has p, so that its connections need no proof of a secret.
func (v *server) listed(p peer.ID) bool { return v.gater.View().Known(p) }

func (v *server) joined(p peer.ID) bool {
	return v.door != nil && v.door.Admitted(p) && v.gater.Refusal(p) == nil
}

// sharesWith says whether a is on one TCP port with one of others. Port 0 is a
// port of its own.
func sharesWith(a ma.Multiaddr, others []ma.Multiaddr) bool {
	return a[1].Protocol().Code == ma.P_TCP && a[1].Value() != "0" &&
		slices.ContainsFunc(others, func(b ma.Multiaddr) bool { return a[:2].Equal(b[:2]) })
}

// bindable tries to bind a's port and gives it back.
func bindable(a ma.Multiaddr) error {
	network, address, err := manet.DialArgs(a[:2])
	if err != nil {
		return err
	}
	var l io.Closer
	if strings.HasPrefix(network, "udp") {
		l, err = net.ListenPacket(network, address)
	} else {
		l, err = net.Listen(network, address)
	}
	if err != nil {
		return err
	}
	return l.Close()
}

// setMembership puts s in force. Peers that are no longer known are cut off,
// with their reservations and circuits, before it returns.
func (v *server) setMembership(s mesh.State) error {
	now, err := viewOf(v.host.ID(), s)
	if err != nil {
		return err
	}
	old := v.gater.SetView(now)
	if v.door != nil {
		v.door.Ban(v.banned(s))
	}
	v.metrics.members.Store(int64(now.Len()))
	for _, p := range v.host.Network().Peers() {
		if v.known(p) || v.door != nil && v.door.Waits(p) || v.lobby != nil && now.HasControllers() && v.lobby.Has(p) && !now.Banned(p) {
			continue
		}
		v.log.Info("peer disconnected: it is no longer a member", "node", old.Name(p), "peer", p)
		if err := v.host.Network().ClosePeer(p); err != nil {
			v.log.Debug("close connections", "peer", p, "err", err)
		}
	}
	for _, c := range v.host.Network().Conns() {
		if !now.Outside(c.RemoteMultiaddr()) {
			c.Close()
		}
	}
	return nil
}

func (v *server) connected() int {
	if v.host == nil {
		return 0
	}
	return len(v.host.Network().Peers())
}

func (v *server) joinedPeers() int {
	if v.door == nil {
		return 0
	}
	return v.door.Len()
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
	return errors.Join(errs...)
}

// errListen means that an address cannot be listened on.
var errListen = errors.New("cannot listen")
