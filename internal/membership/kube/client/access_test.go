package client

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAccess(t *testing.T) {
	dir := t.TempDir()
	pod := t.TempDir()
	write(t, filepath.Join(pod, "token"), "secret")
	good := write(t, filepath.Join(dir, "good"), `{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: "https://1.2.3.4:6443"}}],
users: [{name: u, user: {token: t}}], contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}`)
	broken := write(t, filepath.Join(dir, "broken"), "clusters: {")
	inPod := map[string]string{"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
	for name, x := range map[string]struct {
		env                map[string]string
		dir                string
		kubeconfig, server string
		edge, hub          bool
		host, says         string
	}{
		"in a pod":                        {env: inPod, dir: pod, host: "https://10.96.0.1:443"},
		"in a pod without a token":        {env: inPod, dir: dir, host: "https://10.96.0.1:443"},
		"IPv6":                            {env: map[string]string{"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}, host: "https://[fd00::1]:443"},
		"KubeEdge":                        {edge: true, host: MetaServer},
		"KubeEdge with authorization":     {edge: true, env: map[string]string{"KUBERNETES_SERVICE_HOST": "169.254.30.10", "KUBERNETES_SERVICE_PORT": "10550"}, host: "https://169.254.30.10:10550"},
		"OpenYurt, a unit":                {hub: true, host: YurtHub},
		"OpenYurt, a pod":                 {hub: true, dir: pod, env: map[string]string{"KUBERNETES_SERVICE_HOST": "169.254.2.1", "KUBERNETES_SERVICE_PORT": "10268"}, host: YurtHub},
		"OpenYurt, apiServer.host is set": {hub: true, env: inPod, host: YurtHub},
		"OpenYurt, another server":        {hub: true, server: "https://1.2.3.4:6443", host: "https://1.2.3.4:6443"},
		"OpenYurt, a kubeconfig":          {hub: true, kubeconfig: good, host: "https://1.2.3.4:6443"},
		"neither a pod nor an edge":       {says: ".server"},
		"server in place of the pod's":    {env: inPod, dir: pod, server: "http://127.0.0.1:10550", host: "http://127.0.0.1:10550"},
		"kubeconfig":                      {kubeconfig: good, host: "https://1.2.3.4:6443"},
		"server in place of kubeconfig's": {kubeconfig: good, server: "https://169.254.2.1:10268", host: "https://169.254.2.1:10268"},
		"no such kubeconfig":              {kubeconfig: filepath.Join(dir, "none"), says: "none"},
		"a broken kubeconfig":             {kubeconfig: broken, says: broken},
		"not a URL":                       {server: "127.0.0.1:6443", says: "127.0.0.1:6443"},
		"another scheme":                  {server: "ftp://127.0.0.1", says: "ftp://"},
	} {
		t.Run(name, func(t *testing.T) {
			e := environment{func(k string) string { return x.env[k] }, x.dir, func() bool { return x.edge }, func() bool { return x.hub }}
			c, err := e.client(Access{Kubeconfig: x.kubeconfig, Server: x.server, LocalUID: os.Geteuid()}, "test/1", nil)
			if x.says != "" {
				if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), x.says) {
					t.Errorf("error %v, want ErrConfig with %q", err, x.says)
				}
				return
			}
			if err != nil || c.URL() != x.host {
				t.Errorf("%v %v, want %s", c, err, x.host)
			}
		})
	}
}

// A token is read afresh for every request, and never sent in the clear.
func TestToken(t *testing.T) {
	var got string
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		_, _ = w.Write([]byte(`{}`))
	})
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	write(t, token, "one\n")
	for _, secure := range []bool{true, false} {
		server := httptest.NewUnstartedServer(handler)
		if secure {
			server.StartTLS()
		} else {
			server.Start()
		}
		defer server.Close()
		cfg, err := environment{os.Getenv, dir, onEdge, besideHub}.access("", server.URL)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Insecure = secure // the test server's certificate is nobody's
		c, err := newClient(cfg, 0, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"one", "two"} {
			write(t, token, text+"\n")
			var out struct{}
			if err := c.Get(t.Context(), "/x", &out); err != nil {
				t.Fatal(err)
			}
			if want := map[bool]string{true: "Bearer " + text, false: ""}[secure]; got != want {
				t.Errorf("TLS %v: authorization %q, want %q", secure, got, want)
			}
		}
		c.Close()
	}
}

// The address in the mounted ConfigMap goes before what kubelet injects; without the
// ConfigMap, that stays.
func TestMountedAddress(t *testing.T) {
	dir := t.TempDir()
	injected := map[string]string{"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443", "NODE_NAME": "n"}
	getenv := mounted(dir, func(k string) string { return injected[k] })
	host := func() string {
		t.Helper()
		cfg, err := environment{getenv, "/nonexistent", onEdge, besideHub}.access("", "")
		if err != nil {
			t.Fatal(err)
		}
		return cfg.Host
	}
	if got := host(); got != "https://10.96.0.1:443" {
		t.Errorf("without the ConfigMap: %s", got)
	}
	for name, text := range map[string]string{"host": "2001:db8::1\n", "port": "6443"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := host(); got != "https://[2001:db8::1]:6443" {
		t.Errorf("with the ConfigMap: %s", got)
	}
	if got := getenv("NODE_NAME"); got != "n" {
		t.Errorf("NODE_NAME is %q", got)
	}
}

// Nodes are watched wherever that does no harm: at API servers and through YurtHub. A cache is known by its address,
// with TLS as without.
func TestListNodes(t *testing.T) {
	for server, want := range map[string]struct{ lists, cache bool }{
		"https://1.2.3.4:6443":        {},
		"https://1.2.3.4:10550":       {},
		"https://127.0.0.1:6443":      {},
		"https://169.254.2.1:10268":   {cache: true},
		YurtHub:                       {cache: true},
		MetaServer:                    {lists: true, cache: true},
		"http://127.0.0.1:8080":       {lists: true, cache: true},
		"https://127.0.0.1:10550":     {lists: true, cache: true},
		"https://localhost:10550":     {lists: true, cache: true},
		"http://169.254.30.10:10550":  {lists: true, cache: true},
		"https://169.254.30.10:10550": {lists: true, cache: true}, // requireAuthorization
	} {
		c, err := New(Access{Server: server, LocalUID: os.Geteuid()}, "test/1", nil)
		if err != nil {
			t.Fatal(err)
		}
		if lists, cache := c.ListNodes(), c.Cache(); lists != want.lists || cache != want.cache {
			t.Errorf("%s: lists Nodes %v, is a cache %v", server, lists, cache)
		}
	}
}
