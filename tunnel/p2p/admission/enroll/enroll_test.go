package enroll

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	relayv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/keytest"
	"edgemesh/internal/proxy"
	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/admission/gate"
	"edgemesh/tunnel/p2p/admission/transcript"
	"edgemesh/tunnel/p2p/base/mux"
	"edgemesh/tunnel/p2p/who/identity"
)

// scene is a relay, and a controller that stays there.
type scene struct {
	via      Via
	platform authority
	requests chan Edge
	outcomes chan error
}

func newScene(t *testing.T) *scene {
	t.Helper()
	key, self := keytest.New(t)
	relay, err := libp2p.New(libp2p.Identity(key), libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1", "/ip4/127.0.0.1/tcp/0/ws"),
		libp2p.Security(libp2ptls.ID, identity.NewTLS), libp2p.Muxer(mux.ID, identity.RelayMuxer()),
		libp2p.ForceReachabilityPublic(), libp2p.EnableRelayService(relayv2.WithResources(relayv2.DefaultResources())), libp2p.DisableMetrics())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { relay.Close() })
	s := &scene{platform: newAuthority(t), requests: make(chan Edge, 16), outcomes: make(chan error, 16)}
	s.via.Relays = []peer.AddrInfo{{ID: self, Addrs: relay.Addrs()}}
	roots := func(context.Context) (*x509.CertPool, error) { return s.platform.pool(), nil }
	write := func(_ context.Context, e Edge, r Request) Answer {
		s.requests <- e
		return Answer{Code: http.StatusCreated, Body: r.Body}
	}
	log := slog.New(slog.DiscardHandler)
	ckey, cself := keytest.New(t)
	s.via.Controllers = []peer.ID{cself}
	c, err := NewController(ckey, NewServer(roots, write, func(err error) { s.outcomes <- err }, log), nil, log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.Background())
	done, held := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		first := true
		c.Run(ctx, func() []peer.AddrInfo { return s.via.Relays }, func(at []peer.ID) {
			if len(at) == 1 && first {
				first = false
				close(held)
			}
		})
	}()
	t.Cleanup(func() { end(); <-done; c.Close() })
	soon, cancel := fair.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case <-held:
	case <-soon.Done():
		t.Fatal("no reservation")
	}
	return s
}

// An edge sends requests over a relay; the controller learns its name and its peer ID, and the edge the controller's answer.
func TestDo(t *testing.T) {
	s := newScene(t)
	key, self := keytest.New(t)
	cert := s.platform.issue(t, subject("edge-1"), newKey(t), nil)
	r := Request{Method: http.MethodPost, Path: "/x", Body: json.RawMessage(`{"a":1}`)}
	for range 2 { // as often as it wants
		a, err := Do(t.Context(), key, cert, s.via, r)
		if err != nil || a.Code != http.StatusCreated || string(a.Body) != `{"a":1}` {
			t.Fatalf("%+v, %v", a, err)
		}
		if e := <-s.requests; e != (Edge{"edge-1", self}) {
			t.Errorf("request of %v", e)
		}
		if err := <-s.outcomes; err != nil {
			t.Error(err)
		}
	}
}

// Without a certificate of the platform nothing is written, and the edge learns why.
func TestForeignCertificate(t *testing.T) {
	s := newScene(t)
	key, _ := keytest.New(t)
	a, err := Do(t.Context(), key, newAuthority(t).issue(t, subject("edge-1"), newKey(t), nil), s.via, Request{Method: http.MethodPost})
	if err != nil || a.Code != http.StatusUnauthorized {
		t.Errorf("%+v, %v", a, err)
	}
	if err := <-s.outcomes; !errors.Is(err, ErrRefused) || len(s.requests) > 0 {
		t.Errorf("outcome %v, %d writes", err, len(s.requests))
	}
}

