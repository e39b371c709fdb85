package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"edgemesh/test/fair"
)

// TestMetricsInTheMesh: the relay takes the mesh address from the subnet file of the agent beside it, when that appears.
func TestMetricsInTheMesh(t *testing.T) {
	t.Parallel()
	e, err := serveHTTP("mesh:0", prometheus.NewRegistry(), func() error { return nil }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); e.followMesh(ctx, dir, slog.New(slog.DiscardHandler)) }()
	defer func() { cancel(); <-done }()
	answers := func(host string) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/healthz", net.JoinHostPort(host, fmt.Sprint(e.addr.(*net.TCPAddr).Port))), nil)
		if err != nil {
			return err
		}
		resp, err := (&http.Client{Timeout: time.Second}).Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	if err := answers("127.0.0.1"); err != nil {
		t.Error(err)
	}
	if answers("::1") == nil {
		t.Error("it answers on ::1 without an agent")
	}
	// The only other address that every host has stands for a mesh address.
	if err := os.WriteFile(filepath.Join(dir, "subnet.json"), []byte(`{"podCIDRs":["::/64"],"clusterCIDRs":[],"mtu":1500}`), 0o600); err != nil {
		t.Fatal(err)
	}
	fair.Eventually(t, 3*meshEvery, "it answers on the mesh address", func() error { return answers("::1") })
}
