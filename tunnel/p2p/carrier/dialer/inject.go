package dialer

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/base/conns"
)

// injector is a transport that never dials. Its listener hands connections that this package dialed on its own to the swarm,
// which then treats them like any other: a swarm by itself refuses to dial a peer that it is connected to, and here a TCP
// connection lives beside a QUIC one and both beside a relayed one.
type injector struct {
	conns  chan transport.CapableConn
	closed chan struct{}
}

// injected is a connection on its way into the swarm.
type injected struct {
	transport.CapableConn
	taken chan struct{} // closed once the node has it
	ended chan struct{} // closed once it is closed
	once  sync.Once
}

var (
	_ transport.Transport   = (*injector)(nil)
	_ transport.Listener    = (*injectListener)(nil)
	_ transport.CapableConn = (*injected)(nil)
	_ network.ConnStat      = (*injected)(nil)
)

func newInjector() *injector {
	return &injector{conns: make(chan transport.CapableConn), closed: make(chan struct{})}
}

// addr is the address the swarm thinks the injector listens on. It is never announced.
func (i *injector) addr() ma.Multiaddr { return ma.StringCast("/memory/1") }

// inject makes c a connection of the swarm, which owns it from then on: when the swarm is closed, so is c. It returns once
// the node has been notified of c (Taken), and conns.ErrRefused if c was closed before that or the node does not keep it.
func (i *injector) inject(ctx context.Context, c transport.CapableConn) error {
	x := &injected{CapableConn: c, taken: make(chan struct{}), ended: make(chan struct{})}
	select {
	case i.conns <- x:
	case <-i.closed:
		_ = c.Close()
		return ErrClosed
	}
	select {
	case <-x.taken:
		return nil
	case <-x.ended:
		return conns.ErrRefused
	case <-i.closed:
		return ErrClosed
	case <-ctx.Done(): // it comes nevertheless
		return ctx.Err()
	}
}

// Stat implements network.ConnStat: a swarm takes from it whether a circuit is limited, and a peer behind such a one alone does
// not count as connected.
func (x *injected) Stat() network.ConnStats {
	if s, ok := x.CapableConn.(network.ConnStat); ok {
		return s.Stat()
	}
	return network.ConnStats{}
}

// As implements network.Conn.
func (x *injected) As(target any) bool {
	if t, ok := target.(**injected); ok {
		*t = x
		return true
	}
	return x.CapableConn.As(target)
}

func (x *injected) end() { x.once.Do(func() { close(x.ended) }) }

// Close implements network.Conn, as CloseWithError does.
func (x *injected) Close() error {
	x.end()
	return x.CapableConn.Close() //nolint:wrapcheck // it is that connection
}

// CloseWithError implements network.Conn.
func (x *injected) CloseWithError(code network.ConnErrorCode) error {
	x.end()
	return x.CapableConn.CloseWithError(code) //nolint:wrapcheck // it is that connection
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

var (
	// ErrClosed means that the node was closed.
	ErrClosed = errors.New("node is closed")
	// ErrListen means that an address cannot be listened on.
	ErrListen = errors.New("cannot listen")
)
