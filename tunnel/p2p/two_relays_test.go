package p2p

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/test/relaytest"
	"edgemesh/tunnel/p2p/path/paths"
)

// Members that hold their reservations at different relays: what either sends is forwarded, by the relay of the one who was called.
func TestForwardedByDifferentRelays(t *testing.T) {
	t.Parallel()
	for name, swap := range map[string]bool{"first calls second": false, "second calls first": true} {
		t.Run(name, func(t *testing.T) {
			_, one := relaytest.LoopbackFor(t, 1)
			_, two := relaytest.LoopbackFor(t, 1)
			a, b, m := circuitPair(t, one)
			in := map[*Node]*collector{a: take(a), b: take(b)}
			fair.Eventually(t, 10*time.Second, "the first relay's reservation", func() error {
				if reserved(b, 1)() == nil {
					a, b = b, a
				}
				return reserved(a, 1)()
			})
			m.Relays = append(m.Relays, two)
			b.SetMembership(m)
			fair.Eventually(t, 10*time.Second, "the second relay's", reserved(b, 1))
			a.SetMembership(m)
			from, to, relay := a, b, two
			if swap {
				from, to, relay = b, a, one
			}
			there, back := circuitStream(t, from, to.ID()), circuitStream(t, to, from.ID())
			for s, way := range map[*paths.Stream][2]*Node{there: {from, to}, back: {to, from}} {
				from, to := way[0], way[1]
				fair.Eventually(t, 10*time.Second, "datagrams", hasDatagrams(in[from], s, to.ID(), 1000))
				if p := s.Path(); p.Datagrams != paths.Forwarded || p.Relay != relay.ID.String() {
					t.Errorf("path %+v, want it forwarded by %s", p, relay.ID)
				}
				const n = 50
				for i := range n {
					if err := in[from].put(to.ID(), bytes.Repeat([]byte{1}, 300+i)); err != nil {
						t.Fatal(err)
					}
				}
				fair.Eventually(t, 5*time.Second, "all arrive", func() error {
					if got, _, _ := in[to].snapshot(); len(got) != n {
						return fmt.Errorf("%d of %d", len(got), n)
					}
					return nil
				})
			}
			for _, n := range []*Node{a, b} {
				if reserved(n, 2)() == nil {
					t.Errorf("a node is reserved at both relays: %+v", n.Status().Relays)
				}
			}
		})
	}
}
