// Package client speaks to the API of a Kubernetes cluster in plain JSON. Kubeconfigs, TLS, credentials and their rotation
// are client-go's; the requests are few enough to be written out, see ../DESIGN.md.
//
//	access.go      finds the API: by kubeconfig, by server, or as a pod does
//	kubeconfig.go  checks kubeconfigs
//	transport.go   connections, proxies, the token's file
//	owner.go       whose program accepts connections without TLS
//	client.go      requests and their answers
//	decode.go      lists and watches, item by item
//	contact.go     how many requests were answered, and when the last one was
//	explain.go     what an error means, and what to do
//	version.go     which versions of Kubernetes are too old
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/resolve"
	"edgemesh/internal/upkeep"
	"edgemesh/internal/wording"
)

const (
	contentJSON = "application/json"
	maxObject   = 8 << 20 // bytes of one object; etcd holds 1.5 MiB

	// Merge and Strategic are how a patch is written; the second one is for core kinds only.
	Merge     = "application/merge-patch+json" // RFC 7386
	Strategic = "application/strategic-merge-patch+json"
)

// Client sends requests to one API.
type Client struct {
	base  *url.URL
	http  *http.Client
	brief bool // answers change all the time: caches need not keep them
	met   *contact
	end   func()        // closes all connections
	heard *atomic.Int64 // when one of them brought something, in Unix nanoseconds
}

// Brief is c for what an edge-local cache need not keep, because it changes all the time.
func Brief(c *Client) *Client {
	out := *c
	out.brief = true
	return &out
}

// Access says where the API is: in the pod's cluster if both paths to it are "".
type Access struct {
	Kubeconfig, Server string
	LocalUID           int            // the user who may serve it on this host without TLS, besides root
	Names              *resolve.Names // nil: package net's, with search lists
	Upkeep             *upkeep.Budget // counts the connections; nil: nobody asks
}

// New returns a client of the API, without using it. The error wraps ErrConfig.
// proxy chooses the HTTP proxy of a request; nil: as HTTPS_PROXY and NO_PROXY say.
func New(a Access, userAgent string, proxy func(*http.Request) (*url.URL, error)) (*Client, error) {
	return processEnvironment().client(a, userAgent, proxy)
}

func (e environment) client(a Access, userAgent string, proxy func(*http.Request) (*url.URL, error)) (*Client, error) {
	var out *Client
	c, err := e.access(a.Kubeconfig, a.Server)
	if err == nil {
		if c.Proxy == nil { // a kubeconfig's goes first
			c.Proxy = proxy
		}
		c.UserAgent = userAgent
		out, err = newClient(c, a.LocalUID, a.Names, a.Upkeep)
	}
	switch {
	case err != nil && a.Kubeconfig != "":
		return nil, fmt.Errorf("%w: kubeconfig %s: %w", ErrConfig, a.Kubeconfig, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return out, nil
}

func newClient(c *rest.Config, localUID int, names *resolve.Names, b *upkeep.Budget) (*Client, error) {
	u, err := base(c)
	if err != nil {
		return nil, err
	}
	heard := new(atomic.Int64)
	hc, dialer, err := connect(c, u.Scheme == "http", localUID, names, b, heard)
	if err != nil {
		return nil, err
	}
	return &Client{base: u, http: hc, met: &contact{}, end: dialer.CloseAll, heard: heard}, nil
}

// Close ends all connections, and so requests that still run. To end idle ones is not enough: HTTP/2 forgets a stream some
// time after its request has ended, and until then its connection is not idle.
func (c *Client) Close() {
	utilnet.CloseIdleConnectionsFor(c.http.Transport)
	c.end()
}

// URL is where the API is.
func (c *Client) URL() string { return c.base.String() }

// Plain says that the API is reached without TLS: an edge-local cache.
func (c *Client) Plain() bool { return c.base.Scheme == "http" }

// Cache says that the API is a cache on this node, as far as its address shows.
func (c *Client) Cache() bool {
	return c.Plain() || c.ListNodes() || strings.HasPrefix(c.base.Hostname(), "169.254.")
}

// ListNodes says that Nodes are to be listed again and again in place of being watched. Through MetaServer a watch of Nodes
// cuts edges off: cloudcore sends a Node that was deleted while an edge was offline as a deletion of that edge itself, at
// every reconnection (IsNodeStopped in KubeEdge v1.20), with requireAuthorization, by https, as without. YurtHub passes
// watches on to the API server.
func (c *Client) ListNodes() bool {
	return c.Plain() && c.base.Port() != yurtHubPort || IsMetaServer(c.base)
}

// IsMetaServer says that u is where KubeEdge's MetaServer listens on its node, by http or https.
func IsMetaServer(u *url.URL) bool {
	return local(u) && u.Port() == metaServerPort || u.Hostname() == metaServerIP
}

// Local says that the API is on this host.
func (c *Client) Local() bool { return local(c.base) }

func local(u *url.URL) bool {
	host := u.Hostname()
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// do sends one request and returns the body of a good answer. Any other answer
// is a *apierrors.StatusError.
func (c *Client) do(ctx context.Context, method, path string, query url.Values, contentType string, body any) (io.ReadCloser, error) {
	u := *c.base
	u.Path = strings.TrimSuffix(u.Path, "/") + path
	u.RawQuery = query.Encode()
	var in io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode %s %s: %w", method, path, err)
		}
		in = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), in)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	req.Header.Set("Accept", contentJSON)
	if !c.brief {
		req.Header.Set("Edge-Cache", "true") // YurtHub then keeps the answers
	}
	if body != nil {
		req.Header.Set("Content-Type", contentType)
	}
	began := time.Now()
	resp, err := c.http.Do(req)
	if err != nil {
		c.met.failed(ctx)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) && c.heard.Load() < began.UnixNano() {
			c.end() // HTTP/2 would send the next one over the same dead connection
		}
		return nil, err // says method and URL
	}
	c.met.answered(resp.StatusCode)
	if resp.StatusCode/100 == 2 {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	return nil, statusError(method, path, resp)
}

