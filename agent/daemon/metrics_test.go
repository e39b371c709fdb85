package daemon

import (
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/path/peers"
	"edgemesh/tunnel/p2p/relay/relayservice"
)

// What happens to paths is counted; every series is there from the start, with labels that need no quoting, and the linter
// of promtool is content.
func TestCounts(t *testing.T) {
	c := newCounts(&relayservice.Limits{MaxCircuits: 9})
	reg := prometheus.NewRegistry()
	reg.MustRegister(c.collectors()...)
	scrape := func() string {
		r := httptest.NewRecorder()
		promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return r.Body.String()
	}
	first := scrape()
	for _, want := range []string{`edgemesh_path_changes_total{lost="true",path="none"} 0`,
		`edgemesh_punch_attempts_total{here="random",result="failed",there="stable"} 0`, `edgemesh_probe_rtt_seconds_count{path="punched"} 0`, `edgemesh_queue_delay_seconds_count{path="relayed"} 0`,
		"edgemesh_relay_circuits 0", `edgemesh_relay_limit{of="circuits"} 9`} {
		if !strings.Contains(first, want) {
			t.Errorf("before anything happened, %s is missing:\n%s", want, first)
		}
	}
	c.probed(paths.KindPunched, 30*time.Millisecond)
	c.queued(paths.KindRelayed, 3*time.Millisecond)
	c.punched(ladder.NATRandom, ladder.NATStable, false)
	c.punched(ladder.NATStable, ladder.NATStable, true)
	c.changed(peers.Event{Kind: peers.PathLost, Path: paths.Path{Kind: paths.KindRelayed}})
	later := scrape()
	for _, want := range []string{`edgemesh_path_changes_total{lost="true",path="relayed"} 1`, `edgemesh_probe_rtt_seconds_bucket{path="punched",le="0.05"} 1`,
		`edgemesh_queue_delay_seconds_bucket{path="relayed",le="0.005"} 1`, `edgemesh_queue_delay_seconds_bucket{path="relayed",le="0.002"} 0`,
		`edgemesh_punch_attempts_total{here="random",result="failed",there="stable"} 1`, `edgemesh_punch_attempts_total{here="stable",result="direct",there="stable"} 1`} {
		if !strings.Contains(later, want) {
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

// Who stands by for nobody is not ready.
func TestStandingByForNobody(t *testing.T) {
	if err := answers(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("standing by for nobody: %v", err)
	}
}

// Metrics that are served at mesh addresses, too, end.
func TestMeshMetricsEnd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := metricsServer{listener: l, address: "mesh:" + strconv.Itoa(l.Addr().(*net.TCPAddr).Port), version: "1", log: slog.New(slog.DiscardHandler),
		healthy: func() error { return nil }, ready: func() error { return nil }}
	_, stop := m.start()
	stop()
	if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
		c.Close()
		t.Error("still served after its end")
	}
}
