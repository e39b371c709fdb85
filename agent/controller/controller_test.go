package controller

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/kube/kubetest"
	"edgemesh/test/fair"
)

// What the operator has to fix is named by its flag.
func TestRunRefuses(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // restored at the end
	os.Unsetenv("KUBERNETES_SERVICE_HOST")  // empty it would mean an edge of KubeEdge
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, x := range map[string]struct {
		cfg  Config
		is   error
		says string
	}{
		"no namespace":  {Config{Server: "http://127.0.0.1:1"}, ErrConfig, "--namespace: "},
		"no access":     {Config{Namespace: "n"}, client.ErrConfig, "--kubeconfig, --server: "},
		"no kubeconfig": {Config{Namespace: "n", Kubeconfig: "/nonexistent"}, client.ErrConfig, "/nonexistent"},
		"a port in use": {Config{Namespace: "n", Server: "http://127.0.0.1:1", MetricsAddress: taken.Addr().String()}, ErrConfig, "--metrics-address: "},
	} {
		t.Run(name, func(t *testing.T) {
			x.cfg.Log = slog.New(slog.DiscardHandler)
			ctx, cancel := fair.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := Run(ctx, x.cfg); !errors.Is(err, x.is) || !strings.Contains(err.Error(), x.says) {
				t.Errorf("error %v, want %v that says %q", err, x.is, x.says)
			}
		})
	}
}

// The controller is alive without the API, and ready once that answers it.
func TestReady(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	open := make(chan struct{})
	answers := kubetest.Answers{} // every object is 404, and nothing can be created
	server := kubetest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-open:
			answers.ServeHTTP(w, r)
		default:
			http.Error(w, "starting", http.StatusServiceUnavailable)
		}
	}))
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Config{Namespace: "n", Server: server, Identity: "a", MetricsAddress: address, Log: slog.New(slog.DiscardHandler)})
	}()
	code := func(page string) int {
		resp, err := http.Get("http://" + address + page)
		if err != nil {
			return 0
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	is := func(page string, want int) {
		t.Helper()
		fair.Eventually(t, time.Minute, page, fair.True(func() bool { return code(page) == want }))
	}
	is("/healthz", http.StatusOK)
	is("/metrics", http.StatusOK)
	metrics := func() string {
		t.Helper()
		resp, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if !strings.Contains(metrics(), `edgemesh_build_info{goversion="go`) {
		t.Error("metrics without build_info")
	}
	is("/readyz", http.StatusServiceUnavailable)
	close(open)
	is("/readyz", http.StatusOK)
	if bytes := regexp.MustCompile(`edgemesh_upkeep_bytes_total\{direction="rx",purpose="api"\} [1-9]`); !bytes.MatchString(metrics()) {
		t.Error("what the API has sent is not counted")
	}
	end()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
