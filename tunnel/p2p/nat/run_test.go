package nat

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/ladder"
	"edgemesh/tunnel/p2p/stun"
)

func loopback(t *testing.T) (net.PacketConn, netip.AddrPort) {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	return c, c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// Two servers see the sockets as they are: that is no NAT on a host that owns the address, else one that keeps ports. A
// server that does not answer is passed over; without any answer, what was known stays.
func TestRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var servers []netip.AddrPort
	done := make(chan struct{}, 2)
	for range 2 {
		c, at := loopback(t)
		servers = append(servers, at)
		go func() { stun.Serve(ctx, c, netip.AddrPort{}); done <- struct{}{} }()
	}
	mute, at := loopback(t)
	defer mute.Close()
	owns, changed, ended := make(chan bool, 1), make(chan struct{}, 1), make(chan struct{})
	owns <- false
	s := New(Config{
		Servers: func() []netip.AddrPort { return append([]netip.AddrPort{at}, servers...) },
		Listen:  func(string) (net.PacketConn, error) { c, _ := loopback(t); return c, nil },
		Owns:    func(netip.Addr) bool { o := <-owns; owns <- o; return o },
		Changed: func() { changed <- struct{}{} },
		Log:     slog.New(slog.DiscardHandler),
	})
	go func() { s.Run(ctx); close(ended) }()
	for _, c := range []struct {
		owns bool
		want ladder.NAT
	}{{false, ladder.NATStable}, {true, ladder.NATNone}} {
		<-owns
		owns <- c.owns
		s.Again()
		soon, stop := fair.WithTimeout(t.Context(), 20*time.Second)
		select {
		case <-changed:
		case <-soon.Done():
			t.Fatal("nothing was found out")
		}
		stop()
		if v := s.View(); v.Kind != c.want || !v.Kept || v.Server != servers[0] || v.Predictable() {
			t.Errorf("address owned: %v: %+v, want %v", c.owns, v, c.want)
		}
	}
	cancel()
	for _, c := range []<-chan struct{}{done, done, ended} {
		<-c
	}
	if v, ok := s.look(context.Background()); ok || s.View().Kind != ladder.NATNone {
		t.Errorf("without an answer: %+v, and %+v is known", v, s.View())
	}
}