// What one edge sent once is worth nothing on another connection, of itself or of another.
func TestReplay(t *testing.T) {
	s := newScene(t)
	key, self := keytest.New(t)
	cert := s.platform.issue(t, subject("edge-1"), newKey(t), nil)
	if _, err := Do(t.Context(), key, cert, s.via, Request{Method: http.MethodPost}); err != nil {
		t.Fatal(err)
	}
	<-s.requests
	<-s.outcomes
	// The message of another session, with everything else right but the challenge.
	x := transcript.Transcript{Protocol: identity.EnrollProtocol, Verifier: s.via.Controllers[0], Prover: self}
	m, err := sign(x, []byte(`{"method":"POST"}`), cert)
	if err != nil {
		t.Fatal(err)
	}
	old, err := m.marshal()
	if err != nil {
		t.Fatal(err)
	}
	h := stranger(t, key)
	str := dial(t, h, s.via)
	if err := x.ReadChallenge(str); err != nil {
		t.Fatal(err)
	}
	if _, err := str.Write(old); err != nil {
		t.Fatal(err)
	}
	if err := <-s.outcomes; !errors.Is(err, ErrRefused) || len(s.requests) > 0 {
		t.Errorf("outcome %v, %d writes", err, len(s.requests))
	}
}

// A request that its edge ends is no refusal.
func TestEndedRequest(t *testing.T) {
	s := newScene(t)
	key, self := keytest.New(t)
	str := dial(t, stranger(t, key), s.via)
	x := transcript.Transcript{Protocol: identity.EnrollProtocol, Verifier: s.via.Controllers[0], Prover: self}
	if err := x.ReadChallenge(str); err != nil {
		t.Fatal(err)
	}
	if err := str.Reset(); err != nil {
		t.Fatal(err)
	}
	if _, err := Do(t.Context(), key, s.platform.issue(t, subject("edge-1"), newKey(t), nil), s.via, Request{Method: http.MethodPost}); err != nil {
		t.Fatal(err)
	}
	if err := <-s.outcomes; err != nil {
		t.Errorf("the one that was ended counts as refused: %v", err)
	}
}

