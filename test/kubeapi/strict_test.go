package kubeapi_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"edgemesh/agent/controller"
	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
)

// strict is an API server that refuses fields that it does not know, which it would drop; and what it took.
type strict struct {
	url string

	mu    sync.Mutex
	wrote map[string]bool // METHOD KIND
}

func newStrict(t *testing.T, c *kubeapi.Cluster) *strict {
	t.Helper()
	s := &strict{wrote: map[string]bool{}}
	to, err := url.Parse(c.URL)
	must(t, err)
	ca, err := os.ReadFile(filepath.Join(c.Dir, "ca.crt"))
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	own, err := tls.LoadX509KeyPair(c.Files("apiserver"))
	must(t, err)
	names := regexp.MustCompile(`/(nodes|namespaces|meshnodes|noderecords|podblocks|podnetworks|policygroups|leases|events|secrets)/[^/]+`)
	writes := func(r *http.Request) bool {
		return r.Method == http.MethodPost || r.Method == http.MethodPatch || r.Method == http.MethodPut
	}
	server := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		FlushInterval: -1, // of watches
		ErrorLog:      log.New(io.Discard, "", 0),
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			if q := r.Out.URL.Query(); writes(r.In) {
				q.Set("fieldValidation", "Strict")
				r.Out.URL.RawQuery = q.Encode()
			}
		},
		ModifyResponse: func(r *http.Response) error {
			if !writes(r.Request) {
				return nil
			}
			text, err := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(text))
			parts := strings.SplitAfterN(names.ReplaceAllString(r.Request.URL.Path, "/$1"), "/v1", 2)
			what := r.Request.Method + " " + parts[len(parts)-1]
			switch {
			case bytes.Contains(text, []byte("strict decoding error")) || r.Header.Get("Warning") != "":
				t.Errorf("%s: %q %s", what, r.Header.Get("Warning"), text)
			case r.StatusCode/100 == 2:
				s.mu.Lock()
				defer s.mu.Unlock()
				s.wrote[what] = true
			}
			return err
		},
	})
	server.TLS = &tls.Config{Certificates: []tls.Certificate{own}}
	server.StartTLS()
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// Agents and controllers are of a newer release than an API server may be: it knows every field that they write.
func TestNoFieldIsDropped(t *testing.T) {
	t.Parallel()
	c := clusterOfTwo(t)
	s := newStrict(t, c)
	must(t, c.CreateNode("claims"), c.Delete(leasePath))
	unavailable := map[string]any{"status": map[string]any{"conditions": []any{map[string]any{"type": "NetworkUnavailable", "status": "True", "reason": "NoRoute"}}}}
	must(t, c.Patch(nodesPath+"/a/status", unavailable))
	token := filepath.Join(c.Dir, "controller-token")
	must(t, c.ServiceAccountToken("edgemesh-controller", token), c.TokenKubeconfig("strict.conf", token, s.url))
	cfg := controller.Config{Kubeconfig: filepath.Join(c.Dir, "strict.conf"), Namespace: kubeapi.Namespace, Identity: "one",
		Sight: sight, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- controller.Run(ctx, cfg) }()
	t.Cleanup(func() { cancel(); must(t, <-done) })
	a := tokenAgent(t, c, "a", s.url)
	a.start()
	tokenAgent(t, c, "claims", s.url).start()
	a.source.Warn("MeshStranger", "peer x knocks")
	must(t, c.Patch(nodesPath+"/a", map[string]any{"metadata": map[string]any{"labels": map[string]string{"node-restriction.kubernetes.io/x": "y"}}}),
		podIn(c, "default", "db", "a", "db", "10.244.1.5"), podIn(c, "default", "web", "b", "web", "10.244.2.5"), c.Do(http.MethodPost, defaultPolicies, fromApp("p", "web"), nil))
	want := []string{"POST alpha1/meshnodes", "PATCH alpha1/meshnodes/status", "POST alpha1/podblocks", "PATCH /nodes/status", "POST /namespaces/events", "POST /namespaces/leases", "PATCH /namespaces/leases",
		"POST alpha1/noderecords", "PATCH alpha1/noderecords", "PATCH alpha1/podnetworks/status", "POST alpha1/policygroups"}
	fair.Eventually(t, patience, "all of these are written", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, w := range want {
			if !s.wrote[w] {
				return fmt.Errorf("%s is not among %v", w, slices.Sorted(maps.Keys(s.wrote)))
			}
		}
		return nil
	})
}
