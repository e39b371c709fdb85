package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
	"github.com/libp2p/go-libp2p/core/sec"
	netproxy "golang.org/x/net/proxy"
	"golang.org/x/sys/unix"
)

// connectTime bounds a connection through the proxy, handshakes with the target not included: two retransmissions of a SYN.
const connectTime = 4 * time.Second

// Through has a dial with the context that it returns connect through the proxy at u, which dial reaches. libp2p's transports hand on
// nothing but the context: WebSocket's finds it there by itself, TCP's needs a dialer that calls Dialing.
func Through(ctx context.Context, u *url.URL, dial Dial) context.Context {
	w := &through{}
	w.connect = func(ctx context.Context, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, connectTime)
		defer cancel()
		c, err := Connect(ctx, dial, u, address)
		w.given.Store(err == nil)
		return c, err
	}
	return context.WithValue(ctx, throughKey{}, w)
}

type throughKey struct{}

// through is a dial through a proxy.
type through struct {
	connect func(ctx context.Context, address string) (net.Conn, error)
	given   atomic.Bool // the proxy gave the connection
}

// given reports whether a proxy gave the connection of a dial with ctx.
func given(ctx context.Context) bool {
	w, ok := ctx.Value(throughKey{}).(*through)
	return ok && w.given.Load()
}

// Dialing is how a dial with ctx connects to an address, HOST:PORT; nil: not through a proxy.
func Dialing(ctx context.Context) func(ctx context.Context, address string) (net.Conn, error) {
	w, ok := ctx.Value(throughKey{}).(*through)
	if !ok {
		return nil
	}
	return w.connect
}

// webScheme makes gorilla's dialer, which libp2p's WebSocket transport uses, use our proxies as TCP does: its own code
// loses the proxy's answer.
const webScheme = "edgemesh-connect"

// maxHead bounds what is read before a WebSocket is there, the certificates of TLS included, in bytes: gorilla's dialer reads an
// answer's head without a bound, from whoever answers on the path.
const maxHead = 64 << 10

// webProxy makes the connections of gorilla's dialer: through our proxy, or as forward does.
type webProxy struct{ forward netproxy.Dialer }

func (webProxy) Dial(string, string) (net.Conn, error) { return nil, net.ErrClosed }

// DialContext bounds the WebSocket's handshake, too, which gorilla does for its own dials only, and ends when it is over.
func (w webProxy) DialContext(ctx context.Context, network, address string) (c net.Conn, err error) {
	if through := Dialing(ctx); through != nil {
		c, err = through(ctx, address)
	} else if f, ok := w.forward.(netproxy.ContextDialer); ok {
		c, err = f.DialContext(ctx, network, address)
	} else {
		c, err = w.forward.Dial(network, address)
	}
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline)
	}
	return &headed{Conn: c, left: maxHead}, nil
}

// headed is a connection that ends when more than so many bytes are read before its deadline is taken away, which gorilla's dialer
// does when the WebSocket is there.
type headed struct {
	net.Conn
	left int
	over bool
}

func (h *headed) Read(b []byte) (int, error) {
	if h.over {
		return h.Conn.Read(b)
	}
	if h.left == 0 && len(b) > 0 {
		return 0, fmt.Errorf("%w: more than %d bytes without a WebSocket", errAnswer, maxHead)
	}
	n, err := h.Conn.Read(b[:min(len(b), h.left)])
	h.left -= n
	return n, err
}

func (h *headed) SetDeadline(t time.Time) error {
	if t.IsZero() && !h.over { // before others have the connection
		h.over = true
	}
	return h.Conn.SetDeadline(t)
}

// libp2p's WebSocket transport takes over what this default says, and nothing else.
//
//nolint:gochecknoinits // the libraries have no other place for it
func init() {
	netproxy.RegisterDialerType(webScheme, func(_ *url.URL, forward netproxy.Dialer) (netproxy.Dialer, error) { return webProxy{forward}, nil })
	websocket.DefaultDialer.Proxy = func(*http.Request) (*url.URL, error) { return &url.URL{Scheme: webScheme}, nil }
}

// Behind says what went wrong with a dial with ctx, which Through returned; errors that name a cause come back as they are.
// What is not the proxy's doing gets none: before it had given a connection, after the target had shown its key, and when
// the dial was canceled.
func Behind(ctx context.Context, proxy, target string, err error) error {
	var mine *Error
	var other sec.ErrPeerIDMismatch
	switch {
	case err == nil, errors.As(err, &mine):
		return err
	case !given(ctx), errors.Is(ctx.Err(), context.Canceled), errors.Is(err, context.Canceled), errors.As(err, &other):
		return fmt.Errorf("through proxy %s: %w", proxy, err)
	}
	e := &Error{Proxy: proxy, Target: target, Cause: Garbled, Err: err}
	switch {
	case Foreign(err):
		e.Cause = Intercepted
	case timedOut(err):
		e.Cause = Unanswered
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		e.Cause = Cut
	}
	return e
}