// statusError turns a refusal into the API's error type.
func statusError(method, path string, resp *http.Response) error {
	data, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	var st metav1.Status
	if err != nil || json.Unmarshal(data, &st) != nil || st.Kind != "Status" || st.Code == 0 {
		text := wording.Foreign(string(data), 200)
		retry, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		return fmt.Errorf("%s %s: %w", method, path,
			apierrors.NewGenericServerResponse(resp.StatusCode, method, schema.GroupResource{}, "", text, retry, true))
	}
	abandoned := strings.Contains(st.Message, `failed calling webhook "`) && strings.Contains(st.Message, "."+api.Group+`"`)
	st.Message = wording.Foreign(st.Message, 1<<10)
	if abandoned {
		st.Message += ": nothing serves this webhook of an unreleased version any longer: kubectl delete validatingwebhookconfiguration edgemesh"
	}
	return fmt.Errorf("%s %s: %w", method, path, &apierrors.StatusError{ErrStatus: st})
}

// object sends a request whose answer is one object, and decodes it into out.
func (c *Client) object(ctx context.Context, method, path string, query url.Values, contentType string, body, out any) error {
	r, err := c.do(ctx, method, path, query, contentType, body)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := json.NewDecoder(io.LimitReader(r, maxObject)).Decode(out); err != nil {
		return fmt.Errorf("%s %s: decode the answer: %w", method, path, err)
	}
	return nil
}

// Get reads the object at path into out.
func (c *Client) Get(ctx context.Context, path string, out any) error {
	return c.object(ctx, http.MethodGet, path, nil, "", nil, out)
}

// Create makes in, and reads it as it was stored into out.
func (c *Client) Create(ctx context.Context, path string, in, out any) error {
	return c.object(ctx, http.MethodPost, path, nil, contentJSON, in, out)
}

// Patch changes the object at path, and reads the new one into out.
func (c *Client) Patch(ctx context.Context, path, contentType string, query url.Values, in, out any) error {
	return c.object(ctx, http.MethodPatch, path, query, contentType, in, out)
}

// Remove deletes exactly the object with that UID.
func (c *Client) Remove(ctx context.Context, path, uid string) error {
	body := map[string]any{
		"kind": "DeleteOptions", "apiVersion": "v1",
		"preconditions": map[string]string{"uid": uid},
	}
	var ignored json.RawMessage
	return c.object(ctx, http.MethodDelete, path, nil, contentJSON, body, &ignored)
}

// List reads a collection, whole and unpaged, item by item: the memory it takes is that of
// the objects as trim, if there is one, leaves them. It returns them with the list's resource version; a list
// that is cut short is an error.
func (c *Client) List(ctx context.Context, k api.Kind, trim func(api.Object)) ([]api.Object, string, error) {
	r, err := c.do(ctx, http.MethodGet, k.Path(""), selectors(k), "", nil)
	if err != nil {
		return nil, "", err
	}
	defer r.Close()
	items, rv, err := decodeList(r, k, trim)
	if err != nil {
		return nil, "", fmt.Errorf("list %s: %w", k.Name, err)
	}
	return items, rv, nil
}

// Has reports whether the API has said that there are objects of a kind: it lacks the kind, forbids to read it or does not answer otherwise.
func (c *Client) Has(ctx context.Context, k api.Kind) bool {
	var list struct{ Items []struct{} }
	return c.object(ctx, http.MethodGet, k.Path(""), url.Values{"limit": {"1"}}, "", nil, &list) == nil && len(list.Items) > 0
}

// Watch streams the changes after resource version rv; the server ends it after
// timeout seconds.
func (c *Client) Watch(ctx context.Context, k api.Kind, rv string, timeout int, trim func(api.Object)) (*Stream, error) {
	q := selectors(k)
	q.Set("watch", "true")
	q.Set("resourceVersion", rv)
	q.Set("timeoutSeconds", strconv.Itoa(timeout))
	body, err := c.do(ctx, http.MethodGet, k.Path(""), q, "", nil)
	if err != nil {
		return nil, err
	}
	return &Stream{body, json.NewDecoder(body), k, trim, c.met}, nil
}

// selectors are k's, as a query.
func selectors(k api.Kind) url.Values {
	q := url.Values{}
	if k.Selector != "" {
		q.Set("labelSelector", k.Selector)
	}
	if k.Fields != "" {
		q.Set("fieldSelector", k.Fields)
	}
	return q
}
