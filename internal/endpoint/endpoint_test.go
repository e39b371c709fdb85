package endpoint

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
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
