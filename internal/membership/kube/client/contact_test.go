package client

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"edgemesh/internal/membership/kube/api"
)

// Answers, refusals and silence are counted, each news of a watch is a sign of life, and whoever gives up counts nothing.
func TestContact(t *testing.T) {
	news := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/good", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "{}") })
	mux.HandleFunc("/bad", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	mux.HandleFunc(api.MeshNodes().Path(""), func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-news
		fmt.Fprintln(w, `{"type": "ADDED", "object": {"metadata": {"name": "a", "uid": "1"}}}`)
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	first, err := newClient(&rest.Config{Host: server.URL}, 0, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := Brief(first) // a copy counts with its original
	if got := ContactOf(first); got != (Contact{Server: server.URL}) {
		t.Errorf("at first: %+v", got)
	}
	var out struct{}
	if err := c.Get(t.Context(), "/good", &out); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), "/bad", &out); err == nil {
		t.Fatal("403 is good")
	}
	watch, err := c.Watch(t.Context(), api.MeshNodes(), "1", 60, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	before := ContactOf(first)
	if before.Answered != 2 || before.Refused != 1 || before.Failed != 0 || time.Since(before.Last) > time.Hour {
		t.Errorf("%+v", before)
	}
	close(news)
	if _, err := watch.Next(); err != nil {
		t.Fatal(err)
	}
	if got := ContactOf(first); !got.Last.After(before.Last) || got.Answered != 2 {
		t.Errorf("after news: %+v, before %+v", got, before)
	}
	server.CloseClientConnections()
	server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, ctx := range []context.Context{t.Context(), ctx} {
		if err := c.Get(ctx, "/good", &out); err == nil {
			t.Fatal("a server that is gone answers")
		}
	}
	if got := ContactOf(first); got.Failed != 1 {
		t.Errorf("%+v, want one failure", got)
	}
}
