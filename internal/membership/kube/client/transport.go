package client

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"

	"edgemesh/internal/resolve"
	"edgemesh/internal/upkeep"
)

const (
	// dialTimeout is for one attempt.
	dialTimeout = 30 * time.Second
	// silence is after how long without a packet the kernel probes whether the API is there, which takes 104 bytes.
	silence = 110 * time.Second
	// pingAfter is the same for a ping of HTTP/2, in seconds, which takes some 250 bytes. Where a proxy answers the kernel, nothing
	// else notices that the API behind it is gone: 105 s with the ping's own timeout.
	pingAfter = "90"
)

// base is the URL below which the API's paths are.
func base(c *rest.Config) (*url.URL, error) {
	u, _, err := rest.DefaultServerUrlFor(c)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, fmt.Errorf("server %q is not http(s)://HOST:PORT", c.Host)
	}
	u.RawQuery, u.Fragment = "", ""
	return u, nil
}

// connect makes what sends requests to c, over connections that dialer knows. It changes c. Plain connections are to programs
// of root's and localUID's on this host.
func connect(c *rest.Config, plain bool, localUID int, names *resolve.Names, b *upkeep.Budget,
	heard *atomic.Int64) (hc *http.Client, dialer *connrotation.Dialer, err error) {
	dial := names.Dialer((&net.Dialer{Timeout: dialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: silence, Interval: 3 * time.Second, Count: 3}}).DialContext)
	if plain {
		dial = owned(dial, localUID)
		c.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	}
	dialer = connrotation.NewDialer(followed(dial, b, heard))
	c.Dial = dialer.DialContext
	if c.Proxy == nil {
		c.Proxy = http.ProxyFromEnvironment // a transport of its own, or Close would close connections of others
	}
	if file := c.BearerTokenFile; file != "" {
		if _, err := os.ReadFile(file); err != nil {
			return nil, nil, fmt.Errorf("token: %w", err)
		}
		c.BearerToken, c.BearerTokenFile = "", ""
		c.Wrap(func(rt http.RoundTripper) http.RoundTripper { return tokenFile{file, rt} })
	}
	c.Wrap(func(rt http.RoundTripper) http.RoundTripper { return answers{names, rt} })
	if hc, err = pinged(c); err != nil {
		return nil, nil, err
	}
	// A redirect could take the token elsewhere, or out of TLS; an API server sends none.
	hc.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return hc, dialer, nil
}

// pinging guards the environment, from which client-go takes when to ping.
//
//nolint:gochecknoglobals // so is the environment
var pinging sync.Mutex

// pinged makes c's transport, unless the administrator says otherwise with pings after pingAfter. Programs that are run later do
// not inherit that.
func pinged(c *rest.Config) (*http.Client, error) {
	const pings = "HTTP2_READ_IDLE_TIMEOUT_SECONDS" // client-go's
	pinging.Lock()
	defer pinging.Unlock()
	if os.Getenv(pings) == "" {
		_ = os.Setenv(pings, pingAfter)
		defer os.Unsetenv(pings)
	}
	return rest.HTTPClientFor(c) //nolint:wrapcheck // says what is wrong
}

// answers has names keep the address of a server, or of the proxy before it, that has answered.
type answers struct {
	names *resolve.Names
	http.RoundTripper
}

func (a answers) RoundTrip(req *http.Request) (*http.Response, error) {
	var on net.Conn
	got := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { on = i.Conn }}
	resp, err := a.RoundTripper.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), got)))
	if err == nil && on != nil {
		a.names.Answered(on.RemoteAddr())
	}
	return resp, err
}

// WrappedRoundTripper lets client-go find the transport below, to close it.
func (a answers) WrappedRoundTripper() http.RoundTripper { return a.RoundTripper }

// followed has b count the connections that dial makes, and heard hold when one of them brought something (Unix nanoseconds).
func followed(dial func(context.Context, string, string) (net.Conn, error), b *upkeep.Budget, heard *atomic.Int64,
) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		heard.Store(time.Now().UnixNano())
		return &follower{c, b.Follow(upkeep.API, upkeep.TCP(c), nil), heard}, nil
	}
}

// follower is a connection that is followed.
type follower struct {
	net.Conn
	flow  *upkeep.Flow
	heard *atomic.Int64
}

func (f *follower) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if n > 0 {
		f.heard.Store(time.Now().UnixNano())
	}
	return n, err //nolint:wrapcheck // the connection's own
}

func (f *follower) Close() error {
	f.flow.End()
	return f.Conn.Close() //nolint:wrapcheck // the connection's own
}

// tokenFile adds the token in a file to requests. It is read for each: it is replaced before it expires, and client-go keeps
// one for a minute even though the server refuses it.
type tokenFile struct {
	path string
	http.RoundTripper
}

func (t tokenFile) RoundTrip(req *http.Request) (*http.Response, error) {
	token, err := os.ReadFile(t.path)
	if err != nil {
		return nil, fmt.Errorf("service account token: %w", err)
	}
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	return t.RoundTripper.RoundTrip(req)
}

// WrappedRoundTripper lets client-go find the transport below, to close it.
func (t tokenFile) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }
