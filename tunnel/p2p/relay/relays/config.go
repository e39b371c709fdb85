package relays

import (
	"context"
	"log/slog"
	"net/url"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/resolve"
	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/nat/targets"
	"edgemesh/tunnel/p2p/who/clones"
	"edgemesh/tunnel/p2p/who/members"
)

// DialTimeout bounds one dial, security handshake included, and so one attempt to connect a relay.
const DialTimeout = 4 * time.Second

// maxSurveys bounds the relays that are measured at the same time without being in use.
const maxSurveys = 4

// Config is what a Set needs; all of it is required.
type Config struct {
	Self    peer.ID
	Members *members.Gater
	Dialer  Dialer
	Names   *resolve.Names
	Heard   func(network.ConnMultiaddrs) time.Time // by the kernel, of a TCP connection's other end; zero for any other
	// KeepAlive has the kernel probe the other end of a TCP connection after a silence. ended says how long it had been silent when
	// it ended; 0: it has not, something was on its way, or that is not known.
	KeepAlive func(network.ConnMultiaddrs, time.Duration) (ended func() time.Duration)
	Spawn     func(f func()) bool  // runs f in a goroutine; false: the owner is closing
	Now       func() time.Duration // a clock that runs while this host sleeps
	Log       *slog.Logger
	// Targets bounds the dials of relays that are members: they say themselves where they are.
	Targets *targets.Guard
	// RoutersFile remembers across restarts how long routers on the way remember connections; "": nothing does.
	RoutersFile string
	// SeenElsewhere is called when a relay sees this node where none has seen it before; first: no relay has seen it at
	// all until now, or its UDP socket was not looked at. NewAddress is called when the IPv4 address is another one.
	SeenElsewhere func(first bool)
	// Refusal says why a relay does not serve this node, where that is known better than from what failed.
	Refusal    func(peer.ID) error
	NewAddress func()
	// Clone is what peers are sent of another machine with this node's key, nil for nothing; Cloned takes what a peer sends of its own.
	Clone  func() *clones.Pair
	Cloned func(network.Conn, *clones.Pair)
	// Carried is woken when a path that is new, or was quiet, carries data: traffic through relays is looked at more often.
	Carried wake.One
}

// Dialer makes connections to relays, beside those that there are.
type Dialer interface {
	// Dial dials a; the host has the connection when it returns. The error is conns.ErrRefused if it has ended already.
	Dial(ctx context.Context, a ma.Multiaddr, relay peer.ID) error
	// DialElsewhere is Dial from another port than those that are listened on.
	DialElsewhere(ctx context.Context, a ma.Multiaddr, relay peer.ID) error
	// Proxy returns the proxy for a dial to a, nil if there is none, and DialThrough uses it.
	Proxy(a ma.Multiaddr) (*url.URL, error)
	DialThrough(ctx context.Context, u *url.URL, a ma.Multiaddr, relay peer.ID) error
	// Proxied says whether a connection runs through a proxy.
	Proxied(c network.ConnMultiaddrs) bool
	// Named looks up a name in a and keeps it beside the result, where a certificate is for the name.
	Named(ctx context.Context, a ma.Multiaddr) ma.Multiaddr
	// ListensOn says whether a listening socket is bound to e's port.
	ListensOn(e endpoint.Endpoint) bool
}

// Peers is what peers' connections say about relays.
type Peers interface {
	// Traffic is what the circuits through each relay carry.
	Traffic() map[peer.ID]Traffic
	// HeardThrough says when something last came in through a relay.
	HeardThrough(relay peer.ID) time.Time
	// InUse reports whether a peer carries more than a few packets now and then.
	InUse() bool
	// Conns returns one connection to every connected peer, and Has says whether c is a peer's.
	Conns() []network.Conn
	Has(c network.Conn) bool
	// Improve moves circuits of peers that are in use to the best relays.
	Improve(now time.Time)
}

// Traffic is what the open circuits through one relay have carried.
type Traffic struct {
	Bytes uint64    // so far, both directions
	Heard time.Time // when something last came in
	Sent  time.Time // when something last went out
}

// common is what the clients of a Set share.
type common struct {
	Config
	Peers   Peers // set by Start, as are host and ctx
	host    host.Host
	ctx     context.Context          //nolint:containedctx // the Set's lifetime
	choose  wake.One                 // a measurement or an outcome is new: choose relays again
	changed *wake.All                // a connection to a relay came or went, or an attempt ended
	surveys chan struct{}            // holds one for each survey under way
	alone   func(relay peer.ID) bool // no other one holds a reservation
	many    func() bool              // relays are many: members spread over them
	life    lifetime
}

func overUDP(conn network.Conn) bool { return endpoint.OverUDP(conn.RemoteMultiaddr()) }

func isQUIC(a ma.Multiaddr) bool {
	_, err := a.ValueForProtocol(ma.P_QUIC_V1)
	return err == nil
}
