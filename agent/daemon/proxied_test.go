package daemon

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"edgemesh/agent/findings"
	"edgemesh/internal/config"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
)

// connectProxy is an HTTP proxy that knows the way to one server, by a name that nobody else can resolve.
type connectProxy struct {
	name, to, user string

	mu        sync.Mutex
	requested []string
}

func (p *connectProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(r.Header.Get("Proxy-Authorization"), "Basic "))
	p.mu.Lock()
	p.requested = append(p.requested, r.Method+" "+r.Host)
	p.mu.Unlock()
	switch {
	case string(user) != p.user:
		w.WriteHeader(http.StatusProxyAuthRequired)
		return
	case r.Method != http.MethodConnect || r.Host != p.name:
		w.WriteHeader(http.StatusForbidden)
		return
	}
	there, err := net.Dial("tcp", p.to)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer there.Close()
	here, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer here.Close()
	_, _ = io.WriteString(here, "HTTP/1.1 200 Connection established\r\n\r\n")
	go func() { _, _ = io.Copy(there, here); there.Close() }()
	_, _ = io.Copy(here, there)
}

// An API server that only the proxy reaches is read and watched through it, with the password of proxyCredentials, which is
// read again for each connection.
func TestAPIOnlyThroughProxy(t *testing.T) {
	news := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/version", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, `{"gitVersion": "v1.35.4"}`) })
	mux.HandleFunc(api.MeshNodes().Path(""), func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			fmt.Fprintln(w, `{"apiVersion": "network.edgemesh.io/v1alpha1", "kind": "MeshNodeList", "metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "edge-1", "uid": "1"}}]}`)
			return
		}
		_ = http.NewResponseController(w).Flush()
		<-news
		fmt.Fprintln(w, `{"type": "ADDED", "object": {"metadata": {"name": "edge-2", "uid": "2"}}}`)
	})
	server := httptest.NewTLSServer(mux)
	defer server.Close()
	p := &connectProxy{name: "api.invalid:6443", to: server.Listener.Addr().String(), user: "edge:secret"}
	front := httptest.NewServer(p)
	defer front.Close()

	dir := t.TempDir()
	put := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	kubeconfig := put("kubeconfig", `{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}],
  clusters: [{name: c, cluster: {server: "https://`+p.name+`", tls-server-name: example.com, certificate-authority-data: `+base64.StdEncoding.EncodeToString(ca)+`}}],
  users: [{name: u, user: {token: t}}]}`)
	secret := put("secret", "edge:wrong\n")
	way, err := proxyOf(config.Config{Proxy: front.URL, ProxyUser: secret}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Access{Kubeconfig: kubeconfig}, "test", way.Request)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Version(t.Context()); err == nil || !strings.Contains(err.Error(), "Proxy Authentication Required") {
		t.Errorf("with a wrong password: %v", err)
	}
	put("secret", p.user+"\n")
	if v, err := c.Version(t.Context()); err != nil || v != "v1.35.4" {
		t.Fatalf("%q, %v", v, err)
	}
	// An agent of 0.2 read a password that every user may read: after an upgrade its node stays reachable, and says what to do.
	if err := os.Chmod(secret, 0o644); err != nil {
		t.Fatal(err)
	}
	cfg := config.Config{Proxy: front.URL, ProxyUser: secret}
	if way, err := proxyOf(cfg, nil); err != nil {
		t.Error(err)
	} else if u, err := way.For(p.name); err != nil || u.User.String() != p.user {
		t.Errorf("%v, %v", u, err)
	}
	if f := checkSecrets(cfg); len(f) != 1 || f[0].Severity != findings.Warning || !strings.Contains(f[0].Remedy, "chmod 600 "+secret) {
		t.Errorf("%+v", f)
	}
	put("secret", p.user+"\n")
	if err := os.Chmod(secret, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.Membership.Kubernetes = &config.Kubernetes{Kubeconfig: kubeconfig}
	if f := checkSecrets(cfg); f != nil {
		t.Errorf("%+v", f)
	}
	if err := os.Chmod(kubeconfig, 0o640); err != nil {
		t.Fatal(err)
	}
	if f := checkSecrets(cfg); len(f) != 1 || f[0].Remedy != "run: chmod 600 "+kubeconfig {
		t.Errorf("%+v", f)
	}
	nodes, rv, err := c.List(t.Context(), api.MeshNodes(), nil)
	if err != nil || len(nodes) != 1 {
		t.Fatalf("%v, %v", nodes, err)
	}
	watch, err := c.Watch(t.Context(), api.MeshNodes(), rv, 60, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	time.AfterFunc(50*time.Millisecond, func() { close(news) })
	if e, err := watch.Next(); err != nil {
		t.Errorf("%v, %v", e, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, requested := range p.requested {
		if requested != "CONNECT "+p.name {
			t.Errorf("the proxy was requested to %s", requested)
		}
	}
}

// An API server in the mesh's own ranges is not reached through the proxy, from when these are known.
func TestAPIInsideTheMesh(t *testing.T) {
	f := &inForce{}
	way, err := proxyOf(config.Config{Proxy: "http://10.1.1.1:3128"}, f.inside)
	if err != nil {
		t.Fatal(err)
	}
	through := func(target string) bool {
		u, err := way.For(target)
		if err != nil {
			t.Fatal(err)
		}
		return u != nil
	}
	if !through("10.244.3.4:6443") {
		t.Error("an address that is not known to be the mesh's needs the proxy")
	}
	f.set(nil, plan{Plan: mesh.Plan{Host: mesh.Host{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10::/56")}}}}, nil)
	for target, want := range map[string]bool{"10.244.3.4:6443": false, "[fd00:10::7]:6443": false, "10.245.3.4:6443": true, "[2001:db8::1]:443": true} {
		if got := through(target); got != want {
			t.Errorf("%s through the proxy: %v", target, got)
		}
	}
}
