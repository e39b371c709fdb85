package proxy

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/gorilla/websocket"
	netproxy "golang.org/x/net/proxy"
)

// connectTime bounds a connection through the proxy, handshakes with the target not included: two retransmissions of a SYN.
const connectTime = 4 * time.Second

// Through has a dial with the context that it returns ask the proxy at u, which dial reaches. libp2p's transports hand on
// nothing but the context: WebSocket's finds it there by itself, TCP's needs a dialer that calls Dialing.
func Through(ctx context.Context, u *url.URL, dial Dial) context.Context {
	return context.WithValue(ctx, throughKey{}, func(ctx context.Context, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, connectTime)
		defer cancel()
		return Connect(ctx, dial, u, address)
	})
}

type throughKey struct{}

// Dialing is how a dial with ctx connects to an address, HOST:PORT; nil: not through a proxy.
func Dialing(ctx context.Context) func(ctx context.Context, address string) (net.Conn, error) {
	f, _ := ctx.Value(throughKey{}).(func(context.Context, string) (net.Conn, error))
	return f
}

// webScheme makes gorilla's dialer, which libp2p's WebSocket transport uses, ask our proxies as TCP does: its own way
// loses the proxy's answer.
const webScheme = "edgemesh-connect"

type webProxy struct{}

func (webProxy) Dial(string, string) (net.Conn, error) { return nil, net.ErrClosed }

func (webProxy) DialContext(ctx context.Context, _, address string) (net.Conn, error) {
	return Dialing(ctx)(ctx, address)
}

// libp2p's WebSocket transport takes over what this default says, and nothing else.
//
//nolint:gochecknoinits // the libraries have no other place for it
func init() {
	netproxy.RegisterDialerType(webScheme, func(*url.URL, netproxy.Dialer) (netproxy.Dialer, error) { return webProxy{}, nil })
	websocket.DefaultDialer.Proxy = func(r *http.Request) (*url.URL, error) {
		if Dialing(r.Context()) == nil {
			return nil, nil //nolint:nilnil // no proxy: HTTPS_PROXY is one of the ways, not the only one
		}
		return &url.URL{Scheme: webScheme}, nil
	}
}
