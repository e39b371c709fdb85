package client

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// config is a kubeconfig with one cluster and one user, in YAML's flow style.
func config(cluster, user string) string {
	return `{apiVersion: v1, kind: Config, clusters: [{name: other, cluster: {server: "https://9.9.9.9"}}, {name: c, cluster: {` + cluster + `}}],
users: [{name: u, user: {` + user + `}}], contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}`
}

// What is no access to an API is refused at the start, with a word that says why and the file's path.
func TestKubeconfigRefuses(t *testing.T) {
	const at = `server: "https://1.2.3.4"`
	for name, x := range map[string]struct{ text, says string }{
		"empty":                     {"", "current-context"},
		"not YAML":                  {"clusters: {", "yaml"},
		"no such context":           {strings.ReplaceAll(config(at, ""), "current-context: x", "current-context: z"), `"z"`},
		"no such user":              {strings.ReplaceAll(config(at, ""), "user: u}", "user: nobody}"), "user"},
		"no server":                 {config("", ""), "server"},
		"auth-provider":             {config(at, "auth-provider: {name: gcp}"), "auth-provider"},
		"certificate without a key": {config(at, "client-certificate-data: QQ=="), "client-key-data or client-key must be specified"},
		"key without a certificate": {config(at, "client-key-data: QQ=="), "without a client-certificate"},
		"token and password":        {config(at, "token: a, username: b, password: c"), "only one is allowed"},
		"groups of nobody":          {config(at, "as-groups: [a]"), "without impersonating"},
		"exec without a command":    {config(at, "exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never}"), "command"},
		"exec of another version":   {config(at, "exec: {command: a, apiVersion: v7, interactiveMode: Never}"), "v7"},
		"exec at a terminal":        {config(at, "exec: {command: a, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Always}"), "terminal"},
		"not base64":                {config(at+", certificate-authority-data: '%'", ""), "base64"},
		"no certificate":            {config(at+", certificate-authority-data: QQ==", ""), "certificate"},
		"no file":                   {config(at+", certificate-authority: /nonexistent/ca", ""), "/nonexistent/ca"},
		"no token":                  {config(at, "tokenFile: /nonexistent/token"), "/nonexistent/token"},
		"unused authority":          {config(at+", insecure-skip-tls-verify: true, certificate-authority: /dev/null", ""), "insecure"},
		"not a URL":                 {config(`server: "https://"`, ""), "HOST:PORT"},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, filepath.Join(t.TempDir(), "kubeconfig"), x.text)
			if _, err := New(Access{Kubeconfig: path}, "test/1", nil); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), x.says) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v, want ErrConfig with %q and the path", err, x.says)
			}
		})
	}
}

// A server without a scheme, other paths, a server in place of the kubeconfig's: as client-go reads them.
func TestKubeconfigServer(t *testing.T) {
	for text, want := range map[string]string{
		config(`server: "https://1.2.3.4:6443/"`, ""):                                "https://1.2.3.4:6443/",
		config(`server: "https://h/prefix?a=b#c"`, ""):                               "https://h/prefix",
		config(`server: "1.2.3.4:6443"`, ""):                                         "http://1.2.3.4:6443",
		config(`server: "1.2.3.4:6443", insecure-skip-tls-verify: true`, "token: t"): "https://1.2.3.4:6443",
		config(`server: "http://127.0.0.1:10261"`, "token: t"):                       "http://127.0.0.1:10261",
	} {
		path := write(t, filepath.Join(t.TempDir(), "kubeconfig"), text)
		c, err := New(Access{Kubeconfig: path}, "test/1", nil)
		if err != nil || c.URL() != want {
			t.Errorf("%v, %v, want %s", c, err, want)
		}
	}
	path := write(t, filepath.Join(t.TempDir(), "kubeconfig"), config(`server: "https://1.2.3.4", tls-server-name: kubernetes`, "token: t"))
	got, err := byKubeconfig(path, "https://5.6.7.8")
	if err != nil || got.Host != "https://5.6.7.8" || got.ServerName != "" || got.BearerToken != "t" {
		t.Errorf("%+v, %v", got, err)
	}
}

