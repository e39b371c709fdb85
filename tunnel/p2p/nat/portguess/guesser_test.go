package portguess

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"edgemesh/internal/wake"
)

// testPeer is wanted until it is dialed.
type testPeer struct {
	name   string
	dialed atomic.Pointer[netip.AddrPort]
}

func (p *testPeer) Name() string { return p.name }
func (p *testPeer) Met() bool    { return p.dialed.Load() != nil }
func (p *testPeer) Wanted() bool { return !p.Met() }
func (p *testPeer) AwaitMet(ctx context.Context) {
	for !p.Met() && wake.Sleep(ctx, time.Millisecond) {
	}
}
func (p *testPeer) Dial(_ context.Context, c *net.UDPConn, to netip.AddrPort) error {
	p.dialed.Store(&to)
	return c.Close()
}

func local(t *testing.T) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// guesser returns one with a clock that is set by hand, and a listening socket.
func guesser(t *testing.T) (g *Guesser, clock *atomic.Int64, listening *net.UDPConn) {
	clock, listening = &atomic.Int64{}, local(t)
	return New(Config{
		Now:       func() time.Duration { return time.Duration(clock.Load()) },
		Open:      func() (*net.UDPConn, error) { return net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}) },
		Listening: func() net.PacketConn { return listening },
		Packet:    []byte{0, 'x'},
		Log:       slog.New(slog.DiscardHandler),
	}), clock, listening
}

func TestAttemptIsRefused(t *testing.T) {
	g, _, _ := guesser(t)
	to := netip.MustParseAddrPort("5.5.2.1:40007")
	random, one, here := Range{40000, 40255}, Range{40007, 40007}, Range{4001, 4001}
	for _, c := range []struct {
		name         string
		mine, theirs Range
		why          string
	}{
		{"unknown here", Range{}, random, ""},
		{"unknown there", random, Range{}, ""},
		{"backwards", here, Range{9000, 8000}, ""},
		{"a server's ports", here, Range{1, 1100}, ""},
		{"neither is random", here, one, ""},
		{"both are random", random, random, "both NATs choose them at random"},
		{"another port than the one offered", random, Range{53, 53}, ""},
	} {
		a, why := g.Attempt(&testPeer{name: "b"}, c.mine, c.theirs, to, time.Now())
		if a != nil || !strings.Contains(why, c.why) || c.why == "" && why != "" {
			t.Errorf("%s: %v, why %q", c.name, a, why)
		}
		a.Release()
	}
}

// One attempt at a time, and a rest for the peer and for the host after packets were sent.
func TestAttemptsAreRare(t *testing.T) {
	g, clock, _ := guesser(t)
	begin := func(peer, to string) *Attempt {
		a, _ := g.Attempt(&testPeer{name: peer}, Range{4001, 4001}, Range{40000, 40255}, netip.MustParseAddrPort(to), time.Now().Add(-time.Hour))
		return a
	}
	a := begin("b", "127.0.0.1:9")
	if a == nil {
		t.Fatal("the first attempt is refused")
	}
	if ready, busy := g.Ready("c"); begin("c", "127.0.0.2:9") != nil || ready || !busy {
		t.Error("two at the same time")
	}
	a.Run(t.Context()) // it is too late for that: nothing is sent
	a.Release()
	if a = begin("b", "127.0.0.1:9"); a == nil {
		t.Fatal("refused although nothing was sent")
	}
	g.rest("127.0.0.1", "b", Every)
	a.Release()
	if ready, busy := g.Ready("b"); begin("b", "127.0.0.3:9") != nil || ready || busy {
		t.Error("the same peer again")
	}
	if begin("c", "127.0.0.1:9") != nil {
		t.Error("the same host again")
	}
	clock.Add(int64(Every))
	if a = begin("b", "127.0.0.1:9"); a == nil {
		t.Error("refused when the time has come")
	}
	a.Release()
}

