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

// Whoever answers in a relay's place, through a proxy or on the direct way, has little read before there is a WebSocket. The control
// is one that is there, and carries more than that afterwards.
func TestWebSocketReadsLittle(t *testing.T) {
	const plenty = 16 << 20
	read := make(chan int, 1)
	endless := func(head string) func(net.Conn, *http.Request) {
		return func(c net.Conn, _ *http.Request) {
			_ = c.(*net.TCPConn).SetWriteBuffer(64 << 10)
			_, _ = io.WriteString(c, head)
			n := 0
			for b := []byte(strings.Repeat("x", 64<<10)); n < plenty; n += len(b) {
				if _, err := c.Write(b); err != nil {
					break
				}
			}
			read <- n
		}
	}
	by, relay := newSwarm(t), newSwarm(t, "/ip4/127.0.0.1/tcp/0/ws")
	for what, head := range map[string]string{"a status": "HTTP/1.1 101 ", "a field": "HTTP/1.1 101 Switching Protocols\r\nX-A: "} {
		for _, through := range []bool{false, true} {
			if through {
				head = "HTTP/1.1 200 OK\r\n\r\n" + head
			}
			u := answering(t, endless(head))
			var err error
			if through {
				err = dial(t.Context(), by, u, ma.StringCast("/ip4/192.0.2.1/tcp/443/ws"), relay.LocalPeer())
			} else {
				a := ma.StringCast("/ip4/127.0.0.1/tcp/" + u.Port() + "/ws")
				_, err = by.TransportForDialing(a).Dial(t.Context(), a, relay.LocalPeer())
			}
			if n := <-read; !errors.Is(err, errAnswer) || n >= plenty {
				t.Errorf("%s without an end, through a proxy %v: %d bytes taken, %v", what, through, n, err)
			}
		}
	}

	relay.SetStreamHandler(func(s network.Stream) {
		_, _ = io.Copy(s, s)
		s.Close()
	})
	if err := by.Peerstore().AddPubKey(relay.LocalPeer(), relay.Peerstore().PubKey(relay.LocalPeer())); err != nil {
		t.Fatal(err)
	}
	by.Peerstore().AddAddrs(relay.LocalPeer(), relay.ListenAddresses(), time.Hour)
	s, err := by.NewStream(t.Context(), relay.LocalPeer())
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = s.Write(make([]byte, 4*maxHead))
		_ = s.CloseWrite()
	}()
	if n, err := io.Copy(io.Discard, s); err != nil || n != 4*maxHead {
		t.Errorf("a real WebSocket: %d bytes, %v", n, err)
	}
}
