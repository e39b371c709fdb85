package portmap

import (
	"context"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"
)

// liar is what answers at the router's port: with the longest datagrams there are, many for each request.
func liar(t *testing.T, answer func(request []byte) []byte) Gateway {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: pcpPort})
	if err != nil {
		t.Skip("another program has the port: ", err)
	}
	other, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2)})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { c.Close(); other.Close(); wg.Wait() })
	wg.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			out := answer(buf[:n])
			for range 200 {
				_, _ = other.WriteToUDPAddrPort(out, from) // not the router
				_, _ = c.WriteToUDPAddrPort(out, from)
			}
		}
	})
	return Gateway{Router: netip.MustParseAddr("127.0.0.1"), Local: netip.MustParseAddr("127.0.0.1")}
}

// What speaks PCP or NAT-PMP with a router reads one short answer, whatever comes, and waits no longer than for none.
func TestFloodOfAnswers(t *testing.T) {
	long := make([]byte, 65000)
	g := liar(t, func(request []byte) []byte {
		copy(long, request) // right except for the nonce, of which PCP's answer has a wrong one
		if len(request) == pcpLen {
			long[1] |= pcpResponse
			long[3] = 0
			long[pcpNonce]++
		} else {
			long[1] |= 0x80
			long[2], long[3] = 0, 3 // network failure
		}
		return long
	})
	for _, m := range []method{newPCP(g), newNATPMP(g)} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		got, _, err := m.add(ctx, true, 4002, 4002, lease)
		cancel()
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Errorf("%s: believed %v", m, got)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s: %v", m, took)
		}
		// The liar's own 26 MB are written from one buffer.
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
			t.Errorf("%s: %d bytes for one request", m, n)
		}
	}
}
