package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// Dial opens a connection; the socket's options are its business.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// maxAnswer bounds the head of a proxy's answer, in bytes.
const maxAnswer = 16 << 10

// Connect requests from the proxy at u, which dial reaches, a connection to target, HOST:PORT. The error, an *Error, says what
// the proxy answered; where ctx was canceled it is another one.
func Connect(ctx context.Context, dial Dial, u *url.URL, target string) (net.Conn, error) {
	canceled := func() error { return fmt.Errorf("proxy %s to %s: %w", u.Host, target, ctx.Err()) }
	c, err := dial(ctx, "tcp", u.Host)
	switch {
	case err != nil && errors.Is(ctx.Err(), context.Canceled):
		return nil, canceled()
	case err != nil:
		return nil, &Error{Proxy: u.Host, Target: target, Cause: Unreachable, Err: err}
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	through, err := request(ctx, c, u, target)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		c.Close()
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil, canceled()
		}
		return nil, explain(u.Host, target, err)
	}
	return through, nil
}

// request speaks with the proxy on c.
func request(ctx context.Context, c net.Conn, u *url.URL, target string) (net.Conn, error) {
	if u.Scheme == "https" {
		t := tls.Client(c, &tls.Config{ServerName: u.Hostname(), MinVersion: tls.VersionTLS12})
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, fmt.Errorf("TLS with the proxy: %w", err)
		}
		c = t
	}
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: target}, Host: target, Header: http.Header{}}
	if user := u.User; user != nil {
		password, _ := user.Password()
		req.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)))
	}
	if err := req.Write(c); err != nil {
		return nil, fmt.Errorf("send the request to the proxy: %w", err)
	}
	// The other end may speak immediately: nothing may be read but the answer's head.
	resp, err := http.ReadResponse(bufio.NewReader(io.LimitReader(slow{c}, maxAnswer)), req)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errAnswer, err)
	}
	if resp.StatusCode/100 != 2 {
		return nil, status(resp.StatusCode)
	}
	return c, nil
}

// slow reads byte by byte.
type slow struct{ io.Reader }

func (s slow) Read(b []byte) (int, error) { return s.Reader.Read(b[:min(len(b), 1)]) }
