package dialer

import (
	"context"
	"errors"
	"net"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	ma "github.com/multiformats/go-multiaddr"
)

// injector is a transport that never dials. Its listener hands connections that
// this package dialed on its own to the swarm, which then treats them like any
// other: a swarm by itself refuses to dial a peer that it is connected to, and
// here a TCP connection lives beside a QUIC one and both beside a relayed one.
type injector struct {
	conns  chan transport.CapableConn
	closed chan struct{}
}

var (
	_ transport.Transport = (*injector)(nil)
	_ transport.Listener  = (*injectListener)(nil)
)

func newInjector() *injector {
	return &injector{conns: make(chan transport.CapableConn), closed: make(chan struct{})}
}

// addr is the address the swarm thinks the injector listens on. It is never announced.
func (i *injector) addr() ma.Multiaddr { return ma.StringCast("/memory/1") }

// inject makes c a connection of the swarm. It owns c from then on: when the
// swarm is closed, so is c.
func (i *injector) inject(c transport.CapableConn) error {
	select {
	case i.conns <- c:
		return nil
	case <-i.closed:
		c.Close()
		return ErrClosed
	}
}

func (i *injector) Dial(context.Context, ma.Multiaddr, peer.ID) (transport.CapableConn, error) {
	return nil, errors.New("the injector does not dial")
}
func (i *injector) CanDial(ma.Multiaddr) bool { return false }
func (i *injector) Protocols() []int          { return []int{ma.P_MEMORY} }
func (i *injector) Proxy() bool               { return false }
func (i *injector) Listen(a ma.Multiaddr) (transport.Listener, error) {
	return &injectListener{i, a}, nil
}

type injectListener struct {
	*injector
	laddr ma.Multiaddr
}

func (l *injectListener) Accept() (transport.CapableConn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, transport.ErrListenerClosed
	}
}
func (l *injectListener) Close() error            { close(l.closed); return nil }
func (l *injectListener) Addr() net.Addr          { return &net.UnixAddr{Name: "inject", Net: "unix"} }
func (l *injectListener) Multiaddr() ma.Multiaddr { return l.laddr }
