package p2p

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/test/relaytest"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
)

// A relay listens for WebSocket behind a web server that ends TLS for it, as where
// only real HTTPS to a known name gets out.
func TestRelayBehindTLSProxy(t *testing.T) {
	h, err := relaytest.Start(newKey(t), "/ip4/127.0.0.1/tcp/0/ws")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	var port string
	for _, a := range h.Network().ListenAddresses() {
		if p, err := a.ValueForProtocol(ma.P_TCP); err == nil {
			port = p
		}
	}
	proxy := httptest.NewUnstartedServer(httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "127.0.0.1:" + port}))
	proxy.TLS = &tls.Config{Certificates: []tls.Certificate{selfSigned(t, "localhost")}}
	seen := make(chan string, 100)
	inner := proxy.Config.Handler
	proxy.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.TLS.ServerName
		inner.ServeHTTP(w, r)
	})
	proxy.StartTLS()
	defer proxy.Close()
	_, front, err := net.SplitHostPort(proxy.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	info := peer.AddrInfo{ID: h.ID(), Addrs: addrs(t, fmt.Sprintf("/dns4/localhost/tcp/%s/tls/ws", front))}
	a, b, _ := pair(t, info)
	for _, n := range []*Node{a, b} {
		fair.Eventually(t, 10*time.Second, "reservation", reserved(n, 1))
	}
	if name := <-seen; name != "localhost" {
		t.Errorf("the server was asked for as %q", name)
	}
	path, err := call(a, b.ID())
	if err != nil || path.Transport != "relay/ws" {
		t.Errorf("path %+v: %v", path, err)
	}
}

// selfSigned makes a certificate that this process's system roots are made of.
func selfSigned(t *testing.T, name string) tls.Certificate {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, pub, key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", file)
	t.Setenv("SSL_CERT_DIR", t.TempDir())
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
