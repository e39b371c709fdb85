package kube

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// serviceAccount is where a pod finds its token and the API's CA.
	serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"
	// apiServer is where the optional ConfigMap edgemesh-apiserver is mounted, with the
	// files host and port. An environment variable would not do: kubelet would have to ask
	// the API for it at every restart, and start no container while the API is unreachable.
	apiServer = "/etc/edgemesh-apiserver"
)

// environment is what access depends on besides the configuration.
type environment struct {
	getenv func(string) string
	dir    string // of the service account
}

func processEnvironment() environment {
	return environment{mounted(apiServer, os.Getenv), serviceAccount}
}

// mounted is getenv with the API server's address from the files in dir, if they exist.
func mounted(dir string, getenv func(string) string) func(string) string {
	files := map[string]string{"KUBERNETES_SERVICE_HOST": "host", "KUBERNETES_SERVICE_PORT": "port"}
	return func(key string) string {
		if name, ok := files[key]; ok {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if value := strings.TrimSpace(string(text)); err == nil && value != "" {
				return value
			}
		}
		return getenv(key)
	}
}

// access finds the API: by kubeconfig, by server, or as a pod does. A token is
// used if there is one, but not required: edge-local caches need none. The
// error wraps ErrConfig.
func (e environment) access(kubeconfig, server string) (*rest.Config, error) {
	c, err := e.find(kubeconfig, server)
	if err != nil {
		return nil, err
	}
	freshToken(c)
	// rest.Config drops bad hosts only when the first request is made.
	u, _, err := rest.DefaultServerUrlFor(c)
	if err != nil {
		return nil, fmt.Errorf("%w: server %q: %w", ErrConfig, c.Host, err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, fmt.Errorf("%w: server %q is not http(s)://HOST:PORT", ErrConfig, c.Host)
	}
	return c, nil
}

func (e environment) find(kubeconfig, server string) (*rest.Config, error) {
	if server != "" {
		if u, err := url.Parse(server); err != nil || u.Host == "" {
			return nil, fmt.Errorf("%w: server %q is not http(s)://HOST:PORT", ErrConfig, server)
		}
	}
	if kubeconfig != "" {
		c, err := clientcmd.BuildConfigFromFlags(server, kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("%w: kubeconfig %s: %w", ErrConfig, kubeconfig, err)
		}
		return c, nil
	}
	if server == "" {
		host, set := e.getenv("KUBERNETES_SERVICE_HOST"), e.getenv("KUBERNETES_SERVICE_PORT")
		if host == "" || set == "" {
			return nil, fmt.Errorf("%w: not in a pod (KUBERNETES_SERVICE_HOST is empty); "+
				"set membership.kubernetes.kubeconfig, or .server (KubeEdge's local API is http://127.0.0.1:10550)", ErrConfig)
		}
		server = "https://" + net.JoinHostPort(host, set)
	}
	c := &rest.Config{Host: server}
	if strings.HasPrefix(server, "https://") { // never a token in the clear
		if f := filepath.Join(e.dir, "token"); exists(f) {
			c.BearerTokenFile = f // re-read as it is rotated
		}
		if f := filepath.Join(e.dir, "ca.crt"); exists(f) {
			c.CAFile = f
		}
	}
	return c, nil
}

// freshToken reads the token from its file for every request: client-go keeps one for a
// minute even though the server refuses it.
func freshToken(c *rest.Config) {
	if c.BearerTokenFile == "" {
		return
	}
	path := c.BearerTokenFile
	c.BearerToken, c.BearerTokenFile = "", ""
	c.Wrap(func(rt http.RoundTripper) http.RoundTripper { return tokenFile{path, rt} })
}

// tokenFile adds the token in a file to requests.
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

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
