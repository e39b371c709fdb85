package kube

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/kube/kubetest"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/snapshot"
	"edgemesh/test/fair"
)

// versioned answers /version; everything else is next's.
func versioned(v string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/version" {
			fmt.Fprintf(w, `{"gitVersion": %q}`, v)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// says gives every request the same answer.
func says(code int, contentType, body string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	})
}

// status is an API server's refusal.
func status(code int, reason string) http.Handler {
	return says(code, "application/json", fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":"no","code":%d}`, reason, code))
}

// closed is an address where nothing listens.
func closed(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// kubeconfigFor is one for a server behind TLS, with the CA of another cluster.
func kubeconfigFor(t *testing.T, server *httptest.Server) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}],
users: [{name: u, user: {token: t}}], contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}`, server.URL, path+".ca")
	for p, b := range map[string][]byte{path: []byte(text), path + ".ca": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})} {
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// Whatever answers, or nothing: the operator is told what is wrong and what to do, on a first start and on every other,
// and the members that are known stay.
func TestTrouble(t *testing.T) {
	secure := httptest.NewUnstartedServer(says(http.StatusOK, "application/json", "{}"))
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes
	secure.StartTLS()
	t.Cleanup(secure.Close)
	for name, x := range map[string]struct {
		handler            http.Handler
		server, kubeconfig string
		says               []string
	}{
		"cache down": {server: "http://" + closed(t), says: []string{"connection refused", "no API cache runs at http://127.0.0.1:", "start edgecore"}},
		"API down":   {server: "https://" + closed(t), says: []string{"the API cannot be reached at https://127.0.0.1:", "check this node's uplink"}},
		"cache answers 404": {handler: says(http.StatusNotFound, "text/plain", "404 page not found"),
			says: []string{"is not an API cache of Kubernetes", "check membership.kubernetes.server"}},
		"cache answers HTML": {handler: says(http.StatusOK, "text/html", "<html><body>Login</body></html>"),
			says: []string{"is not an API cache of Kubernetes", "which program has that port"}},
		"cache taken by another user": {server: kubetest.ServeAs(t, 65534, says(http.StatusOK, "application/json", "{}")),
			says: []string{"runs as user 65534, not as root", "nothing was sent to it", "membership.kubernetes.localUID: 65534"}},
		"cache without uplink": {handler: status(http.StatusInternalServerError, "InternalError"), says: []string{"it has no uplink"}},
		"cache wants https": {server: "http://" + secure.Listener.Addr().String(),
			says: []string{"wants https", "requireAuthorization", "kubeedge.enabled: false", "membership.kubernetes.kubeconfig"}},
		"wrong CA":      {kubeconfig: kubeconfigFor(t, secure), says: []string{"not signed by the CA", "correct certificate-authority in the kubeconfig"}},
		"expired token": {handler: status(http.StatusUnauthorized, "Unauthorized"), says: []string{"it has expired", "renew the kubeconfig's credentials"}},
		"no rights":     {handler: status(http.StatusForbidden, "Forbidden"), says: []string{"apply the manifests or the chart again", "ClusterRole edgemesh:agent", "system:node:NAME"}},
		"CRDs missing": {handler: versioned("v1.35.4", says(http.StatusNotFound, "text/plain", "404 page not found")),
			says: []string{"(v1.35.4) does not have our kind", "apply the CustomResourceDefinitions"}},
		"old Kubernetes": {handler: versioned("v1.27.6+k3s1", says(http.StatusNotFound, "text/plain", "404 page not found")),
			says: []string{"the API server is v1.27.6+k3s1, EdgeMesh needs 1.28.0 or later", "upgrade the cluster"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if x.handler != nil {
				x.server = kubetest.Serve(t, x.handler)
			}
			cfg := Config{Access: client.Access{Server: x.server, Kubeconfig: x.kubeconfig, LocalUID: os.Geteuid()}, NodeName: "a", StateDir: t.TempDir(), PeerID: mesh.PeerID(kubetest.PeerIDs(t, 1)[0])}
			t.Run("first start", func(t *testing.T) {
				w := told{}
				cfg.Waits = w.add
				s, err := New(cfg)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { _, _, err := s.Start(ctx); ended <- err }()
				w.hears(t, x.says)
				cancel()
				if err := <-ended; err == nil {
					t.Error("it started with a membership that nobody gave")
				}
			})
			t.Run("known members", func(t *testing.T) {
				id := kubetest.PeerIDs(t, 1)[0]
				known := mesh.State{Encryption: mesh.EncryptionAuto, PodCIDRs: kubetest.Prefixes(t, "10.244.0.0/16"), Nodes: []mesh.Node{
					{Name: "a", PeerID: cfg.PeerID, PodCIDRs: kubetest.Prefixes(t, "10.244.1.0/24")},
					{Name: "b", PeerID: mesh.PeerID(id), PodCIDRs: kubetest.Prefixes(t, "10.244.2.0/24")},
				}}
				if err := snapshot.Save(cfg.StateDir, known); err != nil {
					t.Fatal(err)
				}
				s, err := New(cfg)
				if err != nil {
					t.Fatal(err)
				}
				at, end := context.WithTimeout(t.Context(), 5*time.Second)
				defer end()
				before, warning, err := s.Start(at)
				if err != nil || warning != nil || text(before) != text(known) {
					t.Fatalf("started with %s, %v, %v", text(before), warning, err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				w, ended := told{}, make(chan struct{})
				go func() {
					defer close(ended)
					s.Watch(ctx, func(now mesh.State) {
						if text(now) != text(known) {
							t.Errorf("members are now %s", text(now))
						}
					}, w.add)
				}()
				w.hears(t, x.says)
				cancel()
				<-ended
			})
		})
	}
}

// told is what an operator was told.
type told struct {
	mu   sync.Mutex
	errs []string
}

func (w *told) add(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.errs = append(w.errs, err.Error())
}

// hears waits for all words in one message.
func (w *told) hears(t *testing.T, words []string) {
	t.Helper()
	fair.Eventually(t, 10*time.Second, fmt.Sprintf("a message with %q", words), func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, e := range w.errs {
			missing := false
			for _, word := range words {
				missing = missing || !strings.Contains(e, word)
			}
			if !missing {
				return nil
			}
		}
		return fmt.Errorf("told %q", w.errs)
	})
}
