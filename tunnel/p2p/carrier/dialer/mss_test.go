package dialer

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	ma "github.com/multiformats/go-multiaddr"
	"golang.org/x/sys/unix"

	"edgemesh/tunnel/p2p/base/conns"
)

func TestSegmentSizes(t *testing.T) {
	var s segmentSizes
	v4, v6 := netip.MustParseAddr("5.5.5.5"), netip.MustParseAddr("fd00::5")
	for _, a := range []netip.Addr{v4, v6} {
		if n := s.mss(a); n != 0 {
			t.Errorf("%s begins with %d", a, n)
		}
	}
	const options = 12 // RFC 7323's timestamps, which the kernel takes off its MSS
	if !s.shrink(v6, 1440) || s.mss(v6) != ipv6MSS || s.shrink(v6, ipv6MSS-options) {
		t.Errorf("IPv6 goes down to %d, want one step to %d", s.mss(v6), ipv6MSS)
	}
	before := time.Now()
	for _, c := range []struct{ vanish, want int }{
		{1460, ipv6MSS}, {1460, ipv6MSS}, // both connections of a pair
		{ipv6MSS - options, MinMSS},
		{1460, MinMSS}, // an older one, late
	} {
		if !s.shrink(netip.AddrFrom16(v4.As16()), c.vanish) || s.mss(v4) != c.want {
			t.Errorf("segments of %d vanish: IPv4 goes down to %d, want %d", c.vanish, s.mss(v4), c.want)
		}
	}
	if s.shrink(v4, MinMSS-options) {
		t.Error("smaller than every host takes")
	}
	a := ma.StringCast("/ip4/5.5.5.5/tcp/1")
	if !s.shrunkSince(a, before) || s.shrunkSince(a, time.Now()) || s.shrunkSince(ma.StringCast("/ip4/5.5.5.6/tcp/1"), before) {
		t.Error("when it shrank is not told")
	}
	s.m[v4] = narrow{MinMSS, time.Now().Add(-narrowFor)}
	if n := s.mss(v4); n != 0 {
		t.Errorf("%d after a while", n)
	}
	for i := range 3000 { // addresses of nobody do not pile up
		s.shrink(netip.AddrFrom4([4]byte{9, 9, byte(i >> 8), byte(i)}), 1460)
	}
	if n := len(s.m); n > 1025 {
		t.Errorf("%d addresses are remembered", n)
	}
}

// A relay that has what it was sent, and says nothing, may be busy with others; from its first byte on it has begun.
func TestHandshakeWaitsForItsTurn(t *testing.T) {
	start := time.Unix(0, 0)
	for name, c := range map[string]struct {
		turn          bool
		begins, after time.Duration // the first byte, and when we look; begins < 0: never
		unacked       int
		stuck         bool
		why           error
	}{
		"a peer":               {false, -1, stuckLatest, 0, true, nil},
		"a peer, soon":         {false, -1, stuckLatest - 1, 0, false, nil},
		"its turn comes":       {true, -1, conns.TurnLatest - time.Second, 0, false, nil},
		"it does not":          {true, -1, conns.TurnLatest + time.Second, 0, false, errUnserved},
		"unreachable now":      {true, -1, begunLatest, 80, true, errBegun},
		"it has begun":         {true, 10 * time.Second, 10*time.Second + stuckLatest - time.Second, 0, false, nil},
		"segments vanish then": {true, 10 * time.Second, 10*time.Second + stuckLatest, 0, true, nil},
		"and all of them":      {true, 10 * time.Second, 10*time.Second + begunLatest, 0, true, errBegun},
	} {
		w := handshake{turn: c.turn, start: start, since: start}
		var stuck bool
		var why error
		for at := time.Duration(0); ; at = min(at+stuckEvery, c.after) {
			info := &unix.TCPInfo{Bytes_received: uint64(multistreamHeader)} // a server sends that unasked
			if c.begins >= 0 && at > c.begins {
				info.Bytes_received++
			}
			stuck, why = w.look(start.Add(at), info, c.unacked)
			if at == c.after {
				break
			}
		}
		if stuck != c.stuck || !errors.Is(why, c.why) {
			t.Errorf("%s: stuck %t, %v; want %t, %v", name, stuck, why, c.stuck, c.why)
		}
	}
}
