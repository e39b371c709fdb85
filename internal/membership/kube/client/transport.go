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
	// pingAfter is the same for a ping of HTTP/2, in seconds, which takes 300 bytes and finds out nothing else.
	pingAfter = "600"
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
func connect(c *rest.Config, plain bool, localUID int, names *resolve.Names, b *upkeep.Budget) (hc *http.Client, dialer *connrotation.Dialer, err error) {
	dial := names.Dialer((&net.Dialer{Timeout: dialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: silence, Interval: 3 * time.Second, Count: 3}}).DialContext)
	if plain {
		dial = owned(dial, localUID)
		c.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	}
	dialer = connrotation.NewDialer(counted(dial, b))
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
	const pings = "HTTP2_READ_IDLE_TIMEOUT_SECONDS" // client-go's
	if os.Getenv(pings) == "" {
		_ = os.Setenv(pings, pingAfter)
	}
	if hc, err = rest.HTTPClientFor(c); err != nil {
		return nil, nil, err
	}
	// A redirect could take the token elsewhere, or out of TLS; an API server sends none.
	hc.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return hc, dialer, nil
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

// counted has b count the connections that dial makes.
func counted(dial func(context.Context, string, string) (net.Conn, error), b *upkeep.Budget) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if b == nil || err != nil {
			return c, err
		}
		return &followed{c, b.Follow(upkeep.API, upkeep.TCP(c), nil)}, nil
	}
}

// followed is a connection that is counted.
type followed struct {
	net.Conn
	flow *upkeep.Flow
}

func (f *followed) Close() error {
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
