package endpoint

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// A process that hangs, or does not serve, says so with 503 and why.
func TestHandler(t *testing.T) {
	var hangs, unready error
	h := Handler(Registry("v1.2.3"), func() error { return hangs }, func(context.Context) error { return unready })
	is := func(path string, code int, text string) {
		t.Helper()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != code || !strings.Contains(w.Body.String(), text) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	is("/metrics", http.StatusOK, `version="v1.2.3"} 1`)
	is("/metrics", http.StatusOK, `edgemesh_build_info{goversion="go1.`)
	is("/healthz", http.StatusOK, "ok")
	is("/readyz", http.StatusOK, "ok")
	hangs, unready = errors.New("membership hangs"), errors.New("the pool is full")
	is("/healthz", http.StatusServiceUnavailable, "membership hangs")
	is("/readyz", http.StatusServiceUnavailable, "not ready: the pool is full")
	h = Handler(nil, func() error { return nil }, func(context.Context) error { return nil })
	is("/metrics", http.StatusNotFound, "")
}

// Whoever reaches the port cannot use up files and memory by requests without an end, nor keep others from an answer.
func TestConnectionsAreBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	fine := func(context.Context) error { return nil }
	defer Serve(l, Handler(nil, func() error { return nil }, fine), slog.New(slog.DiscardHandler))()
	served, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer served.Close()
	attacker := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	var all []net.Conn
	for range 4 * mostOpen {
		c, err := attacker.Dial("tcp", l.Addr().String())
		if err == nil {
			_, err = io.WriteString(c, "GET /healthz HTTP/1.1\r\nX: ")
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		all = append(all, c)
	}
	answer, err := http.Get("http://" + l.Addr().String() + "/healthz")
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", answer, err)
	}
	defer answer.Body.Close()
	_, err = io.WriteString(served, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	if text, failed := io.ReadAll(served); err != nil || failed != nil || !strings.Contains(string(text), "200 OK") {
		t.Errorf("an older connection of another address: %q, %v, %v", text, err, failed)
	}
	for _, c := range all[:3*mostOpen] { // the server closes these, long before a request's time is up
		_ = c.SetReadDeadline(time.Now().Add(headerTimeout / 2))
		if _, err := c.Read(make([]byte, 1)); err == nil || isTimeout(err) {
			t.Fatalf("a connection is still open: %v", err)
		}
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
