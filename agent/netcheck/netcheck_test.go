package netcheck

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"edgemesh/agent/findings"
	"edgemesh/internal/keytest"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/proxy"
	"edgemesh/test/relaytest"
)

// relay starts one on loopback and returns its entry of a membership.
func relay(t *testing.T) mesh.Relay {
	t.Helper()
	return relayAt(t, "/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/tcp/0/ws", "/ip4/127.0.0.1/udp/0/quic-v1")
}

func relayAt(t *testing.T, listen ...string) mesh.Relay {
	t.Helper()
	key, _ := keytest.New(t)
	r, err := relaytest.Start(key, listen...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	out := mesh.Relay{PeerID: mesh.PeerID(r.ID().String())}
	for _, a := range r.Network().ListenAddresses() {
		out.Addrs = append(out.Addrs, a.String())
	}
	return out
}

// Two relays answer by every transport; the clock is this host's own.
func TestReached(t *testing.T) {
	r := Run(t.Context(), Config{Relays: []mesh.Relay{relay(t), relay(t)}})
	for _, x := range r.Relays {
		for name, a := range map[string]*Answer{"tcp": x.TCP, "udp": x.UDP, "websocket": x.WS} {
			if !a.Answered() || *a.RTTMs <= 0 || !strings.HasPrefix(a.Addr, "/ip4/127.0.0.1/") {
				t.Errorf("%s of %s: %+v", name, x.PeerID, a)
			}
		}
	}
	if !r.UDP || !r.Reached() || r.NAT.Kind != "none" || len(r.Mapped) != 2 {
		t.Errorf("report: %+v", r)
	}
	for _, m := range r.Mapped {
		if m.Seen.Port() != m.Local.Port() || m.Family != "ipv4" {
			t.Errorf("mapped: %+v", m)
		}
	}
	if r.Clock == nil || time.Duration(r.Clock.OffsetMs)*time.Millisecond > 2*time.Second || r.Clock.OffsetMs < -2000 {
		t.Errorf("clock: %+v", r.Clock)
	}
}

// Where that is wanted, whoever answers shows the key that the peer ID names, or does not count.
func TestProved(t *testing.T) {
	a, b := relayAt(t, "/ip4/127.0.0.1/tcp/0"), relayAt(t, "/ip4/127.0.0.1/tcp/0")
	b.Addrs = a.Addrs
	r := Run(t.Context(), Config{Relays: []mesh.Relay{a, b}, Prove: true})
	if x, y := r.Relays[0].TCP, r.Relays[1].TCP; !x.Answered() || y.Answered() || !strings.Contains(y.Error, string(a.PeerID)) {
		t.Errorf("%+v, at another's address %+v", x, y)
	}
	if p := r.Problems[0]; p.Severity != findings.Broken || !strings.Contains(p.Text, string(b.PeerID)) {
		t.Errorf("%+v", r.Problems)
	}
}

// A relay without WebSocket, which the membership does not promise either, is well.
func TestNoWebSocket(t *testing.T) {
	r := Run(t.Context(), Config{Relays: []mesh.Relay{relayAt(t, "/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1")}})
	if x := r.Relays[0]; !x.TCP.Answered() || x.WS != nil {
		t.Errorf("tcp %+v, websocket %+v", x.TCP, x.WS)
	}
}

// What is not a relay, is closed, or does not answer has its reason, and the report says what to do.
func TestNotReached(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	u, _ := url.Parse(web.URL)
	silent, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	_, udpPort, _ := net.SplitHostPort(silent.LocalAddr().String())
	r := Run(t.Context(), Config{Relays: []mesh.Relay{{PeerID: "x", Addrs: []string{
		"/ip4/127.0.0.1/tcp/" + u.Port(), "/ip4/127.0.0.1/tcp/" + u.Port() + "/ws", "/ip4/127.0.0.1/udp/" + udpPort + "/quic-v1", "/nonsense"}}}})
	x := r.Relays[0]
	if x.TCP.Answered() || x.UDP.Answered() || x.WS.Answered() || !strings.Contains(x.WS.Error, "404") || x.TCP.Error == "" || x.UDP.Error == "" {
		t.Errorf("tcp %+v, udp %+v, websocket %+v", x.TCP, x.UDP, x.WS)
	}
	if len(r.Problems) == 0 || r.Problems[0].Severity != findings.Broken || r.Problems[0].Remedy == "" {
		t.Errorf("problems: %+v", r.Problems)
	}
}

// Through a proxy TCP and WebSocket are measured; UDP takes its own way. A proxy that refuses is named.
func TestProxy(t *testing.T) {
	r := relay(t)
	for i, a := range r.Addrs { // no proxy is used for loopback addresses
		if !strings.Contains(a, "/udp/") {
			r.Addrs[i] = strings.Replace(a, "/ip4/127.0.0.1/", "/dns4/relay.test/", 1)
		}
	}
	refuse := false
	p := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if refuse {
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		there, err := net.Dial("tcp", strings.Replace(req.Host, "relay.test", "127.0.0.1", 1))
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		w.WriteHeader(http.StatusOK)
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		defer there.Close()
		go func() { _, _ = rw.WriteTo(there) }()
		_, _ = c.(*net.TCPConn).ReadFrom(there)
	}))
	defer p.Close()
	way, err := proxy.New(proxy.Config{URL: p.URL, Getenv: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	for _, refuse = range []bool{false, true} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		got := Run(ctx, Config{Relays: []mesh.Relay{r}, Proxy: way})
		cancel()
		x := got.Relays[0]
		if "http://"+got.Proxy != p.URL || x.TCP.Answered() == refuse || !x.UDP.Answered() {
			t.Errorf("refuse %v: proxy %s, tcp %+v, udp %+v", refuse, got.Proxy, x.TCP, x.UDP)
		}
		if refuse && !strings.Contains(x.TCP.Error, "407") {
			t.Errorf("refused: %+v", x.TCP)
		}
	}
}

