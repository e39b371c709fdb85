package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"

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

// A request without an answer ends a connection that brought nothing: HTTP/2 would send the next one over it, too. One that brings
// something stays, for watches use it.
func TestTimeoutEndsDeadConnection(t *testing.T) {
	for _, dead := range []bool{true, false} {
		var first atomic.Pointer[string]
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			first.CompareAndSwap(nil, &r.RemoteAddr)
			hangs := r.URL.Path == "/hangs" && r.RemoteAddr == *first.Load()
			for hangs && r.Context().Err() == nil {
				time.Sleep(20 * time.Millisecond) // sleep: hints come one after the other
				if !dead {
					w.WriteHeader(http.StatusEarlyHints)
				}
			}
			_, _ = fmt.Fprintf(w, `{"from": %q}`, r.RemoteAddr)
		}))
		configureHTTP2(t, server)
		server.TLS = server.Config.TLSConfig
		server.StartTLS()
		defer server.Close()
		c, err := newClient(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, 0, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var before, after struct{ From string }
		if err := c.Get(t.Context(), "/x", &before); err != nil {
			t.Fatal(err)
		}
		time.Sleep(400 * time.Millisecond) // sleep: what follows the answer comes
		// What follows an answer may come in a later request's time on a busy machine, which then proves the connection.
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if err := c.Get(ctx, "/hangs", &after); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			if err := c.Get(t.Context(), "/x", &after); err != nil {
				t.Fatal(err)
			}
			if before.From != after.From {
				break
			}
			time.Sleep(400 * time.Millisecond) // sleep: what follows the answer comes
		}
		if (before.From != after.From) != dead {
			t.Errorf("dead %v: from %s, then from %s", dead, before.From, after.From)
		}
	}
}

// Pings follow client-go's variable, and what the agent runs does not inherit it.
func TestPingsAreNotInherited(t *testing.T) {
	const pings = "HTTP2_READ_IDLE_TIMEOUT_SECONDS"
	if err := os.Unsetenv(pings); err != nil {
		t.Fatal(err)
	}
	c, err := newClient(&rest.Config{Host: "https://192.0.2.1"}, 0, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if v, ok := os.LookupEnv(pings); ok {
		t.Errorf("%s=%s remains", pings, v)
	}
}
