package enroll

import (
	"context"
	"net"
	"net/url"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/libp2p/go-libp2p/p2p/transport/websocket"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/internal/proxy"
	"edgemesh/internal/resolve"
	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/base/endpoint"
)

// headStart is what a direct dial has before the proxy is tried (RFC 8305 section 5: 250 ms between attempts).
const headStart = 250 * time.Millisecond

func newTCP(egress *proxy.Egress, names *resolve.Names, up transport.Upgrader, rm network.ResourceManager) (*proxied, error) {
	t, err := tcp.NewTCPTransport(up, rm, nil,
		tcp.WithDialerForAddr(func(ma.Multiaddr) (tcp.ContextDialer, error) { return dialer{}, nil }))
	return &proxied{t, egress, names}, err
}

func newWebSocket(egress *proxy.Egress, names *resolve.Names, up transport.Upgrader, rm network.ResourceManager) (*proxied, error) {
	t, err := websocket.New(up, rm, nil)
	return &proxied{t, egress, names}, err
}

// dialer opens TCP's sockets.
type dialer struct{}

func (dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if through := proxy.Dialing(ctx); through != nil {
		return through(ctx, address)
	}
	var d net.Dialer
	return d.DialContext(ctx, network, address)
}

// proxied is a transport that also dials through the HTTP proxy, if there is one for the target.
type proxied struct {
	transport.Transport
	egress *proxy.Egress
	names  *resolve.Names
}

var (
	_ transport.Resolver     = (*proxied)(nil)
	_ transport.SkipResolver = (*proxied)(nil)
)

// proxy returns the proxy for a, whose name need not resolve here; nil: there is none.
func (t *proxied) proxy(a ma.Multiaddr) (*url.URL, error) {
	_, target, err := manet.DialArgs(a)
	if err != nil {
		return nil, nil //nolint:nilnil // no proxy leads to such an address
	}
	return t.egress.For(target) //nolint:wrapcheck // it names what is wrong
}

// CanDial implements transport.Transport: a proxy resolves names, too.
func (t *proxied) CanDial(a ma.Multiaddr) bool {
	_, isTCP := t.Transport.(*tcp.TcpTransport)
	return t.Transport.CanDial(a) || t.egress != nil && isTCP && byName(a)
}

// byName reports whether a is /dns…/NAME/tcp/PORT.
func byName(a ma.Multiaddr) bool {
	p := a.Protocols()
	return len(p) == 2 && slices.Contains([]int{ma.P_DNS, ma.P_DNS4, ma.P_DNS6}, p[0].Code) && p[1].Code == ma.P_TCP
}

// SkipResolve implements transport.SkipResolver: where there is a proxy, names are left to the dials.
func (t *proxied) SkipResolve(_ context.Context, a ma.Multiaddr) bool {
	u, err := t.proxy(a)
	return u != nil || err != nil
}

// Resolve implements transport.Resolver.
func (t *proxied) Resolve(ctx context.Context, a ma.Multiaddr) ([]ma.Multiaddr, error) {
	if r, ok := t.Transport.(transport.Resolver); ok {
		return r.Resolve(ctx, a)
	}
	return []ma.Multiaddr{a}, nil
}

// Dial implements transport.Transport. It dials directly, and through the proxy when that fails or takes long; the first
// connection wins. It returns when both have ended: the loser is canceled, and closed if it got through.
func (t *proxied) Dial(ctx context.Context, a ma.Multiaddr, p peer.ID) (transport.CapableConn, error) {
	u, wrong := t.proxy(a)
	if u == nil {
		c, err := t.Transport.Dial(ctx, a, p)
		if err != nil {
			err = wording.Join(err, wrong)
		}
		return c, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan result, 2)
	failed := make(chan struct{}) // closed when the direct dial has
	go func() {
		c, err := t.Transport.Dial(ctx, a, p)
		if err != nil {
			close(failed)
		}
		results <- result{c, err}
	}()
	go func() {
		select {
		case <-failed:
		case <-time.After(headStart):
		case <-ctx.Done():
		}
		var d net.Dialer
		ctx := proxy.Through(ctx, u, t.names.Dialer(d.DialContext))
		c, err := t.Transport.Dial(ctx, a, p)
		if err == nil {
			if at, ok := endpoint.Target(c.RemoteMultiaddr()); ok {
				t.names.Answered(net.TCPAddrFromAddrPort(at.Addr))
			}
		}
		results <- result{c, proxy.Behind(ctx, u.Host, a.String(), err)}
	}()
	first := <-results
	if first.err == nil {
		cancel()
		if second := <-results; second.err == nil {
			second.conn.Close()
		}
		return first.conn, nil
	}
	second := <-results
	if second.err == nil {
		return second.conn, nil
	}
	return nil, wording.Join(first.err, second.err)
}

// result is the outcome of a dial.
type result struct {
	conn transport.CapableConn
	err  error
}
