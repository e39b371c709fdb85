package client

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"edgemesh/internal/membership/kube/api"
)

// TestHas: one request says whether there is an object; what is absent, forbidden or broken is none.
func TestHas(t *testing.T) {
	for _, x := range []struct {
		status int
		body   string
		want   bool
	}{{200, `{"items":[{"metadata":{"name":"a"}}]}`, true}, {200, `{"items":[]}`, false}, {403, `{}`, false}, {404, `{}`, false}, {200, `<html>`, false}} {
		asked := ""
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked += r.URL.String()
			w.WriteHeader(x.status)
			_, _ = io.WriteString(w, x.body)
		}))
		c, err := New(Access{Server: s.URL}, "edgemesh-agent/test", nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Has(t.Context(), api.Kind{Name: "things", Group: "g.io", Version: "v1"}); got != x.want || asked != "/apis/g.io/v1/things?limit=1" {
			t.Errorf("%d %s: %t, asked %s", x.status, x.body, got, asked)
		}
		c.Close()
		s.Close()
	}
}
