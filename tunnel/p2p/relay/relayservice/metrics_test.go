package relayservice

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
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

// memberBytes are the series of bytes by member.
func memberBytes(t *testing.T, m *Metrics) string {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m.Collectors()...)
	r := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	var out strings.Builder
	for line := range strings.Lines(r.Body.String()) {
		if s, is := strings.CutPrefix(line, "edgemesh_relay_member_bytes_total"); is {
			out.WriteString(s)
		}
	}
	return out.String()
}

// Bytes are counted by member and kind, of those alone that have sent some and are members.
func TestMemberBytes(t *testing.T) {
	m := NewMetrics(Limits{})
	members := map[peer.ID]string{"a": "edge-1", "b": "edge-2", "c": "edge-2"} // edge-2 was replaced
	m.carried.follow(func(p peer.ID) bool { return members[p] != "" }, func(p peer.ID) string { return members[p] })
	s := newShares(0, m)
	a := s.join("a")
	a.received(100)
	a.Sent(7)
	s.join("b").received(20)
	s.join("c").received(3)
	s.join("stranger").received(1)
	want := `{kind="circuit",node="edge-1"} 100` + "\n" + `{kind="circuit",node="edge-2"} 23` + "\n" + `{kind="forwarded",node="edge-1"} 7` + "\n"
	if got := memberBytes(t, m); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	a.Leave()
	s.join("a").received(1)
	if got := memberBytes(t, m); !strings.Contains(got, `{kind="circuit",node="edge-1"} 101`) {
		t.Errorf("a member that came again: %s", got)
	}
	delete(members, "a")
	if got := memberBytes(t, m); strings.Contains(got, "edge-1") {
		t.Errorf("a former member: %s", got)
	}
	if n := len(m.carried.by); n != 2 {
		t.Errorf("%d are remembered", n)
	}
}

// Who is not a member is forgotten although nobody reads the metrics.
func TestMemberBytesAreBounded(t *testing.T) {
	m := NewMetrics(Limits{})
	m.carried.follow(func(p peer.ID) bool { return len(p) == 1 }, peer.ID.String)
	for i := range 10 * fewCarried {
		m.carried.of(peer.ID(fmt.Sprint("stranger ", i)))
		m.carried.tidy()
	}
	if n := len(m.carried.by); n > fewCarried {
		t.Errorf("%d are remembered", n)
	}
}
