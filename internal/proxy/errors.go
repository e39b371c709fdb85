package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
)

// Cause says why there was no connection through a proxy.
type Cause string

const (
	// Unreachable: no TCP connection to the proxy.
	Unreachable Cause = "the proxy cannot be reached: check the URL, and whether it runs"
	// Silent: it did not answer in time.
	Silent Cause = "the proxy does not answer: it is overloaded, or cannot reach the target and does not say so"
	// Unauthorized: credentials wrong or missing.
	Unauthorized Cause = "the proxy does not accept user and password, or requires them (407): write them, as user:password, to the file that proxyCredentials names"
	// Forbidden: 403, 405.
	Forbidden Cause = "the proxy forbids this target or port (403): have it allowed, or give the relay port 443, the one that most proxies allow"
	// Failed: 5xx.
	Failed Cause = "the proxy cannot reach the target (5xx): check the relay's address, and the proxy's own uplink"
	// Rubbish: what answers is no HTTP proxy.
	Rubbish Cause = "what answers is not an HTTP proxy: check the URL"
	// Intercepted: it puts itself in place of the target.
	Intercepted Cause = "something on the path ends TLS in the target's place (a TLS-intercepting proxy): have the relay's name exempted from inspection"
	// Cut: it gave a connection, which ended before the target had said anything.
	Cut Cause = "the proxy gave a connection that ended before the relay answered: a proxy that inspects TLS drops what it does not know; have the relay's address exempted from inspection, and check that the relay runs"
	// Unanswered: it gave a connection, on which nothing came.
	Unanswered Cause = "the proxy gave a connection, and nothing answers on it: check that the relay runs and that the proxy reaches it; a proxy that inspects what it carries holds back what it does not know, have the relay's address exempted from that"
	// Garbled: it gave a connection, on which something else than the target answers.
	Garbled Cause = "the proxy gave a connection, and what answers on it is not a relay: check the relay's address and port, and have it exempted from inspection and login pages"
	// Refused: another answer.
	Refused Cause = "the proxy refuses"
)

// Error is a connection that a proxy did not give.
type Error struct {
	Proxy  string // HOST:PORT
	Target string // likewise
	Cause  Cause
	Err    error
}

func (e *Error) Error() string {
	return fmt.Sprintf("proxy %s to %s: %s [%v]", e.Proxy, e.Target, e.Cause, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// status is an answer other than 2xx.
type status int

func (s status) Error() string { return fmt.Sprintf("%d %s", int(s), http.StatusText(int(s))) }

var errAnswer = errors.New("read the answer")

// statuses are the causes of answers.
func (s status) cause() Cause {
	switch {
	case s == http.StatusProxyAuthRequired, s == http.StatusUnauthorized: // tinyproxy's to wrong ones
		return Unauthorized
	case s == http.StatusForbidden, s == http.StatusMethodNotAllowed:
		return Forbidden
	case s/100 == 5:
		return Failed
	}
	return Refused
}

// explain finds the cause of what went wrong after the proxy had been reached.
func explain(proxy, target string, err error) *Error {
	e := &Error{Proxy: proxy, Target: target, Cause: Refused, Err: err}
	var s status
	switch {
	case errors.As(err, &s):
		e.Cause = s.cause()
	case timedOut(err):
		e.Cause = Silent
	case errors.Is(err, errAnswer):
		e.Cause = Rubbish
	}
	return e
}

func timedOut(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// Foreign reports whether a TLS handshake failed because the certificate is not the server's.
func Foreign(err error) bool {
	var verify *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	return errors.As(err, &verify) || errors.As(err, &unknown) || errors.As(err, &name)
}
