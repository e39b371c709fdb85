package kube

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
)

// TestHasOfACache: a cache on this node, as its address shows, is not asked for what nobody else of the node reads.
func TestHasOfACache(t *testing.T) {
	asked := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked = true
		_, _ = io.WriteString(w, `{"items":[{}]}`)
	}))
	defer server.Close()
	s, err := New(Config{Access: client.Access{Server: server.URL}, NodeName: "a", StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.c.Close()
	if s.Has(t.Context(), api.Nodes()) || asked {
		t.Errorf("asked: %t", asked)
	}
}