func TestTargets(t *testing.T) {
	got := targets([]string{"/ip4/5.5.5.5/tcp/4470", "/dns6/relay.example/udp/4470/quic-v1", "/dns/relay.example/tcp/443/tls/ws", "/ip4/5.5.5.5", "x"})
	var said []string
	for _, x := range got {
		said = append(said, strings.Join([]string{string(x.kind), x.network(), x.address()}, " "))
	}
	want := "tcp tcp4 5.5.5.5:4470, udp udp6 relay.example:4470, websocket tcp relay.example:443, websocket tcp4 5.5.5.5:4470"
	if text := strings.Join(said, ", "); text != want || !got[2].tls {
		t.Errorf("%s, want %s", text, want)
	}
	if host, err := HostOf("/dns/relay.example/tcp/443/tls/ws"); host != "relay.example" || err != nil {
		t.Errorf("host %q, %v", host, err)
	}
	if _, err := HostOf("/ip4/5.5.5.5"); err == nil {
		t.Error("an address without a port is good")
	}
}

// Without a relay nothing is said about UDP and NAT, but that there was nobody to query.
func TestNoRelay(t *testing.T) {
	r := Run(t.Context(), Config{})
	if r.NAT.Kind != "unknown" || !strings.Contains(r.NAT.Detail, "not measured") || r.UDPTried() ||
		!findings.Has(r.Problems, findings.Broken) || !strings.Contains(r.Problems[0].Remedy, "--membership") {
		t.Errorf("%+v", r)
	}
	ms := 1.0
	tcpOnly := Report{Relays: []Relay{{TCP: &Answer{RTTMs: &ms}}}, Uplinks: []Uplink{{Name: "eth0", MTU: 1500}}}
	if p := problems(tcpOnly); len(p) != 1 || !strings.Contains(p[0].Text, "no UDP address of a relay is known") {
		t.Errorf("TCP alone: %+v", p)
	}
}

// What the report says is wrong.
func TestProblems(t *testing.T) {
	ms := 1.0
	well := Report{UDP: true, Relays: []Relay{{TCP: &Answer{RTTMs: &ms}, UDP: &Answer{RTTMs: &ms}}}, Uplinks: []Uplink{{Name: "eth0", MTU: 1500}},
		Clock: &Clock{OffsetMs: 1500}}
	if p := problems(well); len(p) != 0 {
		t.Errorf("a good one: %+v", p)
	}
	bad := well
	bad.UDP, bad.Uplinks, bad.Clock = false, []Uplink{{Name: "ppp0", MTU: 576}}, &Clock{OffsetMs: -3600_000}
	var checks []string
	for _, p := range problems(bad) {
		checks = append(checks, p.ID)
	}
	if text := strings.Join(checks, " "); text != "udp mtu clock" {
		t.Errorf("problems: %s", text)
	}
}
