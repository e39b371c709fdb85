package stun

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/pion/stun/v3"
	"github.com/quic-go/quic-go"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func socket(t *testing.T) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func addrOf(c *net.UDPConn) netip.AddrPort { return c.LocalAddr().(*net.UDPAddr).AddrPort() }

// host is a libp2p host with QUIC, and its connection manager.
func host(t *testing.T, listen ...string) (h interface {
	ID() peer.ID
	Close() error
}, cm *quicreuse.ConnManager, at netip.AddrPort) {
	t.Helper()
	x, err := libp2p.New(libp2p.ListenAddrStrings(listen...), libp2p.DisableMetrics(), libp2p.QUICReuse(
		func(k quic.StatelessResetKey, tk quic.TokenGeneratorKey) (*quicreuse.ConnManager, error) {
			var err error
			cm, err = quicreuse.NewConnManager(k, tk)
			return cm, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = x.Close(), cm.Close() })
	s, err := Start(cm, x.Network().ListenAddresses(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	port := ""
	for _, a := range x.Network().ListenAddresses() { // a circuit is among them
		if p, err := a.ValueForProtocol(ma.P_UDP); err == nil {
			port = p
		}
	}
	at, err = netip.ParseAddrPort("127.0.0.1:" + port)
	if err != nil {
		t.Fatal(err)
	}
	return x, cm, at
}

// TestBesideQUIC queries both ports of a host, whose QUIC still works.
func TestBesideQUIC(t *testing.T) {
	x, _, at := host(t, "/ip4/127.0.0.1/udp/0/quic-v1")
	c := socket(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	first, err := Query(ctx, c, at)
	if err != nil {
		t.Fatal(err)
	}
	if first.Mapped != addrOf(c) {
		t.Errorf("seen at %s, want %s", first.Mapped, addrOf(c))
	}
	if want := netip.AddrPortFrom(at.Addr(), at.Port()+1); first.Other != want {
		t.Fatalf("the other one is %s, want %s", first.Other, want)
	}
	second, err := Query(ctx, c, first.Other)
	if err != nil || second.Mapped != first.Mapped {
		t.Errorf("the other one says %v, %v", second, err)
	}
	y, err := libp2p.New(libp2p.NoListenAddrs, libp2p.DisableMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer y.Close()
	dst := ma.StringCast("/ip4/127.0.0.1/udp/" + at.String()[len("127.0.0.1:"):] + "/quic-v1")
	if err := y.Connect(ctx, peer.AddrInfo{ID: x.ID(), Addrs: []ma.Multiaddr{dst}}); err != nil {
		t.Errorf("QUIC beside it: %v", err)
	}
}

// TestBothFamilies asks a host that listens as relays do by default: on one port, for
// IPv4 and IPv6, each of which has a second port.
func TestBothFamilies(t *testing.T) {
	free, err := net.ListenUDP("udp", nil)
	if err != nil {
		t.Fatal(err)
	}
	port := addrOf(free).Port()
	_ = free.Close()
	host(t, fmt.Sprintf("/ip4/0.0.0.0/udp/%d/quic-v1", port), fmt.Sprintf("/ip6/::/udp/%d/quic-v1", port))
	for _, ip := range []string{"127.0.0.1", "::1"} {
		c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(ip)})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		at := netip.AddrPortFrom(netip.MustParseAddr(ip), port)
		answer, err := Query(ctx, c, at)
		if err != nil || answer.Other != netip.AddrPortFrom(at.Addr(), port+1) {
			t.Fatalf("%s says %+v, %v", at, answer, err)
		}
		if second, err := Query(ctx, c, answer.Other); err != nil || second.Mapped != answer.Mapped {
			t.Errorf("%s says %+v, %v; the first one %+v", answer.Other, second, err, answer)
		}
	}
}

// TestAskSendsAgain: the first request is lost.
func TestAskSendsAgain(t *testing.T) {
	server, c := socket(t), socket(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _, _ = server.ReadFrom(make([]byte, maxMessage))
		Serve(ctx, server, netip.AddrPort{})
	}()
	if a, err := Query(ctx, c, addrOf(server)); err != nil || a.Other.IsValid() {
		t.Errorf("%v, %v", a, err)
	}
	cancel()
	<-done
}

// TestRubbish: what is no request of ours has no answer, and no answer is longer
// than its request.
func TestRubbish(t *testing.T) {
	from := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9}
	short, err := stun.Build(stun.TransactionID, stun.BindingRequest)
	if err != nil {
		t.Fatal(err)
	}
	random := make([]byte, 100)
	_, _ = rand.Read(random)
	reply, ok := answer(request(t), from, netip.MustParseAddrPort("[2001:db8::1]:4"))
	if !ok || len(reply) > len(request(t)) {
		t.Errorf("answer of %d bytes, %v", len(reply), ok)
	}
	for what, p := range map[string][]byte{"nothing": nil, "short": short.Raw, "random": random, "an answer": append(reply, make([]byte, 40)...), "torn": request(t)[:60]} {
		if _, ok := answer(p, from, netip.AddrPort{}); ok {
			t.Errorf("%s is answered", what)
		}
	}
}

func request(t testing.TB) []byte { return requestOf(t, minRequest) }

func requestOf(t testing.TB, size int) []byte {
	m, err := stun.Build(stun.TransactionID, stun.BindingRequest)
	if err != nil {
		t.Fatal(err)
	}
	m.Add(stun.AttrPadding, make([]byte, size-len(m.Raw)-4))
	return m.Raw
}

// An answer is never longer than its request, with any addresses: an attacker who forges the source gains nothing.
func TestAnswersAreNoLonger(t *testing.T) {
	from := &net.UDPAddr{IP: net.ParseIP("2001:db8::7"), Port: 40000}
	for _, other := range []string{"", "198.51.100.2:3479", "[2001:db8::3]:3479", "0.0.0.0:3479"} {
		o, _ := netip.ParseAddrPort(other)
		reply, ok := answer(request(t), from, o)
		if !ok || len(reply) > minRequest {
			t.Errorf("other %s: %d bytes for %d", other, len(reply), minRequest)
		}
		if got, ok := parse(reply, transactionID(reply[8:headLen]), netip.MustParseAddr("2001:db8::1")); other == "0.0.0.0:3479" && (!ok || got.Other != netip.MustParseAddrPort("[2001:db8::1]:3479")) {
			t.Errorf("the other socket is lost: %+v", got)
		}
	}
}

// flood is a socket at which one request of each source arrives, and then nothing more; it counts the answers to each address.
type flood struct {
	net.PacketConn // nothing else of it is used
	request        []byte
	sources        []netip.AddrPort
	answers        map[netip.Addr]int
}

func (f *flood) ReadFrom(b []byte) (int, net.Addr, error) {
	if len(f.sources) == 0 {
		return 0, nil, net.ErrClosed
	}
	from := f.sources[0]
	f.sources = f.sources[1:]
	return copy(b, f.request), net.UDPAddrFromAddrPort(from), nil
}

func (f *flood) WriteTo(b []byte, to net.Addr) (int, error) {
	f.answers[to.(*net.UDPAddr).AddrPort().Addr()]++
	return len(b), nil
}

func (f *flood) Close() error { return nil }

// A flood with forged sources is answered to a limit, by address and in all, and one address keeps no other one from an answer.
// Time stands still, so that all of it comes within one second.
func TestFloodOfRequests(t *testing.T) {
	// Each address sends so many requests, each from another port.
	burst := func(n int, addrs ...string) (out []netip.AddrPort) {
		for _, a := range addrs {
			for i := range n {
				out = append(out, netip.AddrPortFrom(netip.MustParseAddr(a), uint16(1024+i)))
			}
		}
		return out
	}
	numbered := func(format string, n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf(format, i+1))
		}
		return out
	}
	others := numbered("198.51.100.%d", 10)
	for _, c := range []struct {
		what    string
		sources []netip.AddrPort
		want    int
		others  int // at least; two addresses may share a counter by chance
	}{
		{"control: as much as one address may send", burst(eachAnswers, "192.0.2.1"), eachAnswers, 8},
		{"one address", burst(5*eachAnswers, "192.0.2.1"), eachAnswers, 8},
		{"one IPv6 network", burst(eachAnswers, numbered("2001:db8::%x", 5)...), eachAnswers, 8},
		{"many addresses", burst(eachAnswers/2, numbered("192.0.2.%d", 50)...), allAnswers, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &flood{request: request(t), sources: append(c.sources, burst(1, others...)...), answers: map[netip.Addr]int{}}
			Serve(t.Context(), f, netip.AddrPort{})
			all, served := 0, 0
			for _, n := range f.answers {
				all += n
			}
			for _, a := range others {
				served += f.answers[netip.MustParseAddr(a)]
			}
			if all-served != c.want || served < c.others {
				t.Errorf("%s: %d answers, want %d; %d others, want %d", c.what, all-served, c.want, served, c.others)
			}
		})
	}
}

