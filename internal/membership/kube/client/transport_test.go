package client

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/internal/resolve"
)

// certificate is a new one of name, with its key, in PEM, as kubelet keeps it: in one file.
func certificate(t *testing.T, name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, form, form, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})) +
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
}

// whoAsks is a server that answers with the name in the client's certificate and its protocol, or refuses everybody.
func whoAsks(t *testing.T, refuse *atomic.Bool) *httptest.Server {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) == 0 || refuse.Load() {
			http.Error(w, "nobody", http.StatusUnauthorized)
			return
		}
		fmt.Fprintf(w, `{"name": %q, "proto": %q}`, r.TLS.PeerCertificates[0].Subject.CommonName, r.Proto)
	}))
	server.Config.TLSConfig = &tls.Config{ClientAuth: tls.RequestClientCert, NextProtos: []string{"h2", "http/1.1"}}
	configureHTTP2(t, server)
	server.TLS = server.Config.TLSConfig
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// configureHTTP2 has a server speak it. Programs are built without net/http's copy (build tag nethttpomithttp2): both ends
// use x/net's.
func configureHTTP2(t *testing.T, server *httptest.Server) {
	t.Helper()
	//lint:ignore SA1019 net/http cannot do it without its copy
	if err := http2.ConfigureServer(server.Config, nil); err != nil { //nolint:staticcheck // likewise
		t.Fatal(err)
	}
}

type asker struct{ Name, Proto string }

func (c *Client) who(t *testing.T) asker {
	t.Helper()
	var out asker
	if err := c.Get(t.Context(), "/x", &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// A certificate in files is shown to the server, which is checked by the cluster's authority and asked by HTTP/2, also
// with the tags of the programs that are released: all watches share one connection.
func TestCertificateInFiles(t *testing.T) {
	server := whoAsks(t, new(atomic.Bool))
	dir := t.TempDir()
	write(t, filepath.Join(dir, "ca.crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	write(t, filepath.Join(dir, "current.pem"), certificate(t, "one"))
	kubeconfig := write(t, filepath.Join(dir, "kubeconfig"),
		config(`server: "`+server.URL+`", certificate-authority: ca.crt`, "client-certificate: current.pem, client-key: current.pem"))
	c, err := New(Access{Kubeconfig: kubeconfig}, "test/1", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := c.who(t); got != (asker{"one", "HTTP/2.0"}) {
		t.Fatalf("asked as %+v", got)
	}
}

// Where TCP connects, TLS may find another server: an address of the API's name is kept once the server has answered.
func TestAddressIsKeptOnceProved(t *testing.T) {
	server := whoAsks(t, new(atomic.Bool))
	dir := t.TempDir()
	file, kept := filepath.Join(dir, "names.json"), false
	for _, ca := range []string{certificate(t, "another"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))} {
		names := resolve.New(resolve.Config{File: file})
		write(t, filepath.Join(dir, "ca.crt"), ca)
		_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "https://"), ":")
		c, err := New(Access{Names: names, Kubeconfig: write(t, filepath.Join(dir, "kubeconfig"),
			config(`server: "https://localhost:`+port+`", certificate-authority: ca.crt, tls-server-name: example.com`, "token: t"))}, "test/1", nil)
		if err != nil {
			t.Fatal(err)
		}
		var out struct{}
		err = c.Get(t.Context(), "/x", &out) // answered by 401, as nobody has a certificate
		c.Close()
		names.Close()
		text, _ := os.ReadFile(file)
		if got := strings.Contains(string(text), "127.0.0.1"); got != kept {
			t.Errorf("kept %q after %v", text, err)
		}
		kept = true
	}
}

// An unknown authority is an error, whatever the user has.
func TestUnknownAuthority(t *testing.T) {
	server := whoAsks(t, new(atomic.Bool))
	dir := t.TempDir()
	other := certificate(t, "another")
	write(t, filepath.Join(dir, "ca.crt"), other)
	c, err := New(Access{Kubeconfig: write(t, filepath.Join(dir, "kubeconfig"), config(`server: "`+server.URL+`", certificate-authority: ca.crt`, "token: t"))}, "test/1", nil)
	if err != nil {
		t.Fatal(err)
	}
	var out struct{}
	if err := c.Get(t.Context(), "/x", &out); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("error %v", err)
	}
}

// A program is run again once the server refuses what it printed, and connections with its old certificate end.
func TestProgramRunsAgain(t *testing.T) {
	var refuse atomic.Bool
	server := whoAsks(t, &refuse)
	dir := t.TempDir()
	for _, name := range []string{"one", "two"} {
		text := certificate(t, name)
		cert, key, _ := strings.Cut(text, "-----BEGIN PRIVATE")
		escape := func(s string) string { return strings.ReplaceAll(s, "\n", `\n`) }
		write(t, filepath.Join(dir, name), `{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1beta1", "status": {"clientCertificateData": "`+
			escape(cert)+`", "clientKeyData": "`+escape("-----BEGIN PRIVATE"+key)+`"}}`)
	}
	now := filepath.Join(dir, "now")
	if err := os.Symlink("one", now); err != nil {
		t.Fatal(err)
	}
	c, err := New(Access{Kubeconfig: write(t, filepath.Join(dir, "kubeconfig"), config(`server: "`+server.URL+`", insecure-skip-tls-verify: true`,
		"exec: {command: cat, args: ["+now+"], apiVersion: client.authentication.k8s.io/v1beta1}"))}, "test/1", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := c.who(t); got.Name != "one" {
		t.Fatalf("asked as %+v", got)
	}
	if err := os.Remove(now); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("two", now); err != nil {
		t.Fatal(err)
	}
	if got := c.who(t); got.Name != "one" {
		t.Errorf("asked as %+v, although nobody refused that", got)
	}
	refuse.Store(true)
	if err := c.Get(t.Context(), "/x", nil); !apierrors.IsUnauthorized(err) {
		t.Fatalf("error %v of a refusal", err)
	}
	refuse.Store(false)
	if got := c.who(t); got.Name != "two" {
		t.Errorf("asked as %+v", got)
	}
}
