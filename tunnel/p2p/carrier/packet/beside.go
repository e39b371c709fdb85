package packet

import (
	"iter"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/nat64"
)

// sessions are those with which datagrams are sent, by peer.
type sessions struct {
	mu sync.Mutex // only meters' are taken under it
	to map[peer.ID][]*sending
}

// join adds a session to its peer's, until the function it returns is called.
func (s *sessions) join(p peer.ID, out *sending) (leave func()) {
	out.sent.Store(0) // what it had sent before has been forgotten
	s.mu.Lock()
	defer s.mu.Unlock()
	s.to[p] = append(s.to[p], out)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if left := slices.DeleteFunc(s.to[p], func(o *sending) bool { return o == out }); len(left) > 0 {
			s.to[p] = left
		} else {
			delete(s.to, p)
		}
	}
}

// Beside measures the path to a peer by the datagrams beside a connection that leads to the same address.
type Beside struct {
	s    *sessions
	peer peer.ID
	at   netip.Addr
}

// Beside measures the path to a peer at an address.
func (s *sessions) Beside(p peer.ID, at netip.Addr) Beside {
	return Beside{s, p, nat64.Inside(at).WithZone("")}
}

// Ask has a packet sent on each session there, which the peer answers: any of them may end next. It does not wait.
func (b Beside) Ask() {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	for ss := range b.sessions() {
		if out := ss.now.Load(); out != nil {
			out.query.Wake()
		}
	}
}

// Waits is how much longer than the least packets take to the peer and back, the round trip of both least ones, and when that
// was heard; the zero time: never.
func (b Beside) Waits() (ahead, behind, least time.Duration, at time.Time) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	return newest(b.sessions())
}

// Sent is how many bytes were ever sent on the sessions there, headers of UDP and IP included.
func (b Beside) Sent() uint64 {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	var n uint64
	for ss := range b.sessions() {
		n += ss.sent.Load()
	}
	return n
}

// newest is what the session measured that knows the least delays, of those whose answers are as new: one that began while packets
// waited takes that for the least, and one that nothing comes through has old answers.
func newest(sessions iter.Seq[*sending]) (ahead, behind, least time.Duration, at time.Time) {
	for ss := range sessions {
		a, b, l, heard := ss.meter.waits()
		newer := heard.Sub(at)
		if !heard.IsZero() && (newer > asNew || newer >= -asNew && l < least) {
			ahead, behind, least, at = a, b, l, heard
		}
	}
	return ahead, behind, least, at
}

// sessions are those with the peer at the address; if there is none, those at addresses of the other family, which may be the
// same host's on the same line. The caller holds mu.
func (b Beside) sessions() iter.Seq[*sending] {
	var same, other []*sending
	for _, ss := range b.s.to[b.peer] {
		a, ok := ss.quic.RemoteAddr().(*net.UDPAddr)
		if !ok {
			continue
		}
		switch at := nat64.Inside(a.AddrPort().Addr()).WithZone(""); {
		case at == b.at:
			same = append(same, ss)
		case at.Is4() != b.at.Is4():
			other = append(other, ss)
		}
	}
	if len(same) > 0 {
		return slices.Values(same)
	}
	return slices.Values(other)
}
