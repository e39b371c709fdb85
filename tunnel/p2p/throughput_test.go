package p2p

import (
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/identity"
)

// A stream fills the path it is on: a window, a buffer or a pace that is too small by far shows
// here. What these paths carry on a quiet machine is ten times the floor and more
// (docs/measurements/throughput.md).
func TestOneStreamFillsItsPath(t *testing.T) {
	const floor = 150 // Mbit/s of fair time, also beside other tests on two cores
	for _, c := range []struct {
		nat  string
		kind paths.Kind
	}{
		{natNone, paths.KindDirect},
		{natSymmetric, paths.KindRelayed},
	} {
		_, a, b := twoSites(t, c.nat, c.nat)
		a.call(b)
		if c.kind == paths.KindDirect {
			a.onPath(b, 10*time.Second, c.kind, "tcp")
		}
		for _, proto := range []string{string(sinkProto), string(identity.DatagramProtocol)} {
			clock := fair.Start()
			r := a.ask(request{Cmd: "blast", Peer: b.id.String(), Proto: proto, Time: time.Second})
			clock.Stop()
			rate := float64(r.Bytes) * 8 / 1e6 / clock.Elapsed().Seconds()
			t.Logf("%s over %s %s: %.0f Mbit/s", proto, r.Path.Kind, r.Path.Transport, rate)
			if r.Err != "" || r.Path.Kind != c.kind || rate < floor {
				t.Errorf("%s over %s: %.0f Mbit/s, %q; want %d on a %s path", proto, r.Path.Kind, rate, r.Err, floor, c.kind)
			}
		}
	}
}