// The hard side sends from every socket to the one port, and dials from the socket that a probe meets.
func TestHardSide(t *testing.T) {
	g, _, _ := guesser(t)
	easy := local(t)
	to := easy.LocalAddr().(*net.UDPAddr).AddrPort()
	p := &testPeer{name: "b"}
	a, why := g.Attempt(p, Range{40000, 40255}, Range{to.Port(), to.Port()}, to, time.Now())
	if a == nil {
		t.Fatalf("refused: %s", why)
	}
	defer a.Release()
	go func() {
		b := make([]byte, 16)
		for {
			n, from, err := easy.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			if bytes.Equal(b[:n], []byte{0, 'x'}) {
				_, _ = easy.WriteToUDPAddrPort(b[:n], from)
			}
		}
	}()
	if met, outcome := a.Run(t.Context()); !met || outcome != "" || *p.dialed.Load() != to {
		t.Errorf("met %v, %q, dialed %v", met, outcome, p.dialed.Load())
	}
}

// A router that refuses packets gets half of them the next time, and as many again once it does not.
func TestRefusedPacketsAreHalved(t *testing.T) {
	g, clock, _ := guesser(t)
	closed := local(t)
	to := closed.LocalAddr().(*net.UDPAddr).AddrPort() // what is sent there is answered by ICMP
	closed.Close()
	attempt := func(to netip.AddrPort, refused bool) (plan Plan, told string) {
		clock.Add(int64(Every))
		a, _ := g.Attempt(&testPeer{name: "b"}, Range{MinPort, 65535}, Range{to.Port(), to.Port()}, to, time.Now())
		if a == nil {
			t.Fatal("no attempt")
		}
		defer a.Release()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			defer cancel()
			began := time.Now()
			// What is refused must be more than a 16th. The kernel answers a thousand packets a second at most, those of other tests
			// among them, and a busy machine may stand still.
			few := func() bool { return float64(a.refused.Load()) < float64(a.plan.Rate())*time.Since(began).Seconds()/8 }
			for past := time.Duration(0); past < 700*time.Millisecond || refused && few() && past < 20*time.Second; past = time.Since(began) {
				time.Sleep(5 * time.Millisecond) // sleep: between looks, of which there is a last one
			}
		}()
		_, told = a.Run(ctx)
		return a.plan, told
	}
	for i, want := range []int{256, 128, 64} {
		plan, told := attempt(to, true)
		if n := plan.Sockets(); n != want || plan.Rate() != Rate*want/Sockets {
			t.Errorf("attempt %d: %d sockets, %d packets a second; want %d sockets", i, n, plan.Rate(), want)
		}
		if !strings.Contains(told, "packets refused on the way, not again before ") {
			t.Errorf("attempt %d: told %q", i, told)
		}
	}
	open := local(t).LocalAddr().(*net.UDPAddr).AddrPort()
	for i, want := range []int{64, 128} {
		if plan, told := attempt(open, false); plan.Sockets() != want || strings.Contains(told, "refused") {
			t.Errorf("after it does not refuse, attempt %d: %d sockets, want %d; %s", i, plan.Sockets(), want, told)
		}
	}
}

// After a success the next attempt follows soon: the path may be lost.
func TestRestAfterSuccess(t *testing.T) {
	g, clock, listening := guesser(t)
	begin := func() *Attempt {
		a, _ := g.Attempt(&testPeer{name: "b"}, Range{4001, 4001}, Range{40000, 40255}, listening.LocalAddr().(*net.UDPAddr).AddrPort(), time.Now())
		return a
	}
	a := begin()
	a.peer.(*testPeer).dialed.Store(&netip.AddrPort{})
	if met, _ := a.Run(t.Context()); met {
		t.Error("an attempt was made although there is a path")
	}
	g.rest(a.to.Addr().String(), "b", afterMet)
	a.Release()
	if begin() != nil {
		t.Error("no rest at all")
	}
	clock.Add(int64(afterMet))
	if a = begin(); a == nil {
		t.Fatal("a long rest after a success")
	}
	a.Release()
}
