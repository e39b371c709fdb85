package lan

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAnswerComesAfterTheKernel: who sees an answer may send, so the kernel lets its packets
// in before.
func TestAnswerComesAfterTheKernel(t *testing.T) {
	k := &countingKernel{}
	s := newService(t, k)
	p := withPeers(t, s, 1)[0]
	there, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	p.gateways[0], p.them.ProbePort = netip.MustParseAddr("127.0.0.1"), there.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	b, accepts := make([]byte, 2000), 0
	k.during = func() {
		_ = there.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if _, _, err := there.ReadFrom(b); err == nil {
			t.Error("a packet left before the kernel was told")
		}
		accepts = letIn(k.paths)
	}
	hear(s, p, typeRequest, 1)
	s.takeIn()
	_ = there.SetReadDeadline(time.Now().Add(5 * time.Second))
	n, _, err := there.ReadFrom(b)
	if err != nil || accepts != 1 {
		t.Fatalf("%d accepted, answer: %v", accepts, err)
	}
	if m, err := open(b[:n]); err != nil || m.typ != typeAnswer || m.seq != 1 || n != payload(1500, false) {
		t.Errorf("%d bytes, %+v: %v", n, m, err)
	}
}

// TestProbesHaveTheirRoute: no probe leaves before the kernel has been told of its way.
func TestProbesHaveTheirRoute(t *testing.T) {
	k := &countingKernel{}
	s := newService(t, k)
	p := withPeers(t, s, 1)[0]
	told := k.sets
	s.mu.Lock()
	s.begin(p, p.us, goodOffer(Address{netip.MustParseAddr("10.1.0.77"), 16, 1500, MAC{2, 0, 0, 1, 0, 77}}), 0, true)
	s.mu.Unlock()
	k.during = func() {
		if told++; p.tracks[native4].sent > 0 {
			t.Error("a probe left before the kernel was told")
		}
	}
	s.tick()
	if told != k.sets || len(k.paths.Probes) != 1 || k.paths.Probes[0].Via.String() != "10.1.0.77" || p.tracks[native4].sent != 1 {
		t.Errorf("told %d times of %v; %d probes", k.sets, k.paths.Probes, p.tracks[native4].sent)
	}
}

// TestStrangersProbes: what is not exactly the peer's own packet, on exactly the candidate's
// way, proves nothing and opens nothing.
func TestStrangersProbes(t *testing.T) {
	const request, answer = typeRequest, typeAnswer
	for name, change := range map[string]func(s *Service, p *peer, m *message, a *arrival, key *[]byte){
		"another source":                func(_ *Service, _ *peer, _ *message, a *arrival, _ *[]byte) { a.from = a.from.Next() },
		"an interface of pods":          func(s *Service, _ *peer, _ *message, a *arrival, _ *[]byte) { a.link, s.links[8] = 8, "br" },
		"the other kind's interface":    func(s *Service, _ *peer, _ *message, a *arrival, _ *[]byte) { a.link, s.links[8] = 8, "vx" },
		"an interface that is gone":     func(_ *Service, _ *peer, _ *message, a *arrival, _ *[]byte) { a.link = 1 << 30 },
		"another key":                   func(_ *Service, _ *peer, _ *message, _ *arrival, key *[]byte) { *key = make([]byte, 32) },
		"our own, reflected":            func(_ *Service, p *peer, _ *message, _ *arrival, key *[]byte) { *key = p.sess.out },
		"another session":               func(_ *Service, _ *peer, m *message, _ *arrival, _ *[]byte) { m.session++ },
		"another member's session":      func(s *Service, _ *peer, m *message, _ *arrival, _ *[]byte) { m.session = s.peers["M1"].sess.id },
		"another way":                   func(_ *Service, _ *peer, m *message, _ *arrival, _ *[]byte) { m.slot++ },
		"the other IP version":          func(_ *Service, _ *peer, _ *message, a *arrival, _ *[]byte) { a.v6 = true },
		"a number that was never asked": func(_ *Service, _ *peer, m *message, _ *arrival, _ *[]byte) { m.seq += 1 << 40 },
		"":                              nil, // the peer's own
	} {
		for _, typ := range []byte{request, answer} {
			if typ == request && name == "a number that was never asked" {
				continue // fresh numbers are what requests have
			}
			k := &countingKernel{}
			s := newService(t, k)
			s.sockets[0].close()
			p := withPeers(t, s, 2)[0]
			s.sockets[0] = nil
			track := p.tracks[native4]
			for range 2 * proveGood {
				track.next = time.Time{}
				s.tick()
				m, a, key := message{typ: typ, session: p.sess.id, seq: track.sent}, arrival{from: p.gateways[0], link: 7}, p.sess.in
				if change != nil {
					change(s, p, &m, &a, &key)
				}
				s.receive(m.seal(key, payload(1500, false)), a)
				s.takeIn()
			}
			accepted, used := letIn(k.paths) > 0, len(k.paths.Routes) > 0
			if name == "" && (!accepted || used != (typ == answer)) {
				t.Errorf("the peer's own, type %d: accepted %v, used %v", typ, accepted, used)
			}
			if name != "" && (accepted || used) {
				t.Errorf("%s, type %d: accepted %v, used %v", name, typ, accepted, used)
			}
		}
	}
}

// TestRepeatedRequest: a request that somebody sends again keeps nothing open.
func TestRepeatedRequest(t *testing.T) {
	s := newService(t, &countingKernel{})
	p := withPeers(t, s, 1)[0]
	s.sockets[0].close()
	s.sockets[0] = nil
	hear(s, p, typeRequest, 7)
	s.takeIn()
	heard := p.tracks[native4].heard
	for _, seq := range []uint64{7, 6, 1} {
		hear(s, p, typeRequest, seq)
		s.takeIn()
	}
	if now := p.tracks[native4].heard; heard.IsZero() || !now.Equal(heard) {
		t.Errorf("heard at %v, then at %v", heard, now)
	}
}

// TestProbesAreNeitherRoutedNorCut: one hop, and no fragments.
func TestProbesAreNeitherRoutedNorCut(t *testing.T) {
	for _, c := range []struct {
		at   string
		want [][3]int // level, option, value
	}{
		{"127.0.0.1", [][3]int{{unix.SOL_IP, unix.IP_TTL, 1}, {unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE}}},
		{"::1", [][3]int{{unix.SOL_IPV6, unix.IPV6_UNICAST_HOPS, 1}, {unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE}}},
	} {
		s, err := listen(netip.MustParseAddr(c.at), 0)
		if err != nil {
			t.Skip(err) // no IPv6 here
		}
		raw, err := s.conn.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range c.want {
			if err := raw.Control(func(fd uintptr) {
				if v, err := unix.GetsockoptInt(int(fd), w[0], w[1]); err != nil || v != w[2] {
					t.Errorf("%s: option %d of level %d is %d, want %d: %v", c.at, w[1], w[0], v, w[2], err)
				}
			}); err != nil {
				t.Error(err)
			}
		}
		s.close()
	}
}
