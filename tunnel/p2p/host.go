package p2p

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/resolve"
	"edgemesh/tunnel/p2p/admission/gate"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/mux"
	"edgemesh/tunnel/p2p/carrier/dialer"
	"edgemesh/tunnel/p2p/carrier/plainhost"
	"edgemesh/tunnel/p2p/nat/uplinks"
	"edgemesh/tunnel/p2p/path/mdns"
	"edgemesh/tunnel/p2p/relay/relays/choice"
	"edgemesh/tunnel/p2p/relay/relayservice"
	"edgemesh/tunnel/p2p/who/clones"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/members"
	"edgemesh/tunnel/p2p/who/refusals"
)

// dialTimeout bounds a dial of the swarm; only the DHT dials that way.
const dialTimeout = 5 * time.Second

// newGate bounds what unauthenticated peers use of this node.
func newGate(cfg Config, g *members.Gater, refused *refusals.Book) (*gate.Gate, error) {
	limits := identity.Limits{}
	if cfg.Relay != nil {
		limits = cfg.Relay.Host()
	}
	rm, err := identity.ResourceManager(limits)
	if err != nil {
		return nil, err
	}
	return gate.New(rm, gate.Config{Handshakes: limits.Pending(), IsMember: func(p peer.ID) bool { return g.View().Known(p) },
		Refused: refused.Refuse}), nil
}

// newHost makes the libp2p host. announce is what identify and the DHT say about this node
// in place of whatever libp2p has found.
func newHost(d *dialer.Dialer, g *members.Gater, gate *gate.Gate, keys identity.Renewal, instance string, announce func() []ma.Multiaddr) (*plainhost.Host, error) {
	cm, err := identity.ConnManager()
	if err != nil {
		return nil, err
	}
	h, err := d.Host(plainhost.Config{
		UserAgent: clones.Agent("edgemesh-agent", instance),
		Muxer: identity.Muxer().Quiet(func(p peer.ID, at net.Addr) time.Duration {
			switch {
			case !g.View().IsRelay(p):
				return dialer.RestingKeepAlive
			case d.Sockets().KeptAlive(at):
				return mux.KernelKeepAlive
			}
			return 0
		}),
		Keys:  keys,
		Guard: gate, Conns: cm, Addrs: announce,
		// Which addresses are worth dialing is decided here, from what relays observe and from the host's interfaces.
		Swarm: []swarm.Option{swarm.WithUDPBlackHoleSuccessCounter(nil), swarm.WithIPv6BlackHoleSuccessCounter(nil),
			swarm.WithDialTimeout(dialTimeout)},
	})
	if err != nil {
		return nil, fmt.Errorf("start libp2p: %w", err)
	}
	return h, nil
}

// newLAN returns what sends and answers queries on the local network, nil when another
// program holds the port for itself.
func newLAN(cfg Config, self peer.ID, g *members.Gater, addrs *uplinks.Addrs, tcp, udp uint16, log *slog.Logger) *mdns.Finder {
	f, err := mdns.New(mdns.Config{Self: self.String(), Mark: cfg.SocketMark, TCP: tcp, UDP: udp, Log: log,
		IsMember: func(id string) bool {
			p, err := peer.Decode(id)
			return err == nil && g.View().IsMember(p)
		},
		Uplinks: addrs.LAN,
		Sign:    cfg.Key.Sign,
		Verify:  verify,
	})
	if err != nil {
		log.Warn("members on the local network are not searched: UDP port 5353 cannot be shared", "err", err)
		return nil
	}
	return f
}

// verify reports whether the peer with an ID has signed data. Its key is in the ID.
func verify(id string, data, sig []byte) bool {
	p, err := peer.Decode(id)
	if err != nil {
		return false
	}
	key, err := p.ExtractPublicKey()
	if err != nil {
		return false
	}
	ok, err := key.Verify(data, sig)
	return err == nil && ok
}

// announce returns the addresses that others learn: addresses of uplinks and, for everybody
// behind a NAT, circuits through the relays that hold a reservation.
func (n *Node) announce() []ma.Multiaddr {
	var out []ma.Multiaddr
	for _, e := range n.addrs.Local() {
		out = append(out, e.Multiaddr())
	}
	return append(out, n.relays.Circuits()...)
}

// stunServers returns where connected relays answer STUN, by their addresses: IPv4 where
// there is any, since IPv4 is what NATs translate.
func stunServers(addresses [][]ma.Multiaddr, v *members.View) []netip.AddrPort {
	var v4, v6 []netip.AddrPort
	for _, addrs := range addresses {
		for _, a := range addrs {
			e, ok := endpoint.Parse(a)
			if !ok || !e.UDP || v.InCluster(e.Addr.Addr()) {
				continue
			}
			if e.Addr.Addr().Is4() {
				v4 = append(v4, e.Addr)
			} else {
				v6 = append(v6, e.Addr)
			}
			break // one of each relay
		}
	}
	if len(v4) == 0 {
		return v6
	}
	return v4
}

// through are the addresses to send to: of NAT64, where there is no IPv4. Its mappings are those that peers see.
func through(ctx context.Context, names *resolve.Names, all []netip.AddrPort) []netip.AddrPort {
	for i, a := range all {
		to, _ := names.Via(ctx, a.Addr())
		all[i] = netip.AddrPortFrom(to, a.Port())
	}
	return all
}

// Close disconnects from everybody and waits for all goroutines.
func (n *Node) Close() error {
	var err error
	if n.tasks.stop() {
		if n.seen != nil {
			n.seen.Close()
		}
		if n.dht != nil {
			err = n.dht.Close()
		}
		if n.h != nil {
			err = errors.Join(err, n.h.BasicHost.Close())
			n.packets.Late()
			err = errors.Join(err, n.h.Close())
		}
	}
	n.tasks.wg.Wait()
	return err
}

// startRelay makes this node a relay for others.
func (n *Node) startRelay(h *plainhost.Host, cfg Config) error {
	metrics := cmp.Or(cfg.RelayMetrics, relayservice.NewMetrics(*cfg.Relay))
	var err error
	n.service, err = relayservice.Start(relayservice.Config{
		Host: h, Limits: *cfg.Relay, Metrics: metrics, Packets: n.packets,
		IsMember: func(p peer.ID) bool { return n.gater.View().IsMember(p) },
		Name:     func(p peer.ID) string { return n.gater.View().Name(p) },
		IsKnown:  func(p peer.ID) bool { return n.gater.View().Known(p) },
		Share:    func() int { return choice.Share(n.gater.View().Len(), len(n.gater.View().Relays())) },
		Relays:   n.relays.Infos,
		StandsBy: n.copies.witness.StandsBy,
		Refused:  func(why string, p peer.ID, from string) { metrics.Refuse(why); n.refused.Refuse(why, p, from) },
	})
	return err
}
