package echo

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
)

// Loopback answers: every request has an outcome of its own, in time.
func TestRun(t *testing.T) {
	for _, ip := range []string{"127.0.0.1", "::1"} {
		seen := map[int]bool{}
		err := Run(t.Context(), netip.MustParseAddr(ip), 3, 10*time.Millisecond, func(r Result) {
			if r.Err != nil || r.RTT <= 0 || seen[r.Seq] {
				t.Errorf("%s: %+v, seen %v", ip, r, seen)
			}
			seen[r.Seq] = true
		})
		if err != nil || len(seen) != 3 {
			t.Errorf("%s: %v, %d outcomes, want 3", ip, err, len(seen))
		}
	}
}

// A request has the requested size, headers included, and one of full size is answered.
func TestSize(t *testing.T) {
	for ip, header := range map[string]int{"127.0.0.1": 28, "::1": 48} {
		to := netip.MustParseAddr(ip)
		if n := header + len((&echoes{ip: to, size: 1500}).data()); n != 1500 {
			t.Errorf("%s: %d bytes, want 1500", ip, n)
		}
		if n := len((&echoes{ip: to}).data()); n == 0 || n > 64 {
			t.Errorf("%s: %d bytes of data, want few", ip, n)
		}
		answered := 0
		err := RunSize(t.Context(), to, 9000, 1, time.Millisecond, func(r Result) {
			if r.Err == nil {
				answered++
			}
		})
		if err != nil || answered != 1 {
			t.Errorf("%s: %v, %d answers", ip, err, answered)
		}
	}
}

// Without a count it runs until ctx ends, in the middle of a wait, too.
func TestEndless(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	err := Run(ctx, netip.MustParseAddr("127.0.0.1"), 0, time.Millisecond, func(Result) {
		if n++; n == 5 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || n < 5 {
		t.Errorf("%v after %d outcomes", err, n)
	}
}

// What is no answer to this process is passed over.
func TestParse(t *testing.T) {
	from := &net.IPAddr{IP: net.IPv4(10, 0, 0, 1)}
	ip := netip.MustParseAddr("10.0.0.1")
	packet := func(kind icmp.Type, id int) []byte {
		b, err := (&icmp.Message{Type: kind, Body: &icmp.Echo{ID: id, Seq: 7}}).Marshal(nil)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for name, c := range map[string]struct {
		b    []byte
		from net.Addr
		ok   bool
	}{
		"answer":          {packet(ipv4.ICMPTypeEchoReply, 1), from, true},
		"request":         {packet(ipv4.ICMPTypeEcho, 1), from, false},
		"another process": {packet(ipv4.ICMPTypeEchoReply, 2), from, false},
		"another host":    {packet(ipv4.ICMPTypeEchoReply, 1), &net.IPAddr{IP: net.IPv4(10, 0, 0, 2)}, false},
		"short":           {[]byte{0}, from, false},
	} {
		seq, ok := parse(c.b, protocolICMP, ipv4.ICMPTypeEchoReply, 1, c.from, ip)
		if ok != c.ok || ok && seq != 7 {
			t.Errorf("%s: %d, %v", name, seq, ok)
		}
	}
}
