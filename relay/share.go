package main

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/transport"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"golang.org/x/sys/unix"

	"edgemesh/internal/wake"
)

// A connection to a shared port has to begin within firstByte, and within firstBytePressed when all slots for
// handshakes are taken: a first segment that is lost comes again after a second.
const (
	firstByte        = 3 * time.Second
	firstBytePressed = 1500 * time.Millisecond
	acceptPause      = 100 * time.Millisecond // after an error that may pass, as of too many open files
)

// sharedPorts are TCP ports with two transports: who begins with "GET" wants WebSocket. The WebSocket transport binds the
// socket, and the TCP transport gets what is left. libp2p's own sharing (ShareTCPListener) waits for the first bytes of 64
// connections at a time and accepts none meanwhile, so that 64 silent ones stop it.
type sharedPorts struct {
	patience func(calm, pressed time.Duration) time.Duration

	mu   sync.Mutex       // a leaf
	left map[string]*half // what is for TCP, by the address of the port; nil until the port is bound
}

// newSharedPorts returns the ports that listen has for both transports.
func newSharedPorts(listen []ma.Multiaddr, patience func(calm, pressed time.Duration) time.Duration) *sharedPorts {
	s := &sharedPorts{patience: patience, left: make(map[string]*half)}
	for i, a := range listen {
		if sharesWith(a, listen[:i]) {
			s.left[a[:2].String()] = nil
		}
	}
	return s
}

// forTCP is the TCP transport's half of a's port, nil where it has the port to itself.
func (s *sharedPorts) forTCP(a ma.Multiaddr) *half {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left[a.String()]
}

// split divides what l accepts if its port is shared, and returns the WebSocket transport's half.
func (s *sharedPorts) split(l transport.GatedMaListener) transport.GatedMaListener {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := l.Multiaddr().String()
	if _, shared := s.left[at]; !shared {
		return l
	}
	p := &port{GatedMaListener: l, patience: s.patience}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	web := &half{port: p, conns: make(chan accepted)}
	left := &half{port: p, conns: make(chan accepted)}
	s.left[at] = left
	p.wg.Go(func() { p.run(web, left) })
	return web
}

// port is a listening socket of two transports.
type port struct {
	transport.GatedMaListener
	patience func(calm, pressed time.Duration) time.Duration
	ctx      context.Context //nolint:containedctx // the lifetime of the port's goroutines
	cancel   func()
	wg       sync.WaitGroup
	once     sync.Once
}

// run accepts until the port is closed.
func (p *port) run(web, left *half) {
	defer func() { _ = p.shut() }() // whoever closes the port first has its error
	for {
		c, scope, err := p.Accept()
		switch {
		case err == nil:
			p.wg.Go(func() { p.sort(accepted{c, scope}, web, left) })
		case errors.Is(err, net.ErrClosed) || !wake.Sleep(p.ctx, acceptPause):
			return
		}
	}
}

// sort waits for the first byte of a connection and hands it to the half that it is for.
func (p *port) sort(a accepted, web, left *half) {
	stop := context.AfterFunc(p.ctx, func() { a.Close() })
	defer stop()
	until := time.Now().Add(p.patience(firstByte, firstBytePressed))
	first, err := peekByte(a.Conn, until)
	if err != nil {
		a.drop()
		return
	}
	to := left
	if first == 'G' {
		to = web
	}
	select {
	case to.conns <- a:
		stop()
	case <-time.After(time.Until(until)):
		a.drop()
	case <-p.ctx.Done():
		a.drop()
	}
}

// Close closes the socket for both halves, and waits for the connections that belong to none yet.
func (p *port) Close() error {
	err := p.shut()
	p.wg.Wait()
	return err
}

func (p *port) shut() (err error) {
	p.once.Do(func() {
		p.cancel()
		err = p.GatedMaListener.Close()
	})
	return err
}

// half is what one transport accepts of a shared port. Closing it closes the port.
type half struct {
	*port
	conns chan accepted
}

// Accept implements transport.GatedMaListener.
func (h *half) Accept() (manet.Conn, network.ConnManagementScope, error) {
	select {
	case a := <-h.conns:
		return a.Conn, a.scope, nil
	case <-h.ctx.Done():
		return nil, nil, transport.ErrListenerClosed
	}
}

// accepted is a connection whose peer is not known yet.
type accepted struct {
	manet.Conn
	scope network.ConnManagementScope
}

func (a accepted) drop() {
	a.Close()
	a.scope.Done()
}

// peekByte returns the first byte that the other end of c sends, and leaves it to be read.
func peekByte(c manet.Conn, until time.Time) (byte, error) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return 0, errors.ErrUnsupported
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0, err
	}
	if err := c.SetReadDeadline(until); err != nil {
		return 0, err
	}
	var b [1]byte
	var n int
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		n, _, failed = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK)
		return !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR)
	})
	if err = errors.Join(err, failed); err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, net.ErrClosed
	}
	return b[0], c.SetReadDeadline(time.Time{})
}
