package cnicalls

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"edgemesh/internal/cni/calls"
)

// Each call counts once, however often it is scraped; every series is there before.
func TestCollect(t *testing.T) {
	dir := t.TempDir()
	reg := prometheus.NewRegistry()
	reg.MustRegister(New(dir, slog.New(slog.DiscardHandler)))
	scrape := func() string {
		r := httptest.NewRecorder()
		promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return r.Body.String()
	}
	first := scrape()
	for _, c := range []calls.Call{{Verb: "ADD", Result: calls.OK, Took: 30 * time.Millisecond}, {Verb: "ADD", Result: calls.Full, Took: time.Second}} {
		if err := calls.Note(dir, c); err != nil {
			t.Fatal(err)
		}
	}
	scrape()
	later := scrape()
	for _, want := range []string{`edgemesh_cni_calls_total{result="ok",verb="ADD"} 1`, `edgemesh_cni_calls_total{result="full",verb="ADD"} 1`,
		`edgemesh_cni_calls_total{result="error",verb="DEL"} 0`, `edgemesh_cni_call_seconds_bucket{verb="ADD",le="0.05"} 1`, `edgemesh_cni_call_seconds_count{verb="ADD"} 2`} {
		if !strings.Contains(later, want+"\n") {
			t.Errorf("%s is missing:\n%s", want, later)
		}
	}
	if n, m := strings.Count(first, "\n"), strings.Count(later, "\n"); n != m {
		t.Errorf("%d lines at first, %d later: a series appeared", n, m)
	}
	if problems, err := promlint.New(strings.NewReader(later)).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %+v, %v", problems, err)
	}
}
