package relayservice

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	pbv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// Every series is there from the start, what happens is counted, and the linter of promtool is content.
func TestMetrics(t *testing.T) {
	m := NewMetrics(Limits{MaxReservations: 7, MaxCircuits: 9})
	reg := prometheus.NewRegistry()
	reg.MustRegister(m.Collectors()...)
	scrape := func() string {
		r := httptest.NewRecorder()
		promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return r.Body.String()
	}
	first := scrape()
	m.ConnectionOpened()
	m.ConnectionOpened()
	m.ConnectionClosed(time.Second)
	m.ReservationAllowed(false)
	m.ReservationAllowed(true)
	m.ConnectionRequestHandled(pbv2.Status_RESOURCE_LIMIT_EXCEEDED)
	m.ReservationRequestHandled(pbv2.Status_OK)
	m.BytesTransferred(5)
	m.Refuse(tooManyCircuits)
	later := scrape()
	for _, want := range []string{"edgemesh_relay_circuits 1", "edgemesh_relay_reservations 1", "edgemesh_relay_bytes_total 5",
		`edgemesh_relay_limit{of="circuits"} 9`, `edgemesh_relay_limit{of="reservations"} 7`, `edgemesh_relay_refused_total{reason="too_many_circuits"} 1`,
		`edgemesh_relay_requests_total{status="RESOURCE_LIMIT_EXCEEDED",type="connect"} 1`, `edgemesh_relay_requests_total{status="OK",type="reserve"} 1`} {
		if !strings.Contains(later, want+"\n") {
			t.Errorf("%s is missing:\n%s", want, later)
		}
	}
	if n, l := strings.Count(first, "\n"), strings.Count(later, "\n"); n != l {
		t.Errorf("%d lines at first, %d later: a series appeared", n, l)
	}
	if problems, err := promlint.New(strings.NewReader(later)).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %+v, %v", problems, err)
	}
}