// Headers are as client-go sends them, and credentials only go where there is TLS.
func TestKubeconfigHeaders(t *testing.T) {
	var got http.Header
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header
		_, _ = w.Write([]byte(`{}`))
	}))
	defer server.Close()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "token"), "from-file\n")
	program := write(t, filepath.Join(dir, "program"), `#!/bin/sh
echo $KUBERNETES_EXEC_INFO >> "$0.info"
echo "{\"kind\": \"ExecCredential\", \"apiVersion\": \"client.authentication.k8s.io/v1\", \"status\": {\"token\": \"$GREETING-$1-$(wc -l < "$0.info")\"}}"
`)
	if err := os.Chmod(program, 0o700); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	for user, want := range map[string]map[string]string{
		"":                               {"Authorization": ""},
		"token: abc":                     {"Authorization": "Bearer abc"},
		"tokenFile: token":               {"Authorization": "Bearer from-file"},
		"token: abc, tokenFile: token":   {"Authorization": "Bearer from-file"},
		"username: a, password: b":       {"Authorization": "Basic YTpi"},
		"token: abc, as: me, as-uid: u1": {"Authorization": "Bearer abc", "Impersonate-User": "me", "Impersonate-Uid": "u1"},
		"as: me, as-groups: [g], as-user-extra: {scopes: [all]}": {
			"Impersonate-User": "me", "Impersonate-Group": "g", "Impersonate-Extra-Scopes": "all",
		},
		"exec: {command: ./program, args: [world], env: [{name: GREETING, value: hello}], apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, provideClusterInfo: true}": {
			"Authorization": "Bearer hello-world-1",
		},
	} {
		path := write(t, filepath.Join(dir, "kubeconfig"), config(`server: "`+server.URL+`", insecure-skip-tls-verify: true`, user))
		c, err := New(Access{Kubeconfig: path}, "test/1", nil)
		if err != nil {
			t.Fatalf("%s: %v", user, err)
		}
		for range 2 { // the program is run once
			var out struct{}
			if err := c.Get(t.Context(), "/x", &out); err != nil {
				t.Fatalf("%s: %v", user, err)
			}
			for k, v := range want {
				if got.Get(k) != v {
					t.Errorf("%s: %s is %q, want %q", user, k, got.Get(k), v)
				}
			}
		}
		c.Close()
	}
	info, err := os.ReadFile(program + ".info")
	if err != nil || !strings.Contains(string(info), `"server":"`+server.URL+`"`) || !strings.Contains(string(info), `"interactive":false`) {
		t.Errorf("the program was told %s, %v", info, err)
	}
}

// Where the secret of a kubeconfig's user is: in itself, or in files that it names relative to its own directory.
func TestSecretFiles(t *testing.T) {
	const at = `server: "https://1.2.3.4"`
	dir := t.TempDir()
	path := filepath.Join(dir, "kubeconfig")
	for user, want := range map[string][]string{
		`token: x`:    {path},
		`password: x`: {path},
		`client-certificate-data: eA==, client-key-data: eA==`: {path},
		`client-certificate: a.crt, client-key: a.key`:         {filepath.Join(dir, "a.key")},
		`tokenFile: /a`: {"/a"},
		`exec: {command: x, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never}`: nil,
	} {
		if err := os.WriteFile(path, []byte(config(at, user)), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := SecretFiles(path); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", user, got, err)
		}
	}
}

// When credentials end is in the certificate, or in the token, where that says it.
func TestEnds(t *testing.T) {
	dir := t.TempDir()
	path, token := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "token")
	// {"exp":1800000000}
	const jwt = "eyJhbGciOiJSUzI1NiJ9.eyJleHAiOjE4MDAwMDAwMDB9.c2ln"
	if err := os.WriteFile(token, []byte(jwt), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Unix(1_800_000_000, 0)}
	der, err := x509.CreateCertificate(rand.Reader, form, form, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	for user, ends := range map[string]bool{"token: " + jwt: true, "tokenFile: token": true, "client-certificate-data: " + cert: true, "token: opaque": false, "": false} {
		if err := os.WriteFile(path, []byte(config(`server: "https://1.2.3.4"`, user)), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := Ends(path); ends != (got.Unix() == 1_800_000_000) || !ends && !got.IsZero() {
			t.Errorf("%.30s: %v", user, got)
		}
	}
}
