package main

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"time"
)

// proxy is an HTTP proxy that knows CONNECT only. It ends connections after some time, or inspects what they carry, as some
// proxies do.
func proxy(ctx context.Context, args []string) error {
	fs := newFlags("proxy")
	life := fs.Duration("life", 0, "of a connection, 0: as long as it likes")
	inspect := fs.Bool("inspect", false, "end TLS in the target's place, with a certificate of our own, and drop what is not TLS")
	at, err := parse(fs, args, 1)
	if err != nil {
		return err
	}
	own := func(to net.Conn, in net.Conn) (net.Conn, net.Conn, error) { return to, in, nil }
	if *inspect {
		if own, err = inspector(); err != nil {
			return err
		}
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", at[0])
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { l.Close() })
	for {
		c, err := l.Accept()
		if err != nil {
			return nil //nolint:nilerr // stopped
		}
		go func() {
			if err := carry(ctx, c, *life, own); err != nil {
				fmt.Println(err)
			}
		}()
	}
}

// carry serves one connection. own puts itself between the target and the client.
func carry(ctx context.Context, c net.Conn, life time.Duration, own between) error {
	defer c.Close()
	in := bufio.NewReader(c)
	r, err := http.ReadRequest(in)
	if err != nil || r.Method != http.MethodConnect {
		_, err := io.WriteString(c, "HTTP/1.1 405 CONNECT only\r\n\r\n")
		return err
	}
	var d net.Dialer
	to, err := d.DialContext(ctx, "tcp", r.Host)
	if err != nil {
		_, err := io.WriteString(c, "HTTP/1.1 502 No route\r\n\r\n")
		return err
	}
	defer to.Close()
	if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return err
	}
	if life > 0 {
		defer time.AfterFunc(life, func() { c.Close(); to.Close() }).Stop()
	}
	far, near, err := own(to, buffered{c, in})
	if err != nil {
		return err
	}
	go func() { _, _ = io.Copy(far, near); to.Close() }()
	_, _ = io.Copy(near, far)
	return nil
}

// buffered is a connection of which something has been read already.
type buffered struct {
	net.Conn
	in *bufio.Reader
}

func (b buffered) Read(p []byte) (int, error) { return b.in.Read(p) }

// between returns the connections whose bytes are copied, in place of those to the target and to the client.
type between func(to, in net.Conn) (far, near net.Conn, err error)

// inspector ends TLS on both sides.
func inspector() (between, error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Inspector"}, DNSNames: []string{"inspector"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, pub, key)
	if err != nil {
		return nil, err
	}
	own := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}
	return func(to, in net.Conn) (net.Conn, net.Conn, error) {
		near := tls.Server(in, own)
		if err := near.Handshake(); err != nil { // also what is no TLS
			return nil, nil, err
		}
		//nolint:gosec // an inspector believes what it likes
		return tls.Client(to, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}), near, nil
	}, nil
}
