package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"edgemesh/agent/kube/api"
)

const (
	contentJSON      = "application/json"
	contentMerge     = "application/merge-patch+json"           // RFC 7386
	contentStrategic = "application/strategic-merge-patch+json" // core kinds only
	maxObject        = 8 << 20                                  // bytes of one object; etcd holds 1.5 MiB
)

// client speaks to the API in plain JSON: credentials, TLS and their rotation are
// client-go's, the requests are few enough to be written out. See DESIGN.md.
type client struct {
	base  *url.URL
	http  *http.Client
	agent string // User-Agent
}

func newClient(c *rest.Config, userAgent string) (*client, error) {
	h, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	base, _, err := rest.DefaultServerUrlFor(c)
	if err != nil {
		return nil, fmt.Errorf("%w: server %q: %w", ErrConfig, c.Host, err)
	}
	return &client{base: base, http: h, agent: userAgent}, nil
}

// close ends idle connections; those in use end with their context.
func (c *client) close() { utilnet.CloseIdleConnectionsFor(c.http.Transport) }

// plain says that the API is reached without TLS: an edge-local cache.
func (c *client) plain() bool { return c.base.Scheme == "http" }

// loopback says whether a host of a URL is this one.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// do sends one request and returns the body of a good answer. Any other answer
// is a *apierrors.StatusError.
func (c *client) do(ctx context.Context, method, path string, query url.Values, contentType string, body any) (io.ReadCloser, error) {
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
	req.Header.Set("User-Agent", c.agent)
	req.Header.Set("Edge-Cache", "true") // asks YurtHub to keep the answers
	if body != nil {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err // says method and URL
	}
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
		text := strings.TrimSpace(string(data[:min(len(data), 200)]))
		retry, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		return fmt.Errorf("%s %s: %w", method, path,
			apierrors.NewGenericServerResponse(resp.StatusCode, method, schema.GroupResource{}, "", text, retry, true))
	}
	return fmt.Errorf("%s %s: %w", method, path, &apierrors.StatusError{ErrStatus: st})
}

// object sends a request whose answer is one object, and decodes it into out.
func (c *client) object(ctx context.Context, method, path string, query url.Values, contentType string, body, out any) error {
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

func (c *client) get(ctx context.Context, path string, out any) error {
	return c.object(ctx, http.MethodGet, path, nil, "", nil, out)
}

func (c *client) create(ctx context.Context, path string, in, out any) error {
	return c.object(ctx, http.MethodPost, path, nil, contentJSON, in, out)
}

func (c *client) patch(ctx context.Context, path, contentType string, query url.Values, in, out any) error {
	return c.object(ctx, http.MethodPatch, path, query, contentType, in, out)
}

// remove deletes exactly the object with that UID.
func (c *client) remove(ctx context.Context, path, uid string) error {
	body := map[string]any{
		"kind": "DeleteOptions", "apiVersion": "v1",
		"preconditions": map[string]string{"uid": uid},
	}
	var ignored json.RawMessage
	return c.object(ctx, http.MethodDelete, path, nil, contentJSON, body, &ignored)
}

// list reads a collection, whole and unpaged, item by item: the memory it takes
// is that of the trimmed objects. It returns them with the list's resource
// version; a list that is cut short is an error.
func (c *client) list(ctx context.Context, k api.Kind) ([]api.Object, string, error) {
	r, err := c.do(ctx, http.MethodGet, k.Path(""), nil, "", nil)
	if err != nil {
		return nil, "", err
	}
	defer r.Close()
	items, rv, err := decodeList(r, k)
	if err != nil {
		return nil, "", fmt.Errorf("list %s: %w", k.Name, err)
	}
	return items, rv, nil
}

// watch streams the changes after resource version rv; the server ends it after
// timeout seconds.
func (c *client) watch(ctx context.Context, k api.Kind, rv string, timeout int) (io.ReadCloser, error) {
	q := url.Values{
		"watch":               {"true"},
		"allowWatchBookmarks": {"true"},
		"resourceVersion":     {rv},
		"timeoutSeconds":      {strconv.Itoa(timeout)},
	}
	return c.do(ctx, http.MethodGet, k.Path(""), q, "", nil)
}
