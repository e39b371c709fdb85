package p2p

import (
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/test/relaytest"
	"edgemesh/tunnel/p2p/path/paths"
)

// far is where a relay is reached over TCP alone, with a round trip of its own.
func far(t *testing.T, relay peer.AddrInfo, trip time.Duration) peer.AddrInfo {
	t.Helper()
	front, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	t.Cleanup(func() { front.Close(); done.Wait() })
	var port string
	for _, a := range relay.Addrs {
		if p, err := a.ValueForProtocol(ma.P_TCP); err == nil {
			port = p
		}
	}
	done.Go(func() {
		for {
			c, err := front.Accept()
			if err != nil {
				return
			}
			r, err := net.Dial("tcp4", "127.0.0.1:"+port)
			if err != nil {
				c.Close()
				continue
			}
			done.Go(func() { late(c, r, trip/2) })
			done.Go(func() { late(r, c, trip/2) })
		}
	})
	_, here, _ := net.SplitHostPort(front.Addr().String())
	return peer.AddrInfo{ID: relay.ID, Addrs: addrs(t, "/ip4/127.0.0.1/tcp/"+here)}
}

// late copies what comes from one connection to another one, by so much later, until one of them ends.
func late(from, to net.Conn, by time.Duration) {
	type part struct {
		b   []byte
		due time.Time
	}
	parts := make(chan part, 1<<16)
	var writes sync.WaitGroup
	writes.Go(func() {
		for p := range parts {
			time.Sleep(time.Until(p.due)) // sleep: the line's delay
			_, _ = to.Write(p.b)
		}
		to.Close()
	})
	for {
		b := make([]byte, 64<<10)
		n, err := from.Read(b)
		parts <- part{b[:n], time.Now().Add(by)}
		if err != nil {
			break
		}
	}
	close(parts)
	writes.Wait()
	from.Close()
}

// Two that call each other at the same time, the usual case at a hub, wait no longer than one who calls.
func TestBothCall(t *testing.T) {
	const pairs, trip = 3, 200 * time.Millisecond // of a leg
	_, near := relaytest.Loopback(t)
	relay := far(t, near, trip)
	var alone, both []float64
	for i := range 2 * pairs {
		a, b, _ := reservedPair(t, relay)
		var calls sync.WaitGroup
		took := &alone
		if i%2 == 1 {
			took = &both
			calls.Go(func() { _, _ = call(b, a.ID()) })
		}
		begun := time.Now()
		p, err := call(a, b.ID())
		if *took = append(*took, time.Since(begun).Seconds()/trip.Seconds()); err != nil || p.Kind != paths.KindRelayed {
			t.Errorf("%+v: %v", p, err)
		}
		calls.Wait()
	}
	t.Logf("round trips of a leg: %.2f of one who calls, %.2f of both", alone, both)
	if slices.Min(both) > slices.Min(alone)+0.5 { // a busy machine makes others longer
		t.Error("both wait longer")
	}
}
