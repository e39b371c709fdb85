package client

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/connrotation"
)

// dialTimeout is for one attempt, and the interval of TCP's keep-alives.
const dialTimeout = 30 * time.Second

// target is an API, and what it is asked with.
type target struct {
	cluster Cluster
	user    User
	proxy   func(*http.Request) (*url.URL, error) // nil: as HTTPS_PROXY and NO_PROXY say
}

// base is the URL below which the API's paths are. A server without a scheme has TLS if it has to be checked.
func (t *target) base() (*url.URL, error) {
	c := t.cluster
	u, err := url.Parse(c.Server)
	if err != nil || u.Scheme == "" || u.Host == "" {
		scheme := "http://"
		if c.Insecure || c.CA != "" || len(c.CAData) > 0 || t.user.Certificate != "" || len(t.user.CertificateData) > 0 {
			scheme = "https://"
		}
		if u, err = url.Parse(scheme + c.Server); err != nil {
			return nil, err
		}
		if u.Path != "" && u.Path != "/" {
			return nil, errNotServer
		}
	}
	u.RawQuery, u.Fragment = "", ""
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, errNotServer
	}
	return u, nil
}

var errNotServer = errors.New("it is not http(s)://HOST:PORT")

// transport sends requests with the user's credentials, which never go in the clear. TLS, HTTP/2, proxies and certificates
// that are replaced in their files are client-go's. dialer knows all its connections.
func (t *target) transport(secure bool) (rt http.RoundTripper, dialer *connrotation.Dialer, err error) {
	c, u := t.cluster, t.user
	dialer = connrotation.NewDialer((&net.Dialer{Timeout: dialTimeout, KeepAlive: dialTimeout}).DialContext)
	conf := &transport.Config{
		DialHolder:         &transport.DialHolder{Dial: dialer.DialContext},
		TLS:                transport.TLSConfig{CAFile: c.CA, CAData: c.CAData, Insecure: c.Insecure, ServerName: c.ServerName},
		Impersonate:        transport.ImpersonationConfig{UserName: u.As, UID: u.AsUID, Groups: u.AsGroup, Extra: u.AsExtra},
		DisableCompression: c.DisableCompression,
		Proxy:              t.proxy,
	}
	if c.ProxyURL != "" { // goes first
		at, err := url.Parse(c.ProxyURL)
		if err != nil {
			return nil, nil, fmt.Errorf("proxy-url: %w", err)
		}
		conf.Proxy = http.ProxyURL(at)
	}
	if secure {
		if err := u.authenticate(conf, c, dialer.CloseAll); err != nil {
			return nil, nil, err
		}
	}
	if conf.Proxy == nil {
		conf.Proxy = http.ProxyFromEnvironment // a transport of its own, or Close would close connections of others
	}
	rt, err = transport.New(conf)
	return rt, dialer, err
}

// authenticate adds the user's credentials to conf. changed is called when a program has printed other ones.
func (u *User) authenticate(conf *transport.Config, c Cluster, changed func()) error {
	conf.TLS.CertFile, conf.TLS.CertData, conf.TLS.KeyFile, conf.TLS.KeyData = u.Certificate, u.CertificateData, u.Key, u.KeyData
	switch {
	case u.TokenFile != "":
		if _, err := os.ReadFile(u.TokenFile); err != nil {
			return fmt.Errorf("token: %w", err)
		}
		conf.Wrap(func(rt http.RoundTripper) http.RoundTripper { return tokenFile{u.TokenFile, rt} })
	case u.Token != "":
		conf.BearerToken = u.Token
	case u.Username != "" || u.Password != "":
		conf.Username, conf.Password = u.Username, u.Password
	case u.Exec != nil && !conf.HasCertAuth():
		p := &program{exec: *u.Exec, cluster: c, changed: changed}
		conf.TLS.GetCertHolder = &transport.GetCertHolder{GetCert: p.certificate}
		conf.Wrap(func(rt http.RoundTripper) http.RoundTripper { return asked{p, rt} })
	}
	return nil
}

func dataOrFile(data []byte, path string) ([]byte, error) {
	if len(data) > 0 || path == "" {
		return data, nil
	}
	return os.ReadFile(path)
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
