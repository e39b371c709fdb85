// Package proxy is the egress through an HTTP proxy, by CONNECT (RFC 9110 section 9.3.6), for sites that let out nothing
// else.
//
//	proxy.go    which proxy there is, and for what
//	connect.go  a connection through it
//	through.go  libp2p's dials through it
//	errors.go   what its answers mean, and what to do
//	failures.go how often there was none, by cause
package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpproxy"

	"edgemesh/internal/nat64"
	"edgemesh/internal/secretfile"
)

// None in place of a URL: no proxy, whatever the environment says.
const None = "none"

// Config says which proxy there is.
type Config struct {
	// URL is http://HOST:PORT or https://HOST:PORT, None, or "": what HTTPS_PROXY says. NO_PROXY holds either way.
	URL string
	// Credentials is a file with one line, user:password; it is read for each connection. "" is what the URL has.
	Credentials string
	// Inside reports whether an address is one of the mesh's, which no proxy reaches; nil: none is.
	Inside func(netip.Addr) bool
	// Getenv is os.Getenv, or a test's.
	Getenv func(string) string
}

// Egress leads out through a proxy; nil: there is none.
type Egress struct {
	credentials string
	find        func(*url.URL) (*url.URL, error)
	cluster     string // the API server's Service, which no proxy outside of the cluster reaches; "" without one
	inside      func(netip.Addr) bool
}

// New returns nil where there is no proxy. The error says what is wrong with the URL.
func New(c Config) (*Egress, error) {
	first := func(keys ...string) string {
		for _, k := range keys {
			if v := c.Getenv(k); v != "" {
				return v
			}
		}
		return ""
	}
	text := c.URL
	if text == "" {
		text = first("HTTPS_PROXY", "https_proxy")
	}
	if text == "" || text == None {
		return nil, nil //nolint:nilnil // no proxy is not an error
	}
	u, err := Parse(text)
	if err != nil {
		return nil, err
	}
	p := httpproxy.Config{HTTPProxy: u.String(), HTTPSProxy: u.String(), NoProxy: first("NO_PROXY", "no_proxy")}
	return &Egress{credentials: c.Credentials, find: p.ProxyFunc(), cluster: service(c.Getenv), inside: c.Inside}, nil
}

// service is the address of the API server's Service, "" outside of a pod. KUBERNETES_SERVICE_HOST may have been replaced
// by the server's own address, which may well be behind the proxy; KUBERNETES_PORT, tcp://ADDRESS:PORT, has not.
func service(getenv func(string) string) string {
	u, err := url.Parse(getenv("KUBERNETES_PORT"))
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// Parse reads a proxy's URL; without a scheme it is http.
func Parse(text string) (*url.URL, error) {
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil { // its text would repeat the password
		return nil, errors.New("not a URL like http://10.1.1.1:3128")
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("%s: neither http nor https; only HTTP proxies are supported", u.Redacted())
	case u.Hostname() == "" || u.Port() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "":
		return nil, fmt.Errorf("%s: not http://HOST:PORT", u.Redacted())
	}
	u.Path = ""
	return u, nil
}

// For returns the proxy for a target, HOST:PORT, with the credentials in its URL; nil: the target needs none.
func (w *Egress) For(target string) (*url.URL, error) {
	if w == nil {
		return nil, nil //nolint:nilnil // as above
	}
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		return nil, fmt.Errorf("proxy for %s: %w", target, err)
	}
	if w.near(host) {
		return nil, nil //nolint:nilnil // as above
	}
	u, err := w.find(&url.URL{Scheme: "https", Host: target})
	if err != nil || u == nil || w.credentials == "" {
		return u, err //nolint:wrapcheck // it names the proxy
	}
	user, err := Credentials(w.credentials)
	if err != nil && !errors.Is(err, secretfile.ErrPermissions) {
		return nil, err
	}
	out := *u
	out.User = user
	return &out, nil
}

// near reports whether no proxy outside of the cluster reaches host, so that NO_PROXY need not say it. The range of
// Services is not known here: the API server's is the only one that is used without being configured.
func (w *Egress) near(host string) bool {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return strings.HasSuffix(host, ".svc") || strings.HasSuffix(host, ".svc.cluster.local")
	}
	return ip.IsLinkLocalUnicast() || host == w.cluster || w.inside != nil && w.inside(nat64.Inside(ip))
}

// Request is For in the form of http.Transport.Proxy.
func (w *Egress) Request(r *http.Request) (*url.URL, error) {
	port := r.URL.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[r.URL.Scheme]
	}
	return w.For(net.JoinHostPort(r.URL.Hostname(), port))
}

// maxCredentials bounds the file, in bytes.
const maxCredentials = 4096

// Credentials reads a file with user and password. The error names neither. Those that other users may read come with
// secretfile.ErrPermissions: releases up to 0.2 used them, and a node behind a proxy is reached by nothing else.
func Credentials(file string) (*url.Userinfo, error) {
	text, tooOpen := secretfile.Read(file, maxCredentials)
	if tooOpen != nil {
		tooOpen = fmt.Errorf("proxyCredentials: %w", tooOpen)
		if !errors.Is(tooOpen, secretfile.ErrPermissions) {
			return nil, tooOpen
		}
	}
	user, password, ok := strings.Cut(strings.TrimRight(string(text), "\r\n"), ":")
	if !ok || user == "" || strings.ContainsAny(password, "\r\n") {
		return nil, fmt.Errorf("proxyCredentials: %s: not one line of the form user:password", file)
	}
	return url.UserPassword(user, password), tooOpen
}