// stranger makes an edge's host.
func stranger(t *testing.T, key crypto.PrivKey) host.Host {
	t.Helper()
	h, err := Via{}.host(key)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// Five peers that nobody knows open a thousand streams each to the controller and send nothing, or announce a long request: an
// edge still has its own written. The control is that each of them gets its challenge first.
func TestStrangersLeaveStreamsToEdges(t *testing.T) {
	s := newScene(t)
	for range 5 {
		key, _ := keytest.New(t)
		first := dial(t, stranger(t, key), s.via)
		if _, err := io.ReadFull(first, make([]byte, transcript.ChallengeLen)); err != nil {
			t.Fatal("the control: ", err)
		}
		if _, err := first.Write([]byte{0x7f, 0xff}); err != nil {
			t.Fatal(err)
		}
		for range 1000 {
			if _, err := first.Conn().NewStream(network.WithAllowLimitedConn(t.Context(), "test")); err != nil {
				break // its own share
			}
		}
	}
	key, _ := keytest.New(t)
	a, err := Do(t.Context(), key, s.platform.issue(t, subject("edge-1"), newKey(t), nil), s.via, Request{Method: http.MethodPost})
	if err != nil || a.Code != http.StatusCreated {
		t.Errorf("an edge beside them: %+v, %v", a, err)
	}
}

// A relay that the membership no longer lists is a stranger again to a controller.
func TestFormerRelayIsForgotten(t *testing.T) {
	key, _ := keytest.New(t)
	c, err := NewController(key, nil, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, id := keytest.New(t)
	former := peer.AddrInfo{ID: id, Addrs: []ma.Multiaddr{ma.StringCast("/ip4/127.0.0.1/tcp/1")}}
	for _, listed := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		c.Run(ctx, func() []peer.AddrInfo {
			if listed {
				return []peer.AddrInfo{former}
			}
			return nil
		}, func([]peer.ID) { cancel() })
		if _, ok := c.known.Load(id); ok != listed {
			t.Errorf("listed %t, known %t", listed, ok)
		}
	}
}

// All circuits that a relay gives to strangers may be silent at the same time, and one more has its handshake.
func TestSilentCircuits(t *testing.T) {
	g, err := newGate(func(peer.ID) bool { return false }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	_, relay := keytest.New(t)
	for i := range gate.ControllerSlots + 1 {
		if _, err := g.OpenConnection(network.DirInbound, false, ma.StringCast("/ip4/5.5.5.5/tcp/4470/p2p/"+relay.String()+"/p2p-circuit")); err != nil {
			t.Fatalf("circuit %d: %v", i, err)
		}
	}
}

// dial opens a stream to the controller over the relay.
func dial(t *testing.T, h host.Host, via Via) network.Stream {
	t.Helper()
	ctx, cancel := fair.WithTimeout(network.WithAllowLimitedConn(t.Context(), "test"), time.Minute)
	defer cancel()
	if err := h.Connect(ctx, via.Relays[0]); err != nil {
		t.Fatal(err)
	}
	circuit := ma.StringCast("/p2p/" + via.Relays[0].ID.String() + "/p2p-circuit")
	if err := h.Connect(ctx, peer.AddrInfo{ID: via.Controllers[0], Addrs: []ma.Multiaddr{circuit}}); err != nil {
		t.Fatal(err)
	}
	s, err := h.NewStream(ctx, via.Controllers[0], identity.EnrollProtocol)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// tunneling is an HTTP proxy on loopback that leads to 127.0.0.1 whatever the name. It counts tunnels with the
// credentials u:p.
func tunneling(t *testing.T) (*proxy.Egress, *atomic.Int64) {
	t.Helper()
	var tunnels atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, port, err := net.SplitHostPort(r.Host)
		if r.Method != http.MethodConnect || r.Header.Get("Proxy-Authorization") != "Basic dTpw" || err != nil {
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		tunnels.Add(1)
		to, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", port))
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer to.Close()
		w.WriteHeader(http.StatusOK)
		from, buffered, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer from.Close()
		go func() { _, _ = io.Copy(to, buffered); to.Close() }()
		_, _ = io.Copy(from, to)
	}))
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections)
	secret := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(secret, []byte("u:p\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	egress, err := proxy.New(proxy.Config{URL: s.URL, Credentials: secret, Getenv: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	return egress, &tunnels
}

// Where nothing gets out but through an HTTP proxy, and no name can be looked up, an edge uses the proxy.
func TestDoThroughProxy(t *testing.T) {
	s := newScene(t)
	egress, tunnels := tunneling(t)
	key, self := keytest.New(t)
	cert := s.platform.issue(t, subject("edge-1"), newKey(t), nil)
	for _, a := range s.via.Relays[0].Addrs {
		port, err := a.ValueForProtocol(ma.P_TCP)
		if err != nil {
			continue
		}
		named := "/dns4/relay.invalid/tcp/" + port
		if _, err := a.ValueForProtocol(ma.P_WS); err == nil {
			named += "/ws"
		}
		w := Via{Relays: []peer.AddrInfo{{ID: s.via.Relays[0].ID, Addrs: []ma.Multiaddr{ma.StringCast(named)}}}, Controllers: s.via.Controllers, Proxy: egress}
		was := tunnels.Load()
		got, err := Do(t.Context(), key, cert, w, Request{Method: http.MethodPost, Path: "/x", Body: json.RawMessage("{}")})
		if err != nil || got.Code != http.StatusCreated {
			t.Fatalf("%s: %+v, %v", named, got, err)
		}
		if e := <-s.requests; e != (Edge{"edge-1", self}) {
			t.Errorf("%s: request of %v", named, e)
		}
		if tunnels.Load() == was {
			t.Errorf("%s: the proxy was not used", named)
		}
		w.Proxy = nil
		if _, err := Do(t.Context(), key, cert, w, Request{Method: http.MethodPost}); !errors.Is(err, ErrNobody) {
			t.Errorf("%s: without the proxy: %v", named, err)
		}
	}
	if tunnels.Load() < 2 {
		t.Errorf("%d requests to the proxy, want one over TCP and one over WebSocket", tunnels.Load())
	}
}

// Without a controller the error says what was tried.
func TestNobody(t *testing.T) {
	key, _ := keytest.New(t)
	_, other := keytest.New(t)
	_, relay := keytest.New(t)
	via := Via{Relays: []peer.AddrInfo{{ID: relay, Addrs: []ma.Multiaddr{ma.StringCast("/ip4/127.0.0.1/tcp/1")}}}, Controllers: []peer.ID{other}}
	for _, w := range []Via{{}, via} {
		if _, err := Do(t.Context(), key, &tls.Certificate{}, w, Request{}); !errors.Is(err, ErrNobody) {
			t.Errorf("%v: %v", w, err)
		}
	}
}
