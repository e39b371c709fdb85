package relays

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/relay/relays/choice"
)

// shortPause is the first wait after a relay was lost, and the least one ever.
const shortPause = choice.Shortest

// client keeps this node connected to one relay, over TCP and over QUIC where both get through, and holds a reservation
// there. Two connections, because the relay then sees the NAT's mapping of both sockets, which hole punching needs. A
// relay that was not chosen is connected only to be measured, or as long as circuits to peers run through it.
type client struct {
	*common
	info   peer.AddrInfo
	ctx    context.Context //nolint:containedctx // ends when the relay is dropped
	cancel context.CancelFunc
	wake   wake.One // a connection came or went, or the demand changed
	retry  wake.One // do not wait for the end of the pause

	demand  demand
	outcome outcome
	told    atomic.Pointer[error] // why the relay ended a connection since the last attempt, if it said so
	lines   lines
	ports   ports // of the client's own goroutine
	lead    lead  // likewise
	proxied bool  // there was no way but the proxy last; of the client's own goroutine
}

func newClient(shared *common, info peer.AddrInfo) *client {
	c := &client{common: shared, info: info, wake: wake.NewOne(), retry: wake.NewOne(),
		lines: lines{pings: make(map[network.Conn]wake.One), seen: make(map[network.Conn]endpoint.Endpoint)}}
	c.ctx, c.cancel = context.WithCancel(shared.ctx)
	return c
}

// is says whether c is for this relay at these addresses.
func (c *client) is(info peer.AddrInfo) bool {
	return c.info.ID == info.ID && slices.EqualFunc(c.info.Addrs, info.Addrs, ma.Multiaddr.Equal)
}

// conns returns the live connections to the relay, TCP first.
func (c *client) conns() []network.Conn {
	var tcp, udp []network.Conn
	for _, conn := range c.host.Network().ConnsToPeer(c.info.ID) {
		switch {
		case conn.IsClosed() || endpoint.IsCircuit(conn.RemoteMultiaddr()):
		case overUDP(conn):
			udp = append(udp, conn)
		default:
			tcp = append(tcp, conn)
		}
	}
	return append(tcp, udp...)
}

// addrOf is where the relay answers that conn leads to: behind a proxy, whose address is conn's other end, one of those
// that are configured.
func addrOf(c *client, conn network.Conn) ma.Multiaddr {
	if c.Dialer.Proxied(conn) {
		for _, a := range c.info.Addrs {
			if u, err := c.Dialer.Proxy(a); u != nil || err != nil {
				return a
			}
		}
	}
	return endpoint.Real(conn.RemoteMultiaddr())
}

// quicBeside returns the relay's addresses for QUIC at the hosts that conns lead to over TCP. Where the relay is configured by
// name, nothing else tells its IP address while TCP alone is connected. Another name may be another host's.
func (c *client) quicBeside(conns []network.Conn) (out []ma.Multiaddr) {
	for _, conn := range conns {
		ip, ok := endpoint.IP(conn.RemoteMultiaddr())
		if !ok || overUDP(conn) || c.Dialer.Proxied(conn) {
			continue
		}
		for _, a := range c.info.Addrs {
			if port, err := a.ValueForProtocol(ma.P_UDP); err == nil && isQUIC(a) && c.leadsTo(a, ip) {
				if n, err := strconv.ParseUint(port, 10, 16); err == nil {
					out = append(out, endpoint.Endpoint{UDP: true, Addr: netip.AddrPortFrom(ip, uint16(n))}.Multiaddr())
				}
			}
		}
	}
	return out
}

// leadsTo reports whether a, of QUIC, is the host's that has ip and is connected over TCP.
func (c *client) leadsTo(a ma.Multiaddr, ip netip.Addr) bool {
	if at, ok := endpoint.IP(a); ok {
		return at == ip
	}
	family := a[0].Protocol().Code
	return (family != ma.P_DNS4 || ip.Is4()) && (family != ma.P_DNS6 || ip.Is6()) &&
		slices.ContainsFunc(c.info.Addrs, func(tcp ma.Multiaddr) bool { return !isQUIC(tcp) && tcp[0].Value() == a[0].Value() })
}

// report notes the end of an attempt to use the relay, and wakes whoever waits for it. The first failure is no warning: a new
// cluster's relay listens once it has the membership, as its agents do.
func (c *client) report(reserved bool, err error) {
	if told := c.told.Load(); err != nil && told != nil {
		err = *told
	}
	if why := c.Refusal(c.info.ID); err != nil && why != nil {
		err = why
	}
	before := c.outcome.set(reserved, err)
	first := before.attempts == 0
	switch {
	case reserved && !before.reserved:
		c.Log.Info("reserved at relay", "relay", c.info.ID, "rtt", before.rtt)
	case reserved || err == nil || c.ctx.Err() != nil:
	case before.attempts <= 1 || before.err == nil || before.err.Error() != err.Error():
		level := slog.LevelWarn
		if first {
			level = slog.LevelInfo
		}
		c.Log.Log(c.ctx, level, "no reservation at relay: peers cannot reach this node through it; trying again", "relay", c.info.ID, "err", err)
	}
	if first || before.reserved != reserved || before.failed != (err != nil) {
		c.choose.Wake()
	}
	c.changed.Broadcast()
}

// visit asks for a connection, for the sake of circuits to peers, and waits until there is one, or cannot be.
func (c *client) visit(ctx context.Context) (conns []network.Conn) {
	ctx, cancel := context.WithTimeout(ctx, DialTimeout)
	defer cancel()
	before := c.outcome.get().attempts
	c.demand.visit()
	c.wake.Wake()
	_ = c.changed.Until(ctx, func() bool {
		conns = c.conns()
		now := c.outcome.get()
		return len(conns) > 0 || now.attempts > before && now.failed
	})
	return conns
}

// measured is the relay as far as the choice goes.
func (c *client) measured() choice.Relay {
	known := c.outcome.get()
	return choice.Relay{ID: c.info.ID, RTT: known.rtt, Failed: known.failed, Reserved: c.demand.reservation(),
		Crowded: known.crowded && !known.reserved}
}

// tcpFirst reports whether members are so many that this one dials TCP first and QUIC when asked; false where the relay is
// a member, whose connections are its paths.
func (c *client) tcpFirst() bool {
	v := c.Members.View()
	return !v.IsMember(c.info.ID) && choice.TCPFirst(v.Len(), len(v.Relays()))
}
