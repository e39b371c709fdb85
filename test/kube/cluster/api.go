package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// API reads and writes objects as JSON, without discovery: cheap enough to query
// again and again.
type API struct {
	base   string
	client *http.Client
}

// StatusError is an answer of the API server that is not 2xx.
type StatusError struct {
	Code    int
	Message string
}

func (e *StatusError) Error() string { return fmt.Sprintf("%d: %s", e.Code, e.Message) }

// NewAPI is access with a kubeconfig.
func NewAPI(kubeconfig string) (*API, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	return newAPI(cfg)
}

func newAPI(cfg *rest.Config) (*API, error) {
	cfg.Timeout = 10 * time.Second
	h, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	return &API{base: strings.TrimSuffix(cfg.Host, "/"), client: h}, nil
}

// As is access to the same server with a bearer token.
func (a *API) As(kubeconfig, token string) (*API, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	anonymous := rest.AnonymousClientConfig(cfg)
	anonymous.BearerToken = token
	return newAPI(anonymous)
}

// AsNode is access as a node's kubelet, from this machine.
func (c *Cluster) AsNode(node string) (*API, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", c.Dir+"/pki/node-"+node+".conf")
	if err != nil {
		return nil, err
	}
	cfg.Host = c.api.base
	return newAPI(cfg)
}

// Do makes a request; in and out may be nil. An error of the server is a *StatusError.
func (a *API) Do(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		var status struct{ Message string }
		_ = json.Unmarshal(data, &status) // a proxy's answer is no Status
		return &StatusError{resp.StatusCode, status.Message}
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(data, out)
}

// Get reads an object or a list.
func (a *API) Get(ctx context.Context, path string, out any) error {
	return a.Do(ctx, http.MethodGet, path, nil, out)
}
