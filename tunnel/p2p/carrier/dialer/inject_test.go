package dialer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/transport"

	"edgemesh/tunnel/p2p/base/conns"
)

// fakeConn is a connection that was dialed; it may be a limited circuit.
type fakeConn struct {
	transport.CapableConn
	closed bool
}

func (c *fakeConn) Close() error { c.closed = true; return nil }
func (c *fakeConn) As(any) bool  { return false }
func (c *fakeConn) Stat() network.ConnStats {
	return network.ConnStats{Stats: network.Stats{Limited: true}}
}

// swarmConn is a connection as the swarm has it.
type swarmConn struct {
	network.Conn
	under  transport.CapableConn
	closed bool
}

func (c *swarmConn) As(target any) bool { return c.under.As(target) }
func (c *swarmConn) IsClosed() bool     { return c.closed }

// TestInject: a dial returns when the node has been notified of its connection, with what became of that.
func TestInject(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		with func(d *Dialer, i *injector, x transport.CapableConn)
		want error
	}{
		"kept":     {t.Context(), func(d *Dialer, _ *injector, x transport.CapableConn) { d.Taken(&swarmConn{under: x}, true) }, nil},
		"not kept": {t.Context(), func(d *Dialer, _ *injector, x transport.CapableConn) { d.Taken(&swarmConn{under: x}, false) }, conns.ErrRefused},
		"closed when notified": {t.Context(), func(d *Dialer, _ *injector, x transport.CapableConn) {
			d.Taken(&swarmConn{under: x, closed: true}, true)
		}, conns.ErrRefused},
		"closed by the swarm": {t.Context(), func(_ *Dialer, _ *injector, x transport.CapableConn) { _ = x.Close() }, conns.ErrRefused},
		"the caller gives up": {ended, func(*Dialer, *injector, transport.CapableConn) {}, context.Canceled},
		"the node closes":     {t.Context(), func(_ *Dialer, i *injector, _ transport.CapableConn) { close(i.closed) }, ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			i, got := newInjector(), make(chan error, 1)
			go func() { got <- i.inject(c.ctx, new(fakeConn)) }()
			l := &injectListener{injector: i}
			x, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if s, ok := x.(network.ConnStat); !ok || !s.Stat().Limited {
				t.Error("the swarm does not learn that the circuit is limited")
			}
			c.with(new(Dialer), i, x)
			select {
			case err := <-got:
				if !errors.Is(err, c.want) {
					t.Errorf("%v, want %v", err, c.want)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the dial does not return")
			}
		})
	}
}
