package dialer

import (
	"context"
	"fmt"
	"net"
	"net/url"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/internal/proxy"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/carrier/socket"
)

// Proxy returns the proxy for a dial to a, whose name need not be known here; nil: there is none.
func (d *Dialer) Proxy(a ma.Multiaddr) (*url.URL, error) {
	_, host, err := manet.DialArgs(a)
	if _, tcp := a.ValueForProtocol(ma.P_TCP); tcp != nil || err != nil || endpoint.IsCircuit(a) {
		return nil, nil //nolint:nilnil // only TCP has one
	}
	return d.cfg.Proxy.For(host) //nolint:wrapcheck // it names what is wrong
}

// toProxy opens the connection to a proxy.
func (d *Dialer) toProxy(ctx context.Context, network, address string) (net.Conn, error) {
	n := net.Dialer{KeepAlive: -1, Control: socket.Control(d.cfg.Mark, false)}
	return d.cfg.Names.Dialer(n.DialContext)(ctx, network, address)
}

// DialThrough is Dial through a proxy.
func (d *Dialer) DialThrough(ctx context.Context, u *url.URL, a ma.Multiaddr, p peer.ID) error {
	ctx = proxy.Through(ctx, u, d.toProxy)
	c, err := d.dial(ctx, a, p)
	if err != nil {
		err = proxy.Behind(ctx, u.Host, a.String(), err)
		d.sockets.failed.Note(err)
		return err
	}
	if e, ok := endpoint.Target(c.RemoteMultiaddr()); ok {
		d.sockets.proxies.Store(e, struct{}{})
		d.cfg.Names.Answered(net.TCPAddrFromAddrPort(e.Addr))
	}
	if err := d.inj.inject(ctx, c); err != nil {
		return fmt.Errorf("through proxy %s: %w", u.Host, err)
	}
	return nil
}

// Proxied reports whether a connection runs through a proxy.
func (d *Dialer) Proxied(c network.ConnMultiaddrs) bool { return d.sockets.Proxied(c) }
