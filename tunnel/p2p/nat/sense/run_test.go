package sense

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/base/stun"
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

// A look that found nothing out is repeated without being asked for.
func TestLookIsRepeated(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	server, at := loopback(t)
	served, ended, changed := make(chan struct{}), make(chan struct{}), make(chan struct{}, 1)
	go func() { stun.Serve(ctx, server, netip.AddrPort{}); close(served) }()
	tries := 0
	s := New(Config{
		Servers: func() []netip.AddrPort { return []netip.AddrPort{at} },
		Listen: func(string) (net.PacketConn, error) {
			if tries++; tries == 1 {
				return nil, errors.New("no socket")
			}
			c, _ := loopback(t)
			return c, nil
		},
		Owns:    func(netip.Addr) bool { return true },
		Changed: func() { changed <- struct{}{} },
		Log:     slog.New(slog.DiscardHandler),
	})
	go func() { s.Run(ctx); close(ended) }()
	s.Again()
	soon, stop := fair.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	select {
	case <-changed:
	case <-soon.Done():
		t.Error("no other look")
	}
	cancel()
	<-served
	<-ended
}

// behindNAT is a server's socket that sees its clients translated.
type behindNAT struct {
	net.PacketConn
	port func(client uint16) uint16
	from net.Addr // of the last request
}

func (b *behindNAT) ReadFrom(p []byte) (int, net.Addr, error) {
	n, from, err := b.PacketConn.ReadFrom(p)
	if err != nil {
		return n, from, err
	}
	b.from = from
	return n, &net.UDPAddr{IP: net.IPv4(9, 9, 9, 9), Port: int(b.port(from.(*net.UDPAddr).AddrPort().Port()))}, nil
}

func (b *behindNAT) WriteTo(p []byte, _ net.Addr) (int, error) {
	return b.PacketConn.WriteTo(p, b.from)
}

// A NAT that maps at random into few ports may give a socket the same one twice: it counts as stable only if it does so
// with a second socket, too.
func TestSamePortTwice(t *testing.T) {
	for _, c := range []struct {
		name          string
		first, second [2]uint16 // the ports of a socket, by server
		want          ladder.NAT
	}{
		{"by chance", [2]uint16{40007, 40007}, [2]uint16{40099, 40050}, ladder.NATRandom},
		{"always", [2]uint16{40007, 40007}, [2]uint16{40099, 40099}, ladder.NATStable},
		{"never", [2]uint16{40007, 40031}, [2]uint16{40099, 40099}, ladder.NATRandom},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var mu sync.Mutex
			var clients []uint16
			var servers []netip.AddrPort
			var served sync.WaitGroup
			for i := range c.first {
				conn, at := loopback(t)
				servers = append(servers, at)
				b := &behindNAT{PacketConn: conn, port: func(client uint16) uint16 {
					mu.Lock()
					defer mu.Unlock()
					if !slices.Contains(clients, client) {
						clients = append(clients, client)
					}
					return [][2]uint16{c.first, c.second}[slices.Index(clients, client)][i]
				}}
				served.Go(func() { stun.Serve(ctx, b, netip.AddrPort{}) })
			}
			v, ok := Look(ctx, Config{
				Servers: func() []netip.AddrPort { return servers },
				Listen:  func(string) (net.PacketConn, error) { c, _ := loopback(t); return c, nil },
				Owns:    func(netip.Addr) bool { return false },
			})
			if !ok || v.Kind != c.want {
				t.Errorf("%+v, want %v", v, c.want)
			}
			cancel()
			served.Wait()
		})
	}
}
