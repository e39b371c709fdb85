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

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	noise "github.com/libp2p/go-libp2p/p2p/security/noise"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	libp2pquic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"go.uber.org/fx"

	"edgemesh/agent/admit"
	"edgemesh/agent/mesh"
	"edgemesh/tunnel/p2p/identity"
	"edgemesh/tunnel/p2p/join"
	"edgemesh/tunnel/p2p/knock"
	"edgemesh/tunnel/p2p/members"
	"edgemesh/tunnel/p2p/mux"
	"edgemesh/tunnel/p2p/relayservice"
	"edgemesh/tunnel/p2p/stun"
)

// server is the relay's libp2p host with its services: circuit relay v2 and the
// DHT. It follows the membership it is given.
type server struct {
	host    host.Host
	service *relayservice.Service
	quic    *quicreuse.ConnManager
	seen    *stun.Service // tells members where they are seen
	gater   *members.Gater
	door    *join.Door // nil: only those of the membership are served
	metrics *metrics
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
	v.metrics = newMetrics(v.connected, v.joinedPeers)
	v.metrics.members.Store(int64(view.Len()))
	v.gater = members.NewGater(view, members.Rules{Refused: v.metrics.refuse})
	if len(secrets) > 0 {
		v.door = join.NewDoor(self, secrets, v.metrics.refuse, logger)
		v.door.Ban(v.banned(s))
	}
	if v.host, err = v.newHost(key, c); err != nil {
		return nil, err
	}
	if err := v.start(c); err != nil {
		return nil, errors.Join(err, v.close())
	}
	return v, nil
}

// viewOf is the membership s as relay self sees it: without those that s bans.
func viewOf(self peer.ID, s mesh.State) (*members.View, error) {
	s = s.Admitted()
	m, err := admit.Membership(s.Nodes, s.Relays, s.PodCIDRs, admit.Decode)
	if err != nil {
		return nil, err
	}
	return members.NewView(self, m), nil
}

// banned are the peers that s refuses, as far as it says who they are: the names of nodes that it does not list say
// nothing here.
func (v *server) banned(s mesh.State) map[peer.ID]bool {
	out := make(map[peer.ID]bool)
	listed := make(map[string]bool)
	for _, n := range s.Nodes {
		listed[n.Name] = true
		if id, err := peer.Decode(string(n.PeerID)); err == nil && s.Bans(n.Name, n.PeerID) {
			out[id] = true
		}
	}
	for _, entry := range s.Banned {
		if id, err := peer.Decode(entry); err == nil {
			out[id] = true
		} else if !listed[entry] {
			v.log.Warn("banned: this relay knows no node of that name, so it serves whoever proves the join secret there; ban its peer ID", "name", entry)
		}
	}
	return out
}

func (v *server) newHost(key crypto.PrivKey, c config) (host.Host, error) {
	limits := relayservice.Limits(c.limits).Host()
	rm, err := identity.ResourceManager(limits)
	if err != nil {
		return nil, err
	}
	rm = knock.Guard(rm, knock.Config{Places: limits.Places(), IsMember: v.known, Refused: v.metrics.refuse, Log: v.log})
	if v.door != nil {
		rm = v.door.Guard(rm, v.known)
	}
	cm, err := identity.ConnManager()
	if err != nil {
		return nil, err
	}
	// WebSocket may share a port with TCP: who begins with "GET" is sent there.
	share := func(*libp2p.Config) error { return nil }
	if sharesPort(c.listen) {
		share = libp2p.ShareTCPListener()
	}
	timeless, err := identity.Timeless()
	if err != nil {
		return nil, err
	}
	h, err := libp2p.New(
		share,
		libp2p.Identity(key),
		libp2p.UserAgent("edgemesh-relay/"+version),
		libp2p.NoListenAddrs, // one by one later, so that each failure is seen
		libp2p.Transport(newTCPTransport),
		libp2p.Transport(newWebSocket),
		libp2p.Transport(libp2pquic.NewTransport, libp2pquic.WithTLSIdentityOption(timeless)),
		libp2p.Security(libp2ptls.ID, identity.NewTLS),
		libp2p.Security(noise.ID, noise.New),
		libp2p.Muxer(mux.ID, identity.RelayMuxer()),
		libp2p.ResourceManager(rm),
		libp2p.ConnectionManager(cm),
		libp2p.ConnectionGater(tuned{v.gater, v.door}),
		libp2p.AddrsFactory(func([]ma.Multiaddr) []ma.Multiaddr {
			addrs, _ := v.addresses()
			return addrs
		}),
		libp2p.ForceReachabilityPublic(),
		libp2p.DisableMetrics(),
		libp2p.WithFxOption(fx.Populate(&v.quic)),
	)
	if err != nil {
		return nil, fmt.Errorf("make libp2p host: %w", err)
	}
	return h, nil
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
			waits := v.door != nil && v.door.Connected(conn)
			if !waits && !v.known(conn.RemotePeer()) {
				go conn.Close()
			}
		},
		DisconnectedF: func(_ network.Network, conn network.Conn) {
			if v.door != nil {
				v.door.Disconnected(conn)
			}
		},
	})
	if v.door != nil {
		v.host.SetStreamHandler(identity.JoinProtocol, v.door.Serve)
	}
	for i, a := range c.listen {
		// libp2p's error does not wrap the kernel's: ask that one first.
		var err error
		if !sharesWith(a, c.listen[:i]) {
			err = bindable(a)
		}
		if err == nil {
			err = v.host.Network().Listen(a)
		}
		if err != nil {
			return fmt.Errorf("listen[%d]: %w on %s: %w", i, errListen, a, err)
		}
	}
	bound := v.host.Network().ListenAddresses()
	slices.SortFunc(bound, ma.Multiaddr.Compare)
	v.listen.Store(&bound)
	var err error
	if v.seen, err = stun.Start(v.quic, bound, v.log); err != nil {
		return err
	}
	v.service, err = relayservice.Start(relayservice.Config{
		Host: v.host, Limits: relayservice.Limits(c.limits),
		IsMember: v.isMember,
		IsKnown:  v.known,
		Relays:   func() []peer.AddrInfo { return v.gater.View().Relays() },
		Refused:  v.metrics.refuse,
		Metrics:  v.metrics,
	})
	return err
}

// isMember says whether p is served as a member: the membership lists it, or it has proved the join secret.
func (v *server) isMember(p peer.ID) bool { return v.gater.View().IsMember(p) || v.joined(p) }

// known says whether p may be connected: it is a member or another relay.
func (v *server) known(p peer.ID) bool { return v.gater.View().Known(p) || v.joined(p) }

func (v *server) joined(p peer.ID) bool {
	return v.door != nil && v.door.Admitted(p) && v.gater.Refusal(p) == nil
}

// sharesPort says whether two addresses are on one TCP port.
func sharesPort(listen []ma.Multiaddr) bool {
	for i, a := range listen {
		if sharesWith(a, listen[:i]) {
			return true
		}
	}
	return false
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
		if v.known(p) || v.door != nil && v.door.Waits(p) {
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
