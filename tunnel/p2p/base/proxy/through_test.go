package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/libp2p/go-libp2p/p2p/transport/websocket"
	ma "github.com/multiformats/go-multiaddr"
)

// dialing is a dialer as libp2p's TCP takes it, whose dials all have a proxy.
type dialing struct{}

func (dialing) DialContext(ctx context.Context, _, address string) (net.Conn, error) {
	return Dialing(ctx)(ctx, address)
}

// newSwarm returns what dials with libp2p's own transports.
func newSwarm(t *testing.T, listen ...string) *swarm.Swarm {
	t.Helper()
	h, err := libp2p.New(libp2p.ListenAddrStrings(listen...), libp2p.DisableMetrics(), libp2p.DisableRelay(), libp2p.Transport(websocket.New),
		libp2p.Transport(func(up transport.Upgrader, rm network.ResourceManager) (*tcp.TcpTransport, error) {
			return tcp.NewTCPTransport(up, rm, nil, tcp.WithDialerForAddr(func(ma.Multiaddr) (tcp.ContextDialer, error) { return dialing{}, nil }))
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h.Network().(*swarm.Swarm) //nolint:forcetypeassert // it is
}

// dial dials through the proxy at u, as nodes do.
func dial(ctx context.Context, by *swarm.Swarm, u *url.URL, a ma.Multiaddr, p peer.ID) error {
	var d net.Dialer
	ctx = Through(ctx, u, d.DialContext)
	c, err := by.TransportForDialing(a).Dial(ctx, a, p)
	if err == nil {
		c.Close()
	}
	return Behind(ctx, u.Host, a.String(), err)
}

// What a proxy does after it gave a connection has a cause too, over each transport, and is counted once; what this end
// does has none.
func TestCausesBehind(t *testing.T) {
	const patience = 200 * time.Millisecond
	over := make(chan struct{})
	defer close(over)
	says := func(text string) func(net.Conn, *http.Request) {
		return func(c net.Conn, _ *http.Request) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n"+text)
			<-over
		}
	}
	by, relay := newSwarm(t), newSwarm(t, "/ip4/127.0.0.1/tcp/0")
	where := relay.ListenAddresses()[0]
	_, at, _ := strings.Cut(where.String(), "/tcp/")
	to := func(c net.Conn, _ *http.Request) {
		var d net.Dialer
		r, err := d.DialContext(t.Context(), "tcp", "127.0.0.1:"+at)
		if err != nil {
			t.Error(err)
			return
		}
		defer r.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(r, c); r.Close() }()
		_, _ = io.Copy(c, r)
	}
	for name, x := range map[string]struct {
		does func(net.Conn, *http.Request)
		want Cause // "": none
	}{
		"nothing":        {says(""), Unanswered},
		"ends":           {text("HTTP/1.1 200 OK\r\n\r\n"), Cut},
		"another server": {says("SSH-2.0-OpenSSH_9.2\r\n" + strings.Repeat("x", 200)), Garbled},
		"a login page":   {says("HTTP/1.1 302 Found\r\nLocation: http://portal/" + strings.Repeat("x", 200) + "\r\nContent-Length: 0\r\n\r\n"), Garbled},
	} {
		u := answering(t, x.does)
		for _, tail := range []string{"/ip4/192.0.2.1/tcp/443", "/ip4/192.0.2.1/tcp/443/ws", "/ip4/192.0.2.1/tcp/443/tls/sni/relay.example/ws"} {
			t.Run(name+tail, func(t *testing.T) {
				limit := time.Minute
				if x.want == Unanswered {
					limit = patience
				}
				var err error
				var e *Error
				for late := true; late; limit *= 4 { // a busy host, for the proxy's answer
					ctx, cancel := context.WithTimeout(t.Context(), limit)
					err = dial(ctx, by, u, ma.StringCast(tail), relay.LocalPeer())
					cancel()
					late = errors.As(err, &e) && e.Cause == Silent && limit < time.Minute
				}
				var failures Failures
				failures.Note(err)
				if !errors.As(err, &e) || e.Cause != x.want {
					t.Fatalf("%v, want %q", err, x.want)
				}
				sum := uint64(0)
				for _, n := range failures.By() {
					sum += n
				}
				if sum != 1 {
					t.Errorf("counted %d times: %v", sum, failures.By())
				}
			})
		}
	}
	var e *Error
	if err := dial(t.Context(), by, answering(t, to), where, relay.LocalPeer()); err != nil {
		t.Errorf("the relay behind a proxy: %v", err)
	}
	if err := dial(t.Context(), by, answering(t, to), where, by.LocalPeer()); err == nil || errors.As(err, &e) {
		t.Errorf("another key: %v", err)
	}
}

// A dial that this end has ended says nothing of the proxy, whatever it was waiting for.
func TestCanceled(t *testing.T) {
	over := make(chan struct{})
	defer close(over)
	by := newSwarm(t)
	for name, answer := range map[string]string{"before the answer": "", "behind it": "HTTP/1.1 200 OK\r\n\r\n"} {
		ctx, cancel := context.WithCancel(t.Context())
		u := answering(t, func(c net.Conn, _ *http.Request) {
			_, _ = io.WriteString(c, answer)
			time.AfterFunc(10*time.Millisecond, cancel)
			<-over
		})
		var e *Error
		if err := dial(ctx, by, u, ma.StringCast("/ip4/192.0.2.1/tcp/443"), by.LocalPeer()); errors.As(err, &e) || !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	hangs := func(ctx context.Context, _, _ string) (net.Conn, error) {
		cancel()
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Err: ctx.Err()}
	}
	var e *Error
	if _, err := Connect(ctx, hangs, &url.URL{Scheme: "http", Host: "10.1.1.1:3128"}, "relay:443"); errors.As(err, &e) || !errors.Is(err, context.Canceled) {
		t.Errorf("on the way to the proxy: %v", err)
	}
}