// TestAsOthers: another implementation reads what this one writes, and this one reads the other's.
func TestAsOthers(t *testing.T) {
	for _, c := range []struct{ from, other string }{
		{"192.0.2.7:40000", "198.51.100.2:3479"}, {"[2001:db8::7]:1", "[2001:db8::3]:65535"}, {"[::ffff:192.0.2.7]:9", "0.0.0.0:4"}, {"192.0.2.1:80", ""},
	} {
		from, other := netip.MustParseAddrPort(c.from), netip.AddrPort{}
		if c.other != "" {
			other = netip.MustParseAddrPort(c.other)
		}
		reply, ok := answer(requestOf(t, 100), net.UDPAddrFromAddrPort(from), other)
		m := &stun.Message{Raw: reply}
		if err := m.Decode(); !ok || err != nil || m.Type != stun.BindingSuccess {
			t.Fatalf("%s: %v, %v, %v", c.from, ok, err, m)
		}
		var mapped stun.XORMappedAddress
		if err := mapped.GetFrom(m); err != nil || !mapped.IP.Equal(from.Addr().Unmap().AsSlice()) || mapped.Port != int(from.Port()) {
			t.Errorf("%s: %v, %v", c.from, mapped, err)
		}
		var far stun.OtherAddress
		if err := far.GetFrom(m); (err == nil) != other.IsValid() || err == nil && (!far.IP.Equal(other.Addr().AsSlice()) || far.Port != int(other.Port())) {
			t.Errorf("%s: %v, %v", c.other, far, err)
		}
		setters := []stun.Setter{stun.NewTransactionIDSetter(m.TransactionID), stun.BindingSuccess, stun.NewSoftware("seven b"), &mapped}
		want := Answer{Mapped: netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), Other: other}
		if other.IsValid() {
			setters = append(setters, &far)
		}
		theirs, err := stun.Build(append(setters, stun.Fingerprint)...)
		if err != nil {
			t.Fatal(err)
		}
		server := netip.MustParseAddr("203.0.113.1")
		if want.Other.IsValid() && want.Other.Addr().IsUnspecified() {
			want.Other = netip.AddrPortFrom(server, want.Other.Port())
		}
		if got, ok := parse(theirs.Raw, m.TransactionID, server); !ok || got != want {
			t.Errorf("%v, %v, want %v", got, ok, want)
		}
		for n := range theirs.Raw { // torn
			if _, ok := parse(theirs.Raw[:n], m.TransactionID, server); ok {
				t.Errorf("%d of %d bytes are an answer", n, len(theirs.Raw))
			}
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(request(f))
	f.Fuzz(func(t *testing.T, p []byte) {
		reply, ok := answer(p, &net.UDPAddr{IP: net.IPv4(1, 2, 3, 4), Port: 5}, netip.AddrPort{})
		if ok && len(reply) > len(p) {
			t.Errorf("%d bytes for %d", len(reply), len(p))
		}
		_, _ = parse(p, transactionID{}, netip.Addr{})
	})
}
