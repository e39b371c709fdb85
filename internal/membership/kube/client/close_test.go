package client

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"go.uber.org/goleak"
	"k8s.io/client-go/rest"
)

// Close ends a connection on which a stream is still open, as one is for a moment after its request has ended.
func TestCloseEndsAllConnections(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done() // the connection's end
	}))
	configureHTTP2(t, server)
	server.TLS = server.Config.TLSConfig
	server.StartTLS()
	defer server.Close()
	leaks := goleak.IgnoreCurrent()
	c, err := newClient(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, 0, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := c.do(t.Context(), http.MethodGet, "/x", nil, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	c.Close()
	if _, err := io.ReadAll(body); err == nil {
		t.Error("a request that was cut off ended well")
	}
	goleak.VerifyNone(t, leaks)
}
